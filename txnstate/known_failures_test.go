package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Failures of other systems, as the coordinator meets them: the table at the end
// of DESIGN.md says which test stands for which.

// seat is a coordinator of a store whose slots come and go as the test says.
type seat struct {
	*txnstate.Coordinator
	*held
	*deadlines
	tell func(f func(yes, no func(slot int, epoch int32)))
}

func newSeat(t *testing.T, s txnstate.Store) *seat {
	n := notices{acquired: make(chan func(yes, no func(int, int32)))}
	h, d := &held{}, &deadlines{}
	c := start(t, txnstate.Config{Store: s, Dispatcher: h, Deadlines: d, Ownership: n, EndWait: txnstate.AnswerAtDecision})
	return &seat{c, h, d, func(f func(yes, no func(int, int32))) {
		n.acquired <- f
		synctest.Wait()
	}}
}

func (s *seat) own(id string, epoch int32) {
	s.tell(func(yes, _ func(int, int32)) { yes(txnstate.Slot(id), epoch) })
}

func (s *seat) lose(id string, epoch int32) {
	s.tell(func(_, no func(int, int32)) { no(txnstate.Slot(id), epoch) })
}

// F02, F14: a decision is stored just after its coordinator was deposed, and after
// the next one has loaded the slot. The deposed one neither says that it is done
// nor sends a marker; the next one finds the decision by the caller's retry.
func TestF02_F14_ADecisionThatOutlivesItsOwnershipIsTheNextOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		a, b := newSeat(t, s), newSeat(t, s)
		a.own("t", 5)
		p := initID(t, a.Coordinator, "t")
		require.NoError(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0))
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
			if rec.State == txnstate.PrepareCommit {
				s.onSwap = nil
				a.lose("t", 5)
				b.own("t", 6)
			}
			return nil, nil
		}
		end := txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2}
		_, err := a.End(bg, "t", end)
		require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
		require.Equal(t, txnstate.PrepareCommit, s.get("t").State)
		synctest.Wait()
		require.Empty(t, a.outcomes(), "a deposed coordinator sends nothing")
		require.Empty(t, b.outcomes(), "it has not seen the decision")

		_, err = b.End(bg, "t", end)
		require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		require.Len(t, b.outcomes(), 1)
		require.Equal(t, int32(6), b.outcomes()[0].CoordinatorEpoch)
		b.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		next, err := b.End(bg, "t", end)
		require.NoError(t, err)
		require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 1}, next)
	})
}

// F02: the same where the process that was deposed is the next owner itself, and
// has loaded the slot too early to see the change.
func TestF02_AChangeThatOutlivesItsOwnershipIsTakenUpByTheSameProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		a := newSeat(t, s)
		a.own("t", 5)
		p := initID(t, a.Coordinator, "t")
		during := func(state txnstate.State, epoch int32) {
			s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
				if rec.State == state {
					s.onSwap = nil
					a.own("t", epoch)
				}
				return nil, nil
			}
		}
		during(txnstate.Ongoing, 6)
		require.ErrorIs(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0), txnstate.ErrNotCoordinator)
		require.Equal(t, fmt.Sprintf("%d open=true", t0.UnixMilli()+60_000), a.of("t"), "F25: the transaction is open and will time out")
		require.NoError(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0), "the retry finds it done")

		during(txnstate.PrepareAbort, 7)
		_, err := a.End(bg, "t", txnstate.End{Producer: p, Client: txnstate.TV2})
		require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
		require.Len(t, a.outcomes(), 1)
		require.Equal(t, int32(7), a.outcomes()[0].CoordinatorEpoch, "under the epoch that is in force")
	})
}

// afterLoad runs something of the test's after a record was read and before its
// reader gets it.
type afterLoad struct {
	*scriptStore
	then func()
}

func (s *afterLoad) Load(ctx context.Context, id string) (txnstate.Record, error) {
	rec, err := s.scriptStore.Load(ctx, id)
	if f := s.then; f != nil {
		s.then = nil
		f()
	}
	return rec, err
}

