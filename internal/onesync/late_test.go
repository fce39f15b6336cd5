package onesync

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// owner has so many writes of a file made by fsx.WriteSync, one after the other, and
// sees to it that each is told once, and as durable only where it is.
type owner struct {
	t      *testing.T
	disk   *crashfs.FS
	name   string
	file   fsx.File
	writes int
	size   func(write int) int // nil: small

	seen        []byte
	acked       int // bytes that were acknowledged
	taken, told int
	errs        []error
	over        bool // WriteSync has returned
}

func (o *owner) take() ([]byte, int64) {
	require.Equal(o.t, o.taken, o.told, "%s: the write before is not told", o.name)
	o.taken++
	size := 5
	if o.size != nil {
		size = o.size(o.taken)
	}
	p, off := bytes.Repeat([]byte{byte('0' + o.taken)}, size), len(o.seen)
	o.seen = append(o.seen, p...)
	return p, int64(off)
}

func (o *owner) done(err error) bool {
	o.told++
	if err != nil {
		o.errs = append(o.errs, err)
		return true // nobody listens to that
	}
	// The disk as it is now, and what recovery makes of it.
	after := o.disk.Image(0)
	f, err := Open(Config{FS: after, Root: worldRoot, FileBytes: minFileBytes})
	require.NoError(o.t, err)
	defer f.Close()
	require.Equal(o.t, string(o.seen), content(o.t, after, o.name), "acknowledged")
	o.acked = len(o.seen)
	return o.told < o.writes
}

func (o *owner) run() {
	fsx.WriteSync(o.file, o.take, o.done)
	o.over = true
}

// check is for an owner whose writes have ended: with the last, or with an error.
func (o *owner) check(failed bool) {
	require.True(o.t, o.over, "%s: nobody ends it", o.name)
	require.Equal(o.t, o.taken, o.told, o.name)
	if failed {
		require.Len(o.t, o.errs, 1, "%s: it ends with the first error", o.name)
		for image := range uint64(8) {
			after := o.disk.Image(image)
			f, err := Open(Config{FS: after, Root: worldRoot, FileBytes: minFileBytes})
			require.NoError(o.t, err)
			require.NoError(o.t, f.Close())
			require.True(o.t, strings.HasPrefix(content(o.t, after, o.name), string(o.seen[:o.acked])), "image %d", image)
		}
		return
	}
	require.Empty(o.t, o.errs, o.name)
	require.Equal(o.t, o.writes, o.told, o.name)
}

func owned(t *testing.T, disk *crashfs.FS, f *FS, name string) *owner {
	return &owner{t: t, disk: disk, name: name, file: synced(t, f, name), writes: 3, seen: []byte("ab")}
}

// Whatever state a file is in, each write that is taken from its owner is told once:
// as durable where it is, else with an error, after which no more is taken.
func TestEveryWriteThatIsTakenIsToldOnce_I1(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what    string
		prepare func(f *FS, o *owner)
		fails   bool
	}{
		{"as usual", func(*FS, *owner) {}, false},
		{"a file that is new", func(f *FS, o *owner) {
			o.name, o.seen = "root/a/b/new", nil
			o.file, _ = f.OpenFile(o.name, os.O_RDWR|os.O_CREATE, 0o644)
			require.NoError(o.t, f.SyncDir("root/a/b"))
		}, false},
		{"one that was renamed", func(f *FS, o *owner) {
			require.NoError(o.t, f.Rename(o.name, "root/a/other"))
			require.NoError(o.t, f.SyncDir("root/a"))
			o.name = "root/a/other"
		}, false},
		{"written without an offset", func(_ *FS, o *owner) {
			_, err := o.file.Write([]byte("A"))
			require.NoError(o.t, err)
			o.seen[0] = 'A'
		}, false},
		{"made longer", func(_ *FS, o *owner) {
			require.NoError(o.t, o.file.Truncate(4))
			o.seen = append(o.seen, 0, 0)
		}, false},
		{"with a second name", func(f *FS, o *owner) { require.NoError(o.t, f.Link(o.name, "root/a/second")) }, false},
		{"much at once", func(_ *FS, o *owner) { o.size = func(write int) int { return 1 + 6000*(write%2) } }, false},
		{"much at once, second", func(_ *FS, o *owner) { o.size = func(write int) int { return 6001 - 6000*(write%2) } }, false},
		{"a sync of the file has failed", func(f *FS, o *owner) {
			require.NoError(o.t, f.log.checkpoint(f.log.next)) // else the log fails with it
			h, err := f.OpenFile(o.name, os.O_RDONLY, 0)
			require.NoError(o.t, err)
			o.disk.FailSync(0)
			require.Error(o.t, h.Sync())
			require.NoError(o.t, f.log.why())
			require.Error(o.t, o.file.Sync())
		}, true},
		{"the next sync fails", func(_ *FS, o *owner) { o.disk.FailSync(0) }, true},
		{"a later one fails", func(_ *FS, o *owner) { o.disk.FailSync(1) }, true},
		{"the disk is full", func(_ *FS, o *owner) { o.disk.Full(3) }, true},
		{"closed, and the log has something of it", func(_ *FS, o *owner) { require.NoError(o.t, o.file.Close()) }, true},
		{"open to read only", func(f *FS, o *owner) {
			var err error
			o.file, err = f.OpenFile(o.name, os.O_RDONLY, 0)
			require.NoError(o.t, err)
		}, true},
		{"the file system is closed", func(f *FS, o *owner) { require.NoError(o.t, f.Close()) }, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			disk := disk(t, 0)
			f := open(t, disk, worldRoot)
			o := owned(t, disk, f, "root/a/x")
			c.prepare(f, o)
			o.run()
			o.check(c.fails)
			disk.Full(1 << 20)
			// A sync that succeeds now leaves the disk with what the process reads.
			if o.file.Sync() == nil {
				after := disk.Image(0)
				require.NoError(t, open(t, after, worldRoot).Close())
				require.Equal(t, content(t, disk, o.name), content(t, after, o.name))
			}
			_ = f.Close()
		})
	}
}

