package slotfile

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var update = flag.Bool("update", false, "write the golden files anew; the diff is a change of the format")

func mustOpen(t testing.TB, fsys fsx.FS, log *slog.Logger) *Store {
	t.Helper()
	s, err := Open(Config{Dir: "/c", FS: fsys, Logger: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func put(t testing.TB, fsys fsx.FS, name, content string) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, fsys.Replace(name, []byte(content), 0o644))
}

func slotName(n int) string { return fmt.Sprintf("/c/txn_state/slot-%d.json", n) }

func genName(n int, gen uint64) string {
	return slotDir{path: fmt.Sprintf("/c/txn_state/.versions/slot-%d", n)}.file(gen)
}

func get(t testing.TB, fsys fsx.FS, name string) string {
	t.Helper()
	b, err := fsys.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// idle is a record as most are, of an id in use.
func idle(id string, n int64) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State, r.Producer, r.PrevID = txnstate.CompleteCommit, txnstate.Producer{ID: 7, Epoch: 1}, 7
	r.TimeoutMs, r.StartMs, r.UpdateMs = 60000, 1782675758000, n
	r.ClientVersion, r.TxnSeq = txnstate.TV2, 3
	return r
}

func swap(t testing.TB, s *Store, r txnstate.Record) txnstate.Record {
	t.Helper()
	v, err := s.Swap(t.Context(), r, txnstate.Durable)
	require.NoError(t, err)
	r.Version = v
	return r
}

// The slots that the system which introduced the layout computed.
func TestIDsAreInTheSlotsOfTheSystemBefore(t *testing.T) {
	for id, slot := range map[string]int{"tx-commit": 9, "tx-ongoing": 25, "tx-bare": 40, "tx-abort": 48} {
		require.Equal(t, slot, txnstate.Slot(id), id)
	}
}

// before is a directory as the system before left it.
func before(t *testing.T) fsx.FS {
	t.Helper()
	fsys := fsx.Mem()
	for _, n := range []int{9, 25, 40, 48} {
		b, err := os.ReadFile(fmt.Sprintf("testdata/before/slot-%d.json", n))
		require.NoError(t, err)
		put(t, fsys, slotName(n), string(b))
	}
	return fsys
}

func TestFilesOfTheSystemBeforeAreTakenOver(t *testing.T) {
	fsys := before(t)
	s := mustOpen(t, fsys, nil)
	want := map[string]txnstate.Record{}
	add := func(id string, pid int64, epoch int16, state txnstate.State, timeout int32, start int64, ps ...txnstate.Participant) {
		r := txnstate.Unknown(id)
		r.Producer, r.State, r.TimeoutMs, r.StartMs, r.Participants, r.Version = txnstate.Producer{ID: pid, Epoch: epoch}, state, timeout, start, ps, 1
		want[id] = r
	}
	add("tx-ongoing", 102, 0, txnstate.Ongoing, 45000, 1782675758339, txnstate.Group("g"), txnstate.Partition("events", 8))
	// Without a start time the transaction is as old as can be. The partitions
	// come in their order.
	add("tx-commit", 101, 3, txnstate.PrepareCommit, 60000, 0,
		txnstate.Group("g"), txnstate.Group("orders-app"), txnstate.Partition("events", 8), txnstate.Partition("orders", 0), txnstate.Partition("orders", 2))
	add("tx-bare", 100, 0, txnstate.Empty, 0, -1)
	// Epoch 32767 was granted there and is none to go on from here (W17).
	add("tx-abort", 103, 32767, txnstate.CompleteAbort, 60000, -1)
	for id, w := range want {
		r, err := s.Load(t.Context(), id)
		require.NoError(t, err, id)
		require.Positive(t, r.UpdateMs, "the time of the file, so that the id does not expire at once")
		w.UpdateMs = r.UpdateMs
		require.Equal(t, w, r)
	}
	for _, n := range []int{9, 25, 40, 48} {
		require.Equal(t, readTestdata(t, "before", n), get(t, fsys, slotName(n)), "reading changes nothing")
	}
}

func readTestdata(t *testing.T, dir string, n int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("testdata/%s/slot-%d.json", dir, n))
	require.NoError(t, err)
	return string(b)
}

