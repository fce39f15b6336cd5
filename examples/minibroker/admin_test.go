package minibroker

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// What an administrator's client is told of transactions in each of their
// states: who coordinates them, whose they are, where they are open (KIP-664).
func TestAnAdministratorSeesTransactions(t *testing.T) {
	ctx := ctxFor(t)
	clock := newClock()
	b := start(t, listening(Config{NodeID: 7, Topics: map[string]int32{"t": 1}, EndWait: txnstate.AnswerAtDecision, Now: clock.Now}))
	adm := kadm.NewClient(connect(t, b))
	began := clock.Now().UnixMilli()

	ended := map[string]*kgo.Client{"decided": open(t, b, "decided", "x"), "done": open(t, b, "done", "x")}
	require.NoError(t, ended["done"].EndTransaction(ctx, kgo.TryAbort))
	require.Eventually(t, func() bool { return state(t, b, "done") == txnstate.CompleteAbort }, limit, time.Millisecond)
	release := b.HoldMarkers()
	require.NoError(t, ended["decided"].EndTransaction(ctx, kgo.TryCommit))
	open(t, b, "open", "x")
	idle, _, err := connect(t, b, kgo.TransactionalID("idle")).ProducerID(ctx)
	require.NoError(t, err)

	all, err := adm.DescribeTransactions(ctx) // lists them first
	require.NoError(t, err)
	got := map[string]kadm.DescribedTransaction{}
	for id, d := range all {
		require.NoError(t, d.Err)
		require.EqualValues(t, 7, d.Coordinator)
		require.EqualValues(t, 40000, d.TimeoutMillis)
		require.Equal(t, id, d.TxnID)
		got[id] = kadm.DescribedTransaction{State: d.State, ProducerEpoch: d.ProducerEpoch, StartTimestamp: d.StartTimestamp, Topics: d.Topics}
	}
	at := kadm.TopicsSet{"t": {0: {}}}
	require.Equal(t, map[string]kadm.DescribedTransaction{
		"decided": {State: "PrepareCommit", ProducerEpoch: 1, StartTimestamp: began, Topics: at}, // the marker is still owed
		"done":    {State: "CompleteAbort", ProducerEpoch: 1, StartTimestamp: began},
		"open":    {State: "Ongoing", StartTimestamp: began, Topics: at},
		"idle":    {State: "Empty", StartTimestamp: -1},
	}, got)

	// By state, by producer, by a pattern for the whole id.
	ids := func(producers []int64, states []string, pattern string) []string {
		l, err := adm.ListTransactionsByTxPattern(ctx, producers, states, pattern)
		require.NoError(t, err)
		return l.TransactionalIDs()
	}
	require.Equal(t, []string{"decided", "done", "idle", "open"}, ids(nil, nil, ""))
	require.Equal(t, []string{"idle", "open"}, ids(nil, []string{"Empty", "Ongoing", "Dead"}, ""))
	require.Equal(t, []string{"idle"}, ids([]int64{idle, 12345}, nil, ""))
	require.Equal(t, []string{"decided", "done"}, ids(nil, nil, "d.*"))
	require.Empty(t, ids([]int64{idle}, []string{"Ongoing"}, ""))

	release()
	require.Eventually(t, func() bool {
		d, err := adm.DescribeTransactions(ctx, "decided")
		require.NoError(t, err)
		return d["decided"].State == "CompleteCommit" && len(d["decided"].Topics) == 0
	}, limit, time.Millisecond)
	d, err := adm.DescribeTransactions(ctx, "nobody")
	require.NoError(t, err)
	require.ErrorIs(t, d["nobody"].Err, kerr.TransactionalIDNotFound)
}

// hanging looks for hanging transactions as Kafka's kafka-transactions.sh does:
// of the producers that have a transaction open at a partition, those of whose
// transactional ids none has a transaction with that partition.
func hanging(t testing.TB, adm *kadm.Client, topic string) (out []kadm.DescribedProducer) {
	t.Helper()
	ctx := ctxFor(t)
	s := kadm.TopicsSet{}
	s.Add(topic)
	at, err := adm.DescribeProducers(ctx, s)
	require.NoError(t, err)
	for _, p := range at.SortedProducers() {
		if p.CurrentTxnStartOffset < 0 {
			continue
		}
		ids, err := adm.ListTransactions(ctx, []int64{p.ProducerID}, nil)
		require.NoError(t, err)
		known := false
		if len(ids) > 0 {
			txns, err := adm.DescribeTransactions(ctx, ids.TransactionalIDs()...)
			require.NoError(t, err)
			for _, x := range txns {
				_, has := x.Topics[p.Topic][p.Partition]
				known = known || has
			}
		}
		if !known {
			out = append(out, p)
		}
	}
	return out
}

