package queue_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
)

// The next process of a receiver does not do again what the last one has answered,
// and does what it has not.
func TestAReceiverThatRestartsGoesOn(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) {
			sc.Poll = 20 * time.Second // so that the receiver is done before the sink looks
			sc.Straggle = time.Minute
		})
		h := markerstest.NewHang()
		b.c.Script(part(1), h.Deaf())
		first, second := make(chan []markers.Result, 1), make(chan []markers.Result, 1)
		go func() { first <- b.send(mark(7, 1, true, part(0))) }()
		time.Sleep(time.Second)
		b.sink.Wake(1) // the first call's lane polls at its pace; the second entry goes at once
		go func() { second <- b.send(mark(8, 1, true, part(1)), mark(8, 1, true, part(2))) }()
		<-h.Reached
		time.Sleep(2 * time.Second)
		require.Len(t, b.files(".entry"), 1)
		require.Equal(t, applied(1), <-first)
		b.receiver.kill()
		b.c.Broker(1).Crash()
		h.Release()
		next := newProcess(t, b.disk)
		next.receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1)})
		require.Equal(t, applied(2), <-second)
		require.Len(t, b.c.Log(part(0)), 1)
		require.Len(t, b.c.Log(part(1)), 1)
		require.Len(t, b.c.Log(part(2)), 2, "it had been answered in part: all is applied once more")
	})
}

func TestAnAnswerOfTheLastProcessStands(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Poll = time.Minute })
		done := make(chan []markers.Result, 1)
		go func() { done <- b.send(mark(7, 1, true, part(0))) }()
		time.Sleep(10 * time.Second)
		require.Len(t, b.files(".ack"), 1)
		b.receiver.kill()
		next := newProcess(t, b.disk)
		next.receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1)})
		require.Equal(t, applied(1), <-done)
		require.Len(t, b.c.Log(part(0)), 1)
	})
}

// leave makes an entry that its sender leaves behind.
func (b *bench) leave(d markers.Delivery) {
	go b.sink.WriteMarkers(b.t.Context(), 1, []markers.Delivery{d})
	for len(b.files(".entry")) == 0 {
		time.Sleep(time.Millisecond)
	}
	b.sender.kill()
}

func TestTheNextSenderRemovesWhatTheLastOneLeft(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		b.leave(mark(7, 1, true, part(0)))
		<-h.Reached
		stranger := "8-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000001.entry"
		b.put(".9-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000004.entry.QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B.tmp", nil)
		b.put("."+stranger+".QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B.tmp", nil)
		b.receiver.kill()
		b.put(stranger, nil) // of another broker, which waits for the answer

		next := newProcess(t, b.disk)
		sink := next.sink(t, queue.SinkConfig{Dir: "shared", Self: 9})
		require.Equal(t, []string{"." + stranger + ".QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B.tmp", stranger}, b.files(""))
		h.Release()
		again := newProcess(t, b.disk)
		again.receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1)})
		require.Equal(t, applied(1), sink.WriteMarkers(t.Context(), 1, []markers.Delivery{mark(7, 1, true, part(0))}))
	})
}

