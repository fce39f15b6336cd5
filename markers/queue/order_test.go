package queue_test

import (
	"context"
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

// W3, W24: of the markers of a producer for a participant one entry at most is under
// way, whatever else is asked about them: a question whether it is open ends none of
// that.
func TestAQuestionLeavesTheOrderOfMarkersAlone_W24(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		first := make(chan []markers.Result, 1)
		go func() { first <- b.send(mark(7, 1, true, part(0))) }()
		<-h.Reached
		ask := make(chan error, 1)
		go func() { _, err := b.sink.StillOpen(t.Context(), 1, mark(7, 1, true, part(0))); ask <- err }()
		time.Sleep(time.Second)
		h.Release()
		require.NoError(t, <-ask)
		require.Equal(t, applied(1), <-first)

		h = markerstest.NewHang()
		b.c.Script(part(1), h.Before())
		go func() { first <- b.send(mark(7, 1, true, part(1))) }()
		<-h.Reached
		b.receiver.kill() // nobody answers the question
		_, err := b.sink.StillOpen(withTimeout(t, time.Second), 1, mark(7, 1, true, part(1)))
		require.Error(t, err)
		time.Sleep(time.Second)
		begin := time.Now()
		require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Second, mark(7, 2, false, part(1))), "the one before may still be applied")
		require.Zero(t, time.Since(begin), "it was sent")
		require.Len(t, b.files(".entry"), 1, "the question was taken back, and nothing was sent")
		h.Release()
		next := newProcess(t, b.disk)
		next.receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1)})
		require.Equal(t, applied(1), <-first)
	})
}

// Nor does a call with so many that they are several entries.
func TestACallOfSeveralEntriesKeepsTheOrder_W24(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.EntryBytes = 1 })
		got := b.send(mark(7, 1, true, part(0)), mark(8, 1, true, part(0)), mark(7, 2, false, part(0)), mark(7, 1, true, part(1)))
		require.Equal(t, []markers.Result{markers.Applied, markers.Applied, markers.Retry, markers.Applied}, got)
		require.Equal(t, applied(1), b.send(mark(7, 2, false, part(0))))
	})
}

// I11, W24: an entry whose writing failed may be there all the same. While it can't
// be removed, no other of its producer and participant is sent.
func TestAnEntryThatPerhapsIsThereKeepsItsPlace_I11(t *testing.T) {
	in(t, func(t *testing.T) {
		var broken atomic.Bool
		disk := fsx.HookAfter(fsx.Mem(), func(op fsx.Op, name string, err error) error {
			if broken.Load() && op == fsx.OpRename && strings.HasSuffix(name, ".entry") {
				return errInjected // and it is there
			}
			return err
		})
		disk = fsx.Hook(disk, func(op fsx.Op, name string) error {
			if broken.Load() && op == fsx.OpRemove && strings.HasSuffix(name, ".entry") {
				return errInjected
			}
			return nil
		})
		b := newBench(t, disk, nil)
		b.receiver.kill()
		broken.Store(true)
		require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Second, mark(7, 1, true, part(0))))
		require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Second, mark(7, 2, false, part(0))))
		require.Len(t, b.files(".entry"), 1)
		broken.Store(false)
		time.Sleep(time.Minute)
		require.Empty(t, b.files(".entry"))
		next := newProcess(t, b.disk)
		next.receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1)})
		require.Equal(t, applied(1), b.send(mark(7, 2, false, part(0))))
		require.Len(t, b.c.Log(part(0)), 1)
	})
}

// What its caller has left while it was being written is not sent.
func TestWhatIsLeftWhileItIsWrittenIsNotSent(t *testing.T) {
	in(t, func(t *testing.T) {
		gate := make(chan struct{})
		var slow, sent atomic.Bool
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			switch {
			case op == fsx.OpSync && slow.Load() && strings.HasSuffix(name, ".tmp"):
				<-gate
			case op == fsx.OpRename && strings.HasSuffix(name, ".entry"):
				sent.Store(true)
			}
			return nil
		})
		b := newBench(t, disk, nil)
		slow.Store(true)
		require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Second, mark(7, 1, true, part(0))))
		slow.Store(false)
		close(gate)
		time.Sleep(time.Minute)
		require.False(t, sent.Load())
		require.Empty(t, b.files(""))
		require.Equal(t, applied(1), b.send(mark(7, 1, true, part(0))))
	})
}

// A call waits for the rest of its deliveries as long as it is told to.
func TestTheRestIsWaitedFor(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Straggle = 5 * time.Second })
		for _, tc := range []struct {
			takes time.Duration
			want  markers.Result
		}{{3 * time.Second, markers.Applied}, {20 * time.Second, markers.Retry}} {
			h := markerstest.NewHang()
			b.c.Script(part(1), h.Before())
			timer := time.AfterFunc(tc.takes, h.Release)
			require.Equal(t, []markers.Result{markers.Applied, tc.want}, b.send(mark(7, 1, true, part(0)), mark(7, 1, true, part(1))))
			<-h.Reached
			timer.Stop()
			if tc.want == markers.Retry {
				h.Release()
			}
			time.Sleep(time.Minute)
		}
	})
}

// I13: no more entries are worked on at once than are allowed, and one that takes
// long is not taken for left behind.
func TestEntriesAreBoundedAndMayTakeLong_I13(t *testing.T) {
	in(t, func(t *testing.T) {
		slow := &slowApply{}
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) {
			rc.Entries, rc.AbandonAfter, rc.Apply = 2, time.Minute, slow
		})
		results := make(chan []markers.Result, 6)
		for i := range int32(6) {
			go func() { results <- b.within(time.Hour, mark(int64(i), 1, true, part(i))) }()
		}
		for range 6 {
			require.Equal(t, applied(1), <-results)
		}
		require.EqualValues(t, 2, slow.most.Load())
		require.EqualValues(t, 6, slow.calls.Load(), "each is applied once")
	})
}

// slowApply takes five minutes for a delivery.
type slowApply struct{ now, most, calls atomic.Int32 }

func (s *slowApply) WriteMarkers(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	s.calls.Add(1)
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	time.Sleep(5 * time.Minute)
	return applied(len(ds))
}

// What is applied while the receiver ends is acknowledged before it has ended.
func TestTheLastApplicationIsAcknowledged(t *testing.T) {
	in(t, func(t *testing.T) {
		slow := &slowApply{}
		b := newBench(t, fsx.Mem(), func(_ *queue.SinkConfig, rc *queue.ReceiverConfig) { rc.Apply = slow })
		done := make(chan []markers.Result, 1)
		go func() { done <- b.within(time.Hour, mark(1, 1, true, part(0))) }()
		time.Sleep(time.Minute)
		b.receiver.stop(t)
		require.Equal(t, applied(1), <-done)
	})
}
