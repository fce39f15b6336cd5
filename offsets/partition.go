package offsets

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// phase is whether a partition can be served.
type phase uint8

const (
	phaseAbsent  phase = iota // not served by this process
	phaseLoading              // the log is being read
	phaseReady
	phaseUnsure // the log failed and could not be read again yet
)

// reloadEvery is how long a partition whose log cannot be read is left alone
// before a request causes another attempt.
const reloadEvery = time.Second

// producersEvery is how often producers that are long idle are looked for
// (producer.id.expiration.check.interval.ms).
const producersEvery = 10 * time.Minute

// What one Append carries at most, unless a single entry is longer.
const (
	batchEntries = 4096
	batchBytes   = 4 << 20
)

// partition is one offsets partition: its state, and the queue of what has been
// admitted and waits for the log. One goroutine at a time, the worker, calls the
// log; it exists while there is something for it to do. The mutex is held for
// bookkeeping only, never in a call of the log or a hook.
type partition struct {
	m     *Manager
	index int32
	turns turns // of groups and producer ids, where there is a hook

	mu    sync.Mutex
	phase phase
	cause error // of phaseUnsure
	// gen changes whenever the state is dropped. What was learnt of an older
	// state, a guard say, means nothing to a newer one.
	gen     uint64
	st      *state // in phaseReady
	retryAt time.Time

	queue  []*write
	queued int           // bytes in queue
	latest *write        // the last one admitted; nil when all before is durable
	flight map[place]int // places that writes on their way will change
	// announced are places that callers of Announce may be about to change. It
	// outlives the state: they do not know when that is dropped.
	announced map[place]int
	// gate is closed when requests that wait for it may go on: the worker wants
	// to see the queue empty, to take a snapshot.
	gate   chan struct{}
	worker chan struct{} // closed when the worker ends; nil without one
	cancel context.CancelFunc

	size      int64 // bytes of the log's entries
	compactAt int64 // size at which a rewrite is considered

	producersAt time.Time // next time idle producers are looked for
}

// write is one entry on its way to the log.
type write struct {
	entry entry
	bytes []byte
	done  chan struct{} // closed when err says how it went
	err   error
}

func (w *write) finish(err error) {
	w.err = err
	close(w.done)
}

// wait returns when the entry is durable, or perhaps not. When ctx ends first
// the entry may still be written.
func (w *write) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return interrupted(ctx, "waiting for the offsets log")
	}
}

func interrupted(ctx context.Context, doing string) error {
	return txnstate.CodeCoordinatorNotAvailable.Errorf("", "%s: %w", doing, context.Cause(ctx))
}

// refusal is why the partition cannot be asked at present, nil if it can. mu is
// held.
func (p *partition) refusal() error {
	switch p.phase {
	case phaseAbsent:
		if p.m.closed.Load() {
			return errClosed()
		}
		return txnstate.CodeNotCoordinator.Errorf("", "offsets partition %d is not served here", p.index)
	case phaseLoading:
		return txnstate.CodeCoordinatorLoading.Errorf("", "offsets partition %d is being read", p.index)
	case phaseUnsure:
		p.reloadLater()
		return txnstate.CodeCoordinatorNotAvailable.Errorf("", "offsets partition %d cannot say what its log holds: %w", p.index, p.cause)
	}
	return nil
}

// enter locks the partition, ready for a request that writes.
func (p *partition) enter(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return interrupted(ctx, "before anything was done")
		}
		p.mu.Lock()
		err := p.refusal()
		if err == nil && p.m.closed.Load() {
			err = errClosed()
		}
		if err != nil {
			p.mu.Unlock()
			return err
		}
		gate := p.gate
		if gate == nil {
			break
		}
		p.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	if p.queued >= p.m.cfg.MaxQueued {
		p.mu.Unlock()
		return txnstate.CodeCoordinatorNotAvailable.Errorf("", "offsets partition %d has %d bytes waiting for its log, and %d may", p.index, p.queued, p.m.cfg.MaxQueued)
	}
	p.expireProducers()
	return nil
}

