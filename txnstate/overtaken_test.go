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
)

// slowPage is a store of which one visit of a slot has read its records, and gives
// them when the gate opens.
type slowPage struct {
	*scriptStore
	late   int // the visit that is, from 1
	visits int
	gate   chan struct{}
}

func (s *slowPage) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	s.mu.Lock()
	s.visits++
	late := s.visits == s.late
	s.mu.Unlock()
	if !late {
		return s.scriptStore.Slot(ctx, slot)
	}
	var page []txnstate.Record
	for r := range s.scriptStore.Slot(ctx, slot) {
		page = append(page, r)
	}
	return func(yield func(txnstate.Record, error) bool) {
		<-s.gate
		for _, r := range page {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// The load of an ownership that was lost, and came again, goes on late with what it
// had read: no deadline of the next ownership is changed by it, and nothing that it
// found decided stands in the way of what came after (I11, I12).
func TestALateLoadChangesNothingOfTheNextOwnership_I11_I12(t *testing.T) {
	p := txnstate.Producer{ID: 7}
	completed := prepared("a", p)
	completed.State = txnstate.CompleteCommit
	for _, then := range []txnstate.Record{completed, prepared("a", p, tp0)} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowPage{scriptStore: newScriptStore(then), late: 1, gate: make(chan struct{})}
			n := notices{acquired: make(chan func(yes, no func(int, int32)))}
			d := &deadlines{}
			c := start(t, txnstate.Config{Store: s, Deadlines: d, Dispatcher: &held{auto: true}, Ownership: n})
			slot := txnstate.Slot("a")
			n.acquired <- func(yes, no func(int, int32)) { yes(slot, 3) }
			synctest.Wait()
			n.acquired <- func(yes, no func(int, int32)) { no(slot, 3); yes(slot, 5) }
			time.Sleep(time.Minute)
			require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
			require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
			due := d.of("a")
			require.Contains(t, due, "open=true")
			close(s.gate)
			time.Sleep(time.Minute)
			require.Equal(t, due, d.of("a"))
			require.Zero(t, c.Completing())
			require.NoError(t, add(c, "a", p, txnstate.TV0, tp1))
		})
	}
}

// A write that was under way when the slot was lost lands while the next ownership of
// the same process loads, and has read the record before: the deadline is that of what
// was written.
func TestAChangeBesideALoadKeepsItsDeadline_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		idle := prepared("a", p)
		idle.State = txnstate.CompleteCommit
		s := &slowPage{scriptStore: newScriptStore(idle), late: 2, gate: make(chan struct{})}
		land := make(chan struct{})
		s.onSwap = func(txnstate.Record, txnstate.Durability) (error, error) {
			<-land
			return nil, nil
		}
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		d := &deadlines{}
		c := start(t, txnstate.Config{Store: s, Deadlines: d, Ownership: n})
		slot := txnstate.Slot("a")
		n.acquired <- func(yes, _ func(int, int32)) { yes(slot, 3) }
		synctest.Wait()
		go func() { _ = add(c, "a", p, txnstate.TV0, tp0) }()
		synctest.Wait()
		n.acquired <- func(yes, no func(int, int32)) { no(slot, 3); yes(slot, 5) }
		synctest.Wait()
		close(land)
		synctest.Wait()
		close(s.gate)
		time.Sleep(time.Second)
		require.Equal(t, txnstate.Ongoing, s.get("a").State)
		require.Contains(t, d.of("a"), "open=true")
	})
}

