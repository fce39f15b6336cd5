package offsets

import (
	"context"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

// F28: a transaction that does nothing but stage offsets.
func TestF28_ATransactionThatOnlyStagesOffsets(t *testing.T) {
	k := newKit(t)
	p := pr(7, 0)

	// T1: a repeat and a later value of the same producer replace the earlier.
	k.mustStage("g", p, at(5))
	k.mustStage("g", p, at(5))
	k.mustStage("g", p, at(7))
	k.expect("g", "-1", unstable)
	k.restart()
	k.expect("g", "-1", unstable)
	k.mustMark("g", tv1(p, true))
	k.expect("g", "7", "7")
	k.restart()

	// T2 of the same producer has nothing staged: nothing comes back.
	k.mustMark("g", tv1(p, true))
	k.expect("g", "7", "7")

	// T3 and T4 are aborted, T4 by a timeout that bumped the epoch.
	k.mustStage("g", p, at(9))
	k.mustMark("g", tv1(p, false))
	k.expect("g", "7", "7")
	k.mustStage("g", p, at(9))
	k.mustMark("g", tv1(pr(7, 1), false))
	k.expect("g", "7", "7")
	k.restart()
	k.expect("g", "7", "7")
	require.False(t, k.m.HasPending("g"))

	// A request of the old epoch is refused with 47 before anybody is asked.
	requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", p, at(11)))
	k.expect("g", "7", "7")
}

// F28.4: what was not verified is not staged. W8: nor what was verified in a
// transaction that has ended since.
func TestF28_W8_StagingNeedsAVerifiedTransaction(t *testing.T) {
	k := newKit(t)
	_, err := k.m.Stage(ctx, "g", pr(7, 0), Guard{}, at(5))
	requireCode(t, txnstate.CodeInvalidTxnState, err)
	k.expect("g", "-1", "-1")

	g, ask, err := k.m.Verify("g", pr(7, 0), fence.ModeDefault)
	require.NoError(t, err)
	require.True(t, ask)
	k.mustMark("g", tv1(pr(7, 0), false)) // the transaction ends meanwhile
	_, err = k.m.Stage(ctx, "g", pr(7, 0), g, at(5))
	requireCode(t, txnstate.CodeInvalidTxnState, err)
	k.expect("g", "-1", "-1")
}

// §7.1 step 6: with a transaction of exactly this producer open, nobody is asked.
func TestAnOpenTransactionIsNotVerifiedAgain(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(7, 0), at(5))
	k.restart()
	other := neighbour("g")
	g, ask, err := k.m.Verify(other, pr(7, 0), fence.ModeGeneric)
	require.NoError(t, err)
	require.False(t, ask)
	_, err = k.m.Stage(ctx, other, pr(7, 0), g, at(6))
	require.NoError(t, err)
	// One marker settles both groups: it carries no group (design §10).
	k.mustMark("g", tv2(pr(7, 1), true))
	k.expect("g", "5", "5")
	k.expect(other, "6", "6")
	k.restart()
}

// A producer id of -1 is asked about, and never staged (§7.1).
func TestNoProducerIDStagesNothing(t *testing.T) {
	k := newKit(t)
	g, ask, err := k.m.Verify("g", txnstate.NoProducer, fence.ModeAdd)
	require.NoError(t, err)
	require.True(t, ask)
	_, err = k.m.Stage(ctx, "g", txnstate.NoProducer, g, at(5))
	requireCode(t, txnstate.CodeInvalidProducerIDMapping, err)
}

