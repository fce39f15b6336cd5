package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// bench is a sink of broker 9 and a receiver of broker 1 on one volume.
type bench struct {
	t    testing.TB
	disk fsx.FS
	c    *markerstest.Cluster
	sink *queue.Sink
	recv *queue.Receiver
	log  lockedBuffer

	sender, receiver *process
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newBench(t testing.TB, disk fsx.FS, tune func(*queue.SinkConfig, *queue.ReceiverConfig)) *bench {
	b := &bench{t: t, disk: disk, c: markerstest.NewCluster()}
	for i := range int32(50) {
		b.c.Lead(1, part(i))
	}
	logger := slog.New(slog.NewTextHandler(&b.log, nil))
	sc := queue.SinkConfig{Dir: "shared", Self: 9, Logger: logger}
	rc := queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1), Logger: logger}
	if tune != nil {
		tune(&sc, &rc)
	}
	b.receiver, b.sender = newProcess(t, disk), newProcess(t, disk)
	b.recv = b.receiver.receiver(t, rc)
	b.sink = b.sender.sink(t, sc)
	return b
}

func part(i int32) txnstate.Participant { return txnstate.Partition("events", i) }

func mark(id int64, epoch int16, commit bool, to txnstate.Participant) markers.Delivery {
	return markers.Delivery{
		Marker:      markers.Marker{TxnID: fmt.Sprint("tx-", id), Producer: txnstate.Producer{ID: id, Epoch: epoch}, Commit: commit, CoordinatorEpoch: 3},
		Participant: to, TxnSeq: 1,
	}
}

func (b *bench) send(ds ...markers.Delivery) []markers.Result {
	return b.sink.WriteMarkers(b.t.Context(), 1, ds)
}

// within is send with a limit.
func (b *bench) within(d time.Duration, ds ...markers.Delivery) []markers.Result {
	ctx, cancel := context.WithTimeout(b.t.Context(), d)
	defer cancel()
	return b.sink.WriteMarkers(ctx, 1, ds)
}

// files are those of broker 1's inbox whose names end so.
func (b *bench) files(ext string) []string {
	var out []string
	es, err := b.disk.ReadDir("shared/marker_queue/to-1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.t.Error(err)
	}
	for _, e := range es {
		if strings.HasSuffix(e.Name(), ext) {
			out = append(out, e.Name())
		}
	}
	return out
}

func withTimeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func in(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// applied is n results.
func applied(n int) []markers.Result {
	return slices.Repeat([]markers.Result{markers.Applied}, n)
}

func TestAnEntryIsThereOnlyWhileItsSenderWaits(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		done := make(chan []markers.Result, 1)
		go func() { done <- b.send(mark(7, 1, true, part(0))) }()
		<-h.Reached
		require.Len(t, b.files(".entry"), 1)
		require.Empty(t, b.files(".ack"))
		require.Regexp(t, `^9-[A-Z2-7]{26}-0{19}1\.entry$`, b.files("")[0])
		h.Release()
		require.Equal(t, applied(1), <-done)
		require.Empty(t, b.files(".entry"))
		time.Sleep(time.Second)
		require.Empty(t, b.files(""))
	})
}

// In one process nothing waits for the next poll.
func TestWakingMakesItImmediate_W30(t *testing.T) {
	in(t, func(t *testing.T) {
		var b *bench
		b = newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, rc *queue.ReceiverConfig) {
			sc.Poll, rc.Poll = time.Hour, time.Hour
			sc.Sent = func(to markers.Target) {
				require.Equal(t, markers.Target(1), to)
				b.recv.Wake()
			}
			rc.Acked = func(to markers.Target) {
				require.Equal(t, markers.Target(9), to)
				b.sink.Wake(to)
			}
		})
		begun := time.Now()
		for i := range int16(10) {
			require.Equal(t, applied(2), b.send(mark(7, i, true, part(0)), mark(7, i, true, part(1))))
		}
		require.Equal(t, begun, time.Now())
	})
}

func TestEverythingOfADeliveryArrives(t *testing.T) {
	in(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []markers.Delivery
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) {
			rc.Apply = applyFunc(func(_ context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, ds...)
				return applied(len(ds))
			})
		})
		d := mark(7, 1, true, txnstate.Participant{Kind: txnstate.KindHost + 3, Name: "db \xff\x00/../..", Index: -7})
		d.TxnID, d.TxnSeq, d.TransactionVersion = "\xfe\n", 1<<63, txnstate.TV2
		g := d
		g.Participant, g.TxnSeq = txnstate.Group("g/\\"), 2
		require.Equal(t, applied(2), b.send(d, g))
		require.ElementsMatch(t, []markers.Delivery{d, g}, got)
	})
}

