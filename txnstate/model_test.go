package txnstate

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The model remembers everything that ever happened to an id, and works each
// answer out anew from that. It keeps none of the fields of a Record, so what
// they are for is written down here once more.
type model struct {
	past []happened
}

// happened is one change of the id, as it was told to whoever asked.
type happened struct {
	what string // "granted", "added", "ended", "applied", "done", "expired"
	ms   int64

	who     Producer // in force from then on: granted, ended, done
	own     bool     // the holder asked for it, and showed who it was
	again   bool     // granted: what it had been granted before
	timeout int32
	two     bool

	parts  []Participant // added, applied
	client TransactionVersion
	commit bool
	next   Producer // in force when it is done

	byServer bool // ended: against the holder
}

// life is the past since the id last expired.
func (m *model) life() []happened {
	for i := len(m.past) - 1; i >= 0; i-- {
		if m.past[i].what == "expired" {
			return m.past[i+1:]
		}
	}
	return m.past
}

func (m *model) known() bool { return len(m.life()) > 0 }

// identity is the one in force after n changes of this life.
func (m *model) identityAfter(n int) Producer {
	who := NoProducer
	for _, h := range m.life()[:n] {
		switch h.what {
		case "granted", "ended", "done":
			who = h.who
		}
	}
	return who
}

func (m *model) identity() Producer { return m.identityAfter(len(m.life())) }

// before is the producer id that was in force before the latest change. A
// confirmation that is not the last is none.
func (m *model) before() int64 {
	life := m.life()
	for n := len(life) - 1; n >= 0; n-- {
		if life[n].what != "applied" {
			if n == 0 {
				return life[n].who.ID
			}
			return m.identityAfter(n).ID
		}
	}
	return -1
}

// ownEpoch is the epoch from which the holder bumped itself to the present one,
// -1 where it did not.
func (m *model) ownEpoch() int16 {
	own := int16(-1)
	for n, h := range m.life() {
		was := m.identityAfter(n).Epoch
		switch {
		case h.what == "granted" && h.own && !h.again:
			own = was
		case h.what == "granted" && !h.own:
			own = -1
		case h.what == "ended" && h.client >= TV2:
			own = was
		case h.what == "ended" && !h.own:
			own = -1
		}
	}
	return own
}

func (m *model) state() State {
	s := Empty
	for _, h := range m.life() {
		switch h.what {
		case "granted":
			s = Empty
		case "added":
			s = Ongoing
		case "ended":
			s = outcome(h.commit)
		case "done":
			s = complete(s == PrepareCommit)
		}
	}
	return s
}

// parts are the participants of the present transaction that have not applied it,
// by their names on the wire.
func (m *model) parts() map[Participant]bool {
	set := map[Participant]bool{}
	for _, h := range m.life() {
		switch h.what {
		case "granted", "done":
			clear(set)
		case "added":
			for _, p := range h.parts {
				set[p.Wire()] = true
			}
		case "applied":
			for _, p := range h.parts {
				delete(set, p.Wire())
			}
		}
	}
	return set
}

func (m *model) latest(what ...string) (last happened, ok bool) {
	for _, h := range m.life() {
		if slices.Contains(what, h.what) {
			last, ok = h, true
		}
	}
	return last, ok
}

// begun is when the present transaction began, or the latest.
func (m *model) begun() int64 {
	at, open := int64(-1), false
	for _, h := range m.life() {
		switch h.what {
		case "granted":
			at, open = -1, false
		case "added":
			if !open {
				at, open = h.ms, true
			}
		case "ended":
			if !open {
				at = h.ms
			}
			open = false
		}
	}
	return at
}

// told is what the caller is told.
type told struct {
	code    Code
	grant   Producer
	missing []Participant
	needID  bool
}

var nothing = told{grant: NoProducer}

func refusal(c Code) told { return told{code: c, grant: NoProducer} }