// The TV2 marker is one epoch above what it settles (KIP-890), and fences the
// epoch below: late offsets of the ended transaction are refused, for good.
func TestATV2MarkerSettlesTheEpochBelowAndFencesIt(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(7, 3), at(5))
	k.mustMark("g", tv2(pr(7, 4), true))
	k.expect("g", "5", "5")
	k.restart()
	_, _, err := k.m.Verify("g", pr(7, 3), fence.ModeAdd)
	requireCode(t, txnstate.CodeInvalidProducerEpoch, err)

	// The next transaction has the marker's epoch. The old marker, once more,
	// must not end it (KIP-1228, I4).
	k.mustStage("g", pr(7, 4), at(8))
	requireCode(t, txnstate.CodeInvalidProducerEpoch, k.mark("g", tv2(pr(7, 4), true)))
	k.expect("g", "5", unstable)
	k.mustMark("g", tv2(pr(7, 5), false))
	k.expect("g", "5", "5")
	// A repeat where nothing is open is written again (KAFKA-19999).
	k.mustMark("g", tv2(pr(7, 5), false))
	k.restart()
	k.expect("g", "5", "5")
}

// §6.5 and §7.4: epochs of producer and coordinator, across restarts.
func TestStaleMarkersAreRefused(t *testing.T) {
	k := newKit(t)
	k.mustMark("g", markers.Marker{Producer: pr(7, 5), CoordinatorEpoch: 9}) // creates state
	k.restart()
	requireCode(t, txnstate.CodeInvalidProducerEpoch, k.mark("g", markers.Marker{Producer: pr(7, 4), CoordinatorEpoch: 8}))
	requireCode(t, txnstate.CodeCoordinatorFenced, k.mark("g", markers.Marker{Producer: pr(7, 5), CoordinatorEpoch: 8}))
	k.mustMark("g", markers.Marker{Producer: pr(7, 5), CoordinatorEpoch: 9})
	requireCode(t, txnstate.CodeUnknownServerError, k.mark("g", markers.Marker{Producer: txnstate.NoProducer}))
	requireCode(t, txnstate.CodeUnknownTopicOrPartition, k.m.Marker(ctx, 50, tv2(pr(7, 6), true)))
	requireCode(t, txnstate.CodeUnknownTopicOrPartition, k.m.Marker(ctx, -1, tv2(pr(7, 6), true)))

	states, err := k.m.Producers(txnstate.OffsetsPartition("g"))
	require.NoError(t, err)
	require.Len(t, states, 1)
	require.Equal(t, pr(7, 5), states[0].Producer)
	require.EqualValues(t, 9, states[0].CoordinatorEpoch)
}

// A commit marker that finds nothing staged is legal (AddOffsetsToTxn without a
// TxnOffsetCommit) and fences all the same (§7.1 [probed]).
func TestAMarkerIsWrittenWhenNothingIsPending(t *testing.T) {
	k := newKit(t)
	k.mustMark("g", tv2(pr(7, 1), true))
	k.restart()
	_, _, err := k.m.Verify("g", pr(7, 0), fence.ModeAdd)
	requireCode(t, txnstate.CodeInvalidProducerEpoch, err)
}

// KAFKA-5247: the newer in the order of the log wins, whatever ends when.
func TestTheNewerOffsetWins(t *testing.T) {
	a, b := pr(1, 0), pr(2, 0)
	for _, tc := range []struct {
		name string
		do   func(k *kit)
		want string
	}{
		{"a plain commit after the staged one", func(k *kit) {
			k.mustStage("g", a, at(5))
			k.commit("g", at(3))
			k.mustMark("g", tv1(a, true))
		}, "3"},
		{"a plain commit before the staged one", func(k *kit) {
			k.commit("g", at(3))
			k.mustStage("g", a, at(5))
			k.mustMark("g", tv1(a, true))
		}, "5"},
		{"the staged one repeated after the plain commit", func(k *kit) {
			k.mustStage("g", a, at(5))
			k.commit("g", at(3))
			k.mustStage("g", a, at(6))
			k.mustMark("g", tv1(a, true))
		}, "6"},
		{"a plain commit after the marker", func(k *kit) {
			k.mustStage("g", a, at(5))
			k.mustMark("g", tv1(a, true))
			k.commit("g", at(3))
		}, "3"},
		{"two transactions, the later one ends last", func(k *kit) {
			k.mustStage("g", a, at(5))
			k.mustStage("g", b, at(6))
			k.mustMark("g", tv1(a, true))
			k.mustMark("g", tv1(b, true))
		}, "6"},
		{"two transactions, the later one ends first", func(k *kit) {
			k.mustStage("g", a, at(5))
			k.mustStage("g", b, at(6))
			k.mustMark("g", tv1(b, true))
			k.mustMark("g", tv1(a, true))
		}, "6"},
		{"two transactions, the later one aborts", func(k *kit) {
			k.mustStage("g", a, at(5))
			k.mustStage("g", b, at(6))
			k.mustMark("g", tv1(b, false))
			k.mustMark("g", tv1(a, true))
		}, "5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newKit(t)
			tc.do(k)
			k.expect("g", tc.want, tc.want)
			k.restart()
			k.expect("g", tc.want, tc.want)
		})
	}
}

