package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"strings"
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
	trap  atomic.Pointer[trap]
	lag   atomic.Pointer[lag]

	backlog *backlog

	dialled [3]atomic.Int64

	many sync.Mutex
	nth  map[string]uint64 // operations so far, by kind and name
}

// fate is the chance of one operation. It does not depend on what else goes on at
// that moment, so that two that change places change nothing else.
func (p *member) fate(op fsx.Op, name string) *dice {
	if base := filepath.Base(name); strings.HasPrefix(base, ".") || strings.HasPrefix(base, "tmp-") {
		name = filepath.Dir(name) // the rest is random
	}
	key := string(op) + " " + name
	p.many.Lock()
	p.nth[key]++
	n := p.nth[key]
	p.many.Unlock()
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.name + " " + key))
	return &dice{r: rand.New(rand.NewPCG(p.c.w.seed+n, h.Sum64()))}
}

// trap is something that happens when a broker comes to an operation.
type trap struct {
	op    fsx.Op
	in    string // a part of the name, "" for any
	after bool   // it was performed
	left  atomic.Int32
	do    func()
}

// meets is called at an operation.
func (p *member) meets(op fsx.Op, name string, after bool) {
	if t := p.trap.Load(); t != nil && t.op == op && t.after == after && strings.Contains(name, t.in) && t.left.Add(-1) == 0 {
		t.do()
	}
}

// lag makes one kind of operation slow.
type lag struct {
	op   fsx.Op
	in   string
	most time.Duration
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
func (p *member) before(op fsx.Op, name string) error {
	switch op {
	case fsx.OpClose, fsx.OpUnlock:
		return nil // also for the dead, as the operating system does
	}
	if err := p.pass(); err != nil {
		return err
	}
	f := p.fate(op, name)
	d, late := f.between(time.Microsecond, 40*time.Microsecond), 0.0005
	switch op {
	case fsx.OpSync, fsx.OpSyncDir:
		d, late = f.between(50*time.Microsecond, 4*time.Millisecond), 0.01
	case fsx.OpOpenFile, fsx.OpLink, fsx.OpRename, fsx.OpReadDir, fsx.OpExists, fsx.OpRemove:
		d, late = f.between(10*time.Microsecond, 500*time.Microsecond), 0.002
	}
	if !p.c.w.calm.Load() && f.chance(late) {
		d += f.skewed(p.c.slow)
	}
	if l := p.lag.Load(); l != nil && l.op == op && strings.Contains(name, l.in) && f.chance(0.3) {
		d += f.between(0, l.most)
	}
	if err := p.hold(d); err != nil {
		return err
	}
	p.meets(op, name, false)
	if err := p.pass(); err != nil {
		return err
	}
	if p.fails.Load() && f.chance(0.7) {
		return errVolume
	}
	return nil
}

func (p *member) after(op fsx.Op, name string, err error) error {
	switch op {
	case fsx.OpClose, fsx.OpUnlock:
		return err
	}
	if f := p.fate(op+", done", name); !p.c.w.calm.Load() && f.chance(0.001) {
		if err := p.hold(f.skewed(p.c.slow)); err != nil {
			return err
		}
	}
	p.meets(op, name, true)
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
	p.backlog, p.nth = newBacklog(p), map[string]uint64{}
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
	if _, crashed := p.disk.Crashed(); !crashed && c.w.calm.Load() {
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
	return said(p.ctx, resp, err)
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
			p.lag.Store(nil)
			p.trap.Store(nil)
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
