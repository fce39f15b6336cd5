package offsets

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// With a hook, two orders must agree: that in which the log has the changes of a
// group's committed offsets, and that in which the hook is told of them. Turns
// see to it: whoever changes committed offsets of a group has the group's turn
// from before the hook is told until the entry is durable. Turns are no locks of
// the Manager: reading, staging and other groups go on.

func producerTurn(pid int64) string { return "p" + strconv.FormatInt(pid, 10) }
func groupTurn(group string) string { return "g" + group }

// told is what the hook is told of one group.
type told struct {
	group string
	os    []Offset
}

// markWithHook tells the hook what a commit marker makes committed, and then
// writes the marker, whose entry is what forgets the staged values. If the
// process dies in between, or the write fails, they are still staged, the
// coordinator delivers the marker again, and the hook is told again what it
// knows. In the other order a failing hook would be told of nothing the next
// time.
func (p *partition) markWithHook(ctx context.Context, mk markers.Marker, e entry) error {
	// The producer's turn keeps further staging out until the marker is in the
	// log, as if it came after it.
	release, err := p.turns.take(ctx, producerTurn(mk.Producer.ID))
	if err != nil {
		return err
	}
	defer release()
	// The hook must not be told what may never have happened, so what was staged
	// before has to be durable.
	if err := p.quiesce(ctx); err != nil {
		return err
	}
	groups, err := p.touched(mk)
	if err != nil {
		return err
	}
	releaseGroups, err := p.turns.take(ctx, groups...)
	if err != nil {
		return err
	}
	defer releaseGroups()
	// A commit whose caller gave up may have left its turn and still be on its
	// way. The hook knows it; news would not.
	if err := p.quiesce(ctx); err != nil {
		return err
	}
	news, gen, err := p.news(mk)
	if err != nil {
		return err
	}
	for _, n := range news {
		if err := p.tell(ctx, n); err != nil {
			return err
		}
	}
	w, err := p.mark(ctx, mk, e, gen)
	if err != nil {
		return err
	}
	return w.wait(ctx)
}

// commitWithHook is a plain commit: the hook is told first, because a value that
// it refuses must not become the committed one.
func (p *partition) commitWithHook(ctx context.Context, e entry) error {
	release, err := p.turns.take(ctx, groupTurn(e.group))
	if err != nil {
		return err
	}
	defer release()
	n := told{group: e.group}
	for _, it := range e.items {
		n.os = append(n.os, it.at(it.key))
	}
	if err := p.tell(ctx, n); err != nil {
		return err
	}
	w, err := p.put(ctx, e)
	if err != nil {
		return err
	}
	return w.wait(ctx)
}

func (p *partition) tell(ctx context.Context, n told) error {
	if err := p.m.cfg.Hook.Commit(ctx, n.group, n.os); err != nil {
		return txnstate.CodeCoordinatorNotAvailable.Errorf("", "the offsets of group %q were not taken over: %w", n.group, err)
	}
	return nil
}

// touched lists the turns of the groups that a commit marker would change.
func (p *partition) touched(mk markers.Marker) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return nil, err
	}
	if err := p.decide(mk); err != nil {
		return nil, err
	}
	groups := p.st.groupsOf(mk.Producer.ID)
	for i := range groups {
		groups[i] = groupTurn(groups[i])
	}
	return groups, nil
}

// news is what the hook has to be told for a commit marker, and of which state
// that is true.
func (p *partition) news(mk markers.Marker) ([]told, uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return nil, 0, err
	}
	becomes := p.st.becomes(mk.Producer)
	var out []told
	for _, g := range slices.Sorted(maps.Keys(becomes)) {
		out = append(out, told{g, becomes[g]})
	}
	return out, p.gen, nil
}
