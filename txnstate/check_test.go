package txnstate

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each clause of Check, violated alone.
func TestCheckNamesWhatCannotBe(t *testing.T) {
	for name, edit := range map[string]func(*Record){
		"empty id":                          func(r *Record) { r.TxnID = "" },
		"unknown state 6":                   func(r *Record) { r.State = 6 },
		"unknown state -1":                  func(r *Record) { r.State = -1 },
		"producer -1/3":                     func(r *Record) { r.Producer.ID = -1 },
		"producer 7/-1":                     func(r *Record) { r.Producer.Epoch = -1 },
		"the fencing epoch 32767":           func(r *Record) { *r = emptyAt(7, FenceEpoch) },
		"previous producer id -2":           func(r *Record) { r.PrevID = -2 },
		"last epoch -2":                     func(r *Record) { r.LastEpoch = -2 },
		"timeout of -1 ms":                  func(r *Record) { r.TimeoutMs = -1 },
		"two-phase commit with a timeout":   func(r *Record) { r.TwoPhase = true },
		"next producer 8/0 in Ongoing":      func(r *Record) { r.State, r.Next = Ongoing, Producer{ID: 8} },
		"next producer 8/-1":                func(r *Record) { r.Next = Producer{ID: 8, Epoch: -1} },
		"next producer -1/0":                func(r *Record) { r.Next.Epoch = 0 },
		"next producer 7/0":                 func(r *Record) { r.Next = Producer{ID: 7} },
		"client transaction version -1":     func(r *Record) { r.ClientVersion = -1 },
		"PrepareCommit without a start":     func(r *Record) { r.StartMs = -1 },
		"Ongoing without a start":           func(r *Record) { r.State, r.StartMs = Ongoing, -1 },
		"CompleteCommit with 3 part":        func(r *Record) { r.State = CompleteCommit },
		"Empty with 3 part":                 func(r *Record) { r.State = Empty },
		"out of order or twice: b/0, a/0":   func(r *Record) { r.Participants[0], r.Participants[1] = r.Participants[1], r.Participants[0] },
		"out of order or twice: a/0, a/0":   func(r *Record) { r.Participants[1] = r.Participants[0] },
		"twice: group g, __consumer_offset": func(r *Record) { r.Participants = []Participant{Group("g"), Group("g").Wire()} },
		`participant ""/1`:                  func(r *Record) { r.Participants = []Participant{Partition("", 1)} },
		`participant "a"/-1`:                func(r *Record) { r.Participants = []Participant{Partition("a", -1)} },
	} {
		rec := emptyAt(7, 3)
		rec.State, rec.StartMs = PrepareCommit, 1
		rec.Participants = []Participant{Partition("a", 0), Partition("b", 0), {Kind: KindHost, Name: ""}}
		if err := Check(rec); err != nil {
			t.Fatalf("the sound record: %v", err)
		}
		edit(&rec)
		if err := Check(rec); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if Check(Unknown("pay")) == nil || Check(Record{}) == nil {
		t.Error("a record of nothing passes")
	}
}

// The limits of what is sound.
func TestCheckAcceptsWhatStepLeavesBehind(t *testing.T) {
	fenced := emptyAt(7, FenceEpoch)
	fenced.State, fenced.StartMs = CompleteAbort, 1
	open := fenced
	open.State = Ongoing // [probed] at Kafka: the fencing epoch can go on
	noGroup := open
	noGroup.Participants = []Participant{Group("")} // Kafka accepts "" in AddOffsetsToTxn
	twoPhase := emptyAt(7, 0)
	twoPhase.TwoPhase, twoPhase.TimeoutMs = true, NoTimeout
	later := emptyAt(0, 0)
	later.ClientVersion, later.TimeoutMs = 3, 0
	for _, r := range []Record{fenced, open, noGroup, twoPhase, later} {
		if err := Check(r); err != nil {
			t.Error(err)
		}
	}
}

// I1, I2, I3, I5, I6, I9 hold in every history of events, of both protocols
// mixed, near the end of the epochs, with failing writes and crashes.
func TestInvariantsHoldInEveryHistory(t *testing.T) {
	reached := map[string]int{}
	everywhere(t, reached, func(t *rapid.T) {
		h := newHistory(t)
		h.host = true
		h.run(t, 200, func(rec Record) {
			reached[rec.State.String()]++
			if rec.Next != NoProducer {
				reached["rotation planned"]++
			}
			if rec.PrevID != rec.Producer.ID {
				reached["rotated"]++
			}
			if rec.Producer.Epoch == FenceEpoch && rec.State == Ongoing {
				reached["open at 32767"]++
			}
		})
		for k, n := range h.reached {
			reached[k] += n
		}
	},
		"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "rotation planned", "rotated",
		"open at 32767", "repeated grant", "lost completion", "failed write", "late confirmation", "expired",
	)
}

// everywhere checks histories until they have been to all corners, which a
// generator that has become worse would never do: the test would be hollow.
func everywhere(t *testing.T, reached map[string]int, history func(*rapid.T), corners ...string) {
	for range 8 {
		rapid.Check(t, history)
		if testing.Short() || t.Failed() {
			return // a fifth of the histories, which need not go everywhere
		}
		corners = slices.DeleteFunc(corners, func(k string) bool { return reached[k] > 0 })
		if len(corners) == 0 {
			return
		}
	}
	t.Errorf("no history reached %q", corners)
}

// history drives Step with random events and watches it from outside: it knows
// the invariants and nothing of the rules.
type history struct {
	host bool // with what Kafka's log can't tell: participants of the host's own kind, no timeout outside of two-phase commit

	now    int64
	nextID int64
	ids    []*idHistory

	owner   map[int64]*idHistory // of every producer id ever given
	top     map[int64]int16      // the highest epoch of it in a record
	granted map[Producer]bool
	highest map[int64]int16 // the highest epoch of it that was granted
	reached map[string]int
}

type idHistory struct {
	rec     Record // as visible
	durable Record // as a crash leaves it
	held    []Producer
	owed    map[Participant]bool // by the decided transaction, as the wire names them
	outcome map[[2]int64]State   // of (incarnation, TxnSeq)
	lives   int64                // how often the id was created
}

func newHistory(t *rapid.T) *history {
	h := &history{
		now: 1_000_000, nextID: 100, owner: map[int64]*idHistory{}, top: map[int64]int16{}, granted: map[Producer]bool{},
		highest: map[int64]int16{}, reached: map[string]int{},
	}
	for i := range 2 {
		id := &idHistory{rec: Unknown(fmt.Sprintf("id-%d", i)), outcome: map[[2]int64]State{}}
		if rapid.Bool().Draw(t, "known at the start") {
			// An id in use for long, so that the end of the epochs is near.
			p := Producer{ID: int64(10 + i), Epoch: rapid.SampledFrom([]int16{0, 1, 32764, 32765, 32766, 32766, 32766}).Draw(t, "epoch")}
			id.rec = emptyAt(p.ID, p.Epoch)
			id.rec.TxnID = fmt.Sprintf("id-%d", i)
			id.held = append(id.held, p)
			h.owner[p.ID], h.top[p.ID], h.granted[p], h.highest[p.ID] = id, p.Epoch, true, p.Epoch
		}
		id.durable = id.rec
		h.ids = append(h.ids, id)
	}
	return h
}

// run makes n steps and shows every record that is stored.
func (h *history) run(t *rapid.T, n int, stored func(Record)) {
	for range n {
		h.now += rapid.SampledFrom([]int64{0, 1, 600, -300}).Draw(t, "clock")
		id := h.ids[rapid.IntRange(0, len(h.ids)-1).Draw(t, "id")]
		if rapid.IntRange(0, 20).Draw(t, "crash") == 0 {
			h.crash(id)
		}
		h.step(t, id, h.event(t, id), stored)
	}
}

// crash loses what was only written Later.
func (h *history) crash(id *idHistory) {
	if !id.rec.Equal(id.durable) {
		h.reached["lost completion"]++
	}
	id.rec = id.durable.Clone()
	if id.rec.State.Decided() {
		id.owed = wireSet(id.rec.Participants)
	}
}

func wireSet(ps []Participant) map[Participant]bool {
	set := map[Participant]bool{}
	for _, p := range ps {
		set[p.Wire()] = true
	}
	return set
}

func (h *history) event(t *rapid.T, id *idHistory) Event {
	rec := id.rec
	who := func() Producer {
		cur := rec.Producer
		options := []Producer{
			cur, cur, cur, cur, cur, cur, {ID: cur.ID, Epoch: cur.Epoch - 1}, {ID: cur.ID, Epoch: cur.Epoch + 1}, {ID: rec.PrevID, Epoch: MaxEpoch},
			{ID: cur.ID + 1, Epoch: cur.Epoch}, rec.Next, {ID: cur.ID, Epoch: rec.LastEpoch},
		}
		return rapid.SampledFrom(append(options, id.held...)).Draw(t, "who")
	}
	parts := func() []Participant {
		all := []Participant{Partition("a", 0), Partition("a", 1), Partition("b", 0), Group("g"), Group("h"), Partition(OffsetsTopic, Group("g").Index)}
		if h.host {
			all = append(all, Participant{Kind: KindHost, Name: "db", Index: 1})
		}
		return rapid.SliceOfN(rapid.SampledFrom(all), 0, 4).Draw(t, "participants")
	}
	newID := int64(-1)
	if rapid.IntRange(0, 4).Draw(t, "with a new id") > 0 {
		newID = h.nextID
		h.nextID++ // also where it turns out not to be needed
	}
	server := TransactionVersion(rapid.SampledFrom([]int8{0, 2}).Draw(t, "server"))
	client := TransactionVersion(rapid.SampledFrom([]int8{0, 2}).Draw(t, "client"))
	switch rapid.IntRange(0, 13).Draw(t, "event") {
	case 0, 1:
		timeouts := []int32{1000, 1000, 1000, 700}
		if h.host {
			timeouts = append(timeouts, 1000, 1000, NoTimeout)
		}
		ev := Init{Expected: NoProducer, TimeoutMs: rapid.SampledFrom(timeouts).Draw(t, "timeout"), Server: server, NewID: newID, TwoPhase: rapid.IntRange(0, 9).Draw(t, "two-phase") == 0}
		if rapid.Bool().Draw(t, "KIP-360") {
			ev.Expected = who()
		}
		return ev
	case 2, 3, 4:
		return Add{Producer: who(), Participants: parts(), Client: client, Limit: rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "limit")}
	case 5:
		return Verify{Producer: who(), Participants: parts()}
	case 6, 7, 8:
		return End{Producer: who(), Commit: rapid.Bool().Draw(t, "commit"), Client: client, NewID: newID}
	case 9, 10:
		return Applied{Producer: rec.Producer, TxnSeq: rec.TxnSeq, Participants: rec.Participants}
	case 11:
		ev := Applied{Producer: who(), TxnSeq: rec.TxnSeq + rapid.SampledFrom([]uint64{0, 0, 1}).Draw(t, "ahead"), Participants: parts()}
		if rapid.Bool().Draw(t, "late") {
			// Of the transaction before, which under TV1 had the same identity.
			ev = Applied{Producer: rec.Producer, TxnSeq: rec.TxnSeq - 1, Participants: rec.Participants}
			if rec.State.Decided() && len(rec.Participants) > 0 {
				h.reached["late confirmation"]++
			}
		}
		return ev
	case 12:
		return TimedOut{Server: server, NewID: newID}
	default:
		if rapid.Bool().Draw(t, "expire") {
			return Expire{AfterMs: 500}
		}
		return ForceAbort{Server: server, NewID: newID}
	}
}

