package overload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// client is a producer that has a number of transactions to commit. It waits for
// an answer for so long, goes away, and comes again.
type client struct {
	c        *service
	id       string
	rng      *rand.Rand
	patience time.Duration
	over     <-chan struct{} // the end of all clients

	p       txnstate.Producer
	commits int // acknowledged
	left    int // calls that it did not wait for
}

// call makes a call that is left when it takes too long. It reports whether the
// client may go on: an error means to begin anew.
func (cl *client) call(f func(ctx context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), cl.patience)
	defer cancel()
	for {
		err := f(ctx)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			cl.left++
			return false
		}
		switch txnstate.CodeOf(err) {
		case txnstate.CodeConcurrentTransactions, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeCoordinatorLoading:
			time.Sleep(20*time.Millisecond + time.Duration(cl.rng.IntN(80))*time.Millisecond)
		default:
			return false
		}
	}
}

// work commits n transactions, or as many as it can until all is over.
func (cl *client) work(n int) {
	held := false
	for cl.commits < n {
		select {
		case <-cl.over:
			return
		default:
		}
		if !held {
			held = cl.call(func(ctx context.Context) (err error) {
				cl.p, err = cl.c.Init(ctx, cl.id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: timeoutMs})
				return err
			})
			if !held {
				time.Sleep(time.Duration(50+cl.rng.IntN(200)) * time.Millisecond)
			}
			continue
		}
		held = cl.begin() && cl.end()
	}
}

func (cl *client) begin() bool {
	return cl.call(func(ctx context.Context) error {
		a := int32(cl.rng.IntN(8))
		return cl.c.Add(ctx, cl.id, txnstate.Add{Producer: cl.p, Client: txnstate.TV2, Participants: []txnstate.Participant{
			txnstate.Partition("t", a), txnstate.Partition("t", (a+1)%8),
		}})
	})
}

func (cl *client) end() bool {
	return cl.call(func(ctx context.Context) error {
		p, err := cl.c.End(ctx, cl.id, txnstate.End{Producer: cl.p, Commit: true, Client: txnstate.TV2})
		if err == nil {
			cl.p = p
			cl.commits++
		}
		return err
	})
}

// I12, I13: ten thousand ids, and a store and participants that can't keep up.
// Clients don't wait for long, and some never come back. Every id gets on, what
// is kept meanwhile has a bound, and when the load is gone all settles without
// help, what was left open included.
func TestMoreThanItCanBear(t *testing.T) {
	const ids, vanish = 10_000, 5 // every fifth client leaves a transaction open
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		store := slow(mem, 16, 3*time.Millisecond) // 5,000 calls a second, and 10,000 clients
		sink := &slowSink{each: 200 * time.Millisecond, rng: rand.New(rand.NewPCG(1, 1)), applied: map[string]map[uint64]int{}}
		sink.sick.Store(true)
		s := newService(t, store, sink, 1)
		stop := s.start(t)
		<-s.Ready()
		idle := runtime.NumGoroutine()
		before := heap()

		over := make(chan struct{})
		clients := make([]*client, ids)
		var wg sync.WaitGroup
		var done atomic.Int64
		for i := range clients {
			cl := &client{c: s, id: fmt.Sprintf("id-%d", i), rng: rand.New(rand.NewPCG(2, uint64(i))), patience: 4 * time.Second, over: over}
			clients[i] = cl
			wg.Go(func() {
				cl.work(1)
				if i%vanish == 0 {
					cl.begin()
				}
				done.Add(1)
			})
		}
		most, pending := 0, 0
		look := func() {
			most = max(most, runtime.NumGoroutine()-idle)
			pending = max(pending, s.dispatcher.Pending())
		}
		for second := 0; done.Load() < ids; second++ {
			if second == 20 {
				sink.sick.Store(false)
			}
			if second > 20*60 {
				close(over)
				wg.Wait()
				left := 0
				for _, cl := range clients {
					if cl.commits == 0 {
						left++
					}
				}
				t.Fatalf("I12: %d ids have got nothing done in 20 minutes", left)
			}
			look()
			time.Sleep(time.Second)
		}
		wg.Wait()
		left := 0
		for _, cl := range clients {
			left += cl.left
			if cl.commits != 1 {
				t.Errorf("client %s has %d commits", cl.id, cl.commits)
			}
		}
		// A client waits in one call, which has a goroutine of its own; what it left
		// may still be in its turn.
		if most > 3*ids+1000 {
			t.Errorf("I13: %d goroutines for %d clients", most, ids)
		}
		if pending > ids {
			t.Errorf("I13: the dispatcher holds %d transactions of %d ids", pending, ids)
		}
		t.Logf("%d calls left, at most %d goroutines beside %d clients, %d calls in the store, %d transactions under delivery", left, most, ids, store.most.Load(), pending)

		// The transactions that were left open time out; all others complete.
		store.each.Store(int64(time.Microsecond))
		time.Sleep(2 * timeoutMs * time.Millisecond)
		synctest.Wait()
		if n := open(t, mem); n > 0 {
			t.Errorf("I12: %d ids have not settled", n)
		}
		if n := s.dispatcher.Pending(); n > 0 {
			t.Errorf("I12: %d transactions are still to be delivered", n)
		}
		if n := runtime.NumGoroutine() - idle; n > 300 { // the coordinator keeps 256 for what comes
			t.Errorf("I13: %d goroutines are left", n)
		}
		if used := int64(heap()) - int64(before); used > ids*4000 {
			t.Errorf("I13: %d bytes are left of each id", used/ids)
		}
		stop([]int{0, 1, 2})
		runtime.KeepAlive(sink)
	})
}

// I12, I13: coordinator, dispatcher and reaper are stopped at any moment, in any
// order, in the middle of everything. Calls end, nothing is left running, and
// what runs next on the same store carries on where that was.
func TestStoppedAtAnyMoment(t *testing.T) {
	for seed := range uint64(15) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			mem := memstore.New()
			sink := &slowSink{each: 20 * time.Millisecond, rng: rand.New(rand.NewPCG(seed, 1)), applied: map[string]map[uint64]int{}}
			sink.sick.Store(seed%3 == 0)
			var commits int
			for life := range int32(4) {
				s := newService(t, slow(mem, 4, time.Duration(rng.IntN(5))*time.Millisecond), sink, life)
				if life == 3 {
					sink.sick.Store(false)
				}
				stop := s.start(t)
				over := make(chan struct{})
				var wg sync.WaitGroup
				var clients []*client
				for i := range 20 {
					cl := &client{c: s, id: fmt.Sprintf("id-%d", i%15), rng: rand.New(rand.NewPCG(seed, uint64(i))), patience: 300 * time.Millisecond, over: over}
					clients = append(clients, cl)
					wg.Go(func() { cl.work(1000) })
				}
				if life == 3 {
					time.Sleep(3 * time.Second)
					close(over)
					wg.Wait()
					time.Sleep(2 * timeoutMs * time.Millisecond)
					if n := open(t, mem); n > 0 {
						t.Errorf("I12, seed %d: %d ids have not settled", seed, n)
					}
					stop([]int{2, 1, 0})
				} else {
					time.Sleep(time.Duration(rng.IntN(400_000)) * time.Microsecond)
					stop(rng.Perm(3))
					synctest.Wait()
					close(over)
					wg.Wait()
				}
				for _, cl := range clients {
					commits += cl.commits
				}
			}
			if commits == 0 {
				t.Errorf("seed %d: nothing was committed", seed)
			}
		})
	}
}
