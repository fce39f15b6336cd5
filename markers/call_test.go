package markers_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The context of a call is bounded by CallTimeout, from its beginning, and is over
// with the call, whenever the sink looks at it.
func TestTheContextOfACallIsBoundedAndEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ctxs []context.Context
		s := &sink{answer: func(ctx context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			ctxs = append(ctxs, ctx)
			if d.TxnID == "waits" {
				begin := time.Now()
				time.Sleep(20 * time.Second)
				until, ok := ctx.Deadline()
				require.True(t, ok)
				require.Equal(t, begin.Add(time.Minute), until)
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				<-child.Done()
				require.Equal(t, time.Minute, time.Since(begin))
				require.ErrorIs(t, child.Err(), context.DeadlineExceeded)
			}
			return markers.Applied
		}}
		d := runDispatcher(t, markers.Config{Sink: s, CallTimeout: time.Minute})
		var a applied
		for _, id := range []string{"at once", "waits"} {
			d.Dispatch(outcome(id, 0, txnstate.Partition("1", 0)), a.of(id))
			time.Sleep(2 * time.Minute)
		}
		require.Equal(t, 2, a.n())
		require.ErrorIs(t, ctxs[0].Err(), context.Canceled, "asked for the first time when it is over")
		<-ctxs[0].Done()
		require.ErrorIs(t, ctxs[1].Err(), context.DeadlineExceeded)
	})
}
