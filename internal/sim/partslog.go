package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func sortedKeys[K ~string | ~int | ~int32, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// plog is one partition as it is replicated: what is in it stays, and its writes
// have to come from the newest leader.
type plog struct {
	c      *parts
	topic  string
	number int32

	unit    // under parts.mu, like all here
	deleted bool
	batches []entry
	tail    []entry // of the present leader: on its way
}

type entry struct {
	base, last int64
	raw        []byte
	h          fence.Batch
}

// lead is a partition at a broker that leads it, or thinks so.
type lead struct {
	b     *broker
	p     *plog
	epoch int32

	mu     sync.Mutex
	state  *fence.Partition
	open   map[int64]*txn // by producer id: whose records have no marker yet
	all    []entry
	end    int64
	high   int64
	failed error
	more   chan struct{} // closed when high moves, or the lead fails
}

// elect makes a broker the leader of a partition. Of what the one before had under
// way a part may survive, from its front on.
func (c *parts) elect(p *plog, to int) {
	c.mu.Lock()
	if p.deleted {
		c.mu.Unlock()
		return
	}
	b := c.now[to]
	p.epoch++
	if p.owner >= 0 {
		p.before = p.owner
	} else {
		p.before = -1
	}
	p.owner = to
	if b == nil {
		p.owner = -1
	}
	p.told = make([]time.Time, c.nodes())
	for i := range p.told {
		p.told[i] = time.Now().Add(c.d.skewed(3 * time.Second))
	}
	keep := 0
	if len(p.tail) > 0 {
		keep = c.d.n(len(p.tail) + 1)
	}
	p.batches = append(slices.Clip(p.batches), p.tail[:keep]...)
	p.tail = nil
	epoch := p.epoch
	c.mu.Unlock()
	if b == nil {
		return
	}
	c.w.log(b.name, "leads %s-%d at epoch %d", p.topic, p.number, epoch)
	load := c.d.skewed(500 * time.Millisecond)
	c.running.Go(func() {
		if !sleep(b.ctx, load) || b.gate() != nil {
			return
		}
		b.load(p, epoch)
	})
}

// load makes the state of a partition from its log.
func (b *broker) load(p *plog, epoch int32) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if p.epoch != epoch || p.deleted {
		return
	}
	l := &lead{b: b, p: p, epoch: epoch, state: fence.NewPartition(fence.Config{}), open: map[int64]*txn{}, all: slices.Clone(p.batches), more: make(chan struct{})}
	for _, e := range l.all {
		var mark *fence.Mark
		if e.h.Control {
			if m, ms, err := markers.ParseControlBatch(e.raw); err == nil {
				mk := m.Mark(ms)
				mark = &mk
			}
		}
		l.state.Replay(e.h, e.base, mark)
		l.note(e)
		l.end = e.last + 1
	}
	l.high = l.end
	l.state.Stabilize(l.high)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leads[p] = l
}

// With is wire.Log's.
func (l *lead) With(f func(*fence.Partition)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.state)
}

// Append is wire.Log's.
func (l *lead) Append(_ context.Context, raw []byte, admit func(*fence.Partition, int64) error) error {
	h, _, _, err := fence.ParseHeader(raw)
	if err != nil {
		return err
	}
	if err := l.b.gate(); err != nil {
		return storageError(err)
	}
	l.mu.Lock()
	if l.failed != nil {
		defer l.mu.Unlock()
		return l.failed
	}
	base := l.end
	if err := admit(l.state, base); err != nil {
		l.mu.Unlock()
		return err
	}
	raw = slices.Clone(raw)
	binary.BigEndian.PutUint64(raw, uint64(base))
	binary.BigEndian.PutUint32(raw[12:], uint32(l.epoch))
	e := entry{base, base + int64(h.Records) - 1, raw, h}
	l.all = append(l.all, e)
	l.end = e.last + 1
	t := l.note(e)
	l.publish(e)
	l.mu.Unlock()

	if err := l.b.hold(); err != nil {
		return l.fail(err)
	}
	if !l.b.c.w.calm.Load() && l.b.d.chance(l.b.c.tune.diskFaults) {
		err := l.fail(errors.New("sim: the disk fails"))
		l.b.c.elect(l.p, l.b.id) // it reads its log again
		return err
	}
	err = l.commit(e.last)
	if t != nil && err == nil {
		l.b.c.m.commits(t, tp{l.p.topic, l.p.number}, e.base)
	}
	return err
}

