package explore

import (
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// nextOf is the participant that a client turns to after those of a mask.
func (w *walker) nextOf(c int, mask uint8) (p int, ok bool) {
	for i := range w.Parts[c] {
		p := i
		if c == 1 {
			p = nParts - 1 - i
		}
		if mask>>p&1 == 0 {
			return p, true
		}
	}
	return 0, false
}

// answered is what a client makes of a refusal.
func (cl *client) answered(err error) {
	switch txnstate.CodeOf(err) {
	case txnstate.CodeNone, txnstate.CodeConcurrentTransactions: // it comes again
	default:
		cl.leave()
		cl.phase = abandoned
	}
}

// ask makes a request of a client and emits both what follows from the answer
// and, as a fault, what follows where the answer is lost.
func (w *walker) ask(s *state, l label, request func(n *state) (heard func(n *state))) {
	w.owners(s, func(coord int8) {
		n := w.copy(s)
		n.coord = coord // the one that is asked
		heard := request(n)
		n.coord = s.coord
		if heard == nil {
			return
		}
		if s.faults > 0 {
			lost := w.copy(n)
			lost.faults--
			if lost.rec != s.rec {
				w.emit(label{l.format + " (the answer is lost)", l.a, l.b, l.c}, lost)
			}
		}
		heard(n)
		if *n != *s {
			w.emit(l, n)
		}
	})
}

// client makes every move of a client.
func (w *walker) client(s *state, c int) {
	cl := &s.clients[c]
	tv2 := w.Client[c] >= txnstate.TV2
	switch cl.phase {
	case fresh:
		w.init(s, c, txnstate.NoProducer, "client %d initialises")
	case ready:
		if int(cl.n) < w.Txns[c] {
			w.start(s, c, tv2)
		}
	case inTxn:
		w.goOn(s, c, tv2)
		if cl.acked == cl.sent && cl.added|cl.acked != 0 {
			w.end(s, c, true)
		}
		w.end(s, c, false)
		w.again(s, c)
	case toCommit, toAbort:
		w.end(s, c, cl.phase == toCommit)
		w.again(s, c)
	case abandoned:
	}
}

// again initialises with the identity held, to recover (KIP-360).
func (w *walker) again(s *state, c int) {
	if s.faults > 0 {
		n := w.copy(s)
		n.faults--
		w.init(n, c, s.clients[c].id.producer(), "client %d recovers")
	}
}

func (w *walker) init(s *state, c int, expected txnstate.Producer, name string) {
	ev := txnstate.Init{Expected: expected, TimeoutMs: timeout, Server: w.Server, NewID: -1}
	w.ask(s, label{format: name, a: c + 1}, func(n *state) func(*state) {
		d, err := w.do(n, n.coord, ev)
		switch {
		case err != nil:
			return func(n *state) { n.clients[c].answered(err) }
		case d.Refusal != nil:
			if d.Grant != txnstate.NoProducer {
				violated("%#v is refused and granted %s", ev, d.Grant)
			}
			return func(*state) {}
		}
		id := w.granted(n, c, ev, d.Grant)
		return func(n *state) {
			cl := &n.clients[c]
			cl.leave()
			cl.phase, cl.id = ready, id
		}
	})
}

// start begins a transaction by its first request.
func (w *walker) start(s *state, c int, tv2 bool) {
	n := w.copy(s)
	cl := &n.clients[c]
	cl.phase, cl.n = inTxn, cl.n+1
	cl.added, cl.last, cl.sent, cl.acked = 0, 0, 0, 0
	w.goOn(n, c, tv2)
	if tv2 && s.faults > 0 && s.rec.state != txnstate.Ongoing {
		n.faults--
		w.end(n, c, false) // an abort without a transaction
	}
}

// goOn adds a participant, or sends records to one.
func (w *walker) goOn(s *state, c int, tv2 bool) {
	cl := &s.clients[c]
	t := tagOf(c, cl.n)
	if tv2 {
		for p := range nParts {
			next, ok := w.nextOf(c, cl.sent)
			first := ok && p == next && cl.sent == cl.acked
			if !first && (cl.sent>>p&1 == 0 || cl.acked>>p&1 == 1) {
				continue
			}
			n := w.copy(s)
			n.clients[c].sent |= 1 << p
			if *n != *s {
				w.emit(label{"client %d sends records to participant %d, which may take long", c + 1, p, 0}, n)
			}
			w.data(n, c, p, cl.id, t, true)
		}
		return
	}
	if p, ok := w.nextOf(c, cl.added); ok {
		w.ask(s, label{"client %d adds participant %d", c + 1, p, 0}, func(n *state) func(*state) {
			err := w.add(n, c, cl.id, t, p, txnstate.TV1)
			return func(n *state) {
				if err != nil {
					n.clients[c].answered(err)
					return
				}
				n.clients[c].added |= 1 << p
				n.clients[c].last = int8(p)
			}
		})
	}
	for p := range nParts {
		if cl.last == int8(p) && cl.added>>p&1 == 1 && cl.acked>>p&1 == 0 {
			n := w.copy(s)
			n.clients[c].sent |= 1 << p
			w.data(n, c, p, cl.id, t, false)
		}
	}
}

// add asks a coordinator to add a participant to the transaction of a tag.
func (w *walker) add(s *state, c int, id ident, t tag, p int, v txnstate.TransactionVersion) error {
	ev := txnstate.Add{Producer: id.producer(), Participants: sets[1<<p], Client: v}
	opened := s.rec.state != txnstate.Ongoing
	_, err := w.do(s, s.coord, ev)
	if err != nil {
		return err
	}
	w.admitted(s, c, ev, id)
	if g := s.g(); g <= nTxns {
		if s.rec.parts>>p&1 == 0 {
			violated("I2: %#v is answered, and the record is %s", ev, s.rec)
		}
		if opened {
			s.txns[g].owner = t
		} else if s.txns[g].owner != t {
			violated("F22: %#v of transaction %x joins transaction %d, which is %x", ev, t, g, s.txns[g].owner)
		}
	}
	return nil
}

// data is a batch that reaches a leader, of the transaction that a client has
// open or of the one before.
func (w *walker) data(s *state, c, p int, id ident, t tag, tv2 bool) {
	k := &s.parts[p][id.pid]
	l := label{"client %d sends records to participant %d", c + 1, p, 0}
	switch {
	case k.open && k.epoch == id.epoch:
		n := w.copy(s)
		w.append(n, p, id, t)
		w.acked(n, c, p, t)
		w.emit(l, n)
		return
	case id.epoch < k.epoch:
		n := w.copy(s)
		w.refused(n, c, t, txnstate.ErrInvalidProducerEpoch)
		w.emit(label{l.format + ": refused", c + 1, p, 0}, n)
		return
	case k.asked:
		return // one at a time
	}
	w.owners(s, func(coord int8) {
		n := w.copy(s)
		n.coord = coord
		var err error
		if tv2 {
			err = w.add(n, c, id, t, p, txnstate.TV2)
		} else {
			err = w.verify(n, c, id, p)
		}
		n.coord = s.coord
		if err != nil {
			w.refused(n, c, t, err)
			w.emit(label{l.format + ": the coordinator refuses", c + 1, p, 0}, n)
			return
		}
		k := &n.parts[p][id.pid]
		k.asked, k.askedAt, k.askedTag, k.askedTV2 = true, id.epoch, t, tv2
		w.emit(label{l.format + ": verified", c + 1, p, 0}, n)
	})
}

func (w *walker) verify(s *state, c int, id ident, p int) error {
	ev := txnstate.Verify{Producer: id.producer(), Participants: sets[1<<p]}
	d, err := w.do(s, s.coord, ev)
	switch {
	case err != nil:
		return err
	case len(d.Missing) > 0:
		return txnstate.ErrInvalidTxnState
	case s.rec.state != txnstate.Ongoing || s.rec.parts>>p&1 == 0:
		violated("I8: %#v is verified, and the record is %s", ev, s.rec)
	}
	w.admitted(s, c, ev, id)
	return nil
}

// refused answers a batch of the transaction that the client has open; of one
// that it has left nobody waits for an answer.
func (w *walker) refused(s *state, c int, t tag, err error) {
	cl := &s.clients[c]
	if t != tagOf(c, cl.n) || cl.phase != inTxn {
		return
	}
	if txnstate.CodeOf(err) == txnstate.CodeInvalidTxnState {
		return // abortable: it has not all its answers, so it can't commit
	}
	cl.answered(err)
}

// acked answers a batch that is in the log.
func (w *walker) acked(s *state, c, p int, t tag) {
	cl := &s.clients[c]
	if t == tagOf(c, cl.n) && cl.phase == inTxn {
		cl.acked |= 1 << p
	}
}

// appends lets batches that were verified into the log, or refuses them.
func (w *walker) appends(s *state) {
	for p := range nParts {
		for pid := range nPIDs {
			k := &s.parts[p][pid]
			if !k.asked {
				continue
			}
			id, t := ident{int8(pid), k.askedAt}, k.askedTag
			c := int(t)/16 - 1
			if k.open && k.epoch < id.epoch {
				continue // the transaction before waits for its marker; it comes again
			}
			n := w.copy(s)
			n.parts[p][pid].forget()
			if id.epoch < k.epoch {
				w.refused(n, c, t, txnstate.ErrInvalidProducerEpoch)
				w.emit(label{"a batch of client %d for participant %d is refused", c + 1, p, 0}, n)
				continue
			}
			w.append(n, p, id, t)
			if s.faults > 0 {
				lost := w.copy(n)
				lost.faults--
				w.emit(label{"records of client %d are in the log of participant %d (the answer is lost)", c + 1, p, 0}, lost)
			}
			w.acked(n, c, p, t)
			w.emit(label{"records of client %d are in the log of participant %d", c + 1, p, 0}, n)
		}
	}
}

// append puts records into a log.
func (w *walker) append(s *state, p int, id ident, t tag) {
	k := &s.parts[p][id.pid]
	g := s.of(t)
	switch {
	case g == 0:
		violated("I8: records of transaction %x at %s, which no record has ever held", t, participants[p])
	case k.open && int(k.g) != g:
		violated("I8: records of transaction %d join those of %d at %s", g, k.g, participants[p])
	case s.txns[g].applied>>p&1 == 1:
		violated("I8, F23: records of transaction %d at %s after its marker", g, participants[p])
	case s.txns[g].outcome == txnstate.Empty && (g != s.g() || s.rec.state != txnstate.Ongoing || s.rec.parts>>p&1 == 0):
		violated("I2: records of transaction %d at %s, and the record is %s", g, participants[p], s.rec)
	case s.txns[g].outcome != txnstate.Empty && s.txns[g].parts>>p&1 == 0:
		violated("I2: records of transaction %d at %s, and it was decided for %03b", g, participants[p], s.txns[g].parts)
	}
	k.epoch, k.open, k.g = id.epoch, true, int8(g)
	s.txns[g].data |= 1 << p
}

// end asks for the end of the transaction.
func (w *walker) end(s *state, c int, commit bool) {
	n := w.copy(s)
	cl := &n.clients[c]
	cl.phase = toAbort
	if commit {
		cl.phase = toCommit
	}
	name := "client %d aborts"
	if commit {
		name = "client %d commits"
	}
	w.ask(n, label{format: name, a: c + 1}, func(n *state) func(*state) {
		id, err := w.endTxn(n, c, n.clients[c].id, tagOf(c, n.clients[c].n), commit)
		return func(n *state) {
			cl := &n.clients[c]
			if err != nil {
				cl.answered(err)
				return
			}
			cl.leave()
			cl.phase, cl.id = ready, id
		}
	})
}

// endTxn is EndTxn, and what a success says: the transaction has this outcome.
func (w *walker) endTxn(s *state, c int, id ident, t tag, commit bool) (ident, error) {
	v := w.Client[c]
	ev := txnstate.End{Producer: id.producer(), Commit: commit, Client: v, NewID: -1}
	before := s.rec
	d, err := w.do(s, s.coord, ev)
	if err != nil {
		return nobody, err
	}
	if s.rec != before {
		w.admitted(s, c, ev, id)
	}
	next := id
	switch {
	case v >= txnstate.TV2:
		next = w.granted(s, c, ev, d.Grant)
	case d.Grant != txnstate.NoProducer:
		violated("%#v grants %s", ev, d.Grant)
	}
	g := s.of(t)
	if g > nTxns {
		return next, nil
	}
	want := txnstate.PrepareAbort
	if commit {
		want = txnstate.PrepareCommit
	}
	switch {
	case g == 0 && commit:
		violated("I5: %#v is answered, and there never was a transaction of %x", ev, t)
	case g != 0 && s.txns[g].outcome != want:
		violated("I5: %#v of transaction %d is answered, which is %s", ev, g, s.txns[g].outcome)
	}
	return next, nil
}

// late lets requests arrive that a client sent in the transaction before. Under
// TV0 and TV1 they do so only where the client has not gone on under the same
// identity.
func (w *walker) late(s *state, c int) {
	cl := &s.clients[c]
	if cl.oldID == nobody {
		return
	}
	tv2 := w.Client[c] >= txnstate.TV2
	if !tv2 && cl.oldID == cl.id && cl.phase != abandoned {
		return
	}
	t := tagOf(c, cl.oldN)
	for p := range nParts {
		if cl.oldSent>>p&1 == 1 {
			w.lateData(s, c, p, cl.oldID, t, tv2)
		}
	}
	if cl.oldEnd != fresh {
		w.owners(s, func(coord int8) {
			n := w.copy(s)
			n.coord = coord
			_, _ = w.endTxn(n, c, cl.oldID, t, cl.oldEnd == toCommit)
			n.coord = s.coord
			if *n != *s {
				w.emit(label{format: "an EndTxn of client %d comes late", a: c + 1}, n)
			}
		})
	}
}

func (w *walker) lateData(s *state, c, p int, id ident, t tag, tv2 bool) {
	emit := w.emit
	defer func() { w.emit = emit }()
	w.emit = func(_ label, n *state) {
		if *n != *s {
			emit(label{"records of client %d for participant %d come late", c + 1, p, 0}, n)
		}
	}
	w.data(s, c, p, id, t, tv2)
}
