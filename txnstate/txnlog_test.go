package txnstate

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// logVectors are keys and values as Apache Kafka 4.4 lays them out (schemas
// TransactionLogKey and TransactionLogValue).
func logVectors() map[string]struct {
	hex     string
	version int16
	rec     Record
} {
	open := Unknown("my-t")
	open.Producer, open.State, open.TimeoutMs = Producer{ID: 4660, Epoch: 7}, Ongoing, 60000
	open.Participants = []Participant{Partition("t", 0), Partition("t", 3)}
	open.StartMs, open.UpdateMs = 1700000000000, 1700000000001
	decided := open
	decided.Producer.Epoch, decided.State, decided.PrevID, decided.ClientVersion = 8, PrepareCommit, 4660, TV2
	rotating := decided
	rotating.Producer.Epoch, rotating.Next = FenceEpoch, Producer{ID: 4661, Epoch: 0}
	keep := rotating
	keep.Next.Epoch = 2
	idle := Unknown("my-t")
	idle.Producer, idle.PrevID, idle.TimeoutMs, idle.UpdateMs = Producer{ID: 4660, Epoch: 0}, 4660, 60000, 1700000000001
	twoPhase := idle
	twoPhase.TimeoutMs, twoPhase.TwoPhase = NoTimeout, true
	old := idle
	old.PrevID = -1
	done := decided
	done.State, done.Participants = CompleteCommit, nil
	type vector = struct {
		hex     string
		version int16
		rec     Record
	}
	const head, times = "00000000000012340007" + "0000ea60", "0000018bcfe56801" + "0000018bcfe56800"
	return map[string]vector{
		"Ongoing, v0":       {"0000000000000000123400070000ea6001000000010001740000000200000000000000030000018bcfe568010000018bcfe56800", 0, open},
		"PrepareCommit, v1": {"0001000000000000123400080000ea6002020274030000000000000003000000018bcfe568010000018bcfe56800020008000000000000123402020002", 1, decided},
		"Ongoing, v1":       {"0001" + head + "01" + "020274030000000000000003" + "00" + times + "00", 1, open},
		"Empty, v1: null":   {"000100000000000012340000" + "0000ea60" + "00" + "00" + "0000018bcfe56801" + "ffffffffffffffff" + "01" + "0008" + "0000000000001234", 1, idle},
		"Empty, v0: null":   {"000000000000000012340000" + "0000ea60" + "00" + "ffffffff" + "0000018bcfe56801" + "ffffffffffffffff", 0, old},
		"two-phase":         {"000100000000000012340000" + "7fffffff" + "00" + "00" + "0000018bcfe56801" + "ffffffffffffffff" + "01" + "0008" + "0000000000001234", 1, twoPhase},
		"Complete: no topics": {"000100000000000012340008" + "0000ea60" + "04" + "01" + times +
			"02" + "0008" + "0000000000001234" + "0202" + "0002", 1, done},
		"rotation: tag 1": {"000100000000000012347fff" + "0000ea60" + "02" + "020274030000000000000003" + "00" + times +
			"03" + "0008" + "0000000000001234" + "0108" + "0000000000001235" + "0202" + "0002", 1, rotating},
		"KIP-939: tag 3": {"000100000000000012347fff" + "0000ea60" + "02" + "020274030000000000000003" + "00" + times +
			"04" + "0008" + "0000000000001234" + "0108" + "0000000000001235" + "0202" + "0002" + "0302" + "0002", 1, keep},
	}
}

