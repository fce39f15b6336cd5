package fsx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a new, empty file system in memory, for tests and for hosts that want
// to keep nothing. It does what OS does, with these differences: Sync and
// SyncDir change nothing, for everything lives exactly as long as the value;
// relative names start at the root, which is there from the beginning;
// permission bits are kept and not enforced; a directory cannot be opened; and
// a file is refused that would grow past 2³¹−1 bytes.
//
// It does not simulate crashes: what was synced and what was not is alike.
func Mem() FS {
	return &memFS{root: newMemDir(0o755)}
}

// memFS guards the whole tree, contents included, with one mutex. No operation
// waits for anything while it holds it.
type memFS struct {
	mu   sync.Mutex
	root *memNode
}

// memNode is what POSIX calls an inode: names and open files point at it, and
// it lives as long as any of them.
type memNode struct {
	children map[string]*memNode // nil for a file
	data     []byte
	perm     fs.FileMode
	modified time.Time
	locked   bool
}

// maxMemFile keeps a wrong offset from becoming an allocation that ends the
// process.
const maxMemFile = math.MaxInt32

func newMemDir(perm fs.FileMode) *memNode {
	return &memNode{children: map[string]*memNode{}, perm: perm.Perm(), modified: time.Now()}
}

func newMemFile(data []byte, perm fs.FileMode) *memNode {
	return &memNode{data: slices.Clone(data), perm: perm.Perm(), modified: time.Now()}
}

func (n *memNode) isDir() bool { return n.children != nil }

// resize grows or cuts the content; growth is amortised as append does it.
func (n *memNode) resize(size int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	if size > maxMemFile {
		return errTooLarge
	}
	if have := int64(len(n.data)); size > have {
		n.data = append(n.data, make([]byte, size-have)...)
	} else {
		// What is cut must read as zeros if the file grows again.
		clear(n.data[size:])
		n.data = n.data[:size]
	}
	n.modified = time.Now()
	return nil
}

// elements splits a name into its elements below the root.
func elements(name string) []string {
	clean := path.Clean("/" + filepath.ToSlash(name))
	if clean == "/" {
		return nil
	}
	return strings.Split(clean[1:], "/")
}

// walk follows elements from the root.
func (m *memFS) walk(elems []string) (*memNode, error) {
	n := m.root
	for _, e := range elems {
		if !n.isDir() {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.children[e]
		if !ok {
			return nil, fs.ErrNotExist
		}
		n = next
	}
	return n, nil
}

// parent finds the directory that holds, or would hold, name, and name's last
// element. The root has no parent.
func (m *memFS) parent(name string) (*memNode, string, error) {
	if name == "" {
		return nil, "", fs.ErrNotExist
	}
	elems := elements(name)
	if len(elems) == 0 {
		return nil, "", fs.ErrInvalid
	}
	last := len(elems) - 1
	dir, err := m.walk(elems[:last])
	if err != nil {
		return nil, "", err
	}
	if !dir.isDir() {
		return nil, "", syscall.ENOTDIR
	}
	return dir, elems[last], nil
}

func (m *memFS) find(name string) (*memNode, error) {
	if name == "" {
		return nil, fs.ErrNotExist
	}
	return m.walk(elements(name))
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func linkError(op, old, new string, err error) error {
	return &os.LinkError{Op: op, Old: old, New: new, Err: err}
}

func (m *memFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(name, flag, perm)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &memFile{fs: m, node: n, name: name, flag: flag}, nil
}

func (m *memFS) open(name string, flag int, perm fs.FileMode) (*memNode, error) {
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	n, ok := dir.children[base]
	switch {
	case ok && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, fs.ErrExist
	case ok && n.isDir():
		return nil, syscall.EISDIR
	case !ok && flag&os.O_CREATE == 0:
		return nil, fs.ErrNotExist
	case !ok:
		n = newMemFile(nil, perm)
		dir.children[base] = n
	case flag&os.O_TRUNC != 0:
		return n, n.resize(0)
	}
	return n, nil
}

func (m *memFS) ReadFile(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	if n.isDir() {
		return nil, pathError("read", name, syscall.EISDIR)
	}
	return append([]byte{}, n.data...), nil
}

// Exists is what the function of that name asks for.
func (m *memFS) Exists(name string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch _, err := m.find(name); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, pathError("stat", name, err)
	}
	return true, nil
}

func (m *memFS) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	if !n.isDir() {
		return nil, pathError("readdir", name, syscall.ENOTDIR)
	}
	entries := make([]fs.DirEntry, 0, len(n.children))
	for name, c := range n.children {
		entries = append(entries, fs.FileInfoToDirEntry(memInfo{
			name: name, size: int64(len(c.data)), perm: c.perm, modified: c.modified, dir: c.isDir(),
		}))
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

func (m *memFS) MkdirAll(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == "" {
		return pathError("mkdir", name, fs.ErrNotExist)
	}
	n := m.root
	for _, e := range elements(name) {
		next, ok := n.children[e]
		if !ok {
			next = newMemDir(perm)
			n.children[e] = next
		}
		if !next.isDir() {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

func (m *memFS) Link(old, new string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(old)
	if err != nil {
		return linkError("link", old, new, err)
	}
	dir, base, err := m.parent(new)
	if err != nil {
		return linkError("link", old, new, err)
	}
	if _, taken := dir.children[base]; taken {
		return linkError("link", old, new, fs.ErrExist)
	}
	if n.isDir() {
		return linkError("link", old, new, fs.ErrPermission)
	}
	dir.children[base] = n
	return nil
}

func (m *memFS) Rename(old, new string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(old, new); err != nil {
		return linkError("rename", old, new, err)
	}
	return nil
}

func (m *memFS) rename(old, new string) error {
	from, fromBase, err := m.parent(old)
	if err != nil {
		return err
	}
	n, ok := from.children[fromBase]
	if !ok {
		return fs.ErrNotExist
	}
	to, toBase, err := m.parent(new)
	if err != nil {
		return err
	}
	if there, taken := to.children[toBase]; taken {
		switch {
		case there.isDir():
			return fs.ErrExist
		case n.isDir():
			return syscall.ENOTDIR
		case there == n:
			return nil // two names of one file: POSIX leaves both
		}
	}
	if n.isDir() && n.holds(to) {
		return fs.ErrInvalid // a directory cannot go below itself
	}
	delete(from.children, fromBase)
	to.children[toBase] = n
	return nil
}

// holds says whether d is n or somewhere below it.
func (n *memNode) holds(d *memNode) bool {
	if n == d {
		return true
	}
	for _, c := range n.children {
		if c.holds(d) {
			return true
		}
	}
	return false
}

func (m *memFS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	n, ok := dir.children[base]
	if !ok {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if len(n.children) > 0 {
		return pathError("remove", name, errNotEmpty)
	}
	delete(dir.children, base)
	return nil
}

func (m *memFS) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return pathError("syncdir", name, err)
	}
	if !n.isDir() {
		return pathError("syncdir", name, fs.ErrInvalid)
	}
	return nil
}

func (m *memFS) Replace(name string, data []byte, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return pathError("replace", name, err)
	}
	if n, taken := dir.children[base]; taken && n.isDir() {
		return pathError("replace", name, fs.ErrExist)
	}
	// A new node, so that whoever has the old file open keeps the old content.
	dir.children[base] = newMemFile(data, perm)
	return nil
}

func (m *memFS) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	if n.locked {
		return nil, pathError("lock", name, ErrLocked)
	}
	n.locked = true
	return &memLock{fs: m, node: n, name: name}, nil
}

type memLock struct {
	fs       *memFS
	node     *memNode
	name     string
	released bool
}

func (l *memLock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.released {
		return pathError("close", l.name, fs.ErrClosed)
	}
	l.released = true
	l.node.locked = false
	return nil
}

type memInfo struct {
	name     string
	size     int64
	perm     fs.FileMode
	modified time.Time
	dir      bool
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return i.modified }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return i.perm | fs.ModeDir
	}
	return i.perm
}

