package slotfile_test

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

// volume is a directory that handles are opened on, with what the suite wants to
// know of its file system.
type volume struct {
	fs  fsx.FS
	dir string

	mu    sync.Mutex
	syncs int
	stall map[string]*stall // by slot directory
}

type stall struct{ hung, release chan struct{} }

func newVolume(fs fsx.FS, dir string) *volume {
	v := &volume{dir: dir, stall: map[string]*stall{}}
	v.fs = fsx.Hook(fs, func(op fsx.Op, name string) error {
		switch op {
		case fsx.OpSync:
			v.mu.Lock()
			v.syncs++
			st := v.stall[filepath.Dir(name)]
			delete(v.stall, filepath.Dir(name))
			v.mu.Unlock()
			if st != nil {
				close(st.hung)
				<-st.release
			}
		case fsx.OpSyncDir, fsx.OpReplace:
			v.mu.Lock()
			v.syncs++
			v.mu.Unlock()
		}
		return nil
	})
	return v
}

func (v *volume) open(t testing.TB) *handle {
	t.Helper()
	s, err := slotfile.Open(slotfile.Config{Dir: v.dir, FS: v.fs})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &handle{s, v}
}

type handle struct {
	*slotfile.Store
	v *volume
}

func harness(open func(t testing.TB) (fsx.FS, string)) storetest.Harness {
	return storetest.Harness{
		Open: func(t testing.TB) txnstate.Store { return newVolume(open(t)).open(t) },
		Reopen: func(t testing.TB, s txnstate.Store) txnstate.Store {
			h := s.(*handle)
			require.NoError(t, h.Close())
			return h.v.open(t)
		},
		Crash: func(t testing.TB, s txnstate.Store) txnstate.Store { return s.(*handle).v.open(t) },
		Peer:  func(t testing.TB, s txnstate.Store) txnstate.Store { return s.(*handle).v.open(t) },
		Syncs: func(s txnstate.Store) int {
			v := s.(*handle).v
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.syncs
		},
		Stall: func(_ testing.TB, s txnstate.Store, id string) (<-chan struct{}, func()) {
			v := s.(*handle).v
			st := &stall{make(chan struct{}), make(chan struct{})}
			v.mu.Lock()
			defer v.mu.Unlock()
			v.stall[slotDir(v.dir, id)] = st
			return st.hung, func() { close(st.release) }
		},
	}
}

func slotDir(dir, id string) string {
	return filepath.Join(dir, "txn_state", ".versions", "slot-"+itoa(txnstate.Slot(id)))
}

func TestStoreKeepsTheContractInMemory(t *testing.T) {
	storetest.Run(t, harness(func(testing.TB) (fsx.FS, string) { return fsx.Mem(), "/cluster" }))
}

func TestStoreKeepsTheContractOnFiles(t *testing.T) {
	storetest.Run(t, harness(func(t testing.TB) (fsx.FS, string) { return fsx.OS(), t.TempDir() }))
}
