package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

func idle(id string) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State, r.Producer, r.PrevID = txnstate.CompleteCommit, txnstate.Producer{ID: 1<<40 + 7, Epoch: 3}, 1<<40+7
	r.LastEpoch, r.TimeoutMs, r.StartMs, r.UpdateMs = 2, 60_000, 1_700_000_000_000, 1_700_000_000_001
	r.ClientVersion, r.TxnSeq = txnstate.TV2, 300
	return r
}

// unusual has everything that idle has not.
func unusual(id string) txnstate.Record {
	r := idle(id)
	r.State, r.Producer.Epoch, r.PrevID = txnstate.PrepareAbort, txnstate.FenceEpoch, 12
	r.Next, r.TwoPhase, r.TimeoutMs = txnstate.Producer{ID: 1<<40 + 8, Epoch: 0}, true, txnstate.NoTimeout
	r.Participants = []txnstate.Participant{
		{Kind: txnstate.KindGroup, Name: "a group\x1b[2J", Index: 4}, txnstate.Partition("orders", 0), {Kind: 64, Name: "", Index: 7},
	}
	r.Extra = []byte{9, 1, 'x'}
	return r
}

// made is a file system with a journal of a process that was killed.
func made(t *testing.T) fsx.FS {
	t.Helper()
	fsys := fsx.Mem()
	open := func() *journal.Store {
		s, err := journal.Open(journal.Config{Dir: "j", FS: fsys})
		require.NoError(t, err)
		return s
	}
	swap := func(s *journal.Store, r txnstate.Record) txnstate.Version {
		v, err := s.Swap(t.Context(), r, txnstate.Durable)
		require.NoError(t, err)
		return v
	}
	s := open()
	swap(s, idle("pay"))
	gone := swap(s, idle("gone"))
	require.NoError(t, s.Delete(t.Context(), "gone", gone))
	require.NoError(t, s.Close())
	s = open()
	swap(s, unusual("odd id\xff"))
	return fsys
}

func output(t *testing.T, fsys fsx.FS, args ...string) (string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	status := run(args, fsys, &out, &errs)
	return out.String() + errs.String(), status
}

const payLine = `pay CompleteCommit producer=1099511627783/3 last-epoch=2 began=2023-11-14T22:13:20.000Z updated=2023-11-14T22:13:20.001Z timeout=1m0s tv=2 transactions=300 version=1`

const oddLine = `"odd id\xff" PrepareAbort producer=1099511627783/32767 previous-id=12 next=1099511627784/0 last-epoch=2 ` +
	`participants=[group:"a group\x1b[2J"/4 orders/0 kind-64:""/7] began=2023-11-14T22:13:20.000Z updated=2023-11-14T22:13:20.001Z two-phase tv=2 transactions=300 version=4294967296 extra=090178`

func TestADirectoryIsShownAsItsRecords(t *testing.T) {
	t.Parallel()
	got, status := output(t, made(t), "journal", "j")
	assert.Equal(t, `j/txn-0000000000000001.log: segment 1, format 1, from version 1, 271 bytes
  frames: 4, complete
j/txn-0000000000000002.log: segment 2, format 1, from version 4294967296, 185 bytes
  frames: 1, not ended: in use, or the process was killed
records: 2
`+oddLine+`
`+payLine+`
`, got)
	assert.Equal(t, ok, status)
}

func TestAFileIsShownAsItsFrames(t *testing.T) {
	t.Parallel()
	got, status := output(t, made(t), "journal", "j/txn-0000000000000001.log")
	assert.Equal(t, `j/txn-0000000000000001.log: segment 1, format 1, from version 1, 271 bytes
  frame 1 at byte 44, 78 bytes, checks: log, entries: 1
    `+payLine+`
  frame 2 at byte 122, 79 bytes, checks: log, entries: 1
    gone `+strings.TrimSuffix(strings.TrimPrefix(payLine, "pay "), "1")+`2
  frame 3 at byte 201, 38 bytes, checks: log, entries: 1
    gone deleted version=3
  frame 4 at byte 239, 32 bytes, checks: end, entries: 0
`, got)
	assert.Equal(t, ok, status)
}