// F12: those that are answered do not wait for one that hangs; it is withdrawn, and
// when it comes again and again, nothing piles up.
func TestAHangingParticipantCostsOthersAMoment(t *testing.T) {
	in(t, func(t *testing.T) {
		var calls atomic.Int32
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) {
			inner := rc.Apply
			rc.Apply = applyFunc(func(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
				calls.Add(1)
				defer calls.Add(-1)
				return inner.WriteMarkers(ctx, to, ds)
			})
		})
		h := markerstest.NewHang()
		b.c.Always(part(0), h.Deaf())
		begun := time.Now()
		require.Equal(t, []markers.Result{markers.Retry, markers.Applied, markers.Applied},
			b.send(mark(7, 1, true, part(0)), mark(7, 1, true, part(1)), mark(8, 1, true, part(2))))
		require.Less(t, time.Since(begun), 2*time.Second)
		for i := range int16(200) {
			require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Second, mark(7, 1, true, part(0))))
			require.Equal(t, applied(1), b.send(mark(9, i, true, part(1))), "beside it")
			require.Empty(t, b.files(".entry"))
			require.LessOrEqual(t, len(b.files("")), 2)
		}
		require.EqualValues(t, 1, calls.Load(), "one call of the participant is under way")
		h.Release()
		require.Equal(t, applied(1), b.send(mark(7, 1, true, part(0))))
		require.LessOrEqual(t, len(b.c.Log(part(0))), 3, "what was withdrawn is not applied later")
	})
}

// W3: no second entry for what may still arrive.
func TestADeliveryUnderWayIsNotSentTwice(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		first := make(chan []markers.Result, 1)
		go func() { first <- b.send(mark(7, 1, true, part(0))) }()
		<-h.Reached
		require.Equal(t, []markers.Result{markers.Retry, markers.Applied, markers.Applied},
			b.within(5*time.Second, mark(7, 2, false, part(0)), mark(7, 2, false, part(1)), mark(8, 2, false, part(2))))
		require.Equal(t, []markers.Result{markers.Retry}, b.sink.WriteMarkers(t.Context(), 2, []markers.Delivery{mark(7, 1, true, part(0))}), "nor to another broker")
		h.Release()
		require.Equal(t, applied(1), <-first)
		require.Equal(t, applied(1), b.send(mark(7, 2, false, part(0))))
	})
}

// A withdrawal that does not succeed is no withdrawal.
func TestAnEntryThatCanNotBeRemovedKeepsItsPlace(t *testing.T) {
	for _, fails := range []fsx.Op{fsx.OpRemove, fsx.OpSyncDir} {
		in(t, func(t *testing.T) {
			var broken atomic.Bool
			mem := fsx.Mem()
			disk := fsx.Hook(mem, func(op fsx.Op, name string) error {
				if broken.Load() && op == fails && strings.Contains(name, "to-1") && !strings.HasSuffix(name, ".ack") {
					return errInjected
				}
				return nil
			})
			b := newBench(t, disk, nil)
			require.Equal(t, applied(1), b.send(mark(6, 1, true, part(0))))
			h := markerstest.NewHang()
			b.c.Script(part(0), h.Before())
			done := make(chan []markers.Result, 1)
			go func() { done <- b.within(3*time.Second, mark(7, 1, true, part(0))) }()
			<-h.Reached
			broken.Store(true)
			require.Equal(t, []markers.Result{markers.Retry}, <-done)
			require.Equal(t, []markers.Result{markers.Retry}, b.sink.WriteMarkers(t.Context(), 2, []markers.Delivery{mark(7, 1, true, part(0))}), "it may still arrive at broker 1")
			h.Release()
			time.Sleep(time.Minute)
			require.Len(t, b.c.Log(part(0)), 2, "as it did")
			require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Minute, mark(7, 1, true, part(0))))
			broken.Store(false)
			time.Sleep(time.Second)
			require.Equal(t, applied(1), b.send(mark(7, 1, true, part(0))))
			require.Empty(t, b.files(".entry"))
		})
	}
}

func TestAnInboxHasABoundedNumberOfEntries_I13(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) {
			sc.Entries, sc.EntryBytes, sc.Bytes = 4, 3000, 9000
		})
		h := markerstest.NewHang()
		for i := range int32(50) {
			b.c.Always(part(i), h.Before())
		}
		var all sync.WaitGroup
		for n := range int64(20) {
			all.Go(func() {
				var ds []markers.Delivery
				for i := range int32(50) {
					ds = append(ds, mark(n, 1, true, part(i)))
				}
				require.Equal(t, applied(50), b.send(ds...))
			})
		}
		<-h.Reached
		synctest.Wait()
		require.LessOrEqual(t, len(b.files(".entry")), 4)
		require.NotEmpty(t, b.files(".entry"))
		for _, name := range b.files(".entry") {
			data, err := b.disk.ReadFile("shared/marker_queue/to-1/" + name)
			require.NoError(t, err)
			require.Less(t, len(data), 4000)
		}
		h.Release()
		all.Wait()
	})
}