// F06: under protocol 1 the next transaction has the same producer. What is shown
// of one that was completing does not name who has to be told of the next.
func TestF06_DescribeDoesNotMixTwoTransactionsOfOneProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &afterLoad{scriptStore: newScriptStore()}
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
		p := initID(t, c, "a")
		commit := func(tp txnstate.Participant) {
			require.NoError(t, add(c, "a", p, txnstate.TV0, tp))
			_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
			require.NoError(t, err)
		}
		commit(tp0)
		s.then = func() {
			h.outcomes()[0].applied([]txnstate.Participant{tp0})
			synctest.Wait()
			commit(tp1)
		}
		rec, err := c.Describe(bg, "a")
		require.NoError(t, err)
		require.Equal(t, uint64(1), rec.TxnSeq)
		require.Equal(t, []txnstate.Participant{tp0}, rec.Participants)
	})
}

// F23, KAFKA-14904: while the store takes its time over adding one partition,
// whether another is in the transaction is answered at once.
func TestF23_VerificationWaitsForNoChangeThatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		c := start(t, txnstate.Config{Store: s})
		p := initID(t, c, "t")
		require.NoError(t, add(c, "t", p, txnstate.TV0, tp0))
		gate := make(chan struct{})
		writes := 0
		s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) { writes++; <-gate; return nil, nil }
		added := make(chan error, 1)
		go func() { added <- add(c, "t", p, txnstate.TV0, tp1) }()
		synctest.Wait()
		for range 3 {
			missing, err := c.Verify(bg, "t", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0, tp1}})
			require.NoError(t, err)
			require.Equal(t, []txnstate.Participant{tp1}, missing, "what is being added is not there yet")
			_, err = c.Verify(bg, "t", txnstate.Verify{Producer: txnstate.Producer{ID: p.ID, Epoch: 9}, Participants: []txnstate.Participant{tp0}})
			require.ErrorIs(t, err, txnstate.ErrProducerFenced)
		}
		close(gate)
		require.NoError(t, <-added)
		missing, err := c.Verify(bg, "t", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0, tp1}})
		require.NoError(t, err)
		require.Empty(t, missing)
		require.Equal(t, 1, writes)
	})
}

// brittle is a store that can refuse writes, or do one and then be gone.
type brittle struct {
	*scriptStore
	refuse, vanish, gone atomic.Bool
}

func newBrittle() *brittle {
	b := &brittle{scriptStore: newScriptStore()}
	b.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
		switch {
		case b.refuse.Load():
			return errors.New("not enough replicas"), nil
		case b.vanish.Load():
			b.gone.Store(true)
			return nil, errors.New("timed out")
		}
		return nil, nil
	}
	b.onLoad = func(string) error {
		if b.gone.Load() {
			return errors.New("timed out")
		}
		return nil
	}
	return b
}

func (b *brittle) Delete(ctx context.Context, id string, v txnstate.Version) error {
	if b.refuse.Load() {
		return errors.New("not enough replicas")
	}
	return b.scriptStore.Delete(ctx, id, v)
}

func (b *brittle) heal() {
	for _, f := range []*atomic.Bool{&b.refuse, &b.vanish, &b.gone} {
		f.Store(false)
	}
}

