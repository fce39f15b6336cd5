package fence_test

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// encode is a batch of magic 2 around some bytes of records.
func encode(b fence.Batch, base int64, attributes uint16, payload string) []byte {
	be := binary.BigEndian
	if b.Transactional {
		attributes |= 0x10
	}
	if b.Control {
		attributes |= 0x20
	}
	out := be.AppendUint64(nil, uint64(base))
	out = be.AppendUint32(out, uint32(49+len(payload)))
	out = be.AppendUint32(out, 3) // leader epoch
	out = append(out, 2)
	out = be.AppendUint32(out, 0)
	out = be.AppendUint16(out, attributes)
	out = be.AppendUint32(out, uint32(b.Records-1))
	out = be.AppendUint64(out, uint64(b.MaxTimestampMs-1))
	out = be.AppendUint64(out, uint64(b.MaxTimestampMs))
	out = be.AppendUint64(out, uint64(b.Producer.ID))
	out = be.AppendUint16(out, uint16(b.Producer.Epoch))
	out = be.AppendUint32(out, uint32(b.FirstSequence))
	out = be.AppendUint32(out, uint32(b.Records))
	out = append(out, payload...)
	return sum(out)
}

// sum puts the right checksum in.
func sum(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func TestWhatIsReadOfABatch(t *testing.T) {
	for _, b := range []fence.Batch{
		batch(1<<40, 32766, 2147483647, 3),
		plain(7, 0, 0, 1),
		{Producer: txnstate.NoProducer, FirstSequence: -1, Records: 1, MaxTimestampMs: -1},
		{Producer: txnstate.Producer{ID: 7, Epoch: 2}, FirstSequence: -1, Records: 1, Control: true, Transactional: true, MaxTimestampMs: 1_700_000_000_000},
	} {
		for compression := range uint16(5) {
			raw := encode(b, 42, compression|0x08, "whatever the records are")
			if got, err := fence.ParseProduce(raw); err != nil || got != b {
				t.Errorf("%+v, %v, want %+v", got, err, b)
			}
			got, base, size, err := fence.ParseHeader(raw[:61])
			if err != nil || got != b || base != 42 || size != len(raw) {
				t.Errorf("header: %+v, %d, %d, %v", got, base, size, err)
			}
		}
	}
}

func TestWhatIsNoBatch(t *testing.T) {
	good := func() []byte { return encode(plain(7, 0, 0, 2), 0, 0, "records") }
	put32 := func(at int, v uint32) []byte {
		b := good()
		binary.BigEndian.PutUint32(b[at:], v)
		return sum(b)
	}
	const corrupt = "CORRUPT_MESSAGE"
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", nil, corrupt},
		{"half a header", good()[:60], corrupt},
		{"a header alone", good()[:61], corrupt},
		{"cut off", good()[:67], corrupt},
		{"two batches", append(good(), good()...), invalid},
		{"a byte too many", append(good(), 0), invalid},
		{"magic 1", func() []byte { b := good(); b[16] = 1; return b }(), invalid},
		{"magic 3", func() []byte { b := good(); b[16] = 3; return b }(), invalid},
		{"a short length", put32(8, 48), corrupt},
		{"a negative length", put32(8, 1<<31), corrupt},
		{"a length beyond all", put32(8, 1<<31-1), corrupt},
		{"a wrong checksum", func() []byte { b := good(); b[62]++; return b }(), corrupt},
		{"a negative delta", put32(23, 1<<32-1), corrupt},
		{"a delta beyond all", put32(23, 1<<31-1), corrupt},
		{"a gap in the offsets", put32(23, 5), invalid},
		{"no records", put32(57, 0), invalid},
		{"a negative number of records", put32(57, 1<<32-1), invalid},
		{"compression 5", encode(plain(7, 0, 0, 1), 0, 5, ""), invalid},
		{"compression 7", encode(plain(7, 0, 0, 1), 0, 7, ""), invalid},
	} {
		if b, err := fence.ParseProduce(c.b); codeOf(err) != c.want || b != (fence.Batch{}) {
			t.Errorf("%s: %+v, %v, want %s", c.name, b, err, c.want)
		}
	}
}

func FuzzParseProduce(f *testing.F) {
	f.Add(encode(batch(1<<40, 32766, 2147483647, 3), 42, 0, "records"))
	f.Add(encode(plain(-1, -1, -1, 1), 0, 4, ""))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 61 {
			sum(raw) // or hardly anything gets through
		}
		b, err := fence.ParseProduce(raw)
		if err != nil {
			if code := txnstate.CodeOf(err); code != txnstate.CodeInvalidRecord && code != txnstate.CodeCorruptMessage {
				t.Fatal(err)
			}
			return
		}
		attributes := binary.BigEndian.Uint16(raw[21:]) &^ 0x30
		again := encode(b, int64(binary.BigEndian.Uint64(raw)), attributes, string(raw[61:]))
		copy(again[12:16], raw[12:16]) // leader epoch
		copy(again[27:35], raw[27:35]) // first timestamp
		if string(sum(again)) != string(raw) {
			t.Fatalf("%x\nread and written again:\n%x", raw, again)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(encode(batch(1<<40, 32766, 2147483647, 3), 42, 0, "records"))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, base, size, err := fence.ParseHeader(raw)
		if err != nil {
			if code := txnstate.CodeOf(err); code != txnstate.CodeInvalidRecord && code != txnstate.CodeCorruptMessage {
				t.Fatal(err)
			}
			return
		}
		if size < 61 || b.Records < 1 || base != int64(binary.BigEndian.Uint64(raw)) {
			t.Fatalf("%+v at %d, %d bytes", b, base, size)
		}
		p := fence.NewPartition(fence.Config{})
		p.Replay(b, base&(1<<60-1), nil)
		if _, err := fence.RestorePartition(fence.Config{}, p.AppendSnapshot(nil)); err != nil {
			t.Fatal(err)
		}
	})
}
