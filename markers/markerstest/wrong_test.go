package markerstest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// courier is the reference transport: in memory and, without flaws, right.
type courier struct {
	c     *Cluster
	flaws map[flaw]bool

	mu    sync.Mutex
	up    map[markers.Target]context.Context
	down  map[markers.Target]context.CancelFunc
	sent  map[markers.Target][]markers.Delivery
	short map[markers.Target]int
	acks  map[string]markers.Result
}

// post is one sender of a courier.
type post struct {
	c    *courier
	life context.Context

	mu   sync.Mutex
	seq  int
	last []markers.Delivery // of the call before, for flawKeeps
	one  chan struct{}
}

// flaw is one thing that a wrong transport does wrong.
type flaw string

const (
	flawQueued    flaw = "written down is applied"
	flawDropped   flaw = "what moved is dropped"
	flawNamed     flaw = "entries are named by producer id and epoch"
	flawVerdict   flaw = "one refusal is the whole batch's"
	flawStops     flaw = "the answer ends at the first refusal, and the rest counts as applied"
	flawEpoch     flaw = "the coordinator epoch is left out"
	flawVersion   flaw = "the transaction version is left out"
	flawReversed  flaw = "the latest goes first"
	flawSorted    flaw = "results come in the receiver's order"
	flawCtxYes    flaw = "the end of the context is a yes"
	flawCtxDeaf   flaw = "the context is not looked at"
	flawMissing   flaw = "a missing result is a yes"
	flawNoGroups  flaw = "groups are done without being told"
	flawKeeps     flaw = "the deliveries are read later"
	flawAckByName flaw = "an acknowledgement is known by its number alone"
	flawOneAtTime flaw = "one call at a time"
	flawFencedYes flaw = "a newer epoch counts as applied"
	flawFencedNo  flaw = "a newer coordinator is tried again"
	flawMerged    flaw = "results are told apart by producer id"
	flawOnce      flaw = "a repeat is refused"
	flawNewest    flaw = "a repeat closes what is open"
	flawGivesUp   flaw = "a target that was away once is given up"
)

func newCourier(c *Cluster, flaws ...flaw) *courier {
	k := &courier{
		c: c, flaws: map[flaw]bool{}, up: map[markers.Target]context.Context{}, down: map[markers.Target]context.CancelFunc{},
		sent: map[markers.Target][]markers.Delivery{}, short: map[markers.Target]int{}, acks: map[string]markers.Result{},
	}
	for _, f := range flaws {
		k.flaws[f] = true
	}
	k.start(1)
	k.start(2)
	return k
}

func (k *courier) start(id markers.Target) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.up[id] != nil {
		return
	}
	k.up[id], k.down[id] = context.WithCancel(context.Background())
}

func (k *courier) stop(id markers.Target) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down[id] != nil {
		k.down[id]()
	}
	if !k.flaws[flawGivesUp] {
		delete(k.up, id)
	}
}

func (k *courier) sender(life context.Context) *post {
	return &post{c: k, life: life, one: make(chan struct{}, 1)}
}

// receive is the receiving end.
func (k *courier) receive(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	b := k.c.Broker(to)
	rs := b.WriteMarkers(ctx, to, ds)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flaws[flawOnce] {
		for i, d := range ds {
			if slices.Contains(k.sent[to], d) {
				rs[i] = markers.Retry
			}
		}
	}
	if len(k.sent[to]) < 1000 {
		k.sent[to] = append(k.sent[to], ds...)
	}
	n := k.short[to]
	delete(k.short, to)
	return rs[:len(rs)-n]
}

