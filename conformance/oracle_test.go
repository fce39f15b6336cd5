package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// oracle is a broker that knows which step is being played and turns the
// recorded answer back into the response that it came from.
type oracle struct {
	t      testing.TB
	p      *player
	step   *Step
	change func(*Answer) // of what it is about to answer
	asked  []kmsg.Request
}

func (o *oracle) dial(context.Context, string) (Conn, error) {
	return handlerConn{Handler{Handle: o.handle, HandleRaw: o.raw}}, nil
}

func codeOf(name string) int16 {
	if name == "" {
		return 0
	}
	for c := int16(-1); c < 200; c++ {
		if c != 0 && errName(c) == name {
			return c
		}
	}
	return math.MaxInt16
}

// id is the number of a producer symbol, the way a broker hands them out.
func (o *oracle) id(sym string) int64 {
	switch sym {
	case "", "none":
		return -1
	case "unknown":
		return o.p.unknown
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(sym, "P"))
	return 7000 + int64(n)
}

func epochOf(p *int16) int16 {
	if p == nil {
		return -1
	}
	return *p
}

func (o *oracle) err(want Answer, topic string, p int32) int16 {
	if want.Err == errMixed {
		return codeOf(want.Parts[tpKey(o.p.ltopic(topic), p)])
	}
	return codeOf(want.Err)
}

func splitKey(k string) (string, int32) {
	i := strings.LastIndexByte(k, '/')
	n, _ := strconv.Atoi(k[i+1:])
	return k[:i], int32(n)
}

func (o *oracle) want() Answer {
	w := o.step.Want
	if o.change != nil {
		o.change(&w)
	}
	return w
}

