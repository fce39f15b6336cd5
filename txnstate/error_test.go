package txnstate

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// The numbers are the protocol: one that is wrong is another error to a client
// (a broker that sent 53 for 49 lost its producers).
func TestCodesHaveKafkasNumbersAndNames(t *testing.T) {
	want := map[Code]string{
		-1: "UNKNOWN_SERVER_ERROR", 0: "NONE", 2: "CORRUPT_MESSAGE", 3: "UNKNOWN_TOPIC_OR_PARTITION",
		6: "NOT_LEADER_OR_FOLLOWER", 7: "REQUEST_TIMED_OUT", 10: "MESSAGE_TOO_LARGE", 12: "OFFSET_METADATA_TOO_LARGE",
		13: "NETWORK_EXCEPTION", 14: "COORDINATOR_LOAD_IN_PROGRESS", 15: "COORDINATOR_NOT_AVAILABLE", 16: "NOT_COORDINATOR",
		17: "INVALID_TOPIC_EXCEPTION", 18: "RECORD_LIST_TOO_LARGE", 19: "NOT_ENOUGH_REPLICAS", 20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
		21: "INVALID_REQUIRED_ACKS", 22: "ILLEGAL_GENERATION", 24: "INVALID_GROUP_ID", 25: "UNKNOWN_MEMBER_ID",
		27: "REBALANCE_IN_PROGRESS", 29: "TOPIC_AUTHORIZATION_FAILED", 30: "GROUP_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED",
		35: "UNSUPPORTED_VERSION", 42: "INVALID_REQUEST", 43: "UNSUPPORTED_FOR_MESSAGE_FORMAT", 44: "POLICY_VIOLATION",
		45: "OUT_OF_ORDER_SEQUENCE_NUMBER", 47: "INVALID_PRODUCER_EPOCH", 48: "INVALID_TXN_STATE", 49: "INVALID_PRODUCER_ID_MAPPING",
		50: "INVALID_TRANSACTION_TIMEOUT", 51: "CONCURRENT_TRANSACTIONS", 52: "TRANSACTION_COORDINATOR_FENCED",
		53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 55: "OPERATION_NOT_ATTEMPTED", 56: "KAFKA_STORAGE_ERROR", 68: "NON_EMPTY_GROUP",
		69: "GROUP_ID_NOT_FOUND", 82: "FENCED_INSTANCE_ID", 87: "INVALID_RECORD", 88: "UNSTABLE_OFFSET_COMMIT", 90: "PRODUCER_FENCED",
		100: "UNKNOWN_TOPIC_ID", 105: "TRANSACTIONAL_ID_NOT_FOUND", 113: "STALE_MEMBER_EPOCH", 120: "TRANSACTION_ABORTABLE",
		128: "INVALID_REGULAR_EXPRESSION",
	}
	got := map[Code]string{}
	for _, n := range codeNames {
		if other, twice := got[n.code]; twice {
			t.Errorf("code %d is named %s and %s", n.code, other, n.name)
		}
		got[n.code] = n.name
	}
	for c, name := range want {
		if c.String() != name {
			t.Errorf("code %d is %s, want %s", int16(c), c, name)
		}
		delete(got, c)
	}
	for c, name := range got {
		t.Errorf("code %d (%s) is not in the list of this test", int16(c), name)
	}
	if s := Code(4711).String(); s != "ERROR_4711" {
		t.Errorf("an unnamed code is shown as %q", s)
	}
}

// A constant that was added without a name would show as ERROR_n in logs.
func TestEveryCodeConstantHasAName(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "error.go", nil, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the sources are not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	consts, named := map[string]bool{}, map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			for _, s := range n.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && n.Tok == token.CONST {
					for _, name := range v.Names {
						consts[name.Name] = true
					}
				}
			}
		case *ast.CompositeLit:
			if len(n.Elts) == 2 {
				if id, ok := n.Elts[0].(*ast.Ident); ok {
					named[id.Name] = true
				}
			}
		}
		return true
	})
	if len(consts) == 0 {
		t.Fatal("no constants found in error.go")
	}
	for c := range consts {
		if strings.HasPrefix(c, "Code") && !named[c] {
			t.Errorf("%s has no name", c)
		}
	}
}

