//go:build !linux

package fsx

import (
	"errors"
	"io/fs"
	"os"
)

func openFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

// Exists is what the function of that name asks for.
func (osFS) Exists(name string) (bool, error) {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, nil
}
