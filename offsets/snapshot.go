package offsets

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kafkatxn/kafkatxn/fence"
)

// snapshotPiece is about how long the entries of a snapshot get.
const snapshotPiece = 64 << 10

// snapshot is the state as entries that a log can begin with, the numbering of
// the entries and the order of the values included. admitted == applied must
// hold.
func (s *state) snapshot() [][]byte {
	w := snapshotWriter{out: make([][]byte, 1)} // the head's place: its count is not known yet
	blob := s.fence.AppendSnapshot(nil)
	for {
		n := min(len(blob), snapshotPiece)
		w.add(entry{kind: kindSnapshotProducers, last: n == len(blob), blob: blob[:n]})
		if blob = blob[n:]; len(blob) == 0 {
			break
		}
	}
	for _, group := range slices.Sorted(maps.Keys(s.groups)) {
		s.snapshotGroup(&w, group)
	}
	w.out[0] = appendEntry(nil, entry{kind: kindSnapshot, number: s.applied, count: len(w.out) - 1})
	return w.out
}

func (s *state) snapshotGroup(w *snapshotWriter, group string) {
	slots := s.groups[group]
	keys := slices.SortedFunc(maps.Keys(slots), TopicPartition.compare)
	committed := entry{kind: kindSnapshotCommitted, group: group}
	staged := map[int64]*entry{}
	for _, tp := range keys {
		sl := slots[tp]
		if sl.committed.order > 0 {
			w.item(&committed, item{key: tp, value: sl.committed})
		}
		for _, p := range sl.pending {
			e := staged[p.pid]
			if e == nil {
				e = &entry{kind: kindSnapshotStaged, group: group}
				e.producer.ID = p.pid
				staged[p.pid] = e
			}
			w.item(e, item{key: tp, value: p.value, epoch: p.epoch})
		}
	}
	w.flush(&committed)
	for _, pid := range slices.Sorted(maps.Keys(staged)) {
		w.flush(staged[pid])
	}
}

type snapshotWriter struct{ out [][]byte }

func (w *snapshotWriter) add(e entry) { w.out = append(w.out, appendEntry(nil, e)) }

// item adds to an entry that is being collected, and writes it once it is long.
func (w *snapshotWriter) item(e *entry, it item) {
	e.items = append(e.items, it)
	e.count += offsetSize + len(it.key.Topic) + len(it.metadata)
	if e.count >= snapshotPiece {
		w.flush(e)
	}
}

func (w *snapshotWriter) flush(e *entry) {
	if len(e.items) > 0 {
		w.add(*e)
	}
	e.items, e.count = e.items[:0], 0
}

// replayer builds a state from the entries of a log.
type replayer struct {
	cfg  fence.Config
	st   *state
	read int // entries so far
	left int // entries of the snapshot still to come
	blob []byte
	done bool // the producers of the snapshot are complete
	size int64
}

func newReplayer(cfg fence.Config) *replayer { return &replayer{cfg: cfg, st: newState(cfg)} }

// add takes the next entry. A failure names the entry by its place in the log,
// from 0.
func (r *replayer) add(b []byte) error {
	e, err := parseEntry(b)
	if err == nil {
		if r.left > 0 {
			err = r.restore(e)
		} else {
			err = r.next(e)
		}
	}
	if err != nil {
		return fmt.Errorf("entry %d: %w", r.read, err)
	}
	r.read++
	r.size += int64(len(b))
	return nil
}

func (r *replayer) next(e entry) error {
	switch {
	case e.kind == kindSnapshot && r.read == 0:
		if e.count == 0 {
			return errors.New("an empty snapshot")
		}
		r.left = e.count
		r.st.applied, r.st.admitted = e.number, e.number
		return nil
	case e.kind >= kindSnapshot:
		return fmt.Errorf("a %s entry where none belongs", kindNames[e.kind])
	case e.number != r.st.applied+1:
		// A log that lost an entry, doubled one or let a late one in.
		return fmt.Errorf("number %d follows number %d", e.number, r.st.applied)
	}
	if e.kind == kindMarker {
		// The legacy rule is what every accepted marker satisfies (§6.5).
		if st, ok := r.st.fence.Producer(e.producer.ID); ok && e.producer.Epoch < st.Producer.Epoch {
			return fmt.Errorf("a marker of %s follows epoch %d", e.producer, st.Producer.Epoch)
		}
	}
	r.st.admit(e)
	r.st.apply(e)
	return nil
}

func (r *replayer) restore(e entry) error {
	r.left--
	switch e.kind {
	case kindSnapshotProducers:
		if r.done {
			return errors.New("producers come twice")
		}
		r.blob = append(r.blob, e.blob...)
		if !e.last {
			return nil
		}
		p, err := fence.RestorePartition(r.cfg, r.blob)
		if err != nil {
			return fmt.Errorf("producer state: %w", err)
		}
		r.st.fence, r.blob, r.done = p, nil, true
	case kindSnapshotCommitted:
		for _, it := range e.items {
			if it.order > r.st.applied {
				return fmt.Errorf("order %d, and the snapshot ends at %d", it.order, r.st.applied)
			}
			r.st.at(place{e.group, it.key}).committed = it.value
		}
	case kindSnapshotStaged:
		for _, it := range e.items {
			if it.order > r.st.applied {
				return fmt.Errorf("order %d, and the snapshot ends at %d", it.order, r.st.applied)
			}
			r.st.stage(place{e.group, it.key}, pending{e.producer.ID, it.epoch, it.value})
		}
	default:
		return fmt.Errorf("a %s entry within a snapshot", kindNames[e.kind])
	}
	if r.left == 0 {
		return r.whole()
	}
	return nil
}

// whole looks at a snapshot when all of it was read.
func (r *replayer) whole() error {
	if !r.done {
		return errors.New("the snapshot ends without its producers")
	}
	for pid, places := range r.st.staged {
		st, ok := r.st.fence.Producer(pid)
		if !ok || !st.Open {
			return fmt.Errorf("producer id %d has offsets staged and no open transaction", pid)
		}
		for pl := range places {
			sl := r.st.find(pl)
			if e := sl.pending[sl.indexOf(pid)].epoch; e > st.Producer.Epoch {
				return fmt.Errorf("producer id %d staged at epoch %d and is at %d", pid, e, st.Producer.Epoch)
			}
		}
	}
	return nil
}

// finish is the state, when the log was shown to its end.
func (r *replayer) finish() (*state, error) {
	if r.left > 0 {
		return nil, fmt.Errorf("the snapshot lacks %d of its entries", r.left)
	}
	return r.st, nil
}
