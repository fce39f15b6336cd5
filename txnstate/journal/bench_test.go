package journal_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

func idle(id string) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State = txnstate.CompleteCommit
	r.Producer = txnstate.Producer{ID: 1<<40 + 12345, Epoch: 17}
	r.PrevID, r.LastEpoch = r.Producer.ID, 16
	r.TimeoutMs, r.StartMs, r.UpdateMs = 60_000, 1_782_675_758_339, 1_782_675_758_400
	r.ClientVersion, r.TxnSeq = txnstate.TV2, 300
	return r
}

func working(id string) txnstate.Record {
	r := idle(id)
	r.State = txnstate.Ongoing
	r.Participants = []txnstate.Participant{txnstate.Partition("orders", 3), txnstate.Partition("payments", 7)}
	return r
}

// bareLog is the least that a group-committed log does: bytes in, a sync for all
// who wait, and nothing else. The journal is measured against it.
type bareLog struct {
	f    *os.File
	mu   sync.Mutex
	cond struct {
		buf  []byte
		done chan struct{}
		busy bool
	}
}

func newBareLog(b *testing.B) *bareLog {
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	require.NoError(b, err)
	b.Cleanup(func() { _ = f.Close() })
	l := &bareLog{f: f}
	l.cond.done = make(chan struct{})
	return l
}

func (l *bareLog) append(p []byte) error {
	c := &l.cond
	l.mu.Lock()
	c.buf = append(c.buf, p...)
	done := c.done
	lead := !c.busy
	c.busy = true
	l.mu.Unlock()
	if lead {
		go l.commit()
	}
	<-done
	return nil
}

func (l *bareLog) commit() {
	c := &l.cond
	for {
		runtime.Gosched()
		l.mu.Lock()
		if len(c.buf) == 0 {
			c.busy = false
			l.mu.Unlock()
			return
		}
		buf, done := c.buf, c.done
		c.buf, c.done = nil, make(chan struct{})
		l.mu.Unlock()
		if _, err := l.f.Write(buf); err != nil {
			panic(err)
		}
		if err := l.f.Sync(); err != nil {
			panic(err)
		}
		close(done)
	}
}

// inParallel divides b.N over c goroutines.
func inParallel(b *testing.B, c int, f func(worker int)) {
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for w := range c {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				f(w)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

// BenchmarkSwap is one Durable write, by callers of different ids at once; bare
// is the log it is compared with, run in turns with it because disks have moods.
func BenchmarkSwap(b *testing.B) {
	for _, c := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("bare/callers=%d", c), func(b *testing.B) {
			l := newBareLog(b)
			p := make([]byte, 100)
			inParallel(b, c, func(int) {
				if err := l.append(p); err != nil {
					b.Error(err)
				}
			})
		})
		b.Run(fmt.Sprintf("journal/callers=%d", c), func(b *testing.B) {
			s, err := journal.Open(journal.Config{Dir: b.TempDir()})
			require.NoError(b, err)
			recs := make([]txnstate.Record, c)
			for i := range recs {
				recs[i] = working("payments-" + strconv.Itoa(i))
			}
			b.ReportAllocs()
			inParallel(b, c, func(w int) {
				v, err := s.Swap(context.Background(), recs[w], txnstate.Durable)
				if err != nil {
					b.Error(err)
				}
				recs[w].Version = v
			})
			require.NoError(b, s.Close())
		})
	}
	b.Run("raw append and fsync", func(b *testing.B) {
		f, err := os.OpenFile(filepath.Join(b.TempDir(), "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		require.NoError(b, err)
		defer f.Close()
		p := make([]byte, 150)
		for b.Loop() {
			if _, err := f.Write(p); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// fill stores n idle ids.
func fill(b testing.TB, s *journal.Store, n int) {
	for i := range n {
		if _, err := s.Swap(context.Background(), idle(fmt.Sprintf("payments-service-%07d", i)), txnstate.Later); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Flush(context.Background()))
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkIDs shows what ids cost that are idle: memory, disk, time to open and
// to visit them all, and what one more mutation costs beside them.
func BenchmarkIDs(b *testing.B) {
	for _, n := range []int{1000, 20_000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			dir := b.TempDir()
			s, err := journal.Open(journal.Config{Dir: dir})
			require.NoError(b, err)
			fill(b, s, n)
			require.NoError(b, s.Close())

			before := heap()
			var open, visit time.Duration
			for range 3 {
				start := time.Now()
				s, err = journal.Open(journal.Config{Dir: dir})
				require.NoError(b, err)
				opened := time.Now()
				count := 0
				for slot := range txnstate.Slots {
					for _, err := range s.Slot(context.Background(), slot) {
						require.NoError(b, err)
						count++
					}
				}
				visited := time.Now()
				require.Equal(b, n, count)
				open, visit = opened.Sub(start), visited.Sub(opened)
				if b.N == 0 {
					break
				}
				require.NoError(b, s.Close())
			}
			s, err = journal.Open(journal.Config{Dir: dir})
			require.NoError(b, err)
			perID := float64(heap()-before) / float64(n)

			r := working("payments-service-0000500")
			now, err := s.Load(context.Background(), r.TxnID)
			require.NoError(b, err)
			r.Version = now.Version
			b.ResetTimer()
			for range b.N {
				v, err := s.Swap(context.Background(), r, txnstate.Later)
				require.NoError(b, err)
				r.Version = v
			}
			b.StopTimer()
			b.ReportMetric(perID, "heap-B/id")
			b.ReportMetric(float64(open.Milliseconds()), "open-ms")
			b.ReportMetric(float64(visit.Milliseconds()), "visit-ms")
			require.NoError(b, s.Close())
			runtime.KeepAlive(s)
		})
	}
}
