package crashfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/internal/fsx/fsxtest"
)

func TestItKeepsTheContract(t *testing.T) {
	t.Parallel()
	fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) {
		fsys := crashfs.New(1)
		require.NoError(t, fsys.MkdirAll("data/broker-0", 0o755))
		return fsys, "data/broker-0"
	})
}

func TestAnImageKeepsTheContract(t *testing.T) {
	t.Parallel()
	for _, next := range []func(*crashfs.FS) *crashfs.FS{
		func(f *crashfs.FS) *crashfs.FS { return f.Image(1) },
		(*crashfs.FS).AfterKill,
	} {
		fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) {
			fsys := crashfs.New(1)
			require.NoError(t, fsys.MkdirAll("data/broker-0", 0o755))
			return next(fsys), "data/broker-0"
		})
	}
}

func create(t *testing.T, fsys fsx.FS, name, content string) fsx.File {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(content), 0)
	require.NoError(t, err)
	return f
}

// tree is all files by name.
func tree(t *testing.T, fsys fsx.FS, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		name := strings.TrimPrefix(dir+"/"+e.Name(), "//")
		if e.IsDir() {
			maps.Copy(out, tree(t, fsys, name))
			continue
		}
		b, err := fsys.ReadFile(name)
		require.NoError(t, err)
		out[name] = string(b)
	}
	return out
}

// images are the different trees that a loss of power may leave.
func images(t *testing.T, fsys *crashfs.FS) []map[string]string {
	t.Helper()
	found := map[string]map[string]string{}
	for seed := range uint64(200) {
		next := fsys.Image(seed)
		m := tree(t, next, "/")
		found[fmt.Sprint(m)] = m
		require.Equal(t, m, tree(t, next.Image(0), "/"), "what is found after a loss of power is on the disk")
		require.Equal(t, m, tree(t, fsys.Image(seed), "/"), "a seed has one image")
	}
	out := make([]map[string]string, 0, len(found))
	for _, k := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[k])
	}
	return out
}

func TestALossOfPowerTakesNothingThatWasSynced(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	require.NoError(t, fsx.MkdirSynced(fsys, "d", 0o755))
	f := create(t, fsys, "d/f", "abc")
	require.NoError(t, f.Sync())
	require.NoError(t, fsys.SyncDir("d"))
	require.NoError(t, fsys.Replace("d/g", []byte("xyz"), 0o644))
	for _, m := range images(t, fsys) {
		assert.Equal(t, map[string]string{"d/f": "abc", "d/g": "xyz"}, m)
	}
}

func TestALossOfPowerMayTakeWhatWasNotSynced(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	f := create(t, fsys, "f", "old")
	require.NoError(t, f.Sync())
	require.NoError(t, fsys.SyncDir("/"))
	_, err := f.WriteAt([]byte("new"), 0)
	require.NoError(t, err)
	create(t, fsys, "g", "g")

	var fs, gs []string
	for _, m := range images(t, fsys) {
		fs = append(fs, m["f"])
		g, ok := m["g"]
		gs = append(gs, fmt.Sprint(ok, g))
	}
	assert.Subset(t, fs, []string{"old", "new"})
	assert.Subset(t, gs, []string{"false", "true", "trueg", "true\x00"}, "without its name, empty, whole, as long as it was")
	assert.Equal(t, map[string]string{"f": "old"}, tree(t, fsys.Image(0), "/"))
	assert.Equal(t, map[string]string{"f": "new", "g": "g"}, tree(t, fsys.Image(1), "/"))
}

func TestSyncingAFileDoesNotKeepItsName(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	require.NoError(t, create(t, fsys, "f", "abc").Sync())
	assert.Len(t, images(t, fsys), 2)
	require.NoError(t, fsys.MkdirAll("a/b", 0o755))
	require.NoError(t, fsx.CreateSynced(fsys, "a/b/f", []byte("x"), 0o644))
	require.NoError(t, fsys.SyncDir("a/b"))
	require.NoError(t, fsys.SyncDir("a"))
	assert.Equal(t, map[string]string{}, tree(t, fsys.Image(0), "/"), "the directory's own name is not there")
	require.NoError(t, fsys.SyncDir("/"))
	assert.Equal(t, map[string]string{"f": "abc", "a/b/f": "x"}, tree(t, fsys.Image(0), "/"))
}

