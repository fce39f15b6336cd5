package fence_test

import (
	"cmp"
	"slices"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The model keeps the log, and for each producer the list of what was let in,
// and works everything out anew each time, by reading them from the beginning.
// It knows no windows, lists or indexes.

type item struct {
	b        fence.Batch
	mark     *fence.Mark
	offsets  bool
	base     int64 // -1 until it is in the log
	settled  bool
	gone     bool // cancelled
	cleared  *question
	r        fence.Reservation
	reserved int // in which order
}

type question struct {
	g      fence.Guard
	epoch  int16
	lowest int32
	tv2    bool
}

type modelProducer struct {
	items  []*item // without those that are gone
	entry  *question
	broken bool
	fence  int16
}

type view struct {
	epoch   int16
	coord   int32
	seq     int32
	batches []*item // under the epoch
	open    bool
	since   int64
}

// viewOf reads what was let in, as far as keep says so.
func viewOf(items []*item, keep func(*item) bool) view {
	v := view{epoch: -1, coord: -1, seq: -1, since: -1}
	for _, it := range items {
		if !keep(it) {
			continue
		}
		epoch := it.b.Producer.Epoch
		if epoch != v.epoch {
			v.epoch, v.seq, v.batches = epoch, -1, nil
		}
		switch {
		case it.mark != nil:
			v.coord, v.open, v.since = it.mark.CoordinatorEpoch, false, -1
		case it.offsets:
			if !v.open {
				v.open, v.since = true, it.base
			}
		default:
			v.seq = it.b.LastSequence()
			v.batches = append(v.batches, it)
			if it.b.Transactional && !v.open {
				v.open, v.since = true, it.base
			}
		}
	}
	return v
}

func all(*item) bool       { return true }
func (it *item) txn() bool { return it.offsets || it.mark == nil && it.b.Transactional }

type model struct {
	ps       map[int64]*modelProducer
	log      []*item // by offset
	end      int64
	logStart int64
	now      int64
	count    int
}

func (m *model) producer(id int64) *modelProducer {
	if m.ps[id] == nil {
		m.ps[id] = &modelProducer{fence: -1}
	}
	return m.ps[id]
}

// admit is the rules of a leader, written down once more.
func (m *model) admit(b fence.Batch, g fence.Guard) (dup *item, code txnstate.Code) {
	mp := m.producer(b.Producer.ID)
	v := viewOf(mp.items, all)
	if b.Transactional && b.Producer.Epoch < mp.fence {
		return nil, txnstate.CodeInvalidProducerEpoch
	}
	if b.Producer.Epoch == v.epoch {
		for _, it := range v.batches[max(0, len(v.batches)-5):] {
			if it.b.FirstSequence == b.FirstSequence && it.b.LastSequence() == b.LastSequence() {
				if !it.settled {
					return nil, txnstate.CodeNotEnoughReplicasAfter
				}
				return it, txnstate.CodeNone
			}
		}
	}
	if mp.broken {
		return nil, txnstate.CodeNotEnoughReplicas
	}
	if b.Transactional && !(v.open && v.epoch == b.Producer.Epoch) {
		if b.Producer.Epoch < v.epoch {
			return nil, txnstate.CodeInvalidProducerEpoch
		}
		if mp.entry == nil || mp.entry.g != g {
			return nil, txnstate.CodeInvalidTxnState
		}
		if v.open {
			return nil, txnstate.CodeNotEnoughReplicas
		}
	}
	if b.Producer.Epoch < v.epoch {
		return nil, txnstate.CodeInvalidProducerEpoch
	}
	if c := m.sequence(mp, v, b); c != txnstate.CodeNone {
		return nil, c
	}
	if !b.Transactional && v.open {
		return nil, txnstate.CodeInvalidTxnState
	}
	return nil, txnstate.CodeNone
}

func (m *model) sequence(mp *modelProducer, v view, b fence.Batch) txnstate.Code {
	seq := b.FirstSequence
	if mp.entry != nil && mp.entry.tv2 && seq != 0 && len(v.batches) == 0 {
		return txnstate.CodeOutOfOrderSequence
	}
	if mp.entry != nil && seq > mp.entry.lowest {
		return txnstate.CodeOutOfOrderSequence
	}
	if v.epoch == -1 {
		return txnstate.CodeNone
	}
	if b.Producer.Epoch != v.epoch {
		if seq != 0 {
			return txnstate.CodeOutOfOrderSequence
		}
		return txnstate.CodeNone
	}
	if want := int32((int64(v.seq) + 1) & 0x7fffffff); seq != want {
		return txnstate.CodeOutOfOrderSequence
	}
	return txnstate.CodeNone
}

func clears(it *item, q *question) bool {
	if it.mark != nil {
		return !q.tv2 || q.epoch != it.mark.Producer.Epoch
	}
	return it.txn()
}

func (m *model) letIn(it *item) {
	mp := m.producer(it.b.Producer.ID)
	it.base, it.reserved = -1, m.count
	m.count++
	if mp.entry != nil && clears(it, mp.entry) {
		it.cleared, mp.entry = mp.entry, nil
	}
	mp.items = append(mp.items, it)
}

func (m *model) cancel(it *item) {
	mp := m.producer(it.b.Producer.ID)
	i := slices.Index(mp.items, it)
	later := mp.items[i+1:]
	if len(later) > 0 {
		mp.broken = true
	}
	if q := it.cleared; q != nil {
		j := slices.IndexFunc(later, func(l *item) bool { return clears(l, q) })
		switch {
		case j >= 0 && later[j].cleared == nil:
			later[j].cleared = q
		case j < 0 && mp.entry == nil:
			mp.entry = q
		}
	}
	it.gone = true
	mp.items = slices.Delete(mp.items, i, i+1)
	m.mend(mp)
	if len(mp.items) == 0 && mp.entry == nil {
		mp.fence = -1 // as if it had never been here
	}
}

func (m *model) mend(mp *modelProducer) {
	if !slices.ContainsFunc(mp.items, func(it *item) bool { return !it.settled }) {
		mp.broken = false
	}
}

// pending lists what is reserved and not settled, in the order of reservation.
func (m *model) pending() (out []*item) {
	for _, mp := range m.ps {
		for _, it := range mp.items {
			if !it.settled {
				out = append(out, it)
			}
		}
	}
	slices.SortFunc(out, func(a, b *item) int { return cmp.Compare(a.reserved, b.reserved) })
	return out
}

// put gives the batch the next offset: it is in the log, whether the partition
// has been told or not.
func (m *model) put(it *item) {
	it.base = m.end
	m.end += int64(it.b.Records)
	m.log = append(m.log, it)
}

type transaction struct {
	pid         int64
	first, last int64 // -1 while it is open
	abort       bool
	storedLSO   int64
}

// transactions reads the log.
func (m *model) transactions() (out []transaction) {
	open := map[int64]int{}
	for _, it := range m.log {
		pid := it.b.Producer.ID
		i, is := open[pid]
		switch {
		case it.mark != nil && is:
			delete(open, pid)
			out[i].last, out[i].abort, out[i].storedLSO = it.base, !it.mark.Commit, it.base+1
			for _, j := range open {
				out[i].storedLSO = min(out[i].storedLSO, out[j].first)
			}
		case it.mark == nil && it.txn() && !is:
			open[pid] = len(out)
			out = append(out, transaction{pid: pid, first: it.base, last: -1})
		}
	}
	return out
}

func (m *model) stable(hw int64) int64 {
	lso := hw
	for _, t := range m.transactions() {
		if t.last < 0 || t.last >= hw {
			lso = min(lso, t.first)
		}
	}
	return max(lso, m.logStart)
}

// needed lists what a reader from an offset up to a bound has to be told: it is
// what overlaps, in the order of the markers.
func (m *model) needed(from, bound int64) (out []transaction) {
	for _, t := range m.transactions() {
		if t.abort && t.last >= from && t.first < bound && t.last >= m.logStart {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b transaction) int { return cmp.Compare(a.last, b.last) })
	return out
}
