package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A world is a coordinator's process and two receivers on one volume, in a bubble.
// One of the processes meets a fault at one of its operations. The coordinator
// ends two transactions of one producer at one epoch, one after the other, as
// protocol 1 has them: what a fault delays must not touch the second one, and no
// leader could tell.
type world struct {
	testing.TB
	c     *markerstest.Cluster
	fault fault

	moves atomic.Int32 // of leadership

	mu    sync.Mutex
	disk  fsx.FS
	procs map[string]*proc // those that run now
	all   []*proc
	epoch int32 // of the coordinator

	// The transaction that is being ended.
	dispatch func(txnstate.Outcome) // by the coordinator's process that runs now
	outcome  txnstate.Outcome
	left     map[txnstate.Participant]bool
	done     chan struct{} // closed when nothing is left
}

// fault is what happens to a process of one name at its k-th operation.
type fault struct {
	who  string
	kind string
	k    int
	// move lets broker 2 lead the partitions of broker 1 meanwhile.
	move bool
	// sameEpoch keeps the coordinator epoch over a restart, which hosts should not.
	sameEpoch bool
}

const (
	none       = ""
	failBefore = "fails and does not happen"
	failAfter  = "happens and seems to fail"
	stopBefore = "is where the process is stopped, ahead of it"
	stopAfter  = "is where the process is stopped, behind it"
	killed     = "is where the process is killed"
)

var errInjected = errors.New("injected")

// proc is one process of a world.
type proc struct {
	w    *world
	name string
	fs   fsx.FS

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	meets bool          // it is the one that meets the fault
	ops   int           // begun
	ended int           // they overlap, so the k-th to end need not be the last begun
	at    string        // the operation at which it has
	hit   chan struct{} // closed then
	held  chan struct{} // while not nil, the process is stopped until it closes
	dead  bool
}

func (w *world) newProc(name string) *proc {
	p := &proc{w: w, name: name, hit: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	p.meets = w.procs[name] == nil && name == w.fault.who
	w.procs[name] = p
	w.all = append(w.all, p)
	disk := w.disk
	p.fs = fsx.HookAfter(fsx.Hook(disk, p.before), p.after)
	return p
}

// halt is where a process stands still while it is stopped, and gets no further
// when it is dead.
func (p *proc) halt() error {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		<-held
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errKilled
	}
	return nil
}

// meet is the fault. p.mu is held.
func (p *proc) meet(op fsx.Op, name string) {
	p.at = string(op) + " " + name
	switch p.w.fault.kind {
	case stopBefore, stopAfter:
		p.held = make(chan struct{})
	case killed:
		p.dead = true
	}
	close(p.hit)
}

func (p *proc) before(op fsx.Op, name string) error {
	if err := p.halt(); err != nil {
		return err
	}
	f := p.w.fault
	p.mu.Lock()
	n := p.ops
	p.ops++
	now := p.meets && n == f.k && p.at == "" && (f.kind == failBefore || f.kind == stopBefore || f.kind == killed)
	if now {
		p.meet(op, name)
	}
	p.mu.Unlock()
	if now && f.kind == failBefore {
		return errInjected
	}
	return p.halt()
}

func (p *proc) after(op fsx.Op, name string, err error) error {
	f := p.w.fault
	p.mu.Lock()
	n := p.ended
	p.ended++
	now := p.meets && n == f.k && p.at == "" && (f.kind == failAfter || f.kind == stopAfter)
	if now {
		p.meet(op, name)
	}
	p.mu.Unlock()
	if now && f.kind == failAfter {
		return errInjected
	}
	if herr := p.halt(); herr != nil {
		return herr
	}
	return err
}

func (p *proc) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

func (p *proc) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.cancel()
}

const (
	poll     = 500 * time.Millisecond
	abandon  = 30 * time.Second
	callTime = 5 * time.Second
)

func receiverName(id markers.Target) string { return fmt.Sprint("receiver ", id) }

