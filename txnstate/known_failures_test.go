package txnstate_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

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
