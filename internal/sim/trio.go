package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// trio is the example broker as a cluster: three of them, which share a volume and
// talk to one another.
type trio struct {
	w    *world
	m    *model
	d    *dice
	cfg  minibroker.Config
	slow time.Duration
	lan  *lan

	mu      sync.Mutex
	disk    *crashfs.FS
	now     []*member // the present life of each broker, nil: down
	lives   []int
	down    []bool // not to be started for now
	clocks  []clock
	over    bool
	running sync.WaitGroup
}

// member is one life of one broker.
type member struct {
	*process
	c    *trio
	id   int
	dead atomic.Bool
	// fails: its operations on the volume end in errors, done or not.
	fails atomic.Bool

	backlog *backlog
}

var errVolume = errors.New("sim: the volume can't be reached")

func newTrio(w *world, m *model, n int, cfg minibroker.Config, slow time.Duration) *trio {
	c := &trio{
		w: w, m: m, d: w.dice("trio"), cfg: cfg, slow: slow, disk: crashfs.New(w.seed),
		now: make([]*member, n), lives: make([]int, n), down: make([]bool, n), clocks: make([]clock, n),
	}
	c.lan = newLAN(c)
	c.cfg.Cluster = map[int32]string{}
	for i := range n {
		c.cfg.Cluster[int32(i)] = addrOf(i)
		c.clocks[i] = clock{ahead: c.d.between(-2*time.Second, 2*time.Second), drift: float64(c.d.n(2001)-1000) / 1e5, since: time.Now()}
	}
	return c
}

func (c *trio) nodes() int { return len(c.now) }

func (c *trio) clock(i int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.clocks[i]
	return time.Now().Add(k.ahead + time.Duration(float64(time.Since(k.since))*k.drift))
}

func (c *trio) up(i int) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now[i]
}

// pass waits while the process is stopped, and fails where it is dead.
func (p *member) pass() error {
	if p.dead.Load() {
		return errDead
	}
	p.gate()
	if p.dead.Load() {
		return errDead
	}
	return nil
}

// hold lets time pass, and then does as pass does.
func (p *member) hold(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for over := false; !over; {
		if p.dead.Load() {
			return errDead
		}
		select {
		case <-t.C:
			over = true
		case <-p.died:
		}
	}
	return p.pass()
}

// before and after are passed by every operation on the volume. It takes its own
// time; a stopped process gets no further, and a dead one has no effect any more.
// Closing a file changes nothing, and some code holds a mutex meanwhile.
func (p *member) before(op fsx.Op, _ string) error {
	switch op {
	case fsx.OpClose, fsx.OpUnlock:
		return nil // also for the dead, as the operating system does
	}
	if err := p.pass(); err != nil {
		return err
	}
	d, late := p.d.between(time.Microsecond, 40*time.Microsecond), 0.0005
	switch op {
	case fsx.OpSync, fsx.OpSyncDir:
		d, late = p.d.between(50*time.Microsecond, 4*time.Millisecond), 0.01
	case fsx.OpOpenFile, fsx.OpLink, fsx.OpRename, fsx.OpReadDir, fsx.OpRemove:
		d, late = p.d.between(10*time.Microsecond, 500*time.Microsecond), 0.002
	}
	if !p.c.w.calm.Load() && p.d.chance(late) {
		d += p.d.skewed(p.c.slow)
	}
	if err := p.hold(d); err != nil {
		return err
	}
	if p.fails.Load() && p.d.chance(0.7) {
		return errVolume
	}
	return nil
}

func (p *member) after(op fsx.Op, _ string, err error) error {
	switch op {
	case fsx.OpClose, fsx.OpUnlock:
		return err
	}
	if !p.c.w.calm.Load() && p.d.chance(0.001) {
		if err := p.hold(p.d.skewed(p.c.slow)); err != nil {
			return err
		}
	}
	if e := p.pass(); e != nil {
		return e
	}
	if err == nil && p.fails.Load() {
		return errVolume // it was done, and nobody says so
	}
	return err
}