func (p *post) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	k := p.c
	has := func(f flaw) bool { return k.flaws[f] }
	if has(flawOneAtTime) {
		p.one <- struct{}{}
		defer func() { <-p.one }()
	}
	retry := make([]markers.Result, len(ds))
	if len(ds) == 0 {
		return retry
	}
	yes := slices.Repeat([]markers.Result{markers.Applied}, len(ds))
	k.mu.Lock()
	up := k.up[to]
	k.mu.Unlock()
	if up == nil {
		if has(flawCtxDeaf) {
			return retry // it would hang for ever where nobody is
		}
		select {
		case <-ctx.Done():
		case <-p.life.Done():
		case <-time.After(5 * time.Millisecond):
		}
		return retry
	}
	if up.Err() != nil {
		return retry // flawGivesUp
	}
	mine := slices.Clone(ds)
	call := up
	if !has(flawCtxDeaf) {
		var cancel context.CancelFunc
		call, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(up, cancel)()
		defer context.AfterFunc(p.life, cancel)()
	}
	p.mu.Lock()
	p.seq++
	name := fmt.Sprint(p.seq)
	before := p.last
	p.last = ds
	p.mu.Unlock()
	if has(flawKeeps) && len(before) > 0 {
		k.receive(call, to, before)
	}
	if has(flawAckByName) {
		k.mu.Lock()
		r, ok := k.acks[name]
		k.mu.Unlock()
		if ok {
			return slices.Repeat([]markers.Result{r}, len(ds))
		}
	}
	order := make([]int, len(mine))
	for i := range order {
		order[i] = i
	}
	if has(flawReversed) {
		slices.Reverse(order)
	}
	if has(flawSorted) {
		slices.SortStableFunc(order, func(a, b int) int { return mine[a].Participant.Compare(mine[b].Participant) })
	}
	carried := make([]markers.Delivery, len(mine))
	for i, at := range order {
		carried[i] = mine[at]
	}
	if has(flawNamed) {
		last := map[txnstate.Producer]int{}
		for i, d := range carried {
			last[d.Producer] = i
		}
		for i, d := range carried {
			if j := last[d.Producer]; j != i && carried[j].Commit != d.Commit {
				carried[i] = carried[j]
			}
		}
	}
	for i := range carried {
		if has(flawEpoch) {
			carried[i].CoordinatorEpoch = 0
		}
		if has(flawVersion) {
			carried[i].TransactionVersion = 0
		}
		if has(flawNoGroups) && carried[i].Participant.Kind == txnstate.KindGroup {
			carried[i].Participant = txnstate.Partition("void", 0)
		}
	}
	done := make(chan []markers.Result, 1)
	go func() {
		rs := k.receive(call, to, carried)
		if call.Err() == nil || up.Err() == nil {
			done <- rs
		}
	}()
	if has(flawQueued) {
		return yes
	}
	var rs []markers.Result
	select {
	case rs = <-done:
	case <-call.Done():
		select {
		case rs = <-done:
		default:
			rs = retry
		}
	}
	if has(flawCtxYes) && ctx.Err() != nil {
		return yes
	}
	for len(rs) < len(ds) {
		r := markers.Retry
		if has(flawMissing) {
			r = markers.Applied
		}
		rs = append(rs, r)
	}
	if !has(flawSorted) {
		own := make([]markers.Result, len(rs))
		for i, at := range order {
			own[at] = rs[i]
		}
		rs = own
	}
	for i := range rs {
		switch {
		case has(flawDropped) && rs[i] == markers.Moved, has(flawFencedYes) && rs[i] == markers.FencedEpoch,
			has(flawNoGroups) && ds[i].Participant.Kind == txnstate.KindGroup:
			rs[i] = markers.Applied
		case has(flawFencedNo) && rs[i] == markers.FencedCoordinator:
			rs[i] = markers.Retry
		}
	}
	if i := slices.IndexFunc(rs, func(r markers.Result) bool { return r != markers.Applied }); i >= 0 {
		if has(flawVerdict) {
			rs = slices.Repeat([]markers.Result{rs[i]}, len(rs))
		}
		if has(flawStops) {
			copy(rs[i+1:], yes)
		}
	}
	if has(flawMerged) {
		last := map[int64]markers.Result{}
		for i, r := range rs {
			last[ds[i].Producer.ID] = r
		}
		for i := range rs {
			rs[i] = last[ds[i].Producer.ID]
		}
	}
	if has(flawAckByName) && rs[0] != markers.Retry {
		k.mu.Lock()
		k.acks[name] = rs[0]
		k.mu.Unlock()
	}
	return rs
}

