package markers_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
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
					require.Equal(t, map[string]int{"t2 t2/0": 1, "t3 t3/0": 1}, a.m)
					if bad != nil {
						require.Equal(t, 3, s.sizes[0])
					}
				})
			})
		}
	}
}
