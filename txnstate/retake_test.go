package txnstate_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// asked is an ownership that can be asked.
type asked struct {
	notices
	still *atomic.Bool
}

func newAsked() asked {
	a := asked{notices{acquired: make(chan func(yes, no func(int, int32)))}, new(atomic.Bool)}
	a.still.Store(true)
	return a
}

// or is a where it is to be asked, and otherwise what can't be.
func (a asked) or(asks bool) txnstate.Ownership {
	if asks {
		return a
	}
	return a.notices
}

func (a asked) Still(context.Context, int, int32) (bool, error) { return a.still.Load(), nil }

// heldCompletion is a store whose completions wait.
type heldCompletion struct {
	txnstate.Store
	gate chan struct{}
}

func (h heldCompletion) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if next.State == txnstate.CompleteCommit {
		<-h.gate
	}
	return h.Store.Swap(ctx, next, d)
}

// A completion that a former owner had under way when the slot was lost does not end
// the transaction under the next owner's hands: it has markers on their way. The owner
// after it would know nothing of them, and begin the next transaction.
func TestWhoTakesADecisionOverCompletesIt_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScriptStore(prepared("a", txnstate.Producer{ID: 7}, tp0))
		slot := txnstate.Slot("a")
		former, next := newAsked(), newAsked()
		held1, held2 := &held{}, &held{}
		gate := make(chan struct{})
		start(t, txnstate.Config{Store: heldCompletion{s, gate}, Dispatcher: held1, Ownership: former})
		start(t, txnstate.Config{Store: s, Dispatcher: held2, Ownership: next})

		former.acquired <- func(yes, _ func(int, int32)) { yes(slot, 3) }
		synctest.Wait()
		held1.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait() // it has asked whether the slot is still its own, and writes

		former.still.Store(false)
		next.acquired <- func(yes, _ func(int, int32)) { yes(slot, 4) }
		synctest.Wait()
		require.Len(t, held2.outcomes(), 1)
		close(gate)
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)

		held2.outcomes()[0].applied([]txnstate.Participant{tp0})
		synctest.Wait()
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}
