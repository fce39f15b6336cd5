package markers

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Config is what a Dispatcher is made of.
type Config struct {
	Leaders LeaderResolver // required
	Sink    Sink           // required

	// BatchSize is how many deliveries one call of the sink carries at most;
	// zero is 1,000.
	BatchSize int
	// InFlight is how many calls for one target may be under way; zero is 4.
	InFlight int
	// CallTimeout bounds one call of the sink; zero is 30 seconds.
	CallTimeout time.Duration
	// RetryMin and RetryMax bound the pause before a participant is tried again:
	// it doubles with each attempt and varies by half. Zero is 20 ms and 2 s.
	RetryMin, RetryMax time.Duration
	// Seed of the variation. Any value will do; equal ones repeat.
	Seed uint64

	// StopOnFencedEpoch does what Apache Kafka does where a leader answers that
	// it knows a newer epoch of the producer id: nothing more of that transaction
	// is delivered, and its id answers CONCURRENT_TRANSACTIONS until another
	// coordinator epoch takes over. Off, the leader is asked whether the
	// transaction is still open there (OpenChecker), and closed counts as applied.
	StopOnFencedEpoch bool

	Observer Observer
	Logger   *slog.Logger // nil is silent
}

// Observer is told what happens to deliveries. Fields may be nil; calls may
// overlap and should return quickly.
type Observer struct {
	// Applied: a participant is done.
	Applied func(d Delivery)
	// Retry: a delivery is tried again after a pause; attempt counts from 1.
	Retry func(d Delivery, r Result, attempt int, pause time.Duration)
	// Stopped: a newer coordinator, or with StopOnFencedEpoch a newer producer
	// epoch, stands in the way. The transaction stays decided and is taken up
	// under the next coordinator epoch.
	Stopped func(d Delivery, r Result)
}

// Dispatcher brings decided transactions to their participants. It groups by
// target, sends batches, looks the leader up again for every attempt and sends
// again only what is not confirmed. A target that hangs, or refuses one entry of
// a batch, holds up nothing else.
//
// It implements txnstate.Dispatcher. What it holds is bounded by the
// transactional ids: each has one decided transaction at most.
type Dispatcher struct {
	cfg  Config
	now  Immediate // the sink's ability, or nil
	mem  sync.Pool // of *[]Delivery
	wake chan struct{}

	mu      sync.Mutex // held for bookkeeping only, never in a call of a hook
	rng     *rand.Rand
	ctx     context.Context // while Run runs
	started bool
	workers sync.WaitGroup
	queues  map[Target]*queue
	later   laterHeap
	jobs    job // a ring, of which this is no job
	pending int // jobs in the ring
}

var _ txnstate.Dispatcher = (*Dispatcher)(nil)

// job is one decided transaction.
type job struct {
	outcome txnstate.Outcome
	applied func([]txnstate.Participant)
	left    int // participants not done; guarded by Dispatcher.mu
	dropped atomic.Bool

	next, prev *job    // in Dispatcher.jobs and guarded by its mu; nil outside
	few        [4]item // memory for the items of most
}

// item is one participant of a job.
type item struct {
	job     *job
	n       int32 // of the outcome's participants
	attempt int32
	due     time.Time // while it waits in the heap
}

func (it *item) p() txnstate.Participant { return it.job.outcome.Participants[it.n] }

func (it *item) delivery() Delivery {
	o := &it.job.outcome
	return Delivery{
		Marker: Marker{
			TxnID: o.TxnID, Producer: o.Producer, Commit: o.Commit,
			CoordinatorEpoch: o.CoordinatorEpoch, TransactionVersion: o.TransactionVersion,
		},
		Participant: it.p(), TxnSeq: o.TxnSeq, Again: o.Again,
	}
}

type queue struct {
	items   []*item
	spare   []*item // memory for items
	workers int     // with those that linger
	idle    []chan struct{}
	called  int // lingering workers that were called and have not come yet
}

// linger is how long a worker without work waits for more: as a rule there will
// be, and a new goroutine costs more than a call.
const linger = 5 * time.Second

