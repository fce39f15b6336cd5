package fence

import (
	"math"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Reserve decides whether a client's batch may be appended, and if so takes its
// place in the order of its producer, with an offset still to come: Settle says
// which one it got, Cancel that it was not appended. Both are called under the
// partition's lock, like everything else here. g is what Verify gave for this
// batch, the zero Guard where it gave none.
//
// The batches of one producer have to be in the log in the order in which they
// were reserved. Where a host appends under the partition's lock that is so of
// itself.
//
// A batch without a producer id is always let in, and leaves no trace.
//
// The error is a *txnstate.Error, and nothing was changed: INVALID_RECORD (87) a
// control batch or a producer id without a sequence; INVALID_PRODUCER_EPOCH (47)
// an older epoch; INVALID_TXN_STATE (48) a transactional batch whose transaction
// was not verified, or has ended since, or a non-transactional one while a
// transaction is open; OUT_OF_ORDER_SEQUENCE_NUMBER (45); NOT_ENOUGH_REPLICAS
// (19), which clients try again, while a transaction of an earlier epoch waits for
// its marker. While other batches of the producer are reserved, also 19 and
// NOT_ENOUGH_REPLICAS_AFTER_APPEND (20), see Cancel and Reservation.
func (p *Partition) Reserve(b Batch, g Guard, nowMs int64) (Reservation, error) {
	if b.Control {
		return Reservation{}, txnstate.CodeInvalidRecord.Errorf("", "a control batch from a client")
	}
	if b.Producer.ID < 0 {
		return Reservation{}, nil
	}
	if b.FirstSequence < 0 {
		return Reservation{}, txnstate.CodeInvalidRecord.Errorf("", "producer id %d with sequence %d", b.Producer.ID, b.FirstSequence)
	}
	if b.Records <= 0 {
		return Reservation{}, txnstate.CodeInvalidRecord.Errorf("", "a batch of %d records", b.Records)
	}
	var e *entry
	t := fresh
	pr := p.producers[b.Producer.ID]
	if pr != nil {
		e, t = p.entryOf(pr, nowMs), pr.tip()
		// Before the search for a duplicate, as an older epoch finds none: what it
		// sends is never told to have succeeded.
		if b.Transactional && b.Producer.Epoch < pr.fencedBelow {
			return Reservation{}, stale(b.Producer, pr.fencedBelow)
		}
		if s, pending, found := pr.duplicate(b); pending {
			return Reservation{}, txnstate.CodeNotEnoughReplicasAfter.Errorf("", "the same batch of producer id %d, from sequence %d, is being appended", b.Producer.ID, b.FirstSequence)
		} else if found {
			return Reservation{Duplicate: true, Offset: s.base, TimestampMs: s.ts}, nil
		}
		if pr.broken {
			return Reservation{}, broken(b.Producer.ID)
		}
	}
	if b.Transactional {
		if err := p.admitted(b.Producer, t, e, g); err != nil {
			return Reservation{}, err
		}
		if t.open && b.Producer.Epoch > t.epoch {
			return Reservation{}, unfinished(b.Producer, t.epoch)
		}
	}
	if b.Producer.Epoch < t.epoch {
		return Reservation{}, stale(b.Producer, t.epoch)
	}
	if err := inOrder(b, t, e); err != nil {
		return Reservation{}, err
	}
	if !b.Transactional && t.open {
		return Reservation{}, txnstate.CodeInvalidTxnState.Errorf("", "a batch outside of the transaction that producer id %d has open", b.Producer.ID)
	}
	if pr == nil {
		pr = p.get(b.Producer.ID)
	}
	return p.reserve(p.newPending(pr, kindData, b, nowMs)), nil
}

// ReserveOffsets is Reserve for the offsets of a TxnOffsetCommit, at their
// partition of __consumer_offsets: the same epoch and guard, and no sequence, so
// no duplicate either. The timestamp is nowMs.
func (p *Partition) ReserveOffsets(who txnstate.Producer, g Guard, nowMs int64) (Reservation, error) {
	if who.ID < 0 {
		return Reservation{}, txnstate.CodeInvalidProducerIDMapping.Errorf("", "offsets of producer id %d", who.ID)
	}
	var e *entry
	t := fresh
	pr := p.producers[who.ID]
	if pr != nil {
		e, t = p.entryOf(pr, nowMs), pr.tip()
		if who.Epoch < pr.fencedBelow {
			return Reservation{}, stale(who, pr.fencedBelow)
		}
		if pr.broken {
			return Reservation{}, broken(who.ID)
		}
	}
	if err := p.admitted(who, t, e, g); err != nil {
		return Reservation{}, err
	}
	if t.open && who.Epoch > t.epoch {
		return Reservation{}, unfinished(who, t.epoch)
	}
	if pr == nil {
		pr = p.get(who.ID)
	}
	b := Batch{Producer: who, FirstSequence: -1, Records: 1, MaxTimestampMs: nowMs, Transactional: true}
	return p.reserve(p.newPending(pr, kindOffsets, b, nowMs)), nil
}

// ReserveMark takes the place of a marker that was decided on (markers.Decide,
// under the same lock) and is about to be appended. It takes effect when it and
// all that was reserved before it for its producer are settled.
func (p *Partition) ReserveMark(m Mark) Reservation {
	if m.Producer.ID < 0 {
		return Reservation{}
	}
	pr := p.get(m.Producer.ID)
	n := p.newPending(pr, kindMark, Batch{Producer: m.Producer, FirstSequence: -1, Records: 1, MaxTimestampMs: m.TimestampMs, Transactional: true, Control: true}, m.TimestampMs)
	n.coord, n.commit = m.CoordinatorEpoch, m.Commit
	return p.reserve(n)
}

// Mark records that a marker, which was decided on under the same lock, has been
// appended at an offset: ReserveMark and Settle in one.
func (p *Partition) Mark(m Mark, offset int64) { p.ReserveMark(m).Settle(offset) }

// admitted applies KIP-890: a transactional batch needs an open transaction of
// its epoch, or a question asked for it that no marker has overtaken.
func (p *Partition) admitted(who txnstate.Producer, t core, e *entry, g Guard) error {
	switch {
	case t.open && t.epoch == who.Epoch:
		return nil
	case who.Epoch < t.epoch:
		return stale(who, t.epoch) // before 48, which clients do not survive (KAFKA-19690)
	case p.cfg.NoVerification:
		return nil
	case e == nil || g.p != p || g.token != e.token:
		return txnstate.CodeInvalidTxnState.Errorf("", "the transaction of %s was not verified, or has ended since", who)
	}
	return nil
}

// inOrder applies the sequence rules.
func inOrder(b Batch, t core, e *entry) error {
	seq := b.FirstSequence
	refuse := func(want string, n int32) error {
		return txnstate.CodeOutOfOrderSequence.Errorf("", "sequence %d of %s, and %s is %d", seq, b.Producer, want, n)
	}
	next := int32(0)
	if t.seq >= 0 && t.seq < math.MaxInt32 {
		next = t.seq + 1
	}
	switch {
	case e != nil && e.tv2 && seq != 0 && !t.has:
		return refuse("the first of a transaction", 0) // KAFKA-18202
	case e != nil && seq > e.lowest:
		return refuse("the lowest that was asked about", e.lowest)
	case t.epoch < 0:
		// Nothing is known of the producer, or nothing any more: any sequence may
		// be the next.
		return nil
	case b.Producer.Epoch != t.epoch && seq != 0:
		return refuse("the first of an epoch", 0)
	case b.Producer.Epoch == t.epoch && seq != next:
		return refuse("the next", next)
	}
	return nil
}

// unfinished refuses a batch of a later transaction while one of an earlier epoch
// waits for its marker: the later one's marker would close both, and publish what
// was aborted (I4). A coordinator that tells every participant lets no such batch
// come; Kafka 4.4, which can lose a marker at its start, takes it (F38). Clients
// try again, and each time the coordinator is asked, which looks to a marker that
// is still owed.
func unfinished(who txnstate.Producer, open int16) error {
	return txnstate.CodeNotEnoughReplicas.Errorf("", "a batch of %s, and the transaction of epoch %d is not marked yet", who, open)
}

func broken(id int64) error {
	return txnstate.CodeNotEnoughReplicas.Errorf("", "a batch of producer id %d was not appended, and those behind it are on their way", id)
}