// memFile is one open handle. Its offset and closed flag are guarded by the
// file system's mutex, as the content is.
type memFile struct {
	fs     *memFS
	node   *memNode
	name   string
	flag   int
	offset int64
	closed bool
}

// The access mode is the part of the flags that is not bits.
const accessMode = os.O_RDONLY | os.O_WRONLY | os.O_RDWR

// use runs f with the mutex held, unless the handle is closed or was not opened
// for the access that f needs.
func (f *memFile) use(op string, refused int, do func() (int, error)) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return 0, pathError(op, f.name, fs.ErrClosed)
	}
	if refused != anyAccess && f.flag&accessMode == refused {
		return 0, pathError(op, f.name, errAccess)
	}
	n, err := do()
	if err != nil && !errors.Is(err, io.EOF) {
		err = pathError(op, f.name, err)
	}
	return n, err
}

// What use takes for an operation that every handle allows.
const anyAccess = -1

func (f *memFile) Read(p []byte) (int, error) {
	return f.use("read", os.O_WRONLY, func() (int, error) {
		if len(p) == 0 {
			return 0, nil
		}
		n := f.node.readAt(p, f.offset)
		f.offset += int64(n)
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	})
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	return f.use("read", os.O_WRONLY, func() (int, error) {
		if off < 0 {
			return 0, errNegativeOffset
		}
		n := f.node.readAt(p, off)
		if n < len(p) {
			return n, io.EOF
		}
		return n, nil
	})
}

func (f *memFile) Write(p []byte) (int, error) {
	return f.use("write", os.O_RDONLY, func() (int, error) {
		if f.flag&os.O_APPEND != 0 {
			f.offset = int64(len(f.node.data))
		}
		n, err := f.node.writeAt(p, f.offset)
		f.offset += int64(n)
		return n, err
	})
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	return f.use("write", os.O_RDONLY, func() (int, error) {
		if f.flag&os.O_APPEND != 0 {
			return 0, errAppendMode
		}
		if off < 0 {
			return 0, errNegativeOffset
		}
		return f.node.writeAt(p, off)
	})
}

var (
	errTooLarge       = errors.New("file too large for memory")
	errNotEmpty       = fmt.Errorf("directory not empty: %w", fs.ErrExist) // as ENOTEMPTY answers errors.Is
	errAccess         = errors.New("the file was not opened for this")
	errNegativeOffset = errors.New("negative offset")
	errAppendMode     = errors.New("write at an offset of a file opened with O_APPEND")
)

func (f *memFile) Truncate(size int64) error {
	_, err := f.use("truncate", os.O_RDONLY, func() (int, error) { return 0, f.node.resize(size) })
	return err
}

func (f *memFile) Sync() error {
	_, err := f.use("sync", anyAccess, func() (int, error) { return 0, nil })
	return err
}

func (f *memFile) Size() (int64, error) {
	n, err := f.use("stat", anyAccess, func() (int, error) { return len(f.node.data), nil })
	return int64(n), err
}

func (f *memFile) Close() error {
	_, err := f.use("close", anyAccess, func() (int, error) {
		f.closed = true
		return 0, nil
	})
	return err
}

func (n *memNode) readAt(p []byte, off int64) int {
	if off >= int64(len(n.data)) {
		return 0
	}
	return copy(p, n.data[off:])
}

func (n *memNode) writeAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if off > maxMemFile-int64(len(p)) {
		return 0, errTooLarge
	}
	if end := off + int64(len(p)); end > int64(len(n.data)) {
		if err := n.resize(end); err != nil {
			return 0, err
		}
	}
	n.modified = time.Now()
	return copy(n.data[off:], p), nil
}