// What this version does not know, and what it can't read, goes back into the file
// as it was, and the taken-over neighbours mean the same as before.
func TestAWriteLeavesAllElseOfItsSlotAlone(t *testing.T) {
	fsys := fsx.Mem()
	const (
		wrongState  = `"pay-104":{"pid":5,"epoch":0,"state":"PrepareEpochFence", "why":[1, 2]}`
		noObject    = `"pay-155": "a note"`
		wrongSlot   = `"tx-commit":{"pid":101,"epoch":3}`
		brokenName  = `"\ud800":{"pid":1,"epoch":1}`
		futureEntry = `"pay-168":{"pid":6,"epoch":2,"shareGroups":["s"],"ongoing":{"deep":[{}, null]}}`
		tooLarge    = `"pay-249":{"pid":99999999999999999999,"epoch":0}`
	)
	members := []string{wrongState, noObject, wrongSlot, `"tx-ongoing":{"pid":102,"epoch":0,"transactionTimeoutMs":45000}`, brokenName, futureEntry, tooLarge}
	put(t, fsys, slotName(25), "{"+strings.Join(members, ",\n  ")+"}\n")
	var log bytes.Buffer
	s := mustOpen(t, fsys, slog.New(slog.NewTextHandler(&log, nil)))

	old, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	for range 3 { // through several generations, by two handles
		r, err := s.Load(t.Context(), "pay-168")
		require.NoError(t, err)
		require.JSONEq(t, `{"shareGroups":["s"],"ongoing":{"deep":[{},null]}}`, string(r.Extra))
		r.UpdateMs++
		swap(t, s, r)
		require.NoError(t, s.Close())
		for _, m := range []string{wrongState, noObject, wrongSlot, brokenName, tooLarge} {
			require.Contains(t, get(t, fsys, slotName(25)), m)
		}
		require.Contains(t, get(t, fsys, slotName(25)), `"shareGroups":["s"],"ongoing":{"deep":[{}, null]}`)
		s = mustOpen(t, fsys, nil)
		now, err := s.Load(t.Context(), "tx-ongoing")
		require.NoError(t, err)
		require.Equal(t, old, now)
	}
	for _, id := range []string{"pay-104", "pay-155", "pay-249"} {
		_, err := s.Load(t.Context(), id)
		require.ErrorIs(t, err, txnstate.ErrDamaged, id)
		for _, v := range []txnstate.Version{0, 1, 2} {
			r := idle(id, 1)
			r.Version = v
			_, err = s.Swap(t.Context(), r, txnstate.Durable)
			require.ErrorIs(t, err, txnstate.ErrDamaged, id)
			_, err = s.Swap(t.Context(), r, txnstate.Later)
			require.ErrorIs(t, err, txnstate.ErrDamaged, id)
			require.ErrorIs(t, s.Delete(t.Context(), id, v), txnstate.ErrDamaged, id)
		}
	}
	damaged := map[string]bool{}
	readable := 0
	for r, err := range s.Slot(t.Context(), 25) {
		if err != nil {
			require.ErrorIs(t, err, txnstate.ErrDamaged)
			damaged[r.TxnID] = true
			continue
		}
		readable++
	}
	require.Equal(t, map[string]bool{"pay-104": true, "pay-155": true, "pay-249": true, "tx-commit": true, `"\"\\ud800\""`: true}, damaged)
	require.Equal(t, 2, readable)
	require.Equal(t, len(damaged), strings.Count(log.String(), "level=ERROR"), "each is reported once:\n%s", log.String())
	// The stray does not stand for the id where it belongs.
	_, err = s.Load(t.Context(), "tx-commit")
	require.ErrorIs(t, err, txnstate.ErrNotFound)
}

