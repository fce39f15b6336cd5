package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// SinkConfig is what a Sink is made of.
type SinkConfig struct {
	Dir  string // the directory that holds marker_queue; required, made when it is missing
	Self markers.Target

	// Local takes what goes to the broker Self: usually a wire.LocalSink. nil:
	// that goes by the volume like the rest.
	Local markers.Sink
	// Sent is told when there is something new in an inbox: in a process that has
	// the Receiver too, its Wake. nil is none.
	Sent func(to markers.Target)

	// Poll is how often acknowledgements are looked for while some are due; zero
	// is 100 ms.
	Poll time.Duration
	// Straggle is how long a call waits for the rest where a part of its
	// deliveries is answered; the rest is then Retry. Zero is a second.
	Straggle time.Duration
	// Entries and Bytes bound what an inbox has of this process at a time: zero is
	// 16 entries and 8 MiB. What does not fit waits in its call. An entry has at
	// most EntryBytes, zero is 1 MiB, and one delivery at least; a call with more
	// is several entries.
	Entries           int
	Bytes, EntryBytes int

	FS     fsx.FS       // nil is the real file system
	Logger *slog.Logger // nil is silent
}

func (c SinkConfig) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("queue: SinkConfig.Dir is required"))
	}
	if c.Poll < 0 || c.Straggle < 0 || c.Entries < 0 || c.Bytes < 0 || c.EntryBytes < 0 {
		errs = append(errs, errors.New("queue: SinkConfig has a negative number"))
	}
	return errors.Join(errs...)
}

func (c SinkConfig) withDefaults() SinkConfig {
	c.Poll = cmp.Or(c.Poll, 100*time.Millisecond)
	c.Straggle = cmp.Or(c.Straggle, time.Second)
	c.Entries = cmp.Or(c.Entries, 16)
	c.Bytes = cmp.Or(c.Bytes, 8<<20)
	c.EntryBytes = cmp.Or(c.EntryBytes, 1<<20)
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Sink is the markers.Sink that delivers by a shared volume; the package comment
// has how. Its methods may be called concurrently. Several processes of one broker
// id may have one each, as a restart can bring about.
type Sink struct {
	cfg     SinkConfig
	process string

	mu      sync.Mutex // never held in an operation of FS
	ctx     context.Context
	started bool
	ready   bool // what earlier processes left is gone
	lanes   map[markers.Target]*lane
	work    sync.WaitGroup
	seq     uint64
	// busy are deliveries that an entry exists of, or may exist.
	busy map[line]struct{}
}

var (
	_ markers.Sink        = (*Sink)(nil)
	_ markers.OpenChecker = (*Sink)(nil)
)

// line is what keeps its order: the markers of a producer id for a participant.
type line struct {
	producer int64
	to       txnstate.Participant
}

func lineOf(d *markers.Delivery) line { return line{d.Producer.ID, d.Participant.Wire()} }

// letter is an entry from the moment that somebody wants it sent.
type letter struct {
	entry
	at    []int // of the caller's deliveries
	bytes int
	done  chan struct{} // closed when its entry is certainly gone, or never was there

	// Guarded by Sink.mu.
	state    letterState
	left     bool // its caller does not wait any more
	verdicts []verdict
}

type letterState uint8

const (
	queued  letterState = iota // no file yet
	taken                      // its lane has it
	settled                    // over, verdicts are final
)

// NewSink makes a Sink. Until Run has removed what earlier processes of the same
// broker left, every delivery to another broker is Retry.
func NewSink(cfg SinkConfig) (*Sink, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg.withDefaults(), process: newProcess(), lanes: map[markers.Target]*lane{}, busy: map[line]struct{}{}}, nil
}

// Run delivers until ctx is done; then it removes its entries where that can be
// done at once, waits for the operations under way, and returns nil. It may be
// called once.
func (s *Sink) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.started {
		s.mu.Unlock()
		return errors.New("queue: Run was called before")
	}
	s.started, s.ctx = true, ctx
	s.mu.Unlock()
	s.sweep(ctx)
	s.mu.Lock()
	s.ready = ctx.Err() == nil
	s.mu.Unlock()
	<-ctx.Done()
	s.work.Wait()
	return nil
}

