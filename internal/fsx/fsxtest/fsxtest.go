// Package fsxtest is the contract of fsx.FS as a test. Every implementation
// runs it: the real one, the one in memory, and any that simulates faults.
package fsxtest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Run tests the file system that open returns, inside the directory that it
// returns with it. open is called once a case and gives an empty directory.
func Run(t *testing.T, open func(t *testing.T) (fsys fsx.FS, dir string)) {
	cases := []struct {
		name string
		test func(t *testing.T, fsys fsx.FS, dir string)
	}{
		{"a file has the bytes that were written", testWriteRead},
		{"opening keeps to its flags", testOpenFlags},
		{"an exclusive create has one winner", testExclusiveCreate},
		{"reading stops at the end of the file", testReadEnd},
		{"bytes are written at an offset, with zeros before", testWriteAt},
		{"appending goes to the end wherever that is", testAppend},
		{"truncating cuts and fills with zeros", testTruncate},
		{"a handle is refused what it was not opened for", testAccess},
		{"a closed handle does nothing", testClosedHandle},
		{"a missing name is fs.ErrNotExist for every operation", testMissing},
		{"a file in the way of a directory is an error", testFileInTheWay},
		{"directories are made with their parents, repeatedly", testMkdirAll},
		{"a directory lists its names in order", testReadDir},
		{"a name is there or is not", testExists},
		{"a link is a second name of one file", testLink},
		{"a link to a taken name changes nothing", testLinkTaken},
		{"of many links to one name one succeeds", testLinkRace},
		{"a rename moves and replaces", testRename},
		{"a rename of two names of one file changes nothing", testRenameSameFile},
		{"a rename does not replace a directory", testRenameOntoDirectory},
		{"a renamed directory takes its content along", testRenameDirectory},
		{"of many renames of one name one succeeds", testRenameRace},
		{"a removed file lives on in its handles", testRemoveOpenFile},
		{"a directory with something in it is not removed", testRemoveDirectory},
		{"replacing creates and replaces whole files", testReplace},
		{"a reader keeps the content that was replaced under it", testReplaceUnderReader},
		{"replacing at once never mixes contents", testReplaceRace},
		{"replacing does not write through a link", testReplaceLinked},
		{"a lock excludes until it is closed", testLock},
		{"of many lockers one succeeds", testLockRace},
		{"content returned is the caller's", testOwnership},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fsys, dir := open(t)
			c.test(t, fsys, dir)
		})
	}
}

func write(t *testing.T, fsys fsx.FS, name, content string) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	require.NoError(t, err)
	_, err = f.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

func read(t *testing.T, fsys fsx.FS, name string) string {
	t.Helper()
	b, err := fsys.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// names lists a directory without what Replace may have left behind.
func names(t *testing.T, fsys fsx.FS, dir string) []string {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	var list []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			list = append(list, e.Name())
		}
	}
	return list
}

func openFile(t *testing.T, fsys fsx.FS, name string, flag int) fsx.File {
	t.Helper()
	f, err := fsys.OpenFile(name, flag, 0o644)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() }) // several cases close it themselves
	return f
}

func testWriteRead(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "one two")
	require.NoError(t, fsys.SyncDir(dir))
	assert.Equal(t, "one two", read(t, fsys, name))

	f := openFile(t, fsys, name, os.O_RDONLY)
	size, err := f.Size()
	require.NoError(t, err)
	assert.EqualValues(t, 7, size)
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	assert.Equal(t, "one two", string(b))
}

func testOpenFlags(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	_, err := fsys.OpenFile(name, os.O_RDWR, 0o644)
	require.ErrorIs(t, err, fs.ErrNotExist, "without O_CREATE")

	f := openFile(t, fsys, name, os.O_RDWR|os.O_CREATE)
	_, err = f.Write([]byte("abc"))
	require.NoError(t, err)
	_ = openFile(t, fsys, name, os.O_RDWR|os.O_CREATE)
	assert.Equal(t, "abc", read(t, fsys, name), "O_CREATE leaves what is there")

	_, err = fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	require.ErrorIs(t, err, fs.ErrExist)
	assert.Equal(t, "abc", read(t, fsys, name))

	_ = openFile(t, fsys, name, os.O_RDWR|os.O_TRUNC)
	assert.Empty(t, read(t, fsys, name), "O_TRUNC empties it")
}

