package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// API is the name of the request that the operation sends.
func (o Op) API() string {
	switch o {
	case OpInit, OpAge:
		return "InitProducerId"
	case OpAddPartitions, OpAddBatch:
		return "AddPartitionsToTxn"
	case OpAddOffsets:
		return "AddOffsetsToTxn"
	case OpEnd:
		return "EndTxn"
	case OpTxnOffsetCommit:
		return "TxnOffsetCommit"
	case OpOffsetCommit:
		return "OffsetCommit"
	case OpOffsetFetch:
		return "OffsetFetch"
	case OpJoin:
		return "JoinGroup"
	case OpLeave:
		return "LeaveGroup"
	case OpProduce:
		return "Produce"
	case OpFetch:
		return "Fetch"
	case OpWriteMarkers:
		return "WriteTxnMarkers"
	case OpDescribeTxns:
		return "DescribeTransactions"
	case OpListTxns:
		return "ListTransactions"
	case OpDescribeProducers:
		return "DescribeProducers"
	case OpDeny:
		return "CreateAcls"
	case OpListOffsets:
		return "ListOffsets"
	case OpNewTopic:
		return "CreateTopics"
	case OpDeleteTopic:
		return "DeleteTopics"
	case OpDeleteGroup:
		return "DeleteGroups"
	case OpSleep:
		return "sleep"
	}
	return string(o)
}

// versioned tells that the version is the recording's choice.
func (o Op) versioned() bool {
	switch o {
	case OpDescribeTxns, OpListTxns, OpDescribeProducers, OpFetch, OpListOffsets, OpOffsetFetch, OpJoin, OpDeny, OpSleep, OpNewTopic, OpDeleteTopic, OpDeleteGroup:
		return false
	}
	return true
}

// String is the request in one line: API, version, and what it names.
func (s *Step) String() string {
	if s.Op == OpSleep {
		return fmt.Sprintf("%d ms pass", s.SleepMs)
	}
	name := s.Op.API()
	if s.Op.versioned() || s.Op == OpOffsetFetch && s.Version > 0 {
		name += fmt.Sprintf(" v%d", s.Version)
	}
	if s.Op == OpAge {
		name += fmt.Sprintf(" repeated up to epoch %d", s.UntilEpoch)
	}
	return name + " (" + strings.Join(s.arguments(), ", ") + ")"
}

