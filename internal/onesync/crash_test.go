package onesync

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
)

// disk is an empty root on a file system that forgets.
func disk(t testing.TB, seed uint64) *crashfs.FS {
	t.Helper()
	fsys := crashfs.New(seed)
	require.NoError(t, fsys.MkdirAll("root/a/b", 0o755))
	for _, dir := range []string{".", "root", "root/a"} {
		require.NoError(t, fsys.SyncDir(dir))
	}
	return fsys
}

// begin starts a world on an empty disk.
func begin(t testing.TB, seed uint64) (*world, *crashfs.FS) {
	t.Helper()
	fsys := disk(t, seed)
	w := newWorld(seed)
	for _, name := range worldNames {
		w.names[name] = []*object{nil}
	}
	return w, fsys
}

const operations = 60

// Whatever operation the crash comes before, what a Sync has acknowledged is there
// when the directory is opened again, also where that was interrupted, and no byte
// is other than what some write has made it.
func TestWhatIsSyncedSurvivesACrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			for k := 0; ; k++ {
				w, fsys := begin(t, seed)
				fsys.CrashAt(fsys.Ops() + k)
				err := w.start(fsys)
				if err == nil {
					err = w.run(operations)
				}
				if !crashed(err) {
					require.NoError(t, err, "crash at %d", k)
				}
				_, over := fsys.Crashed()
				for image := range uint64(4) {
					// The replay is interrupted too, at some operation.
					again := fsys.Image(image)
					again.CrashAt(again.Ops() + (k+int(image))%12)
					if err := w.start(again); !crashed(err) {
						require.NoError(t, err, "crash at %d, image %d", k, image)
					}
					// The plain images of a replay are looked at as well, each after each.
					next := (image + uint64(k)/3) % 4
					require.NoError(t, w.start(again.Image(next)), "crash at %d, image %d, and again", k, image)
				}
				if !over {
					require.Greater(t, k, operations)
					return
				}
			}
		})
	}
}

// Several lives one after the other, some ended by the loss of power and some by
// the end of the process alone.
func TestWhatIsSyncedSurvivesSeveralLives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		w, fsys := begin(t, seed)
		w.calm, w.namely = seed%3 == 0, seed%3 == 1
		for life := range 5 {
			// In a long life the files of the log are filled again and again.
			length := 50 + w.rand.IntN(10*operations)
			fsys.CrashAt(fsys.Ops() + w.rand.IntN(2*length))
			err := w.start(fsys)
			if err == nil {
				err = w.run(length)
			}
			if !crashed(err) {
				require.NoError(t, err, "seed %d, life %d", seed, life)
			}
			fsys.Crash()
			if w.rand.IntN(3) == 0 {
				fsys = fsys.AfterKill()
				continue
			}
			// What is found is the model from here on: an image is looked at whole
			// before anything is done to it.
			fsys = fsys.Image(w.rand.Uint64N(6)) // the plain ones half of the time
			require.NoError(t, w.start(fsys.Image(1)), "seed %d, life %d", seed, life)
			w.settle()
		}
	}
}

// Whichever sync fails, of a file, of a directory or of the log, nothing is
// acknowledged that is not there afterwards, and nothing is lost that was.
func TestWhatIsSyncedSurvivesAFailedSync(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		for k := 0; ; k++ {
			w, fsys := begin(t, seed)
			before := fsys.Syncs()
			fsys.FailSync(k)
			err := w.start(fsys)
			if err == nil {
				require.NoError(t, w.run(operations), "seed %d, sync %d failed", seed, k)
			}
			if fsys.Syncs()-before <= k {
				break
			}
			for image := range uint64(4) {
				require.NoError(t, w.start(fsys.Image(image)), "seed %d, sync %d failed, image %d", seed, k, image)
			}
		}
	}
}

// After a write or sync of the log that failed, every Sync fails, of every file,
// until the directory is opened again; what was acknowledged is there then.
func TestAfterAFailureOfTheLogNothingIsSynced(t *testing.T) {
	t.Parallel()
	fsys := disk(t, 0)
	f := open(t, fsys, worldRoot)
	a, b := synced(t, f, "root/a/x"), synced(t, f, "root/a/y")
	fsys.FailSync(0)
	_, err := a.WriteAt([]byte("lost?"), 2)
	require.NoError(t, err)
	require.Error(t, a.Sync())
	for range 2 {
		require.Error(t, a.Sync())
		require.Error(t, b.Sync())
		c, err := f.OpenFile("root/a/new", os.O_RDWR|os.O_CREATE, 0o644)
		require.NoError(t, err)
		require.Error(t, c.Sync())
	}
	require.Error(t, f.Remove("root/a/x"), "the log has something of it that can't be made void")
	require.Error(t, f.Close())
	require.Error(t, errors.Join(f.Close()))
	again := open(t, fsys.Image(0), worldRoot)
	got, err := again.ReadFile("root/a/x")
	require.NoError(t, err)
	require.Equal(t, "ab", string(got[:2]))
	require.NoError(t, again.Close())
}