func TestAnIDThatIsThereTwiceIsBlockedAndKept(t *testing.T) {
	fsys := fsx.Mem()
	put(t, fsys, slotName(25), `{"tx-ongoing":{"pid":1,"epoch":0},"tx-ongoing":{"pid":2,"epoch":0}}`)
	s := mustOpen(t, fsys, nil)
	for range 3 {
		_, err := s.Load(t.Context(), "tx-ongoing")
		require.ErrorIs(t, err, txnstate.ErrDamaged)
		r := idle("pay-104", 1)
		now, err := s.Load(t.Context(), "pay-104")
		if err == nil {
			r.Version = now.Version
		}
		swap(t, s, r)
		require.NoError(t, s.Close())
		for _, m := range []string{`"tx-ongoing":{"pid":1,"epoch":0}`, `"tx-ongoing":{"pid":2,"epoch":0}`} {
			require.Contains(t, get(t, fsys, slotName(25)), m)
		}
		s = mustOpen(t, fsys, nil)
	}
}

// W22: a slot that can't be read blocks its own ids and nothing else, for good and
// not for a retry; nothing of it is overwritten or removed, and a person is told.
func TestADamagedSlotIsSetAsideAndNeverTouched(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, fsys fsx.FS) (file string){
		"a taken-over file that is cut off": func(t *testing.T, fsys fsx.FS) string {
			put(t, fsys, slotName(25), `{"tx-ongoing":{"pid":102,"epo`)
			return slotName(25)
		},
		"a taken-over file that is empty": func(t *testing.T, fsys fsx.FS) string {
			put(t, fsys, slotName(25), "")
			return slotName(25)
		},
		"a taken-over file that is a list": func(t *testing.T, fsys fsx.FS) string {
			put(t, fsys, slotName(25), "[]")
			return slotName(25)
		},
		"a taken-over file with something behind it": func(t *testing.T, fsys fsx.FS) string {
			put(t, fsys, slotName(25), "{}{}")
			return slotName(25)
		},
		"a generation with another byte": func(t *testing.T, fsys fsx.FS) string {
			return generation(t, fsys, func(b string) string { return strings.Replace(b, `"pid":7`, `"pid":8`, 1) })
		},
		"a generation that is cut off": func(t *testing.T, fsys fsx.FS) string {
			return generation(t, fsys, func(b string) string { return b[:len(b)-3] })
		},
		"a generation that is empty": func(t *testing.T, fsys fsx.FS) string {
			return generation(t, fsys, func(string) string { return "" })
		},
		"a generation of zeros": func(t *testing.T, fsys fsx.FS) string {
			return generation(t, fsys, func(b string) string { return strings.Repeat("\x00", len(b)) })
		},
		"a generation under the name of another": func(t *testing.T, fsys fsx.FS) string {
			return generation(t, fsys, func(b string) string { return strings.Replace(b, `"generation":6`, `"generation":5`, 1) })
		},
		"a generation of a later format": func(t *testing.T, fsys fsx.FS) string {
			return generation(t, fsys, func(b string) string { return strings.Replace(b, `"format":1`, `"format":2`, 1) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fsx.Mem()
			file := damage(t, fsys)
			content := get(t, fsys, file)
			var log bytes.Buffer
			for range 2 {
				log.Reset()
				s := mustOpen(t, fsys, slog.New(slog.NewTextHandler(&log, nil)))
				for _, id := range []string{"tx-ongoing", "pay-104", "pay-155"} {
					_, err := s.Load(t.Context(), id)
					require.ErrorIs(t, err, txnstate.ErrDamaged)
					_, err = s.Swap(t.Context(), idle(id, 1), txnstate.Durable)
					require.ErrorIs(t, err, txnstate.ErrDamaged)
					require.NotErrorIs(t, err, txnstate.ErrUncertain)
					_, err = s.Swap(t.Context(), idle(id, 1), txnstate.Later)
					require.ErrorIs(t, err, txnstate.ErrDamaged)
					require.ErrorIs(t, s.Delete(t.Context(), id, 1), txnstate.ErrDamaged)
				}
				pairs := 0
				for r, err := range s.Slot(t.Context(), 25) {
					require.ErrorIs(t, err, txnstate.ErrDamaged)
					require.Empty(t, r.TxnID)
					pairs++
				}
				require.Equal(t, 1, pairs)
				// The other slots work.
				now, err := s.Load(t.Context(), "tx-bare")
				require.True(t, err == nil || errors.Is(err, txnstate.ErrNotFound))
				r := idle("tx-bare", 1)
				r.Version = now.Version
				swap(t, s, r)
				require.NoError(t, s.Flush(t.Context()))
				require.NoError(t, s.Close())
				require.Equal(t, content, get(t, fsys, file), "it is as it was")
				require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), "one loud word:\n%s", log.String())
			}
			aside, err := fsys.ReadFile(slotName(25) + ".damaged-" + checksum([]byte(content)))
			require.NoError(t, err)
			require.Equal(t, content, string(aside))
			entries, err := fsys.ReadDir("/c/txn_state")
			require.NoError(t, err)
			n := 0
			for _, e := range entries {
				if strings.Contains(e.Name(), ".damaged-") {
					n++
				}
			}
			require.Equal(t, 1, n, "one copy, however often it is met")
		})
	}
}