func initAgain(c *txnstate.Coordinator, id string) (txnstate.Producer, error) {
	return c.Init(bg, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
}

// F01, KAFKA-5351: whatever write fails, and whether or not it was done after all,
// its caller is told COORDINATOR_NOT_AVAILABLE, and the id is not left busy.
func TestF01_AFailedWriteLeavesNoIDBusy(t *testing.T) {
	end := func(commit bool, v txnstate.TransactionVersion) func(*txnstate.Coordinator, txnstate.Producer) error {
		return func(c *txnstate.Coordinator, p txnstate.Producer) error {
			_, err := c.End(bg, "t", txnstate.End{Producer: p, Commit: commit, Client: v})
			return err
		}
	}
	ini := func(c *txnstate.Coordinator, _ txnstate.Producer) error { _, err := initAgain(c, "t"); return err }
	for name, o := range map[string]struct {
		open  bool
		do    func(c *txnstate.Coordinator, p txnstate.Producer) error
		retry txnstate.Code // where the write was not done
	}{
		"Init": {false, ini, 0},
		"AddPartitions": {false, func(c *txnstate.Coordinator, p txnstate.Producer) error {
			return add(c, "t", p, txnstate.TV2, tp0)
		}, 0},
		"AddOffsets": {false, func(c *txnstate.Coordinator, p txnstate.Producer) error {
			return add(c, "t", p, txnstate.TV0, txnstate.Group("g"))
		}, 0},
		"commit":                        {true, end(true, txnstate.TV2), 0},
		"abort":                         {true, end(false, txnstate.TV2), 0},
		"commit, TV1":                   {true, end(true, txnstate.TV0), 0},
		"abort, TV1":                    {true, end(false, txnstate.TV0), 0},
		"the fencing abort inside Init": {true, ini, txnstate.CodeConcurrentTransactions},
		"the reaper's abort": {true, func(c *txnstate.Coordinator, _ txnstate.Producer) error {
			return c.TimeOut(bg, "t", t0.Add(time.Hour))
		}, 0},
	} {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, written %v", name, done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newBrittle()
					c := start(t, txnstate.Config{Store: s, EndWait: txnstate.AnswerWhenApplied})
					p := initID(t, c, "t")
					if o.open {
						require.NoError(t, add(c, "t", p, txnstate.TV0, tp0))
					}
					s.refuse.Store(!done)
					s.vanish.Store(done)
					require.ErrorIs(t, o.do(c, p), txnstate.ErrCoordinatorNotAvailable)
					s.heal()
					code := txnstate.CodeOf(o.do(c, p))
					if !done {
						require.Equal(t, o.retry, code)
					}
					if code == txnstate.CodeConcurrentTransactions {
						synctest.Wait() // until it is complete
						code = txnstate.CodeOf(o.do(c, p))
					}
					require.Equal(t, txnstate.CodeNone, code)
					next, err := initAgain(c, "t")
					if errors.Is(err, txnstate.ErrConcurrentTransactions) { // Add leaves a transaction open
						synctest.Wait()
						next, err = initAgain(c, "t")
					}
					require.NoError(t, err)
					require.NoError(t, add(c, "t", next, txnstate.TV2, tp1))
				})
			})
		}
	}
}

// sameSlot are two ids of one slot.
func sameSlot() (a, b string) {
	for i := 0; ; i++ {
		if b = fmt.Sprint("t", i); txnstate.Slot(b) == txnstate.Slot("t") {
			return "t", b
		}
	}
}

// F02, KAFKA-9307: an owner that was never told that it had lost its slot, and gets
// it again, answers from what another has stored meanwhile, and takes up what is
// owed under its new epoch.
func TestF02_AnOwnershipThatComesAgainForgetsTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t1, t2 := sameSlot()
		p1, p2 := txnstate.Producer{ID: 7}, txnstate.Producer{ID: 8}
		s := newScriptStore(prepared(t1, p1, tp0), ongoing(t2, p2, tp0))
		a, b := newSeat(t, s), newSeat(t, s)
		a.own(t1, 5)
		require.Len(t, a.outcomes(), 1)
		require.NoError(t, add(a.Coordinator, t2, p2, txnstate.TV2, tp1))

		b.own(t1, 6)
		next, err := b.End(bg, t2, txnstate.End{Producer: p2, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		for _, o := range b.outcomes() {
			if o.TxnID == t2 {
				o.applied(o.Participants)
			}
		}
		synctest.Wait()

		a.own(t1, 7)
		require.Contains(t, a.cancelled, fmt.Sprintf("%d@6", txnstate.Slot(t1)), "what was queued under older epochs")
		rec, err := a.Describe(bg, t2)
		require.NoError(t, err)
		require.Equal(t, txnstate.CompleteCommit, rec.State)
		require.ErrorIs(t, add(a.Coordinator, t2, p2, txnstate.TV2, tp1), txnstate.ErrProducerFenced)
		require.NoError(t, add(a.Coordinator, t2, next, txnstate.TV2, tp1))
		require.Len(t, a.outcomes(), 2)
		require.Equal(t, int32(7), a.outcomes()[1].CoordinatorEpoch)

		a.outcomes()[0].applied([]txnstate.Participant{tp0}) // of the delivery under epoch 5
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get(t1).State)
		a.outcomes()[1].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get(t1).State)

		a.lose(t1, 7)
		for _, id := range []string{t1, t2, "new"} {
			if txnstate.Slot(id) == txnstate.Slot(t1) {
				_, err := initAgain(a.Coordinator, id)
				require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
			}
		}
	})
}

