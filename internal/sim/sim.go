package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
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

	protocols string          // "1", "2", or "" for both
	legacy    map[string]bool // ids of protocol 1, some of the time at least
	// loseGroup is a group that comes and goes, "" for none.
	loseGroup string
}

const faultTime = 60 * time.Second

func run(o Options) Result {
	w := newWorld(o.Seed)
	d := w.dice("scene")
	s := &scene{w: w, m: newModel(w), length: faultTime, legacy: map[string]bool{}}
	for i := range 3 + d.n(3) {
		id := fmt.Sprintf("t%d", i)
		if i > 0 && d.chance(0.5) { // of the same slot as the first
			for k := 0; txnstate.Slot(id) != txnstate.Slot(s.ids[0]); k++ {
				id = fmt.Sprintf("t%d-%d", i, k)
			}
		}
		s.ids = append(s.ids, id)
	}
	s.protocols = []string{"2", "1", "", ""}[d.n(4)]
	world := o.World
	if world == "" {
		world = Worlds()[d.n(len(Worlds()))]
	}
	net := &network{
		w: w, m: s.m, chances: w.dice("network"), slowest: 25 * time.Second,
		loss: rate(d, 0.04), late: rate(d, 0.08), twice: rate(d, 0.08),
	}
	s.kit = &clientKit{w: w, m: s.m, net: net, timeout: d.between(2*time.Second, 8*time.Second), longest: 70 * time.Second}
	if world == trioWorld {
		s.kit.longest = 12 * time.Second
	}
	s.build(world, d)
	net.c, s.kit.c = s.c, s.c

	ctx, cancel := context.WithCancel(context.Background())
	var clients, watchers sync.WaitGroup
	until := w.start.Add(s.length)
	for i, id := range s.ids {
		a := &app{kit: s.kit, txnID: id, group: fmt.Sprintf("g%d", i%3), partition: int32(i), v2: d.chance(0.5), mixed: d.chance(0.3), d: w.dice("app %s", id), until: until}
		if s.protocols != "" {
			a.v2, a.mixed = s.protocols == "2", false
		}
		s.legacy[id] = !a.v2 || a.mixed
		if a.d.chance(0.4) {
			a.few = []tp{s.kit.topics[a.d.n(4)], s.kit.topics[a.d.n(4)]}
		}
		if a.d.chance(0.5) {
			a.until = w.start.Add(a.d.between(10*time.Second, s.length))
		}
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
		fencer:      d.chance(0.5), storeFaults: rate(d, 0.05), diskFaults: rate(d, 0.02), slow: 4 * time.Second, queue: d.chance(0.3),
		stale: d.chance(0.5), oneClock: d.chance(0.5), direct: d.chance(0.5),
	}
	// Where brokers can't ask whether they own a slot, a request of protocol 1 that
	// is late may end the next transaction.
	t.check = s.protocols != "2" || d.chance(0.35)
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
	s.kit.left = c.left
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
	// Where little else goes wrong, more depends on the ambushes.
	level := max(d.n(7)-2, 0)
	slots, offs := sortedKeys(c.slots), sortedKeys(c.offs)
	some := func(n int) int {
		if n == 0 {
			return d.n(2)
		}
		return d.n(n)
	}
	for range some(3 * level) {
		i, down := d.n(3), d.skewed(15*time.Second)
		add(fmt.Sprintf("broker %d dies for %s", i, down), func() {
			c.kill(i)
			time.Sleep(down)
			c.start(i)
			c.adopt(c.orphans())
		})
	}
	for range some(3 * level) {
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
	for range some(6 * level) {
		slot, to, late := slots[d.n(len(slots))], d.n(3), d.skewed(60*time.Second)
		add(fmt.Sprintf("slot %d moves to broker %d", slot, to), func() { c.moveSlot(slot, to, late); c.adopt(c.orphans()) })
	}
	for range some(6 * level) {
		t, p, to := []string{"a", "b"}[d.n(2)], d.n(2), d.n(3)
		add(fmt.Sprintf("%s-%d moves to broker %d", t, p, to), func() {
			c.mu.Lock()
			l := c.topics[t].logs[p]
			c.mu.Unlock()
			c.elect(l, to)
			c.adopt(c.orphans())
		})
	}
	for range some(4 * level) {
		p, to, late := offs[d.n(len(offs))], d.n(3), d.skewed(60*time.Second)
		add(fmt.Sprintf("offsets partition %d moves to broker %d", p, to), func() { c.moveOffsets(p, to, late); c.adopt(c.orphans()) })
	}
	for range d.n(3) {
		i, by := d.n(3), d.between(-20*time.Second, 20*time.Second)
		add(fmt.Sprintf("the clock of broker %d jumps by %s", i, by), func() { c.jump(i, by) })
	}
	s.ambushes(c, d, add)
	if d.chance(0.3) {
		add("topic tmp is deleted for good", func() {
			s.m.deletesForGood("tmp")
			c.remove("tmp")
		})
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
			if !there && !s.m.isGone("tmp") {
				c.create("tmp", 1)
			}
		})
	}
}

