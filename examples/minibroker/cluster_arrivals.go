package minibroker

import (
	"context"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/wire"
)

// arrivals are the markers from other brokers that are being applied.
//
// Under protocol 1 the next transaction of a producer has the same epoch, so that
// a partition can't tell a marker that is late from one that is due. A marker is
// late where this process was stopped with it in its hands: it lost the partition,
// its sender went to the next leader, and the transaction has ended long since. As
// long as this process leads at the old epoch the log refuses it. So before a
// partition is taken over, what arrived before has to be done with; and a process
// that finds that it was stopped waits until it has read what lies in its
// connections.
type arrivals map[chan struct{}]struct{}

// slept reports whether this process was stopped a moment ago. c.mu is held.
func (c *cluster) slept() bool {
	now := time.Now()
	if now.Sub(c.awake) > max(c.patience(), 5*every) {
		c.rested = now.Add(c.patience())
	}
	c.awake = now
	return now.Before(c.rested)
}

// arrived books markers that have come in; end says that they are done with.
func (c *cluster) arrived() (end func()) {
	done := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals[done] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.arrivals, done)
		close(done)
	}
}

// awaitArrivals returns when what has arrived before is done with.
func (c *cluster) awaitArrivals() error {
	c.mu.Lock()
	before := make([]chan struct{}, 0, len(c.arrivals))
	for done := range c.arrivals {
		before = append(before, done)
	}
	c.mu.Unlock()
	for _, done := range before {
		select {
		case <-done:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	return nil
}

// arrivalSink applies markers that come by the queue.
type arrivalSink struct {
	*wire.LocalSink
	c *cluster
}

func (s arrivalSink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	defer s.c.arrived()()
	return s.LocalSink.WriteMarkers(ctx, to, ds)
}