// sweep removes what earlier processes of this broker left, in every inbox, and
// goes on until it has.
func (s *Sink) sweep(ctx context.Context) {
	for pause := s.cfg.Poll; ; pause = min(2*pause, 5*time.Second) {
		err := s.sweepOnce()
		if err == nil {
			return
		}
		s.cfg.Logger.Warn("entries that an earlier process left can't be removed, nothing is sent before they are", "err", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (s *Sink) sweepOnce() error {
	root := filepath.Join(s.cfg.Dir, queueDir)
	if err := fsx.MkdirSynced(s.cfg.FS, root, 0o755); err != nil {
		return err
	}
	inboxes, err := s.cfg.FS.ReadDir(root)
	if err != nil {
		return err
	}
	for _, in := range inboxes {
		if _, ok := parseInbox(in.Name()); !ok {
			continue
		}
		dir := filepath.Join(root, in.Name())
		files, err := s.cfg.FS.ReadDir(dir)
		if err != nil {
			return err
		}
		removed := 0
		for _, f := range files {
			if s.leftBehind(f.Name()) {
				if err := remove(s.cfg.FS, filepath.Join(dir, f.Name())); err != nil {
					return err
				}
				removed++
			}
		}
		// Also where nothing was removed: another process may have removed it, or
		// this one, before the error that brought it back here.
		if err := s.cfg.FS.SyncDir(dir); err != nil {
			return err
		}
		if removed > 0 {
			s.cfg.Logger.Info("removed entries of an earlier process", "inbox", in.Name(), "files", removed)
		}
	}
	return nil
}

// leftBehind reports whether a file is an entry, or the beginning of one, of
// another process of this broker.
func (s *Sink) leftBehind(name string) bool {
	if len(name) > 0 && name[0] == '.' {
		base, process, ok := parseTemp(name)
		if !ok || process == s.process {
			return false
		}
		a, ext, ok := parseName(base)
		return ok && ext == entryExt && a.from == s.cfg.Self
	}
	a, ext, ok := parseName(name)
	return ok && ext == entryExt && a.from == s.cfg.Self && a.process != s.process
}

// WriteMarkers sends deliveries to a broker; see markers.Sink. A delivery whose
// producer and participant have an entry under way, of another call, is Retry.
func (s *Sink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	if s.cfg.Local != nil && to == s.cfg.Self {
		return s.cfg.Local.WriteMarkers(ctx, to, ds)
	}
	out := make([]markers.Result, len(ds))
	if ctx.Err() != nil || len(ds) == 0 {
		return out
	}
	letters := s.post(to, ds)
	s.wait(ctx, letters)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range letters {
		if l.state != settled {
			continue
		}
		for k, i := range l.at {
			out[i] = l.verdicts[k].result()
		}
	}
	return out
}

// StillOpen asks the leader's broker, in the same way, whether the transaction of
// a delivery is open there; see markers.OpenChecker.
func (s *Sink) StillOpen(ctx context.Context, to markers.Target, d markers.Delivery) (bool, error) {
	if s.cfg.Local != nil && to == s.cfg.Self {
		if asker, ok := s.cfg.Local.(markers.OpenChecker); ok {
			return asker.StillOpen(ctx, to, d)
		}
		return false, errors.New("queue: SinkConfig.Local can't be asked what is open")
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	l := s.enqueue(&letter{entry: entry{to: to, ask: true, ds: []markers.Delivery{d}}, at: []int{0}, bytes: size(&d)})
	s.mu.Unlock()
	if l == nil {
		return false, errors.New("queue: not running")
	}
	s.wait(ctx, []*letter{l})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch v := l.verdicts[0]; {
	case l.state == settled && v == open:
		return true, nil
	case l.state == settled && v == closed:
		return false, nil
	}
	return false, cmp.Or(ctx.Err(), fmt.Errorf("queue: broker %d did not say whether %s is open", to, d.Participant))
}

// post makes letters of deliveries.
func (s *Sink) post(to markers.Target, ds []markers.Delivery) []*letter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || s.ctx.Err() != nil {
		return nil
	}
	var letters []*letter
	var l *letter
	mine := map[line]*letter{} // the latest letter with it
	for i := range ds {
		d := ds[i]
		at := lineOf(&d)
		if _, busy := s.busy[at]; busy && mine[at] == nil {
			continue
		}
		n := size(&d)
		if l == nil || l.bytes+n > s.cfg.EntryBytes {
			l = &letter{entry: entry{to: to}}
			letters = append(letters, l)
		}
		if mine[at] != nil && mine[at] != l {
			continue // its order would rest on that of two entries
		}
		s.busy[at], mine[at] = struct{}{}, l
		l.ds, l.at = append(l.ds, d), append(l.at, i)
		l.bytes += n
	}
	letters = slices.DeleteFunc(letters, func(l *letter) bool { return len(l.ds) == 0 })
	for _, l := range letters {
		s.enqueue(l)
	}
	return letters
}

// enqueue gives a letter to the lane of its broker; nil where Run is over. s.mu is
// held.
func (s *Sink) enqueue(l *letter) *letter {
	if !s.ready || s.ctx.Err() != nil {
		return nil
	}
	l.done = make(chan struct{})
	l.verdicts = make([]verdict, len(l.ds))
	n := s.lanes[l.to]
	if n == nil {
		n = &lane{s: s, to: l.to, calm: calm{log: s.cfg.Logger}, dir: filepath.Join(s.cfg.Dir, queueDir, inboxName(l.to)), wake: make(chan struct{}, 1)}
		s.lanes[l.to] = n
		ctx := s.ctx
		s.work.Go(func() { n.run(ctx) })
	}
	n.queue = append(n.queue, l)
	n.nudge()
	return l
}

// wait returns when all letters are settled, or ctx has ended and nobody waits for
// the rest any more.
func (s *Sink) wait(ctx context.Context, letters []*letter) {
	for _, l := range letters {
		select {
		case <-l.done:
		case <-ctx.Done():
			s.mu.Lock()
			for _, l := range letters {
				s.leave(l)
			}
			s.mu.Unlock()
			return
		}
	}
}

// leave is the caller going away. What has no file yet never gets one. s.mu is held.
func (s *Sink) leave(l *letter) {
	l.left = true
	n := s.lanes[l.to]
	if n == nil {
		return // its lane ended with Run, or has settled all
	}
	if l.state == queued {
		n.queue = slices.DeleteFunc(n.queue, func(q *letter) bool { return q == l })
		s.settle(l)
	}
	n.nudge()
}

// settle ends a letter: its entry is certainly not there. s.mu is held.
func (s *Sink) settle(l *letter) {
	l.state = settled
	if !l.ask {
		for i := range l.ds {
			delete(s.busy, lineOf(&l.ds[i]))
		}
	}
	close(l.done)
}

// Wake makes the sink look for acknowledgements now: the Acked of a Receiver in
// the same process.
func (s *Sink) Wake(markers.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.lanes {
		n.nudge()
	}
}
