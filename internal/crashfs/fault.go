package crashfs

import (
	"io/fs"
	"syscall"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// What a device answers that fails, and one that is full.
var (
	errIO   error = syscall.EIO
	errFull error = syscall.ENOSPC
)

// CrashAt makes the process die before its k-th operation, counted from 0 and
// from the beginning: that one and all after it fail with ErrCrashed and have no
// effect.
func (f *FS) CrashAt(k int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = k
}

// Crash makes the process die now.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Crashed reports whether the process has died, and at which operation.
func (f *FS) Crashed() (at string, crashed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.crashed
}

// Ops is how many operations were performed so far.
func (f *FS) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// Syncs is how many times a file or a directory was synced so far.
func (f *FS) Syncs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs
}

// FailSync makes one sync of a file or a directory fail with syscall.EIO: the
// k-th from now on, counted from 0. A negative k calls it off.
func (f *FS) FailSync(k int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failAt = -1; k >= 0 {
		f.failAt = f.syncs + k
	}
}

// syncFault counts a sync and tells whether it is the one that fails.
func (f *FS) syncFault(op, name string) error {
	f.syncs++
	if f.syncs-1 != f.failAt {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: errIO}
}

// Full leaves room for so many more bytes in all files together. A write that
// needs more is done in part and fails with syscall.ENOSPC. Removed files make
// room. A negative number lifts the limit.
func (f *FS) Full(room int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.capacity = -1; room >= 0 {
		f.capacity = f.used(f.root, "/") + room
	}
}

// room is how many of n bytes can be written at an offset of a file.
func (f *FS) room(file fsx.File, off int64, n int) int {
	if f.capacity < 0 {
		return n
	}
	size, err := file.Size()
	if err != nil {
		return n // closed, and it will be refused
	}
	free := max(f.capacity-f.used(f.root, "/"), 0)
	return int(max(min(size+free-off, int64(n)), 0))
}

// used is the size of all files with a name.
func (f *FS) used(n *node, name string) int64 {
	if !n.isDir() {
		b, err := f.live.ReadFile(name)
		if err != nil {
			return 0 // it was there a moment ago, under the same mutex
		}
		return int64(len(b))
	}
	var sum int64
	for base, c := range n.names {
		sum += f.used(c, name+"/"+base)
	}
	return sum
}
