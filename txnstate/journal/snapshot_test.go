package journal_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// I13: what is on disk is bounded by the state, however much is written.
func TestSnapshotsBoundTheDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const at, writers = 64 << 10, 8
		fsys := freshDisk(t)
		s, err := journal.Open(journal.Config{Dir: dir, FS: fsys, SnapshotAt: at})
		require.NoError(t, err)
		recs := make([]txnstate.Record, writers)
		for w := range recs {
			recs[w] = working(fmt.Sprint("id-", w))
		}
		written := 0
		for range 40 {
			var wg sync.WaitGroup
			for w := range recs {
				wg.Go(func() {
					for range 30 {
						v, err := s.Swap(t.Context(), recs[w], txnstate.Durable)
						assert.NoError(t, err)
						recs[w].Version = v
					}
				})
			}
			wg.Wait()
			synctest.Wait() // a snapshot that was begun is there
			written += writers * 30 * 60
			assert.Less(t, diskUse(t, fsys), int64(2*at))
		}
		assert.Greater(t, written, 6*at)
		require.NoError(t, s.Close())
		s, err = open(fsys)
		require.NoError(t, err)
		got, err := contents(t.Context(), s)
		require.NoError(t, err)
		for _, r := range recs {
			assert.Equal(t, r.Version, got[r.TxnID].Version)
		}
		assert.Len(t, got, writers)
		require.NoError(t, s.Close())
	})
}

func diskUse(t *testing.T, fsys fsx.FS) (size int64) {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		size += info.Size()
	}
	return size
}

// A snapshot that takes its time stops nobody, and nothing is removed before it
// is there.
func TestSnapshotsDoNotStopWriters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := freshDisk(t)
		held, begun := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(begun) })
		s, err := journal.Open(journal.Config{Dir: dir, SnapshotAt: 34 << 10, FS: fsx.Hook(fsys, func(op fsx.Op, name string) error {
			if op == fsx.OpSync && strings.HasSuffix(name, ".snapshot.new") {
				begin()
				<-held
			}
			return nil
		})})
		require.NoError(t, err)
		m := newModel()
		for i := range 60 {
			require.NoError(t, m.do(s, step{id: fmt.Sprint("id-", i%5), durability: txnstate.Durable, size: 20}, i))
		}
		<-begun
		for i := range 60 {
			require.NoError(t, m.do(s, step{id: fmt.Sprint("id-", i%7), durability: txnstate.Durable, size: i}, 100+i))
		}
		m.wantContents(t, s, "while a snapshot is written")
		wantRecovered(t, *m, fsys.Image(1), "while a snapshot is written")
		close(held)
		synctest.Wait()
		wantRecovered(t, *m, fsys.Image(0), "when it is written")
		require.NoError(t, s.Close())
	})
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
