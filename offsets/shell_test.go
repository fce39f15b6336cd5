package offsets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tap is a log with a test between it and its caller.
type tap struct {
	Log
	mu sync.Mutex
	// before is called ahead of each call, after when it succeeded; an error of
	// either is what the caller gets.
	before, after func(op string, entries [][]byte) error
	calls         map[string]int
	failed        map[int32]bool // a Replay is due
}

func newTap() *tap {
	return &tap{Log: NewMemLog(), calls: map[string]int{}, failed: map[int32]bool{}}
}

func (l *tap) set(before, after func(op string, entries [][]byte) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.after = before, after
}

func (l *tap) count(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[op]
}

func (l *tap) do(op string, p int32, entries [][]byte, perform func() error) (err error) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed[p] = err != nil
	}()
	l.mu.Lock()
	if l.failed[p] && op != "replay" {
		panic("after a failure of the log its partition is replayed first")
	}
	before, after := l.before, l.after
	l.calls[op]++
	l.mu.Unlock()
	if before != nil {
		if err := before(op, entries); err != nil {
			return err
		}
	}
	if err := perform(); err != nil {
		return err
	}
	if after != nil {
		return after(op, entries)
	}
	return nil
}

func (l *tap) Append(ctx context.Context, p int32, es [][]byte) error {
	return l.do("append", p, es, func() error { return l.Log.Append(ctx, p, es) })
}

func (l *tap) Replay(ctx context.Context, p int32, f func([]byte) error) error {
	return l.do("replay", p, nil, func() error { return l.Log.Replay(ctx, p, f) })
}

func (l *tap) Rewrite(ctx context.Context, p int32, es [][]byte) error {
	return l.do("rewrite", p, es, func() error { return l.Log.Rewrite(ctx, p, es) })
}

var errDisk = errors.New("disk on fire")

func onOp(op string, err error) func(string, [][]byte) error {
	return func(o string, _ [][]byte) error {
		if o == op {
			return err
		}
		return nil
	}
}

func newTapKit(t *testing.T, change ...func(*Config)) (*kit, *tap) {
	log := newTap()
	return newKit(t, append([]func(*Config){func(c *Config) { c.Log = log }}, change...)...), log
}

// stall makes appends wait. entered tells of each that does; release lets them
// go on, now and later.
func (l *tap) stall() (entered chan int, release func()) {
	entered = make(chan int, 100)
	gate := make(chan struct{})
	l.set(func(op string, es [][]byte) error {
		if op == "append" {
			entered <- len(es)
			<-gate
		}
		return nil
	}, nil)
	return entered, func() { close(gate) }
}

// W7, I11: an append that failed is an error to the client, whether or not it
// was done; the next answers come from what the log has.
func TestW7_W10_AFailedAppendIsAnErrorAndTheLogDecides(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprint("written=", written), func(t *testing.T) {
			k, log := newTapKit(t)
			k.commit("g", at(5))
			fail := func() {
				if written {
					log.set(nil, onOp("append", errDisk))
				} else {
					log.set(onOp("append", errDisk), nil)
				}
			}
			fail()
			requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.stage("g", pr(1, 0), at(9)))
			log.set(nil, nil)
			if written {
				k.expect("g", "5", unstable)
			} else {
				k.expect("g", "5", "5")
			}
			k.mustStage("g", pr(1, 0), at(9))

			// W10: the marker failed, and what it was to settle is settled by
			// the next one.
			fail()
			requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.mark("g", tv2(pr(1, 1), true)))
			log.set(nil, nil)
			if written {
				k.expect("g", "9", "9")
			} else {
				k.expect("g", "5", unstable)
			}
			k.mustMark("g", tv2(pr(1, 1), true))
			k.expect("g", "9", "9")
			k.restart()
		})
	}
}

// Nothing is seen before it is durable (I8); who asks for a stable offset is
// told to wait meanwhile, as Kafka's read waits for earlier writes (§7.3).
func TestNothingIsVisibleBeforeItIsDurable(t *testing.T) {
	synctest.Test(t, nothingIsVisibleBeforeItIsDurable)
}

