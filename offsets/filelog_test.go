package offsets

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/stretchr/testify/require"
)

const logFile = "d/" + logName

func openLog(t testing.TB, fsys fsx.FS) *FileLog {
	t.Helper()
	l, err := OpenFileLog("d", fsys)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func replayed(t testing.TB, l Log, partition int32) string {
	t.Helper()
	var all []string
	require.NoError(t, l.Replay(ctx, partition, func(e []byte) error {
		all = append(all, string(e))
		return nil
	}))
	return strings.Join(all, " ")
}

func appendTo(t testing.TB, l Log, partition int32, entries ...string) {
	t.Helper()
	require.NoError(t, l.Append(ctx, partition, raw(entries...)))
}

func raw(entries ...string) (out [][]byte) {
	for _, e := range entries {
		out = append(out, []byte(e))
	}
	return out
}

// image is a log file of three blocks, and where each begins.
func image(t testing.TB) (b []byte, blocks []int) {
	fsys := fsx.Mem()
	l := openLog(t, fsys)
	for i, e := range []string{"one", "two", "three"} {
		blocks = append(blocks, int(l.end))
		appendTo(t, l, int32(i%2), e, e+"+")
	}
	require.NoError(t, l.Close())
	b, err := fsys.ReadFile(logFile)
	require.NoError(t, err)
	return b, append(blocks, len(b))
}

// withFile is a file system that has this log file.
func withFile(t testing.TB, b []byte) fsx.FS {
	fsys := fsx.Mem()
	require.NoError(t, fsys.MkdirAll("d", 0o755))
	require.NoError(t, fsys.Replace(logFile, b, 0o644))
	return fsys
}

// A torn last block is cut: at whichever byte the write ended, whatever bit of
// it never arrived, and whatever stands in its place. The log goes on behind
// what was whole.
func TestATornTailIsCut(t *testing.T) {
	b, at := image(t)
	tails := map[string][]byte{
		"zeros":          append(bytes.Clone(b[:at[2]]), make([]byte, 4096)...),
		"garbage":        append(bytes.Clone(b[:at[2]]), bytes.Repeat([]byte(blockMagic), 100)...),
		"another's tail": append(bytes.Clone(b[:at[2]]), otherTail(t)...),
		"block 1 again":  append(bytes.Clone(b[:at[2]]), bytes.Repeat([]byte{1}, 30)...),
	}
	for n := at[2]; n < at[3]; n++ {
		tails[fmt.Sprint("cut at ", n)] = b[:n]
		flipped := bytes.Clone(b)
		flipped[n] ^= 0x10
		tails[fmt.Sprint("byte ", n)] = flipped
	}
	for name, b := range tails {
		fsys := withFile(t, b)
		l := openLog(t, fsys)
		require.Equal(t, "one one+", replayed(t, l, 0), name)
		require.Equal(t, "two two+", replayed(t, l, 1), name)
		appendTo(t, l, 0, "four")
		require.NoError(t, l.Close())
		require.Equal(t, "one one+ four", replayed(t, openLog(t, fsys), 0), name)
	}
}

// otherTail is the last block of another log.
func otherTail(t testing.TB) []byte {
	b, at := image(t)
	return b[at[2]:]
}

// Damage before the end is refused, with the file and the byte, and the file is
// left as it is.
func TestDamageInTheMiddleIsRefused(t *testing.T) {
	b, at := image(t)
	for n := range at[2] {
		bad := bytes.Clone(b)
		bad[n] ^= 0x10
		fsys := withFile(t, bad)
		_, err := OpenFileLog("d", fsys)
		require.Error(t, err, "byte %d of %v", n, at)
		require.ErrorContains(t, err, logFile)
		block := 0
		for _, begin := range at {
			if n >= begin {
				block = begin
			}
		}
		switch {
		case n >= fileHeader:
			require.ErrorContains(t, err, fmt.Sprintf("damage at byte %d", block))
			require.ErrorContains(t, err, "a whole block is at byte")
		case n >= 8 && n < 12:
			require.ErrorContains(t, err, "format version")
		default:
			require.ErrorContains(t, err, "damage at byte 0")
		}
		got, err := fsys.ReadFile(logFile)
		require.NoError(t, err)
		require.Equal(t, bad, got)
	}
	for n := range fileHeader {
		_, err := OpenFileLog("d", withFile(t, b[:n]))
		require.ErrorContains(t, err, "damage at byte 0", "%d bytes", n)
	}
	// A block that was lost as a whole, or put in another's place.
	_, err := OpenFileLog("d", withFile(t, append(bytes.Clone(b[:at[1]]), b[at[2]:]...)))
	require.ErrorContains(t, err, fmt.Sprintf("damage at byte %d: block 3 where block 2 belongs", at[1]))
}

// Damage that comes after the file was opened is seen when it is read.
func TestDamageUnderAnOpenLogIsRefused(t *testing.T) {
	fsys := fsx.Mem()
	l := openLog(t, fsys)
	appendTo(t, l, 0, "a", "b")
	appendTo(t, l, 1, "c")
	at := l.index[0][0].at
	f, err := fsys.OpenFile(logFile, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("X"), at+recordHeader+5)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	err = l.Replay(ctx, 0, func([]byte) error { return nil })
	require.ErrorContains(t, err, fmt.Sprintf("%s: damage at byte %d", logFile, at))
	require.Equal(t, "c", replayed(t, l, 1))
}

// What a client put into an entry is never taken for a block.
func TestABlockInAnEntryIsNone(t *testing.T) {
	fsys := fsx.Mem()
	l := openLog(t, fsys)
	fake := appendBlock(nil, l.salt+1, 1, appendRecord(nil, recordReplace, 0, nil))
	require.NoError(t, l.Append(ctx, 0, [][]byte{fake}))
	appendTo(t, l, 0, "last")
	end := l.end
	require.NoError(t, l.Close())
	b, err := fsys.ReadFile(logFile)
	require.NoError(t, err)
	require.Len(t, b, int(end))
	l = openLog(t, withFile(t, b[:end-1]))
	require.Equal(t, string(fake), replayed(t, l, 0))
	require.NoError(t, l.Close())
	// The damaged block is the last one although a fake is within it.
	b[fileHeader+4]++
	_, err = OpenFileLog("d", withFile(t, b))
	require.ErrorContains(t, err, "damage at byte 24")
}

// A newer format is refused by name.
func TestANewerFileIsRefused(t *testing.T) {
	l := openLog(t, fsx.Mem())
	body := appendRecord(nil, 9, 0, raw("x"))
	b := appendBlock(appendFileHeader(nil, l.salt), l.salt, 1, body)
	_, err := OpenFileLog("d", withFile(t, b))
	require.ErrorContains(t, err, "records of kind 9")
}

const goldenFile = "testdata/filelog-v1.log"

// A file as version 1 has written it is read for ever.
func TestFilesOfVersion1(t *testing.T) {
	if *update {
		const salt = 0x0102030405060708
		b := appendFileHeader(nil, salt)
		b = appendBlock(b, salt, 1, appendRecord(appendRecord(nil, recordAppend, 0, raw("a", "")), recordAppend, 49, raw("z")))
		b = appendBlock(b, salt, 2, appendRecord(nil, recordReplace, 0, raw("b", "c")))
		b = appendBlock(b, salt, 3, appendRecord(nil, recordAppend, 0, raw("d")))
		require.NoError(t, os.WriteFile(goldenFile, b, 0o644))
	}
	b, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	l := openLog(t, withFile(t, b))
	require.Equal(t, "b c d", replayed(t, l, 0))
	require.Equal(t, "z", replayed(t, l, 49))
}

// One process has the directory.
func TestASecondFileLogIsLockedOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, err := OpenFileLog(dir, nil)
	require.NoError(t, err)
	_, err = OpenFileLog(dir, nil)
	require.ErrorIs(t, err, fsx.ErrLocked)
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Close(), fs.ErrClosed)
	require.ErrorIs(t, l.Append(ctx, 0, raw("a")), fs.ErrClosed)
	require.ErrorIs(t, l.Rewrite(ctx, 0, raw("a")), fs.ErrClosed)
	require.ErrorIs(t, l.Replay(ctx, 0, func([]byte) error { return nil }), fs.ErrClosed)
	l, err = OpenFileLog(dir, nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// failNext makes the next operation of a kind fail, ahead of it or after it.
type failNext struct {
	mu     sync.Mutex
	op     fsx.Op
	after  bool
	failed int
}

func (f *failNext) arm(op fsx.Op, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.op, f.after = op, after
}

func (f *failNext) hit(op fsx.Op, after bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op != f.op || after != f.after {
		return nil
	}
	f.op = ""
	f.failed++
	return errDisk
}

func (f *failNext) wrap(fsys fsx.FS) fsx.FS {
	return fsx.HookAfter(fsx.Hook(fsys, func(op fsx.Op, _ string) error { return f.hit(op, false) }),
		func(op fsx.Op, _ string, err error) error {
			if err != nil {
				return err
			}
			return f.hit(op, true)
		})
}

// After a failed write or sync nothing is taken from the handle, or written to
// it, until a Replay has made a new file.
func TestAHandleThatFailedIsNotTrusted(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpWriteAt, fsx.OpSync} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(op, " after=", after), func(t *testing.T) {
				var f failNext
				fsys := fsx.Mem()
				l := openLog(t, f.wrap(fsys))
				appendTo(t, l, 0, "a")
				appendTo(t, l, 1, "b")
				f.arm(op, after)
				require.ErrorIs(t, l.Append(ctx, 0, raw("c")), errDisk)
				require.ErrorIs(t, l.Append(ctx, 1, raw("d")), errDisk, "the partition beside it too")
				require.ErrorIs(t, l.Rewrite(ctx, 1, raw("d")), errDisk)
				broken := l.file
				require.Equal(t, "b", replayed(t, l, 1))
				require.NotEqual(t, broken, l.file)
				_, err := broken.Size()
				require.ErrorIs(t, err, fs.ErrClosed)
				got := replayed(t, l, 0)
				require.Contains(t, []string{"a", "a c"}, got)
				appendTo(t, l, 0, "e")
				appendTo(t, l, 1, "f")
				require.NoError(t, l.Close())
				l = openLog(t, fsys)
				require.Equal(t, got+" e", replayed(t, l, 0))
				require.Equal(t, "b f", replayed(t, l, 1))
			})
		}
	}
}

