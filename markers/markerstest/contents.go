package markerstest

import (
	"fmt"
	"math"
	"strings"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

const (
	clauseDelivery = "Delivery is one marker for one participant."
	clauseVersion  = "TransactionVersion governs how strictly a leader looks at the epoch."
)

var contentCases = []testCase{
	{
		name: "identity, outcome and coordinator epoch arrive as they are", clause: clauseDelivery,
		run: func(e *env) {
			for i, m := range []markers.Marker{
				{Producer: txnstate.Producer{ID: 0, Epoch: 0}},
				{Producer: txnstate.Producer{ID: math.MaxInt64, Epoch: math.MaxInt16}, Commit: true, CoordinatorEpoch: math.MaxInt32},
				{Producer: txnstate.Producer{ID: 1<<40 + 7, Epoch: 32766}, CoordinatorEpoch: 1, TransactionVersion: txnstate.TV1},
				{Producer: txnstate.Producer{ID: 9, Epoch: 2}, Commit: true, CoordinatorEpoch: -1, TransactionVersion: txnstate.TV2},
			} {
				p := txnstate.Partition(strings.Repeat("long.name_-", 22)+"end", int32(i))
				e.c.Lead(1, p)
				m.TxnID = "tx \x00 \xff \u00e9"
				e.want(fmt.Sprint(m), e.send(e.Context(), 1, markers.Delivery{Marker: m, Participant: p, TxnSeq: math.MaxUint64}), markers.Applied)
				if !e.holds(markers.Delivery{Marker: m, Participant: p}) {
					e.Errorf("%+v did not arrive, the log has %v", m, e.c.Log(p))
				}
			}
		},
	},
	{
		name: "the transaction version arrives as it is", clause: clauseVersion, needs: []ability{version},
		run: func(e *env) { // KIP-1228
			for v, want := range map[txnstate.TransactionVersion]markers.Result{
				txnstate.TV0: markers.Applied, txnstate.TV1: markers.Applied, txnstate.TV2: markers.FencedEpoch,
			} {
				p := txnstate.Partition("strict", int32(v))
				e.c.Lead(1, p)
				d := mark(7, 4, true, p)
				d.TransactionVersion = v
				e.c.Write(p, d.Producer) // data at the marker's own epoch: under TV2 of the next transaction
				e.want(fmt.Sprintf("version %d", v), e.send(e.Context(), 1, d), want)
			}
		},
	},
	{
		name: "without the transaction version a leader takes the older rule", clause: clauseVersion,
		run: func(e *env) {
			if !e.tr.WithoutVersion {
				e.Skip("not tested: the transaction version arrives")
			}
			d := mark(7, 4, true, topic(0))
			d.TransactionVersion = txnstate.TV2
			e.c.Write(topic(0), d.Producer)
			e.want("TV2", e.send(e.Context(), 1, d), markers.Applied)
		},
	},
	{
		name: "a group is a participant like any other", clause: clauseDelivery,
		run: func(e *env) { // W9
			g, same := txnstate.Group("g"), txnstate.Participant{Kind: txnstate.KindGroup, Name: "h", Index: txnstate.OffsetsPartition("g")}
			e.c.Lead(1, g)
			elsewhere := txnstate.Group("elsewhere")
			e.c.Lead(2, elsewhere)
			e.want("groups, their partition, and a partition", e.send(e.Context(), 1,
				mark(7, 1, true, g), mark(8, 1, false, same), mark(9, 1, true, g.Wire()), mark(7, 1, true, topic(0)), mark(7, 1, true, elsewhere)),
				markers.Applied, markers.Applied, markers.Applied, markers.Applied, markers.Moved)
			for _, d := range []markers.Delivery{mark(7, 1, true, g), mark(8, 1, false, g), mark(9, 1, true, g), mark(7, 1, true, topic(0))} {
				if !e.holds(d) {
					e.Errorf("the log of %s lacks the marker of %s: %v", d.Participant, d.Producer, e.c.Log(d.Participant))
				}
			}
			e.want("a group elsewhere", e.send(e.Context(), 2, mark(7, 1, true, elsewhere)), markers.Applied)
		},
	},
	{
		name: "two transactions of one producer at one epoch both arrive", clause: clauseJudged,
		run: func(e *env) { // W3
			first, second := mark(7, 1, true, topic(0)), mark(7, 1, false, topic(1))
			second.TxnSeq = 2
			e.want("in one call", e.send(e.Context(), 1, first, second), markers.Applied, markers.Applied)
			e.wantLog(topic(0), "commit 7/1 by 3")
			e.wantLog(topic(1), "abort 7/1 by 3")

			first.Participant, second.Participant = topic(2), topic(3)
			h := e.hang()
			e.c.Script(topic(2), h.Before())
			done := e.background(e.Context(), 1, first)
			e.reached(h)
			e.want("while the first is under way", e.insist(e.tr.Sink, 1, second), markers.Applied)
			h.Release()
			e.want("the first", e.await("released", done), markers.Applied)
			e.wantLog(topic(2), "commit 7/1 by 3")
			e.wantLog(topic(3), "abort 7/1 by 3")
		},
	},
	{
		name: "markers of one producer for one participant arrive in their order", clause: clauseJudged,
		run: func(e *env) { // W24
			var ds []markers.Delivery
			var want []markers.Result
			var log []string
			for i := range 6 {
				d := mark(7, 1, i%2 == 0, topic(0))
				d.TxnSeq = uint64(i)
				ds, want = append(ds, d, mark(int64(20+i), 1, true, topic(0))), append(want, markers.Applied, markers.Applied)
				log = append(log, []string{"commit 7/1 by 3", "abort 7/1 by 3"}[i%2])
			}
			for i := range int16(3) {
				d := mark(7, 2+i, true, topic(0))
				ds, want, log = append(ds, d), append(want, markers.Applied), append(log, fmt.Sprintf("commit 7/%d by 3", 2+i))
			}
			e.want("six transactions of one epoch, then three of the next ones", e.send(e.Context(), 1, ds...), want...)
			var got []string
			for _, en := range e.c.Log(topic(0)) {
				if en.Producer.ID == 7 {
					got = append(got, en.String())
				}
			}
			if strings.Join(got, ", ") != strings.Join(log, ", ") {
				e.Errorf("the log has %q, want %q", got, log)
			}
		},
	},
	{
		name: "a large call arrives whole", clause: clauseJudged,
		run: func(e *env) {
			var ds []markers.Delivery
			var want []markers.Result
			for i := range int32(60) {
				e.c.Lead(1, txnstate.Partition(strings.Repeat("x", 200), i))
			}
			for n := range int64(3000) {
				ds = append(ds, mark(n/60, 1, n%7 == 0, txnstate.Partition(strings.Repeat("x", 200), int32(n%60))))
				want = append(want, markers.Applied)
			}
			e.want("3000 deliveries", e.insist(e.tr.Sink, 1, ds...), want...)
			for _, d := range ds {
				if !e.holds(d) {
					e.Fatalf("the log of partition %d lacks the marker of %s", d.Participant.Index, d.Producer)
				}
			}
		},
	},
}
