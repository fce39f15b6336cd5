package journal

import (
	"fmt"
	"iter"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Frame is one write to a file, or one piece of a snapshot.
type Frame struct {
	Offset   int64 // in the file
	Size     int64
	Number   uint32 // in the file, from 1
	Type     FrameType
	Sequence uint64 // of the first entry; see format.go for the other types

	version uint8
	zero    uint16
	body    []byte
}

// Entry is one record as it was written, or the end of one.
type Entry struct {
	TxnID   string
	Version txnstate.Version // the sequence number
	Deleted bool             // the id has no record from here on

	record []byte
}

// Record is the record of an entry that is no deletion. The error wraps
// txnstate.ErrDamaged.
func (e Entry) Record() (txnstate.Record, error) {
	return decode(e.TxnID, uint64(e.Version), e.record)
}

// Damage is a place of a file that can't be read. It wraps txnstate.ErrDamaged.
type Damage struct {
	Offset int64 // where the bytes begin that can't be read
	// Next is where the next whole frame begins, -1 for none: then it is what a
	// crash may leave of a write.
	Next   int64
	Reason string
}

func (d *Damage) Error() string { return fmt.Sprintf("damaged at byte %d: %s", d.Offset, d.Reason) }

func (d *Damage) Unwrap() error { return txnstate.ErrDamaged }

// Read takes a file of a journal apart, for tools. Its frames come with an error
// where something is wrong with one, and between two where bytes can't be read: a
// *Damage, after which the sequence goes on with the next whole frame. b must not
// change while they are read. Where the header can't be read no frame can.
func Read(b []byte) (Header, iter.Seq2[Frame, error], error) {
	h, err := parseHeader(b)
	if err != nil {
		return h, nil, err
	}
	return h, func(yield func(Frame, error) bool) {
		for r := newReader(h, b); ; {
			f, ok, d := r.next()
			switch {
			case d == nil && !ok:
				return
			case d == nil:
				if !yield(f, nil) {
					return
				}
			case !yield(f, d):
				return
			case !ok && d.Next < 0:
				return
			case !ok:
				r.skip(d.Next)
			}
		}
	}, nil
}

// Entries are the entries of a frame. An error is the last pair.
func (f Frame) Entries() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f.entries(func(e rawEntry) bool {
			return yield(Entry{
				TxnID: string(e.id), Version: txnstate.Version(e.version),
				Deleted: e.kind == entryDelete, record: e.record,
			}, nil)
		}, func(d *Damage) { yield(Entry{}, d) })
	}
}

// entries shows the entries of a frame until visit has enough or one can't be
// read. It reports how many there were.
func (f Frame) entries(visit func(rawEntry) bool, bad func(*Damage)) int {
	n := 0
	for rest := f.body; len(rest) > 0; n++ {
		at := f.Offset + f.Size - int64(len(rest))
		e, more, ok := takeEntry(rest, f.Type, f.Sequence+uint64(n))
		if !ok {
			bad(&Damage{Offset: at, Next: f.Offset + f.Size, Reason: "the frame checks and has an entry in it that can't be read"})
			return n
		}
		if !visit(e) {
			return n + 1
		}
		rest = more
	}
	return n
}

// reader goes through the frames of a file.
type reader struct {
	h       Header
	b       []byte
	at      int64
	frames  uint32 // so far
	seq     uint64 // the next sequence number of a segment
	entries uint64 // so far
	ended   bool   // by an end frame
}

func newReader(h Header, b []byte) *reader {
	return &reader{h: h, b: b, at: headerSize, seq: h.First}
}

// next is the next frame. ok is false at the end and where there is no whole
// frame; a frame that is whole and wrong comes with its damage.
func (r *reader) next() (f Frame, ok bool, d *Damage) {
	if r.at == int64(len(r.b)) {
		return f, false, nil
	}
	f, ok = wholeFrame(r.b[r.at:], r.h.salt)
	f.Offset = r.at
	if !ok {
		d = &Damage{Offset: r.at, Next: int64(findFrame(r.b, int(r.at)+1, r.h.salt))}
		d.Reason = fmt.Sprintf("there should be frame %d, and there is no whole frame", r.frames+1)
		switch {
		case r.ended:
			d.Reason = "nothing may follow the end frame"
		case d.Next >= 0:
			d.Reason += fmt.Sprintf("; the next one is at byte %d", d.Next)
		}
		return f, false, d
	}
	wrong := r.check(f)
	r.at += f.Size
	r.frames = f.Number
	r.ended = r.ended || f.Type == EndFrame
	if f.Type == LogFrame {
		r.seq = f.Sequence
	}
	n := f.entries(func(rawEntry) bool { return true }, func(bad *Damage) { d = bad })
	if f.Type == LogFrame {
		r.seq += uint64(n)
	}
	r.entries += uint64(n)
	if wrong != "" {
		d = &Damage{Offset: f.Offset, Next: r.at, Reason: wrong}
	}
	return f, true, d
}

// check says what is wrong with a whole frame at this place.
func (r *reader) check(f Frame) string {
	body := "nothing"
	if len(f.body) > 0 {
		body = fmt.Sprintf("%d bytes", len(f.body))
	}
	switch {
	case f.version > formatVersion:
		return fmt.Sprintf("frame %d has format version %d, and this version of the library reads up to %d", f.Number, f.version, formatVersion)
	case r.ended:
		return "nothing may follow the end frame"
	case f.Number != r.frames+1:
		return fmt.Sprintf("there should be frame %d, and there is frame %d", r.frames+1, f.Number)
	case f.version == 0 || f.zero != 0,
		f.Type != LogFrame && f.Type != StateFrame && f.Type != EndFrame,
		f.Type != EndFrame && r.h.Snapshot != (f.Type == StateFrame),
		(f.Type == EndFrame) != (len(f.body) == 0):
		return fmt.Sprintf("frame %d checks and can't be: %s, with %s in it", f.Number, f.Type, body)
	case f.Type == StateFrame && f.Sequence != 0:
		return fmt.Sprintf("frame %d is state and has sequence number %d", f.Number, f.Sequence)
	case f.Type != StateFrame && !r.h.Snapshot && f.Sequence != r.seq:
		return fmt.Sprintf("frame %d should have sequence number %d, and has %d", f.Number, r.seq, f.Sequence)
	case f.Type == EndFrame && r.h.Snapshot && f.Sequence != r.entries:
		return fmt.Sprintf("the snapshot should have %d entries, and has %d", f.Sequence, r.entries)
	}
	return ""
}

// skip goes on at a place where a whole frame is.
func (r *reader) skip(at int64) {
	r.at = at
	if f, ok := wholeFrame(r.b[at:], r.h.salt); ok {
		r.frames = f.Number - 1
		r.seq = f.Sequence
	}
}
