package feed

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// WriterConfig is what a Writer is made of.
type WriterConfig struct {
	Dir  string // the directory that holds producer_fences; required, made when it is missing
	Self int32  // this broker's id

	// ProducerExpiry is how long leaders remember a producer that does nothing
	// (fence.Config.ExpireAfter); zero is 24 hours. Retain is how long a fence is
	// kept; zero is twice that, and it must be longer. What an earlier process
	// wrote counts as written when this one begins.
	ProducerExpiry, Retain time.Duration
	// Max is how many fences are kept; zero is 10,000. One more drops the oldest.
	Max int
	// Timeout is how long Fence waits for the volume; zero is 5 seconds. The fence
	// is written all the same, as soon as that can be done.
	Timeout time.Duration

	FS     fsx.FS           // nil is the real file system
	Now    func() time.Time // nil is time.Now
	Logger *slog.Logger     // nil is silent
}

func (c WriterConfig) withDefaults() WriterConfig {
	c.ProducerExpiry = cmp.Or(c.ProducerExpiry, 24*time.Hour)
	c.Retain = cmp.Or(c.Retain, 2*c.ProducerExpiry)
	c.Max = cmp.Or(c.Max, 10_000)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c WriterConfig) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("feed: WriterConfig.Dir is required"))
	}
	if c.ProducerExpiry < 0 || c.Retain < 0 || c.Max < 0 || c.Timeout < 0 {
		errs = append(errs, errors.New("feed: WriterConfig has a negative number"))
	}
	if d := c.withDefaults(); d.Retain <= d.ProducerExpiry {
		errs = append(errs, fmt.Errorf("feed: WriterConfig.Retain is %v: leaders remember producers for %v, and a fence has to be there for longer", d.Retain, d.ProducerExpiry))
	}
	return errors.Join(errs...)
}

// Writer publishes fences: the txnstate.Fencer of a coordinator whose cluster has
// a shared volume. It may be used concurrently.
type Writer struct {
	cfg  WriterConfig
	wake chan struct{}

	mu      sync.Mutex // never held in an operation of FS
	started bool
	over    bool
	byID    map[int64]*list.Element
	order   *list.List // of *kept, the oldest first
	last    uint64     // number of the latest change
	durable uint64     // that the file has
	failed  uint64     // that a write was tried for in vain
	err     error      // why
	changed chan struct{}
}

// kept is one fence.
type kept struct {
	p      txnstate.Producer
	since  time.Time
	number uint64 // of the change that made it
}

var _ txnstate.Fencer = (*Writer)(nil)

// NewWriter makes a Writer. Fences wait for Run.
func NewWriter(cfg WriterConfig) (*Writer, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Writer{
		cfg: cfg.withDefaults(), wake: make(chan struct{}, 1),
		byID: map[int64]*list.Element{}, order: list.New(), changed: make(chan struct{}),
	}, nil
}

var (
	errEnded = errors.New("feed: the writer has ended")
	errSlow  = errors.New("feed: the volume takes its time, the fence is written later")
)

