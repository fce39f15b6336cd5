package onesync

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Nothing outlives what started it (I13).
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Files that nobody has open any more are closed below too, when the log does not need
// them, and nothing is remembered of them.
func TestNothingIsKeptOfClosedFiles_I13(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		disk := disk(t, seed)
		opened := 0
		w := newWorld(seed)
		for _, name := range worldNames {
			w.names[name] = []*object{nil}
		}
		w.calm, w.namely = seed%3 == 0, seed%3 == 1
		require.NoError(t, w.start(fsx.HookAfter(disk, func(op fsx.Op, _ string, err error) error {
			switch {
			case err != nil:
			case op == fsx.OpOpenFile:
				opened++
			case op == fsx.OpClose:
				opened--
			}
			return err
		})))
		require.NoError(t, w.run(300))
		for _, h := range w.open {
			require.NoError(t, h.Close())
			require.ErrorIs(t, h.Sync(), os.ErrClosed)
			_, err := h.WriteAt([]byte("late"), 0)
			require.ErrorIs(t, err, os.ErrClosed)
			require.ErrorIs(t, h.Close(), os.ErrClosed)
		}
		// The log is begun anew until nothing of them is in it.
		one := synced(t, w.fs, "root/one")
		log := w.fs.log
		for end := log.header.generation + 3; log.header.generation < end; log.work.Wait() {
			_, err := one.WriteAt(make([]byte, 300), 0)
			require.NoError(t, err)
			require.NoError(t, one.Sync())
		}
		require.Len(t, w.fs.nodes, 1)
		require.Equal(t, 3, opened, "the file and the log's two")
		require.NoError(t, one.Close())
		require.NoError(t, w.fs.Close())
		require.Zero(t, opened)
	}
}
