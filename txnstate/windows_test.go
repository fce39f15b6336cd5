package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// Narrow moments of the coordinator that TestAnythingMayHappenAtAnyMoment does not
// come by.

// A record that can't be blocks its own id and nothing else: it is neither carried
// out nor changed.
func TestABrokenRecordIsLeftAlone_I1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		a, b := sameSlot()
		broken := prepared(a, p, tp1, tp0) // out of order
		s, h := newScriptStore(broken, prepared(b, p, tp0)), &held{}
		was := s.get(a)
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Limits: txnstate.Limits{TransactionalIDs: 1}})
		synctest.Wait()
		require.Len(t, h.outcomes(), 1)
		require.Equal(t, b, h.outcomes()[0].TxnID)
		for _, err := range []error{add(c, a, p, txnstate.TV2, tp0), c.TimeOut(bg, a, t0.Add(time.Hour)), c.ForceAbort(bg, a), second(initAgain(c, a)), second(c.Describe(bg, a))} {
			require.Equal(t, txnstate.CodeUnknownServerError, txnstate.CodeOf(err), "%v", err)
		}
		require.Equal(t, was, s.get(a))
		require.Len(t, h.outcomes(), 1)
	})
}

func second[T any](_ T, err error) error { return err }

// What a coordinator reads of a slot that was lost is the next owner's to carry out,
// however it learns of the loss.
func TestADecisionThatIsReadTooLateIsNotDelivered_F14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, a := newScriptStore(), &held{}, newAsked()
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: a})
		a.acquired <- func(yes, _ func(int, int32)) { yes(txnstate.Slot("a"), 3) }
		synctest.Wait()
		p := initID(t, c, "a")
		rec := prepared("a", p, tp0)
		s.putAt(rec, s.number())
		a.still.Store(false)
		require.ErrorIs(t, add(c, "a", p, txnstate.TV2, tp0), txnstate.ErrNotCoordinator)
		synctest.Wait()
		require.Empty(t, h.outcomes())
	})
	synctest.Test(t, func(t *testing.T) { // a load that ends when the slot is lost
		s := newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0))
		a := newSeat(t, s)
		gate := make(chan struct{})
		s.onSlot = func(int) error { <-gate; return nil }
		a.own("a", 5)
		a.lose("a", 5)
		close(gate)
		synctest.Wait()
		require.Empty(t, a.outcomes())
	})
}

// A completion that ends between the decision and its delivery is not delivered; one
// that is delivered too late takes back its own delivery, and none of the owner after.
func TestALateDeliveryTouchesNothingOfTheNextOwner_F02_F14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newScriptStore(), &held{}
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: n, EndWait: txnstate.AnswerAtDecision, Observer: txnstate.Observer{
			Transition: func(_ txnstate.State, rec txnstate.Record) {
				if rec.State == txnstate.PrepareCommit {
					n.acquired <- func(_, no func(int, int32)) { no(txnstate.Slot("t"), 5) }
					time.Sleep(time.Millisecond)
				}
			},
		}})
		n.acquired <- func(yes, _ func(int, int32)) { yes(txnstate.Slot("t"), 5) }
		synctest.Wait()
		p := initID(t, c, "t")
		require.NoError(t, add(c, "t", p, txnstate.TV2, tp0))
		_, _ = c.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		synctest.Wait()
		require.Empty(t, h.outcomes())
		require.Zero(t, c.Completing())
	})
	synctest.Test(t, func(t *testing.T) {
		a := newSeat(t, newScriptStore())
		a.own("t", 5)
		p := initID(t, a.Coordinator, "t")
		require.NoError(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0))
		a.held.at = func(txnstate.Outcome) {
			a.held.at = nil
			a.own("t", 6)
		}
		_, err := a.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		synctest.Wait()
		require.NotContains(t, a.cancelled, fmt.Sprintf("%d@6", txnstate.Slot("t")))
		require.Equal(t, 1, a.Completing(), "the next ownership's")
	})
}

// A host may take its time when it is told that a slot was lost: whoever found that
// out has the answer.
func TestALossIsAnsweredBeforeItIsCleanedUp_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newScriptStore(), newAsked()
		h := &slowCancel{gate: make(chan struct{})}
		close(h.gate)
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: a})
		a.acquired <- func(yes, _ func(int, int32)) { yes(txnstate.Slot("a"), 3) }
		synctest.Wait()
		p := initID(t, c, "a")
		h.gate = make(chan struct{})
		a.still.Store(false)
		got := make(chan error, 1)
		go func() { got <- add(c, "a", p, txnstate.TV2, tp0) }()
		synctest.Wait()
		require.Len(t, got, 1)
		require.ErrorIs(t, <-got, txnstate.ErrNotCoordinator)
		close(h.gate)
	})
}

type slowCancel struct {
	held
	gate chan struct{}
}

func (s *slowCancel) Cancel(int, int32) { <-s.gate }

