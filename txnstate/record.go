package txnstate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// State is where a transactional id stands. The numbers and names are Kafka's
// (TransactionState); they appear in its transaction log and in the answers of
// DescribeTransactions and ListTransactions. Kafka's Dead and PrepareEpochFence
// are states of a write under way: here one step makes both changes at once, so
// no record is ever in them.
type State int8

const (
	Empty          State = 0 // an identity was granted, no transaction since
	Ongoing        State = 1 // a transaction is open
	PrepareCommit  State = 2 // commit is decided, participants are being told
	PrepareAbort   State = 3 // abort is decided, participants are being told
	CompleteCommit State = 4 // every participant has applied the commit
	CompleteAbort  State = 5 // every participant has applied the abort
)

var stateNames = [...]string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}

// States lists every state.
func States() []State {
	return []State{Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort}
}

// ParseState is the state with a name, which is case-sensitive, as in Kafka.
func ParseState(name string) (State, bool) {
	i := slices.Index(stateNames[:], name)
	return State(i), i >= 0
}

func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int8(s))
	}
	return stateNames[s]
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s >= Empty && s <= CompleteAbort }

// Decided reports that the outcome is fixed and not every participant has
// applied it yet.
func (s State) Decided() bool { return s == PrepareCommit || s == PrepareAbort }

// TransactionVersion is Kafka's feature transaction.version (KIP-890). Under
// TV0 and TV1 a producer keeps its epoch from one transaction to the next;
// under TV2 every end of a transaction bumps it.
type TransactionVersion int8

const (
	TV0 TransactionVersion = 0
	TV1 TransactionVersion = 1
	TV2 TransactionVersion = 2
)

// Epochs. 32766 is the last epoch that a client is granted; 32767 is reserved
// for fencing it out, so that there is always an epoch left to fence with.
const (
	MaxEpoch   int16 = math.MaxInt16 - 1
	FenceEpoch int16 = math.MaxInt16
)

// NoTimeout is the timeout of a transactional id in two-phase commit
// (KIP-939): its transactions are never ended by the server. The unit is
// milliseconds.
const NoTimeout int32 = math.MaxInt32

// Producer is an identity: a producer id and an epoch of it.
type Producer struct {
	ID    int64
	Epoch int16
}

// NoProducer is the absent identity, (-1, -1), as Kafka writes it.
var NoProducer = Producer{ID: -1, Epoch: -1}

func (p Producer) String() string { return fmt.Sprintf("%d/%d", p.ID, p.Epoch) }

// exhausted reports that no further epoch of the id can be granted.
func (p Producer) exhausted() bool { return p.Epoch >= MaxEpoch }

// Kind tells what sort of party a participant is.
type Kind uint8

const (
	// KindPartition is a topic partition: Name is the topic, Index the partition.
	KindPartition Kind = 0
	// KindGroup is a consumer group with staged offsets: Name is the group,
	// Index its partition of __consumer_offsets.
	KindGroup Kind = 1
	// KindHost and the kinds above it are the host's own: a database in
	// two-phase commit, say. The library stores and delivers them and gives
	// Name and Index no meaning.
	KindHost Kind = 64
)

// OffsetsTopic is the topic that stands for consumer groups on the wire.
const OffsetsTopic = "__consumer_offsets"

// OffsetsPartitions is how many partitions OffsetsTopic has.
const OffsetsPartitions = 50

// Participant is one party that must learn the outcome of a transaction.
type Participant struct {
	Kind  Kind
	Name  string
	Index int32
}

// Partition is the participant for a partition of a topic.
func Partition(topic string, partition int32) Participant {
	return Participant{Kind: KindPartition, Name: topic, Index: partition}
}

// Group is the participant for a consumer group. On the wire a group is its
// partition of __consumer_offsets, which all groups of that partition share.
func Group(group string) Participant {
	return Participant{Kind: KindGroup, Name: group, Index: OffsetsPartition(group)}
}

