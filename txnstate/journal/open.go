package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Open opens the journal in a directory and reads all of it. It fails with an
// error that wraps fsx.ErrLocked while another Store has the directory, and with
// one that wraps txnstate.ErrDamaged where a file can't be read, see the package
// documentation. What it answers from is durable: where the last process may have
// left bytes that only look so, they are copied first.
//
// Where the operating system has no file locks, a warning says so, and it is the
// caller's duty that nobody else has the directory.
func Open(cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Store{cfg: cfg, fs: cfg.FS, turn: make(chan struct{}, 1), stop: make(chan struct{})}
	s.queue = s.newBatch(nil, nil)
	for i := range s.shards {
		s.shards[i].ids = map[string]*entry{}
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("journal: open %s: %w", cfg.Dir, err)
	}
	return s, nil
}

func (s *Store) open() error {
	if err := makeDir(s.fs, filepath.Clean(s.cfg.Dir)); err != nil {
		return err
	}
	lock, err := s.fs.Lock(s.path(lockName))
	switch {
	case errors.Is(err, fsx.ErrLocked):
		return fmt.Errorf("another process, or another Store of this one, has the directory open: %w", err)
	case errors.Is(err, errors.ErrUnsupported):
		s.cfg.Logger.Warn("no file locks here, nothing keeps a second process out of the journal", "dir", s.cfg.Dir)
	case err != nil:
		return err
	}
	s.lock = lock
	if err := s.recover(); err != nil {
		if lock != nil {
			_ = lock.Close() // the first error tells more
		}
		return err
	}
	return nil
}

// makeDir makes a directory durably, and those above it that are missing. One that
// is there already is taken to be durable, but for the last.
func makeDir(fsys fsx.FS, dir string) error {
	if parent := filepath.Dir(dir); parent != dir {
		if _, err := fsys.ReadDir(parent); errors.Is(err, fs.ErrNotExist) {
			if err := makeDir(fsys, parent); err != nil {
				return err
			}
		}
	}
	return fsx.MkdirSynced(fsys, dir, 0o755)
}

// recover reads the directory and begins a segment to write to.
func (s *Store) recover() error {
	l, err := list(s.fs, s.cfg.Dir)
	if err != nil {
		return err
	}
	from := uint64(1)
	var last uint64 // the highest sequence number that may have been used
	if n := len(l.snapshots); n > 0 {
		from = l.snapshots[n-1]
		if last, err = s.readSnapshot(from); err != nil {
			return err
		}
	}
	var tail *tail
	for i, n := range l.segments[len(l.segments)-countFrom(l.segments, from):] {
		if n != from+uint64(i) {
			return s.missing(from + uint64(i))
		}
		if tail != nil && !tail.sealed {
			return s.refuse(segmentName(tail.h.Number), &Damage{
				Offset: tail.end, Next: -1,
				Reason: "it is followed by another segment and does not end with an end frame",
			})
		}
		if tail, err = s.readSegment(n, n == l.segments[len(l.segments)-1]); err != nil {
			return err
		}
		if tail.frames > 0 && tail.h.First <= last {
			return s.refuse(segmentName(n), &Damage{
				Next:   -1,
				Reason: fmt.Sprintf("it begins with sequence number %d, and number %d came before", tail.h.First, last),
			})
		}
		last = max(last, tail.seq-1)
	}
	switch {
	case tail == nil && len(l.snapshots) > 0:
		return s.missing(from)
	case tail == nil:
		s.next = 1
		err = s.begin(newHeader(1, 1), nil, 0, 1)
	default:
		err = s.follow(tail, last)
	}
	if err != nil {
		return err
	}
	s.logged += segmentCost
	s.remove(append(l.leftovers, l.before(from)...))
	return nil
}

// countFrom is how many of the ascending ns are from on.
func countFrom(ns []uint64, from uint64) int {
	count := 0
	for _, n := range ns {
		if n >= from {
			count++
		}
	}
	return count
}

// follow begins the segment after the last one.
func (s *Store) follow(t *tail, last uint64) error {
	// The segment may have had entries from its first number on that a crash took.
	first, err := nextOpening(max(last, t.h.First))
	if err != nil {
		return err
	}
	s.next = first
	number := t.h.Number
	if t.frames > 0 {
		// Bytes that can be read now need not be on the disk: the last process may
		// have been killed before their sync, or the sync has failed, and then none
		// that comes after would put them there. So they are written anew, the end
		// frame too.
		content := appendEnd(t.content[:t.end:t.end], t.h.salt, t.count+1, t.seq)
		if err := s.fs.Replace(s.path(segmentName(number)), content, 0o644); err != nil {
			return err
		}
		number++
	}
	return s.begin(newHeader(number, first), nil, 0, first)
}

