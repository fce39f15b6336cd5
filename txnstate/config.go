package txnstate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// ProducerIDs gives out producer ids.
type ProducerIDs interface {
	// Next is an id that was never returned before, by this process or another,
	// or an error: never a guess. It may be called concurrently. The caller may
	// drop the id unused.
	Next(ctx context.Context) (int64, error)
}

// Dispatcher brings outcomes to participants. Package markers has one.
type Dispatcher interface {
	// Dispatch takes over the delivery of a decided transaction and returns
	// without waiting for it. It keeps trying until every participant has
	// applied the outcome or is known to be gone, or Cancel is called, and tells
	// applied which are done, in any number of calls from any goroutine, one
	// participant perhaps twice. applied does not fail: what it can't do at once
	// the coordinator goes on with by itself.
	Dispatch(o Outcome, applied func([]Participant))
	// Cancel drops what is queued for a slot at coordinator epochs up to epoch:
	// another broker has it now, or this one has loaded it anew. A delivery that
	// is on its way may still arrive.
	Cancel(slot int, epoch int32)
}

// Fencer tells partition leaders that epochs of p.ID below p.Epoch are gone. It
// narrows the time in which an old producer can still write: leaders learn the
// same from markers and from verification. A repeat is harmless and an older
// epoch changes nothing. It may be called concurrently; an error is logged.
type Fencer interface {
	Fence(ctx context.Context, p Producer) error
}

// Deadlines is told when an id has to be looked at again. Package reaper has
// one. Calls for one id come in the order of its changes, with the id's turn
// held: Set must be quick and must not call the coordinator.
type Deadlines interface {
	// Set replaces the deadline of an id: a time in milliseconds since 1970, or
	// -1 for none. open tells a transaction's timeout from an idle id's expiry.
	Set(txnID string, atMs int64, open bool)
}

// Ownership tells which slots this process coordinates, and since which
// coordinator epoch.
type Ownership interface {
	// Watch calls acquired and lost until ctx is done. The notices may be late,
	// repeated and out of order; of one slot the highest epoch counts, and at the
	// same epoch lost is final. The functions return quickly and may be called
	// concurrently. Until acquired is called for a slot, this process does not
	// own it. Where the notices can be late, see OwnershipChecker.
	Watch(ctx context.Context, acquired, lost func(slot int, epoch int32)) error
}

// OwnershipChecker is an optional ability of an Ownership whose notices can be
// late: a look at what decides who owns a slot. The coordinator asks after it has
// read a record and before it answers or writes: a partition that is in the
// transaction already, a verification, an EndTxn come again, a refusal, Describe and
// List. A process that was stopped in between and woke up would otherwise say
// "verified" of a transaction that its successor has ended. Nor may it carry out a
// request that its caller has sent to the successor since, and ended long ago. It
// asks again when it has stored a decision: a successor that had taken over before
// may not have seen it, and the caller has to be sent there.
//
// What was read after the question needs none: the store refuses what comes too late.
//
// Without it a process that was deposed and has not heard may also begin and decide
// transactions that its successor does not know of, as the store takes them. They
// rest, with the last stable offset before them, until somebody sends a request for
// the transactional id or the slot is loaded again.
type OwnershipChecker interface {
	// Still reports whether nobody has become the owner of a slot after this
	// process did so at an epoch. True was so at some moment of the call. False is
	// final, and counts as the notice of the loss. An error means that nobody
	// knows: the caller is answered COORDINATOR_NOT_AVAILABLE, and the slot stays.
	// It may be called concurrently, and with the turn of an id held: it must not
	// call the coordinator.
	Still(ctx context.Context, slot int, epoch int32) (bool, error)
}

// Limits bound what clients can make the coordinator keep. A negative number is
// no limit.
type Limits struct {
	// TransactionalIDs known at once in the slots owned; zero is 1,000,000. One
	// more is refused with COORDINATOR_NOT_AVAILABLE, which clients retry: idle
	// ids expire, and none is evicted before its time.
	TransactionalIDs int
	// Participants of one transaction; zero is 10,000. One more is refused with
	// POLICY_VIOLATION.
	Participants int
	// MaxTimeout is the longest transaction timeout a client may ask for
	// (transaction.max.timeout.ms); zero is 15 minutes. More is
	// INVALID_TRANSACTION_TIMEOUT.
	MaxTimeout time.Duration
}

