package storetest

import (
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

var durableCases = []testCase{
	{
		name:   "what was written is there after reopening",
		clause: "Durable: on return the write survives loss of power (txnstate.Durability)",
		needs:  []ability{reopen},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			made := sample("made", 1)
			made.Version = mustSwap(t, s, made, txnstate.Durable)
			s = h.Reopen(t, s)
			wantRecord(t, s, made)

			made = at(open("made", 4), made.Version)
			made.Version = mustSwap(t, s, made, txnstate.Durable)
			s = h.Reopen(t, s)
			wantRecord(t, s, made)

			made = at(sample("made", 3), made.Version)
			made.Version = mustSwap(t, s, made, txnstate.Later)
			made = at(sample("made", 4), made.Version)
			made.Version = mustSwap(t, s, made, txnstate.Durable)
			s = h.Reopen(t, s)
			wantRecord(t, s, made)
			if n := len(visit(t, s, txnstate.Slot("made"))["made"]); n != 1 {
				t.Errorf("the visit after reopening gives the record %d times", n)
			}
		},
	},
	{
		name:   "what was deleted stays deleted after reopening",
		clause: "Delete removes the record of an id at a version, durably",
		needs:  []ability{reopen},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
				for _, made := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
					id := fmt.Sprintf("gone-%t-%t", made, d)
					v := mustSwap(t, s, sample(id, 1), made)
					v = mustSwap(t, s, at(sample(id, 2), v), d)
					mustDelete(t, s, id, v)
					s = h.Reopen(t, s)
					wantMissing(t, s, id)
				}
			}
		},
	},
	{
		name:   "an id never meets a version again after reopening",
		clause: "A store gives every write of an id a version that it never gave that id before, also where the id was deleted in between (txnstate.Version)",
		needs:  []ability{reopen},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			var vs versions
			var stale []txnstate.Version
			for n := range int64(6) {
				v := vs.add(t, mustSwap(t, s, sample("id", n), txnstate.Durable))
				stale = append(stale, v)
				v = vs.add(t, mustSwap(t, s, at(sample("id", n+10), v), txnstate.Later))
				stale = append(stale, v)
				v = vs.add(t, mustSwap(t, s, at(sample("id", n+20), v), txnstate.Durable))
				if n%2 == 1 {
					s = h.Reopen(t, s)
				}
				for _, old := range stale {
					_, err := s.Swap(t.Context(), at(sample("id", -1), old), txnstate.Durable)
					wantConflict(t, err, fmt.Sprintf("Swap from version %d of long ago", old))
				}
				mustDelete(t, s, "id", v)
				if n%2 == 0 {
					s = h.Reopen(t, s)
				}
			}
		},
	},
	{
		name:   "a Later write is visible at once",
		clause: "Later: on return the write is visible (txnstate.Durability)",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			r := sample("id", 1)
			for n := range int64(8) {
				old := r.Version
				r = at(sample("id", n), old)
				r.Version = mustSwap(t, s, r, txnstate.Durability(n == 3))
				wantRecord(t, s, r)
				seen := visit(t, s, txnstate.Slot("id"))["id"]
				if len(seen) != 1 || !seen[0].Equal(r) || seen[0].Version != r.Version {
					t.Errorf("the visit gives %v, want %s once", seen, brief(r))
				}
				_, err := s.Swap(t.Context(), at(r, old), txnstate.Durable)
				wantConflict(t, err, "Swap from the version before a Later write")
			}
			mustDelete(t, s, "id", r.Version)
			wantMissing(t, s, "id")
		},
	},
	{
		name:   "a Later write causes no sync of its own",
		clause: "It causes no sync of its own (txnstate.Durability)",
		needs:  []ability{syncs},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			r, other := sample("id", 1), sample(idsOf(txnstate.Slot("id"), 1, "other")[0], 1)
			r.Version = mustSwap(t, s, r, txnstate.Durable)
			before := h.Syncs(s)
			for n := range int64(5) {
				r = at(sample("id", n), r.Version)
				r.Version = mustSwap(t, s, r, txnstate.Later)
				other.Version = mustSwap(t, s, other, txnstate.Later)
				wantRecord(t, s, r)
			}
			if n := h.Syncs(s) - before; n != 0 {
				t.Errorf("ten Later writes caused %d syncs", n)
			}
		},
	},
	{
		name:   "a Durable write survives a crash",
		clause: "Durable: on return the write survives loss of power (txnstate.Durability)",
		needs:  []ability{crash},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			var want []txnstate.Record
			for i := range 5 {
				r := open(fmt.Sprintf("made-%d", i), i)
				r.Version = mustSwap(t, s, r, txnstate.Durable)
				gone := mustSwap(t, s, sample(fmt.Sprintf("gone-%d", i), 1), txnstate.Durable)
				mustDelete(t, s, fmt.Sprintf("gone-%d", i), gone)
				want = append(want, r)
				s = h.Crash(t, s)
				for _, r := range want {
					wantRecord(t, s, r)
				}
				wantMissing(t, s, fmt.Sprintf("gone-%d", i))
			}
		},
	},
	{
		name:   "a Later write becomes durable with the next Durable write of its slot",
		clause: "becomes durable with the first Durable write after it (txnstate.Durability)",
		needs:  []ability{crash},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			ids := idsOf(7, 4, "order")
			gone := mustSwap(t, s, sample(ids[3], 1), txnstate.Durable)
			a := sample(ids[0], 1)
			a.Version = mustSwap(t, s, a, txnstate.Later)
			b := sample(ids[1], 1)
			b.Version = mustSwap(t, s, b, txnstate.Later)
			a = at(sample(ids[0], 2), a.Version)
			a.Version = mustSwap(t, s, a, txnstate.Later)
			c := sample(ids[2], 1)
			c.Version = mustSwap(t, s, c, txnstate.Durable)
			s = h.Crash(t, s)
			for _, r := range []txnstate.Record{a, b, c} {
				wantRecord(t, s, r)
			}

			// A delete is a Durable write too.
			a = at(sample(ids[0], 3), a.Version)
			a.Version = mustSwap(t, s, a, txnstate.Later)
			mustDelete(t, s, ids[3], gone)
			s = h.Crash(t, s)
			wantRecord(t, s, a)
		},
	},
	{
		name:   "what a crash takes of Later writes is the end of their order",
		clause: "what is lost is only ever the end of that order (txnstate.Durability)",
		needs:  []ability{crash},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			ids := idsOf(7, 3, "suffix")
			base := map[string]txnstate.Record{}
			for _, id := range ids {
				r := sample(id, 0)
				r.Version = mustSwap(t, s, r, txnstate.Durable)
				base[id] = r
			}
			// The n-th write of the slot says n, so what is found tells which
			// writes are there.
			now := map[string]txnstate.Record{}
			history := []map[string]int64{{}}
			for n := int64(1); n <= 9; n++ {
				id := ids[n%3]
				r, ok := now[id]
				if !ok {
					r = base[id]
				}
				r = at(sample(id, n), r.Version)
				r.Version = mustSwap(t, s, r, txnstate.Later)
				now[id] = r
				state := map[string]int64{}
				for id, r := range now {
					state[id] = r.UpdateMs
				}
				history = append(history, state)
			}
			s = h.Crash(t, s)
			found := map[string]int64{}
			for _, id := range ids {
				found[id] = mustLoad(t, s, id).UpdateMs
			}
			for _, state := range history {
				same := true
				for _, id := range ids {
					same = same && state[id] == found[id]
				}
				if same {
					return
				}
			}
			t.Errorf("after the crash the last writes found are %v, which the slot never looked like", found)
		},
	},
	{
		name:   "flushed Later writes survive a crash",
		clause: "make every Later write durable (txnstate.Flusher)",
		needs:  []ability{crash},
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			f, ok := s.(txnstate.Flusher)
			if !ok {
				t.Skip("not tested: the store is no txnstate.Flusher")
			}
			if err := f.Flush(t.Context()); err != nil {
				t.Errorf("Flush of an empty store = %v", err)
			}
			var want []txnstate.Record
			for i := range 20 {
				r := sample(fmt.Sprintf("flushed-%d", i), 1)
				r.Version = mustSwap(t, s, r, txnstate.Durability(i%3 == 0))
				r = at(sample(r.TxnID, 2), r.Version)
				r.Version = mustSwap(t, s, r, txnstate.Later)
				want = append(want, r)
			}
			if err := f.Flush(t.Context()); err != nil {
				t.Fatalf("Flush = %v", err)
			}
			for _, r := range want {
				wantRecord(t, s, r)
			}
			s = h.Crash(t, s)
			for _, r := range want {
				wantRecord(t, s, r)
			}
		},
	},
}
