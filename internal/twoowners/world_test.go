package twoowners

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "t"

var (
	participants = []txnstate.Participant{txnstate.Partition("orders", 0), txnstate.Partition("orders", 1)}
	holder       = txnstate.Producer{ID: 7, Epoch: 3}
)

// open is the record of the transaction that is fought for.
func open() txnstate.Record {
	r := txnstate.Unknown(id)
	r.State, r.Producer, r.PrevID, r.TimeoutMs = txnstate.Ongoing, holder, holder.ID, 60_000
	r.Participants, r.StartMs, r.UpdateMs = participants, 1, 1
	return r
}

// steps is a store of which each call is a step.
type steps struct {
	inner   txnstate.Store
	sched   *scheduler
	process int
}

func (s steps) Load(ctx context.Context, id string) (txnstate.Record, error) {
	s.sched.enter(s.process, "load")
	return s.inner.Load(ctx, id)
}

func (s steps) Swap(ctx context.Context, r txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	s.sched.enter(s.process, "swap to "+r.State.String())
	return s.inner.Swap(ctx, r, d)
}

func (s steps) Delete(ctx context.Context, id string, v txnstate.Version) error {
	s.sched.enter(s.process, "delete")
	return s.inner.Delete(ctx, id, v)
}

func (s steps) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	s.sched.enter(s.process, "slot")
	return s.inner.Slot(ctx, slot)
}

// stepsNow is steps over a store with LaterNow.
type stepsNow struct{ steps }

func (s stepsNow) SwapNow(r txnstate.Record) (txnstate.Version, bool) {
	s.sched.enter(s.process, "swap now to "+r.State.String())
	return s.inner.(txnstate.LaterNow).SwapNow(r)
}

// owner believes that it owns the slot at its epoch, for ever.
type owner int32

func (o owner) Watch(ctx context.Context, acquired, _ func(slot int, epoch int32)) error {
	acquired(txnstate.Slot(id), int32(o))
	<-ctx.Done()
	return nil
}

// world is two coordinators of one store, and what comes of them.
type world struct {
	sched      scheduler
	flushEvery time.Duration
	procs      []*txnstate.Coordinator
	stops      []func()

	mu       sync.Mutex
	ids      int64
	outcomes map[txnstate.Participant][]txnstate.Outcome
	granted  map[txnstate.Producer]string // to whom
	wrong    []string
}

// newWorld starts a coordinator on each store; wrap puts the steps in between.
func newWorld(t *testing.T, stores []txnstate.Store, wrap func(s steps) txnstate.Store) *world {
	w := &world{}
	w.start(t, stores, wrap)
	return w
}

func (w *world) start(t *testing.T, stores []txnstate.Store, wrap func(s steps) txnstate.Store) {
	w.flushEvery = 24 * time.Hour // not a step of its own
	w.startOwned(t, stores, []txnstate.Ownership{owner(1), owner(2)}, wrap)
}

func (w *world) startOwned(t *testing.T, stores []txnstate.Store, owners []txnstate.Ownership, wrap func(s steps) txnstate.Store) {
	w.ids = 1000
	w.outcomes = map[txnstate.Participant][]txnstate.Outcome{}
	w.granted = map[txnstate.Producer]string{holder: "the holder"}
	for i, s := range stores {
		c, err := txnstate.New(txnstate.Config{
			Store: wrap(steps{s, &w.sched, i}), ProducerIDs: w, Dispatcher: w, Ownership: owners[i],
			EndWait: txnstate.AnswerAtDecision, FlushEvery: w.flushEvery,
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		<-c.Ready()
		w.procs = append(w.procs, c)
		w.stops = append(w.stops, func() {
			cancel()
			require.NoError(t, <-done)
		})
	}
	synctest.Wait()
	w.sched.mu.Lock()
	defer w.sched.mu.Unlock()
	w.sched.on = true
}

func (w *world) Next(context.Context) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	return w.ids, nil
}

// Dispatch has each participant apply the outcome at once.
func (w *world) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	w.mu.Lock()
	for _, p := range o.Participants {
		w.outcomes[p] = append(w.outcomes[p], o)
	}
	w.mu.Unlock()
	applied(o.Participants)
}

