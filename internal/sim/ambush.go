package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// point is a moment in a broker's work at which an ambush waits. Faults at times
// of chance seldom meet the few milliseconds on which something depends.
type point int8

const (
	atDecision   point = iota // a decision is about to be stored
	atDecided                 // it has been, and nobody knows
	atCompletion              // a completion is about to be stored
	atMarkers                 // markers leave
	atApplied                 // markers were applied, and the answer has not left
	atVerified                // a coordinator has answered a leader's question
	atClaim                   // a block of producer ids is being taken
	atLeft                    // the last process of an id has gone; its broker has noticed nothing
)

// ambush is a fault that waits for its moment. It goes off once; what it does, it
// does in the goroutine of the broker, which it may hold.
type ambush struct {
	at point
	of func(id string) bool // nil: any id
	do func(b *broker, id string)
}

func (c *parts) arm(t *ambush) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ambushes = append(c.ambushes, t)
}

// pass is called where a broker comes to a point.
func (b *broker) pass(at point, id string) {
	c := b.c
	if c.w.calm.Load() || b.dead.Load() {
		return
	}
	c.mu.Lock()
	var t *ambush
	for i, x := range c.ambushes {
		if x.at == at && (x.of == nil || x.of(id)) {
			t = x
			c.ambushes = append(c.ambushes[:i:i], c.ambushes[i+1:]...)
			break
		}
	}
	c.mu.Unlock()
	if t != nil {
		t.do(b, id)
	}
}

// left says that the last process of an id has gone.
func (c *parts) left(id string) {
	c.mu.Lock()
	var b *broker
	if n := c.slots[txnstate.Slot(id)].owner; n >= 0 {
		b = c.now[n]
	}
	c.mu.Unlock()
	if b != nil {
		b.pass(atLeft, id)
	}
}

// comeBack starts a broker again after a time.
func (c *parts) comeBack(i int, after time.Duration) {
	c.running.Go(func() {
		time.Sleep(after)
		c.start(i)
		c.adopt(c.orphans())
	})
}

// ambushes are laid at moments that are few.
func (s *scene) ambushes(c *parts, d *dice, add func(string, func())) {
	layFor := func(name string, at point, of func(string) bool, do func(b *broker, id string)) {
		add(name, func() {
			c.arm(&ambush{at, of, func(b *broker, id string) {
				c.w.log("FAULT", "now, at %s, with %q: %s", b.name, id, name)
				do(b, id)
			}})
		})
	}
	lay := func(name string, at point, do func(b *broker, id string)) { layFor(name, at, nil, do) }
	// Under protocol 1 one epoch has many transactions, which is harder.
	some := func() (of func(string) bool, whose string) {
		if d.chance(0.4) {
			return nil, ""
		}
		return func(id string) bool { return s.legacy[id] }, " of protocol 1"
	}
	elsewhere := func(b *broker, id string, late time.Duration) {
		c.moveSlot(txnstate.Slot(id), (b.id+1+c.d.n(c.nodes()-1))%c.nodes(), late)
		c.adopt(c.orphans())
	}
	for range d.n(4) {
		at, what := atDecided, "has decided a transaction"
		switch d.n(4) {
		case 0:
			at, what = atApplied, "has applied markers"
		case 1:
			at, what = atCompletion, "completes a transaction"
		}
		down := d.skewed(10 * time.Second)
		lay(fmt.Sprintf("the next broker that %s dies for %s", what, down), at, func(b *broker, _ string) {
			c.kill(b.id)
			c.comeBack(b.id, down)
		})
	}
	for range d.n(4) {
		at, what := atDecision, "decision"
		if d.chance(0.6) {
			at, what = atCompletion, "completion"
		}
		late, wait := d.skewed(60*time.Second), d.between(100*time.Millisecond, 1500*time.Millisecond)
		of, whose := some()
		then := wait + d.between(300*time.Millisecond, 2800*time.Millisecond)
		layFor(fmt.Sprintf("a slot moves while its broker is %s late with the store of a %s%s, and what the next one sends is late too", wait, what, whose), at, of, func(b *broker, id string) {
			elsewhere(b, id, late)
			c.arm(&ambush{atMarkers, func(i string) bool { return i == id }, func(*broker, string) { time.Sleep(then) }})
			time.Sleep(wait)
		})
	}
	for range d.n(4) {
		half, wait := d.chance(0.5), d.skewed(3*time.Second)
		lay(fmt.Sprintf("the slot of an id that nobody comes back to moves (and is loaded half-way, at first: %t)", half), atLeft, func(b *broker, id string) {
			c.running.Go(func() {
				time.Sleep(wait)
				if half {
					c.mu.Lock()
					c.half[txnstate.Slot(id)] = true
					c.mu.Unlock()
				}
				elsewhere(b, id, 0)
			})
		})
	}
	for range d.n(3) {
		wait := d.between(time.Second, 20*time.Second)
		lay(fmt.Sprintf("the store of a decision takes %s", wait), atDecision, func(*broker, string) { time.Sleep(wait) })
	}
	for range d.n(5) {
		wait, moves, late := d.between(300*time.Millisecond, 4800*time.Millisecond), d.chance(0.7), d.skewed(20*time.Second)
		of, whose := some()
		layFor(fmt.Sprintf("markers%s are %s late (and the slot moves: %t)", whose, wait, moves), atMarkers, of, func(b *broker, id string) {
			if moves {
				elsewhere(b, id, late)
			}
			time.Sleep(wait)
		})
	}
	for range d.n(4) {
		wait := d.between(50*time.Millisecond, 4*time.Second)
		layFor(fmt.Sprintf("the answer to a leader's question is %s late", wait), atVerified, s.m.isMidway, func(*broker, string) { time.Sleep(wait) })
	}
	for range d.n(3) {
		at, what := atCompletion, "completion"
		if d.chance(0.4) {
			at, what = atDecision, "decision"
		}
		out := d.between(200*time.Millisecond, 2*time.Second)
		of, whose := some()
		layFor(fmt.Sprintf("the store does not say that it wrote a %s%s, and answers nothing for %s", what, whose, out), at, of, func(_ *broker, id string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.unsaid[id] = true
			c.outage = time.Now().Add(out)
		})
	}
	for range d.n(3) {
		out := d.skewed(20 * time.Second)
		add(fmt.Sprintf("the store answers nothing for %s", out), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.outage = time.Now().Add(out)
		})
	}
	for range d.n(2) {
		down := d.skewed(5 * time.Second)
		lay(fmt.Sprintf("the next broker that takes a block of producer ids dies for %s", down), atClaim, func(b *broker, _ string) {
			c.kill(b.id)
			c.comeBack(b.id, down)
		})
	}
	if !c.tune.check && c.mem != nil {
		for range 1 + d.n(6) {
			id := s.ids[d.n(len(s.ids))]
			add(fmt.Sprintf("two processes of %s start at once, at two brokers that both take themselves for its owner", id), func() { s.twins(c, id) })
		}
	}
}

