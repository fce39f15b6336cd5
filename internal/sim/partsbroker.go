package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/pidalloc"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// broker is one life of one broker.
type broker struct {
	c      *parts
	id     int
	life   int
	name   string
	d      *dice
	ctx    context.Context
	cancel context.CancelFunc
	dead   atomic.Bool
	ended  chan struct{}

	coordinator *txnstate.Coordinator
	dispatcher  *markers.Dispatcher
	reaper      *reaper.Reaper
	offsets     *offsets.Manager
	local       *wire.LocalSink
	handler     *wire.Handler
	outbox      *queue.Sink // where markers go by files
	inbox       *queue.Receiver

	mu      sync.Mutex
	paused  chan struct{} // closed when it goes on; nil: it runs
	leads   map[*plog]*lead
	loaded  map[int32]int32 // offsets partitions, and at which epoch they were loaded
	notices chan notice
}

// Still is txnstate.OwnershipChecker's.
func (b *broker) Still(_ context.Context, slot int, epoch int32) (bool, error) {
	if err := b.hold(); err != nil {
		return false, err
	}
	b.c.mu.Lock()
	u := b.c.slots[slot]
	still := u != nil && u.epoch == epoch
	b.c.mu.Unlock()
	return still, b.hold()
}

// start begins a new life of a broker, and hands it what nobody else has.
func (c *parts) start(i int) {
	c.mu.Lock()
	if c.now[i] != nil || c.starting[i] {
		c.mu.Unlock()
		return
	}
	c.starting[i] = true
	c.lives[i]++
	b := &broker{
		c: c, id: i, life: c.lives[i], name: fmt.Sprintf("b%d.%d", i, c.lives[i]), leads: map[*plog]*lead{}, loaded: map[int32]int32{},
		notices: make(chan notice, 1000), ended: make(chan struct{}),
	}
	b.d = c.w.dice("broker %s", b.name)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	c.mu.Unlock()
	c.w.log(b.name, "starts")
	if err := b.build(); err != nil {
		panic(err)
	}
	c.mu.Lock()
	c.now[i], c.starting[i] = b, false
	c.mu.Unlock()
	c.running.Go(b.run)
}

func (b *broker) build() (err error) {
	c := b.c
	log := slog.New(slog.DiscardHandler)
	now := func() time.Time { return c.clock(b.id) }
	if b.offsets, err = offsets.New(offsets.Config{Log: offsetsLog{b}, Now: now}); err != nil {
		return err
	}
	if b.local, err = wire.NewLocalSink(wire.LocalSinkConfig{Topics: b, Leader: b, Offsets: b.offsets, Now: now}); err != nil {
		return err
	}
	var to markers.Sink = sink{b}
	if c.tune.queue {
		fs := fsx.Hook(c.files, b.disk)
		if b.outbox, err = queue.NewSink(queue.SinkConfig{Dir: "shared", Self: markers.Target(b.id), Local: b.local, FS: fs}); err != nil {
			return err
		}
		if b.inbox, err = queue.NewReceiver(queue.ReceiverConfig{Dir: "shared", Self: markers.Target(b.id), Apply: received{b}, FS: fs, Now: now}); err != nil {
			return err
		}
		to = b.outbox
	}
	if b.dispatcher, err = markers.NewDispatcher(markers.Config{Leaders: b, Sink: to, CallTimeout: 5 * time.Second, Seed: c.w.seed + uint64(b.life)}); err != nil {
		return err
	}
	b.reaper = reaper.New(reaper.Config{Every: 2 * time.Second, Now: now})
	var store txnstate.Store = gated{b: b, s: c.shaky}
	if c.mem == nil {
		files, err := slotfile.Open(slotfile.Config{Dir: "shared", FS: fsx.Hook(c.files, b.disk), Logger: log})
		if err != nil {
			return err
		}
		store = dropping{gated{b: b, s: storetest.NewFaulty(files, c.fate), slow: true}}
	}
	ids, err := pidalloc.New(pidalloc.Config{Dir: "shared", Broker: int32(b.id), BlockSize: 3, FS: fsx.Hook(c.files, b.disk)})
	if err != nil {
		return err
	}
	cfg := txnstate.Config{
		Store: store, ProducerIDs: ids, Dispatcher: b.dispatcher, Deadlines: b.reaper, Ownership: b, TransactionVersion: c.tune.server,
		EndWait: c.tune.endWait, ExpireAfter: c.tune.expireAfter, Now: now, Observer: c.observer(b),
	}
	if c.tune.fencer {
		cfg.Fencer = b
	}
	if !c.tune.check {
		cfg.Ownership = struct{ txnstate.Ownership }{b}
	}
	if b.coordinator, err = txnstate.New(cfg); err != nil {
		return err
	}
	b.handler, err = wire.New(wire.Config{
		Topics: b, Coordinator: b.coordinator, Leader: b, Offsets: b.offsets, Verifier: verifier{b}, FindCoordinator: b.findCoordinator, Now: now,
	})
	return err
}