// A former owner stores a decision late. The present one, asked for its end, takes it
// over before it sends markers, so that the former one does not complete it: the owner
// after that would not know of the markers on their way (I4).
func TestADecisionThatARequestFindsIsTakenOver_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		s := newScriptStore(ongoing("a", p, tp0))
		slot := txnstate.Slot("a")
		// The former owner can ask once, and then nobody knows.
		former := &asksOnce{notices: notices{acquired: make(chan func(yes, no func(int, int32)))}}
		next, last := newAsked(), newAsked()
		gate := make(chan struct{})
		var first atomic.Bool
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (error, error) {
			if rec.State == txnstate.PrepareCommit && first.CompareAndSwap(false, true) {
				<-gate
			}
			return nil, nil
		}
		h1, h2, h3 := &held{}, &held{}, &held{}
		c1 := start(t, txnstate.Config{Store: completesNow{s}, Dispatcher: h1, Ownership: former})
		c2 := start(t, txnstate.Config{Store: completesNow{s}, Dispatcher: h2, Ownership: next})
		c3 := start(t, txnstate.Config{Store: completesNow{s}, Dispatcher: h3, Ownership: last})
		former.acquired <- func(yes, _ func(int, int32)) { yes(slot, 3) }
		synctest.Wait()
		end := txnstate.End{Producer: p, Commit: true}
		go func() { _, _ = c1.End(bg, "a", end) }()
		synctest.Wait()
		next.acquired <- func(yes, _ func(int, int32)) { yes(slot, 4) }
		synctest.Wait()
		close(gate)
		synctest.Wait()
		_, _ = c2.End(bg, "a", end)
		synctest.Wait()
		require.Len(t, h1.outcomes(), 1)
		require.Len(t, h2.outcomes(), 1)
		h1.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)
		next.still.Store(false)
		last.acquired <- func(yes, _ func(int, int32)) { yes(slot, 5) }
		synctest.Wait()
		require.ErrorIs(t, add(c3, "a", p, txnstate.TV0, tp0), txnstate.ErrConcurrentTransactions)
		require.Len(t, h3.outcomes(), 1)
	})
}

type asksOnce struct {
	notices
	asked atomic.Bool
}

func (a *asksOnce) Still(context.Context, int, int32) (bool, error) {
	if a.asked.CompareAndSwap(false, true) {
		return true, nil
	}
	return false, errors.New("the volume is away")
}

// One record in ten that a takeover finds decided can't be written at first, and one
// never: the slot is served all the same, and every other transaction is completed.
func TestATakeoverThatTheStoreTakesInPartBlocksItsOwnIdsOnly_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		slot := txnstate.Slot("never")
		s.put(prepared("never", txnstate.Producer{ID: 1}, tp0))
		ids := []string{}
		for i := 0; len(ids) < 100; i++ {
			if id := fmt.Sprint("id-", i); txnstate.Slot(id) == slot {
				s.put(prepared(id, txnstate.Producer{ID: int64(10 + i)}, tp0))
				ids = append(ids, id)
			}
		}
		var swaps atomic.Int32
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (error, error) {
			time.Sleep(time.Millisecond)
			if n := swaps.Add(1); n%10 == 0 || rec.TxnID == "never" {
				return txnstate.ErrUncertain, nil
			}
			return nil, nil
		}
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		c := start(t, txnstate.Config{Store: s, Dispatcher: &held{auto: true}, Ownership: n})
		n.acquired <- func(yes, _ func(int, int32)) { yes(slot, 4) }
		time.Sleep(time.Minute)
		for _, id := range ids {
			require.Equal(t, txnstate.CompleteCommit, s.get(id).State, id)
		}
		_, err := c.Describe(bg, ids[0])
		require.NoError(t, err)
	})
}

// An id whose store hangs keeps no other id that is looked at, nor the end of Run.
func TestAnIdThatHangsKeepsNoOtherWhenTheyAreTakenOver_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		slot := txnstate.Slot("hangs")
		hangs := map[string]bool{}
		ids := []string{}
		for i := 0; len(ids) < 400; i++ {
			if id := fmt.Sprint("id-", i); txnstate.Slot(id) == slot {
				s.put(prepared(id, txnstate.Producer{ID: int64(10 + i)}, tp0))
				ids = append(ids, id)
				hangs[id] = len(ids) <= 300
			}
		}
		gate := make(chan struct{})
		s.onLoad = func(id string) error {
			if hangs[id] {
				<-gate
			}
			return nil
		}
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		start(t, txnstate.Config{Store: s, Dispatcher: &held{auto: true}, Ownership: n})
		n.acquired <- func(yes, _ func(int, int32)) { yes(slot, 4) }
		time.Sleep(10 * time.Minute)
		for _, id := range ids {
			require.Equal(t, !hangs[id], s.get(id).State == txnstate.CompleteCommit, id)
		}
		close(gate)
		time.Sleep(time.Minute)
		for _, id := range ids {
			require.Equal(t, txnstate.CompleteCommit, s.get(id).State, id)
		}
	})
}