// settle waits until all has come to rest, and judges what is left.
func (s *scene) settle(during []*reader) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	w, d := s.w, s.w.dice("audit")
	time.Sleep(3*s.kit.longest + 10*time.Second) // clocks have jumped, too
	if c, ok := s.c.(*parts); ok && !c.tune.check {
		// See txnstate.OwnershipChecker: what who was deposed has begun, and nobody
		// asks for, is found when the slot is loaded again.
		c.reload()
		time.Sleep(3*s.kit.longest + 10*time.Second)
	}
	lasting := func(topic string) bool { return !slices.Contains(s.loose, topic) || s.m.deleted[topic] == 0 }

	before := w.messages
	visible, raw := map[tp][]seen{}, map[tp][]seen{}
	for _, p := range s.kit.topics {
		if s.m.isGone(p.topic) {
			continue
		}
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
		if lasting(p.topic) {
			s.m.closed(p, all.log)
		}
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
		if what := s.kit.unsettled(ctx, d, id); what != "" {
			w.fail("I12", "%s", what)
		}
	}
	for n := range s.c.nodes() {
		s.listed(ctx, n)
	}
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

// unsettled is what DescribeTransactions tells of an id that has not come to rest.
func (k *clientKit) unsettled(ctx context.Context, d *dice, id string) string {
	said := "nothing"
	for range 100 {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = []string{id}
		if to := k.coordinator(ctx, d, 1, id); to >= 0 {
			if resp, err := k.net.send(ctx, "", to, req, k.timeout, call{}); err == nil {
				st := resp.(*kmsg.DescribeTransactionsResponse).TransactionStates[0]
				switch {
				case txnstate.Code(st.ErrorCode) == txnstate.CodeTxnIDNotFound:
					return ""
				case st.ErrorCode != 0:
					said = code(st.ErrorCode)
				case len(st.Topics) > 0 || !slices.Contains([]string{"Empty", "CompleteCommit", "CompleteAbort"}, st.State):
					return fmt.Sprintf("%s is described as %s, with %d topics", id, st.State, len(st.Topics))
				default:
					return ""
				}
			}
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return fmt.Sprintf("%s can't be described: %s", id, said)
}

// listed looks at what a broker lists: nothing that is open or decided.
func (s *scene) listed(ctx context.Context, node int) {
	req := kmsg.NewPtrListTransactionsRequest()
	resp, err := s.kit.net.send(ctx, "", node, req, s.kit.timeout, call{})
	if err != nil {
		s.w.fail("I12", "broker %d does not list transactions: %v", node, err)
		return
	}
	for _, st := range resp.(*kmsg.ListTransactionsResponse).TransactionStates {
		if st.TransactionState == "Ongoing" || strings.HasPrefix(st.TransactionState, "Prepare") {
			s.w.fail("I12", "broker %d lists %s as %s", node, st.TransactionalID, st.TransactionState)
		}
	}
}

// check looks at what only the inside shows: what works on nothing keeps nothing.
func (c *parts) check() {
	for i := range c.nodes() {
		b := c.up(i)
		if b == nil {
			continue
		}
		if n := b.dispatcher.Pending(); n > 0 {
			c.w.fail("I12", "%s still has %d decided transactions to deliver", b.name, n)
		}
		if n := b.reaper.Len(); n > len(c.ids) {
			c.w.fail("I13", "%s has deadlines of %d ids, and there are %d", b.name, n, len(c.ids))
		}
	}
	count := func(dir string, most int, count func(string) bool) {
		es, err := c.files.ReadDir(dir)
		if err != nil {
			return // nobody has made it
		}
		var names []string
		for _, e := range es {
			if !e.IsDir() && count(e.Name()) {
				names = append(names, e.Name())
			}
		}
		if len(names) > most {
			c.w.fail("I13", "%s has %d files, and %d are enough: %v", dir, len(names), most, names)
		}
	}
	for i := range c.nodes() {
		// What a dead process had begun stays until its broker writes there again.
		count(fmt.Sprintf("shared/marker_queue/to-%d", i), 0, func(n string) bool { return strings.HasSuffix(n, ".entry") })
	}
	for slot := range c.slots {
		count(fmt.Sprintf("shared/txn_state/.versions/slot-%d", slot), 20, func(string) bool { return true })
	}
}
