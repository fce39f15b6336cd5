package markerstest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Cluster is participants, and which brokers serve them. A participant's log is
// as durable as the Cluster: it outlives the brokers' deaths and moves with the
// leadership, as one on shared or replicated storage does. Its methods may be
// called concurrently.
type Cluster struct {
	mu      sync.Mutex
	parts   map[txnstate.Participant]*participant
	leaders map[txnstate.Participant]markers.Target
	brokers map[markers.Target]*Broker
}

// NewCluster is a cluster that has nothing yet.
func NewCluster() *Cluster {
	return &Cluster{
		parts:   map[txnstate.Participant]*participant{},
		leaders: map[txnstate.Participant]markers.Target{},
		brokers: map[markers.Target]*Broker{},
	}
}

// participant is a log in memory with the producer state beside it.
type participant struct {
	mu     sync.Mutex
	state  *fence.Partition
	log    []Entry
	fates  []Fate
	always Fate
}

// Entry is one batch of a participant's log: data of a transaction, or a marker.
type Entry struct {
	Producer txnstate.Producer
	// Marker is nil for data. It has what a log has of a marker: neither the
	// transactional id nor the transaction version.
	Marker *markers.Marker
}

func (e Entry) String() string {
	switch {
	case e.Marker == nil:
		return "data " + e.Producer.String()
	case e.Marker.Commit:
		return fmt.Sprintf("commit %s by %d", e.Producer, e.Marker.CoordinatorEpoch)
	}
	return fmt.Sprintf("abort %s by %d", e.Producer, e.Marker.CoordinatorEpoch)
}

// Lead makes a broker serve participants, from this moment on and alone. One that
// is new begins with an empty log.
func (c *Cluster) Lead(at markers.Target, ps ...txnstate.Participant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range ps {
		p = p.Wire()
		if c.parts[p] == nil {
			c.parts[p] = &participant{state: fence.NewPartition(fence.Config{})}
		}
		c.leaders[p] = at
	}
}

// Leader is where a participant is served: it makes a Cluster the
// markers.LeaderResolver of a test.
func (c *Cluster) Leader(p txnstate.Participant) (markers.Target, markers.Standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, ok := c.leaders[p.Wire()]
	if !ok {
		return 0, markers.Unknown
	}
	return to, markers.Known
}

var _ markers.LeaderResolver = (*Cluster)(nil)

// Broker is the broker with an id.
func (c *Cluster) Broker(id markers.Target) *Broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.brokers[id]
	if b == nil {
		b = &Broker{c: c, id: id}
		b.life, b.die = context.WithCancel(context.Background())
		c.brokers[id] = b
	}
	return b
}

// part is a participant that was led once.
func (c *Cluster) part(p txnstate.Participant) *participant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[p.Wire()]
}

// Script sets what happens to the next attempts to append a marker to a
// participant, one fate each; then appends succeed, or meet what Always has set.
func (c *Cluster) Script(p txnstate.Participant, fates ...Fate) {
	q := c.part(p)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fates = append(q.fates, fates...)
}

// Always sets what happens to attempts that Script has nothing for; nil is success.
func (c *Cluster) Always(p txnstate.Participant, f Fate) {
	q := c.part(p)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.always = f
}

// Write appends data of an open transaction to a participant, whoever leads it.
func (c *Cluster) Write(p txnstate.Participant, by txnstate.Producer) {
	q := c.part(p)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state.Replay(fence.Batch{Producer: by, Records: 1, Transactional: true}, int64(len(q.log)), nil)
	q.log = append(q.log, Entry{Producer: by})
}

// Log is what a participant's log holds.
func (c *Cluster) Log(p txnstate.Participant) []Entry {
	q := c.part(p)
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Entry(nil), q.log...)
}

// Visible is what became of the data of a participant's log, as a reader sees
// it: of each batch its producer and "commit", "abort" or "open".
func (c *Cluster) Visible(p txnstate.Participant) []string {
	log := c.Log(p)
	var out []string
	for i, e := range log {
		if e.Marker != nil {
			continue
		}
		s := e.Producer.String() + " open"
		for _, later := range log[i+1:] {
			if m := later.Marker; m != nil && m.Producer.ID == e.Producer.ID {
				s = e.Producer.String() + " abort"
				if m.Commit {
					s = e.Producer.String() + " commit"
				}
				break
			}
		}
		out = append(out, s)
	}
	return out
}

// Broker is one broker of a Cluster. What a transport's receiving end hands
// deliveries to.
type Broker struct {
	c  *Cluster
	id markers.Target

	mu   sync.Mutex
	life context.Context // until the broker dies
	die  context.CancelFunc
}

var (
	_ markers.Sink        = (*Broker)(nil)
	_ markers.OpenChecker = (*Broker)(nil)
)

// ID is the broker's id.
func (b *Broker) ID() markers.Target { return b.id }

// Crash is the death of the broker's process, and the start of the next one:
// what is being appended and is not in the log yet never will be, and nothing
// under way is answered. The logs stay.
func (b *Broker) Crash() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.die()
	b.life, b.die = context.WithCancel(context.Background())
}

func (b *Broker) process() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life
}

