package fsx

import (
	"errors"
	"io/fs"
	"syscall"
)

// SyncData is what the function of that name asks for.
func (f osFile) SyncData() error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			if failed = syscall.Fdatasync(int(fd)); !errors.Is(failed, syscall.EINTR) {
				return
			}
		}
	})
	if err == nil && failed != nil {
		err = &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: failed}
	}
	return err
}
