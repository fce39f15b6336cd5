package fence_test

import (
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

const hour = int64(time.Hour / time.Millisecond)

func ids(sts []fence.ProducerState) (out []int64) {
	for _, st := range sts {
		out = append(out, st.Producer.ID)
	}
	return out
}

func TestIdleProducersAreForgotten(t *testing.T) {
	h := newHost(t)
	h.p = fence.NewPartition(fence.Config{ExpireAfter: time.Hour})
	h.produce(plain(1, 0, 0, 1), fence.ModeDefault)
	h.produce(batch(2, 0, 0, 1), fence.ModeDefault) // stays open
	h.now += hour / 2
	h.produce(plain(3, 0, 0, 1), fence.ModeDefault)
	h.produce(plain(1, 0, 1, 1), fence.ModeDefault)
	h.now += hour/2 - 1
	h.p.Expire(h.now)
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("%v", got)
	}
	h.now += hour / 2
	h.p.Expire(h.now)
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("%v: a producer counts from its last batch", got)
	}
	h.now++
	h.p.Expire(h.now)
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{2}) {
		t.Errorf("%v: all but the open one", got)
	}
	h.now += 1000 * hour
	h.p.Expire(h.now)
	h.wantStable("an open transaction is never forgotten (I13)", h.end, 1)
	h.want("a forgotten producer begins anywhere", h.produce(plain(1, 0, 9, 1), fence.ModeDefault), "4")
	h.abort(2, 0)
	h.p.Expire(h.now + hour)
	if got := h.p.Producers(); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// F14, KAFKA-9144: the age of a producer counts from its marker too, so that the
// coordinator epoch outlives a long transaction.
func TestF14_AMarkerKeepsTheCoordinatorEpochAlive(t *testing.T) {
	h := newHost(t)
	h.p = fence.NewPartition(fence.Config{ExpireAfter: time.Hour})
	h.produce(batch(7, 1, 0, 1), fence.ModeDefault)
	h.now += 3 * hour / 4
	who := txnstate.Producer{ID: 7, Epoch: 1}
	h.want("the abort", h.mark(markers.Marker{Producer: who, CoordinatorEpoch: 10}), "1")
	h.now += 3 * hour / 4
	h.p.Expire(h.now)
	h.want("a deposed coordinator", h.mark(markers.Marker{Producer: who, CoordinatorEpoch: 9, Commit: true}), "TRANSACTION_COORDINATOR_FENCED")
	h.want("the same again", h.mark(markers.Marker{Producer: who, CoordinatorEpoch: 10}), "2")
	h.want("a batch has not touched it", h.produce(batch(7, 1, 1, 1), fence.ModeDefault), "3")
	h.want("a deposed coordinator", h.mark(markers.Marker{Producer: who, CoordinatorEpoch: 9, Commit: true}), "TRANSACTION_COORDINATOR_FENCED")
}

// Timestamps of records are the client's: they neither make a producer forgotten
// at once nor keep it for ever.
func TestTheAgeOfAProducerIsNotThatOfItsRecords(t *testing.T) {
	h := newHost(t)
	h.now = 1000 * hour
	old, future := plain(1, 0, 0, 1), plain(2, 0, 0, 1)
	old.MaxTimestampMs, future.MaxTimestampMs = -1, 9000*hour
	h.produce(old, fence.ModeDefault)
	h.produce(future, fence.ModeDefault)
	h.p.Expire(h.now + 23*hour)
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("%v", got)
	}
	h.p.Expire(h.now + 24*hour)
	if got := ids(h.p.Producers()); len(got) > 0 {
		t.Errorf("%v", got)
	}
	// Of a batch in the log only its timestamp is known.
	h.p.Replay(future, 10, nil)
	h.p.Expire(h.now)
	h.p.Expire(h.now + 24*hour)
	if got := ids(h.p.Producers()); len(got) > 0 {
		t.Errorf("%v: it is older than a day now", got)
	}
}

func TestAnExpiredProducerKeepsWhatIsBeingAsked(t *testing.T) {
	h := newHost(t)
	h.produce(plain(7, 0, 0, 1), fence.ModeDefault)
	h.now += 24*hour - 1
	g := h.verify(batch(7, 0, 1, 1), fence.ModeDefault)
	h.now++
	h.p.Expire(h.now)
	if _, ok := h.p.Producer(7); ok {
		t.Error("it is not forgotten")
	}
	h.want("the batch that was asked about", h.append(batch(7, 0, 1, 1), g), "1")
	h.p.Expire(h.now + 48*hour)
	h.wantStable("it is open", h.end, 1)
}

func TestProducersHaveABound(t *testing.T) {
	h := newHost(t)
	h.p = fence.NewPartition(fence.Config{MaxProducers: 4})
	h.produce(batch(1, 0, 0, 1), fence.ModeDefault) // open
	h.produce(plain(2, 0, 0, 1), fence.ModeDefault)
	h.produce(plain(3, 0, 0, 1), fence.ModeDefault)
	h.produce(plain(2, 0, 1, 1), fence.ModeDefault) // 2 is the younger now
	for pid := range int64(100) {
		h.verify(batch(1000+pid, 0, 0, 1), fence.ModeAdd)
	}
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("questions about made-up producers took the place of %v", got)
	}
	h.produce(plain(4, 0, 0, 1), fence.ModeDefault)
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Errorf("%v", got)
	}
	h.produce(plain(5, 0, 0, 1), fence.ModeDefault)
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 2, 4, 5}) {
		t.Errorf("%v: the longest unused goes", got)
	}
	for pid := range int64(10) {
		h.produce(batch(100+pid, 0, 0, 1), fence.ModeDefault)
	}
	if got := ids(h.p.Producers()); !slices.Equal(got, []int64{1, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109}) {
		t.Errorf("%v: open transactions are never forgotten (I13)", got)
	}
	p, err := fence.RestorePartition(fence.Config{MaxProducers: 4}, h.p.AppendSnapshot(nil))
	if err != nil || len(p.Producers()) != 11 {
		t.Errorf("restored: %d producers, %v", len(p.Producers()), err)
	}
}

// What is being appended is not forgotten under its own feet.
func TestAProducerWithReservationsIsNotEvicted(t *testing.T) {
	p := fence.NewPartition(fence.Config{MaxProducers: 1})
	a, err := p.Reserve(plain(1, 0, 0, 1), fence.Guard{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Reserve(plain(2, 0, 0, 1), fence.Guard{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.Expire(1 << 40)
	b.Settle(0)
	a.Settle(1)
	if got := ids(p.Producers()); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("%v", got)
	}
	c, err := p.Reserve(plain(3, 0, 0, 1), fence.Guard{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Settle(2)
	if got := ids(p.Producers()); !slices.Equal(got, []int64{1, 3}) {
		t.Errorf("%v", got)
	}
}

func TestAProducersSize(t *testing.T) {
	if size := fence.ProducerSize; size > 256 && unsafe.Sizeof(uintptr(0)) == 8 {
		t.Errorf("%d bytes for a producer: the documentation says about 300 with its place in the map", size)
	}
	if size := fence.PendingSize; size > 176 && unsafe.Sizeof(uintptr(0)) == 8 {
		t.Errorf("%d bytes for a reservation: the documentation says about 170", size)
	}
}
