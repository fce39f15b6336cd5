package journal

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// madeFiles are a segment and a snapshot, of fixed bytes.
func madeFiles() (segment, snapshot []byte) {
	r := txnstate.Unknown("")
	r.State, r.Producer = txnstate.Empty, txnstate.Producer{ID: 7, Epoch: 1}
	record := encode(nil, r)
	h := Header{Version: formatVersion, Number: 2, First: 11, salt: 0x0123456789abcdef}
	segment = appendHeader(nil, h)
	frame := startFrame(nil)
	frame = appendPut(frame, "pay", record)
	frame = appendDelete(frame, "old")
	sealFrame(frame, h.salt, LogFrame, 1, 11)
	segment = append(segment, frame...)
	segment = appendEnd(segment, h.salt, 2, 13)

	h.Snapshot, h.salt = true, 0xfedcba9876543210
	snapshot = appendHeader(nil, h)
	frame = startFrame(nil)
	frame = appendState(frame, "old", 9, record)
	sealFrame(frame, h.salt, StateFrame, 1, 0)
	snapshot = append(snapshot, frame...)
	return segment, appendEnd(snapshot, h.salt, 2, 1)
}

// FuzzRead: whatever the bytes, reading ends, does not fail, and gives the frames
// where they are.
func FuzzRead(f *testing.F) {
	segment, snapshot := madeFiles()
	f.Add(segment)
	f.Add(snapshot)
	f.Add(segment[:60])
	f.Add(append(bytes.Clone(segment), segment...))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, frames, err := Read(b)
		if err != nil {
			if d := (*Damage)(nil); !errors.As(err, &d) || !errors.Is(err, txnstate.ErrDamaged) {
				t.Fatalf("Read = %v", err)
			}
			return
		}
		at, clean := int64(headerSize), true
		again := appendHeader(nil, h)
		for fr, err := range frames {
			if err != nil {
				clean = false
				continue
			}
			if fr.Offset < at || fr.Offset+fr.Size > int64(len(b)) {
				t.Fatalf("frame of %d bytes at %d, after %d", fr.Size, fr.Offset, at)
			}
			at = fr.Offset + fr.Size
			frame := startFrame(nil)
			for e, err := range fr.Entries() {
				if err != nil {
					t.Fatalf("entry of a frame that is right: %v", err)
				}
				_, _ = e.Record() // of a fuzzer, it may be anything
				switch {
				case e.Deleted:
					frame = appendDelete(frame, e.TxnID)
				case h.Snapshot:
					frame = appendState(frame, e.TxnID, uint64(e.Version), e.record)
				default:
					frame = appendPut(frame, e.TxnID, e.record)
				}
			}
			sealFrame(frame, h.salt, fr.Type, fr.Number, fr.Sequence)
			again = append(again, frame...)
		}
		// A longer uvarint than needed is read, and not written.
		if clean && len(again) == len(b) && !bytes.Equal(again, b) {
			t.Fatalf("%x is written again as %x", b, again)
		}
	})
}

// FuzzOpen: whatever is in a directory, opening it ends, does not panic, and
// changes nothing where it fails. Where it succeeds the same is found afterwards.
func FuzzOpen(f *testing.F) {
	segment, snapshot := madeFiles()
	body := segment[headerSize+frameSize : len(segment)-frameSize]
	f.Add(segment, snapshot, false, uint8(LogFrame), uint64(11), body)
	f.Add(segment[:70], snapshot, false, uint8(LogFrame), uint64(11), body)
	f.Add([]byte(nil), snapshot, true, uint8(LogFrame), uint64(11), body)
	f.Add([]byte(nil), snapshot, true, uint8(LogFrame), uint64(1<<64-1), body)
	f.Add([]byte(nil), snapshot, true, uint8(EndFrame), uint64(11), []byte{})
	f.Add([]byte(nil), snapshot, true, uint8(LogFrame), uint64(11), []byte{1, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, segment, snapshot []byte, made bool, typ uint8, seq uint64, body []byte) {
		if made {
			// With right checksums: what a fuzzer would not find.
			h := Header{Version: formatVersion, Number: 2, First: seq, salt: 1}
			frame := append(startFrame(nil), body...)
			sealFrame(frame, h.salt, FrameType(typ), 1, seq)
			segment = append(appendHeader(nil, h), frame...)
		}
		fsys := fsx.Mem()
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(fsys.MkdirAll("d", 0o755))
		must(fsys.Replace("d/"+segmentName(2), segment, 0o644))
		must(fsys.Replace("d/"+snapshotName(2), snapshot, 0o644))
		all := func(s *Store) (ids []string) {
			for slot := range txnstate.Slots {
				for r, err := range s.Slot(t.Context(), slot) {
					if err != nil && !errors.Is(err, txnstate.ErrDamaged) {
						t.Fatal(err)
					}
					ids = append(ids, fmt.Sprint(r.TxnID, r.Version, err))
				}
			}
			return ids
		}
		s, err := Open(Config{Dir: "d", FS: fsys})
		if err != nil {
			for name, want := range map[string][]byte{segmentName(2): segment, snapshotName(2): snapshot} {
				got, rerr := fsys.ReadFile("d/" + name)
				if rerr != nil || !bytes.Equal(got, want) {
					t.Fatalf("Open = %v, and %s was changed", err, name)
				}
			}
			return
		}
		found := all(s)
		must(s.Close())
		s, err = Open(Config{Dir: "d", FS: fsys})
		must(err)
		if again := all(s); fmt.Sprint(again) != fmt.Sprint(found) {
			t.Fatalf("found %q, and then %q", found, again)
		}
		must(s.Close())
	})
}
