package markers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// Failures of other systems, as the sender of markers meets them: the table at
// the end of DESIGN.md says which test stands for which.

// F12: markers of three transactions travel in one call. Whatever becomes of one
// of them, in whichever order they come, the others are completed or sent again.
func TestF12_OneBadEntryOfACallStarvesNoOther(t *testing.T) {
	for name, bad := range map[string]func(d *markers.Dispatcher) markers.Result{
		"an old epoch":                  func(*markers.Dispatcher) markers.Result { return markers.FencedEpoch },
		"a newer coordinator":           func(*markers.Dispatcher) markers.Result { return markers.FencedCoordinator },
		"a result that is not known":    func(*markers.Dispatcher) markers.Result { return markers.Result(77) },
		"its slot is given away":        func(d *markers.Dispatcher) markers.Result { d.Cancel(txnstate.Slot("t1"), 9); return markers.Applied },
		"the host's sink panics":        func(*markers.Dispatcher) markers.Result { panic("t1") },
		"the host's resolver panics":    nil,
		"the host's OpenChecker panics": func(*markers.Dispatcher) markers.Result { return markers.FencedEpoch },
	} {
		for _, order := range [][]string{{"t1", "t2", "t3"}, {"t3", "t1", "t2"}, {"t2", "t3", "t1"}, {"t3", "t2", "t1"}} {
			t.Run(fmt.Sprint(name, order), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := &applied{}
					var d *markers.Dispatcher
					moved := false
					s := &sink{answer: func(_ context.Context, _ markers.Target, dl markers.Delivery) markers.Result {
						switch {
						case dl.TxnID == "t1" && bad != nil:
							return bad(d)
						case dl.TxnID == "t3" && !moved:
							moved = true
							return markers.Moved
						}
						return markers.Applied
					}}
					d, err := markers.NewDispatcher(markers.Config{
						Sink: askable{s, func() (bool, error) {
							if name == "the host's OpenChecker panics" {
								panic("open")
							}
							return true, nil
						}},
						StopOnFencedEpoch: name == "an old epoch",
						Leaders: markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
							if bad == nil && p.Name == "t1" {
								panic("resolver")
							}
							return 1, markers.Known
						}),
					})
					require.NoError(t, err)
					for _, id := range order { // before Run, so that they share a call
						d.Dispatch(outcome(id, 0, part(id, 0)), a.of(id))
					}
					ctx, cancel := context.WithCancel(context.Background())
					done := make(chan error, 1)
					go func() { done <- d.Run(ctx) }()
					time.Sleep(time.Minute)
					cancel()
					require.NoError(t, <-done, "the sender survives")
					require.Equal(t, map[string]int{"t2 t2/0": 1, "t3 t3/0": 1}, a.all())
					if bad != nil {
						require.Equal(t, 3, s.sizes[0])
					}
				})
			})
		}
	}
}

// replica is the leader of one partition: its log, as far as it matters here, and
// its producer state.
type replica struct {
	mu    sync.Mutex
	state *fence.Partition
	log   []logged
}

type logged struct {
	producer        txnstate.Producer
	control, commit bool
	value           int
}

func newReplica() *replica { return &replica{state: fence.NewPartition(fence.Config{})} }

func (l *replica) end() int64 { return int64(len(l.log)) }

// write appends one record of a transaction that was verified by g.
func (l *replica) write(b fence.Batch, g fence.Guard, value int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.state.Reserve(b, g, 0)
	if err != nil || r.Duplicate {
		return err
	}
	r.Settle(l.end())
	l.log = append(l.log, logged{producer: b.Producer, value: value})
	return nil
}

// mark appends a marker where the rules let it.
func (l *replica) mark(m markers.Marker) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, known := l.state.Producer(m.Producer.ID)
	if err := markers.Decide(m, st, known); err != nil {
		return err
	}
	l.state.Mark(m.Mark(0), l.end())
	l.log = append(l.log, logged{producer: m.Producer, control: true, commit: m.Commit})
	return nil
}

// visible is what a read-committed reader sees of a log, and whether a
// transaction is open at its end.
func (l *replica) visible() (values []int, open bool) {
	waiting := map[int64][]int{}
	for _, e := range l.log {
		switch {
		case !e.control:
			waiting[e.producer.ID] = append(waiting[e.producer.ID], e.value)
		default:
			if e.commit {
				values = append(values, waiting[e.producer.ID]...)
			}
			delete(waiting, e.producer.ID)
		}
	}
	return values, len(waiting) > 0
}

