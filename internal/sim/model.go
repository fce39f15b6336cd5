package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// model is what must be true whatever happens. It knows what clients wanted, what
// they were told, and what readers saw.
type model struct {
	w *world

	mu       sync.Mutex
	recs     map[string]*rec    // by value: no two are equal
	txns     []*txn             // in the order of their beginning
	stages   map[int64]*staged  // by offset: no two are equal
	grants   map[string][]grant // by transactional id, in the order of the answers
	holders  map[txnstate.Producer]*instance
	fresh    map[int64]string    // producer ids, and whose they are
	slips    int64               // the last offset that was staged
	floors   map[groupPart]int64 // see floor; negative: a late copy may have taken it back
	deleted  map[string]int      // topics, and how often they were deleted
	asked    map[string]int      // copies of InitProducerId that arrived, by transactional id
	asking   map[string]int      // those whose answer is not known, which may yet do something
	aborting map[string]bool     // see midway
	gone     map[string]bool     // topics that don't come back
	skew     time.Duration       // how much two clocks may differ
}

func newModel(w *world) *model {
	return &model{
		w: w, recs: map[string]*rec{}, stages: map[int64]*staged{}, grants: map[string][]grant{},
		holders: map[txnstate.Producer]*instance{}, fresh: map[int64]string{}, floors: map[groupPart]int64{}, deleted: map[string]int{}, asked: map[string]int{},
		asking: map[string]int{}, aborting: map[string]bool{}, gone: map[string]bool{}, skew: 7 * time.Second, // 2 s ahead or behind, and a hundredth of the time
	}
}

type outcome int8

const (
	unknown outcome = iota
	committed
	aborted
)

func (o outcome) String() string { return [...]string{"unknown", "committed", "aborted"}[o] }

// txn is one transaction of one instance, or, with plain, what it writes outside
// of any.
type txn struct {
	who   *instance
	n     int
	recs  []*rec
	offs  []*staged
	plain bool

	commitSent, abortSent bool
	told                  outcome   // by an answer that a broker gave
	over                  bool      // its instance has gone on
	inits                 int       // of its instance, when it began
	asked                 int       // of its id, when it began
	first                 time.Time // when the first request for it arrived
	opened                bool      // a broker has said that something belongs to it
	asking                bool      // when it began, an InitProducerId of its id was under way
	reopened              bool      // a late copy has begun the next one: protocol 1 can't tell
}

func (t *txn) String() string { return fmt.Sprintf("%s#%d", t.who.name, t.n) }

// rec is one record.
type rec struct {
	txn       *txn
	value     string
	topic     string
	partition int32
	n         int  // of the instance's records in this partition, which one
	stray     bool // its partition was not put into the transaction
	acked     bool
	arrived   time.Time // its first copy, at any broker
}

// staged is one offset of a transaction for a group, or of a plain commit.
type staged struct {
	txn       *txn
	group     string
	partition int32
	offset    int64
	acked     bool
	late      bool // a copy was still at a broker when its sender had gone on
	inside    int  // copies at brokers
}

// grant is an identity that was given to an instance.
type grant struct {
	who *instance
	p   txnstate.Producer

	asked, at time.Time // when the request had arrived, and was answered
}

func (m *model) begin(who *instance, plain bool) *txn {
	m.mu.Lock()
	defer m.mu.Unlock()
	who.txns++
	t := &txn{who: who, n: who.txns, plain: plain, inits: who.inits, asked: m.asked[who.txnID], asking: m.asking[who.txnID] > 0}
	m.txns = append(m.txns, t)
	return t
}

func (m *model) record(t *txn, topic string, partition int32) *rec {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := tp{topic, partition}
	t.who.written[k]++
	r := &rec{txn: t, topic: topic, partition: partition, n: t.who.written[k]}
	r.value = fmt.Sprintf("%s/%s-%d/%d", t, topic, partition, r.n)
	m.recs[r.value] = r
	t.recs = append(t.recs, r)
	return r
}

