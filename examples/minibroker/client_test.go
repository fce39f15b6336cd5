package minibroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestAClientReadsWhatItWrote(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"t": 3}}))
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.ZstdCompression()} {
		p := connect(t, b, kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(codec))
		for i := range 20 {
			require.NoError(t, p.ProduceSync(ctxFor(t), kgo.StringRecord(fmt.Sprint(i))).FirstErr())
		}
	}
	c := connect(t, b, kgo.ConsumeTopics("t"))
	require.Len(t, poll(t, c, 80), 80)

	ends, err := kadm.NewClient(c).ListEndOffsets(ctxFor(t), "t")
	require.NoError(t, err)
	sum := int64(0)
	ends.Each(func(o kadm.ListedOffset) { sum += o.Offset })
	require.EqualValues(t, 80, sum)
}

// ends collects under which protocol transactions were ended.
type endings struct {
	mu sync.Mutex
	tv map[txnstate.TransactionVersion]int
}

func (e *endings) observer() txnstate.Observer {
	e.tv = map[txnstate.TransactionVersion]int{}
	return txnstate.Observer{Transition: func(_ txnstate.State, rec txnstate.Record) {
		if rec.State.Decided() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.tv[rec.ClientVersion]++
		}
	}}
}

// Both protocols: commit, abort, and a second holder that fences the first, seen
// by both kinds of consumer (I6, I8, I9).
func TestTransactionsOfAClient(t *testing.T) {
	for _, level := range []txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2} {
		t.Run(fmt.Sprint("transaction.version ", level), func(t *testing.T) {
			var seen endings
			b := start(t, listening(Config{TransactionVersion: level, Topics: map[string]int32{"t": 2}, Observer: seen.observer()}))
			txn := func(opts ...kgo.Opt) *kgo.Client {
				return connect(t, b, append(opts, kgo.TransactionalID("tx"), kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
			}
			write := func(c *kgo.Client, value string) error {
				for p := range int32(2) {
					if err := c.ProduceSync(ctxFor(t), &kgo.Record{Partition: p, Value: []byte(value)}).FirstErr(); err != nil {
						return err
					}
				}
				return nil
			}
			first := txn()
			for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
				require.NoError(t, first.BeginTransaction())
				require.NoError(t, write(first, fmt.Sprint(i)))
				require.NoError(t, first.EndTransaction(ctxFor(t), end))
			}
			require.NoError(t, first.BeginTransaction())
			require.NoError(t, write(first, "of the first holder"))

			second := txn()
			require.NoError(t, second.BeginTransaction())
			require.NoError(t, write(second, "of the second holder"))
			err := first.EndTransaction(ctxFor(t), kgo.TryCommit)
			require.True(t, errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch), "%v", err)
			require.NoError(t, second.EndTransaction(ctxFor(t), kgo.TryCommit))

			all := map[string]bool{}
			for _, r := range poll(t, connect(t, b, kgo.ConsumeTopics("t")), 10) {
				all[string(r.Value)] = true
			}
			require.Len(t, all, 5, "read_uncommitted shows everything: %v", all)
			committed := poll(t, connect(t, b, kgo.ConsumeTopics("t"), kgo.FetchIsolationLevel(kgo.ReadCommitted())), 6)
			for p := range int32(2) {
				var of []*kgo.Record
				for _, r := range committed {
					if r.Partition == p {
						of = append(of, r)
					}
				}
				require.Equal(t, []string{"0", "2", "of the second holder"}, values(of))
			}

			// The client must have used the protocol that the broker offers. What the
			// broker itself aborted is of its own level.
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if level == txnstate.TV2 {
				require.Equal(t, map[txnstate.TransactionVersion]int{txnstate.TV2: 5}, seen.tv)
			} else {
				require.Equal(t, map[txnstate.TransactionVersion]int{txnstate.TV0: 4, txnstate.TV1: 1}, seen.tv)
			}
		})
	}
}

