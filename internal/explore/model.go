package explore

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// StepFunc is txnstate.Step, or something that should be.
type StepFunc func(txnstate.Record, txnstate.Event, time.Time) (txnstate.Decision, error)

// DecideFunc is markers.Decide, or something that should be.
type DecideFunc func(markers.Marker, fence.ProducerState, bool) error

// World is what is explored.
type World struct {
	Name   string
	Server txnstate.TransactionVersion           // of aborts by the coordinator
	Client [nClients]txnstate.TransactionVersion // of each client's requests
	// Epoch is that of the identity that the record begins with, which no client
	// holds; negative is an id that nobody has used.
	Epoch int16
	// Faults is how many of crashes, takeovers, timeouts, expiries, lost answers,
	// restarts of clients and aborts without cause happen at most.
	Faults int
	// Txns is how many transactions each client begins at most, and Parts how many
	// participants it has in one: the first client begins with the first of the
	// three, the second with the last.
	Txns, Parts [nClients]int
	// Partly lets the coordinator learn of confirmations one by one. Otherwise it
	// waits for all, as txnstate.Coordinator does.
	Partly bool

	Step   StepFunc   // nil is txnstate.Step
	Decide DecideFunc // nil is markers.Decide
}

// label names a move, for people.
type label struct {
	format  string
	a, b, c int
}

func (l label) String() string {
	args := []any{l.a, l.b, l.c}
	return fmt.Sprintf(l.format, args[:strings.Count(l.format, "%")]...)
}

// broken is a violation, found in the middle of a move.
type broken struct{ what string }

// violated ends the move under way. Explore and settle take it up.
func violated(format string, args ...any) { panic(broken{fmt.Sprintf(format, args...)}) }

// walker makes the moves of a world.
type walker struct {
	World
	emit func(label, *state)

	copies [][]state // room for states under way, used again for each
	used   int
}

// copy is a copy of a state, good until the next call of moves.
func (w *walker) copy(s *state) *state {
	const chunk = 64
	if w.used/chunk == len(w.copies) {
		w.copies = append(w.copies, make([]state, chunk))
	}
	n := &w.copies[w.used/chunk][w.used%chunk]
	w.used++
	*n = *s
	return n
}

func (w *walker) begin() state {
	s := state{rec: unknown, durable: unknown, coord: 1, faults: int8(w.Faults), latest: nobody, holder: -1}
	for p := range s.parts {
		for pid := range s.parts[p] {
			s.parts[p][pid] = known{epoch: -1, coord: -1}
		}
	}
	for i := range s.fences {
		s.fences[i] = -1
	}
	for c := range s.clients {
		s.clients[c].id, s.clients[c].oldID = nobody, nobody
	}
	if w.Epoch >= 0 {
		s.rec.producer, s.rec.prev = ident{0, w.Epoch}, 0
		s.durable = s.rec
		s.nextPID = 1
	}
	return s
}

// moves calls emit with every state that s can become.
func (w *walker) moves(s *state) {
	w.used = 0
	w.deliveries(s)
	w.appends(s)
	w.mishaps(s)
	for c := range s.clients {
		w.client(s, c)
		w.late(s, c)
	}
}

// owners calls f for each coordinator that takes requests.
func (w *walker) owners(s *state, f func(coord int8)) {
	f(s.coord)
	if s.zombie {
		f(s.coord - 1)
	}
}

// do lets a coordinator apply an event: load, step and swap in one, since the
// store lets no other write come in between. It reports an error that the caller
// is answered, and panics at what must never be.
func (w *walker) do(s *state, coord int8, ev txnstate.Event) (txnstate.Decision, error) {
	now := time.UnixMilli(nowMs)
	switch ev.(type) {
	case txnstate.TimedOut, txnstate.Expire:
		now = time.UnixMilli(laterMs)
	}
	step := w.Step
	if step == nil {
		step = txnstate.Step
	}
	rec := s.rec.full()
	d, err := step(rec, ev, now)
	if errors.Is(err, txnstate.ErrNeedProducerID) && s.nextPID < nPIDs {
		ev = withNewID(ev, int64(s.nextPID))
		s.nextPID++
		d, err = step(rec, ev, now)
	}
	if err != nil {
		if txnstate.CodeOf(err) == txnstate.CodeUnknownServerError && s.rec.producer.epoch < txnstate.MaxEpoch {
			violated("%#v on %s: %v", ev, s.rec, err)
		}
		return d, err
	}
	w.moved(s, coord, ev, d)
	return d, nil
}

