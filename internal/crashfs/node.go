package crashfs

import (
	"math/rand/v2"
)

// node is a file or a directory as the disk has it, and what is still to be
// written of it.
type node struct {
	names  map[string]*node // of a directory, as a process sees it; nil for a file
	synced map[string]*node // of a directory: what survives
	moved  []change         // of a directory, since it was synced

	durable []byte  // of a file: what survives
	dirty   []write // of a file, since it was synced
}

// binding gives a name to a node, or to none.
type binding struct {
	name string
	node *node
}

// change is what one operation did to the names of a directory. It is found
// whole or not at all.
type change []binding

// write is one write or, where data is nil, one truncation to the length off.
type write struct {
	off  int64
	data []byte
}

func newDir() *node { return &node{names: map[string]*node{}, synced: map[string]*node{}} }

func (n *node) isDir() bool { return n.names != nil }

func (n *node) change(c ...binding) {
	change(c).apply(n.names)
	n.moved = append(n.moved, c)
}

func (c change) apply(names map[string]*node) {
	for _, b := range c {
		if b.node == nil {
			delete(names, b.name)
		} else {
			names[b.name] = b.node
		}
	}
}

func (n *node) syncNames() {
	for _, c := range n.moved {
		c.apply(n.synced)
	}
	n.moved = nil
}

func (n *node) write(off int64, data []byte) {
	n.dirty = append(n.dirty, write{off, append([]byte{}, data...)})
}

func (n *node) truncate(size int64) { n.dirty = append(n.dirty, write{off: size}) }

func (n *node) sync() {
	for _, w := range n.dirty {
		n.durable = w.apply(n.durable)
	}
	n.dirty = nil
}

// dropSome is a sync that fails: a part of what was to be written is, and none
// of the rest will ever be.
func (n *node) dropSome(r *rand.Rand) {
	n.durable = some(r).bytes(n)
	n.dirty = nil
}

func (w write) apply(b []byte) []byte {
	if w.data == nil {
		return resize(b, w.off)
	}
	if end := w.off + int64(len(w.data)); end > int64(len(b)) {
		b = resize(b, end)
	}
	copy(b[w.off:], w.data)
	return b
}

func resize(b []byte, size int64) []byte {
	if have := int64(len(b)); have < size {
		return append(b, make([]byte, size-have)...)
	}
	return append([]byte(nil), b[:size]...)
}
