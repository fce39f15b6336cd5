package txnstate

// stepInit gives an identity, or ends the open transaction of the holder before
// (KIP-98, KIP-360).
func stepInit(rec Record, ev Init, ms int64) (Decision, error) {
	fresh := ev.Expected == NoProducer
	if !rec.Known() {
		// Also for a caller that holds ids: the id has expired, and a producer id
		// that nobody else has is safe to go on with.
		return grant(rec, ev, Producer{ID: ev.NewID, Epoch: 0}, -1, ms)
	}
	if rec.State.Decided() {
		return refuse(rec, CodeConcurrentTransactions, "the previous transaction is completing: %s", rec.State)
	}
	ours := ev.Expected.ID == rec.Producer.ID || rec.PrevID >= 0 && ev.Expected.ID == rec.PrevID && ev.Expected.Epoch >= MaxEpoch
	if !fresh && !ours {
		return refuse(rec, CodeProducerFenced, "the caller holds %s, and the identity is %s", ev.Expected, rec.Producer)
	}
	if rec.State == Ongoing {
		// The caller's epoch is not compared here, as in Kafka: a stale one aborts
		// the transaction too, and is refused when it comes again.
		d, err := abort(rec, ev.Server, ev.NewID, ms)
		if err == nil {
			d.Refusal = CodeConcurrentTransactions.Errorf(rec.TxnID, "the open transaction of the holder before is being aborted")
		}
		return d, err
	}
	cur := rec.Producer
	last := int16(-1)
	if !fresh {
		last = cur.Epoch
	}
	switch {
	case cur.exhausted() && !fresh && ev.Expected.Epoch != cur.Epoch:
		// Kafka 4.4 fails with an internal error here, also for a repeat with
		// the epoch before.
		return refuse(rec, CodeUnknownServerError, "the caller holds %s, and the epochs of %s are used up", ev.Expected, cur)
	case cur.exhausted():
		return grant(rec, ev, Producer{ID: ev.NewID, Epoch: 0}, last, ms)
	case fresh || ev.Expected.Epoch == cur.Epoch:
		return grant(rec, ev, Producer{ID: cur.ID, Epoch: cur.Epoch + 1}, last, ms)
	case ev.Expected.Epoch == rec.LastEpoch:
		return grant(rec, ev, cur, rec.LastEpoch, ms) // its answer was lost: the same again
	}
	return refuse(rec, CodeProducerFenced, "the caller holds %s, and the identity is %s", ev.Expected, cur)
}

// grant is the move to Empty under an identity. An ID of -1 asks for a fresh
// producer id.
func grant(rec Record, ev Init, p Producer, last int16, ms int64) (Decision, error) {
	if p.ID < 0 {
		return Decision{}, ErrNeedProducerID
	}
	next := rec
	next.State, next.Producer, next.LastEpoch = Empty, p, last
	next.Participants, next.StartMs, next.UpdateMs = nil, -1, ms
	next.TimeoutMs, next.TwoPhase = ev.TimeoutMs, ev.TwoPhase
	if ev.TwoPhase {
		next.TimeoutMs = NoTimeout
	}
	d, err := moved(rec, next, WriteDurable)
	if err != nil {
		return d, err
	}
	d.Grant = p
	if p.Epoch > 0 && p != rec.Producer {
		d.Effects.Fence = p
	} else if rec.Known() && p.ID != rec.Producer.ID {
		d.Effects.Fence = Producer{ID: rec.Producer.ID, Epoch: FenceEpoch}
	}
	return d, nil
}