func TestWhatIsOpenIsAskedThroughTheQueue(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		d := mark(7, 1, true, part(0))
		for _, want := range []bool{false, true, false} {
			open, err := b.sink.StillOpen(t.Context(), 1, d)
			require.NoError(t, err)
			require.Equal(t, want, open)
			if want {
				require.Equal(t, applied(1), b.send(d))
			} else {
				b.c.Write(part(0), d.Producer)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.sink.StillOpen(ctx, 5, d)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = b.sink.StillOpen(ctx, 1, d)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.Empty(t, b.files(""))
	})
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) {
			rc.Apply = applyFunc(func(context.Context, markers.Target, []markers.Delivery) []markers.Result { return nil })
		})
		_, err := b.sink.StillOpen(t.Context(), 1, mark(7, 1, true, part(0)))
		require.Error(t, err)
		require.Equal(t, []markers.Result{markers.Retry}, b.send(mark(7, 1, true, part(0))), "an answer that is too short")
	})
}

func TestAPanicCostsItsOwnDeliveries(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) {
			inner := rc.Apply
			rc.Apply = panicking{applyFunc(func(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
				if ds[0].Participant == part(0) {
					panic("not this one")
				}
				return inner.WriteMarkers(ctx, to, ds)
			})}
		})
		require.Equal(t, []markers.Result{markers.Retry, markers.Applied}, b.send(mark(7, 1, true, part(0)), mark(7, 1, true, part(1))))
		require.Contains(t, b.log.String(), "not this one")
		_, err := b.sink.StillOpen(t.Context(), 1, mark(7, 1, true, part(1)))
		require.Error(t, err)
	})
}

type panicking struct{ applyFunc }

func (panicking) StillOpen(context.Context, markers.Target, markers.Delivery) (bool, error) {
	panic("nor this")
}

func TestTheOwnBrokerNeedsNoVolume(t *testing.T) {
	in(t, func(t *testing.T) {
		c := markerstest.NewCluster()
		c.Lead(9, part(0))
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Local = c.Broker(9) })
		d := mark(7, 1, true, part(0))
		require.Equal(t, applied(1), b.sink.WriteMarkers(t.Context(), 9, []markers.Delivery{d}))
		open, err := b.sink.StillOpen(t.Context(), 9, d)
		require.NoError(t, err)
		require.False(t, open)
	})
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) {
			sc.Local = applyFunc(func(context.Context, markers.Target, []markers.Delivery) []markers.Result { return nil })
		})
		_, err := b.sink.StillOpen(t.Context(), 9, mark(7, 1, true, part(0)))
		require.Error(t, err)
	})
}

func TestBeforeAndAfterRunNothingIsKnown(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		defer h.Release()
		b.c.Script(part(0), h.Before())
		done := make(chan []markers.Result, 1)
		go func() { done <- b.send(mark(7, 1, true, part(0))) }()
		<-h.Reached
		b.sender.stop(t)
		require.Equal(t, []markers.Result{markers.Retry}, <-done)
		require.Empty(t, b.files(".entry"), "an orderly end withdraws")
		require.Equal(t, []markers.Result{markers.Retry}, b.send(mark(7, 1, true, part(0))))
		require.Error(t, b.sink.Run(t.Context()))
		require.Error(t, b.recv.Run(t.Context()))
		b.sink.Wake(1)
		b.recv.Wake()

		fresh, err := queue.NewSink(queue.SinkConfig{Dir: "x", FS: fsx.Mem()})
		require.NoError(t, err)
		require.Equal(t, []markers.Result{markers.Retry}, fresh.WriteMarkers(t.Context(), 1, []markers.Delivery{mark(7, 1, true, part(0))}))
	})
}

func TestConfigsAreChecked(t *testing.T) {
	_, err := queue.NewSink(queue.SinkConfig{Poll: -1})
	require.ErrorContains(t, err, "Dir")
	require.ErrorContains(t, err, "negative")
	_, err = queue.NewReceiver(queue.ReceiverConfig{Width: -1})
	require.ErrorContains(t, err, "Dir")
	require.ErrorContains(t, err, "Apply")
	require.ErrorContains(t, err, "negative")
}

// What waits behind another entry, and is withdrawn, is not applied when its turn
// comes.
func TestAWithdrawnEntryIsNotApplied(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Deaf())
		first := make(chan []markers.Result, 1)
		go func() { first <- b.send(mark(7, 1, true, part(0))) }()
		<-h.Reached
		require.Equal(t, []markers.Result{markers.Retry}, b.within(300*time.Millisecond, mark(8, 1, true, part(0))))
		time.Sleep(250 * time.Millisecond) // the receiver sees it go
		h.Release()
		require.Equal(t, applied(1), <-first)
		require.Len(t, b.c.Log(part(0)), 1)
	})
}
