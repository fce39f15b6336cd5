package slotfile

import (
	"path"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// The readable copy of a slot that changes is made now and then, and of one that
// has changed in the end, without anybody asking for it.
func TestTheReadableCopyFollowsAtItsOwnPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var copies atomic.Int32
		disk := fsx.Mem()
		s := mustOpen(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
			if op == fsx.OpRename && path.Base(name) == "slot-25.json" {
				copies.Add(1)
			}
			return nil
		}), nil)
		l := s.slots[25]
		r := swap(t, s, idle("tx-ongoing", 1))
		synctest.Wait()
		require.Equal(t, string(l.current().body()), get(t, disk, slotName(25)), "the first change is there at once")
		for range 50 {
			r = swap(t, s, r)
		}
		synctest.Wait()
		require.EqualValues(t, 1, copies.Load())
		time.Sleep(copyEvery)
		synctest.Wait()
		require.EqualValues(t, 2, copies.Load())
		require.Equal(t, string(l.current().body()), get(t, disk, slotName(25)))

		time.Sleep(10 * copyEvery)
		require.EqualValues(t, 2, copies.Load(), "nothing changed")
		for range 8 {
			time.Sleep(copyEvery / 4)
			r = swap(t, s, r)
		}
		synctest.Wait()
		require.EqualValues(t, 4, copies.Load(), "at once, and after a quarter of a second")

		// Whoever asks, and whoever goes, does not wait for its time.
		swap(t, s, swap(t, s, r))
		require.NoError(t, s.Flush(t.Context()))
		require.Equal(t, string(l.current().body()), get(t, disk, slotName(25)))
		r, err := s.Load(t.Context(), "tx-ongoing")
		require.NoError(t, err)
		swap(t, s, r)
		require.NoError(t, s.Close())
		require.Equal(t, string(l.current().body()), get(t, disk, slotName(25)))
	})
}