func data(p txnstate.Producer, seq int32) fence.Batch {
	return fence.Batch{Producer: p, FirstSequence: seq, Records: 1, Transactional: true}
}

// F10, KAFKA-9749: whatever the first answer is, the marker is sent again, to the
// leader found then, and the transaction gets on; others are not held up.
func TestF10_EveryFirstAnswerLeadsToAnother(t *testing.T) {
	hang := markers.Result(100)
	firsts := map[string]markers.Result{"disconnected": markers.Retry, "no answer in time": hang}
	for _, c := range []txnstate.Code{3, 6, 7, 19, 20, 56, -1, 2, 10, 14, 15, 16, 18, 21, 31, 99} {
		firsts[c.String()] = markers.ResultOf(c)
	}
	for name, first := range firsts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &applied{}
				calls := 0
				s := &sink{answer: func(ctx context.Context, _ markers.Target, d markers.Delivery) markers.Result {
					if d.TxnID != "t" {
						return markers.Applied
					}
					if calls++; calls > 1 {
						return markers.Applied
					}
					if first == hang {
						<-ctx.Done()
						return markers.Retry
					}
					return first
				}}
				var asked atomic.Int32
				d := runDispatcher(t, markers.Config{Sink: s, Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) {
					return markers.Target(asked.Add(1)), markers.Known // it moves all the time
				})})
				d.Dispatch(outcome("t", 0, part("a", 0)), a.of("t"))
				synctest.Wait()
				d.Dispatch(outcome("other", 0, part("a", 0)), a.of("other"))
				synctest.Wait()
				require.Equal(t, map[string]int{"other a/0": 1}, a.all())
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, 2, a.n())
				require.Equal(t, []string{"1 t a/0", "2 other a/0", "3 t a/0"}, s.all(), "the leader is looked up for each attempt")
				require.Zero(t, d.Pending())
			})
		})
	}
	t.Run("a thousand failures are paced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := &applied{}
			calls := 0
			s := &sink{answer: func(context.Context, markers.Target, markers.Delivery) markers.Result {
				if calls++; calls > 1000 {
					return markers.Applied
				}
				return markers.Retry
			}}
			d := runDispatcher(t, markers.Config{Sink: s})
			begin := time.Now()
			d.Dispatch(outcome("t", 0, part("1a", 0)), a.of("t"))
			for a.n() == 0 {
				time.Sleep(time.Second)
			}
			if took := time.Since(begin); took < 900*time.Second || took > 2100*time.Second {
				t.Errorf("a thousand attempts took %s, with pauses of 1 to 2 seconds", took)
			}
		})
	})
}

// F11, KAFKA-5202: what is known to be deleted is done, before its marker was sent
// or after; what can't be reached is not.
func TestF11_OnlyWhatIsDeletedIsDoneWithoutItsMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applied{}
		var gone sync.Map // topics whose deletion is confirmed
		var unreachable atomic.Bool
		unreachable.Store(true)
		s := &sink{}
		s.answer = func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			switch d.Participant.Name {
			case "dying":
				gone.Store("dying", true)
				return markers.ResultOf(3)
			case "away":
				if unreachable.Load() {
					return markers.Retry
				}
			}
			return markers.Applied
		}
		gone.Store("gone", true)
		d := runDispatcher(t, markers.Config{Sink: s, Leaders: markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
			if _, ok := gone.Load(p.Name); ok {
				return 0, markers.Gone
			}
			return 1, markers.Known
		})})
		d.Dispatch(outcome("t", 0, part("b", 0), part("gone", 0), part("dying", 0), part("away", 0)), a.of("t"))
		d.Dispatch(outcome("all gone", 0, part("gone", 0), part("gone", 1)), a.of("all gone"))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, map[string]int{"t b/0": 1, "t gone/0": 1, "t dying/0": 1, "all gone gone/0": 1, "all gone gone/1": 1}, a.all())
		require.Equal(t, 1, d.Pending())
		unreachable.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, a.all()["t away/0"])
		require.NotContains(t, s.all(), "1 t gone/0")
	})
}