// generation makes a slot with five generations and changes the newest.
func generation(t *testing.T, fsys fsx.FS, change func(string) string) (file string) {
	t.Helper()
	s := mustOpen(t, fsys, nil)
	r := idle("tx-ongoing", 0)
	for n := range int64(5) {
		r.UpdateMs = n
		r = swap(t, s, r)
	}
	require.NoError(t, s.Close())
	file = genName(25, 6)
	was := get(t, fsys, file)
	require.NotEqual(t, was, change(was))
	put(t, fsys, file, change(was))
	return file
}

// A running process is told too, when the newest generation turns out damaged
// which another one wrote.
func TestDamageIsNoticedByAProcessThatKnewTheSlot(t *testing.T) {
	fsys := fsx.Mem()
	a, b := mustOpen(t, fsys, nil), mustOpen(t, fsys, nil)
	r := swap(t, a, idle("tx-ongoing", 1))
	later := r
	later.UpdateMs = 2
	_, err := a.Swap(t.Context(), later, txnstate.Later)
	require.NoError(t, err)
	swap(t, b, r)
	require.NoError(t, b.Flush(t.Context()))
	put(t, fsys, genName(25, 3), "damaged")
	_, err = a.Load(t.Context(), "tx-ongoing")
	require.ErrorIs(t, err, txnstate.ErrDamaged)
	require.ErrorIs(t, a.Flush(t.Context()), txnstate.ErrDamaged, "there was something to flush")
	put(t, fsys, genName(25, 3), "") // so that closing a does not fail the test
	require.NoError(t, fsys.Remove(genName(25, 3)))
}

// Where generations are known to have been, none is not the same as an empty slot.
func TestLostGenerationsAreNotAnEmptySlot(t *testing.T) {
	fsys := fsx.Mem()
	generation(t, fsys, func(b string) string { return b + " " })
	removed := 0
	for gen := firstFile; gen < 20; gen++ {
		if err := fsys.Remove(genName(25, gen)); err == nil {
			removed++
		}
	}
	require.Greater(t, removed, 1)
	s := mustOpen(t, fsys, nil)
	_, err := s.Load(t.Context(), "tx-ongoing")
	require.ErrorIs(t, err, txnstate.ErrDamaged)
	_, err = s.Swap(t.Context(), idle("tx-ongoing", 1), txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrDamaged)
}