// note keeps up whose records have no marker yet, and returns the transaction that
// a marker commits.
func (l *lead) note(e entry) *txn {
	id, m := e.h.Producer.ID, l.b.c.m
	if !e.h.Control {
		if t := m.transactional(valueOf(e.raw)); t != nil {
			l.open[id] = t
		}
		return nil
	}
	t := l.open[id]
	delete(l.open, id)
	if mk, _, err := markers.ParseControlBatch(e.raw); err == nil && mk.Commit {
		return t
	}
	return nil
}

// publish shows the rest of the cluster what is on its way.
func (l *lead) publish(e entry) {
	l.b.c.mu.Lock()
	defer l.b.c.mu.Unlock()
	if l.p.epoch == l.epoch {
		l.p.tail = append(l.p.tail, e)
	}
}

// commit makes all that is under way durable, up to an offset.
func (l *lead) commit(to int64) error {
	c := l.b.c
	c.mu.Lock()
	if l.p.epoch != l.epoch || l.b.dead.Load() {
		c.mu.Unlock()
		return l.fail(errors.New("sim: another broker leads it"))
	}
	n := 0
	for n < len(l.p.tail) && l.p.tail[n].last <= to {
		n++
	}
	l.p.batches = append(l.p.batches, l.p.tail[:n]...)
	l.p.tail = slices.Clone(l.p.tail[n:])
	c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if to+1 > l.high {
		l.high = to + 1
		l.state.Stabilize(l.high)
		close(l.more)
		l.more = make(chan struct{})
	}
	return nil
}

func storageError(err error) error {
	return txnstate.CodeKafkaStorageError.Errorf("", "not written: %w", err)
}

func (l *lead) fail(err error) error {
	l.mu.Lock()
	if l.failed == nil {
		l.failed = storageError(err)
		close(l.more)
	}
	f := l.failed
	l.mu.Unlock()
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.b.leads[l.p] == l {
		delete(l.b.leads, l.p)
	}
	return f
}

