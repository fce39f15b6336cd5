package fsx

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ReplaceInSteps keeps the promise of FS.Replace with the other operations of
// fsys: a temporary file of a unique name, written, synced and closed, renamed
// over name, and the directory synced. It serves file systems that have no
// Replace of their own, and tests that stop or fail a Replace half-way.
func ReplaceInSteps(fsys FS, name string, data []byte, perm fs.FileMode) error {
	dir, base := filepath.Split(name)
	// Split leaves no directory for a bare name, and FS knows no empty one.
	dir = filepath.Clean(dir)
	tmp := filepath.Join(dir, "."+base+"."+rand.Text())
	f, err := fsys.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	if err := fill(f, data); err != nil {
		_ = fsys.Remove(tmp) // a leftover is harmless and the first error tells more
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		_ = fsys.Remove(tmp) // as above
		return err
	}
	return fsys.SyncDir(dir)
}

// fill writes, syncs and closes f. The handle is closed in any case.
func fill(f File, data []byte) error {
	if _, err := f.Write(data); err != nil {
		_ = f.Close() // the write error is the one that matters
		return err
	}
	if err := f.Sync(); err != nil {
		_ = f.Close() // the sync error is the one that matters
		return err
	}
	return f.Close()
}

// CreateSynced makes a new file of this content, synced and closed. It fails
// with fs.ErrExist when name is taken. The name is durable after SyncDir of its
// directory, which is left to the caller: there may be several files to make.
// After another error the file may be there, whole or in part.
func CreateSynced(fsys FS, name string, data []byte, perm fs.FileMode) error {
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	return fill(f, data)
}

// MkdirSynced makes the directory name, whose parent must be there already or
// is made too, and syncs the parent so that name survives a loss of power. It
// syncs also when the directory was there: another process may have made it and
// not yet synced it. Parents above the first are not synced.
func MkdirSynced(fsys FS, name string, perm fs.FileMode) error {
	if err := fsys.MkdirAll(name, perm); err != nil {
		return err
	}
	if err := fsys.SyncDir(filepath.Dir(name)); err != nil {
		return fmt.Errorf("sync the parent of %s: %w", name, err)
	}
	return nil
}