func (m *model) offset(t *txn, group string, partition int32) *staged {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slips++
	s := &staged{txn: t, group: group, partition: partition, offset: m.slips}
	m.stages[s.offset] = s
	t.offs = append(t.offs, s)
	return s
}

// end says that an instance asks for the end of a transaction.
func (m *model) end(t *txn, commit bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if commit {
		t.commitSent = true
	} else {
		t.abortSent = true
	}
}

// next says that an instance has gone on from a transaction.
func (m *model) next(t *txn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.over = true
}

func (m *model) isOver(t *txn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.over
}

func (m *model) isOpen(t *txn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.opened
}

// arrives is told of every copy of a request that comes to a broker.
func (m *model) arrives(c call, req kmsg.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := req.(*kmsg.InitProducerIDRequest); ok && c.who != nil {
		m.asked[c.who.txnID]++
		m.asking[c.who.txnID]++
	}
	if c.rec != nil && c.rec.arrived.IsZero() {
		c.rec.arrived = time.Now()
	}
	if c.txn != nil && c.txn.first.IsZero() {
		c.txn.first = time.Now()
	}
	switch req.(type) {
	case *kmsg.AddPartitionsToTxnRequest, *kmsg.AddOffsetsToTxnRequest:
		if c.txn != nil && c.txn.told != unknown {
			c.txn.reopened = true
		}
	}
}

// enters and leaves are told when a copy of a plain commit comes to a broker, and
// when the broker has done with it.
func (m *model) enters(s *staged) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.inside++
}

func (m *model) leaves(s *staged) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.inside--
}

// past says that the sender of a plain commit goes on. Where it was acknowledged,
// the group has nothing older from now on; a copy that is still at a broker may yet
// take it back, as in Kafka.
func (m *model) past(s *staged, acked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := groupPart{s.group, s.partition}
	switch {
	case s.inside > 0:
		s.late = true
		m.floors[k] = -1
	case acked && m.floors[k] >= 0:
		m.floors[k] = s.offset
	}
}

// floor is the position that a group has at least, by what was acknowledged until now.
func (m *model) floor(group string, partition int32) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.floors[groupPart{group, partition}]
}

// refused is told of a request that came to a broker that was down.
func (m *model) refused(c call, req kmsg.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := req.(*kmsg.InitProducerIDRequest); ok && c.who != nil {
		m.asking[c.who.txnID]--
	}
}

// older reports whether an instance's identity was given before another instance
// got a newer one, in an answer before a time.
func (m *model) older(c call, id string, p txnstate.Producer, at time.Time) (grant, bool) {
	var own grant // how the identity came to its holder
	for _, g := range m.grants[id] {
		if g.p == p {
			own = g
			break
		}
	}
	for _, g := range m.grants[id] {
		if g.who == c.who || !g.at.Before(at) {
			continue
		}
		if g.p.ID == p.ID && p.Epoch < g.p.Epoch || g.p.ID != p.ID && own.who != nil && own.at.Before(g.asked) {
			return g, true
		}
	}
	return grant{}, false
}

// answered is told of every answer of a broker, whether or not it reaches its
// client. at is when the request arrived.
func (m *model) answered(c call, node int, req kmsg.Request, resp kmsg.Response, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.who == nil {
		return
	}
	who := fmt.Sprintf("broker %d", node)
	switch req := req.(type) {
	case *kmsg.InitProducerIDRequest:
		r := resp.(*kmsg.InitProducerIDResponse)
		c.who.inits++
		m.asking[c.who.txnID]--
		m.w.log(who, "%s InitProducerId %d/%d: %s %d/%d", c.who.name, req.ProducerID, req.ProducerEpoch, code(r.ErrorCode), r.ProducerID, r.ProducerEpoch)
		if r.ErrorCode == 0 {
			asked := txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
			if asked.ID >= 0 {
				m.refusedNow(c, req, c.who.txnID, asked, at)
			}
			m.granted(c, txnstate.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch}, at)
		}
	case *kmsg.EndTxnRequest:
		r := resp.(*kmsg.EndTxnResponse)
		m.w.log(who, "%s EndTxn v%d commit=%t %d/%d: %s", c.txn, req.Version, req.Commit, req.ProducerID, req.ProducerEpoch, code(r.ErrorCode))
		m.ended(c, req, r, at)
	case *kmsg.AddPartitionsToTxnRequest:
		r := resp.(*kmsg.AddPartitionsToTxnResponse)
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				m.w.log(who, "%s AddPartitionsToTxn %s-%d: %s", c.txn, t.Topic, p.Partition, code(p.ErrorCode))
				m.ends(c, txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, p.ErrorCode)
				if p.ErrorCode == 0 {
					c.txn.opened = true
					m.refusedNow(c, req, c.who.txnID, txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, at)
				}
			}
		}
	case *kmsg.AddOffsetsToTxnRequest:
		r := resp.(*kmsg.AddOffsetsToTxnResponse)
		m.w.log(who, "%s AddOffsetsToTxn %s: %s", c.txn, req.Group, code(r.ErrorCode))
		m.ends(c, txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, r.ErrorCode)
		if r.ErrorCode == 0 {
			c.txn.opened = true
			m.refusedNow(c, req, c.who.txnID, txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, at)
		}
	case *kmsg.TxnOffsetCommitRequest:
		for _, t := range resp.(*kmsg.TxnOffsetCommitResponse).Topics {
			for _, p := range t.Partitions {
				m.w.log(who, "%s TxnOffsetCommit %s %d=%d %d/%d: %s", c.txn, req.Group, p.Partition, c.off.offset, req.ProducerID, req.ProducerEpoch, code(p.ErrorCode))
				if p.ErrorCode == 0 {
					c.off.acked, c.txn.opened = true, true
					m.refusedNow(c, req, c.who.txnID, txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, at)
				}
			}
		}
	case *kmsg.OffsetCommitRequest:
		for _, t := range resp.(*kmsg.OffsetCommitResponse).Topics {
			for _, p := range t.Partitions {
				m.w.log(who, "%s OffsetCommit %s %d=%d: %s", c.txn, req.Group, p.Partition, c.off.offset, code(p.ErrorCode))
				c.off.acked = c.off.acked || p.ErrorCode == 0
			}
		}
	case *kmsg.ProduceRequest:
		p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		m.w.log(who, "produce v%d %s %s: %s @%d", req.Version, c.rec.value, c.who.identity(), code(p.ErrorCode), p.BaseOffset)
		if p.ErrorCode == 0 {
			c.rec.acked, c.txn.opened = true, true
			if c.rec.stray {
				m.w.fail("F23", "record %s was taken, and its partition is not in the transaction", c.rec.value)
			}
			if who := c.who.sent(c.rec); !c.txn.plain {
				if g, ok := m.older(c, c.who.txnID, who, c.rec.arrived); ok {
					m.w.fail("I9", "record %s of %s was taken, after %s had got %s", c.rec.value, who, g.who.name, g.p)
				}
			}
		}
	}
}

// ends complains where a request is refused because its transaction was ended, or
// its holder replaced, and nobody has asked for that: no other process came, the
// client did not end it, and its timeout is not over. mu is held.
func (m *model) ends(c call, p txnstate.Producer, e int16) {
	t := c.txn
	switch txnstate.Code(e) {
	case txnstate.CodeProducerFenced, txnstate.CodeInvalidProducerEpoch, txnstate.CodeInvalidProducerIDMapping:
	case txnstate.CodeInvalidTxnState:
		if !t.opened {
			return
		}
	default:
		return
	}
	if t.plain || t.over || t.asked != m.asked[t.who.txnID] || t.asking || t.commitSent && t.abortSent || m.holders[p] != t.who {
		return
	}
	known := false
	for _, g := range m.grants[t.who.txnID] {
		known = known || g.p == p
		if g.p.ID != p.ID || g.p.Epoch > p.Epoch {
			return
		}
	}
	if !known {
		return // the id has expired
	}
	if age := time.Since(t.first); age+m.skew < t.who.timeout {
		m.w.fail("I5", "%s was ended by nobody, %s after its first request, with a timeout of %s: %s", t, age, t.who.timeout, code(e))
	}
}

// replaced reports whether an instance's identity is not the newest of its id.
func (m *model) replaced(i *instance) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	gs := m.grants[i.txnID]
	return len(gs) > 0 && gs[len(gs)-1].who != i
}

// refusedNow complains where a request succeeded that came with an identity that
// a newer one had replaced. mu is held, here and below.
func (m *model) refusedNow(c call, req kmsg.Request, id string, p txnstate.Producer, at time.Time) {
	if g, ok := m.older(c, id, p, at); ok {
		m.w.fail("I9", "%T of %s with %s was answered NONE, after %s had got %s", req, c.who.name, p, g.who.name, g.p)
	}
}

// granted books an identity that a broker has given.
func (m *model) granted(c call, p txnstate.Producer, at time.Time) {
	if p.ID < 0 || p.Epoch < 0 || p.Epoch > txnstate.MaxEpoch {
		m.w.fail("I6", "%s got %s", c.who.name, p)
		return
	}
	if h := m.holders[p]; h != nil && h != c.who {
		m.w.fail("I6", "%s was given to %s and to %s", p, h.name, c.who.name)
	}
	m.holders[p] = c.who
	owner := c.who.txnID
	if owner == "" {
		owner = c.who.name
	}
	if o, ok := m.fresh[p.ID]; ok && o != owner {
		m.w.fail("I6", "producer id %d was given to %s and to %s", p.ID, o, owner)
	}
	m.fresh[p.ID] = owner
	if owner != c.who.txnID {
		return
	}
	for _, g := range m.grants[owner] {
		if g.p.ID == p.ID && g.at.Before(at) && (p.Epoch < g.p.Epoch || p.Epoch == g.p.Epoch && g.who != c.who) {
			m.w.fail("I6", "%s got %s after %s had got %s", c.who.name, p, g.who.name, g.p)
		}
	}
	m.grants[owner] = append(m.grants[owner], grant{c.who, p, at, time.Now()})
}

// expired says that a transactional id was forgotten, and with it who held it.
func (m *model) expired(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.grants, id)
}

// ended is told of an answer to EndTxn.
func (m *model) ended(c call, req *kmsg.EndTxnRequest, r *kmsg.EndTxnResponse, at time.Time) {
	t := c.txn
	told := func(o outcome) {
		if t.told != unknown && t.told != o {
			m.w.fail("I5", "%s was %s, and then its client was told that it is %s", t, t.told, o)
		}
		t.told = o
	}
	asked := txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
	if t.told == unknown {
		m.ends(c, asked, r.ErrorCode)
	}
	switch c := txnstate.Code(r.ErrorCode); {
	case req.Commit && t.told == committed && !t.over && !t.reopened && t.asked == m.asked[t.who.txnID] && (c == txnstate.CodeProducerFenced || c == txnstate.CodeInvalidProducerEpoch):
		m.w.fail("I5", "%s was committed, and a repeat of the request is refused: %s", t, c)
	}
	switch {
	case r.ErrorCode == 0:
		m.refusedNow(c, req, c.who.txnID, asked, at)
		if req.Commit {
			told(committed)
		} else if !t.over {
			told(aborted)
		}
		if req.Version >= 5 {
			m.granted(c, txnstate.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch}, at)
		}
	case txnstate.Code(r.ErrorCode) == txnstate.CodeInvalidTxnState && req.Commit && !t.over && c.who.inits == t.inits:
		// A delayed copy of an InitProducerId makes Kafka, too, forget the outcome.
		told(aborted)
	}
}

// midway says that an id's transaction is aborted while a batch is on its way.
func (m *model) midway(id string, yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.aborting[id] = yes
}

func (m *model) isMidway(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aborting[id]
}

// jumps says that a clock is about to jump.
func (m *model) jumps(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew += by.Abs()
}

// deletesForGood says that a topic is about to be deleted, and does not come back.
func (m *model) deletesForGood(topic string) {
	m.deletes(topic)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone[topic] = true
}

func (m *model) isGone(topic string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gone[topic]
}

// deletes says that a topic is about to be deleted.
func (m *model) deletes(topic string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deleted[topic]++
}

