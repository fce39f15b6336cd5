package slotfile_test

import (
	"context"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// holdAt is a file system that stops the first operation that match accepts,
// until released.
func holdAt(fsys fsx.FS, match func(op fsx.Op, name string) bool) (held fsx.FS, arm func(), reached chan struct{}, release func()) {
	var mu sync.Mutex
	armed := false
	reached, wake := make(chan struct{}), make(chan struct{})
	held = fsx.Hook(fsys, func(op fsx.Op, name string) error {
		mu.Lock()
		hit := armed && match(op, name)
		armed = armed && !hit
		mu.Unlock()
		if hit {
			close(reached)
			<-wake
		}
		return nil
	})
	arm = func() {
		mu.Lock()
		defer mu.Unlock()
		armed = true
	}
	return held, arm, reached, sync.OnceFunc(func() { close(wake) })
}

// A context that ends stops the waiting wherever the write is, and what is known
// of the write then holds: it is not done once a Load, of any handle, has answered
// without it.
func TestAContextThatEndsLeavesNoWriteBehind(t *testing.T) {
	for _, c := range []struct {
		name string
		op   fsx.Op
		at   string // in the name
		done bool
	}{
		{"while its file is made", fsx.OpOpenFile, "tmp-", false},
		{"while it is written", fsx.OpWrite, "tmp-", false},
		{"while it is synced", fsx.OpSync, "tmp-", false},
		{"while the slot is looked at", fsx.OpExists, "slot-25", false},
		{"while it is claimed", fsx.OpLink, "slot-25", false},
		{"while the claim is synced", fsx.OpSyncDir, "slot-25", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := fsx.Mem()
			fsys, arm, reached, release := holdAt(disk, func(op fsx.Op, name string) bool {
				return op == c.op && strings.Contains(name, c.at)
			})
			s, other := open(t, fsys), open(t, disk)
			require.NoError(t, bump(s, target, 1))
			require.NoError(t, s.Flush(t.Context()))
			r, err := s.Load(t.Context(), target)
			require.NoError(t, err)
			arm()
			ctx, cancel := context.WithCancel(t.Context())
			answer := make(chan error, 1)
			go func() {
				r.UpdateMs = 2
				_, err := s.Swap(ctx, r, txnstate.Durable)
				answer <- err
			}()
			<-reached
			cancel()
			err = <-answer // and not only when the file system answers
			require.ErrorIs(t, err, txnstate.ErrUncertain)
			require.ErrorIs(t, err, context.Canceled)
			seen, err := other.Load(t.Context(), target)
			require.NoError(t, err)
			require.Equal(t, c.done, seen.UpdateMs == 2)
			release()
			require.NoError(t, s.Flush(t.Context()))
			for _, st := range []txnstate.Store{s, other} {
				now, err := st.Load(t.Context(), target)
				require.NoError(t, err)
				require.Equal(t, seen, now)
			}
			require.NoError(t, bump(s, target, 3))
			require.NoError(t, s.Close())
			require.NoError(t, other.Close())
		})
	}
}

// I12: a file system that contradicts itself is not asked for ever.
func TestAClaimThatNeverSucceedsEnds(t *testing.T) {
	for _, answer := range []error{fs.ErrExist, fs.ErrNotExist} {
		links := 0
		s := open(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			if op == fsx.OpLink {
				links++
				return answer
			}
			return nil
		}))
		err := bump(s, target, 1)
		require.ErrorIs(t, err, txnstate.ErrUncertain)
		require.Less(t, links, 50)
		_, err = s.Load(t.Context(), target)
		require.ErrorIs(t, err, txnstate.ErrNotFound)
		require.NoError(t, s.Close())
	}
}

// A write that leaves its batch takes nothing with it.
func TestTheOthersOfABatchGoOnWhenOneLeaves(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpSync, fsx.OpLink} {
		disk := fsx.Mem()
		fsys, arm, reached, release := holdAt(disk, func(o fsx.Op, name string) bool {
			return o == op && strings.Contains(name, "slot-25")
		})
		s := open(t, fsys)
		arm()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var left, first, stayed error
		wg.Go(func() { first = bump(s, third, 1) })
		<-reached
		// Both wait for the batch that is held, and form the next one.
		wg.Go(func() { _, left = s.Swap(ctx, record(target, 1), txnstate.Durable) })
		wg.Go(func() { _, stayed = s.Swap(t.Context(), record(neighbour, 1), txnstate.Durable) })
		cancel()
		release()
		wg.Wait()
		require.NoError(t, first)
		require.NoError(t, stayed)
		_, err := s.Load(t.Context(), target)
		if left == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, left, txnstate.ErrUncertain)
		}
		require.NoError(t, s.Close())
	}
}

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	goleak.VerifyTestMain(m)
}