// F30, KAFKA-9346: who asks for a stable offset waits for every transaction on
// the partition, and for none on others.
func TestF30_StableReadsWaitForEveryPendingTransaction(t *testing.T) {
	k := newKit(t)
	k.commit("g", at(5))
	k.commit("g", []Offset{{Topic: "in", Partition: 1, Offset: 50}})
	k.mustStage("g", pr(1, 0), at(9))
	k.mustStage("g", pr(2, 0), at(10))
	k.expect("g", "5", unstable)

	all, err := k.m.Fetch("g", nil, true)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, txnstate.CodeUnstableOffsetCommit, all[0].Code)
	require.Equal(t, txnstate.CodeNone, all[1].Code)
	require.EqualValues(t, 50, all[1].Offset.Offset)

	k.restart()
	k.mustMark("g", tv1(pr(1, 0), false))
	k.expect("g", "5", unstable)
	k.mustMark("g", tv1(pr(2, 0), true))
	k.expect("g", "10", "10")
}

// §7.3: a listing has committed offsets alone; what was never committed is -1.
func TestFetchOfAllListsCommittedOffsetsOnly(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(1, 0), at(9))
	for _, stable := range []bool{false, true} {
		all, err := k.m.Fetch("g", nil, stable)
		require.NoError(t, err)
		require.Empty(t, all)
	}
	got, err := k.m.Fetch("nobody", []TopicPartition{{"x", 3}}, true)
	require.NoError(t, err)
	require.Equal(t, []Fetched{{Offset: Offset{Topic: "x", Partition: 3, Offset: -1, LeaderEpoch: -1}}}, got)

	require.Equal(t, []string{"g"}, k.m.Groups())
	require.True(t, k.m.HasPending("g"))
	require.False(t, k.m.HasPending("nobody"))
}

// W32: nothing of an offset is lost on its way through staging.
func TestW32_WhatWasStagedIsWhatIsCommitted(t *testing.T) {
	k := newKit(t)
	o := Offset{Topic: "in", Partition: 4, Offset: 1 << 40, LeaderEpoch: 77, Metadata: "€ \x00", CommitMs: 12345}
	k.mustStage("g", pr(1, 0), []Offset{o})
	k.mustMark("g", tv2(pr(1, 1), true))
	for range 2 {
		got, err := k.m.Fetch("g", nil, false)
		require.NoError(t, err)
		require.Equal(t, []Fetched{{Offset: o}}, got)
		k.restart()
	}
	// Without a time of its own it has the request's.
	k.commit("g", at(1))
	got, err := k.m.Fetch("g", []TopicPartition{{"in", 0}}, false)
	require.NoError(t, err)
	require.Equal(t, k.clock.Now().UnixMilli(), got[0].CommitMs)
}