// A change that ends while the slot's next ownership is being loaded may have come
// too late for that load: its deadline is set, and what it decided is carried out.
func TestAChangeThatALoadHasMissedIsTakenUp_F02_F25(t *testing.T) {
	for _, decided := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newScriptStore()
			a := newSeat(t, s)
			a.own("t", 5)
			p := initID(t, a.Coordinator, "t")
			gate := make(chan struct{})
			during := func(state txnstate.State) {
				s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
					if rec.State == state {
						s.onSwap = nil
						s.onSlot = func(int) error { <-gate; return nil } // all is read
						a.own("t", 6)
					}
					return nil, nil
				}
			}
			if decided {
				require.NoError(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0))
				during(txnstate.PrepareCommit)
				_, err := a.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
				require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
				require.Len(t, a.outcomes(), 1)
				require.EqualValues(t, 6, a.outcomes()[0].CoordinatorEpoch)
			} else {
				during(txnstate.Ongoing)
				require.ErrorIs(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0), txnstate.ErrNotCoordinator)
				require.Equal(t, fmt.Sprintf("%d open=true", t0.UnixMilli()+60_000), a.of("t"))
			}
			close(gate)
		})
	}
}

// -1 is no producer id, whoever gives it out (I6).
func TestAnAllocatorThatGivesOutNothingIsNotBelieved_I6(t *testing.T) {
	c := start(t, txnstate.Config{Store: newScriptStore(), ProducerIDs: &counter{n: -2}})
	_, err := c.InitIdempotent(bg, txnstate.NoProducer)
	require.ErrorIs(t, err, txnstate.ErrCoordinatorLoading)
	require.ErrorContains(t, err, "-1")
}

// Whoever has left before the call has asked for nothing.
func TestACallerThatLeftBeforeItsCallChangesNothing_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		c := start(t, txnstate.Config{Store: s})
		p := initID(t, c, "a")
		was := s.get("a")
		ctx, cancel := context.WithCancel(bg)
		cancel()
		require.ErrorIs(t, c.Add(ctx, "a", txnstate.Add{Producer: p, Participants: []txnstate.Participant{tp0}}), context.Canceled)
		_, err := c.Init(ctx, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
		require.ErrorIs(t, err, context.Canceled)
		_, err = c.End(ctx, "a", txnstate.End{Producer: p, Client: txnstate.TV2})
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		require.Equal(t, was, s.get("a"))
	})
}

// A store that can't say is not believed where the record is another one than what
// was to be written.
func TestWhatAnotherHasWrittenIsNotTakenForOnesOwn_I11(t *testing.T) {
	for _, begins := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newScriptStore()
			var store txnstate.Store = s
			if begins {
				store = &starting{scriptStore: s}
			}
			c := start(t, txnstate.Config{Store: store})
			p := initID(t, c, "a")
			s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
				s.onSwap = nil
				s.putAt(ongoing("a", p, tp1), s.number())
				return txnstate.ErrUncertain, nil
			}
			require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
			require.Equal(t, []txnstate.Participant{tp0, tp1}, s.get("a").Participants)
		})
	}
}

// Negative limits are none; a timeout that is none sets no deadline; and an id that
// is not known any more has none to come again for.
func TestWhatHasNoLimitHasNone(t *testing.T) {
	d := &deadlines{}
	c := start(t, txnstate.Config{Store: newScriptStore(), Deadlines: d, Limits: txnstate.Limits{TransactionalIDs: -1, MaxTimeout: -1}})
	for i := range 3 {
		initID(t, c, fmt.Sprint(i))
	}
	p, err := c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: txnstate.NoTimeout})
	require.NoError(t, err)
	require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
	require.Equal(t, "-1 open=false", d.of("a"))
	require.NoError(t, c.TimeOut(bg, "unknown", t0))
	require.Equal(t, "-1 open=false", d.of("unknown"))
}

// However long a store was away, what waits for it goes on soon after.
func TestNoPauseBetweenAttemptsGrowsWithoutEnd_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0)), &held{}
		var down atomic.Bool
		away := func() error {
			if down.Load() {
				return errors.New("away")
			}
			return nil
		}
		down.Store(true)
		s.onSlot = func(slot int) error {
			if slot != txnstate.Slot("a") {
				return nil
			}
			return away()
		}
		s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) { return away(), nil }
		var stuck atomic.Int32
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Observer: txnstate.Observer{Stuck: func(txnstate.Outcome, error) { stuck.Add(1) }}})
		time.Sleep(10 * time.Minute)
		require.Empty(t, h.outcomes())
		down.Store(false)
		time.Sleep(5 * time.Second)
		require.Len(t, h.outcomes(), 1)
		down.Store(true)
		for range 3 { // confirmed again and again, it is stored by one
			h.outcomes()[0].applied([]txnstate.Participant{tp0})
		}
		synctest.Wait()
		require.EqualValues(t, 1, stuck.Load())
		time.Sleep(10 * time.Minute)
		down.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
		require.Zero(t, c.Completing())
	})
}

