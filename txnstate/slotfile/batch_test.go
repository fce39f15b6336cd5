package slotfile

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// W29: what comes while a sync is under way shares the next one, whatever it is
// and however much.
func TestWritesThatWaitShareOneGeneration(t *testing.T) {
	disk := crashfs.New(1)
	s := mustOpen(t, disk, nil)
	var ids []string
	for i := 0; len(ids) < 40; i++ {
		if id := fmt.Sprintf("shared-%d", i); txnstate.Slot(id) == 25 {
			ids = append(ids, id)
		}
	}
	deleted := swap(t, s, idle(ids[0], 1))
	for range 5 { // past what a slot does once
		deleted = swap(t, s, deleted)
	}
	require.NoError(t, s.Flush(t.Context()))
	before := disk.Syncs()
	release := disk.HoldSyncs()
	errs := make([]error, len(ids)+1)
	var wg sync.WaitGroup
	wg.Go(func() { _, errs[0] = s.Swap(t.Context(), idle("tx-ongoing", 1), txnstate.Durable) })
	queued := func() (n int, begun bool) {
		l := s.slots[25]
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.queue), l.inflight != nil
	}
	for _, begun := queued(); !begun; _, begun = queued() {
		runtime.Gosched()
	}
	for i, id := range ids {
		wg.Go(func() {
			if i == 0 {
				errs[1] = s.Delete(t.Context(), id, deleted.Version)
				return
			}
			_, errs[i+1] = s.Swap(t.Context(), idle(id, 1), txnstate.Durable)
		})
	}
	for n, _ := queued(); n < len(ids); n, _ = queued() {
		runtime.Gosched()
	}
	release()
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, 4, disk.Syncs()-before, "two generations, each with its file and its name")
	for _, id := range ids[1:] {
		_, err := s.Load(t.Context(), id)
		require.NoError(t, err)
	}
}

// A write that is refused because of another one in its batch is refused for good
// only where that one was made.
func TestARefusalWithinABatchIsWorthWhatTheBatchIsWorth(t *testing.T) {
	for _, fails := range []bool{false, true} {
		disk := crashfs.New(1)
		s := mustOpen(t, disk, nil)
		r := swap(t, s, idle("tx-ongoing", 1))
		l := s.slots[25]
		require.NoError(t, s.Flush(t.Context()))

		// Two swaps from one version, and one from a version of long ago, in one
		// batch.
		ops := []*op{newOp(opSwap, r.TxnID, r.Version), newOp(opSwap, r.TxnID, r.Version), newOp(opSwap, r.TxnID, 77), newOp(opDelete, "pay-104", 3)}
		for _, o := range ops[:3] {
			o.value = appendRecord(nil, idle(r.TxnID, 2))
		}
		if fails {
			disk.FailSync(0)
		}
		l.process(ops)
		for _, o := range ops {
			<-o.done
		}
		if fails {
			require.ErrorIs(t, ops[0].err, txnstate.ErrUncertain)
			require.ErrorIs(t, ops[1].err, txnstate.ErrUncertain)
		} else {
			require.NoError(t, ops[0].err)
			require.Equal(t, txnstate.ErrConflict, ops[1].err)
		}
		require.Equal(t, txnstate.ErrConflict, ops[2].err)
		require.Equal(t, txnstate.ErrNotFound, ops[3].err)
	}
}

// Later writes of an id wait while a batch is about to change it: on top of what,
// is not known before.
func TestALaterWriteWaitsForABatchThatChangesItsID(t *testing.T) {
	disk := crashfs.New(1)
	s := mustOpen(t, disk, nil)
	r := swap(t, s, idle("tx-ongoing", 1))
	require.NoError(t, s.Flush(t.Context()))
	release := disk.HoldSyncs()
	var wg sync.WaitGroup
	var durable, later error
	wg.Go(func() { _, durable = s.Swap(t.Context(), r, txnstate.Durable) })
	l := s.slots[25]
	waits := func(cond func() bool) {
		for {
			l.mu.Lock()
			ok := cond()
			l.mu.Unlock()
			if ok {
				return
			}
			runtime.Gosched()
		}
	}
	waits(func() bool { return l.inflight["tx-ongoing"] })
	wg.Go(func() { _, later = s.Swap(t.Context(), r, txnstate.Later) })
	// Another id's does not wait.
	_, err := s.Swap(t.Context(), idle("pay-104", 1), txnstate.Later)
	require.NoError(t, err)
	waits(func() bool { return len(l.queue) == 1 })
	release()
	wg.Wait()
	require.NoError(t, durable)
	require.ErrorIs(t, later, txnstate.ErrConflict)
}