// ask is what an event is answered, and what happens by it.
func (m *model) ask(ev Event, ms int64) (told, []happened) {
	ms = max(ms, 0) // no time is before 1970, where -1 is none
	cur, st := m.identity(), m.state()
	switch ev := ev.(type) {
	case Init:
		return m.init(ev, ms)
	case Add:
		switch all := m.parts(); {
		case !m.known():
			return refusal(CodeInvalidProducerIDMapping), nil
		case st.Decided():
			return refusal(CodeConcurrentTransactions), nil
		case ev.Producer.ID != cur.ID:
			return refusal(CodeInvalidProducerIDMapping), nil
		case ev.Producer.Epoch != cur.Epoch:
			return refusal(CodeProducerFenced), nil
		default:
			n := len(all)
			for _, p := range ev.Participants {
				all[p.Wire()] = true
			}
			if st == Ongoing && len(all) == n {
				return nothing, nil
			}
			if ev.Limit > 0 && len(all) > ev.Limit {
				return refusal(CodePolicyViolation), nil
			}
			return nothing, []happened{{what: "added", ms: ms, parts: ev.Participants, client: ev.Client}}
		}
	case Verify:
		switch {
		case !m.known(), ev.Producer.ID != cur.ID:
			return refusal(CodeInvalidProducerIDMapping), nil
		case ev.Producer.Epoch != cur.Epoch:
			return refusal(CodeProducerFenced), nil
		case st.Decided():
			return refusal(CodeConcurrentTransactions), nil
		}
		a := nothing
		for _, p := range ev.Participants {
			if !m.parts()[p.Wire()] {
				a.missing = append(a.missing, p)
			}
		}
		return a, nil
	case End:
		return m.end(ev, ms)
	case Applied:
		return nothing, m.applied(ev, ms)
	case TimedOut:
		g, _ := m.latest("granted")
		if st != Ongoing || g.two || g.timeout == NoTimeout || m.begun()+int64(g.timeout) >= ms {
			return nothing, nil
		}
		return m.abort(ev.Server, ev.NewID, ms)
	case ForceAbort:
		switch {
		case !m.known():
			return refusal(CodeTxnIDNotFound), nil
		case st.Decided():
			return refusal(CodeConcurrentTransactions), nil
		case st != Ongoing:
			return refusal(CodeInvalidTxnState), nil
		}
		return m.abort(ev.Server, ev.NewID, ms)
	case Expire:
		last, ok := m.latest("granted", "added", "ended", "done")
		if !ok || st == Ongoing || st.Decided() || last.ms > ms-ev.AfterMs {
			return nothing, nil
		}
		return nothing, []happened{{what: "expired"}}
	}
	return refusal(CodeUnknownServerError), nil
}

func (m *model) init(ev Init, ms int64) (told, []happened) {
	cur := m.identity()
	stranger := ev.Expected == NoProducer
	give := func(p Producer, again bool) (told, []happened) {
		if p.ID < 0 {
			return told{needID: true}, nil
		}
		return told{grant: p}, []happened{{what: "granted", ms: ms, who: p, own: m.known() && !stranger, again: again, timeout: ev.TimeoutMs, two: ev.TwoPhase}}
	}
	fresh := Producer{ID: ev.NewID}
	switch {
	case !m.known():
		return give(fresh, false)
	case m.state().Decided():
		return refusal(CodeConcurrentTransactions), nil
	case !stranger && ev.Expected.ID != cur.ID && !(ev.Expected.ID >= 0 && ev.Expected.ID == m.before() && ev.Expected.Epoch >= MaxEpoch):
		return refusal(CodeProducerFenced), nil
	case m.state() == Ongoing:
		a, h := m.abort(ev.Server, ev.NewID, ms)
		if !a.needID {
			a = refusal(CodeConcurrentTransactions)
		}
		return a, h
	case cur.Epoch >= MaxEpoch && (stranger || ev.Expected.Epoch == cur.Epoch):
		return give(fresh, false)
	case cur.Epoch >= MaxEpoch:
		return refusal(CodeUnknownServerError), nil
	case stranger || ev.Expected.Epoch == cur.Epoch:
		return give(Producer{cur.ID, cur.Epoch + 1}, false)
	case ev.Expected.Epoch == m.ownEpoch():
		return give(cur, true)
	}
	return refusal(CodeProducerFenced), nil
}

