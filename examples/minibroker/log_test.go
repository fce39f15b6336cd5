package minibroker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// recordBatch is a batch of n records as a producer sends it, with a record's
// value of size bytes.
func recordBatch(p txnstate.Producer, seq int32, n int, size int, txn bool) []byte {
	var recs []byte
	for i := range n {
		rec := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: int64(i), Value: make([]byte, size)}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1)
		for len(rec.AppendTo(nil))-varintLen(rec.Length) != int(rec.Length) {
			rec.Length = int32(len(rec.AppendTo(nil)) - varintLen(rec.Length))
		}
		recs = rec.AppendTo(recs)
	}
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(n - 1), FirstTimestamp: 1000, MaxTimestamp: 1000 + int64(n-1),
		ProducerID: p.ID, ProducerEpoch: p.Epoch, FirstSequence: seq, NumRecords: int32(n), Records: recs,
	}
	if txn {
		b.Attributes |= 0x10
	}
	b.Length = int32(len(b.AppendTo(nil)) - 12)
	out := b.AppendTo(nil)
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

func varintLen(n int32) int { return len(binary.AppendVarint(nil, int64(n))) }

// plain is a batch without a producer.
func plain(n, size int) []byte { return recordBatch(txnstate.NoProducer, -1, n, size, false) }

// admitAll lets everything in, as wire does where nothing is wrong.
func admitAll(h fence.Batch) func(*fence.Partition, int64) error {
	return func(p *fence.Partition, base int64) error {
		p.Replay(h, base, nil)
		return nil
	}
}

func (l *partitionLog) append(b []byte) error {
	h, _, _, err := fence.ParseHeader(b)
	if err != nil {
		return err
	}
	return l.Append(context.Background(), b, admitAll(h))
}

func (l *partitionLog) mark(m markers.Marker) error {
	b := markers.AppendControlBatch(nil, m, 0, 0, 2000)
	return l.Append(context.Background(), b, func(p *fence.Partition, base int64) error {
		p.Mark(m.Mark(2000), base)
		return nil
	})
}

func diskLog(t testing.TB, fsys fsx.FS) *partitionLog {
	t.Helper()
	ls, err := openLogs("t", 1, 1<<20, fsys, "records.log", true)
	require.NoError(t, err)
	return ls[0]
}

// all is what a slice's bytes hold, batch by batch: base offset and leader epoch
// filled in, checksum still right.
func all(t testing.TB, l *partitionLog, s slice) (bases []int64) {
	t.Helper()
	raw, err := l.read(s)
	require.NoError(t, err)
	require.Len(t, raw, s.bytes)
	for len(raw) > 0 {
		h, base, size, err := fence.ParseHeader(raw)
		require.NoError(t, err)
		require.Equal(t, crc32.Checksum(raw[21:size], crc32.MakeTable(crc32.Castagnoli)), binary.BigEndian.Uint32(raw[17:]))
		require.Zero(t, binary.BigEndian.Uint32(raw[12:]))
		require.Positive(t, h.Records)
		bases = append(bases, base)
		raw = raw[size:]
	}
	return bases
}

// A log on disk and one in memory show the same, before and after a restart: open
// and aborted transactions included (W33).
func TestALogShowsTheSameOnDiskInMemoryAndAfterARestart(t *testing.T) {
	p := txnstate.Producer{ID: 7, Epoch: 1}
	fill := func(l *partitionLog) {
		require.NoError(t, l.append(plain(2, 10)))                   // 0, 1
		require.NoError(t, l.append(recordBatch(p, 0, 3, 10, true))) // 2..4
		require.NoError(t, l.mark(markers.Marker{Producer: p}))      // 5: abort
		require.NoError(t, l.append(recordBatch(p, 3, 1, 10, true))) // 6
		require.NoError(t, l.append(plain(1, 10)))                   // 7
		require.Equal(t, int64(8), l.end)
	}
	check := func(l *partitionLog) {
		at, err := l.ends()
		require.NoError(t, err)
		require.Equal(t, ends{high: 8, stable: 6}, at)
		s, err := l.selectFrom(0, 1<<20, true, false)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 2, 5, 6, 7}, all(t, l, s))
		require.Nil(t, s.aborted)
		s, err = l.selectFrom(1, 1<<20, true, true)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 2, 5}, all(t, l, s))
		require.Equal(t, []aborted{{7, 2}}, s.aborted)
		s, err = l.selectFrom(3, 1<<20, true, true)
		require.NoError(t, err)
		require.Equal(t, []int64{2, 5}, all(t, l, s))
		s, err = l.selectFrom(6, 1<<20, true, true)
		require.NoError(t, err)
		require.Empty(t, all(t, l, s))
		require.Equal(t, []aborted{}, s.aborted)
		_, err = l.selectFrom(9, 1<<20, true, true)
		require.Equal(t, kerr.OffsetOutOfRange.Code, codeOf(err))
		l.With(func(fp *fence.Partition) {
			st, ok := fp.Producer(7)
			require.True(t, ok)
			require.True(t, st.Open)
			require.EqualValues(t, 6, st.OpenSince)
			require.EqualValues(t, 3, st.LastSequence)
		})
	}
	mem := newPartitionLog("t", 0, 1<<20)
	fill(mem)
	check(mem)
	fsys := fsx.Mem()
	l := diskLog(t, fsys)
	fill(l)
	check(l)
	l.close()
	l = diskLog(t, fsys)
	check(l)
	l.close()
}

