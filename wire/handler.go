package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrClose is returned where the answer is to close the connection without one:
// a request of an API or a version that is not served, and a produce request
// that asked for no answer and failed (acks 0: the closed connection is how its
// client learns).
var ErrClose = errors.New("wire: the connection is to be closed")

// Config is what a Handler is made of. A broker has up to three roles; an API is
// served where its role is filled, and Versions lists those that are.
type Config struct {
	// Topics is what this broker knows of topics. Required.
	Topics Topics

	// Coordinator is the transaction coordinator of this process: InitProducerId,
	// AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and
	// ListTransactions. nil: this broker coordinates no transactions.
	Coordinator *txnstate.Coordinator
	// Leader finds the logs that this broker leads: Produce, DescribeProducers,
	// WriteTxnMarkers. nil: this broker leads no partitions.
	Leader Leader
	// Offsets keeps committed and staged offsets: OffsetCommit, OffsetFetch,
	// TxnOffsetCommit, WriteTxnMarkers. nil: this broker coordinates no groups.
	Offsets *offsets.Manager
	// Groups is the host's group membership, beside Offsets. nil is
	// offsets.SimpleGroups: no group has members.
	Groups offsets.Groups

	// FindCoordinator names the broker that coordinates a key: of type 0 a group,
	// of type 1 a transactional id. An error without a code of its own is
	// COORDINATOR_NOT_AVAILABLE. nil: FindCoordinator is not served.
	FindCoordinator func(ctx context.Context, keyType int8, key string) (node int32, host string, port int32, err error)

	// Authorizer decides who may do what. nil allows everybody everything.
	Authorizer Authorizer
	// Verifier asks the coordinator of a transactional id about a partition that
	// wants to take a record of it. nil: the Coordinator in this process.
	// Required with Leader or Offsets where Coordinator is nil.
	Verifier Verifier

	// TransactionVersion is the finalised transaction.version, as Features tells
	// clients. Zero is that of Coordinator, without one TV2; ServerTV0 is level 0.
	TransactionVersion txnstate.TransactionVersion
	// TwoPhaseCommit serves InitProducerId v6 (KIP-939), which Kafka 4.4 has and
	// does not advertise by default. Whether an id may use it is for
	// txnstate.Config.TwoPhaseCommit and the Authorizer.
	TwoPhaseCommit bool
	// WithoutTopicIDs keeps to the versions that name topics, for a host whose
	// topics have no ids.
	WithoutTopicIDs bool

	// AddRetryEvery and AddRetryFor say how a produce request meets
	// CONCURRENT_TRANSACTIONS when its partition is added to the transaction: it
	// tries again at this interval for this time before its client has to. Zero is
	// 20 ms and 100 ms, as Kafka (add.partitions.to.txn.retry.backoff.ms and
	// .max.ms); a negative AddRetryFor does not try again.
	AddRetryEvery, AddRetryFor time.Duration

	Now    func() time.Time // stamps markers and producer state; nil is time.Now
	Logger *slog.Logger     // nil is silent
}

func (c Config) withDefaults() Config {
	if c.Verifier == nil && c.Coordinator != nil {
		c.Verifier = LocalVerifier{Coordinator: c.Coordinator}
	}
	if c.Groups == nil {
		c.Groups = offsets.SimpleGroups{}
	}
	switch c.TransactionVersion {
	case 0:
		c.TransactionVersion = txnstate.TV2
		if c.Coordinator != nil {
			c.TransactionVersion = c.Coordinator.TransactionVersion()
		}
	case txnstate.ServerTV0:
		c.TransactionVersion = txnstate.TV0
	}
	if c.AddRetryEvery <= 0 {
		c.AddRetryEvery = 20 * time.Millisecond
	}
	if c.AddRetryFor == 0 {
		c.AddRetryFor = 100 * time.Millisecond
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	complain := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("wire: "+format, args...))
		}
	}
	complain(c.Topics == nil, "Config.Topics is required")
	complain(c.Coordinator == nil && c.Leader == nil && c.Offsets == nil && c.FindCoordinator == nil,
		"Config has none of Coordinator, Leader, Offsets and FindCoordinator: nothing to serve")
	complain((c.Leader != nil || c.Offsets != nil) && c.Coordinator == nil && c.Verifier == nil,
		"Config.Verifier is required where transactions are coordinated elsewhere")
	v := c.TransactionVersion
	complain(v < txnstate.ServerTV0 || v > txnstate.TV2, "Config.TransactionVersion is %d, and 0 to 2 are known", v)
	if c.Coordinator != nil && v != 0 {
		have := c.Coordinator.TransactionVersion()
		complain(max(v, txnstate.TV0) != have, "Config.TransactionVersion is %d, and the coordinator's is %d", max(v, txnstate.TV0), have)
	}
	return errors.Join(errs...)
}