// start begins a life of a broker, and returns when it is ready, or has ended.
func (c *trio) start(i int) {
	c.mu.Lock()
	if c.now[i] != nil || c.over {
		c.mu.Unlock()
		return
	}
	c.down[i] = false
	c.lives[i]++
	p := &member{c: c, id: i, process: &process{name: fmt.Sprintf("b%d.%d", i, c.lives[i]), disk: c.disk, ended: make(chan struct{}), died: make(chan struct{})}}
	p.d = c.w.dice("process %s", p.name)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.backlog = newBacklog(p)
	c.now[i] = p
	c.mu.Unlock()
	c.w.log(p.name, "starts")

	cfg := c.cfg
	cfg.NodeID = int32(i)
	cfg.FS = fsx.HookAfter(fsx.Hook(p.disk, p.before), p.after)
	cfg.Dial = p.dial
	cfg.Now = func() time.Time { return c.clock(i) }
	cfg.Observer = txnstate.Observer{
		Transition: func(from txnstate.State, rec txnstate.Record) { c.w.log(p.name, "%s: %s -> %s", rec.TxnID, from, rec) },
		Expired: func(rec txnstate.Record) {
			c.w.log(p.name, "%s expires", rec.TxnID)
			c.m.expired(rec.TxnID)
		},
	}
	cfg.Logger = c.w.logger(p.name)
	b, err := minibroker.New(cfg)
	if err != nil {
		panic(err)
	}
	p.b = b
	c.running.Go(func() { c.run(p) })
	select {
	case <-b.Ready():
		c.w.log(p.name, "is ready")
		c.running.Go(func() { _ = b.Serve(p.backlog) })
	case <-p.ended:
	}
}

// run is a life. A broker that ends by itself is started again.
func (c *trio) run(p *member) {
	err := p.b.Run(p.ctx)
	p.backlog.shut(true)
	c.mu.Lock()
	if c.now[p.id] == p {
		c.now[p.id] = nil
	}
	again := p.ctx.Err() == nil && !c.down[p.id]
	c.mu.Unlock()
	if err != nil {
		c.w.log(p.name, "ends: %v", err)
	}
	close(p.ended)
	if !again {
		return
	}
	if c.w.calm.Load() {
		c.w.fail("I12", "%s ends by itself: %v", p.name, err)
	}
	time.Sleep(p.d.between(500*time.Millisecond, 3*time.Second))
	c.mu.Lock()
	again = !c.down[p.id]
	c.mu.Unlock()
	if again {
		c.start(p.id)
	}
}

// kill ends a life without a word to the others. With power, its machine dies too,
// and those that it had connections with are not told.
func (c *trio) kill(i int, power bool) {
	c.mu.Lock()
	p := c.now[i]
	c.now[i] = nil
	c.down[i] = true
	c.mu.Unlock()
	if p == nil {
		return
	}
	c.w.log(p.name, "dies (power=%t)", power)
	p.dead.Store(true)
	close(p.died)
	p.backlog.shut(!power)
	p.cancel()
	p.resume()
	<-p.ended
}

// resign ends a life in order.
func (c *trio) resign(i int) {
	c.mu.Lock()
	p := c.now[i]
	c.down[i] = true
	c.mu.Unlock()
	if p == nil {
		return
	}
	c.w.log(p.name, "is told to stop")
	p.cancel()
	<-p.ended
}

