package markers

import (
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Decide says whether a marker may be appended to a partition whose producer
// state is st: what fence.Partition.Producer gives for the marker's producer id.
// The host asks and appends under one lock (Partition.ReserveMark, or Mark), so
// that nothing comes between.
//
// nil means append. That is also the answer for a marker that was applied
// before: as in Kafka the repeat is written again, changes no record's
// visibility, and confirms (F13). A producer that the partition does not know,
// or no longer, is no obstacle: the marker is written and makes it known.
//
// Errors are a *txnstate.Error:
//
//   - INVALID_PRODUCER_EPOCH (47): the epoch has gone on. Under TV0 and TV1 that
//     means a higher one; under TV2, where every end of a transaction bumps the
//     epoch, a marker at the stored epoch can't be of the transaction that is
//     open (KIP-1228), unless it is the fencing epoch, which has none above it.
//     Where nothing is open it is a repeat (KAFKA-19999).
//   - TRANSACTION_COORDINATOR_FENCED (52): a newer coordinator has written here
//     (KAFKA-9144). Tested after the epoch.
//   - UNKNOWN_SERVER_ERROR (-1): no marker at all, by a producer id or epoch of
//     -1, or a negative transaction version. Kafka's handler fails on the former
//     as a whole, see its request.
func Decide(m Marker, st fence.ProducerState, known bool) error {
	if m.Producer.ID == -1 || m.Producer.Epoch == -1 {
		return txnstate.CodeUnknownServerError.Errorf(m.TxnID, "a marker of producer %s", m.Producer)
	}
	epoch, coordinator := int16(-1), int32(-1)
	if known {
		epoch, coordinator = st.Producer.Epoch, st.CoordinatorEpoch
	}
	switch {
	case m.Producer.Epoch < epoch:
		return txnstate.CodeInvalidProducerEpoch.Errorf(m.TxnID, "a marker of %s, and the partition knows epoch %d", m.Producer, epoch)
	case m.TransactionVersion < txnstate.TV0:
		return txnstate.CodeUnknownServerError.Errorf(m.TxnID, "transaction version %d", m.TransactionVersion)
	case m.TransactionVersion >= txnstate.TV2 && m.Producer.Epoch == epoch && st.Open && epoch != txnstate.FenceEpoch:
		return txnstate.CodeInvalidProducerEpoch.Errorf(m.TxnID, "a marker of %s, and the transaction that is open at offset %d has that epoch itself", m.Producer, st.OpenSince)
	case m.CoordinatorEpoch < coordinator:
		return txnstate.CodeCoordinatorFenced.Errorf(m.TxnID, "coordinator epoch %d, and the partition knows %d", m.CoordinatorEpoch, coordinator)
	}
	return nil
}
