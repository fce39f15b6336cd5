package journal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

const dir = "data/txn"

// kit opens stores, and knows which file system each has.
type kit struct {
	fs map[txnstate.Store]*crashfs.FS
	// small stores make many snapshots.
	snapshotAt int64
}

func (k *kit) open(t testing.TB, fsys *crashfs.FS) txnstate.Store {
	t.Helper()
	s, err := journal.Open(journal.Config{Dir: dir, FS: fsys, SnapshotAt: k.snapshotAt})
	require.NoError(t, err)
	if k.fs == nil {
		k.fs = map[txnstate.Store]*crashfs.FS{}
	}
	k.fs[s] = fsys
	t.Cleanup(func() { _ = s.Close() }) // several tests close it, or crash under it
	return s
}

func (k *kit) harness() storetest.Harness {
	return storetest.Harness{
		Open: func(t testing.TB) txnstate.Store {
			fsys := crashfs.New(1)
			require.NoError(t, fsx.MkdirSynced(fsys, "data", 0o755))
			return k.open(t, fsys)
		},
		Reopen: func(t testing.TB, s txnstate.Store) txnstate.Store {
			require.NoError(t, s.(*journal.Store).Close())
			return k.open(t, k.fs[s])
		},
		Crash: func(t testing.TB, s txnstate.Store) txnstate.Store { return k.open(t, k.fs[s].Image(5)) },
		Syncs: func(s txnstate.Store) int { return k.fs[s].Syncs() },
	}
}

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, (&kit{}).harness())
}

func TestStoreKeepsTheContractByWhatItBegins(t *testing.T) {
	storetest.Run(t, storetest.Started((&kit{}).harness()))
}

func TestStoreKeepsTheContractWhileSnapshotsAreWritten(t *testing.T) {
	h := (&kit{snapshotAt: 1}).harness()
	h.Syncs = nil // those of the snapshots count too
	storetest.Run(t, h)
}

func TestStoreKeepsTheContractOnARealDisk(t *testing.T) {
	dirs := map[txnstate.Store]string{}
	open := func(t testing.TB, dir string) txnstate.Store {
		s, err := journal.Open(journal.Config{Dir: dir})
		require.NoError(t, err)
		dirs[s] = dir
		t.Cleanup(func() { _ = s.Close() }) // as above
		return s
	}
	storetest.Run(t, storetest.Harness{
		Open: func(t testing.TB) txnstate.Store { return open(t, t.TempDir()) },
		Reopen: func(t testing.TB, s txnstate.Store) txnstate.Store {
			require.NoError(t, s.(*journal.Store).Close())
			return open(t, dirs[s])
		},
	})
}