func nothingIsVisibleBeforeItIsDurable(t *testing.T) {
	k, log := newTapKit(t)
	k.commit("g", at(5))
	entered, release := log.stall()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = k.m.Commit(ctx, "g", at(6)) })
	<-entered
	k.expect("g", "5", unstable)
	require.True(t, k.m.HasPending("g"))
	// What has been judged counts for those who come after: the transaction is
	// open.
	wg.Go(func() { _ = k.stage("g", pr(1, 0), []Offset{{Topic: "in", Partition: 1}}) })
	requireOpen(k, "g", pr(1, 0))

	short, cancel := context.WithCancel(ctx)
	cancel()
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.m.Await(short, "g"))
	release()
	require.NoError(t, k.m.Await(ctx, "g"))
	k.expect("g", "6", "6")
	wg.Wait()
}

// requireOpen waits until nothing moves any more, and then wants a transaction of
// p to be open for the next request.
func requireOpen(k *kit, group string, p txnstate.Producer) {
	k.Helper()
	synctest.Wait()
	states, err := k.m.Producers(txnstate.OffsetsPartition(group))
	require.NoError(k, err)
	i := slices.IndexFunc(states, func(st fence.ProducerState) bool { return st.Producer.ID == p.ID })
	require.GreaterOrEqual(k, i, 0)
	require.True(k, states[i].Open)
}

// Requests are judged with those before them, also while those are on their way
// to the log.
func TestW27_RequestsAreJudgedInTheOrderOfTheLog(t *testing.T) {
	synctest.Test(t, requestsAreJudgedInTheOrderOfTheLog)
}

func requestsAreJudgedInTheOrderOfTheLog(t *testing.T) {
	k, log := newTapKit(t)
	entered, release := log.stall()
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.stage("g", pr(1, 0), at(5)) })
	<-entered
	_, ask, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
	require.NoError(t, err)
	require.False(t, ask)
	wg.Go(func() { _ = k.mark("g", tv2(pr(1, 1), true)) })
	synctest.Wait()
	require.Len(t, k.m.of("g").queue, 1)
	// The marker is not durable, and the epoch is gone all the same.
	_, _, err = k.m.Verify("g", pr(1, 0), fence.ModeAdd)
	requireCode(t, txnstate.CodeInvalidProducerEpoch, err)
	release()
	wg.Wait()
	k.expect("g", "5", "5")
}

// Requests that come while the log is busy share the next append; those of
// other partitions do not wait at all.
func TestConcurrentRequestsShareAnAppend(t *testing.T) {
	synctest.Test(t, concurrentRequestsShareAnAppend)
}

func concurrentRequestsShareAnAppend(t *testing.T) {
	k, log := newTapKit(t)
	entered, release := log.stall()
	var wg sync.WaitGroup
	commit := func(i int) {
		wg.Go(func() { k.commit("g", []Offset{{Topic: "in", Partition: int32(i), Offset: int64(i)}}) })
	}
	commit(0)
	require.Equal(t, 1, <-entered)
	for i := range 20 {
		commit(i + 1)
	}
	synctest.Wait()
	require.Len(t, k.m.of("g").queue, 20)
	wg.Go(func() { k.commit("elsewhere", at(1)) })
	require.Equal(t, 1, <-entered, "another partition")
	release()
	require.Equal(t, 20, <-entered)
	wg.Wait()
	require.Equal(t, 3, log.count("append"))
	k.restart()
}

// A caller that gives up has its waiting ended, not its commit.
func TestACancelledCallerStopsWaitingAndTheEntryIsWritten(t *testing.T) {
	synctest.Test(t, aCancelledCallerStopsWaitingAndTheEntryIsWritten)
}

func aCancelledCallerStopsWaitingAndTheEntryIsWritten(t *testing.T) {
	k, log := newTapKit(t)
	entered, release := log.stall()
	short, cancel := context.WithCancel(ctx)
	got := make(chan error)
	go func() {
		_, err := k.m.Commit(short, "g", at(5))
		got <- err
	}()
	<-entered
	cancel()
	err := <-got
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	require.ErrorIs(t, err, context.Canceled)
	release()
	require.NoError(t, k.m.Await(ctx, "g"))
	k.expect("g", "5", "5")

	// One that has given up before does nothing.
	_, err = k.m.Commit(short, "g", at(6))
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	k.expect("g", "5", "5")
}

