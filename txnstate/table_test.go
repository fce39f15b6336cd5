package txnstate

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "record testdata/table.txt anew; the diff is a change of behaviour")

// The moments of the table: a record's own, the present, one before a
// transaction times out or an id expires.
const (
	tableStart, tableUpdate, tableNow = 100, 200, 5000
	tableNewID                        = 9
)

type tableRow struct {
	name string
	rec  Record
}

// tableRows are the records that events are tried on: every state, with epochs in
// the middle, at the last that is granted and at the one that only fences, and
// with a producer id that has just replaced another.
func tableRows() []tableRow {
	rows := []tableRow{{"an unknown id", Unknown("pay")}}
	row := func(name string, s State, p Producer, prev int64, last int16, next Producer, v TransactionVersion) {
		r := Record{
			TxnID: "pay", State: s, Producer: p, PrevID: prev, Next: next, LastEpoch: last, TimeoutMs: 1000,
			StartMs: tableStart, UpdateMs: tableUpdate, ClientVersion: v, TxnSeq: 3,
		}
		switch {
		case s == Empty:
			r.StartMs = -1
		case s == Ongoing, s.Decided():
			r.Participants = []Participant{Partition("a", 0), Partition("a", 1)}
		}
		rows = append(rows, tableRow{name, r})
	}
	none := NoProducer
	id := func(e int16) Producer { return Producer{ID: 7, Epoch: e} }
	next := Producer{ID: 8, Epoch: 0}
	row("Empty", Empty, id(5), 7, 4, none, TV0)
	row("Empty, after a rotation", Empty, id(0), 6, MaxEpoch, none, TV0)
	row("Empty, last epoch", Empty, id(MaxEpoch), 7, MaxEpoch-1, none, TV0)
	row("Ongoing", Ongoing, id(5), 7, 4, none, TV0)
	row("Ongoing, last epoch", Ongoing, id(MaxEpoch), 7, MaxEpoch-1, none, TV2)
	row("Ongoing, two-phase commit", Ongoing, id(5), 7, 4, none, TV2)
	rows[len(rows)-1].rec.TwoPhase, rows[len(rows)-1].rec.TimeoutMs = true, NoTimeout
	row("Ongoing, fencing epoch", Ongoing, id(FenceEpoch), 7, -1, none, TV0)
	for _, s := range []State{PrepareCommit, PrepareAbort} {
		row(s.String()+", TV1", s, id(5), 7, 4, none, TV0)
		row(s.String()+", TV2", s, id(6), 7, 5, none, TV2)
		row(s.String()+", TV2, rotating", s, id(FenceEpoch), 7, MaxEpoch, next, TV2)
	}
	row("PrepareAbort, TV1, fencing epoch", PrepareAbort, id(FenceEpoch), 7, -1, none, TV0)
	for _, s := range []State{CompleteCommit, CompleteAbort} {
		row(s.String()+", TV1", s, id(5), 7, 4, none, TV0)
		row(s.String()+", TV2", s, id(6), 7, 5, none, TV2)
		row(s.String()+", TV2, after a rotation", s, id(0), 6, MaxEpoch, none, TV2)
		row(s.String()+", last epoch", s, id(MaxEpoch), 7, MaxEpoch-1, none, TV2)
		row(s.String()+", fencing epoch", s, id(FenceEpoch), 7, -1, none, TV0)
	}
	return rows
}

type tableCaller struct {
	name string
	p    Producer
}

