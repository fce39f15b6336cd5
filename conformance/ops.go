package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// errShort marks an answer that leaves out what was asked about.
var errShort = errors.New("incomplete answer")

func short(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errShort, fmt.Sprintf(format, args...))
}

func tpKey(t string, p int32) string { return fmt.Sprintf("%s/%d", t, p) }

// byTopic groups partitions by topic, topics in the order they come.
func byTopic(parts []TP) (names []string, by map[string][]TP) {
	by = map[string][]TP{}
	for _, p := range parts {
		if _, ok := by[p.Topic]; !ok {
			names = append(names, p.Topic)
		}
		by[p.Topic] = append(by[p.Topic], p)
	}
	return names, by
}

// fold collapses a partition map whose partitions all agree.
func fold(parts map[string]string) Answer {
	first, n := "", 0
	for _, e := range parts {
		if n > 0 && e != first {
			return Answer{Err: errMixed, Parts: parts}
		}
		first = e
		n++
	}
	return Answer{Err: first}
}

// covers checks that every partition asked about was answered.
func covers(asked []TP, parts map[string]string) error {
	for _, tp := range asked {
		if _, ok := parts[tpKey(tp.Topic, tp.Partition)]; !ok {
			return short("nothing about %s", tpKey(tp.Topic, tp.Partition))
		}
	}
	return nil
}

// once sends a step's request one time.
func (p *player) once(ctx context.Context, s *Step) (Answer, error) {
	switch s.Op {
	case OpInit:
		if s.Version >= 6 {
			return p.initV6(ctx, s)
		}
		return p.init(ctx, s)
	case OpAddPartitions:
		return p.addPartitions(ctx, s)
	case OpAddBatch:
		return p.addBatch(ctx, s)
	case OpAddOffsets:
		return p.addOffsets(ctx, s)
	case OpEnd:
		return p.end(ctx, s)
	case OpTxnOffsetCommit:
		return p.txnOffsetCommit(ctx, s)
	case OpOffsetCommit:
		return p.offsetCommit(ctx, s)
	case OpOffsetFetch:
		return p.offsetFetch(ctx, s)
	case OpJoin:
		return p.join(ctx, s)
	case OpLeave:
		return p.leave(ctx, s)
	case OpProduce:
		if len(s.Txns) > 0 || s.Version >= 13 {
			return p.produceMany(ctx, s)
		}
		return p.produce(ctx, s)
	case OpListOffsets:
		return p.listOffsets(ctx, s)
	case OpNewTopic:
		return p.newTopic(ctx, s)
	case OpDeleteTopic:
		return p.deleteTopic(ctx, s)
	case OpDeleteGroup:
		return p.deleteGroup(ctx, s)
	case OpFetch:
		return p.fetch(ctx, s)
	case OpWriteMarkers:
		return p.writeMarkers(ctx, s)
	case OpDescribeTxns:
		return p.describeTxns(ctx, s)
	case OpListTxns:
		return p.listTxns(ctx, s)
	case OpDescribeProducers:
		return p.describeProducers(ctx, s)
	case OpDeny:
		return p.deny(ctx, s)
	}
	return Answer{}, fmt.Errorf("operation %q is not one of a request", s.Op)
}

func ptr[T any](v T) *T { return &v }

func (p *player) init(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version = s.Version
	if s.TxnID != "" || s.EmptyID {
		req.TransactionalID = ptr(p.txnID(s))
	}
	req.TransactionTimeoutMillis = s.TimeoutMs
	req.ProducerID, req.ProducerEpoch = p.pid(s.Producer), s.Epoch
	x, err := do[*kmsg.InitProducerIDResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Err: errName(x.ErrorCode)}
	if a.Err == "" {
		a.Producer, a.Epoch = p.sym(x.ProducerID), ptr(x.ProducerEpoch)
		p.holders[a.Producer] = s.TxnID
	}
	return a, nil
}

