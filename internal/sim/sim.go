package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Options say what is run.
type Options struct {
	Seed uint64
	// World is one of Worlds(); "" lets the seed choose.
	World string
	// Story tells what happened, line by line, also where all is well.
	Story bool
	// Without leaves faults out, by their number.
	Without []int
}

// Result is what became of one run.
type Result struct {
	Seed    uint64
	World   string
	Broken  []string // what the model complains of; empty: all is well
	Story   []string
	Hash    uint64 // of the story
	Faults  []string
	Txns    int // transactions begun
	Commits int
	Records int
}

// The kinds of worlds.
const (
	partsWorld  = "parts"
	singleWorld = "single"
	trioWorld   = "cluster"
)

// Worlds lists the kinds of worlds there are.
func Worlds() []string { return []string{partsWorld, singleWorld, trioWorld} }

// Run runs one seed, in a bubble of its own.
func Run(t *testing.T, o Options) (r Result) {
	synctest.Test(t, func(t *testing.T) { r = run(o) })
	return r
}

// fault is one thing that goes wrong.
type fault struct {
	at   time.Duration
	name string
	do   func()
}

// scene is a run that is under way.
type scene struct {
	w      *world
	m      *model
	c      cluster
	kit    *clientKit
	faults []fault
	length time.Duration
	ids    []string
	groups []groupPart
	loose  []string // topics that come and go

	// loseGroup is a group that comes and goes, "" for none.
	loseGroup string
}

const faultTime = 60 * time.Second

func run(o Options) Result {
	w := newWorld(o.Seed)
	d := w.dice("scene")
	s := &scene{w: w, m: newModel(w), length: faultTime}
	for i := range 3 + d.n(3) {
		s.ids = append(s.ids, fmt.Sprintf("t%d", i))
	}
	world := o.World
	if world == "" {
		world = Worlds()[d.n(len(Worlds()))]
	}
	net := &network{
		w: w, m: s.m, chances: w.dice("network"), slowest: 25 * time.Second,
		loss: rate(d, 0.04), late: rate(d, 0.08), twice: rate(d, 0.08),
	}
	s.kit = &clientKit{w: w, m: s.m, net: net, timeout: d.between(2*time.Second, 8*time.Second)}
	s.build(world, d)
	net.c, s.kit.c = s.c, s.c

	ctx, cancel := context.WithCancel(context.Background())
	var clients, watchers sync.WaitGroup
	until := w.start.Add(s.length)
	for i, id := range s.ids {
		a := &app{kit: s.kit, txnID: id, group: fmt.Sprintf("g%d", i%3), partition: int32(i), v2: d.chance(0.5), mixed: d.chance(0.3), d: w.dice("app %s", id), until: until}
		if s.loseGroup != "" && i == 0 {
			a.group = s.loseGroup // its positions come and go too
		} else {
			s.groups = append(s.groups, groupPart{a.group, a.partition})
		}
		clients.Go(func() { a.run(ctx) })
	}
	for i := range 2 {
		p := &plain{kit: s.kit, name: fmt.Sprintf("p%d", i), group: "g0", partition: int32(8 + i), d: w.dice("plain %d", i), until: until}
		s.groups = append(s.groups, groupPart{p.group, p.partition})
		clients.Go(func() { p.run(ctx) })
	}
	var readers []*reader
	for _, p := range s.kit.topics {
		if slices.Contains(s.loose, p.topic) {
			continue
		}
		r := s.kit.reader(p, true, "during")
		readers = append(readers, r)
		watchers.Go(func() { r.run(ctx) })
	}
	for _, g := range s.groups {
		watchers.Go(func() { s.kit.watch(ctx, g) })
	}

	slices.SortStableFunc(s.faults, func(a, b fault) int { return int(a.at - b.at) })
	var names []string
	for i, f := range s.faults {
		names = append(names, fmt.Sprintf("%6.2fs %s", f.at.Seconds(), f.name))
		if slices.Contains(o.Without, i) {
			continue
		}
		clients.Go(func() {
			if sleep(ctx, f.at) {
				w.log("FAULT", "%d: %s", i, f.name)
				f.do()
			}
		})
	}
	time.Sleep(s.length)
	w.calm.Store(true)
	w.log("FAULT", "no more of them")
	s.c.heal()
	clients.Wait()
	cancel()
	watchers.Wait()
	s.settle(readers)
	s.c.stop()
	time.Sleep(time.Minute) // what is still on its way arrives nowhere

	r := Result{Seed: o.Seed, World: world, Faults: names, Txns: len(s.m.txns), Records: len(s.m.recs)}
	for _, t := range s.m.txns {
		if t.told == committed {
			r.Commits++
		}
	}
	r.Broken, r.Hash = w.broken, w.hash
	if o.Story || len(r.Broken) > 0 {
		r.Story = w.story
	}
	return r
}