// NewDispatcher makes a Dispatcher. What is dispatched before Run waits for it.
func NewDispatcher(cfg Config) (*Dispatcher, error) {
	var errs []error
	if cfg.Leaders == nil {
		errs = append(errs, errors.New("markers: Config.Leaders is required"))
	}
	if cfg.Sink == nil {
		errs = append(errs, errors.New("markers: Config.Sink is required"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.BatchSize <= 0 {
		cfg.BatchSize = 1000
	}
	if cfg.InFlight <= 0 {
		cfg.InFlight = 4
	}
	if cfg.CallTimeout <= 0 {
		cfg.CallTimeout = 30 * time.Second
	}
	if cfg.RetryMin <= 0 {
		cfg.RetryMin = 20 * time.Millisecond
	}
	if cfg.RetryMax < cfg.RetryMin {
		cfg.RetryMax = max(2*time.Second, cfg.RetryMin)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Dispatcher{
		cfg: cfg, wake: make(chan struct{}, 1), rng: rand.New(rand.NewPCG(cfg.Seed, 0)),
		queues: map[Target]*queue{},
	}
	d.now, _ = cfg.Sink.(Immediate)
	d.jobs.next, d.jobs.prev = &d.jobs, &d.jobs
	return d, nil
}

// Dispatch takes a decided transaction over; see txnstate.Dispatcher.
func (d *Dispatcher) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	j := &job{outcome: o, applied: applied, left: len(o.Participants)}
	items := j.few[:min(j.left, len(j.few))]
	if j.left > len(items) {
		items = make([]item, j.left)
	}
	for i := range items {
		items[i].job, items[i].n = j, int32(i)
	}
	for begun := false; len(items) > 0; begun = true {
		n, to, standing := d.together(items)
		d.mu.Lock()
		if !begun {
			d.begin(j)
		}
		now := standing == Known && d.now != nil && d.ctx != nil && d.ctx.Err() == nil
		if standing == Known && !now {
			d.enqueue(to, items[:n])
		}
		d.mu.Unlock()
		switch {
		case now:
			d.sendNow(to, items[:n])
		case standing != Known:
			d.place(&items[0], to, standing)
		}
		items = items[n:]
	}
}

// together is where the first of items goes, and how many go there with it.
func (d *Dispatcher) together(items []item) (n int, to Target, standing Standing) {
	to, standing = d.leader(items[0].p())
	for n = 1; n < len(items) && standing == Known; n++ {
		// One that goes elsewhere is asked for again: the answer may change at any time.
		if t, s := d.leader(items[n].p()); s != Known || t != to {
			break
		}
	}
	return n, to, standing
}

// sendNow gives a target what it takes at once, and queues the rest.
func (d *Dispatcher) sendNow(to Target, items []item) {
	mem, _ := d.mem.Get().(*[]Delivery)
	if mem == nil {
		mem = new([]Delivery)
	}
	ds := (*mem)[:0]
	for i := range items {
		ds = append(ds, items[i].delivery())
	}
	results := d.writeNow(to, ds)
	clear(ds)
	if *mem = ds; cap(ds) <= d.cfg.BatchSize {
		d.mem.Put(mem)
	}
	done := make([]*item, 0, len(job{}.few))
	for i := range items {
		if i < len(results) && (results[i] == Applied || results[i] == Deleted) {
			done = append(done, &items[i])
		} else {
			d.place(&items[i], to, Known)
		}
	}
	d.finish(done)
}

// enqueue adds to the queue of a target. d.mu is held.
func (d *Dispatcher) enqueue(to Target, items []item) {
	q := d.queues[to]
	if q == nil {
		q = &queue{}
		d.queues[to] = q
	}
	for i := range items {
		q.items = append(q.items, &items[i])
	}
	d.staff(to, q)
}

// begin and end keep the books of what is under way. d.mu is held.
func (d *Dispatcher) begin(j *job) {
	j.next, j.prev = &d.jobs, d.jobs.prev
	j.prev.next, j.next.prev = j, j
	d.pending++
}

func (d *Dispatcher) end(j *job) {
	if j.next == nil {
		return // it was cancelled
	}
	j.prev.next, j.next.prev = j.next, j.prev
	j.next, j.prev = nil, nil
	d.pending--
}

// Cancel drops what is queued of a slot; see txnstate.Dispatcher.
func (d *Dispatcher) Cancel(slot int, epoch int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for j := d.jobs.next; j != &d.jobs; {
		next := j.next
		if j.outcome.CoordinatorEpoch <= epoch && txnstate.Slot(j.outcome.TxnID) == slot {
			j.dropped.Store(true)
			d.end(j)
		}
		j = next
	}
}

// Pending is how many decided transactions are being delivered.
func (d *Dispatcher) Pending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pending
}

// Run delivers until ctx is done, waits for the calls under way, and returns
// nil. It may be called once.
func (d *Dispatcher) Run(ctx context.Context) error {
	d.mu.Lock()
	if d.started {
		d.mu.Unlock()
		return errors.New("markers: Run was called before")
	}
	d.started, d.ctx = true, ctx
	for to, q := range d.queues {
		d.staff(to, q)
	}
	d.mu.Unlock()

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(d.releaseDue(time.Now()))
		select {
		case <-timer.C:
		case <-d.wake:
		case <-ctx.Done():
			d.mu.Lock()
			d.ctx = nil
			d.mu.Unlock()
			d.workers.Wait()
			return nil
		}
	}
}

// releaseDue routes what has waited long enough and says when to come again.
func (d *Dispatcher) releaseDue(now time.Time) time.Duration {
	var due []*item
	next := time.Hour
	d.mu.Lock()
	for len(d.later) > 0 {
		if w := d.later[0].due.Sub(now); w > 0 {
			next = min(next, w)
			break
		}
		due = append(due, heap.Pop(&d.later).(*item))
	}
	d.mu.Unlock()
	for _, it := range due {
		d.route(it)
	}
	return next
}

// route finds the leader of a participant and queues it there.
func (d *Dispatcher) route(it *item) {
	if it.job.dropped.Load() {
		return
	}
	to, standing := d.leader(it.p())
	d.place(it, to, standing)
}

func (d *Dispatcher) place(it *item, to Target, standing Standing) {
	switch standing {
	case Known:
		d.mu.Lock()
		q := d.queues[to]
		if q == nil {
			q = &queue{}
			d.queues[to] = q
		}
		q.items = append(q.items, it)
		d.staff(to, q)
		d.mu.Unlock()
	case Gone:
		d.cfg.Logger.Info("participant is deleted and counts as done", "txn_id", it.job.outcome.TxnID, "participant", it.p().String())
		d.finish([]*item{it})
	default:
		d.retry(it, Retry)
	}
}

// staff finds a worker for a queue if it needs one. d.mu is held.
func (d *Dispatcher) staff(to Target, q *queue) {
	if d.ctx == nil || d.ctx.Err() != nil || len(q.items) == 0 || q.called > 0 {
		return
	}
	if n := len(q.idle) - 1; n >= 0 {
		q.idle[n] <- struct{}{}
		q.idle = q.idle[:n]
		q.called++
		return
	}
	if q.workers >= d.cfg.InFlight {
		return
	}
	q.workers++
	ctx := d.ctx
	d.workers.Go(func() { d.work(ctx, to, q) })
}

// work sends a target what is queued for it until nothing is.
func (d *Dispatcher) work(ctx context.Context, to Target, q *queue) {
	var more chan struct{} // holds one element when this worker is called
	var timer *time.Timer
	var batch []*item
	var ds []Delivery // memory for those of a call
	for {
		d.mu.Lock()
		if clear(batch); cap(batch) > cap(q.spare) && cap(batch) <= d.cfg.BatchSize {
			q.spare = batch[:0]
		}
		n := min(len(q.items), d.cfg.BatchSize)
		if n > 0 && ctx.Err() == nil {
			batch = q.items[:n:n]
			if n == len(q.items) {
				q.items, q.spare = q.spare, nil
			} else {
				q.items = q.items[n:]
			}
			d.staff(to, q) // what is left need not wait for this call
			d.mu.Unlock()
			ds = d.send(ctx, to, batch, ds)
			continue
		}
		batch = nil
		if ctx.Err() != nil {
			d.dismiss(to, q)
			d.mu.Unlock()
			return
		}
		if more == nil {
			more = make(chan struct{}, 1)
			timer = time.NewTimer(linger)
			defer timer.Stop()
		} else {
			timer.Reset(linger)
		}
		q.idle = append(q.idle, more)
		d.mu.Unlock()
		called := false
		select {
		case <-more:
			called = true
			// Those who are about to bring more go first: their markers share the
			// call. Who is alone loses nothing.
			runtime.Gosched()
		case <-timer.C:
		case <-ctx.Done():
		}
		d.mu.Lock()
		if i := slices.Index(q.idle, more); i >= 0 {
			q.idle = slices.Delete(q.idle, i, i+1)
			d.dismiss(to, q)
			d.mu.Unlock()
			return
		}
		if !called {
			<-more // at the same time
		}
		q.called--
		d.mu.Unlock()
	}
}

// dismiss ends a worker. d.mu is held.
func (d *Dispatcher) dismiss(to Target, q *queue) {
	if q.workers--; q.workers == 0 && len(q.items) == 0 {
		delete(d.queues, to)
	}
}

// send makes one call of the sink. ds is memory for it, and is given back.
func (d *Dispatcher) send(ctx context.Context, to Target, batch []*item, ds []Delivery) []Delivery {
	ds = slices.Grow(ds[:0], len(batch))
	live := batch[:0]
	for _, it := range batch {
		if !it.job.dropped.Load() {
			live, ds = append(live, it), append(ds, it.delivery())
		}
	}
	if len(live) == 0 {
		return ds
	}
	call := newCall(ctx, d.cfg.CallTimeout)
	results := d.write(call, to, ds)
	call.end()
	clear(ds)
	done := live[:0]
	for i, it := range live {
		r := Retry
		if i < len(results) {
			r = results[i]
		}
		if r == FencedEpoch && !d.cfg.StopOnFencedEpoch {
			r = d.askOpen(ctx, to, it)
		}
		switch r {
		case Applied, Deleted:
			done = append(done, it)
		case FencedCoordinator, FencedEpoch:
			d.stop(it, r)
		default:
			d.retry(it, r)
		}
	}
	d.finish(done)
	return ds
}

// askOpen judges a participant that knows a newer epoch of the producer id. The
// marker of an ended transaction may meet it; the marker of an open one can't,
// unless somebody else raised the epoch without closing it.
func (d *Dispatcher) askOpen(ctx context.Context, to Target, it *item) Result {
	asker, ok := d.cfg.Sink.(OpenChecker)
	if !ok {
		d.cfg.Logger.Error("a leader knows a newer epoch of a decided transaction, and can't be asked whether it is closed",
			"txn_id", it.job.outcome.TxnID, "producer_id", it.job.outcome.Producer.ID, "epoch", it.job.outcome.Producer.Epoch, "participant", it.p().String())
		return Retry
	}
	call, cancel := context.WithTimeout(ctx, d.cfg.CallTimeout)
	defer cancel()
	open, err := d.stillOpen(call, asker, to, it.delivery())
	switch {
	case err != nil:
		return Retry
	case open:
		d.cfg.Logger.Error("a leader refuses the marker of a transaction that is open there: its producer id has a newer epoch",
			"txn_id", it.job.outcome.TxnID, "producer_id", it.job.outcome.Producer.ID, "epoch", it.job.outcome.Producer.Epoch, "participant", it.p().String())
		return Retry
	}
	return Applied
}

// finish reports participants that are done.
func (d *Dispatcher) finish(items []*item) {
	if len(items) == 0 {
		return
	}
	if f := d.cfg.Observer.Applied; f != nil {
		for _, it := range items {
			f(it.delivery())
		}
	}
	d.mu.Lock()
	for _, it := range items {
		if it.job.left--; it.job.left == 0 {
			d.end(it.job)
		}
	}
	d.mu.Unlock()
	// Those of one transaction are neighbours, but for what was tried again.
	for len(items) > 0 {
		j := items[0].job
		n := 1
		for n < len(items) && items[n].job == j {
			n++
		}
		if ps := j.outcome.Participants; !j.dropped.Load() {
			if n != len(ps) {
				ps = make([]txnstate.Participant, n)
				for i := range ps {
					ps[i] = items[i].p()
				}
			}
			j.applied(ps)
		}
		items = items[n:]
	}
}

// stop gives a transaction up to the next coordinator epoch.
func (d *Dispatcher) stop(it *item, r Result) {
	d.cfg.Logger.Error("delivery of a decided transaction stopped until another coordinator epoch takes over", "result", r.String(),
		"txn_id", it.job.outcome.TxnID, "producer_id", it.job.outcome.Producer.ID, "epoch", it.job.outcome.Producer.Epoch,
		"coordinator_epoch", it.job.outcome.CoordinatorEpoch, "participant", it.p().String())
	it.job.dropped.Store(true)
	d.mu.Lock()
	d.end(it.job)
	d.mu.Unlock()
	if f := d.cfg.Observer.Stopped; f != nil {
		f(it.delivery(), r)
	}
}

// retry lets a participant wait before its next attempt.
func (d *Dispatcher) retry(it *item, r Result) {
	pause := d.cfg.RetryMax
	if it.attempt < 20 {
		pause = min(pause, d.cfg.RetryMin<<it.attempt)
	}
	it.attempt++
	attempt := int(it.attempt) // once it is in the heap the next attempt may begin
	d.mu.Lock()
	pause = pause/2 + time.Duration(d.rng.Int64N(int64(pause)/2+1))
	it.due = time.Now().Add(pause)
	heap.Push(&d.later, it)
	first := d.later[0] == it
	d.mu.Unlock()
	if first {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
	if attempt == 10 {
		d.cfg.Logger.Warn("a participant does not take its marker, is tried again", "txn_id", it.job.outcome.TxnID, "participant", it.p().String(), "result", r.String())
	}
	if f := d.cfg.Observer.Retry; f != nil {
		f(it.delivery(), r, attempt, pause)
	}
}

// laterHeap orders what waits by when it is due.
type laterHeap []*item

func (h laterHeap) Len() int           { return len(h) }
func (h laterHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h laterHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *laterHeap) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *laterHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}
