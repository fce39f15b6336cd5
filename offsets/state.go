package offsets

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// state is what the entries of one offsets partition amount to. It is pure: no
// I/O, no clock, no lock.
//
// Two things move at different times while the partition is served. The fence
// is ahead: it has every entry that was admitted, so that a request is judged
// with those before it whose write is still under way. Committed and staged
// values have only the entries that are durable, so that nobody reads what may
// never have happened. When both have the same entries, admitted == applied.
type state struct {
	fence    *fence.Partition
	admitted int64 // number of the latest entry the fence has
	applied  int64 // number of the latest entry that groups and staged have

	groups map[string]map[TopicPartition]*slot
	// staged finds the slots in which a producer id has something staged.
	staged map[int64]map[place]struct{}
}

// place is a partition as one group knows it.
type place struct {
	group string
	TopicPartition
}

// slot holds what a group has for one partition: it exists while there is a
// committed or a staged value.
type slot struct {
	committed value // order 0: none
	pending   []pending
}

// pending is a staged value. A producer id has at most one in a slot, several
// producer ids may have one each.
type pending struct {
	pid   int64
	epoch int16
	value
}

func newState(cfg fence.Config) *state {
	return &state{
		fence:  fence.NewPartition(cfg),
		groups: map[string]map[TopicPartition]*slot{},
		staged: map[int64]map[place]struct{}{},
	}
}

// find is the slot of a place, or nil.
func (s *state) find(pl place) *slot { return s.groups[pl.group][pl.TopicPartition] }

// at is the slot of a place, made where there is none.
func (s *state) at(pl place) *slot {
	g := s.groups[pl.group]
	if g == nil {
		g = map[TopicPartition]*slot{}
		s.groups[pl.group] = g
	}
	sl := g[pl.TopicPartition]
	if sl == nil {
		sl = &slot{}
		g[pl.TopicPartition] = sl
	}
	return sl
}

// tidy removes the slot of a place when nothing is in it.
func (s *state) tidy(pl place) {
	g := s.groups[pl.group]
	if sl := g[pl.TopicPartition]; sl != nil && sl.committed.order == 0 && len(sl.pending) == 0 {
		delete(g, pl.TopicPartition)
	}
	if len(g) == 0 {
		delete(s.groups, pl.group)
	}
}

// index notes, or forgets, that a producer id has something staged in a place.
func (s *state) index(pid int64, pl place, staged bool) {
	places := s.staged[pid]
	if !staged {
		if delete(places, pl); len(places) == 0 {
			delete(s.staged, pid)
		}
		return
	}
	if places == nil {
		places = map[place]struct{}{}
		s.staged[pid] = places
	}
	places[pl] = struct{}{}
}

// admit lets the fence have an entry that passed its checks, at the entry's
// number. Entries are admitted in the order of their numbers.
func (s *state) admit(e entry) {
	s.admitted = e.number
	switch e.kind {
	case kindStage:
		// Sequence -1: the group side has none (§7.1).
		s.fence.Replay(fence.Batch{
			Producer: e.producer, FirstSequence: -1, Records: 1,
			MaxTimestampMs: e.stampMs, Transactional: true,
		}, e.number, nil)
	case kindMarker:
		s.fence.Mark(e.mark(), e.number)
	}
}

func (e entry) mark() fence.Mark {
	return fence.Mark{Producer: e.producer, Commit: e.commit, CoordinatorEpoch: e.coordinatorEpoch, TimestampMs: e.stampMs}
}

// apply lets committed and staged values have a durable entry. The same entries
// give the same state, live and replayed.
func (s *state) apply(e entry) {
	s.applied = e.number
	switch e.kind {
	case kindStage:
		for _, it := range e.items {
			it.order = e.number
			s.stage(place{e.group, it.key}, pending{e.producer.ID, e.producer.Epoch, it.value})
		}
	case kindCommit:
		for _, it := range e.items {
			it.order = e.number
			s.at(place{e.group, it.key}).committed = it.value
		}
	case kindMarker:
		for _, pl := range slices.Collect(maps.Keys(s.staged[e.producer.ID])) {
			s.settle(pl, e.producer, e.commit)
		}
	case kindDeleteGroup:
		for tp := range s.groups[e.group] {
			s.erase(place{e.group, tp})
		}
	case kindDeleteOffsets:
		for _, it := range e.items {
			s.erase(place{e.group, it.key})
		}
	case kindDeleteTopic:
		for group, slots := range s.groups {
			for tp := range slots {
				if tp.Topic == e.topic {
					s.erase(place{group, tp})
				}
			}
		}
	case kindExpire:
		for _, it := range e.items {
			s.expire(place{e.group, it.key}, it.order)
		}
	}
	// Nothing reads aborted ranges or an LSO here, so none are kept.
	s.fence.Stabilize(s.applied + 1)
	s.fence.LogStart(s.applied + 1)
}