func TestDamageIsSaidPlainlyAndWhatIsBeyondItIsShown(t *testing.T) {
	t.Parallel()
	fsys := made(t)
	const name = "j/txn-0000000000000001.log"
	b, err := fsys.ReadFile(name)
	require.NoError(t, err)
	b[60] ^= 1
	require.NoError(t, fsys.Replace(name, b, 0o644))
	for _, path := range []string{"j", name} {
		got, status := output(t, fsys, "journal", path)
		assert.Equal(t, damaged, status)
		assert.Contains(t, got, "DAMAGED "+name+" at byte 44: there should be frame 1, and there is no whole frame; the next one is at byte 122\n")
		assert.NotContains(t, got, "pay ")
	}
	got, _ := output(t, fsys, "journal", name)
	assert.Contains(t, got, "frame 2 at byte 122")
	got, _ = output(t, fsys, "journal", "j")
	assert.Contains(t, got, "records: 1\n"+oddLine)

	require.NoError(t, fsys.Remove(name))
	got, status := output(t, fsys, "journal", "j")
	assert.Equal(t, damaged, status)
	assert.Contains(t, got, "DAMAGED j segment 1 is missing\n")
	assert.Contains(t, got, oddLine)
}

// What a crash cut off, or a broker is writing, is no damage.
func TestATornTailIsNoDamage(t *testing.T) {
	t.Parallel()
	fsys := made(t)
	const name = "j/txn-0000000000000002.log"
	b, err := fsys.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, fsys.Replace(name, b[:len(b)-1], 0o644))
	got, status := output(t, fsys, "journal", "j")
	assert.Equal(t, ok, status)
	assert.Contains(t, got, name+": at byte 44: 140 bytes of a write that did not end, or is under way; Open cuts them off\n")
	assert.Contains(t, got, "records: 1\n"+payLine)
}

func TestReadingChangesNothing(t *testing.T) {
	t.Parallel()
	inner := made(t)
	fsys := fsx.Hook(inner, func(op fsx.Op, name string) error {
		switch op {
		case fsx.OpReadFile, fsx.OpReadDir:
		default:
			t.Errorf("%s %s", op, name)
		}
		return nil
	})
	_, status := output(t, fsys, "journal", "-frames", "j")
	assert.Equal(t, ok, status)
	slots(t, inner)
	_, status = output(t, fsys, "slot", "s/txn_state/slot-25.json")
	assert.Equal(t, ok, status)
}

func TestJSONIsOneObjectALine(t *testing.T) {
	t.Parallel()
	fsys := made(t)
	slots(t, fsys)
	for _, args := range [][]string{{"journal", "-json", "j"}, {"journal", "-json", "-frames", "j"}, {"slot", "-json", "s/txn_state/slot-25.json"}, {"journal", "-json", "nowhere"}} {
		got, _ := output(t, fsys, args...)
		for line := range strings.Lines(got) {
			var v map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &v), line)
		}
	}
	got, _ := output(t, fsys, "journal", "-json", "j")
	assert.Contains(t, got, `{"journal":"j","records":2}
{"txnId":"odd id\ufffd","txnIdHex":"6f6464206964ff","state":"PrepareAbort","producer":{"id":1099511627783,"epoch":32767},"previousId":12,"next":{"id":1099511627784,"epoch":0},"lastEpoch":2,"participants":[{"kind":1,"name":"a group\u001b[2J","index":4},{"kind":0,"name":"orders","index":0},{"kind":64,"name":"","index":7}],"timeoutMs":2147483647,"startMs":1700000000000,"updateMs":1700000000001,"clientVersion":2,"twoPhase":true,"transactions":300,"version":4294967296,"extra":"CQF4"}
`)
}

