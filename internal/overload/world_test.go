package overload

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeoutMs = 30_000

// slowStore is a store that does so many calls at a time, and takes a while for
// each.
type slowStore struct {
	txnstate.Store
	room chan struct{}
	each atomic.Int64 // nanoseconds that a call takes

	waiting, most atomic.Int64 // calls in the store
}

func slow(s txnstate.Store, width int, each time.Duration) *slowStore {
	out := &slowStore{Store: s, room: make(chan struct{}, width)}
	out.each.Store(int64(each))
	return out
}

func (s *slowStore) take(ctx context.Context) error {
	n := s.waiting.Add(1)
	defer s.waiting.Add(-1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	case <-ctx.Done():
		return ctx.Err()
	}
	time.Sleep(time.Duration(s.each.Load()))
	return nil
}

func (s *slowStore) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if err := s.take(ctx); err != nil {
		return txnstate.Record{}, err
	}
	return s.Store.Load(ctx, id)
}

func (s *slowStore) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if err := s.take(ctx); err != nil {
		return 0, fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
	}
	return s.Store.Swap(ctx, next, d)
}

func (s *slowStore) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if err := s.take(ctx); err != nil {
			yield(txnstate.Record{}, err)
			return
		}
		for rec, err := range s.Store.Slot(ctx, slot) {
			if !yield(rec, err) {
				return
			}
		}
	}
}

// slowSink takes its time too, and refuses now and then. Target 0 hangs until its
// caller gives up, for as long as it is sick.
type slowSink struct {
	each time.Duration
	sick atomic.Bool

	mu      sync.Mutex
	rng     *rand.Rand
	applied map[string]map[uint64]int // participants that have applied, by id and TxnSeq
}

func (s *slowSink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	if to == 0 && s.sick.Load() {
		<-ctx.Done()
		return nil
	}
	time.Sleep(s.each)
	out := make([]markers.Result, len(ds))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range ds {
		if s.rng.IntN(10) == 0 {
			out[i] = markers.Retry
			continue
		}
		if s.applied[d.TxnID] == nil {
			s.applied[d.TxnID] = map[uint64]int{}
		}
		s.applied[d.TxnID][d.TxnSeq]++
		out[i] = markers.Applied
	}
	return out
}

// service is a coordinator with all that works for it.
type service struct {
	*txnstate.Coordinator
	dispatcher *markers.Dispatcher
	runs       []func(context.Context) error
}

func newService(t testing.TB, s txnstate.Store, sink markers.Sink, epoch int32) *service {
	d, err := markers.NewDispatcher(markers.Config{
		Leaders: markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
			return markers.Target(p.Index % 4), markers.Known
		}),
		Sink: sink, CallTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := reaper.New(reaper.Config{Every: 5 * time.Second})
	c, err := txnstate.New(txnstate.Config{
		Store: s, ProducerIDs: new(counter), Dispatcher: d, Deadlines: r, CoordinatorEpoch: epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &service{c, d, []func(context.Context) error{c.Run, d.Run, func(ctx context.Context) error { return r.Run(ctx, c) }}}
}

// start runs all of it; stop ends it, one after the other in an order.
func (s *service) start(t testing.TB) (stop func(order []int)) {
	type running struct {
		cancel context.CancelFunc
		done   chan error
	}
	var all []running
	for _, run := range s.runs {
		ctx, cancel := context.WithCancel(context.Background())
		r := running{cancel, make(chan error, 1)}
		go func() { r.done <- run(ctx) }()
		all = append(all, r)
	}
	return func(order []int) {
		for _, i := range order {
			all[i].cancel()
			if err := <-all[i].done; err != nil {
				t.Error(err)
			}
		}
	}
}

type counter struct{ n atomic.Int64 }

func (c *counter) Next(context.Context) (int64, error) { return c.n.Add(1), nil }

// open counts the records of a store that have a transaction open or decided.
func open(t testing.TB, s txnstate.Store) (n int) {
	for slot := range txnstate.Slots {
		for rec, err := range s.Slot(context.Background(), slot) {
			if err != nil {
				t.Fatal(err)
			}
			if err := txnstate.Check(rec); err != nil {
				t.Error(err)
			}
			if rec.State == txnstate.Ongoing || rec.State.Decided() {
				n++
			}
		}
	}
	return n
}

// heap is the memory in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
