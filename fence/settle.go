package fence

// Reservation is the place of a batch, or of a marker, in its producer's order.
// It ends with Settle or with Cancel, under the partition's lock; whichever comes
// second does nothing, so a Cancel may be deferred. The zero Reservation is that
// of a batch without a producer.
//
// How many there are at a time is the host's affair: a place is kept, about 170
// bytes, for each batch that it is appending.
type Reservation struct {
	// Duplicate: the batch is in the log already, at Offset, with TimestampMs.
	// It must not be appended again; answer with these. Settle and Cancel then
	// do nothing.
	//
	// A duplicate of a batch that is itself only reserved gives no Reservation
	// but NOT_ENOUGH_REPLICAS_AFTER_APPEND (20): its offset isn't known and it
	// may yet be cancelled, so the client has to come again.
	Duplicate   bool
	Offset      int64
	TimestampMs int64

	p   *Partition
	n   *pending
	gen uint64
}

type kind uint8

const (
	kindData kind = iota
	kindOffsets
	kindMark
)

// pending is a reservation as the partition keeps it, until it and all before it
// of the same producer are settled or cancelled. They are used again: gen tells
// one use from the next.
type pending struct {
	pr         *producer
	prev, next *pending // of the producer
	older      *pending // of the partition
	newer      *pending
	gen        uint64

	kind    kind
	commit  bool
	settled bool
	// overtaken: something reserved behind this, for the same producer, is in
	// the log, so this is too, or never will be.
	overtaken bool
	coord     int32
	b         Batch
	state     core // the producer's, once this is in the log
	base      int64
	floor     int64 // its offset can't be below
	nowMs     int64
	cleared   entry // what it took the place of, for Cancel
}

func (n *pending) span() span {
	return span{base: n.base, ts: n.b.MaxTimestampMs, first: n.b.FirstSequence, count: n.b.Records}
}

func (n *pending) opens() bool {
	return n.kind == kindOffsets || n.kind == kindData && n.b.Transactional
}

// before is the producer's state in front of n.
func (n *pending) before() core {
	if n.prev != nil {
		return n.prev.state
	}
	return n.pr.core
}

func (p *Partition) newPending(pr *producer, k kind, b Batch, nowMs int64) *pending {
	n := p.free
	if n == nil {
		n = new(pending)
	} else {
		p.free = n.newer
	}
	*n = pending{gen: n.gen + 1, pr: pr, kind: k, b: b, nowMs: nowMs, base: -1, floor: p.end}
	return n
}

// reserve puts n behind all others.
func (p *Partition) reserve(n *pending) Reservation {
	pr := n.pr
	n.prev, n.older = pr.tail, p.newest
	n.state = n.before().after(n)
	n.takeEntry()
	if pr.tail != nil {
		pr.tail.next = n
	} else {
		pr.first = n
	}
	if p.newest != nil {
		p.newest.newer = n
	} else {
		p.oldest = n
	}
	pr.tail, p.newest = n, n
	return Reservation{p: p, n: n, gen: n.gen}
}

func (p *Partition) unlink(n *pending) {
	if n.overtaken {
		p.overtaken--
	}
	pr := n.pr
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		pr.first = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		pr.tail = n.prev
	}
	if n.older != nil {
		n.older.newer = n.newer
	} else {
		p.oldest = n.newer
	}
	if n.newer != nil {
		n.newer.older = n.older
	} else {
		p.newest = n.older
	}
	*n = pending{gen: n.gen + 1, newer: p.free}
	p.free = n
}

func (r Reservation) live() bool { return r.n != nil && r.n.gen == r.gen && !r.n.settled }

// Settle says that the batch, or the marker, is in the log with its first record
// at base. It may be called in another order than Reserve was: what is reserved
// before it, for the same producer, has to be settled or cancelled until it
// takes effect, since it stands in front of it in the log. Meanwhile LastStable
// does not pass what is still missing.
//
// A host calls Settle before it shows the batch to anybody: before its high
// watermark passes base.
func (r Reservation) Settle(base int64) {
	if !r.live() {
		return
	}
	n, p := r.n, r.p
	n.settled, n.base = true, base
	p.end = max(p.end, base+int64(n.b.Records))
	for o := n.prev; o != nil; o = o.prev {
		if !o.settled && !o.overtaken {
			o.overtaken = true
			p.overtaken++
		}
	}
	p.drain(n.pr)
}

// Cancel says that the batch, or the marker, is not in the log and never will
// be: the producer is as if it had not been reserved. Where that is unknown, the
// host can't say so: it drops the Partition and rebuilds it from the log.
//
// Where others of the same producer are reserved behind it, they stand: they may
// be in the log already. What is cancelled in the middle leaves a gap in the
// sequences, so a host should cancel those behind it too, unless they are
// appended. Until each of them is settled or cancelled, the producer's batches
// are refused with NOT_ENOUGH_REPLICAS (19), which clients try again. When all
// are cancelled the first of them is the next in sequence; when one was settled,
// the log has the gap, and the batch that is missing is answered
// OUT_OF_ORDER_SEQUENCE_NUMBER (45) for good: its transaction can only abort.
func (r Reservation) Cancel() {
	if !r.live() {
		return
	}
	n, p := r.n, r.p
	pr := n.pr
	if n.next != nil {
		pr.broken = true
	}
	n.giveBack()
	later := n.next
	p.unlink(n)
	for ; later != nil; later = later.next {
		later.state = later.before().after(later)
	}
	p.drain(pr)
	p.tidy(pr)
}

// clears reports whether n, once reserved, settles what was asked about its
// producer before. A marker does, but for the entry of a TV2 client at the very
// epoch that the marker brings in: the client has learned it from the answer to
// EndTxn, and may be ahead of the marker.
func (n *pending) clears(e entry) bool {
	if n.kind == kindMark {
		return !e.tv2 || e.epoch != n.b.Producer.Epoch
	}
	return n.opens()
}

// takeEntry is called when n is reserved.
func (n *pending) takeEntry() {
	if n.clears(n.pr.entry) {
		n.cleared, n.pr.entry = n.pr.entry, entry{}
	}
}

// giveBack is called when n is cancelled. What is reserved behind it and would
// have settled the same question keeps it settled: a batch that was verified
// before a marker must not follow it.
func (n *pending) giveBack() {
	if n.cleared.token == 0 {
		return
	}
	for l := n.next; l != nil; l = l.next {
		if l.clears(n.cleared) {
			if l.cleared.token == 0 {
				l.cleared = n.cleared
			}
			return
		}
	}
	if n.pr.entry.token == 0 {
		n.pr.entry = n.cleared
	}
}

// drain lets all take effect that nothing unsettled stands before.
func (p *Partition) drain(pr *producer) {
	for n := pr.first; n != nil && n.settled; n = pr.first {
		p.apply(n)
		p.unlink(n)
	}
	if pr.first == nil {
		pr.broken = false
	}
}

// apply makes n, which is the first of its producer, part of what is in the log.
func (p *Partition) apply(n *pending) {
	pr := n.pr
	if n.state.epoch != pr.epoch {
		pr.oldest, pr.filled = 0, 0
	}
	if n.kind == kindData && n.b.Producer.Epoch == n.state.epoch {
		pr.remember(n.span())
	}
	wasOpen := pr.open
	pr.core = n.state
	pr.known = true
	pr.last = max(pr.last, n.base)
	pr.seenMs = max(pr.seenMs, n.nowMs)
	if n.opens() && !wasOpen {
		pr.start = n.base
	}
	p.place(pr)
	if n.kind == kindMark && wasOpen {
		p.closed(pr, n)
		pr.start = -1
	}
}
