package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// volume is what decides who owns the slots: the highest epoch does.
type volume struct {
	mu     sync.Mutex
	epochs map[int]int32
	err    error
	asked  int
}

func (v *volume) claim(slot int, epoch int32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.epochs[slot] = epoch
}

func (v *volume) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = err
}

// claims is an Ownership whose notices come when the test says, and that can be
// asked.
type claims struct {
	notices
	v *volume
}

func (c claims) Still(_ context.Context, slot int, epoch int32) (bool, error) {
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	c.v.asked++
	return c.v.epochs[slot] == epoch, c.v.err
}

// afterRead calls a hook when a record, or the records of a slot, have been read
// and nothing has been made of them.
type afterRead struct {
	txnstate.Store
	hook func()
}

func (s *afterRead) Load(ctx context.Context, id string) (txnstate.Record, error) {
	rec, err := s.Store.Load(ctx, id)
	s.hook()
	return rec, err
}

func (s *afterRead) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		for rec, err := range s.Store.Slot(ctx, slot) {
			if !yield(rec, err) {
				return
			}
		}
		s.hook()
	}
}

// twoSeats are two coordinators of one store: the first owns the slot of "t" at
// epoch 1 and runs into hook each time it has read something; takeOver makes the
// second the owner without a word to the first.
type twoSeats struct {
	a, b     *txnstate.Coordinator
	ah       *held
	v        *volume
	store    *scriptStore
	hook     func()
	takeOver func()
}

func newTwoSeats(t *testing.T, canAsk bool) *twoSeats {
	s := &twoSeats{v: &volume{epochs: map[int]int32{}}, store: newScriptStore(), hook: func() {}, ah: &held{auto: true}}
	ids := &counter{n: 99}
	seat := func(store txnstate.Store, h *held) (*txnstate.Coordinator, func(epoch int32)) {
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		var o txnstate.Ownership = claims{n, s.v}
		if !canAsk {
			o = n
		}
		c := start(t, txnstate.Config{Store: store, Ownership: o, Dispatcher: h, ProducerIDs: ids, EndWait: txnstate.AnswerWhenApplied})
		return c, func(epoch int32) {
			s.v.claim(txnstate.Slot("t"), epoch)
			n.acquired <- func(yes, _ func(int, int32)) { yes(txnstate.Slot("t"), epoch) }
			synctest.Wait()
		}
	}
	a, own := seat(&afterRead{s.store, func() { s.hook() }}, s.ah)
	b, takeOver := seat(s.store, &held{auto: true})
	s.a, s.b = a, b
	own(1)
	s.takeOver = func() { takeOver(2) }
	return s
}

// beforeWrite calls a hook once, when a coordinator has decided and nothing is
// stored.
func (s *twoSeats) beforeWrite(hook func()) {
	s.store.onSwap = func(txnstate.Record, txnstate.Durability) (error, error) {
		s.store.onSwap = nil
		hook()
		return nil, nil
	}
}