func (p *partition) expireProducers() {
	if now := p.m.cfg.Now(); !now.Before(p.producersAt) {
		p.producersAt = now.Add(producersEvery)
		p.st.fence.Expire(now.UnixMilli())
	}
}

// admit gives an entry its number and queues it; decide has let the fence have
// it already, under that number. mu is held, since enter.
func (p *partition) admit(e entry) *write {
	p.st.admitted = e.number
	w := &write{entry: e, bytes: appendEntry(nil, e), done: make(chan struct{})}
	p.queue = append(p.queue, w)
	p.queued += len(w.bytes)
	p.latest = w
	p.note(w, 1)
	p.work()
	return w
}

// quiesce returns when everything admitted before is durable, and with an error
// where it perhaps is not.
func (p *partition) quiesce(ctx context.Context) error {
	p.mu.Lock()
	w, err := p.latest, p.refusal()
	p.mu.Unlock()
	if err != nil || w == nil {
		return err
	}
	return w.wait(ctx)
}

// note counts the places that a write will change, for readers who must not
// overlook it.
func (p *partition) note(w *write, by int) {
	if w.entry.kind != kindStage && w.entry.kind != kindCommit {
		return
	}
	for _, it := range w.entry.items {
		pl := place{w.entry.group, it.key}
		if p.flight[pl] += by; p.flight[pl] == 0 {
			delete(p.flight, pl)
		}
	}
}

// work makes sure that there is a worker. mu is held.
func (p *partition) work() {
	if p.worker != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.worker, p.cancel = make(chan struct{}), cancel
	go p.run(ctx, p.worker)
}

// reloadLater starts a worker to read the log again, if it is time. mu is held.
func (p *partition) reloadLater() {
	if p.worker == nil && !p.m.cfg.Now().Before(p.retryAt) {
		p.phase = phaseLoading
		p.work()
	}
}

// run is the worker.
func (p *partition) run(ctx context.Context, done chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.step(ctx) {
	}
	p.cancel()
	p.worker, p.cancel = nil, nil
	close(done)
}

// step does one thing that is to do, without the mutex while it waits, and
// reports whether there may be more. mu is held before and after.
func (p *partition) step(ctx context.Context) bool {
	switch {
	case p.phase == phaseLoading:
		_ = p.reload(ctx) // what went wrong is kept in cause and logged
		return p.phase == phaseReady
	case p.phase != phaseReady:
		return false
	case len(p.queue) > 0:
		p.flush(ctx)
		return true
	case p.gate != nil:
		p.compact(ctx)
		return true
	}
	return false
}

// take removes the next batch from the queue.
func (p *partition) take() (batch []*write, entries [][]byte) {
	n, size := 0, 0
	for n < len(p.queue) && n < batchEntries && (n == 0 || size+len(p.queue[n].bytes) <= batchBytes) {
		size += len(p.queue[n].bytes)
		n++
	}
	batch = p.queue[:n:n]
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	p.queued -= size
	entries = make([][]byte, n)
	for i, w := range batch {
		entries[i] = w.bytes
	}
	return batch, entries
}

// flush writes a batch of the queue.
func (p *partition) flush(ctx context.Context) {
	batch, entries := p.take()
	gen := p.gen
	p.mu.Unlock()
	err := p.m.cfg.Log.Append(ctx, p.index, entries)
	p.mu.Lock()
	if gen != p.gen {
		// Dropped in between: whatever the log said, this is not the coordinator
		// any more.
		fail(batch, p.gone())
		return
	}
	if err != nil {
		p.distrust(ctx, "append", err, batch)
		return
	}
	for _, w := range batch {
		p.note(w, -1)
		p.st.apply(w.entry)
		p.size += int64(len(w.bytes))
		if p.latest == w {
			p.latest = nil
		}
		w.finish(nil)
	}
	p.considerCompaction()
}

