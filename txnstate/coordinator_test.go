package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

var (
	tp0 = txnstate.Partition("t", 0)
	tp1 = txnstate.Partition("t", 1)
)

func TestACommitIsAnsweredAtItsDecisionAndTheNextTransactionWaitsForTheLastParticipant_I3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &held{}
		c := start(t, txnstate.Config{Store: newScriptStore(), Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0, tp1))
		next, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 1}, next)

		require.ErrorIs(t, add(c, "a", next, txnstate.TV2, tp0), txnstate.ErrConcurrentTransactions)
		o := h.outcomes()[0]
		require.Equal(t, next, o.Producer, "under TV2 the marker carries the bumped epoch")
		o.applied([]txnstate.Participant{tp0})
		o.applied([]txnstate.Participant{tp0}) // confirmed twice
		synctest.Wait()
		rec, err := c.Describe(bg, "a")
		require.NoError(t, err)
		require.Equal(t, []txnstate.Participant{tp1}, rec.Participants, "Describe shows who has not confirmed")
		require.ErrorIs(t, add(c, "a", next, txnstate.TV2, tp0), txnstate.ErrConcurrentTransactions)

		o.applied([]txnstate.Participant{tp1})
		synctest.Wait()
		require.NoError(t, add(c, "a", next, txnstate.TV2, tp0))
	})
}

func TestNoMarkerLeavesBeforeTheDecisionIsStored_I1(t *testing.T) {
	s := newScriptStore()
	h := &held{auto: true}
	var seen []txnstate.State
	h.at = func(o txnstate.Outcome) { seen = append(seen, s.get(o.TxnID).State) }
	c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerWhenApplied})
	p := initID(t, c, "a")
	for _, commit := range []bool{true, false} {
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: commit})
		require.NoError(t, err)
	}
	require.Equal(t, []txnstate.State{txnstate.PrepareCommit, txnstate.PrepareAbort}, seen)
}

func TestEndWaitsForTheParticipantsAsLongAsConfigured(t *testing.T) {
	for _, tc := range []struct {
		wait time.Duration
		want time.Duration
	}{{txnstate.AnswerAtDecision, 0}, {0, time.Second}, {3 * time.Second, 3 * time.Second}, {txnstate.AnswerWhenApplied, time.Minute}} {
		t.Run(fmt.Sprint(tc.wait), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &held{}
				c := start(t, txnstate.Config{Store: newScriptStore(), Dispatcher: h, EndWait: tc.wait})
				p := initID(t, c, "a")
				require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
				begin := time.Now()
				time.AfterFunc(time.Minute, func() { h.outcomes()[0].applied([]txnstate.Participant{tp0}) })
				_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
				require.NoError(t, err)
				require.Equal(t, tc.want, time.Since(begin))
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// A caller whose time is up while the participants are being told gets the answer
// all the same: the transaction is decided, and under TV2 the identity to go on with
// is known.
func TestTheEndOfACallersTimeDoesNotTakeItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &held{}
		c := start(t, txnstate.Config{Store: newScriptStore(), Dispatcher: h, EndWait: txnstate.AnswerWhenApplied})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		got, err := c.End(ctx, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: p.Epoch + 1}, got)
		h.outcomes()[0].applied([]txnstate.Participant{tp0})
	})
}