// §7.1 step 8: metadata that is too long refuses its partition alone.
func TestLongMetadataRefusesItsPartitionOnly(t *testing.T) {
	k := newKit(t, func(c *Config) { c.MaxMetadata = 3 })
	os := []Offset{{Topic: "in", Offset: 1, Metadata: "1234"}, {Topic: "in", Partition: 1, Offset: 2, Metadata: "123"}}
	want := []txnstate.Code{txnstate.CodeOffsetMetadataTooLarge, txnstate.CodeNone}

	g, _, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
	require.NoError(t, err)
	codes, err := k.m.Stage(ctx, "g", pr(1, 0), g, os[:1])
	require.NoError(t, err)
	require.Equal(t, want[:1], codes)
	states, err := k.m.Producers(txnstate.OffsetsPartition("g"))
	require.NoError(t, err)
	require.Empty(t, states, "nothing was left to write, so no transaction is open")

	codes, err = k.m.Stage(ctx, "g", pr(1, 0), g, os)
	require.NoError(t, err)
	require.Equal(t, want, codes)
	codes, err = k.m.Commit(ctx, "h", os)
	require.NoError(t, err)
	require.Equal(t, want, codes)
	k.mustMark("g", tv2(pr(1, 1), true))
	for _, group := range []string{"g", "h"} {
		all, err := k.m.Fetch(group, nil, false)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.EqualValues(t, 2, all[0].Offset.Offset)
	}
}

// I9: a fence that the coordinator sent refuses staging before the marker comes.
func TestAFenceRefusesOldEpochsBeforeTheMarker(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(1, 0), at(5))
	require.NoError(t, k.m.Fence(ctx, pr(1, 1)))
	requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(1, 0), at(6)))
	k.mustMark("g", tv2(pr(1, 1), false))
	k.expect("g", "-1", "-1")
}

// The answers that a client is shown (§7.1).
func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		code    txnstate.Code
		version int16
		want    txnstate.Code
	}{
		{txnstate.CodeNone, 3, txnstate.CodeNone},
		{txnstate.CodeNetworkException, 2, txnstate.CodeCoordinatorLoading},
		{txnstate.CodeNetworkException, 1, txnstate.CodeCoordinatorNotAvailable},
		{txnstate.CodeCoordinatorLoading, 1, txnstate.CodeCoordinatorNotAvailable},
		{txnstate.CodeCoordinatorLoading, 2, txnstate.CodeCoordinatorLoading},
		{txnstate.CodeUnknownTopicOrPartition, 3, txnstate.CodeCoordinatorNotAvailable},
		{txnstate.CodeRequestTimedOut, 3, txnstate.CodeCoordinatorNotAvailable},
		{txnstate.CodeNotEnoughReplicas, 3, txnstate.CodeCoordinatorNotAvailable},
		{txnstate.CodeNotLeaderOrFollower, 3, txnstate.CodeNotCoordinator},
		{txnstate.CodeKafkaStorageError, 3, txnstate.CodeNotCoordinator},
		{txnstate.CodeMessageTooLarge, 3, txnstate.CodeUnknownServerError},
		{txnstate.CodeRecordListTooLarge, 3, txnstate.CodeUnknownServerError},
		{txnstate.CodeConcurrentTransactions, 5, txnstate.CodeConcurrentTransactions},
		{txnstate.CodeInvalidProducerEpoch, 3, txnstate.CodeInvalidProducerEpoch},
		{txnstate.CodeInvalidTxnState, 3, txnstate.CodeInvalidTxnState},
		{txnstate.CodeInvalidProducerIDMapping, 3, txnstate.CodeInvalidProducerIDMapping},
		{txnstate.CodeTransactionAbortable, 3, txnstate.CodeInvalidTxnState},
		{txnstate.CodeTransactionAbortable, 4, txnstate.CodeTransactionAbortable},
		{txnstate.CodeProducerFenced, 5, txnstate.CodeInvalidProducerEpoch},
	} {
		require.Equal(t, tc.want, Answer(tc.code, tc.version), "%s in version %d", tc.code, tc.version)
	}
	require.Equal(t, txnstate.CodeNotLeaderOrFollower, MarkerAnswer(txnstate.ErrCoordinatorLoading))
	require.Equal(t, txnstate.CodeNotLeaderOrFollower, MarkerAnswer(txnstate.ErrNotCoordinator))
	require.Equal(t, txnstate.CodeInvalidProducerEpoch, MarkerAnswer(txnstate.ErrInvalidProducerEpoch))
	require.Equal(t, txnstate.CodeNone, MarkerAnswer(nil))
}
