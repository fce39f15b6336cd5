package fence_test

import (
	"math"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestTheLastFiveBatchesAreKnownAgain(t *testing.T) {
	h := newHost(t)
	for i := range int32(6) {
		h.produce(plain(7, 0, i*10, 10), fence.ModeDefault)
	}
	h.want("the sixth last", h.produce(plain(7, 0, 0, 10), fence.ModeDefault), outOfOrder)
	h.want("the fifth last", h.produce(plain(7, 0, 10, 10), fence.ModeDefault), "duplicate of 10")
	h.want("the last", h.produce(plain(7, 0, 50, 10), fence.ModeDefault), "duplicate of 50")
	h.want("only the first sequence agrees", h.produce(plain(7, 0, 50, 9), fence.ModeDefault), outOfOrder)
	h.want("only the last sequence agrees", h.produce(plain(7, 0, 51, 9), fence.ModeDefault), outOfOrder)
	h.want("the next", h.produce(plain(7, 0, 60, 1), fence.ModeDefault), "60")
	if h.end != 61 {
		t.Errorf("the log ends at %d", h.end)
	}
}

func TestADuplicateHasTheTimestampOfTheOriginal(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	b := plain(7, 0, 0, 2)
	r, _ := p.Reserve(b, fence.Guard{}, 0)
	r.Settle(40)
	b.MaxTimestampMs = 999
	r, err := p.Reserve(b, fence.Guard{}, 0)
	if err != nil || !r.Duplicate || r.Offset != 40 || r.TimestampMs != 500 {
		t.Errorf("%+v, %v", r, err)
	}
	r.Settle(70) // does nothing
	r.Cancel()
	if p.End() != 42 {
		t.Errorf("end %d", p.End())
	}
}

// Kafka counts 2147483647, 0, 1 (DefaultRecordBatch.incrementSequence).
func TestSequencesWrap(t *testing.T) {
	for _, c := range []struct {
		first, records, last int32
	}{
		{0, 1, 0}, {5, 3, 7}, {math.MaxInt32, 1, math.MaxInt32}, {math.MaxInt32, 2, 0},
		{math.MaxInt32 - 1, 3, 0}, {math.MaxInt32 - 1, 5, 2}, {-1, 3, -1},
	} {
		if got := (fence.Batch{FirstSequence: c.first, Records: c.records}).LastSequence(); got != c.last {
			t.Errorf("from %d, %d records: last %d, want %d", c.first, c.records, got, c.last)
		}
	}
	h := newHost(t)
	h.want("a producer that is not known", h.produce(plain(7, 0, math.MaxInt32-1, 3), fence.ModeDefault), "0")
	h.want("0 again", h.produce(plain(7, 0, 0, 1), fence.ModeDefault), outOfOrder)
	h.want("behind the wrap", h.produce(plain(7, 0, 1, 1), fence.ModeDefault), "3")
	h.want("across the wrap, again", h.produce(plain(7, 0, math.MaxInt32-1, 3), fence.ModeDefault), "duplicate of 0")
	h = newHost(t)
	h.want("up to the last", h.produce(plain(7, 0, math.MaxInt32, 1), fence.ModeDefault), "0")
	h.want("nothing is above it", h.produce(plain(7, 0, 1, 1), fence.ModeDefault), outOfOrder)
	h.want("from 0 on", h.produce(plain(7, 0, 0, 1), fence.ModeDefault), "1")
}

func TestAnEpochStartsItsSequencesAtZero(t *testing.T) {
	h := newHost(t)
	h.produce(plain(7, 0, 0, 5), fence.ModeDefault)
	h.want("the next epoch, going on", h.produce(plain(7, 1, 5, 1), fence.ModeDefault), outOfOrder)
	h.want("the next epoch", h.produce(plain(7, 1, 0, 5), fence.ModeDefault), "5")
	h.want("the epoch before", h.produce(plain(7, 0, 5, 1), fence.ModeDefault), staleEpoch)
	h.want("a batch of the epoch before is no duplicate", h.produce(plain(7, 0, 0, 5), fence.ModeDefault), staleEpoch)
	h.want("again", h.produce(plain(7, 1, 0, 5), fence.ModeDefault), "duplicate of 5")
}

// A producer whose state was lost, or that was never here, may begin anywhere:
// UNKNOWN_PRODUCER_ID is history.
func TestAnUnknownProducerBeginsAnywhere(t *testing.T) {
	h := newHost(t)
	h.want("sequence 17", h.produce(plain(7, 3, 17, 1), fence.ModeDefault), "0")
	h.want("the next", h.produce(plain(7, 3, 18, 1), fence.ModeDefault), "1")
}

// Of a TV2 client nothing is unknown: it begins every transaction with 0
// (KAFKA-18202).
func TestTheFirstBatchOfATV2TransactionHasSequenceZero(t *testing.T) {
	h := newHost(t)
	h.want("TV2", h.produce(batch(7, 0, 5, 1), fence.ModeAdd), outOfOrder)
	h.want("TV1", h.produce(batch(8, 0, 5, 1), fence.ModeDefault), "0")
}

func TestMarkersAndSequences(t *testing.T) {
	h := newHost(t)
	h.produce(batch(7, 4, 0, 3), fence.ModeDefault)
	h.commit(7, 4)
	h.want("a marker at the epoch: duplicates are found", h.append(batch(7, 4, 0, 3), fence.Guard{}), "duplicate of 0")
	h.want("and the sequences go on", h.produce(batch(7, 4, 3, 1), fence.ModeDefault), "4")
	h.abort(7, 5)
	h.want("a marker at a new epoch: they begin again", h.produce(batch(7, 5, 4, 1), fence.ModeDefault), outOfOrder)
	h.want("from 0", h.produce(batch(7, 5, 0, 1), fence.ModeDefault), "6")
	if st, _ := h.p.Producer(7); st.LastSequence != 0 || st.Producer.Epoch != 5 {
		t.Errorf("%+v", st)
	}
}

func TestABatchOutsideOfTheOpenTransaction(t *testing.T) {
	h := newHost(t)
	h.produce(batch(7, 0, 0, 1), fence.ModeDefault)
	h.want("in sequence", h.produce(plain(7, 0, 1, 1), fence.ModeDefault), invalidState)
	h.want("out of sequence, which is tested first", h.produce(plain(7, 0, 3, 1), fence.ModeDefault), outOfOrder)
	h.want("of a later epoch", h.produce(plain(7, 1, 0, 1), fence.ModeDefault), invalidState)
	h.want("a duplicate by its sequences", h.produce(plain(7, 0, 0, 1), fence.ModeDefault), "duplicate of 0")
	h.commit(7, 0)
	h.want("when it has ended", h.produce(plain(7, 0, 1, 1), fence.ModeDefault), "2")
}

func TestABatchWithoutAProducerIsPlainData(t *testing.T) {
	h := newHost(t)
	for _, id := range []int64{-1, -2} {
		b := batch(id, 9, -7, 2)
		g, ask, err := h.p.Verify(b, fence.ModeAdd, h.now)
		if g != (fence.Guard{}) || ask || err != nil {
			t.Errorf("Verify: %v, %v, %v", g, ask, err)
		}
		before := h.end
		h.append(b, g)
		if h.end != before+2 {
			t.Error("it was not let in")
		}
	}
	if got := h.p.Producers(); len(got) > 0 {
		t.Errorf("producers %v", got)
	}
	if lso := h.p.LastStable(h.end); lso != h.end {
		t.Errorf("last stable %d", lso)
	}
	b := batch(-1, -1, -1, 1)
	b.Control = true
	h.want("a control batch", h.append(b, fence.Guard{}), invalid)
}

func TestBatchesThatAreNoneOfAProducer(t *testing.T) {
	h := newHost(t)
	h.want("without a sequence", h.produce(plain(7, 0, -1, 1), fence.ModeDefault), invalid)
	h.want("without records", h.produce(plain(7, 0, 0, 0), fence.ModeDefault), invalid)
	b := batch(7, 0, 0, 1)
	b.Control = true
	h.want("a control batch", h.produce(b, fence.ModeDefault), invalid)
	h.want("of epoch -1, in a transaction", h.append(batch(7, -1, 0, 1), fence.Guard{}), invalidState)
	h.want("of epoch -2", h.append(plain(7, -2, 0, 1), fence.Guard{}), staleEpoch)
	if got := h.p.Producers(); len(got) > 0 {
		t.Errorf("producers %v", got)
	}
}

// F38: the marker of a transaction got lost, and its producer goes on with the
// next. That is not merged into the one that is open: its marker would close both.
// The coordinator is asked all the same, each time.
func TestF38_ALaterTransactionIsNotMergedIntoOneThatIsOpen(t *testing.T) {
	for _, mode := range []fence.Mode{fence.ModeDefault, fence.ModeAdd} {
		h := newHost(t)
		h.want("the first", h.produce(batch(7, 0, 0, 2), mode), "0")
		h.want("not verified", h.append(batch(7, 1, 0, 1), fence.Guard{}), invalidState)
		for range 3 {
			g, ask, err := h.p.Verify(batch(7, 1, 0, 1), mode, h.now)
			if !ask || err != nil {
				t.Fatalf("asked %v, %v", ask, err)
			}
			h.want("verified", h.append(batch(7, 1, 0, 1), g), comeAgain)
		}
		st, _ := h.p.Producer(7)
		if !st.Open || st.OpenSince != 0 || st.Producer.Epoch != 0 {
			t.Errorf("%+v", st)
		}
		h.want("its marker, late", h.mark(markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 1}, TransactionVersion: txnstate.TV2}), "2")
		h.want("the next", h.produce(batch(7, 1, 0, 1), mode), "3")
		h.want("its own marker", h.mark(markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 2}, Commit: true, TransactionVersion: txnstate.TV2}), "4")
		if got := h.p.Aborted(0, 5); len(got) != 1 || got[0].First != 0 || got[0].Last != 2 {
			t.Errorf("aborted %+v", got)
		}
	}
}

