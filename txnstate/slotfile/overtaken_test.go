package slotfile_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// put writes a record on top of another, and is the record as it is then.
func put(t *testing.T, s txnstate.Store, r txnstate.Record, n int64, d txnstate.Durability) txnstate.Record {
	t.Helper()
	r.UpdateMs = n
	v, err := s.Swap(t.Context(), r, d)
	require.NoError(t, err)
	r.Version = v
	return r
}

func load(t *testing.T, s txnstate.Store, id string) txnstate.Record {
	t.Helper()
	r, err := s.Load(t.Context(), id)
	require.NoError(t, err)
	return r
}

func dropped(s *slotfile.Store) []string {
	ids := s.Dropped()
	slices.Sort(ids)
	return ids
}

// Of all slots it is told what another process overtook, once, and of nothing else.
func TestWhatIsDroppedIsToldForAllSlots(t *testing.T) {
	disk := fsx.Mem()
	a, b := open(t, disk), open(t, disk)
	ids := []string{"tx-abort", "tx-commit", target} // in slots 48, 9 and 25
	for _, id := range ids {
		r := put(t, a, record(id, 1), 1, txnstate.Durable)
		put(t, a, r, 2, txnstate.Later)
		put(t, b, r, 3, txnstate.Durable)
	}
	mine := put(t, a, record(neighbour, 1), 1, txnstate.Later)
	for _, id := range ids {
		require.EqualValues(t, 3, load(t, a, id).UpdateMs)
	}
	require.Equal(t, ids, dropped(a))
	require.Empty(t, a.Dropped())
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, mine.UpdateMs, load(t, b, neighbour).UpdateMs)
	require.Empty(t, a.Dropped())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// What another process removed does not come back with a Later write that was made
// before it.
func TestALaterWriteOfWhatWasRemovedIsDropped(t *testing.T) {
	disk := fsx.Mem()
	a, b := open(t, disk), open(t, disk)
	r := put(t, a, record(target, 1), 1, txnstate.Durable)
	put(t, a, r, 2, txnstate.Later)
	require.NoError(t, b.Delete(t.Context(), target, r.Version))
	_, err := a.Load(t.Context(), target)
	require.ErrorIs(t, err, txnstate.ErrNotFound)
	require.Equal(t, []string{target}, a.Dropped())
	require.NoError(t, a.Flush(t.Context()))
	_, err = b.Load(t.Context(), target)
	require.ErrorIs(t, err, txnstate.ErrNotFound)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// A Later write that a claim of unknown outcome was to take along, and others have
// made so many generations since that it can't be told any more, is given up and
// told: it may have been stored, and removed again.
func TestALaterWriteOfAnUnknownClaimIsDropped(t *testing.T) {
	for _, done := range []bool{false, true} {
		disk := fsx.Mem()
		var fails atomic.Bool
		broken := errors.New("made-up I/O error")
		fsys := fsx.Hook(disk, func(op fsx.Op, _ string) error {
			if !done && op == fsx.OpLink && fails.Swap(false) {
				return broken
			}
			return nil
		})
		a := open(t, fsx.HookAfter(fsys, func(op fsx.Op, _ string, err error) error {
			if done && op == fsx.OpLink && fails.Swap(false) {
				return broken
			}
			return err
		}))
		b := open(t, disk)
		require.NoError(t, bump(a, third, 1))
		put(t, a, record(target, 1), 1, txnstate.Later)
		fails.Store(true)
		require.ErrorIs(t, bump(a, neighbour, 1), txnstate.ErrUncertain)
		if done {
			require.NoError(t, b.Delete(t.Context(), target, load(t, b, target).Version))
		}
		for n := range int64(80) {
			require.NoError(t, bump(b, third, n))
		}
		_, err := a.Load(t.Context(), target)
		require.ErrorIs(t, err, txnstate.ErrNotFound)
		require.Equal(t, []string{target}, a.Dropped())
		require.NoError(t, a.Flush(t.Context()))
		_, err = b.Load(t.Context(), target)
		require.ErrorIs(t, err, txnstate.ErrNotFound)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// A claim takes a Later write along, and while it is made there is another of the id
// on top: that one stands, on top of what was stored.
func TestALaterWriteOnTopOfOneThatIsBeingStoredStands(t *testing.T) {
	disk := fsx.Mem()
	fsys, arm, reached, release := holdAt(disk, func(op fsx.Op, _ string) bool { return op == fsx.OpLink })
	a, b := open(t, fsys), open(t, disk)
	require.NoError(t, bump(a, third, 1))
	first := put(t, a, record(target, 1), 1, txnstate.Later)
	arm()
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, bump(a, neighbour, 1)) })
	<-reached
	second := put(t, a, first, 2, txnstate.Later)
	release()
	wg.Wait()
	require.EqualValues(t, 1, load(t, b, target).UpdateMs)
	require.Equal(t, second, load(t, a, target))
	third := put(t, a, second, 3, txnstate.Later)
	require.NoError(t, a.Flush(t.Context()))
	require.Equal(t, third.UpdateMs, load(t, b, target).UpdateMs)
	require.Empty(t, a.Dropped())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// The same, and another process has changed the id before the claim is answered: its
// write counts.
func TestALaterWriteOnTopOfOneThatWasStoredAndChangedIsDropped(t *testing.T) {
	disk := fsx.Mem()
	var hold atomic.Bool
	linked, answer := make(chan struct{}), make(chan struct{})
	fsys, arm, reached, release := holdAt(fsx.HookAfter(disk, func(op fsx.Op, _ string, err error) error {
		if op == fsx.OpLink && hold.Swap(false) {
			close(linked)
			<-answer
		}
		return err
	}), func(op fsx.Op, _ string) bool { return op == fsx.OpLink })
	a, b := open(t, fsys), open(t, disk)
	require.NoError(t, bump(a, third, 1))
	first := put(t, a, record(target, 1), 1, txnstate.Later)
	arm()
	hold.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, bump(a, neighbour, 1)) })
	<-reached
	put(t, a, first, 2, txnstate.Later)
	release()
	<-linked
	stored := load(t, b, target)
	require.EqualValues(t, 1, stored.UpdateMs)
	put(t, b, stored, 5, txnstate.Durable)
	require.EqualValues(t, 5, load(t, a, target).UpdateMs)
	close(answer)
	wg.Wait()
	require.EqualValues(t, 5, load(t, a, target).UpdateMs)
	require.Equal(t, []string{target}, a.Dropped())
	require.NoError(t, a.Flush(t.Context()))
	require.EqualValues(t, 5, load(t, b, target).UpdateMs)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// A link that was done, its answer lost, and so many generations since that nobody
