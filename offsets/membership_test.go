package offsets

import (
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// §7.2 for groups of the classic protocol, F31: a group of generation 7 with a
// member m1, which owns the static instance i1, and a member m2. The columns are
// the answers to TxnOffsetCommit up to version 5 and of version 6, and to
// OffsetCommit up to version 8 and from 9 on.
func TestF31_MembershipRules(t *testing.T) {
	const (
		ok    = txnstate.CodeNone
		gen   = txnstate.CodeIllegalGeneration
		who   = txnstate.CodeUnknownMemberID
		dead  = txnstate.CodeCoordinatorNotAvailable
		inst  = txnstate.CodeFencedInstanceID
		none  = txnstate.CodeGroupIDNotFound
		rebal = txnstate.CodeRebalanceInProgress
	)
	i1, i9 := "i1", "i9"
	caller := func(member string, generation int32) Caller {
		return Caller{MemberID: member, Generation: generation}
	}
	static := func(instance *string, member string, generation int32) Caller {
		return Caller{MemberID: member, InstanceID: instance, Generation: generation}
	}
	type row struct {
		caller                 Caller
		txn, txn6, plain, pln9 txnstate.Code
	}
	same := func(c Caller, code txnstate.Code) row { return row{c, code, code, code, code} }
	txnOnly := func(c Caller, plain txnstate.Code) row { return row{c, ok, ok, plain, plain} }

	members := []row{ // of a group with members, except in CompletingRebalance
		same(caller("m1", 7), ok),
		same(caller("m2", 7), ok),
		same(caller("m1", 6), gen),
		same(caller("m1", 8), gen),
		same(caller("m1", -1), gen), // beside a known member
		same(caller("m9", 7), who),
		same(caller("m9", 6), who), // tested first
		same(caller("m9", -1), who),
		same(caller("", 7), who),
		same(static(&i1, "m1", 7), ok),
		same(static(&i1, "m1", 6), gen),
		same(static(&i1, "m2", 7), inst),
		same(static(&i1, "m9", 7), inst),
		same(static(&i1, "", -1), inst),
		same(static(&i9, "m1", 7), who),
		same(static(&i9, "", -1), who),
		txnOnly(caller("", -1), who), // old clients say nothing of themselves
	}
	completing := make([]row, len(members))
	for i, r := range members {
		if r.plain == ok {
			r.plain, r.pln9 = rebal, rebal
		}
		completing[i] = r
	}
	for state, rows := range map[GroupState][]row{
		GroupMissing: {
			same(caller("", -1), ok),
			same(caller("m9", -1), ok), // whatever the member id
			same(static(&i9, "m9", -1), ok),
			{caller("", 0), gen, none, gen, none},
			{caller("m9", 7), gen, none, gen, none},
		},
		GroupDead: {
			same(caller("", -1), dead),
			same(caller("m1", 7), dead),
			same(caller("m9", 0), dead),
		},
		GroupEmpty: {
			same(caller("", -1), ok),
			same(caller("m9", -1), ok),
			same(static(&i9, "m9", -1), ok),
			same(caller("", 7), who),
			same(caller("m9", 7), who),
			same(static(&i9, "m9", 7), who),
		},
		GroupPreparing:  members,
		GroupStable:     members,
		GroupCompleting: completing,
	} {
		view := GroupView{State: state, Generation: 7}
		if state == GroupPreparing || state == GroupCompleting || state == GroupStable {
			view.Member = func(id string) bool { return id == "m1" || id == "m2" }
			view.Instance = func(id string) (string, bool) { return "m1", id == "i1" }
		}
		for _, r := range rows {
			name := fmt.Sprintf("%s: %q of generation %d", state, r.caller.MemberID, r.caller.Generation)
			if r.caller.InstanceID != nil {
				name += " as " + *r.caller.InstanceID
			}
			t.Run(name, func(t *testing.T) {
				for v := int16(0); v <= 5; v++ {
					require.Equal(t, r.txn, CheckTxnCommit(view, r.caller, v), "TxnOffsetCommit v%d", v)
				}
				require.Equal(t, r.txn6, CheckTxnCommit(view, r.caller, 6), "TxnOffsetCommit v6")
				for v := int16(0); v <= 8; v++ {
					require.Equal(t, r.plain, CheckCommit(view, r.caller, v), "OffsetCommit v%d", v)
				}
				require.Equal(t, r.pln9, CheckCommit(view, r.caller, 9), "OffsetCommit v9")
			})
		}
	}
}

// F31.4: no state in which a transactional commit is told of a rebalance.
func TestF31_NoRebalanceInProgressForTransactionalCommits(t *testing.T) {
	for state := GroupMissing; state <= GroupDead; state++ {
		for _, generation := range []int32{-1, 6, 7} {
			for _, member := range []string{"", "m1", "m9"} {
				g := GroupView{State: state, Generation: 7, Member: func(id string) bool { return id == "m1" }}
				code := CheckTxnCommit(g, Caller{MemberID: member, Generation: generation}, 3)
				require.NotEqual(t, txnstate.CodeRebalanceInProgress, code)
			}
		}
	}
}

func TestSimpleGroupsTakeCommitsWithoutMembers(t *testing.T) {
	var g Groups = SimpleGroups{}
	g.Ensure("g")
	require.Equal(t, txnstate.CodeNone, CheckTxnCommit(g.View("g"), Caller{Generation: -1}, 3))
	require.Equal(t, txnstate.CodeIllegalGeneration, CheckTxnCommit(g.View("g"), Caller{MemberID: "m", Generation: 1}, 3))
}

func TestGroupStatesHaveKafkasNames(t *testing.T) {
	var names []string
	for s := GroupMissing; s <= GroupDead+1; s++ {
		names = append(names, s.String())
	}
	require.Equal(t, []string{"missing", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "GroupState(?)"}, names)
}
