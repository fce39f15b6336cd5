package markers_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The bytes of Kafka 4.4's log for base offset 42, leader epoch 5, timestamp
// 1700000000000, producer 4660/7 and coordinator epoch 3.
const (
	commitHex = "000000000000002a000000420000000502558fc2740030000000000000018bcfe568000000018bcfe5680000000000000012340007ffffffff000000012000000008000000010c00000000000300"
	abortHex  = "000000000000002a000000420000000502a1b1143c0030000000000000018bcfe568000000018bcfe5680000000000000012340007ffffffff000000012000000008000000000c00000000000300"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// resum puts the right checksum in.
func resum(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func TestW32_MarkersAreKafkasBytes(t *testing.T) {
	for _, c := range []struct {
		hex    string
		commit bool
	}{{commitHex, true}, {abortHex, false}} {
		want := unhex(c.hex)
		m := markers.Marker{Producer: txnstate.Producer{ID: 4660, Epoch: 7}, Commit: c.commit, CoordinatorEpoch: 3}
		sent := m
		sent.TxnID, sent.TransactionVersion = "not on the wire", txnstate.TV2
		got := markers.AppendControlBatch([]byte("before"), sent, 42, 5, 1_700_000_000_000)
		if !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Errorf("commit %v:\n%x\nwant\n%x", c.commit, got, want)
		}
		if len(want) != markers.ControlBatchSize {
			t.Errorf("%d bytes", len(want))
		}
		back, ts, err := markers.ParseControlBatch(want)
		if err != nil || back != m || ts != 1_700_000_000_000 {
			t.Errorf("parsed: %+v at %d, %v", back, ts, err)
		}
		b, base, size, err := fence.ParseHeader(want)
		if err != nil || !b.Control || !b.Transactional || b.FirstSequence != -1 || b.Records != 1 || base != 42 || size != len(want) {
			t.Errorf("header: %+v, %d, %d, %v", b, base, size, err)
		}
		if mk := m.Mark(9); mk != (fence.Mark{Producer: m.Producer, Commit: c.commit, CoordinatorEpoch: 3, TimestampMs: 9}) {
			t.Errorf("mark: %+v", mk)
		}
	}
}

func TestExtremeMarkersSurvive(t *testing.T) {
	for _, m := range []markers.Marker{
		{Producer: txnstate.Producer{ID: 1<<63 - 1, Epoch: 32767}, Commit: true, CoordinatorEpoch: 1<<31 - 1},
		{Producer: txnstate.Producer{}, CoordinatorEpoch: -1},
	} {
		back, ts, err := markers.ParseControlBatch(markers.AppendControlBatch(nil, m, 1<<62, -1, -1))
		if err != nil || back != m || ts != -1 {
			t.Errorf("%+v at %d, %v", back, ts, err)
		}
	}
}

func TestWhatIsReadAsAMarker(t *testing.T) {
	change := func(f func(b []byte)) []byte {
		b := unhex(commitHex)
		f(b)
		return resum(b)
	}
	damaged := unhex(commitHex)
	damaged[70]++
	none := markers.ErrNotMarker
	corrupt, invalid := &txnstate.Error{Code: txnstate.CodeCorruptMessage}, &txnstate.Error{Code: txnstate.CodeInvalidRecord}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"as it is", change(func([]byte) {}), nil},
		{"a later version of the key is read as version 0", change(func(b []byte) { b[67] = 9 }), nil},
		{"a later version of the value too", change(func(b []byte) { b[72] = 9 }), nil},
		{"LogAppendTime", change(func(b []byte) { b[22] |= 8 }), nil},
		{"a negative version of the key", change(func(b []byte) { b[66] = 0x80 }), invalid},
		{"a negative version of the value", change(func(b []byte) { b[71] = 0x80 }), invalid},
		{"type 2, of the metadata log", change(func(b []byte) { b[69] = 2 }), none},
		{"a type that nobody knows", change(func(b []byte) { b[68] = 7 }), none},
		{"no transactional bit", change(func(b []byte) { b[22] &^= 0x10 }), none},
		{"no control bit", change(func(b []byte) { b[22] &^= 0x20 }), invalid},
		{"compressed", change(func(b []byte) { b[22] |= 1 }), invalid},
		{"two records", change(func(b []byte) { b[60] = 2 }), invalid},
		{"a short record", change(func(b []byte) { b[61] -= 2 }), invalid},
		{"a long record", change(func(b []byte) { b[61] += 2 }), invalid},
		{"a short key", change(func(b []byte) { b[65] = 3 << 1 }), invalid},
		{"no key", change(func(b []byte) { b[65] = 1 }), invalid},
		{"a short value", change(func(b []byte) { b[70] = 5 << 1 }), invalid},
		{"a value beyond the end", change(func(b []byte) { b[70] = 60 << 1 }), invalid},
		{"another offset in the batch", change(func(b []byte) { b[64] = 2 }), invalid},
		{"nothing", nil, corrupt},
		{"cut off", unhex(commitHex)[:77], corrupt},
		{"a byte too many", append(unhex(commitHex), 0), corrupt},
		{"damaged", damaged, corrupt},
	} {
		m, ts, err := markers.ParseControlBatch(c.b)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil && (m.Producer.ID != 4660 || ts != 1_700_000_000_000) || err != nil && (m != markers.Marker{} || ts != 0) {
			t.Errorf("%s: %+v at %d", c.name, m, ts)
		}
	}
}

// Where the log has the broker's time, the batch's timestamp is the marker's.
func TestTheTimestampOfAMarker(t *testing.T) {
	b := unhex(commitHex)
	binary.BigEndian.PutUint64(b[35:], 77) // max timestamp
	if _, ts, err := markers.ParseControlBatch(resum(b)); err != nil || ts != 1_700_000_000_000 {
		t.Errorf("CreateTime: %d, %v", ts, err)
	}
	b[22] |= 8
	if _, ts, err := markers.ParseControlBatch(resum(b)); err != nil || ts != 77 {
		t.Errorf("LogAppendTime: %d, %v", ts, err)
	}
}

func FuzzParseControlBatch(f *testing.F) {
	f.Add(unhex(commitHex))
	f.Add(unhex(abortHex))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 61 {
			resum(b) // or hardly anything gets through
		}
		m, ts, err := markers.ParseControlBatch(b)
		if err != nil {
			code := txnstate.CodeOf(err)
			if code != txnstate.CodeInvalidRecord && code != txnstate.CodeCorruptMessage && !errors.Is(err, markers.ErrNotMarker) {
				t.Fatal(err)
			}
			return
		}
		again, ts2, err := markers.ParseControlBatch(markers.AppendControlBatch(nil, m, 0, 0, ts))
		if err != nil || again != m || ts2 != ts {
			t.Fatalf("%+v at %d, and written and read again %+v at %d, %v", m, ts, again, ts2, err)
		}
	})
}

func BenchmarkAppendControlBatch(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, markers.ControlBatchSize)
	m := markers.Marker{Producer: txnstate.Producer{ID: 4660, Epoch: 7}, Commit: true}
	for i := range b.N {
		buf = markers.AppendControlBatch(buf[:0], m, int64(i), 0, int64(i))
	}
}