func TestW13_W14_FencedEpochs(t *testing.T) {
	h := newHost(t)
	h.p.Fence(txnstate.Producer{ID: 7, Epoch: 9})
	if _, known := h.p.Producer(7); known {
		t.Error("a fence made a producer known (W14)")
	}
	h.produce(batch(7, 1, 0, 1), fence.ModeDefault)
	h.p.Fence(txnstate.Producer{ID: 7, Epoch: 3})
	h.p.Fence(txnstate.Producer{ID: 7, Epoch: 2}) // late
	for _, b := range []fence.Batch{batch(7, 1, 1, 1), batch(7, 2, 0, 1), batch(7, 1, 0, 1)} {
		h.want("Verify", h.produce(b, fence.ModeDefault), staleEpoch)
		h.want("Reserve", h.append(b, fence.Guard{}), staleEpoch)
	}
	if _, err := h.p.ReserveOffsets(txnstate.Producer{ID: 7, Epoch: 2}, fence.Guard{}, h.now); codeOf(err) != staleEpoch {
		t.Errorf("offsets: %v", err)
	}
	p, err := fence.RestorePartition(fence.Config{}, h.p.AppendSnapshot(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Verify(batch(7, 2, 0, 1), fence.ModeDefault, h.now); codeOf(err) != staleEpoch {
		t.Errorf("after a restart (W13): %v", err)
	}
	// The marker that the fence announces is above the stored epoch, not above
	// the fence, and has to pass the strict rule.
	h.want("its marker", h.mark(markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 3}, TransactionVersion: txnstate.TV2}), "1")
	h.want("the new holder", h.produce(batch(7, 3, 0, 1), fence.ModeAdd), "2")
}
