package txnstate

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// recordVectors are the records of testdata/record-format-1.txt, by name.
func recordVectors() map[string]Record {
	idle := Record{
		TxnID: "pay", State: Empty, Producer: Producer{ID: 1<<40 + 7, Epoch: 3}, PrevID: 1<<40 + 7, Next: NoProducer,
		LastEpoch: 2, TimeoutMs: 60000, StartMs: -1, UpdateMs: 1700000000001,
	}
	open := idle
	open.State, open.StartMs, open.TxnSeq, open.ClientVersion = Ongoing, 1700000000000, 300, TV2
	open.Participants = []Participant{
		Partition("__consumer_offsets", 2), Group("g"), Partition("orders", 0), Partition("orders", 3), Partition("émile", 1),
		{Kind: KindHost, Name: "", Index: 0}, {Kind: KindHost + 1, Name: "db", Index: 7},
	}
	decided := open
	decided.State, decided.Participants = PrepareCommit, []Participant{Partition("orders", 0)}
	decided.Producer.Epoch, decided.LastEpoch = FenceEpoch, MaxEpoch
	decided.Next = Producer{ID: 1<<40 + 8, Epoch: 0}
	rotated := decided
	rotated.State, rotated.Participants = CompleteCommit, nil
	rotated.Producer, rotated.Next = decided.Next, NoProducer
	twoPhase := idle
	twoPhase.TwoPhase, twoPhase.TimeoutMs = true, NoTimeout
	newer := idle
	newer.Extra = []byte{9, 3, 'a', 'b', 'c', 12, 0}
	return map[string]Record{
		"idle":     idle,
		"unknown":  Unknown("pay"),
		"open":     open,
		"decided":  decided,
		"rotated":  rotated,
		"twophase": twoPhase,
		"newer":    newer, // fields 9 and 12 of some later version
		"zero":     {},
	}
}

// testdata lines are a name, a blank and hex.
func readVectors(t testing.TB, file string) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, digits, _ := strings.Cut(line, " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("%s: %s: %v", file, name, err)
		}
		out[name] = b
	}
	return out
}

// What a released version wrote must be read for ever: the file only grows.
func TestRecordsOfFormat1AreReadForEver(t *testing.T) {
	want, got := recordVectors(), readVectors(t, "testdata/record-format-1.txt")
	for name, rec := range want {
		b, ok := got[name]
		if !ok {
			t.Errorf("no vector %q; it is\n%s %x", name, name, AppendRecord(nil, rec))
			continue
		}
		dec, err := DecodeRecord(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !dec.Equal(rec) || dec.Version != 0 {
			t.Errorf("%s: read\n%+v, want\n%+v", name, dec, rec)
		}
		if enc := AppendRecord(nil, rec); !bytes.Equal(enc, b) {
			t.Errorf("%s: written\n%x, want\n%x", name, enc, b)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("vector %q is not looked at", name)
		}
	}
}

// F36: a million ids are known at once, so an idle one is small.
func TestF36_AnIdleRecordIsSmall(t *testing.T) {
	r := recordVectors()["idle"]
	if n := len(AppendRecord(nil, r)) - len(r.TxnID); n > 40 {
		t.Errorf("%d bytes and the id", n)
	}
	prefix := []byte("frame:")
	if b := AppendRecord(prefix, r); !bytes.HasPrefix(b, prefix) {
		t.Errorf("the bytes do not follow what was there: %q", b)
	}
}

// What a newer version added survives being loaded and stored by this one: a
// rolling upgrade, or a step back, loses nothing.
func TestFieldsOfANewerVersionSurvive(t *testing.T) {
	later := []byte{1, 2, 0xff, 0xfe, 200, 1, 0}
	b := append(AppendRecord(nil, recordVectors()["open"]), later...)
	rec, err := DecodeRecord(b)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Step(rec, End{Producer: rec.Producer, Commit: true, Client: TV2, NewID: -1}, at(1700000001000))
	if err != nil {
		t.Fatal(err)
	}
	if out := AppendRecord(nil, d.Next); !bytes.HasSuffix(out, later) {
		t.Errorf("stored again: %x", out)
	}
}

// A format that this version does not know is refused, not guessed at and not
// overwritten; the store blocks that id alone.
func TestANewerFormatIsRefused(t *testing.T) {
	b := AppendRecord(nil, recordVectors()["idle"])
	b[0] = recordFormat + 1
	if _, err := DecodeRecord(b); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("the error is %v", err)
	}
	b[0], b[3] = recordFormat, 8
	if _, err := DecodeRecord(b); !errors.Is(err, ErrDamaged) {
		t.Errorf("an unknown flag: the error is %v", err)
	}
}

