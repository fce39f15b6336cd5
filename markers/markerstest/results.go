package markerstest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

const (
	clauseJudged  = "The deliveries are of any number of transactions and are judged one by one."
	clauseOrder   = "It returns one result for each delivery, in order; a missing one counts as Retry."
	clauseApplied = `Applied: the participant has the outcome, durably. "Written to a queue" is not applied (I2).`
	clauseMoved   = "Moved: the target does not serve the participant any more."
	clauseOverlap = "WriteMarkers may be called concurrently, for one target too."
	clauseCtx     = "When ctx ends, what is not known to be applied is Retry."
	clauseSlice   = "The slice is the sink's only until it returns."
	clauseRepeat  = "A delivery may come again after it was applied, and must then be answered Applied."
	clauseFenced  = "FencedEpoch: the participant knows a newer epoch of the producer id"
	clauseCoord   = "FencedCoordinator: the participant has seen a newer coordinator"
	clauseOpen    = "to ask the leader whether the transaction of a delivery is still open there"
)

// refusals are codes that a leader may answer, with what they mean to a sender.
var refusals = []txnstate.Code{
	txnstate.CodeNone, txnstate.CodeUnknownTopicOrPartition, txnstate.CodeNotLeaderOrFollower, txnstate.CodeRequestTimedOut,
	txnstate.CodeNotEnoughReplicas, txnstate.CodeNotEnoughReplicasAfter, txnstate.CodeInvalidProducerEpoch,
	txnstate.CodeCoordinatorFenced, txnstate.CodeKafkaStorageError, txnstate.CodeUnknownServerError,
}

