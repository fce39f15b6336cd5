package markers

import (
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Marker tells one participant how a transaction ended.
type Marker struct {
	// TxnID is the transactional id, for logs and for hosts that want it. It is
	// not on the wire: a marker that came in a request, or out of a log, has "".
	TxnID            string
	Producer         txnstate.Producer // under TV2 one epoch above the data's
	Commit           bool
	CoordinatorEpoch int32
	// TransactionVersion governs how strictly a leader looks at the epoch. It is
	// not in the control batch: one out of a log has TV0.
	TransactionVersion txnstate.TransactionVersion
}

// Mark is the marker as a partition's producer state takes it, with the
// timestamp of its record in milliseconds since 1970.
func (m Marker) Mark(timestampMs int64) fence.Mark {
	return fence.Mark{Producer: m.Producer, Commit: m.Commit, CoordinatorEpoch: m.CoordinatorEpoch, TimestampMs: timestampMs}
}