// race runs contend in many goroutines at once and returns the errors.
func race(contend func(i int) error) []error {
	const contenders = 16
	errs := make([]error, contenders)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range contenders {
		wg.Go(func() {
			<-start
			errs[i] = contend(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// winner checks that one error is nil and all others are want.
func winner(t *testing.T, errs []error, want error) int {
	t.Helper()
	won := -1
	for i, err := range errs {
		if err == nil {
			require.Equal(t, -1, won, "contenders %d and %d both won", won, i)
			won = i
			continue
		}
		require.ErrorIs(t, err, want)
	}
	require.NotEqual(t, -1, won, "nobody won")
	return won
}

func testExclusiveCreate(t *testing.T, fsys fsx.FS, dir string) {
	winner(t, race(func(int) error {
		f, err := fsys.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	}), fs.ErrExist)
}

func testReadEnd(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "abcd")
	f := openFile(t, fsys, name, os.O_RDONLY)

	buf := make([]byte, 3)
	n, err := f.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "abc", string(buf[:n]))
	n, err = f.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "d", string(buf[:n]))
	n, err = f.Read(buf)
	assert.Zero(t, n)
	require.Equal(t, io.EOF, err)
	n, err = f.Read(nil)
	assert.Zero(t, n)
	require.NoError(t, err, "nothing was asked for")

	n, err = f.ReadAt(buf, 1)
	require.NoError(t, err)
	assert.Equal(t, "bcd", string(buf[:n]))
	n, err = f.ReadAt(buf, 2)
	require.Equal(t, io.EOF, err, "fewer bytes than asked for come with the reason")
	assert.Equal(t, "cd", string(buf[:n]))
	n, err = f.ReadAt(buf, 9)
	require.Equal(t, io.EOF, err)
	assert.Zero(t, n)
	_, err = f.ReadAt(buf, -1)
	require.Error(t, err)
	assert.NotErrorIs(t, err, io.EOF)
}

func testWriteAt(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	f := openFile(t, fsys, name, os.O_RDWR|os.O_CREATE)
	n, err := f.WriteAt([]byte("xy"), 3)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	assert.Equal(t, "\x00\x00\x00xy", read(t, fsys, name))
	_, err = f.WriteAt([]byte("ab"), 0)
	require.NoError(t, err)
	assert.Equal(t, "ab\x00xy", read(t, fsys, name))
	_, err = f.WriteAt([]byte("z"), -1)
	require.Error(t, err)

	_, err = f.Write([]byte("Q"))
	require.NoError(t, err)
	assert.Equal(t, "Qb\x00xy", read(t, fsys, name), "WriteAt does not move the offset of Write")
}

func testAppend(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	a := openFile(t, fsys, name, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	b := openFile(t, fsys, name, os.O_WRONLY|os.O_APPEND)
	for i, f := range []fsx.File{a, b, a} {
		_, err := fmt.Fprintf(f, "%d", i)
		require.NoError(t, err)
	}
	assert.Equal(t, "012", read(t, fsys, name))
	_, err := a.WriteAt([]byte("x"), 0)
	require.Error(t, err, "an offset means nothing to a file opened with O_APPEND")
	assert.Equal(t, "012", read(t, fsys, name))
}

func testTruncate(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "abcdef")
	f := openFile(t, fsys, name, os.O_RDWR)
	require.NoError(t, f.Truncate(2))
	assert.Equal(t, "ab", read(t, fsys, name))
	require.NoError(t, f.Truncate(4))
	assert.Equal(t, "ab\x00\x00", read(t, fsys, name), "what was cut does not come back")
	require.Error(t, f.Truncate(-1))
	assert.Equal(t, "ab\x00\x00", read(t, fsys, name))
}

func testAccess(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "abc")
	r := openFile(t, fsys, name, os.O_RDONLY)
	_, err := r.Write([]byte("x"))
	require.Error(t, err)
	_, err = r.WriteAt([]byte("x"), 0)
	require.Error(t, err)
	require.Error(t, r.Truncate(0))
	w := openFile(t, fsys, name, os.O_WRONLY)
	_, err = w.Read(make([]byte, 1))
	require.Error(t, err)
	assert.NotErrorIs(t, err, io.EOF)
	_, err = w.ReadAt(make([]byte, 1), 0)
	require.Error(t, err)
	assert.Equal(t, "abc", read(t, fsys, name))
}

func testClosedHandle(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "abc")
	f := openFile(t, fsys, name, os.O_RDWR)
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Close(), fs.ErrClosed)
	require.ErrorIs(t, f.Sync(), fs.ErrClosed)
	_, err := f.Write([]byte("x"))
	require.ErrorIs(t, err, fs.ErrClosed)
	_, err = f.Read(make([]byte, 1))
	require.ErrorIs(t, err, fs.ErrClosed)
	assert.Equal(t, "abc", read(t, fsys, name))
}

