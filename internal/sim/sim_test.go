package sim_test

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/sim"
)

// Some seeds that are the same each time, and some that nobody has run before. A
// failure names its seed; the command re-runs it.
func TestTheClusterKeepsItsPromisesWhateverFails(t *testing.T) {
	fresh := rand.Uint64() >> 24
	for _, seeds := range []string{"1-24", fmt.Sprintf("%d-%d", fresh, fresh+23)} {
		// By the command, whose runtime lets time go on while a host holds a mutex
		// during I/O, as the example broker does here and there.
		out, err := exec.CommandContext(t.Context(), "go", "run", "./cmd/sim", "-all", "-seeds", seeds).CombinedOutput()
		if strings.Contains(string(out), "this Go's") {
			t.Skip("another version of Go, for whose runtime the command has no changes")
		}
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
	}
}

// The world of the library's parts holds no mutex during I/O, so it can be run here,
// with the race detector.
func TestThePartsKeepTheirPromisesWhateverFails(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	for range 4 {
		seeds = append(seeds, rand.Uint64()>>24)
	}
	for _, seed := range seeds {
		r := sim.Run(t, sim.Options{Seed: seed, World: "parts"})
		if len(r.Broken) == 0 {
			continue
		}
		for _, l := range sim.Short(r.Story, r.Broken[0]) {
			t.Log(l)
		}
		require.Empty(t, r.Broken, "go run ./internal/sim/cmd/sim -world %s -seeds %d -story", r.World, seed)
	}
}
