package markerstest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// stop is the death of a broker's process.
func (e *env) stop(id markers.Target) {
	e.Helper()
	e.c.Broker(id).Crash()
	e.tr.StopReceiver(e, id)
}

var failureCases = []testCase{
	{
		name: "a receiver that dies before it has appended has not applied", clause: clauseApplied, needs: []ability{restartReceiver},
		run: func(e *env) {
			h := e.hang()
			e.c.Script(topic(0), h.Deaf())
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			d := mark(7, 1, true, topic(0))
			done := e.background(ctx, 1, d)
			e.reached(h)
			e.stop(1)
			h.Release()
			e.tr.StartReceiver(e, 1)
			// A transport may have kept it and deliver it to the next process by itself.
			e.c.Script(topic(0), Refuse(txnstate.CodeKafkaStorageError), Refuse(txnstate.CodeKafkaStorageError))
			cancel()
			e.want("died", e.await("the context has ended", done), markers.Retry)
			e.want("the next process", e.insist(e.tr.Sink, 1, d), markers.Applied)
			if !e.holds(d) {
				e.Errorf("the log lacks the marker")
			}
		},
	},
	{
		name: "a receiver that dies before it has answered is asked again", clause: clauseRepeat, needs: []ability{restartReceiver},
		run: func(e *env) { // F13
			h := e.hang()
			e.c.Write(topic(0), txnstate.Producer{ID: 7})
			e.c.Script(topic(0), h.After())
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			d := mark(7, 1, true, topic(0))
			done := e.background(ctx, 1, d)
			e.reached(h)
			e.stop(1)
			h.Release()
			e.tr.StartReceiver(e, 1)
			cancel()
			e.truthful("died", []markers.Delivery{d}, e.await("the context has ended", done))
			e.want("the next process", e.insist(e.tr.Sink, 1, d), markers.Applied)
			e.wantVisible(topic(0), "7/0 commit")
		},
	},
	{
		name: "a receiver that is away for a while is waited for", clause: clauseApplied, needs: []ability{restartReceiver},
		run: func(e *env) {
			e.want("before", e.send(e.Context(), 1, mark(6, 1, true, topic(0))), markers.Applied)
			e.stop(1)
			wait, end := e.dispatching(outcome(7, 1, true, topic(0), topic(1), other(0)), outcome(8, 1, false, topic(0)))
			defer end()
			wait(func(left int) bool { return left == 3 })
			e.wantLog(other(0), "commit 7/1 by 3")
			e.tr.StartReceiver(e, 1)
			wait(func(left int) bool { return left == 0 })
			for _, d := range []markers.Delivery{mark(7, 1, true, topic(0)), mark(7, 1, true, topic(1)), mark(8, 1, false, topic(0))} {
				if !e.holds(d) {
					e.Errorf("the log of %s lacks the marker of %s", d.Participant, d.Producer)
				}
			}
		},
	},
	{
		name: "participants of a dead broker are served by another one", clause: clauseMoved, needs: []ability{restartReceiver},
		run: func(e *env) { // W6
			e.stop(1)
			wait, end := e.dispatching(outcome(7, 1, true, topic(0), topic(1)))
			defer end()
			e.c.Lead(2, topic(0), topic(1))
			wait(func(left int) bool { return left == 0 })
			e.tr.StartReceiver(e, 1)
			e.want("the old leader, back", e.insist(e.tr.Sink, 1, mark(8, 1, true, topic(0))), markers.Moved)
			e.wantLog(topic(0), "commit 7/1 by 3")
		},
	},
	{
		name: "the next sender is not told what became of the last one's deliveries", clause: clauseApplied, needs: []ability{restartSender},
		run: func(e *env) {
			for range 3 { // as many calls as the next one will make, with good results
				e.want("the first process", e.send(e.Context(), 1, mark(7, 1, true, topic(0))), markers.Applied)
			}
			h := e.hang()
			e.c.Script(topic(1), h.Before())
			ctx, cancel := context.WithCancel(e.Context())
			defer cancel()
			go e.tr.Sink.WriteMarkers(ctx, 1, []markers.Delivery{mark(7, 1, true, topic(1))})
			e.reached(h)
			next := e.tr.RestartSender(e)
			h.Release()
			e.c.Always(topic(2), Refuse(txnstate.CodeInvalidProducerEpoch))
			for range 4 {
				e.want("the next process", e.insist(next, 1, mark(7, 1, true, topic(2))), markers.FencedEpoch)
			}
			d := mark(7, 1, true, topic(1))
			e.want("what was under way", e.insist(next, 1, d), markers.Applied)
			if !e.holds(d) {
				e.Errorf("the log lacks the marker")
			}
		},
	},
	{
		name: "a participant that hangs keeps no other from being done", clause: clauseJudged,
		run: func(e *env) { // F12
			h := e.hang()
			e.c.Always(topic(0), h.Before())
			var os []txnstate.Outcome
			for n := range int64(5) {
				os = append(os, outcome(n, 1, true, topic(0), topic(1), topic(2), topic(3)))
			}
			wait, end := e.dispatching(os...)
			defer end()
			wait(func(left int) bool { return left == len(os) })
			h.Release()
			wait(func(left int) bool { return left == 0 })
		},
	},
	{
		name: "everything is done when faults have stopped", clause: clauseJudged,
		run: func(e *env) { // I12
			r := rand.New(rand.NewPCG(3, 4))
			var os []txnstate.Outcome
			var parts []txnstate.Participant
			for i := range int32(8) {
				parts = append(parts, txnstate.Partition("faulty", i), txnstate.Group(fmt.Sprint("group ", i)))
			}
			for i, p := range parts {
				e.c.Lead(markers.Target(1+i%2), p)
				for range r.IntN(5) {
					e.c.Script(p, []Fate{
						Refuse(txnstate.CodeNotLeaderOrFollower), Refuse(txnstate.CodeUnknownTopicOrPartition), Refuse(txnstate.CodeKafkaStorageError), Lose(),
					}[r.IntN(4)])
				}
			}
			for n := range int64(20) {
				k := r.IntN(len(parts))
				os = append(os, outcome(n, 1, n%2 == 0, append(append([]txnstate.Participant(nil), parts[k:]...), parts[:k]...)[:1+r.IntN(len(parts))]...))
			}
			e.dispatch(os...)
			for _, o := range os {
				for _, p := range o.Participants {
					if !e.holds(markers.Delivery{Marker: markers.Marker{Producer: o.Producer, Commit: o.Commit, CoordinatorEpoch: 3}, Participant: p}) {
						e.Errorf("the log of %s lacks the marker of %s", p, o.Producer)
					}
				}
			}
		},
	},
}
