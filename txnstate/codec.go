package txnstate

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// recordFormat is the newest format of AppendRecord and DecodeRecord, and the
// only one so far. It is raised only by a change that an older reader would
// misread; what an older reader may carry along unread goes to the end.
const recordFormat = 1

// Bits of the flags byte. The others are zero: a reader refuses them, so a
// meaning for one needs a new format.
const (
	flagTwoPhase = 1 << iota
	flagPrev     // the previous producer id is another one, and follows
	flagNext     // there is a next producer, and it follows
	flagsKnown   = 1<<iota - 1
)

// AppendRecord appends the bytes of a record to dst, for a Store to keep, and
// returns the extended slice. It keeps no reference to the record. Version is
// not part of them: it belongs to the store. An id without a transaction takes
// about 40 bytes and the id itself.
//
// The bytes have neither a length nor a checksum; a store adds what it needs.
// Equal records have equal bytes. Numbers are big-endian; a uvarint is that of
// encoding/binary, in as few bytes as it takes:
//
//	at  bytes
//	 0  1   format, 1. A reader refuses a number above the one it knows.
//	 1  1   State
//	 2  1   ClientVersion
//	 3  1   flags: 1 TwoPhase; 2 PrevID differs from Producer.ID; 4 Next is
//	        not NoProducer; the others are 0
//	 4  8   Producer.ID
//	12  2   Producer.Epoch
//	14  2   LastEpoch
//	16  4   TimeoutMs
//	20  8   StartMs
//	28  8   UpdateMs
//	36  8   PrevID, with flag 2 only
//	    10  Next: ID in 8 and Epoch in 2, with flag 4 only
//	    n   TxnSeq, a uvarint
//	    n   TxnID: its length, a uvarint, and that many bytes
//	    n   how many runs of participants follow, a uvarint
//	each run, the longest possible sequence of one Kind and Name:
//	    1   Kind
//	    n   Name, as TxnID
//	    n   how many participants, a uvarint of at least 1
//	    4   Index, for each of them
//	then
//	    n   Extra, up to the end
//
// Extra is where later versions put what an older reader can do without: fields
// of a tag, a uvarint; a length, a uvarint; and that many bytes, in ascending
// order of the tags. This version has none of them, and takes and gives back
// whatever is there.
func AppendRecord(dst []byte, r Record) []byte {
	var flags byte
	if r.TwoPhase {
		flags |= flagTwoPhase
	}
	if r.PrevID != r.Producer.ID {
		flags |= flagPrev
	}
	if r.Next != NoProducer {
		flags |= flagNext
	}
	be := binary.BigEndian
	dst = append(dst, recordFormat, byte(r.State), byte(r.ClientVersion), flags)
	dst = be.AppendUint64(dst, uint64(r.Producer.ID))
	dst = be.AppendUint16(dst, uint16(r.Producer.Epoch))
	dst = be.AppendUint16(dst, uint16(r.LastEpoch))
	dst = be.AppendUint32(dst, uint32(r.TimeoutMs))
	dst = be.AppendUint64(dst, uint64(r.StartMs))
	dst = be.AppendUint64(dst, uint64(r.UpdateMs))
	if flags&flagPrev != 0 {
		dst = be.AppendUint64(dst, uint64(r.PrevID))
	}
	if flags&flagNext != 0 {
		dst = be.AppendUint64(dst, uint64(r.Next.ID))
		dst = be.AppendUint16(dst, uint16(r.Next.Epoch))
	}
	dst = binary.AppendUvarint(dst, r.TxnSeq)
	dst = appendText(dst, r.TxnID)
	runs := 0
	for rest := r.Participants; len(rest) > 0; rest = rest[runLen(rest):] {
		runs++
	}
	dst = binary.AppendUvarint(dst, uint64(runs))
	for rest := r.Participants; len(rest) > 0; {
		n := runLen(rest)
		dst = append(dst, byte(rest[0].Kind))
		dst = appendText(dst, rest[0].Name)
		dst = binary.AppendUvarint(dst, uint64(n))
		for _, p := range rest[:n] {
			dst = be.AppendUint32(dst, uint32(p.Index))
		}
		rest = rest[n:]
	}
	return append(dst, r.Extra...)
}

