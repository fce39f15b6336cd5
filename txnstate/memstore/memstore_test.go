package memstore_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, harness)
}

func TestStoreKeepsTheContractByWhatItBegins(t *testing.T) {
	storetest.Run(t, storetest.Started(harness))
}

var harness = storetest.Harness{
	Open: func(testing.TB) txnstate.Store { return memstore.New() },
	// Two users of one Store are what two handles are elsewhere.
	Peer:  func(_ testing.TB, s txnstate.Store) txnstate.Store { return s },
	Syncs: func(txnstate.Store) int { return 0 },
}

// The slices of what LoadNow gave, and SwapStart took, are never written to.
func TestSharedSlicesStayAsTheyWere(t *testing.T) {
	s := memstore.New()
	r := idle("id")
	r.Version, _ = s.Swap(t.Context(), r, txnstate.Durable)
	three := []txnstate.Participant{txnstate.Partition("a", 1), txnstate.Partition("a", 2), txnstate.Partition("a", 3)}
	r.State, r.Participants = txnstate.Ongoing, slices.Clone(three)
	r.Version, _, _ = s.SwapStart(r)
	before, _ := s.LoadNow("id")
	for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
		next := r
		next.Participants = []txnstate.Participant{txnstate.Partition("b", 1), txnstate.Partition("b", 2)}
		r.Version, _ = s.Swap(t.Context(), next, d)
		next.Participants[0].Name = "changed" // it is the caller's again
	}
	if !slices.Equal(before.Participants, three) || !slices.Equal(r.Participants, three) {
		t.Errorf("shared slices became %v and %v", before.Participants, r.Participants)
	}
	now, _ := s.LoadNow("id")
	if now.Participants[0].Name != "b" {
		t.Errorf("a record that Swap was given is not copied: %v", now)
	}
}

func idle(id string) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State, r.Producer, r.PrevID = txnstate.CompleteCommit, txnstate.Producer{ID: 7, Epoch: 1}, 7
	return r
}

// I13: memory is bounded by the number of ids, at a known price.
func TestAnIdleIDCostsLessThan500Bytes(t *testing.T) {
	const ids = 100_000
	s := memstore.New()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range ids {
		open := idle("payments-transfer-" + strconv.Itoa(i))
		open.State, open.StartMs = txnstate.Ongoing, 1
		for p := range int32(20) {
			open.Participants = append(open.Participants, txnstate.Partition("transfers", p))
		}
		v, err := s.Swap(t.Context(), open, txnstate.Durable)
		if err != nil {
			t.Fatal(err)
		}
		done := idle(open.TxnID)
		done.Version = v
		if _, err := s.Swap(t.Context(), done, txnstate.Later); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / ids
	t.Logf("%d bytes for each idle id", each)
	if each > 500 {
		t.Errorf("an idle id costs %d bytes of live heap, more than 500", each)
	}
	runtime.KeepAlive(s)
}

func Example() {
	ctx := context.Background()
	store := memstore.New()

	rec := txnstate.Unknown("payments")
	rec.Producer = txnstate.Producer{ID: 7, Epoch: 0}
	first, _ := store.Swap(ctx, rec, txnstate.Durable)

	// Two brokers believe that they own the id, and both go on from here.
	rec.Version, rec.Producer.Epoch = first, 1
	_, one := store.Swap(ctx, rec, txnstate.Durable)
	_, two := store.Swap(ctx, rec, txnstate.Durable)
	fmt.Println(one)
	fmt.Println(two)

	now, _ := store.Load(ctx, "payments")
	fmt.Println(now)
	// Output:
	// <nil>
	// txnstate: the record has another version
	// "payments" Empty producer 7/1 []
}

func BenchmarkSwap(b *testing.B) {
	s := memstore.New()
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		rec := idle("bench-" + strconv.FormatInt(n.Add(1), 10))
		for pb.Next() {
			v, err := s.Swap(ctx, rec, txnstate.Durable)
			if err != nil {
				b.Fatal(err)
			}
			rec.Version = v
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	s := memstore.New()
	ctx := context.Background()
	for i := range 100_000 {
		if _, err := s.Swap(ctx, idle("bench-"+strconv.Itoa(i)), txnstate.Durable); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := s.Load(ctx, "bench-"+strconv.Itoa(i%100_000)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkVisitSlot(b *testing.B) {
	s := memstore.New()
	ctx := context.Background()
	for i := range 100_000 {
		if _, err := s.Swap(ctx, idle("bench-"+strconv.Itoa(i)), txnstate.Durable); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for _, err := range s.Slot(ctx, 7) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
	}
	b.ReportMetric(float64(n)/float64(b.N), "ids/op")
}