// tableCallers are the identities that requests may come with.
func tableCallers(r Record) []tableCaller {
	cur := r.Producer
	if !r.Known() {
		return []tableCaller{{"anybody", Producer{ID: 7, Epoch: 5}}}
	}
	out := []tableCaller{{"holder", cur}}
	if cur.Epoch > 0 {
		out = append(out, tableCaller{"epoch before", Producer{ID: cur.ID, Epoch: cur.Epoch - 1}})
	}
	if cur.Epoch > 3 {
		out = append(out, tableCaller{"stale epoch", Producer{ID: cur.ID, Epoch: cur.Epoch - 3}})
	}
	if cur.Epoch < FenceEpoch {
		out = append(out, tableCaller{"future epoch", Producer{ID: cur.ID, Epoch: cur.Epoch + 1}})
	}
	out = append(out, tableCaller{"other id", Producer{ID: 99, Epoch: cur.Epoch}})
	if r.PrevID != cur.ID {
		out = append(out,
			tableCaller{"replaced id, 32766", Producer{ID: r.PrevID, Epoch: MaxEpoch}},
			tableCaller{"replaced id, 32765", Producer{ID: r.PrevID, Epoch: MaxEpoch - 1}},
			tableCaller{"replaced id, 32767", Producer{ID: r.PrevID, Epoch: FenceEpoch}})
	}
	if r.Next != NoProducer {
		out = append(out, tableCaller{"next", r.Next})
	}
	return out
}

// tableResult is what an event makes of a record, in one line.
func tableResult(t *testing.T, rec Record, ev Event, now int64) string {
	t.Helper()
	d, err := Step(rec, ev, at(now))
	if e, ok := errors.AsType[*Error](err); ok {
		return fmt.Sprintf("%d %s", int16(e.Code), e.Code)
	} else if err != nil {
		t.Fatalf("%+v on %s: %v", ev, rec, err)
	}
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	opt := func(name string, p Producer) {
		if p != NoProducer {
			add("%s %s", name, p)
		}
	}
	stamp := func(name string, was, is int64) {
		switch {
		case is == was:
		case is == now:
			add("%s now", name)
		default:
			add("%s %d", name, is)
		}
	}
	n := d.Next
	switch d.Write {
	case WriteNone:
		add("no change")
		if !n.Equal(rec) {
			t.Errorf("%+v on %s: changed, not written", ev, rec)
		}
	case WriteDelete:
		add("deleted")
	default:
		if err := Check(n); err != nil {
			t.Errorf("%+v on %s: %v", ev, rec, err)
		}
		add("%s %s", n.State, n.Producer)
		if d.Write == WriteLater {
			add("later")
		}
		if n.PrevID != n.Producer.ID {
			add("prev %d", n.PrevID)
		}
		opt("next", n.Next)
		add("last %d", n.LastEpoch)
		add("ctv %d", n.ClientVersion)
		var names []string
		for _, p := range n.Participants {
			names = append(names, p.String())
		}
		add("[%s]", strings.Join(names, " "))
		stamp("start", rec.StartMs, n.StartMs)
		stamp("update", rec.UpdateMs, n.UpdateMs)
		if n.TimeoutMs != rec.TimeoutMs {
			add("timeout %d", n.TimeoutMs)
		}
		if n.TxnSeq != rec.TxnSeq {
			add("seq+%d", n.TxnSeq-rec.TxnSeq)
		}
	}
	if d.Effects.Markers {
		add("| markers")
	}
	opt("| fence", d.Effects.Fence)
	opt("| grant", d.Grant)
	if d.Missing != nil {
		add("| missing %v", d.Missing)
	}
	if d.Refusal != nil {
		add("| then %d %s", int16(d.Refusal.Code), d.Refusal.Code)
	}
	return strings.Join(out, " ")
}