// A record has one encoding, so that stores may compare bytes, and one that was
// cut short anywhere before Extra is refused.
func TestOtherSpellingsAndTornRecordsAreRefused(t *testing.T) {
	for name, rec := range recordVectors() {
		rec.Extra = nil
		b := AppendRecord(nil, rec)
		for n := range len(b) {
			if r, err := DecodeRecord(b[:n]); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s, the first %d bytes of %d: %+v, %v", name, n, len(b), r, err)
			}
		}
	}
	one := AppendRecord(nil, Record{Next: NoProducer, Participants: []Participant{{Name: "a"}}})
	head := one[:36]
	flagged := func(f byte) []byte { return append(append(bytes.Clone(head[:3]), f), head[4:]...) }
	for name, b := range map[string][]byte{
		"format 0":                 append([]byte{0}, one[1:]...),
		"previous id is present":   append(flagged(2), make([]byte, 8+3)...),
		"next is none":             append(append(flagged(4), bytes.Repeat([]byte{0xff}, 10)...), 0, 0, 0),
		"long uvarint":             append(bytes.Clone(head), 0x80, 0, 0, 0),
		"uvarint without end":      append(bytes.Clone(head), bytes.Repeat([]byte{0xff}, 11)...),
		"id longer than the bytes": append(bytes.Clone(head), 0, 5, 'a'),
		"id of 2^63 bytes":         append(bytes.Clone(head), 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1),
		"2^60 runs":                append(bytes.Clone(head), 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10),
		"2^30 participants":        append(bytes.Clone(head), 0, 0, 1, 0, 1, 'a', 0x80, 0x80, 0x80, 0x80, 4, 0, 0, 0, 0),
		"a run of none":            append(bytes.Clone(head), 0, 0, 1, 0, 1, 'a', 0),
		"a run cut in two":         append(bytes.Clone(head), 0, 0, 2, 0, 1, 'a', 1, 0, 0, 0, 1, 0, 1, 'a', 1, 0, 0, 0, 2),
	} {
		if r, err := DecodeRecord(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Whatever a record says, also what Check would refuse, comes back as it was.
func TestEveryRecordComesBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := anyRecord().Draw(t, "record")
		b := AppendRecord(nil, rec)
		got, err := DecodeRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(rec) {
			t.Fatalf("read\n%+v, want\n%+v", got, rec)
		}
		clear(b) // the record must not look at it any more
		if !got.Equal(rec) {
			t.Fatal("the record shares memory with the bytes")
		}
	})
}

// No input panics or makes DecodeRecord allocate by what it merely announces,
// and what it reads is written the same.
func FuzzDecodeRecord(f *testing.F) {
	for _, rec := range recordVectors() {
		f.Add(AppendRecord(nil, rec))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := DecodeRecord(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("the error is not ErrDamaged: %v", err)
			}
			return
		}
		if out := AppendRecord(nil, rec); !bytes.Equal(out, b) {
			t.Fatalf("read\n%x, written\n%x", b, out)
		}
		if cap(rec.Participants) > 2*len(b) {
			t.Fatalf("room for %d participants from %d bytes", cap(rec.Participants), len(b))
		}
		_ = Check(rec)
		_ = rec.String()
	})
}

func BenchmarkRecordCodec(b *testing.B) {
	rec := recordVectors()["open"]
	buf := AppendRecord(nil, rec)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = AppendRecord(buf[:0], rec)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeRecord(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// anyRecord draws records with all values that the types have, sound or not.
func anyRecord() *rapid.Generator[Record] {
	id64 := rapid.OneOf(rapid.SampledFrom([]int64{-1, 0, 1, 1<<40 + 7, math.MaxInt64, math.MinInt64}), rapid.Int64())
	producer := rapid.Custom(func(t *rapid.T) Producer {
		return Producer{ID: id64.Draw(t, "id"), Epoch: rapid.Int16().Draw(t, "epoch")}
	})
	participant := rapid.Custom(func(t *rapid.T) Participant {
		return Participant{
			Kind:  Kind(rapid.SampledFrom([]uint8{0, 1, 2, 64, 255}).Draw(t, "kind")),
			Name:  rapid.SampledFrom([]string{"", "a", "b", "__consumer_offsets", "\xff"}).Draw(t, "name"),
			Index: rapid.Int32().Draw(t, "index"),
		}
	})
	return rapid.Custom(func(t *rapid.T) Record {
		return Record{
			TxnID:         rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00\xff", strings.Repeat("x", 1000)})).Draw(t, "txn id"),
			State:         State(rapid.Int8().Draw(t, "state")),
			Producer:      producer.Draw(t, "producer"),
			PrevID:        id64.Draw(t, "prev"),
			Next:          rapid.OneOf(rapid.Just(NoProducer), producer).Draw(t, "next"),
			LastEpoch:     rapid.Int16().Draw(t, "last"),
			Participants:  rapid.SliceOfN(participant, 0, 20).Draw(t, "participants"),
			TimeoutMs:     rapid.Int32().Draw(t, "timeout"),
			StartMs:       id64.Draw(t, "start"),
			UpdateMs:      id64.Draw(t, "update"),
			ClientVersion: TransactionVersion(rapid.Int8().Draw(t, "client version")),
			TwoPhase:      rapid.Bool().Draw(t, "two-phase"),
			TxnSeq:        rapid.Uint64().Draw(t, "seq"),
			Extra:         rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "extra"),
		}
	})
}