// Until the new file and its name are durable the log stays unusable, and tries
// again at the next Replay.
func TestRecoveryThatFailsIsTriedAgain(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpOpenFile, fsx.OpReadAt, fsx.OpWrite, fsx.OpSync, fsx.OpRename, fsx.OpSyncDir} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(op, " after=", after), func(t *testing.T) {
				var f failNext
				fsys := fsx.Mem()
				l := openLog(t, f.wrap(fsys))
				appendTo(t, l, 0, "a")
				f.arm(fsx.OpWriteAt, false)
				require.Error(t, l.Append(ctx, 0, raw("b")))
				f.arm(op, after)
				require.ErrorIs(t, l.Replay(ctx, 0, func([]byte) error { return nil }), errDisk)
				require.ErrorIs(t, l.Append(ctx, 0, raw("b")), errDisk)
				require.Equal(t, "a", replayed(t, l, 0))
				appendTo(t, l, 0, "c")
				require.NoError(t, l.Close())
				require.Equal(t, "a c", replayed(t, openLog(t, fsys), 0))
				names, err := fsys.ReadDir("d")
				require.NoError(t, err)
				require.Len(t, names, 2, "nothing is left behind: %v", names)
			})
		}
	}
}

// Appends that come together share one write and one sync, whichever partitions
// they are for (design §13).
func TestPartitionsShareASync(t *testing.T) { synctest.Test(t, partitionsShareASync) }

