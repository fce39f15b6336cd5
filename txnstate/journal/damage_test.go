package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// disk is a directory as a map.
type disk map[string][]byte

func saved(t testing.TB, fsys fsx.FS) disk {
	t.Helper()
	d := disk{}
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := fsys.ReadFile(dir + "/" + e.Name())
		require.NoError(t, err)
		d[e.Name()] = b
	}
	return d
}

func (d disk) with(name string, b []byte) disk {
	c := maps.Clone(d)
	if c[name] = b; b == nil {
		delete(c, name)
	}
	return c
}

func (d disk) fs(t testing.TB) fsx.FS {
	t.Helper()
	fsys := fsx.Mem()
	require.NoError(t, fsys.MkdirAll(dir, 0o755))
	for n, b := range d {
		require.NoError(t, fsys.Replace(dir+"/"+n, b, 0o644))
	}
	return fsys
}

// killed is the directory of a process that was killed: a snapshot, a segment
// that is complete, and one that is not.
func killed(t testing.TB) (disk, *model) {
	t.Helper()
	fsys, m := freshDisk(t), newModel()
	s, err := open(fsys)
	require.NoError(t, err)
	for i := 0; !hasSnapshot(t, fsys); i++ { // it is written beside
		require.NoError(t, m.do(s, step{id: fmt.Sprint("id-", i%4), durability: txnstate.Durable, size: 60}, i))
	}
	require.NoError(t, s.Close())
	for n := range 3 {
		s, err = journal.Open(journal.Config{Dir: dir, FS: fsys})
		require.NoError(t, err)
		for i := range 4 {
			require.NoError(t, m.do(s, step{id: fmt.Sprint("id-", i), durability: txnstate.Durable, size: 2 * i}, 1000+i))
		}
		if n < 2 {
			require.NoError(t, s.Close())
		}
	}
	d := saved(t, fsys)
	require.Len(t, names(d, ".snapshot"), 1)
	require.GreaterOrEqual(t, len(names(d, ".log")), 3)
	return d, m
}

func hasSnapshot(t testing.TB, fsys fsx.FS) bool {
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".snapshot") && e.Name()[0] != '.' })
}

func names(d disk, suffix string) []string {
	var out []string
	for _, n := range sorted(d) {
		if strings.HasSuffix(n, suffix) {
			out = append(out, n)
		}
	}
	return out
}

func sorted(d disk) []string { return slices.Sorted(maps.Keys(d)) }

// wantRefused opens a directory that is damaged, and wants to be told where, and
// nothing to be changed.
func wantRefused(t *testing.T, d disk, name, what string) {
	t.Helper()
	fsys := d.fs(t)
	before := saved(t, fsys)
	s, err := open(fsys)
	if err == nil {
		_ = s.Close()
		t.Fatalf("%s: Open = nil", what)
	}
	if !errors.Is(err, txnstate.ErrDamaged) || !strings.Contains(err.Error(), name) {
		t.Fatalf("%s: Open = %v, want ErrDamaged and the name %s", what, err, name)
	}
	after := saved(t, fsys)
	delete(after, "txn.lock")
	delete(before, "txn.lock")
	if len(after) != len(before) {
		t.Fatalf("%s: files %v have become %v", what, sorted(before), sorted(after))
	}
	for n, b := range before {
		if !bytes.Equal(b, after[n]) {
			t.Fatalf("%s: %s was changed", what, n)
		}
	}
	l, err := fsys.Lock(dir + "/txn.lock")
	require.NoError(t, err, "%s: the lock is kept", what)
	require.NoError(t, l.Close())
}

// Whichever bit of a snapshot or of a segment but the last is wrong, Open says so.
func TestDamageIsRefusedWhereverItIs(t *testing.T) {
	t.Parallel()
	d, _ := killed(t)
	logs := names(d, ".log")
	for _, name := range append(names(d, ".snapshot"), logs[:len(logs)-1]...) {
		for i := range d[name] {
			b := bytes.Clone(d[name])
			b[i] ^= 1 << (i % 8)
			wantRefused(t, d.with(name, b), name, fmt.Sprintf("byte %d of %s", i, name))
		}
		for _, n := range []int{0, 1, 11, 12, 43, 44, len(d[name]) / 2, len(d[name]) - 33, len(d[name]) - 32, len(d[name]) - 1} {
			wantRefused(t, d.with(name, d[name][:n]), name, fmt.Sprintf("%d bytes of %s", n, name))
		}
		wantRefused(t, d.with(name, append(bytes.Clone(d[name]), 0)), name, "a byte after the end of "+name)
		wantRefused(t, d.with(name, nil), "txn-", name+" is missing")
	}
}

// In the last segment, bytes that no whole frame follows are what a crash may
// leave; all else is refused.
func TestOnlyATornTailIsCut(t *testing.T) {
	t.Parallel()
	d, m := killed(t)
	logs := names(d, ".log")
	name := logs[len(logs)-1]
	whole := d[name]
	frames := offsets(t, whole)
	require.Len(t, frames, 4)
	last := frames[len(frames)-1]
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		if i < last {
			wantRefused(t, d.with(name, b), name, fmt.Sprintf("byte %d of %s", i, name))
			continue
		}
		wantCut(t, d.with(name, b), m, 1, fmt.Sprintf("byte %d of the last frame", i-last))
	}
	for n := 44; n <= len(whole); n++ {
		wantCut(t, d.with(name, whole[:n]), m, lost(whole, whole[:n], frames), fmt.Sprintf("%d bytes of %s", n, name))
		zeros := append(bytes.Clone(whole[:n]), make([]byte, 700)...)
		wantCut(t, d.with(name, zeros), m, lost(whole, zeros, frames), fmt.Sprintf("%d bytes of %s and then zeros", n, name))
	}
}