var resultCases = []testCase{
	{
		name: "each delivery is judged by itself, in every order", clause: clauseJudged,
		run: func(e *env) { // F12
			codes := []txnstate.Code{txnstate.CodeNone, txnstate.CodeInvalidProducerEpoch, txnstate.CodeNotLeaderOrFollower, txnstate.CodeKafkaStorageError}
			for i, code := range codes {
				if code != txnstate.CodeNone {
					e.c.Always(topic(int32(i)), Refuse(code))
				}
			}
			for n, order := range [][]int32{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 3, 0, 1}, {1, 2, 3, 0}} {
				var ds []markers.Delivery
				var want []markers.Result
				for k, i := range order {
					ds = append(ds, mark(int64(100*n+k), 1, true, topic(i)))
					want = append(want, markers.ResultOf(codes[i]))
				}
				e.want("four deliveries, three refused", e.send(e.Context(), 1, ds...), want...)
				for _, d := range ds {
					if e.holds(d) != (d.Participant == topic(0)) {
						e.Errorf("the log of %s is wrong", d.Participant)
					}
				}
			}
		},
	},
	{
		name: "results are in the order of the deliveries, whatever they are", clause: clauseOrder,
		run: func(e *env) {
			r := rand.New(rand.NewPCG(1, 2))
			var parts []txnstate.Participant
			for i := range int32(16) {
				parts = append(parts, txnstate.Partition("many", i))
			}
			e.c.Lead(1, parts...)
			for round := range int16(30) {
				codes := map[txnstate.Participant]txnstate.Code{}
				for _, p := range parts {
					code := txnstate.CodeNone
					if r.IntN(2) == 0 {
						code = refusals[r.IntN(len(refusals))]
					}
					codes[p] = code
					e.c.Always(p, nil)
					if code != txnstate.CodeNone {
						e.c.Always(p, Refuse(code))
					}
				}
				var ds []markers.Delivery
				var want []markers.Result
				for range 1 + r.IntN(60) {
					d := mark(r.Int64N(8), round+1, round%2 == 0, parts[r.IntN(len(parts))])
					ds, want = append(ds, d), append(want, markers.ResultOf(codes[d.Participant]))
				}
				got := e.send(e.Context(), 1, ds...)
				e.want("a random batch", got, want...)
				e.truthful("a random batch", ds, got)
			}
		},
	},
	{
		name: "no deliveries have no results", clause: clauseOrder,
		run: func(e *env) { e.want("nothing", e.send(e.Context(), 1)) },
	},
	{
		name: "an answer that is too short leaves the rest to be tried again", clause: clauseOrder, needs: []ability{short},
		run: func(e *env) {
			ds := []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1)), mark(8, 1, true, topic(2))}
			e.tr.Short(1, 2)
			ctx, cancel := context.WithTimeout(e.Context(), e.patience/10)
			defer cancel()
			e.want("two results were left out", e.send(ctx, 1, ds...), markers.Applied, markers.Retry, markers.Retry)
			e.want("the whole answer", e.insist(e.tr.Sink, 1, ds...), markers.Applied, markers.Applied, markers.Applied)
		},
	},
	{
		name: "a marker that waits to be appended is not applied", clause: clauseApplied,
		run: func(e *env) { // W2
			h := e.hang()
			e.c.Script(topic(0), h.Before())
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			d := mark(7, 1, true, topic(0))
			done := e.background(ctx, 1, d)
			e.reached(h)
			cancel()
			e.want("appending", e.await("the context has ended", done), markers.Retry)
			h.Release()
			e.want("again", e.insist(e.tr.Sink, 1, d), markers.Applied)
			e.truthful("again", []markers.Delivery{d}, []markers.Result{markers.Applied})
		},
	},
	{
		name: "a participant that moved is refused, and served by its new leader", clause: clauseMoved,
		run: func(e *env) { // W6
			ds := []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1))}
			e.c.Lead(2, topic(0))
			e.want("to the old leader", e.send(e.Context(), 1, ds...), markers.Moved, markers.Applied)
			e.wantLog(topic(0))
			e.want("to the new one", e.send(e.Context(), 2, ds[0]), markers.Applied)
			e.wantLog(topic(0), "commit 7/1 by 3")
		},
	},
	{
		name: "a participant that moves while its marker waits is not applied by the old leader", clause: clauseMoved,
		run: func(e *env) { // W6
			h := e.hang()
			e.c.Script(topic(0), h.Before())
			d := mark(7, 1, true, topic(0))
			done := e.background(e.Context(), 1, d)
			e.reached(h)
			e.c.Lead(2, topic(0))
			h.Release()
			e.want("the old leader", e.await("released", done), markers.Moved)
			e.wantLog(topic(0))
			e.dispatch(outcome(7, 1, true, topic(0)))
			e.wantLog(topic(0), "commit 7/1 by 3")
		},
	},
	{
		name: "a participant that the target does not know is never done", clause: clauseMoved,
		run: func(e *env) { // F38
			e.want("unknown", e.send(e.Context(), 1, mark(7, 1, true, txnstate.Partition("unheard", 0)), mark(7, 1, true, topic(0))), markers.Moved, markers.Applied)
		},
	},
	{
		name: "a newer producer epoch is reported as such, and nothing is written", clause: clauseFenced,
		run: func(e *env) {
			e.want("newer", e.send(e.Context(), 1, mark(7, 5, true, topic(0))), markers.Applied)
			e.want("older", e.send(e.Context(), 1, mark(7, 4, false, topic(0)), mark(7, 4, false, topic(1))), markers.FencedEpoch, markers.Applied)
			e.wantLog(topic(0), "commit 7/5 by 3")
		},
	},
	{
		name: "a newer coordinator is reported as such, and nothing is written", clause: clauseCoord,
		run: func(e *env) { // F14
			newer := mark(7, 1, true, topic(0))
			newer.CoordinatorEpoch = 10
			e.want("newer", e.send(e.Context(), 1, newer), markers.Applied)
			e.want("deposed", e.send(e.Context(), 1, mark(7, 1, false, topic(0)), mark(8, 1, false, topic(0))), markers.FencedCoordinator, markers.Applied)
			e.wantLog(topic(0), "commit 7/1 by 10", "abort 8/1 by 3")
		},
	},
	{
		name: "a target that is nobody holds up no other", clause: clauseJudged,
		run: func(e *env) {
			d := mark(7, 1, true, txnstate.Partition("nowhere", 0))
			e.c.Lead(3, d.Participant)
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			lost := e.background(ctx, 3, d)
			e.want("another target", e.send(e.Context(), 2, mark(7, 1, true, other(0))), markers.Applied)
			cancel()
			e.truthful("nobody there", []markers.Delivery{d}, e.await("the context has ended", lost))
		},
	},
	{
		name: "calls overlap, and none gets another's results", clause: clauseOverlap,
		run: func(e *env) {
			for i := range int32(4) {
				if i%2 == 1 {
					e.c.Always(topic(i), Refuse(txnstate.CodeInvalidProducerEpoch))
				}
			}
			var all sync.WaitGroup
			for n := range int64(40) {
				all.Go(func() {
					i := int32(n % 4)
					d := mark(n, 1, n%3 == 0, topic(i))
					want := markers.Applied
					if i%2 == 1 {
						want = markers.FencedEpoch
					}
					got := e.insist(e.tr.Sink, 1, d)
					e.want("one of many calls", got, want)
					e.truthful("one of many calls", []markers.Delivery{d}, got)
				})
			}
			all.Wait()
		},
	},
	{
		name: "a call that hangs holds up no other", clause: clauseOverlap,
		run: func(e *env) { // F12
			h := e.hang()
			e.c.Script(topic(0), h.Before())
			first := e.background(e.Context(), 1, mark(7, 1, true, topic(0)))
			e.reached(h)
			second := e.background(e.Context(), 1, mark(8, 1, true, topic(1)))
			third := e.background(e.Context(), 2, mark(8, 1, true, other(0)))
			e.want("same target", e.await("the same target", second), markers.Applied)
			e.want("another target", e.await("another target", third), markers.Applied)
			h.Release()
			e.want("the first", e.await("released", first), markers.Applied)
		},
	},
	{
		name: "the end of the context ends the waiting, and says nothing", clause: clauseCtx,
		run: func(e *env) {
			h := e.hang()
			e.c.Script(topic(0), h.Before())
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			ds := []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1))}
			done := e.background(ctx, 1, ds...)
			e.reached(h)
			cancel()
			got := e.await("the context has ended", done)
			e.want("the one that waits", got[:1], markers.Retry)
			e.truthful("the other one", ds, got)
		},
	},
	{
		name: "a context that is done is no confirmation", clause: clauseCtx,
		run: func(e *env) {
			ctx, cancel := context.WithCancel(e.Context())
			cancel()
			e.c.Always(topic(1), Refuse(txnstate.CodeKafkaStorageError))
			ds := []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1))}
			got := e.await("the context has ended", e.background(ctx, 1, ds...))
			e.truthful("no time at all", ds, got)
			if slices.ContainsFunc(got, func(r markers.Result) bool { return r != markers.Applied && r != markers.Retry }) {
				e.Errorf("no time at all: results %v", got)
			}
		},
	},
	{
		name: "the deliveries are the caller's again when the call returns", clause: clauseSlice,
		run: func(e *env) {
			h := e.hang()
			e.c.Script(topic(0), h.Deaf())
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			ds := []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1))}
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				e.tr.Sink.WriteMarkers(ctx, 1, ds)
				for i := range ds {
					ds[i] = mark(666, 6, false, topic(2))
				}
			}()
			e.reached(h)
			cancel()
			if _, ok := within(e.patience/2, returned); !ok {
				// A sink that calls the participant itself waits for it, if that does
				// not notice the end of its context.
				h.Release()
				<-returned
			}
			h.Release()
			want := []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1))}
			e.want("again", e.insist(e.tr.Sink, 1, want...), markers.Applied, markers.Applied)
			for i := range int32(4) {
				if e.holds(mark(666, 6, false, topic(i))) {
					e.Errorf("what the caller wrote into its slice later has arrived")
				}
			}
		},
	},
	{
		name: "what is open is asked of the leader", clause: clauseOpen, needs: []ability{openChecker},
		run: func(e *env) { // I12
			asker := e.tr.Sink.(markers.OpenChecker)
			d := mark(7, 1, true, topic(0))
			check := func(when string, want bool) {
				e.Helper()
				if open, err := asker.StillOpen(e.Context(), 1, d); err != nil || open != want {
					e.Errorf("%s: open %v, %v, want %v", when, open, err, want)
				}
			}
			check("a producer that it does not know", false)
			e.c.Write(topic(0), d.Producer)
			check("data, and no marker", true)
			e.want("its marker", e.send(e.Context(), 1, d), markers.Applied)
			check("ended", false)
			e.c.Write(topic(0), txnstate.Producer{ID: 8})
			check("somebody else's data", false)
			d.Participant = txnstate.Partition("unheard", 0)
			if open, err := asker.StillOpen(e.Context(), 1, d); err == nil {
				e.Errorf("a participant that the target does not know: open %v without an error", open)
			}
			d.Participant = other(0)
			if open, err := asker.StillOpen(e.Context(), 1, d); err == nil {
				e.Errorf("a participant that another broker leads: open %v without an error", open)
			}
		},
	},
}
