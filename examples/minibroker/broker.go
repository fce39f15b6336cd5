package minibroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// Broker is one Kafka-compatible broker, a whole cluster by itself or one of
// several that share a directory. Its methods may be called concurrently.
type Broker struct {
	cfg   Config
	apis  map[int16]api
	moved atomic.Int64 // how far Advance has moved the clock

	ready chan struct{} // closed when what follows is set
	ran   atomic.Bool

	cluster     *cluster // nil: this broker is alone
	topics      *topics
	acls        *acls // nil with Config.Authorizer
	auth        wire.Authorizer
	offsets     *kxoffsets.Manager
	groups      *groups
	coordinator *txnstate.Coordinator
	dispatcher  *markers.Dispatcher
	gate        *gate
	reaper      *reaper.Reaper
	handler     *wire.Handler
	server      *server
	addr        net.Addr
}

// New makes a Broker. It opens nothing and starts nothing: Run does.
func New(cfg Config) (*Broker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg.withDefaults(), ready: make(chan struct{})}
	b.apis = b.ownAPIs()
	return b, nil
}

// now is the broker's time.
func (b *Broker) now() time.Time { return b.cfg.Now().Add(time.Duration(b.moved.Load())) }

// Ready is closed when Run accepts connections and requests.
func (b *Broker) Ready() <-chan struct{} { return b.ready }

// isReady reports whether Run has opened the broker.
func (b *Broker) isReady() bool {
	select {
	case <-b.ready:
		return true
	default:
		return false
	}
}

var errNotRunning = errors.New("minibroker: the broker is not running")

// Addr is the address of the listener, nil before Ready and without one.
func (b *Broker) Addr() net.Addr {
	if !b.isReady() {
		return nil
	}
	return b.addr
}

// advertised is the address that clients are told.
func (b *Broker) advertised() (host string, port int32) {
	addr := b.cfg.Advertise
	if addr == "" && b.addr != nil {
		addr = b.addr.String()
	}
	host, port, err := splitHostPort(addr)
	if err != nil {
		return "minibroker", 9092 // nothing listens: clients of Serve bring their own way here
	}
	return host, port
}

// Start runs a Broker and returns when it is ready. stop ends it, waits until
// nothing of it is left, and returns what Run returned; it may be called again.
// The end of ctx stops it too.
func Start(ctx context.Context, cfg Config) (b *Broker, stop func() error, err error) {
	if b, err = New(cfg); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	select {
	case <-b.ready:
		return b, stop, nil
	case err = <-done:
		done <- err
		err = stop()
		if err == nil {
			err = context.Cause(ctx) // it ended before the broker was ready
		}
		return nil, nil, err
	}
}

// Run opens the broker and serves until ctx is done; then it ends connections and
// requests, makes durable what is not yet, and returns nil. It may be called once.
func (b *Broker) Run(ctx context.Context) error {
	if b.ran.Swap(true) {
		return errors.New("minibroker: Run was called before")
	}
	var disk *dir
	if b.cfg.Cluster == nil {
		var err error
		if disk, err = openDir(b.cfg); err != nil {
			return err
		}
		defer disk.close()
	}
	if err := b.open(ctx, disk); err != nil {
		if b.offsets != nil {
			_ = b.offsets.Close(ctx) // the first error tells more
		}
		return err
	}
	defer b.topics.close()
	if b.cluster != nil {
		defer b.cluster.close()
	}

	var listener net.Listener
	var err error
	if b.cfg.Listen != "" {
		if listener, err = net.Listen("tcp", b.cfg.Listen); err != nil {
			return fmt.Errorf("minibroker: %w", err)
		}
		b.addr = listener.Addr()
	}

	// Requests end first, and with them the need for what answers them. Closing
	// the offsets manager waits for its writes.
	serve, stopServing := context.WithCancelCause(ctx)
	defer stopServing(nil)
	work, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	var background errgroup.Group
	run := func(f func(context.Context) error) {
		background.Go(func() error {
			err := f(work)
			if err != nil {
				stopServing(err)
			}
			return err
		})
	}
	b.server = newServer(b, serve)
	if c := b.cluster; c != nil {
		run(c.run)
		for _, f := range c.runs {
			run(f)
		}
	}
	run(b.coordinator.Run)
	run(b.dispatcher.Run)
	run(func(ctx context.Context) error { return b.reaper.Run(ctx, b.coordinator) })
	run(b.housekeep)
	err = b.accept(serve, listener)
	stopServing(err)
	// A request may wait for markers that nobody can apply.
	late := time.AfterFunc(lastRequests, stopWorking)
	b.server.wait()
	late.Stop()
	stopWorking()
	err = errors.Join(err, background.Wait())
	return errors.Join(err, b.offsets.Close(context.WithoutCancel(ctx)))
}