// run works until the broker's life ends.
func (b *broker) run() {
	defer close(b.ended)
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.dispatcher.Run(b.ctx) })
	wg.Go(func() { _ = b.coordinator.Run(b.ctx) })
	if b.outbox != nil {
		wg.Go(func() { _ = b.outbox.Run(b.ctx) })
		wg.Go(func() { _ = b.inbox.Run(b.ctx) })
	}
	wg.Go(func() { _ = b.reaper.Run(b.ctx, b.coordinator) })
	wg.Wait()
	_ = b.offsets.Close(b.ctx)
}

// kill ends a broker's life. What it had under way has no effect any more.
func (c *parts) kill(i int) {
	b := c.up(i)
	if b == nil {
		return
	}
	c.w.log(b.name, "dies")
	b.dead.Store(true)
	b.cancel()
	b.resume()
	c.mu.Lock()
	c.now[i] = nil
	c.mu.Unlock()
	c.forsake(i)
}

func (b *broker) pause() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused == nil {
		b.paused = make(chan struct{})
	}
}

func (b *broker) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused != nil {
		close(b.paused)
		b.paused = nil
	}
}

// gate is passed before and after everything that has an effect outside of the
// broker: a dead one never comes through, a stopped one when it goes on.
func (b *broker) gate() error {
	for !b.dead.Load() {
		b.mu.Lock()
		p := b.paused
		b.mu.Unlock()
		if p == nil {
			return nil
		}
		<-p
	}
	return errDead
}

// lag is the time that something takes which is not instant.
func (b *broker) lag() time.Duration {
	d := b.d.between(20*time.Microsecond, 2*time.Millisecond)
	if !b.c.w.calm.Load() && b.d.chance(0.03) {
		d += b.d.skewed(b.c.tune.slow)
	}
	return d
}

// hold is a delay within a broker, with a gate at both ends.
func (b *broker) hold() error {
	if err := b.gate(); err != nil {
		return err
	}
	if !sleep(b.ctx, b.lag()) {
		return errDead
	}
	return b.gate()
}

// disk delays operations on files, and ends them for the dead.
func (b *broker) disk(op fsx.Op, name string) error {
	switch op {
	case fsx.OpSync, fsx.OpSyncDir, fsx.OpLink, fsx.OpRename, fsx.OpReplace, fsx.OpReadDir, fsx.OpExists:
		if op == fsx.OpSyncDir && strings.Contains(name, "producer_ids") {
			b.pass(atClaim, "")
		}
		return b.hold()
	}
	return b.gate()
}

// handle answers a request.
func (c *parts) handle(i int, req kmsg.Request) (kmsg.Response, error) {
	b := c.up(i)
	if b == nil {
		return nil, errDown
	}
	if err := b.gate(); err != nil {
		return nil, err
	}
	resp, err := b.answer(req)
	if err != nil {
		return nil, err
	}
	if resp == nil {
		return nil, wire.ErrClose
	}
	return resp, b.gate()
}

func (b *broker) answer(req kmsg.Request) (kmsg.Response, error) {
	switch req := req.(type) {
	case *kmsg.FetchRequest:
		return b.fetch(req), nil
	case *kmsg.MetadataRequest:
		return b.metadata(req), nil
	case *kmsg.OffsetFetchRequest:
		resp, err := b.handler.Handle(b.ctx, req, "User:sim")
		if err == nil && !b.coordinates(txnstate.OffsetsPartition(req.Group)) {
			// What is answered from memory is worth nothing where another broker has
			// the group by now.
			resp.(*kmsg.OffsetFetchResponse).ErrorCode = int16(txnstate.CodeNotCoordinator)
		}
		return resp, err
	}
	return b.handler.Handle(b.ctx, req, "User:sim")
}
