package fence_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"hash/crc32"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var record = flag.Bool("record", false, "write the golden files of this version anew")

// lived is a partition with something of everything.
func lived(t *testing.T) *host {
	h := newHost(t)
	h.now = 1_700_000_000_000
	h.produce(plain(1, 3, 2147483645, 2), fence.ModeDefault) // 0, 1
	h.produce(plain(1, 3, 2147483647, 3), fence.ModeDefault) // to 4, across the wrap
	h.produce(batch(2, 0, 0, 2), fence.ModeDefault)          // 5, 6
	h.abort(2, 0)                                            // 7
	h.now += 1000
	h.produce(batch(4, 7, 0, 1), fence.ModeAdd) // 8, stays open
	for seq := range int32(7) {
		h.produce(batch(3, 1, seq, 1), fence.ModeAdd) // 9 to 15
	}
	h.produce(batch(5, 32766, 0, 1), fence.ModeAdd)                                                                                  // 16
	h.mark(markers.Marker{Producer: txnstate.Producer{ID: 5, Epoch: 32767}, CoordinatorEpoch: 12, TransactionVersion: txnstate.TV2}) // 17
	h.mark(markers.Marker{Producer: txnstate.Producer{ID: 3, Epoch: 2}, CoordinatorEpoch: 11, TransactionVersion: txnstate.TV2})     // 18
	h.commit(1<<40, 0)                                                                                                               // 19, known by this alone
	h.p.Fence(txnstate.Producer{ID: 4, Epoch: 9})
	h.p.LogStart(3)
	h.p.Stabilize(10)
	return h
}

func TestASnapshotHoldsAllThatSurvives(t *testing.T) {
	h := lived(t)
	b := h.p.AppendSnapshot([]byte("before"))
	if string(b[:6]) != "before" {
		t.Error("what stood before is gone")
	}
	p, err := fence.RestorePartition(fence.Config{}, b[6:])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := known(p, h.end), known(h.p, h.end); got != want {
		t.Errorf("restored:\n%s\nwant\n%s", got, want)
	}
	for hw := range h.end + 1 {
		if got, want := p.LastStable(hw), h.p.LastStable(hw); got != want {
			t.Errorf("last stable under %d: %d, want %d", hw, got, want)
		}
	}
	if p.End() != h.end {
		t.Errorf("end %d, want %d", p.End(), h.end)
	}
	if !bytes.Equal(p.AppendSnapshot(nil), b[6:]) {
		t.Error("the snapshot of what was restored is another")
	}
	old := h.p
	h.p = p
	h.want("a duplicate across the restart", h.produce(plain(1, 3, 2147483647, 3), fence.ModeDefault), "duplicate of 2")
	h.want("the next in sequence", h.produce(plain(1, 3, 2, 1), fence.ModeDefault), "20")
	h.want("an old epoch (I9)", h.produce(batch(3, 1, 7, 1), fence.ModeAdd), staleEpoch)
	h.want("a fenced one (W13)", h.produce(batch(4, 7, 1, 1), fence.ModeAdd), staleEpoch)
	h.want("a deposed coordinator", h.mark(markers.Marker{Producer: txnstate.Producer{ID: 3, Epoch: 2}, CoordinatorEpoch: 10}), "TRANSACTION_COORDINATOR_FENCED")
	h.want("the open transaction's end", h.mark(markers.Marker{Producer: txnstate.Producer{ID: 4, Epoch: 8}}), "21")

	// Guards are memory only: they don't outlive their partition.
	g, _, _ := old.Verify(batch(9, 0, 0, 1), fence.ModeAdd, h.now)
	h.want("a guard from before the restart", h.append(batch(9, 0, 0, 1), g), invalidState)
	// The age goes on from where it was.
	h.p.Expire(h.now - 1000 + 24*time.Hour.Milliseconds())
	if _, ok := h.p.Producer(2); ok {
		t.Error("an idle producer became young again")
	}
	if _, ok := h.p.Producer(5); !ok {
		t.Error("a producer was forgotten too early")
	}
}

