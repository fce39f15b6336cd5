package txnstate

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// prompt is do in the goroutine of the caller, who may leave all the same: with a
// Starter nothing has to be waited for but the sync of the write, and who waits
// for that can be replaced. It is the way of nearly every Add and End, and saves
// two changes of goroutine for each. ok is false where it is not the way: nothing
// has been changed then.
func (c *Coordinator) prompt(ctx context.Context, id string, ev Event) (r result, ok bool, err error) {
	run, open := c.life.enter()
	if !open {
		return result{}, true, c.notRunning(id)
	}
	h := hash32(id)
	epoch, err := c.ownedAt(h, id)
	if err != nil || !c.locks.try(h, id) {
		c.life.leave()
		return result{}, err != nil, err
	}
	v, p, ok, err := c.begin(run, h, id, ev, epoch, &r)
	if !ok {
		c.locks.unlock(h, id)
		c.life.leave()
		return result{}, false, nil
	}
	if p != nil {
		sure := false
		select {
		case <-p.Done():
			sure = p.Err() == nil
		case <-run.Done():
		case <-ctx.Done():
		}
		if !sure {
			r, err = c.handOver(ctx, under{h, id, kept(ev), epoch, r, v, p})
			return r, true, err
		}
	}
	if v != 0 {
		r.Next.Version = v
		err = c.stored(run, h, id, epoch, &r)
	}
	c.locks.unlock(h, id)
	c.perform(run, id, ev, r, err)
	c.life.leave()
	return r, true, err
}

// begin is load, step and the beginning of the swap, in the id's turn. v is 0
// where nothing is written, and p is nil where nothing has to be waited for.
func (c *Coordinator) begin(run context.Context, h uint32, id string, ev Event, epoch int32, r *result) (v Version, p Pending, ok bool, err error) {
	if r.from, ok = c.starter.LoadNow(id); !ok || Check(r.from) != nil {
		return 0, nil, false, nil
	}
	if c.cfg.Ownership != nil && r.from.State.Decided() {
		return 0, nil, false, nil // it may have to be taken over first
	}
	write, err := c.judge(run, h, id, ev, epoch, c.cfg.Now(), r)
	switch {
	case errors.Is(err, ErrNeedProducerID):
		return 0, nil, false, nil
	case err != nil || !write:
		return 0, nil, true, err
	case r.Write != WriteDurable || Check(r.Next) != nil:
		return 0, nil, false, nil
	}
	v, p, ok = c.starter.SwapStart(r.Next)
	return v, p, ok, nil
}

// under is a write that was begun, with the turn of its id.
type under struct {
	h     uint32
	id    string
	ev    Event
	epoch int32
	r     result
	v     Version
	p     Pending
}

// handOver gives a write that is not done, or not for sure, to a goroutine that
// sees to it, with the turn and the caller's share in the work under way. The
// caller waits for that for as long as ctx lets it.
func (c *Coordinator) handOver(ctx context.Context, u under) (result, error) {
	k := &call{done: make(chan struct{}, 1)}
	c.life.adopt(func(run context.Context) {
		k.r, k.err = c.carryOn(run, ctx, u)
		k.done <- struct{}{}
	})
	select {
	case <-k.done:
		return k.r, k.err
	case <-ctx.Done():
		return result{}, c.left(ctx, u.id, u.ev)
	}
}

// carryOn is work from where a write was begun.
func (c *Coordinator) carryOn(run, ctx context.Context, u under) (result, error) {
	var err error
	select {
	case <-u.p.Done():
		err = u.p.Err()
	case <-run.Done():
		err = fmt.Errorf("%w: %w", ErrUncertain, run.Err())
	}
	r, old := u.r, u.r.Next.Version
	r.Next.Version = u.v
	written, _, err := c.ended(run, &r, old, err)
	if err == nil && !written {
		c.locks.unlock(u.h, u.id)
		c.tell(u.id, r.unsure)
		return c.work(run, ctx, u.id, u.ev, time.Time{})
	}
	if err == nil {
		err = c.stored(run, u.h, u.id, u.epoch, &r)
	} else {
		r = result{from: u.r.from, unsure: r.unsure}
	}
	c.locks.unlock(u.h, u.id)
	c.perform(run, u.id, u.ev, r, err)
	return r, err
}
