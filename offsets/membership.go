package offsets

import "github.com/kafkatxn/kafkatxn/txnstate"

// GroupState is where a consumer group of the classic protocol stands. The
// names are Kafka's (ClassicGroupState).
type GroupState uint8

const (
	GroupMissing    GroupState = iota // no such group
	GroupEmpty                        // no members
	GroupPreparing                    // PreparingRebalance
	GroupCompleting                   // CompletingRebalance
	GroupStable
	GroupDead // being removed
)

func (s GroupState) String() string {
	switch s {
	case GroupMissing:
		return "missing"
	case GroupEmpty:
		return "Empty"
	case GroupPreparing:
		return "PreparingRebalance"
	case GroupCompleting:
		return "CompletingRebalance"
	case GroupStable:
		return "Stable"
	case GroupDead:
		return "Dead"
	}
	return "GroupState(?)"
}

// GroupView is what the membership rules look at of a group, at one moment.
type GroupView struct {
	State GroupState
	// Generation: every completed join round makes it one more, and so does the
	// last member's leaving.
	Generation int32
	// Member reports whether a member id is one of the group's; nil: none is.
	Member func(memberID string) bool
	// Instance is the member that owns a static instance id
	// (group.instance.id); nil: there are no static members.
	Instance func(instanceID string) (memberID string, ok bool)
}

// Caller is who a commit says it is from.
type Caller struct {
	MemberID   string  // "" for none
	InstanceID *string // nil for none
	Generation int32   // -1 for none
}

// Groups is the host's group coordinator, as far as commits need it. The
// methods may be called concurrently, with no lock held, and do not wait.
type Groups interface {
	// View is the group at this moment.
	View(group string) GroupView
	// Ensure makes a group that is missing exist from now on: without members,
	// Empty, generation 0 (what Kafka calls a simple group). A repeat is
	// harmless. It is called when a commit without a generation for a missing
	// group was accepted.
	Ensure(group string)
}

// SimpleGroups is Groups for a host without group membership: no group has
// members, every commit without a generation is accepted, every other refused.
type SimpleGroups struct{}

var _ Groups = SimpleGroups{}

// View is always that of a missing group.
func (SimpleGroups) View(string) GroupView { return GroupView{} }

// Ensure does nothing.
func (SimpleGroups) Ensure(string) {}

// CheckTxnCommit decides whether a TxnOffsetCommit of this version is accepted
// from this caller: CodeNone, or the code that every partition of the request is
// answered with. It is asked after the transaction was verified (Verify) and
// before Stage, as in Kafka: a request of version 5 may have added the offsets
// partition to the transaction although the commit is then refused.
//
// The rules are those of ClassicGroup.validateOffsetCommit (KIP-447). A
// rebalance under way does not refuse a transactional commit: clients don't
// expect REBALANCE_IN_PROGRESS from this API, and the generation tells a member
// of the round before from one of the round to come.
func CheckTxnCommit(g GroupView, c Caller, version int16) txnstate.Code {
	if g.State == GroupMissing && c.Generation >= 0 {
		if version >= 6 {
			return txnstate.CodeGroupIDNotFound
		}
		return txnstate.CodeIllegalGeneration
	}
	return checkCommit(g, c, true)
}

// CheckCommit is CheckTxnCommit for a plain OffsetCommit, which in a group with
// members must come from one of them, and not while the group waits for its
// leader's assignment.
func CheckCommit(g GroupView, c Caller, version int16) txnstate.Code {
	if g.State == GroupMissing && c.Generation >= 0 {
		if version >= 9 {
			return txnstate.CodeGroupIDNotFound
		}
		return txnstate.CodeIllegalGeneration
	}
	return checkCommit(g, c, false)
}

func checkCommit(g GroupView, c Caller, transactional bool) txnstate.Code {
	switch {
	case g.State == GroupMissing:
		return txnstate.CodeNone // becomes a simple group
	case g.State == GroupDead:
		return txnstate.CodeCoordinatorNotAvailable
	case g.State == GroupEmpty && c.Generation < 0:
		// An administrator, or a consumer that assigns its partitions itself. The
		// member id does not matter.
		return txnstate.CodeNone
	case c.Generation >= 0 || c.MemberID != "" || c.InstanceID != nil:
		if code := checkMember(g, c); code != txnstate.CodeNone {
			return code
		}
	case !transactional && g.State != GroupEmpty:
		return txnstate.CodeUnknownMemberID
	}
	if !transactional && g.State == GroupCompleting {
		return txnstate.CodeRebalanceInProgress
	}
	return txnstate.CodeNone
}

func checkMember(g GroupView, c Caller) txnstate.Code {
	if c.InstanceID != nil {
		owner, ok := "", false
		if g.Instance != nil {
			owner, ok = g.Instance(*c.InstanceID)
		}
		if !ok {
			return txnstate.CodeUnknownMemberID
		}
		if owner != c.MemberID {
			return txnstate.CodeFencedInstanceID
		}
	}
	if g.Member == nil || !g.Member(c.MemberID) {
		return txnstate.CodeUnknownMemberID
	}
	if c.Generation != g.Generation {
		return txnstate.CodeIllegalGeneration
	}
	return txnstate.CodeNone
}
