package storetest

import (
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// made builds a history by hand: "from till" of each call, and its answer.
type made []*call

func (m made) check() error {
	return (&History{calls: m}).Check()
}

// A store that held records before is learned from its first answers, and held
// to them.
func TestHistoryOfAStoreInUse(t *testing.T) {
	for _, c := range []struct {
		name     string
		possible bool
		calls    made
	}{
		{"a record that was there", true, made{load(1, 2, 1, 5), swap(3, 4, 2, 5, 6, nil), load(5, 6, 2, 6)}},
		{"a record that was there, seen twice", true, made{load(1, 2, 1, 5), load(3, 4, 1, 5)}},
		{"two records that were there", false, made{load(1, 2, 1, 5), load(3, 4, 2, 6)}},
		{"nothing, and then something", false, made{missing(1, 2), load(3, 4, 1, 5)}},
		{"a delete of what was there", true, made{remove(1, 2, 5, nil), missing(3, 4)}},
		{"two deletes of what was there", false, made{remove(1, 2, 5, nil), remove(3, 4, 5, nil)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := (&History{Used: true, calls: c.calls}).Check(); (err == nil) != c.possible {
				t.Errorf("Check = %v, want possible = %t", err, c.possible)
			}
		})
	}
}

func load(from, till int, n int64, v txnstate.Version) *call {
	return &call{kind: callLoad, id: "id", from: from, till: till, rec: at(sample("id", n), v)}
}

func missing(from, till int) *call {
	return &call{kind: callLoad, id: "id", from: from, till: till, err: txnstate.ErrNotFound}
}

func swap(from, till int, n int64, old, v txnstate.Version, err error) *call {
	return &call{kind: callSwap, id: "id", from: from, till: till, old: old, next: at(sample("id", n), old), rec: txnstate.Record{Version: v}, err: err}
}

func remove(from, till int, old txnstate.Version, err error) *call {
	return &call{kind: callDelete, id: "id", from: from, till: till, old: old, err: err}
}

// The checker decides what every test with two handles proves, so it is held
// against histories that were judged by hand.
func TestHistoryTellsPossibleFromImpossible(t *testing.T) {
	uncertain, conflict := txnstate.ErrUncertain, txnstate.ErrConflict
	for _, c := range []struct {
		name     string
		possible bool
		calls    made
	}{
		{"nothing", true, nil},
		{"one after another", true, made{swap(1, 2, 1, 0, 5, nil), load(3, 4, 1, 5), swap(5, 6, 2, 5, 6, nil), remove(7, 8, 6, nil), missing(9, 10)}},
		{"a load of what was replaced", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 4, 2, 5, 6, nil), load(5, 6, 1, 5)}},
		{"a load that overlaps the replacement", true, made{swap(1, 2, 1, 0, 5, nil), swap(3, 6, 2, 5, 6, nil), load(4, 5, 1, 5)}},
		{"two loads that go back", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 10, 2, 5, 6, nil), load(4, 5, 2, 6), load(6, 7, 1, 5)}},
		{"two successes from one version", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 6, 2, 5, 6, nil), swap(4, 7, 3, 5, 7, nil)}},
		{"one version for two writes", false, made{swap(1, 2, 1, 0, 5, nil), remove(3, 4, 5, nil), swap(5, 6, 2, 0, 5, nil)}},
		{"a conflict without a cause", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 4, 2, 5, 0, conflict)}},
		{"a conflict with a write at the same time", true, made{swap(1, 2, 1, 0, 5, nil), swap(3, 6, 2, 5, 0, conflict), swap(4, 5, 3, 5, 6, nil)}},
		{"a conflict with a write that came later", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 4, 2, 5, 0, conflict), swap(5, 6, 3, 5, 6, nil)}},
		{"not found before it was made", true, made{swap(1, 4, 1, 0, 5, nil), missing(2, 3)}},
		{"not found although it is there", false, made{swap(1, 2, 1, 0, 5, nil), missing(3, 4)}},
		{"a record out of nothing", false, made{load(1, 2, 1, 5)}},
		{"the right version of the wrong record", false, made{swap(1, 2, 1, 0, 5, nil), load(3, 4, 2, 5)}},
		{"an unsure write that was made", true, made{swap(1, 2, 1, 0, 0, uncertain), load(3, 4, 1, 5), swap(5, 6, 2, 5, 6, nil)}},
		{"an unsure write that was not made", true, made{swap(1, 2, 1, 0, 0, uncertain), missing(3, 4), swap(5, 6, 2, 0, 6, nil)}},
		{"an unsure write that was made after a load without it", false, made{swap(1, 2, 1, 0, 0, uncertain), missing(3, 4), load(5, 6, 1, 5)}},
		{"an unsure write that was made late", true, made{swap(1, 2, 1, 0, 5, nil), swap(3, 6, 2, 5, 0, uncertain), load(4, 5, 1, 5), load(7, 8, 2, 6)}},
		{"an unsure write after the version moved", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 4, 2, 5, 6, nil), swap(5, 6, 3, 5, 0, uncertain), load(7, 8, 3, 9)}},
		{"an unsure write under the version of another", false, made{swap(1, 2, 1, 0, 5, nil), swap(3, 4, 2, 5, 0, uncertain), load(5, 6, 2, 5)}},
		{"a write that never returned and was made", true, made{swap(1, 0, 1, 0, 0, nil), load(3, 4, 1, 5)}},
		{"a write that never returned and was not made", true, made{swap(1, 0, 1, 0, 0, nil), missing(3, 4)}},
		{"a load that failed says nothing", true, made{{kind: callLoad, id: "id", from: 1, till: 2, err: uncertain}, missing(3, 4)}},
		{"an unsure delete that was made", true, made{swap(1, 2, 1, 0, 5, nil), remove(3, 4, 5, uncertain), missing(5, 6), swap(7, 8, 2, 0, 6, nil)}},
		{"a delete that was refused and made", false, made{swap(1, 2, 1, 0, 5, nil), remove(3, 4, 5, conflict), missing(5, 6)}},
		{"made again after a delete that overlaps", true, made{swap(1, 2, 1, 0, 5, nil), remove(3, 8, 5, nil), swap(4, 7, 2, 0, 6, nil), load(5, 6, 2, 6)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.calls.check(); (err == nil) != c.possible {
				t.Errorf("Check = %v, want possible = %t", err, c.possible)
			}
		})
	}
}
