package explore

import (
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// settle holds a state against I12: with faults off, the decided transaction is
// completed, the open one is aborted by its timeout, nothing stays open at any
// participant, and whoever comes then gets a transaction through. It works on a
// copy.
func (w *walker) settle(s state) {
	w.used = 0
	s.zombie = false
	for range 3 {
		switch {
		case s.rec.state.Decided():
			w.carryOut(&s)
		case s.rec.state == txnstate.Ongoing:
			if _, err := w.do(&s, s.coord, txnstate.TimedOut{Server: w.Server, NewID: -1}); err != nil {
				violated("I12: the open transaction can't be timed out: %v", err)
			}
		}
	}
	if s.rec.state.Decided() || s.rec.state == txnstate.Ongoing {
		violated("I12: the record does not settle: %s", s.rec)
	}
	w.late1(&s)
	for p := range s.parts {
		for pid := range s.parts[p] {
			if k := s.parts[p][pid]; k.open {
				violated("I12: records of transaction %d stay open at %s", k.g, participants[p])
			}
		}
	}
	w.another(&s)
}

// late1 lets the batches that are on their way into the logs, where they still
// get in. A marker must have made sure that they don't.
func (w *walker) late1(s *state) {
	for p := range s.parts {
		for pid := range s.parts[p] {
			k := &s.parts[p][pid]
			if k.asked && k.askedAt >= k.epoch {
				w.append(s, p, ident{int8(pid), k.askedAt}, k.askedTag)
			}
			k.forget()
		}
	}
}

// carryOut brings the decision in the record to its participants.
func (w *walker) carryOut(s *state) {
	w.send(s, s.coord)
	g := s.g()
	rest := s.rec.parts
	for p := range nParts {
		if rest>>p&1 == 0 {
			continue
		}
		before := s.txns[g].acks
		s.txns[g].acks &^= 1 << p
		if !w.found(s, g, s.coord, p) {
			w.marker(s, g, s.coord, p)
		}
		if s.txns[g].acks>>p&1 == 0 {
			violated("I12: %s does not take the marker of transaction %d", participants[p], g)
		}
		s.txns[g].acks |= before
	}
	t := &s.txns[g]
	_, err := w.do(s, s.coord, txnstate.Applied{Producer: t.id.producer(), TxnSeq: uint64(t.seq), Participants: sets[rest]})
	if err != nil || s.rec.state.Decided() {
		violated("I12: transaction %d can't be completed: %s, %v", g, s.rec, err)
	}
}

// another is a transaction of a new client over all participants. The fences that
// were ever given have all arrived by now.
func (w *walker) another(s *state) {
	const c = 0
	s.clients[c] = client{phase: fresh, id: nobody, oldID: nobody, n: 9}
	for _, v := range [2]txnstate.TransactionVersion{w.Client[0], w.Client[1]} {
		ev := txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: timeout, Server: w.Server, NewID: -1}
		d, err := w.do(s, s.coord, ev)
		if err != nil || d.Refusal != nil {
			violated("I12: %s gives no identity: %v, %v", s.rec, err, d.Refusal)
		}
		id := w.granted(s, c, ev, d.Grant)
		s.clients[c].n++
		t := tagOf(c, s.clients[c].n)
		for p := range nParts {
			if err := w.add(s, c, id, t, p, v); err != nil {
				violated("I12: %s takes no participant of %s: %v", s.rec, id, err)
			}
			if k := s.parts[p][id.pid]; id.epoch < s.fences[id.pid] || id.epoch < k.epoch || k.open {
				violated("I12: %s, which knows %+v and the fence %d, takes no records of the holder %s", participants[p], k, s.fences[id.pid], id)
			}
			w.append(s, p, id, t)
		}
		end := txnstate.End{Producer: id.producer(), Commit: true, Client: v, NewID: -1}
		if _, err := w.do(s, s.coord, end); err != nil {
			violated("I12: %s can't be committed by %s: %v", s.rec, id, err)
		}
		w.carryOut(s)
		if s.rec.state != txnstate.CompleteCommit {
			violated("I12: a commit ended as %s", s.rec)
		}
		if v >= txnstate.TV2 && w.Client[0] == w.Client[1] {
			return
		}
	}
}