func withNewID(ev txnstate.Event, n int64) txnstate.Event {
	switch ev := ev.(type) {
	case txnstate.Init:
		ev.NewID = n
		return ev
	case txnstate.End:
		ev.NewID = n
		return ev
	case txnstate.TimedOut:
		ev.NewID = n
		return ev
	}
	return ev
}

// moved stores a decision and watches the invariants.
func (w *walker) moved(s *state, coord int8, ev txnstate.Event, d txnstate.Decision) {
	old := s.rec
	switch d.Write {
	case txnstate.WriteNone:
		if !d.Next.Equal(old.full()) {
			violated("%#v changes the record and stores nothing: %s", ev, d.Next)
		}
		if d.Effects.Markers || d.Effects.Fence != txnstate.NoProducer {
			violated("%#v changes nothing and has effects", ev)
		}
		return
	case txnstate.WriteDelete:
		if old.state == txnstate.Ongoing || old.state.Decided() {
			violated("%#v removes %s", ev, old)
		}
		s.base += old.seq
		s.rec, s.durable = unknown, unknown
		return
	}
	if err := txnstate.Check(d.Next); err != nil {
		violated("Check after %#v: %v", ev, err)
	}
	next, err := small(d.Next)
	if err != nil {
		violated("%#v: %v", ev, err)
	}
	s.rec = next
	if d.Write == txnstate.WriteDurable {
		s.durable = next
	} else if !old.state.Decided() {
		violated("%#v: a change from %s may be lost, and nothing leads to it again", ev, old)
	}
	if next.producer.pid == old.producer.pid && next.producer.epoch < old.producer.epoch {
		violated("I6: %#v moves the epoch from %s to %s", ev, old, next)
	}
	if next.seq != old.seq && !next.state.Decided() {
		violated("%#v counts a transaction that it does not decide", ev)
	}
	w.watchState(s, ev, old, next, d.Grant)
	w.watchFence(s, ev, old, next, d.Effects.Fence)
	if d.Effects.Markers {
		if d.Write != txnstate.WriteDurable {
			violated("I1: %#v sends markers of a decision that is not durable", ev)
		}
		w.send(s, coord)
	}
}

func (w *walker) watchState(s *state, ev txnstate.Event, old, next record, grant txnstate.Producer) {
	g := s.g()
	if g > nTxns {
		return // the bound; Explore goes no further
	}
	switch {
	case old.state.Decided():
		t := &s.txns[g]
		gone := old.parts &^ next.parts
		if gone&^t.applied != 0 {
			violated("I2: after %#v the record %s takes %03b for done, and %03b have applied it", ev, next, gone, t.applied)
		}
		done := txnstate.CompleteAbort
		if old.state == txnstate.PrepareCommit {
			done = txnstate.CompleteCommit
		}
		switch {
		case next.state != old.state && next.state != done:
			violated("I3, I5: %#v moves %s to %s", ev, old, next)
		case next.state == old.state && (next.producer != old.producer || next.seq != old.seq):
			violated("I5: %#v changes a decision: %s to %s", ev, old, next)
		case next.state == done && t.parts&^t.applied != 0:
			violated("I2: %#v completes, and of %03b only %03b have applied it", ev, t.parts, t.applied)
		case next.state == done && next.producer != t.next:
			violated("I12: after the completion %s is in force, and %s was announced", next.producer, t.next)
		}
	case next.state.Decided():
		t := &s.txns[g]
		switch {
		case t.outcome != txnstate.Empty:
			violated("I5: %#v decides transaction %d once more: %s, was %s", ev, g, next, t.outcome)
		case next.seq != old.seq+1:
			violated("%#v: transaction %d follows %d", ev, next.seq, old.seq)
		case next.parts != old.parts:
			violated("I2: %#v decides for %03b, open were %03b", ev, next.parts, old.parts)
		case t.data&^next.parts != 0:
			violated("I2: %#v decides for %03b, and there are records in %03b", ev, next.parts, t.data)
		}
		t.outcome, t.id, t.parts, t.seq = next.state, next.producer, next.parts, next.seq
		t.version, t.next = next.version, next.producer
		switch {
		case grant != txnstate.NoProducer:
			t.next = identOf(grant)
		case next.next >= 0:
			t.next = ident{next.next, 0}
		}
	case next.state == txnstate.Ongoing && old.state != txnstate.Ongoing:
		if p := s.txns[g-1]; p.parts&^p.applied != 0 {
			violated("I3: %#v opens transaction %d, and the one before is not applied by %03b", ev, g, p.parts&^p.applied)
		}
		if next.producer != old.producer {
			violated("%#v changes the identity", ev)
		}
	case next.state == txnstate.Ongoing:
		if old.parts&^next.parts != 0 || next.producer != old.producer {
			violated("I2: %#v makes %s of %s", ev, next, old)
		}
	case next.state == txnstate.Empty && old.state == txnstate.Ongoing:
		violated("I3: %#v forgets an open transaction", ev)
	}
}

