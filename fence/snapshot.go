package fence

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A snapshot is the magic, the version, a body and its CRC-32C. Numbers in the
// body are varints; offsets are written as distances where they follow one
// another, so an aborted transaction takes some ten bytes.
const (
	snapshotMagic   = "KTXF"
	snapshotVersion = 1
	snapshotHead    = len(snapshotMagic) + 1
)

const (
	flagOpen = 1 << iota
	flagHas
)

// AppendSnapshot appends what has to survive a restart: epochs of producers and
// coordinators, fences, the batches remembered for duplicates, open transactions
// and aborted ranges. The same state gives the same bytes. What was verified is
// not in it, nor what is only reserved: a log is replayed on top from End, which
// the host asks for at the same time, and which is in the snapshot too.
func (p *Partition) AppendSnapshot(dst []byte) []byte {
	from := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = append(dst, snapshotVersion)
	dst = binary.AppendVarint(dst, p.logStart)
	dst = binary.AppendVarint(dst, p.End())

	all := make([]*producer, 0, len(p.producers))
	for _, pr := range p.producers {
		if pr.known {
			all = append(all, pr)
		}
	}
	slices.SortFunc(all, func(a, b *producer) int { return cmp.Compare(a.id, b.id) })
	dst = binary.AppendUvarint(dst, uint64(len(all)))
	for _, pr := range all {
		dst = pr.append(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.ended)))
	at := int64(0)
	for _, e := range p.ended {
		dst = binary.AppendVarint(dst, e.last-at)
		dst = binary.AppendVarint(dst, e.last-e.first)
		at = e.last
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.aborted)))
	at = 0
	for _, a := range p.aborted {
		dst = binary.AppendVarint(dst, a.ProducerID)
		dst = binary.AppendVarint(dst, a.Last-at)
		dst = binary.AppendVarint(dst, a.Last-a.First)
		dst = binary.AppendVarint(dst, a.Last-a.LastStable)
		at = a.Last
	}
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[from:], crc32.MakeTable(crc32.Castagnoli)))
}

func (pr *producer) append(dst []byte) []byte {
	flags := uint64(0)
	if pr.core.open {
		flags |= flagOpen
	}
	if pr.has {
		flags |= flagHas
	}
	dst = binary.AppendVarint(dst, pr.id)
	dst = binary.AppendUvarint(dst, flags)
	for _, v := range [...]int64{int64(pr.epoch), int64(pr.fencedBelow), int64(pr.coord), int64(pr.seq), pr.ts, pr.seenMs, pr.start, pr.last} {
		dst = binary.AppendVarint(dst, v)
	}
	dst = binary.AppendUvarint(dst, uint64(pr.filled))
	pr.spans(func(s span) {
		for _, v := range [...]int64{s.base, s.ts, int64(s.first), int64(s.count)} {
			dst = binary.AppendVarint(dst, v)
		}
	})
	return dst
}