func (o *oracle) handle(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
	o.asked = append(o.asked, req)
	w := o.want()
	resp := req.ResponseKind()
	switch x := resp.(type) {
	case *kmsg.InitProducerIDResponse:
		x.ErrorCode, x.ProducerID, x.ProducerEpoch = codeOf(w.Err), o.id(w.Producer), epochOf(w.Epoch)
		if o.step.Op == OpAge { // the epochs on the way there
			x.ProducerID, x.ProducerEpoch = req.(*kmsg.InitProducerIDRequest).ProducerID, req.(*kmsg.InitProducerIDRequest).ProducerEpoch+1
		}
	case *kmsg.AddPartitionsToTxnResponse:
		q := req.(*kmsg.AddPartitionsToTxnRequest)
		for _, t := range q.Topics {
			rt := kmsg.NewAddPartitionsToTxnResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.AddPartitionsToTxnResponseTopicPartition{Partition: p, ErrorCode: o.err(w, t.Topic, p)})
			}
			x.Topics = append(x.Topics, rt)
		}
		for _, tx := range q.Transactions {
			one := w
			if o.step.Op == OpAddBatch {
				one = w.Txns[o.p.local(tx.TransactionalID)]
			}
			rx := kmsg.NewAddPartitionsToTxnResponseTransaction()
			rx.TransactionalID = tx.TransactionalID
			for _, t := range tx.Topics {
				rt := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
				rt.Topic = t.Topic
				for _, p := range t.Partitions {
					rt.Partitions = append(rt.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p, ErrorCode: o.err(one, t.Topic, p)})
				}
				rx.Topics = append(rx.Topics, rt)
			}
			x.Transactions = append(x.Transactions, rx)
		}
	case *kmsg.AddOffsetsToTxnResponse:
		x.ErrorCode = codeOf(w.Err)
	case *kmsg.EndTxnResponse:
		x.ErrorCode, x.ProducerID, x.ProducerEpoch = codeOf(w.Err), o.id(w.Producer), epochOf(w.Epoch)
	case *kmsg.TxnOffsetCommitResponse:
		for _, t := range req.(*kmsg.TxnOffsetCommitRequest).Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			t.Topic = o.p.nameOf(t.Topic, t.TopicID)
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.TxnOffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: o.err(w, t.Topic, p.Partition)})
			}
			x.Topics = append(x.Topics, rt)
		}
	case *kmsg.OffsetCommitResponse:
		for _, t := range req.(*kmsg.OffsetCommitRequest).Topics {
			rt := kmsg.NewOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			t.Topic = o.p.nameOf(t.Topic, t.TopicID)
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.OffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: o.err(w, t.Topic, p.Partition)})
			}
			x.Topics = append(x.Topics, rt)
		}
	case *kmsg.OffsetFetchResponse:
		if x.Version >= 8 {
			o.fetchGroup(req.(*kmsg.OffsetFetchRequest).Groups[0].Group, w, x)
			break
		}
		x.ErrorCode = codeOf(w.Err)
		for k, off := range w.Offsets {
			t, p := splitKey(k)
			rt := kmsg.NewOffsetFetchResponseTopic()
			rt.Topic = o.p.topic(t)
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.Offset, rp.ErrorCode = p, off, codeOf(w.Parts[k])
			rt.Partitions = append(rt.Partitions, rp)
			x.Topics = append(x.Topics, rt)
		}
	case *kmsg.JoinGroupResponse:
		x.ErrorCode, x.Generation, x.MemberID = codeOf(w.Err), w.Generation, "member-"+w.Member
		if req.(*kmsg.JoinGroupRequest).MemberID == "" {
			x.ErrorCode = kerr.MemberIDRequired.Code
		}
	case *kmsg.SyncGroupResponse:
	case *kmsg.LeaveGroupResponse:
		x.ErrorCode = codeOf(w.Err)
	case *kmsg.ProduceResponse:
		if len(o.step.Txns) > 0 || x.Version >= 13 {
			o.produceMany(req.(*kmsg.ProduceRequest), w, x)
			break
		}
		t := req.(*kmsg.ProduceRequest).Topics[0]
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = t.Topic
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.Partition, rp.ErrorCode, rp.BaseOffset = t.Partitions[0].Partition, codeOf(w.Err), -1
		if w.BaseOffset != nil {
			rp.BaseOffset = *w.BaseOffset
		}
		rt.Partitions = append(rt.Partitions, rp)
		x.Topics = append(x.Topics, rt)
	case *kmsg.FetchResponse:
		o.fetch(req.(*kmsg.FetchRequest), w, x)
	case *kmsg.WriteTxnMarkersResponse:
		if len(o.step.Txns) > 0 {
			o.markMany(req.(*kmsg.WriteTxnMarkersRequest), w, x)
			break
		}
		for _, m := range req.(*kmsg.WriteTxnMarkersRequest).Markers {
			rm := kmsg.NewWriteTxnMarkersResponseMarker()
			rm.ProducerID = m.ProducerID
			for _, t := range m.Topics {
				rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
				rt.Topic = t.Topic
				for _, p := range t.Partitions {
					rt.Partitions = append(rt.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: o.err(w, t.Topic, p)})
				}
				rm.Topics = append(rm.Topics, rt)
			}
			x.Markers = append(x.Markers, rm)
		}
	case *kmsg.DescribeTransactionsResponse:
		st := kmsg.NewDescribeTransactionsResponseTransactionState()
		st.TransactionalID, st.ErrorCode, st.State = req.(*kmsg.DescribeTransactionsRequest).TransactionalIDs[0], codeOf(w.Err), w.State
		st.ProducerID, st.ProducerEpoch, st.TimeoutMillis, st.StartTimestamp = o.id(w.Producer), epochOf(w.Epoch), w.TimeoutMs, -1
		if w.Started {
			st.StartTimestamp = 1700000000000
		}
		for _, k := range w.InTxn {
			rt := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
			if strings.HasPrefix(k, "__") {
				rt.Topic, rt.Partitions = k, []int32{7, 9}
			} else {
				t, p := splitKey(k)
				rt.Topic, rt.Partitions = o.p.topic(t), []int32{p}
			}
			st.Topics = append(st.Topics, rt)
		}
		x.TransactionStates = append(x.TransactionStates, st)
	case *kmsg.ListTransactionsResponse:
		x.ErrorCode = codeOf(w.Err)
		for _, id := range append(slices.Clone(w.IDs), "") {
			rs := kmsg.NewListTransactionsResponseTransactionState()
			rs.TransactionalID, rs.TransactionState = "somebody else's", "PrepareCommit"
			if id, state, ok := strings.Cut(id, "="); ok {
				rs.TransactionalID, rs.TransactionState = o.p.name(id), state
			}
			x.TransactionStates = append(x.TransactionStates, rs)
		}
	case *kmsg.MetadataResponse:
		q := req.(*kmsg.MetadataRequest).Topics[0]
		if q.Topic == nil { // asked by id, which holds the beginning of the local name
			q.Topic = ptr(o.p.topic(strings.TrimRight(string(q.TopicID[:]), "\x00")))
		}
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic = q.Topic
		copy(rt.TopicID[:], o.p.ltopic(*q.Topic))
		if o.step.Op == OpDeleteTopic {
			rt.ErrorCode = kerr.UnknownTopicOrPartition.Code
		}
		x.Topics = append(x.Topics, rt)
	case *kmsg.CreateTopicsResponse:
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic = req.(*kmsg.CreateTopicsRequest).Topics[0].Topic
		x.Topics = append(x.Topics, rt)
	case *kmsg.DeleteTopicsResponse:
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.ErrorCode = codeOf(w.Err)
		x.Topics = append(x.Topics, rt)
	case *kmsg.DeleteGroupsResponse:
		rt := kmsg.NewDeleteGroupsResponseGroup()
		rt.ErrorCode = codeOf(w.Err)
		x.Groups = append(x.Groups, rt)
	case *kmsg.ListOffsetsResponse:
		rt, rp := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		if o.step.Op == OpListOffsets {
			rp.ErrorCode, rp.Offset = codeOf(w.Err), *w.BaseOffset
		}
		rt.Partitions = append(rt.Partitions, rp)
		x.Topics = append(x.Topics, rt)
	case *kmsg.DescribeProducersResponse:
		if o.step.Op == OpDeleteTopic {
			w = Answer{Err: "UNKNOWN_TOPIC_OR_PARTITION"}
		}
		o.producers(req.(*kmsg.DescribeProducersRequest), w, x)
	case *kmsg.CreateACLsResponse:
		x.Results = append(x.Results, kmsg.CreateACLsResponseResult{ErrorCode: codeOf(w.Err)})
	case *kmsg.DescribeACLsResponse:
		q, made := req.(*kmsg.DescribeACLsRequest), o.asked[len(o.asked)-2].(*kmsg.CreateACLsRequest).Creations[0]
		if *q.ResourceName != made.ResourceName || q.Operation != made.Operation || q.PermissionType != made.PermissionType || q.ResourceType != made.ResourceType {
			o.t.Errorf("asks for another rule than was made: %+v, %+v", q, made)
		}
		x.Resources = []kmsg.DescribeACLsResponseResource{{}}
	default:
		return nil, fmt.Errorf("unexpected request %T", req)
	}
	return resp, nil
}

