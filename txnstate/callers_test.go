package txnstate_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// gated holds up every swap that is asked for while it is shut.
type gated struct {
	*scriptStore
	shut  atomic.Pointer[chan struct{}]
	loads atomic.Int32
}

func newGated(recs ...txnstate.Record) *gated {
	g := &gated{scriptStore: newScriptStore(recs...)}
	g.onLoad = func(string) error { g.loads.Add(1); return nil }
	g.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
		if gate := g.shut.Load(); gate != nil {
			<-*gate
		}
		return nil, nil
	}
	return g
}

// close holds up what comes now, until open.
func (g *gated) close() (open func()) {
	gate := make(chan struct{})
	g.shut.Store(&gate)
	return func() {
		g.shut.Store(nil)
		close(gate)
	}
}

func soon() (context.Context, context.CancelFunc) { return context.WithTimeout(bg, time.Second) }

// A caller that leaves takes nothing of its call along: the store goes on with a
// context that is not the caller's, and what is decided is carried out.
func TestTheContextOfACallerEndsNothingThatHasBegun_I11(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		c := start(t, txnstate.Config{Store: g})
		for step, call := range []func(ctx context.Context, id string, p txnstate.Producer) error{
			func(ctx context.Context, id string, p txnstate.Producer) error {
				_, err := c.Init(ctx, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
				return err
			},
			func(ctx context.Context, id string, p txnstate.Producer) error {
				return c.Add(ctx, id, txnstate.Add{Producer: p, Participants: []txnstate.Participant{tp0}})
			},
			func(ctx context.Context, id string, p txnstate.Producer) error {
				_, err := c.End(ctx, id, txnstate.End{Producer: p, Commit: true})
				return err
			},
			func(ctx context.Context, id string, _ txnstate.Producer) error {
				return c.Expire(ctx, id, t0.Add(1000*time.Hour))
			},
		} {
			open := g.close()
			if step == 3 {
				open() // a deletion is not held up
			}
			ctx, cancel := soon()
			err := call(ctx, "a", g.get("a").Producer)
			cancel()
			if step < 3 {
				require.ErrorIs(t, err, context.DeadlineExceeded, "step %d", step)
				open()
			}
			synctest.Wait()
			want := []txnstate.State{txnstate.Empty, txnstate.Ongoing, txnstate.CompleteCommit, txnstate.Empty}[step]
			require.Equal(t, want, g.get("a").State, "step %d", step)
			require.Equal(t, step < 3, g.get("a").Known() && g.get("a").TxnID != "", "step %d", step)
		}
	})
}

// A caller that leaves while it waits for the turn of its id changes nothing later,
// and costs nothing: nobody knows any more what it asked for.
func TestWhoLeavesBeforeItsTurnHasAskedForNothing_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		c := start(t, txnstate.Config{Store: g})
		p := initID(t, c, "a")
		open := g.close()
		first := make(chan error, 1)
		go func() { first <- add(c, "a", p, txnstate.TV2, tp0) }()
		synctest.Wait()
		before := g.loads.Load()
		for i := range 100 {
			ctx, cancel := soon()
			err := c.Add(ctx, "a", txnstate.Add{Producer: p, Participants: []txnstate.Participant{txnstate.Partition("late", int32(i))}})
			require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable)
			cancel()
		}
		open()
		synctest.Wait()
		require.NoError(t, <-first)
		require.Equal(t, []txnstate.Participant{tp0}, g.get("a").Participants)
		require.Equal(t, before, g.loads.Load(), "the store was asked for those who had left")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp1), "the id is free")
	})
}

// Everybody gets the answer to his own question, whoever left before him.
func TestNobodyGetsTheAnswerToWhatAnotherAskedAndLeft_I6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		c := start(t, txnstate.Config{Store: g})
		seen := map[txnstate.Producer]string{}
		for i := range 30 {
			gone, here := fmt.Sprint("gone-", i), fmt.Sprint("here-", i)
			open := g.close()
			ctx, cancel := soon()
			_, err := c.Init(ctx, gone, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
			type answer struct {
				p   txnstate.Producer
				err error
			}
			got := make(chan answer, 1)
			go func() {
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				defer cancel()
				p, err := c.Init(ctx, here, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
				got <- answer{p, err}
			}()
			synctest.Wait()
			open()
			synctest.Wait()
			a := <-got
			require.NoError(t, a.err)
			require.Equal(t, g.get(here).Producer, a.p, "the identity of another id")
			require.Empty(t, seen[a.p])
			seen[a.p] = here
		}
	})
}

// F09, KAFKA-16352: the next transaction of an id may be decided before the
// completion of the one before is put away. Under protocol 1 both have the same
// producer and epoch. The next one is delivered, once, and completes.
func TestF09_ADecisionRightBehindACompletionIsCarriedOutOnce(t *testing.T) {
	for _, v := range []txnstate.TransactionVersion{txnstate.TV0, txnstate.TV2} {
		synctest.Test(t, func(t *testing.T) {
			var c *txnstate.Coordinator
			s, h := newScriptStore(), &held{}
			var p txnstate.Producer
			commit := func() {
				require.NoError(t, add(c, "a", p, v, tp0))
				next, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: v})
				require.NoError(t, err)
				if v >= txnstate.TV2 {
					p = next
				}
			}
			completed := 0
			c = start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerAtDecision, Observer: txnstate.Observer{
				Transition: func(_ txnstate.State, r txnstate.Record) {
					if r.State == txnstate.CompleteCommit {
						if completed++; completed == 1 {
							commit() // by a client that is quick
						}
					}
				},
			}})
			p = initID(t, c, "a")
			commit()
			h.outcomes()[0].applied([]txnstate.Participant{tp0})
			synctest.Wait()
			require.Equal(t, 1, completed)
			require.Len(t, h.outcomes(), 2)
			require.ErrorIs(t, add(c, "a", p, v, tp1), txnstate.ErrConcurrentTransactions)
			synctest.Wait()
			require.Len(t, h.outcomes(), 2, "once")
			require.EqualValues(t, 2, h.outcomes()[1].TxnSeq)
			h.outcomes()[0].applied([]txnstate.Participant{tp0}) // late, and again
			synctest.Wait()
			require.Equal(t, 1, completed)
			h.outcomes()[1].applied([]txnstate.Participant{tp0})
			synctest.Wait()
			require.Equal(t, 2, completed)
			require.NoError(t, add(c, "a", p, v, tp1))
		})
	}
}
