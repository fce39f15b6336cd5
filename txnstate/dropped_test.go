package txnstate_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// sharedSlots opens handles of one slotfile store, as several brokers have them.
func sharedSlots(t *testing.T) (handle func() txnstate.Store) {
	disk := fsx.Mem()
	return func() txnstate.Store {
		s, err := slotfile.Open(slotfile.Config{Dir: "shared", FS: disk})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
}

// A former owner hears of its ownership when it is over, finds a transaction decided
// whose completion the present owner keeps in memory, and writes it anew: the
// completion is dropped. The present owner looks again, also where nobody asks for
// the id any more (I12). A former owner that can ask writes nothing.
func TestACompletionThatAFormerOwnerUndoesIsMadeAgain_I12(t *testing.T) {
	for _, asks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			handle := sharedSlots(t)
			slot := txnstate.Slot("a")
			own, late := make(chan func(yes, no func(int, int32))), newAsked()
			held1 := &held{}
			start(t, txnstate.Config{Store: handle(), Dispatcher: held1, Ownership: late.or(asks)})
			c := start(t, txnstate.Config{Store: handle(), Ownership: notices{acquired: own}, FlushEvery: time.Minute})
			own <- func(yes, _ func(int, int32)) { yes(slot, 10) }
			synctest.Wait()
			p := initID(t, c, "a")
			require.NoError(t, add(c, "a", p, txnstate.TV0, tp0))
			_, err := c.End(bg, "a", txnstate.End{Producer: p, Commit: true})
			require.NoError(t, err)
			synctest.Wait()
			r, err := c.Describe(bg, "a")
			require.NoError(t, err)
			require.Equal(t, txnstate.CompleteCommit, r.State)

			late.still.Store(false)
			late.acquired <- func(yes, no func(int, int32)) { yes(slot, 9) }
			synctest.Wait()
			time.Sleep(3 * time.Minute)
			r, err = handle().Load(bg, "a")
			require.NoError(t, err)
			require.Equal(t, txnstate.CompleteCommit, r.State)
			if asks {
				require.Empty(t, held1.outcomes())
			}
		})
	}
}
