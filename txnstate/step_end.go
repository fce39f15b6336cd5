package txnstate

// stepEnd decides a transaction, or recognises that it was decided already.
func stepEnd(rec Record, ev End, ms int64) (Decision, error) {
	if !rec.Known() {
		return refuse(rec, CodeInvalidProducerIDMapping, "the id is not known")
	}
	if ev.Client >= TV2 {
		return stepEndTV2(rec, ev, ms)
	}
	if err := wrongHolder(rec, ev.Producer); err != nil {
		return Decision{}, err
	}
	switch {
	case rec.State.Decided():
		return refuse(rec, CodeConcurrentTransactions, "the transaction is completing: %s", rec.State)
	case rec.State == Ongoing:
		return decide(rec, outcome(ev.Commit), rec.Producer, rec.LastEpoch, ms)
	case rec.State == complete(ev.Commit):
		return unchanged(rec), nil // a retry: under this protocol the epoch does not tell
	}
	return refuse(rec, CodeInvalidTxnState, "%s asked for in %s", outcome(ev.Commit), rec.State)
}

// stepEndTV2 is EndTxn since KIP-890 part 2: the epoch moves with every end, so a
// request of the epoch before is a retry.
func stepEndTV2(rec Record, ev End, ms int64) (Decision, error) {
	if rec.State.Decided() {
		// Before the identity, as Kafka looks at a pending transition first.
		return refuse(rec, CodeConcurrentTransactions, "the transaction is completing: %s", rec.State)
	}
	cur := rec.Producer
	overflow := rec.PrevID >= 0 && ev.Producer.ID == rec.PrevID && ev.Producer.Epoch == MaxEpoch && cur.Epoch == 0
	if ev.Producer.ID != cur.ID && !overflow {
		return Decision{}, wrongHolder(rec, ev.Producer)
	}
	done := rec.State == CompleteCommit || rec.State == CompleteAbort
	retry := done && (overflow || ev.Producer.Epoch == cur.Epoch-1)
	if !retry && ev.Producer.Epoch != cur.Epoch {
		return refuse(rec, CodeProducerFenced, "epoch %d of producer id %d, and the identity is %s", ev.Producer.Epoch, ev.Producer.ID, cur)
	}
	switch {
	case retry && rec.State == complete(ev.Commit):
		if !ev.RetriesAsKafka {
			if err := anothers(rec, ev); err != nil {
				return Decision{}, err
			}
		}
		d := unchanged(rec)
		d.Grant = cur
		return d, nil
	case retry, rec.State != Ongoing && ev.Commit:
		// A commit of a transaction that was timed out and aborted gets here too:
		// Kafka 4.4 answers 48 (90 since KAFKA-20785).
		return refuse(rec, CodeInvalidTxnState, "%s asked for in %s", outcome(ev.Commit), rec.State)
	case ev.Commit && cur.Epoch == FenceEpoch:
		return refuse(rec, CodeUnknownServerError, "epoch %d can't be committed with", cur.Epoch)
	}
	return decideTV2(rec, outcome(ev.Commit), ev.NewID, ms)
}

// anothers is why what an end granted can't be granted to who repeats it; nil where
// it was his. Kafka 4.4 asks neither.
func anothers(rec Record, ev End) error {
	cur := rec.Producer
	switch {
	case cur.Epoch > MaxEpoch:
		// A fence under TV1 took the last epoch, which nobody may be given.
		return CodeProducerFenced.Errorf(rec.TxnID, "epoch %d of producer id %d, which was fenced for good", ev.Producer.Epoch, cur.ID)
	case rec.ClientVersion == TV0 && ev.Producer.Epoch != rec.LastEpoch:
		// The end before was one of TV1, which bumps no epoch: somebody else was
		// given this identity before it, and has it still (I6). Behind a fence of the
		// server nobody has it: that bumped the epoch and gave it to nobody, so its
		// holder may go on, as in Kafka.
		return CodeProducerFenced.Errorf(rec.TxnID, "epoch %d of producer id %d, which was replaced", ev.Producer.Epoch, cur.ID)
	}
	return nil
}

// decideTV2 moves to a Prepare state with the epoch bumped, and plans the next
// producer id where that was the last epoch.
func decideTV2(rec Record, to State, newID, ms int64) (Decision, error) {
	cur := rec.Producer
	p := cur
	if p.Epoch < FenceEpoch {
		p.Epoch++
	}
	granted := p
	next := NoProducer
	if cur.exhausted() {
		if newID < 0 {
			return Decision{}, ErrNeedProducerID
		}
		next = Producer{ID: newID, Epoch: 0}
		granted = next
	}
	if rec.State != Ongoing {
		rec.StartMs = ms // an abort without a transaction
	}
	d, err := decide(rec, to, p, cur.Epoch, ms)
	if err != nil {
		return d, err
	}
	d.Next.Next, d.Next.ClientVersion, d.Grant = next, TV2, granted
	return d, nil
}

// decide is the decision: from here on the outcome is fixed (I5).
func decide(rec Record, to State, p Producer, last int16, ms int64) (Decision, error) {
	next := rec
	next.State, next.Producer, next.LastEpoch, next.UpdateMs = to, p, last, ms
	next.Next, next.ClientVersion = NoProducer, TV0
	next.TxnSeq++
	d, err := moved(rec, next, WriteDurable)
	if err != nil {
		return d, err
	}
	d.Effects.Markers = true
	return d, nil
}

// abort ends the open transaction against its holder: the epoch is bumped once,
// which fences the holder at the coordinator and, by the markers, at every
// partition of the transaction. Failed writes change nothing, so that repeating
// it does not use up epochs (KAFKA-9666).
func abort(rec Record, server TransactionVersion, newID, ms int64) (Decision, error) {
	var d Decision
	var err error
	if server >= TV2 {
		d, err = decideTV2(rec, PrepareAbort, newID, ms)
	} else {
		p := rec.Producer
		if p.Epoch < FenceEpoch {
			p.Epoch++
		}
		d, err = decide(rec, PrepareAbort, p, -1, ms)
		d.Next.ClientVersion = TV1 // no client's: stepEndTV2 tells a fence by it
	}
	if err != nil {
		return d, err
	}
	d.Effects.Fence, d.Grant = d.Next.Producer, NoProducer
	return d, nil
}

func outcome(commit bool) State {
	if commit {
		return PrepareCommit
	}
	return PrepareAbort
}

func complete(commit bool) State {
	if commit {
		return CompleteCommit
	}
	return CompleteAbort
}
