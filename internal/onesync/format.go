package onesync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
)

// The log is two files that are written in turns, each from its beginning, over
// what it held before:
//
//	header  magic "kx1H" | version u32 | generation u64 | salt u64 | first u64 | from u64 | CRC-32C u32
//	frames, from byte 512 on:
//	        magic "kx1F" | body length u32 | number u64 | salt u64 | body CRC-32C u32 | header CRC-32C u32 | body
//
// All numbers are big-endian. A frame is what one sync makes durable. Frames are
// numbered on and on; first is the number of the file's first one. Those below
// from are void. The salt is another one each time a file is begun, so that what
// is left of an older generation is not taken for a frame. A frame is written
// when the sync of the one before has succeeded, so only the last can be torn.
//
// The body of a frame is entries:
//
//	write   1 u8 | name length u16 | name | offset u64 | data length u32 | data
//	void    2 u8 | number u64      frames below that number are void from here on
//
// A name is relative to the root, with slashes.
const (
	version     = 1
	headerMagic = "kx1H"
	headerSize  = 44
	framesAt    = 512 // a header is written, and torn, in a sector of its own
	frameMagic  = "kx1F"
	frameHeader = 32

	entryWrite = 1
	entryVoid  = 2
	writeSize  = 1 + 2 + 8 + 4 // beside name and data
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// header is the header of a file of the log.
type header struct {
	generation, salt, first, from uint64
}

func (h header) append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, headerMagic...)
	dst = binary.BigEndian.AppendUint32(dst, version)
	dst = binary.BigEndian.AppendUint64(dst, h.generation)
	dst = binary.BigEndian.AppendUint64(dst, h.salt)
	dst = binary.BigEndian.AppendUint64(dst, h.first)
	dst = binary.BigEndian.AppendUint64(dst, h.from)
	return binary.BigEndian.AppendUint32(dst, sum(dst[at:]))
}

// parseHeader reads a header. ok is false for a file that has none yet.
func parseHeader(b []byte) (h header, ok bool, err error) {
	b = b[:min(len(b), framesAt)]
	if len(bytes.TrimLeft(b, "\x00")) == 0 {
		return h, false, nil
	}
	switch {
	case len(b) < headerSize || string(b[:4]) != headerMagic:
		return h, false, errors.New("it does not begin with a header")
	case sum(b[:headerSize-4]) != binary.BigEndian.Uint32(b[headerSize-4:]):
		return h, false, errors.New("the checksum of its header")
	case binary.BigEndian.Uint32(b[4:]) != version:
		return h, false, fmt.Errorf("it is of version %d, and version %d is known", binary.BigEndian.Uint32(b[4:]), version)
	}
	h = header{
		generation: binary.BigEndian.Uint64(b[8:]), salt: binary.BigEndian.Uint64(b[16:]),
		first: binary.BigEndian.Uint64(b[24:]), from: binary.BigEndian.Uint64(b[32:]),
	}
	return h, true, nil
}

// sealFrame fills in the header in front of a body.
func sealFrame(frame []byte, salt, number uint64) {
	body := frame[frameHeader:]
	copy(frame, frameMagic)
	binary.BigEndian.PutUint32(frame[4:], uint32(len(body)))
	binary.BigEndian.PutUint64(frame[8:], number)
	binary.BigEndian.PutUint64(frame[16:], salt)
	binary.BigEndian.PutUint32(frame[24:], sum(body))
	binary.BigEndian.PutUint32(frame[28:], sum(frame[:28]))
}

// frameAt is the body of the whole frame at the front of b, if there is one.
func frameAt(b []byte, salt uint64) (number uint64, body []byte, ok bool) {
	if len(b) < frameHeader || string(b[:4]) != frameMagic || binary.BigEndian.Uint64(b[16:]) != salt ||
		sum(b[:28]) != binary.BigEndian.Uint32(b[28:]) {
		return 0, nil, false
	}
	n := uint64(binary.BigEndian.Uint32(b[4:]))
	if n > uint64(len(b)-frameHeader) {
		return 0, nil, false
	}
	body = b[frameHeader:][:n]
	return binary.BigEndian.Uint64(b[8:]), body, sum(body) == binary.BigEndian.Uint32(b[24:])
}

func appendWrite(dst []byte, name string, off int64, data []byte) []byte {
	dst = append(dst, entryWrite)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(off))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	return append(dst, data...)
}

func appendVoid(dst []byte, from uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, entryVoid), from)
}

// write is an entry of a frame.
type write struct {
	name string
	off  int64
	data []byte // of the frame's memory
}

// entries reads the body of a frame. from is not zero where there is a void entry.
func entries(body []byte) (writes []write, from uint64, err error) {
	for len(body) > 0 {
		switch {
		case body[0] == entryVoid && len(body) >= 9:
			from = max(from, binary.BigEndian.Uint64(body[1:]))
			body = body[9:]
		case body[0] == entryWrite && len(body) >= writeSize:
			n := int(binary.BigEndian.Uint16(body[1:]))
			if len(body) < writeSize+n {
				return nil, 0, errEntry
			}
			w := write{name: string(body[3 : 3+n]), off: int64(binary.BigEndian.Uint64(body[3+n:]))}
			size := int64(binary.BigEndian.Uint32(body[11+n:]))
			body = body[writeSize+n:]
			if size > int64(len(body)) || w.off < 0 || w.off+size < 0 || !filepath.IsLocal(filepath.FromSlash(w.name)) {
				return nil, 0, errEntry
			}
			w.data, body = body[:size], body[size:]
			writes = append(writes, w)
		default:
			return nil, 0, errEntry
		}
	}
	return writes, from, nil
}

var errEntry = errors.New("an entry that can't be read")

// scan reads the frames of a file of the log and calls visit for each, in order.
// It ends where no whole frame follows; where one does all the same, later, the
// file is damaged.
func scan(b []byte, h header, visit func(number uint64, body []byte) error) error {
	pos, next := min(framesAt, len(b)), h.first
	for {
		number, body, ok := frameAt(b[pos:], h.salt)
		if !ok || number != next {
			break
		}
		if err := visit(number, body); err != nil {
			return fmt.Errorf("frame at byte %d: %w", pos, err)
		}
		pos += frameHeader + len(body)
		next++
	}
	for at := pos; ; at++ {
		i := bytes.Index(b[at:], []byte(frameMagic))
		if i < 0 {
			return nil
		}
		at += i
		if number, _, ok := frameAt(b[at:], h.salt); ok && number >= next {
			return fmt.Errorf("no frame can be read at byte %d, and a later one, at byte %d, can", pos, at)
		}
	}
}
