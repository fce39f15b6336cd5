// Package segment is the append-only file that the example broker keeps records
// in.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Segment is an append-only file. What several callers add while a write is
// under way becomes one round, written and synced at once, so that they share a
// sync. Rounds follow one another:
//
//	magic "kxR1" | flags u32 | position u64 | payload length u32 | payload CRC-32C u32 | header CRC-32C u32 | payload
//
// A round is written only after the sync of the one before has succeeded. So
// the last round is the only one that a crash can tear; a damaged round that a
// later one follows was on the disk undamaged once, which is reported and never
// cut. The position in the header keeps a payload that looks like a header from
// being taken for one.
type Segment struct {
	fsys  fsx.FS
	name  string
	fsync bool
	// confirm is asked when a round is on the disk, and an error fails the round
	// and the segment; nil is yes.
	confirm func() error

	mu      sync.Mutex // never held during I/O
	file    fsx.File   // nil until the first round is written
	tail    int64      // end of the rounds written and queued
	queue   []*Round   // not being written yet, oldest first
	spare   []byte     // the memory of a round that has ended
	leading bool       // somebody writes, or has the token to
	writing bool       // somebody writes
	failed  error      // the file is not trusted any more
}

// Round is what goes to the file in one write.
type Round struct {
	buf   []byte
	flags uint32
	pos   int64
	lead  chan struct{} // one token: who takes it writes the round
	done  chan struct{} // closed when err is set
	err   error         // set before done is closed
}

// HeaderBytes is what a round has before its payload.
const HeaderBytes = 28

const (
	roundMagic = "kxR1"
	// flagClean: all that is before the round was synced when it was written.
	// Without it (fsync never) a loss of power may have torn earlier rounds and
	// kept later ones.
	flagClean = 1 << 0
	// flagReset: nothing before the round counts any more.
	flagReset = 1 << 1
	// maxRound is the size at which a round takes no more callers.
	maxRound = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// New is a segment whose file is not there yet.
func New(fsys fsx.FS, name string, fsync bool) *Segment {
	return &Segment{fsys: fsys, name: name, fsync: fsync}
}

// Confirmed is an empty segment in a file that is there, and empty, and the
// segment's from now on. confirm has a last word about each round: it is called
// when the round is on the disk, and before anybody is told. An error fails the
// round and the segment: nothing is written after it.
func Confirmed(fsys fsx.FS, name string, f fsx.File, fsync bool, confirm func() error) *Segment {
	s := New(fsys, name, fsync)
	s.file, s.confirm = f, confirm
	return s
}

// Add queues parts, one after the other, and returns the place in the file where
// they will be. It does no I/O: the caller may hold a lock of its own, and calls
// wait without it.
func (s *Segment) Add(parts ...[]byte) (pos int64, r *Round, err error) { return s.add(0, parts) }

// Reset is Add for a round from which on the segment counts: what is before it,
// in this segment and in those that it goes on from, does not any more.
func (s *Segment) Reset(parts ...[]byte) (pos int64, r *Round, err error) {
	return s.add(flagReset, parts)
}

func (s *Segment) add(flags uint32, parts [][]byte) (pos int64, r *Round, err error) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return 0, nil, s.failed
	}
	if k := len(s.queue); k > 0 && flags == 0 && len(s.queue[k-1].buf)+n <= maxRound {
		r = s.queue[k-1]
	} else {
		r = &Round{flags: flags, pos: s.tail, buf: s.memory(n), lead: make(chan struct{}, 1), done: make(chan struct{})}
		s.queue = append(s.queue, r)
		s.tail += HeaderBytes
		if !s.leading {
			s.leading = true
			r.lead <- struct{}{}
		}
	}
	pos = s.tail
	for _, p := range parts {
		r.buf = append(r.buf, p...)
	}
	s.tail += int64(n)
	return pos, r, nil
}

// keepRound is how much memory of a round is kept for the next.
const keepRound = 256 << 10

// memory is that of a new round. mu is held.
func (s *Segment) memory(n int) []byte {
	if b := s.spare; b != nil {
		s.spare = nil
		return b[:HeaderBytes]
	}
	return make([]byte, HeaderBytes, HeaderBytes+n)
}

// Wait returns when r is on the disk, or failed to get there. Everybody who added
// to a round must call it: one of them does the writing. There is no context: the
// bytes are on their way, and leaving would not call them back.
func (s *Segment) Wait(r *Round) error {
	select {
	case <-r.done:
		return r.err
	case <-r.lead:
	}
	s.mu.Lock()
	if s.failed != nil {
		s.mu.Unlock()
		<-r.done
		return r.err
	}
	s.queue = s.queue[1:] // r: nobody joins it now
	s.writing = true
	s.mu.Unlock()

	err := s.write(r)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	r.err = err
	if cap(r.buf) <= keepRound {
		s.spare = r.buf
	}
	r.buf = nil
	close(r.done)
	switch {
	case s.failed != nil:
		s.release() // closed meanwhile
	case err != nil:
		s.fail(fmt.Errorf("%s: %w", s.name, err))
	case len(s.queue) > 0:
		s.queue[0].lead <- struct{}{}
	default:
		s.leading = false
	}
	return err
}

func (s *Segment) write(r *Round) error {
	h := r.buf[:HeaderBytes]
	payload := r.buf[HeaderBytes:]
	copy(h, roundMagic)
	flags := r.flags
	if s.fsync {
		flags |= flagClean
	}
	binary.BigEndian.PutUint32(h[4:], flags)
	binary.BigEndian.PutUint64(h[8:], uint64(r.pos))
	binary.BigEndian.PutUint32(h[16:], uint32(len(payload)))
	binary.BigEndian.PutUint32(h[20:], crc32.Checksum(payload, castagnoli))
	binary.BigEndian.PutUint32(h[24:], crc32.Checksum(h[:24], castagnoli))
	if s.file == nil {
		f, err := s.fsys.OpenFile(s.name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.file = f
		s.mu.Unlock()
		if s.fsync {
			if err := s.fsys.SyncDir(filepath.Dir(s.name)); err != nil {
				return err
			}
		}
	}
	if _, err := s.file.WriteAt(r.buf, r.pos); err != nil {
		return err
	}
	if s.fsync {
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	if s.confirm != nil {
		return s.confirm()
	}
	return nil
}

// fail ends the segment: for a failed write, after which nobody knows what of the
// file is on the disk, or because it is closed. mu is held.
func (s *Segment) fail(err error) {
	if s.failed != nil {
		return
	}
	s.failed = err
	for _, r := range s.queue {
		r.err = err
		close(r.done)
	}
	s.queue = nil
	if !s.writing {
		s.release()
	}
}

// ReadAt fills b from pos, where rounds have been written.
func (s *Segment) ReadAt(b []byte, pos int64) error {
	s.mu.Lock()
	f, failed := s.file, s.failed
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	if f == nil {
		return fmt.Errorf("%s: nothing is written", s.name)
	}
	_, err := f.ReadAt(b, pos)
	return err
}

// ErrClosed is what calls after Close fail with.
var ErrClosed = errors.New("closed")

// Close ends the segment. A round that is being written is finished.
func (s *Segment) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(ErrClosed)
}

// release gives the handle back. mu is held and nobody writes.
func (s *Segment) release() {
	if s.file != nil {
		_ = s.file.Close() // promises nothing about the data: Sync did
		s.file = nil
	}
}
