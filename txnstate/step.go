package txnstate

import (
	"errors"
	"reflect"
	"slices"
	"time"
)

// Write says what becomes of Decision.Next.
type Write uint8

const (
	// WriteNone: nothing changed.
	WriteNone Write = iota
	// WriteDurable: store Next, durably, before anything else is done with it.
	WriteDurable
	// WriteLater: store Next; it may be lost, since the record it replaces leads
	// to it again.
	WriteLater
	// WriteDelete: remove the record.
	WriteDelete
)

// Effects is what follows from a record for the rest of the world. It may be
// done only once the record is durable (I1), and may be done again.
type Effects struct {
	// Markers: bring Record.Outcome to every participant of the record.
	Markers bool
	// Fence: tell partition leaders that epochs of Producer.ID below
	// Producer.Epoch are gone. NoProducer for none.
	Fence Producer
}

// Decision is what Step makes of an event.
type Decision struct {
	Next    Record // equal to the record given where Write is WriteNone
	Write   Write
	Effects Effects

	// Grant is the identity to answer with: of Init, and of End under TV2.
	// NoProducer otherwise.
	Grant Producer
	// Missing are the participants of a Verify that are not in the transaction.
	Missing []Participant
	// Refusal is the error to answer with once Next is stored: an Init that
	// meets an open transaction aborts it and answers CONCURRENT_TRANSACTIONS,
	// so that the caller comes again. nil for none.
	Refusal *Error
}

// ErrNeedProducerID is returned by Step for an event that needs a fresh producer
// id and came without: call again with NewID set.
var ErrNeedProducerID = errors.New("txnstate: a fresh producer id is needed")

// legal lists for each state the states that a record may come from. It is
// Kafka's table (TransactionState.validPreviousStates), with PrepareEpochFence
// merged into PrepareAbort. TV2 lets an abort without an open transaction pass
// through PrepareAbort, so that the epoch is bumped as by any other end.
var legal = [...][]State{
	Empty:          {Empty, CompleteCommit, CompleteAbort},
	Ongoing:        {Ongoing, Empty, CompleteCommit, CompleteAbort},
	PrepareCommit:  {Ongoing},
	PrepareAbort:   {Ongoing, Empty, CompleteCommit, CompleteAbort},
	CompleteCommit: {PrepareCommit},
	CompleteAbort:  {PrepareAbort},
}

// Step decides what an event makes of a record. It does no I/O, reads no clock
// and no randomness, keeps no reference to what it is given and changes nothing
// of it: the same arguments give the same answer. An error is a refusal and
// changes nothing; it is an *Error, or ErrNeedProducerID.
//
// The order of the checks is Kafka's (TransactionCoordinator, 4.4). A state in
// Prepare answers CONCURRENT_TRANSACTIONS at the place where Kafka looks at the
// pending transition, which it sets together with that state.
func Step(rec Record, ev Event, now time.Time) (Decision, error) {
	ms := max(now.UnixMilli(), 0) // -1 is "none": a clock before 1970 would write a record without a start
	switch ev := ev.(type) {
	case Init:
		return stepInit(rec, ev, ms)
	case Add:
		return stepAdd(rec, ev, ms)
	case Verify:
		return stepVerify(rec, ev)
	case End:
		return stepEnd(rec, ev, ms)
	case Applied:
		return stepApplied(rec, ev, ms)
	case TimedOut:
		if !Overdue(rec, ms) {
			return unchanged(rec), nil
		}
		return abort(rec, ev.Server, ev.NewID, ms)
	case ForceAbort:
		switch {
		case !rec.Known():
			return refuse(rec, CodeTxnIDNotFound, "the id is not known")
		case rec.State.Decided():
			return refuse(rec, CodeConcurrentTransactions, "the transaction is decided already: %s", rec.State)
		case rec.State != Ongoing:
			return refuse(rec, CodeInvalidTxnState, "no transaction is open: %s", rec.State)
		}
		return abort(rec, ev.Server, ev.NewID, ms)
	case Expire:
		if !Expired(rec, ev.AfterMs, ms) {
			return unchanged(rec), nil
		}
		d := unchanged(rec)
		d.Write = WriteDelete
		return d, nil
	}
	return refuse(rec, CodeUnknownServerError, "no rule for event %s", reflect.TypeOf(ev)) // %T would move every event to the heap
}

// Resume is what a record found at start-up, or at a takeover, still owes.
func Resume(rec Record) Effects {
	e := Effects{Markers: rec.State.Decided(), Fence: NoProducer}
	switch {
	case rec.PrevID >= 0 && rec.PrevID != rec.Producer.ID:
		// A new producer id was given because the epochs of the old one were
		// used up: it is the old one that has to be fenced, for good.
		e.Fence = Producer{ID: rec.PrevID, Epoch: FenceEpoch}
	case rec.Producer.Epoch > 0:
		e.Fence = rec.Producer
	}
	return e
}