// coordinator runs a coordinator over a store and delivers by the dispatcher.
func coordinator(t *testing.T, s txnstate.Store, epoch int32, d txnstate.Dispatcher) *txnstate.Coordinator {
	c, err := txnstate.New(txnstate.Config{Store: s, ProducerIDs: ids{}, Dispatcher: d, CoordinatorEpoch: epoch, EndWait: txnstate.AnswerAtDecision})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.Ready()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return c
}

type ids struct{}

func (ids) Next(context.Context) (int64, error) { return 7, nil }

// prepared is a store that holds a decided commit of (7, 6), whose data has epoch 5.
func prepared(t *testing.T, ps ...txnstate.Participant) *memstore.Store {
	s := memstore.New()
	r := txnstate.Unknown("t")
	r.State, r.Producer, r.PrevID, r.LastEpoch = txnstate.PrepareCommit, txnstate.Producer{ID: 7, Epoch: 6}, 7, 5
	r.Participants, r.TimeoutMs, r.StartMs, r.UpdateMs, r.ClientVersion, r.TxnSeq = ps, 60_000, 1, 2, txnstate.TV2, 3
	_, err := s.Swap(context.Background(), r, txnstate.Durable)
	require.NoError(t, err)
	return s
}

func state(t *testing.T, s txnstate.Store) txnstate.State {
	r, err := s.Load(context.Background(), "t")
	require.NoError(t, err)
	return r.State
}

// F13, KAFKA-19999: the marker landed and its answer was lost, or its sender died.
// The repeat is accepted, also by a partition that has forgotten the producer, and
// the completion ends.
func TestF13_ARepeatedMarkerIsAcceptedAndTheCompletionEnds(t *testing.T) {
	commit := func(coordinator int32) markers.Marker {
		return markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 6}, Commit: true, CoordinatorEpoch: coordinator, TransactionVersion: txnstate.TV2}
	}
	written := func(t *testing.T) *replica {
		l := newReplica()
		b := data(txnstate.Producer{ID: 7, Epoch: 5}, 0)
		g, _, err := l.state.Verify(b, fence.ModeAdd, 0)
		require.NoError(t, err)
		require.NoError(t, l.write(b, g, 1))
		return l
	}
	t.Run("at the leader", func(t *testing.T) {
		l := written(t)
		for _, epoch := range []int32{3, 3, 4} {
			require.NoError(t, l.mark(commit(epoch)))
			require.Equal(t, l.end(), l.state.LastStable(l.end()))
		}
		require.NoError(t, newReplica().mark(commit(3)), "all of the producer is forgotten")
		abort := commit(4)
		abort.Commit = false
		require.NoError(t, l.mark(abort))
		require.Empty(t, l.state.Aborted(0, l.end()), "of a transaction that is closed nothing is changed")
	})
	for _, died := range []bool{false, true} {
		t.Run(fmt.Sprintf("its sender died: %v", died), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := written(t)
				lost := 1
				if died {
					require.NoError(t, l.mark(commit(1)))
					lost = 0
				}
				s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
					r := markers.ResultOf(txnstate.CodeOf(l.mark(d.Marker)))
					if lost > 0 {
						lost--
						return markers.Retry
					}
					return r
				}}
				store := prepared(t, part("1a", 0))
				coordinator(t, store, 2, runDispatcher(t, markers.Config{Sink: s}))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, txnstate.CompleteCommit, state(t, store))
				values, open := l.visible()
				require.Equal(t, []int{1}, values)
				require.False(t, open)
			})
		})
	}
}

// F14, KAFKA-9144: a coordinator that was deposed writes nothing, also where the
// data of the transaction is so old that the producer would be forgotten by it.
func TestF14_ADeposedCoordinatorWritesNothing(t *testing.T) {
	const day = 24 * 3600 * 1000
	p := fence.NewPartition(fence.Config{})
	b := data(txnstate.Producer{ID: 7, Epoch: 1}, 0)
	g, _, err := p.Verify(b, fence.ModeDefault, 0)
	require.NoError(t, err)
	r, err := p.Reserve(b, g, 0)
	require.NoError(t, err)
	r.Settle(0)
	mark := func(coordinator int32, commit bool, nowMs int64) error {
		m := markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 1}, Commit: commit, CoordinatorEpoch: coordinator}
		st, known := p.Producer(7)
		if err := markers.Decide(m, st, known); err != nil {
			return err
		}
		p.Mark(m.Mark(nowMs), p.End())
		return nil
	}
	require.NoError(t, mark(10, false, 2*day))
	p.Expire(2*day + day/2)
	require.Equal(t, txnstate.CodeCoordinatorFenced, txnstate.CodeOf(mark(9, true, 2*day)))
	require.Equal(t, int64(2), p.End(), "nothing was written")
	require.NoError(t, mark(10, false, 2*day))
	require.Len(t, p.Aborted(0, 9), 1)
}

