package slotfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// What decodes re-encodes to the same record, and the encoding is one that comes
// back from its own decoding.
func FuzzEntry(f *testing.F) {
	f.Add("tx-ongoing", []byte(`{"pid":102,"epoch":0,"partitions":[{"topic":"events","partitions":[8]}],"ongoingSinceMs":1782675758339,"transactionTimeoutMs":45000,"state":"Ongoing","groups":["g"]}`))
	f.Add("tx-bare", []byte(`{}`))
	f.Add("x", []byte(`{"pid":1,"epoch":1,"extra":"AAEC","version":3}`))
	f.Add("x", []byte(`{"pid":1,"epoch":1,"extra":"AAEC","more":{"a":[1,"]}",null]},"version":3}`))
	f.Add("x", []byte(`{"pid":1,"state":"PrepareCommit","nextPid":2,"nextEpoch":0,"participants":[{"kind":64,"name":"\u0000hex:ff","index":3}],"groups":null}`))
	f.Add("\xff", []byte("{\n \"epoch\" : 32767 , \"twoPhaseCommit\" : true, \"transactionTimeoutMs\":2147483647 }"))
	f.Fuzz(func(t *testing.T, id string, value []byte) {
		if !json.Valid(value) {
			// Never read in earnest: only that it does not panic.
			_, _ = readRecord(id, value, taken{1, 5})
			return
		}
		r, err := readRecord(id, value, taken{1, 5})
		if err != nil {
			return
		}
		require.NoError(t, txnstate.Check(r))
		written := appendVersion(appendRecord(nil, r), r.Version)
		require.True(t, json.Valid(written), "%s", written)
		again, err := readRecord(id, written, taken{2, 6})
		require.NoError(t, err)
		require.True(t, r.Equal(again), "%+v\n%+v", r, again)
		require.Equal(t, r.Version, again.Version)
		require.Equal(t, written, appendVersion(appendRecord(nil, again), again.Version))
	})
}

// A file that can be taken over is written back so that every entry, readable or
// not, is what it was.
func FuzzSlotFile(f *testing.F) {
	for _, n := range []int{9, 25, 40, 48} {
		b, err := os.ReadFile(fmt.Sprintf("testdata/before/slot-%d.json", n))
		require.NoError(f, err)
		f.Add(b)
	}
	b, err := os.ReadFile("testdata/format1/slot-25.json")
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"tx-ongoing":1,"tx-ongoing":{},"\ud800":[],"a":{"pid":"x"}}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := takeOver(file, 25, 5)
		if err != nil {
			return
		}
		body := c.body()
		require.True(t, json.Valid(body))
		again, err := takeOver(body, 25, 5)
		require.NoError(t, err)
		require.Equal(t, string(body), string(again.body()))
		require.Equal(t, c.taken, again.taken)
		require.Len(t, again.entries, len(c.entries))
		require.Len(t, again.strays, len(c.strays))
		for i, e := range c.entries {
			r, err := e.record(c.taken)
			r2, err2 := again.entries[i].record(again.taken)
			require.Equal(t, err == nil, err2 == nil)
			require.Equal(t, r, r2)
		}

		// The same as a generation, which says what its entries leave out.
		next := c.next("nonce")
		next.entries = c.entries
		written := next.appendFile(nil, 25)
		read, err := decode(written, 25, firstFile, nil)
		require.NoError(t, err)
		require.Equal(t, string(body), string(read.body()))
		require.Equal(t, c.taken, read.taken)
		reused, err := decode(written, 25, firstFile, c)
		require.NoError(t, err)
		require.Equal(t, string(body), string(reused.body()))
	})
}

func FuzzGeneration(f *testing.F) {
	b, err := os.ReadFile("testdata/format1/generation.slot")
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte("{}\n{}\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := decode(file, 25, 5, nil)
		if err != nil {
			return
		}
		written := c.appendFile(nil, 25)
		head, body, _ := bytes.Cut(written, []byte("\n"))
		want, err := json.Marshal(header{
			Format: format, Slot: 25, Generation: c.gen, Nonce: c.nonce, Parents: c.parents,
			LastVersion: uint64(c.seq), TakenVersion: uint64(c.taken.version), TakenMs: c.taken.updateMs,
			Bytes: len(body), CRC32C: checksum(body),
		})
		require.NoError(t, err)
		require.Equal(t, string(want), string(head))
		require.Equal(t, string(c.body()), string(body))
		again, err := decode(written, 25, 5, nil)
		require.NoError(t, err)
		require.Equal(t, string(c.body()), string(again.body()))
		require.Equal(t, c.parents, again.parents)
		require.Equal(t, c.seq, again.seq)
	})
}

// No two strings share a spelling, and every string has one.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a", "\xff", "\x00hex:", "\x00hex:ff", "\x00", "é\n\"\\\u2028\U0001f600", "\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q := appendText(nil, s)
		require.True(t, json.Valid(q), "%s", q)
		back, err := text(q)
		require.NoError(t, err)
		require.Equal(t, s, back)
		// As something that was found in a file, between quotes.
		if found := []byte(`"` + s + `"`); json.Valid(found) {
			if meant, err := text(found); err == nil {
				again, err := text(appendText(nil, meant))
				require.NoError(t, err)
				require.Equal(t, meant, again)
			}
		}
	})
}

// Depth costs neither stack nor time out of proportion.
func TestDeepNestingIsWalkedWithoutRecursion(t *testing.T) {
	deep := strings.Repeat(`[`, 1<<20)
	s := scanner{b: []byte(deep)}
	_, err := s.value()
	require.Error(t, err)
}
