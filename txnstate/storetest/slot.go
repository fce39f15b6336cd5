package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

var slotCases = []testCase{
	{
		name:   "the visit of a slot gives each of its records once and no other",
		clause: "Slot visits the records of a slot in any order [...] every other one is visited once",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			want := map[int]map[string]txnstate.Record{}
			for i := range 300 {
				id := "visit-" + strconv.Itoa(i)
				r := open(id, i%3)
				r.Version = mustSwap(t, s, r, txnstate.Durability(i%4 != 0))
				if i%5 == 0 {
					r = at(open(id, 2), r.Version)
					r.Version = mustSwap(t, s, r, txnstate.Later)
				}
				if i%7 == 0 {
					mustDelete(t, s, id, r.Version)
					continue
				}
				slot := txnstate.Slot(id)
				if want[slot] == nil {
					want[slot] = map[string]txnstate.Record{}
				}
				want[slot][id] = r
			}
			for slot := range txnstate.Slots {
				seen := visit(t, s, slot)
				for id, rs := range seen {
					r, ok := want[slot][id]
					switch {
					case !ok:
						t.Errorf("Slot(%d) gives %q of slot %d", slot, id, txnstate.Slot(id))
					case len(rs) > 1:
						t.Errorf("Slot(%d) gives %q %d times", slot, id, len(rs))
					case !rs[0].Equal(r) || rs[0].Version != r.Version:
						t.Errorf("Slot(%d) gives %s, want %s", slot, brief(rs[0]), brief(r))
					}
				}
				for id := range want[slot] {
					if len(seen[id]) == 0 {
						t.Errorf("Slot(%d) leaves out %q", slot, id)
					}
				}
			}
		},
	},
	{
		name:   "a slot that there isn't has no records",
		clause: "Slot visits the records of a slot",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for i := range 100 {
				mustSwap(t, s, sample("id-"+strconv.Itoa(i), 1), txnstate.Durable)
			}
			for _, slot := range []int{-1, txnstate.Slots, txnstate.Slots + 7, math.MinInt, math.MaxInt} {
				for r, err := range s.Slot(t.Context(), slot) {
					if err == nil {
						t.Errorf("Slot(%d) gives %q", slot, r.TxnID)
					}
				}
			}
		},
	},
	{
		name:   "the store can be called from within a visit",
		clause: "The caller may call the store from within the loop",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			ids := idsOf(7, 12, "within")
			for _, id := range ids {
				mustSwap(t, s, sample(id, 1), txnstate.Durable)
			}
			finishes(t, h, "calling the store from within the visit", func() error {
				for r, err := range s.Slot(t.Context(), 7) {
					if err != nil {
						return err
					}
					r.UpdateMs++
					v, err := s.Swap(t.Context(), r, txnstate.Later)
					if err != nil {
						return fmt.Errorf("swap: %w", err)
					}
					if v, err = s.Swap(t.Context(), at(r, v), txnstate.Durable); err != nil {
						return fmt.Errorf("swap: %w", err)
					}
					if _, err := s.Load(t.Context(), ids[0]); err != nil && !errors.Is(err, txnstate.ErrNotFound) {
						return fmt.Errorf("load: %w", err)
					}
					for _, err := range s.Slot(t.Context(), 7) {
						if err != nil {
							return fmt.Errorf("visit within the visit: %w", err)
						}
					}
					if err := s.Delete(t.Context(), r.TxnID, v); err != nil {
						return fmt.Errorf("delete: %w", err)
					}
				}
				return nil
			})
			if left := visit(t, s, 7); len(left) > 0 {
				t.Errorf("%d records are left of a slot of which every record visited was deleted", len(left))
			}
		},
	},
	{
		name:   "a visit that is left early holds nothing",
		clause: "The caller may call the store from within the loop",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			ids := idsOf(7, 5, "early")
			for _, id := range ids {
				mustSwap(t, s, sample(id, 1), txnstate.Durable)
			}
			for range s.Slot(t.Context(), 7) {
				break
			}
			finishes(t, h, "writing after a visit that was left early", func() error {
				for _, id := range ids {
					r, err := s.Load(t.Context(), id)
					if err != nil {
						return err
					}
					if _, err := s.Swap(t.Context(), r, txnstate.Durable); err != nil {
						return err
					}
				}
				return nil
			})
		},
	},
	{
		name:   "a visit that stands still stops nobody",
		clause: "Calls for different ids do not wait for one another",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			ids := idsOf(7, 5, "still")
			for _, id := range ids {
				mustSwap(t, s, sample(id, 1), txnstate.Durable)
			}
			next, stop := iter.Pull2(s.Slot(t.Context(), 7))
			defer stop()
			if _, err, ok := next(); !ok || err != nil {
				t.Fatalf("the visit gives %v, %t, want a record", err, ok)
			}
			finishes(t, h, "writing while a visit stands still", func() error {
				for _, id := range ids {
					r, err := s.Load(t.Context(), id)
					if err != nil {
						return err
					}
					v, err := s.Swap(t.Context(), r, txnstate.Durable)
					if err != nil {
						return err
					}
					if err := s.Delete(t.Context(), id, v); err != nil {
						return err
					}
				}
				return nil
			})
		},
	},
	{
		name:   "a visit while others write gives every untouched record once",
		clause: "Records that are written meanwhile may or may not be visited; every other one is visited once",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			still, busy := idsOf(7, 10, "untouched"), idsOf(7, 10, "busy")
			for _, id := range still {
				mustSwap(t, s, sample(id, 1), txnstate.Durable)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					id := busy[i%len(busy)]
					v, err := s.Swap(t.Context(), sample(id, int64(i)), txnstate.Durable)
					if err == nil {
						err = s.Delete(t.Context(), id, v)
					}
					if err != nil {
						t.Errorf("writing during a visit: %v", err)
						return
					}
				}
			})
			for range 30 {
				seen := visit(t, s, 7)
				for _, id := range still {
					if len(seen[id]) != 1 {
						t.Errorf("the visit gives the untouched %q %d times", id, len(seen[id]))
					}
				}
				for id, rs := range seen {
					if len(rs) > 1 {
						t.Errorf("the visit gives %q %d times", id, len(rs))
					}
				}
			}
			cancel()
			wg.Wait()
		},
	},
	{
		name:   "a write that hangs stops no other id",
		clause: "Calls for different ids do not wait for one another beyond sharing a sync",
		needs:  []ability{stall},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			// Ids of one slot may share a sync, so the others are of another.
			hung, free := idsOf(7, 1, "hung")[0], idsOf(8, 3, "free")
			mustSwap(t, s, sample(hung, 1), txnstate.Durable)
			mustSwap(t, s, sample(free[0], 1), txnstate.Durable)
			hangs, release := h.Stall(t, s, hung)
			stuck := make(chan error, 1)
			go func() {
				r, err := s.Load(t.Context(), hung)
				if err == nil {
					_, err = s.Swap(t.Context(), r, txnstate.Durable)
				}
				stuck <- err
			}()
			select {
			case <-hangs:
			case err := <-stuck:
				t.Fatalf("Harness.Stall did not make the write hang: %v", err)
			}
			finishes(t, h, "working on other ids while one hangs", func() error {
				for _, id := range free {
					r, err := s.Load(t.Context(), id)
					if err != nil {
						r = sample(id, 1)
					}
					v, err := s.Swap(t.Context(), r, txnstate.Durable)
					if err != nil {
						return err
					}
					if v, err = s.Swap(t.Context(), at(r, v), txnstate.Later); err != nil {
						return err
					}
					if err := s.Delete(t.Context(), id, v); err != nil {
						return err
					}
				}
				return nil
			})
			release()
			if err := <-stuck; err != nil {
				t.Errorf("the write that hung = %v, want nil", err)
			}
		},
	},
	{
		name:   "what callers see fits one store that does one thing at a time",
		clause: "Calls for one id are linearizable",
		run: func(t testing.TB, h Harness) {
			for seed := range uint64(6) {
				s := h.Open(t)
				wantLinearizable(t, seed, []txnstate.Store{s, s, s})
			}
		},
	},
}
