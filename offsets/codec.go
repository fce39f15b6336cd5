package offsets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// The format of entries, version 1. Numbers are big-endian and of fixed width,
// so that every entry has exactly one encoding. A string is its length in four
// bytes and its bytes; a list is its length in four bytes and its elements.
//
//	byte 0      version, 1
//	byte 1      kind
//	bytes 2-5   CRC-32C of bytes 0, 1 and 6 to the end
//	bytes 6-    by kind:
//
//	 1 stage              number i64, producer id i64, epoch i16, time i64, group string, list of offsets
//	 2 commit             number i64, group string, list of offsets
//	 3 marker             number i64, producer id i64, epoch i16, coordinator epoch i32, time i64, outcome u8
//	 4 delete-group       number i64, group string
//	 5 delete-offsets     number i64, group string, list of partitions
//	 6 delete-topic       number i64, topic string
//	 7 expire             number i64, group string, list of (partition, order i64)
//	16 snapshot           number i64, entries that follow and belong to it u32
//	17 snapshot-producers last u8, then to the end: a piece of the producer state (fence.AppendSnapshot)
//	18 snapshot-committed group string, list of (offset, order i64)
//	19 snapshot-staged    producer id i64, group string, list of (offset, order i64, epoch i16)
//
//	partition:  topic string, partition i32
//	offset:     partition, offset i64, leader epoch i32, commit time i64, metadata string
//	outcome:    0 abort, 1 commit; last: 0 or 1
//	times are milliseconds since 1970
//
// A version or kind that is not listed here comes from a newer release. It is
// refused, and with it the whole partition: to pass over it could make an
// aborted offset committed.
const entryVersion = 1

const entryHeader = 6

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func entrySum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:2], castagnoli), castagnoli, b[entryHeader:])
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendI64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }
func appendI32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }
func appendI16(b []byte, v int16) []byte { return binary.BigEndian.AppendUint16(b, uint16(v)) }

func appendKey(b []byte, tp TopicPartition) []byte {
	return appendI32(appendString(b, tp.Topic), tp.Partition)
}

func appendOffset(b []byte, it item) []byte {
	b = appendI64(appendKey(b, it.key), it.offset)
	b = appendI64(appendI32(b, it.leaderEpoch), it.commitMs)
	return appendString(b, it.metadata)
}

func appendItems(b []byte, items []item, one func([]byte, item) []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(items)))
	for _, it := range items {
		b = one(b, it)
	}
	return b
}

// appendEntry adds the encoding of e to b.
func appendEntry(b []byte, e entry) []byte {
	start := len(b)
	b = append(b, entryVersion, byte(e.kind), 0, 0, 0, 0)
	if e.kind <= kindSnapshot {
		b = appendI64(b, e.number)
	}
	switch e.kind {
	case kindStage:
		b = appendI16(appendI64(b, e.producer.ID), e.producer.Epoch)
		b = appendString(appendI64(b, e.stampMs), e.group)
		b = appendItems(b, e.items, appendOffset)
	case kindCommit:
		b = appendItems(appendString(b, e.group), e.items, appendOffset)
	case kindMarker:
		b = appendI16(appendI64(b, e.producer.ID), e.producer.Epoch)
		b = appendBool(appendI64(appendI32(b, e.coordinatorEpoch), e.stampMs), e.commit)
	case kindDeleteGroup:
		b = appendString(b, e.group)
	case kindDeleteOffsets:
		b = appendItems(appendString(b, e.group), e.items, func(b []byte, it item) []byte { return appendKey(b, it.key) })
	case kindDeleteTopic:
		b = appendString(b, e.topic)
	case kindExpire:
		b = appendItems(appendString(b, e.group), e.items, func(b []byte, it item) []byte {
			return appendI64(appendKey(b, it.key), it.order)
		})
	case kindSnapshot:
		b = appendI32(b, int32(e.count))
	case kindSnapshotProducers:
		b = append(appendBool(b, e.last), e.blob...)
	case kindSnapshotCommitted:
		b = appendItems(appendString(b, e.group), e.items, func(b []byte, it item) []byte {
			return appendI64(appendOffset(b, it), it.order)
		})
	case kindSnapshotStaged:
		b = appendString(appendI64(b, e.producer.ID), e.group)
		b = appendItems(b, e.items, func(b []byte, it item) []byte {
			return appendI16(appendI64(appendOffset(b, it), it.order), it.epoch)
		})
	}
	binary.BigEndian.PutUint32(b[start+2:], entrySum(b[start:]))
	return b
}

// Sizes that a list's length is checked against before anything is allocated.
const (
	keySize    = 4 + 4
	offsetSize = keySize + 8 + 4 + 8 + 4
)

