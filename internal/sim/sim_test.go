package sim

import (
	"os"
	"strconv"
	"testing"
)

func TestSeeds(t *testing.T) {
	from, n := uint64(1), uint64(40)
	if v := os.Getenv("SEED"); v != "" {
		x, _ := strconv.Atoi(v)
		from, n = uint64(x), 1
	}
	for s := from; s < from+n; s++ {
		r := Run(t, Options{Seed: s, Story: n == 1})
		if n == 1 {
			for _, l := range r.Story {
				t.Log(l)
			}
		}
		t.Log(r.Seed, r.Txns, r.Commits, r.Records, r.Hash, r.Broken)
		if len(r.Broken) > 0 {
			t.Fail()
		}
	}
}