// A completion is dropped while the observer still hears of it: it is made again.
func TestACompletionThatIsUndoneWhileItIsToldIsMadeAgain_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := sharedSlots(t)
		slot := txnstate.Slot("a")
		own, late := make(chan func(yes, no func(int, int32))), newAsked()
		start(t, txnstate.Config{Store: handle(), Dispatcher: &held{}, Ownership: late.notices})
		told := make(chan struct{})
		c := start(t, txnstate.Config{Store: handle(), Ownership: notices{acquired: own}, FlushEvery: 10 * time.Second, Observer: txnstate.Observer{
			Transition: func(_ txnstate.State, rec txnstate.Record) {
				if rec.State == txnstate.CompleteCommit {
					<-told
				}
			},
		}})
		own <- func(yes, _ func(int, int32)) { yes(slot, 10) }
		synctest.Wait()
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
		synctest.Wait()
		late.acquired <- func(yes, _ func(int, int32)) { yes(slot, 9) }
		time.Sleep(time.Minute)
		close(told)
		time.Sleep(time.Minute)
		r, err := handle().Load(bg, "a")
		require.NoError(t, err)
		require.Equal(t, txnstate.CompleteCommit, r.State)
	})
}

// I13: the observer may ask the coordinator, also about the id it hears of.
func TestWhoHearsOfAnUncertainWriteMayAsk_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		var c *txnstate.Coordinator
		var heard atomic.Int32
		c = start(t, txnstate.Config{Store: s, Observer: txnstate.Observer{Uncertain: func(id string, _ bool, _ error) {
			heard.Add(1)
			_, err := c.Describe(bg, id)
			require.NoError(t, err)
			_ = c.TimeOut(bg, id, t0)
		}}})
		p := initID(t, c, "a")
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (error, error) {
			s.onSwap = nil
			return nil, txnstate.ErrUncertain
		}
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (error, error) {
			s.onSwap = nil
			return txnstate.ErrUncertain, nil
		}
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp1))
		require.EqualValues(t, 2, heard.Load())
	})
}

// dropsOnly is a store that gives Later writes up, and is no Flusher.
type dropsOnly struct {
	*scriptStore
	ids atomic.Pointer[[]string]
}

func (d *dropsOnly) Dropped() []string {
	if ids := d.ids.Swap(nil); ids != nil {
		return *ids
	}
	return nil
}

func TestADropperNeedNotFlush_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &dropsOnly{scriptStore: newScriptStore()}
		start(t, txnstate.Config{Store: s, Dispatcher: &held{auto: true}})
		s.put(prepared("a", txnstate.Producer{ID: 7}, tp0))
		time.Sleep(time.Minute)
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)
		s.ids.Store(&[]string{"a"})
		time.Sleep(time.Minute)
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}

// A completion that was stored when its ownership was over is flushed, too: what is not
// flushed is not known to be dropped (I12).
func TestACompletionThatOutlivesItsOwnershipIsFlushed_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		s := &flushed{scriptStore: newScriptStore(ongoing("a", p, tp0))}
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		h := &held{}
		land := make(chan struct{})
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: n, EndWait: txnstate.AnswerAtDecision})
		slot := txnstate.Slot("a")
		n.acquired <- func(yes, _ func(int, int32)) { yes(slot, 3) }
		synctest.Wait()
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (error, error) {
			<-land
			return nil, nil
		}
		h.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		n.acquired <- func(_, no func(int, int32)) { no(slot, 3) }
		synctest.Wait()
		close(land)
		time.Sleep(time.Minute)
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
		require.EqualValues(t, 1, s.n.Load())
	})
}

// hangsOnce is a store whose first flush hangs until its context is over.
type hangsOnce struct{ flushed }

func (h *hangsOnce) Flush(ctx context.Context) error {
	if h.n.Add(1) == 1 {
		<-ctx.Done()
	}
	return ctx.Err()
}

func TestAFlushThatHangsIsMadeAgain_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hangsOnce{flushed{scriptStore: newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0))}}
		start(t, txnstate.Config{Store: s, Dispatcher: &held{auto: true}})
		time.Sleep(2 * time.Minute)
		require.EqualValues(t, 2, s.n.Load())
	})
}