func (h *history) step(t *rapid.T, id *idHistory, ev Event, stored func(Record)) {
	rec, before := id.rec, id.rec.Clone()
	d, err := Step(rec, ev, at(h.now))
	again, errAgain := Step(before.Clone(), ev, at(h.now))
	if !rec.Equal(before) {
		t.Fatalf("%#v changed the record it was given:\n%+v, was\n%+v", ev, rec, before)
	}
	if !reflect.DeepEqual(d, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
		t.Fatalf("%#v: two answers to one question:\n%+v, %v\n%+v, %v", ev, d, err, again, errAgain)
	}
	if err != nil {
		if !errors.Is(err, ErrNeedProducerID) && CodeOf(err) == CodeNone {
			t.Fatalf("%#v: refused without a code: %v", ev, err)
		}
		return
	}
	switch d.Write {
	case WriteNone:
		if !d.Next.Equal(rec) {
			t.Fatalf("%#v: changed and not to be stored:\n%+v, was\n%+v", ev, d.Next, rec)
		}
	case WriteDelete:
		if rec.State == Ongoing || rec.State.Decided() {
			t.Fatalf("%#v removed %s", ev, rec)
		}
	default:
		if err := Check(d.Next); err != nil {
			t.Fatalf("%#v on\n%+v makes\n%+v: %v", ev, rec, d.Next, err)
		}
	}
	if d.Effects.Markers && (d.Write != WriteDurable || !d.Next.State.Decided()) {
		t.Fatalf("I1: %#v sends markers of a decision that is not durable: %+v", ev, d)
	}
	if d.Write == WriteLater && !rec.State.Decided() {
		t.Fatalf("%#v: a change that nothing leads to again may be lost: %+v", ev, d)
	}
	if d.Write != WriteNone && rapid.IntRange(0, 9).Draw(t, "store fails") == 0 {
		h.reached["failed write"]++
		return // no answer and no effect either: the shell's duty
	}
	h.grant(t, id, ev, d)
	if d.Write == WriteNone {
		return
	}
	if d.Write == WriteDelete {
		h.reached["expired"]++
		id.rec, id.durable, id.owed = Unknown(rec.TxnID), Unknown(rec.TxnID), nil
		return
	}
	h.moved(t, id, ev, d)
	id.rec = d.Next
	if d.Write == WriteDurable {
		id.durable = d.Next.Clone()
	}
	h.resume(t, d.Next)
	stored(d.Next)
}

