package queue

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a file with what this version writes. Once there is a version 2,
// the files of version 1 stay, and are only read.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func sampleEntry() *entry {
	m := markers.Marker{TxnID: "pay-7", Producer: txnstate.Producer{ID: 102, Epoch: 4}, Commit: true, CoordinatorEpoch: 9, TransactionVersion: txnstate.TV2}
	odd := markers.Marker{TxnID: "odd \xff\x00<é>", Producer: txnstate.Producer{ID: math.MaxInt64, Epoch: math.MaxInt16}, CoordinatorEpoch: -1}
	return &entry{
		address: address{1, "QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B", 42}, to: 2,
		ds: []markers.Delivery{
			{Marker: m, TxnSeq: 17, Participant: txnstate.Partition("events", 0)},
			{Marker: m, TxnSeq: 17, Participant: txnstate.Partition("events", 3)},
			{Marker: m, TxnSeq: 17, Participant: txnstate.Group("billing")},
			{Marker: odd, TxnSeq: math.MaxUint64, Participant: txnstate.Participant{Kind: txnstate.KindHost, Name: "db \xfe", Index: -1}},
			{Marker: m, TxnSeq: 18, Participant: txnstate.Partition("events", 0)},
		},
	}
}

func TestTheFormatIsAsDocumented(t *testing.T) {
	e := sampleEntry()
	data, check := e.encode()
	golden(t, "entry-v1.golden", data)
	back, got, err := decodeEntry(data)
	require.NoError(t, err)
	require.Equal(t, e, back)
	require.Equal(t, check, got)

	e.ask, e.ds = true, e.ds[:1]
	data, _ = e.encode()
	golden(t, "question-v1.golden", data)

	a := &ack{Entry: quote(check), Verdicts: []verdict{"applied", "moved", pending, "retry", "fenced epoch"}}
	golden(t, "ack-v1.golden", a.encode())
	again, err := decodeAck(a.encode())
	require.NoError(t, err)
	require.Equal(t, a, again)
	require.False(t, a.complete())

	a = &ack{Entry: quote(0), Refused: refusedVersion}
	golden(t, "refusal-v1.golden", a.encode())
	require.True(t, a.complete())
}

func TestEveryResultIsAVerdict(t *testing.T) {
	seen := map[verdict]bool{}
	for _, r := range results {
		v := verdictOf(r)
		require.True(t, v.valid())
		require.Equal(t, r, v.result())
		require.False(t, seen[v])
		seen[v] = true
	}
	require.Len(t, seen, 6)
	require.Equal(t, verdictOf(markers.Retry), verdictOf(markers.Result(200)), "of a newer sink")
	require.Equal(t, markers.Retry, pending.result())
	require.False(t, verdict("applied ").valid())
}

func TestDamageIsNoticed_W20_W22(t *testing.T) {
	data, _ := sampleEntry().encode()
	for i := range data {
		for _, b := range []byte{data[i] ^ 1, data[i] ^ 0x20, 0} {
			if b == data[i] {
				continue
			}
			bad := bytes.Clone(data)
			bad[i] = b
			_, _, err := decodeEntry(bad)
			require.Error(t, err, "byte %d is %q", i, b)
		}
		_, _, err := decodeEntry(data[:i])
		require.ErrorIs(t, err, errDamaged, "cut at %d", i)
	}
	_, _, err := decodeEntry(append(bytes.Clone(data), '\n'))
	require.ErrorIs(t, err, errDamaged)
	_, _, err = decodeEntry((&ack{Entry: quote(1), Verdicts: []verdict{"applied"}}).encode())
	require.ErrorIs(t, err, errDamaged)

	newer := bytes.Replace(data, []byte("entry 1 "), []byte("entry 2 "), 1)
	_, _, err = decodeEntry(newer)
	require.ErrorIs(t, err, errVersion)
	require.NotErrorIs(t, err, errDamaged)
}

