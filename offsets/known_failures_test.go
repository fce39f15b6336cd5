package offsets

import (
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Failures of other systems, as the group side meets them: the table at the end
// of DESIGN.md says which test stands for which.

// F38: offsets of a later transaction are not staged beside those of one whose
// marker got lost: its own marker, a commit, would publish both. The client comes
// again, and finds the marker applied.
func TestF38_OffsetsOfALaterTransactionWaitForTheMarkerThatIsMissing(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(7, 3), []Offset{{Topic: "in", Offset: 5}, {Topic: "other", Offset: 50}})
	for range 3 {
		requireCode(t, txnstate.CodeNotEnoughReplicas, k.stage("g", pr(7, 4), at(9)))
	}
	k.restart()
	requireCode(t, txnstate.CodeNotEnoughReplicas, k.stage("g", pr(7, 4), at(9)))
	k.expect("g", "-1", unstable)
	k.mustMark("g", tv2(pr(7, 4), false)) // the abort, late
	k.mustStage("g", pr(7, 4), at(9))
	k.mustMark("g", tv2(pr(7, 5), true))
	k.expect("g", "9", "9")
	got, err := k.m.Fetch("g", []TopicPartition{{"other", 0}}, true)
	if err != nil || got[0].Offset.Offset != -1 {
		t.Errorf("of the aborted transaction: %+v, %v", got, err)
	}
}

// F28, W8: what a producer staged before it was fenced is not merged with what the
// holder after it stages, and a commit of the latter does not publish it.
func TestF28_W8_OffsetsOfAFencedProducerAreNobodysElse(t *testing.T) {
	for _, v := range []txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2} {
		k := newKit(t)
		k.commit("g", at(5))
		k.mustStage("g", pr(7, 0), []Offset{{Topic: "in", Offset: 900}})
		abort, commit := tv1(pr(7, 1), false), tv1(pr(7, 2), true) // the takeover bumps twice
		if v == txnstate.TV2 {
			abort, commit = tv2(pr(7, 1), false), tv2(pr(7, 3), true)
		}
		k.mustMark("g", abort)
		k.restart()
		requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(7, 0), at(901)))
		k.mustStage("g", pr(7, 2), []Offset{{Topic: "other", Offset: 1}})
		requireCode(t, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(7, 0), at(902)))
		k.mustMark("g", commit)
		k.expect("g", "5", "5")
	}
}
