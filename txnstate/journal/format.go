package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The format of segments and snapshots, version 1. Numbers are big-endian; a
// uvarint is that of encoding/binary. Every file is a header and then frames
// without gaps.
//
//	header, 44 bytes
//	at  bytes
//	 0  8   "KXTXNLOG" in a segment, "KXTXNSNP" in a snapshot
//	 8  4   format version, 1; the bytes up to here are the same in all versions
//	12  4   0
//	16  8   the number in the file's name
//	24  8   the sequence number of the first entry of the segment; in a snapshot,
//	        of the first entry of the segment that has its number
//	32  8   salt: a random number, another one for each file
//	40  4   CRC-32C of bytes 0-39
//
//	frame, 32 bytes and the body
//	 0  8   the salt of the file
//	 8  1   version of the frame, 1
//	 9  1   type: 1 log, 2 state, 3 end
//	10  2   0
//	12  4   number of the frame in the file, from 1
//	16  8   log: sequence number of the first entry; the entries have
//	        consecutive ones, and so have the frames of a segment.
//	        state: 0.
//	        end: in a segment, the sequence number of the next entry, whatever
//	        file that will be in; in a snapshot, how many entries it has
//	24  4   length of the body
//	28  4   CRC-32C of bytes 0-27 and the body
//	32      body: entries, at least one; none in an end frame
//
//	entry of a log frame, only found in segments
//	    1   1: the record of an id; 2: the id has none any more
//	    n   length of the id, a uvarint, and the id
//	    n   with 1: length of the record, a uvarint, and the record
//
//	entry of a state frame, only found in snapshots
//	    1   3
//	    n   sequence number of the entry that made it, a uvarint
//	    n   length of the id, a uvarint, and the id
//	    n   length of the record, a uvarint, and the record
//
// A record is what txnstate.AppendRecord makes of it with an empty TxnID. Its
// version is the sequence number of its entry. Sequence numbers only grow: an Open
// goes on with the next multiple of 2³², so that no number is used again that an
// entry had which a crash took.
//
// One frame is one write, which is synced before the next is begun. So bytes that
// are no whole frame are what a crash left of a write if no whole frame follows
// them, and damage otherwise. The salt makes sure that what looks like a frame is
// one, and not bytes that a client has chosen for an id.
//
// A file has its name only with a whole and durable header. An end frame is the
// last thing in a file: every segment but the last has one, and every snapshot,
// durably before a later file has a name; so has the last segment after an
// orderly end.
const (
	formatVersion = 1
	segmentMagic  = "KXTXNLOG"
	snapshotMagic = "KXTXNSNP"
	headerSize    = 44
	frameSize     = 32
)

// maxBody bounds a frame; its length has 32 bits.
const maxBody = 1 << 30

// FrameType says what is in a frame.
type FrameType uint8

const (
	LogFrame   FrameType = 1 // writes, one after another
	StateFrame FrameType = 2 // records of a snapshot
	EndFrame   FrameType = 3 // the end of a file that is complete
)

func (t FrameType) String() string {
	switch t {
	case LogFrame:
		return "log"
	case StateFrame:
		return "state"
	case EndFrame:
		return "end"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Kinds of entries.
const (
	entryPut    = 1
	entryDelete = 2
	entryState  = 3
)

// Header is the beginning of a file.
type Header struct {
	Snapshot bool   // a snapshot, not a segment
	Version  uint32 // of the format
	Number   uint64 // as in the file's name
	First    uint64 // sequence number of the first entry of the segment with this number

	salt uint64
}

func appendHeader(dst []byte, h Header) []byte {
	at := len(dst)
	magic := segmentMagic
	if h.Snapshot {
		magic = snapshotMagic
	}
	be := binary.BigEndian
	dst = append(dst, magic...)
	dst = be.AppendUint32(dst, formatVersion)
	dst = be.AppendUint32(dst, 0)
	dst = be.AppendUint64(dst, h.Number)
	dst = be.AppendUint64(dst, h.First)
	dst = be.AppendUint64(dst, h.salt)
	return be.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli()))
}

// castagnoli is the table of CRC-32C, of which the standard library keeps one.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// parseHeader reads the header of a file. The error is a *Damage at byte 0.
func parseHeader(b []byte) (Header, error) {
	bad := func(format string, args ...any) (Header, error) {
		return Header{}, &Damage{Next: -1, Reason: fmt.Sprintf(format, args...)}
	}
	be := binary.BigEndian
	if len(b) < 12 {
		return bad("%d bytes, and the header has %d", len(b), headerSize)
	}
	h := Header{Version: be.Uint32(b[8:])}
	switch magic := string(b[:8]); magic {
	case segmentMagic:
	case snapshotMagic:
		h.Snapshot = true
	default:
		return bad("it begins with %q, which is no file of a journal", magic)
	}
	if h.Version > formatVersion {
		return bad("it has format version %d, and this version of the library reads up to %d", h.Version, formatVersion)
	}
	if len(b) < headerSize {
		return bad("%d bytes, and the header has %d", len(b), headerSize)
	}
	if crc32.Checksum(b[:40], castagnoli()) != be.Uint32(b[40:]) {
		return bad("the checksum of the header is wrong")
	}
	if h.Version == 0 || be.Uint32(b[12:]) != 0 {
		return bad("the header checks and has impossible values")
	}
	h.Number, h.First, h.salt = be.Uint64(b[16:]), be.Uint64(b[24:]), be.Uint64(b[32:])
	if h.Number == 0 || h.First == 0 {
		return bad("the header checks and has impossible values")
	}
	return h, nil
}

// startFrame makes room for the first bytes of a frame, which sealFrame fills in
// when the body is there. A batch begins with it.
func startFrame(dst []byte) []byte {
	return append(dst, make([]byte, frameSize)...)
}