func testMissing(t *testing.T, fsys fsx.FS, dir string) {
	missing, there := filepath.Join(dir, "missing"), filepath.Join(dir, "f")
	below := filepath.Join(missing, "f")
	write(t, fsys, there, "abc")
	_, readFile := fsys.ReadFile(missing)
	_, readDir := fsys.ReadDir(missing)
	_, open := fsys.OpenFile(below, os.O_WRONLY|os.O_CREATE, 0o644)
	_, lock := fsys.Lock(below)
	for what, err := range map[string]error{
		"ReadFile":                 readFile,
		"ReadDir":                  readDir,
		"OpenFile below":           open,
		"Lock below":               lock,
		"Link of":                  fsys.Link(missing, filepath.Join(dir, "g")),
		"Link of, to a taken name": fsys.Link(missing, there),
		"Link to below":            fsys.Link(there, below),
		"Rename of":                fsys.Rename(missing, filepath.Join(dir, "g")),
		"Rename of, over a file":   fsys.Rename(missing, there),
		"Rename to below":          fsys.Rename(there, below),
		"Remove":                   fsys.Remove(missing),
		"SyncDir":                  fsys.SyncDir(missing),
		"Replace below":            fsys.Replace(below, nil, 0o644),
	} {
		assert.ErrorIs(t, err, fs.ErrNotExist, what)
	}
	assert.Equal(t, []string{"f"}, names(t, fsys, dir))
	assert.Equal(t, "abc", read(t, fsys, there))
}

func testFileInTheWay(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "abc")
	require.Error(t, fsys.MkdirAll(name, 0o755))
	require.Error(t, fsys.MkdirAll(filepath.Join(name, "d"), 0o755))
	_, err := fsys.ReadDir(name)
	require.Error(t, err)
	_, err = fsys.OpenFile(filepath.Join(name, "g"), os.O_WRONLY|os.O_CREATE, 0o644)
	require.Error(t, err)
	_, err = fsys.ReadFile(dir)
	require.Error(t, err, "a directory has no content")
	_, err = fsys.OpenFile(dir, os.O_WRONLY, 0o644)
	require.Error(t, err)
	assert.Equal(t, "abc", read(t, fsys, name))
}

func testMkdirAll(t *testing.T, fsys fsx.FS, dir string) {
	deep := filepath.Join(dir, "a", "b", "c")
	require.NoError(t, fsys.MkdirAll(deep, 0o755))
	write(t, fsys, filepath.Join(deep, "f"), "x")
	require.NoError(t, fsys.MkdirAll(deep, 0o755))
	require.NoError(t, fsx.MkdirSynced(fsys, deep, 0o755))
	require.NoError(t, fsx.MkdirSynced(fsys, filepath.Join(dir, "d"), 0o755))
	assert.Equal(t, "x", read(t, fsys, filepath.Join(deep, "f")))
	assert.Equal(t, []string{"a", "d"}, names(t, fsys, dir))
}

