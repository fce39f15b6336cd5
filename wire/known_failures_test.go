package wire_test

import (
	"testing"

	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// Failures of other systems, as requests meet them: the table at the end of
// DESIGN.md says which test stands for which.

// overtaking is a group coordinator where, just after a commit's member was
// looked at, the group rebalances and the partition's next owner asks for its
// position.
type overtaking struct {
	*host
	then func()
}

func (o overtaking) View(group string) offsets.GroupView {
	v := o.host.View(group)
	o.then()
	return v
}

// F30, F31: a commit whose member was found good is on its way, and who asks for
// a stable position is told to wait for it. Otherwise the partition's next owner
// would begin at the position before, and what the commit covers be processed
// twice.
func TestF30_F31_ACommitThatPassedItsCheckIsNotOverlooked(t *testing.T) {
	var h *host
	var seen []txnstate.Code
	h = newHost(t, func(w *wire.Config, _ *txnstate.Config) {
		w.Groups = overtaking{w.Groups.(*host), func() {
			for _, stable := range []bool{true, false} {
				got, err := h.offsets.Fetch("g", []offsets.TopicPartition{{Topic: "a"}, {Topic: "b"}}, stable)
				if err != nil {
					t.Error(err)
				}
				for _, f := range got {
					seen = append(seen, f.Code)
				}
			}
		}}
	})
	h.addTopic("a", 1)
	p := h.initTxn(t, "tx")
	want := []txnstate.Code{txnstate.CodeUnstableOffsetCommit, 0, 0, 0}
	for _, commit := range []func() []int16{
		func() []int16 { return h.plainCommit(t, plainOffsets(8, "g", "a")) },
		func() []int16 { return h.txnCommit(t, txnOffsets(5, "tx", "g", p, "a")) },
	} {
		seen = nil
		wantCodes(t, "commit", commit(), 0)
		if len(seen) != 4 || seen[0] != want[0] || seen[1] != want[1] || seen[2] != want[2] || seen[3] != want[3] {
			t.Errorf("while it was on its way: %v, want %v", seen, want)
		}
	}
	end := endRequest(5, "tx", p, true)
	if _, err := h.Handle(t.Context(), end, "User:test"); err != nil {
		t.Fatal(err)
	}
	if h.offsets.HasPending("g") {
		t.Error("an announcement was left behind")
	}
}