func TestASenderThatCanNotTidyUpSendsNothing(t *testing.T) {
	in(t, func(t *testing.T) {
		var broken atomic.Bool
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			if broken.Load() && op == fsx.OpRemove && strings.HasSuffix(name, ".entry") {
				return errInjected
			}
			return nil
		})
		b := newBench(t, disk, nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		b.leave(mark(7, 1, true, part(0)))
		<-h.Reached
		h.Release()
		broken.Store(true)
		next := newProcess(t, b.disk)
		sink := next.sink(t, queue.SinkConfig{Dir: "shared", Self: 9, Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
		ds := []markers.Delivery{mark(7, 1, true, part(1))}
		require.Equal(t, []markers.Result{markers.Retry}, sink.WriteMarkers(t.Context(), 1, ds))
		_, err := sink.StillOpen(t.Context(), 1, ds[0])
		require.Error(t, err)
		require.Contains(t, b.log.String(), "nothing is sent before they are")
		time.Sleep(10 * time.Minute) // however often it fails
		require.Equal(t, []markers.Result{markers.Retry}, sink.WriteMarkers(withTimeout(t, time.Second), 1, ds))
		broken.Store(false)
		time.Sleep(10 * time.Second)
		require.Equal(t, applied(1), sink.WriteMarkers(t.Context(), 1, ds))
	})
}

// W21: what an earlier process left is durably gone before anything is sent: else it
// would come back after a loss of power, and be applied behind what came after it.
func TestLeftoversAreDurablyGoneBeforeAnythingIsSent_W21(t *testing.T) {
	in(t, func(t *testing.T) {
		var ops []string
		var record atomic.Bool
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			if record.Load() && (op == fsx.OpSyncDir && strings.HasSuffix(name, "to-1") || strings.HasSuffix(name, ".entry") && (op == fsx.OpRemove || op == fsx.OpRename)) {
				ops = append(ops, string(op))
			}
			return nil
		})
		b := newBench(t, disk, nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		b.leave(mark(7, 1, true, part(0)))
		<-h.Reached
		h.Release()
		record.Store(true)
		next := newProcess(t, b.disk)
		sink := next.sink(t, queue.SinkConfig{Dir: "shared", Self: 9})
		require.Equal(t, applied(1), sink.WriteMarkers(t.Context(), 1, []markers.Delivery{mark(7, 1, true, part(0))}))
		require.Equal(t, []string{"remove", "sync dir", "rename", "sync dir", "remove", "sync dir"}, ops)
	})
}

// The entries of a sender that never comes back.
func TestWhatNobodyComesBackForIsRemoved_I13(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		b.leave(mark(7, 1, true, part(0)))
		b.put(".8-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000001.entry.QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B.tmp", nil)
		time.Sleep(5 * time.Minute)
		require.Len(t, b.files(".entry"), 1)
		require.Len(t, b.files(".ack"), 1)
		require.Len(t, b.c.Log(part(0)), 1, "it is applied all the same")
		time.Sleep(6 * time.Minute)
		require.Empty(t, b.files(""))
		require.Len(t, b.c.Log(part(0)), 1)
	})
}

// A sender that was stopped for longer than that learns nothing.
func TestASenderThatWakesUpTooLateTriesAgain(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Poll = 15 * time.Minute })
		begun := time.Now()
		require.Equal(t, []markers.Result{markers.Retry}, b.send(mark(7, 1, true, part(0))))
		require.Greater(t, time.Since(begun), 15*time.Minute)
		require.Contains(t, b.log.String(), "gone without an acknowledgement")
	})
}

// An entry that is answered takes no room from others, however long its sender leaves
// it where it is.
func TestAnsweredEntriesKeepNobodyWaiting_I12(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) {
			rc.Entries = 1
			rc.AbandonAfter = time.Hour
		})
		b.leave(mark(7, 1, true, part(0)))
		time.Sleep(time.Second)
		require.Len(t, b.files(".ack"), 1)
		require.Len(t, b.files(".entry"), 1)
		other := newProcess(t, b.disk).sink(t, queue.SinkConfig{Dir: "shared", Self: 10})
		require.Equal(t, applied(1), other.WriteMarkers(withTimeout(t, time.Minute), 1, []markers.Delivery{mark(8, 1, true, part(1))}))
	})
}

// The answer to an entry that the next process has not come to yet stays beside it.
func TestAnAnswerWaitsForItsEntryToBeLookedAt(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Poll = time.Minute })
		done := make(chan []markers.Result, 2)
		go func() { done <- b.send(mark(7, 1, true, part(0))) }()
		time.Sleep(10 * time.Second)
		require.Len(t, b.files(".ack"), 1)
		b.receiver.kill()
		h := markerstest.NewHang()
		b.c.Script(part(1), h.Before())
		earlier := newProcess(t, b.disk).sink(t, queue.SinkConfig{Dir: "shared", Self: 8}) // by name
		go func() {
			done <- earlier.WriteMarkers(t.Context(), 1, []markers.Delivery{mark(8, 1, true, part(1))})
		}()
		time.Sleep(time.Second)
		next := newProcess(t, b.disk)
		next.receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1), Entries: 1})
		<-h.Reached
		time.Sleep(10 * time.Second)
		require.Len(t, b.files(".ack"), 1)
		h.Release()
		require.Equal(t, applied(1), <-done)
		require.Equal(t, applied(1), <-done)
		require.Len(t, b.c.Log(part(0)), 1)
	})
}
