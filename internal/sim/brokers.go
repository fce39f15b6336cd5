package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// single is the example broker, alone, on a file system that forgets.
type single struct {
	w    *world
	m    *model
	d    *dice
	cfg  minibroker.Config
	slow time.Duration

	mu      sync.Mutex
	disk    *crashfs.FS
	now     *process // nil: it is down
	lives   int
	busy    bool // starting
	ahead   time.Duration
	drift   float64
	running sync.WaitGroup
	admin   chan struct{}
}

// process is one life of the broker.
type process struct {
	b      *minibroker.Broker
	name   string
	d      *dice
	ctx    context.Context
	cancel context.CancelFunc
	disk   *crashfs.FS
	ended  chan struct{}
	died   chan struct{} // closed when it is killed

	mu     sync.Mutex
	paused chan struct{}
}

func (p *process) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil {
		p.paused = make(chan struct{})
	}
}

func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// gate waits while the process is stopped.
func (p *process) gate() {
	for {
		p.mu.Lock()
		c := p.paused
		p.mu.Unlock()
		if c == nil {
			return
		}
		<-c
	}
}

func newSingle(w *world, m *model, cfg minibroker.Config, slow time.Duration) *single {
	c := &single{w: w, m: m, d: w.dice("single"), cfg: cfg, slow: slow, disk: crashfs.New(w.seed), admin: make(chan struct{}, 1)}
	c.drift = float64(c.d.n(2001)-1000) / 1e5
	return c
}

func (c *single) nodes() int { return 1 }

func (c *single) clock() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead + time.Duration(float64(time.Since(c.w.start))*c.drift))
}

func (c *single) up() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// start begins a new life; it tries again where that fails.
func (c *single) start() {
	c.mu.Lock()
	if c.now != nil || c.busy {
		c.mu.Unlock()
		return
	}
	c.busy = true
	c.lives++
	p := &process{name: fmt.Sprintf("b0.%d", c.lives), disk: c.disk, ended: make(chan struct{})}
	p.d = c.w.dice("process %s", p.name)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	c.mu.Unlock()
	c.w.log(p.name, "starts")

	cfg := c.cfg
	cfg.FS = fsx.Hook(p.disk, func(op fsx.Op, _ string) error {
		p.gate()
		switch op {
		case fsx.OpSync, fsx.OpSyncDir:
			d := p.d.between(20*time.Microsecond, 3*time.Millisecond)
			if !c.w.calm.Load() && p.d.chance(0.02) {
				d += p.d.skewed(c.slow)
			}
			time.Sleep(d)
			p.gate()
		}
		return nil
	})
	cfg.Now = c.clock
	cfg.Observer = txnstate.Observer{
		Transition: func(from txnstate.State, rec txnstate.Record) { c.w.log(p.name, "%s: %s -> %s", rec.TxnID, from, rec) },
		Expired: func(rec txnstate.Record) {
			c.w.log(p.name, "%s expires", rec.TxnID)
			c.m.expired(rec.TxnID)
		},
	}
	b, err := minibroker.New(cfg)
	if err != nil {
		panic(err)
	}
	p.b = b
	c.running.Go(func() {
		defer close(p.ended)
		if err := b.Run(p.ctx); err != nil {
			c.w.log(p.name, "ends: %v", err)
			if _, crashed := p.disk.Crashed(); !crashed && c.w.calm.Load() {
				c.w.fail("I12", "the broker does not start, or ends by itself: %v", err)
			}
		}
	})
	select {
	case <-b.Ready():
		c.mu.Lock()
		c.now, c.busy = p, false
		c.mu.Unlock()
		c.w.log(p.name, "is ready")
	case <-p.ended:
		c.mu.Lock()
		c.busy = false
		c.mu.Unlock()
	}
}

// end ends a life: with the power, or by a kill, after which the next process
// finds all that this one saw.
func (c *single) end(power bool, image uint64) {
	c.mu.Lock()
	p := c.now
	if p == nil {
		c.mu.Unlock()
		return
	}
	c.now = nil
	if power {
		p.disk.Crash()
		c.disk = p.disk.Image(image)
	} else {
		c.disk = p.disk.AfterKill()
	}
	c.mu.Unlock()
	c.w.log(p.name, "dies (power=%t)", power)
	p.cancel()
	p.resume()
	<-p.ended
}

func (c *single) handle(_ int, req kmsg.Request) (kmsg.Response, error) {
	p := c.up()
	if p == nil {
		return nil, errDown
	}
	p.gate()
	resp, err := p.b.Handle(p.ctx, req, "User:sim")
	p.gate()
	return said(p.ctx, resp, err)
}

// said is what is heard of an answer, by when the life of the broker is over or not.
func said(life context.Context, resp kmsg.Response, err error) (kmsg.Response, error) {
	if err != nil {
		return nil, err
	}
	if life.Err() != nil || resp == nil {
		return nil, errDead // what it wanted to say, nobody heard
	}
	return resp, nil
}

// heal restarts the broker: what a disk has done to it stays until then.
func (c *single) heal() {
	c.mu.Lock()
	c.disk.Full(-1)
	c.disk.FailSync(-1)
	c.mu.Unlock()
	c.end(false, 0)
	c.start()
}

func (c *single) stop() {
	c.mu.Lock()
	p := c.now
	c.now = nil
	c.mu.Unlock()
	if p != nil {
		p.cancel()
		<-p.ended
	}
	c.running.Wait()
}

