package journal

import (
	"errors"
	"fmt"
	"io/fs"
)

// Close writes what waits, makes it durable and gives the directory up. Calls
// under way are answered first; later ones fail with fs.ErrClosed, and so does a
// second Close. Where it fails, Later writes may be lost.
func (s *Store) Close() error {
	s.turn <- struct{}{}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.turn
		return fmt.Errorf("journal: %s: %w", s.cfg.Dir, fs.ErrClosed)
	}
	s.closed = true
	s.trouble.Store(true)
	close(s.stop)
	s.mu.Unlock()
	err := s.finish()
	if cerr := s.file.file.Close(); err == nil {
		err = cerr
	}
	<-s.turn
	s.work.Wait()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	if err != nil {
		return s.unsure(err)
	}
	return nil
}

// finish brings all that was accepted into the file and ends it. The turn is
// held, and nothing more is accepted.
func (s *Store) finish() error {
	s.mu.Lock()
	waits := s.failed == nil && !s.queue.empty()
	s.mu.Unlock()
	if waits {
		s.writeQueue()
	}
	s.mu.Lock()
	failed, stuck := s.failed, s.stuck
	s.mu.Unlock()
	if failed != nil {
		if err := s.rewrite(stuck); err != nil {
			return fmt.Errorf("%w, and repairing it failed: %w", failed, err)
		}
	}
	return s.seal()
}

// seal ends a segment of which all was synced. The turn is held.
func (s *Store) seal() error {
	f := &s.file
	if _, err := f.file.WriteAt(appendEnd(nil, f.salt, f.frames+1, f.seq), f.end); err != nil {
		return err
	}
	return f.file.Sync()
}