// F03, KAFKA-5268: while the decision over many partitions is being stored nothing
// can change which they are, and the next process finds all of them.
func TestF03_TheDecisionKeepsTheSetThatWasDecidedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
		p := initID(t, c, "t")
		var all []txnstate.Participant
		for i := range int32(64) {
			all = append(all, txnstate.Partition("a", i))
		}
		require.NoError(t, add(c, "t", p, txnstate.TV0, all...))
		other := initID(t, c, "other")
		require.NoError(t, add(c, "other", other, txnstate.TV0, all...))
		_, err := c.End(bg, "other", txnstate.End{Producer: other, Commit: true})
		require.NoError(t, err)

		gate := make(chan struct{})
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
			if rec.TxnID == "t" && rec.State == txnstate.PrepareCommit {
				<-gate // it is being encoded
			}
			return nil, nil
		}
		ended, added := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.End(bg, "t", txnstate.End{Producer: p, Commit: true}); ended <- err }()
		synctest.Wait()
		go func() { added <- add(c, "t", p, txnstate.TV0, txnstate.Partition("b", 0)) }()
		h.outcomes()[0].applied(all)
		synctest.Wait()
		close(gate)
		require.NoError(t, <-ended)
		require.ErrorIs(t, <-added, txnstate.ErrConcurrentTransactions)
		h.outcomes()[1].applied(all[:10]) // confirmed, and then the process dies

		next := &held{}
		start(t, txnstate.Config{Store: s, Dispatcher: next, CoordinatorEpoch: 1})
		require.Len(t, next.outcomes(), 1)
		require.Equal(t, all, next.outcomes()[0].Participants)
		require.True(t, next.outcomes()[0].Commit)
	})
}

// F04: the owner dies with a transaction open. The next one finds the identity,
// aborts, and gives a higher epoch of the same producer id; the leader refuses the
// dead session by the epoch that the abort marker has.
func TestF04_TheNextOwnerKnowsTheIdentityAndFencesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		a, b := newSeat(t, s), newSeat(t, s)
		a.own("t", 1)
		p := initID(t, a.Coordinator, "t")
		require.NoError(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0))
		leader := fence.NewPartition(fence.Config{})
		data := func(p txnstate.Producer, seq int32) error {
			b := fence.Batch{Producer: p, FirstSequence: seq, Records: 1, Transactional: true}
			g, _, err := leader.Verify(b, fence.ModeAdd, 0)
			if err != nil {
				return err
			}
			r, err := leader.Reserve(b, g, 0)
			if err == nil {
				r.Settle(leader.End())
			}
			return err
		}
		require.NoError(t, data(p, 0))

		b.own("t", 2) // a is dead, or believes that it is not
		for range 3 {
			_, err := initAgain(b.Coordinator, "t")
			require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		}
		o := b.outcomes()[0]
		m := markers.Marker{Producer: o.Producer, Commit: o.Commit, CoordinatorEpoch: o.CoordinatorEpoch, TransactionVersion: o.TransactionVersion}
		st, known := leader.Producer(p.ID)
		require.NoError(t, markers.Decide(m, st, known))
		leader.Mark(m.Mark(0), leader.End())
		o.applied(o.Participants)
		synctest.Wait()
		require.Len(t, b.outcomes(), 1)
		now, err := initAgain(b.Coordinator, "t")
		require.NoError(t, err)
		require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 2}, now)
		require.ErrorIs(t, add(b.Coordinator, "t", p, txnstate.TV2, tp0), txnstate.ErrProducerFenced)
		require.ErrorIs(t, data(p, 1), txnstate.ErrInvalidProducerEpoch)
		require.Len(t, leader.Aborted(0, leader.End()), 1)

		a.lose("t", 1)
		_, err = a.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.ErrorIs(t, err, txnstate.ErrNotCoordinator)
	})
}

// F06: a client's commit and the reaper's abort at the same moment, the one that
// begins first being overtaken while it is stored: one of them wins, and a client
// that is told of success finds its commit.
func TestF06_OfACommitAndATimeoutOneWins(t *testing.T) {
	for v := txnstate.TV0; v <= txnstate.TV2; v++ {
		for _, first := range []txnstate.State{txnstate.PrepareCommit, txnstate.PrepareAbort} {
			t.Run(fmt.Sprintf("TV%d, %s comes first", v, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newScriptStore()
					h := &held{auto: true}
					c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerWhenApplied})
					p := initID(t, c, "t")
					require.NoError(t, add(c, "t", p, v, tp0))
					var wg sync.WaitGroup
					var committed error
					commit := func() {
						_, committed = c.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: v})
					}
					abort := func() { _ = c.TimeOut(bg, "t", t0.Add(time.Hour)) }
					one, other := commit, abort
					if first == txnstate.PrepareAbort {
						one, other = abort, commit
					}
					s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
						if rec.State == first {
							s.onSwap = nil
							wg.Go(other)
							synctest.Wait() // until it is done, or waits
						}
						return nil, nil
					}
					wg.Go(one)
					wg.Wait()
					synctest.Wait()
					require.Len(t, h.outcomes(), 1)
					require.Equal(t, committed == nil, h.outcomes()[0].Commit, "%v", committed)
					require.Equal(t, committed == nil, s.get("t").State == txnstate.CompleteCommit)
				})
			})
		}
	}
}

