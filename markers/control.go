package markers

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// ControlBatchSize is how many bytes AppendControlBatch appends.
const ControlBatchSize = 78

// ErrNotMarker is of a control batch that ends no transaction: a type that is
// not known, or one of Kafka's metadata log. Readers and replays skip it.
var ErrNotMarker = errors.New("markers: a control batch that ends no transaction")

const (
	headerLen       = 61 // of a batch; its length field counts from byte 12
	atLength        = 8
	atCRC           = 17
	atAttributes    = 21
	atBaseTimestamp = 27
	atRecords       = 57

	attrCompression   = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20

	typeAbort  = 0
	typeCommit = 1
)

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// AppendControlBatch appends the marker as it stands in a log: a control batch
// of one record, whose key has the outcome and whose value has the coordinator
// epoch (EndTxnMarker, version 0). offset is its offset, leaderEpoch the
// partition leader's, timestampMs the real time in milliseconds since 1970. It
// neither keeps nor reads dst.
//
// A topic with LogAppendTime has bit 3 of the attributes set in Kafka's log;
// there the host sets it and the checksum anew.
func AppendControlBatch(dst []byte, m Marker, offset int64, leaderEpoch int32, timestampMs int64) []byte {
	from := len(dst)
	be := binary.BigEndian
	dst = be.AppendUint64(dst, uint64(offset))
	dst = be.AppendUint32(dst, ControlBatchSize-12)
	dst = be.AppendUint32(dst, uint32(leaderEpoch))
	dst = append(dst, 2)          // magic
	dst = be.AppendUint32(dst, 0) // checksum, below
	dst = be.AppendUint16(dst, attrTransactional|attrControl)
	dst = be.AppendUint32(dst, 0) // last offset delta
	dst = be.AppendUint64(dst, uint64(timestampMs))
	dst = be.AppendUint64(dst, uint64(timestampMs))
	dst = be.AppendUint64(dst, uint64(m.Producer.ID))
	dst = be.AppendUint16(dst, uint16(m.Producer.Epoch))
	dst = be.AppendUint32(dst, math.MaxUint32) // no sequence
	dst = be.AppendUint32(dst, 1)              // records
	typ := byte(typeAbort)
	if m.Commit {
		typ = typeCommit
	}
	dst = append(dst,
		16<<1, // length of the record, a zigzag varint as those below
		0,     // attributes
		0, 0,  // timestamp and offset deltas
		4<<1, 0, 0, 0, typ, // key: version, type
		6<<1, 0, 0) // value: version
	dst = be.AppendUint32(dst, uint32(m.CoordinatorEpoch))
	dst = append(dst, 0) // headers
	be.PutUint32(dst[from+atCRC:], castagnoli(dst[from+atAttributes:]))
	return dst
}

// ParseControlBatch reads a marker out of a log, whole and with the right
// checksum. Versions of key and value above 0 are read as version 0, as Kafka
// does. The error is ErrNotMarker for a control batch of another kind, otherwise
// a *txnstate.Error: INVALID_RECORD (87) for what is no control batch or breaks
// its form, CORRUPT_MESSAGE (2) for damaged bytes.
func ParseControlBatch(batch []byte) (m Marker, timestampMs int64, err error) {
	b, _, size, err := fence.ParseHeader(batch)
	switch {
	case err != nil:
		return Marker{}, 0, err
	case size != len(batch):
		return Marker{}, 0, txnstate.CodeCorruptMessage.Errorf("", "a batch of %d bytes in %d", size, len(batch))
	case binary.BigEndian.Uint32(batch[atCRC:]) != castagnoli(batch[atAttributes:]):
		return Marker{}, 0, txnstate.CodeCorruptMessage.Errorf("", "checksum %08x, and the bytes have %08x", binary.BigEndian.Uint32(batch[atCRC:]), castagnoli(batch[atAttributes:]))
	case !b.Control:
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "no control batch")
	case binary.BigEndian.Uint16(batch[atAttributes:])&attrCompression != 0:
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "a compressed control batch")
	case binary.BigEndian.Uint32(batch[atRecords:]) != 1:
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "a control batch of %d records", binary.BigEndian.Uint32(batch[atRecords:]))
	}
	key, value, delta, ok := record(batch[headerLen:])
	if !ok || len(key) < 4 {
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "a control record that can't be read")
	}
	if v := int16(binary.BigEndian.Uint16(key)); v < 0 {
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "version %d of a control record's key", v)
	}
	typ := binary.BigEndian.Uint16(key[2:])
	if typ != typeAbort && typ != typeCommit || !b.Transactional {
		return Marker{}, 0, ErrNotMarker
	}
	if len(value) < 6 {
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "a marker with %d bytes of value", len(value))
	}
	if v := int16(binary.BigEndian.Uint16(value)); v < 0 {
		return Marker{}, 0, txnstate.CodeInvalidRecord.Errorf("", "version %d of a marker's value", v)
	}
	timestampMs = b.MaxTimestampMs
	if binary.BigEndian.Uint16(batch[atAttributes:])&attrLogAppendTime == 0 {
		timestampMs = int64(binary.BigEndian.Uint64(batch[atBaseTimestamp:])) + delta
	}
	return Marker{
		Producer:         b.Producer,
		Commit:           typ == typeCommit,
		CoordinatorEpoch: int32(binary.BigEndian.Uint32(value[2:])),
	}, timestampMs, nil
}

// record takes the only record of a control batch apart.
func record(b []byte) (key, value []byte, timestampDelta int64, ok bool) {
	next := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			b, ok = nil, false
			return 0
		}
		b = b[n:]
		return v
	}
	field := func() []byte {
		n := next()
		if n < 0 || n > int64(len(b)) {
			ok = false
			return nil
		}
		f := b[:n]
		b = b[n:]
		return f
	}
	ok = true
	if n := next(); n != int64(len(b)) || n == 0 {
		return nil, nil, 0, false
	}
	b = b[1:] // attributes
	timestampDelta = next()
	if next() != 0 { // offset delta
		ok = false
	}
	key, value = field(), field()
	return key, value, timestampDelta, ok
}
