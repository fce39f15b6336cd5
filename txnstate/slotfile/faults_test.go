package slotfile_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

// TestFaultsAmongConcurrentWritesFitTheContract lets users write two ids while
// operations fail now and then, some of them after they were performed: users of
// one handle, durably and later, or of two handles, durably. A user of a second
// handle that does not fail writes a third id.
func TestFaultsAmongConcurrentWritesFitTheContract(t *testing.T) {
	t.Run("one handle", func(t *testing.T) { faultsAmongWrites(t, false) })
	t.Run("two handles", func(t *testing.T) { faultsAmongWrites(t, true) })
}

func faultsAmongWrites(t *testing.T, shared bool) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}
	broken := errors.New("made-up I/O error")
	for seed := range seeds {
		disk := fsx.Mem()
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, 0))
		odds := 0.0
		fault := func(op fsx.Op) error {
			mu.Lock()
			defer mu.Unlock()
			p := odds
			if op == fsx.OpLink || op == fsx.OpSyncDir {
				p *= 4
			}
			if rng.Float64() < p {
				return broken
			}
			return nil
		}
		faulty := fsx.Hook(fsx.HookAfter(disk, func(op fsx.Op, _ string, err error) error {
			if f := fault(op); f != nil && err == nil {
				return f
			}
			return err
		}), func(op fsx.Op, _ string) error { return fault(op) })
		one, two := open(t, faulty), open(t, disk)
		handles := []txnstate.Store{one, one, one, one}
		if shared {
			handles = []txnstate.Store{one, two, one, open(t, faulty)}
		}
		mu.Lock()
		odds = 0.01
		mu.Unlock()

		var h storetest.History
		var wg sync.WaitGroup
		for user, s := range handles {
			s := h.Of(s)
			rng := rand.New(rand.NewPCG(seed, uint64(user)+1))
			wg.Go(func() {
				known := map[string]txnstate.Version{}
				for n := range int64(14) {
					id := []string{target, neighbour}[rng.IntN(2)]
					switch k := rng.IntN(10); {
					case k < 3:
						if r, err := s.Load(t.Context(), id); err == nil {
							known[id] = r.Version
						} else if errors.Is(err, txnstate.ErrNotFound) {
							known[id] = 0
						}
					case k < 9:
						r := record(id, n*10+int64(user))
						r.Version = known[id]
						if v, err := s.Swap(t.Context(), r, txnstate.Durability(k < 6 || shared)); err == nil {
							known[id] = v
						}
					default:
						if err := s.Delete(t.Context(), id, known[id]); err == nil {
							known[id] = 0
						}
					}
				}
			})
		}
		wg.Go(func() {
			for n := int64(0); n < 8; {
				switch err := bump(two, third, n); {
				case err == nil:
					n++
				case errors.Is(err, txnstate.ErrUncertain):
					// It slept for so long that it can't be told any more whose
					// generation led to the newest.
					if r, err := two.Load(t.Context(), third); err == nil && r.UpdateMs == n {
						n++
					}
				default:
					t.Errorf("seed %d: the other handle: %v", seed, err)
					return
				}
			}
		})
		wg.Wait()
		mu.Lock()
		odds = 0
		mu.Unlock()
		for _, id := range []string{target, neighbour} {
			_, _ = h.Of(one).Load(t.Context(), id)
		}
		require.NoError(t, h.Check(), fmt.Sprintf("seed %d", seed))
		require.NoError(t, one.Flush(t.Context()))
		r, err := one.Load(t.Context(), third)
		require.NoError(t, err)
		require.EqualValues(t, 7, r.UpdateMs)
		for _, id := range []string{target, neighbour} { // flushed: the other handle has it too
			a, errA := one.Load(t.Context(), id)
			b, errB := two.Load(t.Context(), id)
			require.Equal(t, errA, errB)
			require.Equal(t, a, b)
		}
		for _, s := range append(handles, two) {
			require.NoError(t, s.(*slotfile.Store).Close()) // some of them twice
		}
	}
}