// watchFence: a fence must not hit the holder, and a holder that is replaced must
// meet one.
func (w *walker) watchFence(s *state, ev txnstate.Event, old, next record, f txnstate.Producer) {
	if f != txnstate.NoProducer {
		if f.ID == int64(next.producer.pid) && f.Epoch > next.producer.epoch {
			violated("%#v fences the holder of %s: %s", ev, next, f)
		}
		s.fences[f.ID] = max(s.fences[f.ID], f.Epoch)
	}
	switch ev.(type) {
	case txnstate.Init, txnstate.TimedOut:
		if old.producer != nobody && next.producer.pid == old.producer.pid && next.producer.epoch > old.producer.epoch && f != next.producer.producer() {
			violated("I9: %#v replaces %s by %s and fences %s", ev, old, next, f)
		}
	}
	e := txnstate.Resume(next.full())
	if e.Markers != next.state.Decided() {
		violated("I12: Resume of %s says %+v", next, e)
	}
	if e.Fence != txnstate.NoProducer {
		if e.Fence.ID == int64(next.producer.pid) && e.Fence.Epoch > next.producer.epoch {
			violated("Resume of %s fences its holder: %s", next, e.Fence)
		}
		s.fences[e.Fence.ID] = max(s.fences[e.Fence.ID], e.Fence.Epoch)
	}
}

// send lets a coordinator send the markers of the decision in the record.
func (w *walker) send(s *state, coord int8) {
	g := s.g()
	if g > nTxns {
		return
	}
	t := &s.txns[g]
	o := s.rec.full().Outcome(int32(coord))
	if s.rec.state != t.outcome || identOf(o.Producer) != t.id || o.Commit != (t.outcome == txnstate.PrepareCommit) || o.TransactionVersion != t.version {
		violated("I5: markers of %+v, and decided was %+v", o, *t)
	}
	t.markers |= 1 << coord
}

// granted watches I6: no identity goes to two clients, epochs only grow, -1 and
// 32767 reach nobody.
func (w *walker) granted(s *state, c int, ev txnstate.Event, p txnstate.Producer) ident {
	id := identOf(p)
	ini, asked := ev.(txnstate.Init)
	asked = asked && ini.Expected == txnstate.NoProducer
	switch {
	case p.ID < 0 || p.Epoch < 0 || p.Epoch > txnstate.MaxEpoch:
		violated("I6: %#v grants %s", ev, p)
	case id == s.latest && int(s.holder) != c:
		violated("I6: %#v grants %s, which the other client has", ev, p)
	case id == s.latest && asked:
		violated("I6: %#v grants %s, which was granted before", ev, p)
	case id.pid < s.latest.pid, id.pid == s.latest.pid && id.epoch < s.latest.epoch:
		violated("I6: %#v grants %s after %s", ev, p, s.latest)
	}
	s.latest, s.holder = id, int8(c)
	return id
}

