package conformance

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Scenario is one recorded conversation: requests, and the answer that Apache
// Kafka gave to each. In JSON a scenario is one object; a recording is a file
// with one scenario a line.
//
// Names of topics, groups and transactional ids are local to the scenario: a
// replay puts a prefix before them, so that scenarios do not meet. The topic
// "missing" never exists. Names that begin with "__" stand for themselves.
type Scenario struct {
	Name   string         `json:"name"`
	Source string         `json:"source"`           // the product, version and settings that gave the answers
	Topics map[string]int `json:"topics,omitempty"` // name -> partitions, made afresh for this scenario; where there are none, the topics "shared" (3 partitions) and "other" (1) exist for all scenarios together
	Steps  []*Step        `json:"steps"`
}

// Op says what a step does. Most are one request of one Kafka API.
type Op string

// The operations, and which fields of a Step they use beside Version.
const (
	OpInit              Op = "init"     // InitProducerId: TxnID or EmptyID or neither (null), Producer, Epoch, TimeoutMs; version 6: Enable2PC, KeepPrepared
	OpAddPartitions     Op = "addp"     // AddPartitionsToTxn: TxnID, Producer, Epoch, Parts; version 4 and later: VerifyOnly
	OpAddBatch          Op = "addb"     // AddPartitionsToTxn version 4 and later, for all of Txns in one request
	OpAddOffsets        Op = "addo"     // AddOffsetsToTxn: TxnID, Producer, Epoch, Group
	OpEnd               Op = "end"      // EndTxn: TxnID, Producer, Epoch, Commit
	OpTxnOffsetCommit   Op = "toc"      // TxnOffsetCommit: TxnID, Producer, Epoch, Group, Generation, Member, Parts with offsets
	OpOffsetCommit      Op = "oc"       // OffsetCommit: Group, Generation, Member, Parts with offsets
	OpOffsetFetch       Op = "of"       // OffsetFetch (version 0 is sent as 7): Group, Parts or AllTopics, RequireStable
	OpJoin              Op = "join"     // JoinGroup (5), twice where a member id is required first, and SyncGroup (3): Group, Member. The caller is the only member
	OpLeave             Op = "leave"    // LeaveGroup: Group, Member
	OpProduce           Op = "prod"     // Produce of one batch to the first of Parts: TxnID, Producer, Epoch, Transactional, Sequence, Records, Control; or of the batches in Txns, each with these
	OpFetch             Op = "fetch"    // Fetch (sent as version 11) from the first of Parts and its offset: Isolation, MaxBytes
	OpListOffsets       Op = "lo"       // ListOffsets (sent as version 5) of the first of Parts: Time, Isolation
	OpWriteMarkers      Op = "mark"     // WriteTxnMarkers: Producer, Epoch, Commit, CoordinatorEpoch, Parts; version 2: TransactionVersion; or the markers in Txns, each with these
	OpDescribeTxns      Op = "desc"     // DescribeTransactions: TxnID
	OpListTxns          Op = "list"     // ListTransactions: StateFilters, ProducerFilters, DurationMs, Pattern
	OpDescribeProducers Op = "dprod"    // DescribeProducers: Parts
	OpDeny              Op = "deny"     // CreateAcls: one literal DENY rule for everybody: Resource, ResourceName, Operation
	OpAge               Op = "age"      // InitProducerId with the identity it gave last, again and again until the epoch is UntilEpoch: TxnID, Producer, Epoch, TimeoutMs
	OpSleep             Op = "sleep"    // SleepMs pass
	OpNewTopic          Op = "newtopic" // CreateTopics: ResourceName, Partitions
	OpDeleteTopic       Op = "deltopic" // DeleteTopics (sent as version 5): ResourceName
	OpDeleteGroup       Op = "delgroup" // DeleteGroups (sent as version 2): Group
)