// rate is a probability up to a bound; in one run of four nothing of the kind
// happens at all.
func rate(d *dice, most float64) float64 {
	if d.chance(0.25) {
		return 0
	}
	return most * float64(d.n(1000)) / 1000
}

func (s *scene) build(world string, d *dice) {
	switch world {
	case singleWorld:
		s.buildSingle(d)
		return
	case trioWorld:
		s.buildTrio(d)
		return
	}
	t := tuning{
		endWait:     []time.Duration{0, txnstate.AnswerAtDecision, 50 * time.Millisecond}[d.n(3)],
		expireAfter: []time.Duration{0, 0, 30 * time.Second}[d.n(3)],
		fencer:      d.chance(0.5), storeFaults: rate(d, 0.05), diskFaults: rate(d, 0.02), slow: 4 * time.Second, queue: d.chance(0.25),
	}
	if d.chance(0.2) {
		t.server = txnstate.TV1
	}
	topics := map[string]int32{"a": 2, "b": 2, "tmp": 1}
	s.loose = []string{"tmp"}
	for _, k := range sortedKeys(topics) {
		for p := range topics[k] {
			s.kit.topics = append(s.kit.topics, tp{k, p})
		}
	}
	c := newParts(s.w, s.m, 3, topics, s.ids, []string{"g0", "g1", "g2"}, t, fsx.Mem(), d.chance(0.3))
	s.c = c
	if c.mem != nil {
		s.preload(c, d)
	}
	for i := range c.now {
		c.start(i)
	}
	c.adopt(c.orphans())
	s.partsFaults(c, s.w.dice("faults"))
}

// preload stores identities that are near their last epoch.
func (s *scene) preload(c *parts, d *dice) {
	for i, id := range s.ids {
		if !d.chance(0.2) {
			continue
		}
		dec, err := txnstate.Step(txnstate.Unknown(id), txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 10_000, Server: txnstate.TV2, NewID: 1<<50 + int64(i)}, c.clock(0))
		if err != nil {
			panic(err)
		}
		dec.Next.Producer.Epoch = txnstate.MaxEpoch - 1 - int16(d.n(12))
		if _, err := c.mem.Swap(context.Background(), dec.Next, txnstate.Durable); err != nil {
			panic(err)
		}
	}
}

