package fence

import (
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Config holds what a Partition can be told. Its zero value is Kafka's.
type Config struct {
	// ExpireAfter is how long a producer without an open transaction, or a
	// verification that came to nothing, is remembered; zero or less means 24h
	// (producer.id.expiration.ms).
	ExpireAfter time.Duration
	// NoVerification lets transactional batches in without asking the
	// coordinator (transaction.partition.verification.enable=false). ModeAdd
	// asks all the same: it adds the partition.
	NoVerification bool
	// MaxProducers is how many producers are remembered; zero or less means
	// 100000. Beyond it those without an open transaction are forgotten, the
	// longest unused first; one with an open transaction never is.
	MaxProducers int
}

// Guard ties a batch to the question that was asked for it. The zero Guard is
// none.
type Guard struct {
	p     *Partition
	token uint64
}

// Reservation is the place of a batch, or of a marker, in its producer's order.
type Reservation struct {
	// Duplicate: the batch is in the log already, at Offset, with TimestampMs.
	// It must not be appended again; answer with these. Settle and Cancel then
	// do nothing.
	Duplicate   bool
	Offset      int64
	TimestampMs int64

	p   *Partition
	n   *pending
	gen uint64
}

// Mark is an end-of-transaction marker, as far as a partition looks at it.
type Mark struct {
	Producer         txnstate.Producer
	Commit           bool
	CoordinatorEpoch int32
	TimestampMs      int64
}

// ProducerState is what a partition knows of one producer, what is reserved and
// not yet settled included.
type ProducerState struct {
	Producer         txnstate.Producer
	CoordinatorEpoch int32 // of the last marker, -1 for none
	Open             bool  // a transaction is open
	OpenSince        int64 // offset of its first batch; -1 for none, or not known yet
	LastSequence     int32 // -1 for none under this epoch
	LastTimestampMs  int64 // of the last batch or marker, as the log has it
	// FencedBelow: batches of lower epochs are refused, whatever Producer.Epoch
	// is (see Fence). -1 for no such fence.
	FencedBelow int16
}

// Aborted is an aborted transaction with data in the log.
type Aborted struct {
	ProducerID int64
	First      int64 // offset of its first batch
	Last       int64 // offset of its marker
	LastStable int64 // last stable offset when the marker was appended
}
