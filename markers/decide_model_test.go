package markers_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// written is a batch, or a marker, of a producer id in a log.
type written struct {
	epoch int16
	coord int32
	mark  bool
}

// decided reads a log from the beginning and judges a marker by what is there.
func decided(log []written, m markers.Marker) txnstate.Code {
	epoch, coord, open := int16(-1), int32(-1), false
	for _, w := range log {
		epoch, open = w.epoch, !w.mark
		if w.mark {
			coord = w.coord
		}
	}
	tv2 := m.TransactionVersion >= txnstate.TV2
	switch {
	case m.Producer.Epoch < epoch, tv2 && open && m.Producer.Epoch == epoch && epoch != txnstate.FenceEpoch:
		return txnstate.CodeInvalidProducerEpoch
	case m.CoordinatorEpoch < coord:
		return txnstate.CodeCoordinatorFenced
	}
	return txnstate.CodeNone
}

// I4, I5: any marker after any history of a producer at a partition is judged as
// by a reader of its whole log, through fence's own books.
func TestDecideIsTheModel(t *testing.T) {
	seen := map[txnstate.Code]int{}
	rapid.Check(t, func(t *rapid.T) {
		const id = 7
		var log []written
		p := fence.NewPartition(fence.Config{NoVerification: true})
		seq, end := int32(0), int64(0)
		for range 40 {
			who := txnstate.Producer{ID: id, Epoch: int16(rapid.SampledFrom([]int{0, 1, 2, 3, 4, 32766, 32767}).Draw(t, "epoch"))}
			if rapid.Bool().Draw(t, "batch") {
				if n := len(log); n == 0 || log[n-1].epoch != who.Epoch {
					seq = 0
				}
				b := fence.Batch{Producer: who, FirstSequence: seq, Records: 1, Transactional: true}
				r, err := p.Reserve(b, fence.Guard{}, 1)
				if err != nil || r.Duplicate {
					continue
				}
				r.Settle(end)
				end, seq = end+1, seq+1
				log = append(log, written{epoch: who.Epoch})
				continue
			}
			m := markers.Marker{
				Producer: who, Commit: rapid.Bool().Draw(t, "commit"), CoordinatorEpoch: rapid.Int32Range(0, 3).Draw(t, "coordinator"),
				TransactionVersion: txnstate.TransactionVersion(rapid.IntRange(0, 2).Draw(t, "version")),
			}
			st, known := p.Producer(id)
			got, want := txnstate.CodeOf(markers.Decide(m, st, known)), decided(log, m)
			if got != want {
				t.Fatalf("%+v after %+v: %s, want %s", m, log, got, want)
			}
			seen[got]++
			if got == txnstate.CodeNone {
				p.Mark(m.Mark(1), end)
				end++
				log = append(log, written{epoch: who.Epoch, coord: m.CoordinatorEpoch, mark: true})
			}
		}
	})
	for _, c := range []txnstate.Code{txnstate.CodeNone, txnstate.CodeInvalidProducerEpoch, txnstate.CodeCoordinatorFenced} {
		if seen[c] == 0 {
			t.Errorf("never answered %s", c)
		}
	}
}
