package epochlog

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Whatever operation fails in a story of two leaders and a rewrite, what was
// acknowledged is found by the next leader, and when all logs are closed no file is
// open. (I13)
func TestAFailureAtEveryOperationLosesNothingAndLeavesNothingOpen(t *testing.T) {
	broken := errors.New("broken")
	for k := 0; ; k++ {
		disk := crashfs.New(1)
		ops, open := 0, 0
		below := fsx.HookAfter(disk, func(op fsx.Op, _ string, err error) error {
			switch {
			case err == nil && op == fsx.OpOpenFile:
				open++
			case err == nil && op == fsx.OpClose:
				open--
			}
			return err
		})
		below = fsx.Hook(below, func(op fsx.Op, _ string) error {
			if op == fsx.OpClose {
				return nil
			}
			if ops++; ops == k+1 {
				return broken
			}
			return nil
		})
		var logs []*Log
		var acked []string
		put := func(l *Log, s string) {
			if l.put(s) == nil {
				acked = append(acked, s)
			}
		}
		take := func() *Log {
			for {
				l, got, err := lead(below)
				if err != nil {
					require.ErrorIs(t, err, broken, "operation %d", k)
					continue // once
				}
				logs = append(logs, l)
				require.Subset(t, strings.Split(strings.Join(got, ""), ""), acked, "operation %d", k)
				return l
			}
		}
		l := take()
		put(l, "a")
		l = take() // the first is not told
		put(l, "b")
		if next, err := l.Rewrite(t.Context(), []byte("a"), []byte("b")); err == nil {
			acked = []string{"a", "b"}
			logs = append(logs, next)
			b := make([]byte, 2)
			if err := errors.Join(next.Check(), next.ReadAt(b, segment.HeaderBytes)); err != nil {
				require.ErrorIs(t, err, broken)
			} else {
				require.Equal(t, "ab", string(b), "places are those of the log that there is now")
			}
			_, _, err := l.Add([]byte("c"))
			require.Error(t, err, "it is done with")
			put(next, "c")
		} else {
			require.ErrorIs(t, err, broken)
		}
		put(take(), "d")
		for _, l := range logs {
			l.End()
		}
		require.Zero(t, open, "operation %d", k)
		if ops <= k {
			require.Equal(t, []string{"a", "b", "c", "d"}, acked)
			return
		}
		for image := range uint64(3) {
			l, got, err := lead(disk.Image(image))
			require.NoError(t, err, "operation %d", k)
			require.Subset(t, strings.Split(strings.Join(got, ""), ""), acked, "operation %d", k)
			l.End()
		}
	}
}

// A look at the latest epoch that fails says so, and a takeover that nobody waits for
// any more ends.
func TestATakeoverEndsWithItsCaller(t *testing.T) {
	mem := fsx.Mem()
	l, _ := mustLead(t, mem)
	require.NoError(t, l.put("a"))
	require.NoError(t, l.put("b"))
	l.End()
	broken := errors.New("broken")
	_, err := Latest(config(fsx.Hook(mem, func(op fsx.Op, _ string) error {
		if op == fsx.OpExists {
			return broken
		}
		return nil
	})), 0)
	require.ErrorIs(t, err, broken)
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	_, err = TakeOver(ctx, config(mem), func(segment.Stored) error {
		seen++
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, seen)
}