// Step is one request and Kafka's answer to it.
type Step struct {
	Op      Op    `json:"op"`
	Version int16 `json:"v"` // version of the request. Zero for desc, list, dprod, of and fetch, see Op

	TxnID        string `json:"id,omitempty"`      // transactional id; absent for a null id in init
	EmptyID      bool   `json:"empty,omitempty"`   // the transactional id is the empty string
	Producer     string `json:"pid,omitempty"`     // "P1" is the first producer id that the broker handed out in this scenario, "P2" the second; "none" is -1, "unknown" an id that nobody holds
	Epoch        int16  `json:"epoch"`             // producer epoch
	TimeoutMs    int32  `json:"timeout,omitempty"` // transaction timeout, milliseconds
	Commit       bool   `json:"commit,omitempty"`
	Enable2PC    bool   `json:"enable2pc,omitempty"`
	KeepPrepared bool   `json:"keepPrepared,omitempty"`

	Group           string   `json:"group,omitempty"`
	Generation      int32    `json:"generation,omitempty"`
	Member          string   `json:"member,omitempty"` // "M1" is the first member id that the broker gave; "ghost" is never a member
	RequireStable   bool     `json:"requireStable,omitempty"`
	Parts           []TP     `json:"parts,omitempty"`
	VerifyOnly      bool     `json:"verifyOnly,omitempty"`
	StateFilters    []string `json:"stateFilters,omitempty"`
	ProducerFilters []string `json:"pidFilters,omitempty"` // symbols, as in Producer

	Transactional      bool    `json:"transactional,omitempty"` // the batch's transactional bit
	Sequence           int32   `json:"seq,omitempty"`           // the batch's base sequence
	Records            int32   `json:"records,omitempty"`       // records in the batch
	Isolation          int8    `json:"isolation,omitempty"`     // 0 read uncommitted, 1 read committed
	Txns               []*Step `json:"txns,omitempty"`          // addb: TxnID, Producer, Epoch, Parts and VerifyOnly of each
	Resource           string  `json:"resource,omitempty"`      // "topic", "group" or "txn"
	ResourceName       string  `json:"resourceName,omitempty"`
	Operation          string  `json:"operation,omitempty"`        // "read", "write", "describe" or "all"
	CoordinatorEpoch   int32   `json:"coordinatorEpoch,omitempty"` // counted from the epoch of the broker's own coordinator; below 0 as it stands
	TransactionVersion int8    `json:"transactionVersion,omitempty"`
	UntilEpoch         int16   `json:"until,omitempty"`
	SleepMs            int     `json:"sleepMs,omitempty"`
	Control            bool    `json:"control,omitempty"`        // the batch's control bit
	MaxBytes           int32   `json:"maxBytes,omitempty"`       // of the partition; 0 is 1 MiB
	AllTopics          bool    `json:"allTopics,omitempty"`      // asks for whatever the group has
	DurationMs         int64   `json:"durationFilter,omitempty"` // 0 for none
	Pattern            string  `json:"pattern,omitempty"`
	Instance           string  `json:"instance,omitempty"` // group.instance.id
	Metadata           int     `json:"metadata,omitempty"` // length of what is stored beside the offset of each partition 0
	Time               int64   `json:"time,omitempty"`     // -1 latest, -2 earliest
	Partitions         int     `json:"partitions,omitempty"`

	Want Answer `json:"want"` // what Kafka answered
}

// TP is a partition, with an offset where the request carries one.
type TP struct {
	Topic     string `json:"t"`
	Partition int32  `json:"p"`
	Offset    int64  `json:"off,omitempty"`
}

// Answer is what a broker said, made comparable: producer and member ids are
// symbols, lists are sorted, times are left out. Answers are equal when their
// JSON is.
type Answer struct {
	// Err is Kafka's name of the error, "" for success. Where a request names
	// several partitions it is their common answer, or MIXED with the answer of
	// each in Parts. NO_ANSWER: the broker closed the connection or said nothing.
	// UNREADABLE_ANSWER and INCOMPLETE_ANSWER: what it said does not follow the
	// protocol's schema, or leaves out what was asked about.
	Err             string            `json:"err"`
	Parts           map[string]string `json:"parts,omitempty"` // "topic/0" -> error
	Producer        string            `json:"pid,omitempty"`
	Epoch           *int16            `json:"epoch,omitempty"`
	OngoingProducer string            `json:"ongoingPid,omitempty"` // InitProducerId version 6
	OngoingEpoch    *int16            `json:"ongoingEpoch,omitempty"`
	State           string            `json:"state,omitempty"`
	TimeoutMs       int32             `json:"timeoutMs,omitempty"`
	InTxn           []string          `json:"inTxn,omitempty"`   // partitions in the transaction; its groups are one entry "__consumer_offsets"
	Started         bool              `json:"started,omitempty"` // the transaction's start time is set
	IDs             []string          `json:"ids,omitempty"`     // list: "id=State"
	Offsets         map[string]int64  `json:"offsets,omitempty"` // "topic/0" -> committed offset, -1 for none; prod of several batches: base offsets
	BaseOffset      *int64            `json:"base,omitempty"`
	HighWatermark   *int64            `json:"hw,omitempty"`
	LastStable      *int64            `json:"lso,omitempty"`
	Batches         []string          `json:"batches,omitempty"` // fetch: "baseOffset+count kind producer eEPOCH sSEQUENCE txn"; control batches with key version, value version and value length
	Aborted         []string          `json:"aborted,omitempty"` // fetch: "producer@firstOffset"
	Member          string            `json:"member,omitempty"`
	Generation      int32             `json:"generation,omitempty"`
	Txns            map[string]Answer `json:"txns,omitempty"`      // addb: by transactional id; mark: by producer
	Producers       []string          `json:"producers,omitempty"` // dprod: "topic/0 producer eEPOCH seqLAST startOFFSET"
}

