package fence_test

import (
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// late is a host that learns offsets after it has let batches in: it uploads
// them, and a sequencer says where they are.
type late struct {
	t *testing.T
	p *fence.Partition
}

func newLate(t *testing.T) late { return late{t, fence.NewPartition(fence.Config{})} }

func (l late) reserve(b fence.Batch) fence.Reservation {
	l.t.Helper()
	g, _, err := l.p.Verify(b, fence.ModeDefault, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	r, err := l.p.Reserve(b, g, 0)
	if err != nil || r.Duplicate {
		l.t.Fatalf("%+v: %+v, %v", b, r, err)
	}
	return r
}

func (l late) refused(what string, b fence.Batch, want string) {
	l.t.Helper()
	if r, err := l.p.Reserve(b, fence.Guard{}, 0); codeOf(err) != want {
		l.t.Errorf("%s: %+v, %v, want %s", what, r, err, want)
		r.Cancel()
	}
}

func (l late) stable(what string, hw, want int64) {
	l.t.Helper()
	if got := l.p.LastStable(hw); got != want {
		l.t.Errorf("%s: last stable %d under %d, want %d", what, got, hw, want)
	}
}

func mark(pid int64, epoch int16, commit bool) fence.Mark {
	return fence.Mark{Producer: txnstate.Producer{ID: pid, Epoch: epoch}, Commit: commit}
}

func TestSeveralBatchesOnTheirWay(t *testing.T) {
	l := newLate(t)
	a, b, c := l.reserve(batch(7, 0, 0, 1)), l.reserve(batch(7, 0, 1, 1)), l.reserve(batch(7, 0, 2, 1))
	st, ok := l.p.Producer(7)
	if !ok || !st.Open || st.OpenSince != -1 || st.LastSequence != 2 {
		t.Errorf("reserved: %+v", st)
	}
	l.refused("the second again: its offset isn't known", batch(7, 0, 1, 1), notYet)
	l.refused("a gap", batch(7, 0, 4, 1), outOfOrder)
	l.refused("outside of the transaction", plain(7, 0, 3, 1), invalidState)
	l.stable("nothing is in the log", 10, 10)
	c.Settle(30)
	l.stable("the first two are somewhere below 30", 31, 0)
	a.Settle(10)
	l.stable("the transaction began at 10", 31, 10)
	b.Settle(20)
	l.stable("all are settled", 31, 10)
	if st, _ := l.p.Producer(7); st.OpenSince != 10 {
		t.Errorf("settled: %+v", st)
	}
	for seq, at := range map[int32]int64{0: 10, 1: 20, 2: 30} {
		r, err := l.p.Reserve(batch(7, 0, seq, 1), fence.Guard{}, 0)
		if err != nil || !r.Duplicate || r.Offset != at {
			t.Errorf("sequence %d: %+v, %v", seq, r, err)
		}
	}
}

// Five batches are known again, however many are on their way.
func TestOnlyFiveOfTheReservedAreKnownAgain(t *testing.T) {
	l := newLate(t)
	var rs []fence.Reservation
	for seq := range int32(7) {
		rs = append(rs, l.reserve(batch(7, 0, seq, 1)))
	}
	l.refused("the sixth last", batch(7, 0, 1, 1), outOfOrder)
	l.refused("the fifth last", batch(7, 0, 2, 1), notYet)
	for i, r := range rs[:3] {
		r.Settle(int64(i))
	}
	l.refused("the sixth last, settled", batch(7, 0, 1, 1), outOfOrder)
	if r, err := l.p.Reserve(batch(7, 0, 2, 1), fence.Guard{}, 0); err != nil || r.Offset != 2 || !r.Duplicate {
		t.Errorf("the fifth last, settled: %+v, %v", r, err)
	}
}

func TestTheLastOnesCanBeCancelled(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	b, c := l.reserve(batch(7, 0, 1, 1)), l.reserve(batch(7, 0, 2, 1))
	c.Cancel()
	l.refused("with a gap", batch(7, 0, 3, 1), outOfOrder)
	c = l.reserve(batch(7, 0, 2, 1))
	c.Cancel()
	b.Cancel()
	b.Settle(9) // too late
	c.Cancel()
	l.reserve(batch(7, 0, 1, 1)).Settle(1)
	if st, _ := l.p.Producer(7); st.LastSequence != 1 {
		t.Errorf("%+v", st)
	}
}

func TestANewProducersCancelledBatchLeavesNothing(t *testing.T) {
	l := newLate(t)
	r, err := l.p.Reserve(plain(7, 3, 40, 1), fence.Guard{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Cancel()
	if st, ok := l.p.Producer(7); ok || len(l.p.Producers()) > 0 {
		t.Errorf("%+v", st)
	}
	l.reserve(plain(7, 0, 0, 1)).Settle(0)
}

func TestCancelInTheMiddleAndOfAllBehind(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	a, b, c := l.reserve(batch(7, 0, 1, 1)), l.reserve(batch(7, 0, 2, 1)), l.reserve(batch(7, 0, 3, 1))
	a.Cancel()
	l.refused("the cancelled one, while others are behind it", batch(7, 0, 1, 1), comeAgain)
	l.refused("the next one", batch(7, 0, 4, 1), comeAgain)
	c.Cancel()
	l.refused("one is left", batch(7, 0, 1, 1), comeAgain)
	b.Cancel()
	l.reserve(batch(7, 0, 1, 1)).Settle(1)
	l.reserve(batch(7, 0, 2, 1)).Settle(2)
}

func TestCancelInTheMiddleOfWhatIsInTheLog(t *testing.T) {
	l := newLate(t)
	a, b := l.reserve(batch(7, 0, 0, 1)), l.reserve(batch(7, 0, 1, 1))
	b.Settle(5)
	l.stable("the first may be below", 6, 0)
	a.Cancel()
	l.stable("the second began the transaction", 6, 5)
	l.refused("the gap stays", batch(7, 0, 0, 1), outOfOrder)
	l.reserve(batch(7, 0, 2, 1)).Settle(6)
	if st, _ := l.p.Producer(7); st.OpenSince != 5 || st.LastSequence != 2 {
		t.Errorf("%+v", st)
	}
}

// A marker that was reserved behind a batch ends a transaction that holds it,
// whatever is settled first.
func TestAMarkerDoesNotOvertakeItsData(t *testing.T) {
	l := newLate(t)
	a := l.reserve(batch(7, 0, 0, 2))
	m := l.p.ReserveMark(mark(7, 1, false))
	if st, _ := l.p.Producer(7); st.Open || st.Producer.Epoch != 1 || st.LastSequence != -1 {
		t.Errorf("reserved: %+v", st)
	}
	m.Settle(20)
	l.stable("the data is missing", 21, 0)
	if got := l.p.Aborted(0, 21); len(got) > 0 {
		t.Errorf("aborted too early: %+v", got)
	}
	a.Settle(10)
	l.stable("it has ended", 21, 21)
	if got := l.p.Aborted(0, 21); len(got) != 1 || got[0] != (fence.Aborted{ProducerID: 7, First: 10, Last: 20, LastStable: 21}) {
		t.Errorf("aborted: %+v", got)
	}
	l.refused("the epoch before", batch(7, 0, 2, 1), staleEpoch)
}

// The next transaction of a TV1 producer, at the same epoch, behind a marker
// whose offset is not known yet.
func TestTheNextTransactionBehindAReservedMarker(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	m := l.p.ReserveMark(mark(7, 0, true))
	l.refused("it needs a question of its own", batch(7, 0, 1, 1), invalidState)
	b := l.reserve(batch(7, 0, 1, 1))
	if st, _ := l.p.Producer(7); !st.Open || st.OpenSince != -1 {
		t.Errorf("reserved: %+v", st)
	}
	b.Settle(9)
	l.stable("the marker is missing", 10, 0)
	if st, _ := l.p.Producer(7); !st.Open || st.OpenSince != 9 {
		t.Errorf("the second settled first: %+v", st)
	}
	m.Settle(5)
	l.stable("the second transaction", 10, 9)
	if open := l.p.Open(); len(open) != 1 || open[0].OpenSince != 9 {
		t.Errorf("open %+v", open)
	}
}

// A question asked before a marker must not let a batch in behind it, though a
// batch between the two is cancelled and gives the question back.
func TestACancelledBatchDoesNotGiveTheQuestionBackBehindAMarker(t *testing.T) {
	l := newLate(t)
	g, _, _ := l.p.Verify(batch(7, 0, 0, 1), fence.ModeDefault, 0)
	a, err := l.p.Reserve(batch(7, 0, 0, 1), g, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := l.p.ReserveMark(mark(7, 0, false))
	a.Cancel()
	m.Settle(0)
	if _, err := l.p.Reserve(batch(7, 0, 0, 1), g, 0); codeOf(err) != invalidState {
		t.Errorf("behind the marker: %v", err)
	}

	l = newLate(t)
	g, _, _ = l.p.Verify(batch(7, 0, 0, 1), fence.ModeDefault, 0)
	a, _ = l.p.Reserve(batch(7, 0, 0, 1), g, 0)
	m = l.p.ReserveMark(mark(7, 0, false))
	a.Cancel()
	m.Cancel()
	if _, err := l.p.Reserve(batch(7, 0, 0, 1), g, 0); err != nil {
		t.Errorf("both were cancelled: %v", err)
	}
}

// What one producer has on its way holds up no reader of the others: only what
// is known to be in the log does.
func TestReservationsOfOthersHoldNothingUp(t *testing.T) {
	l := newLate(t)
	a := l.reserve(batch(7, 0, 0, 1))
	l.reserve(batch(8, 0, 0, 1)).Settle(3)
	l.p.Mark(mark(8, 0, false), 4)
	l.stable("the first one's offset is to come", 5, 5)
	a.Settle(5)
	l.stable("it came", 6, 5)
	if got := l.p.Aborted(0, 6); len(got) != 1 || got[0].Last != 4 {
		t.Errorf("%+v", got)
	}
}

// Producers settle in any order; transactions stay in the order of the log.
func TestTransactionsSettledOutOfOrder(t *testing.T) {
	l := newLate(t)
	a, b, c := l.reserve(batch(1, 0, 0, 1)), l.reserve(batch(2, 0, 0, 1)), l.reserve(batch(3, 0, 0, 1))
	b.Settle(20)
	l.stable("one", 40, 20)
	c.Settle(30)
	a.Settle(10)
	l.stable("all", 40, 10)
	open := l.p.Open()
	if len(open) != 3 || open[0].OpenSince != 10 || open[1].OpenSince != 20 || open[2].OpenSince != 30 {
		t.Errorf("open %+v", open)
	}
	// The markers are settled in the wrong order too.
	ma, mb := l.p.ReserveMark(mark(1, 0, false)), l.p.ReserveMark(mark(2, 0, false))
	mb.Settle(50)
	ma.Settle(40)
	if got := l.p.Aborted(0, 60); len(got) != 2 || got[0].Last != 40 || got[1].Last != 50 {
		t.Errorf("%+v", got)
	}
	l.stable("the third is open", 60, 30)
}

func TestASnapshotLeavesOutWhatIsReserved(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	a := l.reserve(batch(7, 0, 1, 1))
	l.reserve(batch(8, 0, 0, 1)).Settle(5)
	if l.p.End() != 1 {
		t.Errorf("replay from %d: the reserved batch can't be below 1", l.p.End())
	}
	p, err := fence.RestorePartition(fence.Config{}, l.p.AppendSnapshot(nil))
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := p.Producer(7); st.LastSequence != 0 || p.End() != 1 {
		t.Errorf("%+v, end %d", st, p.End())
	}
	a.Settle(4)
	p.Replay(batch(7, 0, 1, 1), 4, nil)
	p.Replay(batch(8, 0, 0, 1), 5, nil) // the snapshot has it already
	if got, want := known(p, 6), known(l.p, 6); got != want {
		t.Errorf("restored:\n%s\nwant\n%s", got, want)
	}
}

func TestAReservationOutlivesItsPartition(t *testing.T) {
	l := newLate(t)
	r := l.reserve(batch(7, 0, 0, 1))
	p, err := fence.RestorePartition(fence.Config{}, l.p.AppendSnapshot(nil))
	if err != nil {
		t.Fatal(err)
	}
	r.Settle(3)
	if _, ok := p.Producer(7); ok {
		t.Error("it reached the new state")
	}
	var zero fence.Reservation
	zero.Settle(1)
	zero.Cancel()
}

func TestReservationsTakeNoMemoryOfTheirOwn(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	seq := int32(0)
	at := int64(0)
	append1 := func() {
		b := plain(7, 0, seq, 1)
		r, err := p.Reserve(b, fence.Guard{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(at)
		seq++
		at++
	}
	append1()
	if n := testing.AllocsPerRun(1000, append1); n > 0 {
		t.Errorf("%v allocations for a batch", n)
	}
	txn := func() {
		b := batch(8, 0, seq, 1)
		g, _, err := p.Verify(b, fence.ModeAdd, 0)
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Reserve(b, g, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(at)
		p.Mark(mark(8, 0, true), at+1)
		p.Stabilize(at + 2)
		p.LastStable(at + 2)
		seq++
		at += 2
	}
	seq = 0
	txn()
	if n := testing.AllocsPerRun(1000, txn); n > 0 {
		t.Errorf("%v allocations for a transaction", n)
	}
}

// Batches of an older epoch are no duplicates, those on their way included.
func TestSequencesOfAnOlderEpochOnTheirWay(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1))
	l.reserve(batch(7, 0, 1, 1))
	l.p.ReserveMark(mark(7, 1, true))
	l.reserve(batch(7, 1, 0, 1))
	l.reserve(batch(7, 1, 1, 1))
	l.refused("of this epoch", batch(7, 1, 0, 1), notYet)
	l.refused("of the one before", batch(7, 0, 0, 1), staleEpoch)
}

func TestWhatIsSettledStays(t *testing.T) {
	l := newLate(t)
	a, b := l.reserve(batch(7, 0, 0, 1)), l.reserve(batch(7, 0, 1, 1))
	b.Settle(5)
	b.Settle(9)
	b.Cancel()
	a.Settle(1)
	for seq, at := range map[int32]int64{0: 1, 1: 5} {
		if r, err := l.p.Reserve(batch(7, 0, seq, 1), fence.Guard{}, 0); err != nil || r.Offset != at {
			t.Errorf("sequence %d: %+v, %v", seq, r, err)
		}
	}
}

// A search for aborted transactions must not stop before one that was settled
// later, or earlier, than its place in the log: a reader would be shown aborted
// data (I8).
func TestNoAbortedTransactionIsMissedWhateverWasSettledFirst(t *testing.T) {
	for name, history := range map[string]func(l late){
		"a batch that began below": func(l late) {
			a := l.reserve(batch(1, 0, 0, 1))
			l.reserve(batch(2, 0, 0, 1)).Settle(1)
			l.p.Mark(mark(2, 0, false), 2)
			a.Settle(0)
			l.p.Mark(mark(1, 0, false), 3)
		},
		"a batch reserved behind the marker": func(l late) {
			l.reserve(batch(2, 0, 0, 1)).Settle(0)
			m := l.p.ReserveMark(mark(2, 0, false))
			a := l.reserve(batch(1, 0, 0, 1))
			m.Settle(2)
			a.Settle(1)
			l.p.Mark(mark(1, 0, false), 3)
		},
		"the later marker first": func(l late) {
			l.reserve(batch(1, 0, 0, 1)).Settle(0)
			l.reserve(batch(2, 0, 0, 1)).Settle(1)
			m := l.p.ReserveMark(mark(2, 0, false))
			l.p.Mark(mark(1, 0, false), 3)
			m.Settle(2)
		},
	} {
		l := newLate(t)
		history(l)
		for bound := int64(2); bound <= 4; bound++ {
			if got := l.p.Aborted(0, bound); len(got) != 2 || got[0].Last != 2 || got[1].Last != 3 {
				t.Errorf("%s: up to %d: %+v", name, bound, got)
			}
		}
		l.stable(name, 3, l.p.Aborted(0, 4)[1].First)
		l.stable(name, 4, 4)
	}
}

// A transaction that spans another and was settled before it.
func TestEndedTransactionsSettledOutOfOrder(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(1, 0, 0, 1)).Settle(0)
	l.reserve(batch(2, 0, 0, 1)).Settle(10)
	inner := l.p.ReserveMark(mark(2, 0, true))
	l.p.Mark(mark(1, 0, true), 50)
	inner.Settle(40)
	l.stable("before both markers", 35, 0)
	l.stable("between them", 45, 0)
	l.stable("behind both", 51, 51)
}

// What is missing can't be below where the log was when it was let in.
func TestWhatIsMissingHasALowerBound(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(8, 0, 0, 10)).Settle(0)
	l.p.Mark(mark(8, 0, true), 10)
	l.reserve(batch(7, 0, 0, 1))
	l.reserve(batch(7, 0, 1, 1)).Settle(30)
	l.stable("the first is at 11 or above", 31, 11)
}

func TestReplayUnderReservations(t *testing.T) {
	l := newLate(t)
	l.reserve(batch(7, 0, 0, 1)).Settle(0)
	r := l.reserve(batch(7, 0, 1, 1))
	m := mark(7, 0, true)
	m.CoordinatorEpoch = 9
	l.p.Replay(fence.Batch{Producer: m.Producer, Records: 1, Control: true}, 1, &m)
	if st, _ := l.p.Producer(7); st.CoordinatorEpoch != 9 || !st.Open || st.LastSequence != 1 {
		t.Errorf("%+v", st)
	}
	r.Settle(2)
	l.stable("the batch", 3, 2)
}
