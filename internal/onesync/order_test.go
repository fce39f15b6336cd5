package onesync

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// A name that changes while a sync of its file is under way takes no other file's
// bytes out of the log with it.
func TestWhatShareASyncWithARemovalIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := disk(t, 0)
		held := make(chan struct{})
		var hold atomic.Bool
		f := open(t, fsx.Hook(fsys, func(op fsx.Op, name string) error {
			if op == fsx.OpSync && strings.Contains(name, "sync.") && hold.Load() {
				<-held
			}
			return nil
		}), worldRoot)
		files := map[string]fsx.File{}
		for _, name := range []string{"x", "y", "z"} {
			files[name] = synced(t, f, "root/"+name)
		}
		var failed atomic.Int32
		write := func(name string) {
			go func() {
				_, err := files[name].WriteAt([]byte("cc"), 2)
				if err = errors.Join(err, files[name].Sync()); err != nil {
					failed.Add(1)
				}
			}()
			synctest.Wait()
		}
		hold.Store(true)
		write("z") // is being written
		write("x") // waits for it
		go func() {
			if f.Remove("root/x") != nil {
				failed.Add(1)
			}
		}()
		synctest.Wait()
		write("y")
		hold.Store(false)
		close(held)
		synctest.Wait()
		require.Zero(t, failed.Load())
		after := fsys.Image(0)
		require.NoError(t, open(t, after, worldRoot).Close())
		require.Equal(t, "abcc", content(t, after, "root/y"))
		require.Equal(t, "abcc", content(t, after, "root/z"))
		require.NoError(t, f.Close())
	})
}

// What is synced while an earlier part of its file is brought to where it belongs is
// kept in the log until it is there itself.
func TestAWriteDuringACheckpointIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := disk(t, 0)
		held := make(chan struct{})
		var hold atomic.Bool
		f := open(t, fsx.HookAfter(fsys, func(op fsx.Op, name string, err error) error {
			if op == fsx.OpSync && strings.HasSuffix(name, "/x") && hold.Load() {
				<-held
			}
			return err
		}), worldRoot)
		x, y := synced(t, f, "root/x"), synced(t, f, "root/y")
		fill := func() { // the file of the log
			for generation := f.log.header.generation; f.log.header.generation == generation; synctest.Wait() {
				_, err := y.WriteAt(make([]byte, 300), 2)
				require.NoError(t, err)
				require.NoError(t, y.Sync())
			}
		}
		hold.Store(true)
		fill()
		_, err := x.WriteAt([]byte("late"), 2) // its file has been synced without it
		require.NoError(t, err)
		require.NoError(t, x.Sync())
		hold.Store(false)
		close(held)
		fill()
		fill()
		fill()
		after := fsys.Image(0)
		require.NoError(t, open(t, after, worldRoot).Close())
		require.Equal(t, "ablate", content(t, after, "root/x"))
		require.NoError(t, f.Close())
	})
}

// A removal that needs room made while a checkpoint is under way waits for it.
func TestCheckpointsComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := disk(t, 0)
		held := make(chan struct{})
		var hold atomic.Bool
		f := open(t, fsx.Hook(fsys, func(op fsx.Op, name string) error {
			if op == fsx.OpSync && strings.HasSuffix(name, "/x") && hold.Load() {
				<-held
			}
			return nil
		}), worldRoot)
		x, y := synced(t, f, "root/x"), synced(t, f, "root/y")
		hold.Store(true)
		for generation := f.log.header.generation; f.log.header.generation == generation; synctest.Wait() {
			_, err := y.WriteAt(make([]byte, 300), 2)
			require.NoError(t, err)
			require.NoError(t, y.Sync())
		}
		removed := make(chan error, 1)
		go func() { removed <- f.Remove("root/y") }()
		synctest.Wait()
		require.Empty(t, removed)
		hold.Store(false)
		close(held)
		require.NoError(t, <-removed)
		require.NoError(t, errors.Join(x.Close(), y.Close(), f.Close()))
	})
}

// Where the power fails while a file of the log is begun anew, the other one is what
// counts, or the new one is whole.
func TestALossOfPowerWhileTheLogTurns(t *testing.T) {
	t.Parallel()
	for k := 0; ; k++ {
		fsys := disk(t, 0)
		f := open(t, fsys, worldRoot)
		file, other := synced(t, f, "root/x"), synced(t, f, "root/y")
		log := f.log
		acked := 0
		write := func(file fsx.File, b byte) error {
			_, err := file.WriteAt(bytes.Repeat([]byte{b}, 300), 0)
			return errors.Join(err, file.Sync())
		}
		for log.header.generation < 3 {
			require.NoError(t, write(file, '0'))
			require.NoError(t, write(other, '0'))
			log.work.Wait()
		}
		for log.pos+600 < log.size {
			require.NoError(t, write(file, '0'))
		}
		fsys.CrashAt(fsys.Ops() + k)
		for i := 1; i < 4 && write(file, byte('0'+i)) == nil; i++ {
			acked = i
		}
		_, crashed := fsys.Crashed()
		log.work.Wait()
		for image := range uint64(40) {
			after := fsys.Image(image)
			require.NoError(t, open(t, after, worldRoot).Close(), "operation %d, image %d", k, image)
			got := content(t, after, "root/x")
			for i := 1; i < 300; i++ {
				require.GreaterOrEqual(t, got[i], byte('0'+acked), "operation %d, image %d", k, image)
			}
			require.Equal(t, strings.Repeat("0", 300), content(t, after, "root/y"))
		}
		if !crashed {
			require.Greater(t, k, 8)
			return
		}
	}
}

