package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// replay is one scenario under way.
type replay struct {
	e     *env
	suite string
	sc    *Scenario
	index int
	p     *player
	next  int         // the step to play
	cut   int         // where Between comes; 0 is before the first step
	diff  *Difference // the first; nothing is played after it
	begun bool
	ended bool // all was played, or a difference found
}

func (r *replay) close() {
	if r.p != nil {
		r.p.close()
	}
}

// run plays the steps before to. Its error ends the whole run.
func (r *replay) run(ctx context.Context, to int) error {
	if r.ended {
		return nil
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	defer r.p.c.close() // up to several hundred scenarios wait in their middle
	for r.diff == nil && r.next < to {
		s := r.sc.Steps[r.next]
		a, why, err := r.p.play(ctx, s)
		if err != nil {
			return r.lost(err)
		}
		if why != "" || !a.equal(s.Want) {
			r.diff = r.explain(a, why)
			break
		}
		r.next++
	}
	r.ended = r.diff != nil || r.next == len(r.sc.Steps)
	return nil
}

func (r *replay) lost(err error) error {
	if errors.Is(err, errUnreachable) {
		return fmt.Errorf("%s, step %d: the broker went away: %w", r.sc.Name, r.next, err)
	}
	return err
}

// begin gives the scenario its names and topics.
func (r *replay) begin(ctx context.Context) error {
	if r.begun {
		return nil
	}
	tprefix := r.e.o.Prefix
	prefix, err := r.pickPrefix(ctx)
	if err != nil {
		return err
	}
	if len(r.sc.Topics) > 0 {
		tprefix = prefix
	}
	r.p = r.e.player(prefix, tprefix)
	r.begun = true
	if err := r.p.createTopics(ctx, r.sc.Topics); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w", r.sc.Name, err)
	}
	return nil
}

// pickPrefix looks for names whose groups do not share a partition of
// __consumer_offsets: with 50 of them, two groups in fifty would, and then count
// as one participant of a transaction. Transactional ids that one request names
// must share a coordinator where requests are routed.
func (r *replay) pickPrefix(ctx context.Context) (string, error) {
	groups, together := r.sc.names()
	var p *player
	for try := 0; ; try++ {
		prefix := fmt.Sprintf("%s%s.%d.%d.", r.e.o.Prefix, r.suite, r.index, try)
		if try == 100 {
			return prefix, nil
		}
		seen := map[int32]bool{}
		for _, g := range groups {
			seen[offsetsPartition(prefix+g)] = true
		}
		if len(seen) < len(groups) {
			continue
		}
		if !r.e.o.Follow || len(together) == 0 {
			return prefix, nil
		}
		if p == nil {
			p = r.e.player(prefix, prefix)
			defer p.close()
		}
		at := map[string]bool{}
		for _, id := range together {
			a, err := p.c.coordinator(ctx, coordTxn, prefix+id)
			if err != nil {
				return prefix, ctx.Err() // the scenario will show what is wrong
			}
			at[a] = true
		}
		if len(at) == 1 {
			return prefix, nil
		}
	}
}

// names are the groups of a scenario, and the transactional ids that share a request.
func (s *Scenario) names() (groups, together []string) {
	g, t := map[string]bool{}, map[string]bool{}
	for _, st := range s.Steps {
		if st.Group != "" && !g[st.Group] {
			g[st.Group] = true
			groups = append(groups, st.Group)
		}
		for _, x := range st.Txns {
			if !t[x.TxnID] {
				t[x.TxnID] = true
				together = append(together, x.TxnID)
			}
		}
	}
	return groups, together
}

// offsetsPartition is Kafka's choice for a group of ASCII name, with 50 partitions.
func offsetsPartition(group string) int32 {
	var h int32
	for _, c := range []byte(group) {
		h = 31*h + int32(c)
	}
	return (h & 0x7fffffff) % 50
}

// A batch of interrupted scenarios is no larger than this, and no new scenario is
// begun when this much time has passed: the open transactions of the first, of 60
// s at least, must not time out before the last is done.
const (
	maxBatch   = 400
	batchTime  = 12 * time.Second
	shortestMs = 10000 // a transaction timeout below this counts as one that may pass during Between
)

// interrupted replays with Between in the middle.
func (e *env) interrupted(ctx context.Context, oneByOne bool, runs []*replay) error {
	for len(runs) > 0 {
		begin := time.Now()
		batch := runs[:min(len(runs), maxBatch)]
		if err := e.each(ctx, oneByOne, batch, func(ctx context.Context, r *replay) error {
			if time.Since(begin) > batchTime {
				return nil
			}
			r.cut = r.sc.cut()
			if err := r.run(ctx, r.cut); err != nil {
				return err
			}
			if r.ended {
				return nil
			}
			return r.p.settle(ctx)
		}); err != nil {
			return err
		}
		n := 0
		for n < len(batch) && batch[n].begun {
			n++
		}
		if err := e.o.Between(ctx); err != nil {
			return fmt.Errorf("between the halves: %w", err)
		}
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

// cut is the step before which Between does no harm that nearest the middle: not
// while a short transaction may be open that would time out meanwhile, and not
// after a marker by hand whose coordinator epoch lies above the broker's own, as
// a restart moves that one up. 0 where there is none.
func (s *Scenario) cut() int {
	best, open := 0, false
	for i, st := range s.Steps {
		if i > 0 && !open && abs(2*i-len(s.Steps)) < abs(2*best-len(s.Steps)) {
			best = i
		}
		switch {
		case st.Op == OpInit && st.TimeoutMs > 0 && st.TimeoutMs < shortestMs:
			open = true
		case st.Op == OpSleep && st.SleepMs >= 1000:
			open = false
		case st.Op == OpWriteMarkers && st.CoordinatorEpoch > 0:
			return best
		}
	}
	return best
}

func abs(n int) int { return max(n, -n) }

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
