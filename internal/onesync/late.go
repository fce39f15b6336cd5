package onesync

import "io/fs"

// late is a write that is made when the round begins that it is in; and once more in
// the next one, as long as its owner wants that.
type late struct {
	file *file
	take func() (p []byte, off int64)
	done func(error) (again bool)
	over chan struct{} // closed when it is in no round any more

	// Of the round that it is in, or was in last.
	taken  bool  // take was called
	told   bool  // done was called, and gave
	again  bool  // this
	direct bool  // the sync is one of the file itself
	err    error // why there is none
}

// WriteSync is fsx.WriteSync's.
func (h *file) WriteSync(take func() (p []byte, off int64), done func(error) (again bool)) {
	n, l := h.node, h.fs.log
	for {
		n.turn.Lock()
		w := &late{file: h, take: take, done: done, over: make(chan struct{})}
		if h.mayWait() && l.addLate(w) == nil {
			l.wait(w.over)
		} else {
			n.turn.Unlock()
		}
		if !w.told {
			w.again = w.finish()
		}
		if !w.again {
			return
		}
	}
}

// mayWait reports whether the next sync need not be one of the file itself. The
// node is locked.
func (h *file) mayWait() bool {
	n := h.node
	return !h.closed.Load() && h.writes && n.named && !n.direct && !n.shared && n.failed == nil
}

// finish does what is left of a late write that the log has not brought to its end.
func (w *late) finish() (again bool) {
	if !w.taken {
		_, w.err = w.file.WriteAt(w.take())
	}
	if w.err == nil {
		w.err = w.file.Sync()
	}
	again = w.done(w.err)
	return again && w.err == nil
}

// addLate puts a late write into the round that comes next. The node is locked, and
// stays so until the write is made.
func (l *log) addLate(w *late) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fs.ErrClosed
	}
	r, err := l.addLocked(nil)
	if err != nil {
		return err
	}
	w.taken, w.told, w.direct = false, false, false
	r.late = append(r.late, w)
	return nil
}

// writeLate makes the late writes of a round. The caller leads, and nobody joins
// the round any more.
func (l *log) writeLate(r *round) {
	for _, w := range r.late {
		h, n := w.file, w.file.node
		p, off := w.take()
		w.taken = true
		k, err := h.inner.WriteAt(p, off)
		if w.err = err; k > 0 {
			n.remember(p[:k], off, l.maxWritten)
		}
		if !n.direct && len(r.frame)+len(n.written) > roundWrites*l.maxWritten {
			n.apart(off)
		}
		if w.direct = n.direct; err == nil && !n.direct {
			r.frame = append(r.frame, n.written...)
			l.mu.Lock()
			l.book(h, r)
			l.mu.Unlock()
		}
		n.turn.Unlock()
	}
}

// tellLate tells the owners of the late writes of a round. The caller leads.
func (l *log) tellLate(r *round) {
	for _, w := range r.late {
		if w.err == nil && !w.direct {
			w.err, w.told = r.err, true
			w.again = w.done(r.err) && r.err == nil
			if w.again && l.onceMore(w) {
				continue
			}
		}
		close(w.over)
	}
}

// onceMore puts a late write into the next round, where nothing stands in the way.
func (l *log) onceMore(w *late) bool {
	n := w.file.node
	select {
	case n.turn <- struct{}{}:
	default:
		return false // the owner waits for it
	}
	if w.file.mayWait() && l.addLate(w) == nil {
		return true
	}
	n.turn.Unlock()
	return false
}
