package offsets

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// F29.5, §7.5: deleting removes committed and staged values of every producer; a
// commit marker that comes later brings nothing back, nor does a restart (W28).
func TestF29_W28_DeletionRemovesWhatIsStagedToo(t *testing.T) {
	for _, tc := range []struct {
		name string
		del  func(k *kit) error
	}{
		{"group", func(k *kit) error { return k.m.DeleteGroup(ctx, "g") }},
		{"offsets", func(k *kit) error { return k.m.DeleteOffsets(ctx, "g", []TopicPartition{{"in", 0}}) }},
		{"topic", func(k *kit) error { return k.m.DeleteTopic(ctx, "in") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newKit(t)
			k.commit("g", at(5))
			k.mustStage("g", pr(1, 0), at(9))
			k.mustStage("g", pr(2, 0), at(10))
			require.NoError(t, tc.del(k))
			k.expect("g", "-1", "-1")
			require.False(t, k.m.HasPending("g"))
			k.restart()
			k.mustMark("g", tv2(pr(1, 1), true))
			k.mustMark("g", tv1(pr(2, 0), true))
			k.expect("g", "-1", "-1")
			require.Empty(t, k.m.Groups())
			k.restart()
			k.expect("g", "-1", "-1")
		})
	}
}

func TestDeletionLeavesTheRest(t *testing.T) {
	k := newKit(t)
	other := neighbour("g")
	both := []Offset{{Topic: "in", Offset: 1}, {Topic: "out", Offset: 2}}
	k.commit("g", both)
	k.commit(other, both)
	require.NoError(t, k.m.DeleteTopic(ctx, "in"))
	require.NoError(t, k.m.DeleteTopic(ctx, "in"), "a repeat finds nothing")
	require.NoError(t, k.m.DeleteOffsets(ctx, "g", []TopicPartition{{"out", 1}, {"nowhere", 0}}))
	require.NoError(t, k.m.DeleteOffsets(ctx, "g", nil))
	require.NoError(t, k.m.DeleteGroup(ctx, "nobody"))
	for _, g := range []string{"g", other} {
		all, err := k.m.Fetch(g, nil, false)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, "out", all[0].Topic)
	}
	k.restart()
}

// F29, KAFKA-19163: retention looks at staged and committed values at once.
func TestF29_ExpiryLeavesPendingTransactionsAlone(t *testing.T) {
	k := newKit(t)
	k.commit("g", at(5))
	k.commit("g", []Offset{{Topic: "in", Partition: 1, Offset: 6}})
	k.commit("busy", at(1))
	k.clock.move(time.Hour)
	k.mustStage("g", pr(1, 0), at(9))
	k.mustStage("h", pr(2, 0), at(9)) // h has nothing else
	k.clock.move(8 * 24 * time.Hour)
	before := k.clock.Now().Add(-7 * 24 * time.Hour)
	idle := func(group string) bool { return group != "busy" }

	n, err := k.m.Expire(ctx, before, idle)
	require.NoError(t, err)
	require.Equal(t, 1, n, "in-1 of g alone")
	k.expect("g", "5", unstable)
	k.expect("busy", "1", "1")
	require.Contains(t, k.m.Groups(), "h")
	k.restart()

	k.mustMark("g", tv2(pr(1, 1), true))
	k.mustMark("h", tv2(pr(2, 1), true))
	k.expect("g", "9", "9")
	k.expect("h", "9", "9")
	k.restart()
	k.expect("g", "9", "9")

	// With no transaction left they may go.
	n, err = k.m.Expire(ctx, k.clock.Now().Add(time.Hour), nil)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Empty(t, k.m.Groups())
	k.restart()
}

// A value that is newer than the one Expire looked at stays, also where it was
// on its way to the log at that moment.
func TestExpiryDecidesInLogOrder(t *testing.T) {
	s := newState(Config{}.Fence)
	pl := place{"g", TopicPartition{"in", 0}}
	apply := func(e entry) {
		e.number = s.admitted + 1
		s.admit(e)
		s.apply(e)
		require.NoError(t, s.check())
	}
	commit := entry{kind: kindCommit, group: "g", items: []item{itemOf(at(5)[0])}}
	expire := entry{kind: kindExpire, group: "g", items: []item{{key: pl.TopicPartition, value: value{order: 1}}}}

	apply(commit)
	apply(commit)
	apply(expire)
	require.EqualValues(t, 2, s.find(pl).committed.order, "it was committed again")

	expire.items[0].order = 2
	stage := entry{kind: kindStage, producer: pr(1, 0), group: "g", items: commit.items}
	apply(stage)
	apply(expire)
	require.EqualValues(t, 2, s.find(pl).committed.order, "something was staged")

	apply(entry{kind: kindMarker, producer: pr(1, 0)})
	apply(expire)
	require.Nil(t, s.find(pl))
	apply(expire)
}