func TestW33_ReplayOnTopOfASnapshot(t *testing.T) {
	h := lived(t)
	whole := h.rebuilt(nil)
	whole.Fence(txnstate.Producer{ID: 4, Epoch: 9})
	whole.LogStart(3)
	if got, want := known(whole, h.end), known(h.p, h.end); got != want {
		t.Errorf("from the whole log:\n%s\nwant\n%s", got, want)
	}
	// A snapshot at every place, and a replay that starts early.
	for i := range h.log {
		part := fence.NewPartition(fence.Config{})
		for _, e := range h.log[:i] {
			part.Replay(e.b, e.base, e.mark)
		}
		p, err := fence.RestorePartition(fence.Config{}, part.AppendSnapshot(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range h.log[max(0, i-4):] {
			p.Replay(e.b, e.base, e.mark)
		}
		p.Fence(txnstate.Producer{ID: 4, Epoch: 9})
		p.LogStart(3)
		if got, want := known(p, h.end), known(h.p, h.end); got != want {
			t.Errorf("a snapshot before batch %d:\n%s\nwant\n%s", i, got, want)
		}
	}
}

// A producer that was forgotten comes back with the replay; what it aborted is
// listed once all the same.
func TestReplayOfAForgottenProducer(t *testing.T) {
	h := newHost(t)
	h.produce(batch(1, 0, 0, 1), fence.ModeDefault)
	h.abort(1, 0)
	h.now++
	h.produce(plain(2, 0, 0, 1), fence.ModeDefault)
	p, err := fence.RestorePartition(fence.Config{MaxProducers: 1}, h.p.AppendSnapshot(nil))
	if err != nil || len(p.Producers()) != 1 {
		t.Fatal(p.Producers(), err)
	}
	for _, e := range h.log {
		p.Replay(e.b, e.base, e.mark)
	}
	if got := p.Aborted(0, h.end); len(got) != 1 {
		t.Errorf("aborted %+v", got)
	}
}

// F14: a log in which coordinator epochs, or those of producers, go back opens,
// and the higher ones stay in force.
func TestF14_ALogInWhichEpochsGoBack(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	who := txnstate.Producer{ID: 7, Epoch: 4}
	p.Replay(batch(7, 4, 0, 1), 0, nil)
	p.Replay(fence.Batch{Producer: who, Control: true, Records: 1}, 1, &fence.Mark{Producer: who, CoordinatorEpoch: 10})
	p.Replay(batch(7, 3, 0, 1), 2, nil)
	if st, _ := p.Producer(7); st.Producer.Epoch != 4 || !st.Open || st.OpenSince != 2 {
		t.Errorf("%+v", st)
	}
	old := txnstate.Producer{ID: 7, Epoch: 3}
	p.Replay(fence.Batch{Producer: old, Control: true, Records: 1}, 3, &fence.Mark{Producer: old, CoordinatorEpoch: 9})
	if st, _ := p.Producer(7); st.Producer.Epoch != 4 || st.Open || st.CoordinatorEpoch != 10 {
		t.Errorf("%+v", st)
	}
	if got := p.Aborted(0, 4); len(got) != 2 {
		t.Errorf("aborted %+v", got)
	}
	if _, err := fence.RestorePartition(fence.Config{}, p.AppendSnapshot(nil)); err != nil {
		t.Error(err)
	}
}

// A leader refuses a batch outside of the open transaction; one in the log ends
// nothing.
func TestALogWithABatchOutsideOfTheOpenTransaction(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	p.Replay(batch(7, 0, 0, 1), 0, nil)
	p.Replay(plain(7, 0, 1, 1), 1, nil)
	if st, _ := p.Producer(7); !st.Open || st.OpenSince != 0 || p.LastStable(2) != 0 {
		t.Errorf("%+v", st)
	}
}

func TestReplayPassesOverWhatMeansNothing(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	p.Replay(plain(-1, -1, -1, 5), 0, nil)
	p.Replay(fence.Batch{Producer: txnstate.NoProducer, Control: true, Records: 1}, 5, nil) // a leader change
	if got := p.Producers(); len(got) > 0 || p.End() != 6 {
		t.Errorf("%+v, end %d", got, p.End())
	}
}

// Files that a version of the library has written are read for ever.
func TestSnapshotsOfEveryVersion(t *testing.T) {
	const file = "testdata/snapshot-v1.hex"
	h := lived(t)
	if *record {
		if err := os.WriteFile(file, []byte(wrapped(hex.EncodeToString(h.p.AppendSnapshot(nil)))), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	p, err := fence.RestorePartition(fence.Config{}, b)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := known(p, h.end), known(h.p, h.end); got != want {
		t.Errorf("restored:\n%s\nwant\n%s", got, want)
	}
}

func wrapped(s string) string {
	var out strings.Builder
	for len(s) > 96 {
		out.WriteString(s[:96] + "\n")
		s = s[96:]
	}
	return out.String() + s + "\n"
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	b := lived(t).p.AppendSnapshot(nil)
	restore := func(b []byte) error { _, err := fence.RestorePartition(fence.Config{}, b); return err }
	for i := range b {
		if err := restore(b[:i]); codeOf(err) != "KAFKA_STORAGE_ERROR" {
			t.Fatalf("cut off at %d: %v", i, err)
		}
		c := bytes.Clone(b)
		c[i] ^= 0x10
		if err := restore(c); codeOf(err) != "KAFKA_STORAGE_ERROR" {
			t.Fatalf("a bit turned at %d: %v", i, err)
		}
	}
	newer := bytes.Clone(b)
	newer[4] = 2
	if err := restore(sealed(newer[:len(newer)-4])); err == nil || !strings.Contains(err.Error(), "version 2, and version 1 is known") {
		t.Errorf("a newer version: %v", err)
	}
	// With the right checksum too, a number is believed only when it can be.
	for i := 5; i < len(b)-4; i++ {
		for _, v := range []byte{0x00, 0x01, 0x7f, 0xff} {
			c := bytes.Clone(b[:len(b)-4])
			c[i] = v
			if p, err := fence.RestorePartition(fence.Config{}, sealed(c)); err == nil {
				p.AppendSnapshot(nil)
			}
		}
	}
}

func sealed(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func FuzzRestorePartition(f *testing.F) {
	b := lived(&testing.T{}).p.AppendSnapshot(nil)
	f.Add(b[:len(b)-4])
	b = fence.NewPartition(fence.Config{}).AppendSnapshot(nil)
	f.Add(b[:len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := fence.RestorePartition(fence.Config{}, b); err == nil && len(b) < 9 {
			t.Fatal("nothing was restored from")
		}
		p, err := fence.RestorePartition(fence.Config{}, sealed(b))
		if err != nil {
			return
		}
		again, err := fence.RestorePartition(fence.Config{}, p.AppendSnapshot(nil))
		if err != nil {
			t.Fatalf("its own snapshot: %v", err)
		}
		if got, want := known(again, 1<<40), known(p, 1<<40); got != want {
			t.Fatalf("restored again:\n%s\nwant\n%s", got, want)
		}
		// Whatever it holds, it can be worked with.
		h := &host{t: t, p: p, end: p.End(), now: 1}
		h.produce(plain(1, 3, 2, 1), fence.ModeDefault)
		h.produce(batch(4, 7, 0, 1), fence.ModeAdd)
		h.abort(4, 7)
		p.LogStart(5)
		p.Stabilize(10)
		p.Expire(1 << 50)
		p.AppendSnapshot(nil)
	})
}
