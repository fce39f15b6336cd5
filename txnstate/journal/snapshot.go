package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

const (
	// snapFrame is about how much of a snapshot is written at once.
	snapFrame = 64 << 10
	// snapSync is how much of a snapshot is synced at once: the disk is shared
	// with the log, and a large sync keeps small ones waiting.
	snapSync = 1 << 20
)

// due reports whether it is time for a new segment. mu is held.
func (s *Store) due() bool {
	return !s.snapping && s.logged >= max(s.snapAt, s.cfg.SnapshotAt, s.state)
}

// rotate begins a new segment and a snapshot, where it is time. The turn is held.
func (s *Store) rotate() {
	s.mu.Lock()
	due := s.failed == nil && !s.closed && s.due()
	s.mu.Unlock()
	if !due {
		return
	}
	f := &s.file
	h := newHeader(f.number+1, f.seq)
	// What may fail for want of room comes first: nothing has happened then.
	if err := s.prepare(h); err != nil {
		s.postpone("a new segment of the journal can't be begun, the present one grows on", err)
		return
	}
	err := s.seal()
	if err == nil {
		err = s.fs.Rename(s.path(aside(segmentName(h.Number))), s.path(segmentName(h.Number)))
	}
	if err == nil {
		err = s.fs.SyncDir(s.cfg.Dir)
	}
	if err == nil {
		err = s.goOn(h, headerSize, 0, h.First)
	}
	if err != nil {
		s.fail(fmt.Errorf("begin %s: %w", segmentName(h.Number), err), nil)
		return
	}
	s.mu.Lock()
	s.snapping = true
	covered := s.logged
	s.logged += segmentCost
	s.mu.Unlock()
	s.work.Go(func() {
		size, err := s.snapshot(h)
		s.mu.Lock()
		s.snapping = false
		if err == nil {
			s.logged -= covered
			s.state, s.snapAt = size, 0
		}
		closed := s.closed
		s.mu.Unlock()
		if err != nil && !closed {
			s.postpone("no snapshot of the journal, the log grows on", err)
		}
	})
}

// prepare makes a segment under another name.
func (s *Store) prepare(h Header) error {
	tmp := s.path(aside(segmentName(h.Number)))
	if err := s.fs.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fsx.CreateSynced(s.fs, tmp, appendHeader(nil, h), 0o644)
}

// postpone waits for more log before the next snapshot is tried.
func (s *Store) postpone(what string, err error) {
	s.cfg.Logger.Warn(what, "dir", s.cfg.Dir, "err", err)
	s.mu.Lock()
	s.snapAt = s.logged + s.cfg.SnapshotAt
	s.mu.Unlock()
}

// errStopped: work is given up because the store is closed.
var errStopped = errors.New("closed")

// snapshot writes all records beside the log and removes what they replace. h is
// the header of the segment that was begun for it: all writes before that segment
// are in the index by now. Writes that come meanwhile may be in the snapshot or
// not, they are in the log after it in any case.
func (s *Store) snapshot(h Header) (size int64, err error) {
	name := snapshotName(h.Number)
	tmp := s.path(aside(name))
	if size, err = s.writeSnapshot(tmp, h); err == nil {
		// A Later write that is in the snapshot may not be in the log yet. It must
		// not survive a crash that takes an earlier one.
		err = s.Flush(context.Background())
	}
	if err == nil {
		err = s.fs.Rename(tmp, s.path(name))
	}
	if err != nil {
		_ = s.fs.Remove(tmp) // Open removes it otherwise
		return 0, err
	}
	if err := s.fs.SyncDir(s.cfg.Dir); err != nil {
		return 0, err
	}
	l, err := list(s.fs, s.cfg.Dir)
	if err != nil {
		return 0, err
	}
	s.remove(l.before(h.Number))
	return size, nil
}

func (s *Store) writeSnapshot(tmp string, segment Header) (size int64, err error) {
	f, err := s.fs.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	h := newHeader(segment.Number, segment.First)
	h.Snapshot = true
	w := snapWriter{file: f, salt: h.salt}
	if err := w.write(appendHeader(nil, h)); err != nil {
		return 0, err
	}
	for i := range s.shards {
		s.shards[i].each(func(items []item) bool {
			select {
			case <-s.stop:
				err = errStopped
			default:
				err = w.add(items)
			}
			return err == nil
		})
		if err != nil {
			return 0, err
		}
	}
	err = w.finish()
	return w.size, err
}

// snapWriter writes the frames of a snapshot.
type snapWriter struct {
	file     fsx.File
	salt     uint64
	size     int64
	unsynced int64
	frames   uint32
	entries  uint64
	frame    []byte
}

func (w *snapWriter) add(items []item) error {
	for _, it := range items {
		if it.version == 0 {
			continue // its first write is not done
		}
		if len(w.frame) == 0 {
			w.frame = startFrame(w.frame)
		}
		w.frame = appendState(w.frame, it.id, it.version, it.record)
		w.entries++
		if len(w.frame) >= snapFrame {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *snapWriter) flush() error {
	if len(w.frame) == 0 {
		return nil
	}
	w.frames++
	sealFrame(w.frame, w.salt, StateFrame, w.frames, 0)
	err := w.write(w.frame)
	w.frame = w.frame[:0]
	return err
}

func (w *snapWriter) write(b []byte) error {
	n, err := w.file.WriteAt(b, w.size)
	w.size += int64(n)
	w.unsynced += int64(n)
	if err == nil && w.unsynced >= snapSync {
		w.unsynced = 0
		err = w.file.Sync()
	}
	return err
}

func (w *snapWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.write(appendEnd(nil, w.salt, w.frames+1, w.entries)); err != nil {
		return err
	}
	return w.file.Sync()
}
