package fsx

import (
	"io"
	"io/fs"
)

// Op names an operation of FS or File.
type Op string

// The operations a hook is told of. Those of an open file come with the name
// it was opened under.
const (
	OpOpenFile Op = "open file"
	OpReadFile Op = "read file"
	OpReadDir  Op = "read dir"
	OpExists   Op = "exists" // of Exists, also where it opens the file
	OpMkdirAll Op = "mkdir all"
	OpLink     Op = "link"   // told with the new name
	OpRename   Op = "rename" // told with the new name
	OpRemove   Op = "remove"
	OpSyncDir  Op = "sync dir"
	OpReplace  Op = "replace"
	OpLock     Op = "lock"
	OpUnlock   Op = "unlock" // closing what Lock returned

	OpRead     Op = "read"
	OpReadAt   Op = "read at"
	OpWrite    Op = "write"
	OpWriteAt  Op = "write at"
	OpSync     Op = "sync"
	OpTruncate Op = "truncate"
	OpSize     Op = "size"
	OpClose    Op = "close"
)

// Hook returns fsys with before called ahead of every operation. An error of
// before is returned as it is and the operation is not performed; a before that
// does not return keeps the caller stopped there. Calls of before overlap when
// the operations do.
//
// An error ahead of a Close leaves the file open, as a process would that never
// came to close it.
func Hook(fsys FS, before func(op Op, name string) error) FS {
	return hooked{fsys, func(op Op, name string, perform func() error) error {
		if err := before(op, name); err != nil {
			return err
		}
		return perform()
	}}
}

// HookAfter returns fsys with after called when an operation has been
// performed, with the operation's error. What after returns is what the caller
// gets, so an error put in the place of nil is the fault that looks like a
// failure and was none.
func HookAfter(fsys FS, after func(op Op, name string, err error) error) FS {
	return hooked{fsys, func(op Op, name string, perform func() error) error {
		return after(op, name, perform())
	}}
}

type hooked struct {
	fs FS
	do func(op Op, name string, perform func() error) error
}

// hookValue runs an operation that has a result beside its error. The result
// goes through unchanged: a Read that ends the file has both.
func hookValue[T any](h hooked, op Op, name string, perform func() (T, error)) (v T, err error) {
	err = h.do(op, name, func() (err error) {
		v, err = perform()
		return err
	})
	return v, err
}

func (h hooked) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := hookValue(h, OpOpenFile, name, func() (File, error) { return h.fs.OpenFile(name, flag, perm) })
	if err != nil {
		if f != nil {
			_ = f.Close() // opened, and the hook says it was not: nobody else will
		}
		return nil, err
	}
	return hookedFile{h, f, name}, nil
}

func (h hooked) ReadFile(name string) ([]byte, error) {
	return hookValue(h, OpReadFile, name, func() ([]byte, error) { return h.fs.ReadFile(name) })
}

func (h hooked) ReadDir(name string) ([]fs.DirEntry, error) {
	return hookValue(h, OpReadDir, name, func() ([]fs.DirEntry, error) { return h.fs.ReadDir(name) })
}

// Exists is what the function of that name asks for.
func (h hooked) Exists(name string) (bool, error) {
	return hookValue(h, OpExists, name, func() (bool, error) { return Exists(h.fs, name) })
}

func (h hooked) MkdirAll(name string, perm fs.FileMode) error {
	return h.do(OpMkdirAll, name, func() error { return h.fs.MkdirAll(name, perm) })
}

func (h hooked) Link(old, new string) error {
	return h.do(OpLink, new, func() error { return h.fs.Link(old, new) })
}

func (h hooked) Rename(old, new string) error {
	return h.do(OpRename, new, func() error { return h.fs.Rename(old, new) })
}

func (h hooked) Remove(name string) error {
	return h.do(OpRemove, name, func() error { return h.fs.Remove(name) })
}

func (h hooked) SyncDir(name string) error {
	return h.do(OpSyncDir, name, func() error { return h.fs.SyncDir(name) })
}

func (h hooked) Replace(name string, data []byte, perm fs.FileMode) error {
	return h.do(OpReplace, name, func() error { return h.fs.Replace(name, data, perm) })
}

func (h hooked) Lock(name string) (io.Closer, error) {
	l, err := hookValue(h, OpLock, name, func() (io.Closer, error) { return h.fs.Lock(name) })
	if err != nil {
		if l != nil {
			_ = l.Close() // as in OpenFile
		}
		return nil, err
	}
	return closerFunc(func() error { return h.do(OpUnlock, name, l.Close) }), nil
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

type hookedFile struct {
	h    hooked
	f    File
	name string
}

func (f hookedFile) Read(p []byte) (int, error) {
	return hookValue(f.h, OpRead, f.name, func() (int, error) { return f.f.Read(p) })
}

func (f hookedFile) ReadAt(p []byte, off int64) (int, error) {
	return hookValue(f.h, OpReadAt, f.name, func() (int, error) { return f.f.ReadAt(p, off) })
}

func (f hookedFile) Write(p []byte) (int, error) {
	return hookValue(f.h, OpWrite, f.name, func() (int, error) { return f.f.Write(p) })
}

func (f hookedFile) WriteAt(p []byte, off int64) (int, error) {
	return hookValue(f.h, OpWriteAt, f.name, func() (int, error) { return f.f.WriteAt(p, off) })
}

func (f hookedFile) Sync() error { return f.h.do(OpSync, f.name, f.f.Sync) }

// SyncData is a sync for the hook.
func (f hookedFile) SyncData() error {
	return f.h.do(OpSync, f.name, func() error { return SyncData(f.f) })
}

func (f hookedFile) Truncate(size int64) error {
	return f.h.do(OpTruncate, f.name, func() error { return f.f.Truncate(size) })
}

func (f hookedFile) Size() (int64, error) { return hookValue(f.h, OpSize, f.name, f.f.Size) }

func (f hookedFile) Close() error { return f.h.do(OpClose, f.name, f.f.Close) }
