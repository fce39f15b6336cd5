package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

const nowCase = "a swap that must not wait compares versions as every other does"

var swapCases = []testCase{
	{
		name:   "an id that was never stored is not found",
		clause: "Load is the record of an id, or ErrNotFound",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			wantMissing(t, s, "nobody")
			mustSwap(t, s, sample("somebody", 1), txnstate.Durable)
			wantMissing(t, s, "nobody")
		},
	},
	{
		name:   "a swap from version zero makes the record",
		clause: "Swap stores next in place of the version that next.Version names, zero where there must be no record, and returns the version stored",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			r := sample("new", 1)
			v := mustSwap(t, s, r, txnstate.Durable)
			if v == 0 {
				t.Fatalf("Swap returned version 0, which is the version of an id without a record")
			}
			wantRecord(t, s, at(r, v))
		},
	},
	{
		name:   "a swap from the present version replaces the record",
		clause: "Swap stores next in place of the version that next.Version names [...] and returns the version stored",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			v := mustSwap(t, s, sample("id", 1), txnstate.Durable)
			for n := int64(2); n < 6; n++ {
				r := at(sample("id", n), v)
				next := mustSwap(t, s, r, txnstate.Durable)
				if next == v {
					t.Fatalf("the new record has the version of the old one, %d", v)
				}
				v = next
				wantRecord(t, s, at(r, v))
			}
		},
	},
	{
		name:   "a swap from another version is a conflict and changes nothing",
		clause: "It fails with ErrConflict, changing nothing, where that is not the present version",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			first := mustSwap(t, s, sample("id", 1), txnstate.Durable)
			r := at(sample("id", 2), first)
			v := mustSwap(t, s, r, txnstate.Durable)
			other := mustSwap(t, s, sample("other", 3), txnstate.Durable)
			r.Version = v
			for _, wrong := range []txnstate.Version{0, first, v + 1, v + 1<<32, other, ^txnstate.Version(0)} {
				if wrong == v {
					continue // versions of different ids may be the same
				}
				for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
					_, err := s.Swap(t.Context(), at(sample("id", 4), wrong), d)
					wantConflict(t, err, fmt.Sprintf("Swap from version %d, and the present one is %d,", wrong, v))
					wantRecord(t, s, r)
				}
			}
		},
	},
	{
		name:   "a swap of a missing id from a version is a conflict and stores nothing",
		clause: "It fails with ErrConflict, changing nothing, where that is not the present version",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for _, v := range []txnstate.Version{1, 7, ^txnstate.Version(0)} {
				for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
					_, err := s.Swap(t.Context(), at(sample("missing", 1), v), d)
					wantConflict(t, err, fmt.Sprintf("Swap of a missing id from version %d", v))
					wantMissing(t, s, "missing")
				}
			}
		},
	},
	{
		name:   nowCase,
		clause: "SwapNow is Swap with Later",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			now, ok := s.(txnstate.LaterNow)
			if !ok {
				return
			}
			first := mustSwap(t, s, sample("id", 1), txnstate.Durable)
			r := at(sample("id", 2), first)
			r.Version = mustSwap(t, s, r, txnstate.Durable)
			for _, wrong := range []txnstate.Version{0, first, r.Version + 1, ^txnstate.Version(0)} {
				if v, ok := now.SwapNow(at(sample("id", 3), wrong)); ok {
					t.Errorf("SwapNow from version %d, and the present one is %d, = %d, true", wrong, r.Version, v)
				}
				wantRecord(t, s, r)
			}
			if v, ok := now.SwapNow(at(sample("missing", 3), 7)); ok {
				t.Errorf("SwapNow of a missing id from version 7 = %d, true", v)
			}
			wantMissing(t, s, "missing")
			// It may leave the matter to Swap, but not do one thing and say another.
			next := at(sample("id", 4), r.Version)
			if v, ok := now.SwapNow(next); ok {
				if v == r.Version || v == 0 {
					t.Errorf("SwapNow from version %d = %d", r.Version, v)
				}
				next.Participants = slices.Clone(next.Participants)
				r = at(next, v)
			} else if got := mustLoad(t, s, "id"); got.Version != r.Version {
				r = at(next, got.Version)
			}
			wantRecord(t, s, r)
		},
	},
	{
		name:   "of racing creators one succeeds",
		clause: "of several Swaps from one version exactly one succeeds, whatever the timing",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for i := range 20 {
				wantOneWinner(t, []txnstate.Store{s, s, s, s}, sample(fmt.Sprintf("race-%d", i), 0))
			}
		},
	},
	{
		name:   "of racing swaps from one version one succeeds",
		clause: "of several Swaps from one version exactly one succeeds, whatever the timing",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			r := sample("race", 0)
			r.Version = mustSwap(t, s, r, txnstate.Durable)
			for range 20 {
				r.Version = wantOneWinner(t, []txnstate.Store{s, s, s, s}, r)
			}
		},
	},
	{
		name:   "racing increments lose nothing",
		clause: "Calls for one id are linearizable",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			wantAllCounted(t, []txnstate.Store{s, s, s, s}, 25)
		},
	},
	{
		name:   "a deleted record is gone and can be made anew",
		clause: "Delete removes the record of an id at a version",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for n := range int64(3) {
				r := sample("id", n)
				v := mustSwap(t, s, r, txnstate.Durable)
				wantRecord(t, s, at(r, v))
				mustDelete(t, s, "id", v)
				wantMissing(t, s, "id")
				if len(visit(t, s, txnstate.Slot("id"))) > 0 {
					t.Errorf("the visit of the slot still gives the deleted record")
				}
			}
		},
	},
	{
		name:   "a delete at another version removes nothing",
		clause: "fails with ErrConflict where that is not the present version",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			first := mustSwap(t, s, sample("id", 1), txnstate.Durable)
			r := at(sample("id", 2), first)
			r.Version = mustSwap(t, s, r, txnstate.Durable)
			for _, wrong := range []txnstate.Version{0, first, r.Version + 1, ^txnstate.Version(0)} {
				err := s.Delete(t.Context(), "id", wrong)
				wantConflict(t, err, fmt.Sprintf("Delete at version %d, and the present one is %d,", wrong, r.Version))
				wantRecord(t, s, r)
			}
		},
	},
	{
		name:   "a delete of a missing id is refused",
		clause: "fails with ErrConflict where that is not the present version (or ErrNotFound)",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for _, v := range []txnstate.Version{0, 1, 99} {
				if err := s.Delete(t.Context(), "missing", v); !errors.Is(err, txnstate.ErrNotFound) && !errors.Is(err, txnstate.ErrConflict) {
					t.Errorf("Delete of a missing id at version %d = %v, want ErrNotFound or ErrConflict", v, err)
				}
				wantMissing(t, s, "missing")
			}
		},
	},
	{
		name:   "an id never meets a version again, also when it was deleted and made anew",
		clause: "A store gives every write of an id a version that it never gave that id before, also where the id was deleted in between (txnstate.Version)",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			var vs versions
			var v txnstate.Version
			for n := range int64(12) {
				stale := v
				v = vs.add(t, mustSwap(t, s, sample("id", n), txnstate.Durable))
				if stale != 0 {
					_, err := s.Swap(t.Context(), at(sample("id", -n), stale), txnstate.Durable)
					wantConflict(t, err, fmt.Sprintf("Swap from version %d of a record that was deleted since", stale))
					wantConflict(t, s.Delete(t.Context(), "id", stale), "Delete at that version")
				}
				v = vs.add(t, mustSwap(t, s, at(sample("id", 100+n), v), txnstate.Durability(n%2 == 0)))
				mustDelete(t, s, "id", v)
			}
		},
	},
	{
		name:   "a context that is done does not leave a write half done",
		clause: "Any other error, the end of the context included, means that the store can't say: for a write it wraps ErrUncertain",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			r := sample("id", 1)
			r.Version = mustSwap(t, s, r, txnstate.Durable)
			done, cancel := context.WithCancel(t.Context())
			cancel()

			got, err := s.Load(done, "id")
			if err == nil && !got.Equal(r) {
				t.Errorf("Load with a context that is done = %s, want an error or %s", brief(got), brief(r))
			}
			if errors.Is(err, txnstate.ErrNotFound) || errors.Is(err, txnstate.ErrDamaged) {
				t.Errorf("Load with a context that is done = %v, which says something of the record", err)
			}
			for _, err := range s.Slot(done, txnstate.Slot("id")) {
				if errors.Is(err, txnstate.ErrDamaged) {
					t.Errorf("Slot with a context that is done gives %v, which says something of a record", err)
				}
			}
			for n, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
				next := at(sample("id", int64(n)+2), r.Version)
				_, err = s.Swap(done, next, d)
				r = wantDoneOrUnsure(t, s, "Swap with a context that is done", err, r, &next)
			}
			err = s.Delete(done, "id", r.Version)
			wantDoneOrUnsure(t, s, "Delete with a context that is done", err, r, nil)
		},
	},
}