// A process that owns everything finds two decided transactions of one slot. While the
// first is handed over, the client of the other ends it again, and begins the next
// one: what the load found is not delivered into that (I4).
func TestWhatALoadHasFoundIsDeliveredOnce_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		other := ""
		for i := 0; other == ""; i++ {
			if id := fmt.Sprint("a", i); txnstate.Slot(id) == txnstate.Slot("a") {
				other = id
			}
		}
		s := newScriptStore(prepared("a", txnstate.Producer{ID: 6}, tp0), prepared(other, p, tp0))
		first := make(chan struct{})
		h := &held{auto: true}
		h.at = func(o txnstate.Outcome) {
			if o.TxnID == "a" {
				<-first
			}
		}
		c, err := txnstate.New(txnstate.Config{Store: s, ProducerIDs: &counter{}, Dispatcher: h})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(bg)
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		end := txnstate.End{Producer: p, Commit: true}
		_, err = c.End(bg, other, end)
		require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get(other).State)
		require.NoError(t, add(c, other, p, txnstate.TV0, tp0))
		close(first)
		time.Sleep(time.Minute)
		n := 0
		for _, o := range h.outcomes() {
			if o.TxnID == other {
				n++
			}
		}
		require.Equal(t, 1, n)
		require.Equal(t, txnstate.Ongoing, s.get(other).State)
		cancel()
		require.NoError(t, <-done)
	})
}

// The store says neither whether it has written a decision nor, for a while, what it
// has, and the client does not come back: the transaction is carried out all the same,
// also where no timeout watches over it (I12).
func TestADecisionThatNobodyKnowsOfIsCarriedOut_I11_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		rec := ongoing("a", p, tp0)
		rec.TwoPhase, rec.TimeoutMs = true, txnstate.NoTimeout
		s := newScriptStore(rec)
		c := start(t, txnstate.Config{Store: s, Dispatcher: &held{auto: true}, TwoPhaseCommit: true})
		synctest.Wait()
		var away atomic.Bool
		s.onLoad = func(string) error {
			if away.Load() {
				return errors.New("the volume is away")
			}
			return nil
		}
		s.onSwap = func(txnstate.Record, txnstate.Durability) (error, error) {
			s.onSwap = nil
			away.Store(true)
			return nil, txnstate.ErrUncertain
		}
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
		require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable)
		time.Sleep(time.Hour)
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)
		away.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}

// A broker that is stopped between its question and the takeover wakes up when the
// next owner has gone on: it writes nothing.
func TestATakeoverThatComesTooLateWritesNothing_I10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		s := newScriptStore(prepared("a", p, tp0))
		slot := txnstate.Slot("a")
		former := newAsked()
		gate := make(chan struct{})
		swaps := 0
		s.onSwap = func(txnstate.Record, txnstate.Durability) (error, error) {
			swaps++
			<-gate
			return nil, nil
		}
		h := &held{}
		start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: former})
		former.acquired <- func(yes, _ func(int, int32)) { yes(slot, 9) }
		synctest.Wait()
		former.still.Store(false)
		next := prepared("a", p, tp1)
		next.TxnSeq = 2
		v := s.put(next)
		close(gate)
		time.Sleep(time.Minute)
		require.Equal(t, v, s.get("a").Version)
		require.Equal(t, 1, swaps)
		require.Empty(t, h.outcomes())
	})
}

// A leader that asks whether it may write, and waits a moment only, takes nothing over
// in that moment: it is seen to beside it.
func TestAVerificationTakesNothingOverItself_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := txnstate.Producer{ID: 7}
		s := newScriptStore(ongoing("a", p, tp0))
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		c := start(t, txnstate.Config{Store: s, Dispatcher: &held{auto: true}, Ownership: n})
		n.acquired <- func(yes, _ func(int, int32)) { yes(txnstate.Slot("a"), 4) }
		synctest.Wait()
		late := prepared("a", p, tp0) // by a former owner
		s.put(late)
		s.onSwap = func(txnstate.Record, txnstate.Durability) (error, error) {
			time.Sleep(5 * time.Second)
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, err := c.Verify(ctx, "a", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0}})
		require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		time.Sleep(time.Minute)
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}