func (p *post) StillOpen(ctx context.Context, to markers.Target, d markers.Delivery) (bool, error) {
	return p.c.c.Broker(to).StillOpen(ctx, to, d)
}

func harnessOf(flaws ...flaw) Harness {
	return Harness{Bubble: true, Open: func(t testing.TB, c *Cluster) *Transport {
		k := newCourier(c, flaws...)
		life, die := context.WithCancel(context.Background())
		t.Cleanup(func() { die(); k.stop(1); k.stop(2) })
		return &Transport{
			Sink: k.sender(life),
			RestartSender: func(testing.TB) markers.Sink {
				die()
				life, die = context.WithCancel(context.Background())
				return k.sender(life)
			},
			StopReceiver:  func(_ testing.TB, id markers.Target) { k.stop(id) },
			StartReceiver: func(_ testing.TB, id markers.Target) { k.start(id) },
			Again: func(t testing.TB, id markers.Target) {
				k.mu.Lock()
				ds := slices.Clone(k.sent[id])
				k.mu.Unlock()
				for i := range ds {
					if k.flaws[flawNewest] {
						ds[i].TransactionVersion = txnstate.TV0
					}
				}
				k.c.Broker(id).WriteMarkers(t.Context(), id, ds)
			},
			Short:          func(id markers.Target, n int) { k.mu.Lock(); k.short[id] = n; k.mu.Unlock() },
			WithoutVersion: false,
		}
	}}
}

// recorder is a testing.TB that fails nobody but itself. Skips and failures end
// the goroutine, as they do in a test, after its cleanups.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	said     []string
	cleanups []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(...any)          { runtime.Goexit() }
func (r *recorder) Skipf(string, ...any) { runtime.Goexit() }
func (r *recorder) Helper()              {}
func (r *recorder) Cleanup(f func())     { r.cleanups = append(r.cleanups, f) }

// judge runs one case in a bubble and reports whether it failed, and what it said.
func judge(t *testing.T, c testCase, h Harness) (failed bool, said []string) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				for _, f := range slices.Backward(r.cleanups) {
					f()
				}
			}()
			c.execute(r, h)
		}()
		<-done
		r.mu.Lock()
		defer r.mu.Unlock()
		failed, said = r.failed, r.said
	})
	return failed, said
}

func TestTheSuiteAcceptsATransportThatIsRight(t *testing.T) {
	Run(t, harnessOf())
}

// The suite runs outside a bubble too, for transports on a network.
func TestTheSuiteRunsInRealTime(t *testing.T) {
	h := harnessOf()
	h.Bubble = false
	Run(t, h)
}

func TestATransportOfThisProcessIsRight(t *testing.T) {
	Run(t, Harness{Bubble: true, Open: func(t testing.TB, c *Cluster) *Transport {
		return &Transport{Sink: direct{c}}
	}})
}

// direct calls the broker itself.
type direct struct{ c *Cluster }

func (d direct) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	return d.c.Broker(to).WriteMarkers(ctx, to, ds)
}

func TestEveryCaseHasANameOfItsOwnAndAClause(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases() {
		if c.name == "" || c.clause == "" || seen[c.name] {
			t.Errorf("case %q, clause %q", c.name, c.clause)
		}
		seen[c.name] = true
	}
}