// Who has lost a slot while it waits to load it once more leaves it alone: it would
// take over what is the next owner's.
func TestALostSlotIsNotLoadedAgain_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, again := range []bool{false, true} {
			s := newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0))
			var visits atomic.Int32
			s.onSlot = func(int) error {
				if visits.Add(1) == 1 {
					return errors.New("away")
				}
				return nil
			}
			a := newSeat(t, s)
			a.own("a", 5)
			want := 1
			if again {
				a.own("a", 6) // in the same process
				want++
			} else {
				a.lose("a", 5)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			require.EqualValues(t, want, visits.Load())
		}
	})
}

// failing is an Ownership that gives a slot and fails an hour later.
type failing struct{}

func (failing) Watch(ctx context.Context, yes, no func(int, int32)) error {
	no(-1, 9)
	no(txnstate.Slots, 9)
	yes(txnstate.Slot("a"), 1)
	select {
	case <-time.After(time.Hour):
		return errors.New("lease store is gone")
	case <-ctx.Done():
		return nil
	}
}

// Run ends although a slot can't be loaded, and although a caller waits for leaders.
func TestRunEndsWhateverIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		s.onSlot = func(int) error { return errors.New("away") }
		c, err := txnstate.New(txnstate.Config{Store: s, ProducerIDs: &counter{}, Dispatcher: &held{}, Ownership: failing{}})
		require.NoError(t, err)
		require.ErrorContains(t, c.Run(bg), "lease store is gone")
	})
	synctest.Test(t, func(t *testing.T) {
		var stop func()
		c, err := txnstate.New(txnstate.Config{Store: newScriptStore(), ProducerIDs: &counter{}, Dispatcher: &held{}, EndWait: txnstate.AnswerWhenApplied, Observer: txnstate.Observer{
			Transition: func(_ txnstate.State, rec txnstate.Record) {
				if rec.State == txnstate.PrepareCommit {
					go stop()
					time.Sleep(time.Second) // it has begun to end
				}
			},
		}})
		require.NoError(t, err)
		stop = run(t, c)
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		got := make(chan error, 1)
		go func() {
			_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
			got <- err
		}()
		time.Sleep(time.Minute)
		require.Len(t, got, 1, "it is decided, and the next process goes on with it")
		require.NoError(t, <-got)
	})
}

// Everybody gets the turn of an id in the order of coming.
func TestTheTurnGoesToWhoCameFirst_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		c := start(t, txnstate.Config{Store: g})
		p := initID(t, c, "a")
		held := g.onSwap
		g.onSwap = func(rec txnstate.Record, d txnstate.Durability) (before, after error) {
			before, after = held(rec, d)
			time.Sleep(time.Second)
			return before, after
		}
		open := g.close()
		var mu sync.Mutex
		var order []int
		for i := range 6 {
			go func() {
				_ = add(c, "a", p, txnstate.TV2, txnstate.Partition("t", int32(i)))
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		open()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, order, 6)
		require.True(t, slices.IsSorted(order), order)
	})
}

// A verification that does not wait for its turn heeds markers that are on their way
// like one that does (I4).
func TestAVerificationBesideAChangeHeedsMarkersOnTheirWay_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7, Epoch: 3}
		s := newScriptStore(prepared("t", p, tp0))
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h})
		synctest.Wait()
		rec := ongoing("t", p, tp0)
		rec.TxnSeq = s.get("t").TxnSeq
		s.put(rec) // another broker's doing
		gate := make(chan struct{})
		s.onLoad = func(string) error { s.onLoad = nil; <-gate; return nil }
		go func() { _ = add(c, "t", p, txnstate.TV0, tp1) }()
		synctest.Wait()
		require.True(t, c.Busy("t"))
		missing, err := c.Verify(bg, "t", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0}})
		require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		require.Empty(t, missing)
		close(gate)
	})
}

// lostAfter is a store whose completions are the last that its owner hears.
type lostAfter struct {
	*memstore.Store
	lose func()
}

func (s lostAfter) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	v, ok := s.Store.SwapNow(next)
	s.lose()
	return v, ok
}

// A completion after which the slot is lost leaves no deadline behind.
func TestALostSlotHasNoDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		d := &deadlines{}
		c := start(t, txnstate.Config{Deadlines: d, Ownership: n, Store: lostAfter{memstore.New(), func() {
			told := make(chan struct{})
			n.acquired <- func(_, no func(int, int32)) { no(txnstate.Slot("a"), 1); close(told) }
			<-told
		}}})
		n.acquired <- func(yes, _ func(int, int32)) { yes(txnstate.Slot("a"), 1) }
		synctest.Wait()
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, "-1 open=false", d.of("a"))
	})
}