func testExists(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	is := func(want bool, name string) {
		t.Helper()
		got, err := fsx.Exists(fsys, name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	is(false, name)
	is(false, filepath.Join(dir, "missing", "f"))
	write(t, fsys, name, "x")
	is(true, name)
	require.NoError(t, fsys.Link(name, name+"2"))
	require.NoError(t, fsys.Remove(name))
	is(false, name)
	is(true, name+"2")
}

func testReadDir(t *testing.T, fsys fsx.FS, dir string) {
	assert.Empty(t, names(t, fsys, dir))
	for _, n := range []string{"b", "a", "c-10", "c-9"} {
		write(t, fsys, filepath.Join(dir, n), n)
	}
	require.NoError(t, fsys.MkdirAll(filepath.Join(dir, "dir", "inner"), 0o755))
	assert.Equal(t, []string{"a", "b", "c-10", "c-9", "dir"}, names(t, fsys, dir))

	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	i := slices.IndexFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "c-10" })
	assert.False(t, entries[i].IsDir())
	info, err := entries[i].Info()
	require.NoError(t, err)
	assert.EqualValues(t, 4, info.Size())
	assert.True(t, info.Mode().IsRegular())
	assert.True(t, entries[slices.IndexFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "dir" })].IsDir())
}

func testLink(t *testing.T, fsys fsx.FS, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, fsys, a, "one")
	require.NoError(t, fsys.Link(a, b))
	write(t, fsys, a, "two")
	assert.Equal(t, "two", read(t, fsys, b), "both names are one file")
	require.NoError(t, fsys.Remove(a))
	assert.Equal(t, "two", read(t, fsys, b), "the file lives while a name does")
	require.Error(t, fsys.Link(dir, filepath.Join(dir, "c")), "a directory has one name")
}

func testLinkTaken(t *testing.T, fsys fsx.FS, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, fsys, a, "one")
	write(t, fsys, b, "two")
	require.ErrorIs(t, fsys.Link(a, b), fs.ErrExist)
	require.ErrorIs(t, fsys.Link(a, a), fs.ErrExist)
	assert.Equal(t, "two", read(t, fsys, b))
	require.NoError(t, fsys.MkdirAll(filepath.Join(dir, "d"), 0o755))
	require.ErrorIs(t, fsys.Link(a, filepath.Join(dir, "d")), fs.ErrExist)
}

func testLinkRace(t *testing.T, fsys fsx.FS, dir string) {
	target := filepath.Join(dir, "target")
	won := winner(t, race(func(i int) error {
		own := filepath.Join(dir, fmt.Sprintf("own-%d", i))
		if err := fsx.CreateSynced(fsys, own, fmt.Append(nil, i), 0o644); err != nil {
			return err
		}
		return fsys.Link(own, target)
	}), fs.ErrExist)
	assert.Equal(t, fmt.Sprint(won), read(t, fsys, target))
}

func testRename(t *testing.T, fsys fsx.FS, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "d", "b")
	require.NoError(t, fsys.MkdirAll(filepath.Join(dir, "d"), 0o755))
	write(t, fsys, a, "one")
	require.NoError(t, fsys.Rename(a, b))
	assert.Equal(t, "one", read(t, fsys, b))
	assert.Equal(t, []string{"d"}, names(t, fsys, dir))

	write(t, fsys, a, "two")
	require.NoError(t, fsys.Rename(a, b))
	assert.Equal(t, "two", read(t, fsys, b))
	require.NoError(t, fsys.Rename(b, b))
	assert.Equal(t, "two", read(t, fsys, b), "a rename to itself")
}

func testRenameSameFile(t *testing.T, fsys fsx.FS, dir string) {
	if runtime.GOOS == "windows" {
		t.Skip("POSIX only")
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, fsys, a, "one")
	require.NoError(t, fsys.Link(a, b))
	require.NoError(t, fsys.Rename(a, b))
	assert.Equal(t, []string{"a", "b"}, names(t, fsys, dir))
}

