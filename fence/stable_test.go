package fence_test

import (
	"slices"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func (h *host) wantStable(what string, highWatermark, want int64) {
	h.t.Helper()
	if got := h.p.LastStable(highWatermark); got != want {
		h.t.Errorf("%s: last stable %d under %d, want %d", what, got, highWatermark, want)
	}
}

func (h *host) wantAborted(what string, from, bound int64, want ...fence.Aborted) {
	h.t.Helper()
	if got := h.p.Aborted(from, bound); !slices.Equal(got, want) {
		h.t.Errorf("%s: aborted from %d to %d: %+v, want %+v", what, from, bound, got, want)
	}
}

func TestTheOldestOpenTransactionHoldsTheLastStableOffset(t *testing.T) {
	h := newHost(t)
	h.wantStable("an empty log", 0, 0)
	h.produce(batch(-1, -1, 0, 3), fence.ModeDefault)
	h.wantStable("plain data", 3, 3)
	h.produce(batch(7, 0, 0, 1), fence.ModeDefault) // 3
	h.produce(batch(8, 0, 0, 1), fence.ModeDefault) // 4
	h.produce(batch(7, 0, 1, 1), fence.ModeDefault) // 5
	h.wantStable("two are open", 6, 3)
	h.wantStable("not in sight of readers yet", 2, 2)
	h.commit(7, 0) // 6
	h.wantStable("the first has ended", 7, 4)
	h.produce(batch(7, 0, 2, 1), fence.ModeDefault) // 7
	h.abort(8, 0)                                   // 8
	h.wantStable("its next is open", 9, 7)
	h.commit(7, 0) // 9
	h.wantStable("none is open", 10, 10)
}

// A reader may not be shown an outcome that a new leader could lack (KAFKA-5488).
func TestAMarkerCountsWhenTheHighWatermarkHasPassedIt(t *testing.T) {
	h := newHost(t)
	h.produce(batch(7, 0, 0, 2), fence.ModeDefault) // 0, 1
	h.commit(7, 0)                                  // 2
	h.produce(batch(8, 0, 0, 2), fence.ModeDefault) // 3, 4
	h.abort(8, 0)                                   // 5
	h.produce(batch(9, 0, 0, 1), fence.ModeDefault) // 6
	check := func() {
		h.wantStable("at the first marker", 2, 0)
		h.wantStable("behind it", 3, 3)
		h.wantStable("at the second", 5, 3)
		h.wantStable("behind it", 6, 6)
		h.wantStable("at the end", 7, 6)
	}
	check()
	for hw := range int64(3) {
		h.p.Stabilize(hw)
	}
	check()
	h.p.Stabilize(7)
	h.wantStable("at the end", 7, 6)
}

// A long transaction that ended below shorter ones that are nested in it, or lie
// across its end.
func TestTransactionsThatOverlap(t *testing.T) {
	h := newHost(t)
	h.produce(batch(1, 0, 0, 1), fence.ModeDefault)  // 0
	h.produce(batch(2, 0, 0, 1), fence.ModeDefault)  // 1
	h.abort(2, 0)                                    // 2: 1 to 2, in 0 to 4
	h.produce(batch(3, 0, 0, 1), fence.ModeDefault)  // 3
	h.abort(1, 0)                                    // 4: 0 to 4
	h.produce(batch(-1, 0, 0, 1), fence.ModeDefault) // 5
	h.abort(3, 0)                                    // 6: 3 to 6
	for hw, want := range []int64{0, 0, 0, 0, 0, 3, 3, 7} {
		h.wantStable("overlapping", int64(hw), want)
	}
	two := fence.Aborted{ProducerID: 2, First: 1, Last: 2, LastStable: 0}
	one := fence.Aborted{ProducerID: 1, First: 0, Last: 4, LastStable: 3}
	three := fence.Aborted{ProducerID: 3, First: 3, Last: 6, LastStable: 7}
	h.wantAborted("all", 0, 7, two, one, three)
	h.wantAborted("behind the first", 3, 7, one, three)
	h.wantAborted("at a marker", 4, 7, one, three)
	h.wantAborted("behind it", 5, 7, three)
	h.wantAborted("nothing", 7, 7)
	h.wantAborted("up to the last's first batch", 0, 3, two, one)
	h.wantAborted("one batch", 0, 1, one)
	h.wantAborted("nothing to return", 5, 5)
}

// The list goes by overlap, not by where a transaction began (W33), and names
// only what has data (KAFKA-10702).
func TestW33_WhatIsListedAsAborted(t *testing.T) {
	h := newHost(t)
	h.abort(7, 0)                                   // 0: nothing was open
	h.produce(plain(7, 0, 0, 1), fence.ModeDefault) // 1
	h.abort(7, 0)                                   // 2
	h.wantAborted("without data", 0, 3)
	h.produce(batch(7, 0, 1, 5), fence.ModeDefault) // 3 to 7
	h.commit(7, 0)                                  // 8
	h.wantAborted("a commit", 0, 9)
	h.produce(batch(7, 0, 6, 5), fence.ModeDefault) // 9 to 13
	h.abort(7, 0)                                   // 14
	h.abort(7, 0)                                   // 15, once more
	h.wantAborted("from the middle", 12, 16, fence.Aborted{ProducerID: 7, First: 9, Last: 14, LastStable: 15})
}

// An entry whose stored offset reaches the bound ends the search: all that
// follow have begun at or above it.
func TestTheSearchStopsAtTheBound(t *testing.T) {
	h := newHost(t)
	for pid := range int64(100) {
		h.produce(batch(pid, 0, 0, 1), fence.ModeDefault)
		h.abort(pid, 0)
	}
	got := h.p.Aborted(10, 14)
	if len(got) != 2 || got[0].First != 10 || got[1].First != 12 {
		t.Errorf("%+v", got)
	}
	if n := testing.AllocsPerRun(100, func() { h.p.Aborted(10, 14) }); n > 2 {
		t.Errorf("%v allocations for two entries of a hundred", n)
	}
}

func TestTheLogsStart(t *testing.T) {
	h := newHost(t)
	h.produce(batch(1, 0, 0, 2), fence.ModeDefault) // 0, 1
	h.abort(1, 0)                                   // 2
	h.produce(batch(1, 0, 2, 2), fence.ModeDefault) // 3, 4
	h.abort(1, 0)                                   // 5
	h.produce(batch(2, 0, 0, 2), fence.ModeDefault) // 6, 7
	h.produce(batch(2, 0, 2, 2), fence.ModeDefault) // 8, 9
	second := fence.Aborted{ProducerID: 1, First: 3, Last: 5, LastStable: 6}
	h.p.LogStart(5)
	h.wantAborted("the marker is left", 0, 10, second)
	h.p.LogStart(6)
	h.p.LogStart(2) // never back
	h.wantAborted("nothing is left", 0, 10)
	h.p.LogStart(8)
	h.wantStable("the half of the open one that is left", 10, 8)
	if open := h.p.Open(); len(open) != 1 || open[0].OpenSince != 6 {
		t.Errorf("open %+v", open)
	}
	if st, ok := h.p.Producer(1); !ok || st.LastSequence != 3 {
		t.Errorf("a producer whose batches are gone is forgotten by its age only (KAFKA-7190): %+v", st)
	}
	h.abort(2, 0) // 10
	h.wantAborted("its end", 8, 11, fence.Aborted{ProducerID: 2, First: 6, Last: 10, LastStable: 11})
	h.wantStable("its end", 11, 11)
	h.p.LogStart(50)
	h.wantStable("below the log", 20, 50)
	if h.p.End() != 50 {
		t.Errorf("end %d", h.p.End())
	}
}

// A host that never says how far the high watermark is costs bounded memory, and
// the last stable offset is never too high.
func TestWhatEndedAboveTheHighWatermarkIsBounded(t *testing.T) {
	h := newHost(t)
	const n = 20_000
	for i := range int64(n) {
		h.produce(batch(7, 0, int32(i), 1), fence.ModeDefault)
		h.commit(7, 0)
	}
	h.wantStable("all passed", 2*n, 2*n)
	h.wantStable("all but the last", 2*n-1, 2*n-2)
	for hw := int64(0); hw < 2*n; hw += 97 {
		if got := h.p.LastStable(hw); got > hw-hw%2 {
			t.Fatalf("last stable %d under %d", got, hw) // an odd one has a batch without its marker
		}
	}
	// A snapshot holds them too: some bytes each would show.
	if size := len(h.p.AppendSnapshot(nil)); size > 32*1024 {
		t.Errorf("a snapshot of %d bytes", size)
	}
}

func TestOpenTransactionsInOrder(t *testing.T) {
	h := newHost(t)
	for _, pid := range []int64{30, 10, 20} {
		h.produce(batch(pid, 0, 0, 1), fence.ModeDefault)
	}
	h.produce(batch(10, 0, 1, 1), fence.ModeDefault)
	ids := func() (out []int64) {
		for _, st := range h.p.Open() {
			out = append(out, st.Producer.ID)
		}
		return out
	}
	if got := ids(); !slices.Equal(got, []int64{30, 10, 20}) {
		t.Errorf("open %v", got)
	}
	h.commit(10, 0)
	if got := ids(); !slices.Equal(got, []int64{30, 20}) {
		t.Errorf("open %v", got)
	}
	h.produce(batch(10, 0, 2, 1), fence.ModeDefault)
	if got := ids(); !slices.Equal(got, []int64{30, 20, 10}) {
		t.Errorf("open %v", got)
	}
}

func TestWhatIsShownOfProducers(t *testing.T) {
	h := newHost(t)
	h.produce(plain(20, 1, 4, 2), fence.ModeDefault) // 0
	h.commit(10, 3)                                  // 2, known by a marker alone
	h.produce(batch(30, 0, 0, 1), fence.ModeDefault) // 3
	h.verify(batch(40, 0, 0, 1), fence.ModeDefault)  // a question is no state
	h.mark2(20, 2, 6)                                // 4
	want := []fence.ProducerState{
		{Producer: txnstate.Producer{ID: 10, Epoch: 3}, OpenSince: -1, LastSequence: -1, LastTimestampMs: h.now, FencedBelow: -1},
		{Producer: txnstate.Producer{ID: 20, Epoch: 2}, CoordinatorEpoch: 6, OpenSince: -1, LastSequence: -1, LastTimestampMs: h.now, FencedBelow: -1},
		{Producer: txnstate.Producer{ID: 30}, CoordinatorEpoch: -1, Open: true, OpenSince: 3, LastSequence: 0, LastTimestampMs: 500, FencedBelow: -1},
	}
	if got := h.p.Producers(); !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for _, id := range []int64{40, 50} {
		none := fence.ProducerState{Producer: txnstate.Producer{ID: id, Epoch: -1}, CoordinatorEpoch: -1, OpenSince: -1, LastSequence: -1, LastTimestampMs: -1, FencedBelow: -1}
		if st, ok := h.p.Producer(id); ok || st != none {
			t.Errorf("%d: %+v", id, st)
		}
	}
}

// mark2 is a commit by a coordinator of some epoch.
func (h *host) mark2(pid int64, epoch int16, coordinator int32) {
	m := fence.Mark{Producer: txnstate.Producer{ID: pid, Epoch: epoch}, Commit: true, CoordinatorEpoch: coordinator, TimestampMs: h.now}
	h.put(logged{b: fence.Batch{Producer: m.Producer, FirstSequence: -1, Records: 1, Control: true, Transactional: true}, mark: &m}, h.p.ReserveMark(m))
}
