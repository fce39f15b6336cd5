package wire

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitProducerIDV6Request is InitProducerId v6 (KIP-939), which kmsg does not
// have yet. Its fields are those of v5 and two flags. It takes the place of
// kmsg.InitProducerIDRequest, whose decoder would take the flags for tags.
type InitProducerIDV6Request struct {
	TransactionalID          *string // nil for none
	TransactionTimeoutMillis int32
	ProducerID               int64 // -1 for none
	ProducerEpoch            int16 // -1 for none
	Enable2PC                bool
	KeepPreparedTxn          bool
}

// InitProducerIDV6Response is the answer to InitProducerIDV6Request.
type InitProducerIDV6Response struct {
	ThrottleMillis int32
	ErrorCode      int16
	ProducerID     int64 // -1 with an error
	ProducerEpoch  int16 // -1 with an error

	// The identity of a transaction that was kept, or -1.
	OngoingTxnProducerID    int64
	OngoingTxnProducerEpoch int16
}

var (
	_ kmsg.Request  = (*InitProducerIDV6Request)(nil)
	_ kmsg.Response = (*InitProducerIDV6Response)(nil)
)

func (*InitProducerIDV6Request) Key() int16        { return keyInitProducerID }
func (*InitProducerIDV6Request) MaxVersion() int16 { return 6 }
func (*InitProducerIDV6Request) GetVersion() int16 { return 6 }
func (*InitProducerIDV6Request) IsFlexible() bool  { return true }

// SetVersion does nothing: the type is of one version.
func (*InitProducerIDV6Request) SetVersion(int16) {}

// ResponseKind is an empty InitProducerIDV6Response.
func (*InitProducerIDV6Request) ResponseKind() kmsg.Response { return new(InitProducerIDV6Response) }

// IsTxnCoordinatorRequest lets kgo route the request as it routes v5.
func (*InitProducerIDV6Request) IsTxnCoordinatorRequest() {}

// AppendTo appends the request's body.
func (r *InitProducerIDV6Request) AppendTo(dst []byte) []byte {
	if r.TransactionalID == nil {
		dst = append(dst, 0)
	} else {
		dst = binary.AppendUvarint(dst, uint64(len(*r.TransactionalID))+1)
		dst = append(dst, *r.TransactionalID...)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.TransactionTimeoutMillis))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.ProducerID))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.ProducerEpoch))
	dst = appendFlag(dst, r.Enable2PC)
	dst = appendFlag(dst, r.KeepPreparedTxn)
	return append(dst, 0) // no tags
}

// ReadFrom parses a whole body. Unknown tags are skipped. It keeps no reference
// to src.
func (r *InitProducerIDV6Request) ReadFrom(src []byte) error {
	b := reader{src: src}
	*r = InitProducerIDV6Request{
		TransactionalID:          b.nullableString(),
		TransactionTimeoutMillis: int32(b.uint32()),
		ProducerID:               int64(b.uint64()),
		ProducerEpoch:            int16(b.uint16()),
		Enable2PC:                b.flag(),
		KeepPreparedTxn:          b.flag(),
	}
	b.skipTags()
	return b.complete()
}

func (*InitProducerIDV6Response) Key() int16        { return keyInitProducerID }
func (*InitProducerIDV6Response) MaxVersion() int16 { return 6 }
func (*InitProducerIDV6Response) GetVersion() int16 { return 6 }
func (*InitProducerIDV6Response) IsFlexible() bool  { return true }

// SetVersion does nothing: the type is of one version.
func (*InitProducerIDV6Response) SetVersion(int16) {}

// RequestKind is an empty InitProducerIDV6Request.
func (*InitProducerIDV6Response) RequestKind() kmsg.Request { return new(InitProducerIDV6Request) }

// AppendTo appends the response's body.
func (r *InitProducerIDV6Response) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.ThrottleMillis))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.ErrorCode))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.ProducerID))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.ProducerEpoch))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.OngoingTxnProducerID))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.OngoingTxnProducerEpoch))
	return append(dst, 0)
}

// ReadFrom parses a whole body. Unknown tags are skipped.
func (r *InitProducerIDV6Response) ReadFrom(src []byte) error {
	b := reader{src: src}
	*r = InitProducerIDV6Response{
		ThrottleMillis:          int32(b.uint32()),
		ErrorCode:               int16(b.uint16()),
		ProducerID:              int64(b.uint64()),
		ProducerEpoch:           int16(b.uint16()),
		OngoingTxnProducerID:    int64(b.uint64()),
		OngoingTxnProducerEpoch: int16(b.uint16()),
	}
	b.skipTags()
	return b.complete()
}

func appendFlag(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

var (
	errShort = errors.New("wire: the message ends in the middle of a field")
	errLong  = errors.New("wire: the message goes on after its last field")
	errBad   = errors.New("wire: a length in the message can't be")
)

// reader takes fields off a message; after the first error it gives zeros.
type reader struct {
	src []byte
	err error
}

func (b *reader) fail(err error) {
	if b.err == nil {
		b.err = err
	}
	b.src = nil
}

func (b *reader) take(n int) []byte {
	if n > len(b.src) {
		b.fail(errShort)
	}
	if b.err != nil {
		return make([]byte, 8)[:min(n, 8)]
	}
	out := b.src[:n]
	b.src = b.src[n:]
	return out
}

func (b *reader) uint16() uint16 { return binary.BigEndian.Uint16(b.take(2)) }
func (b *reader) uint32() uint32 { return binary.BigEndian.Uint32(b.take(4)) }
func (b *reader) uint64() uint64 { return binary.BigEndian.Uint64(b.take(8)) }
func (b *reader) flag() bool     { return b.take(1)[0] != 0 }

// uvarint is at most 32 bits, as lengths and tags are.
func (b *reader) uvarint() int {
	v, n := binary.Uvarint(b.src)
	switch {
	case n == 0:
		b.fail(errShort)
		return 0
	case n < 0 || n > 5 || v > math.MaxInt32:
		b.fail(errBad)
		return 0
	}
	b.src = b.src[n:]
	return int(v)
}

// nullableString is a compact nullable string, which Kafka bounds at 32,767
// bytes in every encoding.
func (b *reader) nullableString() *string {
	n := b.uvarint()
	if n == 0 {
		return nil
	}
	if n-1 > math.MaxInt16 {
		b.fail(errBad)
		return nil
	}
	s := string(b.take(n - 1))
	if b.err != nil {
		return nil
	}
	return &s
}

func (b *reader) skipTags() {
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		b.uvarint() // the tag
		b.take(b.uvarint())
	}
}

func (b *reader) complete() error {
	if b.err == nil && len(b.src) > 0 {
		return errLong
	}
	return b.err
}