// The store says "perhaps" in each of the ways it can, at each write of a
// transaction. Whatever it did, the caller is never told a success that is not
// stored, and the id gets on (I11, F01).
func TestAStoreThatCantSayIsAskedAgain_I11_F01(t *testing.T) {
	unsure := fmt.Errorf("%w: cable pulled", txnstate.ErrUncertain)
	for _, wrote := range []bool{true, false} {
		for _, state := range txnstate.States()[:4] {
			t.Run(fmt.Sprintf("%s wrote=%v", state, wrote), func(t *testing.T) {
				s := newScriptStore()
				var fired atomic.Bool
				s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
					if rec.State != state || fired.Swap(true) {
						return nil, nil
					}
					if wrote {
						return nil, unsure
					}
					return unsure, nil
				}
				var told []bool
				c := start(t, txnstate.Config{Store: s, EndWait: txnstate.AnswerWhenApplied,
					Observer: txnstate.Observer{Uncertain: func(_ string, written bool, _ error) { told = append(told, written) }}})
				p := initID(t, c, "a")
				require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
				commit := state != txnstate.PrepareAbort
				next, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: commit, Client: txnstate.TV2})
				require.NoError(t, err)
				require.Equal(t, int16(1), next.Epoch, "the epoch moved once, however often the write was tried")
				require.NoError(t, add(c, "a", next, txnstate.TV2, tp0))
				require.Equal(t, []bool{wrote}, told)
			})
		}
	}
}

func TestADecisionThatWasStoredWithoutAnybodyKnowingIsCarriedOutByTheNextRequest_I11_I12(t *testing.T) {
	s := newScriptStore()
	var blind atomic.Bool
	s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
		if rec.State == txnstate.PrepareCommit {
			blind.Store(true)
			return nil, errors.New("connection reset")
		}
		return nil, nil
	}
	s.onLoad = func(string) error {
		if blind.Load() {
			return errors.New("no connection")
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		h := &held{auto: true}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		end := txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2}
		_, err := c.End(bg, "a", end)
		require.Equal(t, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeOf(err), "%v", err)
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)
		blind.Store(false)
		_, err = c.End(bg, "a", end)
		require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		synctest.Wait()
		next, err := c.End(bg, "a", end)
		require.NoError(t, err, "the retry of the commit finds it done")
		require.Len(t, h.outcomes(), 1)
		require.True(t, h.outcomes()[0].Again, "whether anybody has begun to deliver it nobody knows")
		require.Equal(t, int16(1), next.Epoch)
	})
}

func TestACompletionThatCantBeStoredIsTriedUntilItIs_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		fails := 5
		s.onSwap = func(rec txnstate.Record, d txnstate.Durability) (before, after error) {
			if rec.State == txnstate.CompleteCommit {
				require.Equal(t, txnstate.Later, d, "a completion is not waited for")
				if fails--; fails >= 0 {
					return errors.New("disk full"), nil
				}
			}
			return nil, nil
		}
		stuck := 0
		c := start(t, txnstate.Config{Store: s, EndWait: txnstate.AnswerWhenApplied,
			Observer: txnstate.Observer{Stuck: func(txnstate.Outcome, error) { stuck++ }}})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
		require.NoError(t, err)
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
		require.Positive(t, stuck)
	})
}

func TestTwoOwnersOfOneIdNeverBothDecide_I5_I10(t *testing.T) {
	s := newScriptStore()
	a := start(t, txnstate.Config{Store: s, EndWait: txnstate.AnswerWhenApplied})
	b := start(t, txnstate.Config{Store: s, EndWait: txnstate.AnswerWhenApplied})
	p := initID(t, a, "a")
	require.NoError(t, add(b, "a", p, txnstate.TV2, tp0))
	// Between a's load and a's swap, b decides the opposite.
	var once sync.Once
	s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
		if rec.State == txnstate.PrepareCommit {
			once.Do(func() {
				_, err := b.End(bg, "a", txnstate.End{Producer: p, Commit: false, Client: txnstate.TV2})
				require.NoError(t, err)
			})
		}
		return nil, nil
	}
	_, err := a.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
	require.ErrorIs(t, err, txnstate.ErrInvalidTxnState, "the commit finds that the transaction was aborted")
	require.Equal(t, txnstate.CompleteAbort, s.get("a").State)
}

func TestEndlessConflictsAreAnErrorThatClientsRetry_I10(t *testing.T) {
	s := newScriptStore()
	c := start(t, txnstate.Config{Store: s})
	p := initID(t, c, "a")
	s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) { return txnstate.ErrConflict, nil }
	require.ErrorIs(t, add(c, "a", p, txnstate.TV0, tp0), txnstate.ErrCoordinatorNotAvailable)
	require.Equal(t, txnstate.Empty, s.get("a").State)
}