// Of every batch that fits, whole ones are returned, and the first even where it
// does not fit (KIP-74).
func TestWhatAFetchTakesOfALog(t *testing.T) {
	l := newPartitionLog("t", 0, 1<<20)
	size := len(plain(1, 100))
	for range 5 {
		require.NoError(t, l.append(plain(1, 100)))
	}
	for _, c := range []struct {
		max   int
		first bool
		want  int
	}{{0, false, 0}, {0, true, 1}, {size - 1, false, 0}, {size - 1, true, 1}, {size, false, 1}, {2*size + 1, true, 2}, {100 * size, true, 5}, {-1, false, 0}} {
		s, err := l.selectFrom(0, c.max, c.first, false)
		require.NoError(t, err)
		require.Len(t, all(t, l, s), c.want, "%+v", c)
	}
}

// The aborted transactions that come with a fetch reach up to the first entry of
// Kafka's offset index past the bytes returned: one every 4096 bytes.
func TestTheAbortedListReachesToAnIndexEntry(t *testing.T) {
	l := newPartitionLog("t", 0, 1<<20)
	abort := func(id int64) {
		p := txnstate.Producer{ID: id}
		require.NoError(t, l.append(recordBatch(p, 0, 1, 10, true)))
		require.NoError(t, l.mark(markers.Marker{Producer: p}))
	}
	require.NoError(t, l.append(plain(2, 10)))                                            // 0, 1
	require.NoError(t, l.append(recordBatch(txnstate.Producer{ID: 999}, 0, 1, 10, true))) // 2: stays open
	for id := range int64(100) {
		abort(id)
	}
	s, err := l.selectFrom(0, 1<<20, true, true)
	require.NoError(t, err)
	require.EqualValues(t, 2, s.stable)
	require.NotEmpty(t, l.index)
	// What is returned ends before the open transaction at 2; the list names
	// those that began below the first index entry, beyond the LSO.
	want := int64(0)
	for _, a := range l.state.Aborted(0, l.index[0].last) {
		require.Less(t, a.First, l.index[0].last)
		want++
	}
	require.EqualValues(t, want, len(s.aborted))
	require.Greater(t, len(s.aborted), 1)
	require.Less(t, len(s.aborted), 101)
}

// Readers do not see, and markers do not count, what is not on the disk yet: the
// high watermark moves when the sync is done.
func TestNothingIsShownBeforeItIsSynced(t *testing.T) {
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpSync {
			once.Do(func() { close(held); <-release })
		}
		return nil
	})
	l := diskLog(t, fsys)
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, l.append(plain(1, 1))) })
	<-held
	at, err := l.ends()
	require.NoError(t, err)
	require.Zero(t, at.high)
	s, err := l.selectFrom(0, 1<<20, true, false)
	require.NoError(t, err)
	require.Empty(t, s.batches)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, l.Durable(ctx, 0), context.Canceled)
	wg.Go(func() { require.NoError(t, l.Durable(context.Background(), 0)) })
	close(release)
	wg.Wait()
	at, err = l.ends()
	require.NoError(t, err)
	require.EqualValues(t, 1, at.high)
	l.close()
}

// After a failed sync the partition is offline: the producer state counts a batch
// that may not be there.
func TestAPartitionWhoseWriteFailedIsOffline(t *testing.T) {
	var fail atomic.Bool
	fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if fail.Load() && op == fsx.OpSync {
			return errors.New("lost")
		}
		return nil
	})
	l := diskLog(t, fsys)
	require.NoError(t, l.append(plain(1, 1)))
	told := make(chan struct{}, 1)
	defer l.watch(told)()
	fail.Store(true)
	require.Equal(t, kerr.KafkaStorageError.Code, codeOf(l.append(plain(1, 1))))
	<-told
	fail.Store(false)
	err := l.append(plain(1, 1))
	require.ErrorContains(t, err, "partition t/0 is offline")
	require.Equal(t, kerr.KafkaStorageError.Code, codeOf(err))
	_, err = l.selectFrom(0, 1, true, false)
	require.Equal(t, kerr.KafkaStorageError.Code, codeOf(err))
	require.Equal(t, kerr.KafkaStorageError.Code, codeOf(l.Durable(context.Background(), 1)))
	l.close()
	l = diskLog(t, fsys)
	require.NoError(t, l.append(plain(1, 1)))
	l.close()
}