// A coordinator is stopped when it has read a record; another takes the slot over
// and ends the transaction. The first wakes up, has been told nothing, and would
// answer by what it read.
func TestACoordinatorThatSleptBetweenReadingAndAnsweringSaysNothing(t *testing.T) {
	type request func(c *txnstate.Coordinator, p txnstate.Producer) error
	init := func(e txnstate.Producer) request {
		return func(c *txnstate.Coordinator, _ txnstate.Producer) error {
			_, err := c.Init(bg, "t", txnstate.Init{Expected: e, TimeoutMs: 1000})
			return err
		}
	}
	end := func(commit bool, v txnstate.TransactionVersion) request {
		return func(c *txnstate.Coordinator, p txnstate.Producer) error {
			_, err := c.End(bg, "t", txnstate.End{Producer: p, Commit: commit, Client: v})
			return err
		}
	}
	verify := func(c *txnstate.Coordinator, p txnstate.Producer) error {
		missing, err := c.Verify(bg, "t", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0}})
		if err == nil && len(missing) > 0 {
			return errors.New("missing")
		}
		return err
	}
	list := func(c *txnstate.Coordinator, _ txnstate.Producer) error {
		for range c.List(bg) {
			return nil
		}
		return txnstate.ErrNotCoordinator // nothing to be seen
	}
	const underWay = "a verification while a change is under way"
	for name, tc := range map[string]struct {
		ended bool // the transaction has been committed when the request comes
		ask   request
		blind txnstate.Code // the answer where nobody can be asked
	}{
		"a partition added already": {false, func(c *txnstate.Coordinator, p txnstate.Producer) error {
			return add(c, "t", p, txnstate.TV0, tp0)
		}, txnstate.CodeNone},
		"a verification":      {false, verify, txnstate.CodeNone},
		underWay:              {false, verify, txnstate.CodeNone},
		"a commit come again": {true, end(true, txnstate.TV0), txnstate.CodeNone},
		"a refused abort":     {true, end(false, txnstate.TV0), txnstate.CodeInvalidTxnState},
		"a fenced holder":     {false, init(txnstate.Producer{ID: 7, Epoch: 3}), txnstate.CodeProducerFenced},
		"Describe": {false, func(c *txnstate.Coordinator, _ txnstate.Producer) error {
			_, err := c.Describe(bg, "t")
			return err
		}, txnstate.CodeNone},
		"List": {false, list, txnstate.CodeNone},
		"an abort without a transaction": {true, func(c *txnstate.Coordinator, _ txnstate.Producer) error {
			return c.ForceAbort(bg, "t")
		}, txnstate.CodeInvalidTxnState},
	} {
		for _, canAsk := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, asks=%v", name, canAsk), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newTwoSeats(t, canAsk)
					p := initID(t, s.a, "t")
					require.NoError(t, add(s.a, "t", p, txnstate.TV0, tp0))
					if tc.ended {
						require.NoError(t, end(true, txnstate.TV0)(s.a, p))
						synctest.Wait()
					}
					gate := make(chan struct{})
					s.hook = func() { <-gate }
					if name == underWay { // it holds the id's turn, and sleeps too
						go func() { _ = add(s.a, "t", p, txnstate.TV0, tp0) }()
						synctest.Wait()
					}
					answer := make(chan error, 1)
					go func() { answer <- tc.ask(s.a, p) }()
					synctest.Wait()
					s.takeOver()
					_, err := s.b.Init(bg, "t", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1000})
					if !tc.ended {
						require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions) // it is aborted now
					}
					close(gate)
					err = <-answer
					if !canAsk {
						require.Equal(t, tc.blind, txnstate.CodeOf(err), "the test is worth nothing: %v", err)
						return
					}
					require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
					synctest.Wait()
					// The slot counts as lost from then on.
					asked := s.v.asked
					_, err = s.a.Describe(bg, "t")
					require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
					require.Equal(t, asked, s.v.asked)
					require.Contains(t, s.ah.cancelled, fmt.Sprintf("%d@1", txnstate.Slot("t")))
				})
			})
		}
	}
}

// Where nobody knows, the caller comes again, and the slot stays.
func TestAnOwnershipThatCantBeLookedAtIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSeats(t, true)
		p := initID(t, s.a, "t")
		require.NoError(t, add(s.a, "t", p, txnstate.TV0, tp0))
		s.v.fail(errors.New("the volume hangs"))
		unknown := func(err error) {
			t.Helper()
			require.Equal(t, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeOf(err), "%v", err)
		}
		unknown(add(s.a, "t", p, txnstate.TV0, tp0))
		_, err := s.a.Describe(bg, "t")
		unknown(err)
		for _, err := range s.a.List(bg) {
			unknown(err)
		}
		_, err = s.a.End(bg, "t", txnstate.End{Producer: p, Commit: true})
		unknown(err)
		require.Equal(t, txnstate.Ongoing, s.store.get("t").State)
		// Once a decision is durable it is carried out. Nobody is told yet that it is.
		s.v.fail(nil)
		s.beforeWrite(func() { s.v.fail(errors.New("the volume hangs")) })
		_, err = s.a.End(bg, "t", txnstate.End{Producer: p, Commit: true})
		unknown(err)
		s.v.fail(nil)
		time.Sleep(time.Minute)
		require.Equal(t, txnstate.CompleteCommit, s.store.get("t").State)
		_, err = s.a.End(bg, "t", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
		recs := 0
		for _, err := range s.a.List(bg) {
			require.NoError(t, err)
			recs++
		}
		require.Equal(t, 1, recs)
	})
}