func TestTheLogIsReadAndWrittenAsByKafka(t *testing.T) {
	key, err := AppendLogKey([]byte("x"), "my-t")
	if err != nil || hex.EncodeToString(key[1:]) != "000000046d792d74" {
		t.Errorf("key %x, %v", key, err)
	}
	if id, err := DecodeLogKey(key[1:]); id != "my-t" || err != nil {
		t.Errorf("id %q, %v", id, err)
	}
	for name, v := range logVectors() {
		b, err := AppendLogValue([]byte("x"), v.rec, v.version)
		if err != nil || hex.EncodeToString(b[1:]) != v.hex {
			t.Errorf("%s: written\n%x, want\n%s (%v)", name, b[1:], v.hex, err)
		}
		rec, err := DecodeLogValue("my-t", unhex(t, v.hex))
		if err != nil || !rec.Equal(v.rec) {
			t.Errorf("%s: read\n%+v, want\n%+v (%v)", name, rec, v.rec, err)
		}
		if err := Check(rec); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestATombstoneIsAnUnknownID(t *testing.T) {
	rec, err := DecodeLogValue("my-t", nil)
	if err != nil || rec.Known() || !rec.Equal(Unknown("my-t")) {
		t.Errorf("%+v, %v", rec, err)
	}
	if _, err := DecodeLogValue("my-t", []byte{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("an empty value is no tombstone: %v", err)
	}
}

// Markers carry neither group nor transactional id, so to Kafka a group is its
// partition of __consumer_offsets, and partitions are grouped by topic.
func TestGroupsAreWrittenAsOffsetsPartitions(t *testing.T) {
	rec := Unknown("my-t")
	rec.Producer, rec.State, rec.StartMs = Producer{ID: 1, Epoch: 0}, Ongoing, 1
	rec.Participants = union(nil, []Participant{Partition("zoo", 1), Group("g"), Partition("a", 2), Group("h"), Partition("a", 1), Partition(OffsetsTopic, 49)})
	for _, version := range []int16{0, 1} {
		b, err := AppendLogValue(nil, rec, version)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte(OffsetsTopic)); n != 1 {
			t.Errorf("v%d: %s is there %d times", version, OffsetsTopic, n)
		}
		got, err := DecodeLogValue("my-t", b)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Participants) != len(rec.Participants) {
			t.Fatalf("v%d: %v", version, got.Participants)
		}
		for i, p := range rec.Participants {
			if got.Participants[i] != p.Wire() {
				t.Errorf("v%d: %s came back as %s", version, p, got.Participants[i])
			}
		}
	}
}

// A log that left a participant out would let its transaction complete without
// telling it (I2).
func TestWhatTheLogHasNoPlaceForIsRefused(t *testing.T) {
	rec := Unknown("my-t")
	rec.Participants = []Participant{{Kind: KindHost, Name: "db"}}
	long := rec
	long.Participants = []Participant{Partition(strings.Repeat("t", 32768), 0)}
	for _, r := range []Record{rec, long} {
		if b, err := AppendLogValue([]byte("x"), r, 1); err == nil || string(b) != "x" {
			t.Errorf("%q, %v", b, err)
		}
	}
	if b, err := AppendLogKey([]byte("x"), strings.Repeat("i", MaxTxnIDBytes+1)); err == nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := AppendLogKey(nil, strings.Repeat("i", MaxTxnIDBytes)); err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := AppendLogValue(nil, Unknown("my-t"), 2); !errors.Is(err, ErrLogVersion) {
		t.Errorf("version 2: %v", err)
	}
}

// F02: Kafka skips records of versions it does not know and goes on; so can a
// tool, since they are told from damaged ones.
func TestF02_UnknownVersionsAreToldFromDamage(t *testing.T) {
	if _, err := DecodeLogKey([]byte{0, 1, 9, 9}); !errors.Is(err, ErrLogVersion) || errors.Is(err, ErrDamaged) {
		t.Errorf("key: %v", err)
	}
	if _, err := DecodeLogValue("my-t", []byte{0, 2, 9, 9}); !errors.Is(err, ErrLogVersion) || errors.Is(err, ErrDamaged) {
		t.Errorf("value: %v", err)
	}
	for name, v := range logVectors() {
		b := unhex(t, v.hex)
		for n := range len(b) {
			if _, err := DecodeLogValue("my-t", b[:n]); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s, the first %d bytes: %v", name, n, err)
			}
		}
		if _, err := DecodeLogValue("my-t", append(b, 0)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s and a byte more: %v", name, err)
		}
	}
	const head = "0001" + "0000000000001234" + "0007" + "0000ea60"
	const times = "0000018bcfe56801" + "0000018bcfe56800"
	for name, s := range map[string]string{
		"state Dead":           head + "06" + "00" + times + "00",
		"2^31 topics":          head + "01" + "8180808008" + times + "00",
		"2^64 topics":          head + "01" + "ffffffffffffffffff01" + times + "00",
		"a null topic":         head + "01" + "02" + "00" + "01" + "00" + times + "00",
		"null partitions":      head + "01" + "02" + "0274" + "00" + "00" + times + "00",
		"tag 0 of 4 bytes":     head + "00" + "00" + times + "01" + "0004" + "00001234",
		"tag 0 twice":          head + "00" + "00" + times + "02" + "0008" + "0000000000001234" + "0008" + "0000000000001234",
		"tags out of order":    head + "00" + "00" + times + "02" + "0202" + "0002" + "0008" + "0000000000001234",
		"tag 9 of 2^40 bytes":  head + "00" + "00" + times + "01" + "09" + "808080808020",
		"client version 300":   head + "00" + "00" + times + "01" + "0202" + "012c",
		"v0: -2 topics":        "0000" + head[4:] + "01" + "fffffffe" + times,
		"v0: name of -1 bytes": "0000" + head[4:] + "01" + "00000001" + "ffff" + "00000000" + times,
		"v0: 2^31-1 ids":       "0000" + head[4:] + "01" + "00000001" + "000174" + "7fffffff" + "00000001" + times,
	} {
		if r, err := DecodeLogValue("my-t", unhex(t, s)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Later releases of Kafka add tags (KAFKA-20357): they are skipped.
func TestUnknownTagsAreSkipped(t *testing.T) {
	const head = "0001" + "0000000000001234" + "0007" + "0000ea60" + "01"
	b := unhex(t, head+"02"+"0274"+"02"+"00000003"+"01"+"0501aa"+"0000018bcfe56801"+"0000018bcfe56800"+"03"+"0008"+"0000000000001234"+"0402"+"0006"+"7f00")
	rec, err := DecodeLogValue("my-t", b)
	if err != nil || rec.PrevID != 4660 || rec.LastEpoch != -1 || rec.Extra != nil || !rec.Has(Partition("t", 3)) {
		t.Errorf("%+v, %v", rec, err)
	}
}

// Old logs repeat partitions, split a topic in two and leave partitions in
// completed records (KAFKA-5268): such a value is readable, and Check objects.
func TestOldAndUntidyValuesAreRead(t *testing.T) {
	b := unhex(t, "0000"+"0000000000001234"+"0007"+"0000ea60"+"04"+
		"00000003"+"000174"+"00000002"+"00000003"+"00000001"+"000161"+"00000001"+"00000000"+"000174"+"00000001"+"00000003"+
		"0000018bcfe56801"+"0000018bcfe56800")
	rec, err := DecodeLogValue("my-t", b)
	if err != nil {
		t.Fatal(err)
	}
	want := []Participant{Partition("a", 0), Partition("t", 1), Partition("t", 3)}
	if len(rec.Participants) != 3 || rec.Participants[0] != want[0] || rec.Participants[1] != want[1] || rec.Participants[2] != want[2] {
		t.Errorf("%v, want %v", rec.Participants, want)
	}
	if Check(rec) == nil {
		t.Error("Check accepts a completed transaction with partitions")
	}
}

// What a log record keeps of a sound record comes back.
func TestSoundRecordsComeBackFromTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.run(t, 20, func(rec Record) {
			b, err := AppendLogValue(nil, rec, 1)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeLogValue(rec.TxnID, b)
			if err != nil {
				t.Fatal(err)
			}
			want := rec.Clone()
			want.LastEpoch, want.TxnSeq = -1, 0
			for i, p := range want.Participants {
				want.Participants[i] = p.Wire()
			}
			if !got.Equal(want) {
				t.Fatalf("read\n%+v, want\n%+v", got, want)
			}
		})
	})
}

func FuzzDecodeLogKey(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x04my-t"))
	f.Add([]byte("\x00\x01\x00\x04my-t"))
	f.Add([]byte("\x00\x00\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := DecodeLogKey(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrLogVersion) {
				t.Fatal(err)
			}
			return
		}
		if out, err := AppendLogKey(nil, id); err != nil || !bytes.Equal(out, b) {
			t.Fatalf("read %x, written %x, %v", b, out, err)
		}
	})
}

// No input panics or makes DecodeLogValue allocate by what it merely announces,
// and what it reads of a sound record is read again from what it writes.
func FuzzDecodeLogValue(f *testing.F) {
	for _, v := range logVectors() {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := DecodeLogValue("my-t", b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrLogVersion) {
				t.Fatal(err)
			}
			return
		}
		if cap(rec.Participants) > 2*len(b) {
			t.Fatalf("room for %d participants from %d bytes", cap(rec.Participants), len(b))
		}
		if b == nil || Check(rec) != nil {
			return
		}
		version := int16(b[1])
		out, err := AppendLogValue(nil, rec, version)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeLogValue("my-t", out)
		if err != nil || !again.Equal(rec) {
			t.Fatalf("read\n%+v, then\n%+v, %v", rec, again, err)
		}
	})
}
