package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// DamageError is a file whose middle can't be read.
type DamageError struct {
	file   string
	offset int64
	reason string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d (%s), and later data in it is not: nothing is cut off there; restore the file, or move it away and lose what it holds", e.file, e.offset, e.reason)
}

// Stored is a round as it was found in a file.
type Stored struct {
	Pos     int64  // of the payload in the file
	Payload []byte // the reader's only for the call
	Reset   bool   // nothing before it counts any more
}

// Open reads a segment and hands each round to visit. A missing file is an empty
// segment and is created by the first round. A torn tail is cut off.
func Open(fsys fsx.FS, name string, fsync bool, visit func(Stored) error) (*Segment, error) {
	s := New(fsys, name, fsync)
	f, err := fsys.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.file = f
	if err := s.recover(visit); err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

func (s *Segment) recover(visit func(Stored) error) error {
	size, err := s.file.Size()
	if err != nil {
		return err
	}
	last := int64(0)
	if s.tail, last, err = Scan(s.file, s.name, size, visit); err != nil {
		return err
	}
	if s.tail < size {
		if err := s.file.Truncate(s.tail); err != nil {
			return err
		}
	}
	if size == 0 || !s.fsync {
		return nil
	}
	// What is read from here on must not vanish any more, and a process that was
	// killed may have left it unsynced. The last round may be in memory only: where
	// its sync has failed, the system shows it to readers, does not write it any
	// more, and says of the next sync that it succeeded. So it is written once more.
	b := make([]byte, s.tail-last)
	if _, err := s.file.ReadAt(b, last); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(b, last); err != nil {
		return err
	}
	return s.file.Sync()
}

// Scan reads the rounds in the first size bytes of a file and hands each to
// visit. end is where the whole ones end, last where the last of them begins. A
// round that is not whole is a DamageError where a later one shows that it was
// whole once.
func Scan(f fsx.File, name string, size int64, visit func(Stored) error) (end, last int64, err error) {
	var buf []byte
	for end < size {
		var h header
		var reason string
		h, buf, reason, err = readRound(f, end, size, buf)
		if err != nil {
			return end, last, err
		}
		if reason != "" {
			return end, last, torn(f, name, end, size, reason)
		}
		if err := visit(Stored{Pos: end + HeaderBytes, Payload: buf, Reset: h.flags&flagReset != 0}); err != nil {
			return end, last, fmt.Errorf("%s, round at byte %d: %w", name, end, err)
		}
		end, last = end+HeaderBytes+int64(len(buf)), end
	}
	return end, last, nil
}

// readRound is the round at pos, its payload in buf's memory, or the reason why
// there is none.
func readRound(f fsx.File, pos, size int64, buf []byte) (h header, payload []byte, reason string, err error) {
	if size-pos < HeaderBytes {
		return h, buf, "a header that ends early", nil
	}
	var b [HeaderBytes]byte
	if _, err := f.ReadAt(b[:], pos); err != nil {
		return h, buf, "", err
	}
	h, ok := parseHeader(b[:], pos)
	switch {
	case !ok:
		return h, buf, "not a header", nil
	case int64(h.length) > size-pos-HeaderBytes:
		return h, buf, "a round that ends early", nil
	}
	if uint32(cap(buf)) < h.length {
		buf = make([]byte, h.length)
	}
	buf = buf[:h.length]
	if _, err := f.ReadAt(buf, pos+HeaderBytes); err != nil {
		return h, buf, "", err
	}
	if crc32.Checksum(buf, castagnoli) != h.check {
		return h, buf, "checksum", nil
	}
	return h, buf, "", nil
}

type header struct {
	flags, length, check uint32
}

// parseHeader reads the header of the round at pos.
func parseHeader(b []byte, pos int64) (h header, ok bool) {
	ok = string(b[:4]) == roundMagic && binary.BigEndian.Uint64(b[8:]) == uint64(pos) &&
		crc32.Checksum(b[:24], castagnoli) == binary.BigEndian.Uint32(b[24:])
	return header{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:])}, ok
}

// torn is nil where what follows end is the torn tail that a crash leaves.
func torn(f fsx.File, name string, end, size int64, reason string) error {
	const window = 1 << 20
	buf := make([]byte, min(window, size-end))
	for pos := end + 1; pos+HeaderBytes <= size; {
		b := buf[:min(window, size-pos)]
		if _, err := f.ReadAt(b, pos); err != nil {
			return err
		}
		for i := 0; ; i++ {
			k := bytes.Index(b[i:], []byte(roundMagic))
			if k < 0 || i+k+HeaderBytes > len(b) {
				break
			}
			i += k
			if h, ok := parseHeader(b[i:i+HeaderBytes], pos+int64(i)); ok && h.flags&flagClean != 0 {
				return &DamageError{name, end, reason}
			}
		}
		if int64(len(b)) == size-pos {
			break
		}
		pos += int64(len(b)) - HeaderBytes + 1
	}
	return nil
}
