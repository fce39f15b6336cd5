package journal

import (
	"encoding/hex"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The bytes of version 1 as format.go has them, one by one.
func TestFormatIsWhatItsCommentSays(t *testing.T) {
	t.Parallel()
	segment, snapshot := madeFiles()
	want := func(name string, b []byte, parts ...string) {
		t.Helper()
		assert.Equal(t, strings.ReplaceAll(strings.Join(parts, ""), " ", ""), hex.EncodeToString(b), name)
	}
	r := txnstate.Unknown("")
	r.State, r.Producer = txnstate.Empty, txnstate.Producer{ID: 7, Epoch: 1}
	rec := hex.EncodeToString(txnstate.AppendRecord(nil, r))
	recLen := hex.EncodeToString([]byte{byte(len(rec) / 2)})
	want("segment", segment,
		"4b5854584e4c4f47", "00000001", "00000000", "0000000000000002", "000000000000000b", "0123456789abcdef", hex.EncodeToString(segment[40:44]),
		"0123456789abcdef", "01", "01", "0000", "00000001", "000000000000000b", hex.EncodeToString(segment[68:72]), hex.EncodeToString(segment[72:76]),
		"01", "03 706179", recLen, rec,
		"02", "03 6f6c64",
		"0123456789abcdef", "01", "03", "0000", "00000002", "000000000000000d", "00000000", hex.EncodeToString(segment[len(segment)-4:]),
	)
	want("snapshot", snapshot,
		"4b5854584e534e50", "00000001", "00000000", "0000000000000002", "000000000000000b", "fedcba9876543210", hex.EncodeToString(snapshot[40:44]),
		"fedcba9876543210", "01", "02", "0000", "00000001", "0000000000000000", hex.EncodeToString(snapshot[68:72]), hex.EncodeToString(snapshot[72:76]),
		"03", "09", "03 6f6c64", recLen, rec,
		"fedcba9876543210", "01", "03", "0000", "00000002", "0000000000000001", "00000000", hex.EncodeToString(snapshot[len(snapshot)-4:]),
	)
}

var update = flag.Bool("make-format-files", false, "make the files of testdata for the newest format, where there are none")

// goldenRecords is what is in the directory of each format in testdata.
func goldenRecords() map[string]txnstate.Record {
	idle := txnstate.Unknown("pay")
	idle.State, idle.Producer, idle.PrevID = txnstate.CompleteCommit, txnstate.Producer{ID: 1<<40 + 7, Epoch: 3}, 1<<40+7
	idle.LastEpoch, idle.TimeoutMs, idle.StartMs, idle.UpdateMs = 2, 60_000, 1_700_000_000_000, 1_700_000_000_001
	idle.ClientVersion, idle.TxnSeq = txnstate.TV2, 300
	open := idle.Clone()
	open.TxnID, open.State = "shop/ö", txnstate.Ongoing
	open.Participants = []txnstate.Participant{
		txnstate.Group("g"), txnstate.Partition("orders", 0), txnstate.Partition("orders", 3), {Kind: txnstate.KindHost, Name: "db", Index: 7},
	}
	decided := open.Clone()
	decided.TxnID, decided.State = "old", txnstate.PrepareAbort
	decided.Producer.Epoch, decided.Next = txnstate.FenceEpoch, txnstate.Producer{ID: 1<<40 + 8, Epoch: 0}
	decided.Extra = []byte{9, 1, 'x'}
	return map[string]txnstate.Record{"pay": idle, "shop/ö": open, "old": decided}
}

// Files of every format that there was are read for ever. Each directory in
// testdata has a snapshot, a segment that is complete and one that a crash tore.
func TestFilesOfAllFormatsAreRead(t *testing.T) {
	t.Parallel()
	if *update {
		makeGolden(t, filepath.Join("testdata", "format-1"))
	}
	dirs, err := filepath.Glob("testdata/format-*")
	require.NoError(t, err)
	require.Len(t, dirs, formatVersion, "one directory for each format")
	for _, dir := range dirs {
		fsys := fsx.Mem()
		require.NoError(t, fsys.MkdirAll("d", 0o755))
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(files), 3, dir)
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(dir, f.Name()))
			require.NoError(t, err)
			require.NoError(t, fsys.Replace("d/"+f.Name(), b, 0o644))
		}
		s, err := Open(Config{Dir: "d", FS: fsys})
		require.NoError(t, err, dir)
		n := 0
		for slot := range txnstate.Slots {
			for r, err := range s.Slot(t.Context(), slot) {
				require.NoError(t, err, dir)
				assert.True(t, r.Equal(goldenRecords()[r.TxnID]), "%s: %v", dir, r)
				n++
			}
		}
		assert.Equal(t, len(goldenRecords()), n, dir)
		require.NoError(t, s.Close())
	}
}