// segmentCost is what a segment counts in s.logged beside its bytes: a process
// that is started often makes many small ones.
const segmentCost = 32 << 10

// tail is what has to be known of a segment to go on after it.
type tail struct {
	h       Header
	content []byte
	end     int64  // of what is whole, the end frame left out
	count   uint32 // frames up to there
	frames  int    // of them with entries
	seq     uint64 // next sequence number
	sealed  bool
}

func (s *Store) readHeader(name string, snapshot bool, number uint64) ([]byte, Header, error) {
	b, err := s.fs.ReadFile(s.path(name))
	if err != nil {
		return nil, Header{}, err
	}
	h, err := parseHeader(b)
	if d := (*Damage)(nil); errors.As(err, &d) {
		return nil, h, s.refuse(name, d)
	}
	if h.Snapshot != snapshot || h.Number != number {
		return nil, h, s.refuse(name, &Damage{Next: -1, Reason: fmt.Sprintf("it is another file by its header (snapshot: %t, number %d)", h.Snapshot, h.Number)})
	}
	return b, h, nil
}

// readSegment brings the index up to the end of a segment. last: it is the last
// one, and may end in the middle of a write.
func (s *Store) readSegment(number uint64, last bool) (*tail, error) {
	name := segmentName(number)
	b, h, err := s.readHeader(name, false, number)
	if err != nil {
		return nil, err
	}
	r := newReader(h, b)
	t := &tail{h: h, content: b, end: headerSize, seq: h.First}
	for {
		f, ok, d := r.next()
		if d != nil && !ok && last && d.Next < 0 && !r.ended {
			s.cfg.Logger.Warn("the end of the journal is cut off, a write there did not end",
				"file", s.path(name), "offset", d.Offset, "bytes", int64(len(b))-d.Offset)
			break
		}
		if d != nil {
			return nil, s.refuse(name, d)
		}
		if !ok {
			break
		}
		if f.Type == EndFrame {
			t.sealed = true
			continue
		}
		f.entries(func(e rawEntry) bool {
			sh := s.shard(string(e.id))
			if e.kind == entryDelete {
				delete(sh.ids, string(e.id))
			} else {
				sh.put(e.id, e.version, e.record)
			}
			return true
		}, func(*Damage) {})
		t.end, t.count, t.seq = r.at, f.Number, r.seq
		t.frames++
	}
	s.logged += int64(len(b)) + segmentCost
	return t, nil
}

// readSnapshot fills the index from a snapshot, and gives the highest sequence
// number that is in it or must have been used before it.
func (s *Store) readSnapshot(number uint64) (last uint64, err error) {
	name := snapshotName(number)
	b, h, err := s.readHeader(name, true, number)
	if err != nil {
		return 0, err
	}
	last = h.First - 1
	r := newReader(h, b)
	for {
		f, ok, d := r.next()
		if d != nil {
			return 0, s.refuse(name, d)
		}
		if !ok {
			break
		}
		f.entries(func(e rawEntry) bool {
			s.shard(string(e.id)).put(e.id, e.version, e.record)
			return true
		}, func(*Damage) {})
	}
	if !r.ended {
		return 0, s.refuse(name, &Damage{Offset: r.at, Next: -1, Reason: "it does not end with an end frame"})
	}
	s.state = int64(len(b))
	return last, nil
}

// refuse says what is wrong with a file, and what a person can do about it.
func (s *Store) refuse(name string, d *Damage) error {
	return fmt.Errorf("%s: %w; nothing was changed. \"kafkatxn journal %s\" shows what can be read. Bring the file back from a copy, or see \"Damage\" in the documentation of package journal", s.path(name), d, s.cfg.Dir)
}

func (s *Store) missing(number uint64) error {
	return fmt.Errorf("%s is missing, and what is there can't be understood without it (%w); nothing was changed. Bring the file back from a copy, or see \"Damage\" in the documentation of package journal",
		s.path(segmentName(number)), txnstate.ErrDamaged)
}