func TestACallerWhoLeavesDoesNotTakeTheDecisionAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		gate := make(chan struct{})
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
			if rec.State == txnstate.PrepareCommit {
				<-gate
			}
			return nil, nil
		}
		c := start(t, txnstate.Config{Store: s})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, err := c.End(ctx, "a", txnstate.End{Producer: p, Commit: true})
		require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(gate)
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State, "decided, delivered and completed without the caller")
	})
}

func TestUnrelatedIdsDoNotWaitForOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		gate := make(chan struct{})
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
			if rec.TxnID == "slow" {
				<-gate
			}
			return nil, nil
		}
		c := start(t, txnstate.Config{Store: s})
		go func() { _, _ = c.Init(bg, "slow", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1}) }()
		synctest.Wait()
		for i := range 200 { // some of them share a slot, and every shard of the locks
			initID(t, c, fmt.Sprint(i))
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		require.ErrorIs(t, c.Add(ctx, "slow", txnstate.Add{}), txnstate.ErrCoordinatorNotAvailable, "its own requests wait their turn, as long as their context lets them")
		close(gate)
	})
}

func TestHooksMayCallBack_F15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails where a call waits for the hook that makes it
		var c *txnstate.Coordinator
		var calls, depth atomic.Int32
		back := func(id string) {
			defer depth.Add(-1)
			if depth.Add(1) > 3 || c == nil {
				return
			}
			calls.Add(1)
			_, _ = c.Describe(bg, id)
			_, _ = c.Verify(bg, id, txnstate.Verify{})
			require.NoError(t, c.Expire(bg, id, t0), "it takes the turn of the id, and finds nothing to do")
		}
		h := &held{auto: true, at: func(o txnstate.Outcome) { back(o.TxnID) }}
		c = start(t, txnstate.Config{Store: newScriptStore(), Dispatcher: h, EndWait: txnstate.AnswerWhenApplied,
			ProducerIDs: idsFunc(func(context.Context) (int64, error) { back("a"); return 100, nil }),
			Fencer:      fenceFunc(func(context.Context, txnstate.Producer) error { back("a"); return errors.New("leader is down") }),
			Observer: txnstate.Observer{
				Transition: func(_ txnstate.State, r txnstate.Record) { back(r.TxnID) },
				Refused:    func(id, _ string, _ error) { back(id) },
			}})
		initID(t, c, "a")
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.NoError(t, err)
		require.Positive(t, calls.Load())
	})
}

type idsFunc func(context.Context) (int64, error)

func (f idsFunc) Next(ctx context.Context) (int64, error) { return f(ctx) }

type fenceFunc func(context.Context, txnstate.Producer) error

func (f fenceFunc) Fence(ctx context.Context, p txnstate.Producer) error { return f(ctx, p) }

func TestWithoutAProducerIdThereIsAnErrorAndNothingChanges_F27(t *testing.T) {
	ids := &counter{n: 99}
	s := newScriptStore()
	c := start(t, txnstate.Config{Store: s, ProducerIDs: ids})
	ids.err = errors.New("no block")
	_, err := c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
	require.ErrorIs(t, err, txnstate.ErrCoordinatorLoading)
	_, err = c.InitIdempotent(bg, txnstate.NoProducer)
	require.ErrorIs(t, err, txnstate.ErrCoordinatorLoading)
	require.Empty(t, s.recs)
	ids.err, ids.n = nil, -10
	_, err = c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
	require.ErrorIs(t, err, txnstate.ErrCoordinatorLoading, "a negative producer id is not one")
	_, err = c.InitIdempotent(bg, txnstate.NoProducer)
	require.ErrorIs(t, err, txnstate.ErrCoordinatorLoading, "I6: nor for a producer without a transactional id")
}

