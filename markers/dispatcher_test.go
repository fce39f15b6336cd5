package markers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// sink answers as the test says and remembers what it was sent.
type sink struct {
	mu     sync.Mutex
	sent   []string // "target participant", one for each delivery
	sizes  []int
	answer func(ctx context.Context, to markers.Target, d markers.Delivery) markers.Result
	short  int // results to leave out at the end of each call
}

func (s *sink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	s.mu.Lock()
	s.sizes = append(s.sizes, len(ds))
	for _, d := range ds {
		s.sent = append(s.sent, fmt.Sprintf("%d %s %s", to, d.TxnID, d.Participant))
	}
	s.mu.Unlock()
	rs := make([]markers.Result, len(ds))
	for i, d := range ds {
		rs[i] = markers.Applied
		if s.answer != nil {
			rs[i] = s.answer(ctx, to, d)
		}
	}
	return rs[:max(len(rs)-s.short, 0)]
}

func (s *sink) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.sent...)
}

// askable is a sink that can be asked what is open.
type askable struct {
	*sink
	open func() (bool, error)
}

func (a askable) StillOpen(context.Context, markers.Target, markers.Delivery) (bool, error) {
	return a.open()
}

var _ markers.OpenChecker = askable{}

// applied collects what a transaction's participants have confirmed.
type applied struct {
	mu sync.Mutex
	m  map[string]int
}

func (a *applied) of(id string) func([]txnstate.Participant) {
	return func(ps []txnstate.Participant) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.m == nil {
			a.m = map[string]int{}
		}
		for _, p := range ps {
			a.m[id+" "+p.String()]++
		}
	}
}

func (a *applied) all() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.m)
}

func (a *applied) n() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.m)
}

// byName leads every partition of topic "N..." at broker N's first digit.
var byName = markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
	return markers.Target(p.Name[0] - '0'), markers.Known
})

func outcome(id string, epoch int32, ps ...txnstate.Participant) txnstate.Outcome {
	return txnstate.Outcome{TxnID: id, TxnSeq: 1, Producer: txnstate.Producer{ID: 7, Epoch: 1}, Commit: true, CoordinatorEpoch: epoch, Participants: ps}
}

func runDispatcher(t *testing.T, cfg markers.Config) *markers.Dispatcher {
	if cfg.Leaders == nil {
		cfg.Leaders = byName
	}
	d, err := markers.NewDispatcher(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return d
}

func part(topic string, i int32) txnstate.Participant { return txnstate.Partition(topic, i) }

func TestEveryParticipantIsToldOnceAndConfirmedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &sink{}, &applied{}
		d := runDispatcher(t, markers.Config{Sink: s})
		d.Dispatch(outcome("a", 0, part("1t", 0), part("1t", 1), part("2t", 0), txnstate.Participant{Kind: txnstate.KindGroup, Name: "2g", Index: 3}), a.of("a"))
		synctest.Wait()
		require.ElementsMatch(t, []string{"1 a 1t/0", "1 a 1t/1", "2 a 2t/0", "2 a group 2g"}, s.all())
		require.Equal(t, 4, a.n())
		require.Zero(t, d.Pending())
	})
}

func TestWhatWasDispatchedBeforeRunIsDeliveredByIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &sink{}, &applied{}
		d, err := markers.NewDispatcher(markers.Config{Sink: s, Leaders: byName})
		require.NoError(t, err)
		d.Dispatch(outcome("a", 0, part("1t", 0)), a.of("a"))
		synctest.Wait()
		require.Empty(t, s.all())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, 1, a.n())
		cancel()
		require.NoError(t, <-done)
		require.Error(t, d.Run(context.Background()))
	})
}

func TestOnlyWhatIsNotConfirmedIsSentAgainAndItsLeaderIsLookedUpAnew_F10_F12_W6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applied{}
		var leader atomic.Int32
		leader.Store(1)
		tries := 0
		s := &sink{}
		s.answer = func(_ context.Context, to markers.Target, d markers.Delivery) markers.Result {
			switch {
			case d.Participant.Index == 1 && to == 1:
				return markers.Moved
			case d.Participant.Index == 2:
				if tries++; tries < 4 {
					return markers.Retry
				}
			}
			return markers.Applied
		}
		var attempts []int
		d := runDispatcher(t, markers.Config{Sink: s, Seed: 1,
			Leaders: markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
				if p.Index == 1 {
					return markers.Target(leader.Load()), markers.Known
				}
				return 1, markers.Known
			}),
			Observer: markers.Observer{Retry: func(d markers.Delivery, r markers.Result, n int, pause time.Duration) {
				if d.Participant.Index == 2 {
					attempts = append(attempts, n)
				}
				require.Positive(t, pause)
				require.LessOrEqual(t, pause, 2*time.Second)
			}}})
		d.Dispatch(outcome("a", 0, part("t", 0), part("t", 1), part("t", 2)), a.of("a"))
		synctest.Wait()
		leader.Store(2)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3, a.n())
		require.Equal(t, []string{"1 a t/0", "1 a t/1", "1 a t/2"}, s.all()[:3])
		require.ElementsMatch(t, []string{"2 a t/1", "1 a t/2", "1 a t/2", "1 a t/2"}, s.all()[3:])
		require.Equal(t, []int{1, 2, 3}, attempts)
	})
}