func (o *oracle) fetchGroup(group string, w Answer, x *kmsg.OffsetFetchResponse) {
	g := kmsg.NewOffsetFetchResponseGroup()
	g.Group, g.ErrorCode = group, codeOf(w.Err)
	for k, off := range w.Offsets {
		t, p := splitKey(k)
		rt := kmsg.NewOffsetFetchResponseGroupTopic()
		rt.Topic = o.p.topic(t)
		if x.Version >= 10 {
			rt.Topic = ""
			if id, ok := o.p.ids[t]; ok {
				rt.TopicID = id
			} else {
				copy(rt.TopicID[:], t)
			}
		}
		rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		rp.Partition, rp.Offset, rp.ErrorCode = p, off, codeOf(w.Parts[k])
		rt.Partitions = append(rt.Partitions, rp)
		g.Topics = append(g.Topics, rt)
	}
	x.Groups = append(x.Groups, g)
}

func (o *oracle) produceMany(req *kmsg.ProduceRequest, w Answer, x *kmsg.ProduceResponse) {
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		name := o.p.nameOf(t.Topic, t.TopicID)
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.BaseOffset = p.Partition, o.err(w, name, p.Partition), -1
			if off, ok := w.Offsets[tpKey(name, p.Partition)]; ok {
				rp.BaseOffset = off
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		x.Topics = append(x.Topics, rt)
	}
}

