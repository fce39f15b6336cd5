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

// request has some broker answer a request of an administrator, who tries again
// where that fails.
func (c *trio) request(d *dice, req kmsg.Request, of func(kmsg.Response) int16) (kmsg.Response, bool) {
	for range 30 {
		i := d.n(c.nodes())
		resp, err := c.handle(i, req)
		if err != nil {
			c.w.log("admin", "%T at broker %d: %v", req, i, err)
		} else {
			e := of(resp)
			c.w.log("admin", "%T at broker %d: %s", req, i, code(e))
			if _, again := judgeCode(e); !again || e == int16(txnstate.CodeUnknownTopicOrPartition) {
				return resp, true
			}
		}
		time.Sleep(d.between(100*time.Millisecond, time.Second))
	}
	return nil, false
}

// deleteGroup has the coordinator of a group delete it, if it can be found.
func (c *trio) deleteGroup(d *dice, group string) {
	for range 5 {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.Version, find.CoordinatorKey = 3, group
		at, ok := c.request(d, find, func(r kmsg.Response) int16 { return r.(*kmsg.FindCoordinatorResponse).ErrorCode })
		if !ok {
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
	c.lan.stubborn = s.protocols == "2" && cfg.TransactionVersion != txnstate.TV1 && d.chance(0.5)
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

// faults of a trio are drawn for the run as a whole: how many there are of each kind.
func (s *scene) trioFaults(c *trio, d *dice) {
	add := func(name string, do func()) {
		s.faults = append(s.faults, fault{d.between(time.Second, s.length), name, do})
	}
	level := 1 + d.n(3)
	c.lan.ends, c.lan.refused = rate(d, 0.4), rate(d, 0.2)
	for range d.n(3 * level) {
		i, down, power := d.n(3), d.skewed(20*time.Second), d.chance(0.3)
		add(fmt.Sprintf("broker %d dies (power=%t) for %s", i, power, down), func() {
			c.kill(i, power)
			time.Sleep(down)
			c.start(i)
		})
	}
	for range d.n(2 * level) {
		i, down := d.n(3), d.skewed(20*time.Second)
		add(fmt.Sprintf("broker %d is told to stop, for %s", i, down), func() {
			c.resign(i)
			time.Sleep(down)
			c.start(i)
		})
	}
	for range d.n(2 * level) {
		i, stop := d.n(3), d.skewed(40*time.Second)
		if d.chance(0.5) { // about as long as it takes to be missed
			stop = d.between(c.cfg.Lease/2, 2*c.cfg.Lease)
		}
		add(fmt.Sprintf("broker %d is stopped for %s", i, stop), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			p.pause()
			time.Sleep(stop)
			c.w.log(p.name, "goes on")
			p.resume()
		})
	}
	ops := []fsx.Op{fsx.OpReadDir, fsx.OpOpenFile, fsx.OpLink, fsx.OpRename, fsx.OpWriteAt, fsx.OpSync, fsx.OpSyncDir, fsx.OpReadFile}
	// Where most operations of a kind are looks, those of a takeover are rare.
	places := []string{"", "", "/p-", "/p-", "slots", "txn_state"}
	for range d.n(6 * level) {
		in := places[d.n(len(places))]
		i, k, op, after, stop, kill := d.n(3), 1+d.n(8), ops[d.n(len(ops))], d.chance(0.5), d.skewed(20*time.Second), d.chance(0.3)
		if d.chance(0.5) {
			stop = d.between(c.cfg.Lease, 3*c.cfg.Lease)
		}
		what := "is stopped"
		if kill {
			what = "dies"
		}
		when := "before"
		if after {
			when = "after"
		}
		add(fmt.Sprintf("broker %d %s %s its operation %q on %q, the %dth from now, for %s", i, what, when, op, in, k, stop), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			met := make(chan struct{})
			t := &trap{op: op, in: in, after: after, do: func() {
				if !c.w.calm.Load() && !p.dead.Load() {
					p.pause()
				}
				close(met)
			}}
			t.left.Store(int32(k))
			p.trap.Store(t)
			wait := time.NewTimer(20 * time.Second)
			defer wait.Stop()
			select {
			case <-met:
			case <-wait.C:
			case <-p.ended:
			}
			if t.left.Swap(-1<<20) > 0 { // it never comes there
				p.trap.CompareAndSwap(t, nil)
				return
			}
			<-met
			c.w.log(p.name, "%s %s %s", what, when, op)
			if kill {
				c.kill(i, k%2 == 0)
			}
			time.Sleep(stop)
			if kill {
				c.start(i)
			}
			p.resume()
		})
	}
	for range d.n(2 * level) {
		in := places[d.n(len(places))]
		i, op, most, length := d.n(3), ops[d.n(len(ops))], d.skewed(2*c.cfg.Lease), d.between(time.Second, 10*time.Second)
		add(fmt.Sprintf("for broker %d operations %q on %q take up to %s, for %s", i, op, in, most, length), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			p.lag.Store(&lag{op, in, most})
			time.Sleep(length)
			p.lag.Store(nil)
		})
	}
	for range d.n(3 * level) {
		i, length, both := d.n(3), d.skewed(30*time.Second), d.chance(0.5)
		j := (i + 1 + d.n(2)) % 3
		add(fmt.Sprintf("nothing gets from broker %d to %d (and back=%t) for %s", i, j, both, length), func() {
			c.lan.sever(i, j)
			if both {
				c.lan.sever(j, i)
			}
			time.Sleep(length)
			c.lan.mend(i, j)
			c.lan.mend(j, i)
		})
	}
	for range d.n(2 * level) {
		i := d.n(3)
		j := (i + 1 + d.n(2)) % 3
		add(fmt.Sprintf("connections of brokers %d and %d end", i, j), func() { c.lan.reset(i, j) })
	}
	for range d.n(2) {
		soon, image, again := d.n(60), uint64(d.n(1<<30)), d.n(300)
		if d.chance(0.3) {
			image = uint64(d.n(3))
		}
		var downs [3]time.Duration
		for i := range downs {
			downs[i] = d.skewed(10 * time.Second)
		}
		add(fmt.Sprintf("the power of all fails %d operations later", soon), func() {
			disk := c.volume()
			disk.CrashAt(disk.Ops() + soon)
			for range 200 {
				if _, crashed := disk.Crashed(); crashed {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			c.blackout(image)
			restart := func() {
				var wg sync.WaitGroup
				for i, down := range downs {
					wg.Go(func() {
						time.Sleep(down)
						c.start(i)
					})
				}
				wg.Wait()
			}
			if again%3 == 0 && !c.w.calm.Load() { // and once more, while they start
				disk := c.volume()
				disk.CrashAt(again)
				restart()
				if _, crashed := disk.Crashed(); crashed {
					c.blackout(image + 7)
				} else {
					disk.CrashAt(-1)
				}
			}
			restart()
		})
	}
	for range d.n(2 * level) {
		k := d.n(60)
		add(fmt.Sprintf("a sync fails, %d from now", k), func() { c.volume().FailSync(k) })
	}
	for range d.n(2) {
		room, length := d.n(3000), d.skewed(10*time.Second)
		add(fmt.Sprintf("the volume has room for %d bytes, for %s", room, length), func() {
			disk := c.volume()
			disk.Full(int64(room))
			time.Sleep(length)
			disk.Full(-1)
		})
	}
	for range d.n(2 * level) {
		i, length := d.n(3), d.skewed(15*time.Second)
		add(fmt.Sprintf("the volume fails for broker %d, for %s", i, length), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			p.fails.Store(true)
			time.Sleep(length)
			p.fails.Store(false)
		})
	}
	for range d.n(3) {
		i, by := d.n(3), d.between(-20*time.Second, 20*time.Second)
		add(fmt.Sprintf("the clock of broker %d jumps by %s", i, by), func() {
			s.m.jumps(by)
			c.mu.Lock()
			c.clocks[i].ahead += by
			c.mu.Unlock()
		})
	}
	admin := s.w.dice("admin")
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.Version, del.TopicNames, del.TimeoutMillis = 5, []string{"tmp"}, 5000
	deleted := func(r kmsg.Response) int16 { return r.(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode }
	for range d.n(3) {
		back := d.skewed(10 * time.Second)
		add(fmt.Sprintf("topic tmp is deleted, and there again after %s", back), func() {
			if s.m.isGone("tmp") {
				return
			}
			s.m.deletes("tmp")
			c.request(admin, del, deleted)
			time.Sleep(back)
			if s.m.isGone("tmp") {
				return
			}
			req := kmsg.NewPtrCreateTopicsRequest()
			req.Version, req.TimeoutMillis = 5, 5000
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = "tmp", 1, 1
			req.Topics = append(req.Topics, t)
			c.request(admin, req, func(r kmsg.Response) int16 { return r.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode })
		})
	}
	if d.chance(0.2) {
		add("topic tmp is deleted for good", func() {
			s.m.deletesForGood("tmp")
			c.request(admin, del, deleted)
		})
	}
	for range d.n(2 * level) {
		add("group "+doomed+" is deleted", func() { c.deleteGroup(admin, doomed) })
	}
}