// A file that can't be brought up to date keeps the directory from being opened.
func TestWhatCantBeBroughtBackIsNotLeftOut(t *testing.T) {
	t.Parallel()
	for _, op := range []fsx.Op{fsx.OpOpenFile, fsx.OpWriteAt, fsx.OpSync} {
		fsys := written(t)
		_, err := Open(Config{FS: fsx.Hook(fsys, func(now fsx.Op, name string) error {
			if now == op && strings.HasSuffix(name, "/x") {
				return os.ErrPermission
			}
			return nil
		}), Root: worldRoot, FileBytes: minFileBytes})
		require.ErrorIs(t, err, os.ErrPermission)
		require.NoError(t, open(t, fsys, worldRoot).Close())
		require.Equal(t, "abccdd", content(t, fsys, "root/a/x"))
	}
}

// What is void costs no sync when another name changes, and what was large once is not
// kept in memory.
func TestWhatIsVoidCostsNothing(t *testing.T) {
	t.Parallel()
	fsys := disk(t, 0)
	f, err := Open(Config{FS: fsys, Root: worldRoot})
	require.NoError(t, err)
	x, y := synced(t, f, "root/x"), synced(t, f, "root/y")
	_, err = x.WriteAt(make([]byte, 200<<10), 2)
	require.NoError(t, errors.Join(err, x.Sync()))
	require.LessOrEqual(t, cap(f.log.spare), 64<<10)
	require.LessOrEqual(t, cap(x.(*file).node.written), 64<<10)
	require.NoError(t, f.Remove("root/x"))
	before := fsys.Syncs()
	require.NoError(t, f.Remove("root/y"))
	require.Equal(t, before, fsys.Syncs())
	require.NoError(t, errors.Join(x.Close(), y.Close()))
	require.Empty(t, f.nodes)
	require.NoError(t, f.Close())
}

// Writes of one file, of every kind and in any order: after each Sync that succeeds the
// disk has what the process reads, whatever of it is in the log.
func TestTheLogNeverBringsBackOlderBytes(t *testing.T) {
	t.Parallel()
	rand := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		fsys := disk(t, 0)
		f := open(t, fsys, worldRoot)
		file := synced(t, f, "root/x")
		reader, err := f.OpenFile("root/x", os.O_RDONLY, 0)
		require.NoError(t, err)
		var story []string
		for step := range 30 {
			p := bytes.Repeat([]byte{byte('A' + step)}, 3)
			off := int64(rand.IntN(5) * 2)
			var err error
			sync := func() error { return nil }
			kind := rand.IntN(20)
			story = append(story, fmt.Sprint(kind, "@", off))
			switch kind {
			case 0:
				_, err = file.Write(p)
			case 1:
				err = file.Truncate(off + 1)
			case 2, 3, 4: // more than the log takes at once
				_, err = file.WriteAt(bytes.Repeat(p, 1500), off)
			case 5: // in part
				fsys.Full(2)
				_, _ = file.WriteAt(bytes.Repeat(p, 50), off)
				fsys.Full(-1)
			case 6:
				sync = reader.Sync
			case 7, 8, 9, 10, 11:
				sync = file.Sync
			default:
				_, err = file.WriteAt(p, off)
			}
			require.NoError(t, err)
			if kind >= 6 && kind < 12 {
				require.NoError(t, sync())
				after := fsys.Image(0)
				require.NoError(t, open(t, after, worldRoot).Close())
				require.Equal(t, content(t, fsys, "root/x"), content(t, after, "root/x"), story)
			}
		}
		require.NoError(t, errors.Join(file.Close(), reader.Close(), f.Close()))
		for _, name := range logNames {
			if ok, _ := fsx.Exists(fsys, "root/"+name); ok {
				require.LessOrEqual(t, len(content(t, fsys, "root/"+name)), minFileBytes)
			}
		}
	}
}

