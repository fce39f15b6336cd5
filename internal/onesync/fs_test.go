package onesync

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/internal/fsx/fsxtest"
)

// open is an FS with the smallest log there is, so that its files are changed
// often.
func open(t testing.TB, fsys fsx.FS, root string) *FS {
	t.Helper()
	f, err := Open(Config{FS: fsys, Root: root, FileBytes: minFileBytes})
	require.NoError(t, err)
	return f
}

func TestTheContractOfFilesIsKept(t *testing.T) {
	t.Parallel()
	fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) {
		root := t.TempDir()
		f := open(t, fsx.OS(), root)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		require.NoError(t, f.MkdirAll(root+"/data", 0o755))
		return f, root + "/data"
	})
	fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) {
		mem := fsx.Mem()
		require.NoError(t, mem.MkdirAll("root/data", 0o755))
		f := open(t, mem, "root")
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		return f, "root/data"
	})
}

// synced is a file whose first sync, which is its own, is behind it: "ab", in the
// log.
func synced(t testing.TB, f *FS, name string) fsx.File {
	t.Helper()
	file, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	require.NoError(t, err)
	for i, s := range []string{"a", "b"} {
		_, err = file.WriteAt([]byte(s), int64(i))
		require.NoError(t, err)
		require.NoError(t, file.Sync())
	}
	return file
}

// tree is every file below a directory, by name.
func tree(t *testing.T, fsys fsx.FS, dir string) map[string]string {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		name := dir + "/" + e.Name()
		if e.IsDir() {
			for name, content := range tree(t, fsys, name) {
				all[name] = content
			}
		} else if dir != worldRoot { // the log's
			all[name] = content(t, fsys, name)
		}
	}
	return all
}

// Names change in every way, of files and of directories, also without anybody
// knowing whether they have, and files are written by all the names that they have
// or had: what is on the disk when all is synced is what the process sees.
func TestWhateverNamesAFileHasItsSyncsCount(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rand := rand.New(rand.NewPCG(seed, 3))
		mem := disk(t, seed)
		var before, after bool
		inject := func(op fsx.Op, fail *bool) error {
			switch op {
			case fsx.OpRename, fsx.OpLink, fsx.OpRemove:
				if *fail {
					*fail = false
					return errUnknown
				}
			}
			return nil
		}
		below := fsx.Hook(mem, func(op fsx.Op, _ string) error { return inject(op, &before) })
		below = fsx.HookAfter(below, func(op fsx.Op, _ string, err error) error { return cmp.Or(err, inject(op, &after)) })
		f := open(t, below, worldRoot)
		var handles []fsx.File
		var story []string
		name := func() string {
			return []string{"root/a", "root/a/b", "root/a/c", "root/a/b/d"}[rand.IntN(4)] + "/" + []string{"x", "y"}[rand.IntN(2)]
		}
		for step := range 40 {
			before, after = rand.IntN(12) == 0, rand.IntN(12) == 0
			kind, a, b := rand.IntN(19), name(), name()
			story = append(story, fmt.Sprint(kind, " ", a, " ", b))
			switch kind {
			case 0:
				_ = f.Link(a, b)
			case 1:
				_ = f.Rename(a, b)
			case 2:
				_ = f.Remove(a)
			case 3:
				_ = f.Replace(a, []byte("replaced"), 0o644)
			case 4:
				_ = f.Rename("root/a/b", "root/a/c")
			case 5:
				_ = f.Rename("root/a/c", "root/a/b")
			case 6:
				_ = f.MkdirAll([]string{"root/a/b", "root/a/b/d"}[rand.IntN(2)], 0o755)
			case 7, 8: // the log has what it wrote last
				if len(handles) > 0 {
					i := rand.IntN(len(handles))
					h := handles[i]
					handles = slices.Delete(handles, i, i+1)
					require.NoError(t, h.Sync())
					_, err := h.WriteAt([]byte{byte('A' + step)}, int64(rand.IntN(3)))
					require.NoError(t, err)
					require.NoError(t, errors.Join(h.Sync(), h.Close()))
				}
			case 9, 10, 11:
				flag := os.O_RDWR | os.O_CREATE
				if rand.IntN(4) == 0 {
					flag |= os.O_TRUNC
				}
				if h, err := f.OpenFile(a, flag, 0o644); err == nil {
					handles = append(handles, h)
				}
			default:
				if len(handles) == 0 {
					continue
				}
				h := handles[rand.IntN(len(handles))]
				story = append(story, fmt.Sprintf("%p", h))
				_, err := h.WriteAt([]byte{byte('A' + step)}, int64(rand.IntN(3)))
				require.NoError(t, err)
				if rand.IntN(3) > 0 {
					require.NoError(t, h.Sync())
				}
			}
			if step%8 != 7 {
				continue
			}
			before, after = false, false
			for _, dir := range []string{"root/a", "root/a/b", "root/a/c", "root/a/b/d", "root/a/c/d"} {
				if err := f.SyncDir(dir); err != nil {
					require.ErrorIs(t, err, fs.ErrNotExist)
				}
			}
			for _, h := range handles {
				require.NoError(t, h.Sync())
			}
			image := mem.Image(0)
			require.NoError(t, open(t, image, worldRoot).Close())
			require.Equal(t, tree(t, mem, worldRoot), tree(t, image, worldRoot), "seed %d: %q", seed, story)
		}
		for _, h := range handles {
			require.NoError(t, h.Close())
		}
		require.NoError(t, f.Close())
	}
}

// A file that can be reached in two ways has each sync on the disk, whichever way it
// was written last; and what the log has of a file goes with it when its directory
// gets another name.
func TestOneFileInTwoWays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		// prepare gives the two ways, and the name to look at.
		prepare func(f *FS, way func(name string) fsx.File, fail func(before bool)) (a, b fsx.File, name string)
	}{
		{"two names", func(f *FS, way func(string) fsx.File, _ func(bool)) (fsx.File, fsx.File, string) {
			require.NoError(t, f.Link("root/a/b/x", "root/a/y"))
			return way("root/a/b/x"), way("root/a/y"), "root/a/y"
		}},
		{"two names, and one is changed", func(f *FS, way func(string) fsx.File, _ func(bool)) (fsx.File, fsx.File, string) {
			require.NoError(t, f.Link("root/a/b/x", "root/a/y"))
			require.NoError(t, f.Rename("root/a/y", "root/a/z"))
			return way("root/a/b/x"), way("root/a/z"), "root/a/z"
		}},
		{"two names in a directory that is moved", func(f *FS, way func(string) fsx.File, _ func(bool)) (fsx.File, fsx.File, string) {
			require.NoError(t, f.Link("root/a/b/x", "root/a/b/y"))
			require.NoError(t, f.Rename("root/a/b", "root/a/c"))
			return way("root/a/c/x"), way("root/a/c/y"), "root/a/c/x"
		}},
		{"in a directory that is moved", func(f *FS, way func(string) fsx.File, _ func(bool)) (fsx.File, fsx.File, string) {
			require.NoError(t, f.Rename("root/a/b", "root/a/c"))
			return way("root/a/c/x"), way("root/a/c/x"), "root/a/c/x"
		}},
		{"in one that is moved, and nobody knows", func(f *FS, way func(string) fsx.File, fail func(bool)) (fsx.File, fsx.File, string) {
			h := way("root/a/b/x")
			fail(false)
			require.ErrorIs(t, f.Rename("root/a/b", "root/a/c"), errUnknown)
			return h, way("root/a/c/x"), "root/a/c/x"
		}},
		{"in one that is not moved, and nobody knows", func(f *FS, way func(string) fsx.File, fail func(bool)) (fsx.File, fsx.File, string) {
			h := way("root/a/b/x")
			fail(true)
			require.ErrorIs(t, f.Rename("root/a/b", "root/a/c"), errUnknown)
			return h, way("root/a/b/x"), "root/a/b/x"
		}},
		{"it is not removed, and nobody knows", func(f *FS, way func(string) fsx.File, fail func(bool)) (fsx.File, fsx.File, string) {
			h := way("root/a/b/x")
			fail(true)
			require.ErrorIs(t, f.Remove("root/a/b/x"), errUnknown)
			return h, way("root/a/b/x"), "root/a/b/x"
		}},
		{"it is renamed, and nobody knows", func(f *FS, way func(string) fsx.File, fail func(bool)) (fsx.File, fsx.File, string) {
			h := way("root/a/b/x")
			fail(false)
			require.ErrorIs(t, f.Rename("root/a/b/x", "root/a/b/z"), errUnknown)
			return h, way("root/a/b/z"), "root/a/b/z"
		}},
		{"closed, and open again when the log has turned", func(f *FS, way func(string) fsx.File, _ func(bool)) (fsx.File, fsx.File, string) {
			y := synced(t, f, "root/a/y")
			for f.log.header.generation < 2 {
				_, err := y.WriteAt(make([]byte, 300), 2)
				require.NoError(t, errors.Join(err, y.Sync()))
			}
			f.log.work.Wait()
			require.NoError(t, y.Close())
			return way("root/a/b/x"), way("root/a/b/x"), "root/a/b/x"
		}},
		{"emptied by the other", func(f *FS, way func(string) fsx.File, _ func(bool)) (fsx.File, fsx.File, string) {
			h := way("root/a/b/x")
			_, err := h.WriteAt([]byte("not synced"), 2)
			require.NoError(t, err)
			other, err := f.OpenFile("root/a/b/x", os.O_RDWR|os.O_TRUNC, 0)
			require.NoError(t, err)
			return h, other, "root/a/b/x"
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			mem := disk(t, 0)
			var before, after bool
			take := func(armed *bool, op fsx.Op) error {
				if *armed && (op == fsx.OpRename || op == fsx.OpRemove) {
					*armed = false
					return errUnknown
				}
				return nil
			}
			below := fsx.Hook(mem, func(op fsx.Op, _ string) error { return take(&before, op) })
			below = fsx.HookAfter(below, func(op fsx.Op, _ string, err error) error { return cmp.Or(err, take(&after, op)) })
			f := open(t, below, worldRoot)
			require.NoError(t, synced(t, f, "root/a/b/x").Close()) // and the log has half of it
			a, b, name := c.prepare(f, func(name string) fsx.File {
				h, err := f.OpenFile(name, os.O_RDWR, 0)
				require.NoError(t, err)
				return h
			}, func(first bool) { before, after = first, !first })
			for _, dir := range []string{"root/a", filepath.Dir(name)} {
				require.NoError(t, f.SyncDir(dir))
			}
			check := func() {
				t.Helper()
				image := mem.Image(0)
				require.NoError(t, open(t, image, worldRoot).Close())
				require.Equal(t, content(t, mem, name), content(t, image, name))
			}
			if c.what != "emptied by the other" {
				check()
			}
			for i, h := range []fsx.File{a, b, a, a, b, b, a, b, b, b, a, a, a} {
				_, err := h.WriteAt([]byte{byte('A' + i), byte('a' + i)}, 0)
				require.NoError(t, err)
				require.NoError(t, h.Sync())
				check()
			}
			require.NoError(t, errors.Join(a.Close(), b.Close(), f.Close()))
		})
	}
}