// Overdue reports whether the open transaction of a record has outlived its
// timeout at a time in milliseconds. The clock starts with the first
// participant, later ones do not extend it; two-phase commit has no timeout.
func Overdue(rec Record, nowMs int64) bool {
	return rec.State == Ongoing && !rec.TwoPhase && rec.TimeoutMs != NoTimeout && rec.StartMs+int64(rec.TimeoutMs) < nowMs
}

// Expired reports whether an id has no open transaction and was not used for
// afterMs milliseconds.
func Expired(rec Record, afterMs, nowMs int64) bool {
	return rec.Known() && rec.State != Ongoing && !rec.State.Decided() && rec.UpdateMs <= nowMs-afterMs
}

func unchanged(rec Record) Decision {
	return Decision{Next: rec, Effects: Effects{Fence: NoProducer}, Grant: NoProducer}
}

func refuse(rec Record, c Code, format string, args ...any) (Decision, error) {
	return Decision{}, c.Errorf(rec.TxnID, format, args...)
}

// moved is the decision to store next, which came from rec. PrevID is set by
// every transition, as Kafka does.
func moved(rec, next Record, w Write) (Decision, error) {
	next.PrevID = rec.Producer.ID
	if !rec.Known() {
		next.PrevID = next.Producer.ID
	}
	if !slices.Contains(legal[next.State], rec.State) {
		return refuse(rec, CodeUnknownServerError, "no move from %s to %s", rec.State, next.State)
	}
	d := unchanged(next)
	d.Write = w
	return d, nil
}

// wrongHolder compares a request's identity with the record's.
func wrongHolder(rec Record, p Producer) *Error {
	switch {
	case p.ID != rec.Producer.ID:
		return CodeInvalidProducerIDMapping.Errorf(rec.TxnID, "producer id %d, and the id belongs to %d", p.ID, rec.Producer.ID)
	case p.Epoch != rec.Producer.Epoch:
		return CodeProducerFenced.Errorf(rec.TxnID, "epoch %d of producer id %d, and the epoch is %d", p.Epoch, p.ID, rec.Producer.Epoch)
	}
	return nil
}

func stepAdd(rec Record, ev Add, ms int64) (Decision, error) {
	switch {
	case !rec.Known():
		return refuse(rec, CodeInvalidProducerIDMapping, "the id is not known")
	case rec.State.Decided():
		// Before the identity: at an overflow the client uses the next producer
		// id while it is still only on its way (KAFKA-18660).
		return refuse(rec, CodeConcurrentTransactions, "the previous transaction is completing: %s", rec.State)
	}
	if err := wrongHolder(rec, ev.Producer); err != nil {
		return Decision{}, err
	}
	all := union(rec.Participants, ev.Participants)
	if rec.State == Ongoing && len(all) == len(rec.Participants) {
		return unchanged(rec), nil
	}
	if ev.Limit > 0 && len(all) > ev.Limit {
		return refuse(rec, CodePolicyViolation, "%d participants in one transaction, and %d are allowed", len(all), ev.Limit)
	}
	next := rec
	if rec.State != Ongoing {
		next.StartMs = ms
	}
	next.State, next.Participants, next.UpdateMs, next.ClientVersion = Ongoing, all, ms, ev.Client
	return moved(rec, next, WriteDurable)
}

func stepVerify(rec Record, ev Verify) (Decision, error) {
	if !rec.Known() {
		return refuse(rec, CodeInvalidProducerIDMapping, "the id is not known")
	}
	if err := wrongHolder(rec, ev.Producer); err != nil {
		return Decision{}, err
	}
	if rec.State.Decided() {
		return refuse(rec, CodeConcurrentTransactions, "the transaction is completing: %s", rec.State)
	}
	d := unchanged(rec)
	for _, p := range ev.Participants {
		if !rec.Has(p) {
			d.Missing = append(d.Missing, p)
		}
	}
	return d, nil
}

func stepApplied(rec Record, ev Applied, ms int64) (Decision, error) {
	if !rec.State.Decided() || ev.Producer != rec.Producer || ev.TxnSeq != rec.TxnSeq {
		return unchanged(rec), nil // late: of a transaction that is complete
	}
	rest := without(rec.Participants, ev.Participants)
	if len(rest) == len(rec.Participants) && len(rest) > 0 {
		return unchanged(rec), nil
	}
	if len(rest) > 0 {
		d := unchanged(rec)
		d.Next.Participants = rest
		d.Write = WriteLater
		return d, nil
	}
	next := rec
	next.State = CompleteAbort
	if rec.State == PrepareCommit {
		next.State = CompleteCommit
	}
	next.Participants, next.UpdateMs, next.Next = nil, ms, NoProducer
	if rec.ClientVersion >= TV2 && rec.Next.ID >= 0 {
		next.Producer = Producer{ID: rec.Next.ID, Epoch: 0}
	}
	return moved(rec, next, WriteLater)
}
