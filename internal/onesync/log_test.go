package onesync

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

func content(t testing.TB, fsys fsx.FS, name string) string {
	t.Helper()
	b, err := fsys.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// Files that are synced at once share the log's syncs, and a file that is synced
// alone has one for itself: of no file, of no directory.
func TestFilesShareSyncs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := disk(t, 0)
		f := open(t, fsys, worldRoot)
		var files []fsx.File
		for i := range 20 {
			files = append(files, synced(t, f, fmt.Sprintf("root/a/%d", i)))
		}
		before := fsys.Syncs()
		_, err := files[0].WriteAt([]byte("c"), 2)
		require.NoError(t, err)
		require.NoError(t, files[0].Sync())
		require.NoError(t, files[0].Sync(), "with nothing to sync")
		require.Equal(t, before+1, fsys.Syncs())

		release := fsys.HoldSyncs()
		var wg sync.WaitGroup
		var ended atomic.Int32
		for i, file := range files {
			wg.Go(func() {
				_, err := file.WriteAt([]byte("d"), 3)
				if err == nil {
					err = file.Sync()
				}
				require.NoError(t, err, i)
				ended.Add(1)
			})
		}
		synctest.Wait()
		require.Zero(t, ended.Load(), "acknowledged before the sync")
		release()
		wg.Wait()
		require.LessOrEqual(t, fsys.Syncs(), before+3)
		require.NoError(t, f.Close())
	})
}

// What is given to several files while a sync is under way is in the next one, all
// of it, and nobody is told before.
func TestWhatComesDuringASyncIsInTheNextOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := disk(t, 0)
		f := open(t, fsys, worldRoot)
		var mu sync.Mutex
		given, told := map[string]string{}, map[string]string{} // by file
		files := map[string]fsx.File{}
		for _, name := range []string{"root/x", "root/a/y", "root/a/b/z"} {
			files[name] = synced(t, f, name)
			given[name], told[name] = "ab", "ab"
		}
		write := func(name string) {
			var p string
			fsx.WriteSync(files[name], func() ([]byte, int64) {
				mu.Lock()
				defer mu.Unlock()
				p = given[name]
				return []byte(p), 0
			}, func(err error) bool {
				mu.Lock()
				defer mu.Unlock()
				require.NoError(t, err)
				told[name] = p
				return p != given[name]
			})
		}
		before := fsys.Syncs()
		release := fsys.HoldSyncs()
		given["root/x"] += "1"
		go write("root/x")
		synctest.Wait()
		for name := range files {
			if name != "root/x" {
				go write(name)
			}
		}
		synctest.Wait()
		mu.Lock()
		for name := range files {
			given[name] += "2" // after their writes were asked for
		}
		for name, s := range told {
			require.Equal(t, "ab", s, "%s: acknowledged before the sync", name)
		}
		mu.Unlock()
		release()
		synctest.Wait()
		require.Equal(t, given, told)
		require.Equal(t, before+2, fsys.Syncs())
		for name, s := range given {
			require.Equal(t, s, content(t, f, name))
		}
		require.NoError(t, f.Close())
	})
}

// A Sync with nothing of its own waits for one under way that has what was written
// before.
func TestASyncWaitsForOneUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := disk(t, 0)
		f := open(t, fsys, worldRoot)
		a := synced(t, f, "root/x")
		b, err := f.OpenFile("root/x", os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = a.WriteAt([]byte("c"), 2)
		require.NoError(t, err)
		release := fsys.HoldSyncs()
		var ended atomic.Int32
		for _, file := range []fsx.File{a, b} {
			go func() {
				require.NoError(t, file.Sync())
				ended.Add(1)
			}()
			synctest.Wait()
		}
		require.Zero(t, ended.Load())
		release()
		synctest.Wait()
		require.EqualValues(t, 2, ended.Load())
		require.NoError(t, f.Close())
	})
}