func testRenameOntoDirectory(t *testing.T, fsys fsx.FS, dir string) {
	a, d, e := filepath.Join(dir, "a"), filepath.Join(dir, "d"), filepath.Join(dir, "e")
	write(t, fsys, a, "one")
	require.NoError(t, fsys.MkdirAll(d, 0o755))
	require.NoError(t, fsys.MkdirAll(e, 0o755))
	require.Error(t, fsys.Rename(a, d))
	require.Error(t, fsys.Rename(e, d))
	require.Error(t, fsys.Rename(d, a), "nor a file by a directory")
	require.Error(t, fsys.Rename(d, filepath.Join(d, "inner")), "nor a directory below itself")
	require.Error(t, fsys.Replace(d, []byte("x"), 0o644))
	assert.Equal(t, []string{"a", "d", "e"}, names(t, fsys, dir))
}

func testRenameDirectory(t *testing.T, fsys fsx.FS, dir string) {
	d, e := filepath.Join(dir, "d"), filepath.Join(dir, "e")
	require.NoError(t, fsys.MkdirAll(filepath.Join(d, "inner"), 0o755))
	write(t, fsys, filepath.Join(d, "inner", "f"), "one")
	require.NoError(t, fsys.Rename(d, e))
	assert.Equal(t, "one", read(t, fsys, filepath.Join(e, "inner", "f")))
	assert.Equal(t, []string{"e"}, names(t, fsys, dir))
}

func testRenameRace(t *testing.T, fsys fsx.FS, dir string) {
	token := filepath.Join(dir, "token")
	write(t, fsys, token, "x")
	won := winner(t, race(func(i int) error {
		return fsys.Rename(token, filepath.Join(dir, fmt.Sprintf("mine-%d", i)))
	}), fs.ErrNotExist)
	assert.Equal(t, []string{fmt.Sprintf("mine-%d", won)}, names(t, fsys, dir))
}

func testRemoveOpenFile(t *testing.T, fsys fsx.FS, dir string) {
	if runtime.GOOS == "windows" {
		t.Skip("POSIX only")
	}
	name := filepath.Join(dir, "f")
	write(t, fsys, name, "one")
	f := openFile(t, fsys, name, os.O_RDWR)
	require.NoError(t, fsys.Remove(name))
	write(t, fsys, name, "two")
	_, err := f.WriteAt([]byte("ONE"), 0)
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	assert.Equal(t, "ONE", string(b))
	assert.Equal(t, "two", read(t, fsys, name), "a new file of the name is another file")
}

func testRemoveDirectory(t *testing.T, fsys fsx.FS, dir string) {
	d := filepath.Join(dir, "d")
	require.NoError(t, fsys.MkdirAll(d, 0o755))
	write(t, fsys, filepath.Join(d, "f"), "one")
	require.Error(t, fsys.Remove(d))
	assert.Equal(t, "one", read(t, fsys, filepath.Join(d, "f")))
	require.NoError(t, fsys.Remove(filepath.Join(d, "f")))
	require.NoError(t, fsys.Remove(d))
	assert.Empty(t, names(t, fsys, dir))
}

// eachReplace runs test for the file system's own Replace and for the one made
// of steps, which promise the same.
func eachReplace(t *testing.T, fsys fsx.FS, dir string, test func(t *testing.T, dir string, replace func(name string, data []byte, perm fs.FileMode) error)) {
	for name, replace := range map[string]func(string, []byte, fs.FileMode) error{
		"own": fsys.Replace,
		"in steps": func(name string, data []byte, perm fs.FileMode) error {
			return fsx.ReplaceInSteps(fsys, name, data, perm)
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := filepath.Join(dir, name)
			require.NoError(t, fsys.MkdirAll(sub, 0o755))
			test(t, sub, replace)
			entries, err := fsys.ReadDir(sub)
			require.NoError(t, err)
			for _, e := range entries {
				assert.False(t, strings.HasPrefix(e.Name(), "."), "left %s behind", e.Name())
			}
		})
	}
}

