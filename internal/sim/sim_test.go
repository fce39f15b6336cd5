package sim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/sim"
)

// Some seeds that are the same each time, and some that nobody has run before. A
// failure names its seed; the command re-runs it, to the same end.
func TestTheClusterKeepsItsPromisesWhateverFails(t *testing.T) {
	var seeds []uint64
	for s := range uint64(8) {
		seeds = append(seeds, s+1)
	}
	for range 8 {
		seeds = append(seeds, rand.Uint64()>>24)
	}
	worlds := append(sim.Worlds(), sim.Worlds()[:2]...) // the last kind takes as long as several of the others
	for i, seed := range seeds {
		r := sim.Run(t, sim.Options{Seed: seed, World: worlds[i%len(worlds)]})
		if len(r.Broken) == 0 {
			continue
		}
		for _, l := range sim.Short(r.Story, r.Broken[0]) {
			t.Log(l)
		}
		require.Empty(t, r.Broken, "go run ./internal/sim/cmd/sim -world %s -seeds %d -story", r.World, seed)
	}
}
