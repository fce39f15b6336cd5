package offsets

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

func small(c *Config) { c.CompactBytes = 2000 }

func (l *tap) bytes(p int32) (n int) {
	mem := l.Log.(*MemLog)
	mem.mu.Lock()
	defer mem.mu.Unlock()
	for _, e := range mem.m[p] {
		n += len(e)
	}
	return n
}

// The log is bounded by what is live, and everything in it survives being
// rewritten: both kinds of offsets, their order, epochs of producers and
// coordinators (I9).
func TestCompactionKeepsEverythingAndBoundsTheLog(t *testing.T) {
	k, log := newTapKit(t, small)
	part := txnstate.OffsetsPartition("g")
	other := neighbour("g")
	k.mustStage("g", pr(1, 3), at(5))
	k.commit(other, at(1))
	k.mustStage(other, pr(2, 0), []Offset{{Topic: "in", Offset: 2}, {Topic: "in", Partition: 1, Offset: 3}})
	for i := range 500 {
		k.commit("g", []Offset{{Topic: "in", Partition: 7, Offset: int64(i)}})
	}
	require.NoError(t, k.m.of("g").idle(ctx))
	require.Positive(t, log.count("rewrite"))
	require.Less(t, log.bytes(part), 10_000)
	k.restart()

	// The staged value of g is older than this commit, rewritten or not.
	k.commit("g", at(4))
	for i := range 500 {
		k.commit("g", []Offset{{Topic: "in", Partition: 7, Offset: int64(i)}})
	}
	k.restart()
	requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(1, 2), at(9)))
	k.mustMark("g", tv2(pr(1, 4), true))
	k.expect("g", "4", "4")
	k.mustMark("g", tv2(pr(2, 1), true))
	k.expect(other, "2", "2")
	k.restart()
}

// A rewrite that fails costs nothing but a look at the log, whichever entries it
// left there.
func TestAFailedRewriteLosesNothing(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprint("written=", written), func(t *testing.T) {
			k, log := newTapKit(t, small)
			if written {
				log.set(nil, onOp("rewrite", errDisk))
			} else {
				log.set(onOp("rewrite", errDisk), nil)
			}
			k.mustStage("g", pr(1, 0), []Offset{{Topic: "in", Partition: 1, Offset: 77}})
			last := int64(0)
			for i := range int64(1000) {
				if _, err := k.m.Commit(ctx, "g", at(i)); err == nil {
					last = i
				} else {
					// It came while the log was being read.
					require.Contains(t, []txnstate.Code{txnstate.CodeCoordinatorNotAvailable, txnstate.CodeCoordinatorLoading}, txnstate.CodeOf(err))
				}
			}
			require.NoError(t, k.m.of("g").idle(ctx))
			n := log.count("rewrite")
			require.Positive(t, n)
			require.Less(t, n, 20, "not tried for every write")
			require.Equal(t, fmt.Sprint(last), k.position("g", false))
			require.True(t, k.m.HasPending("g"))
			log.set(nil, nil)
			k.restart()
		})
	}
}

// Requests that come while the log is rewritten are accepted, and follow it.
func TestRequestsGoOnDuringARewrite(t *testing.T) { synctest.Test(t, requestsGoOnDuringARewrite) }

func requestsGoOnDuringARewrite(t *testing.T) {
	k, log := newTapKit(t, small)
	rewriting, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	log.set(func(op string, _ [][]byte) error {
		if op == "rewrite" {
			once.Do(func() { close(rewriting) })
			<-goOn
		}
		return nil
	}, nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 200 {
			k.commit("g", at(int64(i)))
		}
	})
	<-rewriting
	synctest.Wait()
	k.mustFetchNow("g")
	wg.Go(func() { k.mustStage("g", pr(1, 0), []Offset{{Topic: "in", Partition: 1}}) })
	requireOpen(k, "g", pr(1, 0))
	close(goOn)
	wg.Wait()
	require.Equal(t, "199", k.position("g", false))
	k.restart()
}

func (k *kit) mustFetchNow(group string) {
	k.Helper()
	_, err := k.m.Fetch(group, nil, true)
	require.NoError(k, err)
}

// Under load that never pauses the queue is still seen empty now and then.
func TestCompactionHappensUnderConstantLoad(t *testing.T) {
	k, log := newTapKit(t, small)
	var wg sync.WaitGroup
	for w := range int32(8) {
		wg.Go(func() {
			for i := range 300 {
				k.commit("g", []Offset{{Topic: "in", Partition: w, Offset: int64(i)}})
			}
		})
	}
	wg.Wait()
	require.NoError(t, k.m.of("g").idle(ctx))
	require.Positive(t, log.count("rewrite"))
	require.Less(t, log.bytes(txnstate.OffsetsPartition("g")), 30_000)
	k.restart()
}

// A snapshot is written in pieces of a bounded size, and read back whole.
func TestALargeSnapshotComesInPieces(t *testing.T) {
	s := newState(Config{}.Fence)
	for i := range int64(20_000) {
		s.apply(entry{kind: kindCommit, number: 2*i + 1, group: fmt.Sprint("g", i%3), items: []item{
			{key: TopicPartition{"in", int32(i)}, value: value{offset: i}},
		}})
		e := entry{kind: kindStage, number: 2*i + 2, producer: pr(i%10_000, 1), group: fmt.Sprint("g", i%3), items: []item{
			{key: TopicPartition{"in", int32(i)}, value: value{offset: i}},
		}}
		s.admit(e)
		s.apply(e)
	}
	require.NoError(t, s.check())
	es := s.snapshot()
	r := newReplayer(Config{}.Fence)
	for _, e := range es {
		require.Less(t, len(e), 2*snapshotPiece)
		require.NoError(t, r.add(e))
	}
	got, err := r.finish()
	require.NoError(t, err)
	require.NoError(t, got.check())
	a, b := partition{phase: phaseReady, st: s}, partition{phase: phaseReady, st: got}
	require.Equal(t, a.dump(), b.dump())
	require.Greater(t, len(es), 10)

	for n := 1; n < len(es); n += 1 + n/4 {
		r := newReplayer(Config{}.Fence)
		for _, e := range es[:n] {
			require.NoError(t, r.add(e))
		}
		_, err := r.finish()
		require.Error(t, err, "%d of %d entries", n, len(es))
	}
}