// Durable is wire.Log's.
func (l *lead) Durable(ctx context.Context, offset int64) error {
	for {
		l.mu.Lock()
		high, failed, more := l.high, l.failed, l.more
		l.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case offset < high:
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fetch answers what the leader has.
func (b *broker) fetch(req *kmsg.FetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		x := kmsg.NewFetchResponseTopic()
		x.Topic = t.Topic
		for _, p := range t.Partitions {
			y := kmsg.NewFetchResponseTopicPartition()
			y.Partition = p.Partition
			if l, err := b.lead(t.Topic, p.Partition); err != nil {
				y.ErrorCode = int16(txnstate.CodeOf(err))
			} else {
				l.fetch(&y, p.FetchOffset, int(p.PartitionMaxBytes), req.IsolationLevel == 1)
			}
			x.Partitions = append(x.Partitions, y)
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp
}

func (l *lead) fetch(y *kmsg.FetchResponseTopicPartition, from int64, size int, committed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	y.HighWatermark, y.LastStableOffset = l.high, l.state.LastStable(l.high)
	bound := l.high
	if committed {
		bound = y.LastStableOffset
	}
	next := from
	for _, e := range l.all {
		if e.last < from || e.base >= bound || len(y.RecordBatches) > 0 && len(y.RecordBatches)+len(e.raw) > size {
			continue
		}
		if e.base != next {
			break
		}
		y.RecordBatches = append(y.RecordBatches, e.raw...)
		next = e.last + 1
	}
	if committed && next > from {
		for _, a := range l.state.Aborted(from, next) {
			z := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
			z.ProducerID, z.FirstOffset = a.ProducerID, a.First
			y.AbortedTransactions = append(y.AbortedTransactions, z)
		}
	}
}

// offsetsPart is one partition of __consumer_offsets.
type offsetsPart struct {
	unit // under parts.mu
	log  *offsets.MemLog
}

// offsetsLog is the log of group offsets, as one broker writes it.
type offsetsLog struct{ b *broker }

func (o offsetsLog) mine(p int32) (*offsetsPart, error) {
	if err := o.b.hold(); err != nil {
		return nil, err
	}
	o.b.c.mu.Lock()
	defer o.b.c.mu.Unlock()
	part := o.b.c.offs[p]
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if part == nil || part.owner != o.b.id || part.epoch != o.b.loaded[p] {
		return nil, txnstate.ErrNotCoordinator
	}
	return part, nil
}

func (o offsetsLog) write(ctx context.Context, p int32, f func(*offsetsPart) error) error {
	part, err := o.mine(p)
	if err != nil {
		return err
	}
	fault := !o.b.c.w.calm.Load() && o.b.d.chance(o.b.c.tune.diskFaults)
	if fault && o.b.d.chance(0.5) {
		return errors.New("sim: not written")
	}
	if err := f(part); err != nil {
		return err
	}
	if fault {
		return errors.New("sim: written, and nobody says so")
	}
	return o.b.gate()
}

func (o offsetsLog) Append(ctx context.Context, p int32, es [][]byte) error {
	return o.write(ctx, p, func(part *offsetsPart) error { return part.log.Append(context.Background(), p, es) })
}

func (o offsetsLog) Rewrite(ctx context.Context, p int32, es [][]byte) error {
	return o.write(ctx, p, func(part *offsetsPart) error { return part.log.Rewrite(context.Background(), p, es) })
}

func (o offsetsLog) Replay(ctx context.Context, p int32, f func([]byte) error) error {
	if err := o.b.hold(); err != nil {
		return err
	}
	o.b.c.mu.Lock()
	part := o.b.c.offs[p]
	if part == nil || part.owner != o.b.id {
		o.b.c.mu.Unlock()
		return txnstate.ErrNotCoordinator
	}
	o.b.mu.Lock()
	o.b.loaded[p] = part.epoch
	o.b.mu.Unlock()
	o.b.c.mu.Unlock()
	return part.log.Replay(ctx, p, f)
}

// coordinates reports whether a broker has an offsets partition, and has loaded
// it since it got it.
func (b *broker) coordinates(p int32) bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.c.offs[p]
	return o != nil && o.owner == b.id && o.epoch == b.loaded[p]
}

// gated is a store that takes its time, does nothing for the dead, and tells the
// story.
type gated struct {
	b    *broker
	s    *storetest.Faulty
	slow bool // the store below takes its time itself
}

var (
	_ txnstate.LaterNow = gated{}
	_ txnstate.Starter  = gated{}
	_ txnstate.Flusher  = gated{}
	_ txnstate.Dropper  = dropping{}
)

func uncertain(err error) error { return errors.Join(txnstate.ErrUncertain, err) }

func (g gated) hold() error {
	if g.slow {
		return g.b.gate()
	}
	return g.b.hold()
}

func (g gated) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if err := g.hold(); err != nil {
		return txnstate.Record{}, err
	}
	return g.s.Load(context.WithoutCancel(ctx), id)
}

func (g gated) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	switch {
	case next.State.Decided():
		g.b.pass(atDecision, next.TxnID)
	case d == txnstate.Later:
		g.b.pass(atCompletion, next.TxnID)
	}
	if err := g.hold(); err != nil {
		return 0, uncertain(err)
	}
	if g.b.rendezvous(next.TxnID) {
		return 0, uncertain(storetest.ErrFault)
	}
	v, err := g.s.Swap(context.WithoutCancel(ctx), next, d)
	g.told(next, err)
	if err == nil && next.State.Decided() {
		g.b.pass(atDecided, next.TxnID)
	}
	if e := g.hold(); e != nil {
		return 0, uncertain(e)
	}
	return v, err
}

