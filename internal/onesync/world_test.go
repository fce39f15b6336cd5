package onesync

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// world drives an FS with operations that a seed chooses, and knows what may be
// found after a crash: of each byte of a file its value at the last Sync that
// succeeded, or one that was written since; of each name the file that it had at
// the last SyncDir that succeeded, or one that it had since.
type world struct {
	rand   *rand.Rand
	fs     *FS
	names  map[string][]*object // possible after a crash; nil is no file
	seen   map[string]*object   // what the process sees
	open   []*handle
	nextID uint32
	// calm is a world where names and lengths rarely change, so that the log fills
	// up; namely one where names change all the time.
	calm, namely bool
}

// object is a file, whatever its names.
type object struct {
	id       string // its first bytes
	seen     []byte
	possible [][]byte // of each byte
	min, max int      // lengths
	lost     bool     // a sync has failed: no later one means anything
}

type handle struct {
	fsx.File
	of *object
}

const (
	worldRoot = "root"
	idBytes   = 6
)

// the names that files have, in three directories.
var worldNames = func() (names []string) {
	for _, dir := range []string{"root", "root/a", "root/a/b"} {
		for _, base := range []string{"x", "y", "z"} {
			names = append(names, dir+"/"+base)
		}
	}
	return names
}()

func newWorld(seed uint64) *world {
	return &world{rand: rand.New(rand.NewPCG(seed, 1)), names: map[string][]*object{}, seen: map[string]*object{}}
}

func (o *object) wrote(p []byte, off int) {
	for len(o.possible) < off+len(p) {
		o.possible = append(o.possible, []byte{0})
	}
	for len(o.seen) < off+len(p) {
		o.seen = append(o.seen, 0)
	}
	copy(o.seen[off:], p)
	for i, b := range p {
		o.possible[off+i] = append(o.possible[off+i], b)
	}
	o.max = max(o.max, len(o.seen))
}

func (o *object) truncated(size int) {
	if size < len(o.seen) {
		for i := size; i < len(o.seen); i++ {
			o.possible[i] = append(o.possible[i], 0)
		}
		o.seen = o.seen[:size]
	} else {
		o.wrote(make([]byte, size-len(o.seen)), len(o.seen))
	}
	o.min, o.max = min(o.min, size), max(o.max, size)
}

// synced: what is seen will be found.
func (o *object) synced() {
	if o.lost {
		return
	}
	o.possible = o.possible[:0]
	for _, b := range o.seen {
		o.possible = append(o.possible, []byte{b})
	}
	o.min, o.max = len(o.seen), len(o.seen)
}

// may reports that a content may be this file's after a crash.
func (o *object) may(content []byte) error {
	if len(content) < o.min || len(content) > o.max {
		return fmt.Errorf("file %x has %d bytes, and may have %d to %d", o.id, len(content), o.min, o.max)
	}
	for i, b := range content {
		if !slices.Contains(o.possible[i], b) {
			return fmt.Errorf("byte %d of file %x is %d, and may be %v", i, o.id, b, o.possible[i])
		}
	}
	return nil
}

// crashed reports that an error is the crash.
func crashed(err error) bool { return errors.Is(err, crashfs.ErrCrashed) }

