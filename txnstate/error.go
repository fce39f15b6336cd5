package txnstate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Code is an error number of the Kafka protocol.
type Code int16

// The codes that transactions use, by Kafka's names.
const (
	CodeUnknownServerError       Code = -1
	CodeNone                     Code = 0
	CodeCorruptMessage           Code = 2
	CodeUnknownTopicOrPartition  Code = 3
	CodeNotLeaderOrFollower      Code = 6
	CodeRequestTimedOut          Code = 7
	CodeMessageTooLarge          Code = 10
	CodeOffsetMetadataTooLarge   Code = 12
	CodeNetworkException         Code = 13
	CodeCoordinatorLoading       Code = 14
	CodeCoordinatorNotAvailable  Code = 15
	CodeNotCoordinator           Code = 16
	CodeInvalidTopic             Code = 17
	CodeRecordListTooLarge       Code = 18
	CodeNotEnoughReplicas        Code = 19
	CodeNotEnoughReplicasAfter   Code = 20
	CodeInvalidRequiredAcks      Code = 21
	CodeIllegalGeneration        Code = 22
	CodeInvalidGroupID           Code = 24
	CodeUnknownMemberID          Code = 25
	CodeRebalanceInProgress      Code = 27
	CodeTopicAuthorization       Code = 29
	CodeGroupAuthorization       Code = 30
	CodeClusterAuthorization     Code = 31
	CodeUnsupportedVersion       Code = 35
	CodeInvalidRequest           Code = 42
	CodeUnsupportedForFormat     Code = 43
	CodePolicyViolation          Code = 44
	CodeOutOfOrderSequence       Code = 45
	CodeInvalidProducerEpoch     Code = 47
	CodeInvalidTxnState          Code = 48
	CodeInvalidProducerIDMapping Code = 49
	CodeInvalidTxnTimeout        Code = 50
	CodeConcurrentTransactions   Code = 51
	CodeCoordinatorFenced        Code = 52
	CodeTxnIDAuthorization       Code = 53
	CodeOperationNotAttempted    Code = 55
	CodeKafkaStorageError        Code = 56
	CodeNonEmptyGroup            Code = 68
	CodeGroupIDNotFound          Code = 69
	CodeFencedInstanceID         Code = 82
	CodeInvalidRecord            Code = 87
	CodeUnstableOffsetCommit     Code = 88
	CodeProducerFenced           Code = 90
	CodeUnknownTopicID           Code = 100
	CodeTxnIDNotFound            Code = 105
	CodeStaleMemberEpoch         Code = 113
	CodeTransactionAbortable     Code = 120
	CodeInvalidRegularExpression Code = 128
)