func makeGolden(t *testing.T, dir string) {
	require.NoError(t, os.Mkdir(dir, 0o755))
	fsys, records := fsx.Mem(), goldenRecords()
	require.NoError(t, fsys.MkdirAll("d", 0o755))
	config := Config{Dir: "d", FS: fsys, SnapshotAt: 1}
	s, err := Open(config)
	require.NoError(t, err)
	for _, id := range append(slices.Sorted(maps.Keys(records)), "gone") {
		r := records[id]
		r.TxnID = id
		_, err := s.Swap(t.Context(), r, txnstate.Durable)
		require.NoError(t, err)
	}
	for l := (listing{}); len(l.snapshots) == 0 || len(l.segments) > 1; {
		l, err = list(fsys, "d")
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	config.SnapshotAt = 0
	s, err = Open(config)
	require.NoError(t, err)
	gone, err := s.Load(t.Context(), "gone")
	require.NoError(t, err)
	require.NoError(t, s.Delete(t.Context(), "gone", gone.Version))
	require.NoError(t, s.Close())
	s, err = Open(config)
	require.NoError(t, err)
	pay, err := s.Load(t.Context(), "pay")
	require.NoError(t, err)
	for range 2 {
		pay.Version, err = s.Swap(t.Context(), pay, txnstate.Durable)
		require.NoError(t, err)
	}
	l, err := list(fsys, "d")
	require.NoError(t, err)
	last := segmentName(l.segments[len(l.segments)-1])
	save := []string{snapshotName(l.snapshots[0])}
	for _, n := range l.segments {
		save = append(save, segmentName(n))
	}
	for _, name := range save {
		b, err := fsys.ReadFile("d/" + name)
		require.NoError(t, err)
		if name == last {
			b = b[:len(b)-5] // in the middle of the last write
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
}

// A file of a later version is not touched, and the error says what it is.
func TestFilesOfALaterVersionAreRefused(t *testing.T) {
	t.Parallel()
	segment, snapshot := madeFiles()
	files := map[string][]byte{segmentName(2): segment, snapshotName(2): snapshot}
	for name, b := range files {
		later := func() []byte { return slices.Clone(b) }
		header := later()
		header[11] = formatVersion + 1
		frame := later()
		frame[headerSize+8] = formatVersion + 1
		end := headerSize + int64(frameSize) + int64(frame[headerSize+27])
		body := frame[headerSize:end]
		sum := frameSum(body[:28], body[frameSize:])
		body[28], body[29], body[30], body[31] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
		for what, changed := range map[string][]byte{"header": header, "frame": frame} {
			fsys := fsx.Mem()
			require.NoError(t, fsys.MkdirAll("d", 0o755))
			for n, b := range files {
				if n == name {
					b = changed
				}
				require.NoError(t, fsys.Replace("d/"+n, b, 0o644))
			}
			_, err := Open(Config{Dir: "d", FS: fsys})
			require.ErrorIs(t, err, txnstate.ErrDamaged, what)
			require.ErrorContains(t, err, "format version 2, and this version of the library reads up to 1", what)
			require.ErrorContains(t, err, name, what)
			got, err := fsys.ReadFile("d/" + name)
			require.NoError(t, err)
			assert.Equal(t, changed, got)
		}
	}
	_, err := os.Stat("d")
	assert.True(t, errors.Is(err, fs.ErrNotExist))
}

// Read shows what there is beyond a place that can't be read.
func TestReadGoesOnAfterDamage(t *testing.T) {
	t.Parallel()
	h := newHeader(1, 1)
	b := appendHeader(nil, h)
	for i := range uint32(4) {
		frame := appendPut(startFrame(nil), "id", []byte{byte(i)})
		sealFrame(frame, h.salt, LogFrame, i+1, uint64(i)+1)
		b = append(b, frame...)
	}
	size := (len(b) - headerSize) / 4
	b[headerSize+size+frameSize+1] ^= 1
	_, frames, err := Read(b)
	require.NoError(t, err)
	var good []uint32
	var bad []*Damage
	for f, err := range frames {
		if err == nil {
			good = append(good, f.Number)
			continue
		}
		var d *Damage
		require.ErrorAs(t, err, &d)
		bad = append(bad, d)
	}
	assert.Equal(t, []uint32{1, 3, 4}, good)
	require.Len(t, bad, 1)
	assert.EqualValues(t, headerSize+size, bad[0].Offset)
	assert.EqualValues(t, headerSize+2*size, bad[0].Next)
}