func TestBeforeAndAfterRunTheCoordinatorIsNotAvailable(t *testing.T) {
	c, err := txnstate.New(txnstate.Config{Store: newScriptStore(), ProducerIDs: &counter{}, Dispatcher: &held{}})
	require.NoError(t, err)
	ask := func() {
		t.Helper()
		_, err := c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
		require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable)
		require.ErrorIs(t, add(c, "a", txnstate.Producer{}, 0), txnstate.ErrCoordinatorNotAvailable)
		_, err = c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer})
		require.ErrorIs(t, err, txnstate.ErrInvalidTxnTimeout, "a timeout out of bounds is told before the lookup")
	}
	ask()
	run(t, c)()
	ask()
	require.Error(t, c.Run(bg), "a second Run")
}

func TestRunCarriesOutWhatWasDecidedBeforeTheCrash_I5_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		abort := prepared("abort", txnstate.Producer{ID: 8, Epoch: 1}, tp1)
		abort.State = txnstate.PrepareAbort
		s := newScriptStore(prepared("commit", txnstate.Producer{ID: 7}, tp0, tp1), abort, ongoing("open", txnstate.Producer{ID: 9}, tp0))
		h := &held{}
		d := &deadlines{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Deadlines: d, CoordinatorEpoch: 3})
		require.Len(t, h.outcomes(), 2)
		for _, o := range h.outcomes() {
			require.Equal(t, o.TxnID == "commit", o.Commit)
			require.Equal(t, int32(3), o.CoordinatorEpoch)
			require.ErrorIs(t, add(c, o.TxnID, o.Producer, 0), txnstate.ErrConcurrentTransactions)
			o.applied(o.Participants)
		}
		synctest.Wait()
		require.Len(t, h.outcomes(), 2, "a request that meets the completion does not begin another")
		require.Equal(t, txnstate.CompleteCommit, s.get("commit").State)
		require.Equal(t, txnstate.CompleteAbort, s.get("abort").State)
		require.Equal(t, txnstate.Ongoing, s.get("open").State)
		require.Equal(t, fmt.Sprintf("%d open=true", t0.UnixMilli()+60_000), d.of("open"))
	})
}

func TestALoadThatFailsHalfWayIsNotUsedAndTriedAgain_F02(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := prepared("a", txnstate.Producer{ID: 7}, tp0)
		s := newScriptStore(a)
		var down atomic.Bool
		down.Store(true)
		s.onSlot = func(slot int) error {
			if slot == txnstate.Slot("a") && down.Load() {
				return errors.New("volume is away")
			}
			return nil
		}
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h})
		require.ErrorIs(t, add(c, "a", a.Producer, 0), txnstate.ErrCoordinatorNotAvailable)
		require.Empty(t, h.outcomes())
		initID(t, c, "b") // another slot serves
		for _, err := range c.List(bg) {
			require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, h.outcomes(), 1)
		require.ErrorIs(t, add(c, "a", a.Producer, 0), txnstate.ErrConcurrentTransactions)
	})
}

func TestABrokenRecordStopsItsOwnIdOnly(t *testing.T) {
	broken := ongoing("broken", txnstate.Producer{ID: 7})
	broken.StartMs = -1
	s := newScriptStore(broken)
	c := start(t, txnstate.Config{Store: s})
	_, err := c.Init(bg, "broken", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
	require.Equal(t, txnstate.CodeUnknownServerError, txnstate.CodeOf(err))
	require.ErrorContains(t, err, "start time")
	initID(t, c, "fine")
	s.onLoad = func(id string) error {
		if id == "fine" {
			return fmt.Errorf("%w: slot file", txnstate.ErrDamaged)
		}
		return nil
	}
	_, err = c.Describe(bg, "fine")
	require.Equal(t, txnstate.CodeUnknownServerError, txnstate.CodeOf(err))
}

// Under protocol 1 the next transaction has the same producer and epoch: a
// confirmation of the one before, repeated late, must not complete it (I2, F06).
func TestALateConfirmationOfTheTransactionBeforeCompletesNothing_I2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerAtDecision})
		p := initID(t, c, "a")
		for range 2 {
			require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
			_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
			require.NoError(t, err)
			h.outcomes()[0].applied([]txnstate.Participant{tp0})
			synctest.Wait()
		}
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State, "the second one is not applied")
		require.Len(t, h.outcomes(), 2)
		rec, err := txnstate.Step(s.get("a"), txnstate.Applied{Producer: p, TxnSeq: 1, Participants: []txnstate.Participant{tp0}}, t0)
		require.NoError(t, err)
		require.Equal(t, txnstate.WriteNone, rec.Write)
	})
}

