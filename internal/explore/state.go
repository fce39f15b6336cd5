package explore

import (
	"fmt"
	"strings"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

const (
	nClients = 2
	nParts   = 3
	nPIDs    = 4 // producer ids that can be given out
	nTxns    = 7 // transactions that are looked at, by number, the first is 1
)

// ident is a txnstate.Producer in small. Producer ids are 0 to nPIDs-1.
type ident struct {
	pid   int8
	epoch int16
}

var nobody = ident{-1, -1}

func (i ident) producer() txnstate.Producer {
	return txnstate.Producer{ID: int64(i.pid), Epoch: i.epoch}
}

func identOf(p txnstate.Producer) ident { return ident{int8(p.ID), p.Epoch} }

func (i ident) String() string { return i.producer().String() }

// record is a txnstate.Record in small: times are there or not, participants are
// bits.
type record struct {
	state    txnstate.State
	producer ident
	prev     int8
	next     int8 // producer id that takes over at completion, at epoch 0
	last     int16
	parts    uint8
	started  bool
	version  txnstate.TransactionVersion
	seq      uint8
}

var unknown = record{producer: nobody, prev: -1, next: -1, last: -1}

// The times of a world without clocks: everything happens at once, but for what
// is due.
const (
	nowMs   = 1_000
	laterMs = 10_000_000
	timeout = 1_000
)

const txnID = "id"

// sets are the participants of each mask, sorted as records keep them.
var sets = func() (out [1 << nParts][]txnstate.Participant) {
	for mask := range out {
		for p := range nParts {
			if mask>>p&1 == 1 {
				out[mask] = append(out[mask], participants[p])
			}
		}
	}
	return out
}()

var participants = [nParts]txnstate.Participant{txnstate.Group("g"), txnstate.Partition("t", 0), txnstate.Partition("t", 1)} // in their order

func maskOf(ps []txnstate.Participant) (mask uint8, ok bool) {
	for _, p := range ps {
		found := false
		for i, q := range participants {
			if p.Compare(q) == 0 {
				mask |= 1 << i
				found = true
			}
		}
		if !found {
			return 0, false
		}
	}
	return mask, true
}

func (r record) full() txnstate.Record {
	out := txnstate.Record{
		TxnID: txnID, State: r.state, Producer: r.producer.producer(), PrevID: int64(r.prev), Next: txnstate.NoProducer,
		LastEpoch: r.last, Participants: sets[r.parts], TimeoutMs: timeout, StartMs: -1, UpdateMs: nowMs,
		ClientVersion: r.version, TxnSeq: uint64(r.seq),
	}
	if r.started {
		out.StartMs = nowMs
	}
	if r.next >= 0 {
		out.Next = txnstate.Producer{ID: int64(r.next)}
	}
	if r.producer == nobody {
		out.UpdateMs, out.TimeoutMs = -1, 0
	}
	return out
}

func small(r txnstate.Record) (record, error) {
	mask, ok := maskOf(r.Participants)
	if !ok {
		return record{}, fmt.Errorf("a participant that nobody added: %v", r.Participants)
	}
	if r.Next != txnstate.NoProducer && r.Next.Epoch != 0 {
		return record{}, fmt.Errorf("a next producer that does not begin at epoch 0: %s", r.Next)
	}
	return record{
		state: r.State, producer: identOf(r.Producer), prev: int8(r.PrevID), next: int8(r.Next.ID), last: r.LastEpoch,
		parts: mask, started: r.StartMs >= 0, version: r.ClientVersion, seq: uint8(r.TxnSeq),
	}, nil
}

// known is what a participant knows of a producer id.
type known struct {
	epoch int16
	coord int8
	open  bool
	g     int8 // whose records are open: the number of the transaction

	// A batch that the coordinator has let in and that is not in the log yet.
	asked    bool
	askedAt  int16
	askedTag tag
	askedTV2 bool
}

// tag names what a client holds to be one transaction: its n-th.
type tag int8

func tagOf(c int, n int8) tag { return tag(int8(c+1)*16 + n) }

// phase is what a client believes.
type phase int8

const (
	fresh     phase = iota // it has no identity
	ready                  // it has one, and no transaction
	inTxn                  // it has begun one
	toCommit               // it has asked for a commit and waits
	toAbort                // it has asked for an abort and waits
	abandoned              // it was told that it is fenced, or worse
)

var phaseNames = [...]string{"without identity", "ready", "in a transaction", "committing", "aborting", "fenced"}

// client is one process that uses the id.
type client struct {
	phase phase
	n     int8 // transactions begun so far
	id    ident
	added uint8 // participants added to the transaction (TV0, TV1)
	last  int8  // the one added last, which it writes to if to any
	sent  uint8 // participants that it has sent records to
	acked uint8 // those that have answered

	// What it sent in the transaction before, and may come late.
	oldID   ident
	oldSent uint8
	oldEnd  phase // toCommit, toAbort, or fresh for none
	oldN    int8
}

// txn is what was decided of one transaction, as an observer knows it who sees
// everything.
type txn struct {
	owner   tag
	outcome txnstate.State // PrepareCommit or PrepareAbort, Empty before the decision
	id      ident          // as the markers carry it
	next    ident          // in force after the completion
	version txnstate.TransactionVersion
	parts   uint8 // at the decision
	data    uint8 // participants with records of it
	applied uint8 // participants that have applied its marker
	seq     uint8 // TxnSeq of the record

	markers uint8 // sent, by the coordinator epochs that sent them
	acks    uint8 // confirmations sent, by participant
}

// state is everything there is. It is comparable.
type state struct {
	rec     record // as the store shows it
	durable record // as a crash leaves it
	base    uint8  // transactions of the id before it expired, all decided
	coord   int8   // epoch of the coordinator that owns the id
	zombie  bool   // the owner before has not noticed
	nextPID int8
	faults  int8 // that may still happen

	latest ident // the identity given out last,
	holder int8  // and to which client
	fences [nPIDs]int16

	parts   [nParts][nPIDs]known
	clients [nClients]client
	txns    [nTxns + 1]txn
}

// g is the number of the transaction that is open, or was decided last.
func (s *state) g() int {
	if s.rec.state == txnstate.Ongoing {
		return int(s.base+s.rec.seq) + 1
	}
	return int(s.base + s.rec.seq)
}

// of is the number of the transaction that a client's was in the record, 0 for
// none.
func (s *state) of(t tag) int {
	for g := range s.txns {
		if s.txns[g].owner == t {
			return g
		}
	}
	return 0
}

func (s *state) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "record %s, coordinator epoch %d", s.rec, s.coord)
	if s.rec != s.durable {
		fmt.Fprintf(&b, ", durable %s", s.durable)
	}
	for c := range s.clients {
		cl := &s.clients[c]
		fmt.Fprintf(&b, "\n    client %d %s, %s, transaction %d, sent %03b, answered %03b", c+1, phaseNames[cl.phase], cl.id, cl.n, cl.sent, cl.acked)
	}
	for p := range s.parts {
		for pid, k := range s.parts[p] {
			if k != (known{epoch: -1, coord: -1}) {
				fmt.Fprintf(&b, "\n    %s knows of producer %d: %+v", participants[p], pid, k)
			}
		}
	}
	for g := range s.txns {
		if t := s.txns[g]; t != (txn{}) {
			fmt.Fprintf(&b, "\n    transaction %d: %+v", g, t)
		}
	}
	return b.String()
}

func (r record) String() string {
	return fmt.Sprintf("%s %s seq %d participants %03b", r.state, r.producer, r.seq, r.parts)
}
