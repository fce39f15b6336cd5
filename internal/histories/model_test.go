package histories

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// input is a call of a coordinator.
type input struct {
	id  string
	ev  txnstate.Event // nil for Describe
	now time.Time
	// ghosts is for a write of which the store could not say whether it was done:
	// the events that may have been stored by it.
	ghosts []input
}

// output is its answer.
type output struct {
	code    txnstate.Code
	grant   txnstate.Producer
	missing []txnstate.Participant
	rec     txnstate.Record // of Describe
	ghost   bool
	unknown bool // the answer leaves open what was done
}

// modelOf is the record of one id. With strict a completion that somebody saw
// stays; without, it may be lost, or be hidden from another process, until the
// next durable write, as Later writes may.
func modelOf(strict bool, begin func(id string) txnstate.Record) porcupine.Model {
	seed := maphash.MakeSeed()
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
			byID := map[string][]porcupine.Operation{}
			for _, op := range history {
				id := op.Input.(input).id
				byID[id] = append(byID[id], op)
			}
			for _, ops := range byID {
				parts = append(parts, ops)
			}
			return parts
		},
		Init: func() []any { return []any{txnstate.Record{}} }, // any id's: the first call tells which
		Step: func(state, in, out any) []any {
			i := in.(input)
			rec := state.(txnstate.Record)
			if rec.TxnID == "" {
				rec = begin(i.id)
			}
			return steps(rec, i, out.(output), strict)
		},
		Equal: func(a, b any) bool { return a.(txnstate.Record).Equal(b.(txnstate.Record)) },
		Hash:  func(s any) uint64 { return maphash.String(seed, fmt.Sprintf("%+v", s)) },
		DescribeOperation: func(in, out any) string {
			return fmt.Sprintf("%+v: %+v", in, out)
		},
	}
	return m.ToModel()
}

// steps are the records that a call with an answer can leave behind.
func steps(rec txnstate.Record, i input, o output, strict bool) (next []any) {
	befores := []txnstate.Record{rec}
	if rec.State.Decided() {
		// The completion may come at any time.
		d, err := txnstate.Step(rec, txnstate.Applied{Producer: rec.Producer, TxnSeq: rec.TxnSeq, Participants: rec.Participants}, i.now)
		if err == nil {
			befores = append(befores, plain(d.Next))
		}
	}
	add := func(before, after txnstate.Record) {
		if !strict && before.Equal(after) {
			after = rec // what was seen of the completion may be gone again
		}
		next = append(next, after)
	}
	for _, before := range befores {
		if i.ghosts != nil {
			add(before, before)
			for _, g := range i.ghosts {
				if d, err := step(before, g); err == nil {
					add(before, plain(d.Next))
				}
			}
			continue
		}
		if i.ev == nil {
			if o.unknown || describes(before, o) {
				add(before, before)
			}
			continue
		}
		d, err := step(before, i)
		if o.unknown {
			add(before, before)
			if err == nil {
				add(before, plain(d.Next))
			}
			continue
		}
		if err == nil && d.Refusal != nil {
			err = d.Refusal
		}
		if !strict && o.code == txnstate.CodeConcurrentTransactions && !before.State.Decided() {
			switch i.ev.(type) {
			case txnstate.Add, txnstate.Verify, txnstate.End:
				// The other owner has completed what this one is still delivering.
				add(before, before)
				continue
			}
		}
		code := txnstate.CodeOf(err)
		if code != o.code || code == txnstate.CodeNone && (d.Grant != o.grant || !slices.Equal(d.Missing, o.missing)) {
			continue
		}
		if d.Next.TxnID == "" {
			d.Next = before // refused
		}
		add(before, plain(d.Next))
	}
	return next
}

func step(rec txnstate.Record, i input) (txnstate.Decision, error) {
	return txnstate.Step(rec, i.ev, i.now)
}

// plain is a record without what only stores know.
func plain(r txnstate.Record) txnstate.Record {
	r.Version = 0
	return r
}

// describes reports whether an answer of Describe shows a record. Of a decided
// transaction it names the participants that have not confirmed.
func describes(rec txnstate.Record, o output) bool {
	if !rec.Known() {
		return o.code == txnstate.CodeTxnIDNotFound
	}
	got := plain(o.rec)
	if rec.State.Decided() {
		got.Participants = rec.Participants
	}
	return o.code == txnstate.CodeNone && got.Equal(rec)
}