// table is the whole of it.
func table(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`What Step makes of each event, on a record in each state. now is 5000, a fresh producer
id is 9. A line shows the record that is stored (state, identity, prev and next where
there are any, epoch before the latest bump, transaction version of the client,
participants, what becomes of start, update, timeout and the transaction's number),
"later" where the write needs not be durable, then the effects, what is granted, and
what is answered after the write. Or it shows the code of a refusal, which changes
nothing. Who asks is told by the identity in the request, as against the record's.
`)
	for _, row := range tableRows() {
		r := row.rec
		fmt.Fprintf(&b, "\n== %s: %s", row.name, r.State)
		if r.Known() {
			fmt.Fprintf(&b, " %s prev %d last %d", r.Producer, r.PrevID, r.LastEpoch)
			if r.Next != NoProducer {
				fmt.Fprintf(&b, " next %s", r.Next)
			}
			if err := Check(r); err != nil {
				t.Errorf("row %s: %v", row.name, err)
			}
		}
		b.WriteString("\n")
		// Lines with the same result are one, with all that lead to it, and a block
		// that both protocols share is there once.
		var order []string
		who := map[string][]string{}
		lines := func() string {
			var out strings.Builder
			for _, res := range order {
				fmt.Fprintf(&out, "%-46s %s\n", strings.Join(who[res], ", "), res)
			}
			order, who = nil, map[string][]string{}
			return out.String()
		}
		print := func(event, lines string) {
			for line := range strings.Lines(lines) {
				fmt.Fprintf(&b, "%-26s %s", event, line)
			}
		}
		flush := func(event string) { print(event, lines()) }
		try := func(by string, ev Event) {
			res := tableResult(t, r, ev, tableNow)
			if who[res] == nil {
				order = append(order, res)
			}
			who[res] = append(who[res], by)
		}
		versions := []struct {
			name string
			v    TransactionVersion
		}{{"TV1", TV1}, {"TV2", TV2}}
		both := func(event string, f func(v TransactionVersion)) {
			f(TV1)
			one := lines()
			f(TV2)
			if two := lines(); one == two {
				print(event, one)
			} else {
				print(event+", server TV1", one)
				print(event+", server TV2", two)
			}
		}

		both("Init", func(v TransactionVersion) {
			init := Init{Expected: NoProducer, TimeoutMs: 2000, Server: v, NewID: tableNewID}
			try("fresh", init)
			for _, c := range tableCallers(r) {
				init.Expected = c.p
				try(c.name, init)
			}
		})
		for _, v := range versions {
			for _, c := range tableCallers(r) {
				try(c.name, Add{Producer: c.p, Participants: []Participant{Partition("b", 0)}, Client: v.v})
			}
			flush("Add b/0, " + v.name)
		}
		for _, c := range tableCallers(r) {
			try(c.name, Add{Producer: c.p, Participants: []Participant{Partition("a", 1), Partition("a", 0)}, Client: TV2})
		}
		flush("Add a/0 a/1, TV2")
		try("holder", Add{Producer: r.Producer, Client: TV2})
		flush("Add nothing, TV2")
		try("holder", Add{Producer: r.Producer, Participants: []Participant{Partition("a", 0), Partition("b", 0)}, Limit: 1})
		flush("Add, more than the limit")
		for _, c := range tableCallers(r) {
			try(c.name, Verify{Producer: c.p, Participants: []Participant{Partition("a", 0), Partition("b", 0)}})
		}
		flush("Verify a/0 b/0")
		for _, v := range versions {
			for _, commit := range []bool{true, false} {
				for _, c := range tableCallers(r) {
					try(c.name, End{Producer: c.p, Commit: commit, Client: v.v, NewID: tableNewID})
				}
				flush(map[bool]string{true: "End commit, ", false: "End abort, "}[commit] + v.name)
			}
		}
		for _, c := range tableCallers(r) {
			try(c.name, Applied{Producer: c.p, TxnSeq: r.TxnSeq, Participants: r.Participants})
		}
		try("transaction before", Applied{Producer: r.Producer, TxnSeq: r.TxnSeq - 1, Participants: r.Participants})
		flush("Applied by all")
		try("holder", Applied{Producer: r.Producer, TxnSeq: r.TxnSeq, Participants: []Participant{Partition("a", 0)}})
		flush("Applied by a/0")
		try("holder", Applied{Producer: r.Producer, TxnSeq: r.TxnSeq, Participants: []Participant{Partition("b", 0)}})
		flush("Applied by b/0")
		both("TimedOut", func(v TransactionVersion) { try("", TimedOut{Server: v, NewID: tableNewID}) })
		both("ForceAbort", func(v TransactionVersion) { try("", ForceAbort{Server: v, NewID: tableNewID}) })
		try("", Expire{AfterMs: tableNow - tableUpdate})
		flush("Expire, due")
		try("", Expire{AfterMs: tableNow - tableUpdate + 1})
		flush("Expire, a millisecond early")
	}
	return b.String()
}