// Answers that are not Kafka errors.
const (
	errMixed      = "MIXED"
	errNoAnswer   = "NO_ANSWER"
	errUnreadable = "UNREADABLE_ANSWER"
	errIncomplete = "INCOMPLETE_ANSWER"
)

const (
	maxLine  = 4 << 20 // of one scenario's JSON
	maxSteps = 10000
)

// ReadScenarios reads a recording: one JSON object a line. It refuses what Check
// could not replay.
func ReadScenarios(r io.Reader) ([]*Scenario, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxLine)
	var out []*Scenario
	for line := 1; sc.Scan(); line++ {
		if len(sc.Bytes()) == 0 {
			continue
		}
		s := &Scenario{}
		if err := json.Unmarshal(sc.Bytes(), s); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if err := s.validate(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, s)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("after %d scenarios: %w", len(out), err)
	}
	return out, nil
}

func (s *Scenario) validate() error {
	if s.Name == "" {
		return errors.New("scenario without a name")
	}
	if len(s.Steps) == 0 || len(s.Steps) > maxSteps {
		return fmt.Errorf("%s: %d steps, want 1 to %d", s.Name, len(s.Steps), maxSteps)
	}
	for t, n := range s.Topics {
		if n < 1 || n > 1000 {
			return fmt.Errorf("%s: topic %q with %d partitions", s.Name, t, n)
		}
	}
	for i, st := range s.Steps {
		if st == nil {
			return fmt.Errorf("%s step %d: null", s.Name, i)
		}
		if err := st.validate(); err != nil {
			return fmt.Errorf("%s step %d (%s): %w", s.Name, i, st.Op, err)
		}
	}
	return nil
}

// validate keeps the replay free of checks for what a step must have.
func (s *Step) validate() error {
	need := func(ok bool, what string) error {
		if ok {
			return nil
		}
		return errors.New("without " + what)
	}
	switch s.Op {
	case OpInit, OpEnd, OpAddOffsets, OpOffsetCommit, OpTxnOffsetCommit, OpJoin, OpLeave, OpDescribeTxns, OpListTxns, OpOffsetFetch, OpSleep,
		OpAddPartitions, OpDescribeProducers, OpDeleteGroup:
		return nil
	case OpFetch, OpListOffsets:
		return need(len(s.Parts) == 1, "one partition")
	case OpNewTopic:
		if s.Partitions < 1 || s.Partitions > 1000 {
			return fmt.Errorf("%d partitions, want 1 to 1000", s.Partitions)
		}
		return need(s.ResourceName != "", "a topic")
	case OpDeleteTopic:
		return need(s.ResourceName != "", "a topic")
	case OpProduce:
		for _, b := range s.each() {
			if b == nil || b.Records < 1 || b.Records > 10000 || len(b.Parts) != 1 {
				return errors.New("a batch without one partition and 1 to 10000 records")
			}
		}
		return nil
	case OpWriteMarkers:
		for _, m := range s.each() {
			if m == nil {
				return errors.New("a null marker")
			}
		}
		return nil
	case OpAddBatch:
		for _, x := range s.Txns {
			if x == nil {
				return errors.New("a null transaction")
			}
		}
		return need(len(s.Txns) > 0, "transactions")
	case OpAge:
		return need(s.UntilEpoch > s.Epoch, "an epoch to reach")
	case OpDeny:
		if _, ok := aclResources[s.Resource]; !ok {
			return fmt.Errorf("unknown resource %q", s.Resource)
		}
		if _, ok := aclOperations[s.Operation]; !ok {
			return fmt.Errorf("unknown operation %q", s.Operation)
		}
		return need(s.ResourceName != "", "a resource name")
	}
	return errors.New("unknown operation")
}

// each are the batches, or the markers, of a request: those in Txns, or the step
// itself.
func (s *Step) each() []*Step {
	if len(s.Txns) > 0 {
		return s.Txns
	}
	return []*Step{s}
}
