package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/pidalloc"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// parts is a cluster that is put together from the parts of the library, around
// storage that is replicated somewhere below: partition logs and offset logs that
// survive every broker and take the writes of the newest leader only, a store of
// records that all brokers share, and somebody who decides who leads what and
// tells the brokers, late.
type parts struct {
	m     *model
	w     *world
	d     *dice
	files fsx.FS            // shared
	mem   *memstore.Store   // shared, or nil where the store is slotfile's
	shaky *storetest.Faulty // mem, with faults
	tune  tuning

	ids []string // transactional ids

	mu       sync.Mutex
	now      []*broker // the present incarnation of each broker, nil: down
	lives    []int
	starting []bool
	topics   map[string]*topic
	gone     map[string]bool
	madeUp   uint64
	slots    map[int]*unit // slots of transactional ids
	offs     map[int32]*offsetsPart
	clocks   []clock
	running  sync.WaitGroup

	ambushes  []*ambush
	outage    time.Time                // until when the store answers nothing
	unsaid    map[string]bool          // ids whose next write is made, and not said to be
	half      map[int]bool             // slots whose next load fails half-way
	meet      map[string]chan struct{} // see rendezvous
	met       map[string]string
	madeTwins int
}

// tuning is what the seed chooses for a whole run.
type tuning struct {
	endWait     time.Duration
	expireAfter time.Duration
	server      txnstate.TransactionVersion
	fencer      bool
	storeFaults float64 // of each call
	diskFaults  float64 // of each append
	slow        time.Duration
	queue       bool // markers go by files
	check       bool // brokers can ask whether they still own a slot
	stale       bool // brokers hear late who owns a slot
	oneClock    bool // all clocks agree
	direct      bool // completions are stored where the last participant is confirmed
}

// unit is something that one broker at a time is in charge of.
type unit struct {
	owner  int // -1: nobody
	epoch  int32
	before int         // the owner before, whom some still take for the owner
	told   []time.Time // when each broker hears of the new one
}

// heard is who a broker takes for the owner.
func (u *unit) heard(b int) int {
	if u.before >= 0 && b < len(u.told) && time.Now().Before(u.told[b]) {
		return u.before
	}
	return u.owner
}

// clock is a broker's idea of the time.
type clock struct {
	ahead time.Duration
	drift float64
	since time.Time
}

type topic struct {
	name  string
	id    [16]byte
	logs  []*plog
	other int32 // partitions of a topic that nobody writes to
}

func (t *topic) wire() wire.Topic {
	return wire.Topic{Name: t.name, ID: t.id, Partitions: int32(len(t.logs)) + t.other}
}

var errDead = errors.New("sim: the process is dead")

func newParts(w *world, m *model, n int, topics map[string]int32, txnIDs, groups []string, t tuning, files fsx.FS, slotfiles bool) *parts {
	c := &parts{
		w: w, m: m, d: w.dice("parts"), files: files, ids: txnIDs, tune: t, now: make([]*broker, n), lives: make([]int, n), starting: make([]bool, n), clocks: make([]clock, n),
		topics: map[string]*topic{}, gone: map[string]bool{}, slots: map[int]*unit{}, offs: map[int32]*offsetsPart{},
		unsaid: map[string]bool{}, half: map[int]bool{}, meet: map[string]chan struct{}{}, met: map[string]string{},
	}
	if !slotfiles {
		c.mem = memstore.New()
		c.shaky = storetest.NewFaulty(c.mem, c.fate)
	}
	for i := range c.clocks {
		if t.oneClock {
			c.clocks[i].since = time.Now()
			continue
		}
		c.clocks[i] = clock{ahead: c.d.between(-2*time.Second, 2*time.Second), drift: float64(c.d.n(2001)-1000) / 1e5, since: time.Now()}
	}
	for _, id := range txnIDs {
		c.slots[txnstate.Slot(id)] = &unit{owner: -1, before: -1}
	}
	for _, g := range groups {
		p := txnstate.OffsetsPartition(g)
		c.offs[p] = &offsetsPart{unit: unit{owner: -1, before: -1}, log: offsets.NewMemLog()}
	}
	for _, name := range sortedKeys(topics) {
		c.create(name, topics[name])
	}
	c.topics[inputTopic] = &topic{name: inputTopic, id: [16]byte{14: 1, 15: 1}, other: inputPartitions}
	return c
}

// fate is what becomes of a call of the shared store.
func (c *parts) fate(x storetest.Call) storetest.Fate {
	if c.w.calm.Load() {
		return storetest.Done
	}
	c.mu.Lock()
	unsaid, out := x.Method.Writes() && c.unsaid[x.TxnID], time.Now().Before(c.outage)
	if unsaid {
		delete(c.unsaid, x.TxnID)
	}
	c.mu.Unlock()
	faults := c.tune.storeFaults
	if x.Method == storetest.MethodSlot {
		faults *= 5 // there are few, and much depends on them
	}
	switch {
	case unsaid:
		return storetest.DoneUnsaid
	case out:
		return storetest.NotDone
	case !c.d.chance(faults):
		return storetest.Done
	}
	return []storetest.Fate{storetest.NotDone, storetest.DoneUnsaid, storetest.DoneLate, storetest.Overtaken}[c.d.n(4)]
}

func (c *parts) nodes() int { return len(c.now) }

// up is the present incarnation of a broker, or nil.
func (c *parts) up(i int) *broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now[i]
}

// create makes a topic and gives its partitions leaders.
func (c *parts) create(name string, n int32) {
	c.mu.Lock()
	c.madeUp++
	t := &topic{name: name}
	t.id[0], t.id[1], t.id[15] = byte(c.madeUp), byte(c.madeUp>>8), 1
	for p := range n {
		t.logs = append(t.logs, &plog{c: c, topic: name, number: p, unit: unit{owner: -1, before: -1}})
	}
	c.topics[name] = t
	delete(c.gone, name)
	c.mu.Unlock()
	for _, l := range t.logs {
		c.elect(l, c.d.n(c.nodes()))
	}
}

func (c *parts) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topics[name]
	if t == nil {
		return
	}
	delete(c.topics, name)
	c.gone[name] = true
	for _, l := range t.logs {
		l.deleted = true
		l.epoch++
	}
	for _, b := range c.now {
		if b != nil {
			b.dropLeads(t.logs)
		}
	}
}

// clock reads a broker's clock.
func (c *parts) clock(i int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.clocks[i]
	return time.Now().Add(k.ahead + time.Duration(float64(time.Since(k.since))*k.drift))
}

// jump moves a broker's clock.
func (c *parts) jump(i int, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clocks[i].ahead += by
	c.m.jumps(by)
}

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
	store := gated{b: b, s: c.shaky}
	if c.mem == nil {
		files, err := slotfile.Open(slotfile.Config{Dir: "shared", FS: fsx.Hook(c.files, b.disk), Logger: log})
		if err != nil {
			return err
		}
		store = gated{b: b, s: storetest.NewFaulty(files, c.fate), slow: true}
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

// heal ends faults that last: everybody runs, everything has an owner.
func (c *parts) heal() {
	for i := range c.now {
		c.start(i)
		if b := c.up(i); b != nil {
			b.resume()
		}
	}
	c.adopt(c.orphans())
}

func (c *parts) stop() {
	for i := range c.now {
		c.kill(i)
	}
	c.running.Wait()
}

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
