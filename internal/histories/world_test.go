package histories

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The times of all calls: a record is the same whoever stored it when.
var (
	now   = time.UnixMilli(1_700_000_000_000)
	later = now.Add(time.Hour)
)

const timeoutMs = 60_000

// world is one history: callers, and the coordinators that they call.
type world struct {
	t     testing.TB
	ids   []string
	clock atomic.Int64 // of calls and returns

	mu      sync.Mutex
	ops     []porcupine.Operation
	flying  map[string]map[*input]int64 // calls under way, by id, and since when
	latest  map[string]txnstate.Producer
	unsure  int
	changed int // calls that were answered without an error, and changed something
}

func newWorld(t testing.TB, ids int) *world {
	w := &world{t: t, flying: map[string]map[*input]int64{}, latest: map[string]txnstate.Producer{}}
	for i := range ids {
		id := fmt.Sprintf("id-%d", i)
		w.ids = append(w.ids, id)
		w.flying[id] = map[*input]int64{}
	}
	return w
}

// begin is the record that every id has at the beginning.
func begin(id string) txnstate.Record {
	d, err := txnstate.Step(txnstate.Unknown(id), txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: timeoutMs, Server: txnstate.TV2, NewID: 7}, now)
	if err != nil {
		panic(err)
	}
	return d.Next
}

// fill stores those records.
func (w *world) fill(s txnstate.Store) {
	for _, id := range w.ids {
		if _, err := s.Swap(context.Background(), begin(id), txnstate.Durable); err != nil {
			w.t.Fatal(err)
		}
		w.latest[id] = txnstate.Producer{ID: 7}
	}
}

// owner is a coordinator that runs.
type owner struct {
	*txnstate.Coordinator
	stop func()
}

// own runs a coordinator on a store.
func (w *world) own(s txnstate.Store, epoch int32) *owner {
	acks := &acks{rng: rand.New(rand.NewPCG(uint64(epoch), 0))}
	c, err := txnstate.New(txnstate.Config{
		Store: s, ProducerIDs: noIDs{}, Dispatcher: acks, CoordinatorEpoch: epoch, EndWait: txnstate.AnswerAtDecision,
		Now:      func() time.Time { return now },
		Observer: txnstate.Observer{Uncertain: w.uncertain},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.Ready()
	return &owner{c, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		acks.wg.Wait()
	})}
}

// noIDs has none: nothing here uses up an id's epochs.
type noIDs struct{}

func (noIDs) Next(context.Context) (int64, error) { return 0, fmt.Errorf("no ids") }

// acks confirms every participant, after a while.
type acks struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	rng *rand.Rand
}

func (a *acks) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	a.mu.Lock()
	n := a.rng.IntN(5)
	a.mu.Unlock()
	if n == 0 {
		applied(o.Participants)
		return
	}
	a.wg.Go(func() {
		for _, p := range o.Participants {
			for range n {
				runtime.Gosched()
			}
			applied([]txnstate.Participant{p})
		}
	})
}

func (*acks) Cancel(int, int32) {}

// uncertain adds the write of which the store could not say whether it was done:
// of some call that was under way.
func (w *world) uncertain(id string, written bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsure++
	g := input{id: id, now: now, ghosts: []input{}}
	since := int64(math.MaxInt64)
	for i, from := range w.flying[id] {
		ini, is := i.ev.(txnstate.Init)
		if written && !(is && ini.Expected == txnstate.NoProducer) {
			continue // it goes on as if the store had said so
		}
		if i.ev != nil {
			g.ghosts = append(g.ghosts, *i)
			since = min(since, from)
		}
	}
	if len(g.ghosts) > 0 {
		till := w.clock.Add(1) // what a look has not shown never happens
		if err != nil {
			till = math.MaxInt64
		}
		w.ops = append(w.ops, porcupine.Operation{Input: g, Call: since, Output: output{ghost: true}, Return: till})
	}
}

// call makes a call and writes it down. end is when a call that was cut off can
// have had its effect at the latest.
func (w *world) call(c *owner, i input) output {
	w.mu.Lock()
	from := w.clock.Add(1)
	w.flying[i.id][&i] = from
	w.mu.Unlock()
	o := perform(c, i)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flying[i.id], &i)
	till := w.clock.Add(1)
	switch {
	case o.unknown:
		till = math.MaxInt64
	case o.code == txnstate.CodeNone:
		switch i.ev.(type) {
		case txnstate.Init, txnstate.Add, txnstate.End:
			w.changed++
		}
	}
	if o.grant != txnstate.NoProducer && o.grant.ID >= 0 && o.code == txnstate.CodeNone && !o.unknown && i.ev != nil {
		if g := w.latest[i.id]; o.grant.Epoch > g.Epoch {
			w.latest[i.id] = o.grant
		}
	}
	w.ops = append(w.ops, porcupine.Operation{Input: i, Call: from, Output: o, Return: till})
	return o
}

