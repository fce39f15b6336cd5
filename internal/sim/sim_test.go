package sim_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/sim"
)

// Some seeds that are the same each time, and some that nobody has run before. A
// failure names its seed; the command re-runs it, to the same end.
func TestTheClusterKeepsItsPromisesWhateverFails(t *testing.T) {
	var seeds []uint64
	for s := range uint64(12) {
		seeds = append(seeds, s+1)
	}
	for range 12 {
		seeds = append(seeds, rand.Uint64()>>24)
	}
	for i, seed := range seeds {
		r := sim.Run(t, sim.Options{Seed: seed, World: sim.Worlds()[i%len(sim.Worlds())]})
		if len(r.Broken) == 0 {
			continue
		}
		path := filepath.Join(t.ArtifactDir(), "story.txt")
		for _, l := range r.Story {
			t.Log(l)
		}
		_ = os.WriteFile(path, nil, 0o600)
		require.Empty(t, r.Broken, "go run ./internal/sim/cmd/sim -world %s -seeds %d -story", r.World, seed)
	}
}