func (m *model) end(ev End, ms int64) (told, []happened) {
	cur, st := m.identity(), m.state()
	switch {
	case !m.known():
		return refusal(CodeInvalidProducerIDMapping), nil
	case ev.Client < TV2:
		switch {
		case ev.Producer.ID != cur.ID:
			return refusal(CodeInvalidProducerIDMapping), nil
		case ev.Producer.Epoch != cur.Epoch:
			return refusal(CodeProducerFenced), nil
		case st.Decided():
			return refusal(CodeConcurrentTransactions), nil
		case st == Ongoing:
			return nothing, []happened{{what: "ended", ms: ms, who: cur, next: cur, own: true, commit: ev.Commit}}
		case st == complete(ev.Commit):
			return nothing, nil // asked again
		}
		return refusal(CodeInvalidTxnState), nil
	case st.Decided():
		return refusal(CodeConcurrentTransactions), nil
	}
	// Who has the last epoch of the producer id before, and asks again.
	rotated := ev.Producer.ID == m.before() && ev.Producer.Epoch == MaxEpoch && cur.Epoch == 0
	if ev.Producer.ID != cur.ID && !rotated {
		return refusal(CodeInvalidProducerIDMapping), nil
	}
	again := (st == CompleteCommit || st == CompleteAbort) && (rotated || ev.Producer.Epoch == cur.Epoch-1)
	switch {
	case again && st != complete(ev.Commit):
		return refusal(CodeInvalidTxnState), nil
	case again:
		last, _ := m.latest("added", "ended")
		// An end of TV1 bumps no epoch: the one below was somebody else's. A fence
		// of the server bumps it and gives it to nobody.
		if cur.Epoch > MaxEpoch || last.client < TV2 && last.own && ev.Producer.Epoch != m.ownEpoch() {
			return refusal(CodeProducerFenced), nil
		}
		return told{grant: cur}, nil
	case ev.Producer.Epoch != cur.Epoch:
		return refusal(CodeProducerFenced), nil
	case st != Ongoing && ev.Commit:
		return refusal(CodeInvalidTxnState), nil
	case ev.Commit && cur.Epoch == FenceEpoch:
		return refusal(CodeUnknownServerError), nil
	}
	h, ok := m.bumped(ev.Commit, ev.NewID, ms)
	if !ok {
		return told{needID: true}, nil
	}
	return told{grant: h.next}, []happened{h}
}

// bumped is an end under TV2: it takes an epoch, and at the last one the next
// transaction has another producer id.
func (m *model) bumped(commit bool, newID, ms int64) (happened, bool) {
	p := m.identity()
	used := p.Epoch >= MaxEpoch
	p.Epoch = min(p.Epoch, MaxEpoch) + 1
	h := happened{what: "ended", ms: ms, who: p, next: p, client: TV2, commit: commit}
	if used {
		h.next = Producer{ID: newID}
	}
	return h, !used || newID >= 0
}

// abort ends the transaction against its holder.
func (m *model) abort(server TransactionVersion, newID, ms int64) (told, []happened) {
	if server >= TV2 {
		h, ok := m.bumped(false, newID, ms)
		if !ok {
			return told{needID: true}, nil
		}
		h.byServer = true
		return nothing, []happened{h}
	}
	p := m.identity()
	p.Epoch = min(p.Epoch, MaxEpoch) + 1
	return nothing, []happened{{what: "ended", ms: ms, who: p, next: p, byServer: true}}
}

func (m *model) applied(ev Applied, ms int64) []happened {
	ended := 0
	for _, h := range m.life() {
		if h.what == "ended" {
			ended++
		}
	}
	if !m.state().Decided() || ev.Producer != m.identity() || ev.TxnSeq != uint64(ended) {
		return nil
	}
	rest := m.parts()
	n := len(rest)
	for _, p := range ev.Participants {
		delete(rest, p.Wire())
	}
	if len(rest) > 0 {
		if len(rest) == n {
			return nil
		}
		return []happened{{what: "applied", parts: ev.Participants}}
	}
	e, _ := m.latest("ended")
	return []happened{{what: "done", ms: ms, who: e.next}}
}

// shows compares a record with what the model knows.
func (m *model) shows(t *rapid.T, rec Record) {
	if !m.known() {
		if rec.Known() {
			t.Fatalf("the record is %s, and the id is not known", rec)
		}
		return
	}
	g, _ := m.latest("granted")
	want := Record{
		TxnID: rec.TxnID, State: m.state(), Producer: m.identity(), PrevID: m.before(), Next: NoProducer, LastEpoch: m.ownEpoch(),
		TimeoutMs: g.timeout, StartMs: m.begun(), TwoPhase: g.two, Participants: rec.Participants, Version: rec.Version,
	}
	if g.two {
		want.TimeoutMs = NoTimeout
	}
	last, _ := m.latest("granted", "added", "ended", "done")
	want.UpdateMs = last.ms
	if last.what == "ended" && last.next.ID != last.who.ID {
		want.Next = last.next
	}
	switch last, _ := m.latest("added", "ended"); {
	case last.what == "ended" && !last.own && last.client < TV2:
		want.ClientVersion = TV1 // a fence of the server
	default:
		want.ClientVersion = last.client
	}
	for _, h := range m.life() {
		if h.what == "ended" {
			want.TxnSeq++
		}
	}
	if !reflect.DeepEqual(rec, want) || len(rec.Participants) != len(m.parts()) {
		t.Fatalf("the record is\n%#v, and what happened makes it\n%#v with %v", rec, want, m.parts())
	}
	for _, p := range rec.Participants {
		if !m.parts()[p.Wire()] {
			t.Fatalf("the record has %s, and the transaction %v", p, m.parts())
		}
	}
}

