package fence_test

import (
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Corners that the other tests walk past: found by changing the code and seeing
// no test fail (internal/mutate).

// Kafka's first producer id is 0: it is a producer like any other.
func TestProducerIDZeroIsAProducer(t *testing.T) {
	h := newHost(t)
	h.want("a batch", h.produce(batch(0, 0, 0, 1), fence.ModeAdd), "0")
	h.want("again", h.produce(batch(0, 0, 0, 1), fence.ModeAdd), "duplicate of 0")
	if st, known := h.p.Producer(0); !known || !st.Open {
		t.Errorf("%+v", st)
	}
	h.want("its marker", h.abort(0, 1), "1")
	if st, _ := h.p.Producer(0); st.Open || st.Producer.Epoch != 1 {
		t.Errorf("%+v", st)
	}
	who := txnstate.Producer{ID: 0, Epoch: 1}
	g, ask, err := h.p.VerifyOffsets(who, fence.ModeAdd, h.now)
	if g == (fence.Guard{}) || !ask || err != nil {
		t.Errorf("offsets: %v, %v, %v", g, ask, err)
	}
	if _, err := h.p.ReserveOffsets(who, g, h.now); err != nil {
		t.Error(err)
	}
	if p := h.rebuilt(nil); known(p, h.end) == known(fence.NewPartition(fence.Config{}), h.end) {
		t.Error("replay passes it over")
	}
}

// No producer id leaves nothing behind: the coordinator refuses it.
func TestOffsetsWithoutAProducerLeaveNothing(t *testing.T) {
	h := newHost(t)
	g, ask, err := h.p.VerifyOffsets(txnstate.NoProducer, fence.ModeAdd, h.now)
	if g != (fence.Guard{}) || !ask || err != nil || h.p.Kept() != 0 {
		t.Errorf("%v, %v, %v, %d kept", g, ask, err, h.p.Kept())
	}
}

// A question that came to nothing takes no memory any more once it has expired.
func TestAnExpiredQuestionIsForgottenWhole(t *testing.T) {
	h := newHost(t)
	for id := range int64(100) {
		if _, _, err := h.p.Verify(batch(id, 0, 0, 1), fence.ModeDefault, h.now); err != nil {
			t.Fatal(err)
		}
	}
	h.p.Expire(h.now + 24*time.Hour.Milliseconds() - 1)
	if n := h.p.Kept(); n != 100 {
		t.Errorf("%d kept before their time is over", n)
	}
	h.p.Expire(h.now + 24*time.Hour.Milliseconds())
	if n := h.p.Kept(); n != 0 {
		t.Errorf("%d kept", n)
	}
}

// A batch is cancelled that had used its question up, and what is reserved behind
// it would not have: the question is open again.
func TestACancelledBatchGivesItsQuestionBackOverWhatLeavesItAlone(t *testing.T) {
	h := newHost(t)
	b := batch(7, 1, 0, 1)
	g, _, err := h.p.Verify(b, fence.ModeAdd, h.now)
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.p.Reserve(b, g, h.now)
	if err != nil {
		t.Fatal(err)
	}
	mk := h.p.ReserveMark(fence.Mark{Producer: b.Producer}) // at the epoch of a client of TV2, which may be ahead of it
	r.Cancel()
	mk.Settle(0)
	h.end = 1
	h.want("the batch, once more", h.append(b, g), "1")
}

// Of what is on its way only what was overtaken holds the last stable offset.
func TestWhatIsNotOvertakenHoldsNothing(t *testing.T) {
	h := newHost(t)
	verified := func(b fence.Batch) fence.Reservation {
		g, _, err := h.p.Verify(b, fence.ModeAdd, h.now)
		if err != nil {
			t.Fatal(err)
		}
		r, err := h.p.Reserve(b, g, h.now)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	other := verified(batch(1, 0, 0, 1)) // may turn out to be at 0, and has not been overtaken
	plainBatch := plain(2, 0, 0, 5)
	r, err := h.p.Reserve(plainBatch, fence.Guard{}, h.now)
	if err != nil {
		t.Fatal(err)
	}
	r.Settle(0)
	first := verified(batch(3, 0, 0, 1))
	second := verified(batch(3, 0, 1, 1))
	third := verified(batch(3, 0, 2, 1))
	third.Settle(9)
	second.Settle(8)
	if lso := h.p.LastStable(10); lso != 5 {
		t.Errorf("last stable %d, want 5: where the batch that was overtaken can be at the lowest", lso)
	}
	first.Settle(7)
	other.Settle(10)
	if n := h.p.Overtaken(); n != 0 {
		t.Errorf("%d are counted as overtaken", n)
	}
	if lso := h.p.LastStable(11); lso != 7 {
		t.Errorf("last stable %d", lso)
	}
}

// The start of a log does not go back.
func TestTheLogsStartDoesNotGoBack(t *testing.T) {
	h := newHost(t)
	h.produce(batch(7, 0, 0, 1), fence.ModeAdd)
	h.p.LogStart(10)
	h.p.LogStart(5)
	if lso := h.p.LastStable(12); lso != 10 {
		t.Errorf("last stable %d", lso)
	}
}