// The table of all moves is a file, so that a change of any of them is seen as
// one in review.
func TestTableOfMoves(t *testing.T) {
	got := table(t)
	t.Log("\n" + got)
	const file = "testdata/table.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")) // a checkout on Windows
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Fatalf("line %d of %s is\n%s\nand was\n%s\n(go test -run TableOfMoves -update records it anew)", i+1, file, a, b)
		}
	}
}

// answer is the short form of what Kafka's tables show: a code, 0 for an answer
// without a change, the state that is entered, and what is granted.
func answer(rec Record, ev Event) string {
	d, err := Step(rec, ev, at(tableNow))
	if err != nil {
		return fmt.Sprint(int16(CodeOf(err)))
	}
	s := "0"
	switch {
	case d.Write == WriteDelete:
		s = "gone"
	case d.Write != WriteNone:
		s = d.Next.State.String()
	case len(d.Missing) > 0:
		s = "120"
	}
	if d.Grant != NoProducer {
		s += " " + d.Grant.String()
	}
	if d.Refusal != nil {
		s += fmt.Sprintf(" %d", int16(d.Refusal.Code))
	}
	return s
}

// compare checks a table of answers: a heading, then a row for a record and one
// cell for each event. Cells are separated by bars.
func compare(t *testing.T, want string, events func(Record) []Event, rows map[string]Record) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(want), "\n")
	head := strings.Split(lines[0], "|")
	seen := 0
	for _, line := range lines[1:] {
		cells := strings.Split(line, "|")
		name := strings.TrimSpace(cells[0])
		rec, ok := rows[name]
		evs := events(rec)
		if !ok || len(cells) != len(head) || len(evs) != len(head)-1 {
			t.Fatalf("row %q: %d cells, %d in the heading, %d events", name, len(cells), len(head), len(evs))
		}
		seen++
		for i, ev := range evs {
			if got, want := answer(rec, ev), strings.TrimSpace(cells[i+1]); got != want {
				t.Errorf("%s, %s: %s, and Kafka's is %s", name, strings.TrimSpace(head[i+1]), got, want)
			}
		}
	}
	if seen != len(rows) {
		t.Errorf("%d of %d rows are in the table", seen, len(rows))
	}
}

func rowsOf(states ...string) map[string]Record {
	rows := map[string]Record{}
	for _, r := range tableRows() {
		for _, s := range states {
			if r.name == s {
				rows[s] = r.rec
			}
		}
	}
	return rows
}

// Kafka's answers by state under TV0 and TV1. Its rows for a transition under way
// are our Prepare rows: an id is serialised here, so nothing else is pending. (A
// pending Prepare answers CONCURRENT_TRANSACTIONS also to an End of the other
// outcome, where Kafka without a pending transition answers 48.)
func TestAnswersAreKafkasUnderTV1(t *testing.T) {
	const want = `
                  |Init             |Add           |Verify in|not in |commit             |abort            |Add other id|End other id|Add other epoch|End other epoch|timeout     |expiry
an unknown id     |Empty 9/0        |49            |49       |49     |49                 |49               |49          |49          |49             |49             |0           |0
Empty             |Empty 7/6        |Ongoing       |120      |120    |48                 |48               |49          |49          |90             |90             |0           |gone
Ongoing           |PrepareAbort 51  |Ongoing       |0        |120    |PrepareCommit      |PrepareAbort     |49          |49          |90             |90             |PrepareAbort|0
PrepareCommit, TV1|51               |51            |51       |51     |51                 |51               |51          |49          |51             |90             |0           |0
PrepareAbort, TV1 |51               |51            |51       |51     |51                 |51               |51          |49          |51             |90             |0           |0
CompleteCommit, TV1|Empty 7/6       |Ongoing       |120      |120    |0                  |48               |49          |49          |90             |90             |0           |gone
CompleteAbort, TV1|Empty 7/6        |Ongoing       |120      |120    |48                 |0                |49          |49          |90             |90             |0           |gone
`
	rows := rowsOf("an unknown id", "Empty", "Ongoing", "PrepareCommit, TV1", "PrepareAbort, TV1", "CompleteCommit, TV1", "CompleteAbort, TV1")
	for _, off := range []int16{-3, -1, +1} { // "other epoch": in any direction
		compare(t, want, func(r Record) []Event {
			p := r.Producer
			other, epoch := Producer{ID: 99, Epoch: p.Epoch}, Producer{ID: p.ID, Epoch: p.Epoch + off}
			in, out := []Participant{Partition("a", 0)}, []Participant{Partition("b", 0)}
			return []Event{
				Init{Expected: NoProducer, TimeoutMs: 1000, Server: TV1, NewID: tableNewID},
				Add{Producer: p, Participants: out},
				Verify{Producer: p, Participants: in}, Verify{Producer: p, Participants: out},
				End{Producer: p, Commit: true, NewID: -1}, End{Producer: p, NewID: -1},
				Add{Producer: other, Participants: out}, End{Producer: other, Commit: true, NewID: -1},
				Add{Producer: epoch, Participants: out}, End{Producer: epoch, Commit: true, NewID: -1},
				TimedOut{Server: TV1, NewID: -1}, Expire{AfterMs: 1000},
			}
		}, rows)
	}
}

