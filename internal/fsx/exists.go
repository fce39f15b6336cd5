package fsx

import (
	"errors"
	"io/fs"
	"os"
)

// Exists reports whether a file has this name at some moment of the call. It asks
// the file system itself, where that has an answer, and opens the file otherwise.
func Exists(fsys FS, name string) (bool, error) {
	if e, ok := fsys.(interface {
		Exists(name string) (bool, error)
	}); ok {
		return e.Exists(name)
	}
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}