// slots makes a directory of package slotfile, with a record in slot 25.
func slots(t *testing.T, fsys fsx.FS) {
	t.Helper()
	s, err := slotfile.Open(slotfile.Config{Dir: "s", FS: fsys})
	require.NoError(t, err)
	_, err = s.Swap(t.Context(), idle("tx-ongoing"), txnstate.Durable)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestASlotFileIsShownAsItsRecords(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	slots(t, fsys)
	// A copy says no versions but those of this reading.
	line := "tx-ongoing " + strings.TrimSuffix(strings.TrimPrefix(payLine, "pay "), "1")
	got, status := output(t, fsys, "slot", "s/txn_state/slot-25.json")
	assert.Equal(t, ok, status)
	assert.Contains(t, got, "s/txn_state/slot-25.json: slot 25, ")
	assert.Contains(t, got, line)

	generations, err := fsys.ReadDir("s/txn_state/.versions/slot-25")
	require.NoError(t, err)
	seen := 0
	for _, e := range generations {
		name := "s/txn_state/.versions/slot-25/" + e.Name()
		if filepath.Ext(name) == ".slot" {
			got, status := output(t, fsys, "slot", name)
			assert.Equal(t, ok, status, got)
			if strings.Contains(got, line) {
				seen++
			}
		}
	}
	assert.Positive(t, seen)
}

// Files of the system that introduced the layout.
func TestASlotFileOfOldIsRead(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	require.NoError(t, fsys.Replace("slot-25.json", []byte(`{"tx-ongoing":{"pid":102,"epoch":0,"partitions":[{"topic":"events","partitions":[8]}],"ongoingSinceMs":1782675758339,"transactionTimeoutMs":45000,"state":"Ongoing","groups":["g"]}}`), 0o644))
	got, status := output(t, fsys, "slot", "slot-25.json")
	assert.Equal(t, ok, status, got)
	assert.Contains(t, got, "tx-ongoing Ongoing producer=102/0 ")
	assert.Contains(t, got, "events/8")
	assert.Contains(t, got, "group:g/")
	assert.Contains(t, got, "timeout=45s")
	assert.Contains(t, got, "began=2026-06-28T19:42:38.339Z")

	b, err := fsys.ReadFile("slot-25.json")
	require.NoError(t, err)
	require.NoError(t, fsys.Replace("copy", b, 0o644))
	got, status = output(t, fsys, "slot", "copy")
	assert.Equal(t, damaged, status)
	assert.Contains(t, got, "use -slot")
	_, status = output(t, fsys, "slot", "-slot", "25", "copy")
	assert.Equal(t, ok, status)
	got, status = output(t, fsys, "slot", "-slot", "7", "copy")
	assert.Equal(t, damaged, status, got)

	require.NoError(t, fsys.Replace("slot-25.json", b[:40], 0o644))
	got, status = output(t, fsys, "slot", "slot-25.json")
	assert.Equal(t, damaged, status)
	assert.Contains(t, got, "DAMAGED slot-25.json")
}

func TestCommandsThatAreNotUnderstood(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"frobnicate"}, {"journal"}, {"slot", "-nonsense", "x"}} {
		got, status := output(t, fsx.Mem(), args...)
		assert.Equal(t, misusage, status, args)
		assert.NotEmpty(t, got)
	}
	for _, args := range [][]string{{"help"}, {"journal", "-h"}} {
		_, status := output(t, fsx.Mem(), args...)
		assert.Equal(t, ok, status, args)
	}
	got, status := output(t, fsx.Mem(), "journal", "nowhere", "else")
	assert.Equal(t, damaged, status)
	assert.Contains(t, got, "DAMAGED nowhere")
	assert.Contains(t, got, "DAMAGED else")
	got, status = output(t, made(t), "journal", "/")
	assert.Equal(t, damaged, status)
	assert.Contains(t, got, "no file of a journal")
}

// A disk that is full of output is not taken for success.
func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	assert.Equal(t, damaged, run([]string{"journal", "j"}, made(t), full{}, &errs))
	assert.Contains(t, errs.String(), "kafkatxn:")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }
