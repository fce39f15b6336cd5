package markers_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// world is a broker with a coordinator of one state partition and the leaders of
// some partitions.
type world struct {
	txns    map[string]txnstate.Record
	logs    map[tp]*leader
	nextID  int64
	symbols []int64
	fences  bool // tell the leaders whom the coordinator fences
	flaky   bool // the first attempt of every append fails
}

func newWorld(topics map[string]int32) *world {
	w := &world{txns: map[string]txnstate.Record{}, logs: map[tp]*leader{}, nextID: 4000}
	for topic, n := range topics {
		for i := range n {
			w.logs[tp{T: topic, P: i}] = &leader{state: fence.NewPartition(fence.Config{})}
		}
	}
	return w
}

const unknown = 1 << 50

func (w *world) pid(sym string) int64 {
	switch sym {
	case "none", "":
		return -1
	case "unknown":
		return unknown
	}
	var n int
	fmt.Sscanf(sym, "P%d", &n)
	if n < 1 || n > len(w.symbols) {
		return unknown + 1
	}
	return w.symbols[n-1]
}

func (w *world) sym(id int64) string {
	switch id {
	case -1:
		return "none"
	case unknown:
		return "unknown"
	}
	i := slices.Index(w.symbols, id)
	if i < 0 {
		i = len(w.symbols)
		w.symbols = append(w.symbols, id)
	}
	return fmt.Sprintf("P%d", i+1)
}

func transient(c txnstate.Code) bool {
	return c == txnstate.CodeConcurrentTransactions || c == txnstate.CodeNotEnoughReplicas
}

func name(c txnstate.Code) string {
	if c == txnstate.CodeNone {
		return ""
	}
	return c.String()
}

// run answers a step. What clients try again is tried again, as it was when the
// answers were recorded.
func (w *world) run(s step) answer {
	var a answer
	for range 3 {
		var c txnstate.Code
		a, c = w.once(s)
		if !transient(c) {
			break
		}
	}
	return a
}

func (w *world) once(s step) (answer, txnstate.Code) {
	p := txnstate.Producer{ID: w.pid(s.PID), Epoch: s.Epoch}
	switch s.Op {
	case "init":
		return w.init(s, p)
	case "addp":
		return w.add(s, p)
	case "end":
		c := txnstate.CodeInvalidRequest
		var d txnstate.Decision
		if !s.Empty {
			client := txnstate.TV0
			if s.V >= 5 {
				client = txnstate.TV2
			}
			d, c = w.step(s.ID, txnstate.End{Producer: p, Commit: s.Commit, Client: client, NewID: -1})
		}
		c = old(c, s.V, 2)
		a := answer{Err: name(c)}
		if c == txnstate.CodeNone && s.V >= 5 {
			a.PID, a.Epoch = w.sym(d.Grant.ID), &d.Grant.Epoch
		}
		return a, c
	case "prod":
		base, c := w.produce(s, p)
		a := answer{Err: name(c)}
		if c == txnstate.CodeNone {
			a.Base = &base
		}
		return a, c
	case "mark":
		codes := map[tp]txnstate.Code{}
		for _, at := range s.Parts {
			m := markers.Marker{Producer: p, Commit: s.Commit, CoordinatorEpoch: s.CoordEp, TransactionVersion: txnstate.TransactionVersion(s.TV)}
			codes[at] = w.logs[at].mark(m, w.flaky)
		}
		return fold(codes), txnstate.CodeNone
	case "fetch":
		return w.fetch(s), txnstate.CodeNone
	case "dprod":
		var a answer
		for _, at := range s.Parts {
			for _, st := range w.logs[tp{T: at.T, P: at.P}].state.Producers() {
				a.Prods = append(a.Prods, fmt.Sprintf("%s %s e%d seq%d start%d", at, w.sym(st.Producer.ID), st.Producer.Epoch, st.LastSequence, st.OpenSince))
			}
		}
		slices.Sort(a.Prods)
		return a, txnstate.CodeNone
	}
	panic("unknown step " + s.Op)
}

// old is the code for a version before that at which clients learned
// PRODUCER_FENCED.
func old(c txnstate.Code, version, since int16) txnstate.Code {
	if c == txnstate.CodeProducerFenced && version < since {
		return txnstate.CodeInvalidProducerEpoch
	}
	return c
}

func fold(codes map[tp]txnstate.Code) answer {
	parts := map[string]string{}
	same := true
	var first string
	for at, c := range codes {
		if len(parts) == 0 {
			first = name(c)
		}
		same = same && first == name(c)
		parts[at.String()] = name(c)
	}
	if same {
		return answer{Err: first}
	}
	return answer{Err: "MIXED", Parts: parts}
}

// step runs an event of a transactional id and does what follows from it.
func (w *world) step(id string, ev txnstate.Event) (txnstate.Decision, txnstate.Code) {
	rec, ok := w.txns[id]
	if !ok {
		rec = txnstate.Unknown(id)
	}
	d, err := txnstate.Step(rec, ev, now)
	if errors.Is(err, txnstate.ErrNeedProducerID) {
		w.nextID++
		switch e := ev.(type) {
		case txnstate.Init:
			e.NewID = w.nextID
			ev = e
		case txnstate.End:
			e.NewID = w.nextID
			ev = e
		}
		d, err = txnstate.Step(rec, ev, now)
	}
	if err != nil {
		return d, txnstate.CodeOf(err)
	}
	w.txns[id] = d.Next
	if w.fences && d.Effects.Fence != txnstate.NoProducer {
		for _, l := range w.logs {
			l.state.Fence(d.Effects.Fence)
		}
	}
	if d.Effects.Markers {
		w.deliver(id)
	}
	if d.Refusal != nil {
		return d, d.Refusal.Code
	}
	return d, txnstate.CodeNone
}

// deliver brings a decision to the partitions. Where one of them refuses,
// Kafka's coordinator gives up and the id stays in Prepare.
func (w *world) deliver(id string) {
	o := w.txns[id].Outcome(0)
	refused := false
	for _, p := range o.Participants {
		m := markers.Marker{TxnID: id, Producer: o.Producer, Commit: o.Commit, CoordinatorEpoch: o.CoordinatorEpoch, TransactionVersion: o.TransactionVersion}
		if w.logs[tp{T: p.Name, P: p.Index}].mark(m, w.flaky) != txnstate.CodeNone {
			refused = true
		}
	}
	if !refused {
		w.step(id, txnstate.Applied{Producer: o.Producer, TxnSeq: o.TxnSeq, Participants: o.Participants})
	}
}

func (w *world) init(s step, p txnstate.Producer) (answer, txnstate.Code) {
	c := txnstate.CodeNone
	var got txnstate.Producer
	switch {
	case (p.ID == -1) != (p.Epoch == -1):
		c = txnstate.CodeInvalidRequest
	case s.ID == "" && !s.Empty:
		w.nextID++
		got = txnstate.Producer{ID: w.nextID}
	case s.Empty:
		c = txnstate.CodeInvalidRequest
	case s.Timeout <= 0 || s.Timeout > 900_000:
		c = txnstate.CodeInvalidTxnTimeout
	default:
		var d txnstate.Decision
		d, c = w.step(s.ID, txnstate.Init{Expected: p, TimeoutMs: s.Timeout, Server: txnstate.TV2, NewID: -1})
		got = d.Grant
	}
	c = old(c, s.V, 4)
	a := answer{Err: name(c)}
	if c == txnstate.CodeNone {
		a.PID, a.Epoch = w.sym(got.ID), &got.Epoch
	}
	return a, c
}

func (w *world) add(s step, p txnstate.Producer) (answer, txnstate.Code) {
	codes := map[tp]txnstate.Code{}
	missing := false
	var ps []txnstate.Participant
	for _, at := range s.Parts {
		if w.logs[at] == nil {
			missing = true
			codes[at] = txnstate.CodeUnknownTopicOrPartition
		}
		ps = append(ps, txnstate.Partition(at.T, at.P))
	}
	c := txnstate.CodeNone
	var lacks []txnstate.Participant
	switch {
	case missing:
		c = txnstate.CodeOperationNotAttempted
	case s.Empty:
		c = txnstate.CodeInvalidRequest
	case s.Verify:
		var d txnstate.Decision
		d, c = w.step(s.ID, txnstate.Verify{Producer: p, Participants: ps})
		lacks = d.Missing
	default:
		client := txnstate.TV0
		if s.V >= 4 {
			client = txnstate.TV2
		}
		_, c = w.step(s.ID, txnstate.Add{Producer: p, Participants: ps, Client: client})
		c = old(c, s.V, 2)
	}
	for i, at := range s.Parts {
		if codes[at] == txnstate.CodeNone {
			codes[at] = c
		}
		if slices.Contains(lacks, ps[i]) {
			codes[at] = txnstate.CodeTransactionAbortable
		}
	}
	return fold(codes), c
}

// produce is the ten lines of a host, see package fence.
func (w *world) produce(s step, p txnstate.Producer) (int64, txnstate.Code) {
	at := s.Parts[0]
	l := w.logs[at]
	b := fence.Batch{Producer: p, FirstSequence: s.Seq, Records: s.Records, MaxTimestampMs: now.UnixMilli(), Transactional: s.Txnal}
	mode := fence.ProduceMode(s.V)
	g, ask, err := l.state.Verify(b, mode, now.UnixMilli())
	if err != nil {
		return 0, txnstate.CodeOf(err)
	}
	if ask {
		ps := []txnstate.Participant{txnstate.Partition(at.T, at.P)}
		var ev txnstate.Event = txnstate.Verify{Producer: p, Participants: ps}
		if mode == fence.ModeAdd {
			ev = txnstate.Add{Producer: p, Participants: ps, Client: txnstate.TV2}
		}
		d, c := w.step(s.ID, ev)
		if len(d.Missing) > 0 {
			c = txnstate.CodeTransactionAbortable
		}
		if c != txnstate.CodeNone {
			return 0, mode.ProduceAnswer(c)
		}
	}
	r, err := l.state.Reserve(b, g, now.UnixMilli())
	if err != nil {
		return 0, txnstate.CodeOf(err)
	}
	if r.Duplicate {
		return r.Offset, txnstate.CodeNone
	}
	if w.flaky {
		r.Cancel()
		if r, err = l.state.Reserve(b, g, now.UnixMilli()); err != nil {
			return 0, txnstate.CodeOf(err)
		}
	}
	return l.append(entry{b: b}, r), txnstate.CodeNone
}

// leader is a partition: the log is the batches, all of them below the high
// watermark.
type leader struct {
	log   []entry
	end   int64
	state *fence.Partition
}

type entry struct {
	b       fence.Batch
	base    int64
	control []byte
}

func (l *leader) append(e entry, r fence.Reservation) int64 {
	e.base = l.end
	l.log = append(l.log, e)
	l.end += int64(e.b.Records)
	r.Settle(e.base)
	return e.base
}

func (l *leader) mark(m markers.Marker, flaky bool) txnstate.Code {
	st, known := l.state.Producer(m.Producer.ID)
	if err := markers.Decide(m, st, known); err != nil {
		return txnstate.CodeOf(err)
	}
	raw := markers.AppendControlBatch(nil, m, l.end, 0, now.UnixMilli())
	b, _, _, err := fence.ParseHeader(raw)
	if err != nil {
		return txnstate.CodeOf(err)
	}
	if flaky {
		l.state.ReserveMark(m.Mark(now.UnixMilli())).Cancel()
	}
	l.append(entry{b: b, control: raw}, l.state.ReserveMark(m.Mark(now.UnixMilli())))
	return txnstate.CodeNone
}

func (w *world) fetch(s step) answer {
	at := s.Parts[0]
	l := w.logs[tp{T: at.T, P: at.P}]
	hw, lso := l.end, l.state.LastStable(l.end)
	a := answer{HW: &hw, LSO: &lso}
	bound := hw
	if s.Iso == 1 {
		bound = lso
	}
	for _, e := range l.log {
		if e.base+int64(e.b.Records) <= at.Off || e.base >= bound {
			continue
		}
		kind, txn := "data", ""
		if e.control != nil {
			kind = controlKind(e.control)
		}
		if e.b.Transactional {
			txn = " txn"
		}
		a.Batches = append(a.Batches, fmt.Sprintf("%d+%d %s %s e%d s%d%s", e.base, e.b.Records, kind, w.sym(e.b.Producer.ID), e.b.Producer.Epoch, e.b.FirstSequence, txn))
	}
	if s.Iso == 1 && at.Off < lso {
		for _, ab := range l.state.Aborted(at.Off, l.end) {
			a.Aborted = append(a.Aborted, fmt.Sprintf("%s@%d", w.sym(ab.ProducerID), ab.First))
		}
	}
	return a
}

func controlKind(raw []byte) string {
	m, _, err := markers.ParseControlBatch(raw)
	if err != nil {
		return err.Error()
	}
	kind := "ABORT"
	if m.Commit {
		kind = "COMMIT"
	}
	key, value := raw[66:], raw[71:]
	return fmt.Sprintf("%s(keyv%d,valv%d,len%d)", kind, binary.BigEndian.Uint16(key), binary.BigEndian.Uint16(value), raw[70]>>1)
}

// checkCopies compares the leaders with a follower that copied the log and with
// restarts from a snapshot taken anywhere.
func (w *world) checkCopies(t *testing.T, scenario string) {
	t.Helper()
	for at, l := range w.logs {
		follower := fence.NewPartition(fence.Config{})
		snapshot, mid := follower.AppendSnapshot(nil), 0
		for i, e := range l.log {
			var m *fence.Mark
			if e.control != nil {
				mk, ts, err := markers.ParseControlBatch(e.control)
				if err != nil {
					t.Fatal(err)
				}
				mark := mk.Mark(ts)
				m = &mark
			}
			follower.Replay(e.b, e.base, m)
			if i == len(l.log)/2 {
				snapshot, mid = follower.AppendSnapshot(nil), i
			}
		}
		restarted, err := fence.RestorePartition(fence.Config{}, snapshot)
		if err != nil {
			t.Fatalf("%s %s: %v", scenario, at, err)
		}
		for _, e := range l.log[max(mid-2, 0):] { // from a little before, as a host may
			var m *fence.Mark
			if e.control != nil {
				mk, ts, _ := markers.ParseControlBatch(e.control)
				mark := mk.Mark(ts)
				m = &mark
			}
			restarted.Replay(e.b, e.base, m)
		}
		for _, c := range []struct {
			who   string
			state *fence.Partition
		}{{"follower", follower}, {"restarted leader", restarted}} {
			if got, want := describe(c.state, l.end), describe(l.state, l.end); got != want {
				t.Errorf("%s %s: the %s knows\n%s\nthe leader\n%s", scenario, at, c.who, got, want)
			}
		}
	}
}

func describe(p *fence.Partition, end int64) string {
	open := p.Open()
	slices.SortFunc(open, func(a, b fence.ProducerState) int { return cmp.Compare(a.OpenSince, b.OpenSince) })
	return fmt.Sprintf("producers %+v\nopen %+v\nstable %d\naborted %+v", p.Producers(), open, p.LastStable(end), p.Aborted(0, end+1))
}