// When the log can't be read either, the partition answers an error, and nothing
// else, until it can. Other partitions go on.
func TestAPartitionThatCannotBeReadSaysNothing(t *testing.T) {
	k, log := newTapKit(t)
	k.commit("g", at(5))
	k.commit("elsewhere", at(1))
	log.set(func(op string, _ [][]byte) error { return errDisk }, nil)
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.stage("g", pr(1, 0), at(9)))
	for range 3 {
		_, err := k.m.Fetch("g", nil, false)
		requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
		requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.stage("g", pr(1, 0), at(9)))
		requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.mark("g", tv2(pr(1, 1), true)))
		_, err = k.m.Commit(ctx, "g", at(6))
		requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
		_, err = k.m.Producers(txnstate.OffsetsPartition("g"))
		requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
		requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.m.Await(ctx, "g"))
	}
	require.True(t, k.m.HasPending("g"), "unsure is not no")
	require.Equal(t, []string{"elsewhere"}, k.m.Groups())
	k.expect("elsewhere", "1", "1")
	replays := log.count("replay")

	log.set(nil, nil)
	_, err := k.m.Fetch("g", nil, false)
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	require.Equal(t, replays, log.count("replay"), "no attempt before its time")
	k.clock.move(reloadEvery)
	_, err = k.m.Fetch("g", nil, false) // causes the attempt
	require.Error(t, err)
	require.NoError(t, k.m.LoadPartition(ctx, txnstate.OffsetsPartition("g")), "waits for it")
	k.expect("g", "5", "5")
	k.mustStage("g", pr(1, 0), at(9))
	k.restart()
}

// While the log is being read, clients are told so (14); before a partition is
// loaded, and after it was given up, that this is not its coordinator (16).
func TestPartitionsThatAreNotServed(t *testing.T) { synctest.Test(t, partitionsThatAreNotServed) }

func partitionsThatAreNotServed(t *testing.T) {
	k, log := newTapKit(t)
	k.commit("g", at(5))
	part := txnstate.OffsetsPartition("g")
	require.NoError(t, k.m.Unload(ctx, part))
	require.NoError(t, k.m.Unload(ctx, part))
	_, err := k.m.Fetch("g", nil, true)
	requireCode(t, txnstate.CodeNotCoordinator, err)
	requireCode(t, txnstate.CodeNotCoordinator, k.mark("g", tv2(pr(1, 1), true)))
	require.NoError(t, k.m.DeleteTopic(ctx, "in"), "what is not served is not this one's to delete")

	reading, goOn := make(chan struct{}), make(chan struct{})
	log.set(func(op string, _ [][]byte) error {
		close(reading)
		<-goOn
		return nil
	}, nil)
	loaded := make(chan error)
	go func() { loaded <- k.m.LoadPartition(ctx, part) }()
	<-reading
	_, err = k.m.Fetch("g", nil, true)
	requireCode(t, txnstate.CodeCoordinatorLoading, err)
	requireCode(t, txnstate.CodeCoordinatorLoading, k.stage("g", pr(1, 0), at(9)))
	requireCode(t, txnstate.CodeCoordinatorLoading, k.m.DeleteTopic(ctx, "in"))
	close(goOn)
	require.NoError(t, <-loaded)
	log.set(nil, nil)
	k.expect("g", "5", "5")
	requireCode(t, txnstate.CodeUnknownTopicOrPartition, k.m.LoadPartition(ctx, 50))
	requireCode(t, txnstate.CodeUnknownTopicOrPartition, k.m.Unload(ctx, 50))
	_, err = k.m.Producers(50)
	requireCode(t, txnstate.CodeUnknownTopicOrPartition, err)
}

// I10: a partition that is given up in the middle of a write answers 16, and
// the write's outcome is no answer to anybody.
func TestGivingUpAPartitionEndsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, givingUpAPartitionEndsWhatIsUnderWay)
}

func givingUpAPartitionEndsWhatIsUnderWay(t *testing.T) {
	k, log := newTapKit(t)
	entered, release := log.stall()
	answers := make(chan error, 2)
	go func() { answers <- k.stage("g", pr(1, 0), at(5)) }()
	<-entered
	go func() { answers <- k.stage("g", pr(2, 0), at(5)) }()
	requireOpen(k, "g", pr(2, 0))
	part := txnstate.OffsetsPartition("g")

	short, cancel := context.WithCancel(ctx)
	cancel()
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.m.Unload(short, part)) // the log has not returned
	requireCode(t, txnstate.CodeNotCoordinator, <-answers)
	unloaded := make(chan error)
	go func() { unloaded <- k.m.Unload(ctx, part) }()
	release()
	require.NoError(t, <-unloaded)
	requireCode(t, txnstate.CodeNotCoordinator, <-answers)
	require.NoError(t, k.m.LoadPartition(ctx, part))
	k.restart()
}

