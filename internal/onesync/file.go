package onesync

import (
	"io/fs"
	"sync/atomic"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

const (
	// maxName is the length of a name that fits into an entry.
	maxName = 1<<16 - 1
	// maxWritten is how many bytes of a file are written to the log by one sync,
	// where the log is large. More are worth a sync of their own, and what waits has
	// a bound.
	maxWritten = 256 << 10
)

// node is a file that is open, or that the log has something of, with all handles.
type node struct {
	// turn is held by one write or name operation at a time, during I/O, so that the
	// log has the writes in the order in which the file has them.
	turn    turn
	name    string
	found   bool   // the name is durable in its directory
	named   bool   // and the names of the directories above it are
	shared  bool   // it may have another name, or has none: always direct
	direct  bool   // the next sync is one of the file itself
	failed  error  // a sync of the file itself has failed
	written []byte // since the last sync, as entries
	low     int64  // the lowest offset of what was written since the last sync
	high    int64  // the end of what is in written
	last    *round // that has the file's last entries
	lastEnd int64  // what of it in the log is not void ends here

	// The log's mutex guards what follows.
	number uint64 // the last frame that has something of the file
	first  uint64 // the first one of which not all is durable in the file itself
	kept   *file  // the handle by which it will be; nil where all is

	handles int // the FS's mutex guards it
}

// file is an open file.
type file struct {
	fs     *FS
	inner  fsx.File
	node   *node
	name   string
	writes bool
	closed atomic.Bool
	left   bool // closed, but for inner, which the log needs; the log's mutex guards it
}

// usable is nil for a file that is not closed. The file below may be open longer.
func (h *file) usable(op string) error {
	if h.closed.Load() {
		return pathError(op, h.name, fs.ErrClosed)
	}
	return nil
}

func (h *file) Read(p []byte) (int, error) {
	if err := h.usable("read"); err != nil {
		return 0, err
	}
	return h.inner.Read(p)
}

func (h *file) ReadAt(p []byte, off int64) (int, error) {
	if err := h.usable("read"); err != nil {
		return 0, err
	}
	return h.inner.ReadAt(p, off)
}

func (h *file) Size() (int64, error) {
	if err := h.usable("stat"); err != nil {
		return 0, err
	}
	return h.inner.Size()
}

// Write leaves the next sync to the file itself: where the bytes went is not known
// here.
func (h *file) Write(p []byte) (int, error) {
	if err := h.usable("write"); err != nil {
		return 0, err
	}
	n := h.node
	n.turn.Lock()
	defer n.turn.Unlock()
	n.apart(0)
	return h.inner.Write(p)
}

func (h *file) WriteAt(p []byte, off int64) (int, error) {
	if err := h.usable("write"); err != nil {
		return 0, err
	}
	n := h.node
	n.turn.Lock()
	defer n.turn.Unlock()
	k, err := h.inner.WriteAt(p, off)
	if k > 0 {
		n.remember(p[:k], off, h.fs.log.maxWritten)
	}
	return k, err
}

// remember keeps what was written for the next sync.
func (n *node) remember(p []byte, off int64, most int) {
	if n.direct || n.shared || len(n.written)+writeSize+len(n.name)+len(p) > most {
		n.apart(off)
		return
	}
	if len(n.written) == 0 {
		n.low = off
	}
	n.low, n.high = min(n.low, off), max(n.high, off+int64(len(p)))
	n.written = appendWrite(n.written, n.name, off, p)
}

// apart leaves the next sync to the file itself, for something that was written
// from an offset on.
func (n *node) apart(off int64) {
	if len(n.written) == 0 && !n.direct {
		n.low = off
	}
	n.low = min(n.low, off)
	n.written, n.high, n.direct = nil, 0, true
}

func (h *file) Truncate(size int64) error {
	if err := h.usable("truncate"); err != nil {
		return err
	}
	n := h.node
	n.turn.Lock()
	defer n.turn.Unlock()
	if err := h.fs.log.void([]*node{n}); err != nil {
		return pathError("truncate", h.name, err)
	}
	n.apart(0)
	return h.inner.Truncate(size)
}

// Sync makes durable what was written to the file, by this handle or another one.
func (h *file) Sync() error {
	n := h.node
	for {
		if err := h.usable("sync"); err != nil {
			return err
		}
		n.turn.Lock()
		direct := n.direct || n.shared || !h.writes || n.failed != nil
		if direct {
			err := h.syncDirect()
			n.turn.Unlock()
			if err != nil {
				return pathError("sync", h.name, err)
			}
			return nil
		}
		if n.named {
			r, err := h.log()
			n.turn.Unlock()
			if err == nil && r != nil {
				h.fs.log.wait(r.done)
				err = r.err
			}
			if err != nil {
				return pathError("sync", h.name, err)
			}
			return nil
		}
		n.turn.Unlock()
		if err := h.fs.nameDurably(n); err != nil {
			return pathError("sync", h.name, err)
		}
	}
}

// log gives what was written to the log. Where nothing was, there may be a round
// that has not ended to wait for. The node is locked.
func (h *file) log() (*round, error) {
	n := h.node
	if len(n.written) == 0 {
		return n.last, h.fs.log.why()
	}
	return h.fs.log.add(h)
}

// syncDirect syncs the file itself. The node is locked.
func (h *file) syncDirect() error {
	n, log := h.node, h.fs.log
	if n.failed != nil {
		return n.failed
	}
	if err := log.why(); err != nil {
		return err
	}
	if err := h.inner.Sync(); err != nil {
		// Nobody knows what of the file is on the disk, and asking again may get a
		// wrong answer.
		n.failed = err
		log.distrust(n, err)
		return err
	}
	if n.low < n.lastEnd {
		// The log has older bytes for the same place.
		if err := log.void([]*node{n}); err != nil {
			return err
		}
	}
	n.written, n.direct, n.low, n.high = nil, false, 0, 0
	return nil
}

func (h *file) Close() error {
	if h.closed.Swap(true) {
		return pathError("close", h.name, fs.ErrClosed)
	}
	f := h.fs
	kept := f.log.leave(h)
	f.mu.Lock()
	h.node.handles--
	f.mu.Unlock()
	f.drop(h.node)
	if kept {
		return nil
	}
	return h.inner.Close()
}

// drop takes a node out of the table that nobody needs.
func (f *FS) drop(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.handles == 0 && !f.log.has(n) && f.nodes[n.name] == n {
		delete(f.nodes, n.name)
	}
}

// sweep drops what it can.
func (f *FS) sweep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		if n.handles == 0 && !f.log.has(n) {
			delete(f.nodes, name)
		}
	}
}
