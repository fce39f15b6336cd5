package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic is wire.Topics'.
func (b *broker) Topic(name string) (wire.Topic, bool) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	t := b.c.topics[name]
	if t == nil {
		return wire.Topic{}, false
	}
	return t.wire(), true
}

// TopicByID is wire.Topics'.
func (b *broker) TopicByID(id [16]byte) (wire.Topic, bool) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	for _, t := range b.c.topics {
		if t.id == id {
			return t.wire(), true
		}
	}
	return wire.Topic{}, false
}

// Deleted is wire.TopicDeletions'.
func (b *broker) Deleted(topic string, _ int32) bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.c.gone[topic]
}

// Log is wire.Leader's.
func (b *broker) Log(topic string, partition int32) (wire.Log, error) {
	l, err := b.lead(topic, partition)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (b *broker) lead(topic string, partition int32) (*lead, error) {
	b.c.mu.Lock()
	t := b.c.topics[topic]
	var l *plog
	if t != nil && partition >= 0 && int(partition) < len(t.logs) {
		l = t.logs[partition]
	}
	b.c.mu.Unlock()
	if l == nil {
		return nil, txnstate.CodeUnknownTopicOrPartition.Errorf("", "no such partition")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.leads[l]; x != nil {
		return x, nil
	}
	return nil, txnstate.CodeNotLeaderOrFollower.Errorf("", "another broker leads it")
}

func (b *broker) dropLeads(ls []*plog) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range ls {
		delete(b.leads, l)
	}
}

// Leader is markers.LeaderResolver's: what this broker has heard, which may be old.
func (b *broker) Leader(p txnstate.Participant) (markers.Target, markers.Standing) {
	w := p.Wire()
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if n, ok := w.Offsets(); ok {
		if o := b.c.offs[n]; o != nil && o.owner >= 0 {
			return markers.Target(o.owner), markers.Known
		}
		return 0, markers.Unknown
	}
	t := b.c.topics[w.Name]
	switch {
	case t == nil && b.c.gone[w.Name]:
		return 0, markers.Gone
	case t == nil || int(w.Index) >= len(t.logs) || t.logs[w.Index].owner < 0:
		return 0, markers.Unknown
	}
	l := t.logs[w.Index]
	return markers.Target(l.heard(b.id)), markers.Known
}

func (b *broker) findCoordinator(_ context.Context, kind int8, key string) (int32, string, int32, error) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	owner := -1
	if kind == 0 {
		if o := b.c.offs[txnstate.OffsetsPartition(key)]; o != nil {
			owner = o.owner
		}
	} else if u := b.c.slots[txnstate.Slot(key)]; u != nil {
		owner = u.heard(b.id)
	} else {
		owner = b.id // of a producer without a transactional id
	}
	if owner < 0 {
		return -1, "", -1, txnstate.ErrCoordinatorNotAvailable
	}
	return int32(owner), "sim", 9092, nil
}

