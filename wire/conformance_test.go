package wire_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/conformance"
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestRecordedAnswers replays what Apache Kafka answered, in every suite that
// does not need a clock, against a Handler with the least of a broker around it
// (I14).
func TestRecordedAnswers(t *testing.T) {
	h := newHost(t, func(w *wire.Config, c *txnstate.Config) {
		w.TwoPhaseCommit, c.TwoPhaseCommit = true, true
	})
	h.addTopic("shared", 3)
	o := conformance.Options{
		Prefix: "c.", Scenarios: 60, Parallel: 4, ParallelAll: true, Patience: 400 * time.Millisecond,
		// The other suites need more of a broker, and are replayed against the example's.
		Suites: []string{"coord?", "mixed", "batch2", "offsets?", "member?", "data?", "marker[12]", "wrap?", "acl?", "twopc"},
		CreateTopic: func(_ context.Context, name string, partitions int) error {
			h.addTopic(name, int32(partitions))
			return nil
		},
		Deny: h.deny,
		Dial: conformance.Handler{Handle: h.answer, HandleRaw: h.answerRaw}.Dial,
	}
	if testing.Short() {
		o.Scenarios = 10
	}
	conformance.Run(t, "in process", o)
}

func (h *host) deny(_ context.Context, r conformance.Rule) error {
	return h.acls.Add(wire.ACL{
		Type: map[string]wire.ResourceType{"topic": wire.TopicResource, "group": wire.GroupResource, "txn": wire.TransactionalIDResource}[r.Resource],
		Name: r.Name, Pattern: wire.LiteralPattern, Principal: wire.AnyUser, Host: wire.AnyName,
		Operation:  map[string]wire.Operation{"read": wire.OpRead, "write": wire.OpWrite, "describe": wire.OpDescribe, "all": wire.OpAll}[r.Operation],
		Permission: wire.DenyPermission,
	})
}

// answer is what a broker does beside its Handler: the few APIs of the host's own
// that the recordings use.
func (h *host) answer(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	switch r := req.(type) {
	case *kmsg.FetchRequest:
		return h.fetch(r)
	case *kmsg.JoinGroupRequest:
		resp := r.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.MemberID, resp.Generation = h.join(r.Group, r.MemberID)
		return resp, nil
	case *kmsg.SyncGroupRequest:
		return r.ResponseKind(), nil
	case *kmsg.LeaveGroupRequest:
		resp := r.ResponseKind().(*kmsg.LeaveGroupResponse)
		if !h.leave(r.Group, r.MemberID) {
			resp.ErrorCode = int16(txnstate.CodeUnknownMemberID)
		}
		return resp, nil
	}
	return h.Handle(ctx, req, "User:ANONYMOUS")
}

func (h *host) answerRaw(ctx context.Context, key, version int16, body []byte) ([]byte, error) {
	req, err := h.NewRequest(key, version)
	if err == nil {
		err = req.ReadFrom(body)
	}
	if err != nil {
		return nil, err
	}
	resp, err := h.Handle(ctx, req, "User:ANONYMOUS")
	if err != nil {
		return nil, err
	}
	return resp.AppendTo(nil), nil
}

func (h *host) fetch(r *kmsg.FetchRequest) (kmsg.Response, error) {
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		return nil, errors.New("only single partitions are fetched here")
	}
	resp := r.ResponseKind().(*kmsg.FetchResponse)
	rt := kmsg.NewFetchResponseTopic()
	rt.Topic = r.Topics[0].Topic
	ask := r.Topics[0].Partitions[0]
	rp := kmsg.NewFetchResponseTopicPartition()
	rp.Partition = ask.Partition
	rp.HighWatermark, rp.LastStableOffset = -1, -1
	l, err := h.log(rt.Topic, ask.Partition)
	switch {
	case err != nil:
		rp.ErrorCode = int16(txnstate.CodeOf(err))
	case ask.FetchOffset > l.end:
		rp.ErrorCode = 1 // OFFSET_OUT_OF_RANGE
	default:
		l.mu.Lock()
		defer l.mu.Unlock()
		lso := l.state.LastStable(l.end)
		rp.HighWatermark, rp.LastStableOffset = l.end, lso
		bound := l.end
		if r.IsolationLevel == 1 {
			bound = lso
			rp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
			if ask.FetchOffset < lso {
				for _, a := range l.state.Aborted(ask.FetchOffset, l.end) {
					ab := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
					ab.ProducerID, ab.FirstOffset = a.ProducerID, a.First
					rp.AbortedTransactions = append(rp.AbortedTransactions, ab)
				}
			}
		}
		for _, b := range l.batches {
			head, base, _, _ := fence.ParseHeader(b)
			if base+int64(head.Records) > ask.FetchOffset && base < bound {
				rp.RecordBatches = append(rp.RecordBatches, b...)
			}
		}
	}
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp, nil
}
