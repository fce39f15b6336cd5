package minibroker

import (
	"context"
	"errors"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kerr"
)

// kafkaErrorf is a refusal with one of Kafka's error numbers.
func kafkaErrorf(e *kerr.Error, format string, args ...any) error {
	return txnstate.Code(e.Code).Errorf("", format, args...)
}

// codeOf is the number of an error that one of the broker's own APIs ran into.
// What has none is UNKNOWN_SERVER_ERROR.
func codeOf(err error) int16 {
	var e *txnstate.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return int16(e.Code)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return kerr.RequestTimedOut.Code
	}
	return kerr.UnknownServerError.Code
}

// message is an error for a client to show, or nil.
func message(err error) *string {
	if err == nil {
		return nil
	}
	s := err.Error()
	return &s
}
