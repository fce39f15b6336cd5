package fence_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// All of a producer's that were overtaken hold the last stable offset, and not
// only the latest of them: the earlier can be further below.
func TestTheFirstThatWasOvertakenHoldsTheLastStableOffset(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)) // at 0 or above
	l.reserve(plain(8, 0, 0, 5)).Settle(1)
	l.reserve(batch(7, 0, 1, 1)) // at 6 or above
	l.reserve(batch(7, 0, 2, 1)).Settle(9)
	l.stable("the first is somewhere below", 10, 0)
}

// A marker that was not appended is undone for all that stand behind it.
func TestACancelledMarkerIsUndoneForAllBehindIt(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	m := mark(7, 0, true)
	m.CoordinatorEpoch = 9
	gone := l.p.ReserveMark(m)
	behind := []fence.Reservation{l.reserve(plain(7, 0, 1, 1)), l.reserve(plain(7, 0, 2, 1)), l.reserve(plain(7, 0, 3, 1))}
	gone.Cancel()
	for i, r := range behind {
		if st, _ := l.p.Producer(7); !st.Open || st.CoordinatorEpoch != -1 {
			t.Errorf("%d are settled: %+v", i, st)
		}
		r.Settle(int64(1 + i))
	}
	if st, _ := l.p.Producer(7); !st.Open || st.OpenSince != 0 || st.CoordinatorEpoch != -1 {
		t.Errorf("%+v", st)
	}
	l.stable("the transaction is open", 4, 0)
}

// What is found in the log counts for all that is on its way.
func TestReplayUnderSeveralReservations(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	rs := []fence.Reservation{l.reserve(batch(7, 0, 1, 1)), l.reserve(batch(7, 0, 2, 1)), l.reserve(batch(7, 0, 3, 1))}
	m := mark(7, 0, true)
	m.CoordinatorEpoch = 9
	l.p.Replay(fence.Batch{Producer: m.Producer, Records: 1, Control: true}, 1, &m)
	for i, r := range rs {
		r.Settle(int64(2 + i))
		if st, _ := l.p.Producer(7); st.CoordinatorEpoch != 9 {
			t.Errorf("%d are settled: %+v", i+1, st)
		}
	}
}

// F14: a batch of an epoch that is gone, in a log in which epochs go back, is no
// batch of the epoch that is valid: no batch is answered as its duplicate, and a
// restart can read the state.
func TestF14_ABatchOfAGoneEpochIsNoDuplicateOfALaterOne(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	m := mark(7, 2, false)
	p.Replay(fence.Batch{Producer: m.Producer, Records: 1, Control: true}, 0, &m)
	p.Replay(plain(7, 1, 5, 1), 1, nil)
	if st, _ := p.Producer(7); st.Producer.Epoch != 2 || st.LastSequence != -1 {
		t.Errorf("%+v", st)
	}
	if _, err := fence.RestorePartition(fence.Config{}, p.AppendSnapshot(nil)); err != nil {
		t.Error(err)
	}
	p.Replay(plain(7, 2, 0, 1), 2, nil)
	r, err := p.Reserve(plain(7, 2, 5, 1), fence.Guard{}, 0)
	if codeOf(err) != outOfOrder {
		t.Errorf("%+v, %v", r, err)
	}
}

// Records say what they like about the time: a producer is not older for one that
// says little.
func TestAnOldTimestampMakesNoProducerOlder(t *testing.T) {
	day := 24 * time.Hour.Milliseconds()
	p := fence.NewPartition(fence.Config{})
	young, old := plain(7, 0, 0, 1), plain(7, 0, 1, 1)
	young.MaxTimestampMs, old.MaxTimestampMs = 10*day, 1
	p.Replay(young, 0, nil)
	p.Replay(old, 1, nil)
	p.Expire(10*day + 1)
	if _, known := p.Producer(7); !known {
		t.Error("it is forgotten")
	}
}

// Control batches that are no markers open no transaction, whoever they say they
// are from.
func TestAControlBatchThatIsNoMarkerMeansNothing(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	p.Replay(fence.Batch{Producer: txnstate.Producer{ID: 7, Epoch: 1}, FirstSequence: -1, Control: true, Transactional: true, Records: 1}, 0, nil)
	if got := p.Producers(); len(got) > 0 || p.End() != 1 || p.LastStable(1) != 1 {
		t.Errorf("%+v, end %d, last stable %d", got, p.End(), p.LastStable(1))
	}
}

// A producer is not forgotten while something of it is on its way, however long it
// has been idle before.
func TestAProducerWithReservationsDoesNotExpire(t *testing.T) {
	h := newHost(t)
	h.want("the first", h.produce(plain(7, 0, 0, 1), fence.ModeDefault), "0")
	r, err := h.p.Reserve(plain(7, 0, 1, 1), fence.Guard{}, h.now)
	if err != nil {
		t.Fatal(err)
	}
	h.now += 48 * time.Hour.Milliseconds()
	h.p.Expire(h.now)
	h.want("the next, too early", h.append(plain(7, 0, 3, 1), fence.Guard{}), outOfOrder)
	r.Settle(1)
	h.end = 2
	h.want("once more", h.append(plain(7, 0, 1, 1), fence.Guard{}), "duplicate of 1")
}

// A batch that is on its way is known by both its sequence and its records.
func TestABatchOfOtherRecordsIsNotTheOneOnItsWay(t *testing.T) {
	l := newLate(t)
	l.reserve(plain(7, 0, 0, 2))
	l.refused("fewer", plain(7, 0, 0, 1), outOfOrder)
	l.refused("the same", plain(7, 0, 0, 2), notYet)
}

// KAFKA-18202 is for transactions that begin as those of TV2 do: that counts from
// the question that was first.
func TestALaterQuestionDoesNotMakeATransactionOneOfTV2(t *testing.T) {
	h := newHost(t)
	b := batch(7, 1, 3, 1)
	g, _, err := h.p.Verify(b, fence.ModeGeneric, h.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.p.Verify(b, fence.ModeAdd, h.now); err != nil {
		t.Fatal(err)
	}
	h.want("the batch", h.append(b, g), "0")
}

// A snapshot that has a producer twice is damaged: which of the two counts can't be
// told.
func TestASnapshotWithAProducerTwiceIsRefused(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	p.Replay(plain(7, 0, 0, 1), 0, nil)
	p.Replay(plain(8, 0, 0, 1), 1, nil)
	b := p.AppendSnapshot(nil)
	b = b[:len(b)-4]
	found := 0
	for i := 8; i < len(b); i++ {
		if b[i] == 2*8 { // 8, as a varint
			c := bytes.Clone(b)
			c[i] = 2 * 7
			if _, err := fence.RestorePartition(fence.Config{}, sealed(c)); err != nil && strings.Contains(err.Error(), "producer id 7 behind 7") {
				found++
			}
		}
	}
	if found != 1 {
		t.Errorf("refused for it %d times", found)
	}
}