// The way back that doc.go describes: repair slot-N.json, remove the slot's
// directory of generations. Versions go on above those that were given.
func TestASlotIsRepairedFromItsReadableCopy(t *testing.T) {
	fsys := fsx.Mem()
	generation(t, fsys, func(b string) string { return b[1:] })
	entries, err := fsys.ReadDir("/c/txn_state/.versions/slot-25")
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, fsys.Remove("/c/txn_state/.versions/slot-25/"+e.Name()))
	}
	s := mustOpen(t, fsys, nil)
	r, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	require.EqualValues(t, 6, r.Version)
	require.Greater(t, swap(t, s, r).Version, r.Version)
	require.Greater(t, swap(t, s, idle("pay-104", 1)).Version, r.Version, "also of an id that may have been there before")
}

// every is a record with nothing left at its zero.
func every(t *testing.T) txnstate.Record {
	t.Helper()
	r := txnstate.Record{
		TxnID: "tx-ongoing", State: txnstate.PrepareCommit, Producer: txnstate.Producer{ID: 11, Epoch: 12}, PrevID: 13,
		Next: txnstate.Producer{ID: 14, Epoch: 15}, LastEpoch: 16,
		Participants: []txnstate.Participant{txnstate.Group("g"), txnstate.Partition("events", 8), {Kind: txnstate.KindHost, Name: "db", Index: 1}},
		TimeoutMs:    math.MaxInt32, StartMs: 18, UpdateMs: 19, ClientVersion: 2, TwoPhase: true, TxnSeq: 20,
		Extra: []byte(`{"shareGroups":["s"]}`),
	}
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "Version" {
			require.False(t, v.Field(i).IsZero(), "txnstate.Record has a new field, %s: store it and give it a value here", name)
		}
	}
	require.NoError(t, txnstate.Check(r))
	return r
}

func TestEveryFieldOfARecordIsStored(t *testing.T) {
	r := every(t)
	fsys := fsx.Mem()
	s := mustOpen(t, fsys, nil)
	r = swap(t, s, r)
	require.NoError(t, s.Close())
	s = mustOpen(t, fsys, nil)
	got, err := s.Load(t.Context(), r.TxnID)
	require.NoError(t, err)
	require.Equal(t, r, got)
}

// W28: what each writer writes is in testdata, and files written by an earlier
// version of this package are read for ever.
func TestGoldenFiles(t *testing.T) {
	fsys := fsx.Mem()
	put(t, fsys, slotName(25), readTestdata(t, "before", 25))
	s := mustOpen(t, fsys, nil)
	n := 0
	s.nonce = func() string { n++; return fmt.Sprintf("nonce-%d", n) }
	s.later.Store(uint64(laterVersions) + 41)

	// Nonces are drawn for copies too, which come when there is time: after each
	// write, here.
	copied := func() {
		t.Helper()
		require.NoError(t, s.each(t.Context(), opCopy, false, func(l *slot) bool { return l.n == 25 }))
	}
	taken, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	s.slots[25].cur.taken.updateMs = 1782675760000 // the time of a file
	odd := idle("pay-104", 1782675761000)
	odd.Extra = []byte{0, 1, 2, 255}
	odd = swap(t, s, odd)
	copied()
	// The next generations are of one Swap each, with a Later write among them.
	raw := idle(rawID(), 1782675762000)
	raw.Version, err = s.Swap(t.Context(), raw, txnstate.Later)
	require.NoError(t, err)
	full := every(t)
	full.TxnID = "pay-155"
	full.Participants = append(full.Participants,
		txnstate.Participant{Kind: txnstate.KindHost, Name: "\xff/öl\n", Index: 0})
	full = swap(t, s, full)
	copied()
	gone := swap(t, s, idle("pay-168", 5))
	copied()
	require.NoError(t, s.Delete(t.Context(), "pay-168", gone.Version))
	require.NoError(t, s.Close())
	taken.UpdateMs = 1782675760000
	want := []txnstate.Record{taken, odd, raw, full}

	for name, file := range map[string]string{
		"slot-25.json": slotName(25), "generation.slot": genName(25, 5),
		"begun": "/c/txn_state/.versions/slot-25/begun",
	} {
		golden := filepath.Join("testdata", "format1", name)
		got := get(t, fsys, file)
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
		}
		b, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(b), got, name)
	}

	// And back: the generation, and the copy in the place of a taken-over file.
	file, err := os.ReadFile("testdata/format1/generation.slot")
	require.NoError(t, err)
	old := fsx.Mem()
	put(t, old, genName(25, 5), string(file))
	wantRecords(t, mustOpen(t, old, nil), want)
	repaired := fsx.Mem()
	put(t, repaired, slotName(25), readTestdata(t, "format1", 25))
	s = mustOpen(t, repaired, nil)
	want[0].Version = 4 // the one that states none gets a new one
	now, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	want[0].UpdateMs = now.UpdateMs
	wantRecords(t, s, want)
}