// Handler answers decoded requests as Apache Kafka 4.4 does. It keeps no state
// of its own and starts no goroutine that outlives a call. Its methods may be
// called concurrently.
type Handler struct {
	cfg  Config
	apis []api
	sink *LocalSink // nil without Leader and Offsets
}

// New makes a Handler from a Config.
func New(cfg Config) (*Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	h := &Handler{cfg: cfg, apis: served(cfg)}
	if cfg.Leader != nil || cfg.Offsets != nil {
		sink, err := NewLocalSink(LocalSinkConfig{Leader: cfg.Leader, Offsets: cfg.Offsets, Topics: cfg.Topics, Now: cfg.Now, Logger: cfg.Logger})
		if err != nil {
			return nil, err
		}
		h.sink = sink
	}
	return h, nil
}

// Handle answers one decoded request, for who. The answer has the version of the
// request. A nil answer with a nil error: none is due (acks 0). ErrClose: the
// connection is to be closed; no other error is returned, what goes wrong is in
// the answer.
//
// The request is read and not changed; records of a produce request are handed
// to Log.Append as they are. Ending ctx ends the waiting: what is decided or
// appended by then stays so, and the answer says that it may have happened.
func (h *Handler) Handle(ctx context.Context, req kmsg.Request, who Principal) (kmsg.Response, error) {
	if req == nil || !h.serves(req.Key(), req.GetVersion()) {
		return nil, ErrClose
	}
	switch r := req.(type) {
	case *kmsg.ProduceRequest:
		return h.produce(ctx, who, r)
	case *kmsg.OffsetCommitRequest:
		return h.offsetCommit(ctx, who, r), nil
	case *kmsg.OffsetFetchRequest:
		return h.offsetFetch(ctx, who, r), nil
	case *kmsg.FindCoordinatorRequest:
		return h.findCoordinator(ctx, who, r), nil
	case *kmsg.InitProducerIDRequest:
		if r.Version <= r.MaxVersion() {
			return h.initProducerID(ctx, who, r), nil
		}
	case *InitProducerIDV6Request:
		return h.initProducerIDV6(ctx, who, r), nil
	case *kmsg.AddPartitionsToTxnRequest:
		if r.Version >= 4 {
			return h.addPartitionsBatch(ctx, who, r), nil
		}
		return h.addPartitions(ctx, who, r), nil
	case *kmsg.AddOffsetsToTxnRequest:
		return h.addOffsets(ctx, who, r), nil
	case *kmsg.EndTxnRequest:
		return h.endTxn(ctx, who, r), nil
	case *kmsg.WriteTxnMarkersRequest:
		return h.writeTxnMarkers(ctx, who, r), nil
	case *kmsg.TxnOffsetCommitRequest:
		return h.txnOffsetCommit(ctx, who, r), nil
	case *kmsg.DescribeProducersRequest:
		return h.describeProducers(ctx, who, r), nil
	case *kmsg.DescribeTransactionsRequest:
		return h.describeTransactions(ctx, who, r), nil
	case *kmsg.ListTransactionsRequest:
		return h.listTransactions(ctx, who, r), nil
	}
	return nil, ErrClose
}

// nowMs is the present time as producer state and markers carry it.
func (h *Handler) nowMs() int64 { return h.cfg.Now().UnixMilli() }
