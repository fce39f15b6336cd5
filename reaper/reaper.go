package reaper

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Coordinator is what the reaper asks to act; *txnstate.Coordinator is one. Both
// look again before they do anything, and change nothing where the reaper's view
// is out of date or the slot is not owned any more.
type Coordinator interface {
	TimeOut(ctx context.Context, txnID string, now time.Time) error
	Expire(ctx context.Context, txnID string, now time.Time) error
}

// Config is what a Reaper is made of.
type Config struct {
	// Every is how often Run looks for what is due
	// (transaction.abort.timed.out.transaction.cleanup.interval.ms); zero is 10
	// seconds. A transaction is aborted at the first look after its timeout.
	Every time.Duration
	// Parallel bounds how many ids are worked on at once; zero is 16.
	Parallel int
	// Now is the clock of the deadlines, the coordinator's; nil is time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil is silent
}

// Reaper times out transactions and expires idle ids. It keeps an index of
// deadlines, which the coordinator tells it, so that a look with nothing due
// costs the same however many ids there are.
//
// It implements txnstate.Deadlines. Give it to the coordinator's Config, and the
// coordinator to Run. Its methods may be called concurrently.
type Reaper struct {
	cfg Config

	mu    sync.Mutex
	byID  map[string]*entry
	index dueHeap
}

var _ txnstate.Deadlines = (*Reaper)(nil)

// entry is an id with a deadline. Its place in the index is at or before the
// deadline: one that moves back, as it does with every transaction, leaves the
// index alone and is looked at again when its old time has come.
type entry struct {
	id   string
	at   int64 // deadline in milliseconds, -1 for none
	key  int64 // place in the index
	pos  int   // in the heap, -1 outside
	open bool
}

// New makes a Reaper.
func New(cfg Config) *Reaper {
	if cfg.Every <= 0 {
		cfg.Every = 10 * time.Second
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = 16
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reaper{cfg: cfg, byID: map[string]*entry{}}
}

// Set is told by the coordinator; see txnstate.Deadlines.
func (r *Reaper) Set(txnID string, atMs int64, open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[txnID]
	if atMs < 0 {
		if e == nil {
			return
		}
		if e.at = -1; e.pos < 0 {
			delete(r.byID, txnID)
		}
		return
	}
	if e == nil {
		e = &entry{id: txnID, pos: -1}
		r.byID[txnID] = e
	}
	e.at, e.open = atMs, open
	switch {
	case e.pos < 0:
		e.key = atMs
		heap.Push(&r.index, e)
	case atMs < e.key:
		e.key = atMs
		heap.Fix(&r.index, e.pos)
	}
}

// Len is how many ids have a deadline.
func (r *Reaper) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

// Run looks for what is due until ctx is done, and returns nil. The first look
// is after one interval, as Kafka's.
func (r *Reaper) Run(ctx context.Context, c Coordinator) error {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.Reap(ctx, c, r.cfg.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// Reap works off all that is due at a time: transactions open for longer than
// their timeout, ids unused for longer than their expiry. It returns when it is
// done or ctx is, with the number of ids it looked at. What fails is tried again
// one interval later, and so is an id that has not answered within half a minute:
// it must not keep the others.
func (r *Reaper) Reap(ctx context.Context, c Coordinator, now time.Time) int {
	g := errgroup.Group{}
	g.SetLimit(r.cfg.Parallel)
	n := 0
	// What one round puts back, because it was early, is for the next call.
	for _, e := range r.due(now.UnixMilli()) {
		if ctx.Err() != nil {
			r.again(e.id, now)
			continue
		}
		n++
		g.Go(func() error {
			act := c.Expire
			if e.open {
				act = c.TimeOut
			}
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err := act(ctx, e.id, now)
			switch {
			case err == nil:
			case errors.Is(err, txnstate.ErrNotCoordinator):
				r.forget(e.id) // the new owner has it in its index
			default:
				r.cfg.Logger.Warn("not reaped, is tried again", "txn_id", e.id, "open", e.open, "err", err)
				r.again(e.id, now)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	return n
}

// patience is how long an id is waited for.
const patience = 30 * time.Second

// due takes out of the index what is due, and moves what has a later deadline to
// its place. The bound is strict for open transactions, as Kafka's scan is.
func (r *Reaper) due(now int64) []entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []entry
	for len(r.index) > 0 && r.index[0].key < now {
		e := r.index[0]
		switch {
		case e.at < 0:
			heap.Pop(&r.index)
			delete(r.byID, e.id)
		case e.at >= now:
			e.key = e.at
			heap.Fix(&r.index, 0)
		default:
			heap.Pop(&r.index)
			out = append(out, *e)
		}
	}
	return out
}

// again puts back what could not be done, unless the coordinator has set a
// deadline meanwhile.
func (r *Reaper) again(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil || e.pos >= 0 {
		return
	}
	e.key = now.UnixMilli() // due at the next look; at stays the deadline
	heap.Push(&r.index, e)
}

func (r *Reaper) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil && e.pos < 0 {
		delete(r.byID, id)
	}
}

// dueHeap is a heap by key that knows each entry's place.
type dueHeap []*entry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].key < h[j].key }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}
func (h *dueHeap) Push(x any) {
	e := x.(*entry)
	e.pos = len(*h)
	*h = append(*h, e)
}
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.pos = -1
	return e
}
