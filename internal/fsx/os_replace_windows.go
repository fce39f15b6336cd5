package fsx

import (
	"io/fs"
	"os"
)

// Replace takes the steps apart because renameio exports nothing on Windows.
// Readers find the old content or the new one; see OS for what a loss of power
// may undo.
func (o osFS) Replace(name string, data []byte, perm fs.FileMode) error {
	return ReplaceInSteps(o, name, data, perm)
}

// SyncDir does nothing but tell of a directory that is not there: a directory
// handle cannot be flushed on Windows without rights that a service lacks.
func (osFS) SyncDir(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "syncdir", Path: name, Err: fs.ErrInvalid}
	}
	return nil
}
