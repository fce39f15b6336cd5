//go:build !windows

package fsx

import (
	"io/fs"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Replace relies on renameio for the file and adds what renameio leaves out:
// the directory is synced, because until then the rename itself may be undone
// by a loss of power.
func (o osFS) Replace(name string, data []byte, perm fs.FileMode) error {
	dir := filepath.Dir(name)
	// The temporary file goes beside its target. renameio would otherwise try
	// TMPDIR first, which costs four system calls a write and is another file
	// system as often as not.
	f, err := renameio.NewPendingFile(name, renameio.WithTempDir(dir), renameio.WithPermissions(perm))
	if err != nil {
		return err
	}
	// After success it does nothing; before, its own error adds nothing to the
	// one already being returned.
	defer func() { _ = f.Cleanup() }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	return o.SyncDir(dir)
}