// wantDoneOrUnsure holds a write's error against what is stored: nil means that
// it was done, ErrUncertain that one of both is true, and stays true.
func wantDoneOrUnsure(t testing.TB, s txnstate.Store, what string, err error, before txnstate.Record, after *txnstate.Record) txnstate.Record {
	t.Helper()
	if err != nil && !errors.Is(err, txnstate.ErrUncertain) {
		t.Errorf("%s = %v, want nil or ErrUncertain", what, err)
	}
	now, lerr := s.Load(t.Context(), before.TxnID)
	if lerr != nil && !errors.Is(lerr, txnstate.ErrNotFound) {
		t.Fatalf("Load after it = %v", lerr)
	}
	gone := lerr != nil
	applied := after == nil && gone || after != nil && !gone && now.Equal(*after) && now.Version != before.Version
	if !applied && (err == nil || gone || !now.Equal(before) || now.Version != before.Version) {
		t.Errorf("%s = %v, and then Load gives %s, %v", what, err, brief(now), lerr)
	}
	again, lerr2 := s.Load(t.Context(), before.TxnID)
	if again.Version != now.Version || errors.Is(lerr2, txnstate.ErrNotFound) != gone {
		t.Errorf("%s = %v, and Load gives first version %d, then %d, %v", what, err, now.Version, again.Version, lerr2)
	}
	return now
}