// grant watches I6: no identity is given to two holders, epochs only grow, 32767
// and -1 never reach a client.
func (h *history) grant(t *rapid.T, id *idHistory, ev Event, d Decision) {
	g := d.Grant
	if g == NoProducer {
		return
	}
	if g.ID < 0 || g.Epoch < 0 || g.Epoch > MaxEpoch {
		t.Fatalf("I6: %#v grants %s", ev, g)
	}
	if o := h.owner[g.ID]; o != nil && o != id {
		t.Fatalf("I6: producer id %d of %q is given to %q", g.ID, o.rec.TxnID, id.rec.TxnID)
	}
	init, fresh := ev.(Init)
	fresh = fresh && init.Expected == NoProducer
	highest, seen := h.highest[g.ID]
	switch {
	case !h.granted[g]:
		if seen && g.Epoch < highest {
			t.Fatalf("I6: %#v grants %s after epoch %d", ev, g, highest)
		}
	case fresh:
		t.Fatalf("I6: %#v grants %s, which somebody has", ev, g)
	case g.Epoch != highest:
		t.Fatalf("I6: %#v grants %s again, after epoch %d", ev, g, highest)
	default:
		h.reached["repeated grant"]++
	}
	h.owner[g.ID], h.granted[g] = id, true
	h.highest[g.ID] = max(highest, g.Epoch)
	id.held = append(id.held, g)
}