func TestAnInitThatMeetsAnOpenTransactionAbortsItAndSendsTheCallerRound_F18_F39(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore()
		h := &held{}
		var fenced []txnstate.Producer
		c := start(t, txnstate.Config{Store: s, Dispatcher: h,
			Fencer: fenceFunc(func(_ context.Context, p txnstate.Producer) error { fenced = append(fenced, p); return nil })})
		old := initID(t, c, "a")
		require.NoError(t, add(c, "a", old, txnstate.TV2, tp0))
		again := func() (txnstate.Producer, error) {
			return c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1000})
		}
		for range 3 {
			_, err := again()
			require.ErrorIs(t, err, txnstate.ErrConcurrentTransactions)
		}
		require.Len(t, h.outcomes(), 1)
		require.False(t, h.outcomes()[0].Commit)
		h.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		p, err := again()
		require.NoError(t, err)
		require.Equal(t, old.ID, p.ID)
		require.Equal(t, int16(2), p.Epoch, "one bump fences the holder before, one is the new identity")
		require.Equal(t, []txnstate.Producer{{ID: old.ID, Epoch: 1}, {ID: old.ID, Epoch: 2}}, fenced)
		require.ErrorIs(t, add(c, "a", old, txnstate.TV2, tp1), txnstate.ErrProducerFenced)
		require.ErrorIs(t, add(c, "a", p, txnstate.TV2, tp1), nil)
		require.Equal(t, []txnstate.Participant{tp1}, s.get("a").Participants, "nothing of the old transaction is inherited")
	})
}

func TestTimeoutsAndExpiryLookAgainAndKeepTheDeadlinesCurrent_F17_F24_F26(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := t0
		d := &deadlines{}
		s := newScriptStore()
		var timedOut, expired []string
		c := start(t, txnstate.Config{Store: s, Deadlines: d, ExpireAfter: time.Hour, Now: func() time.Time { return now },
			Observer: txnstate.Observer{
				TimedOut: func(r txnstate.Record) { timedOut = append(timedOut, r.TxnID) },
				Expired:  func(r txnstate.Record) { expired = append(expired, r.TxnID) },
			}})
		p := initID(t, c, "a")
		require.Equal(t, fmt.Sprintf("%d open=false", t0.Add(time.Hour).UnixMilli()), d.of("a"))
		now = now.Add(time.Minute)
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		due := now.Add(time.Minute)
		require.Equal(t, fmt.Sprintf("%d open=true", due.UnixMilli()), d.of("a"), "the clock starts with the first partition")
		now = now.Add(time.Second)
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp1))
		require.Equal(t, fmt.Sprintf("%d open=true", due.UnixMilli()), d.of("a"), "later ones do not extend it")

		require.NoError(t, c.TimeOut(bg, "a", due))
		require.NoError(t, c.Expire(bg, "a", due.Add(24*time.Hour)))
		require.Equal(t, txnstate.Ongoing, s.get("a").State, "at its timeout it is not over it, and an open one never expires")
		now = due.Add(time.Millisecond)
		require.NoError(t, c.TimeOut(bg, "a", now))
		synctest.Wait()
		require.Equal(t, txnstate.CompleteAbort, s.get("a").State)
		require.Equal(t, int16(1), s.get("a").Producer.Epoch)
		require.NoError(t, c.TimeOut(bg, "a", now.Add(time.Hour)))
		require.Equal(t, int16(1), s.get("a").Producer.Epoch, "once")
		require.Equal(t, []string{"a"}, timedOut)

		require.Equal(t, fmt.Sprintf("%d open=false", now.Add(time.Hour).UnixMilli()), d.of("a"))
		require.NoError(t, c.Expire(bg, "a", now.Add(time.Hour-time.Millisecond)))
		require.Empty(t, expired)
		require.NoError(t, c.Expire(bg, "a", now.Add(time.Hour)))
		require.Equal(t, []string{"a"}, expired)
		require.Equal(t, "-1 open=false", d.of("a"))
		_, err := c.Describe(bg, "a")
		require.ErrorIs(t, err, txnstate.ErrTxnIDNotFound)
		require.ErrorIs(t, add(c, "a", p, txnstate.TV2, tp1), txnstate.ErrInvalidPIDMapping)
	})
}