// Two members share the partitions, and the one that stays takes those of the one
// that leaves, eagerly and cooperatively.
func TestMembersOfAGroupShareItsPartitions(t *testing.T) {
	for _, balancer := range []kgo.GroupBalancer{kgo.RangeBalancer(), kgo.CooperativeStickyBalancer()} {
		t.Run(balancer.ProtocolName(), func(t *testing.T) {
			b := start(t, listening(Config{Topics: map[string]int32{"t": 4}}))
			has := make([]map[int32]bool, 2)
			var mu sync.Mutex
			changed := make(chan struct{}, 100)
			members := make([]*kgo.Client, 2)
			join := func(i int) {
				has[i] = map[int32]bool{}
				update := func(v bool) func(context.Context, *kgo.Client, map[string][]int32) {
					return func(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
						mu.Lock()
						for _, p := range ps["t"] {
							if has[i][p] = v; !v {
								delete(has[i], p)
							}
						}
						mu.Unlock()
						changed <- struct{}{}
					}
				}
				members[i] = connect(t, b, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.Balancers(balancer),
					kgo.HeartbeatInterval(20*1e6), kgo.DisableAutoCommit(),
					kgo.OnPartitionsAssigned(update(true)), kgo.OnPartitionsRevoked(update(false)), kgo.OnPartitionsLost(update(false)))
			}
			until := func(what string, ok func() bool) {
				t.Helper()
				ctx := ctxFor(t)
				for {
					mu.Lock()
					done := ok()
					mu.Unlock()
					if done {
						return
					}
					select {
					case <-changed:
					case <-ctx.Done():
						t.Fatalf("%s: %v", what, has)
					}
				}
			}
			join(0)
			until("the first has all", func() bool { return len(has[0]) == 4 })
			join(1)
			until("both have half", func() bool { return len(has[0]) == 2 && len(has[1]) == 2 })
			members[0].LeaveGroup()
			until("the second has all", func() bool { return len(has[1]) == 4 })

			groups, err := kadm.NewClient(members[1]).DescribeGroups(ctxFor(t), "g")
			require.NoError(t, err)
			require.Equal(t, "Stable", groups["g"].State)
			require.Len(t, groups["g"].Members, 1)
		})
	}
}

// A consume-transform-produce loop with two members, one of which leaves in the
// middle, takes every input exactly once (I7, I8).
func TestGroupTransactSessionIsExactlyOnce(t *testing.T) {
	const inputs = 200
	for _, level := range []txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2} {
		for _, balancer := range []kgo.GroupBalancer{kgo.RangeBalancer(), kgo.CooperativeStickyBalancer()} {
			t.Run(fmt.Sprint(level, " ", balancer.ProtocolName()), func(t *testing.T) {
				b := start(t, listening(Config{TransactionVersion: level, Topics: map[string]int32{"in": 4, "out": 4}}))
				p := connect(t, b, kgo.DefaultProduceTopic("in"))
				var rs []*kgo.Record
				for i := range inputs {
					rs = append(rs, kgo.StringRecord(fmt.Sprint(i)))
				}
				require.NoError(t, p.ProduceSync(ctxFor(t), rs...).FirstErr())

				ctx, cancel := context.WithCancel(ctxFor(t))
				defer cancel()
				var wg sync.WaitGroup
				for i := range 2 {
					s, err := kgo.NewGroupTransactSession(
						kgo.SeedBrokers(b.Addr().String()), kgo.TransactionalID(fmt.Sprint("tx", i)), kgo.DefaultProduceTopic("out"),
						kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.Balancers(balancer),
						kgo.HeartbeatInterval(20*1e6), kgo.FetchMaxWait(50*1e6), kgo.FetchMaxPartitionBytes(200),
					)
					require.NoError(t, err)
					wg.Go(func() {
						defer s.Close()
						for n := 0; ctx.Err() == nil && (i == 0 || n < 5); n++ {
							fs := s.PollRecords(ctx, 10)
							if ctx.Err() != nil {
								return
							}
							if err := s.Begin(); err != nil {
								t.Error(err)
								return
							}
							fs.EachRecord(func(r *kgo.Record) { s.Produce(ctx, kgo.StringRecord(string(r.Value)), nil) })
							if _, err := s.End(ctx, kgo.TryCommit); err != nil && ctx.Err() == nil {
								t.Error(err)
								return
							}
						}
					})
				}
				out := connect(t, b, kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
				got := map[string]int{}
				for _, r := range poll(t, out, inputs) {
					got[string(r.Value)]++
				}
				cancel()
				wg.Wait()
				require.Len(t, got, inputs)
				for v, n := range got {
					require.Equal(t, 1, n, "input %s", v)
				}
			})
		}
	}
}
