package fence

import "github.com/kafkatxn/kafkatxn/txnstate"

// Mode is how the coordinator is asked about the first batch of a transaction on
// a partition. The version of the request decides it, since it tells what the
// client can make of the answer (KIP-890).
type Mode uint8

const (
	// ModeDefault verifies, for clients that know no abortable error: what is
	// not in the transaction is INVALID_TXN_STATE (48).
	ModeDefault Mode = iota
	// ModeGeneric verifies, for clients that know TRANSACTION_ABORTABLE (120).
	ModeGeneric
	// ModeAdd is TV2: the coordinator adds the partition.
	ModeAdd
)

// ProduceMode is the mode of a version of Produce.
func ProduceMode(version int16) Mode {
	switch {
	case version >= 12:
		return ModeAdd
	case version == 11:
		return ModeGeneric
	}
	return ModeDefault
}

// OffsetCommitMode is the mode of a version of TxnOffsetCommit.
func OffsetCommitMode(version int16) Mode {
	switch {
	case version >= 5:
		return ModeAdd
	case version == 4:
		return ModeGeneric
	}
	return ModeDefault
}

func (m Mode) String() string {
	switch m {
	case ModeDefault:
		return "default"
	case ModeGeneric:
		return "generic"
	case ModeAdd:
		return "add"
	}
	return "Mode(?)"
}

// ProduceAnswer is what a producer is told where the coordinator, or the way to
// it, answered c to the question that Verify asked for. Trouble that passes
// becomes NOT_ENOUGH_REPLICAS (19), which every generation of clients retries
// for produce (KAFKA-16314, KAFKA-16386); PRODUCER_FENCED becomes
// INVALID_PRODUCER_EPOCH (KAFKA-10687). In ModeAdd a host first repeats the
// question for a while where the answer is CONCURRENT_TRANSACTIONS (51).
func (m Mode) ProduceAnswer(c txnstate.Code) txnstate.Code {
	switch {
	case c == txnstate.CodeNetworkException, c == txnstate.CodeCoordinatorLoading,
		c == txnstate.CodeCoordinatorNotAvailable, c == txnstate.CodeNotCoordinator,
		c == txnstate.CodeConcurrentTransactions && m != ModeAdd:
		return txnstate.CodeNotEnoughReplicas
	case c == txnstate.CodeProducerFenced:
		return txnstate.CodeInvalidProducerEpoch
	case c == txnstate.CodeClusterAuthorization,
		c == txnstate.CodeTransactionAbortable && m == ModeDefault:
		return txnstate.CodeInvalidTxnState
	}
	return c
}
