package fence

import (
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// remembered is how many batches of a producer are known by their sequences: a
// Java producer has at most five in flight (max.in.flight.requests.per.connection).
const remembered = 5

// core is the part of a producer's state that the next batch is judged by. It
// exists once as the log has it and once behind each batch that is reserved.
type core struct {
	ts    int64 // of the last batch or marker, -1 for none
	coord int32 // coordinator epoch of the last marker, -1 for none
	seq   int32 // last sequence under epoch, -1 for none
	epoch int16 // -1 for none
	has   bool  // a batch under epoch is remembered
	open  bool  // a transaction is open
}

var fresh = core{ts: -1, coord: -1, seq: -1, epoch: -1}

// moved is c under an epoch. Another epoch starts a new run of sequences. Epochs
// never go back: only a damaged log could ask for it, and then the higher one is
// what fences (I9).
func (c core) moved(epoch int16) core {
	if epoch > c.epoch {
		c.epoch, c.seq, c.has = epoch, -1, false
	}
	return c
}

// after is the state once n follows c.
func (c core) after(n *pending) core {
	c = c.moved(n.b.Producer.Epoch)
	c.ts = n.b.MaxTimestampMs
	switch n.kind {
	case kindData:
		if n.b.Producer.Epoch == c.epoch {
			c.seq, c.has = n.b.LastSequence(), true
		}
		c.open = c.open || n.b.Transactional
	case kindOffsets:
		c.open = true
	case kindMark:
		// A log may hold a marker of a deposed coordinator (KAFKA-9144); the
		// newer coordinator epoch stays in force.
		c.coord = max(c.coord, n.coord)
		c.open = false
	}
	return c
}

// span is a batch as it is remembered for duplicates.
type span struct {
	base  int64
	ts    int64
	first int32
	count int32
}

// producer is what is kept of one producer id: about 300 bytes with its place in
// the map.
type producer struct {
	id int64
	core
	entry entry

	window [remembered]span // a ring of the batches under epoch
	oldest uint8
	filled uint8

	known       bool  // something of it is in the log; else it is an entry alone
	broken      bool  // reservations stand behind a cancelled one
	fencedBelow int16 // see Fence; -1 for no fence
	start       int64 // offset of the open transaction
	last        int64 // offset of the last batch or marker, -1 for none
	seenMs      int64 // when it was last heard of, for expiry

	first, tail *pending // reservations, in order
	in          *list
	prev, next  *producer
}

// tip is the state that the next batch is judged by.
func (pr *producer) tip() core {
	if pr.tail != nil {
		return pr.tail.state
	}
	return pr.core
}

func (pr *producer) remember(s span) {
	if pr.filled < remembered {
		pr.window[(pr.oldest+pr.filled)%remembered] = s
		pr.filled++
		return
	}
	pr.window[pr.oldest] = s
	pr.oldest = (pr.oldest + 1) % remembered
}

// spans visits the remembered batches, oldest first.
func (pr *producer) spans(f func(span)) {
	for i := range pr.filled {
		f(pr.window[(pr.oldest+i)%remembered])
	}
}

// duplicate looks for a batch with exactly the sequences of b among the last
// five under its epoch, those that are reserved included. pending tells that it
// is one of the latter and its offset is not known yet.
func (pr *producer) duplicate(b Batch) (s span, pending, found bool) {
	if t := pr.tip(); !t.has || t.epoch != b.Producer.Epoch {
		return span{}, false, false
	}
	left := remembered
	for n := pr.tail; n != nil && left > 0; n = n.prev {
		if n.kind == kindData {
			if n.b.FirstSequence == b.FirstSequence && n.b.Records == b.Records {
				return n.span(), !n.settled, true
			}
			left--
		}
		if n.state.epoch != n.before().epoch {
			return span{}, false, false
		}
	}
	for i := int(pr.filled) - 1; i >= 0 && left > 0; i-- {
		s := pr.window[(int(pr.oldest)+i)%remembered]
		if s.first == b.FirstSequence && s.count == b.Records {
			return s, false, true
		}
		left--
	}
	return span{}, false, false
}

func (pr *producer) state() ProducerState {
	t := pr.tip()
	s := ProducerState{
		Producer:         txnstate.Producer{ID: pr.id, Epoch: t.epoch},
		CoordinatorEpoch: t.coord,
		Open:             t.open,
		OpenSince:        -1,
		LastSequence:     t.seq,
		LastTimestampMs:  t.ts,
		FencedBelow:      pr.fencedBelow,
	}
	if !t.open {
		return s
	}
	// The open transaction is the one of the log unless a marker is reserved
	// behind it.
	since := pr.start
	if !pr.open {
		since = -1
	}
	for n := pr.first; n != nil; n = n.next {
		switch {
		case n.kind == kindMark:
			since = -1
		case n.settled && since < 0 && n.opens():
			since = n.base
		}
	}
	s.OpenSince = since
	return s
}
