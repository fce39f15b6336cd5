package explore_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/internal/explore"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var (
	bounds = flag.String("explore", "", "bounds of the walk instead of the usual ones: faults, transactions of each client, participants of each client, and whether confirmations count one by one; for example 2,2,1,3,2,false")
	limit  = flag.Int("explore-limit", 0, "states of each world at most; 0 is no limit")
)

// bound is how far a walk goes.
type bound struct {
	faults      int
	txns, parts [2]int
	partly      bool
}

// worlds are those of a bound: each protocol and both mixed, with an id that is
// new and with one whose epochs are nearly used up.
func worlds(b bound) []explore.World {
	var out []explore.World
	tv1, tv2 := txnstate.TV1, txnstate.TV2
	for _, p := range []struct {
		name   string
		server txnstate.TransactionVersion
		client [2]txnstate.TransactionVersion
	}{
		{"protocol 1", tv1, [2]txnstate.TransactionVersion{tv1, tv1}},
		{"protocol 2", tv2, [2]txnstate.TransactionVersion{tv2, tv2}},
		{"mixed", tv2, [2]txnstate.TransactionVersion{tv1, tv2}},
	} {
		for _, e := range []struct {
			name  string
			epoch int16
		}{{"new id", -1}, {"last epochs", txnstate.MaxEpoch - 1}} {
			out = append(out, explore.World{
				Name: fmt.Sprintf("%s, %s, %d faults, transactions %v, participants %v", p.name, e.name, b.faults, b.txns, b.parts), Server: p.server, Client: p.client,
				Epoch: e.epoch, Faults: b.faults, Txns: b.txns, Parts: b.parts, Partly: b.partly,
			})
		}
	}
	return out
}

func usual() []bound {
	if slow {
		return []bound{
			{faults: 1, txns: [2]int{1, 1}, parts: [2]int{1, 1}},
			{faults: 0, txns: [2]int{1, 1}, parts: [2]int{2, 1}, partly: true},
		}
	}
	return []bound{
		{faults: 1, txns: [2]int{1, 1}, parts: [2]int{2, 1}},
		{faults: 0, txns: [2]int{2, 1}, parts: [2]int{2, 1}, partly: true},
	}
}

// Whatever two clients, two coordinators and three participants do in whatever
// order, within the bounds, I1 to I9 hold, and from everywhere there is a way on
// (I12).
func TestEveryReachableStateIsSoundAndSettles(t *testing.T) {
	walks := usual()
	if *bounds != "" {
		var b bound
		if _, err := fmt.Sscanf(*bounds, "%d,%d,%d,%d,%d,%t", &b.faults, &b.txns[0], &b.txns[1], &b.parts[0], &b.parts[1], &b.partly); err != nil {
			t.Fatalf("-explore %s: %v", *bounds, err)
		}
		walks = []bound{b}
	}
	all := 0
	for _, b := range walks {
		for _, w := range worlds(b) {
			t.Run(w.Name, func(t *testing.T) {
				r := explore.Explore(w, *limit)
				if r.Violation != "" {
					t.Fatal(r.Violation)
				}
				if r.Cut > 0 || r.Stopped && *limit == 0 {
					t.Errorf("%d states were not gone on from: the model is too small", r.Cut)
				}
				t.Logf("%d states, %d moves, %d deep", r.States, r.Moves, r.Depth)
				all += r.States
			})
		}
	}
	t.Logf("%d states", all)
}
