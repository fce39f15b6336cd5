package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

func record(id string, n int64) txnstate.Record {
	r := txnstate.Unknown(id)
	r.Producer, r.UpdateMs = txnstate.Producer{ID: 1, Epoch: 0}, n
	return r
}

func TestAFaultyStoreWithoutFaultsKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(testing.TB) txnstate.Store { return storetest.NewFaulty(memstore.New(), storetest.Script()) },
		Peer: func(_ testing.TB, s txnstate.Store) txnstate.Store { return s },
	})
}

// I11: each fate says exactly what the contract lets it say, and what is stored
// afterwards is what the fate's name tells.
func TestEachFateOfAWrite(t *testing.T) {
	for _, c := range []struct {
		fate    storetest.Fate
		err     error
		applied bool
		moved   bool // another version, the same content
	}{
		{storetest.Done, nil, true, false},
		{storetest.NotDone, txnstate.ErrUncertain, false, false},
		{storetest.DoneUnsaid, txnstate.ErrUncertain, true, false},
		{storetest.DoneLate, txnstate.ErrUncertain, true, false},
		{storetest.Hung, txnstate.ErrUncertain, false, false},
		{storetest.DoneHung, txnstate.ErrUncertain, true, false},
		{storetest.Overtaken, txnstate.ErrConflict, false, true},
	} {
		t.Run(c.fate.String(), func(t *testing.T) {
			below := memstore.New()
			s := storetest.NewFaulty(below, storetest.Script(storetest.Done, c.fate, storetest.Done, c.fate))
			v, err := s.Swap(t.Context(), record("id", 1), txnstate.Durable)
			if err != nil {
				t.Fatal(err)
			}
			next := record("id", 2)
			next.Version = v
			_, err = swapUntil(t, s, next, c.fate)
			if !errors.Is(err, c.err) {
				t.Errorf("Swap = %v, want %v", err, c.err)
			}
			if before, _ := below.Load(t.Context(), "id"); c.fate == storetest.DoneLate && before.UpdateMs != 1 {
				t.Error("the late write was made at once")
			}
			now, err := s.Load(t.Context(), "id")
			if err != nil {
				t.Fatal(err)
			}
			if applied := now.UpdateMs == 2; applied != c.applied {
				t.Errorf("the write was applied: %t, want %t", applied, c.applied)
			}
			if moved := now.UpdateMs == 1 && now.Version != v; moved != c.moved {
				t.Errorf("the record was written by another: %t, want %t", moved, c.moved)
			}

			// The same for the deletion of what is there now.
			now.UpdateMs = 3
			now.Version, err = s.Swap(t.Context(), now, txnstate.Durable)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if c.fate != storetest.Hung && c.fate != storetest.DoneHung {
				ctx = t.Context()
			}
			if c.fate == storetest.DoneHung {
				return // a memstore does nothing for a context that is done
			}
			if err := s.Delete(ctx, "id", now.Version); !errors.Is(err, c.err) {
				t.Errorf("Delete = %v, want %v", err, c.err)
			}
			_, err = s.Load(t.Context(), "id")
			if gone := errors.Is(err, txnstate.ErrNotFound); gone != c.applied {
				t.Errorf("the record is gone: %t, want %t", gone, c.applied)
			}
		})
	}
}

