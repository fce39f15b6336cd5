package minibroker

import (
	"context"
	"slices"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/fence/feed"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// peers are connections to other brokers with a time limit for each request.
func (c *cluster) peers(limit time.Duration) wire.PeerConfig {
	return wire.PeerConfig{Dial: c.b.cfg.Dial, ClientID: c.peerID, DialTimeout: limit, RequestTimeout: limit}
}

// How long a broker waits for another. A question is asked again soon: what its
// coordinator has died of is noticed here. A marker is not sent a second time
// before a leader that was stopped with the first in its hands has lost its
// lease, and with it the partition, for the second may be followed by the next
// transaction. To a leader that is known to be dead nobody waits, see livingSink.
func (c *cluster) askLimit() time.Duration  { return max(c.b.cfg.Lease, time.Second) }
func (c *cluster) sendLimit() time.Duration { return max(3*c.b.cfg.Lease, 3*time.Second) }

// inboxEvery is how often brokers look for files of one another. A commit waits
// for two such looks.
const inboxEvery = 25 * time.Millisecond

// openSink is what takes markers to all brokers: local applies this one's.
func (c *cluster) openSink(local *wire.LocalSink) (markerSink, error) {
	cfg := c.b.cfg
	self := markers.Target(cfg.NodeID)
	if cfg.Markers == MarkersQueue {
		r, err := queue.NewReceiver(queue.ReceiverConfig{Dir: cfg.Dir, Self: self, Apply: arrivalSink{local, c}, Poll: inboxEvery, FS: cfg.FS, Now: c.b.now, Logger: cfg.Logger})
		if err != nil {
			return nil, err
		}
		s, err := queue.NewSink(queue.SinkConfig{Dir: cfg.Dir, Self: self, Local: local, Poll: inboxEvery, FS: cfg.FS, Logger: cfg.Logger})
		if err != nil {
			return nil, err
		}
		c.runs = append(c.runs, r.Run, s.Run)
		return &livingSink{markerSink: s, c: c}, nil
	}
	s, err := wire.NewRPCSink(wire.RPCSinkConfig{
		Addr: func(to markers.Target) (string, bool) {
			addr, ok := cfg.Cluster[int32(to)]
			return addr, ok
		},
		Local: local, Self: self, Peers: c.peers(c.sendLimit() + time.Second), Patience: c.sendLimit(), Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	c.runs = append(c.runs, s.Run)
	return &livingSink{markerSink: s, c: c}, nil
}

// livingSink calls a delivery off when the broker that it is for is dead: its
// successor is to have it, and soon.
type livingSink struct {
	markerSink
	c *cluster
}

func (s *livingSink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	if int32(to) == s.c.b.cfg.NodeID {
		return s.markerSink.WriteMarkers(ctx, to, ds)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		for {
			changed := s.c.lease.Changed()
			if !slices.Contains(s.c.lease.Alive(), int32(to)) {
				cancel()
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	out := s.markerSink.WriteMarkers(ctx, to, ds)
	cancel()
	<-watch
	return out
}

// openVerifier is what asks the coordinators of transactional ids.
func (c *cluster) openVerifier(local *txnstate.Coordinator) (wire.Verifier, error) {
	cfg := c.b.cfg
	v, err := wire.NewRPCVerifier(wire.RPCVerifierConfig{
		Coordinator: func(txnID string) (addr string, local, ok bool) {
			id := c.ownerOf(txnstate.Slot(txnID))
			if id == cfg.NodeID {
				return "", true, true
			}
			addr, ok = cfg.Cluster[id]
			return addr, false, ok
		},
		Local: wire.LocalVerifier{Coordinator: local}, Peers: c.peers(c.askLimit()), Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	c.runs = append(c.runs, v.Run)
	return v, nil
}

// openFences makes what tells other brokers that producers are fenced.
func (c *cluster) openFences() (err error) {
	cfg := c.b.cfg
	if cfg.KafkaFencing {
		return nil
	}
	c.writer, err = feed.NewWriter(feed.WriterConfig{Dir: cfg.Dir, Self: cfg.NodeID, FS: cfg.FS, Now: c.b.now, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	c.reader, err = feed.NewReader(feed.ReaderConfig{
		Dir: cfg.Dir, Offer: func(p txnstate.Producer) { c.fenceHere(p) }, Poll: every, FS: cfg.FS, Now: c.b.now, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	c.runs = append(c.runs, c.writer.Run, c.reader.Run)
	return nil
}

// Fence is txnstate.Fencer's.
func (c *cluster) Fence(ctx context.Context, p txnstate.Producer) error {
	c.fenceHere(p)
	return c.writer.Fence(ctx, p)
}

// fenceHere fences a producer at what this broker leads.
func (c *cluster) fenceHere(p txnstate.Producer) {
	c.b.topics.eachLog(func(l *partitionLog) {
		l.With(func(fp *fence.Partition) { fp.Fence(p) })
	})
	_ = c.b.offsets.Fence(c.ctx, p) // never fails
}

// fenced are the fences that a log has to hear of that is taken over.
func (c *cluster) fenced() []txnstate.Producer {
	if c.reader == nil {
		return nil
	}
	// What comes between this and the log's service is offered again.
	c.reader.Reoffer()
	return c.reader.Known()
}

var _ txnstate.Fencer = (*cluster)(nil)