// RestorePartition is the Partition of a snapshot. The log has to be replayed on
// top, from End on. The error is KAFKA_STORAGE_ERROR (56): the bytes are damaged
// or of a newer version, and the host rebuilds the state from its log, from the
// beginning. Memory is never taken for more than the bytes hold. Where the
// snapshot has more producers than cfg.MaxProducers, the longest unused are
// forgotten.
func RestorePartition(cfg Config, b []byte) (*Partition, error) {
	if len(b) < snapshotHead+4 || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, damaged("no snapshot of producers")
	}
	if v := b[len(snapshotMagic)]; v != snapshotVersion {
		return nil, damaged("version %d, and version %d is known", v, snapshotVersion)
	}
	end := len(b) - 4
	want := binary.BigEndian.Uint32(b[end:])
	if got := crc32.Checksum(b[:end], crc32.MakeTable(crc32.Castagnoli)); got != want {
		return nil, damaged("checksum %08x, and the bytes have %08x", want, got)
	}
	r := &reader{b: b[snapshotHead:end]}
	p := NewPartition(cfg)
	p.logStart, p.end = r.offset(), r.offset()
	all := make([]*producer, 0, r.count(11))
	for range cap(all) {
		pr := r.producer()
		if n := len(all); n > 0 && all[n-1].id >= pr.id {
			r.fail("producer id %d behind %d", pr.id, all[n-1].id)
		}
		if r.err != nil {
			return nil, r.err
		}
		all = append(all, pr)
	}
	p.ended = make([]ended, 0, r.count(2))
	at := int64(-1)
	for range cap(p.ended) {
		e := ended{last: max(at, 0) + r.varint()}
		e.first = e.last - r.varint()
		if n := len(p.ended); e.last <= at || e.first < 0 || e.first > e.last || n > 0 && e.first <= p.ended[n-1].first {
			r.fail("an ended transaction from %d to %d", e.first, e.last)
		}
		p.ended = append(p.ended, e)
		at = e.last
	}
	p.aborted = make([]Aborted, 0, r.count(4))
	at = -1
	for range cap(p.aborted) {
		a := Aborted{ProducerID: r.varint(), Last: max(at, 0) + r.varint()}
		a.First, a.LastStable = a.Last-r.varint(), a.Last-r.varint()
		if a.ProducerID < 0 || a.Last <= at || a.First < 0 || a.First > a.Last || a.LastStable < 0 || a.LastStable > a.Last+1 {
			r.fail("an aborted transaction of producer id %d from %d to %d", a.ProducerID, a.First, a.Last)
		}
		p.aborted = append(p.aborted, a)
		at = a.Last
	}
	if len(r.b) > 0 {
		r.fail("%d bytes left over", len(r.b))
	}
	if r.err != nil {
		return nil, r.err
	}
	p.adopt(all)
	return p, nil
}

// adopt takes over restored producers, in the order of the lists.
func (p *Partition) adopt(all []*producer) {
	slices.SortStableFunc(all, func(a, b *producer) int { return cmp.Compare(a.seenMs, b.seenMs) })
	for _, pr := range all {
		p.producers[pr.id] = pr
		if !pr.open {
			p.place(pr)
		}
	}
	for len(p.producers) > p.cfg.MaxProducers && p.idle.head != nil {
		p.drop(p.idle.head)
	}
	slices.SortStableFunc(all, func(a, b *producer) int { return cmp.Compare(a.start, b.start) })
	for _, pr := range all {
		if pr.open {
			p.place(pr)
		}
	}
}

func damaged(format string, args ...any) error {
	return txnstate.CodeKafkaStorageError.Errorf("", "producer snapshot: "+format, args...)
}

// reader takes the body of a snapshot apart. After the first error it gives
// zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = damaged(format, args...)
	}
	r.b = nil
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("cut off")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("cut off")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) within(lo, hi int64) int64 {
	v := r.varint()
	if v < lo || v > hi {
		r.fail("%d, and it has to be from %d to %d", v, lo, hi)
		return lo
	}
	return v
}

func (r *reader) offset() int64 { return r.within(0, math.MaxInt64) }

// count is a number of things of at least size bytes each, which have to be
// there.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail("%d entries in %d bytes", n, len(r.b))
		return 0
	}
	return int(n)
}

func (r *reader) producer() *producer {
	pr := &producer{id: r.within(0, math.MaxInt64), known: true}
	flags := r.uvarint()
	if flags > flagOpen|flagHas {
		r.fail("flags %d", flags)
	}
	pr.core.open, pr.has = flags&flagOpen != 0, flags&flagHas != 0
	pr.epoch = int16(r.within(-1, math.MaxInt16))
	pr.fencedBelow = int16(r.within(-1, math.MaxInt16))
	pr.coord = int32(r.within(math.MinInt32, math.MaxInt32))
	pr.seq = int32(r.within(-1, math.MaxInt32))
	pr.ts, pr.seenMs = r.varint(), r.varint()
	pr.start, pr.last = r.within(-1, math.MaxInt64), r.offset()
	if (pr.start >= 0) != pr.core.open || pr.start > pr.last {
		r.fail("a transaction of producer id %d from %d", pr.id, pr.start)
	}
	n := r.uvarint()
	if n > remembered || (n > 0) != pr.has {
		r.fail("%d batches of producer id %d", n, pr.id)
		return pr
	}
	for range n {
		pr.remember(span{
			base: r.offset(), ts: r.varint(),
			first: int32(r.within(0, math.MaxInt32)), count: int32(r.within(1, math.MaxInt32)),
		})
	}
	return pr
}
