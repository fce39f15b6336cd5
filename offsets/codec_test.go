package offsets

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// samples has an entry of every kind, with every field set.
func samples() []entry {
	full := func(tp TopicPartition, order int64, epoch int16) item {
		return item{key: tp, value: value{
			offset: 1 << 40, leaderEpoch: -1, commitMs: 1700000000000, metadata: "md", order: order,
		}, epoch: epoch}
	}
	in0, in1 := TopicPartition{"in", 0}, TopicPartition{"in", 1}
	return []entry{
		{kind: kindStage, number: 1, producer: pr(4660, 7), stampMs: 1700000000000, group: "g", items: []item{full(in0, 0, 0), full(in1, 0, 0)}},
		{kind: kindStage, number: 2, producer: pr(4660, 7), group: ""},
		{kind: kindCommit, number: 3, group: "grüße", items: []item{full(in0, 0, 0)}},
		{kind: kindMarker, number: 4, producer: pr(4660, 8), coordinatorEpoch: 3, stampMs: 1700000000001, commit: true},
		{kind: kindMarker, number: 5, producer: pr(4660, 32767), coordinatorEpoch: -1, stampMs: -1},
		{kind: kindDeleteGroup, number: 6, group: "g"},
		{kind: kindDeleteOffsets, number: 7, group: "g", items: []item{{key: in0}, {key: in1}}},
		{kind: kindDeleteTopic, number: 8, topic: "in"},
		{kind: kindExpire, number: 9, group: "g", items: []item{{key: in1, value: value{order: 3}}}},
		{kind: kindSnapshot, number: 0, count: 1},
		{kind: kindSnapshot, number: 9, count: 3},
		{kind: kindSnapshotProducers, last: true, blob: []byte("producers")},
		{kind: kindSnapshotProducers},
		{kind: kindSnapshotCommitted, group: "g", items: []item{full(in0, 3, 0)}},
		{kind: kindSnapshotStaged, group: "g", producer: pr(4660, 0), items: []item{full(in1, 1, 7)}},
	}
}

const goldenEntries = "testdata/entries-v1.txt"

// The bytes of every kind of entry, as version 1 has written them: read and
// written the same for ever.
func TestEntriesOfVersion1(t *testing.T) {
	if *update {
		var b bytes.Buffer
		for _, e := range samples() {
			fmt.Fprintf(&b, "%s %x\n", kindNames[e.kind], appendEntry(nil, e))
		}
		require.NoError(t, os.WriteFile(goldenEntries, b.Bytes(), 0o644))
	}
	f, err := os.Open(goldenEntries)
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for _, want := range samples() {
		require.True(t, lines.Scan())
		name, hexed, _ := strings.Cut(lines.Text(), " ")
		b, err := hex.DecodeString(hexed)
		require.NoError(t, err)
		require.Equal(t, kindNames[want.kind], name)
		got, err := parseEntry(b)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, b, appendEntry(nil, got))
	}
	require.False(t, lines.Scan())
}

// reseal makes the checksum right again.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[2:], entrySum(b))
	return b
}

// What a newer release wrote is refused by name, not passed over.
func TestUnknownEntriesAreRefused(t *testing.T) {
	b := appendEntry(nil, entry{kind: kindDeleteGroup, number: 1, group: "g"})
	newer := bytes.Clone(b)
	newer[0] = 2
	_, err := parseEntry(reseal(newer))
	require.ErrorContains(t, err, "format version 2")
	for k := range 256 {
		if _, known := kindNames[kind(k)]; known {
			continue
		}
		other := bytes.Clone(b)
		other[1] = byte(k)
		_, err := parseEntry(reseal(other))
		require.ErrorContains(t, err, fmt.Sprintf("kind %d", k))
	}
}

// Every single bit counts, and so does every byte less or more.
func TestDamagedEntriesAreRefused(t *testing.T) {
	for _, e := range samples() {
		b := appendEntry(nil, e)
		for i := range len(b) * 8 {
			bad := bytes.Clone(b)
			bad[i/8] ^= 1 << (i % 8)
			_, err := parseEntry(bad)
			require.Error(t, err, "%s, bit %d", kindNames[e.kind], i)
		}
		for n := range b {
			_, err := parseEntry(b[:n])
			require.Error(t, err)
			if n >= entryHeader && e.kind != kindSnapshotProducers {
				_, err = parseEntry(reseal(bytes.Clone(b[:n])))
				require.Error(t, err, "%s cut to %d bytes", kindNames[e.kind], n)
			}
		}
		if e.kind != kindSnapshotProducers {
			_, err := parseEntry(reseal(append(bytes.Clone(b), 0)))
			require.ErrorContains(t, err, "too many")
		}
	}
}

