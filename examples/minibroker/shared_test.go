package minibroker

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Partitions of a topic share a file, and each reads what is its own, in its own
// order, before and after a restart.
func TestPartitionsThatShareAFileKeepApart(t *testing.T) {
	const partitions, batches = 3, 40
	fsys := fsx.Mem()
	open := func() []*partitionLog {
		ls, err := openLogs("t", partitions, 1<<20, fsys, "records.log", true)
		require.NoError(t, err)
		return ls
	}
	check := func(ls []*partitionLog) {
		for p, l := range ls {
			s, err := l.selectFrom(0, 1<<20, true, false)
			require.NoError(t, err)
			var want []int64
			for i := range batches {
				want = append(want, int64(i*(p+1)))
			}
			require.Equal(t, want, all(t, l, s))
			require.EqualValues(t, batches*(p+1), s.high)
		}
	}
	ls := open()
	var wg sync.WaitGroup
	for p, l := range ls {
		wg.Go(func() {
			for range batches {
				// One of them is large: a reader of the others passes over it.
				if err := l.append(plain(p+1, 10+p*readGap)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	check(ls)
	ls[0].close()
	check2 := open()
	check(check2)
	check2[0].close()
	_, err := openLogs("t", partitions-1, 1<<20, fsys, "records.log", true)
	require.ErrorContains(t, err, `a batch of partition 2, and topic "t" has 2`)
}

// Batches that are appended to several partitions at once share a sync.
func TestPartitionsShareSyncs(t *testing.T) {
	syncing, release := make(chan struct{}), make(chan struct{})
	syncs := 0
	fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpSync {
			if syncs++; syncs == 1 {
				close(syncing)
				<-release
			}
		}
		return nil
	})
	ls, err := openLogs("t", 8, 1<<20, fsys, "records.log", true)
	require.NoError(t, err)
	defer ls[0].close()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := ls[0].append(plain(1, 1)); err != nil {
			t.Error(err)
		}
	})
	<-syncing
	for _, l := range ls[1:] {
		b := plain(1, 1)
		h, r := enqueued(t, l, b)
		wg.Go(func() {
			if err := l.file.Wait(r); err != nil {
				t.Error(err)
			}
		})
		require.EqualValues(t, 1, h)
		at, err := l.ends()
		require.NoError(t, err)
		require.Zero(t, at.high, "nothing is readable before its sync")
	}
	close(release)
	wg.Wait()
	require.Equal(t, 2, syncs)
}

// enqueued puts a batch on its way to the disk.
func enqueued(t *testing.T, l *partitionLog, b []byte) (end int64, r *segment.Round) {
	t.Helper()
	h, _, _, err := fence.ParseHeader(b)
	require.NoError(t, err)
	end, r, err = l.enqueue(h, b, admitAll(h))
	require.NoError(t, err)
	return end, r
}