func perform(c *owner, i input) (o output) {
	ctx := context.Background()
	o.grant = txnstate.NoProducer
	var err error
	switch ev := i.ev.(type) {
	case nil:
		o.rec, err = c.Describe(ctx, i.id)
	case txnstate.Init:
		o.grant, err = c.Init(ctx, i.id, ev)
	case txnstate.Add:
		err = c.Add(ctx, i.id, ev)
	case txnstate.Verify:
		o.missing, err = c.Verify(ctx, i.id, ev)
	case txnstate.End:
		o.grant, err = c.End(ctx, i.id, ev)
	case txnstate.TimedOut:
		err = c.TimeOut(ctx, i.id, i.now)
	case txnstate.ForceAbort:
		err = c.ForceAbort(ctx, i.id)
	}
	o.code = txnstate.CodeOf(err)
	switch o.code {
	case txnstate.CodeCoordinatorNotAvailable, txnstate.CodeCoordinatorLoading, txnstate.CodeNotCoordinator:
		o.unknown = true
	}
	return o
}

// work makes n random calls.
func (w *world) work(c *owner, rng *rand.Rand, n int) {
	parts := []txnstate.Participant{txnstate.Partition("t", 0), txnstate.Partition("t", 1), txnstate.Group("g")}
	held := map[string]txnstate.Producer{}
	fenced := map[string]bool{}
	for range n {
		i := input{id: w.ids[rng.IntN(len(w.ids))], now: now}
		w.mu.Lock()
		who := w.latest[i.id]
		w.mu.Unlock()
		if p, ok := held[i.id]; ok && rng.IntN(3) == 0 {
			who = p // of whom it believes to be
		}
		v := []txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2}[rng.IntN(2)]
		some := slices.Clone(parts[rng.IntN(len(parts)):])
		switch k := rng.IntN(100); {
		case k < 4, fenced[i.id] && k < 70:
			i.ev = txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: timeoutMs, Server: txnstate.TV2, NewID: -1}
		case k < 10:
			i.ev = txnstate.Init{Expected: who, TimeoutMs: timeoutMs, Server: txnstate.TV2, NewID: -1}
		case k < 48:
			i.ev = txnstate.Add{Producer: who, Participants: some, Client: v, Limit: 10_000}
		case k < 58:
			i.ev = txnstate.Verify{Producer: who, Participants: some}
		case k < 85:
			i.ev = txnstate.End{Producer: who, Commit: rng.IntN(3) > 0, Client: v, NewID: -1}
		case k < 92: // Describe
		case k < 96:
			i.ev, i.now = txnstate.TimedOut{Server: txnstate.TV2, NewID: -1}, later
		default:
			i.ev = txnstate.ForceAbort{Server: txnstate.TV2, NewID: -1}
		}
		o := w.call(c, i)
		switch {
		case o.code == txnstate.CodeNone && o.grant != txnstate.NoProducer && i.ev != nil:
			held[i.id], fenced[i.id] = o.grant, false
		case o.code == txnstate.CodeConcurrentTransactions:
			for range 50 { // let it complete
				runtime.Gosched()
			}
		case o.code == txnstate.CodeProducerFenced:
			w.mu.Lock()
			fenced[i.id] = w.latest[i.id] == who // nobody has got on since
			w.mu.Unlock()
		}
	}
}

// together lets several callers work at once.
func (w *world) together(seed uint64, callers, calls int, owners ...*owner) {
	var wg sync.WaitGroup
	for k := range callers {
		wg.Go(func() { w.work(owners[k%len(owners)], rand.New(rand.NewPCG(seed, uint64(k))), calls) })
	}
	wg.Wait()
}

// check has porcupine judge. Some histories take it for ever.
func (w *world) check(strict bool, patience time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(modelOf(strict, begin), w.ops, patience)
}

func (w *world) want(strict bool, seed uint64) {
	w.t.Helper()
	switch r := w.check(strict, 20*time.Second); r {
	case porcupine.Ok:
	case porcupine.Unknown:
		w.t.Logf("seed %d: porcupine gave up", seed)
	default:
		slices.SortFunc(w.ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		for _, op := range w.ops {
			w.t.Logf("%d to %d: %+v: %+v", op.Call, op.Return, op.Input, op.Output)
		}
		w.t.Errorf("seed %d: the history is not linearizable", seed)
	}
}
