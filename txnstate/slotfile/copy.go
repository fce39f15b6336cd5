package slotfile

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// copyEvery is how often slot-N.json is written while the slot changes. It may be
// as old as that: it is for people, and costs as much as a fifth of a write.
const copyEvery = time.Second / 4

func (s *slot) copyWanted(asked bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copyDue && (asked || s.closed || time.Since(s.copied) >= copyEvery)
}

// copyNow reports, with mu held, whether a worker that has nothing else to do has to
// write slot-N.json. Where it is not time yet, another one comes back when it is.
func (s *slot) copyNow() bool {
	wait := copyEvery - time.Since(s.copied)
	if !s.copyDue || wait <= 0 || s.closed {
		return s.copyDue
	}
	if !s.copySet {
		s.copySet = true
		if s.copyTimer == nil {
			s.copyTimer = time.AfterFunc(wait, s.copyLater)
		} else {
			s.copyTimer.Reset(wait)
		}
	}
	return false
}

func (s *slot) copyLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copySet = false
	if s.copyDue && !s.working && !s.closed {
		s.working = true
		s.store.tasks.Go(s.work)
	}
}

// refreshCopy writes slot-N.json. Nothing rests on it, so nothing is synced. A
// process that is stopped before the rename and wakes up later finds its file
// removed, with the generation it was made for; one that is stopped before that
// removal looks again, and copies again.
func (s *slot) refreshCopy() {
	s.mu.Lock()
	s.copyDue, s.copied = false, time.Now()
	s.mu.Unlock()
	for range 3 { // whoever is ahead of it then copies as well
		c := s.current()
		err := s.writeCopy(c)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.store.log.Warn("the readable copy of a slot is out of date", "slot", s.n, "err", err)
			return
		}
		now, _, lerr := s.look()
		if lerr != nil || err == nil && now.gen == c.gen {
			return
		}
	}
}

func (s *slot) writeCopy(c *content) error {
	name := s.dir.scratch(copyPrefix, c.gen, s.store.nonce())
	f, err := s.dir.fs.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	buf := s.store.buffer()
	defer s.store.release(buf)
	*buf = c.appendBody(*buf)
	_, err = f.Write(*buf)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = s.dir.fs.Rename(name, s.copy)
	}
	if err != nil {
		_ = s.dir.fs.Remove(name) // the first error tells more, and the next generation tidies
	}
	return err
}