// follows is how a change has to be stored, and what it leads to.
func (m *model) follows(happens []happened) (Write, Effects) {
	e := Effects{Fence: NoProducer}
	if len(happens) == 0 {
		return WriteNone, e
	}
	switch h, was := happens[0], m.identity(); h.what {
	case "granted":
		switch {
		case h.who.Epoch > 0 && h.who != was:
			e.Fence = h.who
		case m.known() && h.who.ID != was.ID:
			e.Fence = Producer{ID: was.ID, Epoch: FenceEpoch}
		}
	case "ended":
		e.Markers = true
		if h.byServer {
			e.Fence = h.who
		}
	case "applied", "done":
		return WriteLater, e
	case "expired":
		return WriteDelete, e
	}
	return WriteDurable, e
}

// Step answers any history of events as a model does that remembers all of it, and
// keeps in the record what the model makes of it, to the last field.
func TestStepIsTheModel(t *testing.T) {
	answers := map[string]int{}
	everywhere(t, answers, func(t *rapid.T) {
		h := newHistory(t)
		h.host = true
		models := map[*idHistory]*model{}
		for _, id := range h.ids {
			m := &model{}
			if id.rec.Known() {
				m.past = []happened{{what: "granted", ms: id.rec.UpdateMs, who: id.rec.Producer, timeout: id.rec.TimeoutMs}}
			}
			models[id] = m
		}
		for range 120 {
			h.now += rapid.SampledFrom([]int64{0, 1, 600, -300}).Draw(t, "clock")
			id := h.ids[rapid.IntRange(0, len(h.ids)-1).Draw(t, "id")]
			m := models[id]
			ev := h.event(t, id)
			switch ev := ev.(type) { // at the very moment as often as not
			case TimedOut:
				if g, _ := m.latest("granted"); m.state() == Ongoing && rapid.Bool().Draw(t, "at the deadline") {
					h.now = m.begun() + int64(g.timeout) + rapid.Int64Range(-1, 1).Draw(t, "off by")
				}
			case Expire:
				if last, ok := m.latest("granted", "added", "ended", "done"); ok && rapid.Bool().Draw(t, "at the deadline") {
					h.now = last.ms + ev.AfterMs + rapid.Int64Range(-1, 1).Draw(t, "off by")
				}
			}
			want, happens := m.ask(ev, h.now)
			d, err := Step(id.rec, ev, at(h.now))
			if errors.Is(err, ErrNeedProducerID) != want.needID {
				t.Fatalf("%#v on %s: %v, and a producer id is needed: %v", ev, id.rec, err, want.needID)
			}
			if want.needID {
				answers["a producer id is needed"]++
				continue
			}
			if err == nil && d.Refusal != nil {
				err = d.Refusal
			}
			if err != nil && d.Next.TxnID == "" {
				d.Next = id.rec
			}
			if got := CodeOf(err); got != want.code {
				t.Fatalf("%#v on %+v is answered %s, and should be %s", ev, id.rec, got, want.code)
			}
			if err == nil && (d.Grant != want.grant || !slices.Equal(d.Missing, want.missing)) {
				t.Fatalf("%#v on %+v is answered %s %v, and should be %s %v", ev, id.rec, d.Grant, d.Missing, want.grant, want.missing)
			}
			if err == nil || d.Refusal != nil {
				if w, e := m.follows(happens); d.Write != w || d.Effects != e {
					t.Fatalf("%#v on %+v is stored in way %d and leads to %+v, and should in way %d to %+v, since it changes %+v", ev, id.rec, d.Write, d.Effects, w, e, happens)
				}
			} else if d.Write != WriteNone || len(happens) > 0 {
				t.Fatalf("%#v on %+v is refused and to be stored: %v, %+v", ev, id.rec, d.Write, happens)
			}
			answers[ev.Name()+" "+want.code.String()]++
			if rapid.IntRange(0, 9).Draw(t, "store fails") == 0 {
				continue
			}
			m.past = append(m.past, happens...)
			if id.rec = d.Next; d.Write == WriteDelete {
				id.rec = Unknown(id.rec.TxnID)
			}
			if err == nil && d.Grant != NoProducer {
				id.held = append(id.held, d.Grant)
			}
			m.shows(t, id.rec)
		}
	},
		"a producer id is needed", "Init NONE", "Init PRODUCER_FENCED", "Init CONCURRENT_TRANSACTIONS", "Init UNKNOWN_SERVER_ERROR", "Add NONE", "Add POLICY_VIOLATION",
		"Add PRODUCER_FENCED", "Add INVALID_PRODUCER_ID_MAPPING", "Verify NONE", "End NONE", "End INVALID_TXN_STATE", "End PRODUCER_FENCED", "ForceAbort INVALID_TXN_STATE", "Expire NONE",
	)
}