// seen is a record as a reader that wants committed ones only was shown it.
type seen struct {
	offset int64
	value  string
}

// shown is told of a record that a reader was shown.
func (m *model) shown(k tp, s seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recs[s.value]
	switch {
	case r == nil:
		m.w.fail("I8", "%s shows %q, which nobody wrote", k, s.value)
	case r.topic != k.topic || r.partition != k.partition:
		m.w.fail("I8", "%s shows %q", k, s.value)
	case r.txn.plain:
	case !r.txn.commitSent:
		m.w.fail("I8", "%s shows %q, and nobody has asked for its commit", k, s.value)
	case r.txn.told == aborted:
		m.w.fail("I5", "%s shows %q, and its client was told that it is aborted", k, s.value)
	}
}

// fetched is told of an offset that a reader of a group was shown, who asked when
// floor was its floor.
func (m *model) fetched(group string, partition int32, offset, floor int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if floor > 0 && offset < floor && m.floors[groupPart{group, partition}] >= 0 {
		m.w.fail("I7", "group %s has offset %d of partition %d, and %d was acknowledged before that was asked", group, offset, partition, floor)
	}
	if offset < 0 {
		return
	}
	s := m.stages[offset]
	switch {
	case s == nil || s.group != group || s.partition != partition:
		m.w.fail("I7", "group %s has offset %d of partition %d, which is another's", group, offset, partition)
	case s.txn.plain:
	case !s.txn.commitSent:
		m.w.fail("I8", "group %s shows the offset %d of %s, and nobody has asked for its commit", group, offset, s.txn)
	case s.txn.told == aborted:
		m.w.fail("I5", "group %s shows the offset %d of %s, and its client was told that it is aborted", group, offset, s.txn)
	}
}

// transactional is the transaction that a record belongs to, nil where it is one of
// none.
func (m *model) transactional(value string) *txn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.recs[value]; r != nil && !r.txn.plain {
		return r.txn
	}
	return nil
}

// commits is told of a marker that commits what a transaction has in a partition.
func (m *model) commits(t *txn, k tp, offset int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !t.commitSent || t.told == aborted {
		m.w.fail("I4", "a marker in %s, at offset %d, commits %s: its commit was asked for: %t, its client was told: %s", k, offset, t, t.commitSent, t.told)
	}
}

// closed goes through a log: each transaction has a marker behind its records, of
// its outcome, before the next of its producer has one there.
func (m *model) closed(k tp, log []logged) {
	m.mu.Lock()
	defer m.mu.Unlock()
	open := map[int64]*txn{}
	for _, l := range log {
		t := open[l.producer.ID]
		if l.marker {
			if delete(open, l.producer.ID); t == nil {
				continue // a repeat
			}
			switch {
			case t.told == committed && !l.commit, t.told == aborted && l.commit:
				m.w.fail("I5", "%s is %s, and its marker in %s, at offset %d, says commit=%t", t, t.told, k, l.offset, l.commit)
			case l.commit && !t.commitSent:
				m.w.fail("I5", "the marker of %s in %s, at offset %d, commits, and nobody has asked for that", t, k, l.offset)
			}
			continue
		}
		r := m.recs[l.value]
		if r == nil || r.txn.plain {
			continue
		}
		if t != nil && t != r.txn {
			m.w.fail("I4", "in %s, at offset %d, %s begins, and %s has no marker", k, l.offset, r.txn, t)
		}
		open[l.producer.ID] = r.txn
	}
	for _, id := range slices.Sorted(maps.Keys(open)) {
		m.w.fail("I2", "%s has no marker in %s", open[id], k)
	}
}

// final judges what is there when all has settled: the records that readers are
// shown, those in the logs, and the offsets of groups.
func (m *model) final(visible map[tp][]seen, raw map[tp][]seen, offsets map[groupPart]int64, lasting func(topic string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	vis := map[string]bool{}
	for k, ss := range visible {
		last := map[*instance]int{}
		for _, s := range ss {
			r := m.recs[s.value]
			if r == nil {
				continue // complained of
			}
			if vis[s.value] {
				m.w.fail("once", "%s shows %q twice", k, s.value)
			}
			vis[s.value] = true
			if r.n <= last[r.txn.who] {
				m.w.fail("order", "%s shows %q behind the %dth record of %s", k, s.value, last[r.txn.who], r.txn.who.name)
			}
			last[r.txn.who] = r.n
		}
	}
	for k, ss := range raw {
		once := map[string]bool{}
		for _, s := range ss {
			if once[s.value] {
				m.w.fail("once", "the log of %s has %q twice", k, s.value)
			}
			once[s.value] = true
		}
	}
	newest := map[groupPart]*staged{}
	for _, t := range m.txns {
		m.judge(t, vis, lasting, newest)
	}
	for _, k := range slices.SortedFunc(maps.Keys(newest), compareGroupPart) {
		want := newest[k]
		got, ok := offsets[k]
		switch {
		case !ok:
		case got >= 0 && m.stages[got] != nil && m.stages[got].late && m.stages[got].group == k.group && m.stages[got].partition == k.partition:
			// Kafka, too, takes a position back to what it finishes last.
		case got < 0 || got < want.offset:
			m.w.fail("I7", "group %s has offset %d of partition %d, and %s committed %d", k.group, got, k.partition, want.txn, want.offset)
		case got > want.offset:
			// A plain commit that was not acknowledged may have been made.
			if s := m.stages[got]; s == nil || !s.txn.plain && s.txn.final(vis, lasting) == aborted {
				m.w.fail("I8", "group %s has offset %d of partition %d, whose transaction is not committed", k.group, got, k.partition)
			}
		}
	}
	for k, got := range offsets {
		if newest[k] == nil && got >= 0 {
			if s := m.stages[got]; s == nil || !s.txn.plain && s.txn.final(vis, lasting) == aborted {
				m.w.fail("I8", "group %s has offset %d of partition %d, and nothing was committed there", k.group, got, k.partition)
			}
		}
	}
}

// final is what became of a transaction, as far as it shows.
func (t *txn) final(vis map[string]bool, lasting func(string) bool) outcome {
	if t.told != unknown {
		return t.told
	}
	n := 0
	for _, r := range t.recs {
		if lasting(r.topic) {
			if vis[r.value] {
				return committed
			}
			if r.acked {
				n++
			}
		}
	}
	if n > 0 || !t.commitSent {
		return aborted
	}
	return unknown
}

func (m *model) judge(t *txn, vis map[string]bool, lasting func(string) bool, newest map[groupPart]*staged) {
	if t.plain {
		for _, r := range t.recs {
			if r.acked && lasting(r.topic) && !vis[r.value] {
				m.w.fail("durable", "%q was acknowledged and is not there", r.value)
			}
		}
		for _, s := range t.offs {
			if k := (groupPart{s.group, s.partition}); s.acked && (newest[k] == nil || newest[k].offset < s.offset) {
				newest[k] = s
			}
		}
		return
	}
	fin := t.final(vis, lasting)
	for _, r := range t.recs {
		if !lasting(r.topic) {
			continue
		}
		switch {
		case fin == committed && r.acked && !vis[r.value]:
			m.w.fail("I8", "%s is committed (told %s), and its record %q is not shown", t, t.told, r.value)
		case fin == aborted && vis[r.value]:
			m.w.fail("I8", "%s is aborted (told %s), and its record %q is shown", t, t.told, r.value)
		}
	}
	if fin != committed {
		return
	}
	for _, s := range t.offs {
		if k := (groupPart{s.group, s.partition}); s.acked && (newest[k] == nil || newest[k].offset < s.offset) {
			newest[k] = s
		}
	}
}

type groupPart struct {
	group     string
	partition int32
}

func compareGroupPart(a, b groupPart) int {
	return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.partition, b.partition))
}

type tp struct {
	topic     string
	partition int32
}

func (k tp) String() string { return fmt.Sprintf("%s-%d", k.topic, k.partition) }

func code(c int16) string {
	if c == 0 {
		return "NONE"
	}
	return txnstate.Code(c).String()
}
