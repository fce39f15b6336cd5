package minibroker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// I5, I8, I12, I13: a broker is stopped at any moment, with requests under way.
// Run returns nil and leaves nothing running, requests end, and the next start
// finds every commit that was answered and settles what was not.
func TestABrokerIsStoppedAtAnyMoment(t *testing.T) {
	for seed := range uint64(8) {
		for _, store := range []StoreKind{Journal, SlotFile} {
			synctest.Test(t, func(t *testing.T) { stopped(t, store, seed) })
		}
	}
}

func stopped(t *testing.T, store StoreKind, seed uint64) {
	const ids = 6
	rng := rand.New(rand.NewPCG(seed, 0))
	fs := crashfs.New(seed)
	// Syncs take their time, so that the end comes in the middle of them.
	config := crashConfig(fs, store)
	config.FS = fsx.Hook(fs, func(op fsx.Op, _ string) error {
		if op == fsx.OpSync || op == fsx.OpSyncDir {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	var answered [ids]atomic.Int64 // commits
	for range 3 {
		b, stop, err := Start(context.Background(), config)
		require.NoError(t, err)
		over := make(chan struct{})
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				s := &session{t: t, b: b, id: fmt.Sprintf("id-%d", i), seq: map[string]int32{}}
				held := false
				for {
					select {
					case <-over:
						return
					default:
					}
					held = s.turn(held, &answered[i])
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(time.Duration(rng.IntN(100_000)) * time.Microsecond)
		require.NoError(t, stop())
		close(over)
		wg.Wait()
	}
	b, stop, err := Start(context.Background(), config)
	require.NoError(t, err)
	settle(b)
	total := int64(0)
	for i := range ids {
		rec, err := b.coordinator.Describe(ctxFor(t), fmt.Sprintf("id-%d", i))
		if err == nil {
			require.NoError(t, txnstate.Check(rec))
			require.False(t, rec.State == txnstate.Ongoing || rec.State.Decided(), "I12: %s", rec)
		}
		total += answered[i].Load()
	}
	for p := range int32(2) {
		stableAtEnd(t, b, "t", p)
	}
	both := len(allVisible(t, b, "t", 0))
	require.Len(t, allVisible(t, b, "t", 1), both, "I8: each transaction has a record in both partitions")
	require.GreaterOrEqual(t, int64(both), total, "I5: commits that were answered")
	require.Positive(t, total)
	require.NoError(t, stop())
}

// When Run has returned the directory is somebody else's: nothing is written, read or
// removed there any more. A broker that is started there, or who restores a backup,
// would be met by what belongs to the broker before.
func TestAStoppedBrokerLeavesItsDirectoryAlone(t *testing.T) {
	for name, cfg := range map[string]Config{
		"journal": {Store: Journal}, "slotfile": {Store: SlotFile},
		"cluster": {Cluster: map[int32]string{0: "broker:9092"}},
	} {
		// The latest write is one that was waited for, and one that was not.
		for _, transactions := range []int64{0, 3} {
			t.Run(fmt.Sprintf("%s, %d transactions", name, transactions), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var over atomic.Bool
					cfg.Dir, cfg.Topics, cfg.Lease = "data", map[string]int32{"t": 2}, time.Second
					cfg.FS = fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
						if over.Load() {
							t.Errorf("%s of %q after the end", op, name)
						}
						return nil
					})
					b, stop, err := Start(t.Context(), cfg)
					require.NoError(t, err)
					s := &session{t: t, b: b, id: "tx", seq: map[string]int32{}}
					var ended atomic.Int64
					for n := 0; n < 3; time.Sleep(time.Millisecond) {
						if s.turn(false, &ended) { // a cluster may not be so far
							n++
						}
					}
					for held := false; ended.Load() < transactions; time.Sleep(time.Millisecond) {
						held = s.turn(held, &ended)
					}
					require.NoError(t, stop())
					over.Store(true)
					time.Sleep(time.Hour)
				})
			})
		}
	}
}

// turn takes a session a step on, and reports whether it has an identity. A broker
// that is stopping may answer anything, but no success that it does not mean.
func (s *session) turn(held bool, answered *atomic.Int64) bool {
	if !held {
		clear(s.seq)
		r := kmsg.NewPtrInitProducerIDRequest()
		r.TransactionalID, r.TransactionTimeoutMillis = kmsg.StringPtr(s.id), 60_000
		x, ok := try[*kmsg.InitProducerIDResponse](s.b, r, 4)
		if ok && x.ErrorCode == 0 {
			s.p = txnstate.Producer{ID: x.ProducerID, Epoch: x.ProducerEpoch}
			return true
		}
		return false
	}
	w := kmsg.NewPtrProduceRequest()
	w.Acks, w.TransactionID = -1, kmsg.StringPtr(s.id)
	w.Topics = []kmsg.ProduceRequestTopic{{Topic: "t"}}
	for p := range int32(2) {
		w.Topics[0].Partitions = append(w.Topics[0].Partitions, kmsg.ProduceRequestTopicPartition{Partition: p, Records: recordBatch(s.p, 0, 1, 10, true)})
	}
	x, ok := try[*kmsg.ProduceResponse](s.b, w, 12)
	for p := 0; ok && p < 2; p++ {
		ok = x.Topics[0].Partitions[p].ErrorCode == 0
	}
	if !ok {
		return false
	}
	e := kmsg.NewPtrEndTxnRequest()
	e.TransactionalID, e.ProducerID, e.ProducerEpoch, e.Commit = s.id, s.p.ID, s.p.Epoch, true
	y, ok := try[*kmsg.EndTxnResponse](s.b, e, 5)
	if ok && y.ErrorCode == 0 {
		answered.Add(1)
		s.p = txnstate.Producer{ID: y.ProducerID, Epoch: y.ProducerEpoch}
		return true
	}
	return false
}

// try is ask where the broker may be stopping.
func try[R kmsg.Response](b *Broker, req kmsg.Request, version int16) (resp R, ok bool) {
	req.SetVersion(version)
	x, err := b.Handle(context.Background(), req, anonymous)
	if err != nil {
		return resp, false
	}
	resp, ok = x.(R)
	return resp, ok
}
