package offsets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// The format of the file of a FileLog, version 1. Numbers are big-endian.
//
//	file header, 24 bytes
//	  0  8 bytes  "KXOFFSET"
//	  8  u32      format version, 1
//	 12  u64      salt: any number, another one for each file
//	 20  u32      CRC-32C of bytes 0-19
//	blocks, one after the other to the end of the file; each was written by one
//	write and synced before the next was begun
//	  0  4 bytes  "KXB1"
//	  4  u64      the salt of the file
//	 12  u64      number of the block in the file, from 1
//	 20  u32      length of the body, at most 1 GiB
//	 24  u32      CRC-32C of bytes 0-23 and the body
//	 28  body: records, one after the other
//	       0  u8   1 append, 2 replace: forget all earlier records of the partition
//	       1  u32  partition
//	       5  u32  number of entries
//	       9  u32  length of the content
//	      13  u32  CRC-32C of bytes 0-12 and the content
//	      17  content: of each entry its length, u32, and its bytes
//
// A block that is not whole is a torn tail if no whole block comes after it:
// the write that was to make it did not end, and nobody was told that it did.
// Otherwise it is damage. The salt makes sure that what looks like a block is
// one, and not bytes that a client put into the metadata of an offset, or the
// remains of another file.
const (
	fileMagic   = "KXOFFSET"
	fileVersion = 1
	fileHeader  = 24
	blockMagic  = "KXB1"
	blockHeader = 28
	maxBlock    = 1 << 30

	recordHeader = 17
)

type recordKind uint8

const (
	recordAppend  recordKind = 1
	recordReplace recordKind = 2
)

func appendFileHeader(b []byte, salt uint64) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(append(b, fileMagic...), fileVersion)
	b = binary.BigEndian.AppendUint64(b, salt)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// recordSize is the length of a record of these entries.
func recordSize(entries [][]byte) int64 {
	n := int64(recordHeader)
	for _, e := range entries {
		n += 4 + int64(len(e))
	}
	return n
}

func appendRecord(b []byte, k recordKind, partition int32, entries [][]byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(append(b, byte(k)), uint32(partition))
	b = binary.BigEndian.AppendUint32(b, uint32(len(entries)))
	b = binary.BigEndian.AppendUint32(b, uint32(recordSize(entries)-recordHeader))
	b = append(b, 0, 0, 0, 0)
	for _, e := range entries {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(e))), e...)
	}
	binary.BigEndian.PutUint32(b[start+13:], recordSum(b[start:]))
	return b
}

func recordSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:13], castagnoli), castagnoli, b[recordHeader:])
}

// appendBlock makes a block of a body.
func appendBlock(b []byte, salt, number uint64, body []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint64(append(b, blockMagic...), salt)
	b = binary.BigEndian.AppendUint64(b, number)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(append(b, 0, 0, 0, 0), body...)
	binary.BigEndian.PutUint32(b[start+24:], blockSum(b[start:]))
	return b
}

func blockSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:24], castagnoli), castagnoli, b[blockHeader:])
}

// record is where one record is in a file.
type record struct {
	kind      recordKind
	partition int32
	at, size  int64 // the record's header included
}

var (
	errBadRecord = errors.New("a record does not fit into its block")
	errBadEntry  = errors.New("an entry does not fit into its record")
)

// parseRecords finds the records of a body that is at position at of its file.
func parseRecords(body []byte, at int64) ([]record, error) {
	var out []record
	for len(body) > 0 {
		if len(body) < recordHeader {
			return nil, errBadRecord
		}
		size := int64(recordHeader) + int64(binary.BigEndian.Uint32(body[9:]))
		if size > int64(len(body)) {
			return nil, errBadRecord
		}
		r := record{
			kind: recordKind(body[0]), partition: int32(binary.BigEndian.Uint32(body[1:])),
			at: at, size: size,
		}
		if r.kind != recordAppend && r.kind != recordReplace {
			return nil, fmt.Errorf("records of kind %d are not known to this release", body[0])
		}
		out = append(out, r)
		body, at = body[size:], at+size
	}
	return out, nil
}

// readRecord reads a record's bytes and checks them.
func readRecord(f fsx.File, r record) ([]byte, error) {
	b := make([]byte, r.size)
	if err := readFull(f, b, r.at); err != nil {
		return nil, err
	}
	if want, got := binary.BigEndian.Uint32(b[13:]), recordSum(b); want != got || int64(binary.BigEndian.Uint32(b[9:])) != r.size-recordHeader {
		return nil, fmt.Errorf("damage at byte %d: checksum %08x is stored, the record has %08x", r.at, want, got)
	}
	return b, nil
}

