package minibroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Advance moves the broker's clock on by d and does what that has made due:
// transactions that outlive their timeout are aborted, ids and members expire.
// It returns when these are decided; markers may still be on their way.
func (b *Broker) Advance(ctx context.Context, d time.Duration) error {
	if !b.isReady() {
		return errNotRunning
	}
	b.moved.Add(int64(d))
	now := b.now()
	b.reaper.Reap(ctx, b.coordinator, now)
	b.groups.tick(now)
	b.expire(ctx, now)
	return ctx.Err()
}

// HoldMarkers keeps the markers of transactions back from partitions and groups,
// as if their brokers could not be reached: transactions are decided, and stay
// in PrepareCommit or PrepareAbort. release lets them go. Several holds add up.
// Markers that a client sends by WriteTxnMarkers are not held.
func (b *Broker) HoldMarkers() (release func()) {
	if !b.isReady() {
		return func() {}
	}
	return b.gate.hold()
}

// Fence lets somebody else take over a transactional id: the open transaction is
// aborted, and its holder meets PRODUCER_FENCED. The id must be known.
func (b *Broker) Fence(ctx context.Context, txnID string) error {
	if !b.isReady() {
		return errNotRunning
	}
	rec, err := b.coordinator.Describe(ctx, txnID)
	if err != nil {
		return err
	}
	ev := txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: rec.TimeoutMs, TwoPhase: rec.TwoPhase}
	for {
		_, err := b.coordinator.Init(ctx, txnID, ev)
		if !errors.Is(err, txnstate.ErrConcurrentTransactions) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond): // until the markers are applied
		}
	}
}

// TimeOut aborts the open transaction of an id as if its timeout had passed.
// INVALID_TXN_STATE where none is open.
func (b *Broker) TimeOut(ctx context.Context, txnID string) error {
	if !b.isReady() {
		return errNotRunning
	}
	return b.coordinator.ForceAbort(ctx, txnID)
}

// Expire removes an id as if it had not been used for longer than ids are kept.
// It fails where the id has an open transaction.
func (b *Broker) Expire(ctx context.Context, txnID string) error {
	if !b.isReady() {
		return errNotRunning
	}
	rec, err := b.coordinator.Describe(ctx, txnID)
	if err != nil {
		return err
	}
	if rec.State == txnstate.Ongoing || rec.State.Decided() {
		return fmt.Errorf("minibroker: transactional id %q has an open transaction: %s", txnID, rec.State)
	}
	const centuries = 200 * 365 * 24 * time.Hour
	return b.coordinator.Expire(ctx, txnID, b.now().Add(centuries))
}

// markerSink is what markers go to.
type markerSink interface {
	markers.Sink
	markers.OpenChecker
}

// gate stands before the sink of markers, and can be shut.
type gate struct {
	markerSink

	mu    sync.Mutex
	holds int
	open  chan struct{} // not nil while shut; closed by the last release
}

var (
	_ markers.Sink        = (*gate)(nil)
	_ markers.OpenChecker = (*gate)(nil)
)

func (g *gate) hold() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holds++; g.holds == 1 {
		g.open = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.holds--; g.holds == 0 {
			close(g.open)
			g.open = nil
		}
	})
}

// WriteMarkers is the sink's, once the gate is open.
func (g *gate) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if open != nil {
		select {
		case <-open:
		case <-ctx.Done():
			return make([]markers.Result, len(ds)) // Retry
		}
	}
	return g.markerSink.WriteMarkers(ctx, to, ds)
}
