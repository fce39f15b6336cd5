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
	writing *Round     // nil: what runs is about to take one
	spare   []byte     // the memory of a round that has ended
	running bool       // a goroutine is there that writes what is queued
	failed  error      // the file is not trusted any more

	writers sync.WaitGroup // run, which is one at the most
}

// Round is what goes to the file in one write.
type Round struct {
	buf   []byte
	flags uint32
	pos   int64
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
// they will be. It does no I/O: the caller may hold a lock of its own, and waits
// without it.
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
		r = &Round{flags: flags, pos: s.tail, buf: s.memory(n), done: make(chan struct{})}
		s.queue = append(s.queue, r)
		s.tail += HeaderBytes
		if !s.running {
			s.running = true
			s.writers.Go(s.run)
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

// Wait returns when r is on the disk, or failed to get there. There is no context:
// the bytes are on their way, and leaving would not call them back.
func (s *Segment) Wait(r *Round) error {
	<-r.done
	return r.err
}

// run writes what is queued, until nothing is.
func (s *Segment) run() {
	var err error
	if s.file == nil {
		err = s.create()
	}
	for again := true; again; {
		if err == nil && s.fsync && s.confirm == nil {
			fsx.WriteSync(s.file, s.take, func(failed error) bool {
				err = failed
				again = err == nil && s.written()
				return again
			})
			continue
		}
		b, pos := s.take()
		if err == nil {
			err = s.write(b, pos)
		}
		again = err == nil && s.written()
	}
	s.end(err)
}

func (s *Segment) write(b []byte, pos int64) error {
	if _, err := s.file.WriteAt(b, pos); err != nil {
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

// written is for the round that was taken last, and is on the disk. It reports
// whether there is another one.
func (s *Segment) written() (again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(nil)
	s.running = len(s.queue) > 0
	return s.running
}

// finish tells those who wait for the round that was taken last. mu is held.
func (s *Segment) finish(err error) {
	r := s.writing
	s.writing = nil
	if cap(r.buf) <= keepRound {
		s.spare = r.buf
	}
	r.buf, r.err = nil, err
	close(r.done)
}

// end is for what runs no more. Where the segment has failed, or was closed
// meanwhile, nobody needs the file.
func (s *Segment) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.running = false
		s.fail(fmt.Errorf("%s: %w", s.name, err))
		s.release()
		s.finish(err)
	case s.failed != nil && !s.running:
		s.release()
	}
}

// create makes the file.
func (s *Segment) create() error {
	f, err := s.fsys.OpenFile(s.name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.file = f
	s.mu.Unlock()
	if !s.fsync {
		return nil
	}
	return s.fsys.SyncDir(filepath.Dir(s.name))
}

// take ends the first round of the queue: nobody joins it any more. It gives what is
// to be written, and where.
func (s *Segment) take() (b []byte, pos int64) {
	s.mu.Lock()
	r := s.queue[0]
	s.queue = s.queue[1:]
	s.writing = r
	s.mu.Unlock()
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
	return r.buf, r.pos
}

// fail ends the segment: for a failed write, after which nobody knows what of the
// file is on the disk, or because it is closed. mu is held.
func (s *Segment) fail(err error) {
	if s.failed != nil {
		return
	}
	s.failed = err
	left := 0
	if s.running && s.writing == nil {
		left = 1 // about to be taken
	}
	if !s.running {
		s.release()
	}
	for _, r := range s.queue[left:] {
		r.err = err
		close(r.done)
	}
	s.queue = s.queue[:left]
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

// Close ends the segment. A round that is being written, or about to be, is finished.
func (s *Segment) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(ErrClosed)
}

// End is Close, and returns when nothing is done to the file any more: a first
// round that is about to be written makes it.
func (s *Segment) End() {
	s.Close()
	s.writers.Wait() // no more of them: Add fails
}

// release gives the handle back. mu is held and nothing runs.
func (s *Segment) release() {
	if s.file != nil {
		_ = s.file.Close() // promises nothing about the data: Sync did
		s.file = nil
	}
}