// rawID is an id of slot 25 that is not UTF-8.
func rawID() string {
	for i := 0; ; i++ {
		if id := fmt.Sprintf("\xfe\xff%d", i); txnstate.Slot(id) == 25 {
			return id
		}
	}
}

func wantRecords(t *testing.T, s *Store, want []txnstate.Record) {
	t.Helper()
	for _, w := range want {
		got, err := s.Load(t.Context(), w.TxnID)
		require.NoError(t, err, "%q", w.TxnID)
		require.Equal(t, w, got)
	}
	for r, err := range s.Slot(t.Context(), 25) {
		require.NoError(t, err, r.TxnID)
	}
}

// The file names of a slot say what the package's documentation says.
func TestNamesInTheVersionDirectory(t *testing.T) {
	d := slotDir{path: "d"}
	require.Equal(t, filepath.FromSlash("d/0000000000000002.slot"), d.file(2))
	fsys := fsx.Mem()
	require.NoError(t, fsys.MkdirAll("d", 0o755))
	d.fs = fsys
	for _, name := range []string{
		filepath.Base(d.file(2)), filepath.Base(d.file(12)), "begun", filepath.Base(d.scratch(tmpPrefix, 1, "n")), filepath.Base(d.scratch(copyPrefix, 12, "n")),
		"0000000000000001.slot", "x.slot", "00000000000000030.slot", "-000000000000003.slot", "tmp-", "tmp-1-2-3", "README", ".nfs000",
	} {
		put(t, fsys, "d/"+name, "x")
	}
	l, err := d.list()
	require.NoError(t, err)
	require.Equal(t, []uint64{2, 12}, l.gens)
	require.True(t, l.begun)
	require.Len(t, l.scratch, 2)
	require.True(t, d.clear(l, 12))
	l, err = d.list()
	require.NoError(t, err)
	require.Len(t, l.scratch, 1, "the one of the newest generation may be in use")
}

func TestDirIsRequired(t *testing.T) {
	_, err := Open(Config{})
	require.Error(t, err)
}

func TestClosedStore(t *testing.T) {
	s := mustOpen(t, fsx.Mem(), nil)
	r := swap(t, s, idle("tx-ongoing", 1))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Load(t.Context(), r.TxnID)
	require.ErrorIs(t, err, fs.ErrClosed)
	for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
		_, err = s.Swap(t.Context(), r, d)
		require.ErrorIs(t, err, fs.ErrClosed)
		require.ErrorIs(t, err, txnstate.ErrUncertain)
	}
	require.ErrorIs(t, s.Delete(t.Context(), r.TxnID, r.Version), fs.ErrClosed)
	for _, err := range s.Slot(t.Context(), 25) {
		require.ErrorIs(t, err, fs.ErrClosed)
	}
	require.NoError(t, s.Flush(t.Context()))
}

func TestABrokenRecordIsNotWritten(t *testing.T) {
	s := mustOpen(t, fsx.Mem(), nil)
	r := idle("tx-ongoing", 1)
	r.TimeoutMs = -1
	_, err := s.Swap(t.Context(), r, txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	_, err = s.Load(t.Context(), "tx-ongoing")
	require.ErrorIs(t, err, txnstate.ErrNotFound)
}