// versions are those that one id had.
type versions struct {
	mu   sync.Mutex
	seen map[txnstate.Version]bool
}

func (vs *versions) add(t testing.TB, v txnstate.Version) txnstate.Version {
	t.Helper()
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.seen == nil {
		vs.seen = map[txnstate.Version]bool{}
	}
	if vs.seen[v] {
		t.Errorf("version %d was given to this id before", v)
	}
	vs.seen[v] = true
	return v
}

// wantOneWinner lets every store swap from r's version at once, and returns the
// winner's version.
func wantOneWinner(t testing.TB, stores []txnstate.Store, r txnstate.Record) txnstate.Version {
	t.Helper()
	type answer struct {
		v   txnstate.Version
		err error
	}
	answers := make([]answer, len(stores))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			next := r.Clone()
			next.UpdateMs = int64(i)
			<-start
			v, err := s.Swap(t.Context(), next, txnstate.Durability(i%2 == 0))
			answers[i] = answer{v, err}
		})
	}
	close(start)
	wg.Wait()
	winner := -1
	for i, a := range answers {
		switch {
		case a.err == nil && winner >= 0:
			t.Fatalf("two Swaps of %q from version %d succeeded", r.TxnID, r.Version)
		case a.err == nil:
			winner = i
		case !errors.Is(a.err, txnstate.ErrConflict):
			t.Errorf("Swap of %q that lost a race = %v, want ErrConflict", r.TxnID, a.err)
		}
	}
	if winner < 0 {
		t.Fatalf("of %d Swaps of %q from version %d none succeeded", len(stores), r.TxnID, r.Version)
	}
	now := mustLoad(t, stores[winner], r.TxnID)
	if now.UpdateMs != int64(winner) || now.Version != answers[winner].v {
		t.Errorf("Load(%q) = %s, want what the winner stored, number %d at version %d", r.TxnID, brief(now), winner, answers[winner].v)
	}
	return answers[winner].v
}

// wantAllCounted lets every store count up the UpdateMs of one id, each n times,
// and wants no count lost.
func wantAllCounted(t testing.TB, stores []txnstate.Store, n int) {
	t.Helper()
	const id = "counter"
	mustSwap(t, stores[0], sample(id, 0), txnstate.Durable)
	var vs versions
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			// A conflict means that somebody else's increment came first, so there
			// can't be more of them than increments.
			tries := len(stores)*n + n
			for done := 0; done < n; tries-- {
				if tries == 0 {
					t.Errorf("user %d meets more conflicts than there were increments", i)
					return
				}
				r, err := s.Load(t.Context(), id)
				if err != nil {
					t.Errorf("Load of the counter = %v", err)
					return
				}
				r.UpdateMs++
				v, err := s.Swap(t.Context(), r, txnstate.Durable)
				switch {
				case err == nil:
					vs.add(t, v)
					done++
				case !errors.Is(err, txnstate.ErrConflict):
					t.Errorf("user %d: Swap of the counter = %v, want nil or ErrConflict", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i, s := range stores {
		if got := mustLoad(t, s, id).UpdateMs; got != int64(len(stores)*n) {
			t.Errorf("user %d finds %d, and there should have been %d increments", i, got, len(stores)*n)
		}
	}
}