func (b *broker) metadata(req *kmsg.MetadataRequest) kmsg.Response {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	for _, q := range req.Topics {
		x := kmsg.NewMetadataResponseTopic()
		x.Topic = q.Topic
		if t := b.c.topics[*q.Topic]; t == nil {
			x.ErrorCode = int16(txnstate.CodeUnknownTopicOrPartition)
		} else {
			for _, l := range t.logs {
				y := kmsg.NewMetadataResponseTopicPartition()
				y.Partition, y.Leader = l.number, int32(l.heard(b.id))
				x.Partitions = append(x.Partitions, y)
			}
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp
}

// Fence is txnstate.Fencer's: every broker is told, if the message arrives.
func (b *broker) Fence(_ context.Context, p txnstate.Producer) error {
	for i := range b.c.nodes() {
		b.c.running.Go(func() {
			_ = b.remote(b.ctx, i, nil, func(to *broker) error {
				to.mu.Lock()
				leads := make([]*lead, 0, len(to.leads))
				for _, l := range to.leads {
					leads = append(leads, l)
				}
				to.mu.Unlock()
				for _, l := range leads {
					l.With(func(fp *fence.Partition) { fp.Fence(p) })
				}
				return to.offsets.Fence(b.ctx, p)
			})
		})
	}
	return nil
}

// remote runs f at another broker, or at this one, as a request would.
func (b *broker) remote(ctx context.Context, to int, dropped func() bool, f func(*broker) error) error {
	if to == b.id {
		if err := b.gate(); err != nil {
			return err
		}
		return f(b)
	}
	n := b.c.w.calm.Load()
	if err := b.gate(); err != nil {
		return err
	}
	lost := !n && b.d.chance(0.02)
	unsaid := !n && b.d.chance(0.02)
	d := b.lag()
	back := b.lag()
	if lost {
		sleep(ctx, d+time.Second)
		return errLost
	}
	done := make(chan error, 1)
	b.c.running.Go(func() {
		time.Sleep(d)
		target := b.c.up(to)
		if target == nil {
			done <- errDown
			return
		}
		if err := target.gate(); err != nil {
			done <- errDown
			return
		}
		if dropped != nil && dropped() {
			done <- errLost
			return
		}
		err := f(target)
		if e := target.gate(); e != nil {
			err = errDown
		}
		time.Sleep(back)
		done <- err
	})
	select {
	case err := <-done:
		if unsaid {
			return errLost
		}
		if e := b.gate(); e != nil {
			return e
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ctx.Done():
		return errDead
	}
}

// verifier asks the coordinator of a transactional id, wherever it is.
type verifier struct{ b *broker }

func (v verifier) Verify(ctx context.Context, txnID string, p txnstate.Producer, ps []txnstate.Participant, mode fence.Mode) ([]txnstate.Code, error) {
	v.b.c.mu.Lock()
	owner := -1
	if u := v.b.c.slots[txnstate.Slot(txnID)]; u != nil {
		owner = u.heard(v.b.id)
	}
	v.b.c.mu.Unlock()
	if owner < 0 {
		return nil, txnstate.ErrCoordinatorNotAvailable
	}
	var mu sync.Mutex
	var codes []txnstate.Code
	wait, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := v.b.remote(wait, owner, nil, func(to *broker) error {
		cs, err := wire.LocalVerifier{Coordinator: to.coordinator}.Verify(to.ctx, txnID, p, ps, mode)
		if err == nil {
			to.pass(atVerified, txnID)
		}
		mu.Lock()
		defer mu.Unlock()
		codes = cs
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	var e *txnstate.Error
	switch {
	case err == nil:
		return codes, nil
	case errors.As(err, &e):
		return nil, e
	}
	return nil, txnstate.CodeNetworkException.Errorf(txnID, "no answer of the coordinator")
}

// sink sends markers to the broker that serves their participants.
type sink struct{ b *broker }

// WriteMarkers is markers.Sink's. A message may be lost, come twice, and come late:
// under protocol 1, where a marker that is late can't be told from one that is due,
// not later than its sender waits for it.
func (s sink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	s.b.c.sent(s.b, ds)
	s.b.pass(atMarkers, ds[0].TxnID)
	var over atomic.Bool
	defer over.Store(true)
	var mu sync.Mutex
	var got []markers.Result
	ds = slices.Clone(ds)
	err := s.b.remote(ctx, int(to), func() bool { return over.Load() && legacyMarkers(ds) }, func(b *broker) error {
		s.b.c.w.log(b.name, "markers of %s: %s", s.b.name, describe(ds))
		r := b.local.WriteMarkers(b.ctx, to, ds)
		b.pass(atApplied, ds[0].TxnID)
		s.b.c.w.log(b.name, "markers of %s: %v", s.b.name, r)
		mu.Lock()
		defer mu.Unlock()
		got = r
		return nil
	})
	if !s.b.c.w.calm.Load() && s.b.d.chance(0.05) && !legacyMarkers(ds) {
		again := s.b.d.skewed(20 * time.Second)
		s.b.c.running.Go(func() {
			if sleep(s.b.ctx, again) {
				_ = s.b.remote(s.b.ctx, int(to), nil, func(b *broker) error {
					s.b.c.w.log(b.name, "markers of %s, again: %s: %v", s.b.name, describe(ds), b.local.WriteMarkers(b.ctx, to, ds))
					return nil
				})
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if err != nil || got == nil {
		return make([]markers.Result, len(ds)) // Retry
	}
	return got
}

// received applies markers that came by a file, and tells the story.
type received struct{ b *broker }

func (r received) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	rs := r.b.local.WriteMarkers(ctx, to, ds)
	r.b.c.w.log(r.b.name, "markers from files: %s: %v", describe(ds), rs)
	return rs
}

func (r received) StillOpen(ctx context.Context, to markers.Target, d markers.Delivery) (bool, error) {
	return r.b.local.StillOpen(ctx, to, d)
}

func legacyMarkers(ds []markers.Delivery) bool {
	return slices.ContainsFunc(ds, func(d markers.Delivery) bool { return d.TransactionVersion < txnstate.TV2 })
}

func describe(ds []markers.Delivery) (s string) {
	for _, d := range ds {
		s += fmt.Sprintf("%s %s commit=%t at %d to %s; ", d.TxnID, d.Producer, d.Commit, d.CoordinatorEpoch, d.Participant)
	}
	return s
}

// StillOpen is markers.OpenChecker's.
func (s sink) StillOpen(ctx context.Context, to markers.Target, d markers.Delivery) (bool, error) {
	var mu sync.Mutex
	var open bool
	err := s.b.remote(ctx, int(to), nil, func(b *broker) error {
		o, err := b.local.StillOpen(b.ctx, to, d)
		mu.Lock()
		defer mu.Unlock()
		open = o
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	return open, err
}

// sent watches markers on their way out (I1): the decision must be in the store.
func (c *parts) sent(b *broker, ds []markers.Delivery) {
	if c.mem == nil {
		return
	}
	for _, d := range ds {
		rec, err := c.mem.Load(context.Background(), d.TxnID)
		if err != nil || !rec.State.Decided() || rec.Producer != d.Producer || rec.TxnSeq != d.TxnSeq {
			continue // an old one: the leader's to refuse
		}
		if commit := rec.State == txnstate.PrepareCommit; commit != d.Commit {
			c.w.fail("I1", "%s sends commit=%t of %s %s, and the store says %s", b.name, d.Commit, d.TxnID, d.Producer, rec.State)
		}
	}
}

func (c *parts) observer(b *broker) txnstate.Observer {
	o := txnstate.Observer{
		TimedOut: func(rec txnstate.Record) { c.w.log(b.name, "%s has timed out", rec.TxnID) },
		Expired: func(rec txnstate.Record) {
			c.w.log(b.name, "%s expires", rec.TxnID)
			c.m.expired(rec.TxnID)
		},
	}
	if !c.tune.direct {
		o.Transition = func(txnstate.State, txnstate.Record) {} // completions have a goroutine
	}
	return o
}
