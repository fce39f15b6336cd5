package txnstate

// Event is something that happens to one transactional id. Step decides what
// follows from it.
type Event interface {
	// Name is the event's name, as tables and logs show it.
	Name() string
}

// Init asks for an identity: InitProducerId with a transactional id.
type Init struct {
	// Expected is the identity that the caller holds (KIP-360), NoProducer for a
	// caller that starts afresh.
	Expected Producer
	// TimeoutMs is how long a transaction of the id may stay open. Ignored with
	// TwoPhase.
	TimeoutMs int32
	TwoPhase  bool // KIP-939: enable two-phase commit for this id
	// KeepPrepared asks to keep an open transaction (KIP-939). Kafka 4.4 refuses
	// it with UNSUPPORTED_VERSION; so does the coordinator.
	KeepPrepared bool
	// Server is the finalised transaction.version: it governs how an open
	// transaction of an earlier holder is aborted.
	Server TransactionVersion
	// NewID is a fresh producer id, -1 for none. Step returns ErrNeedProducerID
	// where it turns out to need one.
	NewID int64
}

// Add puts participants into the transaction and opens it if none is open:
// AddPartitionsToTxn, AddOffsetsToTxn, and the implicit add of TV2.
type Add struct {
	Producer     Producer
	Participants []Participant // not to be changed after the call, whose work may go on
	Client       TransactionVersion
	// Limit is how many participants a transaction may have; 0 is no limit.
	Limit int
}

// Verify asks which of the participants are not in the open transaction:
// AddPartitionsToTxn with VerifyOnly (KIP-890). It never changes anything.
type Verify struct {
	Producer     Producer
	Participants []Participant
}

// End decides the open transaction: EndTxn.
type End struct {
	Producer Producer
	Commit   bool
	Client   TransactionVersion // TV2 for EndTxn v5 and later, else TV0
	NewID    int64              // as in Init

	// RetriesAsKafka: see Config.
	RetriesAsKafka bool
}

// Applied reports participants that have applied the outcome, or are known to be
// gone. The last of them completes the transaction.
type Applied struct {
	Producer     Producer // as the markers carried it
	TxnSeq       uint64   // of the Outcome: under TV1 the next one has the same producer
	Participants []Participant
}

// TimedOut aborts a transaction that has been open for longer than its timeout.
// It changes nothing where none is: the reaper's view may be old.
type TimedOut struct {
	Server TransactionVersion
	NewID  int64 // as in Init
}

// ForceAbort aborts the open transaction, whoever holds it, and fences the
// holder: an operator's or a host's decision.
type ForceAbort struct {
	Server TransactionVersion
	NewID  int64 // as in Init
}

// Expire removes an id without an open transaction that has not been used for
// AfterMs milliseconds. It changes nothing where that is not so.
type Expire struct {
	AfterMs int64
}

func (Init) Name() string       { return "Init" }
func (Add) Name() string        { return "Add" }
func (Verify) Name() string     { return "Verify" }
func (End) Name() string        { return "End" }
func (Applied) Name() string    { return "Applied" }
func (TimedOut) Name() string   { return "TimedOut" }
func (ForceAbort) Name() string { return "ForceAbort" }
func (Expire) Name() string     { return "Expire" }

// kept is an event for who keeps it. What is only looked at stays on the stack of
// its caller: an Add and an End for each transaction are worth that.
func kept(ev Event) Event {
	switch ev := ev.(type) {
	case Init:
		return ev
	case Add:
		return ev
	case Verify:
		return ev
	case End:
		return ev
	case Applied:
		return ev
	case TimedOut:
		return ev
	case ForceAbort:
		return ev
	case Expire:
		return ev
	}
	return nil
}

func nameOf(ev Event) string { return kept(ev).Name() }
