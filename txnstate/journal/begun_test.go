package journal_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// large is a record of about so many bytes.
func large(id string, size int) txnstate.Record {
	r := working(id)
	for i := range size / 10_000 {
		r.Participants = append(r.Participants, txnstate.Participant{Kind: txnstate.KindPartition, Name: fmt.Sprint(i, strings.Repeat("x", 10_000))})
	}
	return r
}

// However much is begun while a write is under way, what is taken is there when it is
// done, whole, in the version that was promised. (I1)
func TestWhatIsBegunWhileAWriteIsUnderWayIsWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := freshDisk(t)
		var hold atomic.Bool
		step := make(chan struct{})
		s, err := journal.Open(journal.Config{Dir: dir, FS: fsx.Hook(disk, func(op fsx.Op, _ string) error {
			if op == fsx.OpWriteAt && hold.Load() {
				<-step
			}
			return nil
		})})
		require.NoError(t, err)
		const ids, big = 30, 400 << 10 // whose memory is not used again
		recs := map[string]txnstate.Record{}
		for i := range ids {
			for _, size := range []int{10, big} {
				id := fmt.Sprint("id-", i, "-", size)
				r := large(id, 10)
				r.Version, err = s.Swap(t.Context(), r, txnstate.Durable)
				require.NoError(t, err)
				r.Participants = large(id, size).Participants
				recs[id] = r
			}
		}
		pending := map[string]txnstate.Pending{}
		begin := func(id string) bool {
			next := recs[id]
			v, p, ok := s.SwapStart(next)
			if ok {
				require.Greater(t, v, next.Version)
				next.Version = v
				recs[id], pending[id] = next, p
			}
			return ok
		}
		hold.Store(true)
		for i := range ids {
			require.True(t, begin(fmt.Sprint("id-", i, "-10")))
			synctest.Wait() // it is being written, or waits for that
			if i%4 == 3 {
				require.True(t, begin(fmt.Sprint("id-", i, "-", big)))
			}
			step <- struct{}{}
			synctest.Wait()
		}
		close(step)
		synctest.Wait()
		after, err := open(disk.Image(0))
		require.NoError(t, err)
		for id, p := range pending {
			<-p.Done()
			require.NoError(t, p.Err())
			for _, store := range []*journal.Store{s, after} {
				got, err := store.Load(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, recs[id].Version, got.Version, id)
				require.Len(t, got.Participants, len(recs[id].Participants), id)
			}
		}
		require.NoError(t, after.Close())
		require.NoError(t, s.Close())
	})
}

// A snapshot is begun when it is due, also where there is always somebody who waits for the next write.
func TestSnapshotsAreWrittenUnderWritesWithoutAPause_I13(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const at = 64 << 10
		disk := freshDisk(t)
		var s *journal.Store
		recs := make([]txnstate.Record, 8) // some are being written
		for i := range recs {
			recs[i] = large(fmt.Sprint(i), 20_000)
		}
		var left atomic.Int64
		segments := map[string]bool{}
		s, err := journal.Open(journal.Config{Dir: dir, SnapshotAt: at, FS: fsx.Hook(disk, func(op fsx.Op, name string) error {
			if op == fsx.OpSync && left.Load() > 0 && strings.HasSuffix(name, ".log") {
				// Beside the write that is under way.
				for i := range recs {
					if v, _, ok := s.SwapStart(recs[i]); ok {
						recs[i].Version = v
						left.Add(-1)
						break
					}
				}
				segments[name] = true // by one goroutine at a time
			}
			return nil
		})})
		require.NoError(t, err)
		for i := range recs {
			recs[i].Version, err = s.Swap(t.Context(), recs[i], txnstate.Durable)
			require.NoError(t, err)
		}
		left.Store(100)
		_, err = s.Swap(t.Context(), idle("first"), txnstate.Durable)
		require.NoError(t, err)
		synctest.Wait()
		require.Zero(t, left.Load(), "the writes followed one another")
		require.Greater(t, len(segments), 1, "a snapshot that is due begins with a new segment")
		require.NoError(t, s.Close())
	})
}

// A Later write that came while another was written is synced by nobody, until somebody
// wants that.
func TestALaterWriteThatCameMeanwhileCausesNoSync(t *testing.T) {
	inBubble(t, func(t *testing.T, disk *crashfs.FS, s *journal.Store) {
		before := disk.Syncs()
		release := disk.HoldSyncs()
		swap := beside(func() error { _, err := s.Swap(t.Context(), idle("a"), txnstate.Durable); return err })
		synctest.Wait()
		_, err := s.Swap(t.Context(), idle("b"), txnstate.Later)
		require.NoError(t, err)
		release()
		synctest.Wait()
		done, err := swap.get()
		require.True(t, done)
		require.NoError(t, err)
		require.Equal(t, before+1, disk.Syncs())
	})
}

// A store that has failed says nothing of any id, also where nothing was written of it;
// and when it is repaired a Flush has nothing to complain of.
func TestAStoreThatHasFailedSaysNothingAtOnce_I11(t *testing.T) {
	t.Parallel()
	disk, c := freshDisk(t), new(clock)
	s, err := journal.Open(journal.Config{Dir: dir, FS: disk, Now: c.now})
	require.NoError(t, err)
	other := idle("other")
	_, err = s.Swap(t.Context(), other, txnstate.Durable)
	require.NoError(t, err)
	_, ok := s.LoadNow("other")
	require.True(t, ok)
	disk.FailSync(0)
	_, err = s.Swap(t.Context(), idle("a"), txnstate.Durable)
	require.ErrorIs(t, err, syscall.EIO)
	_, ok = s.LoadNow("other")
	require.False(t, ok)
	c.move(time.Minute)
	_, err = s.Load(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context()))
	require.NoError(t, s.Close())
	_, ok = s.LoadNow("other")
	require.False(t, ok)
}
