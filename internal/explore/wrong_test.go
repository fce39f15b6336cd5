package explore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/explore"
	"github.com/kafkatxn/kafkatxn/markers"
	. "github.com/kafkatxn/kafkatxn/txnstate"
)

// wrongSteps are Step with one mistake each, of the kind that has been made
// somewhere.
var wrongSteps = map[string]explore.StepFunc{
	"I5: a commit that is repeated as an abort becomes one": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(End); ok && rec.State == PrepareCommit && !e.Commit {
			return stored(rec, func(r *Record) { r.State = PrepareAbort })
		}
		return Step(rec, ev, now)
	},
	"I5: a timeout aborts what was decided meanwhile": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if _, ok := ev.(TimedOut); ok && rec.State == PrepareCommit {
			return stored(rec, func(r *Record) { r.State = PrepareAbort })
		}
		return Step(rec, ev, now)
	},
	"I5: a commit is answered as done where an abort was": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(End); ok && e.Commit && rec.State == CompleteAbort {
			rec.State = CompleteCommit
			d, err := Step(rec, ev, now)
			d.Next.State = CompleteAbort
			return d, err
		}
		return Step(rec, ev, now)
	},
	"I2: a participant is forgotten at the decision": after(func(_ Record, _ Event, d *Decision) {
		if d.Next.State.Decided() && d.Write == WriteDurable && len(d.Next.Participants) > 1 {
			d.Next.Participants = d.Next.Participants[1:]
		}
	}),
	"I2: a participant that is added replaces the one before": after(func(_ Record, ev Event, d *Decision) {
		if _, ok := ev.(Add); ok && len(d.Next.Participants) > 1 {
			d.Next.Participants = d.Next.Participants[1:]
		}
	}),
	"I2: the first confirmation completes": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Applied); ok && len(e.Participants) > 0 {
			e.Participants = rec.Participants
			ev = e
		}
		return Step(rec, ev, now)
	},
	"I2: a decision is complete as soon as it is made": after(func(rec Record, _ Event, d *Decision) {
		switch {
		case rec.State != Ongoing:
		case d.Next.State == PrepareCommit:
			d.Next.State, d.Next.Participants = CompleteCommit, nil
		case d.Next.State == PrepareAbort:
			d.Next.State, d.Next.Participants = CompleteAbort, nil
		}
	}),
	"I2: a confirmation of the transaction before counts": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Applied); ok {
			e.TxnSeq = rec.TxnSeq
			ev = e
		}
		return Step(rec, ev, now)
	},
	"I1: markers leave before the decision is durable": after(func(_ Record, _ Event, d *Decision) {
		if d.Effects.Markers {
			d.Write = WriteLater
		}
	}),
	"I3: the next transaction begins while one completes": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Add); ok && rec.State.Decided() && e.Producer == rec.Producer {
			return stored(rec, func(r *Record) { r.State, r.Participants = Ongoing, e.Participants })
		}
		return Step(rec, ev, now)
	},
	"I3: an initialisation inherits the open transaction": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if _, ok := ev.(Init); ok && rec.State == Ongoing && rec.Producer.Epoch < MaxEpoch {
			d, err := stored(rec, func(r *Record) { r.Producer.Epoch++ })
			d.Grant, d.Effects.Fence = d.Next.Producer, d.Next.Producer
			return d, err
		}
		return Step(rec, ev, now)
	},
	"I3: an initialisation drops the open transaction": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if _, ok := ev.(Init); ok && rec.State == Ongoing {
			rec.State, rec.Participants = Empty, nil
		}
		return Step(rec, ev, now)
	},
	"I3: an open transaction expires": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Init); ok && rec.State == Ongoing && e.Expected != NoProducer {
			d, err := stored(rec, func(*Record) {})
			d.Write = WriteDelete
			return d, err
		}
		return Step(rec, ev, now)
	},
	"I6: an initialisation does not bump the epoch": after(func(rec Record, ev Event, d *Decision) {
		if _, ok := ev.(Init); ok && rec.Known() && d.Next.State == Empty && d.Next.Producer.ID == rec.Producer.ID {
			d.Next.Producer, d.Grant, d.Effects.Fence = rec.Producer, rec.Producer, NoProducer
		}
	}),
	"I6: an epoch is granted to two who come at once": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Init); ok && e.Expected == NoProducer && rec.State == Empty && rec.Known() && rec.LastEpoch == -1 && rec.Producer.Epoch > 0 && rec.Producer.Epoch <= MaxEpoch {
			d, err := stored(rec, func(*Record) {})
			d.Grant = rec.Producer
			return d, err
		}
		return Step(rec, ev, now)
	},
	"I6: the epoch before is a retry whoever holds the one in force": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(End); ok && e.Client >= TV2 && !rec.State.Decided() && rec.State != Ongoing {
			v := rec.ClientVersion
			rec.ClientVersion = TV2
			d, err := Step(rec, ev, now)
			if d.Write == WriteNone {
				d.Next.ClientVersion = v
			}
			return d, err
		}
		return Step(rec, ev, now)
	},
	"I6: the fencing epoch is granted": func(rec Record, ev Event, now time.Time) (Decision, error) {
		e, ok := ev.(Init)
		if ok && e.Expected == NoProducer && rec.Producer.Epoch == MaxEpoch && !rec.State.Decided() && rec.State != Ongoing {
			d, err := stored(rec, func(r *Record) { r.Producer.Epoch++; r.State, r.StartMs = CompleteAbort, 1 })
			d.Grant = d.Next.Producer
			d.Effects.Fence = d.Grant
			return d, err
		}
		return Step(rec, ev, now)
	},
	"I9: an older epoch may go on": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Add); ok && e.Producer.ID == rec.Producer.ID && e.Producer.Epoch < rec.Producer.Epoch {
			e.Producer = rec.Producer
			ev = e
		}
		return Step(rec, ev, now)
	},
	"I9: an older epoch may end the transaction": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(End); ok && rec.State == Ongoing && e.Producer.ID == rec.Producer.ID {
			e.Producer = rec.Producer
			ev = e
		}
		return Step(rec, ev, now)
	},
	"I9: a timeout leaves the epoch as it is": after(func(rec Record, ev Event, d *Decision) {
		if _, ok := ev.(TimedOut); ok && d.Write != WriteNone {
			d.Next.Producer, d.Effects.Fence = rec.Producer, NoProducer
		}
	}),
	"I9: a new holder is not announced": after(func(_ Record, _ Event, d *Decision) { d.Effects.Fence = NoProducer }),
	"I9: the fence hits the new holder": after(func(_ Record, ev Event, d *Decision) {
		if _, ok := ev.(Init); ok && d.Effects.Fence != NoProducer && d.Effects.Fence.Epoch < FenceEpoch {
			d.Effects.Fence.Epoch++
		}
	}),
	"I8: every participant is verified": after(func(_ Record, _ Event, d *Decision) { d.Missing = nil }),
	"I12: the next producer id is lost at completion": after(func(rec Record, ev Event, d *Decision) {
		if _, ok := ev.(Applied); ok && rec.Next != NoProducer && !d.Next.State.Decided() {
			d.Next.Producer = rec.Producer
		}
	}),
	"I12: a confirmation after a crash is refused": func(rec Record, ev Event, now time.Time) (Decision, error) {
		if e, ok := ev.(Applied); ok && rec.State.Decided() && e.TxnSeq == rec.TxnSeq && len(e.Participants) == 0 {
			return Decision{Next: rec, Effects: Effects{Fence: NoProducer}, Grant: NoProducer}, nil
		}
		return Step(rec, ev, now)
	},
	"Check: participants are kept after the completion": after(func(rec Record, ev Event, d *Decision) {
		if _, ok := ev.(Applied); ok && !d.Next.State.Decided() && rec.State.Decided() {
			d.Next.Participants = rec.Participants
		}
	}),
}

