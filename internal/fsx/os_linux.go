package fsx

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// What package os does beside the system call that is asked for, this leaves out:
// os.OpenFile offers each file to the poller, which takes no files of a disk, at
// five system calls; os.Stat makes a value of what nobody reads.

func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func openFD(name string, flag int, perm fs.FileMode) (fd int, err error) {
	err = again(func() (err error) {
		fd, err = syscall.Open(name, flag|syscall.O_CLOEXEC, uint32(perm.Perm()))
		return err
	})
	if err != nil {
		return 0, pathError("open", name, err)
	}
	return fd, nil
}

func openFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	if perm != perm.Perm() {
		return os.OpenFile(name, flag, perm)
	}
	fd, err := openFD(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (osFS) SyncDir(name string) error {
	fd, err := openFD(name, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	err = again(func() error { return syscall.Fsync(fd) })
	if cerr := syscall.Close(fd); err == nil {
		err = cerr // else the sync error is the one that matters
	}
	if err != nil {
		return pathError("sync", name, err)
	}
	return nil
}

// Exists is what the function of that name asks for.
func (osFS) Exists(name string) (bool, error) {
	var st syscall.Stat_t
	switch err := again(func() error { return syscall.Stat(name, &st) }); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, pathError("stat", name, err)
	}
	return true, nil
}
