package fence_test

import (
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// crowd is a partition that knows n producers, every tenth with an open
// transaction.
func crowd(b *testing.B, n int) *fence.Partition {
	p := fence.NewPartition(fence.Config{MaxProducers: 2 * n})
	for i := range n {
		bt := plain(int64(i), 0, 0, 1)
		bt.Transactional = i%10 == 0
		p.Replay(bt, int64(i), nil)
	}
	b.ReportAllocs()
	b.ResetTimer()
	return p
}

func sizes(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("producers=%d", n), func(b *testing.B) { f(b, n) })
	}
}

func BenchmarkIdempotentBatch(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		p := crowd(b, n)
		at := int64(n)
		for i := range b.N {
			bt := plain(1, 0, int32((i+1)&0x7fffffff), 1)
			r, err := p.Reserve(bt, fence.Guard{}, 0)
			if err != nil {
				b.Fatal(err)
			}
			r.Settle(at)
			at++
		}
	})
}

func BenchmarkDuplicate(b *testing.B) {
	p := crowd(b, 100)
	for range b.N {
		if r, err := p.Reserve(plain(1, 0, 0, 1), fence.Guard{}, 0); err != nil || !r.Duplicate {
			b.Fatal(r, err)
		}
	}
}

// BenchmarkTransaction is a whole one: a question, a batch, a marker, and what a
// reader asks for.
func BenchmarkTransaction(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		p := crowd(b, n)
		at := int64(n)
		who := txnstate.Producer{ID: 5, Epoch: 1}
		p.Mark(fence.Mark{Producer: who}, at)
		for i := range b.N {
			bt := batch(5, 1, int32(i&0x7fffffff), 1)
			g, _, err := p.Verify(bt, fence.ModeDefault, 0)
			if err != nil {
				b.Fatal(err)
			}
			r, err := p.Reserve(bt, g, 0)
			if err != nil {
				b.Fatal(err)
			}
			r.Settle(at + 1)
			p.Mark(fence.Mark{Producer: who, Commit: true}, at+2)
			p.Stabilize(at + 3)
			if p.LastStable(at+3) != 0 {
				b.Fatal("the crowd's first transaction is open")
			}
			at += 2
		}
	})
}

func BenchmarkLastStable(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		p := crowd(b, n)
		for range b.N {
			p.LastStable(int64(n))
		}
	})
}

func BenchmarkAborted(b *testing.B) {
	const n = 100_000
	p := fence.NewPartition(fence.Config{})
	for i := range int64(n) {
		p.Replay(batch(7, 0, int32(i), 1), 2*i, nil)
		p.Mark(fence.Mark{Producer: txnstate.Producer{ID: 7}}, 2*i+1)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		from := int64(i*37) % n
		if len(p.Aborted(from, from+10)) == 0 {
			b.Fatal("none")
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	p := fence.NewPartition(fence.Config{})
	b.ReportAllocs()
	for i := range b.N {
		p.Replay(batch(int64(i%100), 0, int32(i/100), 1), int64(i), nil)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	p := crowd(b, 10_000)
	var buf []byte
	for range b.N {
		buf = p.AppendSnapshot(buf[:0])
	}
	b.SetBytes(int64(len(buf)))
	b.ReportMetric(float64(len(buf))/10_000, "bytes/producer")
}

func BenchmarkRestore(b *testing.B) {
	buf := crowd(b, 10_000).AppendSnapshot(nil)
	b.SetBytes(int64(len(buf)))
	for range b.N {
		if _, err := fence.RestorePartition(fence.Config{}, buf); err != nil {
			b.Fatal(err)
		}
	}
}