// The log keeps to its bound, and while the files of a full one are synced, which
// takes its time, the other one takes more.
func TestWritersGoOnDuringACheckpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		var hold atomic.Bool
		var waiting atomic.Int32
		mem := fsx.Mem()
		require.NoError(t, mem.MkdirAll("root/a", 0o755))
		fsys := fsx.Hook(mem, func(op fsx.Op, name string) error {
			if op == fsx.OpSync && !strings.Contains(name, "sync.") && hold.Load() {
				waiting.Add(1)
				<-held
			}
			return nil
		})
		f := open(t, fsys, worldRoot)
		file := synced(t, f, "root/a/x")
		hold.Store(true)
		var rounds atomic.Int32
		go func() {
			for range 100 {
				_, err := file.WriteAt(make([]byte, 300), 0)
				require.NoError(t, err)
				require.NoError(t, file.Sync())
				rounds.Add(1)
			}
		}()
		synctest.Wait()
		require.EqualValues(t, 1, waiting.Load())
		require.EqualValues(t, 20, rounds.Load(), "both files are full, and no more")
		hold.Store(false)
		close(held)
		synctest.Wait()
		require.EqualValues(t, 100, rounds.Load())
		require.NoError(t, f.Close())
		for _, name := range logNames {
			require.LessOrEqual(t, len(content(t, mem, "root/"+name)), minFileBytes)
		}
	})
}

// After Close all is in the files, and the log is not needed.
func TestCloseLeavesNothingInTheLog(t *testing.T) {
	t.Parallel()
	fsys := disk(t, 0)
	f := open(t, fsys, worldRoot)
	file := synced(t, f, "root/a/x")
	require.NoError(t, file.Close())
	require.NoError(t, f.Close())
	after := fsys.Image(0)
	require.Equal(t, "ab", content(t, after, "root/a/x"))
	// What the log does not have it does not write.
	require.NoError(t, after.Replace("root/a/x", []byte("by somebody else"), 0o644))
	require.NoError(t, open(t, after, worldRoot).Close())
	require.Equal(t, "by somebody else", content(t, after, "root/a/x"))
	require.Error(t, f.Close())
	require.Error(t, file.Sync())
}

// Many at once, each on a file of its own, until the power fails.
func TestWhatManySyncAtOnceSurvives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		fsys := disk(t, seed)
		f := open(t, fsys, worldRoot)
		const writers = 8
		var done [writers]int
		var files [writers]fsx.File
		for i := range files {
			files[i] = synced(t, f, fmt.Sprintf("root/a/%d", i))
		}
		fsys.CrashAt(fsys.Ops() + 400 + int(seed)*50)
		var wg sync.WaitGroup
		for i, file := range files {
			wg.Go(func() {
				if i%2 == 0 {
					n := 0
					fsx.WriteSync(file, func() ([]byte, int64) {
						n++
						return []byte(fmt.Sprintf("%06d", n)), int64(2 + 6*n)
					}, func(err error) bool {
						if err == nil {
							done[i] = n
						}
						return true
					})
					return
				}
				for n := 1; ; n++ {
					if _, err := file.WriteAt([]byte(fmt.Sprintf("%06d", n)), int64(2+6*n)); err != nil {
						return
					}
					if file.Sync() != nil {
						return
					}
					done[i] = n
				}
			})
		}
		wg.Wait()
		_, crashed := fsys.Crashed()
		require.True(t, crashed)
		for image := range uint64(4) {
			after := fsys.Image(image)
			again := open(t, after, worldRoot)
			for i, n := range done {
				got := content(t, again, fmt.Sprintf("root/a/%d", i))
				for k := 1; k <= n; k++ {
					require.Equal(t, fmt.Sprintf("%06d", k), got[2+6*k:][:6], "file %d, seed %d", i, seed)
				}
			}
			require.NoError(t, again.Close())
		}
	}
}

// written is a root of which the log has three frames of a file, in this order, and
// then the power failed.
func written(t testing.TB) *crashfs.FS {
	t.Helper()
	fsys := disk(t, 0)
	f := open(t, fsys, worldRoot)
	file := synced(t, f, "root/a/x")
	for i, s := range []string{"cc", "dd"} {
		_, err := file.WriteAt([]byte(s), int64(2+2*i))
		require.NoError(t, err)
		require.NoError(t, file.Sync())
	}
	return fsys.Image(0)
}

// change changes bytes of a file, durably.
func change(t testing.TB, fsys fsx.FS, name string, f func(b []byte) []byte) {
	t.Helper()
	require.NoError(t, fsys.Replace(name, f([]byte(content(t, fsys, name))), 0o644))
}