// A transaction whose coordinator has forgotten it, because its state was lost or
// set back to that of a backup, holds the last stable offset up for ever. An
// administrator finds it and ends it, as Kafka's tool does: only there, only that
// one, and everybody goes on (I4, I12).
func TestAnAdministratorEndsAHangingTransaction(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir, backup string){
		"lost":     func(*testing.T, string, string) {},
		"set back": func(t *testing.T, dir, backup string) { require.NoError(t, os.CopyFS(dir, os.DirFS(backup))) },
	} {
		for _, level := range []txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2} {
			t.Run(name+", level "+string('0'+rune(level)), func(t *testing.T) {
				ctx := ctxFor(t)
				r := onDisk(t, Config{Store: SlotFile, TransactionVersion: level, Topics: map[string]int32{"t": 1, "other": 1}})
				states, backup := filepath.Join(r.cfg.Dir, "txn_state"), filepath.Join(t.TempDir(), "txn_state")

				c := open(t, r.b, "tx", "first")
				require.NoError(t, c.EndTransaction(ctx, kgo.TryCommit))
				require.Eventually(t, func() bool { return state(t, r.b, "tx") == txnstate.CompleteCommit }, limit, time.Millisecond)
				c.Close()
				require.NoError(t, r.stop())
				require.NoError(t, os.CopyFS(backup, os.DirFS(states)))
				r.start()
				c = open(t, r.b, "tx", "hanging")
				require.NoError(t, c.ProduceSync(ctx, &kgo.Record{Topic: "other", Value: []byte("hanging")}).FirstErr())
				producer, epoch, err := c.ProducerID(ctx)
				require.NoError(t, err)
				adm := kadm.NewClient(connect(t, r.b))
				require.Empty(t, hanging(t, adm, "t"), "its coordinator knows it")
				adm.Close()
				c.Close()

				require.NoError(t, r.stop())
				require.NoError(t, os.RemoveAll(states))
				damage(t, states, backup)
				r.start()
				second := connect(t, r.b, kgo.DefaultProduceTopic("t"), kgo.TransactionalID("other"))
				require.NoError(t, second.BeginTransaction())
				require.NoError(t, second.ProduceSync(ctx, kgo.StringRecord("after it")).FirstErr())
				adm = kadm.NewClient(connect(t, r.b))
				found := hanging(t, adm, "t")
				require.Len(t, found, 1)
				h := found[0]
				require.Equal(t, [2]int64{producer, int64(epoch)}, [2]int64{h.ProducerID, int64(h.ProducerEpoch)})
				require.EqualValues(t, 2, h.CurrentTxnStartOffset)

				// Somebody else's commit does not free it.
				require.NoError(t, second.EndTransaction(ctx, kgo.TryCommit))
				require.Eventually(t, func() bool { return state(t, r.b, "other") == txnstate.CompleteCommit }, limit, time.Millisecond)
				require.EqualValues(t, 2, stable(t, adm, "t"))

				mark := kadm.TxnMarkers{ProducerID: h.ProducerID, ProducerEpoch: h.ProducerEpoch - 1, CoordinatorEpoch: max(h.CoordinatorEpoch, 0), Topics: kadm.TopicsSet{"t": {0: {}}}}
				if epoch > 0 {
					require.ErrorIs(t, written(t, adm, mark), kerr.InvalidProducerEpoch, "an epoch before it")
					require.EqualValues(t, 2, stable(t, adm, "t"))
				}
				mark.ProducerEpoch++
				require.NoError(t, written(t, adm, mark))
				require.Empty(t, hanging(t, adm, "t"))
				require.Len(t, hanging(t, adm, "other"), 1, "each partition by itself")
				require.NoError(t, written(t, adm, mark), "and once more, as an operator may")
				mark.Topics = kadm.TopicsSet{"other": {0: {}}}
				require.NoError(t, written(t, adm, mark))
				require.Empty(t, hanging(t, adm, "other"))

				ends, err := adm.ListEndOffsets(ctx, "t")
				require.NoError(t, err)
				end, _ := ends.Lookup("t", 0)
				require.Equal(t, end.Offset, stable(t, adm, "t"))

				// The holder of the id goes on, past the epoch that a backup does not know of.
				_, _, err = connect(t, r.b, kgo.TransactionalID("tx")).ProducerID(ctx)
				require.NoError(t, err)
				c = open(t, r.b, "tx", "next")
				require.NoError(t, c.EndTransaction(ctx, kgo.TryCommit))
				readers := connect(t, r.b, kgo.ConsumeTopics("t"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
				require.Equal(t, []string{"first", "after it", "next"}, values(poll(t, readers, 3)))
				require.Empty(t, hanging(t, adm, "t"))
			})
		}
	}
}

// stable is the last stable offset of partition 0.
func stable(t testing.TB, adm *kadm.Client, topic string) int64 {
	t.Helper()
	l, err := adm.ListCommittedOffsets(ctxFor(t), topic)
	require.NoError(t, err)
	o, ok := l.Lookup(topic, 0)
	require.True(t, ok)
	require.NoError(t, o.Err)
	return o.Offset
}

// written sends a marker for one partition and gives its error.
func written(t testing.TB, adm *kadm.Client, m kadm.TxnMarkers) error {
	t.Helper()
	rs, err := adm.WriteTxnMarkers(ctxFor(t), m)
	require.NoError(t, err)
	ps := rs.SortedPartitions()
	require.Len(t, ps, 1)
	return ps[0].Err
}