// WriteMarkers applies each delivery by itself, as a leader does.
func (b *Broker) WriteMarkers(ctx context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	out := make([]markers.Result, len(ds))
	for i, err := range b.Apply(ctx, ds) {
		out[i] = markers.ResultOf(CodeOf(err))
	}
	return out
}

// Apply is WriteMarkers for transports that carry errors.
func (b *Broker) Apply(ctx context.Context, ds []markers.Delivery) []error {
	errs := make([]error, len(ds))
	lines := map[txnstate.Participant][]int{}
	for i, d := range ds {
		p := d.Participant.Wire()
		lines[p] = append(lines[p], i)
	}
	var all sync.WaitGroup
	for p, line := range lines {
		all.Go(func() {
			for _, i := range line {
				errs[i] = b.apply(ctx, p, ds[i].Marker)
			}
		})
	}
	all.Wait()
	return errs
}

func (b *Broker) apply(ctx context.Context, p txnstate.Participant, m markers.Marker) error {
	log, err := b.Log(p)
	if err != nil {
		return err
	}
	const now = 1_700_000_000_000
	return log.Append(ctx, markers.AppendControlBatch(nil, m, 0, 0, now), func(fp *fence.Partition, base int64) error {
		st, known := fp.Producer(m.Producer.ID)
		if err := markers.Decide(m, st, known); err != nil {
			return err
		}
		fp.Mark(m.Mark(now), base)
		return nil
	})
}

// StillOpen reports whether data of the delivery's producer id waits for a marker.
func (b *Broker) StillOpen(_ context.Context, _ markers.Target, d markers.Delivery) (bool, error) {
	log, err := b.Log(d.Participant)
	if err != nil {
		return false, err
	}
	open := false
	log.With(func(fp *fence.Partition) {
		st, known := fp.Producer(d.Producer.ID)
		open = known && st.Open
	})
	return open, nil
}

// CodeOf is the code of an error that Apply gives: that of a refusal, or
// KAFKA_STORAGE_ERROR.
func CodeOf(err error) txnstate.Code {
	var e *txnstate.Error
	switch {
	case err == nil:
		return txnstate.CodeNone
	case errors.As(err, &e):
		return e.Code
	}
	return txnstate.CodeKafkaStorageError
}

// Log is the log of a participant that the broker leads: a wire.Log, for
// transports that end in that package. Where it leads none, the error has the
// code that wire.Leader asks for.
func (b *Broker) Log(p txnstate.Participant) (*Log, error) {
	p = p.Wire()
	q := b.c.part(p)
	if q == nil {
		return nil, txnstate.CodeUnknownTopicOrPartition.Errorf("", "%s is not known", p)
	}
	l := &Log{b: b, life: b.process(), name: p, p: q}
	return l, l.leads()
}

// Log is a participant's log in the hands of one broker.
type Log struct {
	b    *Broker
	life context.Context
	name txnstate.Participant
	p    *participant
}

// leads refuses what a broker does that lost the participant, or died.
func (l *Log) leads() error {
	to, standing := l.b.c.Leader(l.name)
	switch {
	case l.life.Err() != nil:
		return errCrashed
	case standing != markers.Known || to != l.b.id:
		return txnstate.CodeNotLeaderOrFollower.Errorf("", "%s is led by %d, and not by %d", l.name, to, l.b.id)
	}
	return nil
}

// errCrashed is what is found out by nobody: the process is dead.
var errCrashed error = txnstate.CodeKafkaStorageError.Errorf("", "the broker's process has died")

// With runs f with the producer state, alone.
func (l *Log) With(f func(*fence.Partition)) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	f(l.p.state)
}

// Append appends a control batch, after what Script has in store for it.
func (l *Log) Append(ctx context.Context, batch []byte, admit func(p *fence.Partition, base int64) error) error {
	m, _, err := markers.ParseControlBatch(batch)
	if err != nil {
		return err
	}
	return l.Carry(ctx, func() error {
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		if err := admit(l.p.state, int64(len(l.p.log))); err != nil {
			return err
		}
		l.p.log = append(l.p.log, Entry{Producer: m.Producer, Marker: &m})
		return nil
	})
}

// Durable is of the contract of wire.Log. What is in the log is durable.
func (l *Log) Durable(context.Context, int64) error { return nil }

// Carry does to an append of another kind what Script says, for a participant
// whose log is elsewhere: apply is called where the append comes about, and
// with Record tells what it was.
func (l *Log) Carry(ctx context.Context, apply func() error) error {
	l.p.mu.Lock()
	fate := l.p.always
	if len(l.p.fates) > 0 {
		fate, l.p.fates = l.p.fates[0], l.p.fates[1:]
	}
	l.p.mu.Unlock()
	guarded := func() error {
		// A broker that was stopped and wakes up appends nothing any more: its
		// process is dead, or another broker leads.
		if err := l.leads(); err != nil {
			return err
		}
		return apply()
	}
	if fate == nil {
		return guarded()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	err := fate(ctx, guarded)
	if l.life.Err() != nil {
		return errCrashed
	}
	return err
}

// Record notes a marker that was applied to a log elsewhere; see Carry.
func (l *Log) Record(m markers.Marker) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.log = append(l.p.log, Entry{Producer: m.Producer, Marker: &m})
}
