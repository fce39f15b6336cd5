package offsets

import (
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// Corners that the other tests walk past: found by changing the code and seeing
// no test fail (internal/mutate).

// I13: transactions that have ended leave nothing in memory.
func TestEndedTransactionsLeaveNothing(t *testing.T) {
	k := newKit(t)
	st := func() *state { return k.m.of("g").st }
	var size int
	for i := range 300 {
		k.mustStage("g", pr(7, int16(i)), at(5))
		k.mustMark("g", tv2(pr(7, int16(i+1)), false))
		k.m.Idle()
		require.Empty(t, st().staged)
		require.Empty(t, st().groups)
		if n := len(st().fence.AppendSnapshot(nil)); i < 100 {
			size = max(size, n)
		} else {
			require.LessOrEqual(t, n, size+8, "after %d aborts", i) // longer numbers
		}
	}
}

// A fence may come at any time, also for partitions that are not served.
func TestAFenceForPartitionsThatAreNotServed(t *testing.T) {
	m, err := New(Config{Log: NewMemLog()})
	require.NoError(t, err)
	require.NoError(t, m.Fence(ctx, pr(7, 1)))
	require.NoError(t, m.LoadPartition(ctx, 3))
	require.NoError(t, m.Fence(ctx, pr(7, 2)))
	require.NoError(t, m.Close(ctx))
}

// Generation 0 is one, and nobody has it in a group without members.
func TestGenerationZeroIsAGeneration(t *testing.T) {
	for _, state := range []GroupState{GroupMissing, GroupEmpty} {
		want := txnstate.CodeUnknownMemberID
		if state == GroupMissing {
			want = txnstate.CodeIllegalGeneration
		}
		for _, member := range []string{"", "m"} {
			require.Equal(t, want, CheckTxnCommit(GroupView{State: state}, Caller{MemberID: member, Generation: 0}, 3))
			require.Equal(t, want, CheckCommit(GroupView{State: state}, Caller{MemberID: member, Generation: 0}, 8))
			require.Equal(t, txnstate.CodeNone, CheckTxnCommit(GroupView{State: state}, Caller{MemberID: member, Generation: -1}, 3))
		}
	}
}