func partitionsShareASync(t *testing.T) {
	gate := make(chan struct{})
	syncs, on := 0, false
	l := openLog(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if on && op == fsx.OpSync {
			syncs++
			<-gate
		}
		return nil
	}))
	on = true
	var wg sync.WaitGroup
	wg.Go(func() { appendTo(t, l, 0, "first") })
	synctest.Wait()
	for p := range int32(50) {
		wg.Go(func() { appendTo(t, l, p, fmt.Sprint(p)) })
	}
	short, cancel := context.WithCancel(ctx)
	given := make(chan error)
	go func() { given <- l.Append(short, 7, raw("never")) }()
	synctest.Wait()
	require.Equal(t, 1, syncs)

	// Who gives up before its write began is not written.
	cancel()
	require.ErrorIs(t, <-given, context.Canceled)
	close(gate)
	wg.Wait()
	require.Equal(t, 2, syncs)
	require.Equal(t, "7", replayed(t, l, 7))
}

// A file most of which is out of date is copied, while others go on.
func TestTheFileIsCopiedWhenMostOfItIsOutOfDate(t *testing.T) {
	fsys := fsx.Mem()
	l := openLog(t, fsys)
	big := string(make([]byte, 1<<20))
	appendTo(t, l, 1, "keep")
	for i := range 20 {
		appendTo(t, l, 0, big)
		require.NoError(t, l.Rewrite(ctx, 0, raw(fmt.Sprint(i))))
		require.Less(t, l.end, int64(2*compactFrom))
	}
	appendTo(t, l, 0, "more")
	require.Equal(t, "19 more", replayed(t, l, 0))
	require.Equal(t, "keep", replayed(t, l, 1))

	// Not while somebody reads: on some systems that stops the replacement.
	end := l.end
	require.NoError(t, l.Replay(ctx, 1, func([]byte) error {
		for range 10 {
			appendTo(t, l, 0, big)
		}
		require.NoError(t, l.Rewrite(ctx, 0, raw("x")))
		require.Greater(t, l.end, end+10<<20)
		return nil
	}))
	require.NoError(t, l.Rewrite(ctx, 0, raw("y")))
	require.Less(t, l.end, int64(1000))
	require.NoError(t, l.Close())
	l = openLog(t, fsys)
	require.Equal(t, "y", replayed(t, l, 0))
	require.Equal(t, "keep", replayed(t, l, 1))
}