// offsetsSize is the length of a stage or commit entry.
func offsetsSize(group string, os []Offset) int {
	n := entryHeader + 8 + 8 + 2 + 8 + 4 + len(group) + 4
	for _, o := range os {
		n += offsetSize + len(o.Topic) + len(o.Metadata)
	}
	return n
}

var errShort = errors.New("it ends before it should")

// reader takes an entry apart. After the first failure every further read
// gives a zero value.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail(errShort)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) i64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) i32() int32 { return int32(r.u32()) }

func (r *reader) i16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) bool() bool {
	b := r.take(1)
	if b != nil && b[0] > 1 {
		r.fail(fmt.Errorf("a flag is %d", b[0]))
	}
	return b != nil && b[0] == 1
}

// size is a length that at least unit bytes each must follow.
func (r *reader) size(unit int) int {
	n := int64(r.u32())
	if n > int64(len(r.b)/unit) {
		r.fail(fmt.Errorf("a length of %d with %d bytes left", n, len(r.b)))
		return 0
	}
	return int(n)
}

func (r *reader) string() string { return string(r.take(r.size(1))) }

func (r *reader) key() TopicPartition {
	t := r.string()
	return TopicPartition{t, r.i32()}
}

func (r *reader) offset() item {
	it := item{key: r.key()}
	it.offset, it.leaderEpoch, it.commitMs = r.i64(), r.i32(), r.i64()
	it.metadata = r.string()
	return it
}

func (r *reader) items(unit int, one func() item) []item {
	n := r.size(unit)
	if n == 0 {
		return nil
	}
	items := make([]item, 0, n)
	for range n {
		items = append(items, one())
	}
	return items
}

func (r *reader) orderOf(it item) item {
	it.order = r.i64()
	if it.order <= 0 {
		r.fail(fmt.Errorf("order %d, and they count from 1", it.order))
	}
	return it
}

// parseEntry takes an entry apart. The result shares no memory with b.
func parseEntry(b []byte) (entry, error) {
	if len(b) < entryHeader {
		return entry{}, fmt.Errorf("%d bytes are no entry", len(b))
	}
	if b[0] != entryVersion {
		return entry{}, fmt.Errorf("format version %d, and this release knows %d", b[0], entryVersion)
	}
	if want, got := binary.BigEndian.Uint32(b[2:]), entrySum(b); want != got {
		return entry{}, fmt.Errorf("checksum %08x is stored, the bytes have %08x", want, got)
	}
	e := entry{kind: kind(b[1])}
	if _, ok := kindNames[e.kind]; !ok {
		return entry{}, fmt.Errorf("entries of kind %d are not known to this release", b[1])
	}
	r := &reader{b: b[entryHeader:]}
	e.parse(r)
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.b))
	}
	if r.err != nil {
		return entry{}, fmt.Errorf("a %s entry: %w", kindNames[e.kind], r.err)
	}
	return e, nil
}

func (e *entry) parse(r *reader) {
	if e.kind <= kindSnapshot {
		if e.number = r.i64(); e.number < 0 || e.number == 0 && e.kind != kindSnapshot {
			r.fail(fmt.Errorf("number %d, and they count from 1", e.number))
		}
	}
	switch e.kind {
	case kindStage:
		e.producer.ID, e.producer.Epoch, e.stampMs, e.group = r.i64(), r.i16(), r.i64(), r.string()
		if e.producer.ID < 0 {
			r.fail(fmt.Errorf("producer id %d", e.producer.ID))
		}
		e.items = r.items(offsetSize, r.offset)
	case kindCommit:
		e.group = r.string()
		e.items = r.items(offsetSize, r.offset)
	case kindMarker:
		e.producer.ID, e.producer.Epoch, e.coordinatorEpoch = r.i64(), r.i16(), r.i32()
		e.stampMs, e.commit = r.i64(), r.bool()
	case kindDeleteGroup:
		e.group = r.string()
	case kindDeleteOffsets:
		e.group = r.string()
		e.items = r.items(keySize, func() item { return item{key: r.key()} })
	case kindDeleteTopic:
		e.topic = r.string()
	case kindExpire:
		e.group = r.string()
		e.items = r.items(keySize+8, func() item { return r.orderOf(item{key: r.key()}) })
	case kindSnapshot:
		n := r.u32()
		if n > math.MaxInt32 {
			r.fail(fmt.Errorf("a snapshot of %d entries", n))
		}
		e.count = int(n)
	case kindSnapshotProducers:
		e.last = r.bool()
		e.blob = append([]byte(nil), r.take(len(r.b))...)
	case kindSnapshotCommitted:
		e.group = r.string()
		e.items = r.items(offsetSize+8, func() item { return r.orderOf(r.offset()) })
	case kindSnapshotStaged:
		e.producer.ID, e.group = r.i64(), r.string()
		e.items = r.items(offsetSize+10, func() item {
			it := r.orderOf(r.offset())
			it.epoch = r.i16()
			return it
		})
	}
}
