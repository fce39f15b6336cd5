package fsx_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/internal/fsx/fsxtest"
)

func TestOSKeepsTheContract(t *testing.T) {
	t.Parallel()
	fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) { return fsx.OS(), t.TempDir() })
}

func TestMemKeepsTheContract(t *testing.T) {
	t.Parallel()
	fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) {
		fsys := fsx.Mem()
		require.NoError(t, fsys.MkdirAll("data/broker-0", 0o755))
		return fsys, "data/broker-0"
	})
}

func TestHooksThatDoNothingChangeNothing(t *testing.T) {
	t.Parallel()
	fsxtest.Run(t, func(t *testing.T) (fsx.FS, string) {
		before := func(fsx.Op, string) error { return nil }
		after := func(_ fsx.Op, _ string, err error) error { return err }
		return fsx.HookAfter(fsx.Hook(fsx.Mem(), before), after), "/"
	})
}

func TestMemNamesStartAtTheRoot(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	require.NoError(t, fsys.Replace("f", []byte("x"), 0o644))
	for _, name := range []string{"/f", "./f", "f", "/a/../f", "../f"} {
		b, err := fsys.ReadFile(name)
		require.NoError(t, err, name)
		assert.Equal(t, "x", string(b), name)
	}
	_, err := fsys.ReadFile("")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, fsys.SyncDir("."))
	require.NoError(t, fsys.SyncDir("/"))
	require.Error(t, fsys.Remove("/"))
}

func TestMemRefusesAFileThatWouldFillTheMemory(t *testing.T) {
	t.Parallel()
	f, err := fsx.Mem().OpenFile("f", os.O_RDWR|os.O_CREATE, 0o644)
	require.NoError(t, err)
	require.Error(t, f.Truncate(1<<62))
	_, err = f.WriteAt([]byte("x"), 1<<62)
	require.Error(t, err)
	size, err := f.Size()
	require.NoError(t, err)
	assert.Zero(t, size)
}

// The child is another process that asks for the lock its parent holds.
func TestOSLockExcludesAnotherProcess(t *testing.T) {
	const variable = "FSX_TEST_LOCK"
	if name := os.Getenv(variable); name != "" {
		_, err := fsx.OS().Lock(name)
		if errors.Is(err, fsx.ErrLocked) {
			_, _ = io.WriteString(os.Stdout, "refused\n")
		}
		return
	}
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	child := func() string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOSLockExcludesAnotherProcess$")
		cmd.Env = append(os.Environ(), variable+"="+name)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	l, err := fsx.OS().Lock(name)
	require.NoError(t, err)
	assert.Contains(t, child(), "refused")
	require.NoError(t, l.Close())
	assert.NotContains(t, child(), "refused")
	// The child took the lock and never released it: its death did.
	l, err = fsx.OS().Lock(name)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// everyOperation uses all of FS and File once, and gives the operations in the
// order in which a hook must see them.
func everyOperation(t *testing.T, fsys fsx.FS) []fsx.Op {
	t.Helper()
	require.NoError(t, fsys.MkdirAll("d", 0o755))
	f, err := fsys.OpenFile("d/f", os.O_RDWR|os.O_CREATE, 0o644)
	require.NoError(t, err)
	buf := make([]byte, 1)
	for _, use := range []func() error{
		func() error { _, err := f.Write([]byte("ab")); return err },
		func() error { _, err := f.WriteAt([]byte("ab"), 2); return err },
		func() error { _, err := f.Read(buf); return err },
		func() error { _, err := f.ReadAt(buf, 0); return err },
		func() error { _, err := f.Size(); return err },
		func() error { return f.Truncate(1) },
		f.Sync,
		f.Close,
		func() error { return fsys.Link("d/f", "d/g") },
		func() error { return fsys.Rename("d/g", "d/h") },
		func() error { return fsys.SyncDir("d") },
		func() error { _, err := fsys.ReadFile("d/h"); return err },
		func() error { _, err := fsys.ReadDir("d"); return err },
		func() error { _, err := fsx.Exists(fsys, "d/h"); return err },
		func() error { return fsys.Remove("d/h") },
		func() error { return fsys.Replace("d/f", []byte("x"), 0o644) },
	} {
		require.NoError(t, use())
	}
	l, err := fsys.Lock("d/lock")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return []fsx.Op{
		fsx.OpMkdirAll, fsx.OpOpenFile, fsx.OpWrite, fsx.OpWriteAt, fsx.OpRead, fsx.OpReadAt, fsx.OpSize,
		fsx.OpTruncate, fsx.OpSync, fsx.OpClose, fsx.OpLink, fsx.OpRename, fsx.OpSyncDir, fsx.OpReadFile,
		fsx.OpReadDir, fsx.OpExists, fsx.OpRemove, fsx.OpReplace, fsx.OpLock, fsx.OpUnlock,
	}
}

func TestHooksSeeEveryOperation(t *testing.T) {
	t.Parallel()
	var before, after []fsx.Op
	fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		before = append(before, op)
		return nil
	})
	fsys = fsx.HookAfter(fsys, func(op fsx.Op, _ string, err error) error {
		after = append(after, op)
		return err
	})
	want := everyOperation(t, fsys)
	assert.Equal(t, want, before)
	assert.Equal(t, want, after)
}

