package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Harness says how to get at the store under test. Only Open is required: where
// another function is nil the cases that need it are skipped, and say so. The
// functions fail the test themselves when they can't do their work; a store that
// has to be closed is closed in a t.Cleanup.
type Harness struct {
	// Open makes a fresh, empty store.
	Open func(t testing.TB) txnstate.Store
	// Reopen ends the use of s in an orderly way and opens its data anew, as
	// after a restart. s is not used again.
	Reopen func(t testing.TB, s txnstate.Store) txnstate.Store
	// Crash opens the data of s anew as after the death of the process: s was
	// neither flushed nor closed, and is not used again.
	Crash func(t testing.TB, s txnstate.Store) txnstate.Store
	// Peer opens a second handle on the data of s, as another process has one.
	// Both are used from then on.
	Peer func(t testing.TB, s txnstate.Store) txnstate.Store
	// Syncs counts the syncs that s has caused so far.
	Syncs func(s txnstate.Store) int
	// Stall makes the next write of txnID hang inside the store, as a disk does
	// that no longer answers, until release is called. hung is closed when that
	// write hangs.
	Stall func(t testing.TB, s txnstate.Store, txnID string) (hung <-chan struct{}, release func())

	// patience is how long something may take that takes no time, before it is
	// said to hang. It decides nothing in a store that works.
	patience time.Duration
}

func (h Harness) withDefaults() Harness {
	if h.patience == 0 {
		h.patience = time.Minute
	}
	return h
}

// Run tests the store of h. Cases run one after another, each with a store of
// its own.
func Run(t *testing.T, h Harness) {
	h = h.withDefaults()
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { c.execute(t, h) })
	}
}

// testCase is one promise of the contract.
type testCase struct {
	name   string // the promise, as a sentence
	clause string // the words of the comment of txnstate.Store
	needs  []ability
	run    func(t testing.TB, h Harness)
}

type ability string

const (
	reopen ability = "Reopen"
	crash  ability = "Crash"
	peer   ability = "Peer"
	syncs  ability = "Syncs"
	stall  ability = "Stall"
)

func (h Harness) has(a ability) bool {
	switch a {
	case reopen:
		return h.Reopen != nil
	case crash:
		return h.Crash != nil
	case peer:
		return h.Peer != nil
	case syncs:
		return h.Syncs != nil
	case stall:
		return h.Stall != nil
	}
	return false
}

func (c testCase) execute(t testing.TB, h Harness) {
	for _, a := range c.needs {
		if !h.has(a) {
			t.Skipf("not tested: Harness.%s is nil", a)
		}
	}
	c.run(quoting{t, c.clause}, h)
}

// quoting adds to every failure the words that it breaks.
type quoting struct {
	testing.TB
	clause string
}

func (q quoting) Errorf(format string, args ...any) {
	q.Helper()
	q.TB.Errorf("%s\n\ttxnstate.Store: %q", fmt.Sprintf(format, args...), q.clause)
}

func (q quoting) Fatalf(format string, args ...any) {
	q.Helper()
	q.TB.Fatalf("%s\n\ttxnstate.Store: %q", fmt.Sprintf(format, args...), q.clause)
}

func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{swapCases, recordCases, slotCases, durableCases, peerCases} {
		all = append(all, group...)
	}
	return all
}

// sample is a record that an id has most of its life. n tells two of them apart.
func sample(id string, n int64) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State = txnstate.CompleteCommit
	r.Producer = txnstate.Producer{ID: 4000, Epoch: 3}
	r.PrevID, r.LastEpoch = 4000, 2
	r.TimeoutMs, r.StartMs, r.UpdateMs = 60_000, 1_700_000_000_000, n
	r.ClientVersion = txnstate.TV2
	return r
}

func at(r txnstate.Record, v txnstate.Version) txnstate.Record {
	r.Version = v
	return r
}

// idsOf makes n ids of one slot.
func idsOf(slot, n int, prefix string) []string {
	var ids []string
	for i := 0; len(ids) < n; i++ {
		if id := fmt.Sprintf("%s-%d", prefix, i); txnstate.Slot(id) == slot {
			ids = append(ids, id)
		}
	}
	return ids
}

func mustSwap(t testing.TB, s txnstate.Store, r txnstate.Record, d txnstate.Durability) txnstate.Version {
	t.Helper()
	v, err := s.Swap(t.Context(), r, d)
	if err != nil {
		t.Fatalf("Swap(%.60q from version %d) = %v, want nil", r.TxnID, r.Version, err)
	}
	return v
}

func mustDelete(t testing.TB, s txnstate.Store, id string, v txnstate.Version) {
	t.Helper()
	if err := s.Delete(t.Context(), id, v); err != nil {
		t.Fatalf("Delete(%.60q at version %d) = %v, want nil", id, v, err)
	}
}

func mustLoad(t testing.TB, s txnstate.Store, id string) txnstate.Record {
	t.Helper()
	r, err := s.Load(t.Context(), id)
	if err != nil {
		t.Fatalf("Load(%.60q) = %v, want a record", id, err)
	}
	return r
}

// wantRecord loads an id and compares it, version included.
func wantRecord(t testing.TB, s txnstate.Store, want txnstate.Record) {
	t.Helper()
	got, err := s.Load(t.Context(), want.TxnID)
	switch {
	case err != nil:
		t.Errorf("Load(%.60q) = %v, want %s", want.TxnID, err, brief(want))
	case !got.Equal(want):
		t.Errorf("Load(%.60q) = %s, want %s", want.TxnID, brief(got), brief(want))
	case got.Version != want.Version:
		t.Errorf("Load(%.60q) has version %d, want %d", want.TxnID, got.Version, want.Version)
	}
}

func wantMissing(t testing.TB, s txnstate.Store, id string) {
	t.Helper()
	if r, err := s.Load(t.Context(), id); !errors.Is(err, txnstate.ErrNotFound) {
		t.Errorf("Load(%.60q) = %s, %v, want ErrNotFound", id, brief(r), err)
	}
}

func wantConflict(t testing.TB, err error, what string) {
	t.Helper()
	if !errors.Is(err, txnstate.ErrConflict) {
		t.Errorf("%s = %v, want ErrConflict", what, err)
	}
}

// brief prints every field of a record in a line.
func brief(r txnstate.Record) string {
	type plain txnstate.Record // whose String would leave fields out
	if len(r.TxnID) > 60 {
		r.TxnID = r.TxnID[:60] + "..."
	}
	return fmt.Sprintf("%+q", fmt.Sprintf("%+v", plain(r)))
}

// visit collects a slot. An error ends the test.
func visit(t testing.TB, s txnstate.Store, slot int) map[string][]txnstate.Record {
	t.Helper()
	seen := map[string][]txnstate.Record{}
	for r, err := range s.Slot(t.Context(), slot) {
		if err != nil {
			t.Fatalf("Slot(%d) gives %v, want records only", slot, err)
		}
		seen[r.TxnID] = append(seen[r.TxnID], r)
	}
	return seen
}

// finishes runs f beside the test and fails when it hangs.
func finishes(t testing.TB, h Harness, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	timer := time.NewTimer(h.patience)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-timer.C:
		t.Fatalf("%s hangs", what)
	}
}
