package fence_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// F21: the last five batches are known again however many there were, at the
// leader, after a snapshot, and after a replay that begins within what the
// snapshot has.
func TestTheLastFiveBatchesAreKnownHoweverManyThereWere(t *testing.T) {
	h := newHost(t)
	for n := range int32(23) {
		h.want("the next", h.produce(plain(1, 0, 2*n, 2), fence.ModeDefault), fmt.Sprint(2*n))
		snapshot := h.p.AppendSnapshot(nil)
		restored := h.rebuilt(snapshot)
		for _, e := range h.log[max(0, len(h.log)-3):] {
			restored.Replay(e.b, e.base, e.mark)
		}
		for _, p := range []*fence.Partition{h.p, h.rebuilt(nil), restored} {
			for back := range min(n+1, 5) {
				at := 2 * (n - back)
				r, err := p.Reserve(plain(1, 0, at, 2), fence.Guard{}, h.now)
				if err != nil || !r.Duplicate || r.Offset != int64(at) {
					t.Fatalf("%d batches, the one of %d before the last: %+v, %v", n+1, back, r, err)
				}
			}
			if n >= 5 {
				_, err := p.Reserve(plain(1, 0, 2*(n-5), 2), fence.Guard{}, h.now)
				h.want("the sixth", codeOf(err), outOfOrder)
			}
			if p.End() != h.end {
				t.Fatalf("the log ends at %d, want %d", p.End(), h.end)
			}
		}
	}
}

// A duplicate is answered while others of its producer are not settled, and behind
// one that was cancelled: what it asks about is in the log.
func TestADuplicateIsAnsweredBehindABatchThatWasCancelled(t *testing.T) {
	h := newHost(t)
	h.produce(plain(1, 0, 0, 1), fence.ModeDefault)
	first, _ := h.p.Reserve(plain(1, 0, 1, 1), fence.Guard{}, h.now)
	if _, err := h.p.Reserve(plain(1, 0, 2, 1), fence.Guard{}, h.now); err != nil {
		t.Fatal(err)
	}
	first.Cancel()
	h.want("a new one", h.produce(plain(1, 0, 1, 1), fence.ModeDefault), comeAgain)
	h.want("one that is in the log", h.produce(plain(1, 0, 0, 1), fence.ModeDefault), "duplicate of 0")
}

// What is settled out of order does not move the end of the log back, which is
// where a replay on top of a snapshot begins.
func TestTheEndOfTheLogDoesNotGoBack(t *testing.T) {
	h := newHost(t)
	a, _ := h.p.Reserve(plain(1, 0, 0, 3), fence.Guard{}, h.now)
	b, _ := h.p.Reserve(plain(2, 0, 0, 4), fence.Guard{}, h.now)
	b.Settle(3)
	if h.p.End() != 0 {
		t.Errorf("the log is complete to %d, and nobody knows the batch at 0", h.p.End())
	}
	a.Settle(0)
	if h.p.End() != 7 {
		t.Errorf("the log ends at %d, want 7", h.p.End())
	}
}

// A restart does not change who is forgotten, nor when: that counts from when a
// producer was heard of, whatever its own timestamps say, and in that order.
func TestARestartLeavesTheAgeOfProducersAlone(t *testing.T) {
	cfg := fence.Config{ExpireAfter: time.Hour, MaxProducers: 4}
	h := newHost(t)
	h.p = fence.NewPartition(cfg)
	for i, id := range []int64{9, 1, 5} { // not in the order of their numbers
		h.now = 1_000_000 + int64(i)*hour/4
		b := plain(id, 0, 0, 1)
		b.MaxTimestampMs = 10_000_000_000 - int64(i) // not in that order either
		h.produce(b, fence.ModeDefault)
	}
	snapshot := h.p.AppendSnapshot(nil)
	for _, restart := range []bool{false, true} {
		reopen := func() *fence.Partition {
			p, err := fence.RestorePartition(cfg, snapshot)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := h.p
		if restart {
			p = reopen()
		}
		for _, step := range []struct {
			at   int64
			want []int64
		}{{hour - 1, []int64{1, 5, 9}}, {hour, []int64{1, 5}}, {5 * hour / 4, []int64{5}}, {3 * hour / 2, nil}} {
			p.Expire(1_000_000 + step.at)
			if got := ids(p.Producers()); !slices.Equal(got, step.want) {
				t.Errorf("restart %v, after %v ms: %v, want %v", restart, step.at, got, step.want)
			}
		}
		if restart {
			p = reopen()
			for id := int64(20); id < 22; id++ {
				if _, err := p.Reserve(plain(id, 0, 0, 1), fence.Guard{}, h.now); err != nil {
					t.Fatal(err)
				}
			}
			if got := ids(p.Producers()); !slices.Equal(got, []int64{1, 5, 20, 21}) {
				t.Errorf("%v: the one that was longest unheard of makes room", got)
			}
		}
	}
}

// I9: a producer that is forgotten while a question about it is under way stays
// fenced for what was asked.
func TestAFenceOutlivesTheStateOfAProducerThatIsAskedAbout(t *testing.T) {
	h := newHost(t)
	h.p = fence.NewPartition(fence.Config{ExpireAfter: time.Hour})
	h.produce(batch(1, 3, 0, 1), fence.ModeDefault)
	h.abort(1, 3)
	h.now += hour - 1
	b := batch(1, 3, 1, 1)
	g, ask, err := h.p.Verify(b, fence.ModeDefault, h.now)
	if err != nil || !ask {
		t.Fatal(ask, err)
	}
	h.p.Fence(txnstate.Producer{ID: 1, Epoch: 4})
	h.now++
	h.p.Expire(h.now)
	if got := h.p.Producers(); len(got) > 0 {
		t.Fatalf("%+v", got)
	}
	h.want("what was verified before the fence", h.append(b, g), staleEpoch)
}

// DescribeProducers shows the timestamp that the log has last, which may be older
// than the one before.
func TestTheTimestampOfAProducerIsThatOfItsLastBatch(t *testing.T) {
	h := newHost(t)
	for i, ms := range []int64{900, 300, 600} {
		b := plain(1, 0, int32(i), 1)
		b.MaxTimestampMs = ms
		h.produce(b, fence.ModeDefault)
		if st, _ := h.p.Producer(1); st.LastTimestampMs != ms {
			t.Errorf("%d, want %d", st.LastTimestampMs, ms)
		}
	}
}
