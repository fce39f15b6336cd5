package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// asked is an ownership that can be asked.
type asked struct {
	notices
	still *atomic.Bool
}

func newAsked() asked {
	a := asked{notices{acquired: make(chan func(yes, no func(int, int32)))}, new(atomic.Bool)}
	a.still.Store(true)
	return a
}

// or is a where it is to be asked, and otherwise what can't be.
func (a asked) or(asks bool) txnstate.Ownership {
	if asks {
		return a
	}
	return a.notices
}

func (a asked) Still(context.Context, int, int32) (bool, error) { return a.still.Load(), nil }

// heldCompletion is a store whose completions wait.
type heldCompletion struct {
	txnstate.Store
	gate chan struct{}
}

func (h heldCompletion) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if next.State == txnstate.CompleteCommit {
		<-h.gate
	}
	return h.Store.Swap(ctx, next, d)
}

// A completion that a former owner had under way when the slot was lost does not end
// the transaction under the next owner's hands: it has markers on their way. The owner
// after it would know nothing of them, and begin the next transaction.
func TestWhoTakesADecisionOverCompletesIt_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0))
		slot := txnstate.Slot("a")
		former, next := newAsked(), newAsked()
		held1, held2 := &held{}, &held{}
		gate := make(chan struct{})
		start(t, txnstate.Config{Store: heldCompletion{s, gate}, Dispatcher: held1, Ownership: former})
		start(t, txnstate.Config{Store: s, Dispatcher: held2, Ownership: next})

		former.acquired <- func(yes, _ func(int, int32)) { yes(slot, 3) }
		synctest.Wait()
		held1.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait() // it has asked whether the slot is still its own, and writes

		former.still.Store(false)
		next.acquired <- func(yes, _ func(int, int32)) { yes(slot, 4) }
		synctest.Wait()
		require.Len(t, held2.outcomes(), 1)
		close(gate)
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)

		held2.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}

// Something comes between the moment at which a load reads a decision and the one at
// which it is taken over. The load goes on with the record as it is then, or is made
// again: what is decided is carried out once, what is complete is left alone, and the
// deadline is that of the record.
func TestADecisionIsTakenOverAsItIsThen_I4_I12(t *testing.T) {
	p := txnstate.Producer{ID: 7}
	completed := prepared("a", p)
	completed.State = txnstate.CompleteCommit
	expiry := fmt.Sprintf("%d open=false", t0.Add(time.Hour).UnixMilli())
	type scripted struct {
		*scriptStore
		swaps int
		now   txnstate.Durability
	}
	for name, tc := range map[string]struct {
		alone   bool // this process owns every slot
		between func(s *scripted) (before, after error)
		state   txnstate.State // at rest, the leaders hold back
		sent    int
		swaps   int
		due     string
	}{
		"nothing":            {sent: 1, swaps: 1, state: txnstate.PrepareCommit, due: "-1 open=false"},
		"nobody else writes": {alone: true, sent: 1, state: txnstate.PrepareCommit, due: "-1 open=false"},
		"it is changed": {sent: 1, swaps: 2, state: txnstate.PrepareCommit, due: "-1 open=false", between: func(s *scripted) (error, error) {
			s.put(s.get("a"))
			return nil, nil
		}},
		"it is completed": {swaps: 1, state: txnstate.CompleteCommit, due: expiry, between: func(s *scripted) (error, error) {
			s.put(completed)
			return nil, nil
		}},
		"it is completed, and the next one has begun": {swaps: 1, state: txnstate.Ongoing, due: fmt.Sprintf("%d open=true", t0.UnixMilli()+60_000), between: func(s *scripted) (error, error) {
			next := ongoing("a", p, tp0)
			next.TxnSeq = completed.TxnSeq
			s.put(next)
			return nil, nil
		}},
		"it is deleted": {swaps: 1, due: "-1 open=false", between: func(s *scripted) (error, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.recs, "a")
			return txnstate.ErrNotFound, nil
		}},
		"the store can't say, and has not": {sent: 1, swaps: 2, state: txnstate.PrepareCommit, due: "-1 open=false", between: func(*scripted) (error, error) {
			return txnstate.ErrUncertain, nil
		}},
		"the store can't say, and has": {sent: 1, swaps: 2, state: txnstate.PrepareCommit, due: "-1 open=false", between: func(*scripted) (error, error) {
			return nil, txnstate.ErrUncertain
		}},
		"it is changed, and can't be read": {sent: 1, swaps: 2, state: txnstate.PrepareCommit, due: "-1 open=false", between: func(s *scripted) (error, error) {
			s.put(s.get("a"))
			s.onLoad = func(string) error {
				s.onLoad = nil
				return errors.New("volume is away")
			}
			return nil, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{scriptStore: newScriptStore(prepared("a", p, tp0), ongoing("b", p, tp0))}
				slot := txnstate.Slot("a")
				s.onSwap = func(rec txnstate.Record, d txnstate.Durability) (before, after error) {
					if rec.TxnID != "a" || rec.State != txnstate.PrepareCommit {
						t.Errorf("%s is written", rec)
					}
					if s.swaps++; s.swaps == 1 && tc.between != nil {
						before, after = tc.between(s)
					}
					s.now = d
					return before, after
				}
				h, d := &held{}, &deadlines{}
				n := notices{acquired: make(chan func(yes, no func(int, int32)))}
				cfg := txnstate.Config{Store: completesNow{s.scriptStore}, ProducerIDs: &counter{}, Now: func() time.Time { return t0 }, Dispatcher: h, Deadlines: d, ExpireAfter: time.Hour, Ownership: n}
				if tc.alone {
					cfg.Ownership = nil
				}
				c, err := txnstate.New(cfg)
				require.NoError(t, err)
				run(t, c)
				if !tc.alone {
					n.acquired <- func(yes, _ func(int, int32)) {
						yes(slot, 4)
						if other := txnstate.Slot("b"); other != slot {
							yes(other, 4)
						}
					}
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, tc.swaps, s.swaps, "what is not decided is nobody's to take over")
				require.Len(t, h.outcomes(), tc.sent)
				require.Equal(t, tc.sent, c.Completing())
				require.Equal(t, tc.due, d.of("a"))
				require.Equal(t, tc.state, s.get("a").State)
				_, err = c.Describe(bg, "b")
				require.NoError(t, err)
				if tc.swaps > 0 {
					require.Equal(t, txnstate.Durable, s.now)
				}
				s.onSwap = func(_ txnstate.Record, d txnstate.Durability) (error, error) {
					s.now = d
					return nil, nil
				}
				for _, o := range h.outcomes() {
					require.Equal(t, !tc.alone, o.CoordinatorEpoch == 4)
					o.applied([]txnstate.Participant{tp0})
					synctest.Wait()
					require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
					require.Equal(t, !tc.alone, s.now == txnstate.Durable, "what was taken over is not left to memory")
				}
			})
		})
	}
}

// completesNow is a store that completes without waiting.
type completesNow struct{ *scriptStore }

func (s completesNow) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	v, err := s.Swap(bg, next, txnstate.Later)
	return v, err == nil
}
