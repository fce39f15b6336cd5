package markerstest

import (
	"slices"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func (e *env) wantVisible(p txnstate.Participant, want ...string) {
	e.Helper()
	if got := e.c.Visible(p); !slices.Equal(got, want) {
		e.Errorf("readers of %s see %q, want %q", p, got, want)
	}
}

var repeatCases = []testCase{
	{
		name: "a repeat is answered applied and changes nothing that a reader sees", clause: clauseRepeat,
		run: func(e *env) { // F13
			d := mark(7, 5, true, topic(0))
			d.TransactionVersion = txnstate.TV2
			e.c.Write(topic(0), txnstate.Producer{ID: 7, Epoch: 4})
			for range 3 {
				e.want("once more", e.send(e.Context(), 1, d, d), markers.Applied, markers.Applied)
			}
			e.wantVisible(topic(0), "7/4 commit")
		},
	},
	{
		name: "a marker whose answer was lost is applied by its repeat", clause: clauseRepeat,
		run: func(e *env) { // F10
			e.c.Script(topic(0), Lose())
			d := mark(7, 1, true, topic(0))
			e.want("nobody knows", e.send(e.Context(), 1, d), markers.Retry)
			e.want("again", e.send(e.Context(), 1, d), markers.Applied)
		},
	},
	{
		name: "what arrives again closes no other transaction", clause: clauseRepeat, needs: []ability{again, version},
		run: func(e *env) { // I4
			tv2 := func(epoch int16, commit bool, p txnstate.Participant) markers.Delivery {
				d := mark(7, epoch, commit, p)
				d.TransactionVersion = txnstate.TV2
				return d
			}
			e.c.Write(topic(0), txnstate.Producer{ID: 7, Epoch: 4})
			e.want("first", e.send(e.Context(), 1, tv2(5, true, topic(0)), tv2(5, true, topic(1))), markers.Applied, markers.Applied)
			e.tr.Again(e, 1)
			e.wantVisible(topic(0), "7/4 commit")
			e.c.Write(topic(0), txnstate.Producer{ID: 7, Epoch: 5})
			e.tr.Again(e, 1)
			e.wantVisible(topic(0), "7/4 commit", "7/5 open")
			e.want("second", e.insist(e.tr.Sink, 1, tv2(6, false, topic(0))), markers.Applied)
			e.tr.Again(e, 1)
			e.wantVisible(topic(0), "7/4 commit", "7/5 abort")
		},
	},
}
