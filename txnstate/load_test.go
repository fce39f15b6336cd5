package txnstate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Whoever loads a slot takes up everything that it owes: each decided transaction is
// delivered, and each identity that was given fences those before it.
func TestALoadTakesUpEverythingThatIsOwed_I12_F02(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string // of one slot
		for i := 0; len(ids) < 3; i++ {
			if id := fmt.Sprint("a", i); len(ids) == 0 || txnstate.Slot(id) == txnstate.Slot(ids[0]) {
				ids = append(ids, id)
			}
		}
		s := newScriptStore()
		c, err := txnstate.New(txnstate.Config{Store: s, Dispatcher: &held{}, ProducerIDs: &counter{n: 99}, EndWait: txnstate.AnswerAtDecision})
		require.NoError(t, err)
		stop := run(t, c)
		for _, id := range ids {
			p := initID(t, c, id)
			require.NoError(t, add(c, id, p, txnstate.TV2, tp0))
			_, err := c.End(bg, id, txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
			require.NoError(t, err)
		}
		stop()

		var mu sync.Mutex
		var fenced, want []txnstate.Producer
		for _, id := range ids {
			require.Equal(t, txnstate.PrepareCommit, s.get(id).State)
			want = append(want, s.get(id).Producer)
		}
		h := &held{auto: true}
		start(t, txnstate.Config{Store: s, Dispatcher: h, Fencer: fenceFunc(func(_ context.Context, p txnstate.Producer) error {
			mu.Lock()
			defer mu.Unlock()
			fenced = append(fenced, p)
			return nil
		})})
		synctest.Wait()
		var told []string
		for _, o := range h.outcomes() {
			told = append(told, o.TxnID)
			require.True(t, o.Again)
		}
		slices.Sort(told)
		slices.Sort(ids)
		require.Equal(t, ids, told)
		for _, id := range ids {
			require.Equal(t, txnstate.CompleteCommit, s.get(id).State)
		}
		mu.Lock()
		defer mu.Unlock()
		require.ElementsMatch(t, want, fenced)
	})
}

// A decision whose store could not say that it has it, and whose client never comes
// again: the reaper, which still has the transaction's deadline, finds it and has it
// carried out, although there is nothing for it to abort.
func TestTheReaperFindsADecisionThatNobodyKnowsOf_I11_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newScriptStore(), &held{auto: true}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h})
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		var blind atomic.Bool
		s.onLoad = func(string) error {
			if blind.Load() {
				return errors.New("no connection")
			}
			return nil
		}
		s.onSwap = func(rec txnstate.Record, _ txnstate.Durability) (before, after error) {
			if rec.State == txnstate.PrepareCommit {
				blind.Store(true)
				return nil, errors.New("connection reset")
			}
			return nil, nil
		}
		_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		require.Error(t, err)
		require.Empty(t, h.outcomes())
		blind.Store(false)
		require.NoError(t, c.TimeOut(bg, "a", t0.Add(time.Hour)))
		synctest.Wait()
		require.Len(t, h.outcomes(), 1)
		require.True(t, h.outcomes()[0].Commit)
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
	})
}
