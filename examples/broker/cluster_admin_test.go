//go:build unix

package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An administrator's client is told of all transactions of a cluster, whoever
// coordinates them and leads their partitions; and where the state of all ids was
// lost, it finds the transactions that hang, and ends them (KIP-664).
func TestAnAdministratorOfAClusterEndsHangingTransactions(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts real processes")
	}
	const ids = 12
	ctx := t.Context()
	nodes := startCluster(t)
	c := newClients(nil, nodes.addrs...)
	c.makeTopics(t, ctx)
	adm := kadm.NewClient(c.client(t))
	defer adm.Close()
	for i := range ids {
		cl := c.client(t, kgo.TransactionalID(fmt.Sprintf("tx%d", i)))
		defer cl.CloseAllowingRebalance()
		require.NoError(t, cl.BeginTransaction())
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "txns", Partition: int32(i % parts), Value: []byte("x")}).FirstErr())
	}
	txns, err := adm.DescribeTransactions(ctx)
	require.NoError(t, err)
	require.Len(t, txns, ids)
	coordinators, leaders := map[int32]int{}, map[int32]int{}
	for _, x := range txns {
		require.NoError(t, x.Err)
		require.Equal(t, "Ongoing", x.State, x.TxnID)
		coordinators[x.Coordinator]++
	}
	hanging := func() (out []kadm.DescribedProducer) {
		s := kadm.TopicsSet{}
		s.Add("txns")
		at, err := adm.DescribeProducers(ctx, s)
		require.NoError(t, err)
		for _, p := range at.SortedProducers() {
			leaders[p.Leader]++
			if p.CurrentTxnStartOffset < 0 {
				continue
			}
			known, err := adm.ListTransactions(ctx, []int64{p.ProducerID}, nil)
			require.NoError(t, err)
			if len(known) == 0 {
				out = append(out, p)
			}
		}
		return out
	}
	require.Empty(t, hanging())
	require.Greater(t, len(coordinators), 1, "coordinators: %v", coordinators)
	require.Greater(t, len(leaders), 1, "leaders: %v", leaders)

	for _, n := range nodes.nodes {
		n.kill()
	}
	require.NoError(t, os.RemoveAll(filepath.Join(nodes.dir, "txn_state")))
	var wg sync.WaitGroup
	for _, n := range nodes.nodes {
		wg.Go(func() {
			if err := n.launch(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, nodes.placed(ctx, nil))
	found := hanging()
	require.Len(t, found, ids)
	for _, p := range found {
		rs, err := adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{
			ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, CoordinatorEpoch: max(p.CoordinatorEpoch, 0),
			Topics: kadm.TopicsSet{p.Topic: {p.Partition: {}}},
		})
		require.NoError(t, err)
		for _, r := range rs.SortedPartitions() {
			require.NoError(t, r.Err)
		}
	}
	require.Empty(t, hanging())
	until(t, 30*time.Second, func() string { return c.settled(ctx, adm, topics...) })
	require.Empty(t, c.read(t, ctx, adm, "txns").committed)
}