// swapUntil ends the context of a call that hangs once it does.
func swapUntil(t *testing.T, s txnstate.Store, r txnstate.Record, fate storetest.Fate) (txnstate.Version, error) {
	if fate != storetest.Hung && fate != storetest.DoneHung {
		return s.Swap(t.Context(), r, txnstate.Durable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	var v txnstate.Version
	var err error
	wg.Go(func() { v, err = s.Swap(ctx, r, txnstate.Durable) })
	if fate == storetest.DoneHung {
		// It is done first and hangs then.
		for {
			if now, _ := s.Load(t.Context(), r.TxnID); now.UpdateMs == r.UpdateMs {
				break
			}
		}
	}
	cancel()
	wg.Wait()
	return v, err
}

func TestAVisitFailsAfterItHasBegun(t *testing.T) {
	s := storetest.NewFaulty(memstore.New(), storetest.Script())
	for i := range 200 {
		if _, err := s.Swap(t.Context(), record(fmt.Sprint(i), 1), txnstate.Later); err != nil {
			t.Fatal(err)
		}
	}
	s.SetFate(func(storetest.Call) storetest.Fate { return storetest.NotDone })
	for slot := range txnstate.Slots {
		n, last := 0, error(nil)
		for _, err := range s.Slot(t.Context(), slot) {
			n++
			last = err
		}
		if n > 2 || !errors.Is(last, storetest.ErrFault) {
			t.Errorf("Slot(%d) gives %d pairs, the last %v", slot, n, last)
		}
	}
}

// What is built on a store is tested with faults drawn from a seed, and the
// history of all calls is checked for being one that the contract allows.
func TestSeededFaultsStayWithinTheContract(t *testing.T) {
	for seed := range uint64(20) {
		var h storetest.History
		faulty := storetest.NewFaulty(memstore.New(), storetest.Seeded(seed, storetest.Odds{
			NotDone: 0.1, DoneUnsaid: 0.1, DoneLate: 0.1, Overtaken: 0,
		}))
		s := h.Of(faulty)
		var wg sync.WaitGroup
		for user := range int64(3) {
			wg.Go(func() {
				var v txnstate.Version
				for n := range int64(12) {
					r := record("id", n*10+user)
					r.Version = v
					if _, err := s.Swap(t.Context(), r, txnstate.Durable); err != nil && n%3 == 2 {
						_ = s.Delete(t.Context(), "id", v)
					}
					if now, err := s.Load(t.Context(), "id"); err == nil {
						v = now.Version
					}
				}
			})
		}
		wg.Wait()
		if err := h.Check(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

func TestTheSameSeedGivesTheSameFates(t *testing.T) {
	odds := storetest.Odds{NotDone: 0.2, DoneUnsaid: 0.2, DoneLate: 0.2, Hung: 0.1, DoneHung: 0.1, Overtaken: 0.1}
	a, b := storetest.Seeded(7, odds), storetest.Seeded(7, odds)
	seen := map[storetest.Fate]bool{}
	for n := range 1000 {
		call := storetest.Call{N: n, Method: storetest.MethodSwap}
		fate := a(call)
		if other := b(call); fate != other {
			t.Fatalf("call %d: %s and %s", n, fate, other)
		}
		seen[fate] = true
	}
	if len(seen) != 7 {
		t.Errorf("1000 draws gave only %d of 7 fates", len(seen))
	}
}

func ExampleFaulty() {
	// The write is made, and its answer is lost.
	store := storetest.NewFaulty(memstore.New(), storetest.Script(storetest.DoneUnsaid))
	ctx := context.Background()

	_, err := store.Swap(ctx, record("payments", 1), txnstate.Durable)
	fmt.Println(errors.Is(err, txnstate.ErrUncertain))

	// Whoever is told so loads again, to see.
	now, err := store.Load(ctx, "payments")
	fmt.Println(now, err)
	// Output:
	// true
	// "payments" Empty producer 1/0 [] <nil>
}

func ExampleHistory() {
	var history storetest.History
	store := memstore.New()
	one, two := history.Of(store), history.Of(store) // two owners of one id
	ctx := context.Background()

	var wg sync.WaitGroup
	for n, s := range []txnstate.Store{one, two} {
		wg.Go(func() { _, _ = s.Swap(ctx, record("payments", int64(n)), txnstate.Durable) })
	}
	wg.Wait()
	_, _ = one.Load(ctx, "payments")
	fmt.Println(history.Check())
	// Output: <nil>
}
