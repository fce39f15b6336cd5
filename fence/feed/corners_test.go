package feed_test

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence/feed"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Of what several brokers say of a producer the highest epoch is offered, whatever
// the order of their files.
func TestTheHighestOfSeveralFilesIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		put(t, disk, "from-3.json", `{"1":5,"2":1}`)
		put(t, disk, "from-4.json", `{"1":2,"2":7}`)
		_, o := newReader(t, disk, nil)
		poll()
		require.Equal(t, []txnstate.Producer{pr(1, 5), pr(2, 7)}, o.take())
	})
}

// A volume that fails for a while, or a file that goes between two operations, takes
// back nothing of what was read before: a partition that is taken over then hears
// of it (W13).
func TestWhatWasReadStaysInForceWhileTheVolumeFails_W13(t *testing.T) {
	for name, failure := range map[fsx.Op]error{fsx.OpReadDir: errInjected, fsx.OpOpenFile: fs.ErrNotExist} {
		t.Run(string(name), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := fsx.Mem()
				put(t, mem, "from-3.json", `{"102":3}`)
				var broken atomic.Bool
				disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
					if op == name && broken.Load() {
						return failure
					}
					return nil
				})
				r, o := newReader(t, disk, nil)
				poll()
				o.take()
				broken.Store(true)
				put(t, mem, "from-3.json", `{"102":3,"7":1}`)
				for range 3 {
					poll()
				}
				require.Equal(t, []txnstate.Producer{pr(102, 3)}, r.Known())
				r.Reoffer()
				synctest.Wait()
				require.Equal(t, []txnstate.Producer{pr(102, 3)}, o.take())
				broken.Store(false)
				poll()
				require.Equal(t, []txnstate.Producer{pr(7, 1)}, o.take())
			})
		})
	}
}

// A file that was damaged once costs no more than others when it is repaired.
func TestARepairedFileIsTakenForUnchangedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		var opened atomic.Int64
		disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpOpenFile {
				opened.Add(1)
			}
			return nil
		})
		put(t, mem, "from-3.json", `{"102":`)
		newReader(t, disk, nil)
		poll()
		put(t, mem, "from-3.json", `{"102":3}`)
		time.Sleep(time.Minute)
		before := opened.Load()
		time.Sleep(time.Minute)
		require.Equal(t, before, opened.Load(), "it is read though nothing changes")
	})
}

// I13: a directory that is full of files costs no more than the bound.
func TestTheNumberOfFilesIsBounded_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		for n := range 10_003 {
			put(t, mem, fmt.Sprintf("from-%d.json", n), fmt.Sprintf(`{"%d":1}`, n))
		}
		r, _ := newReader(t, mem, nil)
		poll()
		require.Len(t, r.Known(), 10_000)
	})
}

// Who waits when a Writer ends hears of it at once, and only who was tried for in
// vain hears of the volume.
func TestTheEndOfAWriterIsToldToThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
			if op == fsx.OpReplace {
				<-gate
				return errInjected
			}
			return nil
		})
		cfg := feed.WriterConfig{Dir: "shared", Self: 3, FS: disk}
		w, err := feed.NewWriter(cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- w.Run(ctx) }()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- w.Fence(t.Context(), pr(1, 1)) }()
		synctest.Wait()
		go func() { second <- w.Fence(t.Context(), pr(2, 1)) }()
		synctest.Wait()
		begin := time.Now()
		close(gate)
		require.ErrorIs(t, <-first, errInjected)
		synctest.Wait()
		require.Empty(t, second, "it is in no file that was tried")
		cancel()
		require.NoError(t, <-over)
		require.ErrorContains(t, <-second, "has ended")
		require.Zero(t, time.Since(begin))
	})
}

// A file of the own that is damaged, and can't be set aside, is not written over:
// it may be all that is left of what it said.
func TestADamagedFileThatCannotBeSetAsideIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		put(t, mem, "from-3.json", `{"102":`)
		var broken atomic.Bool
		broken.Store(true)
		disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpRename && broken.Load() {
				return errInjected
			}
			return nil
		})
		w, _ := newWriter(t, disk, nil)
		require.ErrorIs(t, w.Fence(t.Context(), pr(1, 1)), errInjected)
		require.Equal(t, `{"102":`, content(t, mem))
		broken.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, `{"1":1}`, content(t, mem))
		aside, err := mem.ReadFile("shared/producer_fences/from-3.json.damaged")
		require.NoError(t, err)
		require.Equal(t, `{"102":`, string(aside))
	})
}

// The bound at the start drops what the file has and nobody waits for, and nothing
// else.
func TestTheBoundAtTheStartDropsTheOldest_I13_W12(t *testing.T) {
	for _, x := range []struct {
		waiting int64
		want    string
	}{
		{1, `{"13":1,"1":1}`},
		{3, `{"1":1,"2":1,"3":1}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			disk := fsx.Mem()
			put(t, disk, "from-3.json", `{"11":1,"12":1,"13":1}`)
			w, err := feed.NewWriter(feed.WriterConfig{Dir: "shared", Self: 3, FS: disk, Max: 2})
			require.NoError(t, err)
			answers := make(chan error, x.waiting)
			for n := range x.waiting {
				go func() { answers <- w.Fence(t.Context(), pr(1+n, 1)) }()
				synctest.Wait()
			}
			run(t, w.Run)
			for range x.waiting {
				require.NoError(t, <-answers)
			}
			require.Equal(t, x.want, strings.TrimSpace(content(t, disk)))
		})
	}
}

// W20: the directory may have been made by a process that died before it was
// durable; what is answered is there after a loss of power all the same.
func TestADirectoryThatAnotherProcessHasJustMadeIsSynced_W20(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			disk := crashfs.New(seed)
			require.NoError(t, fsx.MkdirSynced(disk, "volume", 0o755))
			require.NoError(t, disk.MkdirAll("volume/shared", 0o755)) // not synced
			w, stop := newWriter(t, disk, func(c *feed.WriterConfig) { c.Dir = "volume/shared" })
			require.NoError(t, w.Fence(t.Context(), pr(7, 1)))
			stop()
			disk.Crash()
			data, err := disk.Image(seed).ReadFile("volume/shared/producer_fences/from-3.json")
			require.NoError(t, err)
			require.Equal(t, `{"7":1}`, string(data))
		})
	}
}
