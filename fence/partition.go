package fence

import (
	"cmp"
	"slices"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Config holds what a Partition can be told. Its zero value is Kafka's.
type Config struct {
	// ExpireAfter is how long a producer without an open transaction, or a
	// verification that came to nothing, is remembered; zero or less means 24h
	// (producer.id.expiration.ms). It counts from when the host heard of the
	// producer; a batch that was replayed counts by its own timestamp.
	ExpireAfter time.Duration
	// NoVerification lets transactional batches in without asking the
	// coordinator (transaction.partition.verification.enable=false). ModeAdd
	// asks all the same: it adds the partition.
	NoVerification bool
	// MaxProducers is how many producers are remembered; zero or less means
	// 100000. Beyond it those without an open transaction are forgotten, the
	// longest unused first; one with an open transaction never is.
	MaxProducers int
}

func (c Config) withDefaults() Config {
	if c.ExpireAfter <= 0 {
		c.ExpireAfter = 24 * time.Hour
	}
	if c.MaxProducers <= 0 {
		c.MaxProducers = 100_000
	}
	return c
}

// Guard ties a batch to the question that was asked for it. The zero Guard is
// none. It is worth nothing at another Partition, one restored included.
type Guard struct {
	p     *Partition
	token uint64
}

// Mark is an end-of-transaction marker, as far as a partition looks at it.
type Mark struct {
	Producer         txnstate.Producer
	Commit           bool
	CoordinatorEpoch int32
	TimestampMs      int64 // of its record, milliseconds since 1970
}

// ProducerState is what a partition knows of one producer, what is reserved and
// not yet settled included.
type ProducerState struct {
	Producer         txnstate.Producer
	CoordinatorEpoch int32 // of the last marker, -1 for none
	Open             bool  // a transaction is open
	OpenSince        int64 // offset of its first batch; -1 for none, or not known yet
	LastSequence     int32 // -1 for none under this epoch
	LastTimestampMs  int64 // of the last batch or marker, as the log has it
	// FencedBelow: transactional batches of lower epochs are refused, whatever
	// Producer.Epoch is (see Fence). -1 for no such fence.
	FencedBelow int16
}

// Aborted is an aborted transaction with data in the log: an entry of Kafka's
// transaction index.
type Aborted struct {
	ProducerID int64
	First      int64 // offset of its first batch
	Last       int64 // offset of its marker
	LastStable int64 // last stable offset when the marker was appended
}

// Partition is the producer state of one partition, at its leader or a follower.
// It does no I/O, reads no clock and starts nothing; times are milliseconds since
// 1970, offsets are those of the log. It is not safe for concurrent use: the host
// calls it, the methods of its Reservations included, under the lock that orders
// its appends. It keeps nothing of what it is given and hands out only copies.
type Partition struct {
	cfg       Config
	producers map[int64]*producer
	open      list // with an open transaction, by its first offset
	idle      list // without one, the longest unused first
	entries   list // only asked about, the oldest first
	tokens    uint64

	oldest, newest *pending // reservations, in order
	free           *pending
	overtaken      int // how many reservations are overtaken

	ended    []ended   // above the high watermark; see addEnded
	aborted  []Aborted // by Last
	logStart int64
	end      int64 // behind the last batch or marker that has an offset
}

// NewPartition is the state of a partition with an empty log.
func NewPartition(cfg Config) *Partition {
	return &Partition{cfg: cfg.withDefaults(), producers: map[int64]*producer{}}
}

// Producer is what is known of a producer id. A marker is decided on with it.
// What was only asked about is not known.
func (p *Partition) Producer(id int64) (ProducerState, bool) {
	pr := p.producers[id]
	if pr == nil || !pr.known && pr.first == nil {
		return ProducerState{
			Producer:         txnstate.Producer{ID: id, Epoch: -1},
			CoordinatorEpoch: -1, OpenSince: -1, LastSequence: -1, LastTimestampMs: -1, FencedBelow: -1,
		}, false
	}
	return pr.state(), true
}

// Producers lists what DescribeProducers shows: every producer id with state
// here, idempotent ones and those known by a marker alone included, by id.
func (p *Partition) Producers() []ProducerState {
	var out []ProducerState
	for _, pr := range p.producers {
		if pr.known || pr.first != nil {
			out = append(out, pr.state())
		}
	}
	slices.SortFunc(out, func(a, b ProducerState) int { return cmp.Compare(a.Producer.ID, b.Producer.ID) })
	return out
}

// Open lists the open transactions in the order of their first batches: the
// first of them holds the last stable offset. It looks at those alone. A batch
// that is reserved opens one only when it is settled.
func (p *Partition) Open() []ProducerState {
	var out []ProducerState
	for pr := p.open.head; pr != nil; pr = pr.next {
		out = append(out, pr.state())
	}
	return out
}

// End is where a log has to be replayed from on top of a snapshot taken now: all
// that is settled below it is in the snapshot.
func (p *Partition) End() int64 {
	if p.oldest != nil {
		return p.oldest.floor
	}
	return p.end
}

// Replay takes a batch found in the log, in the order of the log: at start-up
// from End on, or at a follower as it is copied. There are no checks: what is in
// the log is so. For an end-of-transaction marker m is what
// markers.ParseControlBatch gives; other control batches have none and mean
// nothing here. What a snapshot has already is passed over.
//
// A log in which epochs go back, of producers or of coordinators, is damaged or
// was written by a faulty broker; the higher epoch stays in force.
func (p *Partition) Replay(b Batch, base int64, m *Mark) {
	p.end = max(p.end, base+max(int64(b.Records), 1))
	n := pending{kind: kindData, b: b, nowMs: b.MaxTimestampMs}
	switch {
	case m != nil:
		n.kind, n.coord, n.commit = kindMark, m.CoordinatorEpoch, m.Commit
		n.b = Batch{Producer: m.Producer, FirstSequence: -1, Records: 1, MaxTimestampMs: m.TimestampMs, Transactional: true, Control: true}
		n.nowMs = m.TimestampMs
	case b.Control:
		return
	case b.FirstSequence < 0:
		n.kind = kindOffsets // of a group: it has no sequence
	}
	if n.b.Producer.ID < 0 {
		return
	}
	pr := p.get(n.b.Producer.ID)
	if pr.known && base <= pr.last {
		return
	}
	n.pr, n.base, n.settled = pr, base, true
	n.state = pr.core.after(&n)
	p.apply(&n)
	for later := pr.first; later != nil; later = later.next {
		later.state = later.before().after(later)
	}
}

// Expire forgets producers without an open transaction, and verifications that
// came to nothing, that Config.ExpireAfter has passed since. A forgotten
// producer may go on with any sequence. The host calls it now and then; it looks
// only at what is due.
func (p *Partition) Expire(nowMs int64) {
	after := p.cfg.ExpireAfter.Milliseconds()
	for pr := p.idle.head; pr != nil; {
		next := pr.next
		if pr.seenMs > nowMs {
			pr.seenMs = nowMs // a clock ahead of ours does not keep it for ever
		}
		if nowMs-pr.seenMs < after {
			break
		}
		if pr.first == nil {
			if p.entryOf(pr, nowMs) == nil {
				p.drop(pr)
			} else {
				*pr = producer{id: pr.id, core: fresh, entry: pr.entry, fencedBelow: pr.fencedBelow, start: -1, last: -1, seenMs: -1, in: pr.in, prev: pr.prev, next: pr.next}
				p.place(pr)
			}
		}
		pr = next
	}
	for pr := p.entries.head; pr != nil; {
		next := pr.next
		if pr.entry.token != 0 && p.entryOf(pr, nowMs) != nil {
			break
		}
		p.tidy(pr)
		pr = next
	}
}

// Fence says that the epochs of a producer id below pr.Epoch are gone: the
// coordinator has granted that epoch, or has ended a transaction with it. Their
// transactional batches and offsets are refused from now on, with
// INVALID_PRODUCER_EPOCH (47), also those of the transaction that is open; its
// marker is taken as before. It may be said again, and out of order.
//
// It does nothing for a producer that the partition does not know, so its cost
// is bounded by what is here: the first transactional batch of any other is
// verified at the coordinator, which refuses it.
//
// Kafka has no such feed: there a fenced producer may go on in its open
// transaction until the marker arrives. Batches of the producer id outside of a
// transaction, which no client sends once it has a transactional id, are taken
// as in Kafka: until the marker.
func (p *Partition) Fence(pr txnstate.Producer) {
	if known := p.producers[pr.ID]; known != nil {
		known.fencedBelow = max(known.fencedBelow, pr.Epoch)
	}
}
