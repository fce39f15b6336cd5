package onesync

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Config is what an FS is made of.
type Config struct {
	FS fsx.FS // nil is the real one
	// Root is the directory whose files share syncs, with all below it. It is
	// there, durably. Other files are those of the file system below.
	Root string
	// FileBytes is the size that each of the log's two files has at most; they
	// begin small. Zero is 16 MiB.
	FileBytes int64
}

// FS is a file system whose files share syncs. Its methods may be called
// concurrently. One process at a time has a root, which the caller sees to.
type FS struct {
	inner fsx.FS
	root  string
	log   *log

	// names is held by one operation on names at a time, during I/O.
	names turn
	// durable has the directories below the root whose own names are durable, made
	// those that were made and whose names are not yet. names guards them.
	durable, made map[string]bool
	// shared has the names whose file may be that of another name too. names
	// guards it.
	shared map[string]bool

	mu    sync.Mutex       // never held during I/O
	nodes map[string]*node // of files that are open or in the log, by name below the root
}

var _ fsx.FS = (*FS)(nil)

// Open brings the files below a root up to date and makes a file system of them.
func Open(cfg Config) (*FS, error) {
	if cfg.FS == nil {
		cfg.FS = fsx.OS()
	}
	if cfg.FileBytes == 0 {
		cfg.FileBytes = 16 << 20
	}
	if cfg.FileBytes < minFileBytes {
		return nil, fmt.Errorf("onesync: Config.FileBytes is %d, and %d is the least", cfg.FileBytes, minFileBytes)
	}
	f := &FS{inner: cfg.FS, names: newTurn(), root: filepath.Clean(cfg.Root), durable: map[string]bool{}, made: map[string]bool{}, shared: map[string]bool{}, nodes: map[string]*node{}}
	var err error
	if f.log, err = openLog(f, cfg.FileBytes); err != nil {
		return nil, fmt.Errorf("onesync: open %s: %w", f.root, err)
	}
	return f, nil
}

// Close syncs all files that the log has something of, makes the log void and ends
// the use of the file system. Close its files first.
func (f *FS) Close() error {
	f.names.Lock()
	defer f.names.Unlock()
	if err := f.log.close(); err != nil {
		return fmt.Errorf("onesync: close %s: %w", f.root, err)
	}
	return nil
}

// below is a name as the log has it, where it is below the root.
func (f *FS) below(name string) (string, bool) {
	rel, err := filepath.Rel(f.root, name)
	if err != nil || rel == "." || !filepath.IsLocal(rel) || len(rel) > maxName {
		return "", false
	}
	return filepath.ToSlash(rel), true
}

func (f *FS) path(rel string) string { return filepath.Join(f.root, filepath.FromSlash(rel)) }

// OpenFile is fsx.FS's.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (fsx.File, error) {
	rel, ok := f.below(name)
	if !ok || name == "" {
		return f.inner.OpenFile(name, flag, perm)
	}
	f.names.Lock()
	defer f.names.Unlock()
	if flag&os.O_TRUNC != 0 {
		held, err := f.hold(rel)
		defer release(held)
		if err != nil {
			return nil, pathError("open", name, err)
		}
		for _, n := range held {
			n.apart(0)
		}
	}
	inner, err := f.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[rel]
	if n == nil {
		n = &node{turn: newTurn(), name: rel, shared: f.isShared(rel), direct: true}
		f.nodes[rel] = n
	}
	n.handles++
	return &file{fs: f, inner: inner, node: n, name: name, writes: flag&(os.O_WRONLY|os.O_RDWR) != 0}, nil
}

// ReadFile is fsx.FS's.
func (f *FS) ReadFile(name string) ([]byte, error) { return f.inner.ReadFile(name) }

// Exists is what fsx.Exists asks for.
func (f *FS) Exists(name string) (bool, error) { return fsx.Exists(f.inner, name) }

// ReadDir is fsx.FS's.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) { return f.inner.ReadDir(name) }

// MkdirAll is fsx.FS's.
func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	f.names.Lock()
	defer f.names.Unlock()
	if rel, ok := f.below(name); ok {
		for ; rel != "."; rel = parent(rel) {
			if !f.durable[rel] {
				f.made[rel] = true
			}
		}
	}
	return f.inner.MkdirAll(name, perm)
}

// SyncDir is fsx.FS's.
func (f *FS) SyncDir(name string) error {
	f.names.Lock()
	defer f.names.Unlock()
	if err := f.inner.SyncDir(name); err != nil {
		return err
	}
	rel, ok := f.below(name)
	if !ok {
		if rel = "."; filepath.Clean(name) != f.root {
			return nil
		}
	}
	for dir := range f.made {
		if parent(dir) == rel {
			delete(f.made, dir)
			f.durable[dir] = true
		}
	}
	f.mu.Lock()
	var in []*node
	for name, n := range f.nodes {
		if parent(name) == rel {
			in = append(in, n)
		}
	}
	f.mu.Unlock()
	for _, n := range in {
		n.turn.Lock()
		n.found = true
		n.turn.Unlock()
	}
	return nil
}

// Lock is fsx.FS's.
func (f *FS) Lock(name string) (io.Closer, error) { return f.inner.Lock(name) }

// Link is fsx.FS's. Files with two names have their syncs for themselves.
func (f *FS) Link(old, new string) error {
	return f.change("link", func() error { return f.inner.Link(old, new) }, func(names []string, _ bool) {
		for _, name := range names {
			f.share(name)
		}
	}, old, new)
}