func TestErrorsAreMatchedByCode(t *testing.T) {
	err := fmt.Errorf("end: %w", CodeProducerFenced.Errorf("pay", "epoch %d", 3))
	if !errors.Is(err, ErrProducerFenced) || errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("errors.Is goes by something else than the code: %v", err)
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != CodeProducerFenced || e.TxnID != "pay" || e.Msg != "epoch 3" || e.Cause != nil {
		t.Errorf("errors.As gives %+v", e)
	}
	if got, want := e.Error(), `transactional id "pay": PRODUCER_FENCED: epoch 3`; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if errors.Is(ErrProducerFenced, errors.New("PRODUCER_FENCED")) {
		t.Error("an error of another type matches")
	}
	sentinels := []*Error{
		ErrCoordinatorLoading, ErrCoordinatorNotAvailable, ErrNotCoordinator, ErrInvalidRequest, ErrPolicyViolation,
		ErrInvalidProducerEpoch, ErrInvalidTxnState, ErrInvalidPIDMapping, ErrInvalidTxnTimeout, ErrConcurrentTransactions,
		ErrProducerFenced, ErrTxnIDNotFound, ErrTransactionAbortable,
	}
	for i, a := range sentinels {
		for j, b := range sentinels {
			if errors.Is(a, b) != (i == j) {
				t.Errorf("errors.Is(%v, %v) is %v", a, b, i != j)
			}
		}
	}
}

// A %w operand that was only formatted would hide ErrUncertain from errors.Is.
func TestErrorfKeepsTheWrappedErrorAsCause(t *testing.T) {
	disk := errors.New("disk full")
	for _, c := range []struct {
		name  string
		err   *Error
		text  string
		cause []error
	}{
		{"none", CodeNotCoordinator.Errorf("", "slot %d", 9), "NOT_COORDINATOR: slot 9", nil},
		{"one", CodeCoordinatorNotAvailable.Errorf("pay", "store: %w", disk), `transactional id "pay": COORDINATOR_NOT_AVAILABLE: store: disk full`, []error{disk}},
		{"in the middle", CodeUnknownServerError.Errorf("", "%w, %d times", disk, 3), "UNKNOWN_SERVER_ERROR: disk full, 3 times", []error{disk}},
		{"two", CodeUnknownServerError.Errorf("", "%w: %w", ErrUncertain, disk), "UNKNOWN_SERVER_ERROR: " + ErrUncertain.Error() + ": disk full", []error{ErrUncertain, disk}},
		{"%v", CodeUnknownServerError.Errorf("", "store: %v", disk), "UNKNOWN_SERVER_ERROR: store: disk full", nil},
		{"nil", CodeUnknownServerError.Errorf("", "store: %w", error(nil)), "UNKNOWN_SERVER_ERROR: store: %!w(<nil>)", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.err.Error(); got != c.text {
				t.Errorf("text %q, want %q", got, c.text)
			}
			if (c.err.Cause != nil) != (c.cause != nil) {
				t.Errorf("cause %v", c.err.Cause)
			}
			for _, want := range []error{disk, ErrUncertain} {
				if got := errors.Is(c.err, want); got != slices.Contains(c.cause, want) {
					t.Errorf("errors.Is(err, %q) is %v", want, got)
				}
			}
		})
	}
	lit := &Error{Code: CodeNotCoordinator, Msg: "slot 9", Cause: disk}
	if got, want := lit.Error(), "NOT_COORDINATOR: slot 9: disk full"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

// I11: what the store is not sure of is told as COORDINATOR_NOT_AVAILABLE, which
// clients retry, and never as a success or as a fatal code.
func TestCodeOfTellsClientsWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Code
	}{
		{nil, CodeNone},
		{ErrProducerFenced, CodeProducerFenced},
		{fmt.Errorf("end: %w", ErrInvalidTxnState), CodeInvalidTxnState},
		{ErrUncertain, CodeCoordinatorNotAvailable},
		{fmt.Errorf("swap: %w: %w", ErrUncertain, context.DeadlineExceeded), CodeCoordinatorNotAvailable},
		{ErrConflict, CodeCoordinatorNotAvailable},
		{context.Canceled, CodeCoordinatorNotAvailable},
		{context.DeadlineExceeded, CodeCoordinatorNotAvailable},
		{CodeNotCoordinator.Errorf("", "lost: %w", ErrConflict), CodeNotCoordinator}, // the outermost Error wins
		{errors.Join(errors.New("a"), ErrInvalidRequest), CodeInvalidRequest},
		{ErrNotFound, CodeUnknownServerError},
		{ErrDamaged, CodeUnknownServerError},
		{ErrNeedProducerID, CodeUnknownServerError},
		{errors.New("other"), CodeUnknownServerError},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("CodeOf(%v) is %s, want %s", c.err, got, c.want)
		}
	}
}

// F37: a client that repeats a refused request ten thousand times a second
// must not be felt.
func BenchmarkRefusal(b *testing.B) {
	rec := Record{TxnID: "pay", State: PrepareCommit, Producer: Producer{ID: 7, Epoch: 3}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := stepAdd(rec, Add{Producer: rec.Producer}, 0); err == nil {
			b.Fatal("not refused")
		}
	}
}