var codeNames = [...]struct {
	code Code
	name string
}{
	{CodeUnknownServerError, "UNKNOWN_SERVER_ERROR"},
	{CodeNone, "NONE"},
	{CodeCorruptMessage, "CORRUPT_MESSAGE"},
	{CodeUnknownTopicOrPartition, "UNKNOWN_TOPIC_OR_PARTITION"},
	{CodeNotLeaderOrFollower, "NOT_LEADER_OR_FOLLOWER"},
	{CodeRequestTimedOut, "REQUEST_TIMED_OUT"},
	{CodeMessageTooLarge, "MESSAGE_TOO_LARGE"},
	{CodeOffsetMetadataTooLarge, "OFFSET_METADATA_TOO_LARGE"},
	{CodeNetworkException, "NETWORK_EXCEPTION"},
	{CodeCoordinatorLoading, "COORDINATOR_LOAD_IN_PROGRESS"},
	{CodeCoordinatorNotAvailable, "COORDINATOR_NOT_AVAILABLE"},
	{CodeNotCoordinator, "NOT_COORDINATOR"},
	{CodeInvalidTopic, "INVALID_TOPIC_EXCEPTION"},
	{CodeRecordListTooLarge, "RECORD_LIST_TOO_LARGE"},
	{CodeNotEnoughReplicas, "NOT_ENOUGH_REPLICAS"},
	{CodeNotEnoughReplicasAfter, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"},
	{CodeInvalidRequiredAcks, "INVALID_REQUIRED_ACKS"},
	{CodeIllegalGeneration, "ILLEGAL_GENERATION"},
	{CodeInvalidGroupID, "INVALID_GROUP_ID"},
	{CodeUnknownMemberID, "UNKNOWN_MEMBER_ID"},
	{CodeRebalanceInProgress, "REBALANCE_IN_PROGRESS"},
	{CodeTopicAuthorization, "TOPIC_AUTHORIZATION_FAILED"},
	{CodeGroupAuthorization, "GROUP_AUTHORIZATION_FAILED"},
	{CodeClusterAuthorization, "CLUSTER_AUTHORIZATION_FAILED"},
	{CodeUnsupportedVersion, "UNSUPPORTED_VERSION"},
	{CodeInvalidRequest, "INVALID_REQUEST"},
	{CodeUnsupportedForFormat, "UNSUPPORTED_FOR_MESSAGE_FORMAT"},
	{CodePolicyViolation, "POLICY_VIOLATION"},
	{CodeOutOfOrderSequence, "OUT_OF_ORDER_SEQUENCE_NUMBER"},
	{CodeInvalidProducerEpoch, "INVALID_PRODUCER_EPOCH"},
	{CodeInvalidTxnState, "INVALID_TXN_STATE"},
	{CodeInvalidProducerIDMapping, "INVALID_PRODUCER_ID_MAPPING"},
	{CodeInvalidTxnTimeout, "INVALID_TRANSACTION_TIMEOUT"},
	{CodeConcurrentTransactions, "CONCURRENT_TRANSACTIONS"},
	{CodeCoordinatorFenced, "TRANSACTION_COORDINATOR_FENCED"},
	{CodeTxnIDAuthorization, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
	{CodeOperationNotAttempted, "OPERATION_NOT_ATTEMPTED"},
	{CodeKafkaStorageError, "KAFKA_STORAGE_ERROR"},
	{CodeNonEmptyGroup, "NON_EMPTY_GROUP"},
	{CodeGroupIDNotFound, "GROUP_ID_NOT_FOUND"},
	{CodeFencedInstanceID, "FENCED_INSTANCE_ID"},
	{CodeInvalidRecord, "INVALID_RECORD"},
	{CodeUnstableOffsetCommit, "UNSTABLE_OFFSET_COMMIT"},
	{CodeProducerFenced, "PRODUCER_FENCED"},
	{CodeUnknownTopicID, "UNKNOWN_TOPIC_ID"},
	{CodeTxnIDNotFound, "TRANSACTIONAL_ID_NOT_FOUND"},
	{CodeStaleMemberEpoch, "STALE_MEMBER_EPOCH"},
	{CodeTransactionAbortable, "TRANSACTION_ABORTABLE"},
	{CodeInvalidRegularExpression, "INVALID_REGULAR_EXPRESSION"},
}

// String is Kafka's name of the code, or the number of one that transactions
// never use.
func (c Code) String() string {
	for _, n := range codeNames {
		if n.code == c {
			return n.name
		}
	}
	return "ERROR_" + strconv.Itoa(int(c))
}

// Error is a refusal, with the code that a Kafka client is told. Two Errors are
// the same to errors.Is when their codes are:
//
//	if errors.Is(err, txnstate.ErrProducerFenced) { ... }
//
// errors.As gives the details.
type Error struct {
	Code  Code
	TxnID string // the transactional id concerned, or ""
	Msg   string // what was expected and what was found
	Cause error  // what went wrong below, or nil

	told bool // Msg contains the text of Cause
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.TxnID != "" {
		fmt.Fprintf(&b, "transactional id %q: ", e.TxnID)
	}
	b.WriteString(e.Code.String())
	if e.Msg != "" {
		b.WriteString(": ")
		b.WriteString(e.Msg)
	}
	if e.Cause != nil && !e.told {
		b.WriteString(": ")
		b.WriteString(e.Cause.Error())
	}
	return b.String()
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an Error of a code. The operands are formatted when the error is
// made; a %w operand becomes the Cause, whose text is then part of Msg and is
// not repeated by Error. With several of them the Cause unwraps to each.
func (c Code) Errorf(txnID, format string, args ...any) *Error {
	e := &Error{Code: c, TxnID: txnID}
	err := fmt.Errorf(format, args...)
	e.Msg = err.Error()
	switch w := err.(type) {
	case interface{ Unwrap() error }:
		e.Cause = w.Unwrap() // nil where the operand was no error
	case interface{ Unwrap() []error }:
		e.Cause = err
	}
	e.told = e.Cause != nil
	return e
}

// One value a code, for errors.Is.
var (
	ErrCoordinatorLoading      = &Error{Code: CodeCoordinatorLoading}
	ErrCoordinatorNotAvailable = &Error{Code: CodeCoordinatorNotAvailable}
	ErrNotCoordinator          = &Error{Code: CodeNotCoordinator}
	ErrInvalidRequest          = &Error{Code: CodeInvalidRequest}
	ErrPolicyViolation         = &Error{Code: CodePolicyViolation}
	ErrInvalidProducerEpoch    = &Error{Code: CodeInvalidProducerEpoch}
	ErrInvalidTxnState         = &Error{Code: CodeInvalidTxnState}
	ErrInvalidPIDMapping       = &Error{Code: CodeInvalidProducerIDMapping}
	ErrInvalidTxnTimeout       = &Error{Code: CodeInvalidTxnTimeout}
	ErrConcurrentTransactions  = &Error{Code: CodeConcurrentTransactions}
	ErrProducerFenced          = &Error{Code: CodeProducerFenced}
	ErrTxnIDNotFound           = &Error{Code: CodeTxnIDNotFound}
	ErrTransactionAbortable    = &Error{Code: CodeTransactionAbortable}
)

// CodeOf is the code that a client is told for err: that of the first Error in
// its chain; COORDINATOR_NOT_AVAILABLE, which clients retry, where the store
// cannot say whether it wrote or the caller's time is up (the change may yet
// have happened); otherwise UNKNOWN_SERVER_ERROR. nil is CodeNone.
func CodeOf(err error) Code {
	var e *Error
	switch {
	case err == nil:
		return CodeNone
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, ErrUncertain), errors.Is(err, ErrConflict),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return CodeCoordinatorNotAvailable
	}
	return CodeUnknownServerError
}