func TestATransactionThatAFormerOwnerOpenedLateGetsADeadline_I12(t *testing.T) {
	d := &deadlines{}
	s := newScriptStore()
	c := start(t, txnstate.Config{Store: s, Deadlines: d})
	p := initID(t, c, "a")
	late := ongoing("a", p, tp0) // written by another process, behind this one's back
	s.put(late)
	missing, err := c.Verify(bg, "a", txnstate.Verify{Producer: p, Participants: []txnstate.Participant{tp0}})
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Equal(t, fmt.Sprintf("%d open=true", late.StartMs+60_000), d.of("a"))
}

func TestLimitsRefuseAndChangeNothing_I13_F36(t *testing.T) {
	s := newScriptStore()
	c := start(t, txnstate.Config{Store: s, EndWait: txnstate.AnswerWhenApplied, ExpireAfter: time.Millisecond,
		Limits: txnstate.Limits{TransactionalIDs: 2, Participants: 2, MaxTimeout: time.Minute}})
	initID(t, c, "a")
	initID(t, c, "b")
	_, err := c.Init(bg, "c", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
	require.ErrorIs(t, err, txnstate.ErrCoordinatorNotAvailable, "retriable: there may be room later")
	p := initID(t, c, "a") // a known id is served at the limit
	require.NoError(t, add(c, "a", p, txnstate.TV0, tp0, tp1))
	require.NoError(t, add(c, "a", p, txnstate.TV0, tp1))
	require.ErrorIs(t, add(c, "a", p, txnstate.TV0, tp0, txnstate.Group("g")), txnstate.ErrPolicyViolation)
	require.Len(t, s.get("a").Participants, 2)
	_, err = c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
	require.NoError(t, err)
	for _, ms := range []int32{-1, 0, 60_001, txnstate.NoTimeout} {
		_, err = c.Init(bg, "a", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: ms})
		require.ErrorIs(t, err, txnstate.ErrInvalidTxnTimeout, "%d", ms)
	}
	require.NoError(t, c.Expire(bg, "b", t0.Add(time.Hour)))
	initID(t, c, "c")
}

func TestInitChecksItsRequestInKafkasOrder_F32(t *testing.T) {
	c := start(t, txnstate.Config{Store: newScriptStore()})
	half := txnstate.Producer{ID: 5, Epoch: -1}
	for _, tc := range []struct {
		id   string
		ev   txnstate.Init
		want txnstate.Code
	}{
		{"", txnstate.Init{Expected: half}, txnstate.CodeInvalidRequest},
		{"", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1}, txnstate.CodeInvalidRequest},
		{string(make([]byte, txnstate.MaxTxnIDBytes+1)), txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1}, txnstate.CodeInvalidRequest},
		{"a", txnstate.Init{Expected: txnstate.NoProducer, TwoPhase: true, KeepPrepared: true}, txnstate.CodeTxnIDAuthorization},
		{"a", txnstate.Init{Expected: txnstate.NoProducer, KeepPrepared: true}, txnstate.CodeUnsupportedVersion},
		{"a", txnstate.Init{Expected: txnstate.NoProducer}, txnstate.CodeInvalidTxnTimeout},
		{"a", txnstate.Init{Expected: half, TimeoutMs: 1}, txnstate.CodeInvalidRequest},
	} {
		_, err := c.Init(bg, tc.id, tc.ev)
		require.Equal(t, tc.want, txnstate.CodeOf(err), "%v", err)
	}
	_, err := c.InitIdempotent(bg, half)
	require.ErrorIs(t, err, txnstate.ErrInvalidRequest)
	_, err = c.End(bg, "", txnstate.End{})
	require.ErrorIs(t, err, txnstate.ErrInvalidRequest)
}

