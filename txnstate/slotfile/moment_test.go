package slotfile_test

import (
	"context"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// A refusal by what may still vanish is none: where the newest generation could not
// be synced, and its successor can't be either, nobody knows (I11).
func TestARefusalByAnUnsyncedGenerationIsUncertain_I11(t *testing.T) {
	disk := fsx.Mem()
	var broken atomic.Bool
	s := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
		if op == fsx.OpSyncDir && path.Base(name) == "slot-25" && broken.Load() {
			return syscall.EIO
		}
		return nil
	}))
	first := record(target, 1)
	v, err := s.Swap(t.Context(), first, txnstate.Durable)
	require.NoError(t, err)
	broken.Store(true)
	next := record(target, 2)
	next.Version = v
	_, err = s.Swap(t.Context(), next, txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	_, err = s.Swap(t.Context(), next, txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrUncertain, "the record with another version may not be there after a loss of power")
	require.NotErrorIs(t, err, txnstate.ErrConflict)
	broken.Store(false)
	_, err = s.Swap(t.Context(), next, txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrConflict)
	require.NoError(t, s.Close())
}

// A caller that leaves while its claim is under way is not answered before the claim
// can't change any more what others read.
func TestACallerThatLeavesAClaimHearsOfItWhenItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		var hold atomic.Bool
		held := make(chan struct{})
		s := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
			if hold.Load() && (op == fsx.OpLink && strings.Contains(name, "slot-25") || op == fsx.OpRemove && strings.Contains(name, "tmp-")) {
				<-held
			}
			return nil
		}))
		require.NoError(t, bump(s, target, 1))
		hold.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		var answered atomic.Bool
		go func() {
			next := record(neighbour, 1)
			_, err := s.Swap(ctx, next, txnstate.Durable)
			if err != nil {
				require.ErrorIs(t, err, txnstate.ErrUncertain)
			}
			answered.Store(true)
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		require.False(t, answered.Load())
		hold.Store(false)
		close(held)
		synctest.Wait()
		require.True(t, answered.Load())
		require.NoError(t, s.Close())
	})
}

// A store whose directories may not be durable is not opened.
func TestDirectoriesThatCantBeSyncedAreNotUsed(t *testing.T) {
	for k := 0; ; k++ {
		n := 0
		failed := ""
		_, err := slotfile.Open(slotfile.Config{Dir: "/above/cluster", FS: fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			if op == fsx.OpSyncDir {
				if n++; n-1 == k {
					failed = name
					return syscall.EIO
				}
			}
			return nil
		})})
		if failed == "" {
			require.NoError(t, err)
			require.Greater(t, k, 3)
			return
		}
		require.ErrorIs(t, err, syscall.EIO, failed)
	}
}
