package markers

import (
	"context"
	"fmt"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Target is a broker that markers are sent to, by its id.
type Target int32

// Standing is what is known of the leader of a participant.
type Standing uint8

const (
	// Unknown: nobody leads it at the moment, or this broker has not heard. It
	// is asked again: unknown is never taken for gone. (Apache Kafka does, and
	// loses the marker of a coordinator that has just started: F38.)
	Unknown Standing = iota
	// Known: the leader is the Target that comes with it.
	Known
	// Gone: the topic, or the group, is known to be deleted. The participant is
	// done.
	Gone
)

// LeaderResolver finds the broker that serves a participant: the leader of a
// partition, the coordinator of a group. It is asked anew for every attempt,
// concurrently, and answers from what it knows, without waiting.
type LeaderResolver interface {
	Leader(p txnstate.Participant) (Target, Standing)
}

// LeaderFunc is a function as a LeaderResolver.
type LeaderFunc func(p txnstate.Participant) (Target, Standing)

// Leader calls f.
func (f LeaderFunc) Leader(p txnstate.Participant) (Target, Standing) { return f(p) }

// Delivery is one marker for one participant.
type Delivery struct {
	Marker
	Participant txnstate.Participant
	// TxnSeq tells the transactions of one transactional id apart. It is not on
	// Kafka's wire; a queue can name its entries by it.
	TxnSeq uint64
	// Again: the decision was taken up at a start or a takeover, and the
	// participant may have applied it already. Not on the wire.
	Again bool
}

// Result is what became of a Delivery.
type Result uint8

const (
	// Retry: not applied, or nobody knows. It is sent again after a while.
	Retry Result = iota
	// Applied: the participant has the outcome, durably. "Written to a queue" is
	// not applied (I2).
	Applied
	// Moved: the target does not serve the participant any more. It is sent to
	// the leader that is found then.
	Moved
	// FencedEpoch: the participant knows a newer epoch of the producer id
	// (INVALID_PRODUCER_EPOCH).
	FencedEpoch
	// FencedCoordinator: the participant has seen a newer coordinator
	// (TRANSACTION_COORDINATOR_FENCED).
	FencedCoordinator
	// Deleted: the participant is known to be deleted. It is done.
	Deleted
)

var resultNames = [...]string{"retry", "applied", "moved", "fenced epoch", "fenced coordinator", "deleted"}

func (r Result) String() string {
	if int(r) >= len(resultNames) {
		return fmt.Sprintf("Result(%d)", uint8(r))
	}
	return resultNames[r]
}

// ResultOf is the meaning of an error code in an answer to WriteTxnMarkers
// (TransactionMarkerRequestCompletionHandler). Codes that stop Kafka's sender
// thread, and with it the broker, are tried again here.
func ResultOf(code txnstate.Code) Result {
	switch code {
	case txnstate.CodeNone:
		return Applied
	case txnstate.CodeNotLeaderOrFollower, txnstate.CodeUnknownTopicOrPartition, txnstate.CodeNotCoordinator:
		return Moved
	case txnstate.CodeInvalidProducerEpoch:
		return FencedEpoch
	case txnstate.CodeCoordinatorFenced:
		return FencedCoordinator
	case txnstate.CodeUnsupportedForFormat, txnstate.CodeUnsupportedVersion:
		// No transactional data can have been written there.
		return Deleted
	}
	return Retry
}

// Sink delivers markers to one target.
//
// WriteMarkers may be called concurrently, for one target too. It returns one
// result for each delivery, in order; a missing one counts as Retry. The
// deliveries are of any number of transactions and are judged one by one. A
// delivery may come again after it was applied, and must then be answered
// Applied. When ctx ends, what is not known to be applied is Retry. The slice is
// the sink's only until it returns.
type Sink interface {
	WriteMarkers(ctx context.Context, to Target, ds []Delivery) []Result
}

// Immediate is an optional ability of a Sink that waits for nothing but memory for
// some targets. What it takes is applied where it is dispatched, in the goroutine
// of the caller whose transaction it ends; without it, and for all else, markers
// go to a goroutine of the target's, several of them in a call.
type Immediate interface {
	// WriteNow is WriteMarkers without waiting. What is not answered Applied or
	// Deleted comes again by WriteMarkers at once; nil takes nothing.
	WriteNow(to Target, ds []Delivery) []Result
}

// OpenChecker is an optional ability of a Sink: to ask the leader whether the
// transaction of a delivery is still open there, that is, whether the leader
// keeps records of its producer id before a marker. It is asked where the marker
// was answered FencedEpoch: closed counts as applied. Without the ability such a
// participant is tried again, ever more slowly, and reported.
type OpenChecker interface {
	StillOpen(ctx context.Context, to Target, d Delivery) (bool, error)
}