// Owners whose writes wait for the same sync each come to their own end, whatever
// happens to one of them meanwhile.
func TestWritesThatShareASyncEndEachByItself_I12(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := disk(t, 0)
		var fail, hold atomic.Bool
		step := make(chan struct{}) // lets one sync of the log be done
		f := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
			if hold.Load() && op == fsx.OpSync && strings.Contains(name, "sync.") {
				<-step
			}
			if fail.Load() && op == fsx.OpWriteAt && strings.HasSuffix(name, "/fails") {
				return fs.ErrPermission
			}
			return nil
		}), worldRoot)
		first, fails, closed, linked := owned(t, disk, f, "root/first"), owned(t, disk, f, "root/fails"), owned(t, disk, f, "root/closed"), owned(t, disk, f, "root/linked")
		others := []*owner{first, linked}
		for i := range 20 { // more than one sync of the log takes
			o := owned(t, disk, f, fmt.Sprintf("root/a/%d", i))
			o.size = func(int) int { return 300 }
			others = append(others, o)
		}
		var files []fsx.File
		for i := range 20 {
			files = append(files, synced(t, f, fmt.Sprintf("root/a/b/%d", i)))
		}
		big := owned(t, disk, f, "root/big")
		big.size = func(write int) int { return 1 + 6000*(write/2) }
		others = append(others, big)

		hold.Store(true)
		go first.run()
		synctest.Wait()
		fail.Store(true)
		for _, o := range append(others[1:], fails, closed) {
			go o.run()
		}
		var rest atomic.Int32
		for i := range 20 { // and so do these
			go func() {
				h := files[i]
				if _, err := h.WriteAt(make([]byte, 300), 2); err == nil && h.Sync() == nil {
					rest.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.Equal(t, 1, first.taken)
		require.Zero(t, linked.taken, "taken when its sync begins")
		step <- struct{}{}
		synctest.Wait()
		require.Equal(t, 1, closed.taken)
		require.Zero(t, closed.told)
		require.NoError(t, closed.file.Close())
		var link atomic.Bool
		go func() { link.Store(f.Link("root/linked", "root/second") == nil) }()
		synctest.Wait()
		close(step)
		synctest.Wait()
		require.True(t, link.Load())
		require.EqualValues(t, len(files), rest.Load())
		for _, o := range others {
			o.check(false)
		}
		fails.check(true)
		closed.check(true)
		require.ErrorIs(t, closed.errs[0], fs.ErrClosed)
		require.NoError(t, f.Close())
		for _, name := range logNames {
			require.LessOrEqual(t, len(content(t, disk, "root/"+name)), minFileBytes)
		}
	})
}

// When the log fails all come to their end: those whose sync it was, those who wait
// for the next one, those who wait for room, and those who want a name changed.
func TestNobodyWaitsForALogThatHasFailed_I12(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disk := disk(t, 0)
			held, broken := make(chan struct{}), errors.New("broken")
			var hold atomic.Bool
			f := open(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
				// Where the log is full, the sync of a file is what fails.
				if op == fsx.OpSync && hold.Load() && (strings.Contains(name, "sync.") != full) {
					<-held
					return broken
				}
				return nil
			}), worldRoot)
			first, late, named := owned(t, disk, f, "root/first"), owned(t, disk, f, "root/late"), synced(t, f, "root/named")
			file := synced(t, f, "root/a/x")
			if full {
				first.writes = 1000
			}
			hold.Store(true)
			go first.run()
			synctest.Wait()
			require.False(t, first.over)
			go late.run()
			var synced, removed, closed error
			go func() {
				_, err := file.WriteAt([]byte("c"), 2)
				if err == nil {
					err = file.Sync()
				}
				synced = err
			}()
			synctest.Wait()
			go func() { removed = f.Remove("root/named") }()
			synctest.Wait()
			close(held)
			synctest.Wait()
			first.check(true)
			late.check(true)
			require.ErrorIs(t, synced, broken)
			require.ErrorIs(t, removed, broken)
			require.ErrorIs(t, named.Sync(), broken, "with nothing of its own")
			require.Error(t, first.file.Sync())
			closed = f.Close()
			require.ErrorIs(t, closed, broken, "the first error stays the reason")
		})
	}
}