func (w *world) startReceiver(id markers.Target) {
	p := w.newProc(receiverName(id))
	b := w.c.Broker(id)
	r, err := queue.NewReceiver(queue.ReceiverConfig{
		Dir: "shared", Self: id, FS: p.fs, Poll: poll, AbandonAfter: abandon,
		Apply: applyFunc(func(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
			before := w.moves.Load()
			if p.halt() != nil {
				return nil
			}
			if w.moves.Load() != before {
				// A host does not serve a request from before it lost a partition as
				// one from after it got it back: see the package comment.
				return slices.Repeat([]markers.Result{markers.Moved}, len(ds))
			}
			return b.WriteMarkers(ctx, to, ds)
		}),
	})
	if err != nil {
		w.Fatal(err)
	}
	p.wg.Go(func() { _ = r.Run(p.ctx) })
}

// applyFunc is a function as a markers.Sink.
type applyFunc func(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result

func (f applyFunc) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	return f(ctx, to, ds)
}

// startSender starts the coordinator's process, which takes up what is not
// complete.
func (w *world) startSender() {
	p := w.newProc("sender")
	s, err := queue.NewSink(queue.SinkConfig{Dir: "shared", Self: 9, FS: p.fs, Poll: poll, Straggle: time.Second})
	if err != nil {
		w.Fatal(err)
	}
	d, err := markers.NewDispatcher(markers.Config{Leaders: w.c, Sink: s, CallTimeout: callTime, RetryMin: 100 * time.Millisecond})
	if err != nil {
		w.Fatal(err)
	}
	p.wg.Go(func() { _ = s.Run(p.ctx) })
	p.wg.Go(func() { _ = d.Run(p.ctx) })
	w.mu.Lock()
	defer w.mu.Unlock()
	epoch := w.epoch
	w.dispatch = func(o txnstate.Outcome) {
		o.CoordinatorEpoch = epoch
		d.Dispatch(o, func(ps []txnstate.Participant) {
			if p.halt() == nil { // a dead process tells nobody
				w.applied(o, ps)
			}
		})
	}
	if len(w.left) > 0 {
		// A record in Prepare holds all its participants: all are told again, and
		// it is complete when all have confirmed to this process.
		for _, p := range places {
			w.left[p] = true
		}
		w.dispatch(w.outcome)
	}
}

// applied is the coordinator hearing what a dispatcher says.
func (w *world) applied(o txnstate.Outcome, ps []txnstate.Participant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range ps {
		if !slices.ContainsFunc(w.c.Log(q), func(e markerstest.Entry) bool {
			return e.Marker != nil && e.Producer == o.Producer && e.Marker.Commit == o.Commit && e.Marker.CoordinatorEpoch == o.CoordinatorEpoch
		}) {
			w.Errorf("%v: %s is said to have the outcome of coordinator epoch %d, and its log does not have it: %v", w.fault, q, o.CoordinatorEpoch, w.c.Log(q))
		}
		if o.TxnSeq == w.outcome.TxnSeq && o.CoordinatorEpoch == w.epoch {
			delete(w.left, q)
		}
	}
	if len(w.left) == 0 && o.TxnSeq == w.outcome.TxnSeq {
		select {
		case <-w.done:
		default:
			close(w.done)
		}
	}
}

var (
	places   = []txnstate.Participant{txnstate.Partition("events", 0), txnstate.Partition("events", 1), txnstate.Partition("orders", 0)}
	producer = txnstate.Producer{ID: 7, Epoch: 1}
)

func newWorld(t testing.TB, disk fsx.FS, f fault) *world {
	w := &world{TB: t, c: markerstest.NewCluster(), disk: disk, fault: f, procs: map[string]*proc{}, epoch: 3, left: map[txnstate.Participant]bool{}}
	w.c.Lead(1, places[:2]...)
	w.c.Lead(2, places[2])
	w.startReceiver(1)
	w.startReceiver(2)
	w.startSender()
	return w
}

// end stops everything and waits for it.
func (w *world) end() {
	for _, p := range w.all {
		p.wake()
		p.cancel()
	}
	for _, p := range w.all {
		p.wg.Wait()
	}
}

