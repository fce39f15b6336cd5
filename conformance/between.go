package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A batch of interrupted scenarios is no larger than this, and no new scenario is
// begun after some time: the transactions of the first, of 60 s at least, must
// not time out before the last is done.
const (
	maxBatch  = 400
	batchTime = 12 * time.Second // at most, less where Between takes long
	txnTime   = 50 * time.Second // for everything together
)

// halfTime is how long the first halves may take if Between takes this long.
func halfTime(between time.Duration) time.Duration {
	return min(batchTime, max(time.Second, (txnTime-between)/2))
}

// interrupted replays with Between in the middle.
func (e *env) interrupted(ctx context.Context, oneByOne bool, runs []*replay) error {
	var took time.Duration
	for len(runs) > 0 {
		begin := time.Now()
		batch := runs[:min(len(runs), maxBatch)]
		if err := e.each(ctx, oneByOne, batch, func(ctx context.Context, r *replay) error {
			if r != batch[0] && time.Since(begin) > halfTime(took) {
				return nil
			}
			r.cut = r.sc.cut(e.o.mayForget)
			if err := r.run(ctx, r.cut); err != nil {
				return err
			}
			if r.ended {
				return nil
			}
			defer r.p.c.close() // Between ends the connections
			return r.p.settle(ctx)
		}); err != nil {
			return err
		}
		n := 0
		for n < len(batch) && batch[n].begun {
			n++
		}
		called := time.Now()
		if err := e.o.Between(ctx); err != nil {
			return fmt.Errorf("between the halves: %w", err)
		}
		if err := e.awake(ctx); err != nil {
			return fmt.Errorf("between the halves: %w", err)
		}
		took = time.Since(called)
		var scs []*Scenario
		for _, r := range batch[:n] {
			scs = append(scs, r.sc)
		}
		if err := e.learnEpoch(ctx, scs); err != nil {
			return err
		}
		if err := e.each(ctx, oneByOne, batch[:n], func(ctx context.Context, r *replay) error {
			if r.ended {
				return nil
			}
			if e.o.mayForget(Membership) {
				if err := r.p.rejoin(ctx); err != nil {
					return r.lost(err)
				}
			}
			return r.run(ctx, len(r.sc.Steps))
		}); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// awake waits until the broker answers and has a transaction coordinator and a
// group coordinator. Transient answers after that are asked for again anyway.
func (e *env) awake(ctx context.Context) error {
	const limit = time.Minute
	for begin := time.Now(); ; {
		p := e.player(e.o.Prefix, e.o.Prefix)
		_, err := p.ask(ctx)
		p.close()
		if err == nil {
			p := e.player(e.o.Prefix, e.o.Prefix)
			defer p.close()
			return p.warm(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("the broker does not answer after %v: %w", limit, err)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// rejoin makes the members of the groups members again, as their clients would
// when the group's coordinator has forgotten them. A generation below the recorded one is
// raised by joining again, so that stale ones stay above -1, which means none.
func (p *player) rejoin(ctx context.Context) error {
	for g, m := range p.joined {
		for range 100 {
			id, gen, code, err := p.joinGroup(ctx, g, p.members[m.member])
			if err != nil {
				if ctx.Err() != nil || errors.Is(err, errUnreachable) {
					return err
				}
				break // the scenario will show what is wrong
			}
			if errName(code) == "UNKNOWN_MEMBER_ID" {
				if id, gen, code, err = p.joinGroup(ctx, g, ""); err != nil {
					break
				}
			}
			if transient(errName(code)) {
				if err := pause(ctx, 20*time.Millisecond); err != nil {
					return err
				}
				continue
			}
			if code != 0 {
				break
			}
			p.members[m.member] = id
			if p.genBy[g] = gen - m.generation; gen >= m.generation {
				break
			}
		}
	}
	return nil
}