// runLen is how many of ps, of which there is at least one, share the kind and
// the name of the first.
func runLen(ps []Participant) int {
	n := 1
	for n < len(ps) && ps[n].Kind == ps[0].Kind && ps[n].Name == ps[0].Name {
		n++
	}
	return n
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// DecodeRecord is the record that b holds, all of b, as AppendRecord wrote it.
// It keeps no reference to b. What it returns encodes to b again: other ways to
// write the same record are refused. It does not judge what the record says;
// Check does.
//
// The error wraps ErrDamaged, also for a format that a newer version wrote and
// this one must not touch.
func DecodeRecord(b []byte) (Record, error) {
	if len(b) > 0 && b[0] > recordFormat {
		return Record{}, fmt.Errorf("%w: it has format %d, and this version reads up to %d", ErrDamaged, b[0], recordFormat)
	}
	d := decoder{rest: b}
	if d.uint8() == 0 {
		d.fail("format 0")
	}
	r := Record{State: State(d.uint8()), ClientVersion: TransactionVersion(d.uint8()), Next: NoProducer}
	flags := d.uint8()
	if flags&^flagsKnown != 0 {
		d.fail("unknown flags %#x", flags)
	}
	r.TwoPhase = flags&flagTwoPhase != 0
	r.Producer = Producer{ID: d.int64(), Epoch: d.int16()}
	r.LastEpoch, r.TimeoutMs, r.StartMs, r.UpdateMs = d.int16(), d.int32(), d.int64(), d.int64()
	r.PrevID = r.Producer.ID
	if flags&flagPrev != 0 {
		if r.PrevID = d.int64(); r.PrevID == r.Producer.ID {
			d.fail("a previous producer id that is the present one")
		}
	}
	if flags&flagNext != 0 {
		if r.Next = (Producer{ID: d.int64(), Epoch: d.int16()}); r.Next == NoProducer {
			d.fail("a next producer that is none")
		}
	}
	r.TxnSeq = d.uvarint()
	r.TxnID = d.text()
	var last Participant
	for i := range d.uvarint() {
		run := Participant{Kind: Kind(d.uint8()), Name: d.text()}
		n := d.count(4)
		switch {
		case n == 0:
			d.fail("a run without participants")
		case i > 0 && run.Kind == last.Kind && run.Name == last.Name:
			d.fail("a run that is not the longest")
		}
		if d.err != nil {
			break
		}
		r.Participants = slices.Grow(r.Participants, n)
		for range n {
			run.Index = d.int32()
			r.Participants = append(r.Participants, run)
		}
		last = run
	}
	if d.err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, d.err)
	}
	if len(d.rest) > 0 {
		r.Extra = slices.Clone(d.rest)
	}
	return r, nil
}

// decoder takes values off the front of rest. After the first failure it keeps
// returning zeros, with nothing left, so that callers look at err once, and
// before anything that costs.
type decoder struct {
	rest []byte
	read int // bytes taken
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("at byte %d: %s", d.read, fmt.Sprintf(format, args...))
	}
	d.rest = nil
}

// bytes is the next n bytes, of d's memory; nil where there are fewer.
func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.rest) {
		d.fail("%d bytes needed, %d left", n, len(d.rest))
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	d.read += n
	return b
}

func (d *decoder) uint8() uint8 {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) int16() int16 {
	if b := d.bytes(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (d *decoder) int32() int32 {
	if b := d.bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if b := d.bytes(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// uvarint refuses a number that could have been written in fewer bytes.
func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 {
		d.fail("not a uvarint")
		return 0
	}
	d.bytes(n)
	return v
}

// count is a uvarint of things that take at least size bytes each, of which
// there can't be more than the rest has room for: it is safe to allocate by.
func (d *decoder) count(size int) int {
	v := d.uvarint()
	if v > uint64(len(d.rest)/size) {
		d.fail("%d elements announced, %d bytes left", v, len(d.rest))
		return 0
	}
	return int(v)
}

// text is a length, a uvarint, and that many bytes.
func (d *decoder) text() string { return string(d.bytes(d.count(1))) }