// Rename is fsx.FS's.
func (f *FS) Rename(old, new string) error {
	return f.change("rename", func() error { return f.inner.Rename(old, new) }, func(names []string, sure bool) {
		a, okA := f.below(old)
		b, okB := f.below(new)
		if a == b && okA && okB {
			return
		}
		if !sure || !okA || !okB || f.shared[a] || f.shared[b] {
			// Which file is behind which name is not known, or is known to be
			// behind two.
			for _, name := range names {
				f.share(name)
			}
			return
		}
		f.forget(b)
		f.move(a, b)
	}, old, new)
}

// Remove is fsx.FS's.
func (f *FS) Remove(name string) error {
	return f.unbind("remove", name, func() error { return f.inner.Remove(name) })
}

// Replace is fsx.FS's. It costs the syncs that it costs below.
func (f *FS) Replace(name string, data []byte, perm fs.FileMode) error {
	return f.unbind("replace", name, func() error { return f.inner.Replace(name, data, perm) })
}

func (f *FS) unbind(op, name string, perform func() error) error {
	return f.change(op, perform, func(names []string, sure bool) {
		for _, name := range names {
			if f.forget(name); !sure {
				f.share(name)
			}
		}
	}, name)
}

// change performs an operation on names. Nobody writes to their files, or syncs
// them, meanwhile, and the log has nothing of them. then books what has happened;
// where it is not sure, the operation has failed and may have had its effect.
func (f *FS) change(op string, perform func() error, then func(names []string, sure bool), names ...string) error {
	var rels []string
	for _, name := range names {
		if rel, ok := f.below(name); ok && name != "" {
			rels = append(rels, rel)
		}
	}
	f.names.Lock()
	defer f.names.Unlock()
	held, err := f.hold(rels...)
	defer release(held)
	if err != nil {
		return pathError(op, names[len(names)-1], err)
	}
	err = perform()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return err // nothing was changed
	}
	then(rels, err == nil)
	return err
}

// hold locks the nodes of files, and of all below where one is a directory, and
// makes void what the log has of them. It gives what it has locked also with an
// error. names is held.
func (f *FS) hold(rels ...string) ([]*node, error) {
	f.mu.Lock()
	var held []*node
	for name, n := range f.nodes {
		if slices.ContainsFunc(rels, func(rel string) bool { return within(name, rel) }) {
			held = append(held, n)
		}
	}
	f.mu.Unlock()
	for _, n := range held {
		n.turn.Lock() // only here several are locked, and names is held
	}
	return held, f.log.void(held)
}

func release(held []*node) {
	for _, n := range held {
		n.turn.Unlock()
	}
}

// turn is a lock that is held during I/O. It is a channel: where a test lets the disk
// take its time, those who wait for a mutex keep that time from passing.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) Lock() { t <- struct{}{} }

func (t turn) Unlock() { <-t }

// within reports that a name is another one, or below it.
func within(name, dir string) bool {
	return name == dir || len(name) > len(dir) && name[len(dir)] == '/' && strings.HasPrefix(name, dir)
}

// forget takes the file of a name out of the table: the name is another file's, or
// nobody's. Those who have it open go on with a file without a name. names and the
// nodes are held.
func (f *FS) forget(rel string) {
	delete(f.shared, rel)
	f.unname(rel)
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		if within(name, rel) {
			n.shared = true
			delete(f.nodes, name)
		}
	}
}

// unname: what is known of the names of directories is not known any more.
func (f *FS) unname(rel string) {
	for _, dirs := range []map[string]bool{f.durable, f.made} {
		for dir := range dirs {
			if within(dir, rel) {
				delete(dirs, dir)
			}
		}
	}
}

// move gives files another name. names and the nodes are held.
func (f *FS) move(old, new string) {
	f.unname(old)
	f.mu.Lock()
	defer f.mu.Unlock()
	moved := map[string]*node{}
	for name, n := range f.nodes {
		if within(name, old) {
			delete(f.nodes, name)
			n.name = new + name[len(old):]
			n.apart(0)
			n.found, n.named = false, false
			moved[n.name] = n
		}
	}
	for name, n := range moved {
		f.nodes[name] = n
	}
	// Names below a directory that has moved.
	for name := range f.shared {
		if within(name, old) {
			delete(f.shared, name)
			f.shared[new+name[len(old):]] = true
		}
	}
}

// share has a file synced by itself from now on, under whatever name. names and
// the nodes are held.
func (f *FS) share(rel string) {
	f.shared[rel] = true
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		if within(name, rel) {
			f.shared[name], n.shared = true, true
		}
	}
}

func (f *FS) isShared(rel string) bool {
	for ; rel != "."; rel = parent(rel) {
		if f.shared[rel] {
			return true
		}
	}
	return false
}

// nameDurably makes the name of a file durable: what the log has of a file can only be
// put back if it is found.
func (f *FS) nameDurably(n *node) error {
	f.names.Lock()
	defer f.names.Unlock()
	n.turn.Lock()
	name, found, done := n.name, n.found, n.named || n.shared
	n.turn.Unlock()
	if done {
		return nil
	}
	dir := parent(name)
	if !found {
		if err := f.inner.SyncDir(f.path(dir)); err != nil {
			return err
		}
	}
	for ; dir != "."; dir = parent(dir) {
		if f.durable[dir] {
			continue
		}
		if err := f.inner.SyncDir(f.path(parent(dir))); err != nil {
			return err
		}
		f.durable[dir] = true
	}
	n.turn.Lock()
	n.found, n.named = true, true
	n.turn.Unlock()
	return nil
}

func parent(rel string) string {
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		return rel[:i]
	}
	return "."
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}