// accept makes the broker ready when its transactional ids are loaded, and serves
// until ctx is done or the listener, which may be nil, fails.
func (b *Broker) accept(ctx context.Context, l net.Listener) error {
	select {
	case <-b.coordinator.Ready():
	case <-ctx.Done():
	}
	if c := b.cluster; c != nil {
		select {
		case <-c.settled:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		if l != nil {
			_ = l.Close()
		}
		return nil
	}
	close(b.ready)
	if l == nil {
		<-ctx.Done()
		return nil
	}
	b.cfg.Logger.Info("accepting connections", "addr", b.addr.String(), "node", b.cfg.NodeID)
	err := b.server.serve(l)
	if ctx.Err() != nil {
		return nil // it was closed for that
	}
	return err
}

// Serve accepts connections of a listener, besides the one of Config.Listen,
// until Run ends or the listener fails; it closes the listener. It returns nil
// where Run has ended. Call it when the broker is Ready.
func (b *Broker) Serve(l net.Listener) error {
	if !b.isReady() {
		_ = l.Close()
		return errNotRunning
	}
	return b.server.serve(l)
}

// Handle answers one request of who, as if it had come in by a connection.
// wire.ErrClose is what a connection would be closed for. A nil answer without
// an error is the one to a produce request that wants none.
func (b *Broker) Handle(ctx context.Context, req kmsg.Request, who wire.Principal) (kmsg.Response, error) {
	if !b.isReady() {
		return nil, errNotRunning
	}
	if req == nil {
		return nil, wire.ErrClose
	}
	if c := b.cluster; c != nil {
		if req.Key() == int16(kmsg.WriteTxnMarkers) {
			defer c.arrived()()
		}
		// What another broker has answered before is known here too.
		if err := c.refresh(); err != nil {
			b.cfg.Logger.Warn("changes of topics and access rules not read", "err", err)
		}
	}
	if a, ok := b.apis[req.Key()]; ok {
		if v := req.GetVersion(); v < a.min || v > a.max {
			return nil, wire.ErrClose
		}
		return a.handle(ctx, who, req)
	}
	return b.handler.Handle(ctx, req, who)
}

// open puts the parts together.
func (b *Broker) open(ctx context.Context, disk *dir) (err error) {
	cfg := b.cfg
	if cfg.Cluster != nil {
		return b.openCluster()
	}
	var files, logs fsx.FS // nil: in memory
	if disk != nil {
		files, logs = cfg.FS, disk.files
	}
	b.topics, err = openTopics(logs, filepath.Join(cfg.Dir, "topics"), cfg)
	if err != nil {
		return fmt.Errorf("minibroker: %w", err)
	}
	defer func() {
		if err != nil {
			b.topics.close()
		}
	}()
	for name, n := range cfg.Topics {
		if b.topics.get(name) != nil {
			continue
		}
		if _, err := b.topics.create(name, n, false); err != nil {
			return err
		}
	}
	if b.auth = cfg.Authorizer; b.auth == nil {
		if b.acls, err = openACLs(files, filepath.Join(cfg.Dir, "acls.json")); err != nil {
			return fmt.Errorf("minibroker: %w", err)
		}
		b.auth = b.acls.rules
	}
	log, err := disk.offsetsLog(cfg)
	if err != nil {
		return err
	}
	if err := b.openGroups(log); err != nil {
		return err
	}
	if err := b.offsets.Load(ctx); err != nil {
		return err
	}
	store, ids, err := disk.transactions(cfg)
	if err != nil {
		return err
	}
	return b.openTransactions(store, ids, disk.epoch())
}

// openGroups makes what knows of groups; nothing is loaded.
func (b *Broker) openGroups(log kxoffsets.Log) (err error) {
	cfg := b.cfg
	b.offsets, err = kxoffsets.New(kxoffsets.Config{Log: log, Now: b.now, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	b.groups = &groups{
		now: b.now, delay: cfg.RebalanceDelay, limit: cfg.Limits.Groups, maxMembers: cfg.Limits.GroupMembers,
		offsets: b.offsets, byID: map[string]*group{},
	}
	return nil
}

// openTransactions puts together the parts of the library that know what a
// transaction is.
func (b *Broker) openTransactions(store txnstate.Store, ids txnstate.ProducerIDs, epoch int32) error {
	cfg := b.cfg
	local, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: b.topics, Leader: b.topics, Offsets: b.offsets, Alone: b.cluster == nil, Now: b.now, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	var sink markerSink = local
	var ownership txnstate.Ownership
	var fencer txnstate.Fencer = b.topics
	if c := b.cluster; c != nil {
		if sink, err = c.openSink(local); err != nil {
			return err
		}
		ownership, fencer = c.lease, c
	}
	if cfg.KafkaFencing {
		fencer = nil
	}
	b.gate = &gate{markerSink: sink}
	b.dispatcher, err = markers.NewDispatcher(markers.Config{Leaders: b.topics, Sink: b.gate, StopOnFencedEpoch: cfg.StopOnFencedEpoch, Observer: cfg.Deliveries, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	b.reaper = reaper.New(reaper.Config{Every: cfg.AbortInterval, Now: b.now, Logger: cfg.Logger})
	b.coordinator, err = txnstate.New(txnstate.Config{
		Store: store, ProducerIDs: ids, Dispatcher: b.dispatcher, Deadlines: b.reaper, Fencer: fencer,
		Ownership: ownership, CoordinatorEpoch: epoch, TransactionVersion: cfg.TransactionVersion, TwoPhaseCommit: cfg.TwoPhaseCommit,
		RetriesAsKafka: cfg.RetriesAsKafka, EndWait: cfg.EndWait, ExpireAfter: cfg.ExpireAfter, Observer: cfg.Observer, Now: b.now, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	var verifier wire.Verifier // nil: the coordinator
	if c := b.cluster; c != nil {
		if verifier, err = c.openVerifier(b.coordinator); err != nil {
			return err
		}
	}
	b.handler, err = wire.New(wire.Config{
		Topics: b.topics, Coordinator: b.coordinator, Leader: b.topics, Offsets: b.offsets, Groups: b.groups,
		FindCoordinator: b.findCoordinator, Verifier: verifier,
		Authorizer: b.auth, TwoPhaseCommit: cfg.TwoPhaseCommit, Now: b.now, Logger: cfg.Logger,
	})
	return err
}

// lastRequests is how long requests have to end by themselves when the service
// does.
const lastRequests = time.Second

// Intervals of housekeeping.
const (
	groupTick     = 50 * time.Millisecond
	expiryChecks  = 10 * time.Minute   // producer.id.expiration.check.interval.ms, offsets.retention.check.interval.ms
	keepOffsets   = 7 * 24 * time.Hour // offsets.retention.minutes
	keepIdleGroup = 10 * time.Minute
)

// housekeep does what time makes due in groups and partitions.
func (b *Broker) housekeep(ctx context.Context) error {
	tick := time.NewTicker(groupTick)
	defer tick.Stop()
	next := b.now().Add(expiryChecks)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := b.now()
		b.groups.tick(now)
		if now.Before(next) {
			continue
		}
		next = now.Add(expiryChecks)
		b.expire(ctx, now)
	}
}

// expire forgets what has not been used for long: producers at partitions,
// offsets of groups without members, and those groups.
func (b *Broker) expire(ctx context.Context, now time.Time) {
	b.topics.eachLog(func(l *partitionLog) { l.expire(now.UnixMilli()) })
	if err := b.groups.expire(ctx, now); err != nil {
		b.cfg.Logger.Warn("offsets not expired, is tried again", "err", err)
	}
}
