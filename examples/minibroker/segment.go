package minibroker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// A segment is an append-only file. What several callers add while a write is
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
type segment struct {
	fsys  fsx.FS
	name  string
	fsync bool

	mu      sync.Mutex // never held during I/O
	file    fsx.File   // nil until the first round is written
	tail    int64      // end of the rounds written and queued
	queue   []*round   // not being written yet, oldest first
	leading bool       // somebody writes, or has the token to
	writing bool       // somebody writes
	failed  error      // the file is not trusted any more
}

// round is what goes to the file in one write.
type round struct {
	buf  []byte
	pos  int64
	lead chan struct{} // one token: who takes it writes the round
	done chan struct{} // closed when err is set
	err  error         // set before done is closed
}

const (
	roundHeader = 28
	roundMagic  = "kxR1"
	// flagClean: all that is before the round was synced when it was written.
	// Without it (fsync never) a loss of power may have torn earlier rounds and
	// kept later ones.
	flagClean = 1
	// maxRound is the size at which a round takes no more callers.
	maxRound = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// damageError is a file whose middle can't be read.
type damageError struct {
	file   string
	offset int64
	reason string
}

func (e *damageError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d (%s), and later data in it is not: nothing is cut off there; restore the file, or move it away and lose what it holds", e.file, e.offset, e.reason)
}

// openSegment reads a segment and hands each round's payload, with its place in
// the file, to visit; the payload is visit's only for the call. A missing file is an empty segment
// and is created by the first round. A torn tail is cut off.
func openSegment(fsys fsx.FS, name string, fsync bool, visit func(pos int64, payload []byte) error) (*segment, error) {
	s := newSegment(fsys, name, fsync)
	f, err := fsys.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.file = f
	if err := s.recover(visit); err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

// newSegment is a segment whose file is not there yet.
func newSegment(fsys fsx.FS, name string, fsync bool) *segment {
	return &segment{fsys: fsys, name: name, fsync: fsync}
}

func (s *segment) recover(visit func(pos int64, payload []byte) error) error {
	size, err := s.file.Size()
	if err != nil {
		return err
	}
	var buf []byte
	for s.tail < size {
		var reason string
		buf, reason, err = s.readRound(s.tail, size, buf)
		if err != nil {
			return err
		}
		if reason != "" {
			if err := s.cut(size, reason); err != nil {
				return err
			}
			break
		}
		if err := visit(s.tail+roundHeader, buf); err != nil {
			return fmt.Errorf("%s, round at byte %d: %w", s.name, s.tail, err)
		}
		s.tail += roundHeader + int64(len(buf))
	}
	if size == 0 || !s.fsync {
		return nil
	}
	// What is read from here on must not vanish any more, and a process that was
	// killed may have left it unsynced.
	return s.file.Sync()
}

// readRound is the payload of the round at pos, in buf's memory, or the reason
// why there is none.
func (s *segment) readRound(pos, size int64, buf []byte) (payload []byte, reason string, err error) {
	if size-pos < roundHeader {
		return buf, "a header that ends early", nil
	}
	var h [roundHeader]byte
	if _, err := s.file.ReadAt(h[:], pos); err != nil {
		return buf, "", err
	}
	n, ok := parseRoundHeader(h[:], pos)
	switch {
	case !ok:
		return buf, "not a header", nil
	case int64(n) > size-pos-roundHeader:
		return buf, "a round that ends early", nil
	}
	if uint32(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := s.file.ReadAt(buf, pos+roundHeader); err != nil {
		return buf, "", err
	}
	if crc32.Checksum(buf, castagnoli) != binary.BigEndian.Uint32(h[20:]) {
		return buf, "checksum", nil
	}
	return buf, "", nil
}

// parseRoundHeader is the length of the payload of the round with header h at
// pos.
func parseRoundHeader(h []byte, pos int64) (n uint32, ok bool) {
	ok = string(h[:4]) == roundMagic && binary.BigEndian.Uint64(h[8:]) == uint64(pos) &&
		crc32.Checksum(h[:24], castagnoli) == binary.BigEndian.Uint32(h[24:])
	return binary.BigEndian.Uint32(h[16:]), ok
}

// cut removes a torn tail, after a look whether it is one.
func (s *segment) cut(size int64, reason string) error {
	const window = 1 << 20
	buf := make([]byte, window)
	for pos := s.tail + 1; pos+roundHeader <= size; {
		b := buf[:min(window, size-pos)]
		if _, err := s.file.ReadAt(b, pos); err != nil {
			return err
		}
		for i := 0; ; i++ {
			k := bytes.Index(b[i:], []byte(roundMagic))
			if k < 0 || i+k+roundHeader > len(b) {
				break
			}
			i += k
			if _, ok := parseRoundHeader(b[i:i+roundHeader], pos+int64(i)); ok && binary.BigEndian.Uint32(b[i+4:])&flagClean != 0 {
				return &damageError{s.name, s.tail, reason}
			}
		}
		if int64(len(b)) == size-pos {
			break
		}
		pos += int64(len(b)) - roundHeader + 1
	}
	return s.file.Truncate(s.tail)
}

// add queues parts, one after the other, and returns the place in the file where
// they will be. It does no I/O: the caller may hold a lock of its own, and calls
// wait without it.
func (s *segment) add(parts ...[]byte) (pos int64, r *round, err error) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return 0, nil, s.failed
	}
	if k := len(s.queue); k > 0 && len(s.queue[k-1].buf)+n <= maxRound {
		r = s.queue[k-1]
	} else {
		r = &round{pos: s.tail, buf: make([]byte, roundHeader, roundHeader+n), lead: make(chan struct{}, 1), done: make(chan struct{})}
		s.queue = append(s.queue, r)
		s.tail += roundHeader
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

// wait returns when r is on the disk, or failed to get there. Everybody who added
// to a round must call it: one of them does the writing. There is no context: the
// bytes are on their way, and leaving would not call them back.
func (s *segment) wait(r *round) error {
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

func (s *segment) write(r *round) error {
	h := r.buf[:roundHeader]
	payload := r.buf[roundHeader:]
	copy(h, roundMagic)
	if s.fsync {
		binary.BigEndian.PutUint32(h[4:], flagClean)
	}
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
	if !s.fsync {
		return nil
	}
	return s.file.Sync()
}

// fail ends the segment: for a failed write, after which nobody knows what of the
// file is on the disk, or because it is closed. mu is held.
func (s *segment) fail(err error) {
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

// readAt fills b from pos, where rounds have been written.
func (s *segment) readAt(b []byte, pos int64) error {
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

var errSegmentClosed = errors.New("closed")

// close ends the segment. A round that is being written is finished.
func (s *segment) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(errSegmentClosed)
}

// release gives the handle back. mu is held and nobody writes.
func (s *segment) release() {
	if s.file != nil {
		_ = s.file.Close() // promises nothing about the data: Sync did
		s.file = nil
	}
}
