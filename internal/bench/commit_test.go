package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkCommit is one committed transaction of three partitions, Add to
// Complete, by producers of different ids at once, with a context that can end.
// syncs/op is how many syncs there were for one, and cpu-ns/op what the process
// used: on a machine that others use too, that says more than the rate.
func BenchmarkCommit(b *testing.B) { benchmarkCommit(b, false) }

// BenchmarkCommitCalls is the same with markers that go through a goroutine.
func BenchmarkCommitCalls(b *testing.B) { benchmarkCommit(b, true) }

func benchmarkCommit(b *testing.B, calls bool) {
	for _, st := range stores {
		for _, c := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%s/ids=%d", st.name, c), func(b *testing.B) {
				var syncs atomic.Int64
				store, end := st.open(b, b.TempDir(), &syncs)
				defer end()
				r := startWith(b, store, calls)
				defer r.stop()
				work := make([]*session, c)
				for i := range work {
					work[i] = r.session(b, i)
				}
				ctx := b.Context()
				before, used := syncs.Load(), cpu()
				b.ReportAllocs()
				b.ResetTimer()
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				for _, s := range work {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if err := r.commit(ctx, s); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
				b.ReportMetric(float64(cpu()-used)/float64(b.N), "cpu-ns/op")
				b.ReportMetric(float64(syncs.Load()-before)/float64(b.N), "syncs/op")
				if n := r.applied(); n < 3*int64(b.N) {
					b.Errorf("%d markers of %d commits", n, b.N)
				}
			})
		}
	}
}

// rounds of each comparison; what is told is the median, and its extremes.
const (
	rounds = 7
	slice  = 200 * time.Millisecond
)

// ratios is what f gives in each round.
func ratios(b *testing.B, unit string, f func() (ours, reference float64)) {
	var all, own []float64
	for range rounds {
		ours, ref := f()
		all, own = append(all, ours/ref), append(own, ours)
	}
	slices.Sort(all)
	slices.Sort(own)
	b.ReportMetric(all[rounds/2], unit)
	b.ReportMetric(all[0], unit+"-min")
	b.ReportMetric(all[rounds-1], unit+"-max")
	b.ReportMetric(own[rounds/2], "commits/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJournalAlone: a commit of one id alone is two syncs, so its rate
// against half of what the disk appends and syncs.
func BenchmarkJournalAlone(b *testing.B) {
	for b.Loop() {
		store, end := stores[1].open(b, b.TempDir(), new(atomic.Int64))
		r := start(b, store)
		s := r.session(b, 0)
		f, err := os.OpenFile(filepath.Join(b.TempDir(), "log"), os.O_WRONLY|os.O_CREATE, 0o644)
		require.NoError(b, err)
		line, at := make([]byte, 150), int64(0)
		ratios(b, "of-half-the-syncs", func() (float64, float64) {
			disk := load(b, 1, slice, func(int) error {
				if _, err := f.WriteAt(line, at); err != nil {
					return err
				}
				at += int64(len(line))
				return f.Sync()
			})
			ours := load(b, 1, slice, func(int) error { return r.commit(b.Context(), s) })
			return ours, disk / 2
		})
		r.stop()
		end()
		_ = f.Close()
	}
}

// BenchmarkJournalMany: 256 ids at once against a bare log that does per commit
// what the store does: two appends that are waited for, and one that is not.
func BenchmarkJournalMany(b *testing.B) {
	for b.Loop() {
		const c = 256
		store, end := stores[1].open(b, b.TempDir(), new(atomic.Int64))
		r := start(b, store)
		work := make([]*session, c)
		for i := range work {
			work[i] = r.session(b, i)
		}
		bare := newBareLog(b)
		line := make([]byte, 100)
		ratios(b, "of-the-bare-log", func() (float64, float64) {
			ref := load(b, c, slice, func(int) error {
				bare.append(line, true)
				bare.append(line, true)
				bare.append(line, false)
				return nil
			})
			ours := load(b, c, slice, func(w int) error { return r.commit(b.Context(), work[w]) })
			return ours, ref
		})
		r.stop()
		end()
	}
}

// BenchmarkSlotfileWriteAside is the slotfile's rate, beside that of what it can't
// do without: a file written aside, synced and renamed, and its directory synced.
func BenchmarkSlotfileWriteAside(b *testing.B) {
	for b.Loop() {
		const c = 64
		store, end := stores[2].open(b, b.TempDir(), new(atomic.Int64))
		r := start(b, store)
		work := make([]*session, c)
		for i := range work {
			work[i] = r.session(b, i)
		}
		dir := b.TempDir()
		ratios(b, "of-424/1200-writes-aside", func() (float64, float64) {
			aside := load(b, 1, slice, func(int) error { return writeAside(dir) })
			ours := load(b, c, slice, func(w int) error { return r.commit(b.Context(), work[w]) })
			return ours, 424 * aside / 1200
		})
		r.stop()
		end()
	}
}

func writeAside(dir string) error {
	tmp := filepath.Join(dir, "tmp")
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	if _, err := f.Write(make([]byte, 300)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, "file")); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