func (h *history) moved(t *rapid.T, id *idHistory, ev Event, d Decision) {
	rec, next := id.rec, d.Next
	if !rec.Known() {
		id.lives++
	}
	// I6: epochs only grow, and a producer id belongs to one transactional id.
	p := next.Producer
	if o := h.owner[p.ID]; o != nil && o != id {
		t.Fatalf("I6: %#v takes over producer id %d", ev, p.ID)
	}
	if top, seen := h.top[p.ID]; seen && p.Epoch < top {
		t.Fatalf("I6: %#v sets %s, after epoch %d", ev, p, top)
	}
	h.owner[p.ID], h.top[p.ID] = id, p.Epoch
	if p.ID != rec.Producer.ID && rec.Known() && !rec.Producer.exhausted() {
		t.Fatalf("%#v wastes producer id %s", ev, rec.Producer)
	}
	// I3, I5: a decided transaction is completed with its outcome and nothing else.
	if rec.State.Decided() {
		done := complete(rec.State == PrepareCommit)
		if next.State != rec.State && next.State != done {
			t.Fatalf("I3, I5: %#v moves %s to %s", ev, rec, next)
		}
	}
	key := [2]int64{id.lives, int64(next.TxnSeq)}
	if next.State != Empty && next.State != Ongoing {
		outcome := complete(next.State == PrepareCommit || next.State == CompleteCommit)
		if old, ok := id.outcome[key]; ok && old != outcome {
			t.Fatalf("I5: %#v makes %s of transaction %d, which was %s", ev, outcome, next.TxnSeq, old)
		}
		id.outcome[key] = outcome
	}
	if next.State.Decided() && !rec.State.Decided() {
		if next.TxnSeq != rec.TxnSeq+1 {
			t.Fatalf("%#v: transaction %d follows %d", ev, next.TxnSeq, rec.TxnSeq)
		}
		if !slices.Equal(next.Participants, rec.Participants) {
			t.Fatalf("I2: %#v decides for %v, open were %v", ev, next.Participants, rec.Participants)
		}
		if !d.Effects.Markers {
			t.Fatalf("I12: %#v decides and tells nobody", ev)
		}
		id.owed = wireSet(next.Participants)
	}
	// I2: nobody is forgotten, and nobody told twice more than needed.
	if ev, ok := ev.(Applied); ok && ev.TxnSeq == rec.TxnSeq {
		for _, p := range ev.Participants {
			delete(id.owed, p.Wire())
		}
	}
	switch {
	case next.State.Decided() && !reflect.DeepEqual(id.owed, wireSet(next.Participants)):
		t.Fatalf("I2: after %#v the record owes %v, the world is owed %v", ev, next.Participants, id.owed)
	case rec.State.Decided() && !next.State.Decided() && len(id.owed) > 0:
		t.Fatalf("I2: %#v completes, and %v have not applied it", ev, id.owed)
	}
	// The clock of a transaction starts once.
	if rec.State == Ongoing && next.State != Empty && next.StartMs != rec.StartMs {
		t.Fatalf("F26: %#v moves the start from %d to %d", ev, rec.StartMs, next.StartMs)
	}
	if _, ok := ev.(TimedOut); ok && rec.TwoPhase {
		t.Fatalf("KIP-939: %#v ends a prepared transaction", ev)
	}
	if next.Version != rec.Version || !slices.Equal(next.Extra, rec.Extra) {
		t.Fatalf("%#v touched what is the store's or a later version's", ev)
	}
}

