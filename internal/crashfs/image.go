package crashfs

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
)

// sector is how much of a write reaches the disk in one piece at least.
const sector = 512

// Image is what the next process finds when the power fails now: a new file
// system that has all that was synced, and of the rest what the seed chooses.
// The first three seeds are the plain cases: 0 nothing of the rest, 1 all of it,
// 2 all files' and directories' changes in order up to some point. The original
// stays as it is, so that one crash has many images.
func (f *FS) Image(seed uint64) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	var s survivors
	switch r := newRand(seed); seed {
	case 0:
		s = none
	case 1:
		s = all
	case 2:
		s = prefix(r)
	default:
		s = some(r)
	}
	next := New(seed)
	next.root = next.build(f.root, "/", s, map[*node]built{})
	return next
}

// survivors choose what a loss of power leaves.
type survivors struct {
	bytes func(n *node) []byte
	names func(n *node) map[string]*node
}

// built is where a node of the old file system is in the new one.
type built struct {
	name string
	node *node
}

// build makes a node and all below it in an empty file system, durable. made
// has what is there already: a file may have several names. So may a directory
// whose move from one to another was found half done, and keeps one of them.
func (f *FS) build(n *node, name string, s survivors, made map[*node]built) *node {
	if !n.isDir() {
		b := s.bytes(n)
		f.put(name, b)
		c := &node{durable: b}
		made[n] = built{name, c}
		return c
	}
	d := newDir()
	made[n] = built{name, d}
	must(f.live.MkdirAll(name, 0o755))
	names := s.names(n)
	for _, base := range slices.Sorted(maps.Keys(names)) {
		child, path := names[base], name+"/"+base
		first, again := made[child]
		switch {
		case !again:
			d.names[base] = f.build(child, path, s, made)
		case !child.isDir():
			must(f.live.Link(first.name, path))
			d.names[base] = first.node
		}
	}
	d.synced = maps.Clone(d.names)
	return d
}

func (f *FS) put(name string, b []byte) {
	file, err := f.live.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	must(err)
	_, err = file.Write(b)
	must(err)
	must(file.Close())
}

// must is for operations in a fresh file system in memory, which can't fail
// unless this package is wrong.
func must(err error) {
	if err != nil {
		panic("crashfs: " + err.Error())
	}
}

var none = survivors{
	bytes: func(n *node) []byte { return slices.Clone(n.durable) },
	names: func(n *node) map[string]*node { return n.synced },
}

var all = survivors{
	bytes: func(n *node) []byte { return n.surviving(n.dirty) },
	names: func(n *node) map[string]*node { return n.names },
}

func (n *node) surviving(writes []write) []byte {
	b := slices.Clone(n.durable)
	for _, w := range writes {
		b = w.apply(b)
	}
	return b
}

// prefix keeps of each file and directory what was done to it up to some
// operation, of which a file may have a part.
func prefix(r *rand.Rand) survivors {
	return survivors{
		bytes: func(n *node) []byte {
			k := r.IntN(len(n.dirty) + 1)
			b := n.surviving(n.dirty[:k])
			if k < len(n.dirty) {
				w := n.dirty[k]
				if w.data != nil {
					w.data = w.data[:r.IntN(len(w.data)+1)]
					b = w.apply(b)
				}
			}
			return b
		},
		names: func(n *node) map[string]*node {
			names := maps.Clone(n.synced)
			for _, c := range n.moved[:r.IntN(len(n.moved)+1)] {
				c.apply(names)
			}
			return names
		},
	}
}

// some keeps each change of a directory, and each sector of a write, or not.
func some(r *rand.Rand) survivors {
	chance := r.Float64()
	keep := func() bool { return r.Float64() < chance }
	return survivors{
		bytes: func(n *node) []byte {
			b := slices.Clone(n.durable)
			for _, w := range n.dirty {
				if w.data == nil {
					if keep() {
						b = w.apply(b)
					}
					continue
				}
				for _, piece := range w.sectors() {
					if keep() {
						b = piece.apply(b)
					}
				}
			}
			// The length is kept elsewhere than the bytes and may be further.
			if seen := n.surviving(n.dirty); len(seen) > len(b) && r.IntN(4) == 0 {
				b = resize(b, int64(len(seen)))
			}
			return b
		},
		names: func(n *node) map[string]*node {
			names := maps.Clone(n.synced)
			for _, c := range n.moved {
				if keep() {
					c.apply(names)
				}
			}
			return names
		},
	}
}

// sectors splits a write where sectors of the file begin.
func (w write) sectors() []write {
	var out []write
	for len(w.data) > 0 {
		n := min(int64(len(w.data)), sector-w.off%sector)
		out = append(out, write{w.off, w.data[:n]})
		w = write{w.off + n, w.data[n:]}
	}
	return out
}

// AfterKill is what the next process finds when this one is killed now and the
// power stays on: all that it saw, and what was not synced is still not. The
// original is not to be used any more.
func (f *FS) AfterKill() *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
	next := New(f.rand.Uint64())
	next.capacity = f.capacity
	copies := map[*node]*node{}
	next.root = f.root.clone(copies)
	f.copyLive(f.root, "/", next, map[*node]string{})
	return next
}

func (n *node) clone(copies map[*node]*node) *node {
	if n == nil {
		return nil
	}
	if c, ok := copies[n]; ok {
		return c
	}
	c := &node{durable: slices.Clone(n.durable), dirty: slices.Clone(n.dirty)}
	copies[n] = c
	if !n.isDir() {
		return c
	}
	c.names, c.synced = map[string]*node{}, map[string]*node{}
	for name, child := range n.names {
		c.names[name] = child.clone(copies)
	}
	for name, child := range n.synced {
		c.synced[name] = child.clone(copies)
	}
	for _, ch := range n.moved {
		var moved change
		for _, b := range ch {
			moved = append(moved, binding{b.name, b.node.clone(copies)})
		}
		c.moved = append(c.moved, moved)
	}
	return c
}

// copyLive gives next the content that this process sees.
func (f *FS) copyLive(n *node, name string, next *FS, made map[*node]string) {
	if !n.isDir() {
		if first, ok := made[n]; ok {
			must(next.live.Link(first, name))
			return
		}
		made[n] = name
		b, err := f.live.ReadFile(name)
		must(err)
		next.put(name, b)
		return
	}
	must(next.live.MkdirAll(name, 0o755))
	for base, c := range n.names {
		f.copyLive(c, name+"/"+base, next, made)
	}
}