func (s *scene) partsFaults(c *parts, d *dice) {
	add := func(name string, do func()) {
		s.faults = append(s.faults, fault{d.between(time.Second, s.length), name, do})
	}
	level := 1 + d.n(5)
	slots, offs := sortedKeys(c.slots), sortedKeys(c.offs)
	for range d.n(3 * level) {
		i, down := d.n(3), d.skewed(15*time.Second)
		add(fmt.Sprintf("broker %d dies for %s", i, down), func() {
			c.kill(i)
			time.Sleep(down)
			c.start(i)
			c.adopt(c.orphans())
		})
	}
	for range d.n(3 * level) {
		i, stop := d.n(3), d.skewed(40*time.Second)
		take := d.chance(0.5)
		add(fmt.Sprintf("broker %d is stopped for %s", i, stop), func() {
			b := c.up(i)
			if b == nil {
				return
			}
			b.pause()
			if take { // it is taken for dead
				c.forsake(i)
			}
			time.Sleep(stop)
			c.w.log(b.name, "goes on")
			b.resume()
		})
	}
	for range d.n(6 * level) {
		slot, to, late := slots[d.n(len(slots))], d.n(3), d.skewed(60*time.Second)
		add(fmt.Sprintf("slot %d moves to broker %d", slot, to), func() { c.moveSlot(slot, to, late); c.adopt(c.orphans()) })
	}
	for range d.n(6 * level) {
		t, p, to := []string{"a", "b"}[d.n(2)], d.n(2), d.n(3)
		add(fmt.Sprintf("%s-%d moves to broker %d", t, p, to), func() {
			c.mu.Lock()
			l := c.topics[t].logs[p]
			c.mu.Unlock()
			c.elect(l, to)
			c.adopt(c.orphans())
		})
	}
	for range d.n(4 * level) {
		p, to, late := offs[d.n(len(offs))], d.n(3), d.skewed(60*time.Second)
		add(fmt.Sprintf("offsets partition %d moves to broker %d", p, to), func() { c.moveOffsets(p, to, late); c.adopt(c.orphans()) })
	}
	for range d.n(3) {
		i, by := d.n(3), d.between(-20*time.Second, 20*time.Second)
		add(fmt.Sprintf("the clock of broker %d jumps by %s", i, by), func() { c.jump(i, by) })
	}
	for range d.n(3) {
		back := d.skewed(10 * time.Second)
		add(fmt.Sprintf("topic tmp is deleted, and there again after %s", back), func() {
			s.m.deletes("tmp")
			c.remove("tmp")
			time.Sleep(back)
			c.mu.Lock()
			there := c.topics["tmp"] != nil
			c.mu.Unlock()
			if !there {
				c.create("tmp", 1)
			}
		})
	}
}

// settle waits until all has come to rest, and judges what is left.
func (s *scene) settle(during []*reader) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	w, d := s.w, s.w.dice("audit")
	rest := 100 * time.Second
	if s.loseGroup != "" {
		rest = 60 * time.Second // what looks at a volume all the time costs some
	}
	time.Sleep(rest)
	lasting := func(topic string) bool { return !slices.Contains(s.loose, topic) || s.m.deleted[topic] == 0 }

	before := w.messages
	visible, raw := map[tp][]seen{}, map[tp][]seen{}
	for _, p := range s.kit.topics {
		r := s.kit.reader(p, true, "after")
		if err := r.drain(ctx); err != nil {
			if lasting(p.topic) {
				w.fail("I12", "%v", err)
			}
			continue
		}
		if r.lso != r.high {
			w.fail("I12", "the last stable offset of %s stays at %d, and its high watermark is %d", p, r.lso, r.high)
		}
		visible[p] = r.seen
		all := s.kit.reader(p, false, "raw")
		if err := all.drain(ctx); err != nil {
			w.fail("I12", "%v", err)
		}
		raw[p] = all.seen
	}
	_ = before
	for _, r := range during {
		after := visible[r.p]
		for i, x := range r.seen {
			if i >= len(after) || after[i] != x {
				w.fail("I8", "a reader of %s was shown %v as its %dth record, and is not shown it any more", r.p, x, i)
				break
			}
		}
	}
	offsets := map[groupPart]int64{}
	for _, g := range s.groups {
		var got int64
		var c txnstate.Code
		err := errLost
		for range 50 {
			if got, c, err = s.kit.position(ctx, d, g, true); err == nil && c == 0 {
				break
			}
			sleep(ctx, 100*time.Millisecond)
		}
		if err != nil || c != 0 {
			w.fail("I12", "the position of group %s in partition %d can't be read: %s %v", g.group, g.partition, c, err)
			continue
		}
		offsets[g] = got
	}
	s.m.final(visible, raw, offsets, lasting)

	for _, id := range s.ids {
		i := s.kit.instance(id, id+".audit", true)
		c, end := context.WithTimeout(ctx, 20*time.Second)
		if v := i.init(c); v != ok {
			w.fail("I12", "%s can't be initialised any more: %s", id, v)
		}
		end()
	}
	s.c.check()
}

// check looks at what only the inside shows.
func (c *parts) check() {
	for i := range c.nodes() {
		if b := c.up(i); b != nil && b.dispatcher.Pending() > 0 {
			c.w.fail("I12", "%s still has %d decided transactions to deliver", b.name, b.dispatcher.Pending())
		}
	}
}
