package journal_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// Writers go on while a
// snapshot is written, and what is older goes away when it is there.
func TestSnapshotsDoNotStopWritersAndBoundTheDisk(t *testing.T) {
	t.Parallel()
	fsys := freshDisk(t)
	var ofSnapshots sync.Map
	hooked := fsx.Hook(fsys, func(op fsx.Op, name string) error {
		if op == fsx.OpRename {
			ofSnapshots.Store(name, true)
		}
		return nil
	})
	const at = 64 << 10
	s, err := journal.Open(journal.Config{Dir: dir, FS: hooked, SnapshotAt: at})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			r := working(fmt.Sprint("id-", w))
			for range 600 {
				v, err := s.Swap(t.Context(), r, txnstate.Durable)
				if !assert.NoError(t, err) {
					return
				}
				r.Version = v
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Close())
	snapshots := 0
	ofSnapshots.Range(func(any, any) bool { snapshots++; return true })
	assert.Greater(t, snapshots, 6, "segments and snapshots")

	var size int64
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		size += info.Size()
	}
	// The log may have grown while the last snapshot was written.
	assert.Less(t, size, int64(6*at), "%v", entries)
	s, err = open(fsys)
	require.NoError(t, err)
	got, err := contents(t.Context(), s)
	require.NoError(t, err)
	assert.Len(t, got, 8)
	require.NoError(t, s.Close())
}

// A snapshot takes each id at another moment. A Later write that it has must not
// survive a crash which takes an earlier one that it has not.
func TestASnapshotIsNotAheadOfTheLog(t *testing.T) {
	t.Parallel()
	fsys := freshDisk(t)
	first, last := idIn(0), idIn(txnstate.Slots-1)
	var s *journal.Store
	var once sync.Once
	frames, there := 0, make(chan struct{})
	hooked := fsx.Hook(fsys, func(op fsx.Op, name string) error {
		if op == fsx.OpWriteAt && strings.HasSuffix(name, ".snapshot.new") {
			if frames++; frames == 3 { // the header, and what comes from the first slots
				for _, id := range []string{first, last} {
					_, err := s.Swap(context.Background(), idle(id), txnstate.Later)
					assert.NoError(t, err)
				}
			}
		}
		return nil
	})
	hooked = fsx.HookAfter(hooked, func(op fsx.Op, name string, err error) error {
		if op == fsx.OpRemove && strings.HasSuffix(name, ".log") {
			once.Do(func() { close(there) }) // the snapshot is in its place
		}
		return err
	})
	var err error
	s, err = journal.Open(journal.Config{Dir: dir, FS: hooked, SnapshotAt: 200 << 10})
	require.NoError(t, err)
	for i := range 4000 {
		_, err := s.Swap(t.Context(), working(fmt.Sprint("payments-service-", i)), txnstate.Later)
		require.NoError(t, err)
	}
	require.NoError(t, s.Flush(t.Context()))
	<-there
	after, err := open(fsys.Image(0))
	require.NoError(t, err)
	_, early := after.Load(t.Context(), first)
	_, late := after.Load(t.Context(), last)
	if late == nil {
		require.NoError(t, early, "the later write is there, and the earlier one is not")
	}
	require.NoError(t, after.Close())
	require.NoError(t, s.Close())
}

func idIn(slot int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint("id-", i); txnstate.Slot(id) == slot {
			return id
		}
	}
}