// OffsetsPartition is the partition of __consumer_offsets that holds a group.
func OffsetsPartition(group string) int32 {
	return javaAbs(javaHash(group)) % OffsetsPartitions
}

// Wire is the participant as requests and markers name it: a group becomes its
// partition of __consumer_offsets. Two participants with the same Wire are the
// same party.
func (p Participant) Wire() Participant {
	if p.Kind == KindGroup {
		return Participant{Kind: KindPartition, Name: OffsetsTopic, Index: p.Index}
	}
	return p
}

// Offsets reports whether the participant is served by a group coordinator, and
// which partition of __consumer_offsets it is.
func (p Participant) Offsets() (partition int32, ok bool) {
	w := p.Wire()
	return w.Index, w.Kind == KindPartition && w.Name == OffsetsTopic
}

func (p Participant) String() string {
	switch p.Kind {
	case KindPartition:
		return fmt.Sprintf("%s/%d", p.Name, p.Index)
	case KindGroup:
		return "group " + p.Name
	}
	return fmt.Sprintf("kind%d %s/%d", p.Kind, p.Name, p.Index)
}

// Compare orders participants by kind, name and index as the wire names them.
func (p Participant) Compare(q Participant) int {
	if p.Kind == KindGroup || q.Kind == KindGroup {
		p, q = p.Wire(), q.Wire()
	}
	switch {
	case p.Kind != q.Kind:
		return cmp.Compare(p.Kind, q.Kind)
	case p.Name != q.Name:
		return strings.Compare(p.Name, q.Name)
	}
	return cmp.Compare(p.Index, q.Index)
}

// Version identifies one stored state of a record. A store gives every write of
// an id a version that it never gave that id before, also where the id was
// deleted in between. Zero is the version of an id without a record.
type Version uint64

// Record is all that is kept of one transactional id. It is a value: copy it
// with Clone, compare it with Equal. Times are milliseconds since 1970, -1 for
// none.
type Record struct {
	TxnID string
	State State

	// Producer is the identity in force. In PrepareCommit and PrepareAbort it
	// is the identity that the markers carry, under TV2 already one epoch above
	// the one that wrote the data.
	Producer Producer
	// PrevID is the producer id before the latest transition; -1 is none. It
	// differs from Producer.ID only after a new producer id was given, and lets
	// the holder of the old one repeat its request (KIP-360, KIP-890).
	PrevID int64
	// Next is the identity that takes over at completion where the epochs of
	// the current producer id are used up, NoProducer otherwise.
	Next Producer
	// LastEpoch is the epoch before the latest bump that the holder itself
	// asked for, -1 for none: a holder that missed the answer is recognised
	// by it.
	LastEpoch int16

	// Participants is sorted by Participant.Compare, without repetition. In
	// the Prepare states it holds those that have not confirmed yet.
	Participants []Participant

	TimeoutMs int32 // of a transaction; NoTimeout under two-phase commit
	StartMs   int64 // when the open, or the latest, transaction began
	UpdateMs  int64 // latest transition

	// ClientVersion is the transaction version of the client of the latest
	// transition: TV2 means that the epoch was bumped by the decision. TV1, which no
	// client speaks, is that of a fence by a server below TV2: its epoch is nobody's.
	ClientVersion TransactionVersion
	TwoPhase      bool // KIP-939: the client, not a timeout, ends transactions

	// TxnSeq counts the transactions of the id that were decided. Where the
	// epoch stays the same from one to the next, it alone tells them apart.
	TxnSeq uint64

	// Version is the stored version that this record is, zero for none.
	Version Version
	// Extra holds what a newer version of the library stored with the record
	// and this one does not know. It is kept as it is.
	Extra []byte
}

// Unknown is the record of a transactional id that nothing is stored of.
func Unknown(txnID string) Record {
	return Record{TxnID: txnID, Producer: NoProducer, PrevID: -1, Next: NoProducer, LastEpoch: -1, StartMs: -1, UpdateMs: -1}
}