// Values of Config.EndWait.
const (
	// AnswerAtDecision answers EndTxn when the decision is durable, as Kafka does.
	AnswerAtDecision time.Duration = -1
	// AnswerWhenApplied answers EndTxn only when every participant has applied
	// the outcome, or the caller's context ends: what a test double wants.
	AnswerWhenApplied time.Duration = math.MaxInt64
)

// Config is what a Coordinator is made of.
type Config struct {
	Store       Store       // required
	ProducerIDs ProducerIDs // required
	Dispatcher  Dispatcher  // required

	Fencer    Fencer    // nil: leaders learn of fences by markers and verification only
	Deadlines Deadlines // nil: no transaction times out and no id expires by itself
	Ownership Ownership // nil: this process owns every slot, at CoordinatorEpoch

	// CoordinatorEpoch is the coordinator epoch of every slot where Ownership is
	// nil. A host that restarts with the same data should raise it, so that
	// markers of the process before are told from its own.
	CoordinatorEpoch int32

	// TransactionVersion is the finalised transaction.version. It governs aborts
	// that the coordinator starts; requests carry the version of their client.
	// Zero is TV2, the default of Kafka 4; ServerTV0 is the protocol before.
	TransactionVersion TransactionVersion
	// TwoPhaseCommit allows clients to switch two-phase commit on for an id
	// (transaction.two.phase.commit.enable).
	TwoPhaseCommit bool

	// RetriesAsKafka takes for a retry what Kafka 4.4 takes for one: EndTxn v5 with
	// the epoch before the present one, whoever has it now. After a transaction of
	// protocol 1 such a caller is given an identity that somebody else holds, and
	// after a fence at the last epoch, the epoch 32767. Without it both are refused
	// with PRODUCER_FENCED (I6). It is for hosts that are compared with Kafka.
	RetriesAsKafka bool

	// EndWait is how long EndTxn, with the decision durable, waits for the
	// participants before it answers, so that the next transaction does not meet
	// CONCURRENT_TRANSACTIONS. Zero is one second.
	EndWait time.Duration
	// ExpireAfter is how long an id without an open transaction is kept unused
	// (transactional.id.expiration.ms). Zero is seven days.
	ExpireAfter time.Duration
	// FlushEvery is how often completions that no later write has made durable
	// are flushed, where the store is a Flusher. Zero is one second.
	FlushEvery time.Duration

	Limits   Limits
	Observer Observer
	Logger   *slog.Logger // nil is silent

	// Now stamps records and is what deadlines are compared with. nil is
	// time.Now. Stamps of another broker may be ahead or behind.
	Now func() time.Time
}

// ServerTV0 is the value of Config.TransactionVersion for level 0: the zero of
// that field means TV2.
const ServerTV0 TransactionVersion = -1

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.EndWait, time.Second)
	def(&c.ExpireAfter, 7*24*time.Hour)
	def(&c.FlushEvery, time.Second)
	def(&c.Limits.MaxTimeout, 15*time.Minute)
	if c.Limits.TransactionalIDs == 0 {
		c.Limits.TransactionalIDs = 1_000_000
	}
	if c.Limits.Participants == 0 {
		c.Limits.Participants = 10_000
	}
	switch c.TransactionVersion {
	case 0:
		c.TransactionVersion = TV2
	case ServerTV0:
		c.TransactionVersion = TV0
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	missing := func(ok bool, name string) {
		if !ok {
			errs = append(errs, fmt.Errorf("txnstate: Config.%s is required", name))
		}
	}
	missing(c.Store != nil, "Store")
	missing(c.ProducerIDs != nil, "ProducerIDs")
	missing(c.Dispatcher != nil, "Dispatcher")
	if c.TransactionVersion < ServerTV0 || c.TransactionVersion > TV2 {
		errs = append(errs, fmt.Errorf("txnstate: Config.TransactionVersion is %d, and 0 to 2 are known", c.TransactionVersion))
	}
	if c.ExpireAfter < 0 || c.FlushEvery < 0 {
		errs = append(errs, errors.New("txnstate: Config has a negative duration"))
	}
	if c.CoordinatorEpoch < 0 {
		errs = append(errs, errors.New("txnstate: Config.CoordinatorEpoch is negative"))
	}
	return errors.Join(errs...)
}
