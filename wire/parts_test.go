package wire_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// byPartition is a Verifier with an answer for each partition, which counts
// questions.
type byPartition struct {
	codes []txnstate.Code
	asked *int
}

func (v byPartition) Verify(_ context.Context, _ string, _ txnstate.Producer, ps []txnstate.Participant, _ fence.Mode) ([]txnstate.Code, error) {
	*v.asked++
	out := make([]txnstate.Code, len(ps))
	for i, p := range ps {
		out[i] = v.codes[p.Index]
	}
	return out, nil
}

// What the coordinator says of a partition is the answer to that partition, whatever
// is in front of it in the request, and nothing of it is appended.
func TestAVerificationIsOfItsPartition(t *testing.T) {
	asked := 0
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) {
		w.Verifier = byPartition{[]txnstate.Code{0, 48, 49}, &asked}
	})
	h.addTopic("a", 3)
	p := producer{5, 0}
	req := produceRequest(11, "tx", "a", 9, nil)
	for _, n := range []int32{2, 0, 1} {
		addRecords(req, "a", n, batch(p, 0, 1, true))
	}
	wantCodes(t, "produce", h.produce(t, req), 3, 49, 0, 48)
	for n, want := range []int{1, 0, 0} {
		l, err := h.log("a", int32(n))
		require.NoError(t, err)
		require.Len(t, l.batches, want, n)
	}
	require.Equal(t, 1, asked)
}

// One request is of one producer, at one epoch.
func TestTheBatchesOfARequestAreOfOneEpoch(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 2)
	p := h.initTxn(t, "tx")
	req := produceRequest(12, "tx", "a", 0, batch(p, 0, 1, true))
	addRecords(req, "a", 1, batch(producer{p.id, p.epoch + 1}, 0, 1, true))
	wantCodes(t, "two epochs", h.produce(t, req), 49, 49)
}

// With acks 0 a refusal closes the connection, also one that is alone.
func TestARefusalWithoutAnAnswerClosesTheConnection(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	req := produceRequest(9, "", "missing", 0, nil)
	req.Acks = 0
	resp, err := h.Handle(t.Context(), req, "User:a")
	require.Nil(t, resp)
	require.ErrorIs(t, err, wire.ErrClose)
}

// failingLog admits what it then can't make durable.
type failingLog struct{ *memLog }

func (l failingLog) Append(ctx context.Context, b []byte, admit func(*fence.Partition, int64) error) error {
	return errors.Join(l.memLog.Append(ctx, b, admit), errors.New("the disk"))
}

type failingLeader struct{ *host }

func (l failingLeader) Log(topic string, partition int32) (wire.Log, error) {
	log, err := l.log(topic, partition)
	return failingLog{log}, err
}

// A batch that was admitted and did not become durable has no offset.
func TestABatchThatFailedHasNoOffset(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Leader = failingLeader{w.Leader.(*host)} })
	h.addTopic("a", 1)
	r := do[*kmsg.ProduceResponse](t, h, produceRequest(11, "", "a", 0, batch(producer{-1, -1}, -1, 1, false)))
	part := r.Topics[0].Partitions[0]
	require.EqualValues(t, 56, part.ErrorCode)
	require.EqualValues(t, -1, part.BaseOffset)
}

// CONCURRENT_TRANSACTIONS goes to the client of an offset commit at once: it tries
// again itself (§7.1).
func TestOffsetsAreAskedAboutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		h := newHost(t, func(w *wire.Config, _ *txnstate.Config) {
			w.Verifier = busy{&asked}
		})
		h.addTopic("a", 1)
		begin := time.Now()
		wantCodes(t, "commit", h.txnCommit(t, txnOffsets(5, "tx", "g", producer{1, 1}, "a")), 51)
		require.Equal(t, 1, asked)
		require.Zero(t, time.Since(begin))
	})
}

type busy struct{ asked *int }

func (v busy) Verify(_ context.Context, _ string, _ txnstate.Producer, ps []txnstate.Participant, _ fence.Mode) ([]txnstate.Code, error) {
	*v.asked++
	return []txnstate.Code{txnstate.CodeConcurrentTransactions}, nil
}

// A producer without a transaction open has no start of one, whatever there was.
func TestAClosedTransactionHasNoStart(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	p := h.initTxn(t, "tx")
	wantCodes(t, "produce", h.produce(t, produceRequest(12, "tx", "a", 0, batch(p, 0, 1, true))), 0)
	start := func() int64 {
		req := kmsg.NewPtrDescribeProducersRequest()
		req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "a", Partitions: []int32{0}}}
		ps := do[*kmsg.DescribeProducersResponse](t, h, req).Topics[0].Partitions[0].ActiveProducers
		require.Len(t, ps, 1)
		return ps[0].CurrentTxnStartOffset
	}
	require.Zero(t, start())
	mark := addMarker(markRequest(1), producer{p.id, p.epoch}, false, 5, 0, markTo{"a", []int32{0}})
	wantCodes(t, "marker", markCodes(do[*kmsg.WriteTxnMarkersResponse](t, h, mark)), 0)
	require.EqualValues(t, -1, start())
}