// admitted watches I9: a request that changes something is of the identity that
// was given out last.
func (w *walker) admitted(s *state, c int, ev txnstate.Event, id ident) {
	if id != s.latest || int(s.holder) != c {
		violated("I9: %#v of client %d is accepted, and client %d was given %s", ev, c+1, s.holder+1, s.latest)
	}
}

// mishaps are the faults that are nobody's move.
func (w *walker) mishaps(s *state) {
	if s.rec.state.Decided() && s.txns[min(s.g(), nTxns)].markers>>s.coord&1 == 0 {
		// What the owner finds at its start, or when a request meets it.
		n := w.copy(s)
		w.send(n, n.coord)
		w.emit(label{format: "the coordinator takes the decision up"}, n)
	}
	if s.faults == 0 {
		return
	}
	cost := func(l label, f func(n *state)) {
		n := w.copy(s)
		n.faults--
		f(n)
		w.emit(l, n)
	}
	if s.coord < 3 {
		cost(label{format: "the coordinator crashes"}, func(n *state) {
			n.coord, n.zombie = n.coord+1, false
			w.crash(n)
		})
		for keep := range 2 {
			if keep == 0 && s.rec == s.durable {
				continue
			}
			cost(label{format: "another coordinator takes over; Later writes are seen: %d", a: keep}, func(n *state) {
				n.coord, n.zombie = n.coord+1, true
				if keep == 0 {
					w.crash(n)
				}
			})
		}
	}
	if s.rec.state == txnstate.Ongoing || s.rec.state.Decided() {
		// The reaper's view may be old: it may ask for what was decided meanwhile.
		w.owners(s, func(coord int8) {
			cost(label{format: "the transaction times out at coordinator %d", a: int(coord)}, func(n *state) {
				if d, err := w.do(n, coord, txnstate.TimedOut{Server: w.Server, NewID: -1}); err == nil && d.Grant != txnstate.NoProducer {
					violated("a timeout grants %s", d.Grant)
				}
			})
		})
	}
	if s.rec.producer != nobody && s.rec.state != txnstate.Ongoing && !s.rec.state.Decided() {
		cost(label{format: "the id expires"}, func(n *state) {
			_, _ = w.do(n, n.coord, txnstate.Expire{AfterMs: 1})
		})
	}
	for c := range s.clients {
		if s.clients[c].phase != fresh {
			cost(label{format: "client %d restarts", a: c + 1}, func(n *state) {
				cl := &n.clients[c]
				cl.leave()
				cl.phase, cl.id = fresh, nobody
			})
		}
	}
}

// crash loses what was only written Later.
func (w *walker) crash(s *state) {
	s.rec = s.durable
	for g := range s.txns {
		if s.txns[g].outcome != txnstate.Empty && g > int(s.base+s.rec.seq) {
			violated("I1: a crash loses the decision of transaction %d, whose markers are on their way: %+v", g, s.txns[g])
		}
	}
}

// leave ends the client's transaction by its own account; what it sent may come
// late.
func (cl *client) leave() {
	if cl.phase == inTxn || cl.phase == toCommit || cl.phase == toAbort {
		cl.oldID, cl.oldSent, cl.oldEnd, cl.oldN = cl.id, cl.sent, fresh, cl.n
		if cl.phase == toCommit || cl.phase == toAbort {
			cl.oldEnd = cl.phase
		}
	}
	cl.added, cl.last, cl.sent, cl.acked = 0, 0, 0, 0
}