// A large group expires in several entries.
func TestExpiryOfManyOffsets(t *testing.T) {
	k := newKit(t)
	var os []Offset
	for i := range int32(2*expireItems + 1) {
		os = append(os, Offset{Topic: "in", Partition: i, Offset: 1})
	}
	k.commit("g", os)
	n, err := k.m.Expire(ctx, k.clock.Now().Add(time.Second), nil)
	require.NoError(t, err)
	require.Equal(t, len(os), n)
	require.Empty(t, k.m.Groups())
	k.restart()
}

// What a request asks for must fit into an entry.
func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	k := newKit(t, func(c *Config) { c.MaxMetadata = 1 << 30 })
	long := string(make([]byte, MaxEntry))
	_, err := k.m.Commit(ctx, "g", []Offset{{Topic: "in", Metadata: long}})
	requireCode(t, txnstate.CodeUnknownServerError, err)
	requireCode(t, txnstate.CodeUnknownServerError, k.m.DeleteGroup(ctx, long))
	requireCode(t, txnstate.CodeUnknownServerError, k.m.DeleteTopic(ctx, long))
	requireCode(t, txnstate.CodeUnknownServerError, k.m.DeleteOffsets(ctx, "g", []TopicPartition{{long, 0}}))
	k.restart()
}

// What is on its way to the log when its topic is deleted is deleted too.
func TestADeletedTopicTakesWhatIsOnItsWayAlong_F29(t *testing.T) {
	for _, staged := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log := newTap()
			k := newKit(t, func(c *Config) { c.Log = log })
			gate := make(chan struct{})
			log.set(func(op string, _ [][]byte) error {
				if op == "append" {
					<-gate
				}
				return nil
			}, nil)
			done := make(chan error, 2)
			go func() {
				if !staged {
					_, err := k.m.Commit(ctx, "g", at(5))
					done <- err
					return
				}
				g, _, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
				if err == nil {
					_, err = k.m.Stage(ctx, "g", pr(1, 0), g, at(5))
				}
				done <- err
			}()
			synctest.Wait()
			go func() { done <- k.m.DeleteTopic(ctx, "in") }()
			synctest.Wait()
			close(gate)
			require.NoError(t, <-done)
			require.NoError(t, <-done)
			k.expect("g", "-1", "-1")
			require.False(t, k.m.HasPending("g"))
			require.NoError(t, k.m.Close(ctx))
		})
	}
}

// Whoever gives up while it waits for one of several turns gives back those that it
// has.
func TestATurnThatIsNotWaitedForHoldsUpNobody_F15(t *testing.T) {
	var ts turns
	b, err := ts.take(ctx, "b")
	require.NoError(t, err)
	over, cancel := context.WithCancel(ctx)
	cancel()
	for range 50 { // where both are possible, either may be chosen
		if release, err := ts.take(over, "c", "a", "b", "a"); err == nil {
			release()
			t.Fatal("b was taken twice")
		}
	}
	b()
	for _, k := range []string{"a", "b", "c"} {
		soon, cancel := context.WithTimeout(ctx, time.Minute)
		release, err := ts.take(soon, k)
		cancel()
		require.NoError(t, err, k)
		release()
	}
	require.Empty(t, ts.m)
}

// I13: a log is rewritten when it has grown by a multiple of what is live, not at
// every write from the first time on.
func TestALogIsRewrittenNowAndThen(t *testing.T) {
	log := newTap()
	k := newKit(t, func(c *Config) { c.Log = log; c.CompactBytes = 2000 })
	for i := range int64(1000) {
		k.commit("g", at(i))
	}
	require.Positive(t, log.count("rewrite"))
	require.Less(t, log.count("rewrite"), 100)
}

// F15: who waits for a snapshot to be taken is answered when the partition is given
// up meanwhile.
func TestARequestBehindASnapshotIsAnsweredWhenThePartitionIsGivenUp_F15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTap()
		k := newKit(t, func(c *Config) { c.Log = log; c.CompactBytes = 200 })
		gates := make(chan chan struct{}, 2)
		first, second := make(chan struct{}), make(chan struct{})
		gates <- first
		gates <- second
		log.set(func(op string, _ [][]byte) error {
			if op == "append" {
				<-<-gates
			}
			return nil
		}, nil)
		answers := make(chan error, 3)
		commit := func(n int) {
			os := make([]Offset, n)
			for i := range os {
				os[i] = Offset{Topic: "in", Partition: int32(i), Offset: 1}
			}
			_, err := k.m.Commit(ctx, "g", os)
			answers <- err
		}
		go commit(30) // enough for a snapshot
		synctest.Wait()
		go commit(1) // stands before the snapshot
		synctest.Wait()
		close(first)
		synctest.Wait()
		require.NoError(t, <-answers)
		go commit(1) // behind it
		synctest.Wait()
		unloaded := make(chan error, 1)
		go func() { unloaded <- k.m.Unload(ctx, txnstate.OffsetsPartition("g")) }()
		synctest.Wait()
		close(second)
		synctest.Wait()
		require.NoError(t, <-unloaded)
		for range 2 {
			select {
			case err := <-answers:
				require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
			default:
				t.Fatal("a request is not answered")
			}
		}
		require.NoError(t, k.m.Close(ctx))
	})
}