// offsetsSize is what the bound on requests goes by.
func TestOffsetsSizeIsTheEncodedSize(t *testing.T) {
	os := append(at(5), Offset{Topic: "longer", Metadata: "…"})
	var items []item
	for _, o := range os {
		items = append(items, itemOf(o))
	}
	b := appendEntry(nil, entry{kind: kindStage, number: 1, group: "group", items: items})
	require.Equal(t, len(b), offsetsSize("group", os))
}

// What decodes is encoded the same, and nothing makes the decoder fail otherwise
// than with an error.
func FuzzEntry(f *testing.F) {
	for _, e := range samples() {
		f.Add(appendEntry(nil, e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= entryHeader {
			reseal(b)
		}
		e, err := parseEntry(b)
		if err != nil {
			return
		}
		if got := appendEntry(nil, e); !bytes.Equal(b, got) {
			t.Fatalf("%x decodes and is encoded as %x", b, got)
		}
	})
}

const goldenLog = "testdata/partition-v1.txt"

// The log of a partition as version 1 has left it, a snapshot and what came
// after, and what it amounts to. The snapshot has package fence's within.
func TestLogsOfVersion1(t *testing.T) {
	k := newKit(t, small)
	log := k.cfg.Log.(*MemLog)
	part := txnstate.OffsetsPartition("g")
	if *update {
		k.mustStage("g", pr(4660, 7), at(5))
		k.mustMark("g", tv1(pr(99, 3), false))
		for i := range int64(40) {
			k.commit(neighbour("g"), at(i))
		}
		k.commit("g", at(3))
		k.mustStage("g", pr(4661, 0), at(6))
		require.NoError(t, k.m.of("g").idle(ctx))
		require.EqualValues(t, kindSnapshot, log.m[part][0][1])
		var b strings.Builder
		for _, e := range log.m[part] {
			fmt.Fprintf(&b, "%x\n", e)
		}
		require.NoError(t, os.WriteFile(goldenLog, []byte(b.String()), 0o644))
	}
	b, err := os.ReadFile(goldenLog)
	require.NoError(t, err)
	log.m[part] = nil
	for _, line := range strings.Fields(string(b)) {
		e, err := hex.DecodeString(line)
		require.NoError(t, err)
		log.m[part] = append(log.m[part], e)
	}
	k.m = k.fresh()
	k.expect("g", "3", unstable)
	k.expect(neighbour("g"), "39", "39")
	requireCode(t, txnstate.CodeInvalidProducerEpoch, k.mark("g", tv1(pr(99, 2), false)))
	k.mustMark("g", tv2(pr(4660, 8), true)) // staged before 3 was committed
	k.expect("g", "3", unstable)
	k.mustMark("g", tv2(pr(4661, 1), true))
	k.expect("g", "6", "6")
}

// Any sequence of entries is refused or gives a sound state, whose snapshot
// gives it again.
func FuzzReplay(f *testing.F) {
	var all []byte
	for _, e := range samples()[:9] {
		all = binary.BigEndian.AppendUint16(all, uint16(len(appendEntry(nil, e))))
		all = appendEntry(all, e)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newReplayer(fence.Config{})
		for len(b) > 2 {
			n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
			e := b[2 : 2+n]
			b = b[2+n:]
			if len(e) >= entryHeader {
				reseal(e)
			}
			if r.add(e) != nil {
				return
			}
		}
		st, err := r.finish()
		if err != nil {
			return
		}
		if err := st.check(); err != nil {
			t.Fatal(err)
		}
		again := newReplayer(fence.Config{})
		for _, e := range st.snapshot() {
			if err := again.add(e); err != nil {
				t.Fatal(err)
			}
		}
		st2, err := again.finish()
		if err != nil {
			t.Fatal(err)
		}
		p, q := partition{phase: phaseReady, st: st}, partition{phase: phaseReady, st: st2}
		if p.dump() != q.dump() {
			t.Fatalf("before\n%s\nafter\n%s", p.dump(), q.dump())
		}
	})
}
