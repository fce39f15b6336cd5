package crashfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// ErrCrashed is what every operation answers from the crash on. What the dead
// process would have done with it does not matter: nothing has an effect any
// more.
var ErrCrashed = errors.New("crashfs: the process has crashed")

// FS is a file system that forgets. Make one with New. Its methods may be called
// concurrently; operations happen one after another.
type FS struct {
	mu sync.Mutex

	// live is what the running process sees, with all the rules of names and
	// flags. What the disk has of it is kept beside it in the nodes below root,
	// which are changed only after live has accepted a change.
	live fsx.FS
	root *node

	rand    *rand.Rand
	ops     int
	crashAt int // -1: never
	crashed bool
	last    string // the operation that the crash came before

	syncs    int
	failAt   int           // the sync that fails, -1: none
	held     chan struct{} // while not nil, syncs wait for it to close
	capacity int64         // of all files together, -1: no limit
}

var _ fsx.FS = (*FS)(nil)

// New is an empty file system. The seed decides what a failed sync leaves of the
// bytes it was for.
func New(seed uint64) *FS {
	return &FS{live: fsx.Mem(), root: newDir(), rand: newRand(seed), crashAt: -1, failAt: -1, capacity: -1}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

// do counts an operation and performs it, unless the process has crashed.
func (f *FS) do(op fsx.Op, name string, perform func() error) error {
	if op == fsx.OpSync || op == fsx.OpSyncDir {
		f.wait()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.crashed && f.ops == f.crashAt {
		f.crashed = true
		f.last = fmt.Sprintf("%s %s", op, name)
	}
	if f.crashed {
		return &fs.PathError{Op: string(op), Path: name, Err: ErrCrashed}
	}
	f.ops++
	return perform()
}

// value is do for an operation with a result beside its error.
func value[T any](f *FS, op fsx.Op, name string, perform func() (T, error)) (v T, err error) {
	err = f.do(op, name, func() (err error) {
		v, err = perform()
		return err
	})
	return v, err
}

func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (fsx.File, error) {
	return value(f, fsx.OpOpenFile, name, func() (fsx.File, error) {
		open, err := f.live.OpenFile(name, flag, perm)
		if err != nil {
			return nil, err
		}
		n, existed := f.file(name)
		if existed && flag&os.O_TRUNC != 0 {
			n.truncate(0)
		}
		return &file{fs: f, live: open, node: n, name: name, appends: flag&os.O_APPEND != 0}, nil
	})
}

// file is the node of a file that live has, made where this is its first name.
func (f *FS) file(name string) (n *node, existed bool) {
	dir, base := f.parent(name)
	if n, ok := dir.names[base]; ok {
		return n, true
	}
	n = &node{}
	dir.change(binding{base, n})
	return n, false
}

func (f *FS) ReadFile(name string) ([]byte, error) {
	return value(f, fsx.OpReadFile, name, func() ([]byte, error) { return f.live.ReadFile(name) })
}

// Exists is one operation.
func (f *FS) Exists(name string) (bool, error) {
	return value(f, fsx.OpExists, name, func() (bool, error) { return fsx.Exists(f.live, name) })
}

func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	return value(f, fsx.OpReadDir, name, func() ([]fs.DirEntry, error) { return f.live.ReadDir(name) })
}

func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	return f.do(fsx.OpMkdirAll, name, func() error {
		if err := f.live.MkdirAll(name, perm); err != nil {
			return err
		}
		n := f.root
		for _, e := range elements(name) {
			next, ok := n.names[e]
			if !ok {
				next = newDir()
				n.change(binding{e, next})
			}
			n = next
		}
		return nil
	})
}

func (f *FS) Link(old, new string) error {
	return f.do(fsx.OpLink, new, func() error {
		if err := f.live.Link(old, new); err != nil {
			return err
		}
		from, fromBase := f.parent(old)
		to, toBase := f.parent(new)
		to.change(binding{toBase, from.names[fromBase]})
		return nil
	})
}

func (f *FS) Rename(old, new string) error {
	return f.do(fsx.OpRename, new, func() error {
		if err := f.live.Rename(old, new); err != nil {
			return err
		}
		from, fromBase := f.parent(old)
		to, toBase := f.parent(new)
		n := from.names[fromBase]
		switch {
		case to.names[toBase] == n: // two names of one file, or one and the same: nothing happened
		case from == to:
			from.change(binding{fromBase, nil}, binding{toBase, n})
		default:
			to.change(binding{toBase, n})
			from.change(binding{fromBase, nil})
		}
		return nil
	})
}

func (f *FS) Remove(name string) error {
	return f.do(fsx.OpRemove, name, func() error {
		if err := f.live.Remove(name); err != nil {
			return err
		}
		dir, base := f.parent(name)
		dir.change(binding{base, nil})
		return nil
	})
}

func (f *FS) SyncDir(name string) error {
	return f.do(fsx.OpSyncDir, name, func() error {
		if err := f.live.SyncDir(name); err != nil {
			return err
		}
		// Unlike a file's bytes, a directory's changes are not dropped by a sync
		// that failed: they are in the journal of the file system or it is lost.
		if err := f.syncFault("sync dir", name); err != nil {
			return err
		}
		f.find(name).syncNames()
		return nil
	})
}

// Replace is not one operation but its steps.
func (f *FS) Replace(name string, data []byte, perm fs.FileMode) error {
	if err := fsx.ReplaceInSteps(f, name, data, perm); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

func (f *FS) Lock(name string) (io.Closer, error) {
	l, err := value(f, fsx.OpLock, name, func() (io.Closer, error) {
		l, err := f.live.Lock(name)
		if err == nil {
			f.file(name)
		}
		return l, err
	})
	if err != nil {
		return nil, err
	}
	return lock{f, l, name}, nil
}

type lock struct {
	fs   *FS
	live io.Closer
	name string
}

func (l lock) Close() error { return l.fs.do(fsx.OpUnlock, l.name, l.live.Close) }

// parent is the node of a name's directory, which live has, and its last element.
func (f *FS) parent(name string) (*node, string) {
	elems := elements(name)
	return f.walk(elems[:len(elems)-1]), elems[len(elems)-1]
}

func (f *FS) find(name string) *node { return f.walk(elements(name)) }

func (f *FS) walk(elems []string) *node {
	n := f.root
	for _, e := range elems {
		n = n.names[e]
	}
	return n
}

// elements splits a name below the root, as fsx.Mem does.
func elements(name string) []string {
	var elems []string
	for clean := filepath.ToSlash(filepath.Clean("/" + filepath.ToSlash(name))); clean != "/"; {
		dir, base := filepath.Split(clean)
		elems = append([]string{base}, elems...)
		clean = filepath.ToSlash(filepath.Clean(dir))
	}
	return elems
}