func TestAnErrorOfHookKeepsTheOperationFromHappening(t *testing.T) {
	t.Parallel()
	inner, fault := fsx.Mem(), errors.New("fault")
	var told []string
	fsys := fsx.Hook(inner, func(op fsx.Op, name string) error {
		told = append(told, string(op)+" "+name)
		if op == fsx.OpWrite || op == fsx.OpRename || op == fsx.OpReadFile {
			return fault
		}
		return nil
	})
	f, err := fsys.OpenFile("f", os.O_WRONLY|os.O_CREATE, 0o644)
	require.NoError(t, err)
	n, err := f.Write([]byte("x"))
	assert.Zero(t, n)
	require.ErrorIs(t, err, fault)
	require.ErrorIs(t, fsys.Rename("f", "g"), fault)
	_, err = fsys.ReadFile("f")
	require.ErrorIs(t, err, fault)

	b, err := inner.ReadFile("f")
	require.NoError(t, err)
	assert.Empty(t, b)
	assert.Equal(t, "open file f, write f, rename g, read file f", strings.Join(told, ", "))
}

func TestAnErrorOfHookAfterHidesWhatHappened(t *testing.T) {
	t.Parallel()
	inner, fault := fsx.Mem(), errors.New("fault")
	fsys := fsx.HookAfter(inner, func(op fsx.Op, name string, err error) error {
		assert.NoError(t, err)
		return fault
	})
	require.ErrorIs(t, fsys.Replace("f", []byte("x"), 0o644), fault)
	b, err := inner.ReadFile("f")
	require.NoError(t, err)
	assert.Equal(t, "x", string(b))

	_, err = fsys.Lock("lock")
	require.ErrorIs(t, err, fault)
	l, err := inner.Lock("lock")
	require.NoError(t, err, "a lock that its caller never got is not kept for ever")
	require.NoError(t, l.Close())
	_, err = fsys.OpenFile("f", os.O_RDONLY, 0)
	require.ErrorIs(t, err, fault)
}

// Whatever step of a Replace fails, the old content or the new one is there,
// and the new one when it was said to be.
func TestReplaceInStepsIsAllOrNothingAtEveryFault(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	for k := 0; ; k++ {
		inner := fsx.Mem()
		require.NoError(t, inner.Replace("f", []byte("old"), 0o644))
		step := 0
		fsys := fsx.Hook(inner, func(fsx.Op, string) error {
			step++
			if step-1 == k {
				return fault
			}
			return nil
		})
		err := fsx.ReplaceInSteps(fsys, "f", []byte("new"), 0o644)
		b, readErr := inner.ReadFile("f")
		require.NoError(t, readErr)
		if err == nil {
			require.Equal(t, "new", string(b))
			require.Greater(t, k, 4, "there are more steps than that to fail at")
			return
		}
		require.ErrorIs(t, err, fault)
		require.Contains(t, []string{"old", "new"}, string(b), "fault at step %d", k)
	}
}