func (g gated) told(next txnstate.Record, err error) {
	if err == nil {
		g.b.c.w.log(g.b.name, "%s: stored %s", next.TxnID, next)
	} else {
		g.b.c.w.log(g.b.name, "%s: not stored %s: %v", next.TxnID, next, err)
	}
}

// now reports whether a call that must not wait may be made.
func (g gated) now() bool {
	g.b.mu.Lock()
	paused := g.b.paused != nil
	g.b.mu.Unlock()
	return !paused && !g.b.dead.Load() && !g.slow && g.b.c.tune.direct && !g.b.d.chance(0.3)
}

// LoadNow is txnstate.Starter's.
func (g gated) LoadNow(id string) (txnstate.Record, bool) {
	if !g.now() {
		return txnstate.Record{}, false
	}
	return g.b.c.mem.LoadNow(id)
}

// begun is a write whose end is waited for.
type begun struct {
	done chan struct{}
	err  error
}

func (p *begun) Done() <-chan struct{} { return p.done }
func (p *begun) Err() error            { return p.err }

// SwapStart is txnstate.Starter's. What is written is there for others to see
// before it is said to be done.
func (g gated) SwapStart(next txnstate.Record) (txnstate.Version, txnstate.Pending, bool) {
	if !g.now() {
		return 0, nil, false
	}
	v, _, ok := g.b.c.mem.SwapStart(next)
	if !ok {
		return 0, nil, false
	}
	g.told(next, nil)
	p := &begun{done: make(chan struct{})}
	g.b.c.running.Go(func() {
		defer close(p.done)
		if next.State.Decided() {
			g.b.pass(atDecided, next.TxnID)
		}
		err := g.hold()
		if err == nil && !g.b.c.w.calm.Load() && g.b.d.chance(g.b.c.tune.storeFaults) {
			err = storetest.ErrFault
		}
		if err != nil {
			p.err = uncertain(err)
		}
	})
	return v, p, true
}

// SwapNow is txnstate.LaterNow's.
func (g gated) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	if !g.now() {
		return 0, false
	}
	v, ok := g.b.c.mem.SwapNow(next)
	if ok {
		g.told(next, nil)
	}
	return v, ok
}

// Flush is txnstate.Flusher's.
func (g gated) Flush(ctx context.Context) error {
	if err := g.b.gate(); err != nil {
		return err
	}
	return g.s.Flush(context.WithoutCancel(ctx))
}

// dropping is a gated store that gives Later writes up.
type dropping struct{ gated }

// Dropped is txnstate.Dropper's.
func (d dropping) Dropped() []string { return d.s.Dropped() }

func (g gated) Delete(ctx context.Context, id string, old txnstate.Version) error {
	if err := g.hold(); err != nil {
		return uncertain(err)
	}
	err := g.s.Delete(context.WithoutCancel(ctx), id, old)
	if err == nil || errors.Is(err, txnstate.ErrUncertain) {
		g.b.c.m.expired(id) // who has lost the slot meanwhile tells nobody
	}
	if e := g.hold(); e != nil {
		return uncertain(e)
	}
	return err
}

func (g gated) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if err := g.hold(); err != nil {
			yield(txnstate.Record{}, err)
			return
		}
		c := g.b.c
		c.mu.Lock()
		half := c.half[slot] && !c.w.calm.Load()
		delete(c.half, slot)
		c.mu.Unlock()
		for r, err := range g.s.Slot(context.WithoutCancel(ctx), slot) {
			if !yield(r, err) {
				return
			}
			if half {
				yield(txnstate.Record{}, storetest.ErrFault)
				return
			}
		}
	}
}
