package overload

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/kept"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// dice are thrown by many.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// takesAll is a sink that answers at random, and to one participant never; when
// it is kind, it takes all.
type takesAll struct {
	*dice
	kind atomic.Bool
}

func (s *takesAll) WriteMarkers(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	time.Sleep(time.Millisecond)
	out := make([]markers.Result, len(ds))
	for i, d := range ds {
		switch {
		case s.kind.Load():
			out[i] = markers.Applied
		case d.Participant.Index == 0:
		default:
			out[i] = []markers.Result{markers.Applied, markers.Retry, markers.Moved, markers.FencedEpoch, markers.FencedCoordinator, markers.Deleted}[s.IntN(6)]
		}
	}
	if !s.kind.Load() && s.IntN(20) == 0 {
		panic("a hook fails")
	}
	return out
}

func (s *takesAll) StillOpen(context.Context, markers.Target, markers.Delivery) (bool, error) {
	return s.IntN(2) == 0, nil
}

// Leader is asked for every attempt; the leader is another one each time.
func (s *takesAll) Leader(txnstate.Participant) (markers.Target, markers.Standing) {
	if !s.kind.Load() && s.IntN(4) == 0 {
		return 0, []markers.Standing{markers.Unknown, markers.Gone}[s.IntN(2)]
	}
	return markers.Target(s.IntN(1 << 30)), markers.Known
}

// broker is a coordinator of a cluster of two, with what belongs to it.
type broker struct {
	*txnstate.Coordinator
	dispatcher *markers.Dispatcher
	reaper     *reaper.Reaper

	acquired, lost func(slot int, epoch int32)
}

func (b *broker) Watch(ctx context.Context, acquired, lost func(slot int, epoch int32)) error {
	b.acquired, b.lost = acquired, lost
	<-ctx.Done()
	return nil
}

func (b *broker) kept() kept.Count {
	out := kept.In(b.Coordinator)
	for _, part := range []kept.Count{kept.In(b.dispatcher), kept.In(b.reaper)} {
		maps.Copy(out, part)
	}
	return out
}

// plain hides the abilities of a store beyond the interface.
type plain struct{ txnstate.Store }

func newBroker(t *testing.T, s txnstate.Store, ids txnstate.ProducerIDs, sink *takesAll, most int) (b *broker, stop func()) {
	b = &broker{reaper: reaper.New(reaper.Config{Every: time.Second})}
	var err error
	if b.dispatcher, err = markers.NewDispatcher(markers.Config{Leaders: sink, Sink: sink}); err != nil {
		t.Fatal(err)
	}
	b.Coordinator, err = txnstate.New(txnstate.Config{
		Store: s, ProducerIDs: ids, Dispatcher: b.dispatcher, Deadlines: b.reaper, Ownership: b,
		ExpireAfter: time.Hour, EndWait: 10 * time.Millisecond, Limits: txnstate.Limits{TransactionalIDs: most},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 3)
	go func() { ended <- b.dispatcher.Run(ctx) }()
	go func() { ended <- b.Run(ctx) }()
	go func() { ended <- b.reaper.Run(ctx, b) }()
	return b, func() {
		cancel()
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}

// W12, F36, I13: ids come, have transactions that commit, abort, time out, are
// left in the middle, stopped by other brokers and taken up again, move with their
// slots, and expire. When they are gone nothing of them is kept, in no map and in
// no list of the broker that had them, nor of the one that has them now.
func TestNothingIsKeptOfWhatIsOver(t *testing.T) {
	const ids = 200
	synctest.Test(t, func(t *testing.T) {
		rng := &dice{rng: rand.New(rand.NewPCG(7, 7))}
		sink := &takesAll{dice: rng}
		mem := memstore.New()
		var pids counter
		var brokers [2]*broker
		for i, s := range []txnstate.Store{mem, plain{mem}} {
			b, stop := newBroker(t, s, &pids, sink, ids)
			defer stop()
			brokers[i] = b
		}
		synctest.Wait()
		all := func(f func(slot int, epoch int32), epoch int) {
			for i := range txnstate.Slots {
				f(i, int32(epoch))
			}
			synctest.Wait()
		}
		all(brokers[0].acquired, 0)
		for n := range 3 {
			from, to := brokers[n%2], brokers[(n+1)%2]
			sink.kind.Store(false)
			var wg sync.WaitGroup
			var began atomic.Int64
			for i := range ids {
				id := fmt.Sprintf("id-%d-%d", n, i)
				for range 2 { // two at once: they wait for each other
					wg.Go(func() {
						if use(from.Coordinator, id, rng) {
							began.Add(1)
						}
					})
				}
			}
			wg.Wait()
			if began.Load() < ids/2 { // ids that are gone have made room
				t.Errorf("round %d: only %d transactions began", n, began.Load())
			}
			time.Sleep(time.Minute)
			all(from.lost, n) // some are not delivered, and some were stopped
			all(to.acquired, n+1)
			sink.kind.Store(true)
			time.Sleep(3 * time.Hour)
			synctest.Wait()
			if left := open(t, mem); left > 0 {
				t.Fatalf("I12: %d ids are not settled", left)
			}
			// Memory for what comes is kept, of goroutines without work for one.
			for i, b := range brokers {
				if more := b.kept().More(nil, 300); len(more) > 0 || b.dispatcher.Pending() > 0 || b.reaper.Len() > 0 {
					t.Errorf("round %d: broker %d keeps of ids that are gone%s\n%d transactions to be delivered and %d deadlines", n, i, more, b.dispatcher.Pending(), b.reaper.Len())
				}
			}
			if more := kept.In(mem).More(nil, 0); len(more) > 0 {
				t.Errorf("round %d: the store keeps%s", n, more)
			}
		}
	})
}

// use is what becomes of an id; every call may be left in the middle. It reports
// whether a transaction began.
func use(c *txnstate.Coordinator, id string, rng *dice) (began bool) {
	call := func(f func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(200))*time.Millisecond)
		defer cancel()
		return f(ctx)
	}
	var p txnstate.Producer
	v := txnstate.TransactionVersion(2 * rng.IntN(2))
	if call(func(ctx context.Context) (err error) {
		p, err = c.Init(ctx, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: int32(1 + rng.IntN(50_000))})
		return err
	}) != nil {
		return false
	}
	for range 1 + rng.IntN(2) {
		if call(func(ctx context.Context) error {
			return c.Add(ctx, id, txnstate.Add{Producer: p, Client: v, Participants: []txnstate.Participant{
				txnstate.Partition("t", int32(rng.IntN(12))), txnstate.Partition("t", int32(rng.IntN(12))), txnstate.Group("g"),
			}})
		}) != nil {
			return began
		}
		began = true
		switch rng.IntN(4) {
		case 0: // it times out
			return began
		case 1:
			_ = call(func(ctx context.Context) error { return c.ForceAbort(ctx, id) })
			return began
		}
		if call(func(ctx context.Context) error {
			next, err := c.End(ctx, id, txnstate.End{Producer: p, Commit: rng.IntN(2) == 0, Client: v})
			if err == nil && v >= txnstate.TV2 {
				p = next
			}
			return err
		}) != nil {
			return began
		}
	}
	return began
}