// The same for EndTxn v5 and later. A Prepare state answers 51 before it looks at
// the identity.
func TestAnswersAreKafkasUnderTV2(t *testing.T) {
	const want = `
                   |commit           |abort            |commit, e-1|abort, e-1|commit, e-2|abort, e+1|commit, other id|abort, other id
an unknown id      |49               |49               |49         |49        |49         |49        |49              |49
Empty              |48               |PrepareAbort 7/6 |90         |90        |90         |90        |49              |49
Ongoing            |PrepareCommit 7/6|PrepareAbort 7/6 |90         |90        |90         |90        |49              |49
PrepareCommit, TV2 |51               |51               |51         |51        |51         |51        |51              |51
PrepareAbort, TV2  |51               |51               |51         |51        |51         |51        |51              |51
CompleteCommit, TV2|48               |PrepareAbort 7/7 |0 7/6      |48        |90         |90        |49              |49
CompleteAbort, TV2 |48               |PrepareAbort 7/7 |48         |0 7/6     |90         |90        |49              |49
`
	compare(t, want, func(r Record) []Event {
		p := r.Producer
		end := func(id int64, e int16, commit bool) Event {
			return End{Producer: Producer{ID: id, Epoch: e}, Commit: commit, Client: TV2, NewID: tableNewID}
		}
		return []Event{
			end(p.ID, p.Epoch, true), end(p.ID, p.Epoch, false), end(p.ID, p.Epoch-1, true), end(p.ID, p.Epoch-1, false),
			end(p.ID, p.Epoch-2, true), end(p.ID, p.Epoch+1, false), end(99, p.Epoch, true), end(99, p.Epoch, false),
		}
	}, rowsOf("an unknown id", "Empty", "Ongoing", "PrepareCommit, TV2", "PrepareAbort, TV2", "CompleteCommit, TV2", "CompleteAbort, TV2"))
}