// sealFrame completes a frame that startFrame began at the front of b.
func sealFrame(b []byte, salt uint64, t FrameType, number uint32, seq uint64) {
	be := binary.BigEndian
	be.PutUint64(b, salt)
	b[8], b[9], b[10], b[11] = formatVersion, byte(t), 0, 0
	be.PutUint32(b[12:], number)
	be.PutUint64(b[16:], seq)
	be.PutUint32(b[24:], uint32(len(b)-frameSize))
	be.PutUint32(b[28:], frameSum(b[:28], b[frameSize:]))
}

func appendEnd(dst []byte, salt uint64, number uint32, seq uint64) []byte {
	at := len(dst)
	dst = startFrame(dst)
	sealFrame(dst[at:], salt, EndFrame, number, seq)
	return dst
}

func frameSum(head, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli()), castagnoli(), body)
}

// wholeFrame is the frame at the front of b, where there is a whole one with this
// salt.
func wholeFrame(b []byte, salt uint64) (f Frame, ok bool) {
	be := binary.BigEndian
	if len(b) < frameSize || be.Uint64(b) != salt {
		return f, false
	}
	n := be.Uint32(b[24:])
	if uint64(n) > uint64(len(b)-frameSize) {
		return f, false
	}
	f.body = b[frameSize : frameSize+int(n)]
	if frameSum(b[:28], f.body) != be.Uint32(b[28:]) {
		return f, false
	}
	f.version, f.Type, f.zero = b[8], FrameType(b[9]), be.Uint16(b[10:])
	f.Number, f.Sequence, f.Size = be.Uint32(b[12:]), be.Uint64(b[16:]), int64(frameSize)+int64(n)
	return f, true
}

// findFrame is where the next whole frame begins, -1 for none.
func findFrame(b []byte, from int, salt uint64) int {
	want := binary.BigEndian.AppendUint64(nil, salt)
	for from < len(b) {
		i := bytes.Index(b[from:], want)
		if i < 0 {
			return -1
		}
		if _, ok := wholeFrame(b[from+i:], salt); ok {
			return from + i
		}
		from += i + 1
	}
	return -1
}

func appendPut(dst []byte, id string, record []byte) []byte {
	dst = append(dst, entryPut)
	dst = binary.AppendUvarint(dst, uint64(len(id)))
	dst = append(dst, id...)
	dst = binary.AppendUvarint(dst, uint64(len(record)))
	return append(dst, record...)
}

func appendDelete(dst []byte, id string) []byte {
	dst = append(dst, entryDelete)
	dst = binary.AppendUvarint(dst, uint64(len(id)))
	return append(dst, id...)
}

func appendState(dst []byte, id string, version uint64, record []byte) []byte {
	dst = append(dst, entryState)
	dst = binary.AppendUvarint(dst, version)
	dst = binary.AppendUvarint(dst, uint64(len(id)))
	dst = append(dst, id...)
	dst = binary.AppendUvarint(dst, uint64(len(record)))
	return append(dst, record...)
}

// maxEntry is how much an entry takes beside its id and its record.
const maxEntry = 1 + 3*binary.MaxVarintLen64

// rawEntry is an entry whose bytes belong to the file it was read from.
type rawEntry struct {
	kind    byte
	version uint64
	id      []byte
	record  []byte
}

// takeEntry reads one entry of a frame's body, and gives what is left of it.
// seq is the sequence number of a log entry.
func takeEntry(body []byte, t FrameType, seq uint64) (e rawEntry, rest []byte, ok bool) {
	e.kind, rest = body[0], body[1:]
	if (t == LogFrame) != (e.kind == entryPut || e.kind == entryDelete) || (t == StateFrame) != (e.kind == entryState) {
		return e, nil, false
	}
	e.version = seq
	if e.kind == entryState {
		if e.version, rest, ok = takeUvarint(rest); !ok || e.version == 0 {
			return e, nil, false
		}
	}
	if e.id, rest, ok = takeBytes(rest); !ok {
		return e, nil, false
	}
	if e.kind != entryDelete {
		e.record, rest, ok = takeBytes(rest)
	}
	return e, rest, ok
}

func takeUvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

func takeBytes(b []byte) (v, rest []byte, ok bool) {
	n, rest, ok := takeUvarint(b)
	if !ok || n > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n:n], rest[n:], true
}

// encode is the bytes that are kept of a record. buf may be used for them.
func encode(buf []byte, r txnstate.Record) []byte {
	r.TxnID = ""
	return txnstate.AppendRecord(buf, r)
}

// decode is the record that b holds. Where it can't be read the id and the
// version are set all the same.
func decode(id string, version uint64, b []byte) (txnstate.Record, error) {
	r, err := txnstate.DecodeRecord(b)
	if err == nil && r.TxnID != "" {
		err = fmt.Errorf("%w: it has the id %q within", txnstate.ErrDamaged, r.TxnID)
	}
	if err != nil {
		return txnstate.Record{TxnID: id, Version: txnstate.Version(version)}, fmt.Errorf("journal: transactional id %q: %w", id, err)
	}
	r.TxnID, r.Version = id, txnstate.Version(version)
	return r, nil
}

// openStep is the distance between the sequence numbers of two openings of a
// directory: more than a process can lose of Later writes in a crash.
const openStep = 1 << 32

// nextOpening is the first sequence number after last that no earlier process
// can have used, whatever a crash took.
func nextOpening(last uint64) (uint64, error) {
	if last > math.MaxUint64-2*openStep {
		return 0, fmt.Errorf("the sequence numbers are used up, the last one is %d", last)
	}
	return (last/openStep + 1) * openStep, nil
}