// W6: whatever the answer was, the leader of the attempt before is not the leader of
// the next.
func TestTheLeaderIsLookedUpForEveryAttempt_W6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := &applied{}, &sink{}
		var leader atomic.Int32
		leader.Store(1)
		answers := []markers.Result{markers.Retry, markers.Moved, markers.Retry, markers.Retry, markers.Applied}
		var want []string
		s.answer = func(context.Context, markers.Target, markers.Delivery) markers.Result {
			return answers[leader.Add(1)-2]
		}
		for n := range answers {
			want = append(want, fmt.Sprintf("%d a t/0", n+1))
		}
		d := runDispatcher(t, markers.Config{Sink: s, Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) {
			return markers.Target(leader.Load()), markers.Known
		})})
		d.Dispatch(outcome("a", 0, part("t", 0)), a.of("a"))
		time.Sleep(time.Minute)
		require.Equal(t, want, s.all())
		require.Equal(t, 1, a.n())
	})
}

func TestUnknownIsNeverGone_F38(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &sink{}, &applied{}
		var found atomic.Bool
		d := runDispatcher(t, markers.Config{Sink: s, Leaders: markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
			if p.Index == 9 {
				return 0, markers.Gone
			}
			if found.Load() {
				return 1, markers.Known
			}
			return 0, markers.Unknown
		})})
		d.Dispatch(outcome("a", 0, part("t", 0), part("t", 9)), a.of("a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, map[string]int{"a t/9": 1}, a.all(), "the deleted one is done, F11; the other one is asked for again")
		require.Equal(t, 1, d.Pending())
		found.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, a.n())
	})
}

func TestAHangingTargetHoldsUpNothingElse_F12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applied{}
		s := &sink{answer: func(ctx context.Context, to markers.Target, d markers.Delivery) markers.Result {
			if to == 1 {
				<-ctx.Done()
				return markers.Retry
			}
			return markers.Applied
		}}
		d := runDispatcher(t, markers.Config{Sink: s, InFlight: 2, BatchSize: 1, CallTimeout: time.Minute})
		for i := range int32(10) {
			d.Dispatch(outcome(fmt.Sprint("a", i), 0, part("1t", i), part("2t", i)), a.of(fmt.Sprint("a", i)))
		}
		synctest.Wait()
		require.Equal(t, 10, a.n(), "all of the other target")
		require.Len(t, s.sizes, 12, "two calls are under way to the one that hangs, and no more")
	})
}

func TestMarkersOfManyTransactionsShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applied{}
		gate := make(chan struct{})
		s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			if d.TxnID == "first" {
				<-gate
			}
			return markers.Applied
		}}
		d := runDispatcher(t, markers.Config{Sink: s, InFlight: 1, BatchSize: 100})
		d.Dispatch(outcome("first", 0, part("1t", 0)), a.of("first"))
		synctest.Wait()
		for i := range 250 {
			id := fmt.Sprint(i)
			d.Dispatch(outcome(id, 0, part("1t", 0)), a.of(id))
		}
		close(gate)
		synctest.Wait()
		require.Equal(t, []int{1, 100, 100, 50}, s.sizes)
		require.Equal(t, 251, a.n())
	})
}

func TestAnAnswerThatIsTooShortIsNoConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &sink{short: 1}, &applied{}
		d := runDispatcher(t, markers.Config{Sink: s})
		d.Dispatch(outcome("a", 0, part("1t", 0), part("1t", 1)), a.of("a"))
		synctest.Wait()
		require.Equal(t, 1, a.n())
		require.Equal(t, 1, d.Pending())
	})
}

func TestANewerCoordinatorStopsTheDeliveryForGood_F14(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applied{}
		stopped := 0
		s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			switch {
			case d.CoordinatorEpoch == 5:
				return markers.Applied
			case d.Participant.Index == 0:
				return markers.FencedCoordinator
			}
			return markers.Retry
		}}
		d := runDispatcher(t, markers.Config{Sink: s, Observer: markers.Observer{Stopped: func(markers.Delivery, markers.Result) { stopped++ }}})
		d.Dispatch(outcome("a", 4, part("1t", 0), part("1t", 1)), a.of("a"))
		time.Sleep(time.Minute)
		synctest.Wait()
		n := len(s.all())
		time.Sleep(time.Hour)
		require.Len(t, s.all(), n, "nothing more is sent")
		require.Equal(t, 1, stopped)
		require.Zero(t, a.n(), "and nothing counts as applied")
		d.Dispatch(outcome("a", 5, part("2t", 0), part("2t", 1)), a.of("a"))
		synctest.Wait()
		require.Equal(t, 2, a.n())
	})
}

