package minibroker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// open begins a transaction of a client and writes one record.
func open(t testing.TB, b *Broker, id, value string) *kgo.Client {
	t.Helper()
	c := connect(t, b, kgo.DefaultProduceTopic("t"), kgo.TransactionalID(id))
	require.NoError(t, c.BeginTransaction())
	require.NoError(t, c.ProduceSync(ctxFor(t), kgo.StringRecord(value)).FirstErr())
	return c
}

func state(t testing.TB, b *Broker, id string) txnstate.State {
	t.Helper()
	rec, err := b.coordinator.Describe(ctxFor(t), id)
	require.NoError(t, err)
	return rec.State
}

// A transaction can be looked at between its decision and its markers.
func TestHoldMarkersStopsAfterTheDecision(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"t": 1}, EndWait: txnstate.AnswerAtDecision}))
	c := open(t, b, "tx", "x")
	release := b.HoldMarkers()
	second := b.HoldMarkers()
	require.NoError(t, c.EndTransaction(ctxFor(t), kgo.TryCommit))
	require.Equal(t, txnstate.PrepareCommit, state(t, b, "tx"))
	at, err := b.topics.get("t").logs[0].ends()
	require.NoError(t, err)
	require.Equal(t, ends{high: 1, stable: 0}, at)
	release()
	release()
	require.Equal(t, txnstate.PrepareCommit, state(t, b, "tx"), "held by the second")
	second()
	require.Eventually(t, func() bool { return state(t, b, "tx") == txnstate.CompleteCommit }, limit, time.Millisecond)
	require.Len(t, poll(t, connect(t, b, kgo.ConsumeTopics("t"), kgo.FetchIsolationLevel(kgo.ReadCommitted())), 1), 1)
}

// Another holder, a timeout, time itself, and expiry, when the test says so.
func TestFaultsThatATestAsksFor(t *testing.T) {
	ctx := ctxFor(t)
	clock := newClock()
	b := start(t, listening(Config{Topics: map[string]int32{"t": 1}, Now: clock.Now}))
	lost := func(err error) {
		t.Helper()
		require.True(t, errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.InvalidTxnState), "%v", err)
	}

	c := open(t, b, "fenced", "x")
	require.NoError(t, b.Fence(ctx, "fenced"))
	lost(c.EndTransaction(ctx, kgo.TryCommit))
	require.Equal(t, txnstate.Empty, state(t, b, "fenced"))

	c = open(t, b, "timed out", "x")
	require.NoError(t, b.TimeOut(ctx, "timed out"))
	lost(c.EndTransaction(ctx, kgo.TryCommit))
	require.ErrorIs(t, b.TimeOut(ctx, "timed out"), txnstate.ErrInvalidTxnState)

	c = open(t, b, "slow", "x")
	require.NoError(t, b.Advance(ctx, 39*time.Second))
	require.Equal(t, txnstate.Ongoing, state(t, b, "slow"))
	require.Error(t, b.Expire(ctx, "slow"))
	require.NoError(t, b.Advance(ctx, 2*time.Second))
	lost(c.EndTransaction(ctx, kgo.TryCommit))
	require.Eventually(t, func() bool { return state(t, b, "slow") == txnstate.CompleteAbort }, limit, time.Millisecond)

	require.NoError(t, b.Expire(ctx, "slow"))
	_, err := b.coordinator.Describe(ctx, "slow")
	require.ErrorIs(t, err, txnstate.ErrTxnIDNotFound)
	require.ErrorIs(t, b.Expire(ctx, "slow"), txnstate.ErrTxnIDNotFound)
	require.ErrorIs(t, b.Fence(ctx, "never"), txnstate.ErrTxnIDNotFound)

	require.NoError(t, b.Advance(ctx, 8*24*time.Hour))
	_, err = b.coordinator.Describe(ctx, "fenced")
	require.ErrorIs(t, err, txnstate.ErrTxnIDNotFound)
}

// A partition refuses a fenced producer from the decision on (I9); with
// KafkaFencing from the marker on.
func TestWhenAFencedProducerIsRefused(t *testing.T) {
	for _, kafka := range []bool{false, true} {
		b := start(t, Config{Topics: map[string]int32{"t": 1}, KafkaFencing: kafka})
		init := kmsg.NewPtrInitProducerIDRequest()
		init.TransactionalID, init.TransactionTimeoutMillis = kmsg.StringPtr("tx"), 1000
		id := ask[*kmsg.InitProducerIDResponse](t, b, init, 4)
		write := func(seq int32) int16 {
			r := kmsg.NewPtrProduceRequest()
			r.Acks, r.TransactionID = -1, kmsg.StringPtr("tx")
			batch := recordBatch(txnstate.Producer{ID: id.ProducerID, Epoch: id.ProducerEpoch}, seq, 1, 1, true)
			r.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: batch}}}}
			return ask[*kmsg.ProduceResponse](t, b, r, 12).Topics[0].Partitions[0].ErrorCode
		}
		refused(t, nil, write(0))
		release := b.HoldMarkers()
		require.NoError(t, b.TimeOut(ctxFor(t), "tx"))
		if kafka {
			refused(t, nil, write(1))
		} else {
			refused(t, kerr.InvalidProducerEpoch, write(1))
		}
		release()
		require.Eventually(t, func() bool { return state(t, b, "tx") == txnstate.CompleteAbort }, limit, time.Millisecond)
		refused(t, kerr.InvalidProducerEpoch, write(2))
	}
}