// markMany answers by producer, as Kafka does.
func (o *oracle) markMany(req *kmsg.WriteTxnMarkersRequest, w Answer, x *kmsg.WriteTxnMarkersResponse) {
	done := map[int64]bool{}
	for _, m := range req.Markers {
		one, ok := w.Txns[o.p.sym(m.ProducerID)]
		if !ok || done[m.ProducerID] {
			continue
		}
		done[m.ProducerID] = true
		rm := kmsg.NewWriteTxnMarkersResponseMarker()
		rm.ProducerID = m.ProducerID
		for _, n := range req.Markers {
			if n.ProducerID != m.ProducerID {
				continue
			}
			for _, t := range n.Topics {
				rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
				rt.Topic = t.Topic
				for _, p := range t.Partitions {
					if _, ok := one.Parts[tpKey(o.p.ltopic(t.Topic), p)]; ok || one.Err != errMixed {
						rt.Partitions = append(rt.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: o.err(one, t.Topic, p)})
					}
				}
				rm.Topics = append(rm.Topics, rt)
			}
		}
		x.Markers = append(x.Markers, rm)
	}
}

// fetch builds batches from the lines of an answer.
func (o *oracle) fetch(req *kmsg.FetchRequest, w Answer, x *kmsg.FetchResponse) {
	rt := kmsg.NewFetchResponseTopic()
	rt.Topic = req.Topics[0].Topic
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.Partition, rp.ErrorCode = req.Topics[0].Partitions[0].Partition, codeOf(w.Err)
	if w.HighWatermark != nil {
		rp.HighWatermark, rp.LastStableOffset = *w.HighWatermark, *w.LastStable
	}
	for _, a := range w.Aborted {
		sym, first, _ := strings.Cut(a, "@")
		n, _ := strconv.ParseInt(first, 10, 64)
		rp.AbortedTransactions = append(rp.AbortedTransactions, kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: o.id(sym), FirstOffset: n})
	}
	for _, line := range w.Batches {
		f := strings.Fields(line) // 3+1 COMMIT(keyv0,valv0,len6) P1 e0 s-1 txn
		b := kmsg.RecordBatch{Magic: 2, ProducerID: o.id(f[2])}
		if _, err := fmt.Sscanf(f[0]+" "+f[3]+" "+f[4], "%d+%d e%d s%d", &b.FirstOffset, &b.NumRecords, &b.ProducerEpoch, &b.FirstSequence); err != nil {
			o.t.Errorf("batch %q: %v", line, err)
		}
		if len(f) == 6 {
			b.Attributes |= attrTransactional
		}
		rec := kmsg.Record{Value: []byte("value")}
		if typ, _, ok := strings.Cut(f[1], "("); ok {
			b.Attributes |= attrControl
			rec.Key, rec.Value = make([]byte, 4), make([]byte, 6)
			if typ == "COMMIT" {
				rec.Key[3] = 1
			}
		}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1)
		b.Records = rec.AppendTo(nil)
		raw := b.AppendTo(nil)
		binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-batchOverhead))
		rp.RecordBatches = append(rp.RecordBatches, raw...)
	}
	rt.Partitions = append(rt.Partitions, rp)
	x.Topics = append(x.Topics, rt)
}

