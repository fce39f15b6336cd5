package offsets

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// oneByOne makes appends wait for a value of goOn each: the error they end with.
func (l *tap) oneByOne() (entered chan int, goOn chan error) {
	entered, goOn = make(chan int, 100), make(chan error)
	l.set(func(op string, es [][]byte) error {
		if op != "append" {
			return nil
		}
		entered <- len(es)
		return <-goOn
	}, nil)
	return entered, goOn
}

// Await is for all that was accepted before it: also for what waits behind the
// append under way, and also when an append before has just ended.
func TestAwaitWaitsForTheLastThatWasAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newTapKit(t)
		entered, goOn := log.oneByOne()
		var wg sync.WaitGroup
		wg.Go(func() { k.commit("g", at(1)) })
		<-entered
		wg.Go(func() { k.commit("g", at(2)) })
		synctest.Wait()
		awaited := make(chan string, 2)
		await := func() {
			require.NoError(k, k.m.Await(ctx, "g"))
			awaited <- k.position("g", true)
		}
		wg.Go(await)
		synctest.Wait()
		goOn <- nil
		<-entered
		wg.Go(await)
		synctest.Wait()
		require.Empty(t, awaited, "the second is not durable")
		goOn <- nil
		wg.Wait()
		require.Equal(t, "2", <-awaited)
		require.Equal(t, "2", <-awaited)
	})
}

// W7: who waits behind an append that failed is told the same as those in it, and
// when the partition is ready again.
func TestW7_WhatWaitsBehindAFailedAppendIsRetriableHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newTapKit(t)
		entered, goOn := log.oneByOne()
		answers := make(chan error, 2)
		for i := range 2 {
			go func() {
				_, err := k.m.Commit(ctx, "g", at(int64(i)))
				if _, ferr := k.m.Fetch("g", nil, false); ferr != nil {
					err = ferr
				}
				answers <- err
			}()
			synctest.Wait()
		}
		<-entered
		goOn <- errDisk
		for range 2 {
			requireCode(t, txnstate.CodeCoordinatorNotAvailable, <-answers)
		}
		require.Empty(t, entered)
		k.expect("g", "-1", "-1")
	})
}

// What is announced stays so when the partition is read again, and ends with its
// end.
func TestAnAnnouncementOutlivesTheState(t *testing.T) {
	k, log := newTapKit(t)
	k.commit("g", at(1))
	first, second := k.m.Announce("g", at(2)), k.m.Announce("g", at(2))
	log.set(onOp("append", errDisk), nil)
	_, err := k.m.Commit(ctx, neighbour("g"), at(3))
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	log.set(nil, nil)
	k.expect("g", "1", unstable)
	first()
	k.expect("g", "1", unstable)
	require.True(t, k.m.HasPending("g"))
	second()
	k.expect("g", "1", "1")
	require.False(t, k.m.HasPending("g"))
	end := k.m.Announce("g", at(2))
	k.expect("g", "1", unstable)
	end()
}

// A fence counts at once, also where something of the producer is on its way (W13).
func TestAFenceCountsWhileTheLogIsWritten_W13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newTapKit(t)
		entered, release := log.stall()
		var wg sync.WaitGroup
		wg.Go(func() { k.mustStage("g", pr(1, 0), at(1)) })
		<-entered
		require.NoError(t, k.m.Fence(ctx, pr(1, 1)))
		requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(1, 0), at(2)))
		release()
		wg.Wait()
		requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(1, 0), at(2)))
	})
}

// The log that a start finds counts towards the next rewrite.
func TestALogFromBeforeIsRewrittenSoon(t *testing.T) {
	k, log := newTapKit(t)
	for i := range int64(300) {
		k.commit("g", at(i))
	}
	require.Zero(t, log.count("rewrite"))
	k.cfg.CompactBytes = 2000
	k.restart()
	k.commit("g", at(1))
	require.NoError(t, k.m.of("g").idle(ctx))
	require.Equal(t, 1, log.count("rewrite"))
	k.restart()
}

// A disk that takes no rewrite does not cost one, and the reading of the log, for
// each write.
func TestAFailingRewriteIsNotTriedWithEveryWrite(t *testing.T) {
	k, log := newTapKit(t, func(c *Config) { c.CompactBytes = 500 })
	log.set(onOp("rewrite", errDisk), nil)
	for i := range int64(400) {
		k.commit("g", at(i))
		require.NoError(t, k.m.of("g").idle(ctx))
	}
	require.Greater(t, log.count("rewrite"), 1)
	require.Less(t, log.count("rewrite"), 12)
	k.restart()
}

