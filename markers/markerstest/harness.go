package markerstest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Harness says how to get at the transport under test.
type Harness struct {
	// Open makes a sender, and connects brokers 1 and 2 of c by the transport.
	// It fails the test itself when it can't; what has to be ended is ended in a
	// t.Cleanup. The suite also sends to broker 3, which is nobody, and which a
	// transport within one process may have all the same.
	Open func(t testing.TB, c *Cluster) *Transport

	// Bubble runs each case in a bubble of testing/synctest, so that pauses take
	// no time. It is for transports that wait in memory only, and not for a
	// network.
	Bubble bool

	// patience is how long something may take that takes no time, before it is
	// said to hang. It decides nothing in a transport that works.
	patience time.Duration
}

// Transport is a sender and what a case can do to both ends. Only Sink is
// required: where a function is nil, the cases that need it are skipped, and say so.
type Transport struct {
	Sink markers.Sink

	// RestartSender ends the sender as the death of its process does, and gives
	// the sink of the next one. Calls under way may return anything, or not.
	RestartSender func(t testing.TB) markers.Sink
	// StopReceiver ends the receiving end of a broker as the death of its process
	// does: what it was doing leads to no answer. The suite also calls Crash of
	// the Broker.
	StopReceiver func(t testing.TB, id markers.Target)
	// StartReceiver starts it again.
	StartReceiver func(t testing.TB, id markers.Target)
	// Again makes what a broker was sent so far arrive once more, as a network or
	// a file system may do. It returns when the broker has dealt with it.
	Again func(t testing.TB, id markers.Target)
	// Short leaves the last n results out of the next answer of a broker.
	Short func(id markers.Target, n int)

	// WithoutVersion: the transaction version does not arrive, as in
	// WriteTxnMarkers v1.
	WithoutVersion bool
}

func (h Harness) withDefaults() Harness {
	if h.patience == 0 {
		h.patience = time.Minute
	}
	return h
}

// Run tests the transport of h. Cases run one after another, each with a cluster
// and a sender of its own.
func Run(t *testing.T, h Harness) {
	h = h.withDefaults()
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			if h.Bubble {
				synctest.Test(t, func(t *testing.T) { c.execute(t, h) })
				return
			}
			c.execute(t, h)
		})
	}
}

// testCase is one promise of the contract.
type testCase struct {
	name   string // the promise, as a sentence
	clause string // the words of the comment of markers.Sink that it guards
	needs  []ability
	run    func(e *env)
}

type ability string

const (
	restartSender   ability = "RestartSender"
	restartReceiver ability = "StopReceiver and StartReceiver"
	again           ability = "Again"
	short           ability = "Short"
	version         ability = "the transaction version arrives"
	openChecker     ability = "the sink is an OpenChecker"
)

func (tr *Transport) has(a ability) bool {
	switch a {
	case restartSender:
		return tr.RestartSender != nil
	case restartReceiver:
		return tr.StopReceiver != nil && tr.StartReceiver != nil
	case again:
		return tr.Again != nil
	case short:
		return tr.Short != nil
	case version:
		return !tr.WithoutVersion
	case openChecker:
		_, ok := tr.Sink.(markers.OpenChecker)
		return ok
	}
	return false
}

// env is what a case works with.
type env struct {
	testing.TB
	c        *Cluster
	tr       *Transport
	patience time.Duration
}

func (c testCase) execute(t testing.TB, h Harness) {
	q := quoting{t, c.clause}
	e := &env{TB: q, c: NewCluster(), patience: h.patience}
	e.c.Lead(1, topic(0), topic(1), topic(2), topic(3))
	e.c.Lead(2, other(0), other(1))
	e.tr = h.Open(q, e.c)
	for _, a := range c.needs {
		if !e.tr.has(a) {
			t.Skipf("not tested: Transport lacks %s", a)
		}
	}
	c.run(e)
}

// quoting adds to every failure the words that it breaks.
type quoting struct {
	testing.TB
	clause string
}

func (q quoting) Errorf(format string, args ...any) {
	q.Helper()
	q.TB.Errorf("%s\n\tmarkers.Sink: %s", fmt.Sprintf(format, args...), q.clause)
}

func (q quoting) Fatalf(format string, args ...any) {
	q.Helper()
	q.TB.Fatalf("%s\n\tmarkers.Sink: %s", fmt.Sprintf(format, args...), q.clause)
}

func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{resultCases, contentCases, repeatCases, failureCases} {
		all = append(all, group...)
	}
	return all
}

// Broker 1 leads four partitions of one topic, broker 2 two of another.
func topic(i int32) txnstate.Participant { return txnstate.Partition("events", i) }
func other(i int32) txnstate.Participant { return txnstate.Partition("orders", i) }

// mark is a marker of a producer for a participant.
func mark(id int64, epoch int16, commit bool, to txnstate.Participant) markers.Delivery {
	return markers.Delivery{
		Marker: markers.Marker{
			TxnID: fmt.Sprintf("tx-%d", id), Producer: txnstate.Producer{ID: id, Epoch: epoch}, Commit: commit, CoordinatorEpoch: 3,
		},
		Participant: to, TxnSeq: 1,
	}
}

// send is one call of the sink, with the results that are missing filled in.
func (e *env) send(ctx context.Context, to markers.Target, ds ...markers.Delivery) []markers.Result {
	e.Helper()
	return e.sendBy(ctx, e.tr.Sink, to, ds...)
}