// Known reports whether the id holds an identity.
func (r Record) Known() bool { return r.Producer.ID >= 0 }

// Clone is a copy that shares no memory with r.
func (r Record) Clone() Record {
	r.Participants = slices.Clone(r.Participants)
	r.Extra = slices.Clone(r.Extra)
	return r
}

// Equal reports whether two records say the same, whatever their versions.
func (r Record) Equal(o Record) bool {
	return r.TxnID == o.TxnID && r.State == o.State && r.Producer == o.Producer && r.PrevID == o.PrevID &&
		r.Next == o.Next && r.LastEpoch == o.LastEpoch && r.TimeoutMs == o.TimeoutMs && r.StartMs == o.StartMs &&
		r.UpdateMs == o.UpdateMs && r.ClientVersion == o.ClientVersion && r.TwoPhase == o.TwoPhase && r.TxnSeq == o.TxnSeq &&
		slices.Equal(r.Participants, o.Participants) && slices.Equal(r.Extra, o.Extra)
}

// Has reports whether p is a participant of the transaction.
func (r Record) Has(p Participant) bool {
	_, ok := slices.BinarySearchFunc(r.Participants, p, Participant.Compare)
	return ok
}

func (r Record) String() string {
	return fmt.Sprintf("%q %s producer %s %v", r.TxnID, r.State, r.Producer, r.Participants)
}

// Outcome is a decided transaction on its way to its participants.
type Outcome struct {
	TxnID              string
	TxnSeq             uint64   // of the id's transactions, which one
	Producer           Producer // as the markers carry it
	Commit             bool
	TransactionVersion TransactionVersion
	CoordinatorEpoch   int32
	// Again: the decision was found, at a start or a takeover, not just made.
	// Participants may have applied it already.
	Again bool
	// Participants are those that have to be told. The slice is shared: it
	// must not be changed.
	Participants []Participant
}

// Outcome is what the participants of a record in a Prepare state must be told.
func (r Record) Outcome(coordinatorEpoch int32) Outcome {
	return Outcome{
		TxnID: r.TxnID, TxnSeq: r.TxnSeq, Producer: r.Producer, Commit: r.State == PrepareCommit,
		TransactionVersion: r.ClientVersion, CoordinatorEpoch: coordinatorEpoch, Participants: r.Participants,
	}
}

// union is the sorted set of a, which is one, and b. It returns a itself when
// nothing is new. Sets have thousands of members in the worst case, so nothing
// here is quadratic.
func union(a, b []Participant) []Participant {
	out := a
	for _, p := range b {
		if _, found := slices.BinarySearchFunc(a, p, Participant.Compare); found {
			continue
		}
		if len(out) == len(a) {
			out = append(make([]Participant, 0, len(a)+len(b)), a...)
		}
		out = append(out, p)
	}
	if len(out) == len(a) {
		return a
	}
	slices.SortStableFunc(out, Participant.Compare)
	return slices.CompactFunc(out, func(p, q Participant) bool { return p.Compare(q) == 0 })
}

// without is the sorted set a less b, nil where nothing is left. It returns a
// itself when nothing goes.
func without(a, b []Participant) []Participant {
	if len(a) == 0 || len(a) == len(b) && &a[0] == &b[0] {
		return nil // all at once, which is the rule
	}
	gone, n := make([]bool, len(a)), 0
	for _, p := range b {
		if i, found := slices.BinarySearchFunc(a, p, Participant.Compare); found && !gone[i] {
			gone[i] = true
			n++
		}
	}
	switch n {
	case 0:
		return a
	case len(a):
		return nil
	}
	out := make([]Participant, 0, len(a)-n)
	for i, p := range a {
		if !gone[i] {
			out = append(out, p)
		}
	}
	return out
}