// resume watches I12: a process that finds any stored record can bring the id to
// where its next transaction may begin.
func (h *history) resume(t *rapid.T, rec Record) {
	if e := Resume(rec); e.Markers != rec.State.Decided() {
		t.Fatalf("I12: Resume of %s says %+v", rec, e)
	}
	if rec.State.Decided() {
		d, err := Step(rec, Applied{Producer: rec.Producer, TxnSeq: rec.TxnSeq, Participants: rec.Participants}, at(h.now))
		if err != nil || d.Next.State != complete(rec.State == PrepareCommit) {
			t.Fatalf("I12: %s can't be completed: %s, %v", rec, d.Next, err)
		}
		rec = d.Next
	}
	if rec.State == Ongoing {
		return
	}
	d, err := Step(rec, Add{Producer: rec.Producer, Participants: []Participant{Partition("a", 0)}}, at(h.now))
	if err != nil || d.Next.State != Ongoing {
		t.Fatalf("I12: after %s no transaction can begin: %v", rec, err)
	}
	if e := Resume(rec); e.Fence != NoProducer && e.Fence.ID == rec.Producer.ID && e.Fence.Epoch > rec.Producer.Epoch {
		t.Fatalf("Resume of %s fences its holder: %s", rec, e.Fence)
	}
}