func (w *world) Cancel(int, int32) {}

// give books an identity that a client was told it holds.
func (w *world) give(client string, p txnstate.Producer) {
	if p == txnstate.NoProducer {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if other, ok := w.granted[p]; ok && other != client {
		w.wrong = append(w.wrong, fmt.Sprintf("%s went to %s and to %s", p, other, client))
	}
	w.granted[p] = client
}

// client asks one coordinator for one thing, and asks again where it is told to.
type client struct {
	name    string
	process int
	ask     func(w *world, c *txnstate.Coordinator, name string) error

	err error
}

func ending(commit bool, v txnstate.TransactionVersion) func(*world, *txnstate.Coordinator, string) error {
	return func(w *world, c *txnstate.Coordinator, name string) error {
		p, err := c.End(context.Background(), id, txnstate.End{Producer: holder, Commit: commit, Client: v})
		if err == nil {
			w.give(name, p)
		}
		return err
	}
}

func initialising(w *world, c *txnstate.Coordinator, name string) error {
	p, err := c.Init(context.Background(), id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
	if err == nil {
		w.give(name, p)
	}
	return err
}

func timingOut(_ *world, c *txnstate.Coordinator, _ string) error {
	return c.TimeOut(context.Background(), id, time.UnixMilli(120_000))
}

// retriable is what clients come again for.
func retriable(err error) bool {
	return errors.Is(err, txnstate.ErrConcurrentTransactions) || txnstate.CodeOf(err) == txnstate.CodeCoordinatorNotAvailable
}

// fight has the clients ask at the same time, and again until each has its answer,
// in the order of the schedule.
func (w *world) fight(s *schedule, bound int, clients ...*client) error {
	over := make(chan struct{}, len(clients))
	for _, c := range clients {
		go func() {
			for range 20 {
				if c.err = c.ask(w, w.procs[c.process], c.name); !retriable(c.err) {
					break
				}
				time.Sleep(time.Second)
			}
			over <- struct{}{}
		}()
	}
	err := s.drive(&w.sched, bound, func() bool { return len(over) == len(clients) })
	w.sched.release()
	synctest.Wait()
	return err
}

// check says what holds in every order.
func (w *world) check(clients ...*client) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	w.mu.Lock()
	for _, s := range w.wrong {
		wrong("an identity was given twice (I6): %s", s)
	}
	// One outcome of the transaction, at every participant (I5).
	var first *txnstate.Outcome
	for _, p := range participants {
		if len(w.outcomes[p]) == 0 {
			wrong("%v got no outcome", p)
		}
		for _, o := range w.outcomes[p] {
			if first == nil {
				first = &o
			}
			if o.TxnSeq != 1 || o.Producer != first.Producer || o.Commit != first.Commit {
				wrong("%v got %v, and another got %v (I5)", p, o, *first)
			}
		}
	}
	w.mu.Unlock()
	for _, c := range clients {
		if retriable(c.err) {
			wrong("%s still gets %v (I12)", c.name, c.err)
		}
		if commits, ok := map[string]bool{"commit": true, "abort": false}[c.name]; ok && c.err == nil && first != nil && first.Commit != commits {
			wrong("%s was told to be done, and it is not (I5)", c.name)
		}
	}
	// Nothing is left undone, whoever looks (I12).
	for i, c := range w.procs {
		rec, err := c.Describe(context.Background(), id)
		if err != nil || rec.State.Decided() || rec.State == txnstate.Ongoing {
			wrong("coordinator %d finds %v, %v (I12)", i, rec.State, err)
		}
	}
	return errors.Join(errs...)
}

// end stops the coordinators and looks at what is stored then.
func (w *world) end(final func() txnstate.Store) error {
	for _, stop := range w.stops {
		stop()
	}
	rec, err := final().Load(context.Background(), id)
	if err != nil || rec.State.Decided() || rec.State == txnstate.Ongoing {
		return fmt.Errorf("stored is %v, %v", rec.State, err)
	}
	return nil
}
