package fence

import "github.com/kafkatxn/kafkatxn/txnstate"

// entry remembers that the coordinator was asked about a producer that has no
// open transaction here (Kafka's VerificationStateEntry). It is one per producer
// id, not per epoch, and lives in memory only: after a restart the question is
// asked again.
type entry struct {
	token  uint64 // 0 for none
	atMs   int64  // when it was made
	lowest int32  // sequence that no batch may be above (KAFKA-14561)
	epoch  int16
	tv2    bool // made by ModeAdd
}

// Verify is asked before anything is done for a transactional batch. Where ask
// is true, the host asks the coordinator of the batch's transactional id whether
// the partition is in the transaction (or, in ModeAdd, to add it), without
// holding the partition's lock, and then passes g to Reserve. An error of the
// coordinator ends the batch (Mode.ProduceAnswer). Where ask is false the answer
// is known, or not needed: a transaction of exactly this producer is open, the
// batch isn't transactional or has no producer id, or verification is off.
//
// The error is INVALID_PRODUCER_EPOCH (47) for an epoch that is known to be gone
// (KAFKA-18042): the coordinator is not asked.
//
// What Verify remembers stays also where the coordinator refuses, as in Kafka:
// until a marker, an accepted transactional batch, or Config.ExpireAfter.
func (p *Partition) Verify(b Batch, mode Mode, nowMs int64) (g Guard, ask bool, err error) {
	if !b.Transactional || b.Producer.ID < 0 {
		return Guard{}, false, nil
	}
	return p.verify(b.Producer, b.FirstSequence, mode, nowMs)
}

// VerifyOffsets is Verify for a TxnOffsetCommit, at the partition of
// __consumer_offsets that holds the group. A producer id of -1 is asked about
// like any other, as in Kafka; the coordinator refuses it.
func (p *Partition) VerifyOffsets(pr txnstate.Producer, mode Mode, nowMs int64) (g Guard, ask bool, err error) {
	if pr.ID < 0 {
		return Guard{}, true, nil
	}
	return p.verify(pr, -1, mode, nowMs)
}

func (p *Partition) verify(who txnstate.Producer, seq int32, mode Mode, nowMs int64) (Guard, bool, error) {
	add := mode == ModeAdd
	if p.cfg.NoVerification && !add {
		return Guard{}, false, nil
	}
	pr := p.producers[who.ID]
	if pr != nil {
		t := pr.tip()
		switch {
		case pr.fencedBelow >= 0 && who.Epoch < pr.fencedBelow:
			return Guard{}, false, stale(who, pr.fencedBelow)
		case t.open && t.epoch == who.Epoch:
			return Guard{}, false, nil
		case t.epoch >= 0 && who.Epoch < t.epoch:
			// Only where there is an epoch: a question alone leaves none, and the
			// coordinator is asked even about an epoch below -1.
			return Guard{}, false, stale(who, t.epoch)
		}
	} else {
		pr = p.get(who.ID)
	}
	e := p.entryOf(pr, nowMs)
	switch {
	case e == nil:
		p.tokens++
		pr.entry = entry{token: p.tokens, atMs: nowMs, lowest: seq, epoch: who.Epoch, tv2: add}
		e = &pr.entry
	case who.Epoch == e.epoch:
		e.lowest = min(e.lowest, seq)
	case who.Epoch > e.epoch:
		e.epoch, e.lowest = who.Epoch, seq
	}
	return Guard{p: p, token: e.token}, true, nil
}

// Asked reports whether the coordinator was asked about a producer id and nothing
// has settled that since: a batch that was verified may be on its way. A marker
// makes sure that it is refused.
func (p *Partition) Asked(id int64) bool {
	pr := p.producers[id]
	return pr != nil && pr.entry.token != 0
}

// entryOf is the live entry of a producer, or nil.
func (p *Partition) entryOf(pr *producer, nowMs int64) *entry {
	if pr.entry.token == 0 {
		return nil
	}
	if nowMs-pr.entry.atMs >= p.cfg.ExpireAfter.Milliseconds() {
		pr.entry = entry{}
		return nil
	}
	return &pr.entry
}

func stale(who txnstate.Producer, epoch int16) error {
	return txnstate.CodeInvalidProducerEpoch.Errorf("", "epoch %d of producer id %d, and the partition knows epoch %d", who.Epoch, who.ID, epoch)
}