// F38, seen on Apache Kafka 4.4 after a kill: a coordinator has just started and
// does not know yet who leads the one partition, and leads the other itself and
// has not loaded it. It completes nothing until each has its marker, once.
func TestF38_ACoordinatorThatHasJustStartedCompletesNothingUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known, loaded atomic.Bool
		s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			if d.Participant.Index == 1 && !loaded.Load() {
				return markers.ResultOf(3)
			}
			return markers.Applied
		}}
		retries := 0
		d := runDispatcher(t, markers.Config{Sink: s,
			Observer: markers.Observer{Retry: func(markers.Delivery, markers.Result, int, time.Duration) { retries++ }},
			Leaders: markers.LeaderFunc(func(p txnstate.Participant) (markers.Target, markers.Standing) {
				if p.Index == 0 && !known.Load() {
					return 0, markers.Unknown
				}
				return 1, markers.Known
			})})
		store := prepared(t, part("a", 0), part("a", 1))
		c := coordinator(t, store, 2, d)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, state(t, store))
		rec, err := c.Describe(context.Background(), "t")
		require.NoError(t, err)
		require.Len(t, rec.Participants, 2, "as operators see it")
		require.LessOrEqual(t, retries, 2*(600+20), "at most one a second each")
		loaded.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, state(t, store))
		known.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, state(t, store))
		sent := slices.DeleteFunc(s.all(), func(x string) bool { return x != "1 t a/0" })
		require.Len(t, sent, 1)
	})
}

// net is a client, its coordinator and two leaders, between which every request
// arrives in any order, twice or thrice, the last time long after.
type net struct {
	*testing.T
	rng     *rand.Rand
	queue   []func()
	rec     txnstate.Record
	leaders [2]*replica
}

func (n *net) send(f func()) {
	for range 1 + n.rng.IntN(3) {
		n.queue = append(n.queue, f)
	}
}

// once delivers something that must not be doubled: an answer to one request.
func (n *net) once(f func()) { n.queue = append(n.queue, f) }

func (n *net) run() {
	for len(n.queue) > 0 {
		i := n.rng.IntN(len(n.queue))
		if n.rng.IntN(4) > 0 { // mostly what was sent lately, so that the rest comes late
			i = max(0, len(n.queue)-1-n.rng.IntN(3))
		}
		f := n.queue[i]
		n.queue = slices.Delete(n.queue, i, i+1)
		f()
	}
}

// step is the coordinator.
func (n *net) step(ev txnstate.Event) (txnstate.Producer, error) {
	d, err := txnstate.Step(n.rec, ev, time.UnixMilli(1))
	if err != nil {
		return txnstate.NoProducer, err
	}
	if d.Write != txnstate.WriteNone {
		n.rec = d.Next
	}
	if d.Effects.Markers {
		o := n.rec.Outcome(1)
		for _, p := range o.Participants {
			n.send(func() {
				m := markers.Marker{Producer: o.Producer, Commit: o.Commit, TransactionVersion: o.TransactionVersion, CoordinatorEpoch: 1}
				if err := n.leaders[p.Index].mark(m); err != nil {
					return // of a transaction that is over: its sender is not there any more
				}
				n.send(func() {
					_, err := n.step(txnstate.Applied{Producer: o.Producer, TxnSeq: o.TxnSeq, Participants: []txnstate.Participant{p}})
					require.NoError(n, err)
				})
			})
		}
	}
	return d.Grant, nil
}

// produce is a leader: it asks the coordinator, which takes its time, and appends.
func (n *net) produce(i int, p txnstate.Producer, value int, answer func(error)) {
	l, b := n.leaders[i], data(p, 0)
	g, ask, err := l.state.Verify(b, fence.ModeAdd, 0)
	if err != nil {
		answer(err)
		return
	}
	n.once(func() {
		if ask {
			if _, err := n.step(txnstate.Add{Producer: p, Participants: []txnstate.Participant{part("a", int32(i))}, Client: txnstate.TV2}); err != nil {
				answer(err)
				return
			}
		}
		n.once(func() { answer(l.write(b, g, value)) })
	})
}