// deliveries brings markers and confirmations to where they go.
func (w *walker) deliveries(s *state) {
	for g := 1; g <= nTxns; g++ {
		t := &s.txns[g]
		if t.markers == 0 {
			continue
		}
		complete := !s.rec.state.Decided() || g != s.g()
		for coord := int8(1); coord <= s.coord; coord++ {
			if t.markers>>coord&1 == 0 || complete && t.version < txnstate.TV2 {
				continue
			}
			for p := range nParts {
				if t.parts>>p&1 == 0 {
					continue
				}
				n := w.copy(s)
				w.marker(n, g, coord, p)
				if *n != *s {
					w.emit(label{"the marker of transaction %d by coordinator %d reaches participant %d", g, int(coord), p}, n)
				}
				n = w.copy(s)
				if w.found(n, g, coord, p) && *n != *s {
					w.emit(label{"coordinator %[2]d finds that participant %[3]d has the marker of transaction %[1]d", g, int(coord), p}, n)
				}
			}
		}
		for p := range nParts {
			if w.Partly && t.acks>>p&1 == 1 {
				w.confirm(s, g, 1<<p)
			}
		}
		if t.acks == t.parts {
			w.confirm(s, g, t.parts)
		}
	}
}

// confirm hands a confirmation to the coordinator, however old it is.
func (w *walker) confirm(s *state, g int, mask uint8) {
	t := &s.txns[g]
	n := w.copy(s)
	_, err := w.do(n, n.coord, txnstate.Applied{Producer: t.id.producer(), TxnSeq: uint64(t.seq), Participants: sets[mask]})
	if err != nil {
		violated("a confirmation is refused: %v", err)
	}
	if *n != *s {
		w.emit(label{"the coordinator learns that %03b have transaction %d", int(mask), g, 0}, n)
	}
}

// marker is a leader that gets a marker.
func (w *walker) marker(s *state, g int, coord int8, p int) {
	t := &s.txns[g]
	k := &s.parts[p][t.id.pid]
	m := markers.Marker{TxnID: txnID, Producer: t.id.producer(), Commit: t.outcome == txnstate.PrepareCommit, CoordinatorEpoch: int32(coord), TransactionVersion: t.version}
	st := fence.ProducerState{Producer: ident{t.id.pid, k.epoch}.producer(), CoordinatorEpoch: int32(k.coord), Open: k.open, OpenSince: -1}
	decide := w.Decide
	if decide == nil {
		decide = markers.Decide
	}
	bit := uint8(1) << p
	switch err := decide(m, st, k.epoch >= 0); txnstate.CodeOf(err) {
	case txnstate.CodeNone:
		if k.open && int(k.g) != g {
			violated("I4: the marker of transaction %d closes transaction %d at %s", g, k.g, participants[p])
		}
		if int(k.g) == g && k.open || t.data&bit == 0 {
			// What is visible now is what was decided: the marker has it from there.
			t.applied |= bit
		} else if t.applied&bit == 0 {
			violated("I2: the marker of transaction %d finds none of its records at %s", g, participants[p])
		}
		k.epoch, k.coord, k.open, k.g = t.id.epoch, coord, false, 0
		if k.asked && (!k.askedTV2 || k.askedAt != t.id.epoch) {
			k.forget()
		}
		t.acks |= bit
	case txnstate.CodeInvalidProducerEpoch:
		// The dispatcher asks whether anything is open: closed counts as applied.
		if !k.open {
			t.applied |= bit
			t.acks |= bit
		}
	case txnstate.CodeCoordinatorFenced: // a newer coordinator has to see to it
	default:
		violated("the marker of transaction %d is answered %v at %s", g, err, participants[p])
	}
}

// found is what a coordinator does that takes a decision up anew, before it sends
// a marker to a log of its own (wire.LocalSink): where nothing of the producer is
// open or on its way at the marker's epoch, the marker is there already.
func (w *walker) found(s *state, g int, coord int8, p int) bool {
	t := &s.txns[g]
	k := &s.parts[p][t.id.pid]
	bit := uint8(1) << p
	if k.epoch != t.id.epoch || k.open || k.asked || k.coord > coord {
		return false
	}
	if t.data&bit != 0 && t.applied&bit == 0 {
		violated("I2: %s is taken to have the marker of transaction %d, and has its records", participants[p], g)
	}
	t.applied |= bit
	t.acks |= bit
	return true
}

func (k *known) forget() { k.asked, k.askedAt, k.askedTag, k.askedTV2 = false, 0, 0, false }