func (o *oracle) producers(req *kmsg.DescribeProducersRequest, w Answer, x *kmsg.DescribeProducersResponse) {
	for _, t := range req.Topics {
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p, o.err(w, t.Topic, p)
			if e, ok := w.Parts[tpKey(o.p.ltopic(t.Topic), p)]; ok {
				rp.ErrorCode = codeOf(e)
			}
			lines := w.Producers
			if len(t.Partitions) > 1 { // of a partition that is named twice each line is there twice
				lines = slices.Compact(slices.Clone(lines))
			}
			for _, line := range lines {
				f := strings.Fields(line) // d/0 P1 e0 seq2 start0
				if f[0] != tpKey(o.p.ltopic(t.Topic), p) {
					continue
				}
				ap := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
				ap.ProducerID = o.id(f[1])
				if _, err := fmt.Sscanf(f[2]+" "+f[3]+" "+f[4], "e%d seq%d start%d", &ap.ProducerEpoch, &ap.LastSequence, &ap.CurrentTxnStartOffset); err != nil {
					o.t.Errorf("producer %q: %v", line, err)
				}
				rp.ActiveProducers = append(rp.ActiveProducers, ap)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		x.Topics = append(x.Topics, rt)
	}
}

func (o *oracle) raw(_ context.Context, key, version int16, body []byte) ([]byte, error) {
	if key != 22 || version != 6 || len(body) < 1+4+8+2+2+1 {
		return nil, fmt.Errorf("unexpected %s of %d bytes", describe(key, version), len(body))
	}
	w := o.want()
	b := make([]byte, 4)
	b = binary.BigEndian.AppendUint16(b, uint16(codeOf(w.Err)))
	b = binary.BigEndian.AppendUint64(b, uint64(o.id(w.Producer)))
	b = binary.BigEndian.AppendUint16(b, uint16(epochOf(w.Epoch)))
	b = binary.BigEndian.AppendUint64(b, uint64(o.id(w.OngoingProducer)))
	b = binary.BigEndian.AppendUint16(b, uint16(epochOf(w.OngoingEpoch)))
	return append(b, 0), nil
}

// testEnv is a run without a broker: nothing settles, nothing sleeps.
func testEnv(t testing.TB) *env {
	t.Helper()
	o := Options{
		Prefix: "t.", Patience: time.Millisecond,
		Sleep:  func(context.Context, time.Duration) error { return nil },
		Settle: func(context.Context, []string) error { return nil },
	}.withDefaults()
	return &env{addr: "nowhere", o: o, limits: &limits{full: time.Minute, late: map[int16]int{}}}
}

// Every recorded answer, turned back into a response, is read as it was recorded:
// no part of any of them is lost on the way, in any version.
func TestRecordedAnswersAreReadAsRecorded(t *testing.T) {
	e := testEnv(t)
	for _, suite := range Suites() {
		scs, err := Recording(suite.Name)
		if err != nil {
			t.Fatal(err)
		}
		if testing.Short() {
			scs = scs[:min(len(scs), 20)]
		}
		for _, sc := range scs {
			o := &oracle{t: t}
			r := &replay{e: e, sc: sc, p: e.player("t."+sc.Name+".", "t."+sc.Name+"."), begun: true}
			o.p, r.p.c.dial = r.p, o.dial
			for i, s := range sc.Steps {
				if s.Op == OpAge {
					near := *s
					near.Epoch = s.UntilEpoch - 3
					s = &near
				}
				o.step, r.next = s, i
				a, why, err := r.p.play(t.Context(), s)
				if err != nil || why != "" || !a.equal(s.Want) {
					t.Fatalf("%v\n%s (%v)", r.explain(a, why), why, err)
				}
			}
			r.close()
		}
	}
}
