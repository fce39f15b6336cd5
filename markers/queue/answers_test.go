package queue_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/queue"
)

// answer puts an acknowledgement beside the one entry that is there.
func (b *bench) answer(results string) {
	name := strings.TrimSuffix(b.files(".entry")[0], ".entry")
	entry, err := b.disk.ReadFile("shared/marker_queue/to-1/" + name + ".entry")
	require.NoError(b.t, err)
	head, _, _ := strings.Cut(string(entry), "\n")
	body := fmt.Sprintf("{\"entry\":%q,\"results\":[%s]}\n", head[len(head)-8:], results)
	b.put(name+".ack", fmt.Appendf(nil, "kafkatxn marker ack 1 %08x\n%s", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body))
}

// Of two receivers of one broker, as a restart can bring about, the old one may be
// the last to answer. What was said once of a delivery stays.
func TestWhatWasSaidOnceOfADeliveryStays(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Straggle = time.Minute })
		b.receiver.kill()
		done := make(chan []markers.Result, 1)
		go func() { done <- b.within(time.Hour, mark(7, 1, true, part(0)), mark(7, 1, true, part(1))) }()
		for _, said := range []string{`"applied",""`, `"retry",""`, `"","applied"`} {
			time.Sleep(time.Second)
			b.answer(said)
		}
		require.Equal(t, applied(2), <-done)
	})
}

// inOrder is an Apply that knows the order of its calls for partition 0, and how many
// of them there are at a time.
type inOrder struct {
	now, most atomic.Int32
	mu        sync.Mutex
	ids       []int64
}

func (s *inOrder) WriteMarkers(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	if ds[0].Participant != part(0) {
		return applied(len(ds))
	}
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	s.mu.Lock()
	for _, d := range ds {
		s.ids = append(s.ids, d.Producer.ID)
	}
	s.mu.Unlock()
	time.Sleep(time.Second)
	return applied(len(ds))
}

// Apply is called for one participant at a time, in the order in which the entries
// were made, however many of them wait; and what has waited longest is taken up
// first, also where only one entry is worked on at once (W24).
func TestEntriesForOneParticipantAreAppliedOneAfterTheOther_W24(t *testing.T) {
	for _, entries := range []int{1, 0} {
		in(t, func(t *testing.T) {
			b := newBench(t, fsx.Mem(), func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Straggle = time.Hour })
			b.receiver.kill()
			var all sync.WaitGroup
			for id := range int64(5) {
				all.Go(func() {
					require.Equal(t, applied(2), b.within(time.Hour, mark(id, 1, true, part(0)), mark(id, 1, true, part(int32(id)+1))))
				})
				synctest.Wait()
				time.Sleep(time.Second)
			}
			require.Len(t, b.files(".entry"), 5)
			apply := &inOrder{}
			newProcess(t, b.disk).receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Entries: entries, Apply: apply})
			all.Wait()
			require.Equal(t, []int64{0, 1, 2, 3, 4}, apply.ids)
			require.EqualValues(t, 1, apply.most.Load())
		})
	}
}

// What was applied, and whose entry can't be removed before the sender ends, is not
// told as applied: the entry may be applied again, and the next marker of the
// producer must not overtake that (W3).
func TestAnEntryThatStaysBehindAnswersForNothing_W3(t *testing.T) {
	in(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
			if broken.Load() && op == fsx.OpRemove && strings.HasSuffix(name, ".entry") {
				return errInjected
			}
			return nil
		})
		b := newBench(t, disk, nil)
		done := make(chan []markers.Result, 1)
		go func() { done <- b.within(time.Hour, mark(7, 1, true, part(0))) }()
		time.Sleep(time.Minute)
		require.Len(t, b.c.Log(part(0)), 1)
		b.sender.stop(t)
		require.Equal(t, []markers.Result{markers.Retry}, <-done)
		require.Len(t, b.files(".entry"), 1)
		broken.Store(false)
	})
}