// initV6 speaks InitProducerId version 6 (KIP-939), which kmsg does not have.
func (p *player) initV6(ctx context.Context, s *Step) (Answer, error) {
	var b []byte
	id := ""
	if s.TxnID != "" || s.EmptyID {
		id = p.txnID(s)
		b = binary.AppendUvarint(b, uint64(len(id)+1))
		b = append(b, id...)
	} else {
		b = append(b, 0)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(s.TimeoutMs))
	b = binary.BigEndian.AppendUint64(b, uint64(p.pid(s.Producer)))
	b = binary.BigEndian.AppendUint16(b, uint16(s.Epoch))
	for _, flag := range []bool{s.Enable2PC, s.KeepPrepared} {
		if flag {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	b = append(b, 0) // no tags
	x, err := p.c.raw(ctx, id, 22, s.Version, b)
	if err != nil {
		return Answer{}, err
	}
	// throttle int32, error int16, producer id int64 and epoch int16, ongoing producer id int64 and epoch int16
	if len(x) < 4+2+8+2+8+2 {
		return Answer{}, Unreadable(fmt.Errorf("%s: %d bytes", describe(22, s.Version), len(x)))
	}
	a := Answer{Err: errName(int16(binary.BigEndian.Uint16(x[4:])))}
	if a.Err == "" {
		a.Producer, a.Epoch = p.sym(int64(binary.BigEndian.Uint64(x[6:]))), ptr(int16(binary.BigEndian.Uint16(x[14:])))
		if op := int64(binary.BigEndian.Uint64(x[16:])); op != -1 {
			a.OngoingProducer, a.OngoingEpoch = p.sym(op), ptr(int16(binary.BigEndian.Uint16(x[24:])))
		}
	}
	return a, nil
}

func (p *player) addTxn(s *Step) kmsg.AddPartitionsToTxnRequestTransaction {
	tx := kmsg.NewAddPartitionsToTxnRequestTransaction()
	tx.TransactionalID, tx.ProducerID, tx.ProducerEpoch, tx.VerifyOnly = p.txnID(s), p.pid(s.Producer), s.Epoch, s.VerifyOnly
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
		t.Topic = p.topic(n)
		for _, tp := range by[n] {
			t.Partitions = append(t.Partitions, tp.Partition)
		}
		tx.Topics = append(tx.Topics, t)
	}
	return tx
}

func (p *player) addPartitions(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = s.Version
	tx := p.addTxn(s)
	if s.Version < 4 {
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = tx.TransactionalID, tx.ProducerID, tx.ProducerEpoch
		for _, t := range tx.Topics {
			old := kmsg.NewAddPartitionsToTxnRequestTopic()
			old.Topic, old.Partitions = t.Topic, t.Partitions
			req.Topics = append(req.Topics, old)
		}
	} else {
		req.Transactions = append(req.Transactions, tx)
	}
	x, err := do[*kmsg.AddPartitionsToTxnResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	if x.ErrorCode != 0 {
		return Answer{Err: "TOP:" + errName(x.ErrorCode)}, nil
	}
	m := map[string]string{}
	for _, t := range x.Topics {
		for _, tp := range t.Partitions {
			m[tpKey(p.ltopic(t.Topic), tp.Partition)] = errName(tp.ErrorCode)
		}
	}
	for _, tx := range x.Transactions {
		for _, t := range tx.Topics {
			for _, tp := range t.Partitions {
				m[tpKey(p.ltopic(t.Topic), tp.Partition)] = errName(tp.ErrorCode)
			}
		}
	}
	return fold(m), covers(s.Parts, m)
}

func (p *player) addBatch(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = s.Version
	for _, x := range s.Txns {
		req.Transactions = append(req.Transactions, p.addTxn(x))
	}
	x, err := do[*kmsg.AddPartitionsToTxnResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Err: errName(x.ErrorCode), Txns: map[string]Answer{}}
	for _, tx := range x.Transactions {
		m := map[string]string{}
		for _, t := range tx.Topics {
			for _, tp := range t.Partitions {
				m[tpKey(p.ltopic(t.Topic), tp.Partition)] = errName(tp.ErrorCode)
			}
		}
		a.Txns[p.local(tx.TransactionalID)] = fold(m)
	}
	return a, nil
}

func (p *player) addOffsets(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.Version = s.Version
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = p.txnID(s), p.pid(s.Producer), s.Epoch, p.group(s.Group)
	x, err := do[*kmsg.AddOffsetsToTxnResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	return Answer{Err: errName(x.ErrorCode)}, nil
}

func (p *player) end(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.Version = s.Version
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.txnID(s), p.pid(s.Producer), s.Epoch, s.Commit
	x, err := do[*kmsg.EndTxnResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Err: errName(x.ErrorCode)}
	if a.Err == "" && s.Version >= 5 {
		a.Producer, a.Epoch = p.sym(x.ProducerID), ptr(x.ProducerEpoch)
	}
	return a, nil
}

func (p *player) describeTxns(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{p.txnID(s)}
	var st kmsg.DescribeTransactionsResponseTransactionState
	for start := time.Now(); ; {
		x, err := do[*kmsg.DescribeTransactionsResponse](ctx, p.c, req)
		if err != nil {
			return Answer{}, err
		}
		if len(x.TransactionStates) != 1 {
			return Answer{}, short("%d transactions, want 1", len(x.TransactionStates))
		}
		st = x.TransactionStates[0]
		if st.ErrorCode != 0 || !strings.HasPrefix(st.State, "Prepare") || time.Since(start) > p.e.o.Patience {
			break
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return Answer{}, err
		}
	}
	a := Answer{Err: errName(st.ErrorCode)}
	if a.Err != "" {
		return a, nil
	}
	a.State, a.Producer, a.Epoch, a.TimeoutMs, a.Started = st.State, p.sym(st.ProducerID), ptr(st.ProducerEpoch), st.TimeoutMillis, st.StartTimestamp > 0
	for _, t := range st.Topics {
		for _, n := range t.Partitions {
			k := tpKey(p.ltopic(t.Topic), n)
			if strings.HasPrefix(t.Topic, "__") {
				k = t.Topic // which and how many of its partitions depends on the names of the groups
			}
			if !slices.Contains(a.InTxn, k) || k != t.Topic {
				a.InTxn = append(a.InTxn, k)
			}
		}
	}
	sort.Strings(a.InTxn)
	return a, nil
}

func (p *player) listTxns(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrListTransactionsRequest()
	req.Version = s.Version
	req.StateFilters = s.StateFilters
	if s.DurationMs != 0 {
		req.DurationFilterMillis = s.DurationMs
	}
	if s.Pattern != "" {
		req.TransactionalIDPattern = ptr(s.Pattern)
	}
	for _, f := range s.ProducerFilters {
		req.ProducerIDFilters = append(req.ProducerIDFilters, p.pid(f))
	}
	for start := time.Now(); ; {
		x, err := do[*kmsg.ListTransactionsResponse](ctx, p.c, req)
		if err != nil {
			return Answer{}, err
		}
		a, busy := Answer{Err: errName(x.ErrorCode)}, false
		for _, t := range x.TransactionStates {
			if strings.HasPrefix(t.TransactionalID, p.prefix) {
				busy = busy || strings.HasPrefix(t.TransactionState, "Prepare")
				a.IDs = append(a.IDs, p.local(t.TransactionalID)+"="+t.TransactionState)
			}
		}
		if !busy || time.Since(start) > p.e.o.Patience {
			sort.Strings(a.IDs)
			return a, nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return Answer{}, err
		}
	}
}

func (p *player) writeMarkers(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Version = s.Version
	for _, one := range s.each() {
		m, err := p.marker(ctx, one)
		if err != nil {
			return Answer{}, err
		}
		req.Markers = append(req.Markers, m)
	}
	x, err := do[*kmsg.WriteTxnMarkersResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a, errs := Answer{Txns: map[string]Answer{}}, map[string]string{}
	for _, m := range x.Markers {
		if len(s.Txns) > 0 {
			clear(errs)
		}
		for _, t := range m.Topics {
			for _, tp := range t.Partitions {
				errs[tpKey(p.ltopic(t.Topic), tp.Partition)] = errName(tp.ErrorCode)
			}
		}
		if len(s.Txns) > 0 {
			a.Txns[p.sym(m.ProducerID)] = fold(maps.Clone(errs))
		}
	}
	if len(s.Txns) > 0 {
		return a, nil
	}
	return fold(errs), covers(s.Parts, errs)
}

func (p *player) marker(ctx context.Context, s *Step) (kmsg.WriteTxnMarkersRequestMarker, error) {
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.Committed, m.CoordinatorEpoch = p.pid(s.Producer), s.Epoch, s.Commit, s.CoordinatorEpoch
	if m.CoordinatorEpoch >= 0 {
		base, err := p.e.epochOf(ctx, p.holder(s))
		if err != nil {
			return m, err
		}
		m.CoordinatorEpoch += base
	}
	m.TransactionVersion = s.TransactionVersion
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		t.Topic = p.topic(n)
		for _, tp := range by[n] {
			t.Partitions = append(t.Partitions, tp.Partition)
		}
		m.Topics = append(m.Topics, t)
	}
	return m, nil
}

func (p *player) describeProducers(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrDescribeProducersRequest()
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewDescribeProducersRequestTopic()
		t.Topic = p.topic(n)
		for _, tp := range by[n] {
			t.Partitions = append(t.Partitions, tp.Partition)
		}
		req.Topics = append(req.Topics, t)
	}
	x, err := do[*kmsg.DescribeProducersResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a, errs := Answer{}, map[string]string{}
	for _, t := range x.Topics {
		for _, tp := range t.Partitions {
			k := tpKey(p.ltopic(t.Topic), tp.Partition)
			errs[k] = errName(tp.ErrorCode)
			if tp.ErrorCode != 0 {
				if a.Parts == nil {
					a.Parts = map[string]string{}
				}
				a.Parts[k] = errName(tp.ErrorCode)
			}
			for _, ap := range tp.ActiveProducers {
				a.Producers = append(a.Producers, fmt.Sprintf("%s %s e%d seq%d start%d", k, p.sym(ap.ProducerID), ap.ProducerEpoch, ap.LastSequence, ap.CurrentTxnStartOffset))
			}
		}
	}
	sort.Strings(a.Producers)
	return a, covers(s.Parts, errs)
}