func TestALaterSectorMaySurviveWithoutAnEarlierOne(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	f := create(t, fsys, "f", "")
	require.NoError(t, fsys.SyncDir("/"))
	for i := range 2 {
		_, err := f.WriteAt([]byte(strings.Repeat(string(rune('a'+i)), 1024)), int64(i)*1024)
		require.NoError(t, err)
	}
	var holes, torn int
	for _, m := range images(t, fsys) {
		s := m["f"]
		if strings.HasPrefix(s, "\x00") && strings.Contains(s, "b") {
			holes++
		}
		if strings.Contains(s, "a") && strings.Count(s, "a") < 1024 {
			torn++
		}
	}
	assert.Positive(t, holes)
	assert.Positive(t, torn)
}

func TestARenameIsFoundWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	for _, name := range []string{"old", "new"} {
		require.NoError(t, fsys.Replace(name, []byte(name), 0o644))
	}
	require.NoError(t, fsys.Rename("old", "new"))
	assert.ElementsMatch(t, []map[string]string{{"old": "old", "new": "new"}, {"new": "old"}}, images(t, fsys))

	require.NoError(t, fsys.MkdirAll("d", 0o755))
	require.NoError(t, fsys.SyncDir("/"))
	require.NoError(t, fsys.Rename("new", "d/new"))
	assert.Len(t, images(t, fsys), 4, "between directories all of both, either and neither may be found")
}

func TestALinkIsOneFileAfterwardsToo(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	f := create(t, fsys, "a", "1")
	require.NoError(t, fsys.Link("a", "b"))
	require.NoError(t, f.Sync())
	require.NoError(t, fsys.SyncDir("/"))
	for _, next := range []*crashfs.FS{fsys.Image(0), fsys.AfterKill()} {
		g := create(t, next, "b", "2")
		require.NoError(t, g.Sync())
		assert.Equal(t, map[string]string{"a": "2", "b": "2"}, tree(t, next, "/"))
		assert.Equal(t, map[string]string{"a": "2", "b": "2"}, tree(t, next.Image(0), "/"))
	}
}

func TestEveryWayToWriteIsForgottenAlike(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	f := create(t, fsys, "f", "0123456789")
	_, err := f.Read(make([]byte, 2))
	require.NoError(t, err)
	_, err = f.Write([]byte("AB"))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(8))
	a, err := fsys.OpenFile("f", os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = a.Write([]byte("CD"))
	require.NoError(t, err)
	require.NoError(t, fsys.SyncDir("/"))
	assert.Equal(t, map[string]string{"f": ""}, tree(t, fsys.Image(0), "/"))
	require.NoError(t, a.Sync())
	assert.Equal(t, map[string]string{"f": "01AB4567CD"}, tree(t, fsys.Image(0), "/"))
	_, err = fsys.OpenFile("f", os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"f": "01AB4567CD"}, tree(t, fsys.Image(0), "/"))
	assert.Equal(t, map[string]string{"f": ""}, tree(t, fsys.Image(1), "/"))
	require.NoError(t, fsys.Remove("f"))
	assert.Equal(t, map[string]string{"f": "01AB4567CD"}, tree(t, fsys.Image(0), "/"))
	assert.Equal(t, map[string]string{}, tree(t, fsys.Image(1), "/"))
}

func TestACrashIsTheEndOfEveryOperation(t *testing.T) {
	t.Parallel()
	for k := 0; ; k++ {
		fsys := crashfs.New(1)
		fsys.CrashAt(k)
		done := 0
		var err error
		for i := 0; i < 3 && err == nil; i++ {
			if err = fsys.Replace(fmt.Sprint(i), []byte("x"), 0o644); err == nil {
				done++
			}
		}
		at, crashed := fsys.Crashed()
		assert.Equal(t, err != nil, crashed)
		if !crashed {
			assert.Equal(t, k, fsys.Ops())
			break
		}
		require.ErrorIs(t, err, crashfs.ErrCrashed)
		assert.NotEmpty(t, at)
		_, err = fsys.ReadDir("/")
		require.ErrorIs(t, err, crashfs.ErrCrashed)
		for seed := range uint64(10) {
			m := tree(t, fsys.Image(seed), "/")
			for i := range done {
				assert.Equal(t, "x", m[fmt.Sprint(i)], "crash before %s, seed %d", at, seed)
			}
		}
	}
}