// can tell: the write may have been done, which no refusal says.
func TestALinkThatWasTooLongAgoIsUncertain_I11(t *testing.T) {
	disk := fsx.Mem()
	b := open(t, disk)
	var lies atomic.Bool
	a := open(t, fsx.HookAfter(disk, func(op fsx.Op, _ string, err error) error {
		if op == fsx.OpLink && lies.Swap(false) {
			for n := range int64(80) {
				require.NoError(t, bump(b, third, n))
			}
			return fs.ErrExist
		}
		return err
	}))
	r := put(t, a, record(target, 1), 1, txnstate.Durable)
	lies.Store(true)
	r.UpdateMs = 2
	_, err := a.Swap(t.Context(), r, txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	require.EqualValues(t, 2, load(t, b, target).UpdateMs)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// Damage that is found behind a claim says nothing of the claim.
func TestDamageBehindAClaimLeavesItUncertain_I11(t *testing.T) {
	disk := fsx.Mem()
	b := open(t, disk)
	var lies atomic.Bool
	a := open(t, fsx.HookAfter(disk, func(op fsx.Op, _ string, err error) error {
		if op == fsx.OpLink && lies.Swap(false) {
			require.NoError(t, bump(b, third, 2))
			const dir = "/cluster/txn_state/.versions/slot-25/"
			entries, err := disk.ReadDir(dir)
			require.NoError(t, err)
			require.NoError(t, disk.Replace(dir+newestName(entries)+".slot", []byte("{"), 0o644))
			return fs.ErrExist
		}
		return err
	}))
	r := put(t, a, record(target, 1), 1, txnstate.Durable)
	lies.Store(true)
	_, err := a.Swap(t.Context(), r, txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	_, err = a.Swap(t.Context(), r, txnstate.Later)
	require.ErrorIs(t, err, txnstate.ErrDamaged)
	require.NotErrorIs(t, err, txnstate.ErrUncertain, "nothing was tried")
	_ = a.Close()
	_ = b.Close()
}

// A generation may be removed between its being found and its being read: then there
// are newer ones, and the Load finds them.
func TestAGenerationThatGoesWhileItIsReadIsLookedForAgain(t *testing.T) {
	disk := fsx.Mem()
	b := open(t, disk)
	require.NoError(t, bump(b, target, 1))
	var meanwhile atomic.Bool
	a := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
		if op == fsx.OpReadFile && strings.HasSuffix(name, ".slot") && meanwhile.Swap(false) {
			for n := int64(2); n < 40; n++ {
				require.NoError(t, bump(b, target, n))
			}
		}
		return nil
	}))
	meanwhile.Store(true) // a has no work of its own before its first Load
	require.EqualValues(t, 39, load(t, a, target).UpdateMs)
	require.False(t, meanwhile.Load())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// A directory that was laid anew under a running process is an error for it, and not
// a state to go on with.
func TestADirectoryThatWentBackIsNotUsed(t *testing.T) {
	disk := fsx.Mem()
	a := open(t, disk)
	const dir = "/cluster/txn_state/.versions/slot-25/"
	copied := func() map[string][]byte {
		files := map[string][]byte{}
		entries, err := disk.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			data, err := disk.ReadFile(dir + e.Name())
			require.NoError(t, err)
			files[e.Name()] = data
		}
		return files
	}
	for n := range int64(30) {
		require.NoError(t, bump(a, target, n))
	}
	require.NoError(t, a.Flush(t.Context()))
	before := copied()
	for n := range int64(30) {
		require.NoError(t, bump(a, target, 30+n))
	}
	require.NoError(t, a.Flush(t.Context()))
	for name := range copied() {
		require.NoError(t, disk.Remove(dir+name))
	}
	for name, data := range before {
		require.NoError(t, disk.Replace(dir+name, data, 0o644))
	}
	_, err := a.Load(t.Context(), target)
	require.ErrorContains(t, err, "went back")
	require.ErrorContains(t, bump(a, target, 99), "went back")
	require.NoError(t, a.Close())
	b := open(t, disk)
	require.EqualValues(t, 29, load(t, b, target).UpdateMs)
	require.NoError(t, b.Close())
}

