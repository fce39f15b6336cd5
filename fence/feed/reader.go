package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// ReaderConfig is what a Reader is made of.
type ReaderConfig struct {
	Dir string // the directory that holds producer_fences; required

	// Offer is told of a fence: epochs of p.ID below p.Epoch are gone. It gives it
	// to the partitions that this broker leads (fence.Partition.Fence). Required.
	// It is called by one goroutine, with no lock held; one fence may be offered
	// again, and after a newer one of its producer id.
	Offer func(p txnstate.Producer)

	// Poll is how often the files are looked at; zero is a second.
	Poll time.Duration
	// FileBytes is the longest file that is read; zero is 16 MiB. A longer one is
	// damaged.
	FileBytes int

	FS     fsx.FS           // nil is the real file system
	Now    func() time.Time // nil is time.Now
	Logger *slog.Logger     // nil is silent
}

func (c ReaderConfig) withDefaults() ReaderConfig {
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.FileBytes = cmp.Or(c.FileBytes, 16<<20)
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

func (c ReaderConfig) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("feed: ReaderConfig.Dir is required"))
	}
	if c.Offer == nil {
		errs = append(errs, errors.New("feed: ReaderConfig.Offer is required"))
	}
	if c.Poll < 0 || c.FileBytes < 0 {
		errs = append(errs, errors.New("feed: ReaderConfig has a negative number"))
	}
	return errors.Join(errs...)
}

// maxFiles is how many brokers' files are looked at.
const maxFiles = 10_000

// steadyAfter is how long size and time of a file have to stay the same before it
// is taken for unchanged without being read: times of files are coarse, and
// coarser on a network.
const steadyAfter = 10 * time.Second

// Reader follows the fences of all brokers, this one's among them: after a restart
// its partitions have to hear of those too. It may be used concurrently.
type Reader struct {
	cfg  ReaderConfig
	wake chan struct{}

	mu      sync.Mutex // never held in an operation of FS or a call of Offer
	started bool
	again   bool               // everything is to be offered
	files   map[string]*source // by name
}

// source is one broker's file. Its fences are guarded by Reader.mu, the rest
// belongs to the goroutine of Run.
type source struct {
	fences map[int64]int16

	size  int64
	mod   time.Time
	since time.Time // when these were seen first
	bad   time.Time // when it was last told that it is damaged; zero while it is not
}

// NewReader makes a Reader.
func NewReader(cfg ReaderConfig) (*Reader, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Reader{cfg: cfg.withDefaults(), wake: make(chan struct{}, 1), files: map[string]*source{}}, nil
}

// Reoffer has Run look at the files now and offer all fences again: partitions
// were opened, or taken over, since they were offered. It returns at once.
func (r *Reader) Reoffer() {
	r.mu.Lock()
	r.again = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Known is the fences as of the last look, by producer id: for a host that gives
// them to a partition before it opens it.
func (r *Reader) Known() []txnstate.Producer {
	r.mu.Lock()
	defer r.mu.Unlock()
	highest := map[int64]int16{}
	for _, s := range r.files {
		for id, epoch := range s.fences {
			highest[id] = max(highest[id], epoch)
		}
	}
	return sorted(highest)
}

func sorted(fences map[int64]int16) []txnstate.Producer {
	out := make([]txnstate.Producer, 0, len(fences))
	for id, epoch := range fences {
		out = append(out, txnstate.Producer{ID: id, Epoch: epoch})
	}
	slices.SortFunc(out, func(a, b txnstate.Producer) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Run looks at the files until ctx is done and returns nil. It may be called once.
func (r *Reader) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.started {
		r.mu.Unlock()
		return errors.New("feed: Run was called before")
	}
	r.started = true
	r.mu.Unlock()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		r.mu.Lock()
		again := r.again
		r.again = false
		r.mu.Unlock()
		news := r.look()
		if again {
			news = r.Known()
		}
		for _, p := range news {
			if ctx.Err() != nil {
				return nil
			}
			r.cfg.Offer(p)
		}
		timer.Reset(r.cfg.Poll)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// look reads what has changed and gives what is new.
func (r *Reader) look() []txnstate.Producer {
	dir := filepath.Join(r.cfg.Dir, fencesDir)
	entries, err := r.cfg.FS.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err = nil, nil // nobody has fenced anything yet
	}
	if err != nil {
		r.cfg.Logger.Warn("fences of other brokers not read, is tried again", "dir", dir, "err", err)
		return nil
	}
	news := map[int64]int16{}
	there := map[string]bool{}
	for _, e := range entries {
		if _, ok := parseFileName(e.Name()); ok && len(there) < maxFiles {
			there[e.Name()] = true
			r.follow(dir, e, news)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.files {
		if !there[name] {
			delete(r.files, name)
		}
	}
	return sorted(news)
}

// follow looks at one file and adds what is new in it.
func (r *Reader) follow(dir string, e fs.DirEntry, news map[int64]int16) {
	now := r.cfg.Now()
	r.mu.Lock()
	s := r.files[e.Name()]
	if s == nil {
		s = &source{size: -1}
		r.files[e.Name()] = s
	}
	r.mu.Unlock()
	info, err := e.Info()
	switch {
	case err != nil || info.Size() != s.size || !info.ModTime().Equal(s.mod):
		s.size, s.since = -1, now
		if err == nil {
			s.size, s.mod = info.Size(), info.ModTime()
		}
	case s.bad.IsZero() && now.Sub(s.since) >= steadyAfter:
		return
	}
	name := filepath.Join(dir, e.Name())
	fences, err := r.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		if now.Sub(s.bad) >= time.Minute { // not at every look
			s.bad = now
			r.cfg.Logger.Error("a file with fences can't be read, what it said before stays in force and it is tried again", "file", name, "err", err)
		}
		return
	}
	s.bad = time.Time{}
	fresh := make(map[int64]int16, len(fences))
	for _, p := range fences {
		fresh[p.ID] = p.Epoch
		if before, known := s.fences[p.ID]; !known || before < p.Epoch {
			news[p.ID] = max(news[p.ID], p.Epoch)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.fences = fresh
}

func (r *Reader) read(name string) ([]txnstate.Producer, error) {
	f, err := r.cfg.FS.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(r.cfg.FileBytes)+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return nil, err
	case len(data) > r.cfg.FileBytes:
		return nil, fmt.Errorf("longer than %d bytes", r.cfg.FileBytes)
	}
	return decode(data)
}
