package journal_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// clock is moved by hand.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time { return time.UnixMilli(c.ms.Load()) }

func (c *clock) move(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// runThrough performs the script on a store that repairs itself, as a coordinator
// does: when a call can't say, look. before is called ahead of each step, and with
// -1 when faults have to stop.
func runThrough(t *testing.T, fsys *crashfs.FS, m *model, c *clock, before func(i int)) (unsure int) {
	t.Helper()
	s, err := journal.Open(journal.Config{Dir: dir, FS: fsys, SnapshotAt: 34 << 10, Now: c.now})
	require.NoError(t, err)
	for i, st := range script() {
		before(i)
		err := m.do(s, st, i)
		if err == nil {
			continue
		}
		require.ErrorIs(t, err, txnstate.ErrUncertain)
		unsure++
		before(-1)
		c.move(2 * time.Second)
		m.wantContents(t, s, fmt.Sprintf("after step %d had failed with %v", i, err))
		// What was answered has to stay.
		m.sure = len(m.states) - 1
	}
	before(-1)
	require.NoError(t, s.Close())
	m.sure = len(m.states) - 1
	return unsure
}

// I11: whichever sync fails, the store answers nothing from then on but what is
// durable, or says that it can't say, and goes on when it has repaired itself.
func TestASyncFailsAtEveryPlace(t *testing.T) {
	t.Parallel()
	unsure := 0
	for k := 0; ; k++ {
		m, fsys := newModel(), freshDisk(t)
		syncs := 0
		unsure += runThrough(t, fsys, m, new(clock), func(i int) {
			switch i {
			case 0:
				syncs = fsys.Syncs()
				fsys.FailSync(k)
			case -1:
				fsys.FailSync(-1)
			}
		})
		for seed := range uint64(4) {
			wantRecovered(t, *m, fsys.Image(seed), fmt.Sprintf("sync %d failed, and later the power, seed %d", k, seed))
		}
		if fsys.Syncs() <= syncs+k {
			break
		}
	}
	assert.Greater(t, unsure, 10, "many syncs have somebody who waits for them")
}

// The first repair fails as well, at every one of its syncs.
func TestASyncFailsAndThenOneOfTheRepair(t *testing.T) {
	t.Parallel()
	for k := range 6 {
		m, fsys, c := newModel(), freshDisk(t), new(clock)
		s, err := journal.Open(journal.Config{Dir: dir, FS: fsys, Now: c.now})
		require.NoError(t, err)
		require.NoError(t, m.do(s, step{id: "a", durability: txnstate.Durable}, 1))
		require.NoError(t, m.do(s, step{id: "b", durability: txnstate.Later}, 2))
		fsys.FailSync(0)
		require.ErrorIs(t, m.do(s, step{id: "c", durability: txnstate.Durable}, 3), syscall.EIO)
		fsys.FailSync(k)
		syncs := fsys.Syncs()
		_, err = s.Load(t.Context(), "a")
		failed := fsys.Syncs() > syncs+k
		assert.Equal(t, failed, err != nil)
		if failed {
			require.ErrorIs(t, err, txnstate.ErrUncertain)
			// A crash now leaves what was sure, and perhaps the rest.
			crashed := *m
			s2, err := open(fsys.Image(uint64(k)))
			require.NoError(t, err)
			crashed.wantContents(t, s2, fmt.Sprintf("repair failed at sync %d, then the power", k))
			_, err = s.Load(t.Context(), "a")
			require.ErrorIs(t, err, txnstate.ErrUncertain, "no second attempt in the same second")
			c.move(time.Second)
		}
		fsys.FailSync(-1)
		m.wantContents(t, s, "after the second repair")
		assert.Len(t, m.now(), 3, "what was queued is done")
		require.NoError(t, m.do(s, step{id: "d", durability: txnstate.Durable}, 4))
		wantRecovered(t, *m, fsys.Image(0), fmt.Sprintf("repaired, %d", k))
		require.NoError(t, s.Close())
	}
}

// Every call fails while the disk is full, and all is well when it no longer is.
func TestADiskIsFullForAWhile(t *testing.T) {
	t.Parallel()
	unsure := 0
	for room := int64(0); room < 12_000; room += 97 {
		m, fsys := newModel(), freshDisk(t)
		unsure += runThrough(t, fsys, m, new(clock), func(i int) {
			switch i {
			case 3:
				fsys.Full(room)
			case -1:
				fsys.Full(-1)
			}
		})
		fsys.Full(-1)
		wantRecovered(t, *m, fsys.Image(0), fmt.Sprintf("the disk had room for %d bytes", room))
	}
	assert.Greater(t, unsure, 30)
}

func TestNothingIsAnsweredAfterAFailureThatStays(t *testing.T) {
	t.Parallel()
	fsys, c := freshDisk(t), new(clock)
	s, err := journal.Open(journal.Config{Dir: dir, FS: fsys, Now: c.now})
	require.NoError(t, err)
	m := newModel()
	require.NoError(t, m.do(s, step{id: "a", durability: txnstate.Durable}, 1))
	fsys.Full(10)
	require.ErrorIs(t, m.do(s, step{id: "b", durability: txnstate.Durable}, 2), syscall.ENOSPC)
	for range 3 {
		_, err := s.Load(t.Context(), "a")
		require.ErrorIs(t, err, txnstate.ErrUncertain)
		require.ErrorIs(t, err, syscall.ENOSPC)
		_, err = s.Swap(t.Context(), idle("c"), txnstate.Later)
		require.ErrorIs(t, err, txnstate.ErrUncertain)
		require.ErrorIs(t, s.Delete(t.Context(), "a", 1), txnstate.ErrUncertain)
		require.ErrorIs(t, s.Flush(t.Context()), txnstate.ErrUncertain)
		n := 0
		for _, err := range s.Slot(t.Context(), 1) {
			require.ErrorIs(t, err, txnstate.ErrUncertain, "an empty slot would be a lie")
			n++
		}
		assert.Equal(t, 1, n)
		c.move(time.Minute)
	}
	require.ErrorIs(t, s.Close(), txnstate.ErrUncertain)
	fsys.Full(-1)
	s, err = open(fsys)
	require.NoError(t, err, "Close has given up the lock")
	m.wantContents(t, s, "reopened")
	require.NoError(t, s.Close())
}

// Close repairs too: what was visible by a Later write is not lost for want of a
// call that would have done it.
func TestCloseRepairs(t *testing.T) {
	t.Parallel()
	fsys := freshDisk(t)
	s, err := open(fsys)
	require.NoError(t, err)
	m := newModel()
	require.NoError(t, m.do(s, step{id: "a", durability: txnstate.Durable}, 1))
	require.NoError(t, m.do(s, step{id: "a", durability: txnstate.Later}, 2))
	fsys.FailSync(0)
	require.ErrorIs(t, s.Flush(t.Context()), syscall.EIO)
	require.NoError(t, s.Close())
	m.sure = len(m.states) - 1
	wantRecovered(t, *m, fsys.Image(0), "closed after a failure")
}

func TestAClosedStoreSaysSo(t *testing.T) {
	t.Parallel()
	s, err := open(freshDisk(t))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Close(), fs.ErrClosed)
	_, err = s.Load(t.Context(), "a")
	require.ErrorIs(t, err, fs.ErrClosed)
	_, err = s.Swap(t.Context(), idle("a"), txnstate.Later)
	require.ErrorIs(t, err, fs.ErrClosed)
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	require.ErrorIs(t, s.Flush(context.Background()), fs.ErrClosed)
	assert.False(t, errors.Is(err, txnstate.ErrNotFound))
}