// run does some operations, and ends at the crash.
func (w *world) run(ops int) error {
	for range ops {
		if err := w.step(); crashed(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) name() string { return worldNames[w.rand.IntN(len(worldNames))] }

func (w *world) step() error {
	kinds, size := 20, 100
	switch {
	case w.calm:
		kinds, size = 150, 400
	case w.namely:
		kinds = 12
	}
	if k := w.rand.IntN(kinds); len(w.open) == 0 || k == 0 {
		return w.create()
	} else if k == 1 {
		return w.dirs()
	} else if k == 2 {
		return w.rename()
	} else if k == 3 {
		return w.remove()
	} else if k == 4 {
		return w.replace()
	} else if k == 5 {
		return w.link()
	} else if k == 6 {
		return w.reopen()
	} else if k == 7 && !w.calm {
		return w.otherwise()
	}
	h := w.open[w.rand.IntN(len(w.open))]
	switch k := w.rand.IntN(12); {
	case k == 0 && !w.calm:
		size := idBytes + w.rand.IntN(len(h.of.seen)+20)
		h.of.truncated(size)
		return w.after(h.of, h.Truncate(int64(size)))
	case k <= 5:
		p, off := w.bytes(h.of, size)
		h.of.wrote(p, off)
		_, err := h.WriteAt(p, int64(off))
		return w.after(h.of, err)
	case k == 6:
		var err error
		left := 1 + w.rand.IntN(3)
		fsx.WriteSync(h.File, func() ([]byte, int64) {
			p, off := w.bytes(h.of, size)
			h.of.wrote(p, off)
			return p, int64(off)
		}, func(failed error) bool {
			if err = failed; err == nil {
				h.of.synced()
			}
			left--
			return left > 0
		})
		return w.after(h.of, err)
	default:
		err := h.Sync()
		if err == nil {
			h.of.synced()
		}
		return w.after(h.of, err)
	}
}

// otherwise uses a file in a way that is not the usual one.
func (w *world) otherwise() error {
	name := w.name()
	o := w.seen[name]
	if o == nil || len(o.seen) > 3000 {
		return nil
	}
	switch w.rand.IntN(3) {
	case 0: // at the end, where the log does not know where that is
		h, err := w.fs.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		p := []byte("appended")
		o.wrote(p, len(o.seen))
		if _, err = h.Write(p); err == nil {
			if err = h.Sync(); err == nil {
				o.synced()
			}
		}
		return errors.Join(w.after(o, err), h.Close())
	case 1: // from its beginning
		h, err := w.fs.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0)
		o.truncated(0)
		o.wrote([]byte(o.id), 0)
		if err != nil {
			return w.after(o, err)
		}
		w.open = append(w.open, &handle{h, o})
		_, err = h.WriteAt([]byte(o.id), 0)
		return w.after(o, err)
	default: // by a handle that has written nothing
		h, err := w.fs.OpenFile(name, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		if err = h.Sync(); err == nil {
			o.synced()
		}
		return errors.Join(w.after(o, err), h.Close())
	}
}

// bytes are what to write to a file, and where.
func (w *world) bytes(o *object, size int) (p []byte, off int) {
	off = len(o.seen)
	if w.rand.IntN(3) == 0 {
		off = idBytes + w.rand.IntN(off+30)
	} else if w.rand.IntN(4) == 0 {
		off = max(idBytes, off-1) // the last byte again
	} else if off > 2000 {
		off = idBytes
	}
	p = make([]byte, 1+w.rand.IntN(size))
	if w.rand.IntN(8) == 0 && !w.calm {
		p = make([]byte, 600) // more than is worth two writes
	}
	for i := range p {
		p[i] = byte(w.rand.Uint32())
	}
	return p, off
}

// after books an error of an operation on a file.
func (w *world) after(o *object, err error) error {
	if err == nil || crashed(err) {
		return err
	}
	o.lost = true
	return w.look()
}

func (w *world) create() error {
	name := w.name()
	o := w.newObject()
	h, err := w.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	w.names[name] = append(w.names[name], o)
	if err != nil {
		return w.changed(err)
	}
	w.seen[name] = o
	w.open = append(w.open, &handle{h, o})
	o.wrote([]byte(o.id), 0)
	_, err = h.WriteAt([]byte(o.id), 0)
	return w.after(o, err)
}

func (w *world) newObject() *object {
	w.nextID++
	return &object{id: fmt.Sprintf("#%05d", w.nextID)}
}

func (w *world) reopen() error {
	i := w.rand.IntN(len(w.open))
	h := w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	if err := h.Close(); err != nil {
		return err
	}
	for _, name := range worldNames {
		if o := w.seen[name]; o != nil && o == h.of {
			again, err := w.fs.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			w.open = append(w.open, &handle{again, o})
			break
		}
	}
	return nil
}

func (w *world) dirs() error {
	dir := filepath.ToSlash(filepath.Dir(w.name()))
	if err := w.fs.SyncDir(dir); err != nil {
		return w.changed(err)
	}
	for name := range w.names {
		if filepath.ToSlash(filepath.Dir(name)) == dir {
			w.names[name] = []*object{w.seen[name]}
		}
	}
	return nil
}

func (w *world) rename() error {
	a := w.name()
	b := filepath.ToSlash(filepath.Dir(a)) + "/" + []string{"x", "y", "z"}[w.rand.IntN(3)]
	o := w.seen[a]
	if o == nil || a == b {
		return nil
	}
	same := w.seen[b] == o
	w.names[b] = append(w.names[b], o)
	w.names[a] = append(w.names[a], nil)
	if err := w.fs.Rename(a, b); err != nil {
		return w.changed(err)
	}
	if !same {
		delete(w.seen, a)
		w.seen[b] = o
	}
	return nil
}

func (w *world) remove() error {
	name := w.name()
	if w.seen[name] == nil {
		return nil
	}
	w.names[name] = append(w.names[name], nil)
	if err := w.fs.Remove(name); err != nil {
		return w.changed(err)
	}
	delete(w.seen, name)
	return nil
}

func (w *world) replace() error {
	name := w.name()
	o := w.newObject()
	o.wrote([]byte(o.id+"replaced"), 0)
	o.synced()
	w.names[name] = append(w.names[name], o)
	if err := w.fs.Replace(name, o.seen, 0o644); err != nil {
		return w.changed(err)
	}
	w.seen[name] = o
	w.names[name] = []*object{o}
	return nil
}

func (w *world) link() error {
	a, b := w.name(), w.name()
	if w.seen[a] == nil || w.seen[b] != nil {
		return nil
	}
	w.names[b] = append(w.names[b], w.seen[a])
	if err := w.fs.Link(a, b); err != nil {
		return w.changed(err)
	}
	w.seen[b] = w.seen[a]
	return nil
}

// changed looks what an operation on names has done that failed.
func (w *world) changed(err error) error {
	if crashed(err) {
		return err
	}
	return w.look()
}

// look compares what the process sees with what it should see, where an error has
// not left that open, and takes over the rest.
func (w *world) look() error {
	for _, name := range worldNames {
		b, err := w.fs.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			delete(w.seen, name)
			continue
		case err != nil:
			return err
		}
		o, err := w.find(name, b)
		if err != nil {
			return err
		}
		if !o.lost && string(o.seen) != string(b) {
			return fmt.Errorf("%s is %q, and %q was written", name, b, o.seen)
		}
		o.seen = b
		w.seen[name] = o
	}
	return nil
}

// find is the file that a name has by its content.
func (w *world) find(name string, content []byte) (*object, error) {
	var why []error
	for _, o := range w.names[name] {
		if o == nil {
			continue
		}
		err := o.may(content)
		if err == nil {
			return o, nil
		}
		why = append(why, err)
	}
	return nil, fmt.Errorf("%s has %q...: %w", name, content[:min(len(content), 20)], errors.Join(why...))
}

// start begins the next life on a file system, where the last one ended by a
// crash, and checks what is found.
func (w *world) start(fsys fsx.FS) error {
	w.open = nil
	clear(w.seen)
	var err error
	if w.fs, err = Open(Config{FS: fsys, Root: worldRoot, FileBytes: minFileBytes}); err != nil {
		return err
	}
	for _, name := range worldNames {
		b, err := w.fs.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			if len(w.names[name]) > 0 && !slices.Contains(w.names[name], nil) {
				return fmt.Errorf("%s is gone", name)
			}
			continue
		}
		if err != nil {
			return err
		}
		o, err := w.find(name, b)
		if err != nil {
			return err
		}
		o.seen = b
		w.seen[name] = o
	}
	for name, o := range w.seen {
		if w.links(o) > 1 {
			continue // nobody knows of the other one now, so it is not to be written
		}
		h, err := w.fs.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		w.open = append(w.open, &handle{h, o})
	}
	slices.SortFunc(w.open, func(a, b *handle) int { return strings.Compare(a.of.id, b.of.id) })
	return nil
}

// links is how many names a file has.
func (w *world) links(o *object) (n int) {
	for _, other := range w.seen {
		if other == o {
			n++
		}
	}
	return n
}

// settle is for after a loss of power: what is found is on the disk.
func (w *world) settle() {
	for _, name := range worldNames {
		o := w.seen[name]
		w.names[name] = []*object{o}
		if o != nil {
			o.lost = false
			o.synced()
		}
	}
}