func (c *single) check() {}

// request sends a request of an administrator, one at a time: the broker holds a
// mutex while it changes a topic's files, and simulated time stands still while a
// goroutine waits for a mutex.
func (c *single) request(req kmsg.Request) bool {
	c.admin <- struct{}{}
	defer func() { <-c.admin }()
	_, err := c.handle(0, req)
	if err != nil {
		c.w.log("admin", "%T: %v", req, err)
	}
	return err == nil
}

func (s *scene) buildSingle(d *dice) {
	t := []txnstate.TransactionVersion{0, 0, 0, txnstate.TV1}[d.n(4)]
	cfg := minibroker.Config{
		Dir: "data", Store: []minibroker.StoreKind{minibroker.Journal, minibroker.Journal, minibroker.SlotFile}[d.n(3)],
		TransactionVersion: t, AbortInterval: 2 * time.Second, KafkaFencing: d.chance(0.3),
		EndWait: []time.Duration{0, txnstate.AnswerAtDecision, 50 * time.Millisecond}[d.n(3)],
		Topics:  map[string]int32{"a": 2, "b": 2, "tmp": 1, inputTopic: inputPartitions},
	}
	s.loose = []string{"tmp"}
	s.kit.topics = []tp{{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}, {"tmp", 0}}
	c := newSingle(s.w, s.m, cfg, 3*time.Second)
	s.c = c
	c.start()
	s.singleFaults(c, s.w.dice("faults"))
}

func (s *scene) singleFaults(c *single, d *dice) {
	add := func(name string, do func()) {
		s.faults = append(s.faults, fault{d.between(time.Second, s.length), name, do})
	}
	level := 1 + d.n(4)
	for range 1 + d.n(3*level) {
		down, power, image := d.skewed(5*time.Second), d.chance(0.7), uint64(d.n(1<<30))
		if d.chance(0.3) {
			image = uint64(d.n(3))
		}
		soon := d.n(40)
		again := d.n(60)
		name := "the broker is killed"
		if power {
			name = fmt.Sprintf("the power fails %d operations later", soon)
		}
		add(fmt.Sprintf("%s; it is back after %s", name, down), func() {
			if p := c.up(); p != nil && power { // in the middle of something
				p.disk.CrashAt(p.disk.Ops() + soon)
				for range 200 {
					if _, crashed := p.disk.Crashed(); crashed {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
			c.end(power, image)
			time.Sleep(down)
			if power && again%3 == 0 { // and once more, while it starts
				c.mu.Lock()
				c.disk.CrashAt(again)
				c.mu.Unlock()
				c.start()
				c.mu.Lock()
				if _, crashed := c.disk.Crashed(); crashed {
					c.disk = c.disk.Image(image + 7)
				} else {
					c.disk.CrashAt(-1)
				}
				c.mu.Unlock()
			}
			c.start()
		})
	}
	for range d.n(2 * level) {
		stop := d.skewed(30 * time.Second)
		add(fmt.Sprintf("the broker is stopped for %s", stop), func() {
			if p := c.up(); p != nil {
				p.pause()
				time.Sleep(stop)
				p.resume()
			}
		})
	}
	for range d.n(2) {
		k, later := d.n(60), d.skewed(5*time.Second)
		add(fmt.Sprintf("a sync fails, %d from now; the broker is killed %s later", k, later), func() {
			c.mu.Lock()
			c.disk.FailSync(k)
			c.mu.Unlock()
			time.Sleep(later)
			c.end(k%2 == 0, uint64(k))
			c.start()
		})
	}
	for range d.n(2) {
		room, later := d.n(3000), d.skewed(5*time.Second)
		add(fmt.Sprintf("the disk has room for %d bytes, for %s", room, later), func() {
			c.mu.Lock()
			c.disk.Full(int64(room))
			c.mu.Unlock()
			time.Sleep(later)
			c.mu.Lock()
			c.disk.Full(-1)
			c.mu.Unlock()
			c.end(false, 0)
			c.start()
		})
	}
	for range d.n(3) {
		by := d.between(-20*time.Second, 20*time.Second)
		add(fmt.Sprintf("the clock jumps by %s", by), func() {
			s.m.jumps(by)
			c.mu.Lock()
			c.ahead += by
			c.mu.Unlock()
		})
	}
	for range d.n(3) {
		back := d.skewed(10 * time.Second)
		add(fmt.Sprintf("topic tmp is deleted, and there again after %s", back), func() {
			if s.m.isGone("tmp") {
				return
			}
			s.m.deletes("tmp")
			del := kmsg.NewPtrDeleteTopicsRequest()
			del.Version, del.TopicNames, del.TimeoutMillis = 5, []string{"tmp"}, 5000
			c.request(del)
			time.Sleep(back)
			if s.m.isGone("tmp") {
				return
			}
			req := kmsg.NewPtrCreateTopicsRequest()
			req.Version, req.TimeoutMillis = 5, 5000
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = "tmp", 1, 1
			req.Topics = append(req.Topics, t)
			c.request(req)
		})
	}
	if d.chance(0.3) {
		add("topic tmp is deleted for good", func() {
			s.m.deletesForGood("tmp")
			del := kmsg.NewPtrDeleteTopicsRequest()
			del.Version, del.TopicNames, del.TimeoutMillis = 5, []string{"tmp"}, 5000
			for range 200 { // until the broker has heard it
				if c.request(del) {
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
}
