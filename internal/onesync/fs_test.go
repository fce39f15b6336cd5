package onesync

import (
	"os"
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