// A topic that is deleted in the middle of a transaction holds it up no more than
// the others: there is nobody left to tell (I12).
func TestATopicThatIsDeletedInTheMiddle(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"t": 1, "gone": 1}}))
	c := open(t, b, "tx", "stays")
	require.NoError(t, c.ProduceSync(ctxFor(t), &kgo.Record{Topic: "gone"}).FirstErr())
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"gone"}
	refused(t, nil, ask[*kmsg.DeleteTopicsResponse](t, b, del, 5).Topics[0].ErrorCode)
	refused(t, nil, create(t, b, createTopic("gone", 1))[0].ErrorCode)
	require.NoError(t, c.EndTransaction(ctxFor(t), kgo.TryCommit))
	require.Eventually(t, func() bool { return state(t, b, "tx") == txnstate.CompleteCommit }, limit, time.Millisecond)
	require.Len(t, poll(t, connect(t, b, kgo.ConsumeTopics("t"), kgo.FetchIsolationLevel(kgo.ReadCommitted())), 1), 1)
}

// A program can bring its own store of transactional ids, which outlives the
// broker.
func TestAStoreOfTheProgramsOwn(t *testing.T) {
	store := memstore.New()
	cfg := listening(Config{Topics: map[string]int32{"t": 1}, OpenStore: func() (txnstate.Store, error) { return store, nil }})
	b, stop, err := Start(context.Background(), cfg)
	require.NoError(t, err)
	c := open(t, b, "tx", "x")
	require.NoError(t, c.EndTransaction(ctxFor(t), kgo.TryCommit))
	c.Close()
	require.NoError(t, stop())
	require.NoError(t, stop())
	b = start(t, cfg)
	require.Equal(t, txnstate.CompleteCommit, state(t, b, "tx"))
	broken := errors.New("no store")
	cfg.OpenStore = func() (txnstate.Store, error) { return nil, broken }
	_, _, err = Start(context.Background(), cfg)
	require.ErrorIs(t, err, broken)
}

func TestABrokerThatDoesNotRunSaysSo(t *testing.T) {
	b, err := New(Config{})
	require.NoError(t, err)
	ctx := context.Background()
	require.Nil(t, b.Addr())
	_, err = b.Handle(ctx, nil, anonymous)
	require.ErrorIs(t, err, errNotRunning)
	require.ErrorIs(t, b.Advance(ctx, 0), errNotRunning)
	require.ErrorIs(t, b.Fence(ctx, "x"), errNotRunning)
	require.ErrorIs(t, b.TimeOut(ctx, "x"), errNotRunning)
	require.ErrorIs(t, b.Expire(ctx, "x"), errNotRunning)
	require.ErrorIs(t, b.Serve(&pipes{closed: make(chan struct{})}), errNotRunning)
	b.HoldMarkers()()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, b.Run(ended))
	require.ErrorContains(t, b.Run(ended), "called before")
	_, _, err = Start(ended, Config{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestAConfigThatCantBe(t *testing.T) {
	_, err := New(Config{
		NodeID: -1, Store: SlotFile, Fsync: "sometimes", TransactionVersion: 3, AbortInterval: -1, Advertise: "nowhere",
		Topics: map[string]int32{"a/b": 0}, Limits: Limits{Groups: -1}, AutoCreatePartitions: -1,
	})
	for _, want := range []string{"NodeID", "needs a Dir", `Fsync is "sometimes"`, "TransactionVersion is 3", "negative duration", "Advertise", `"a/b" with 0`, "topic name", "negative limit", "AutoCreatePartitions"} {
		require.ErrorContains(t, err, want)
	}
	_, err = New(Config{Dir: "x", Store: Memory})
	require.ErrorContains(t, err, "nobody knows")
	_, err = New(Config{Store: "paper"})
	require.ErrorContains(t, err, `Store is "paper"`)
	_, _, err = Start(context.Background(), Config{Listen: "256.0.0.1:x"})
	require.Error(t, err)
}