func (s *Step) arguments() []string {
	var out []string
	add := func(ok bool, format string, args ...any) {
		if ok {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	if len(s.Txns) > 0 && s.Op != OpAddBatch {
		for _, x := range s.Txns {
			one := *x
			one.Op, one.Version, one.TxnID, one.EmptyID = s.Op, s.Version, s.TxnID, s.EmptyID
			out = append(out, "["+strings.Join(one.arguments(), ", ")+"]")
		}
		return out
	}
	switch s.Op {
	case OpAddBatch:
		for _, x := range s.Txns {
			verify := ""
			if x.VerifyOnly {
				verify = ", verify only"
			}
			out = append(out, fmt.Sprintf("[%s, %s: %s%s]", x.id(), x.identity(), tps(x.Parts, false), verify))
		}
		return out
	case OpNewTopic:
		return []string{fmt.Sprintf("%s, %d partitions", s.ResourceName, s.Partitions)}
	case OpDeleteTopic:
		return []string{s.ResourceName}
	case OpListTxns:
		add(s.DurationMs != 0, "older than %d ms", s.DurationMs)
		add(s.Pattern != "", "pattern %q", s.Pattern)
		add(len(s.StateFilters) > 0, "states %s", strings.Join(s.StateFilters, " "))
		add(len(s.ProducerFilters) > 0, "producers %s", strings.Join(s.ProducerFilters, " "))
		if len(out) == 0 {
			out = []string{"all"}
		}
		return out
	case OpDeny:
		return []string{fmt.Sprintf("deny %s of %s %s", s.Operation, s.Resource, s.ResourceName)}
	case OpInit, OpAge, OpAddPartitions, OpAddOffsets, OpEnd, OpTxnOffsetCommit, OpDescribeTxns, OpProduce:
		out = append(out, s.id())
	}
	switch s.Op {
	case OpInit, OpAge, OpAddPartitions, OpAddOffsets, OpEnd, OpTxnOffsetCommit, OpProduce, OpWriteMarkers:
		out = append(out, s.identity())
	}
	switch s.Op {
	case OpAddOffsets, OpTxnOffsetCommit, OpOffsetCommit, OpOffsetFetch, OpJoin, OpLeave, OpDeleteGroup:
		add(true, "group %s", cmp.Or(s.Group, `""`))
		add(s.Member != "", "member %s", s.Member)
		add(s.Instance != "", "instance %s", s.Instance)
		add((s.Op == OpTxnOffsetCommit || s.Op == OpOffsetCommit) && (s.Generation >= 0 || s.Member != ""), "generation %d", s.Generation)
	}
	switch s.Op {
	case OpInit, OpAge:
		add(true, "timeout %d ms", s.TimeoutMs)
		add(s.Enable2PC, "two-phase commit")
		add(s.KeepPrepared, "keep prepared")
	case OpEnd, OpWriteMarkers:
		add(s.Commit, "commit")
		add(!s.Commit, "abort")
	case OpProduce:
		add(s.Transactional, "transactional")
		add(!s.Transactional, "not transactional")
		add(s.Control, "a control batch")
		add(true, "sequence %d, %d records", s.Sequence, s.Records)
	case OpListOffsets:
		add(s.Time == -1, "latest")
		add(s.Time == -2, "earliest")
		add(s.Isolation == 1, "read committed")
	case OpFetch:
		add(s.MaxBytes > 0, "at most %d bytes", s.MaxBytes)
		add(s.Isolation == 0, "read uncommitted")
		add(s.Isolation == 1, "read committed")
	case OpOffsetFetch:
		add(s.AllTopics, "all topics")
		add(s.RequireStable, "require stable")
	}
	if s.Op == OpWriteMarkers {
		add(true, "coordinator epoch %d", s.CoordinatorEpoch)
		add(s.Version >= 2, "transaction version %d", s.TransactionVersion)
	}
	add(len(s.Parts) > 0, "%s", tps(s.Parts, s.Op == OpTxnOffsetCommit || s.Op == OpOffsetCommit || s.Op == OpFetch && s.Parts[0].Offset != 0))
	add(s.Metadata > 0, "metadata of %d bytes", s.Metadata)
	add(s.VerifyOnly, "verify only")
	return out
}

func (s *Step) id() string {
	switch {
	case s.EmptyID:
		return `transactional id ""`
	case s.TxnID == "":
		return "no transactional id"
	}
	return s.TxnID
}

func (s *Step) identity() string {
	if s.Producer == "none" || s.Producer == "" {
		if s.Epoch == -1 {
			return "no producer id"
		}
		return fmt.Sprintf("producer id -1 epoch %d", s.Epoch)
	}
	if s.Producer == "unknown" {
		return fmt.Sprintf("an unknown producer id epoch %d", s.Epoch)
	}
	return fmt.Sprintf("%s epoch %d", s.Producer, s.Epoch)
}

func tps(ps []TP, offsets bool) string {
	var out []string
	for _, p := range ps {
		t := tpKey(p.Topic, p.Partition)
		if offsets {
			t += fmt.Sprintf(" at %d", p.Offset)
		}
		out = append(out, t)
	}
	return strings.Join(out, " ")
}

// String is the answer in one line.
func (a Answer) String() string {
	switch {
	case a.Err == errMixed:
		return listed(a.Parts)
	case a.Err != "":
		return a.Err
	}
	var out []string
	for _, f := range a.fields() {
		if f.value != "" {
			out = append(out, f.String())
		}
	}
	if len(out) == 0 {
		return "success"
	}
	return "success (" + strings.Join(out, ", ") + ")"
}

// listed puts a map of errors into words.
func listed(m map[string]string) string {
	var out []string
	for _, k := range keys(m) {
		out = append(out, k+" "+cmp.Or(m[k], "success"))
	}
	return strings.Join(out, ", ")
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// field is a part of an answer that has a name. Lists have their entries one by one.
type field struct {
	name  string
	value string // "" for none
	list  []string
	bare  bool // the value needs no name beside it
}

func (f field) String() string {
	if f.bare {
		return f.value
	}
	return f.name + " " + f.value
}

// fields are all that can be in an answer, in reading order; every answer has the
// same ones.
func (a Answer) fields() []field {
	epoch := func(p *int16) string {
		if p == nil {
			return ""
		}
		return fmt.Sprint(*p)
	}
	offset := func(p *int64) string {
		if p == nil {
			return ""
		}
		return fmt.Sprint(*p)
	}
	number := func(n int32) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	list := func(name string, l []string) field {
		return field{name: name, value: strings.Join(l, "; "), list: l}
	}
	var offsets, txns []string
	for _, k := range keys(a.Offsets) {
		v := "none"
		if o := a.Offsets[k]; o != -1 {
			v = fmt.Sprint(o)
		}
		offsets = append(offsets, k+" "+v)
	}
	for _, k := range keys(a.Txns) {
		txns = append(txns, k+": "+a.Txns[k].String())
	}
	var parts []string
	for _, k := range keys(a.Parts) {
		parts = append(parts, k+" "+cmp.Or(a.Parts[k], "success"))
	}
	started := ""
	if a.Started {
		started = "set"
	}
	return []field{
		{name: "error", value: a.Err, bare: true},
		list("partition errors", parts),
		{name: "state", value: a.State, bare: true},
		{name: "producer", value: a.Producer, bare: true},
		{name: "epoch", value: epoch(a.Epoch)},
		{name: "ongoing producer", value: a.OngoingProducer},
		{name: "ongoing epoch", value: epoch(a.OngoingEpoch)},
		{name: "timeout", value: number(a.TimeoutMs)},
		list("partitions", a.InTxn),
		{name: "start time", value: started},
		list("ids", a.IDs),
		list("offsets", offsets),
		{name: "base offset", value: offset(a.BaseOffset)},
		{name: "high watermark", value: offset(a.HighWatermark)},
		{name: "last stable offset", value: offset(a.LastStable)},
		list("batches", a.Batches),
		list("aborted", a.Aborted),
		{name: "member", value: a.Member, bare: true},
		{name: "generation", value: number(a.Generation)},
		list("transactions", txns),
		list("producers", a.Producers),
	}
}