// distrust is called when the log failed. Entries may or may not be there, so
// the state is dropped, and with it everything that was judged by it; what there
// is is read from the log before anything else is done (I11). Those who wait
// for one of the lost writes are told when that is over, so that their next
// request finds the partition ready.
func (p *partition) distrust(ctx context.Context, doing string, cause error, batch []*write) {
	p.m.cfg.Logger.Warn("the offsets log failed; the partition is read again", "partition", p.index, "doing", doing, "err", cause)
	lost := append(batch, p.queue...)
	p.drop(phaseLoading)
	_ = p.reload(ctx) // as in step
	fail(lost, txnstate.CodeCoordinatorNotAvailable.Errorf("", "%s to offsets partition %d failed, and may have been done: %w", doing, p.index, cause))
}

func fail(lost []*write, err error) {
	for _, w := range lost {
		w.finish(err)
	}
}

func (p *partition) gone() error {
	return txnstate.CodeNotCoordinator.Errorf("", "offsets partition %d was given up, and the write may have been done", p.index)
}

// drop forgets the state and empties the queue. mu is held.
func (p *partition) drop(next phase) {
	p.phase, p.st, p.queue, p.queued, p.latest = next, nil, nil, 0, nil
	p.flight = map[place]int{}
	p.gen++
	p.openGate()
}

func (p *partition) openGate() {
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
}

// reload reads the log. mu is held, and not while it reads; phase is
// phaseLoading, and no worker but the caller exists.
func (p *partition) reload(ctx context.Context) error {
	gen := p.gen
	p.mu.Unlock()
	r := newReplayer(p.m.cfg.Fence)
	err := p.m.cfg.Log.Replay(ctx, p.index, r.add)
	var st *state
	if err == nil {
		st, err = r.finish()
	}
	p.mu.Lock()
	switch {
	case gen != p.gen:
		return p.gone()
	case err != nil:
		p.phase, p.cause, p.retryAt = phaseUnsure, err, p.m.cfg.Now().Add(reloadEvery)
		if !errors.Is(err, context.Canceled) {
			p.m.cfg.Logger.Error("an offsets partition cannot be read and is not served", "partition", p.index, "err", err)
		}
		return txnstate.CodeCoordinatorNotAvailable.Errorf("", "offsets partition %d: %w", p.index, err)
	}
	p.phase, p.cause, p.st, p.size = phaseReady, nil, st, r.size
	p.compactAt = max(p.compactAt, int64(p.m.cfg.CompactBytes))
	return nil
}

// load makes the partition ready, reading its log in the caller's goroutine.
func (p *partition) load(ctx context.Context) error {
	for {
		p.mu.Lock()
		if p.m.closed.Load() {
			p.mu.Unlock()
			return errClosed()
		}
		if p.phase == phaseReady {
			p.mu.Unlock()
			return nil
		}
		worker := p.worker
		if worker == nil {
			break
		}
		// It reads the log itself, or is about to end.
		p.mu.Unlock()
		select {
		case <-worker:
		case <-ctx.Done():
			return interrupted(ctx, "loading an offsets partition")
		}
	}
	// The caller is the worker while it loads.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	worker := make(chan struct{})
	p.phase, p.worker, p.cancel = phaseLoading, worker, cancel
	err := p.reload(ctx)
	p.worker, p.cancel = nil, nil
	close(worker)
	p.mu.Unlock()
	return err
}

// unload forgets the partition and cancels the log's call under way. It returns
// when the worker is gone, or ctx is done.
func (p *partition) unload(ctx context.Context) error {
	p.mu.Lock()
	fail(p.queue, p.gone())
	p.drop(phaseAbsent)
	p.compactAt = 0
	worker := p.worker
	if worker == nil {
		p.mu.Unlock()
		return nil
	}
	p.cancel()
	p.mu.Unlock()
	return awaitWorker(ctx, worker)
}

// idle returns when everything admitted has been answered, or ctx is done.
func (p *partition) idle(ctx context.Context) error {
	p.mu.Lock()
	worker := p.worker
	p.mu.Unlock()
	if worker == nil {
		return nil
	}
	return awaitWorker(ctx, worker)
}

func awaitWorker(ctx context.Context, worker chan struct{}) error {
	select {
	case <-worker:
		return nil
	case <-ctx.Done():
		return interrupted(ctx, "waiting for the offsets log to return")
	}
}