func TestAFailedSyncLosesWhatItWasForAndTheNextOneSaysNothing(t *testing.T) {
	t.Parallel()
	var lost, kept int
	for seed := range uint64(20) {
		fsys := crashfs.New(seed)
		f := create(t, fsys, "f", "")
		require.NoError(t, fsys.SyncDir("/"))
		fsys.FailSync(1)
		require.NoError(t, f.Sync())
		_, err := f.WriteAt([]byte("one"), 0)
		require.NoError(t, err)
		require.ErrorIs(t, f.Sync(), syscall.EIO)
		require.NoError(t, f.Sync())
		assert.Equal(t, map[string]string{"f": "one"}, tree(t, fsys, "/"), "it is still seen")
		next := fsys.AfterKill()
		assert.Equal(t, map[string]string{"f": "one"}, tree(t, next, "/"), "by the next process too")
		if tree(t, next.Image(1), "/")["f"] == "one" {
			kept++
		} else {
			lost++
		}
		g := create(t, next, "f", "one")
		require.NoError(t, g.Sync())
		assert.Equal(t, map[string]string{"f": "one"}, tree(t, next.Image(0), "/"), "what is written again is written")
	}
	assert.Positive(t, lost)
	assert.Positive(t, kept)
}

func TestAFailedSyncOfADirectoryMayBeRepeated(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	fsys.FailSync(1)
	require.ErrorIs(t, fsys.Replace("f", []byte("x"), 0o644), syscall.EIO)
	assert.Equal(t, map[string]string{}, tree(t, fsys.Image(0), "/"))
	assert.Equal(t, map[string]string{"f": "x"}, tree(t, fsys.Image(1), "/"))
	require.NoError(t, fsys.SyncDir("/"))
	assert.Equal(t, map[string]string{"f": "x"}, tree(t, fsys.Image(0), "/"))
}

func TestAFullDiskTakesAPartOfAWrite(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	f := create(t, fsys, "f", "12345")
	fsys.Full(4)
	_, err := f.WriteAt([]byte("abcde"), 0)
	require.NoError(t, err, "what is there can be written over")
	n, err := f.WriteAt([]byte("fghijk"), 5)
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Equal(t, 4, n)
	require.Error(t, fsys.Replace("g", []byte("x"), 0o644))
	assert.Equal(t, map[string]string{"f": "abcdefghi"}, tree(t, fsys, "/"))
	require.NoError(t, fsys.Remove("f"))
	require.NoError(t, fsys.Replace("g", []byte("123456789"), 0o644))
	fsys.Full(-1)
	require.NoError(t, fsys.Replace("h", []byte("123456789"), 0o644))
}

func TestHeldSyncsWaitForTheirRelease(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	f := create(t, fsys, "f", "x")
	require.NoError(t, fsys.SyncDir("/"))
	release := fsys.HoldSyncs()
	synced := make(chan error, 1)
	go func() { synced <- f.Sync() }()
	assert.Equal(t, map[string]string{"f": ""}, tree(t, fsys.Image(0), "/"))
	assert.Empty(t, synced)
	release()
	release()
	require.NoError(t, <-synced)
	assert.Equal(t, map[string]string{"f": "x"}, tree(t, fsys.Image(0), "/"))
}

func TestALockDoesNotOutliveItsProcess(t *testing.T) {
	t.Parallel()
	fsys := crashfs.New(1)
	_, err := fsys.Lock("lock")
	require.NoError(t, err)
	_, err = fsys.Lock("lock")
	require.ErrorIs(t, err, fsx.ErrLocked)
	for _, next := range []*crashfs.FS{fsys.Image(1), fsys.AfterKill()} {
		_, err = next.Lock("lock")
		require.NoError(t, err)
	}
	_, err = fsys.Lock("lock")
	require.ErrorIs(t, err, crashfs.ErrCrashed)
	assert.False(t, errors.Is(err, fs.ErrNotExist))
}