// offsets are those of the frames that have entries.
func offsets(t *testing.T, b []byte) []int {
	t.Helper()
	_, frames, err := journal.Read(b)
	require.NoError(t, err)
	var out []int
	for f, err := range frames {
		require.NoError(t, err)
		if f.Type != journal.EndFrame {
			out = append(out, int(f.Offset))
		}
	}
	return out
}

// lost is how many of the frames of a file are not in another one any more.
func lost(whole, b []byte, frames []int) int {
	n := 0
	for i, at := range frames {
		end := len(whole)
		if i+1 < len(frames) {
			end = frames[i+1]
		}
		if len(b) < end || !bytes.Equal(b[at:end], whole[at:end]) {
			n++
		}
	}
	return n
}

func wantCut(t *testing.T, d disk, m *model, lost int, what string) {
	t.Helper()
	want := m.states[len(m.states)-1-lost]
	fsys := d.fs(t)
	for range 2 { // what was cut does not come back
		s, err := open(fsys)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got, err := contents(t.Context(), s)
		require.NoError(t, err)
		if !m.same(want, got) {
			t.Fatalf("%s: found %v, want %v", what, got, want)
		}
		require.NoError(t, s.Close())
	}
}

// After an orderly end the last write is told from a torn one, too.
func TestDamageOfTheLastWriteIsRefusedAfterClose(t *testing.T) {
	t.Parallel()
	fsys, m := freshDisk(t), newModel()
	s, err := open(fsys)
	require.NoError(t, err)
	require.NoError(t, m.do(s, step{id: "a", durability: txnstate.Durable}, 1))
	require.NoError(t, s.Close())
	d := saved(t, fsys)
	name := names(d, ".log")[0]
	b := bytes.Clone(d[name])
	b[offsets(t, b)[0]+40] ^= 1
	wantRefused(t, d.with(name, b), name, "the last write")
}

func TestAFileThatIsElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	d, _ := killed(t)
	logs := names(d, ".log")
	a, b := logs[len(logs)-2], logs[len(logs)-1]
	wantRefused(t, d.with(b, d[a]), b, "one segment under the name of another")
	snapshot := names(d, ".snapshot")[0]
	wantRefused(t, d.with(snapshot, d[logs[0]]), snapshot, "a segment under the name of a snapshot")
	wantRefused(t, d.with("txn-0000000000000099.log", d[a]), "txn-", "a gap")
	other := d.with("notes.txt", []byte("x")).with("txn-7.log", []byte("x")).with("txn-0000000000000000.log", []byte("x"))
	s, err := open(other.fs(t))
	require.NoError(t, err, "files of other names are nobody's business")
	require.NoError(t, s.Close())
}

func TestASecondOwnerIsRefused(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	s, err := journal.Open(journal.Config{Dir: tmp})
	require.NoError(t, err)
	_, err = journal.Open(journal.Config{Dir: tmp})
	require.ErrorIs(t, err, fsx.ErrLocked)
	require.ErrorContains(t, err, tmp)
	require.ErrorContains(t, err, "another process")
	require.NoError(t, s.Close())
	s, err = journal.Open(journal.Config{Dir: tmp})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestConfigTellsEveryComplaintAtOnce(t *testing.T) {
	t.Parallel()
	_, err := journal.Open(journal.Config{SnapshotAt: -1})
	require.ErrorContains(t, err, "no Dir")
	require.ErrorContains(t, err, "SnapshotAt of -1")
	_, err = journal.Open(journal.Config{Dir: os.DevNull})
	require.Error(t, err)
}

// A record that a newer version wrote blocks its own id, and is kept.
func TestARecordThatCannotBeReadBlocksItsOwnIDOnly(t *testing.T) {
	t.Parallel()
	fsys := freshDisk(t)
	s, err := open(fsys)
	require.NoError(t, err)
	for _, id := range []string{"good", "newer"} {
		_, err := s.Swap(t.Context(), idle(id), txnstate.Durable)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	d := saved(t, fsys)
	name := names(d, ".log")[0]
	fsys2 := d.with(name, journal.WithNewerRecord(d[name], "newer")).fs(t)
	for range 2 {
		s, err = open(fsys2)
		require.NoError(t, err)
		_, err = s.Load(t.Context(), "good")
		require.NoError(t, err)
		r, err := s.Load(t.Context(), "newer")
		require.ErrorIs(t, err, txnstate.ErrDamaged)
		assert.Equal(t, "newer", r.TxnID)
		seen := 0
		for r, err := range s.Slot(t.Context(), txnstate.Slot("newer")) {
			require.ErrorIs(t, err, txnstate.ErrDamaged)
			assert.Equal(t, "newer", r.TxnID)
			seen++
		}
		assert.Equal(t, 1, seen)
		_, err = s.Swap(t.Context(), idle("newer"), txnstate.Durable)
		require.ErrorIs(t, err, txnstate.ErrConflict, "it is not written over")
		require.NoError(t, s.Close())
	}
}
