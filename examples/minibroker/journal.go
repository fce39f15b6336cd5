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

// A journal is an append-only file. What several callers add while a write is
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
type journal struct {
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

// openJournal reads a journal and hands each round's payload, with its place in
// the file, to visit; the payload is visit's only for the call. A missing file is an empty journal
// and is created by the first round. A torn tail is cut off.
func openJournal(fsys fsx.FS, name string, fsync bool, visit func(pos int64, payload []byte) error) (*journal, error) {
	j := newJournal(fsys, name, fsync)
	f, err := fsys.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return nil, err
	}
	j.file = f
	if err := j.recover(visit); err != nil {
		_ = f.Close()
		return nil, err
	}
	return j, nil
}

// newJournal is a journal whose file is not there yet.
func newJournal(fsys fsx.FS, name string, fsync bool) *journal {
	return &journal{fsys: fsys, name: name, fsync: fsync}
}

func (j *journal) recover(visit func(pos int64, payload []byte) error) error {
	size, err := j.file.Size()
	if err != nil {
		return err
	}
	var buf []byte
	for j.tail < size {
		var reason string
		buf, reason, err = j.readRound(j.tail, size, buf)
		if err != nil {
			return err
		}
		if reason != "" {
			if err := j.cut(size, reason); err != nil {
				return err
			}
			break
		}
		if err := visit(j.tail+roundHeader, buf); err != nil {
			return fmt.Errorf("%s, round at byte %d: %w", j.name, j.tail, err)
		}
		j.tail += roundHeader + int64(len(buf))
	}
	if size == 0 || !j.fsync {
		return nil
	}
	// What is read from here on must not vanish any more, and a process that was
	// killed may have left it unsynced.
	return j.file.Sync()
}

// readRound is the payload of the round at pos, in buf's memory, or the reason
// why there is none.
func (j *journal) readRound(pos, size int64, buf []byte) (payload []byte, reason string, err error) {
	if size-pos < roundHeader {
		return buf, "a header that ends early", nil
	}
	var h [roundHeader]byte
	if _, err := j.file.ReadAt(h[:], pos); err != nil {
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
	if _, err := j.file.ReadAt(buf, pos+roundHeader); err != nil {
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
func (j *journal) cut(size int64, reason string) error {
	const window = 1 << 20
	buf := make([]byte, window)
	for pos := j.tail + 1; pos+roundHeader <= size; {
		b := buf[:min(window, size-pos)]
		if _, err := j.file.ReadAt(b, pos); err != nil {
			return err
		}
		for i := 0; ; i++ {
			k := bytes.Index(b[i:], []byte(roundMagic))
			if k < 0 || i+k+roundHeader > len(b) {
				break
			}
			i += k
			if _, ok := parseRoundHeader(b[i:i+roundHeader], pos+int64(i)); ok && binary.BigEndian.Uint32(b[i+4:])&flagClean != 0 {
				return &damageError{j.name, j.tail, reason}
			}
		}
		if int64(len(b)) == size-pos {
			break
		}
		pos += int64(len(b)) - roundHeader + 1
	}
	return j.file.Truncate(j.tail)
}

// add queues parts, one after the other, and returns the place in the file where
// they will be. It does no I/O: the caller may hold a lock of its own, and calls
// wait without it.
func (j *journal) add(parts ...[]byte) (pos int64, r *round, err error) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return 0, nil, j.failed
	}
	if k := len(j.queue); k > 0 && len(j.queue[k-1].buf)+n <= maxRound {
		r = j.queue[k-1]
	} else {
		r = &round{pos: j.tail, buf: make([]byte, roundHeader, roundHeader+n), lead: make(chan struct{}, 1), done: make(chan struct{})}
		j.queue = append(j.queue, r)
		j.tail += roundHeader
		if !j.leading {
			j.leading = true
			r.lead <- struct{}{}
		}
	}
	pos = j.tail
	for _, p := range parts {
		r.buf = append(r.buf, p...)
	}
	j.tail += int64(n)
	return pos, r, nil
}

// wait returns when r is on the disk, or failed to get there. Everybody who added
// to a round must call it: one of them does the writing. There is no context: the
// bytes are on their way, and leaving would not call them back.
func (j *journal) wait(r *round) error {
	select {
	case <-r.done:
		return r.err
	case <-r.lead:
	}
	j.mu.Lock()
	if j.failed != nil {
		j.mu.Unlock()
		<-r.done
		return r.err
	}
	j.queue = j.queue[1:] // r: nobody joins it now
	j.writing = true
	j.mu.Unlock()

	err := j.write(r)

	j.mu.Lock()
	defer j.mu.Unlock()
	j.writing = false
	r.err = err
	close(r.done)
	switch {
	case j.failed != nil:
		j.release() // closed meanwhile
	case err != nil:
		j.fail(fmt.Errorf("%s: %w", j.name, err))
	case len(j.queue) > 0:
		j.queue[0].lead <- struct{}{}
	default:
		j.leading = false
	}
	return err
}

func (j *journal) write(r *round) error {
	h := r.buf[:roundHeader]
	payload := r.buf[roundHeader:]
	copy(h, roundMagic)
	if j.fsync {
		binary.BigEndian.PutUint32(h[4:], flagClean)
	}
	binary.BigEndian.PutUint64(h[8:], uint64(r.pos))
	binary.BigEndian.PutUint32(h[16:], uint32(len(payload)))
	binary.BigEndian.PutUint32(h[20:], crc32.Checksum(payload, castagnoli))
	binary.BigEndian.PutUint32(h[24:], crc32.Checksum(h[:24], castagnoli))
	if j.file == nil {
		f, err := j.fsys.OpenFile(j.name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		j.mu.Lock()
		j.file = f
		j.mu.Unlock()
		if j.fsync {
			if err := j.fsys.SyncDir(filepath.Dir(j.name)); err != nil {
				return err
			}
		}
	}
	if _, err := j.file.WriteAt(r.buf, r.pos); err != nil {
		return err
	}
	if !j.fsync {
		return nil
	}
	return j.file.Sync()
}

// fail ends the journal: for a failed write, after which nobody knows what of the
// file is on the disk, or because it is closed. mu is held.
func (j *journal) fail(err error) {
	if j.failed != nil {
		return
	}
	j.failed = err
	for _, r := range j.queue {
		r.err = err
		close(r.done)
	}
	j.queue = nil
	if !j.writing {
		j.release()
	}
}

// readAt fills b from pos, where rounds have been written.
func (j *journal) readAt(b []byte, pos int64) error {
	j.mu.Lock()
	f, failed := j.file, j.failed
	j.mu.Unlock()
	if failed != nil {
		return failed
	}
	if f == nil {
		return fmt.Errorf("%s: nothing is written", j.name)
	}
	_, err := f.ReadAt(b, pos)
	return err
}

var errJournalClosed = errors.New("closed")

// close ends the journal. A round that is being written is finished.
func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail(errJournalClosed)
}

// release gives the handle back. mu is held and nobody writes.
func (j *journal) release() {
	if j.file != nil {
		_ = j.file.Close() // promises nothing about the data: Sync did
		j.file = nil
	}
}
