package journal

import (
	"fmt"
	"io/fs"
	"runtime"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// batch is what one write has in it, and who waits for it.
type batch struct {
	store  *Store
	frame  []byte // begun by startFrame
	first  uint64 // sequence number of the first entry
	count  uint64 // of entries
	wanted bool   // somebody waits for it
	ops    []op
	done   chan struct{}
	err    error // set before done is closed
}

// op is a Durable write that is in effect when its batch is done.
type op struct {
	shard   *shard
	entry   *entry
	id      string
	version uint64
	record  []byte // nil: deleted
}

func (s *Store) newBatch(frame []byte, ops []op) *batch {
	return &batch{store: s, frame: startFrame(frame[:0]), ops: ops[:0], done: make(chan struct{})}
}

// Done implements txnstate.Pending.
func (b *batch) Done() <-chan struct{} { return b.done }

// Err implements txnstate.Pending.
func (b *batch) Err() error {
	if b.err == nil {
		return nil
	}
	return b.store.unsure(b.err)
}

func (b *batch) empty() bool { return b.count == 0 }

// enqueue puts a write at the end of the log that is to be. The shard is locked,
// so that the log has the writes of an id in the order in which they take effect.
// The batch is nil where nobody has to wait. full: the write was not taken, for
// the batch has to be written first.
func (s *Store) enqueue(sh *shard, id string, record []byte, d txnstate.Durability) (b *batch, version uint64, full bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.whyNot(); err != nil {
		return nil, 0, false, s.unsure(err)
	}
	b = s.queue
	if len(b.frame)-frameSize+len(id)+len(record)+maxEntry > maxBody {
		s.want(b)
		return b, 0, true, nil
	}
	// What waits for somebody's sync has a bound.
	later := d == txnstate.Later && len(b.frame) < maxWaiting
	version = s.next
	s.next++
	if b.empty() {
		b.first = version
	}
	b.count++
	if record == nil {
		b.frame = appendDelete(b.frame, id)
	} else {
		b.frame = appendPut(b.frame, id, record)
	}
	e := sh.get(id)
	if later {
		e.version, e.record = version, record
		return nil, version, false, nil
	}
	e.pending = b
	b.ops = append(b.ops, op{sh, e, id, version, record})
	s.want(b)
	return b, version, false, nil
}

// want sees to it that a batch of the queue is written. mu is held.
func (s *Store) want(b *batch) {
	b.wanted = true
	if !s.committing && s.failed == nil {
		s.committing = true
		s.work.Go(s.commit)
	}
}

// commit writes what is wanted until nothing is.
func (s *Store) commit() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	for {
		// Those who were woken by the last batch, and are about to write again, go
		// first: else one of them would have a sync for itself and all others wait
		// for the next. Who is alone loses nothing.
		runtime.Gosched()
		s.mu.Lock()
		if s.failed != nil || !s.queue.wanted {
			s.committing = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.writeQueue()
		s.rotate()
	}
}

// maxSpare is how much memory of a batch is kept for the next at most.
const maxSpare = 256 << 10

// take begins a new queue and gives the old one to be written. The turn is held.
func (s *Store) take() *batch {
	spare := s.file.spare
	s.file.spare = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.queue
	s.writing = b
	// The bytes of a batch belong to nobody when it is written.
	if spare != nil {
		s.queue = s.newBatch(spare.frame, spare.ops)
	} else {
		s.queue = s.newBatch(nil, nil)
	}
	return b
}

// segment is the file that is written. The turn guards it.
type segment struct {
	file   fsx.File
	number uint64
	salt   uint64
	frames uint32 // written and synced
	end    int64  // where the next one goes
	seq    uint64 // of the first entry of the next one
	spare  *batch // one that is written, whose memory is used again
}

// writeQueue makes what is queued durable and lets it take effect, and goes on with
// what is wanted by then. The turn is held.
func (s *Store) writeQueue() {
	f := &s.file
	var b *batch
	fsx.WriteSync(f.file, func() ([]byte, int64) {
		b = s.take()
		sealFrame(b.frame, f.salt, LogFrame, f.frames+1, b.first)
		return b.frame, f.end
	}, func(err error) (again bool) {
		if err != nil {
			s.fail(fmt.Errorf("write %s at byte %d: %w", segmentName(f.number), f.end, err), b)
			return false
		}
		again = s.written(b)
		if cap(b.frame) <= maxSpare { // one that was large once is not kept
			f.spare = b
		}
		return again
	})
}

// written is for a batch that is durable. It reports whether the next one is wanted,
// of the same file. The turn is held.
func (s *Store) written(b *batch) (again bool) {
	f := &s.file
	f.frames++
	f.end += int64(len(b.frame))
	f.seq = b.first + b.count
	b.apply()
	s.mu.Lock()
	s.writing = nil
	s.logged += int64(len(b.frame))
	again = s.queue.wanted && !s.closed && !s.due()
	s.mu.Unlock()
	close(b.done)
	return again
}

// apply lets the Durable writes of a batch take effect.
func (b *batch) apply() {
	for i := range b.ops {
		o := &b.ops[i]
		o.shard.mu.Lock()
		o.entry.pending = nil
		o.entry.version, o.entry.record = o.version, o.record
		if o.record == nil {
			delete(o.shard.ids, o.id)
		}
		o.shard.mu.Unlock()
		o.id, o.record = "", nil // the caller's memory is not kept with the batch's
	}
}

// fail ends all trust in the file. Those who wait are told that nobody knows; b,
// where it is not nil, is the batch that could not be written. The turn is held.
func (s *Store) fail(err error, b *batch) {
	s.cfg.Logger.Error("journal failed, nothing is answered until it is repaired", "dir", s.cfg.Dir, "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed, s.writing = err, nil
	s.trouble.Store(true)
	for _, b := range []*batch{b, s.queue} {
		if b == nil || b.empty() {
			continue
		}
		s.stuck = append(s.stuck, b)
		b.err = err
		close(b.done)
	}
	s.queue = s.newBatch(nil, nil)
}

// whyNot is why calls are not answered, nil where they are. mu is held.
func (s *Store) whyNot() error {
	if s.closed {
		return fs.ErrClosed
	}
	return s.failed
}