// write has the producer write to all participants, in its next transaction.
func (w *world) write() {
	for _, p := range places {
		w.c.Write(p, producer)
	}
}

// complete ends the transaction and waits until the coordinator knows of all.
func (w *world) complete(seq uint64, commit bool) {
	w.Helper()
	w.mu.Lock()
	w.outcome = txnstate.Outcome{TxnID: "tx", TxnSeq: seq, Producer: producer, Commit: commit, Participants: places}
	w.done = make(chan struct{})
	for _, p := range places {
		w.left[p] = true
	}
	dispatch, done := w.dispatch, w.done
	w.mu.Unlock()
	dispatch(w.outcome)
	select {
	case <-done:
	case <-time.After(20 * time.Minute):
		w.Fatalf("%v: transaction %d is not complete", w.fault, seq)
	}
}

func (w *world) wantVisible(when string, want ...string) {
	w.Helper()
	for _, p := range places {
		if got := w.c.Visible(p); !slices.Equal(got, want) {
			w.Errorf("%v: %s, readers of %s see %q, want %q\n%v", w.fault, when, p, got, want, w.c.Log(p))
		}
	}
}

// wantClean demands that the volume has nothing but inboxes.
func (w *world) wantClean() {
	w.Helper()
	for _, inbox := range []string{"to-1", "to-2"} {
		files, err := w.disk.ReadDir("shared/marker_queue/" + inbox)
		if err != nil {
			w.Errorf("%v: %v", w.fault, err)
		}
		for _, f := range files {
			w.Errorf("%v: %s has a file %s at the end", w.fault, inbox, f.Name())
		}
	}
}

// restart starts the process of a name anew, after it has died.
func (w *world) restart(name string) {
	if name == "sender" {
		if !w.fault.sameEpoch {
			w.mu.Lock()
			w.epoch++
			w.mu.Unlock()
		}
		w.startSender()
		return
	}
	w.startReceiver(markers.Target(name[len(name)-1] - '0'))
}

// mind does what belongs to the fault when it has come, and returns when that is
// over.
func (w *world) mind(p *proc, stop <-chan struct{}) {
	select {
	case <-p.hit:
	case <-stop:
		return
	}
	switch w.fault.kind {
	case killed:
		p.kill()
		if p.name != "sender" {
			w.c.Broker(markers.Target(p.name[len(p.name)-1] - '0')).Crash()
		}
		time.Sleep(5 * time.Second)
		w.restart(p.name)
	case stopBefore, stopAfter:
		if w.fault.move {
			time.Sleep(20 * time.Second)
			w.c.Lead(2, places[:2]...)
			w.moves.Add(1)
			time.Sleep(40 * time.Second)
			w.c.Lead(1, places[:2]...)
			w.moves.Add(1)
		}
		time.Sleep(60 * time.Second)
		p.wake()
	}
}

// play runs two transactions through a fault, and reports at which operation it
// came; "" where it did not.
func (w *world) play() (at string) {
	w.Helper()
	defer w.end()
	w.mu.Lock()
	victim := w.procs[w.fault.who]
	w.mu.Unlock()
	over, quit := make(chan struct{}), make(chan struct{})
	if victim == nil {
		close(over)
	} else {
		go func() {
			defer close(over)
			w.mind(victim, quit)
		}()
	}
	w.write()
	w.complete(1, true)
	w.write()
	if victim != nil {
		victim.mu.Lock()
		if at = victim.at; at == "" {
			victim.meets = false // what comes now is not of the first transaction
		}
		victim.mu.Unlock()
	}
	if at == "" {
		close(quit)
	}
	<-over
	time.Sleep(time.Minute)
	w.wantVisible("while the second transaction is open", producer.String()+" commit", producer.String()+" open")
	w.complete(2, false)
	w.wantVisible("at the end", producer.String()+" commit", producer.String()+" abort")
	time.Sleep(2*abandon + 20*time.Second)
	w.wantVisible("long after", producer.String()+" commit", producer.String()+" abort")
	w.wantClean()
	return at
}
