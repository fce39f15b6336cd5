package bench

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// idle is a record as it is after a commit.
func idle(i int) txnstate.Record {
	r := txnstate.Unknown(name(i))
	r.State = txnstate.CompleteCommit
	r.Producer = txnstate.Producer{ID: 1<<40 + int64(i), Epoch: 17}
	r.PrevID, r.LastEpoch = r.Producer.ID, 16
	r.TimeoutMs, r.StartMs, r.UpdateMs = 60_000, time.Now().UnixMilli(), time.Now().UnixMilli()
	r.ClientVersion, r.TxnSeq = txnstate.TV2, 300
	return r
}

func fill(tb testing.TB, s txnstate.Store, n int) {
	for i := range n {
		_, err := s.Swap(context.Background(), idle(i), txnstate.Later)
		require.NoError(tb, err)
	}
	if f, ok := s.(txnstate.Flusher); ok {
		require.NoError(tb, f.Flush(context.Background()))
	}
}

// BenchmarkIDs is what idle ids cost: live heap of store, coordinator and reaper
// for each, and a commit beside a million of them against one beside a thousand,
// measured in turns.
func BenchmarkIDs(b *testing.B) {
	for _, kind := range []string{"memstore", "journal"} {
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				sizes := []int{1000, 100_000, 1_000_000}
				rigs := make([]*rig, len(sizes))
				work := make([]*session, len(sizes))
				for i, n := range sizes {
					before := heap()
					var store txnstate.Store = memstore.New()
					if kind == "journal" {
						j, err := journal.Open(journal.Config{Dir: b.TempDir()})
						require.NoError(b, err)
						defer func() { require.NoError(b, j.Close()) }()
						store = j
					}
					fill(b, store, n)
					rigs[i] = start(b, store)
					defer rigs[i].stop()
					b.ReportMetric(float64(heap()-before)/float64(n), "B/id-of-"+strconv.Itoa(n))
					work[i] = rigs[i].session(b, n/2)
				}
				cost := make([][]float64, len(sizes))
				for round := range 15 * rounds {
					for k := range sizes {
						i := (round + k) % len(sizes) // nobody is always next to the same
						rate := load(b, 1, slice/8, func(int) error { return rigs[i].commit(context.Background(), work[i]) })
						cost[i] = append(cost[i], 1/rate)
					}
				}
				for i := range sizes {
					slices.Sort(cost[i])
				}
				mid := len(cost[0]) / 2
				b.ReportMetric(cost[1][mid]/cost[0][mid], "cost-100000/1000")
				b.ReportMetric(cost[2][mid]/cost[0][mid], "cost-1000000/1000")
				b.ReportMetric(0, "ns/op")
				runtime.KeepAlive(rigs)
			}
		})
	}
}

// BenchmarkTakeover loads 20,000 ids, a hundred of them with a decided
// transaction, and resumes what they owe.
func BenchmarkTakeover(b *testing.B) {
	for _, st := range stores[:2] {
		b.Run(st.name, func(b *testing.B) {
			const ids, owed = 20_000, 100
			dir := b.TempDir()
			store, end := st.open(b, dir, new(atomic.Int64))
			fill(b, store, ids)
			for b.Loop() {
				b.StopTimer()
				for i := range owed {
					rec, err := store.Load(b.Context(), name(i))
					require.NoError(b, err)
					rec.State, rec.TxnSeq = txnstate.PrepareCommit, rec.TxnSeq+1
					rec.Participants = []txnstate.Participant{txnstate.Partition("bench", 1), txnstate.Partition("bench", 2), txnstate.Partition("bench", 3)}
					_, err = store.Swap(b.Context(), rec, txnstate.Later)
					require.NoError(b, err)
				}
				if st.name != "memstore" {
					end()
				}
				runtime.GC()
				b.StartTimer()
				if st.name != "memstore" {
					store, end = st.open(b, dir, new(atomic.Int64))
				}
				r := start(b, store)
				for i := range owed {
					for {
						rec, err := r.Describe(b.Context(), name(i))
						require.NoError(b, err)
						if rec.State == txnstate.CompleteCommit {
							break
						}
						runtime.Gosched()
					}
				}
				b.StopTimer()
				r.stop()
				b.StartTimer()
			}
			end()
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/takeover")
		})
	}
}

// BenchmarkReaperTick is a look with nothing due, beside idle ids.
func BenchmarkReaperTick(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := start(b, memstore.New())
			at := time.Now().Add(time.Hour).UnixMilli()
			for i := range n {
				r.reaper.Set(name(i), at+int64(i), false)
			}
			b.ReportAllocs()
			for b.Loop() {
				if n := r.reaper.Reap(b.Context(), r, time.Now()); n > 0 {
					b.Fatalf("%d ids due", n)
				}
			}
		})
	}
}