// A batch that admit refuses leaves no trace, and its error comes back as it is.
func TestARefusedBatchIsNotAppended(t *testing.T) {
	l := newPartitionLog("t", 0, 1<<20)
	no := errors.New("no")
	require.Equal(t, no, l.Append(context.Background(), plain(1, 1), func(*fence.Partition, int64) error { return no }))
	require.Zero(t, l.end)
	require.Error(t, l.Append(context.Background(), []byte("short"), nil))
	require.Error(t, l.Append(context.Background(), append(plain(1, 1), 0), nil))
	require.Equal(t, kerr.MessageTooLarge.Code, codeOf(l.append(plain(1, 1<<20))))
	require.NoError(t, l.append(plain(1, 1<<20-100)))
}

// Concurrent appends keep offsets dense and batches whole, and what was
// acknowledged is there after a restart.
func TestConcurrentAppendsAreInOrder(t *testing.T) {
	fsys := fsx.Mem()
	l := diskLog(t, fsys)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 20 {
				require.NoError(t, l.append(plain(1+k%3, 10*i)))
			}
		})
	}
	wg.Wait()
	check := func() {
		var next int64
		for next < l.high {
			s, err := l.selectFrom(next, 500, true, false)
			require.NoError(t, err)
			require.NotEmpty(t, all(t, l, s))
			for _, b := range s.batches {
				require.Equal(t, next, b.base)
				next = b.last + 1
			}
		}
		require.Equal(t, l.end, next)
	}
	check()
	l.close()
	l = diskLog(t, fsys)
	check()
	l.close()
}

// A log whose batches do not follow one another is not one that was written here.
func TestALogOfOtherBytesIsRefused(t *testing.T) {
	for name, payload := range map[string][]byte{
		"no batch":        []byte("these are not the bytes of a record batch, although they are many"),
		"half a batch":    plain(1, 10)[:70],
		"a wrong offset":  func() []byte { b := plain(1, 1); b[7] = 9; return b }(),
		"a control batch": func() []byte { b := plain(1, 1); b[22] |= 0x20; return b }(),
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fsx.Mem()
			j := segment.New(fsys, "records.log", true)
			_, r, err := j.Add([]byte("\x00\x00\x00\x00"), payload)
			require.NoError(t, err)
			require.NoError(t, j.Wait(r))
			j.Close()
			_, err = openLogs("t", 1, 1<<20, fsys, "records.log", true)
			require.ErrorContains(t, err, "topic t: records.log, round at byte 0: partition t/0: ")
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprint(parallel, " writers"), func(b *testing.B) {
			ls, err := openLogs("t", 1, 1<<20, fsx.OS(), b.TempDir()+"/records.log", true)
			require.NoError(b, err)
			l := ls[0]
			defer l.close()
			batch := plain(1, 100)
			b.SetParallelism(parallel)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := l.append(batch); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// What is above the high watermark is not stable, whatever it is: a reader is shown
// what is durable, and no more (KAFKA-5488).
func TestNothingAboveTheHighWatermarkIsStable_I1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Bool
		goOn := make(chan struct{})
		l := diskLog(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
			if held.Load() && op == fsx.OpSync {
				<-goOn
			}
			return nil
		}))
		held.Store(true)
		p := txnstate.Producer{ID: 7, Epoch: 1}
		var work sync.WaitGroup
		add := func(f func() error) {
			work.Go(func() { require.NoError(t, f()) })
			synctest.Wait()
		}
		want := func(high, stable int64) {
			t.Helper()
			synctest.Wait()
			at, err := l.ends()
			require.NoError(t, err)
			require.Equal(t, ends{high, stable}, at)
			for _, committed := range []bool{false, true} {
				s, err := l.selectFrom(0, 1<<20, true, committed)
				require.NoError(t, err)
				for _, b := range s.batches {
					require.Less(t, b.last, high)
				}
			}
		}
		add(func() error { return l.append(plain(1, 10)) })                            // 0
		add(func() error { return l.append(recordBatch(p, 0, 1, 10, true)) })          // 1
		add(func() error { return l.mark(markers.Marker{Producer: p, Commit: true}) }) // 2
		want(0, 0)
		goOn <- struct{}{}
		want(1, 1)
		add(func() error { return l.append(plain(1, 10)) }) // 3
		goOn <- struct{}{}
		want(3, 3)
		close(goOn)
		work.Wait()
		want(4, 4)
		l.close()
	})
}