// notices is an Ownership that says what the test says.
type notices struct {
	acquired chan func(yes, no func(int, int32))
}

func (n notices) Watch(ctx context.Context, yes, no func(int, int32)) error {
	for {
		select {
		case f := <-n.acquired:
			f(yes, no)
		case <-ctx.Done():
			return nil
		}
	}
}

// deadlineFunc is told of deadlines in the id's turn.
type deadlineFunc func(id string)

func (f deadlineFunc) Set(id string, _ int64, _ bool) { f(id) }

// The slot is lost when a decision is stored and its completion not begun yet: what
// is dropped with the slot does not have that, and its caller must not wait for
// participants of whom nothing will be heard. (I12)
func TestACompletionThatBeginsAfterItsSlotWasLostIsLetGo_F15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		s := newScriptStore(ongoing("a", txnstate.Producer{ID: 7}, tp0))
		h := &held{}
		var lose func()
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: n, EndWait: txnstate.AnswerWhenApplied,
			Deadlines: deadlineFunc(func(string) {
				if s.get("a").State == txnstate.PrepareCommit {
					lose()
				}
			})})
		n.acquired <- func(yes, no func(int, int32)) {
			lose = sync.OnceFunc(func() { no(txnstate.Slot("a"), 3) })
			yes(txnstate.Slot("a"), 3)
		}
		synctest.Wait()
		answer := make(chan error, 1)
		go func() {
			_, err := c.End(bg, "a", txnstate.End{Producer: txnstate.Producer{ID: 7}, Commit: true})
			answer <- err
		}()
		synctest.Wait()
		require.Len(t, answer, 1, "the caller still waits")
		require.NoError(t, <-answer, "the decision is stored, and was while the slot was owned")
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)
		require.Contains(t, h.cancelled, fmt.Sprintf("%d@3", txnstate.Slot("a")))
	})
}

// slowLoad is a store whose first visit of a slot takes its time.
type slowLoad struct {
	*scriptStore
	on     chan struct{}
	visits int
}

func (s *slowLoad) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	s.visits++
	all := s.scriptStore.Slot(ctx, slot)
	if s.visits > 1 {
		return all
	}
	return func(yield func(txnstate.Record, error) bool) {
		<-s.on
		all(yield)
	}
}

// The slot is lost and ours again while the first load goes on. What that one finds
// is the new ownership's business: its completion goes on to the end. (I12)
func TestALoadOfAnOwnershipThatIsOverEndsNoCompletion_F02(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		slot := txnstate.Slot("a")
		s := &slowLoad{scriptStore: newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0)), on: make(chan struct{})}
		h := &held{}
		start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: n})
		for epoch := range int32(2) {
			n.acquired <- func(yes, _ func(int, int32)) { yes(slot, epoch) }
			synctest.Wait()
		}
		require.Len(t, h.outcomes(), 1)
		close(s.on)
		synctest.Wait()
		require.Len(t, h.outcomes(), 1)
		h.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}

