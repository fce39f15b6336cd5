package onesync

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

const (
	// A file of the log that is too short is doubled, by so much at least and at
	// most. Later generations find the bytes there.
	minGrowth = 64 << 10
	maxGrowth = 1 << 20
	// A round takes no more than four times what a file may have in it, and a file
	// of the log has room for two such rounds.
	roundWrites, fileRounds = 4, 2
	minFileBytes            = 4096
)

var logNames = [2]string{"sync.0.log", "sync.1.log"}

// round is what goes to the log in one write.
type round struct {
	frame  []byte
	late   []*late // writes that are made when it begins
	number uint64
	void   uint64        // the frames below this one are void with it
	done   chan struct{} // closed when err is set
	err    error         // set before done is closed
}

// log is the log of an FS.
type log struct {
	fs         *FS
	size       int64 // that a file has at most
	maxWritten int   // bytes of a file in one sync

	// Only who leads uses these.
	files  [2]fsx.File // nil: not there yet
	grown  [2]int64    // bytes that are there
	now    int         // the file that is written
	header header      // of that
	pos    int64       // where the next frame goes
	spare  []byte      // memory of a round that has ended

	// lead holds one token, while something is queued and nobody writes: who takes
	// it writes.
	lead chan struct{}

	// checking is held by one checkpoint at a time, during I/O.
	checking turn
	work     sync.WaitGroup

	mu      sync.Mutex // never held during I/O
	moved   sync.Cond  // from has moved, or failed is set
	from    uint64     // the bytes of all frames below are durable where they belong
	voided  uint64     // and the log says of those below this one that they are void
	next    uint64     // number of the next round
	queue   []*round   // not being written yet, oldest first
	last    *round     // the last of all
	leading bool       // somebody writes, or has the token to
	failed  error
	closed  bool
	dirty   map[*node]struct{} // of which frames from there on have something
}

func (l *log) path(i int) string { return filepath.Join(l.fs.root, logNames[i]) }

// why is why nothing can be synced, nil where it can.
func (l *log) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// fail ends all trust. What is in the log is what the next Open has.
func (l *log) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(err)
}

func (l *log) failLocked(err error) {
	if l.failed != nil {
		return
	}
	l.failed = fmt.Errorf("nothing is synced until %s is opened again: %w", l.fs.root, err)
	for _, r := range l.queue {
		r.err = l.failed
		close(r.done)
		for _, w := range r.late {
			w.file.node.turn.Unlock()
			close(w.over)
		}
	}
	l.queue = nil
	l.moved.Broadcast()
}

// add puts what was written to a file at the end of the log that is to be. The node
// is locked.
func (l *log) add(h *file) (*round, error) {
	n := h.node
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fs.ErrClosed
	}
	r, err := l.addLocked(n.written)
	if err != nil {
		return nil, err
	}
	l.book(h, r)
	return r, nil
}

// book keeps the books of what was written to a file, which a round has now. The
// node is locked, and so is the log.
func (l *log) book(h *file, r *round) {
	n := h.node
	if n.number < l.voided {
		n.lastEnd = 0
	}
	if _, ok := l.dirty[n]; !ok {
		l.dirty[n] = struct{}{}
		n.first, n.kept = r.number, h
	}
	n.number = r.number
	n.last, n.lastEnd = r, max(n.lastEnd, n.high)
	n.high = 0
	if n.written = n.written[:0]; cap(n.written) > 64<<10 {
		n.written = nil
	}
}

func (l *log) addLocked(entries []byte) (*round, error) {
	if l.failed != nil {
		return nil, l.failed
	}
	if k := len(l.queue); k > 0 && len(l.queue[k-1].frame)+len(entries) <= roundWrites*l.maxWritten {
		r := l.queue[k-1]
		r.frame = append(r.frame, entries...)
		return r, nil
	}
	r := &round{number: l.next, done: make(chan struct{})}
	if l.spare != nil {
		r.frame, l.spare = l.spare, nil
	} else {
		r.frame = make([]byte, frameHeader, max(4096, frameHeader+len(entries)))
	}
	r.frame = append(r.frame[:frameHeader], entries...)
	l.next++
	l.queue, l.last = append(l.queue, r), r
	if !l.leading {
		l.leading = true
		l.lead <- struct{}{}
	}
	return r, nil
}

// wait returns when done is closed: a round that the caller has added to, or a late
// write of the caller's, has come to its end. Everybody who added something must
// call it: one of them does the writing, until it is done itself.
func (l *log) wait(done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-l.lead:
	}
	for l.writeNext() {
		select {
		case <-done:
			l.lead <- struct{}{}
			return
		default:
		}
	}
}

// writeNext makes the next round durable, and reports whether there is another one.
// The caller leads.
func (l *log) writeNext() (more bool) {
	// Those who are about to add something go first.
	runtime.Gosched()
	l.mu.Lock()
	if l.failed != nil {
		l.mu.Unlock()
		return false
	}
	r := l.queue[0]
	l.queue = l.queue[1:] // nobody joins it now
	l.mu.Unlock()

	l.writeLate(r)
	err := l.write(r)

	l.mu.Lock()
	if err != nil {
		l.failLocked(err)
	}
	if r.err = l.failed; r.err == nil {
		l.voided = max(l.voided, r.void)
	}
	if r.err == nil && cap(r.frame) <= 64<<10 {
		l.spare = r.frame
	}
	r.frame = nil
	l.mu.Unlock()
	close(r.done)
	l.tellLate(r)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading = len(l.queue) > 0
	return l.leading
}

