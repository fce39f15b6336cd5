//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fsx

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Lock uses flock and not fcntl: a lock of flock belongs to the open file and
// not to the process, so a second Lock in this process is refused as well, and
// closing some other handle of the file does not drop it.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close() // nothing was written, and the lock was not ours
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
}
