package harness

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// startBroker is all that a test needs: a broker that ends with the test.
func startBroker(t *testing.T, cfg minibroker.Config) (*minibroker.Broker, kgo.Opt) {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	b, stop, err := minibroker.Start(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return b, kgo.SeedBrokers(b.Addr().String())
}

func client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// A producer that hangs for ten minutes in the middle of a transaction is fenced
// and its record never becomes visible. The test takes milliseconds.
func TestAHangingProducerIsTimedOut(t *testing.T) {
	for _, v := range []txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2} {
		t.Run(fmt.Sprintf("transaction.version %d", v), func(t *testing.T) { hang(t, v) })
	}
}

func hang(t *testing.T, v txnstate.TransactionVersion) {
	ctx := context.Background()
	aborted := make(chan txnstate.Record, 1)
	b, broker := startBroker(t, minibroker.Config{
		Topics:             map[string]int32{"orders": 1},
		TransactionVersion: v,
		Observer:           txnstate.Observer{TimedOut: func(r txnstate.Record) { aborted <- r }},
	})
	slow := client(t, broker, kgo.TransactionalID("billing"), kgo.TransactionTimeout(10*time.Minute), kgo.DefaultProduceTopic("orders"))
	require.NoError(t, slow.BeginTransaction())
	require.NoError(t, slow.ProduceSync(ctx, kgo.StringRecord("of a producer that hangs")).FirstErr())

	require.NoError(t, b.Advance(ctx, 10*time.Minute+time.Second))
	require.Equal(t, txnstate.PrepareAbort, (<-aborted).State)

	// Too late: what it wrote is aborted, and it can't commit it any more.
	err := slow.EndTransaction(ctx, kgo.TryCommit)
	require.True(t, errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.ProducerFenced), "%v", err)

	fresh := client(t, broker, kgo.TransactionalID("billing"), kgo.DefaultProduceTopic("orders"))
	require.NoError(t, fresh.BeginTransaction())
	require.NoError(t, fresh.ProduceSync(ctx, kgo.StringRecord("of its successor")).FirstErr())
	_, before, err := fresh.ProducerID(ctx)
	require.NoError(t, err)
	require.NoError(t, fresh.EndTransaction(ctx, kgo.TryCommit))
	_, after, err := fresh.ProducerID(ctx)
	require.NoError(t, err)
	require.Equal(t, v == txnstate.TV2, after > before, "only protocol 2 bumps the epoch at the end of a transaction")

	reader := client(t, broker, kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.Equal(t, "of its successor", string(reader.PollFetches(ctx).Records()[0].Value))
}

// What a consumer sees while a transaction is decided and its markers have not
// arrived: nothing yet.
func TestARecordIsVisibleOnlyWithItsMarker(t *testing.T) {
	ctx := context.Background()
	b, broker := startBroker(t, minibroker.Config{Topics: map[string]int32{"orders": 1}, EndWait: txnstate.AnswerAtDecision})
	producer := client(t, broker, kgo.TransactionalID("billing"), kgo.DefaultProduceTopic("orders"))
	reader := client(t, broker, kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))

	release := b.HoldMarkers()
	require.NoError(t, producer.BeginTransaction())
	require.NoError(t, producer.ProduceSync(ctx, kgo.StringRecord("decided")).FirstErr())
	require.NoError(t, producer.EndTransaction(ctx, kgo.TryCommit), "the commit is decided and answered")

	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	require.Empty(t, reader.PollFetches(soon).Records())
	release()
	require.Equal(t, "decided", string(reader.PollFetches(ctx).Records()[0].Value))
}