// write makes a round durable. The caller leads.
func (l *log) write(r *round) error {
	if l.pos+int64(len(r.frame)) > l.size {
		if err := l.turn(r.number); err != nil {
			return err
		}
	}
	end := l.pos + int64(len(r.frame))
	if err := l.grow(end); err != nil {
		return err
	}
	sealFrame(r.frame, l.header.salt, r.number)
	f := l.files[l.now]
	if _, err := f.WriteAt(r.frame, l.pos); err != nil {
		return err
	}
	if err := fsx.SyncData(f); err != nil {
		return err
	}
	l.pos = end
	return nil
}

// grow has the present file filled with zeros up to an offset, and further. They
// are synced with the frame.
func (l *log) grow(end int64) error {
	if have := l.grown[l.now]; have < end {
		to := min(end+min(max(have, minGrowth), maxGrowth), l.size)
		if _, err := l.files[l.now].WriteAt(make([]byte, to-have), have); err != nil {
			return err
		}
		l.grown[l.now] = to
	}
	return nil
}

// turn begins the other file with a frame, as soon as nothing in it is needed any
// more. The caller leads.
func (l *log) turn(number uint64) error {
	l.mu.Lock()
	for l.failed == nil && l.from < l.header.first {
		l.moved.Wait()
	}
	from, err := l.from, l.failed
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.begin(1-l.now, number, from); err != nil {
		return err
	}
	l.mu.Lock()
	l.voided = max(l.voided, from)
	l.mu.Unlock()
	l.fs.sweep()
	l.work.Go(func() {
		_ = l.checkpoint(number) // a failure ends all syncs
	})
	return nil
}

// begin makes a file of the log the one that is written.
func (l *log) begin(i int, first, from uint64) error {
	if l.files[i] == nil {
		f, err := l.fs.inner.OpenFile(l.path(i), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		l.files[i] = f
		if l.grown[i], err = f.Size(); err != nil {
			return err
		}
		if err := l.fs.inner.SyncDir(l.fs.root); err != nil {
			return err
		}
	}
	var salt [8]byte
	_, _ = rand.Read(salt[:]) // never fails
	h := header{generation: l.header.generation + 1, salt: binary.BigEndian.Uint64(salt[:]), first: first, from: from}
	sector := make([]byte, framesAt)
	copy(sector, h.append(nil))
	if _, err := l.files[i].WriteAt(sector, 0); err != nil {
		return err
	}
	if err := l.files[i].Sync(); err != nil {
		return err
	}
	l.now, l.header, l.pos, l.grown[i] = i, h, framesAt, max(l.grown[i], framesAt)
	return nil
}

// has reports whether the log has something of a file that is not void: it may be
// written to the file by the next Open.
func (l *log) has(n *node) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.number >= l.voided
}

// distrust: a sync of the file itself has failed. If it was to put there what only
// the log has, no later sync of the file can tell whether it is.
func (l *log) distrust(n *node, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.dirty[n]; ok {
		l.failLocked(err)
	}
}

// leave reports whether the log needs a handle that its owner has closed; it closes
// it then when it does not any more.
func (l *log) leave(h *file) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.left = h.node.kept == h
	return h.left
}

// checkpoint syncs all files of which frames below a number have something, so that
// these frames are not needed any more.
func (l *log) checkpoint(number uint64) error {
	left, err := l.settle(number)
	for _, h := range left {
		_ = h.inner.Close() // all in it is synced
		l.fs.drop(h.node)
	}
	return err
}

func (l *log) settle(number uint64) (left []*file, err error) {
	l.checking.Lock()
	defer l.checking.Unlock()
	l.mu.Lock()
	if l.failed != nil || l.from >= number {
		defer l.mu.Unlock()
		return nil, l.failed
	}
	var due []*node
	for n := range l.dirty {
		if n.first < number {
			due = append(due, n)
		}
	}
	l.mu.Unlock()
	for _, n := range due {
		if err := n.kept.inner.Sync(); err != nil {
			l.fail(err)
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range due {
		if n.number >= number {
			n.first = number
			continue
		}
		delete(l.dirty, n)
		if n.kept.left {
			left = append(left, n.kept)
		}
		n.kept = nil
	}
	l.from = number
	l.moved.Broadcast()
	return left, nil
}

// void takes what the log has of files out of it, durably. They are locked.
func (l *log) void(nodes []*node) error {
	number := uint64(0)
	for _, n := range nodes {
		if l.has(n) {
			<-n.last.done // its frame is the last one of the file, as long as that is locked
			number = max(number, n.last.number+1)
		}
	}
	return l.voidBelow(number)
}

func (l *log) voidBelow(number uint64) error {
	l.mu.Lock()
	done := number <= l.voided
	l.mu.Unlock()
	if done {
		return nil
	}
	if err := l.checkpoint(number); err != nil {
		return err
	}
	l.mu.Lock()
	r, err := l.addLocked(appendVoid(nil, number))
	if err == nil {
		r.void = max(r.void, number)
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	l.wait(r.done)
	return r.err
}

// close ends the log. Nobody uses the files any more.
func (l *log) close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fs.ErrClosed
	}
	l.closed = true
	last, number := l.last, l.next
	l.mu.Unlock()
	if last != nil {
		<-last.done
	}
	err := l.voidBelow(number)
	l.fail(fs.ErrClosed)
	l.work.Wait()
	l.mu.Lock()
	var left []*file
	for n := range l.dirty {
		if n.kept.left {
			left = append(left, n.kept)
		}
	}
	clear(l.dirty)
	l.mu.Unlock()
	for _, h := range left {
		err = errors.Join(err, h.inner.Close())
	}
	for _, f := range l.files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