// After a sync of a file itself that failed no later one of the file succeeds, by
// whatever handle. Where the log has something of the file, no sync of any file does:
// nobody can tell any more whether it got to where it belongs.
func TestAFileWhoseSyncFailedIsNotTrusted(t *testing.T) {
	t.Parallel()
	for _, logged := range []bool{false, true} {
		fsys := disk(t, 0)
		f := open(t, fsys, worldRoot)
		x, y := synced(t, f, "root/x"), synced(t, f, "root/y")
		if !logged {
			require.NoError(t, f.log.checkpoint(f.log.next))
		}
		other, err := f.OpenFile("root/x", os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = x.Write([]byte("lost?"))
		require.NoError(t, err)
		fsys.FailSync(0)
		require.Error(t, x.Sync())
		for range 2 {
			require.Error(t, x.Sync())
			require.Error(t, other.Sync())
			_, err = y.WriteAt([]byte("c"), 2)
			require.NoError(t, err)
			require.Equal(t, logged, y.Sync() != nil)
		}
		if err = f.Close(); logged {
			require.Error(t, err)
		}
		for image := range uint64(4) {
			after := fsys.Image(image)
			require.NoError(t, open(t, after, worldRoot).Close())
			require.True(t, strings.HasPrefix(content(t, after, "root/y"), "ab"))
			if logged {
				require.Equal(t, "b", content(t, after, "root/x")[1:2], "the log has it")
			}
		}
	}
}

// A client's bytes that look like a frame, in a frame that is torn, are not taken for
// one: the log is cut there, not refused.
func TestBytesThatLookLikeAFrameAreNone(t *testing.T) {
	t.Parallel()
	fsys := disk(t, 0)
	f := open(t, fsys, worldRoot)
	x := synced(t, f, "root/x")
	require.NotZero(t, f.log.header.salt, "nobody can know it")
	forged := append(make([]byte, frameHeader), appendVoid(nil, 1<<40)...)
	sealFrame(forged, f.log.header.salt+1, 1<<40)
	_, err := x.WriteAt(append(forged, make([]byte, 40)...), 2)
	require.NoError(t, err)
	require.NoError(t, x.Sync())
	after := fsys.Image(0)
	change(t, after, "root/sync.0.log", func(b []byte) []byte {
		b[f.log.pos-1] ^= 1
		return b
	})
	require.NoError(t, open(t, after, worldRoot).Close())
	require.Equal(t, "ab", content(t, after, "root/x"))
	require.NoError(t, f.Close())
}

// Where the newest file of the log counts on the one before, another one in its place
// is refused, whole as it may be: an older state of it, or one that ends too early.
func TestAnotherStateOfTheLogIsRefused(t *testing.T) {
	t.Parallel()
	var hold atomic.Bool
	fsys := disk(t, 0)
	f := open(t, fsx.Hook(fsys, func(op fsx.Op, name string) error {
		if op == fsx.OpSync && strings.HasSuffix(name, "/x") && hold.Load() {
			return os.ErrPermission // so that the older file of the log still counts
		}
		return nil
	}), worldRoot)
	file := synced(t, f, "root/a/x")
	var olds []string // of sync.0.log, at the end of each generation
	var early string  // before the last frame of the newest of them
	for generation := uint64(1); generation < 6; {
		hold.Store(generation == 5)
		early = content(t, fsys, "root/sync.0.log")
		_, err := file.WriteAt(make([]byte, 300), 0)
		require.NoError(t, err)
		_ = file.Sync() // the background may be faster
		if now := f.log.header.generation; now != generation {
			require.NoError(t, f.log.why())
			olds = append(olds, content(t, fsys, "root/sync.0.log"))
			generation = now
			f.log.work.Wait()
		}
	}
	after := fsys.Image(0)
	require.NoError(t, open(t, fsys.Image(0), worldRoot).Close())
	for what, old := range map[string]string{"generation 1": olds[0], "generation 3": olds[2], "without its end": cutLast(early)} {
		change(t, after, "root/sync.0.log", func([]byte) []byte { return []byte(old) })
		_, err := Open(Config{FS: after, Root: worldRoot, FileBytes: minFileBytes})
		require.ErrorContains(t, err, "damaged", what)
	}
	_ = f.Close()
}

// cutLast takes the last frame out of a file of the log.
func cutLast(log string) string {
	h, _, _ := parseHeader([]byte(log))
	end, last := 0, framesAt
	_ = scan([]byte(log), h, func(_ uint64, body []byte) error {
		end, last = last, last+frameHeader+len(body)
		return nil
	})
	return log[:end]
}

// A name operation that has failed, by its answer, and has happened or not, makes
// nobody write to the wrong file.
func TestWhatIsSyncedSurvivesNamesOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		w, fsys := begin(t, seed)
		w.namely = true
		n := 0
		fail := func(op fsx.Op, every int) error {
			switch op {
			case fsx.OpRename, fsx.OpLink, fsx.OpRemove, fsx.OpReplace:
				if n++; n%10 == every {
					return errUnknown
				}
			}
			return nil
		}
		hooked := fsx.Hook(fsys, func(op fsx.Op, _ string) error { return fail(op, 0) })
		hooked = fsx.HookAfter(hooked, func(op fsx.Op, _ string, err error) error { return cmp.Or(err, fail(op, 5)) })
		require.NoError(t, w.start(hooked), "seed %d", seed)
		fsys.CrashAt(fsys.Ops() + 400 + int(seed)*10)
		require.NoError(t, w.run(400), "seed %d", seed)
		fsys.Crash()
		for image := range uint64(4) {
			require.NoError(t, w.start(fsys.Image(image)), "seed %d, image %d", seed, image)
		}
	}
}

var errUnknown = errors.New("nobody knows")
