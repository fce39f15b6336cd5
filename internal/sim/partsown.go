package sim

import (
	"context"
	"time"
)

// notice is what a broker is told about a slot.
type notice struct {
	slot     int
	epoch    int32
	acquired bool
}

// Watch is txnstate.Ownership's.
func (b *broker) Watch(ctx context.Context, acquired, lost func(slot int, epoch int32)) error {
	for {
		select {
		case n := <-b.notices:
			if b.gate() != nil {
				return nil
			}
			b.c.w.log(b.name, "is told of slot %d: acquired=%t at %d", n.slot, n.acquired, n.epoch)
			if n.acquired {
				acquired(n.slot, n.epoch)
			} else {
				lost(n.slot, n.epoch)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// tell brings a notice to a broker, after a while.
func (c *parts) tell(b *broker, n notice, after time.Duration) {
	if b == nil {
		return
	}
	c.running.Go(func() {
		if sleep(b.ctx, after) {
			select {
			case b.notices <- n:
			case <-b.ctx.Done():
			}
		}
	})
}

// moveSlot makes a broker the owner of a slot. The owner before hears of it after
// a time that may be long: until then there are two.
func (c *parts) moveSlot(s, to int, late time.Duration) {
	c.mu.Lock()
	u := c.slots[s]
	var old, next *broker
	if u.owner >= 0 {
		old = c.now[u.owner]
	}
	before := u.epoch
	u.epoch++
	next = c.now[to]
	if c.tune.stale {
		u.before, u.told = u.owner, make([]time.Time, c.nodes())
		for i := range u.told {
			u.told[i] = time.Now().Add(c.d.skewed(10 * time.Second))
		}
	}
	u.owner = to
	if next == nil {
		u.owner = -1
	}
	epoch := u.epoch
	c.mu.Unlock()
	c.w.log("cluster", "slot %d goes to broker %d at %d", s, to, epoch)
	c.tell(next, notice{s, epoch, true}, c.d.skewed(time.Second))
	if c.d.chance(0.2) {
		c.tell(next, notice{s, epoch, true}, c.d.skewed(5*time.Second))
	}
	if old != next {
		c.tell(old, notice{s, before, false}, c.d.skewed(late))
	}
}

// reload has each slot's owner become so anew.
func (c *parts) reload() {
	c.mu.Lock()
	owners := map[int]int{}
	for s, u := range c.slots {
		owners[s] = u.owner
	}
	c.mu.Unlock()
	for _, s := range sortedKeys(owners) {
		c.moveSlot(s, owners[s], 0)
	}
}

// moveOffsets makes a broker the coordinator of a partition of __consumer_offsets.
func (c *parts) moveOffsets(p int32, to int, late time.Duration) {
	c.mu.Lock()
	u := c.offs[p]
	var old, next *broker
	if u.owner >= 0 {
		old = c.now[u.owner]
	}
	u.epoch++
	next = c.now[to]
	u.owner = to
	if next == nil {
		u.owner = -1
	}
	epoch := u.epoch
	c.mu.Unlock()
	c.w.log("cluster", "offsets partition %d goes to broker %d at %d", p, to, epoch)
	still := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return u.epoch == epoch
	}
	if next != nil {
		after := c.d.skewed(time.Second)
		c.running.Go(func() {
			for sleep(next.ctx, after) && next.gate() == nil && still() {
				_ = next.offsets.Unload(next.ctx, p) // what it has of an earlier time
				if next.offsets.LoadPartition(next.ctx, p) == nil {
					return
				}
				after = 200 * time.Millisecond
			}
		})
	}
	if old != nil && old != next {
		after := c.d.skewed(late)
		c.running.Go(func() {
			if sleep(old.ctx, after) && old.gate() == nil && still() {
				_ = old.offsets.Unload(old.ctx, p)
			}
		})
	}
}

// orphan is something without an owner.
type orphan struct {
	slot int
	offs int32
	log  *plog
}

// orphans lists what nobody is in charge of.
func (c *parts) orphans() (out []orphan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range sortedKeys(c.slots) {
		if c.slots[s].owner < 0 {
			out = append(out, orphan{slot: s, offs: -1})
		}
	}
	for _, p := range sortedKeys(c.offs) {
		if c.offs[p].owner < 0 {
			out = append(out, orphan{slot: -1, offs: p})
		}
	}
	for _, t := range sortedKeys(c.topics) {
		for _, l := range c.topics[t].logs {
			if l.owner < 0 {
				out = append(out, orphan{slot: -1, offs: -1, log: l})
			}
		}
	}
	return out
}

// adopt gives each of them to a broker that is up.
func (c *parts) adopt(os []orphan) {
	var up []int
	c.mu.Lock()
	for i, b := range c.now {
		if b != nil {
			up = append(up, i)
		}
	}
	c.mu.Unlock()
	if len(up) == 0 {
		return
	}
	for _, o := range os {
		to := up[c.d.n(len(up))]
		switch {
		case o.log != nil:
			c.elect(o.log, to)
		case o.slot >= 0:
			c.moveSlot(o.slot, to, time.Second)
		default:
			c.moveOffsets(o.offs, to, time.Second)
		}
	}
}

// forsake takes everything from a broker that is down. Somebody else has it after
// a while.
func (c *parts) forsake(i int) {
	c.mu.Lock()
	for _, u := range c.slots {
		if u.owner == i {
			u.owner = -1
		}
	}
	for _, u := range c.offs {
		if u.owner == i {
			u.owner = -1
		}
	}
	for _, t := range c.topics {
		for _, l := range t.logs {
			if l.owner == i {
				l.owner = -1
				l.epoch++ // its writes are refused from now on
			}
		}
	}
	c.mu.Unlock()
	after := c.d.skewed(3 * time.Second)
	c.running.Go(func() {
		time.Sleep(after)
		c.adopt(c.orphans())
	})
}