// wrongDecides are markers.Decide with one mistake each.
var wrongDecides = map[string]explore.DecideFunc{
	"I4: a marker of the epoch that is open closes it": func(m markers.Marker, st fence.ProducerState, known bool) error {
		m.TransactionVersion = TV1
		return markers.Decide(m, st, known)
	},
	"I4: no marker is too old": func(m markers.Marker, st fence.ProducerState, _ bool) error {
		st.Open = false
		return markers.Decide(m, st, false)
	},
	"F13: a repeat is refused": func(m markers.Marker, st fence.ProducerState, known bool) error {
		if known && !st.Open {
			return CodeInvalidTxnState.Errorf("", "nothing is open")
		}
		return markers.Decide(m, st, known)
	},
	"I12: a marker at the fencing epoch is refused": func(m markers.Marker, st fence.ProducerState, known bool) error {
		if known && m.Producer.Epoch == FenceEpoch {
			return CodeCoordinatorFenced.Errorf("", "an epoch that nobody has")
		}
		return markers.Decide(m, st, known)
	},
}

// stored is a decision to store a changed record, made with no respect.
func stored(rec Record, change func(*Record)) (Decision, error) {
	rec.Participants = slices.Clone(rec.Participants)
	change(&rec)
	return Decision{Next: rec, Write: WriteDurable, Effects: Effects{Fence: NoProducer, Markers: rec.State.Decided()}, Grant: NoProducer}, nil
}

// after changes what Step decides.
func after(change func(rec Record, ev Event, d *Decision)) explore.StepFunc {
	return func(rec Record, ev Event, now time.Time) (Decision, error) {
		d, err := Step(rec, ev, now)
		if err == nil {
			change(rec, ev, &d)
		}
		return d, err
	}
}

// A walk that finds nothing would show nothing, were it blind: each of these
// mistakes is found.
func TestEveryWrongStepIsFound(t *testing.T) {
	walks := slices.Concat(
		worlds(bound{faults: 0, txns: [2]int{2, 1}, parts: [2]int{1, 1}, partly: true}),
		worlds(bound{faults: 0, txns: [2]int{1, 0}, parts: [2]int{2, 0}, partly: true}),
		worlds(bound{faults: 1, txns: [2]int{1, 1}, parts: [2]int{1, 1}}),
	)
	try := func(name string, plant func(w *explore.World)) {
		t.Run(name, func(t *testing.T) {
			states := 0
			for _, w := range walks {
				plant(&w)
				r := explore.Explore(w, 0)
				states += r.States
				if r.Violation != "" {
					t.Logf("%d states, in %s: %s", states, w.Name, r.Violation)
					return
				}
			}
			t.Errorf("nothing is found in %d states", states)
		})
	}
	for name, step := range wrongSteps {
		try(name, func(w *explore.World) { w.Step = step })
	}
	for name, decide := range wrongDecides {
		try(name, func(w *explore.World) { w.Decide = decide })
	}
}