// A copy that fails leaves the log as it was, or to be replayed.
func TestAFailedCopyLosesNothing(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpOpenFile, fsx.OpReadAt, fsx.OpWrite, fsx.OpRename, fsx.OpSyncDir} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(op, " after=", after), func(t *testing.T) {
				var f failNext
				fsys := fsx.Mem()
				l := openLog(t, f.wrap(fsys))
				appendTo(t, l, 1, "keep")
				appendTo(t, l, 0, string(make([]byte, compactFrom)))
				f.arm(op, after)
				require.NoError(t, l.Rewrite(ctx, 0, raw("x")), "that much is durable")
				require.Equal(t, 1, f.failed)
				if err := l.Append(ctx, 0, raw("y")); err != nil {
					require.ErrorIs(t, err, errDisk)
					require.Equal(t, "x", replayed(t, l, 0))
					appendTo(t, l, 0, "y")
				}
				require.Equal(t, "x y", replayed(t, l, 0))
				require.NoError(t, l.Close())
				l = openLog(t, fsys)
				require.Equal(t, "x y", replayed(t, l, 0))
				require.Equal(t, "keep", replayed(t, l, 1))
			})
		}
	}
}

// What a copy that was killed left behind is removed at the next start.
func TestLeftoversAreSwept(t *testing.T) {
	fsys := fsx.Mem()
	l := openLog(t, fsys)
	appendTo(t, l, 0, "a")
	require.NoError(t, l.Close())
	require.NoError(t, fsys.Replace("d/."+logName+".XYZ", []byte("half"), 0o644))
	require.Equal(t, "a", replayed(t, openLog(t, fsys), 0))
	_, err := fsys.ReadFile("d/." + logName + ".XYZ")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestWhatDoesNotFitIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	l := openLog(t, fsx.Mem())
	end := l.end
	one := make([]byte, 1<<20)
	many := make([][]byte, 1025)
	for i := range many {
		many[i] = one
	}
	require.Error(t, l.Append(ctx, 0, many))
	require.Equal(t, end, l.end)
	appendTo(t, l, 0, "a")
}

// Whatever stands in a file, it is read or refused.
func FuzzFile(f *testing.F) {
	b, at := image(f)
	f.Add(b[fileHeader:], uint8(0))
	f.Add(b[fileHeader:at[2]], uint8(3))
	salt := binary.BigEndian.Uint64(b[12:])
	f.Fuzz(func(t *testing.T, b []byte, seal uint8) {
		file := append(appendFileHeader(nil, salt), b...)
		// Make the first few blocks' checksums right, to get behind them.
		at := fileHeader
		for range seal % 4 {
			if len(file)-at < blockHeader {
				break
			}
			n := int(binary.BigEndian.Uint32(file[at+20:]))
			if n > len(file)-at-blockHeader {
				break
			}
			block := file[at : at+blockHeader+n]
			copy(block, blockMagic)
			binary.BigEndian.PutUint64(block[4:], salt)
			binary.BigEndian.PutUint32(block[24:], blockSum(block))
			at += len(block)
		}
		l, err := OpenFileLog("d", withFile(t, file))
		if err != nil {
			return
		}
		defer l.Close()
		for p := range l.index {
			_ = l.Replay(ctx, p, func([]byte) error { return nil })
		}
		if err := l.Append(ctx, 0, raw("x")); err != nil {
			t.Fatal(err)
		}
	})
}
