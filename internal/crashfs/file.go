package crashfs

import (
	"io/fs"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// file is an open file: what a process sees of it is in live, what the disk is
// to have of it in node.
type file struct {
	fs      *FS
	live    fsx.File
	node    *node
	name    string
	appends bool
	offset  int64 // of Read and Write, under fs.mu
	closed  bool  // under fs.mu
}

func (f *file) Read(p []byte) (int, error) {
	return value(f.fs, fsx.OpRead, f.name, func() (int, error) {
		n, err := f.live.Read(p)
		f.offset += int64(n)
		return n, err
	})
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	return value(f.fs, fsx.OpReadAt, f.name, func() (int, error) { return f.live.ReadAt(p, off) })
}

func (f *file) Write(p []byte) (int, error) {
	return value(f.fs, fsx.OpWrite, f.name, func() (int, error) {
		off := f.offset
		if f.appends && !f.closed {
			size, err := f.live.Size()
			if err != nil {
				return 0, err
			}
			off = size
		}
		n, err := f.write(p, off, f.live.Write)
		f.offset = off + int64(n)
		return n, err
	})
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return value(f.fs, fsx.OpWriteAt, f.name, func() (int, error) {
		return f.write(p, off, func(p []byte) (int, error) { return f.live.WriteAt(p, off) })
	})
}

// write performs a write as far as there is room for it.
func (f *file) write(p []byte, off int64, live func([]byte) (int, error)) (int, error) {
	room := f.fs.room(f.live, off, len(p))
	n, err := live(p[:room])
	if n > 0 {
		f.node.write(off, p[:n])
	}
	if err == nil && n < len(p) {
		err = &fs.PathError{Op: "write", Path: f.name, Err: errFull}
	}
	return n, err
}

func (f *file) Truncate(size int64) error {
	return f.fs.do(fsx.OpTruncate, f.name, func() error {
		if err := f.live.Truncate(size); err != nil {
			return err
		}
		f.node.truncate(size)
		return nil
	})
}

func (f *file) Sync() error {
	return f.fs.do(fsx.OpSync, f.name, func() error {
		if err := f.live.Sync(); err != nil {
			return err // closed
		}
		if err := f.fs.syncFault("sync", f.name); err != nil {
			f.node.dropSome(f.fs.rand)
			return err
		}
		f.node.sync()
		return nil
	})
}

func (f *file) Size() (int64, error) {
	return value(f.fs, fsx.OpSize, f.name, func() (int64, error) { return f.live.Size() })
}

func (f *file) Close() error {
	return f.fs.do(fsx.OpClose, f.name, func() error {
		f.closed = true
		return f.live.Close()
	})
}

// wait keeps a sync waiting while syncs are held.
func (f *FS) wait() {
	f.mu.Lock()
	held := f.held
	f.mu.Unlock()
	if held != nil {
		<-held
	}
}

// HoldSyncs makes every sync wait that begins from now on, as a disk does that
// takes its time, until release is called. Holds do not add up: a second one
// before the release of the first has no effect.
func (f *FS) HoldSyncs() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held != nil {
		return func() {}
	}
	held := make(chan struct{})
	f.held = held
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.held = nil
		f.mu.Unlock()
		close(held)
	})
}