// blackout ends all lives and the power of the volume.
func (c *trio) blackout(image uint64) {
	c.mu.Lock()
	disk := c.disk
	c.mu.Unlock()
	disk.Crash()
	var wg sync.WaitGroup
	for i := range c.now {
		wg.Go(func() { c.kill(i, true) })
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.disk == disk {
		c.disk = disk.Image(image)
	}
}

func (c *trio) volume() *crashfs.FS {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disk
}

func (c *trio) handle(i int, req kmsg.Request) (kmsg.Response, error) {
	p := c.up(i)
	if p == nil {
		return nil, errDown
	}
	if err := p.pass(); err != nil {
		return nil, errDown
	}
	select {
	case <-p.b.Ready():
	default:
		return nil, errDown
	}
	resp, err := p.b.Handle(p.ctx, req, "User:sim")
	if e := p.pass(); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	if p.ctx.Err() != nil || resp == nil {
		return nil, errDead // what it wanted to say, nobody heard
	}
	return resp, nil
}

// heal ends faults that last. Who runs goes on as it is.
func (c *trio) heal() {
	disk := c.volume()
	disk.Full(-1)
	disk.FailSync(-1)
	disk.CrashAt(-1)
	c.lan.heal()
	var wg sync.WaitGroup
	for i := range c.now {
		if p := c.up(i); p != nil {
			p.fails.Store(false)
			p.resume()
		}
		wg.Go(func() { c.start(i) })
	}
	wg.Wait()
}

func (c *trio) stop() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	for i := range c.now {
		c.resign(i)
	}
	c.running.Wait()
}

func (c *trio) check() {}

// request has some broker answer a request of an administrator.
func (c *trio) request(d *dice, req kmsg.Request) (kmsg.Response, bool) {
	for range 5 {
		i := d.n(c.nodes())
		resp, err := c.handle(i, req)
		if err == nil {
			return resp, true
		}
		c.w.log("admin", "%T at broker %d: %v", req, i, err)
		time.Sleep(d.between(100*time.Millisecond, time.Second))
	}
	return nil, false
}

// deleteGroup has the coordinator of a group delete it, if it can be found.
func (c *trio) deleteGroup(d *dice, group string) {
	for range 5 {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.Version, find.CoordinatorKey = 3, group
		at, ok := c.request(d, find)
		if !ok || at.(*kmsg.FindCoordinatorResponse).ErrorCode != 0 {
			continue
		}
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Version, req.Groups = 2, []string{group}
		resp, err := c.handle(int(at.(*kmsg.FindCoordinatorResponse).NodeID), req)
		if err != nil {
			continue
		}
		e := resp.(*kmsg.DeleteGroupsResponse).Groups[0].ErrorCode
		c.w.log("admin", "group %s is deleted: %s", group, code(e))
		if _, again := judgeCode(e); !again {
			return
		}
	}
}

// doomed is a group that is deleted now and then; nobody judges its positions.
const doomed = "doomed"

func (s *scene) buildTrio(d *dice) {
	cfg := minibroker.Config{
		Dir: "shared", Lease: d.between(time.Second, 4*time.Second), AbortInterval: 2 * time.Second, KafkaFencing: d.chance(0.3),
		Markers:            []minibroker.MarkerTransport{minibroker.MarkersRPC, minibroker.MarkersRPC, minibroker.MarkersQueue}[d.n(3)],
		TransactionVersion: []txnstate.TransactionVersion{0, 0, 0, txnstate.TV1}[d.n(4)],
		EndWait:            []time.Duration{0, txnstate.AnswerAtDecision, 50 * time.Millisecond}[d.n(3)],
		Topics:             map[string]int32{"a": 2, "b": 2, "tmp": 1, inputTopic: inputPartitions},
	}
	s.loose, s.loseGroup = []string{"tmp"}, doomed
	s.kit.topics = []tp{{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}, {"tmp", 0}}
	c := newTrio(s.w, s.m, 3, cfg, 6*time.Second)
	s.c = c
	var wg sync.WaitGroup
	for i := range c.now {
		after := d.skewed(5 * time.Second)
		wg.Go(func() {
			time.Sleep(after)
			c.start(i)
		})
	}
	wg.Wait()
	s.trioFaults(c, s.w.dice("faults"))
}

func (s *scene) trioFaults(c *trio, d *dice) {
	add := func(name string, do func()) {
		s.faults = append(s.faults, fault{d.between(time.Second, s.length), name, do})
	}
	_ = add
}