// burst confirms all participants at the same moment from many goroutines, some
// twice.
type burst struct{ wg sync.WaitGroup }

func (b *burst) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	gate := make(chan struct{})
	for ps := range slices.Chunk(o.Participants, 8) {
		for range 2 {
			b.wg.Go(func() { <-gate; applied(ps) })
		}
	}
	close(gate)
}

func (*burst) Cancel(int, int32) {}

// F09, KAFKA-10080: every leader answers at the same moment, some of them twice,
// and the client begins its next transaction at once: each transaction is
// completed once, and before the next one begins.
func TestF09_ATransactionIsCompletedOnceAndBeforeTheNextBegins(t *testing.T) {
	s := newScriptStore()
	var mu sync.Mutex
	var stored []txnstate.State
	s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
		mu.Lock()
		defer mu.Unlock()
		stored = append(stored, rec.State)
		return nil, nil
	}
	var all []txnstate.Participant
	for i := range int32(64) {
		all = append(all, txnstate.Partition("a", i))
	}
	d := &burst{}
	c := start(t, txnstate.Config{Store: s, Dispatcher: d, EndWait: txnstate.AnswerAtDecision})
	p := initID(t, c, "t")
	const rounds = 300
	for range rounds {
		for errors.Is(add(c, "t", p, txnstate.TV0, all...), txnstate.ErrConcurrentTransactions) {
			time.Sleep(time.Microsecond) // as a client does
		}
		_, err := c.End(bg, "t", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
	}
	d.wg.Wait()
	for errors.Is(add(c, "t", p, txnstate.TV0, all...), txnstate.ErrConcurrentTransactions) {
		time.Sleep(time.Microsecond)
	}
	mu.Lock()
	defer mu.Unlock()
	want := []txnstate.State{txnstate.Empty}
	for range rounds {
		want = append(want, txnstate.Ongoing, txnstate.PrepareCommit, txnstate.CompleteCommit)
	}
	require.Equal(t, append(want, txnstate.Ongoing), stored)
}

// slow applies an outcome a millisecond later, unless it was cancelled.
type slow struct {
	mu     sync.Mutex
	upTo   [txnstate.Slots]int32
	timers sync.WaitGroup
}

func (d *slow) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	d.timers.Go(func() {
		time.Sleep(time.Millisecond)
		d.mu.Lock()
		gone := o.CoordinatorEpoch <= d.upTo[txnstate.Slot(o.TxnID)]
		d.mu.Unlock()
		if !gone {
			applied(o.Participants)
		}
	})
}

func (d *slow) Cancel(slot int, epoch int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.upTo[slot] = max(d.upTo[slot], epoch)
}

// F15: producers, timeouts, ownerships that come and go, and an end in the middle.
// Every call is answered with a code that its client knows what to do with, and
// nothing is left running: the bubble fails where a goroutine is.
func TestF15_EveryCallIsAnsweredWhateverHappensAroundIt(t *testing.T) {
	t.Run("closed while it owns", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { stress(t, 21, 1025*time.Millisecond) }) })
	t.Run("closed long after the slots were lost", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { stress(t, 20, 10*time.Second) }) })
}

