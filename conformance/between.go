package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The scenarios that wait together for Between must be done before their
// transactions, of 60 s at least, time out: the first halves get some time, and
// how many there are follows from how long the second halves took before.
const (
	maxBatch   = 400
	firstAlone = 5                // scenarios in the first batch of those that go one by one
	halfTime   = 12 * time.Second // for the first halves, and for the second ones
	txnTime    = 50 * time.Second // for everything together
)

// pace is what was learnt from the batches before.
type pace struct {
	batch int           // scenarios in the next one, at most
	half  time.Duration // for its first halves
}

func newPace(oneByOne bool) pace {
	if oneByOne {
		return pace{firstAlone, halfTime}
	}
	return pace{maxBatch, halfTime}
}

// after is the pace after n scenarios for which Between and the second halves
// took this long.
func (p pace) after(n int, between, second time.Duration) pace {
	half := min(halfTime, max(time.Second, (txnTime-between)/2))
	next := maxBatch
	if second > 0 && n > 0 {
		next = int(min(float64(maxBatch), float64(n)*float64(half)/float64(second)))
	}
	// not many more at once: those may be of a slower kind
	return pace{max(1, min(next, 2*n)), half}
}

// interrupted replays with Between in the middle.
func (e *env) interrupted(ctx context.Context, oneByOne bool, runs []*replay) error {
	pace := newPace(oneByOne)
	for len(runs) > 0 {
		begin := time.Now()
		batch := runs[:min(len(runs), pace.batch)]
		if err := e.each(ctx, oneByOne, batch, func(ctx context.Context, r *replay) error {
			if r != batch[0] && time.Since(begin) > pace.half {
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
		took := time.Since(called)
		var scs []*Scenario
		for _, r := range batch[:n] {
			scs = append(scs, r.sc)
		}
		if err := e.learnEpoch(ctx, scs); err != nil {
			return err
		}
		resumed := time.Now()
		if err := e.each(ctx, oneByOne, batch[:n], func(ctx context.Context, r *replay) error {
			if r.ended {
				return nil
			}
			if e.o.mayForget(Membership) {
				if err := r.p.patiently(ctx, func() error { return r.p.rejoin(ctx) }); err != nil {
					return r.lost(err)
				}
			}
			return r.run(ctx, len(r.sc.Steps))
		}); err != nil {
			return err
		}
		pace = pace.after(n, took, time.Since(resumed))
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
