package wire

import (
	"context"
	"errors"
	"strings"

	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// CodeOf is the number that a client of an API and version is told for an error.
// It is the only place where an error becomes a number.
//
// What the parts below say with a code of their own passes, but for codes that
// the version does not know, and for a few that the API shows under another
// number. Without a code: COORDINATOR_NOT_AVAILABLE where a change may yet have
// happened, since clients try that again; KAFKA_STORAGE_ERROR for a log that
// failed; UNKNOWN_SERVER_ERROR for the rest. nil is CodeNone.
func CodeOf(err error, key, version int16) txnstate.Code {
	if err == nil {
		return txnstate.CodeNone
	}
	c := txnstate.CodeOf(err)
	var own *txnstate.Error
	coded := errors.As(err, &own)
	switch key {
	case keyProduce:
		switch {
		case !coded && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
			c = txnstate.CodeRequestTimedOut
		case !coded:
			c = txnstate.CodeKafkaStorageError
		case c == txnstate.CodeProducerFenced:
			// The data path never says PRODUCER_FENCED (KAFKA-10687).
			c = txnstate.CodeInvalidProducerEpoch
		}
	case keyWriteTxnMarkers:
		switch {
		case !coded:
			c = txnstate.CodeKafkaStorageError // retried, to a leader that may have changed
		default:
			c = offsets.MarkerAnswer(err)
		}
	case keyTxnOffsetCommit:
		var r *requestError
		if !errors.As(err, &r) {
			c = offsets.Answer(c, version)
		}
	case keyFindCoordinator:
		if !coded {
			c = txnstate.CodeCoordinatorNotAvailable
		}
	}
	return known(c, key, version)
}

// requestError is an error about what the request names, as opposed to one that
// the broker ran into while it did the work: its code is shown as it is.
type requestError struct{ err *txnstate.Error }

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

func notKnown(topic string, partition int32) error {
	return &requestError{txnstate.CodeUnknownTopicOrPartition.Errorf("", "%s/%d is not known", brief(topic), partition)}
}

// known is a code as a version of an API knows it.
func known(c txnstate.Code, key, version int16) txnstate.Code {
	a, ok := apiOf(key)
	switch {
	case !ok:
	case c == txnstate.CodeProducerFenced && a.fenced != never && version < a.fenced:
		return txnstate.CodeInvalidProducerEpoch
	case c == txnstate.CodeTransactionAbortable && a.abortable != never && version < a.abortable:
		return txnstate.CodeInvalidTxnState
	}
	return c
}

// brief is a name from a request as errors quote it: a request can have one of
// 32 KiB for thousands of partitions, and an error for each.
func brief(name string) string { return cut(name, 100) }

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// message is what an answer says in words where it has room: what was expected
// and found. What comes from further down, a file's name perhaps, stays with the
// broker.
func message(err error) *string {
	var e *txnstate.Error
	if !errors.As(err, &e) || e.Msg == "" || e.Cause != nil {
		return nil
	}
	s := cut(e.Msg, 500)
	return &s
}

// code is CodeOf for an answer. What has no code of its own is logged here, since
// the answer keeps only a number.
func (h *Handler) code(err error, key, version int16) int16 {
	if err == nil {
		return 0
	}
	c := CodeOf(err, key, version)
	var own *txnstate.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case !errors.As(err, &own):
		h.cfg.Logger.Error("request failed for a reason of the broker's own", "api", key, "version", version, "code", c.String(), "err", err)
	case c == txnstate.CodeUnknownServerError:
		h.cfg.Logger.Warn("request refused with an internal error, as Kafka does", "api", key, "version", version, "err", err)
	}
	return int16(c)
}