// stress moves the slots at epochs up to last, every 50 ms, and ends the
// coordinator at a time.
func stress(t *testing.T, last int32, end time.Duration) {
	r := reaper.New(reaper.Config{Every: 5 * time.Millisecond})
	n := notices{acquired: make(chan func(yes, no func(int, int32)))}
	d := &slow{}
	c, err := txnstate.New(txnstate.Config{Store: newScriptStore(), ProducerIDs: &counter{}, Dispatcher: d,
		Deadlines: r, Ownership: n, EndWait: txnstate.AnswerWhenApplied, Now: time.Now})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, c.Run(ctx)) })
	wg.Go(func() { require.NoError(t, r.Run(ctx, c)) })
	wg.Go(func() { // the host moves slots about
		for epoch := int32(1); epoch <= last; epoch++ {
			select {
			case n.acquired <- func(yes, no func(int, int32)) {
				for i := range txnstate.Slots {
					if epoch%2 == 1 {
						yes(i, epoch)
					} else {
						no(i, epoch-1)
					}
				}
			}:
			case <-ctx.Done():
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	var codes sync.Map
	began := time.Now()
	ok := map[txnstate.Code]bool{0: true, 14: true, 15: true, 16: true, 47: true, 48: true, 51: true, 90: true}
	for i := range 64 {
		wg.Go(func() {
			id := fmt.Sprint(i)
			// Beyond the end, so that it is met by calls however fast they are
			// refused before; seldom, once there is nothing but that to meet.
			for k := 0; k < 1000 || time.Since(began) < end+time.Second; k++ {
				if k >= 1000 {
					time.Sleep(100 * time.Millisecond)
				}
				begin := time.Now()
				answered := func(err error) {
					codes.Store(txnstate.CodeOf(err), true)
					if d := time.Since(begin); d > 5*time.Second {
						t.Errorf("an answer after %s: %v", d, err)
					}
				}
				p, err := c.Init(bg, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
				answered(err)
				if err == nil {
					answered(add(c, id, p, txnstate.TV2, tp0))
					time.Sleep(time.Duration(i%4) * time.Millisecond)
					_, err = c.End(bg, id, txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
					answered(err)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	time.Sleep(end)
	cancel()
	wg.Wait()
	d.timers.Wait()
	codes.Range(func(code, _ any) bool {
		require.True(t, ok[code.(txnstate.Code)], "%s", code)
		return true
	})
	for _, must := range []txnstate.Code{0, 15, 16} {
		_, seen := codes.Load(must)
		require.True(t, seen, "%s was never answered: the test is hollow", must)
	}
}

// F24, KAFKA-7519, KAFKA-13099: expiry that can't be stored leaves its ids as they
// were, and any number that is due at once goes, one write each.
func TestF24_ExpiryThatFailsBlocksNobodyAndAnyNumberGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrittle()
		now := t0
		r := reaper.New(reaper.Config{})
		c := start(t, txnstate.Config{Store: s, Deadlines: r, ExpireAfter: time.Hour, EndWait: txnstate.AnswerWhenApplied, Now: func() time.Time { return now }})
		p := initID(t, c, "t")
		open := initID(t, c, "open")
		require.NoError(t, c.Add(bg, "open", txnstate.Add{Producer: open, Participants: []txnstate.Participant{tp0}}))
		for i := range 2000 {
			initID(t, c, fmt.Sprint(i))
		}
		s.refuse.Store(true)
		now = now.Add(2 * time.Hour)
		require.Equal(t, 2002, r.Reap(bg, c, now))
		synctest.Wait()
		require.Len(t, s.recs, 2002)
		s.heal()
		require.NoError(t, add(c, "t", p, txnstate.TV0, tp0), "neither 51 nor 49")
		_, err := c.End(bg, "t", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
		synctest.Wait()
		r.Reap(bg, c, now.Add(time.Millisecond))
		synctest.Wait()
		require.Len(t, s.recs, 2, "the one in use, and the one that was open and is aborted")
		now = now.Add(2 * time.Hour)
		r.Reap(bg, c, now)
		require.Empty(t, s.recs)
		require.ErrorIs(t, add(c, "t", p, txnstate.TV0, tp0), txnstate.ErrInvalidPIDMapping)
		again := initID(t, c, "t")
		require.NotEqual(t, p.ID, again.ID)
		require.Zero(t, again.Epoch)
	})
}

// F25: only the owner of a slot times its transactions out, by the time that is
// stored, once; what can't be done at a look is done at the next, and keeps
// nobody else from being looked at.
func TestF25_TheOwnerReapsAtTheStoredTimeOnceAndAgainWhereItFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrittle()
		other := ongoing("b", txnstate.Producer{ID: 8}, tp0)
		s.put(ongoing("t", txnstate.Producer{ID: 7}, tp0)) // since t0, for a minute
		s.put(other)
		aborts := 0
		refuse := s.onSwap
		s.onSwap = func(rec txnstate.Record, d txnstate.Durability) (before, after error) {
			if rec.State == txnstate.PrepareAbort && rec.TxnID == "t" {
				aborts++
			}
			if rec.TxnID == "b" {
				return nil, nil
			}
			return refuse(rec, d)
		}
		mk := func() (*seat, *reaper.Reaper) {
			n := notices{acquired: make(chan func(yes, no func(int, int32)))}
			r, h := reaper.New(reaper.Config{}), &held{auto: true}
			c := start(t, txnstate.Config{Store: s, Dispatcher: h, Deadlines: r, Ownership: n})
			return &seat{c, h, nil, func(f func(yes, no func(int, int32))) { n.acquired <- f; synctest.Wait() }}, r
		}
		a, ra := mk()
		b, rb := mk()
		due := t0.Add(time.Minute)
		late := due.Add(30 * time.Second) // this is when the owner starts
		require.Zero(t, ra.Reap(bg, a, late), "nothing is loaded, and nothing lost")
		for _, id := range []string{"t", "b"} {
			a.own(id, 1)
		}
		require.Zero(t, rb.Reap(bg, b, late), "not the owner")
		require.Zero(t, ra.Reap(bg, a, due), "at its timeout it is not over it")
		s.refuse.Store(true)
		for i := range 5 {
			ra.Reap(bg, a, late.Add(time.Duration(i)*time.Second))
			synctest.Wait()
			require.Equal(t, txnstate.CompleteAbort, s.get("b").State, "in the same look")
			require.LessOrEqual(t, aborts, 3*(i+1))
		}
		s.heal()
		aborts = 0
		ra.Reap(bg, a, late.Add(time.Minute))
		rb.Reap(bg, b, late.Add(time.Minute))
		synctest.Wait()
		require.Equal(t, txnstate.CompleteAbort, s.get("t").State)
		require.Equal(t, txnstate.Producer{ID: 7, Epoch: 1}, s.get("t").Producer, "bumped once, however often it was tried")
		require.Equal(t, 1, aborts)
		require.Len(t, a.outcomes(), 2)
		require.Empty(t, b.outcomes())
	})
}

// F36: ids that have come and gone leave nothing behind, in no index.
func TestF36_IDsThatHaveExpiredLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		now := t0
		r := reaper.New(reaper.Config{})
		c := start(t, txnstate.Config{Store: s, Deadlines: r, ExpireAfter: time.Hour, EndWait: txnstate.AnswerWhenApplied,
			Limits: txnstate.Limits{TransactionalIDs: 500}, Now: func() time.Time { return now }})
		for round := range 3 {
			for i := range 500 {
				id := fmt.Sprint(round, "-", i)
				p := initID(t, c, id) // also at the limit: those before have made room
				require.NoError(t, add(c, id, p, txnstate.TV2, tp0))
				_, err := c.End(bg, id, txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
				require.NoError(t, err)
			}
			_, err := initAgain(c, "one more")
			require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable)
			require.Equal(t, 500, r.Len())
			synctest.Wait()
			now = now.Add(2 * time.Hour)
			r.Reap(bg, c, now)
			require.Empty(t, s.recs)
			require.Zero(t, r.Len())
		}
		for range 1000 {
			initID(t, c, "one id") // with a thousand identities
		}
		require.Equal(t, 1, r.Len())
	})
}

// F37: between the decision and the next transaction there is work, and no
// waiting: the clock of the bubble does not move. A small transaction is three
// writes. While markers can't be delivered, asking again costs nothing.
func TestF37_BackToBackTransactionsWaitForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		writes := 0
		s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) { writes++; return nil, nil }
		var down atomic.Bool
		d, err := markers.NewDispatcher(markers.Config{
			Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) { return 0, markers.Known }),
			Sink: sinkFunc(func(ds []markers.Delivery) []markers.Result {
				rs := make([]markers.Result, len(ds))
				for i := range rs {
					if !down.Load() {
						rs[i] = markers.Applied
					}
				}
				return rs
			}),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		go func() { _ = d.Run(ctx) }()
		c := start(t, txnstate.Config{Store: s, Dispatcher: d, EndWait: txnstate.AnswerAtDecision})
		p := initID(t, c, "t")
		begin := time.Now()
		writes = 0
		for range 100 {
			require.NoError(t, add(c, "t", p, txnstate.TV2, tp0))
			p, err = c.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Zero(t, time.Since(begin))
		require.Equal(t, 300, writes)

		down.Store(true)
		require.NoError(t, add(c, "t", p, txnstate.TV2, tp0))
		p, err = c.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		writes = 0
		for range 10_000 {
			require.ErrorIs(t, add(c, "t", p, txnstate.TV2, tp0), txnstate.ErrConcurrentTransactions)
		}
		require.Zero(t, writes)
		require.Equal(t, 1, d.Pending())
		down.Store(false)
		time.Sleep(3 * time.Second) // more than the longest pause between attempts
		synctest.Wait()
		require.NoError(t, add(c, "t", p, txnstate.TV2, tp0), "the next attempt succeeds")
	})
}