// twins has two new processes of an id ask for an identity at once, at two owners,
// of which the slower is not told what became of its write.
func (s *scene) twins(c *parts, id string) {
	slot := txnstate.Slot(id)
	c.mu.Lock()
	old := c.slots[slot].owner
	c.mu.Unlock()
	if old < 0 {
		return
	}
	next := (old + 1) % c.nodes()
	c.moveSlot(slot, next, 600*time.Second) // the one before hears of it late, as a rule
	c.adopt(c.orphans())
	time.Sleep(1500 * time.Millisecond)
	c.mu.Lock()
	n := c.madeTwins
	c.madeTwins++
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// Another one ends what is open.
	if s.kit.instance(id, fmt.Sprintf("%s.before%d", id, n), true).init(ctx) != ok {
		return
	}
	c.mu.Lock()
	c.meet[id] = make(chan struct{})
	c.mu.Unlock()
	for k, node := range []int{old, next} {
		i := s.kit.instance(id, fmt.Sprintf("%s.twin%d%c", id, n, 'a'+k), true)
		i.timeout = 10 * time.Second // what they ask for is the same
		c.running.Go(func() { i.initAt(node) })
	}
}

// rendezvous holds the first of two writes of an id until the second comes; that
// one is not made, and not told so.
func (b *broker) rendezvous(id string) (unsure bool) {
	c := b.c
	c.mu.Lock()
	ch := c.meet[id]
	switch {
	case ch == nil:
		c.mu.Unlock()
		return false
	case c.met[id] == "":
		c.met[id] = b.name
		c.mu.Unlock()
		select {
		case <-ch:
		case <-time.After(20 * time.Millisecond):
			c.mu.Lock()
			delete(c.meet, id)
			delete(c.met, id)
			c.mu.Unlock()
		}
		return false
	case c.met[id] == b.name:
		c.mu.Unlock()
		return false
	}
	delete(c.meet, id)
	delete(c.met, id)
	c.mu.Unlock()
	close(ch)
	time.Sleep(10 * time.Millisecond) // the other one writes
	return true
}