// TestTheSuiteCatchesWrongTransports: a suite that nothing fails proves nothing.
// Each wrong transport must fail the cases that are about its flaw. Those in may
// meet the flaw on their way to something else; all the others must pass.
func TestTheSuiteCatchesWrongTransports(t *testing.T) {
	const (
		judged   = "each delivery is judged by itself, in every order"
		ordered  = "results are in the order of the deliveries, whatever they are"
		waits    = "a marker that waits to be appended is not applied"
		moved    = "a participant that moved is refused, and served by its new leader"
		moves    = "a participant that moves while its marker waits is not applied by the old leader"
		unknown  = "a participant that the target does not know is never done"
		epoch    = "a newer producer epoch is reported as such, and nothing is written"
		deposed  = "a newer coordinator is reported as such, and nothing is written"
		overlap  = "calls overlap, and none gets another's results"
		hangs    = "a call that hangs holds up no other"
		ends     = "the end of the context ends the waiting, and says nothing"
		slice    = "the deliveries are the caller's again when the call returns"
		tooShort = "an answer that is too short leaves the rest to be tried again"
		arrives  = "identity, outcome and coordinator epoch arrive as they are"
		version  = "the transaction version arrives as it is"
		group    = "a group is a participant like any other"
		two      = "two transactions of one producer at one epoch both arrive"
		inOrder  = "markers of one producer for one participant arrive in their order"
		repeat   = "a repeat is answered applied and changes nothing that a reader sees"
		late     = "what arrives again closes no other transaction"
		dies     = "a receiver that dies before it has appended has not applied"
		answers  = "a receiver that dies before it has answered is asked again"
		away     = "a receiver that is away for a while is waited for"
		dead     = "participants of a dead broker are served by another one"
		next     = "the next sender is not told what became of the last one's deliveries"
		all      = "everything is done when faults have stopped"
	)
	any := []string{"*"}
	for _, w := range []struct {
		flaw  flaw
		fails []string
		may   []string
	}{
		{flawQueued, []string{waits, moved, moves, judged, unknown, ends, dies}, any},
		{flawDropped, []string{moved, unknown, moves, judged}, any},
		{flawNamed, []string{two, inOrder}, any},
		{flawVerdict, []string{judged, ordered}, any},
		{flawStops, []string{judged, ordered}, any},
		{flawEpoch, []string{arrives, deposed}, any},
		{flawVersion, []string{version}, []string{late}},
		{flawReversed, []string{inOrder}, []string{tooShort}},
		{flawSorted, []string{ordered, judged}, any},
		{flawCtxYes, []string{waits, ends}, any}, // the receiver's death may come before the context's end
		{flawCtxDeaf, []string{ends, waits}, any},
		{flawMissing, []string{tooShort}, nil},
		{flawNoGroups, []string{group}, []string{all}},
		{flawKeeps, []string{slice}, any},
		{flawAckByName, []string{next}, any},
		{flawOneAtTime, []string{hangs}, any},
		{flawFencedYes, []string{epoch, judged, overlap}, any},
		{flawFencedNo, []string{deposed}, []string{ordered}},
		{flawMerged, []string{ordered}, any},
		{flawOnce, []string{repeat}, any},
		{flawNewest, []string{late}, nil},
		{flawGivesUp, []string{away, answers, dead}, any},
	} {
		t.Run(string(w.flaw), func(t *testing.T) {
			h := harnessOf(w.flaw).withDefaults()
			for _, c := range cases() {
				meant := slices.Contains(w.fails, c.name)
				if !meant && slices.Equal(w.may, any) {
					continue // breaks too much to say what else
				}
				failed, said := judge(t, c, h)
				switch {
				case meant && !failed:
					t.Errorf("the suite does not notice: case %q passes", c.name)
				case meant && !strings.Contains(said[0], c.clause):
					t.Errorf("case %q fails without naming its clause: %s", c.name, said[0])
				case failed && !meant && !slices.Contains(w.may, c.name):
					t.Errorf("case %q is about something else, and fails: %s", c.name, said[0])
				}
			}
		})
	}
}
