package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
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
	n    atomic.Int32 // flushes, those that failed among them
	over atomic.Int32 // those whose context was over
	down atomic.Bool
}

func (f *flushed) Flush(ctx context.Context) error {
	f.n.Add(1)
	if ctx.Err() != nil {
		f.over.Add(1)
	}
	if f.down.Load() {
		return errors.New("the disk is away")
	}
	return ctx.Err()
}

func (f *flushed) Swap(ctx context.Context, r txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	return f.scriptStore.Swap(context.WithoutCancel(ctx), r, d) // it finishes what it has begun
}

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

// A flush that failed is made again. Run ends with one behind all that was under
// way, by a context that is not over.
func TestWhatIsNotFlushedIsFlushedWhenRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flushed{scriptStore: newScriptStore()}
		s.down.Store(true)
		h := &held{}
		c, err := txnstate.New(txnstate.Config{Store: s, ProducerIDs: &counter{}, Dispatcher: h, FlushEvery: time.Second, EndWait: txnstate.AnswerAtDecision})
		require.NoError(t, err)
		stop := run(t, c)
		for _, id := range []string{"a", "b"} {
			p := initID(t, c, id)
			require.NoError(t, add(c, id, p, txnstate.TV0, tp0))
			_, err := c.End(bg, id, txnstate.End{Producer: p, Commit: true})
			require.NoError(t, err)
		}
		h.outcomes()[0].applied([]txnstate.Participant{tp0})
		time.Sleep(3500 * time.Millisecond)
		require.EqualValues(t, 3, s.n.Load(), "each second until it works")
		s.down.Store(false)
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 4, s.n.Load())

		s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
			go stop()
			time.Sleep(time.Minute) // Run waits for it
			require.EqualValues(t, 4, s.n.Load(), "flushed before what is under way is stored")
			return nil, nil
		}
		h.outcomes()[1].applied([]txnstate.Participant{tp0})
		time.Sleep(2 * time.Minute)
		require.Equal(t, txnstate.CompleteCommit, s.get("b").State)
		require.EqualValues(t, 5, s.n.Load())
		require.Zero(t, s.over.Load(), "a flush by a context that was over flushes nothing")
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

// A decision that a start finds says so to those who deliver it; one that was just
// made does not.
func TestADecisionThatWasFoundIsToldFromOneThatWasMade(t *testing.T) {
	h := &held{}
	c := start(t, txnstate.Config{Store: newScriptStore(prepared("found", txnstate.Producer{ID: 7}, tp0)), Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
	p := initID(t, c, "made")
	require.NoError(t, add(c, "made", p, txnstate.TV2, tp0))
	_, err := c.End(bg, "made", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
	require.NoError(t, err)
	require.Len(t, h.outcomes(), 2)
	for _, o := range h.outcomes() {
		require.Equal(t, o.TxnID == "found", o.Again, o.TxnID)
	}
}

// A completion that is stored without waiting counts like any other: the id has
// its expiry again.
func TestACompletionWithoutWaitingKeepsTheBooks(t *testing.T) {
	d := &deadlines{}
	c := start(t, txnstate.Config{Store: memstore.New(), Deadlines: d, ExpireAfter: time.Hour, EndWait: txnstate.AnswerWhenApplied})
	p := initID(t, c, "a")
	require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
	_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d open=false", t0.Add(time.Hour).UnixMilli()), d.of("a"))
}

// The first slot and the last are slots like the others, and one that is lost takes
// nothing of another's along; one that is lost while it is loaded stays lost.
func TestSlotsComeAndGoOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(slot int) string {
			for i := 0; ; i++ {
				if id := fmt.Sprint("id", i); txnstate.Slot(id) == slot {
					return id
				}
			}
		}
		first, last, middle := in(0), in(txnstate.Slots-1), in(7)
		var recs []txnstate.Record
		for i, id := range []string{first, last, middle} {
			recs = append(recs, prepared(id, txnstate.Producer{ID: int64(i)}, tp0))
		}
		s := newScriptStore(recs...)
		a := newSeat(t, s)
		for _, id := range []string{first, last, middle} {
			a.own(id, 5)
		}
		require.Len(t, a.outcomes(), 3)
		for _, id := range []string{first, last} {
			a.lose(id, 5)
			_, err := a.Describe(bg, id)
			require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
		}
		for _, o := range a.outcomes() {
			o.applied(o.Participants)
		}
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get(first).State)
		require.Equal(t, txnstate.CompleteCommit, s.get(middle).State, "its slot is still ours")

		gate := make(chan struct{})
		s.onSlot = func(int) error { <-gate; return nil }
		a.own(first, 6)
		a.lose(first, 6)
		close(gate)
		synctest.Wait()
		_, err := a.Describe(bg, first)
		require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
	})
}