// F22, KIP-890 part 2: requests of a client of protocol 2 are reordered and
// repeated in every way. No transaction is lost, torn or comes back, and none is
// ended by a request of another.
func TestF22_RequestsInAnyOrderTearNoTransaction(t *testing.T) {
	for seed := range uint64(400) {
		n := &net{T: t, rng: rand.New(rand.NewPCG(seed, 0)), rec: txnstate.Unknown("t"), leaders: [2]*replica{newReplica(), newReplica()}}
		p, err := n.step(txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1000, NewID: 7, Server: txnstate.TV2})
		require.NoError(t, err)
		var want [2][]int
		ended := 0
		var begin func(k int)
		begin = func(k int) {
			if k == 20 {
				return
			}
			left := map[int]bool{}
			commit := n.rng.IntN(2) == 0
			me := p
			end := func() {
				done := false
				var try func()
				try = func() {
					answered := false // the first answer to a request is the one that counts
					n.send(func() {
						next, err := n.step(txnstate.End{Producer: me, Commit: commit, Client: txnstate.TV2, NewID: 8})
						n.once(func() {
							again := answered
							answered = true
							switch {
							case again, done:
							case err == nil:
								done = true
								ended++
								p = next
								begin(k + 1)
							default:
								require.Equal(t, txnstate.CodeConcurrentTransactions, txnstate.CodeOf(err), "seed %d, transaction %d: %v", seed, k, err)
								try()
							}
						})
					})
				}
				try()
			}
			for i := range n.leaders {
				if i > 0 && n.rng.IntN(2) == 0 {
					continue
				}
				left[i] = true
				if commit {
					want[i] = append(want[i], k)
				}
			}
			for i := range left {
				var try func()
				try = func() {
					answered := false
					n.send(func() {
						n.produce(i, me, k, func(err error) {
							n.once(func() {
								again := answered
								answered = true
								switch {
								case again, !left[i]:
								case err == nil:
									if delete(left, i); len(left) == 0 {
										end()
									}
								default:
									// 48: a marker that came once more has made the leader forget that
									// it asked, as Kafka's. Nothing was written, so the client may ask again.
									require.Contains(t, []txnstate.Code{19, 48, 51}, txnstate.CodeOf(err), "seed %d, transaction %d: %v", seed, k, err)
									try()
								}
							})
						})
					})
				}
				try()
			}
		}
		begin(0)
		n.run()
		require.Equal(t, 20, ended, "seed %d", seed)
		for i, l := range n.leaders {
			got, open := l.visible()
			require.Equal(t, want[i], got, "seed %d, partition %d", seed, i)
			require.False(t, open, "seed %d, partition %d", seed, i)
			require.Equal(t, l.end(), l.state.LastStable(l.end()))
		}
	}
}

// A producer that is not known has epoch -1 and coordinator epoch -1: markers are
// compared with those (corners found by internal/mutate).
func TestMarkersOfAnUnknownProducerHaveBoundsToo(t *testing.T) {
	for _, tt := range []struct {
		epoch       int16
		coordinator int32
		want        txnstate.Code
	}{{0, -1, 0}, {0, -2, 52}, {-2, 0, 47}, {0, 0, 0}} {
		m := markers.Marker{Producer: txnstate.Producer{ID: 0, Epoch: tt.epoch}, CoordinatorEpoch: tt.coordinator}
		st, known := fence.NewPartition(fence.Config{}).Producer(0)
		if got := txnstate.CodeOf(markers.Decide(m, st, known)); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// Run waits for the calls that are under way, also for one that does not mind its
// context.
func TestRunWaitsForCallsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := &sink{answer: func(context.Context, markers.Target, markers.Delivery) markers.Result { <-gate; return markers.Applied }}
		d, err := markers.NewDispatcher(markers.Config{Sink: s, Leaders: byName})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		d.Dispatch(outcome("t", 0, part("1a", 0)), new(applied).of("t"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Empty(t, done)
		close(gate)
		require.NoError(t, <-done)
	})
}