// EndTxn v5 by the holder of a producer id that was just replaced, and around the
// last epochs, as probed at Kafka 4.4. One answer is ours: an abort with 32766
// after a fence under TV1 went to 32767. Kafka's rule for retries would grant
// 32767, which no client may have (I6).
func TestAnswersAreKafkasWhereEpochsEnd(t *testing.T) {
	const want = `
                                   |commit           |abort           |commit, prev 32766|abort, prev 32766|commit, prev 32765|Add             |Init
Empty, after a rotation            |48               |PrepareAbort 7/1|90                |90               |49                |Ongoing         |Empty 7/1
CompleteCommit, TV2, after a rotation|48             |PrepareAbort 7/1|0 7/0             |48               |49                |Ongoing         |Empty 7/1
CompleteAbort, TV2, after a rotation|48              |PrepareAbort 7/1|48                |0 7/0            |49                |Ongoing         |Empty 7/1
Empty, last epoch                  |48               |PrepareAbort 9/0|48                |PrepareAbort 9/0 |90                |Ongoing         |Empty 9/0
Ongoing, last epoch                |PrepareCommit 9/0|PrepareAbort 9/0|PrepareCommit 9/0 |PrepareAbort 9/0 |90                |Ongoing         |PrepareAbort 51
Ongoing, fencing epoch             |-1               |PrepareAbort 9/0|90                |90               |90                |Ongoing         |PrepareAbort 51
CompleteAbort, fencing epoch       |48               |PrepareAbort 9/0|48                |90               |90                |Ongoing         |Empty 9/0
PrepareCommit, TV2, rotating       |51               |51              |51                |51               |51                |51              |51
`
	compare(t, want, func(r Record) []Event {
		end := func(p Producer, commit bool) Event {
			return End{Producer: p, Commit: commit, Client: TV2, NewID: tableNewID}
		}
		prev := Producer{ID: r.PrevID, Epoch: MaxEpoch}
		return []Event{
			end(r.Producer, true), end(r.Producer, false), end(prev, true), end(prev, false), end(Producer{ID: r.PrevID, Epoch: MaxEpoch - 1}, true),
			Add{Producer: r.Producer, Participants: []Participant{Partition("b", 0)}, Client: TV2},
			Init{Expected: NoProducer, TimeoutMs: 1000, Server: TV2, NewID: tableNewID},
		}
	}, rowsOf("Empty, after a rotation", "CompleteCommit, TV2, after a rotation", "CompleteAbort, TV2, after a rotation", "Empty, last epoch",
		"Ongoing, last epoch", "Ongoing, fencing epoch", "CompleteAbort, fencing epoch", "PrepareCommit, TV2, rotating"))
}

// InitProducerId with the caller's identity (KIP-360).
func TestInitWithAnIdentityAnswersAsKafkas(t *testing.T) {
	const want = `
                         |ee = e         |ee = last     |stale         |future         |other id|prev, 32766   |prev, 32765
an unknown id            |Empty 9/0      |Empty 9/0     |Empty 9/0     |Empty 9/0      |Empty 9/0|Empty 9/0    |Empty 9/0
Empty                    |Empty 7/6      |Empty 7/5     |90            |90             |90      |90            |90
Empty, after a rotation  |Empty 7/1      |Empty 7/0     |90            |90             |90      |Empty 7/0     |90
Empty, last epoch        |Empty 9/0      |-1            |-1            |-1             |90      |Empty 9/0     |-1
Ongoing                  |PrepareAbort 51|PrepareAbort 51|PrepareAbort 51|PrepareAbort 51|90     |PrepareAbort 51|PrepareAbort 51
PrepareCommit, TV2       |51             |51            |51            |51             |51      |51            |51
CompleteCommit, TV2      |Empty 7/7      |Empty 7/6     |90            |90             |90      |90            |90
CompleteAbort, TV2, after a rotation|Empty 7/1|Empty 7/0|90            |90             |90      |Empty 7/0     |90
CompleteAbort, fencing epoch|Empty 9/0   |-1            |-1            |-1             |90      |-1            |-1
`
	compare(t, want, func(r Record) []Event {
		p := r.Producer
		init := func(id int64, e int16) Event {
			return Init{Expected: Producer{ID: id, Epoch: e}, TimeoutMs: 1000, Server: TV2, NewID: tableNewID}
		}
		if !r.Known() {
			p = Producer{ID: 7, Epoch: 5}
		}
		future := min(int32(p.Epoch)+1, 32767)
		if p.Epoch == FenceEpoch {
			future = 5
		}
		return []Event{
			init(p.ID, p.Epoch), init(p.ID, r.LastEpoch), init(p.ID, p.Epoch-3), init(p.ID, int16(future)), init(99, p.Epoch),
			init(r.PrevID, MaxEpoch), init(r.PrevID, MaxEpoch-1),
		}
	}, rowsOf("an unknown id", "Empty", "Empty, after a rotation", "Empty, last epoch", "Ongoing", "PrepareCommit, TV2", "CompleteCommit, TV2",
		"CompleteAbort, TV2, after a rotation", "CompleteAbort, fencing epoch"))
}