// A decision that a deposed coordinator stores is not told as done: its successor
// has read the record before, and is sent the caller, who makes it look (I12).
func TestADecisionOfACoordinatorThatDoesNotKnowOfItsEndIsNotToldAsDone_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwoSeats(t, true)
		p := initID(t, s.a, "t")
		require.NoError(t, add(s.a, "t", p, txnstate.TV0, tp0))
		s.beforeWrite(s.takeOver)
		end := txnstate.End{Producer: p, Commit: true}
		_, err := s.a.End(bg, "t", end)
		require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
		synctest.Wait()
		require.Empty(t, s.ah.outcomes(), "no marker leaves a deposed coordinator (F14)")
		require.Equal(t, txnstate.PrepareCommit, s.store.get("t").State)

		_, err = s.b.End(bg, "t", end)
		require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		synctest.Wait()
		_, err = s.b.End(bg, "t", end)
		require.NoError(t, err)
	})
}

// A commit under protocol 1 waits in the buffers of a coordinator that is stopped.
// Its caller repeats it with the successor and goes on to its next transaction,
// under the same epoch. The sleeper wakes up, reads it, and has been told nothing
// of its end: it must not commit what there is of that transaction. (F22)
func TestACommitThatWasDelayedByASleepDoesNotEndTheNextTransaction_F22(t *testing.T) {
	for _, canAsk := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newTwoSeats(t, canAsk)
			p := initID(t, s.a, "t")
			require.NoError(t, add(s.a, "t", p, txnstate.TV0, tp0))
			s.takeOver()
			end := txnstate.End{Producer: p, Commit: true}
			_, err := s.b.End(bg, "t", end)
			require.NoError(t, err)
			synctest.Wait()
			require.NoError(t, add(s.b, "t", p, txnstate.TV0, tp0))
			_, err = s.a.End(bg, "t", end)
			if !canAsk {
				require.NoError(t, err)
				require.Equal(t, txnstate.CompleteCommit, s.store.get("t").State, "the test is worth nothing")
				return
			}
			require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
			require.Equal(t, txnstate.Ongoing, s.store.get("t").State)
		})
	}
}

// A broker takes a slot over, finds a decision and tells the participants again.
// The one before, which does not know of its end yet, stores the completion only
// then. The next transaction, of the same epoch under protocol 1, has to wait until
// nothing is on its way any more: a marker of the old one would end it (I4). So has
// one that the other began.
func TestANextTransactionWaitsForMarkersThatAreSentAgain_I4(t *testing.T) {
	for _, begun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := txnstate.Producer{ID: 7, Epoch: 3}
			store := newScriptStore(prepared("t", p, tp0))
			h := &held{}
			c := start(t, txnstate.Config{Store: store, Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
			synctest.Wait()
			require.Len(t, h.outcomes(), 1)

			rec := store.get("t")
			rec.State, rec.Participants = txnstate.CompleteCommit, nil
			if begun {
				seq := rec.TxnSeq
				rec = ongoing("t", p, tp0)
				rec.TxnSeq = seq
			}
			store.put(rec)
			verify := func() error {
				missing, err := c.Verify(bg, "t", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0}})
				require.Empty(t, missing)
				return err
			}
			end := func() error {
				_, err := c.End(bg, "t", txnstate.End{Producer: p})
				return err
			}
			require.ErrorIs(t, add(c, "t", p, txnstate.TV0, tp0), txnstate.ErrConcurrentTransactions)
			if begun {
				require.ErrorIs(t, verify(), txnstate.ErrConcurrentTransactions)
				require.ErrorIs(t, end(), txnstate.ErrConcurrentTransactions)
			}
			require.Len(t, h.outcomes(), 1)

			o := h.outcomes()[0]
			o.applied(o.Participants)
			synctest.Wait()
			require.NoError(t, add(c, "t", p, txnstate.TV0, tp0))
			require.NoError(t, verify())
			require.NoError(t, end())
			require.Len(t, h.outcomes(), 2)
		})
	}
}

// Under TV2 the next transaction has another epoch, which tells the markers apart:
// it need not wait.
func TestANextTransactionOfAnotherEpochDoesNotWait_F37(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7, Epoch: 3}
		rec := prepared("t", p, tp0)
		rec.ClientVersion, rec.LastEpoch = txnstate.TV2, 2
		store := newScriptStore(rec)
		c := start(t, txnstate.Config{Store: store, Dispatcher: &held{}})
		next := store.get("t")
		next.State, next.Participants, next.LastEpoch = txnstate.Empty, nil, -1 // completed elsewhere, and initialised
		next.Producer.Epoch++
		store.put(next)
		require.NoError(t, add(c, "t", next.Producer, txnstate.TV2, tp0))
	})
}