// I10: a partition that is given up during a rewrite stays given up, however the
// rewrite ends.
func TestAPartitionGivenUpDuringARewriteStaysSo_I10(t *testing.T) {
	for _, end := range []error{nil, errDisk} {
		synctest.Test(t, func(t *testing.T) {
			k, log := newTapKit(t, func(c *Config) { c.CompactBytes = 500 })
			entered, goOn := make(chan struct{}, 1), make(chan struct{})
			log.set(func(op string, _ [][]byte) error {
				if op == "rewrite" {
					entered <- struct{}{}
					<-goOn
					return end
				}
				return nil
			}, nil)
			for i := 0; len(entered) == 0; i++ {
				k.commit("g", at(int64(i)))
				synctest.Wait()
			}
			part := txnstate.OffsetsPartition("g")
			unloaded := make(chan error, 1)
			go func() { unloaded <- k.m.Unload(ctx, part) }()
			synctest.Wait()
			require.Empty(t, unloaded, "the log is still called")
			close(goOn)
			require.NoError(t, <-unloaded)
			synctest.Wait()
			_, err := k.m.Fetch("g", nil, false)
			requireCode(t, txnstate.CodeNotCoordinator, err)
			log.set(nil, nil)
			require.NoError(t, k.m.LoadPartition(ctx, part))
			k.restart()
		})
	}
}

// reads is a log whose Replay waits for its ctx, and ends well all the same where
// it is to.
type reads struct {
	Log
	entered chan struct{}
	well    bool
}

func (l *reads) Replay(ctx context.Context, _ int32, _ func([]byte) error) error {
	l.entered <- struct{}{}
	<-ctx.Done()
	if l.well {
		return nil
	}
	return ctx.Err()
}

// F15, I10: a partition that is being read can be given up, and stays so.
func TestF15_GivingUpAPartitionEndsItsReading_I10(t *testing.T) {
	for _, well := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log := &reads{NewMemLog(), make(chan struct{}, 1), well}
			m, err := New(Config{Log: log})
			require.NoError(t, err)
			loaded := make(chan error, 1)
			go func() { loaded <- m.LoadPartition(ctx, 7) }()
			<-log.entered
			require.NoError(t, m.Unload(ctx, 7))
			requireCode(t, txnstate.CodeNotCoordinator, <-loaded)
			_, err = m.Producers(7)
			requireCode(t, txnstate.CodeNotCoordinator, err)
			require.NoError(t, m.Close(ctx))
		})
	}
}

// What one Append carries is bounded.
func TestAnAppendIsBounded_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newTapKit(t, func(c *Config) { c.MaxMetadata = 3 << 20 })
		entered, release := log.stall()
		big := at(1)
		big[0].Metadata = strings.Repeat("m", 3<<20)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { k.commit("g", big) })
			synctest.Wait()
		}
		release()
		wg.Wait()
		for range 3 {
			require.Equal(t, 1, <-entered)
		}
	})
}

// A deletion does not come between the telling of the hook and the entry: what the
// hook was told of would be in the log after it.
func TestADeletionWaitsForACommitThatTheHookKnows(t *testing.T) {
	for name, del := range map[string]func(*Manager) error{
		"group":   func(m *Manager) error { return m.DeleteGroup(ctx, "g") },
		"offsets": func(m *Manager) error { return m.DeleteOffsets(ctx, "g", []TopicPartition{{"in", 0}}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, store, _ := newHookKit(t)
				gate := make(chan struct{})
				store.set(func(string) error { <-gate; return nil }, nil)
				var wg sync.WaitGroup
				wg.Go(func() { k.commit("g", at(5)) })
				synctest.Wait()
				wg.Go(func() { require.NoError(k, del(k.m)) })
				synctest.Wait()
				close(gate)
				wg.Wait()
				k.expect("g", "-1", "-1")
				k.restart()
			})
		})
	}
}

// I11: what the hook was told is of one state. Where that was lost meanwhile the
// marker comes again, and is decided on anew.
func TestAMarkerWhoseStateWasLostComesAgain_I11(t *testing.T) {
	k, store, log := newHookKit(t)
	other := neighbour("g")
	k.mustStage("g", pr(1, 0), at(9))
	var once sync.Once
	store.set(func(string) error {
		once.Do(func() {
			log.set(onOp("append", errDisk), nil)
			requireCode(k, txnstate.CodeCoordinatorNotAvailable, k.stage(other, pr(2, 0), at(1)))
			log.set(nil, nil)
		})
		return nil
	}, nil)
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.mark("g", tv2(pr(1, 1), true)))
	k.expect("g", "-1", unstable)
	k.mustMark("g", tv2(pr(1, 1), true))
	k.expect("g", "9", "9")
	require.Equal(t, []string{"g/in-0=9", "g/in-0=9"}, store.calls)
	k.restart()
}

// The hook is not told of what a marker of a coordinator that was replaced would do:
// it is refused.
func TestTheHookIsNotToldOfARefusedMarker(t *testing.T) {
	k, store, _ := newHookKit(t)
	mk := func(coordinator int32) markers.Marker {
		m := tv1(pr(1, 0), true)
		m.CoordinatorEpoch = coordinator
		return m
	}
	k.mustStage("g", pr(1, 0), at(1))
	k.mustMark("g", mk(5))
	k.mustStage("g", pr(1, 0), at(2))
	requireCode(t, txnstate.CodeCoordinatorFenced, k.mark("g", mk(4)))
	require.Equal(t, []string{"g/in-0=1"}, store.calls)
	k.expect("g", "1", unstable)
	_, ask, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
	require.NoError(t, err)
	require.False(t, ask, "it is open")
}
