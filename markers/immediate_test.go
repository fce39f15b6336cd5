package markers_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// immediate is a sink that takes at once what its test says.
type immediate struct {
	*sink
	now   func(ds []markers.Delivery) []markers.Result
	taken []string
}

func (s *immediate) WriteNow(to markers.Target, ds []markers.Delivery) []markers.Result {
	for _, d := range ds {
		s.taken = append(s.taken, fmt.Sprintf("%d %s %s", to, d.TxnID, d.Participant))
	}
	return s.now(ds)
}

var _ markers.Immediate = (*immediate)(nil)

func TestWhatASinkTakesAtOnceIsDoneWhereItIsDispatched(t *testing.T) {
	ps := []txnstate.Participant{txnstate.Partition("1", 0), txnstate.Partition("1", 1), txnstate.Partition("2", 0)}
	all := map[string]int{"a 1/0": 1, "a 1/1": 1, "a 2/0": 1}
	for _, tc := range []struct {
		name  string
		now   func(ds []markers.Delivery) []markers.Result
		queue []string // what goes the other way
	}{
		{"all", func(ds []markers.Delivery) []markers.Result {
			return []markers.Result{markers.Applied, markers.Deleted}[:len(ds)]
		}, nil},
		{"none", func([]markers.Delivery) []markers.Result { return nil }, []string{"1 a 1/0", "1 a 1/1", "2 a 2/0"}},
		{"the first of each target", func([]markers.Delivery) []markers.Result { return []markers.Result{markers.Applied} }, []string{"1 a 1/1"}},
		{"refused", func(ds []markers.Delivery) []markers.Result {
			return []markers.Result{markers.Retry, markers.FencedCoordinator}[:len(ds)]
		}, []string{"1 a 1/0", "1 a 1/1", "2 a 2/0"}},
		{"a panic", func([]markers.Delivery) []markers.Result { panic("made up") }, []string{"1 a 1/0", "1 a 1/1", "2 a 2/0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				returned := make(chan struct{})
				s := &immediate{sink: &sink{answer: func(context.Context, markers.Target, markers.Delivery) markers.Result {
					<-returned
					return markers.Applied
				}}, now: tc.now}
				d := runDispatcher(t, markers.Config{Sink: s})
				synctest.Wait()
				var a applied
				d.Dispatch(outcome("a", 0, ps...), a.of("a"))
				require.Equal(t, len(ps)-len(tc.queue), a.n(), "when Dispatch returns")
				close(returned)
				synctest.Wait()
				require.Equal(t, all, a.all())
				require.Equal(t, []string{"1 a 1/0", "1 a 1/1", "2 a 2/0"}, s.taken)
				require.ElementsMatch(t, tc.queue, s.all())
				require.Zero(t, d.Pending())
			})
		})
	}
}

// Before Run nothing is delivered, at once neither.
func TestNothingIsTakenAtOnceBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &immediate{sink: &sink{}, now: func([]markers.Delivery) []markers.Result { return []markers.Result{markers.Applied} }}
		d, err := markers.NewDispatcher(markers.Config{Leaders: byName, Sink: s})
		require.NoError(t, err)
		var a applied
		d.Dispatch(outcome("a", 0, txnstate.Partition("1", 0)), a.of("a"))
		synctest.Wait()
		require.Empty(t, s.taken)
		require.Zero(t, a.n())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, 1, a.n())
		require.Empty(t, s.taken, "it had been queued")
		d.Dispatch(outcome("b", 0, txnstate.Partition("1", 0)), a.of("b"))
		require.Len(t, s.taken, 1)
		cancel()
		require.NoError(t, <-done)
		d.Dispatch(outcome("c", 0, txnstate.Partition("1", 0)), a.of("c"))
		synctest.Wait()
		require.Len(t, s.taken, 1, "nor after it")
	})
}