// After a restart of the partition's state a guard is worth nothing. The client
// asks again; INVALID_TXN_STATE would end its producer.
func TestGuardsOfALostStateAreRetriable(t *testing.T) {
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("open=", open), func(t *testing.T) {
			k, log := newTapKit(t)
			log.set(onOp("append", errDisk), nil)
			g, ask, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
			require.NoError(t, err)
			require.True(t, ask)
			if open {
				// The transaction is open by an entry on its way, which is lost.
				reached, goOn := make(chan struct{}), make(chan struct{})
				log.set(func(op string, _ [][]byte) error {
					if op != "append" {
						return nil
					}
					close(reached)
					<-goOn
					return errDisk
				}, nil)
				done := make(chan error)
				go func() { done <- k.stage("g", pr(1, 0), at(5)) }()
				<-reached
				g, ask, err = k.m.Verify("g", pr(1, 0), fence.ModeAdd)
				require.NoError(t, err)
				require.False(t, ask)
				close(goOn)
				requireCode(t, txnstate.CodeCoordinatorNotAvailable, <-done)
			} else {
				requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.stage("g", pr(2, 0), at(5)))
			}
			log.set(nil, nil)
			_, err = k.m.Stage(ctx, "g", pr(1, 0), g, at(5))
			requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
			k.expect("g", "-1", "-1")
			k.mustStage("g", pr(1, 0), at(5))
		})
	}
}

// F15: after Close everything is answered, with 15 or 16, and nothing runs.
func TestF15_CloseAnswersEverybody(t *testing.T) { synctest.Test(t, closeAnswersEverybody) }

func closeAnswersEverybody(t *testing.T) {
	k, log := newTapKit(t)
	entered, release := log.stall()
	answers := make(chan error, 2)
	go func() { answers <- k.stage("g", pr(1, 0), at(5)) }()
	<-entered
	closed := make(chan error)
	go func() { closed <- k.m.Close(ctx) }()
	synctest.Wait()
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.stage("h", pr(1, 0), at(5)))
	_, err := k.m.Commit(ctx, "g", at(5))
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	release()
	require.NoError(t, <-closed)
	require.NoError(t, <-answers, "what was under way is finished")
	_, err = k.m.Fetch("g", nil, true)
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	require.Error(t, k.m.Load(ctx))
	require.NoError(t, k.m.Close(ctx))
	k.m = k.fresh()
	k.expect("g", "-1", unstable)
}

// hangs is a log whose Append waits for its ctx.
type hangs struct {
	Log
	entered chan struct{}
}

func (l *hangs) Append(ctx context.Context, _ int32, _ [][]byte) error {
	l.entered <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func TestCloseDoesNotWaitForALogThatHangs(t *testing.T) {
	synctest.Test(t, closeDoesNotWaitForALogThatHangs)
}

func closeDoesNotWaitForALogThatHangs(t *testing.T) {
	log := &hangs{NewMemLog(), make(chan struct{}, 1)}
	k := newKit(t, func(c *Config) { c.Log = log })
	answer := make(chan error)
	go func() { answer <- k.stage("g", pr(1, 0), at(5)) }()
	<-log.entered
	short, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, k.m.Close(short), context.Canceled)
	requireCode(t, txnstate.CodeNotCoordinator, <-answer)
}

// F15: the log's own calls come back into the Manager, on the same goroutine.
func TestF15_TheLogMayCallTheManager(t *testing.T) {
	k, log := newTapKit(t)
	k.commit("g", at(5))
	var nested atomic.Bool
	log.set(func(op string, _ [][]byte) error {
		if op != "append" || nested.Swap(true) {
			return nil
		}
		k.expect("g", "5", unstable)
		_, _, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
		require.NoError(k, err)
		_, err = k.m.Producers(txnstate.OffsetsPartition("g"))
		require.NoError(k, err)
		_ = k.m.Groups()
		k.commit("elsewhere", at(1)) // another partition: written before this returns
		k.expect("elsewhere", "1", "1")
		return nil
	}, nil)
	k.mustStage("g", pr(1, 0), at(9))
	require.True(t, nested.Load())
}

// What waits for the log is bounded (I13).
func TestTheQueueIsBounded(t *testing.T) { synctest.Test(t, theQueueIsBounded) }