type sinkFunc func(ds []markers.Delivery) []markers.Result

func (f sinkFunc) WriteMarkers(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	return f(ds)
}

// I6, I10: two brokers believe that they own an id, and bump its epoch for two
// clients at the same millisecond. The store can't tell the one whether it wrote,
// and the record it finds says exactly what it wanted: it is the other's.
func TestAnIdentityIsNotGivenTwiceWhereTheStoreCantSay_I6_I10(t *testing.T) {
	s := newScriptStore()
	a := start(t, txnstate.Config{Store: s})
	b := start(t, txnstate.Config{Store: s})
	p := initID(t, a, "t")
	var theirs txnstate.Producer
	s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
		s.onSwap = nil
		theirs = initID(t, b, "t")
		return errors.New("timed out"), nil
	}
	ours := initID(t, a, "t")
	require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 1}, theirs)
	require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 2}, ours)

	// A holder that shows what it has is the same one at both.
	s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
		s.onSwap = nil
		return nil, errors.New("timed out")
	}
	next, err := a.Init(bg, "t", txnstate.Init{Expected: ours, TimeoutMs: 60_000})
	require.NoError(t, err)
	require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 3}, next, "bumped once")
}

// F02, F14: the slot is lost just before a decision is handed over for delivery:
// the cancellation came too early, and comes again.
func TestF02_F14_WhatIsDispatchedTooLateIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSeat(t, newScriptStore())
		a.own("t", 5)
		p := initID(t, a.Coordinator, "t")
		require.NoError(t, add(a.Coordinator, "t", p, txnstate.TV2, tp0))
		slot5 := fmt.Sprintf("%d@5", txnstate.Slot("t"))
		before := 0
		a.held.at = func(txnstate.Outcome) {
			a.lose("t", 5)
			before = len(a.cancelled)
		}
		_, err := a.End(bg, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err, "it was decided while the slot was owned")
		require.Equal(t, []string{slot5}, a.cancelled[before:])
	})
}