// A file that was taken over is there after a loss of power also where its name was
// not durable yet (W21).
func TestATakenOverFilesNameIsSyncedBeforeItIsShown_W21(t *testing.T) {
	for seed := range uint64(8) {
		disk := crashfs.New(seed)
		s := open(t, disk) // which syncs the directory
		f, err := disk.OpenFile("/cluster/txn_state/slot-25.json", os.O_WRONLY|os.O_CREATE, 0o644)
		require.NoError(t, err)
		_, err = f.Write([]byte(`{"tx-ongoing":{"pid":102,"epoch":4}}`))
		require.NoError(t, err)
		require.NoError(t, f.Sync()) // the bytes, and not the name
		require.NoError(t, f.Close())
		seen := load(t, s, target)
		disk.Crash()
		next := open(t, disk.Image(seed))
		require.Equal(t, seen.Producer, load(t, next, target).Producer, "image %d", seed)
		require.NoError(t, s.Close())
		require.NoError(t, next.Close())
	}
}

// A generation of another process whose sync failed here is not shown before it was
// written once more: a later sync that succeeds proves nothing for it (W21).
func TestAGenerationOfAnotherWhoseSyncFailedIsWrittenAgain_W21(t *testing.T) {
	disk := fsx.Mem()
	var fails atomic.Bool
	syncs := 0
	a := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
		if op == fsx.OpSyncDir && strings.HasSuffix(name, "slot-25") {
			syncs++
			if fails.Swap(false) {
				return fs.ErrInvalid
			}
		}
		return nil
	}))
	b := open(t, disk)
	require.NoError(t, bump(a, target, 1))
	require.NoError(t, bump(b, target, 2))
	newest := func() string {
		entries, err := disk.ReadDir("/cluster/txn_state/.versions/slot-25/")
		require.NoError(t, err)
		return newestName(entries)
	}
	before := newest()
	fails.Store(true)
	_, err := a.Load(t.Context(), target)
	require.Error(t, err)
	require.EqualValues(t, 2, load(t, a, target).UpdateMs)
	require.Greater(t, newest(), before)
	require.NoError(t, a.Flush(t.Context()))

	// One that was synced once is not again.
	require.NoError(t, bump(b, target, 3))
	load(t, a, target)
	n := syncs
	for range 5 {
		require.EqualValues(t, 3, load(t, a, target).UpdateMs)
	}
	require.Equal(t, n, syncs)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// A batch that one of its callers has left, when all was ready to claim it, is made
// anew without it, for the others.
func TestABatchIsMadeAnewWithoutWhoLeavesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		var on atomic.Bool
		held := make(chan struct{})
		s := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
			if op == fsx.OpSync && strings.Contains(name, "slot-25") && on.Load() {
				<-held
			}
			return nil
		}))
		require.NoError(t, bump(s, third, 1))
		on.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		first, left, stayed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { first <- bump(s, third, 2) }()
		synctest.Wait()
		go func() { _, err := s.Swap(ctx, record(target, 1), txnstate.Durable); left <- err }()
		go func() { _, err := s.Swap(t.Context(), record(neighbour, 1), txnstate.Durable); stayed <- err }()
		synctest.Wait()
		held <- struct{}{}
		require.NoError(t, <-first)
		synctest.Wait() // the two are one batch, and its file is being synced
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		on.Store(false)
		held <- struct{}{}
		require.NoError(t, <-stayed)
		_, err := s.Load(t.Context(), target)
		require.ErrorIs(t, err, txnstate.ErrNotFound)
		require.NoError(t, s.Close())
	})
}