// Fence publishes that epochs of p.ID below p.Epoch are gone; see txnstate.Fencer.
// nil means that the file says so, durably. An error means that it does not yet;
// the writer goes on trying for as long as Run runs.
func (w *Writer) Fence(ctx context.Context, p txnstate.Producer) error {
	if p.ID < 0 || p.Epoch < 0 {
		return nil // nobody
	}
	w.mu.Lock()
	number := w.take(p)
	w.mu.Unlock()
	w.nudge()
	limit := time.NewTimer(w.cfg.Timeout)
	defer limit.Stop()
	for {
		w.mu.Lock()
		durable, failed, err, over, changed := w.durable, w.failed, w.err, w.over, w.changed
		w.mu.Unlock()
		switch {
		case durable >= number:
			return nil
		case over:
			return errEnded
		case failed >= number:
			return err
		}
		select {
		case <-changed:
		case <-limit.C:
			return errSlow
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take notes a fence and gives the number of the change that it was, or is. w.mu
// is held.
func (w *Writer) take(p txnstate.Producer) uint64 {
	if e := w.byID[p.ID]; e != nil {
		k := e.Value.(*kept)
		if k.p.Epoch >= p.Epoch {
			return k.number
		}
		w.order.Remove(e)
	}
	w.last++
	w.byID[p.ID] = w.order.PushBack(&kept{p, w.cfg.Now(), w.last})
	for e := w.order.Front(); w.order.Len() > w.cfg.Max && e != nil; {
		next := e.Next()
		k := e.Value.(*kept)
		if k.number > w.durable {
			break // somebody waits for it
		}
		w.forget(e)
		e = next
	}
	return w.last
}

func (w *Writer) forget(e *list.Element) {
	w.order.Remove(e)
	delete(w.byID, e.Value.(*kept).p.ID)
}

func (w *Writer) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// tell wakes who waits. w.mu is held.
func (w *Writer) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// retryAfter is the pause after a write, or the reading at the start, that failed.
const retryAfter = time.Second

// Run reads what an earlier process of this broker wrote, and writes until ctx is
// done; then it writes what is left, once, and returns nil. It may be called once.
func (w *Writer) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.started {
		w.mu.Unlock()
		return errors.New("feed: Run was called before")
	}
	w.started = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.over = true
		w.tell()
	}()
	for {
		err := w.load()
		if err == nil {
			break
		}
		w.fail(err)
		if !sleep(ctx, retryAfter) {
			return nil
		}
	}
	tick := time.NewTicker(max(w.cfg.Retain/16, time.Millisecond))
	defer tick.Stop()
	for {
		for w.write() != nil {
			if !sleep(ctx, retryAfter) {
				return nil
			}
		}
		select {
		case <-w.wake:
		case <-tick.C:
			w.expire()
		case <-ctx.Done():
			_ = w.write() // it has said so itself
			return nil
		}
	}
}

// sleep waits; false where ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// load takes in the file of an earlier process. What is known already is newer.
func (w *Writer) load() error {
	// Dir is the host's, and what is above it may be none of our business:
	// read-only, or of a kind that can't be synced. It matters only if Dir was not
	// there.
	if w.cfg.FS.SyncDir(w.cfg.Dir) == nil {
		_ = w.cfg.FS.SyncDir(filepath.Dir(w.cfg.Dir)) // in case another process has just made it
	} else if err := fsx.MkdirSynced(w.cfg.FS, w.cfg.Dir, 0o755); err != nil {
		return err
	}
	if err := fsx.MkdirSynced(w.cfg.FS, filepath.Join(w.cfg.Dir, fencesDir), 0o755); err != nil {
		return err
	}
	name := path(w.cfg.Dir, w.cfg.Self)
	data, err := w.cfg.FS.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fences, err := decode(data)
	if err != nil {
		// Nothing can be made of it, and what it was about is found out by markers
		// and verification.
		aside := name + ".damaged"
		rerr := w.cfg.FS.Rename(name, aside)
		w.cfg.Logger.Error("the file with this broker's fences is damaged and was set aside", "file", name, "aside", aside, "why", err, "err", rerr)
		return rerr
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.cfg.Now()
	for i := len(fences) - 1; i >= 0; i-- { // the oldest comes first in the end
		p := fences[i]
		if e := w.byID[p.ID]; e != nil {
			if k := e.Value.(*kept); k.p.Epoch < p.Epoch {
				k.p = p
			}
			continue
		}
		w.byID[p.ID] = w.order.PushFront(&kept{p, now, 0})
	}
	for w.order.Len() > w.cfg.Max && w.order.Front().Value.(*kept).number == 0 {
		w.forget(w.order.Front())
	}
	return nil
}

// expire drops what is too old, and sees to it that the file is written.
func (w *Writer) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.cfg.Now()
	for e := w.order.Front(); e != nil && now.Sub(e.Value.(*kept).since) >= w.cfg.Retain; e = w.order.Front() {
		if e.Value.(*kept).number > w.durable {
			break
		}
		w.forget(e)
		w.last++
		w.nudge()
	}
}

// write brings the file up to date, if it is not.
func (w *Writer) write() error {
	w.mu.Lock()
	if w.durable == w.last {
		w.mu.Unlock()
		return nil
	}
	number := w.last
	fences := make([]txnstate.Producer, 0, w.order.Len())
	for e := w.order.Front(); e != nil; e = e.Next() {
		fences = append(fences, e.Value.(*kept).p)
	}
	w.mu.Unlock()
	if err := w.cfg.FS.Replace(path(w.cfg.Dir, w.cfg.Self), encode(fences), 0o644); err != nil {
		w.failAt(number, err)
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.durable, w.err = number, nil
	w.tell()
	return nil
}

// fail tells all who wait that there is trouble.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	number := w.last
	w.mu.Unlock()
	w.failAt(number, err)
}

func (w *Writer) failAt(number uint64, err error) {
	w.mu.Lock()
	first := w.err == nil
	w.failed, w.err = max(w.failed, number), err
	w.tell()
	w.mu.Unlock()
	if first { // of a row
		w.cfg.Logger.Warn("fences not written, is tried again", "file", path(w.cfg.Dir, w.cfg.Self), "err", err)
	}
}
