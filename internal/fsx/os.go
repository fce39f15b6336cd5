package fsx

import (
	"io/fs"
	"os"
)

// OS is the real file system. On Windows two promises of FS are weaker than
// elsewhere: SyncDir does nothing, for Windows has no way to sync a directory,
// and so a name made shortly before a loss of power, also one made by Replace,
// is as durable as the volume's own journal makes it. On systems without flock
// and without Windows' share modes (Plan 9, WebAssembly, Solaris, AIX) Lock
// fails with errors.ErrUnsupported.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := openFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) ReadFile(name string) ([]byte, error)         { return os.ReadFile(name) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) Link(old, new string) error                   { return os.Link(old, new) }
func (osFS) Rename(old, new string) error                 { return os.Rename(old, new) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }

// osFile adds the one method that *os.File spells differently.
type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