// entriesOf calls f with the entries of a record.
func entriesOf(rec []byte, f func([]byte) error) error {
	n := binary.BigEndian.Uint32(rec[5:])
	b := rec[recordHeader:]
	for range n {
		if len(b) < 4 {
			return errBadEntry
		}
		size := binary.BigEndian.Uint32(b)
		if b = b[4:]; int64(size) > int64(len(b)) {
			return errBadEntry
		}
		// Capped, so that an append of f does not reach into the next entry.
		if err := f(b[:size:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	if len(b) > 0 {
		return errBadEntry
	}
	return nil
}

func readFull(f fsx.File, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if err == nil || errors.Is(err, io.EOF) {
		if n == len(b) {
			return nil
		}
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at byte %d: %w", len(b), at, err)
}

// scanned is what was found in a file.
type scanned struct {
	records []record
	end     int64 // of the last whole block
	torn    int64 // bytes after it
}

// scan reads a whole file. Damage is an error with its place.
func scan(f fsx.File) (scanned, error) {
	size, err := f.Size()
	if err != nil {
		return scanned{}, err
	}
	salt, err := readFileHeader(f, size)
	if err != nil {
		return scanned{}, err
	}
	s := scanned{end: fileHeader}
	for number := uint64(1); s.end < size; number++ {
		body, bad, err := readBlock(f, s.end, size, salt, number)
		if err != nil {
			return scanned{}, err
		}
		if bad != nil {
			whole, err := findBlock(f, s.end, size, salt)
			if err != nil {
				return scanned{}, err
			}
			if whole >= 0 {
				return scanned{}, fmt.Errorf("damage at byte %d: %w, and a whole block is at byte %d", s.end, bad, whole)
			}
			s.torn = size - s.end
			return s, nil
		}
		at := s.end + blockHeader
		records, err := parseRecords(body, at)
		if err != nil {
			return scanned{}, fmt.Errorf("block at byte %d: %w", s.end, err)
		}
		s.records = append(s.records, records...)
		s.end = at + int64(len(body))
	}
	return s, nil
}

func readFileHeader(f fsx.File, size int64) (salt uint64, err error) {
	if size < fileHeader {
		return 0, fmt.Errorf("damage at byte 0: %d bytes, and the header has %d", size, fileHeader)
	}
	var h [fileHeader]byte
	if err := readFull(f, h[:], 0); err != nil {
		return 0, err
	}
	if string(h[:8]) != fileMagic {
		return 0, fmt.Errorf("damage at byte 0: %q is no log of offsets", h[:8])
	}
	if v := binary.BigEndian.Uint32(h[8:]); v != fileVersion {
		return 0, fmt.Errorf("format version %d, and this release knows %d", v, fileVersion)
	}
	if want, got := binary.BigEndian.Uint32(h[20:]), crc32.Checksum(h[:20], castagnoli); want != got {
		return 0, fmt.Errorf("damage at byte 0: checksum %08x is stored, the header has %08x", want, got)
	}
	return binary.BigEndian.Uint64(h[12:]), nil
}

// readBlock reads the block at a position. bad says why there is none; err that
// the file could not be read.
func readBlock(f fsx.File, at, size int64, salt, number uint64) (body []byte, bad, err error) {
	if size-at < blockHeader {
		return nil, errors.New("no room for a block"), nil
	}
	var h [blockHeader]byte
	if err := readFull(f, h[:], at); err != nil {
		return nil, nil, err
	}
	length := int64(binary.BigEndian.Uint32(h[20:]))
	switch {
	case string(h[:4]) != blockMagic || binary.BigEndian.Uint64(h[4:]) != salt:
		return nil, errors.New("no block begins here"), nil
	case number != 0 && binary.BigEndian.Uint64(h[12:]) != number:
		return nil, fmt.Errorf("block %d where block %d belongs", binary.BigEndian.Uint64(h[12:]), number), nil
	case length > maxBlock || length > size-at-blockHeader:
		return nil, fmt.Errorf("a block of %d bytes does not fit", length), nil
	}
	b := make([]byte, blockHeader+length)
	if err := readFull(f, b, at); err != nil {
		return nil, nil, err
	}
	if want, got := binary.BigEndian.Uint32(b[24:]), blockSum(b); want != got {
		return nil, fmt.Errorf("checksum %08x is stored, the block has %08x", want, got), nil
	}
	return b[blockHeader:], nil, nil
}

// findBlock finds the first whole block at or after a position, -1 for none.
func findBlock(f fsx.File, from, size int64, salt uint64) (int64, error) {
	mark := binary.BigEndian.AppendUint64([]byte(blockMagic), salt)
	buf := make([]byte, 256<<10)
	for from < size {
		n := min(int64(len(buf)), size-from)
		if err := readFull(f, buf[:n], from); err != nil {
			return -1, err
		}
		for at := 0; ; at++ {
			i := bytes.Index(buf[at:n], mark)
			if i < 0 {
				break
			}
			at += i
			_, bad, err := readBlock(f, from+int64(at), size, salt, 0)
			if err != nil || bad == nil {
				return from + int64(at), err
			}
		}
		if n < int64(len(buf)) {
			break
		}
		from += n - int64(len(mark)) + 1
	}
	return -1, nil
}