// moody is a store whose slots read differently each time.
type moody struct {
	*scriptStore
	reads func(n int, yield func(txnstate.Record, error) bool)
	n     atomic.Int32
}

func (m *moody) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	if slot != txnstate.Slot("t") {
		return m.scriptStore.Slot(ctx, slot)
	}
	return func(yield func(txnstate.Record, error) bool) { m.reads(int(m.n.Add(1)), yield) }
}

// F02, I12: a load saw a decision, failed, and the next one could not read it. When
// it can be read again it is carried out.
func TestF02_ADecisionThatOnlyAFailedLoadHasSeenIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := prepared("t", txnstate.Producer{ID: 7}, tp0)
		s := &moody{scriptStore: newScriptStore(rec)}
		s.reads = func(n int, yield func(txnstate.Record, error) bool) {
			if n == 1 {
				_ = yield(s.get("t"), nil) && yield(txnstate.Record{}, errors.New("volume is away"))
				return
			}
			yield(txnstate.Record{TxnID: "t"}, txnstate.ErrDamaged)
		}
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h})
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, h.outcomes())
		require.ErrorIs(t, add(c, "t", rec.Producer, txnstate.TV0, tp0), txnstate.ErrConcurrentTransactions)
		require.Len(t, h.outcomes(), 1)
		require.ErrorIs(t, add(c, "t", rec.Producer, txnstate.TV0, tp0), txnstate.ErrConcurrentTransactions)
		require.Len(t, h.outcomes(), 1, "once")
	})
}
