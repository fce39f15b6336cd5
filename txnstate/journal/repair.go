package journal

import (
	"errors"
	"fmt"
	"time"
)

// attempt is one try at repairing the file.
type attempt struct {
	done chan struct{}
	err  error // set before done is closed
}

// repairEvery is the time between two attempts.
const repairEvery = time.Second

// repair makes the store usable again after a write or sync that failed.
//
// It is right for these reasons. The bytes up to file.end were made durable by
// syncs that succeeded, of the same file and before the failure; they are checked
// all the same. What was not is in memory, in the batches that are stuck; nobody
// was told that the Durable ones among them are done, and nobody was answered
// since the failure. Both go into new files, written and synced by handles that
// never failed, and a file takes the place of another one only when it is whole
// and durable. So whatever attempt fails, and wherever, the next one begins from
// the same, and a crash at any moment leaves the durable bytes with or without
// what was stuck, which is what a crash in the middle of the write leaves. Only
// when all is durable do the writes take effect, and calls are answered.
func (s *Store) repair(a *attempt) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.mu.Lock()
	stuck, closed := s.stuck, s.closed
	s.mu.Unlock()
	var err error
	if closed {
		err = errStopped
	} else {
		err = s.rewrite(stuck)
	}
	if err == nil {
		for _, b := range stuck {
			b.apply()
		}
		s.cfg.Logger.Warn("journal repaired", "dir", s.cfg.Dir, "writes", len(stuck))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.failed, s.stuck = nil, nil
		s.trouble.Store(s.closed)
	}
	s.attempt, s.retryAt = nil, s.cfg.Now().Add(repairEvery)
	a.err = err
	close(a.done)
}

// rewrite replaces the segment that failed by its durable part, and begins the
// next one with what is stuck. The turn is held.
func (s *Store) rewrite(stuck []*batch) error {
	f := &s.file
	name := segmentName(f.number)
	b, err := s.fs.ReadFile(s.path(name))
	if err != nil {
		return err
	}
	if int64(len(b)) < f.end {
		return fmt.Errorf("%s has %d bytes, and %d were synced", name, len(b), f.end)
	}
	b = appendEnd(b[:f.end:f.end], f.salt, f.frames+1, f.seq)
	h, err := parseHeader(b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r := newReader(h, b)
	for ok := true; ok; {
		var d *Damage
		if _, ok, d = r.next(); d != nil {
			return fmt.Errorf("%s: %w", name, d)
		}
	}
	if !r.ended {
		return errors.New("the segment has no end") // it was put there a few lines above
	}
	if err := s.fs.Replace(s.path(name), b, 0o644); err != nil {
		return err
	}
	h = newHeader(f.number+1, f.seq)
	var frames []byte
	seq := f.seq
	for i, b := range stuck {
		sealFrame(b.frame, h.salt, LogFrame, uint32(i)+1, b.first)
		frames = append(frames, b.frame...)
		seq = b.first + b.count
	}
	if err := s.begin(h, frames, uint32(len(stuck)), seq); err != nil {
		return err
	}
	s.mu.Lock()
	s.logged += int64(len(frames)) + segmentCost
	s.mu.Unlock()
	return nil
}
