package txnstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Kafka keeps the state of transactional ids in the compacted topic
// __transaction_state: the key of a record is a TransactionLogKey, its value a
// TransactionLogValue, or null, a tombstone, where the id was removed. The
// functions here read and write them, for tools that look into such a topic, move
// into or out of it, or offer it to clients that expect it. No store of this
// library keeps records that way.
//
// All numbers are big-endian. The key:
//
//	2  version, 0
//	n  the transactional id: its length in 2 bytes, and its bytes
//
// The value, in version 0:
//
//	2  version
//	8  producer id
//	2  producer epoch
//	4  timeout of a transaction in milliseconds, MaxInt32 under two-phase commit
//	1  state
//	n  topics: how many, in 4 bytes, -1 for null; each a name, its length in 2
//	   bytes, and partitions: how many, in 4 bytes, and 4 bytes each
//	8  latest transition, in milliseconds since 1970
//	8  start of the transaction, likewise, -1 for none
//
// In version 1 lengths are uvarints of one more than the length, with 0 for null,
// and a tag section follows each topic and the whole: how many tags, and for each
// its number and its length, all uvarints, and its bytes. The tags of the whole:
//
//	0  8  previous producer id, where it is not -1
//	1  8  next producer id, where it is not -1
//	2  2  transaction version of the client, where it is not 0
//	3  2  next producer epoch; only defined by Kafka, not written by it so far
//
// The epoch before the latest bump has no tag in Kafka 4.4: LastEpoch is lost.

// ErrLogVersion is the error for a key or value of a version that is not known.
// Kafka skips such a record with a warning when it loads its log.
var ErrLogVersion = errors.New("txnstate: unknown version in the transaction log")

// Tags of a TransactionLogValue.
const (
	tagPrevID = iota
	tagNextID
	tagClientVersion
	tagNextEpoch
)

// AppendLogKey appends Kafka's TransactionLogKey of an id to dst and returns the
// extended slice. It fails, and returns dst as it was, for an id that is longer
// than MaxTxnIDBytes.
func AppendLogKey(dst []byte, txnID string) ([]byte, error) {
	if len(txnID) > MaxTxnIDBytes {
		return dst, fmt.Errorf("txnstate: transactional id of %d bytes, and the log has room for %d", len(txnID), MaxTxnIDBytes)
	}
	dst = binary.BigEndian.AppendUint16(dst, 0)
	return appendString(dst, txnID), nil
}

// DecodeLogKey is the transactional id of a TransactionLogKey. The error wraps
// ErrLogVersion or ErrDamaged.
func DecodeLogKey(b []byte) (txnID string, err error) {
	d := decoder{rest: b}
	if v := d.int16(); d.err == nil && v != 0 {
		return "", fmt.Errorf("%w: key of version %d", ErrLogVersion, v)
	}
	txnID = d.string()
	if err := d.end("transaction log key"); err != nil {
		return "", err
	}
	return txnID, nil
}

// AppendLogValue appends Kafka's TransactionLogValue of a record to dst, in
// version 0 or 1, and returns the extended slice. A tombstone is no value at all.
//
// Kafka knows partitions only: a group is written as its partition of
// __consumer_offsets. A record with a participant of another kind is an error,
// since a log without it would let its transaction complete untold. LastEpoch,
// TxnSeq and Extra have no place in the log; in version 0 neither have PrevID,
// Next and ClientVersion, which makes it unfit for a record in a Prepare state
// under TV2. On error dst is returned as it was.
func AppendLogValue(dst []byte, r Record, version int16) ([]byte, error) {
	if version != 0 && version != 1 {
		return dst, fmt.Errorf("%w: value of version %d", ErrLogVersion, version)
	}
	var topics [][]Participant // of one topic each
	for _, p := range r.Participants {
		w := p.Wire()
		switch {
		case w.Kind != KindPartition:
			return dst, fmt.Errorf("txnstate: Kafka's transaction log has no place for %s of %q", p, r.TxnID)
		case len(w.Name) > math.MaxInt16:
			return dst, fmt.Errorf("txnstate: topic name of %d bytes in %q", len(w.Name), r.TxnID)
		}
		if n := len(topics); n > 0 && topics[n-1][0].Name == w.Name {
			topics[n-1] = append(topics[n-1], w)
		} else {
			topics = append(topics, []Participant{w})
		}
	}
	flexible := version == 1
	be := binary.BigEndian
	length := func(n int) {
		if flexible {
			dst = binary.AppendUvarint(dst, uint64(n)+1)
		} else {
			dst = be.AppendUint32(dst, uint32(n))
		}
	}
	dst = be.AppendUint16(dst, uint16(version))
	dst = be.AppendUint64(dst, uint64(r.Producer.ID))
	dst = be.AppendUint16(dst, uint16(r.Producer.Epoch))
	dst = be.AppendUint32(dst, uint32(r.TimeoutMs))
	dst = append(dst, byte(r.State))
	if r.State == Empty && len(topics) == 0 {
		length(-1) // null; the other states have a set, which may be empty
	} else {
		length(len(topics))
	}
	for _, ps := range topics {
		if flexible {
			length(len(ps[0].Name))
			dst = append(dst, ps[0].Name...)
		} else {
			dst = appendString(dst, ps[0].Name)
		}
		length(len(ps))
		for _, p := range ps {
			dst = be.AppendUint32(dst, uint32(p.Index))
		}
		if flexible {
			dst = append(dst, 0) // no tags
		}
	}
	dst = be.AppendUint64(dst, uint64(r.UpdateMs))
	dst = be.AppendUint64(dst, uint64(r.StartMs))
	if !flexible {
		return dst, nil
	}
	count := len(dst)
	dst = append(dst, 0)
	tag := func(n byte, value []byte) {
		dst[count]++
		dst = append(append(dst, n, byte(len(value))), value...)
	}
	if r.PrevID != -1 {
		tag(tagPrevID, be.AppendUint64(nil, uint64(r.PrevID)))
	}
	if r.Next.ID != -1 {
		tag(tagNextID, be.AppendUint64(nil, uint64(r.Next.ID)))
	}
	if r.ClientVersion != 0 {
		tag(tagClientVersion, be.AppendUint16(nil, uint16(r.ClientVersion)))
	}
	if r.Next.ID != -1 && r.Next.Epoch > 0 {
		// Kafka leaves it out, and epoch 0 is what it goes on with.
		tag(tagNextEpoch, be.AppendUint16(nil, uint16(r.Next.Epoch)))
	}
	return dst, nil
}

