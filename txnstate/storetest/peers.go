package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

var peerCases = []testCase{
	{
		name:   "what one handle stored the other finds",
		clause: "Calls for one id are linearizable, across processes that share the store too",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			a := h.Open(t)
			r := sample("id", 0)
			r.Version = mustSwap(t, a, r, txnstate.Durable)
			b := h.Peer(t, a)
			wantRecord(t, b, r)
			for n := int64(1); n < 8; n++ {
				r = at(sample("id", n), r.Version)
				r.Version = mustSwap(t, b, r, txnstate.Durable)
				wantRecord(t, a, r)
				if seen := visit(t, a, txnstate.Slot("id"))["id"]; len(seen) != 1 || seen[0].Version != r.Version {
					t.Errorf("the other handle's visit gives %v, want %s", seen, brief(r))
				}
				a, b = b, a
			}
			mustDelete(t, a, "id", r.Version)
			wantMissing(t, b, "id")
			wantConflict(t, second(b.Swap(t.Context(), r, txnstate.Durable)), "Swap of a record that the other handle deleted")
		},
	},
	{
		name:   "a version that another handle has replaced is a conflict",
		clause: "It fails with ErrConflict, changing nothing, where that is not the present version",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			a := h.Open(t)
			b := h.Peer(t, a)
			r := sample("id", 0)
			r.Version = mustSwap(t, a, r, txnstate.Durable)
			for n := int64(1); n < 6; n++ {
				stale := r.Version
				wantRecord(t, b, r)
				r = at(sample("id", n), stale)
				r.Version = mustSwap(t, a, r, txnstate.Durable)
				for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
					_, err := b.Swap(t.Context(), at(sample("id", -n), stale), d)
					wantConflict(t, err, "Swap from a version that another handle replaced")
				}
				wantConflict(t, b.Delete(t.Context(), "id", stale), "Delete at that version")
				wantConflict(t, second(b.Swap(t.Context(), sample("id", -n), txnstate.Durable)), "Swap from zero of what another handle made")
				wantRecord(t, a, r)
				wantRecord(t, b, r)
			}
		},
	},
	{
		name:   "of two handles' racing swaps one succeeds",
		clause: "of several Swaps from one version exactly one succeeds, whatever the timing",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			a := h.Open(t)
			b := h.Peer(t, a)
			durable := func(i int) txnstate.Record { return sample(fmt.Sprintf("race-%d", i), 0) }
			for i := range 10 {
				r := durable(i)
				r.Version = wantOneDurableWinner(t, a, b, r)
				wantOneDurableWinner(t, a, b, r)
			}
		},
	},
	{
		name:   "racing increments over two handles lose nothing",
		clause: "Calls for one id are linearizable, across processes that share the store too",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			a := h.Open(t)
			b := h.Peer(t, a)
			wantAllCounted(t, []txnstate.Store{a, b, a, b}, 25)
		},
	},
	{
		name:   "handles that write different ids of one slot lose nothing",
		clause: "Store keeps one record for each transactional id",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			a := h.Open(t)
			b := h.Peer(t, a)
			ids := idsOf(7, 2, "mine")
			done := make(chan struct{})
			write := func(s txnstate.Store, id string) (r txnstate.Record) {
				for n := int64(0); n < 40; n++ {
					next := sample(id, n)
					v, err := s.Swap(t.Context(), at(next, r.Version), txnstate.Durable)
					if errors.Is(err, txnstate.ErrUncertain) {
						// A store may not know, where the other handle was much faster;
						// loading tells, and what was not written is written again.
						now, lerr := s.Load(t.Context(), id)
						switch {
						case lerr == nil && now.Equal(next):
							v, err = now.Version, nil
						case lerr == nil && now.Version == r.Version, errors.Is(lerr, txnstate.ErrNotFound) && r.Version == 0:
							n--
							continue
						}
					}
					if err != nil {
						t.Errorf("Swap of an id that nobody else writes = %v", err)
						return r
					}
					r = at(next, v)
				}
				return r
			}
			var other txnstate.Record
			go func() {
				defer close(done)
				other = write(b, ids[1])
			}()
			mine := write(a, ids[0])
			<-done
			for _, s := range []txnstate.Store{a, b} {
				wantRecord(t, s, mine)
				wantRecord(t, s, other)
			}
		},
	},
	{
		name:   "a Later write that another handle overtook is gone",
		clause: "What a Later write of another process has done may be missing until it is durable",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			a := h.Open(t)
			b := h.Peer(t, a)
			first := sample("id", 0)
			first.Version = mustSwap(t, a, first, txnstate.Durable)
			settled := sample(idsOf(txnstate.Slot("id"), 1, "settled")[0], 0)
			settled.Version = mustSwap(t, a, settled, txnstate.Durable)
			mustSwap(t, a, settled, txnstate.Later)
			later := at(sample("id", 1), first.Version)
			later.Version = mustSwap(t, a, later, txnstate.Later)
			now := mustLoad(t, b, "id")
			if now.Version != first.Version && now.Version != later.Version {
				t.Fatalf("the other handle finds version %d, and there were %d and %d", now.Version, first.Version, later.Version)
			}
			won := at(sample("id", 2), now.Version)
			won.Version = mustSwap(t, b, won, txnstate.Durable)
			wantRecord(t, a, won)
			wantConflict(t, second(a.Swap(t.Context(), at(sample("id", 3), later.Version), txnstate.Durable)), "Swap from a Later write that was overtaken")
			if f, ok := a.(txnstate.Flusher); ok {
				if err := f.Flush(t.Context()); err != nil {
					t.Errorf("Flush = %v", err)
				}
			}
			d, ok := a.(txnstate.Dropper)
			if gone := now.Version == first.Version; gone && !ok {
				t.Error("a Later write was given up, and the store is no txnstate.Dropper: a completion that goes like that leaves its transaction decided for ever")
			} else if ok {
				if ids := d.Dropped(); gone != slices.Equal(ids, []string{"id"}) || !gone && len(ids) > 0 {
					t.Errorf("Dropped() = %q, and that the Later write was given up is %t", ids, gone)
				}
				if ids := d.Dropped(); len(ids) > 0 {
					t.Errorf("Dropped() = %q once more", ids)
				}
			}
			// Whatever a has kept must not come back with its next write.
			mustSwap(t, a, sample(idsOf(txnstate.Slot("id"), 1, "neighbour")[0], 1), txnstate.Durable)
			wantRecord(t, b, won)
			wantRecord(t, a, won)
		},
	},
	{
		name:   "what callers of two handles see fits one store that does one thing at a time",
		clause: "Calls for one id are linearizable, across processes that share the store too",
		needs:  []ability{peer},
		run: func(t testing.TB, h Harness) {
			for seed := range uint64(6) {
				a := h.Open(t)
				wantLinearizable(t, seed, []txnstate.Store{a, h.Peer(t, a), h.Peer(t, a)})
			}
		},
	},
}

func second[T any](_ T, err error) error { return err }

// wantOneDurableWinner is wantOneWinner for handles, between which a Later write
// is no win.
func wantOneDurableWinner(t testing.TB, a, b txnstate.Store, r txnstate.Record) txnstate.Version {
	t.Helper()
	durable := func(s txnstate.Store) txnstate.Store { return durably{s} }
	return wantOneWinner(t, []txnstate.Store{durable(a), durable(b), durable(a), durable(b)}, r)
}