func TestOwnershipNoticesMayBeLateRepeatedAndOutOfOrder_F02(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notices{acquired: make(chan func(yes, no func(int, int32)))}
		slot := txnstate.Slot("a")
		s := newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0))
		h := &held{}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, Ownership: n})
		tell := func(f func(yes, no func(int, int32))) {
			n.acquired <- f
			synctest.Wait()
		}
		code := func() txnstate.Code { return txnstate.CodeOf(add(c, "a", txnstate.Producer{ID: 7}, 0, tp0)) }
		require.Equal(t, txnstate.CodeNotCoordinator, code())

		gate := make(chan struct{})
		s.onSlot = func(int) error { <-gate; return nil }
		tell(func(yes, _ func(int, int32)) { yes(slot, 5); yes(slot, 5); yes(-1, 9); yes(txnstate.Slots, 9) })
		require.Equal(t, txnstate.CodeCoordinatorLoading, code())
		tell(func(_, no func(int, int32)) { no(slot, 4) }) // late: of the ownership before (KAFKA-18137)
		require.Equal(t, txnstate.CodeCoordinatorLoading, code())
		close(gate)
		synctest.Wait()
		require.Equal(t, txnstate.CodeConcurrentTransactions, code())
		require.Len(t, h.outcomes(), 1, "one delivery, however often the notice came")

		tell(func(_, no func(int, int32)) { no(slot, 5) })
		require.Equal(t, txnstate.CodeNotCoordinator, code())
		require.Contains(t, h.cancelled, fmt.Sprintf("%d@5", slot))
		tell(func(yes, _ func(int, int32)) { yes(slot, 5) }) // repeated late: lost is final at one epoch
		require.Equal(t, txnstate.CodeNotCoordinator, code())
		h.outcomes()[0].applied([]txnstate.Participant{tp0}) // of a delivery that was on its way
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State, "the slot is not ours to complete in")

		tell(func(yes, _ func(int, int32)) { yes(slot, 6) })
		require.Len(t, h.outcomes(), 2)
		require.Equal(t, int32(6), h.outcomes()[1].CoordinatorEpoch)
		h.outcomes()[1].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		require.Equal(t, txnstate.CodeNone, code())
	})
}

func TestAnOwnershipThatFailsEndsRun(t *testing.T) {
	c, err := txnstate.New(txnstate.Config{Store: newScriptStore(), ProducerIDs: &counter{}, Dispatcher: &held{}, Ownership: broken{}})
	require.NoError(t, err)
	require.ErrorContains(t, c.Run(bg), "lease store is gone")
}

type broken struct{}

func (broken) Watch(context.Context, func(int, int32), func(int, int32)) error {
	return errors.New("lease store is gone")
}

func TestConfigNamesEverythingThatIsMissing(t *testing.T) {
	_, err := txnstate.New(txnstate.Config{TransactionVersion: 3})
	for _, want := range []string{"Store", "ProducerIDs", "Dispatcher", "TransactionVersion"} {
		require.ErrorContains(t, err, want)
	}
}

func TestARunThatIsStoppedAtAnyMomentLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails where a goroutine is left
		for stopAfter := range 40 {
			s := newScriptStore()
			ctx, cancel := context.WithCancel(bg)
			n := 0
			s.onSwap = func(txnstate.Record, txnstate.Durability) (before, after error) {
				if n++; n > stopAfter {
					cancel()
				}
				return nil, nil
			}
			c, err := txnstate.New(txnstate.Config{Store: s, ProducerIDs: &counter{}, Dispatcher: &held{auto: true}, EndWait: txnstate.AnswerWhenApplied})
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			<-c.Ready()
			client, leave := context.WithTimeout(bg, time.Minute)
			for i := range 20 {
				id := fmt.Sprint(i)
				p, err := c.Init(client, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1})
				if err != nil {
					break
				}
				_ = c.Add(client, id, txnstate.Add{Producer: p, Participants: []txnstate.Participant{tp0}})
				_, _ = c.End(client, id, txnstate.End{Producer: p, Commit: true})
			}
			cancel()
			require.NoError(t, <-done)
			leave()
			for id, r := range s.recs {
				require.NoError(t, txnstate.Check(r), id)
			}
		}
	})
}
