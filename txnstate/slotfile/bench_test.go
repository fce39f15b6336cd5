package slotfile_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// filled is a store with n ids in the slot of target, and target itself.
func filled(b *testing.B, fsys fsx.FS, dir string, n int) (*slotfile.Store, txnstate.Record) {
	b.Helper()
	s, err := slotfile.Open(slotfile.Config{Dir: dir, FS: fsys})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	for i := 0; n > 0; i++ {
		id := "filled-" + strconv.Itoa(i)
		if txnstate.Slot(id) != txnstate.Slot(target) {
			continue
		}
		n--
		_, err := s.Swap(b.Context(), record(id, 1), txnstate.Later)
		require.NoError(b, err)
	}
	r := record(target, 1)
	r.Version, err = s.Swap(b.Context(), r, txnstate.Durable)
	require.NoError(b, err)
	require.NoError(b, s.Flush(b.Context()))
	return s, r
}

func run(b *testing.B, f func(b *testing.B, fsys fsx.FS, dir string)) {
	b.Run("files", func(b *testing.B) { f(b, fsx.OS(), b.TempDir()) })
	b.Run("memory", func(b *testing.B) { f(b, fsx.Mem(), "/c") }) // what it costs without a disk
}

func BenchmarkSwapOneID(b *testing.B) {
	for _, n := range []int{0, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d ids in the slot", n), func(b *testing.B) {
			run(b, func(b *testing.B, fsys fsx.FS, dir string) {
				s, r := filled(b, fsys, dir, n)
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					v, err := s.Swap(b.Context(), r, txnstate.Durable)
					if err != nil {
						b.Fatal(err)
					}
					r.Version = v
				}
			})
		})
	}
}

func BenchmarkSwapManyIDs(b *testing.B) {
	run(b, func(b *testing.B, fsys fsx.FS, dir string) {
		s, _ := filled(b, fsys, dir, 0)
		var n atomic.Int64
		b.SetParallelism(128)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			r := record("many-"+strconv.FormatInt(n.Add(1), 10), 1)
			for pb.Next() {
				v, err := s.Swap(context.Background(), r, txnstate.Durable)
				if err != nil {
					b.Error(err)
					return
				}
				r.Version = v
			}
		})
	})
}

func BenchmarkSwapLater(b *testing.B) {
	run(b, func(b *testing.B, fsys fsx.FS, dir string) {
		s, r := filled(b, fsys, dir, 100)
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			v, err := s.Swap(b.Context(), r, txnstate.Later)
			if err != nil {
				b.Fatal(err)
			}
			r.Version = v
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	run(b, func(b *testing.B, fsys fsx.FS, dir string) {
		s, _ := filled(b, fsys, dir, 100)
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			if _, err := s.Load(b.Context(), target); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A takeover: the first visit of a slot by a process that has read nothing.
func BenchmarkTakeover(b *testing.B) {
	run(b, func(b *testing.B, fsys fsx.FS, dir string) {
		_, _ = filled(b, fsys, dir, 1000)
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			b.StopTimer()
			s, err := slotfile.Open(slotfile.Config{Dir: dir, FS: fsys})
			require.NoError(b, err)
			b.StartTimer()
			n := 0
			for _, err := range s.Slot(b.Context(), txnstate.Slot(target)) {
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.StopTimer()
			require.Equal(b, 1001, n)
			require.NoError(b, s.Close())
			b.StartTimer()
		}
	})
}

// Two processes that take turns, as no healthy cluster does: each swap reads what
// the other wrote.
func BenchmarkSwapInTurns(b *testing.B) {
	run(b, func(b *testing.B, fsys fsx.FS, dir string) {
		one, r := filled(b, fsys, dir, 100)
		two, err := slotfile.Open(slotfile.Config{Dir: dir, FS: fsys})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, two.Close()) })
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			v, err := one.Swap(b.Context(), r, txnstate.Durable)
			if err != nil {
				b.Fatal(err)
			}
			r.Version = v
			one, two = two, one
		}
	})
}
