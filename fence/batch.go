package fence

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Batch is what the rules look at of one record batch (magic 2).
type Batch struct {
	// Producer is the identity in the batch, as it was sent. An ID below 0 is
	// none: such a batch is plain data, whatever its other fields say.
	Producer      txnstate.Producer
	FirstSequence int32
	// Records is how many offsets the batch takes, LastOffsetDelta+1. Of a batch
	// that was compacted that is more than the records left in it.
	Records int32
	// MaxTimestampMs is the timestamp that the log has for the batch, in
	// milliseconds since 1970: where a topic uses LogAppendTime, the host puts
	// its own time here before Reserve.
	MaxTimestampMs int64
	Transactional  bool
	Control        bool
}

// LastSequence is the sequence of the last record. Sequences go from 2147483647
// to 0. A batch without a sequence has none (-1).
func (b Batch) LastSequence() int32 {
	if b.FirstSequence < 0 {
		return -1
	}
	return int32((int64(b.FirstSequence) + int64(b.Records) - 1) & math.MaxInt32)
}

// Offsets in a record batch of magic 2.
const (
	atLength         = 8
	atMagic          = 16
	atCRC            = 17
	atAttributes     = 21
	atLastDelta      = 23
	atMaxTimestamp   = 35
	atProducerID     = 43
	atProducerEpoch  = 51
	atFirstSequence  = 53
	atRecords        = 57
	headerLen        = 61
	lengthFrom       = 12 // the length field counts from here
	attrCompression  = 0x07
	attrTransaction  = 0x10
	attrControl      = 0x20
	lastCompression  = 4 // zstd
	smallestLength   = headerLen - lengthFrom
	castagnoliOffset = atAttributes
)

// ParseProduce reads the records of one partition of a produce request: exactly
// one batch of magic 2 (KIP-98, and Kafka since Produce v3), whole and with the
// right checksum. Errors are a *txnstate.Error: INVALID_RECORD (87) for a shape
// that Kafka does not take, CORRUPT_MESSAGE (2) for bytes that are damaged. A
// control batch and a producer id without a sequence parse: Kafka refuses them
// only after it has asked the coordinator, so Reserve does it.
//
// The records themselves are not looked at, compressed or not.
func ParseProduce(records []byte) (Batch, error) {
	b, _, size, err := ParseHeader(records)
	if err != nil {
		return Batch{}, err
	}
	switch {
	case size > len(records):
		return Batch{}, txnstate.CodeCorruptMessage.Errorf("", "a batch of %d bytes, and %d are there", size, len(records))
	case size < len(records):
		return Batch{}, txnstate.CodeInvalidRecord.Errorf("", "%d bytes behind the first batch, and a partition takes one batch", len(records)-size)
	}
	want := binary.BigEndian.Uint32(records[atCRC:])
	if got := crc32.Checksum(records[castagnoliOffset:], crc32.MakeTable(crc32.Castagnoli)); got != want {
		return Batch{}, txnstate.CodeCorruptMessage.Errorf("", "checksum %08x, and the bytes have %08x", want, got)
	}
	if n := int32(binary.BigEndian.Uint32(records[atRecords:])); n <= 0 || n != b.Records {
		return Batch{}, txnstate.CodeInvalidRecord.Errorf("", "%d records over %d offsets", n, b.Records)
	}
	if c := binary.BigEndian.Uint16(records[atAttributes:]) & attrCompression; c > lastCompression {
		return Batch{}, txnstate.CodeInvalidRecord.Errorf("", "compression %d is not known", c)
	}
	return b, nil
}

// ParseHeader reads the header of a batch in a log, to replay it: what the rules
// look at, the offset of its first record, and how many bytes the whole batch
// has. Only the header has to be there; the checksum is not looked at. Errors
// are a *txnstate.Error: INVALID_RECORD (87) for another magic, CORRUPT_MESSAGE
// (2) for what can't be a batch.
func ParseHeader(batch []byte) (b Batch, baseOffset int64, size int, err error) {
	if len(batch) < headerLen {
		return Batch{}, 0, 0, txnstate.CodeCorruptMessage.Errorf("", "%d bytes, and the header of a batch has %d", len(batch), headerLen)
	}
	if m := int8(batch[atMagic]); m != 2 {
		return Batch{}, 0, 0, txnstate.CodeInvalidRecord.Errorf("", "magic %d, and only 2 carries producers", m)
	}
	length := int32(binary.BigEndian.Uint32(batch[atLength:]))
	if length < smallestLength || length > math.MaxInt32-lengthFrom {
		return Batch{}, 0, 0, txnstate.CodeCorruptMessage.Errorf("", "length %d of a batch", length)
	}
	baseOffset = int64(binary.BigEndian.Uint64(batch))
	delta := int32(binary.BigEndian.Uint32(batch[atLastDelta:]))
	if delta < 0 || delta == math.MaxInt32 {
		return Batch{}, 0, 0, txnstate.CodeCorruptMessage.Errorf("", "last offset delta %d", delta)
	}
	attr := binary.BigEndian.Uint16(batch[atAttributes:])
	b = Batch{
		Producer: txnstate.Producer{
			ID:    int64(binary.BigEndian.Uint64(batch[atProducerID:])),
			Epoch: int16(binary.BigEndian.Uint16(batch[atProducerEpoch:])),
		},
		FirstSequence:  int32(binary.BigEndian.Uint32(batch[atFirstSequence:])),
		Records:        delta + 1,
		MaxTimestampMs: int64(binary.BigEndian.Uint64(batch[atMaxTimestamp:])),
		Transactional:  attr&attrTransaction != 0,
		Control:        attr&attrControl != 0,
	}
	return b, baseOffset, lengthFrom + int(length), nil
}