// What is sealed, and was not written by encode.
func TestOnlyOneSpellingIsRead(t *testing.T) {
	const m = `{"txn":"t","txnSeq":1,"pid":1,"epoch":1,"commit":true,"coordinatorEpoch":1,"transactionVersion":2,"to":[{"name":"a","index":0}]}`
	entryOf := func(markers string) []byte {
		body := fmt.Sprintf(`{"from":1,"process":"P","seq":1,"to":2,"markers":[%s]}`+"\n", markers)
		return fmt.Appendf(nil, "kafkatxn marker entry 1 %08x\n%s", sum([]byte(body)), body)
	}
	_, _, err := decodeEntry(entryOf(m))
	require.NoError(t, err)
	for name, markers := range map[string]string{
		"a space":              " " + m,
		"an unknown field":     strings.Replace(m, `"txn"`, `"new":1,"txn"`, 1),
		"another case":         strings.Replace(m, `"txn"`, `"Txn"`, 1),
		"a field twice":        strings.Replace(m, `"pid":1`, `"pid":2,"pid":1`, 1),
		"a field missing":      strings.Replace(m, `"pid":1,`, ``, 1),
		"another order":        strings.Replace(m, `"pid":1,"epoch":1`, `"epoch":1,"pid":1`, 1),
		"a number too large":   strings.Replace(m, `"epoch":1`, `"epoch":70000`, 1),
		"another escape":       strings.Replace(m, `"t"`, `"\u0074"`, 1),
		"hex of plain text":    strings.Replace(m, `"txn":"t"`, `"txn":{"hex":"74"}`, 1),
		"hex that is none":     strings.Replace(m, `"txn":"t"`, `"txn":{"hex":"f"}`, 1),
		"a text that is none":  strings.Replace(m, `"txn":"t"`, `"txn":7`, 1),
		"a marker for nobody":  strings.Replace(m, `[{"name":"a","index":0}]`, `[]`, 1),
		"one marker in pieces": m + "," + m,
		"no marker":            "",
	} {
		_, _, err := decodeEntry(entryOf(markers))
		require.ErrorIs(t, err, errDamaged, name)
	}
	for _, a := range []*ack{
		{Entry: "0000000", Verdicts: []verdict{"applied"}}, {Entry: "0000000G", Verdicts: []verdict{"applied"}},
		{Entry: quote(1)}, {Entry: quote(1), Verdicts: []verdict{"yes"}}, {Entry: quote(1), Refused: "lazy"},
		{Entry: quote(1), Verdicts: []verdict{"applied"}, Refused: refusedDamaged},
	} {
		_, err := decodeAck(a.encode())
		require.ErrorIs(t, err, errDamaged, "%+v", a)
	}
}

func TestNames(t *testing.T) {
	a := address{-3, "QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B", math.MaxUint64}
	for _, ext := range []string{entryExt, ackExt, damagedExt} {
		got, gotExt, ok := parseName(a.String() + ext)
		require.True(t, ok)
		require.Equal(t, a, got)
		require.Equal(t, ext, gotExt)
	}
	base, process, ok := parseTemp(tempName(a.String()+ackExt, "P"))
	require.True(t, ok)
	require.Equal(t, a.String()+ackExt, base)
	require.Equal(t, "P", process)
	for _, bad := range []string{
		"", "x", ".entry", "1-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-1.entry", "01-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000001.entry",
		"1-qJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000001.entry", "1-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7-00000000000000000001.entry",
		"1-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-99999999999999999999.entry", "9999999999-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000001.entry",
	} {
		_, _, ok := parseName(bad)
		require.False(t, ok, bad)
		_, _, ok = parseTemp(bad)
		require.False(t, ok, bad)
	}
	require.Len(t, newProcess(), processLen)
	require.NotEqual(t, newProcess(), newProcess())
	require.Less(t, address{1, "A", 9}.String(), address{1, "A", 10}.String(), "names sort as entries were made")
	for name, want := range map[string]bool{"to-3": true, "to--1": true, "to-03": false, "to-": false, "to-x": false, "from-3": false, "to-9999999999": false} {
		_, ok := parseInbox(name)
		require.Equal(t, want, ok, name)
	}
}

// The estimate bounds what an entry takes.
func TestNoDeliveryIsLongerThanItsEstimate(t *testing.T) {
	for _, s := range []string{"", "t", strings.Repeat("x", 249), strings.Repeat("\xff", 300), strings.Repeat("<", 300), strings.Repeat("\x00", 100), strings.Repeat("\u2028", 99)} {
		d := markers.Delivery{
			Marker:      markers.Marker{TxnID: s, Producer: txnstate.Producer{ID: math.MinInt64, Epoch: math.MinInt16}, CoordinatorEpoch: math.MinInt32, TransactionVersion: -128},
			TxnSeq:      math.MaxUint64,
			Participant: txnstate.Participant{Kind: 255, Name: s, Index: math.MinInt32},
		}
		two := &entry{ds: []markers.Delivery{d, d}}
		two.ds[1].TxnSeq--
		none, _ := (&entry{}).encode()
		data, _ := two.encode()
		require.LessOrEqual(t, len(data)-len(none), 2*size(&d), "%.20q", s)
	}
}

func FuzzEntry(f *testing.F) {
	data, _ := sampleEntry().encode()
	f.Add(data)
	f.Add([]byte("kafkatxn marker entry 1 00000000\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, check, err := decodeEntry(b)
		if err != nil {
			if !errors.Is(err, errDamaged) && !errors.Is(err, errVersion) {
				t.Fatal(err)
			}
			// A body that is sealed right is read deeper.
			body := b[bytes.IndexByte(b, '\n')+1:]
			_, _, _ = decodeEntry(append(fmt.Appendf(nil, "kafkatxn marker entry 1 %08x\n", sum(body)), body...))
			return
		}
		if again, c := e.encode(); !bytes.Equal(again, b) || c != check {
			t.Fatalf("%q is read, and written as %q", b, again)
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add((&ack{Entry: quote(7), Verdicts: []verdict{"applied", pending}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		body := b[bytes.IndexByte(b, '\n')+1:]
		sealed := append(fmt.Appendf(nil, "kafkatxn marker ack 1 %08x\n", sum(body)), body...)
		for _, data := range [][]byte{b, sealed} {
			a, err := decodeAck(data)
			if err == nil && !bytes.Equal(a.encode(), data) {
				t.Fatalf("%q is read, and written as %q", data, a.encode())
			}
		}
	})
}