// stage replaces what the producer id has staged in a place: the later record
// of one producer id counts.
func (s *state) stage(pl place, p pending) {
	sl := s.at(pl)
	if i := sl.indexOf(p.pid); i >= 0 {
		sl.pending[i] = p
	} else {
		sl.pending = append(sl.pending, p)
	}
	s.index(p.pid, pl, true)
}

func (sl *slot) indexOf(pid int64) int {
	return slices.IndexFunc(sl.pending, func(p pending) bool { return p.pid == pid })
}

// settles reports whether a marker of this producer settles p: WriteTxnMarkers
// carries neither group nor transactional id, and under TV2 its epoch is one
// above that of the data (KIP-890).
func (p pending) settles(by txnstate.Producer) bool { return p.pid == by.ID && p.epoch <= by.Epoch }

// wins reports whether a commit of p makes it the committed value: only if it is
// the newer in log order, so that a commit without a transaction that came after
// it stays (KAFKA-5247).
func (sl *slot) wins(p pending) bool { return p.order > sl.committed.order }

// settle ends what the producer staged in a place.
func (s *state) settle(pl place, by txnstate.Producer, commit bool) {
	sl := s.find(pl)
	i := sl.indexOf(by.ID)
	if i < 0 || !sl.pending[i].settles(by) {
		return
	}
	p := sl.pending[i]
	sl.pending = slices.Delete(sl.pending, i, i+1)
	if commit && sl.wins(p) {
		sl.committed = p.value
	}
	s.index(by.ID, pl, false)
	s.tidy(pl)
}

// erase removes the committed value of a place and what anybody staged there: a
// commit marker that comes later finds nothing (DeleteGroups, OffsetDelete).
func (s *state) erase(pl place) {
	sl := s.find(pl)
	if sl == nil {
		return
	}
	for _, p := range sl.pending {
		s.index(p.pid, pl, false)
	}
	*sl = slot{}
	s.tidy(pl)
}

// expire removes the committed value of a place if it still is the one of this
// order and no transaction is pending on it (KAFKA-19163). What was decided when
// the entry was made is decided again here, in log order.
func (s *state) expire(pl place, order int64) {
	sl := s.find(pl)
	if sl == nil || len(sl.pending) > 0 || sl.committed.order != order {
		return
	}
	sl.committed = value{}
	s.tidy(pl)
}

// becomes lists what a commit marker of the producer would make the committed
// values, by group.
func (s *state) becomes(by txnstate.Producer) map[string][]Offset {
	out := map[string][]Offset{}
	for pl := range s.staged[by.ID] {
		sl := s.find(pl)
		if p := sl.pending[sl.indexOf(by.ID)]; p.settles(by) && sl.wins(p) {
			out[pl.group] = append(out[pl.group], p.at(pl.TopicPartition))
		}
	}
	for _, os := range out {
		sortOffsets(os)
	}
	return out
}

// groupsOf lists the groups in which a producer id has something staged.
func (s *state) groupsOf(pid int64) []string {
	set := map[string]struct{}{}
	for pl := range s.staged[pid] {
		set[pl.group] = struct{}{}
	}
	return slices.Sorted(maps.Keys(set))
}

// groupPending reports whether anything is staged in a group.
func (s *state) groupPending(group string) bool {
	for _, sl := range s.groups[group] {
		if len(sl.pending) > 0 {
			return true
		}
	}
	return false
}

// check finds the first contradiction in the state. Tests call it after every
// step.
func (s *state) check() error {
	n := 0
	for group, slots := range s.groups {
		if len(slots) == 0 {
			return fmt.Errorf("group %q has no slot", group)
		}
		for tp, sl := range slots {
			pl := place{group, tp}
			if sl.committed.order == 0 && len(sl.pending) == 0 {
				return fmt.Errorf("%v is empty", pl)
			}
			if sl.committed.order > s.applied {
				return fmt.Errorf("%v has order %d, the log ends at %d", pl, sl.committed.order, s.applied)
			}
			for i, p := range sl.pending {
				if sl.indexOf(p.pid) != i {
					return fmt.Errorf("%v has two values of producer id %d", pl, p.pid)
				}
				if _, ok := s.staged[p.pid][pl]; !ok {
					return fmt.Errorf("%v: producer id %d is not indexed", pl, p.pid)
				}
				if st, ok := s.fence.Producer(p.pid); s.admitted == s.applied && (!ok || !st.Open) {
					return fmt.Errorf("%v: producer id %d has a value staged and no open transaction", pl, p.pid)
				}
				n++
			}
		}
	}
	for _, places := range s.staged {
		n -= len(places)
	}
	if n != 0 {
		return fmt.Errorf("%d more values are staged than indexed", n)
	}
	if s.admitted < s.applied {
		return fmt.Errorf("%d entries applied, %d admitted", s.applied, s.admitted)
	}
	return nil
}