func TestANewerProducerEpochCountsAsAppliedOnlyWhereTheTransactionIsClosed_I12(t *testing.T) {
	for _, tc := range []struct {
		name string
		open bool
		err  error
		quit bool
		want int
	}{
		{name: "closed", want: 1},
		{name: "open", open: true},
		{name: "the leader can't be asked", err: errors.New("no connection")},
		{name: "as Kafka does", quit: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &applied{}
				s := &sink{answer: func(context.Context, markers.Target, markers.Delivery) markers.Result { return markers.FencedEpoch }}
				d := runDispatcher(t, markers.Config{Sink: askable{s, func() (bool, error) { return tc.open, tc.err }}, StopOnFencedEpoch: tc.quit})
				d.Dispatch(outcome("a", 0, part("1t", 0)), a.of("a"))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, tc.want, a.n())
				if tc.quit || tc.want == 1 {
					require.Len(t, s.all(), 1)
				} else {
					require.Greater(t, len(s.all()), 5, "it is tried again")
				}
			})
		})
	}
}

// slotMates are n ids of the slot of another one.
func slotMates(id string, n int) (out []string) {
	for i := 0; len(out) < n; i++ {
		if mate := fmt.Sprint(id, "-", i); txnstate.Slot(mate) == txnstate.Slot(id) {
			out = append(out, mate)
		}
	}
	return out
}

func TestCancelDropsASlotUpToItsEpochAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applied{}
		var down sync.Map
		down.Store("down", true)
		s := &sink{answer: func(context.Context, markers.Target, markers.Delivery) markers.Result {
			if _, ok := down.Load("down"); ok {
				return markers.Retry
			}
			return markers.Applied
		}}
		d := runDispatcher(t, markers.Config{Sink: s})
		d.Dispatch(outcome("a", 1, part("1t", 0)), a.of("a@1"))
		d.Dispatch(outcome("a", 2, part("1t", 0)), a.of("a@2"))
		d.Dispatch(outcome("b", 1, part("1t", 0)), a.of("b@1"))
		require.NotEqual(t, txnstate.Slot("a"), txnstate.Slot("b"))
		for _, id := range slotMates("a", 3) { // and more of the slot
			d.Dispatch(outcome(id, 1, part("1t", 0)), a.of(id))
		}
		synctest.Wait()
		d.Cancel(txnstate.Slot("a"), 1)
		require.Equal(t, 2, d.Pending())
		down.Delete("down")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, map[string]int{"a@2 1t/0": 1, "b@1 1t/0": 1}, a.all())
	})
}

func TestResultsOfCodesAreKafkasClasses(t *testing.T) {
	want := map[markers.Result][]txnstate.Code{
		markers.Applied: {0}, markers.Moved: {3, 6, 16}, markers.FencedEpoch: {47}, markers.FencedCoordinator: {52},
		markers.Deleted: {43, 35}, markers.Retry: {7, 19, 20, 56, 2, 10, 18, 21, 31, 14, 15, -1, 99},
	}
	for r, codes := range want {
		for _, c := range codes {
			require.Equal(t, r, markers.ResultOf(c), "%s", c)
		}
		require.NotContains(t, r.String(), "Result(")
	}
	require.Equal(t, "Result(9)", markers.Result(9).String())
}

func TestDispatcherConfigNamesWhatIsMissing(t *testing.T) {
	_, err := markers.NewDispatcher(markers.Config{})
	require.ErrorContains(t, err, "Leaders")
	require.ErrorContains(t, err, "Sink")
}

// For the race detector: an attempt is counted before the next one can begin, which
// is another goroutine's.
func TestTheNextAttemptMayBeginAtOnce(t *testing.T) {
	var asked atomic.Int64
	d, err := markers.NewDispatcher(markers.Config{
		Sink: &sink{}, RetryMin: time.Nanosecond, RetryMax: time.Nanosecond,
		Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) {
			asked.Add(1)
			return 0, markers.Unknown
		}),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	for i := range 20 {
		d.Dispatch(outcome(fmt.Sprint(i), 0, part("t", 0)), func([]txnstate.Participant) {})
	}
	for asked.Load() < 1000 {
		runtime.Gosched()
	}
	cancel()
	running.Wait()
}