// A frame that can't be read is the torn end of the log where nothing follows, and
// damage where something does.
func TestATornTailIsCutAndDamageIsRefused(t *testing.T) {
	t.Parallel()
	const name = "root/sync.0.log"
	whole := content(t, written(t), name)
	var frames []int
	for at := 0; ; {
		i := strings.Index(whole[at:], frameMagic)
		if i < 0 {
			break
		}
		frames = append(frames, at+i)
		at += i + 1
	}
	require.Len(t, frames, 3)
	flip := func(at int) func(b []byte) []byte {
		return func(b []byte) []byte {
			b[at] ^= 1
			return b
		}
	}
	for _, c := range []struct {
		what   string
		change func([]byte) []byte
		want   string // "" is refused
	}{
		{"nothing", func(b []byte) []byte { return b }, "abccdd"},
		{"the last frame's body", flip(frames[2] + frameHeader + 10), "abcc"},
		{"the last frame's header", flip(frames[2] + 20), "abcc"},
		{"the end is missing", func(b []byte) []byte { return b[:frames[2]+40] }, "abcc"},
		{"a frame's body", flip(frames[1] + frameHeader + 10), ""},
		{"a frame's header", flip(frames[0] + 5), ""},
		{"a frame is gone", func(b []byte) []byte { return append(b[:frames[1]:frames[1]], b[frames[2]:]...) }, ""},
		{"the header", flip(20), ""},
		{"the header's magic", flip(0), ""},
		{"another version", func(b []byte) []byte {
			h, _, _ := parseHeader(b)
			copy(b, h.append(nil))
			b[7] = 9
			copy(b[headerSize-4:], be32(sum(b[:headerSize-4])))
			return b
		}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			fsys := written(t)
			change(t, fsys, name, c.change)
			f, err := Open(Config{FS: fsys, Root: worldRoot, FileBytes: minFileBytes})
			if c.want == "" {
				require.ErrorContains(t, err, "sync.0.log is damaged")
				require.Equal(t, "a", content(t, fsys, "root/a/x"), "and nothing is changed")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, content(t, fsys, "root/a/x"))
			require.NoError(t, f.Close())
		})
	}
}

func be32(v uint32) []byte { return []byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)} }

// A log of which a part is missing that counts is refused.
func TestAMissingFileOfTheLogIsRefused(t *testing.T) {
	t.Parallel()
	var hold atomic.Bool
	fsys := disk(t, 0)
	f := open(t, fsx.Hook(fsys, func(op fsx.Op, name string) error {
		if op == fsx.OpSync && hold.Load() && strings.HasSuffix(name, "/x") {
			return os.ErrPermission // so that the first file of the log still counts
		}
		return nil
	}), worldRoot)
	file := synced(t, f, "root/a/x")
	hold.Store(true)
	for f.log.header.generation == 1 {
		if _, err := file.WriteAt(make([]byte, 300), 0); err != nil || file.Sync() != nil {
			break // the background was faster
		}
	}
	after := fsys.Image(0)
	require.NotEmpty(t, content(t, after, "root/sync.1.log"))
	require.NoError(t, open(t, fsys.Image(0), worldRoot).Close())
	require.NoError(t, after.Remove("root/sync.0.log"))
	_, err := Open(Config{FS: after, Root: worldRoot, FileBytes: minFileBytes})
	require.ErrorContains(t, err, "should be in it and is not")
}

// Whatever the files of the log hold, Open neither panics nor writes outside of the
// root.
func FuzzOpen(f *testing.F) {
	whole := content(f, written(f), "root/sync.0.log")
	f.Add([]byte(whole), []byte(nil))
	f.Add([]byte(whole[:600]), []byte(whole))
	f.Add(make([]byte, 600), []byte{})
	// A frame with a body of its own, well sealed.
	f.Add(append([]byte(whole[:framesAt]), sealed(whole, appendVoid(appendWrite(nil, "../out", 0, []byte("x")), 9))...), []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		mem := fsx.Mem()
		require.NoError(t, mem.MkdirAll("root/a", 0o755))
		require.NoError(t, mem.Replace("out", []byte("outside"), 0o644))
		require.NoError(t, mem.Replace("root/a/x", []byte("a"), 0o644))
		require.NoError(t, mem.Replace("root/sync.0.log", a, 0o644))
		if len(b) > 0 {
			require.NoError(t, mem.Replace("root/sync.1.log", b, 0o644))
		}
		fsys, err := Open(Config{FS: mem, Root: worldRoot, FileBytes: minFileBytes})
		require.Equal(t, "outside", content(t, mem, "out"))
		if err != nil {
			return
		}
		file := synced(t, fsys, "root/a/y")
		require.NoError(t, file.Close())
		require.NoError(t, fsys.Close())
	})
}

// sealed is a first frame of a log with that header.
func sealed(log string, body []byte) []byte {
	h, _, _ := parseHeader([]byte(log))
	frame := append(make([]byte, frameHeader), body...)
	sealFrame(frame, h.salt, h.first)
	return frame
}