// Whatever needs a fresh producer id gets it from the allocator.
func TestEveryRotationAsksTheAllocator(t *testing.T) {
	last := txnstate.Producer{ID: 7, Epoch: txnstate.MaxEpoch}
	for name, do := range map[string]func(c *txnstate.Coordinator) error{
		"End": func(c *txnstate.Coordinator) error {
			_, err := c.End(bg, "t", txnstate.End{Producer: last, Commit: true, Client: txnstate.TV2})
			return err
		},
		"Init": func(c *txnstate.Coordinator) error {
			_, err := initAgain(c, "t")
			if !errors.Is(err, txnstate.ErrConcurrentTransactions) {
				return fmt.Errorf("not aborted: %w", err)
			}
			return nil
		},
		"TimeOut":    func(c *txnstate.Coordinator) error { return c.TimeOut(bg, "t", t0.Add(time.Hour)) },
		"ForceAbort": func(c *txnstate.Coordinator) error { return c.ForceAbort(bg, "t") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScriptStore(ongoing("t", last, tp0))
				c := start(t, txnstate.Config{Store: s, ProducerIDs: &counter{n: 41}})
				require.NoError(t, do(c))
				synctest.Wait()
				require.Equal(t, txnstate.Producer{ID: 42}, s.get("t").Producer)
			})
		})
	}
}

// listed is a store whose slots have something that can't be read.
type listed struct {
	*scriptStore
	err atomic.Pointer[error]
}

func (l *listed) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if slot == txnstate.Slot("bad") && !yield(txnstate.Record{TxnID: "bad"}, txnstate.ErrDamaged) {
			return
		}
		for rec, err := range l.scriptStore.Slot(ctx, slot) {
			if !yield(rec, err) {
				return
			}
		}
		if err := l.err.Load(); err != nil {
			yield(txnstate.Record{}, *err)
		}
	}
}

// List leaves out what can't be read, and never ends early without saying so.
func TestListSaysWhatItLacks(t *testing.T) {
	s := &listed{scriptStore: newScriptStore()}
	c := start(t, txnstate.Config{Store: s})
	want := map[string]bool{}
	for i := range 100 {
		id := fmt.Sprint(i)
		initID(t, c, id)
		want[id] = true
	}
	got := map[string]bool{}
	for rec, err := range c.List(bg) {
		require.NoError(t, err)
		got[rec.TxnID] = true
	}
	require.Equal(t, want, got)
	gone := errors.New("volume is away")
	s.err.Store(&gone)
	n := 0
	for _, err := range c.List(bg) {
		if err != nil {
			require.ErrorIs(t, err, gone)
			n++
		}
	}
	require.Equal(t, 1, n, "and it is the last thing it says")

	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		gate := make(chan struct{})
		s.onSlot = func(int) error { <-gate; return nil }
		a := newSeat(t, s)
		a.own("t", 1)
		n := 0
		for _, err := range a.List(bg) {
			require.ErrorIs(t, err, txnstate.ErrCoordinatorLoading)
			n++
		}
		require.Equal(t, 1, n)
		close(gate)
	})
}

// stuck is a store that answers a load only when its context ends.
type stuck struct{ *scriptStore }

func (stuck) Load(ctx context.Context, _ string) (txnstate.Record, error) {
	<-ctx.Done()
	return txnstate.Record{}, ctx.Err()
}

// Run ends although the store hangs under a verification.
func TestRunEndsUnderAVerificationThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := txnstate.New(txnstate.Config{Store: stuck{newScriptStore()}, ProducerIDs: &counter{}, Dispatcher: &held{}})
		require.NoError(t, err)
		stop := run(t, c)
		done := make(chan error, 1)
		go func() { _, err := c.Verify(bg, "t", txnstate.Verify{}); done <- err }()
		synctest.Wait()
		stop()
		require.ErrorIs(t, <-done, txnstate.ErrCoordinatorNotAvailable)
	})
}

// An abort without a transaction (KIP-890) has nobody to tell, and is complete.
func TestAnAbortOfNothingIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &held{}
		c := start(t, txnstate.Config{Store: newScriptStore(), Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
		p := initID(t, c, "a")
		next, err := c.End(bg, "a", txnstate.End{Producer: p, Client: txnstate.TV2})
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, add(c, "a", next, txnstate.TV2, tp0))
		require.Empty(t, h.outcomes())
	})
}
