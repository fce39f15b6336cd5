package offsets_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// One transaction of offsets, staged and settled, by 1 and by many producers at
// once, in memory and on a disk that syncs.
func BenchmarkTransaction(b *testing.B) {
	for _, at := range []string{"memory", "disk"} {
		for _, parallel := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", at, parallel), func(b *testing.B) {
				var log offsets.Log = offsets.NewMemLog()
				if at == "disk" {
					f, err := offsets.OpenFileLog(filepath.Join(b.TempDir(), "log"), nil)
					if err != nil {
						b.Fatal(err)
					}
					defer f.Close()
					log = f
				}
				m, err := offsets.New(offsets.Config{Log: log})
				if err != nil {
					b.Fatal(err)
				}
				if err := m.Load(ctx); err != nil {
					b.Fatal(err)
				}
				defer m.Close(ctx)
				var ids atomic.Int64
				b.SetParallelism(parallel)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					p := txnstate.Producer{ID: ids.Add(1)}
					group := fmt.Sprint("group-", p.ID)
					partition := txnstate.OffsetsPartition(group)
					os := []offsets.Offset{{Topic: "orders"}}
					for pb.Next() {
						os[0].Offset++
						g, _, err := m.Verify(group, p, fence.ModeAdd)
						if err == nil {
							_, err = m.Stage(ctx, group, p, g, os)
						}
						if p.Epoch++; p.Epoch > txnstate.MaxEpoch-1 {
							p = txnstate.Producer{ID: ids.Add(1)}
							continue
						}
						if err == nil {
							err = m.Marker(ctx, partition, markers.Marker{Producer: p, Commit: true, TransactionVersion: txnstate.TV2})
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