// I4: where the newest generation can't be trusted, the one that replaces it has what
// it had, and no Later write that it had overtaken.
func TestAGenerationThatIsWrittenAgainKeepsWhatOvertookALaterWrite(t *testing.T) {
	disk := fsx.Mem()
	var fails atomic.Bool
	a := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
		if op == fsx.OpSyncDir && strings.HasSuffix(name, "slot-25") && fails.Swap(false) {
			return fs.ErrInvalid
		}
		return nil
	}))
	b := open(t, disk)
	r := put(t, a, record(target, 1), 1, txnstate.Durable)
	put(t, a, r, 2, txnstate.Later)
	put(t, b, r, 3, txnstate.Durable)
	fails.Store(true)
	_, err := a.Load(t.Context(), neighbour)
	require.ErrorIs(t, err, fs.ErrInvalid)
	put(t, a, record(neighbour, 1), 1, txnstate.Durable)
	require.EqualValues(t, 3, load(t, b, target).UpdateMs)
	require.EqualValues(t, 3, load(t, a, target).UpdateMs)
	require.Equal(t, []string{target}, a.Dropped())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// A Later write that waited for a batch whose sync failed is decided on all the same.
func TestALaterWriteBehindAFailedSyncIsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var on atomic.Bool
		held := make(chan struct{})
		s := open(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			switch {
			case op == fsx.OpLink && on.Load():
				<-held
			case op == fsx.OpSyncDir && strings.HasSuffix(name, "slot-25") && on.Swap(false):
				return fs.ErrInvalid
			}
			return nil
		}))
		r := put(t, s, record(target, 1), 1, txnstate.Durable)
		on.Store(true)
		durable, later := make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.Swap(t.Context(), r, txnstate.Durable); durable <- err }()
		synctest.Wait()
		go func() { _, err := s.Swap(t.Context(), r, txnstate.Later); later <- err }()
		synctest.Wait()
		close(held)
		require.ErrorIs(t, <-durable, txnstate.ErrUncertain)
		require.ErrorIs(t, <-later, txnstate.ErrConflict)
		require.NoError(t, s.Close())
	})
}

// A caller that leaves a claim whose file can't be removed waits for the claim: it
// may still be done.
func TestACallerThatLeavesAClaimThatCannotBeStoppedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var on atomic.Bool
		held := make(chan struct{})
		s := open(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			switch {
			case !on.Load():
			case op == fsx.OpLink:
				<-held
			case op == fsx.OpRemove && strings.Contains(name, "tmp-"):
				return fs.ErrInvalid
			}
			return nil
		}))
		require.NoError(t, bump(s, third, 1))
		on.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		var answered atomic.Bool
		go func() {
			_, err := s.Swap(ctx, record(target, 1), txnstate.Durable)
			if err != nil {
				require.ErrorIs(t, err, txnstate.ErrUncertain)
			}
			answered.Store(true)
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		require.False(t, answered.Load())
		on.Store(false)
		close(held)
		synctest.Wait()
		require.True(t, answered.Load())
		load(t, s, target)
		require.NoError(t, s.Close())
	})
}

// I13: no file stays open of a write that failed.
func TestAFailedWriteLeavesNoFileOpen_I13(t *testing.T) {
	var on atomic.Bool
	var opened, closed atomic.Int64
	s := open(t, fsx.HookAfter(fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
		if on.Load() && op == fsx.OpWrite && strings.Contains(name, "tmp-") {
			return fs.ErrInvalid
		}
		return nil
	}), func(op fsx.Op, name string, err error) error {
		if strings.Contains(name, "tmp-") && err == nil {
			switch op {
			case fsx.OpOpenFile:
				opened.Add(1)
			case fsx.OpClose:
				closed.Add(1)
			}
		}
		return err
	}))
	on.Store(true)
	for range 5 {
		require.ErrorIs(t, bump(s, target, 1), txnstate.ErrUncertain)
	}
	on.Store(false)
	require.NoError(t, bump(s, target, 1))
	require.NoError(t, s.Close())
	require.Equal(t, opened.Load(), closed.Load())
}

// W20: that a slot has removed generations is durable before the first of them is
// removed.
func TestThatASlotHasBegunIsDurableBeforeItRemovesAnything_W20(t *testing.T) {
	disk := crashfs.New(1)
	removed := 0
	var lost error
	s := open(t, fsx.HookAfter(disk, func(op fsx.Op, name string, err error) error {
		if op == fsx.OpRemove && strings.HasSuffix(name, "0000002.slot") {
			removed++
			_, lost = disk.Image(0).ReadFile("/cluster/txn_state/.versions/slot-25/begun")
		}
		return err
	}))
	for n := range int64(40) {
		require.NoError(t, bump(s, target, n))
	}
	require.NoError(t, s.Close())
	require.Equal(t, 1, removed)
	require.NoError(t, lost)
}
