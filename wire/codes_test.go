package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The versions of Apache Kafka 4.4, and what kmsg can read of them.
func TestVersionsAreKafkas(t *testing.T) {
	want := map[int16][2]int16{
		0: {3, 13}, 8: {2, 10}, 9: {1, 10}, 10: {0, 6}, 22: {0, 6}, 24: {0, 5}, 25: {0, 4},
		26: {0, 5}, 27: {1, 2}, 28: {0, 6}, 61: {0, 0}, 65: {0, 0}, 66: {0, 2},
	}
	if len(apis) != len(want) {
		t.Errorf("%d APIs, and %d are Kafka's", len(apis), len(want))
	}
	for _, a := range apis {
		if w, ok := want[a.key]; !ok || w != [2]int16{a.min, a.max} {
			t.Errorf("%s: versions %d to %d, and Kafka has %v", kmsg.NameForKey(a.key), a.min, a.max, w)
		}
		kmax := kmsg.RequestForKey(a.key).MaxVersion()
		if a.key == keyInitProducerID {
			kmax = 6 // of our own
		}
		if a.max > kmax {
			t.Errorf("%s v%d can't be decoded: kmsg knows %d", kmsg.NameForKey(a.key), a.max, kmax)
		}
	}
}

// codes are the errors that the parts below can give.
func codes() []txnstate.Code {
	var out []txnstate.Code
	for c := txnstate.Code(-1); c < 130; c++ {
		out = append(out, c)
	}
	return out
}

// remapped is the whole of what CodeOf changes, written the slow way: for every
// API, version and code (F33).
func remapped(key, v int16, c txnstate.Code) txnstate.Code {
	const (
		fenced, epoch    = txnstate.CodeProducerFenced, txnstate.CodeInvalidProducerEpoch
		abortable, state = txnstate.CodeTransactionAbortable, txnstate.CodeInvalidTxnState
	)
	switch {
	case key == 22 && v < 4 && c == fenced, (key == 24 || key == 25 || key == 26) && v < 2 && c == fenced,
		(key == 0 || key == 28) && c == fenced:
		return epoch
	case key == 0 && v < 11 && c == abortable, key == 22 && v < 5 && c == abortable,
		(key == 24 || key == 25 || key == 26 || key == 28) && v < 4 && c == abortable:
		return state
	case key == 27 && (c == 14 || c == 15 || c == 16):
		return 6
	case key == 28 && c == 13:
		c = 14
	case key == 28 && (c == 3 || c == 7 || c == 19 || c == 20):
		c = 15
	case key == 28 && (c == 6 || c == 56):
		c = 16
	case key == 28 && (c == 10 || c == 18):
		c = -1
	}
	if key == 28 && v < 2 && c == 14 {
		return 15
	}
	return c
}

// F33: a table over API, version and code.
func TestF33_EveryCodeOfEveryVersion(t *testing.T) {
	for _, a := range apis {
		for v := a.min; v <= a.max; v++ {
			for _, c := range codes() {
				var err error
				if c != txnstate.CodeNone {
					err = fmt.Errorf("wrapped: %w", c.Errorf("id", "for a test"))
				}
				if got, want := CodeOf(err, a.key, v), remapped(a.key, v, c); got != want {
					t.Errorf("%s v%d: %s is shown as %s, want %s", kmsg.NameForKey(a.key), v, c, got, want)
				}
			}
		}
	}
}

func TestErrorsWithoutCode(t *testing.T) {
	disk := errors.New("disk on fire")
	for _, tt := range []struct {
		err  error
		key  int16
		want txnstate.Code
	}{
		{disk, keyProduce, txnstate.CodeKafkaStorageError},
		{disk, keyWriteTxnMarkers, txnstate.CodeKafkaStorageError},
		{disk, keyFindCoordinator, txnstate.CodeCoordinatorNotAvailable},
		{disk, keyEndTxn, txnstate.CodeUnknownServerError},
		{context.DeadlineExceeded, keyProduce, txnstate.CodeRequestTimedOut},
		{context.Canceled, keyProduce, txnstate.CodeRequestTimedOut},
		// The change may yet have happened (I11): never "refused".
		{context.DeadlineExceeded, keyEndTxn, txnstate.CodeCoordinatorNotAvailable},
		{fmt.Errorf("x: %w", txnstate.ErrUncertain), keyEndTxn, txnstate.CodeCoordinatorNotAvailable},
		{notKnown("t", 1), keyTxnOffsetCommit, txnstate.CodeUnknownTopicOrPartition},
		{notKnown("t", 1), keyOffsetCommit, txnstate.CodeUnknownTopicOrPartition},
		{nil, keyProduce, txnstate.CodeNone},
		{txnstate.ErrProducerFenced, 99, txnstate.CodeProducerFenced},
	} {
		if got := CodeOf(tt.err, tt.key, 1); got != tt.want {
			t.Errorf("%v to %s: %s, want %s", tt.err, kmsg.NameForKey(tt.key), got, tt.want)
		}
	}
}

func TestMessagesKeepTheBrokersSecrets(t *testing.T) {
	if m := message(txnstate.CodeOutOfOrderSequence.Errorf("", "sequence 5, and 4 is next")); m == nil || *m != "sequence 5, and 4 is next" {
		t.Errorf("message %v", m)
	}
	// I13: a name of 32 KiB that is wrong 5,000 times is not told 5,000 times.
	if m := message(notKnown(strings.Repeat("é", 1<<14), 1)); m == nil || len(*m) > 200 || !utf8.ValidString(*m) {
		t.Errorf("message %v", m)
	}
	for _, err := range []error{nil, errors.New("open /secret: denied"), txnstate.CodeKafkaStorageError.Errorf("", "write: %w", errors.New("/secret"))} {
		if m := message(err); m != nil {
			t.Errorf("%v is told as %q", err, *m)
		}
	}
}
