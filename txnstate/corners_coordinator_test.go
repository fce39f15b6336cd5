package txnstate_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Corners of the coordinator that the other tests walk past: found by changing the
// code and seeing no test fail (internal/mutate).

func TestARunThatIsCalledOffBeforeItBeginsEnds(t *testing.T) {
	c, err := txnstate.New(txnstate.Config{Store: newScriptStore(), ProducerIDs: &counter{}, Dispatcher: &held{}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	require.NoError(t, c.Run(ctx))
}

// KIP-939: a transaction that only its client ends has no deadline.
func TestATransactionInTwoPhasesHasNoDeadline(t *testing.T) {
	d := &deadlines{}
	c := start(t, txnstate.Config{Store: newScriptStore(), Deadlines: d, TwoPhaseCommit: true})
	p, err := c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TwoPhase: true})
	require.NoError(t, err)
	require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
	require.Equal(t, "-1 open=false", d.of("a"))
}

// A slot that is lost before a change is stored is not written to any more.
func TestALostSlotIsNotWrittenTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		a := newSeat(t, s)
		a.own("t", 5)
		p := initID(t, a.Coordinator, "t")
		was := s.get("t")
		s.onLoad = func(string) error {
			s.onLoad = nil
			a.lose("t", 5)
			return nil
		}
		require.ErrorIs(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0), txnstate.ErrNotCoordinator)
		require.True(t, s.get("t").Equal(was), "%v", s.get("t"))
	})
}

type flushed struct {
	*scriptStore
	n atomic.Int32
}

func (f *flushed) Flush(context.Context) error { f.n.Add(1); return nil }

// A completion that nothing else makes durable is flushed soon, and only then.
func TestCompletionsAreFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flushed{scriptStore: newScriptStore()}
		c := start(t, txnstate.Config{Store: s, FlushEvery: time.Second, EndWait: txnstate.AnswerWhenApplied})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
		time.Sleep(10 * time.Second)
		require.Zero(t, s.n.Load(), "nothing waits for it")
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
		time.Sleep(1100 * time.Millisecond)
		require.EqualValues(t, 1, s.n.Load())
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, s.n.Load())
	})
}

// An observer is told of refusals too, and a Tee tells all of its observers.
func TestObserversAreToldOfRefusals(t *testing.T) {
	var told []string
	one := txnstate.Observer{Refused: func(id, event string, err error) {
		told = append(told, id+" "+event+" "+txnstate.CodeOf(err).String())
	}}
	c := start(t, txnstate.Config{Store: newScriptStore(), Observer: txnstate.Tee(one, txnstate.Observer{}, one)})
	require.Error(t, add(c, "a", txnstate.Producer{ID: 7}, txnstate.TV2, tp0))
	_, err := c.Verify(bg, "b", txnstate.Verify{})
	require.Error(t, err)
	a, b := "a Add INVALID_PRODUCER_ID_MAPPING", "b Verify INVALID_PRODUCER_ID_MAPPING"
	require.Equal(t, []string{a, a, b, b}, told)
}
