package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	since time.Time // when it was begun
	ended bool      // all was played, or a difference found
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
			if d := time.Since(r.since); d > txnTime && !r.sc.ages() {
				r.diff.Caution = fmt.Sprintf("The scenario took %d s: transactions with a timeout of 60 s may have ended meanwhile, and the difference be due to that.", int(d.Seconds()))
			}
			if a.Err == errNoAnswer {
				// a request that ends the broker is a difference, and the end of the run
				if _, err := r.p.ask(ctx); errors.Is(err, errUnreachable) {
					return r.lost(err)
				}
			}
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
	r.begun, r.since = true, time.Now()
	if err := r.p.patiently(ctx, func() error { return r.p.createTopics(ctx, r.sc.Topics) }); err != nil {
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
			if g != "" {
				g = prefix + g
			}
			seen[offsetsPartition(g)] = true
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
			var a string
			err := p.patiently(ctx, func() (err error) {
				a, err = p.c.coordinator(ctx, coordTxn, prefix+id)
				return err
			})
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
		if uses := st.Op == OpAddOffsets || st.Op == OpTxnOffsetCommit || st.Group != ""; uses && !g[st.Group] {
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

// oneBroker tells of a scenario with requests that can't be routed.
func (s *Scenario) oneBroker() bool {
	return slices.ContainsFunc(s.Steps, func(st *Step) bool { return len(st.Txns) > 0 && st.Op != OpAddBatch })
}

// ages tells of a scenario that takes its time before it begins a transaction.
func (s *Scenario) ages() bool {
	return slices.ContainsFunc(s.Steps, func(st *Step) bool { return st.Op == OpAge })
}

// offsetsPartition is Kafka's choice for a group of ASCII name, with 50 partitions:
// by Utils.abs of the hash, which is not Utils.toPositive.
func offsetsPartition(group string) int32 {
	var h int32
	for _, c := range []byte(group) {
		h = 31*h + int32(c)
	}
	if h < 0 && h != math.MinInt32 {
		h = -h
	}
	return (h & math.MaxInt32) % 50 // the least number has no absolute value, and counts as 0
}
