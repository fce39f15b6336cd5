package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleRaw decodes a body and handles it, and wants an answer that encodes.
func (h *host) handleRaw(t *testing.T, key, version int16, body []byte) {
	req, err := h.NewRequest(key, version)
	if err != nil || req.ReadFrom(body) != nil {
		return
	}
	resp, err := h.Handle(t.Context(), req, "User:fuzz")
	switch {
	case errors.Is(err, wire.ErrClose):
	case err != nil:
		t.Errorf("%T v%d: %v", req, version, err)
	case resp == nil:
		if p, ok := req.(*kmsg.ProduceRequest); !ok || p.Acks != 0 {
			t.Errorf("%T v%d: no answer", req, version)
		}
	default:
		if resp.Key() != key || resp.GetVersion() != version {
			t.Errorf("%T v%d is answered by %T v%d", req, version, resp, resp.GetVersion())
		}
		back := req.ResponseKind()
		if err := back.ReadFrom(resp.AppendTo(nil)); err != nil {
			t.Errorf("%T v%d: the answer does not read back: %v", req, version, err)
		}
	}
}

// F32: whatever can be decoded gets an answer of Kafka's or a closed connection,
// never a panic.
func FuzzHandle(f *testing.F) {
	p := producer{1000, 0}
	for _, req := range []kmsg.Request{
		addRequest(0, "tx", p, "a", 0), addRequest(3, "tx", p, "..", -1, 1<<30), addRequest(5, "", p, "__consumer_offsets", 99),
		endRequest(0, "tx", p, true), endRequest(5, "tx", p, false), addOffsetsRequest(3, "tx", p, ""),
		produceRequest(12, "tx", "a", 0, batch(p, 0, 2, true)), produceRequest(13, "", "", 0, nil), produceRequest(7, "tx", "a/b", 0, []byte{0, 0}),
		txnOffsets(5, "tx", "g", p, "a"), txnOffsets(6, "tx", "g", p, "a"), plainOffsets(8, "g", "a"), plainOffsets(10, "g", "a"),
		fetchRequest(1, "g", false, "a"), fetchRequest(7, "g", true), fetchRequest(10, "g", true, "a", "b"),
		addMarker(markRequest(2), p, true, 0, 2, markTo{"a", []int32{0, 0}}), kmsg.NewPtrDescribeProducersRequest(),
		&kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{"tx", "tx", ""}}, &kmsg.ListTransactionsRequest{Version: 2, TransactionalIDPattern: kmsg.StringPtr("(a+)+")},
		&kmsg.FindCoordinatorRequest{Version: 4, CoordinatorType: 1, CoordinatorKeys: []string{"", "x"}},
		&wire.InitProducerIDV6Request{ProducerID: -1, ProducerEpoch: -1},
	} {
		f.Add(req.Key(), req.GetVersion(), req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		h := newHost(t, func(w *wire.Config, c *txnstate.Config) {
			w.TwoPhaseCommit, w.AddRetryFor, c.EndWait = true, -1, txnstate.AnswerAtDecision
		})
		h.addTopic("a", 2)
		h.initTxn(t, "tx")
		h.handleRaw(t, key, version, body)
	})
}

// F32: absurd, but decodable.
func TestF32_AbsurdRequests(t *testing.T) {
	h := newHost(t, func(w *wire.Config, c *txnstate.Config) {
		w.TwoPhaseCommit, c.EndWait = true, txnstate.AnswerAtDecision
	})
	h.addTopic("a", 3)
	p := h.initTxn(t, "tx")
	long := strings.Repeat("x", 32<<10)
	many := make([]int32, 5000)
	for i := range many {
		many[i] = int32(i) - 2000
	}
	names := []string{"", ".", "..", "a/b", "../../etc/passwd", "a\x00b", "\xff\xfe", long, "a", "a"}
	for _, a := range (&host{Handler: h.Handler}).Versions() {
		for v := a.Min; v <= a.Max; v++ {
			for _, id := range []string{"", "tx", long, "ü\n../x"} {
				reqs := []kmsg.Request{
					endRequest(v, id, producer{-1, 32767}, true), addOffsetsRequest(v, id, producer{1 << 62, -5}, long),
					addRequest(v, id, p, "a", many...), addMarker(markRequest(v), producer{-7, -7}, true, -1, 127, markTo{"a", many}),
					txnOffsets(v, id, long, p, names...), plainOffsets(v, long, names...), fetchRequest(v, long, true, names...),
					&kmsg.DescribeTransactionsRequest{TransactionalIDs: names}, &kmsg.FindCoordinatorRequest{Version: v, CoordinatorType: 1, CoordinatorKey: id, CoordinatorKeys: names},
					&kmsg.ListTransactionsRequest{Version: v, StateFilters: names, TransactionalIDPattern: kmsg.StringPtr(strings.Repeat("(a*", 500))},
					&wire.InitProducerIDV6Request{TransactionalID: &id, ProducerID: -9, ProducerEpoch: -9, TransactionTimeoutMillis: -1, KeepPreparedTxn: true},
				}
				prod := produceRequest(v, id, "a", 0, batch(producer{-7, -7}, -7, 1, true))
				add := addRequest(v, id, p, "", 0)
				dp := kmsg.NewPtrDescribeProducersRequest()
				for _, n := range names {
					addRecords(prod, n, -1, batch(producer{1 << 62, 32767}, 1<<31-1, 1, true))
					if v < 4 {
						add.Topics = append(add.Topics, addRequest(v, id, p, n, 0, 0).Topics...)
					} else {
						add.Transactions = append(add.Transactions, addRequest(v, n, p, n, 0, 0).Transactions...)
					}
					rt := kmsg.NewDescribeProducersRequestTopic()
					rt.Topic, rt.Partitions = n, many
					dp.Topics = append(dp.Topics, rt)
				}
				for _, req := range append(reqs, prod, add, dp) {
					if req.Key() == a.Key && req.GetVersion() == v {
						h.handleRaw(t, a.Key, v, req.AppendTo(nil))
					}
				}
			}
		}
	}
}