func testReplace(t *testing.T, fsys fsx.FS, dir string) {
	eachReplace(t, fsys, dir, func(t *testing.T, dir string, replace func(string, []byte, fs.FileMode) error) {
		name := filepath.Join(dir, "f")
		for _, content := range []string{"a longer first content", "short", ""} {
			require.NoError(t, replace(name, []byte(content), 0o600))
			assert.Equal(t, content, read(t, fsys, name))
		}
		entries, err := fsys.ReadDir(dir)
		require.NoError(t, err)
		info, err := entries[0].Info()
		require.NoError(t, err)
		if runtime.GOOS != "windows" {
			assert.Equal(t, fs.FileMode(0o600), info.Mode())
		}
		require.ErrorIs(t, replace(filepath.Join(dir, "missing", "f"), nil, 0o600), fs.ErrNotExist)
	})
}

func testReplaceUnderReader(t *testing.T, fsys fsx.FS, dir string) {
	if runtime.GOOS == "windows" {
		t.Skip("POSIX only")
	}
	eachReplace(t, fsys, dir, func(t *testing.T, dir string, replace func(string, []byte, fs.FileMode) error) {
		name := filepath.Join(dir, "f")
		require.NoError(t, replace(name, []byte("old"), 0o644))
		f := openFile(t, fsys, name, os.O_RDONLY)
		require.NoError(t, replace(name, []byte("newer"), 0o644))
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		assert.Equal(t, "old", string(b))
	})
}

func testReplaceRace(t *testing.T, fsys fsx.FS, dir string) {
	eachReplace(t, fsys, dir, func(t *testing.T, dir string, replace func(string, []byte, fs.FileMode) error) {
		name := filepath.Join(dir, "f")
		content := func(i int) string { return strings.Repeat(fmt.Sprint(i%10), 1000+i) }
		require.NoError(t, replace(name, []byte(content(0)), 0o644))
		errs := race(func(i int) error {
			if err := replace(name, []byte(content(i)), 0o644); err != nil {
				return err
			}
			b, err := fsys.ReadFile(name)
			if err != nil {
				return err
			}
			if got := string(b); got != content(len(got)-1000) {
				return fmt.Errorf("a mixture of %d bytes", len(got))
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...))
	})
}

func testReplaceLinked(t *testing.T, fsys fsx.FS, dir string) {
	eachReplace(t, fsys, dir, func(t *testing.T, dir string, replace func(string, []byte, fs.FileMode) error) {
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		write(t, fsys, a, "one")
		require.NoError(t, fsys.Link(a, b))
		require.NoError(t, replace(a, []byte("two"), 0o644))
		assert.Equal(t, "one", read(t, fsys, b))
	})
}

func testLock(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "lock")
	l, err := fsys.Lock(name)
	require.NoError(t, err)
	_, err = fsys.Lock(name)
	require.ErrorIs(t, err, fsx.ErrLocked, "a second lock of this process is refused as well")
	other, err := fsys.Lock(filepath.Join(dir, "other"))
	require.NoError(t, err, "another name is another lock")
	require.NoError(t, other.Close())

	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Close(), fs.ErrClosed)
	l2, err := fsys.Lock(name)
	require.NoError(t, err)
	require.ErrorIs(t, l.Close(), fs.ErrClosed, "an old holder cannot release the new one's lock")
	_, err = fsys.Lock(name)
	require.ErrorIs(t, err, fsx.ErrLocked)
	require.NoError(t, l2.Close())
	assert.Contains(t, names(t, fsys, dir), "lock", "the file stays")
}

func testLockRace(t *testing.T, fsys fsx.FS, dir string) {
	errs := race(func(int) error {
		l, err := fsys.Lock(filepath.Join(dir, "lock"))
		if err == nil {
			t.Cleanup(func() { assert.NoError(t, l.Close()) })
		}
		return err
	})
	winner(t, errs, fsx.ErrLocked)
}

func testOwnership(t *testing.T, fsys fsx.FS, dir string) {
	name := filepath.Join(dir, "f")
	data := []byte("abc")
	require.NoError(t, fsys.Replace(name, data, 0o644))
	data[0] = 'X'
	got, err := fsys.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "abc", string(got), "the file does not share the writer's memory")
	got[1] = 'X'
	assert.Equal(t, "abc", read(t, fsys, name), "nor the reader's")
}