// DecodeLogValue is the record that a TransactionLogValue holds for an id. A nil
// b is a tombstone: the answer is Unknown(txnID). It keeps no reference to b.
//
// Fields that the log does not have are as in Unknown; TwoPhase follows from the
// timeout, as in Kafka. Partitions of __consumer_offsets stay partitions: which
// groups they stand for is not in the log. Unknown tags are skipped. Old logs
// hold records that Check refuses: completed transactions with partitions
// (KAFKA-5268).
//
// The error wraps ErrLogVersion or ErrDamaged.
func DecodeLogValue(txnID string, b []byte) (Record, error) {
	r := Unknown(txnID)
	if b == nil {
		return r, nil
	}
	d := decoder{rest: b}
	version := d.int16()
	if d.err == nil && version != 0 && version != 1 {
		return r, fmt.Errorf("%w: value of version %d of %q", ErrLogVersion, version, txnID)
	}
	flexible := version == 1
	r.Producer = Producer{ID: d.int64(), Epoch: d.int16()}
	r.TimeoutMs = d.int32()
	r.TwoPhase = r.TimeoutMs == NoTimeout
	if r.State = State(d.uint8()); !r.State.Valid() {
		d.fail("unknown state %d", int8(r.State)) // Dead and PrepareEpochFence are never written
	}
	for range d.length(flexible, true, 3) { // a topic takes at least its two lengths and a tag count
		p := Participant{Kind: KindPartition}
		if flexible {
			p.Name = string(d.bytes(d.length(true, false, 1)))
		} else {
			p.Name = d.string()
		}
		n := d.length(flexible, false, 4)
		r.Participants = slices.Grow(r.Participants, n)
		for range n {
			p.Index = d.int32()
			r.Participants = append(r.Participants, p)
		}
		if flexible {
			d.tags(func(uint64, []byte) {})
		}
		if d.err != nil {
			break
		}
	}
	r.UpdateMs, r.StartMs = d.int64(), d.int64()
	next := int16(-1)
	if flexible {
		d.tags(func(tag uint64, value []byte) {
			v := decoder{rest: value}
			switch tag {
			case tagPrevID:
				r.PrevID = v.int64()
			case tagNextID:
				r.Next.ID = v.int64()
			case tagClientVersion:
				n := v.int16()
				if r.ClientVersion = TransactionVersion(n); int16(r.ClientVersion) != n {
					v.fail("transaction version %d", n)
				}
			case tagNextEpoch:
				next = v.int16()
			default:
				return
			}
			if err := v.end("tag"); err != nil {
				d.fail("tag %d: %v", tag, err)
			}
		})
	}
	switch {
	case r.Next.ID == -1:
		r.Next = NoProducer
	default:
		r.Next.Epoch = max(next, 0)
	}
	if err := d.end("transaction log value"); err != nil {
		return Unknown(txnID), err
	}
	slices.SortFunc(r.Participants, Participant.Compare)
	r.Participants = slices.Compact(r.Participants)
	return r, nil
}

// appendString appends a string of at most MaxInt16 bytes as Kafka's STRING.
func appendString(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// string is Kafka's STRING, which is not null.
func (d *decoder) string() string { return string(d.bytes(int(d.int16()))) }

// length is the length of an array or string, of elements of at least size
// bytes; 0 for null, where that is allowed. It is safe to allocate by.
func (d *decoder) length(flexible, null bool, size int) int {
	var n int64
	if flexible {
		n = int64(min(d.uvarint(), math.MaxInt32+1)) - 1
	} else {
		n = int64(d.int32())
	}
	switch {
	case d.err != nil, null && n == -1:
		return 0
	case n < 0 || n > int64(len(d.rest)/size):
		d.fail("%d elements announced, %d bytes left", n, len(d.rest))
		return 0
	}
	return int(n)
}

// tags calls f with each tag of a tag section; the value is d's memory.
func (d *decoder) tags(f func(tag uint64, value []byte)) {
	last := uint64(0)
	for i := range d.count(2) {
		tag := d.uvarint()
		if i > 0 && tag <= last {
			d.fail("tag %d after tag %d", tag, last)
		}
		value := d.bytes(d.count(1))
		if d.err != nil {
			return
		}
		f(tag, value)
		last = tag
	}
}

// end is the error of d, if it failed or has bytes left over.
func (d *decoder) end(what string) error {
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, what, d.err)
	}
	return nil
}
