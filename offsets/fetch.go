package offsets

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Fetched is the answer for one partition of a Fetch.
type Fetched struct {
	Offset
	// Code is UNSTABLE_OFFSET_COMMIT in a stable Fetch of a partition with a
	// staged value, and NONE otherwise.
	Code txnstate.Code
}

// Fetch reads committed offsets of a group: of the partitions tps, in their
// order, or, where tps is nil, of all that have one, sorted. A partition without
// one has offset -1, leader epoch -1 and no metadata, and no error (OffsetFetch).
//
// With stable (RequireStable, KIP-447) a partition on which a transaction is
// pending, by whichever producer, is answered UNSTABLE_OFFSET_COMMIT, and
// without a position. So is one with a commit announced or on its way to the
// log: what a member of the generation before wrote must not be overlooked. A
// caller that would rather wait for the latter, as Kafka does, calls Await first.
//
// An error means that the group's partition cannot be asked; it is never an
// empty answer, which a consumer would take for a reason to start over.
func (m *Manager) Fetch(group string, tps []TopicPartition, stable bool) ([]Fetched, error) {
	p := m.of(group)
	out, err := p.fetch(group, tps, stable)
	if err == nil {
		err = p.still()
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (p *partition) fetch(group string, tps []TopicPartition, stable bool) ([]Fetched, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return nil, err
	}
	slots := p.st.groups[group]
	if tps == nil {
		tps = slices.SortedFunc(maps.Keys(slots), TopicPartition.compare)
		tps = slices.DeleteFunc(tps, func(tp TopicPartition) bool { return slots[tp].committed.order == 0 })
	}
	out := make([]Fetched, len(tps))
	for i, tp := range tps {
		out[i] = Fetched{Offset: Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: -1, LeaderEpoch: -1}}
		sl := slots[tp]
		switch {
		case stable && (sl != nil && len(sl.pending) > 0 || p.coming(place{group, tp})):
			out[i].Code = txnstate.CodeUnstableOffsetCommit
		case sl != nil && sl.committed.order > 0:
			out[i].Offset = sl.committed.at(tp)
		}
	}
	return out, nil
}

// Await returns when all that was accepted for the group's partition before is
// durable and seen by Fetch.
func (m *Manager) Await(ctx context.Context, group string) error { return m.of(group).quiesce(ctx) }

// Announce says that a commit of these offsets may follow: until end is called, a
// stable Fetch answers UNSTABLE_OFFSET_COMMIT for their partitions, and
// HasPending is true. The caller announces before it looks at the membership of
// whoever commits, and calls end after Stage or Commit has returned. Otherwise
// a member could pass the check, the group rebalance, the partition's new owner
// fetch the position from before, and the commit of the old one still arrive:
// what it covers would be processed twice. Kafka checks and appends as one step;
// here the membership is the host's, and is asked with no lock held.
func (m *Manager) Announce(group string, os []Offset) (end func()) {
	p := m.of(group)
	count := func(by int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, o := range os {
			pl := place{group, o.key()}
			if p.announced[pl] += by; p.announced[pl] == 0 {
				delete(p.announced, pl)
			}
		}
	}
	count(1)
	var once sync.Once
	return func() { once.Do(func() { count(-1) }) }
}

// coming reports whether a place may be about to change. mu is held.
func (p *partition) coming(pl place) bool { return p.flight[pl] > 0 || p.announced[pl] > 0 }

// anyComing is coming for all places of some kind. mu is held.
func (p *partition) anyComing(is func(place) bool) bool {
	for _, m := range []map[place]int{p.flight, p.announced} {
		for pl := range m {
			if is(pl) {
				return true
			}
		}
	}
	return false
}

// HasPending reports whether a transaction has offsets staged for the group, or
// is about to. Where that is not known, because the group's partition cannot be
// asked, it is true: a group is deleted or expired only when it is known to be
// without.
func (m *Manager) HasPending(group string) bool {
	p := m.of(group)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusal() != nil {
		return true
	}
	return p.st.groupPending(group) || p.anyComing(func(pl place) bool { return pl.group == group })
}