func theQueueIsBounded(t *testing.T) {
	k, log := newTapKit(t, func(c *Config) { c.MaxQueued = 1 })
	entered, release := log.stall()
	var wg sync.WaitGroup
	wg.Go(func() { k.commit("g", at(1)) })
	<-entered
	wg.Go(func() { k.commit("g", at(2)) })
	synctest.Wait()
	require.Len(t, k.m.of("g").queue, 1)
	_, err := k.m.Commit(ctx, "g", at(3))
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	release()
	wg.Wait()
	k.expect("g", "2", "2")
}

// A log with damage, or with entries that came twice, late or not at all, is
// refused; the partitions beside it are served.
func TestADamagedPartitionIsRefusedAlone(t *testing.T) {
	part := txnstate.OffsetsPartition("g")
	for _, tc := range []struct {
		name, want string
		spoil      func(es [][]byte) [][]byte
	}{
		{"a bit", "checksum", func(es [][]byte) [][]byte { es[1][20] ^= 1; return es }},
		{"an entry lost", "number 3 follows number 1", func(es [][]byte) [][]byte { return append(es[:1:1], es[2:]...) }},
		{"an entry twice", "number 2 follows number 2", func(es [][]byte) [][]byte { return append(es[:2:2], es[1:]...) }},
		{"a late entry", "number 2 follows number 3", func(es [][]byte) [][]byte { return append(es, es[1]) }},
		{"a snapshot in the middle", "snapshot entry where none belongs", func(es [][]byte) [][]byte {
			return append(es, newState(fence.Config{}).snapshot()...)
		}},
		{"a newer kind", "kind 99", func(es [][]byte) [][]byte {
			es[2][1] = 99
			reseal(es[2])
			return es
		}},
		{"half a snapshot", "lacks 1 of its entries", func([][]byte) [][]byte { return newState(fence.Config{}).snapshot()[:1] }},
		{"a snapshot without producers", "ends without its producers", func([][]byte) [][]byte {
			return [][]byte{
				appendEntry(nil, entry{kind: kindSnapshot, number: 3, count: 1}),
				appendEntry(nil, entry{kind: kindSnapshotCommitted, group: "g"}),
			}
		}},
		{"a piece of a snapshot alone", "where none belongs", func([][]byte) [][]byte { return newState(fence.Config{}).snapshot()[1:] }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newKit(t)
			for i := range 3 {
				k.commit("g", at(int64(i)))
			}
			k.commit("elsewhere", at(7))
			require.NoError(t, k.m.Close(ctx))
			log := k.cfg.Log.(*MemLog)
			log.m[part] = tc.spoil(log.m[part])

			m, err := New(k.cfg)
			require.NoError(t, err)
			k.m = m
			defer m.Close(ctx)
			err = m.Load(ctx)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, fmt.Sprintf("offsets partition %d", part))
			_, err = m.Fetch("g", nil, false)
			requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
			k.expect("elsewhere", "7", "7")
		})
	}
}

// KIP-447: a commit whose member was checked before a rebalance is not
// overlooked by the partition's new owner.
func TestAnAnnouncedCommitIsNotStable(t *testing.T) {
	k := newKit(t)
	k.commit("g", at(5))
	end := k.m.Announce("g", at(9))
	k.expect("g", "5", unstable)
	require.True(t, k.m.HasPending("g"))
	n, err := k.m.Expire(ctx, k.clock.Now().Add(time.Hour), nil)
	require.NoError(t, err)
	require.Zero(t, n)
	second := k.m.Announce("g", at(9))
	end()
	end()
	k.expect("g", "5", unstable)
	second()
	k.expect("g", "5", "5")
	require.False(t, k.m.HasPending("g"))
}

func TestConfigSaysAllThatIsWrong(t *testing.T) {
	_, err := New(Config{CompactBytes: -1, MaxQueued: -1})
	for _, want := range []string{"Log is required", "CompactBytes is negative", "MaxQueued is negative"} {
		require.ErrorContains(t, err, want)
	}
}

// Idle producers are forgotten, those of open transactions never (I13).
func TestIdleProducersExpire(t *testing.T) {
	k := newKit(t, func(c *Config) { c.Fence.ExpireAfter = time.Hour })
	k.mustStage("g", pr(1, 0), at(5))
	k.mustMark("g", tv2(pr(2, 1), false))
	k.clock.move(2 * time.Hour)
	k.commit("g", at(6))
	states, err := k.m.Producers(txnstate.OffsetsPartition("g"))
	require.NoError(t, err)
	require.Len(t, states, 1)
	require.EqualValues(t, 1, states[0].Producer.ID)
}