func (e *env) sendBy(ctx context.Context, s markers.Sink, to markers.Target, ds ...markers.Delivery) []markers.Result {
	e.Helper()
	rs := s.WriteMarkers(ctx, to, slices.Clone(ds))
	if len(rs) > len(ds) {
		e.Errorf("%d results for %d deliveries", len(rs), len(ds))
		rs = rs[:len(ds)]
	}
	for len(rs) < len(ds) {
		rs = append(rs, markers.Retry)
	}
	return rs
}

// background starts a call and gives its results when it returns.
func (e *env) background(ctx context.Context, to markers.Target, ds ...markers.Delivery) <-chan []markers.Result {
	done := make(chan []markers.Result, 1)
	go func() { done <- e.send(ctx, to, ds...) }()
	return done
}

// await waits for the results of a call that has no reason to wait.
func (e *env) await(what string, done <-chan []markers.Result) []markers.Result {
	e.Helper()
	rs, ok := within(e.patience, done)
	if !ok {
		e.Fatalf("%s: WriteMarkers hangs", what)
	}
	return rs
}

func (e *env) reached(h *Hang) {
	e.Helper()
	if _, ok := within(e.patience, h.Reached); !ok {
		e.Fatalf("the delivery does not reach the participant")
	}
}

func within[T any](d time.Duration, c <-chan T) (v T, ok bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v = <-c:
		return v, true
	case <-timer.C:
		return v, false
	}
}

// hang is a Hang that is released when the test ends at the latest.
func (e *env) hang() *Hang {
	h := NewHang()
	e.Cleanup(h.Release)
	return h
}

func (e *env) want(what string, got []markers.Result, want ...markers.Result) {
	e.Helper()
	if !slices.Equal(got, want) {
		e.Errorf("%s: results %v, want %v", what, got, want)
	}
}

// wantLog compares the markers in a participant's log, data left out.
func (e *env) wantLog(p txnstate.Participant, want ...string) {
	e.Helper()
	var got []string
	for _, en := range e.c.Log(p) {
		if en.Marker != nil {
			got = append(got, en.String())
		}
	}
	if !slices.Equal(got, want) {
		e.Errorf("the log of %s has the markers %q, want %q", p, got, want)
	}
}

// holds reports whether a participant's log has a delivery's marker.
func (e *env) holds(d markers.Delivery) bool {
	return slices.ContainsFunc(e.c.Log(d.Participant), func(en Entry) bool {
		m := en.Marker
		return m != nil && m.Producer == d.Producer && m.Commit == d.Commit && m.CoordinatorEpoch == d.CoordinatorEpoch
	})
}

// truthful fails where a result says applied and the log does not have it.
func (e *env) truthful(what string, ds []markers.Delivery, rs []markers.Result) {
	e.Helper()
	for i, d := range ds {
		if i < len(rs) && rs[i] == markers.Applied && !e.holds(d) {
			e.Errorf("%s: a marker of %s for %s is said to be applied, and its log does not have it", what, d.Producer, d.Participant)
		}
	}
}

// insist sends deliveries again until each has another result than Retry, as a
// dispatcher does, and gives the results.
func (e *env) insist(s markers.Sink, to markers.Target, ds ...markers.Delivery) []markers.Result {
	e.Helper()
	out := make([]markers.Result, len(ds))
	left := make([]int, len(ds))
	for i := range left {
		left[i] = i
	}
	deadline := time.NewTimer(e.patience)
	defer deadline.Stop()
	for pause := time.Millisecond; len(left) > 0; pause = min(2*pause, 100*time.Millisecond) {
		var batch []markers.Delivery
		for _, i := range left {
			batch = append(batch, ds[i])
		}
		ctx, cancel := context.WithTimeout(context.Background(), e.patience/10)
		rs := e.sendBy(ctx, s, to, batch...)
		cancel()
		var rest []int
		for k, i := range left {
			if out[i] = rs[k]; rs[k] == markers.Retry {
				rest = append(rest, i)
			}
		}
		if left = rest; len(left) == 0 {
			break
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-deadline.C:
			wait.Stop()
			e.Fatalf("%d deliveries are answered Retry for ever", len(left))
		}
	}
	return out
}

// dispatch runs a Dispatcher on the sink and waits until outcomes are delivered.
func (e *env) dispatch(os ...txnstate.Outcome) {
	e.Helper()
	wait, stop := e.dispatching(os...)
	defer stop()
	wait(func(left int) bool { return left == 0 })
}

// dispatching starts a Dispatcher with outcomes. wait returns when the number of
// participants that are not done is as wanted.
func (e *env) dispatching(os ...txnstate.Outcome) (wait func(enough func(left int) bool), stop func()) {
	e.Helper()
	d, err := markers.NewDispatcher(markers.Config{
		Leaders: e.c, Sink: e.tr.Sink, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, CallTimeout: e.patience / 100,
	})
	if err != nil {
		e.Fatalf("dispatcher: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	left := 0
	for _, o := range os {
		left += len(o.Participants)
	}
	done := make(chan int, left)
	for _, o := range os {
		d.Dispatch(o, func(ps []txnstate.Participant) { done <- len(ps) })
	}
	wait = func(enough func(left int) bool) {
		e.Helper()
		deadline := time.After(e.patience)
		for !enough(left) {
			select {
			case n := <-done:
				left -= n
			case <-deadline:
				e.Fatalf("%d participants are not done", left)
			}
		}
	}
	return wait, func() {
		cancel()
		<-ended
	}
}

// outcome is a decided transaction.
func outcome(id int64, epoch int16, commit bool, ps ...txnstate.Participant) txnstate.Outcome {
	return txnstate.Outcome{
		TxnID: fmt.Sprintf("tx-%d", id), TxnSeq: 1, Producer: txnstate.Producer{ID: id, Epoch: epoch}, Commit: commit, CoordinatorEpoch: 3, Participants: ps,
	}
}
