package offsets

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// recover makes the log usable from whatever is under its name: nothing, a file
// of an earlier process, or one that a write failed on. What is whole is copied
// into a new file, so that all that is shown from now on has been synced by a
// handle that never failed, and what is not whole is gone for good. The turn is
// held, or nobody else has the log yet.
func (l *FileLog) recover() error {
	if l.file != nil {
		_ = l.file.Close() // not trusted, so neither is its error
		l.file = nil
	}
	c, err := l.copyWhole()
	if err != nil {
		return err
	}
	return l.adopt(c)
}

// copyWhole copies what is whole in the file under the log's name. The file is
// closed when it returns, for some systems let no open file be replaced.
func (l *FileLog) copyWhole() (*copied, error) {
	src, err := l.fs.OpenFile(l.path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return l.copy(nil, nil)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = src.Close() }() // it was read only
	found, err := scan(src)
	if err != nil {
		return nil, err
	}
	index := map[int32][]record{}
	for _, r := range found.records {
		if r.kind == recordReplace {
			index[r.partition] = nil
		}
		index[r.partition] = append(index[r.partition], r)
	}
	return l.copy(src, index)
}

// compact copies the file when most of it is out of date. The log goes on with
// the old file when the copy fails before it took the old one's name. The turn
// is held.
func (l *FileLog) compact() {
	l.mu.Lock()
	due := l.usable() == nil && l.end >= max(l.copyFrom, l.tryAt) && l.end > 2*l.live &&
		// Some systems let no file be replaced that somebody has open.
		l.readers == 0
	l.mu.Unlock()
	if !due {
		return
	}
	c, err := l.copy(l.file, l.index)
	if err != nil {
		l.mu.Lock()
		l.tryAt = 2 * l.end
		l.mu.Unlock()
		return
	}
	_ = l.file.Close() // all in it is synced; and some systems want it closed first
	l.file = nil
	if err := l.adopt(c); err != nil {
		l.mu.Lock()
		l.broken = err
		l.mu.Unlock()
	}
}

// copied is a file that is ready to become the log.
type copied struct {
	tmp    string
	salt   uint64
	blocks uint64
	end    int64
	index  map[int32][]record
}

// copy writes the records of an index to a new file and syncs it.
func (l *FileLog) copy(src fsx.File, index map[int32][]record) (*copied, error) {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	c := &copied{
		tmp:   filepath.Join(l.dir, "."+logName+"."+rand.Text()),
		salt:  binary.BigEndian.Uint64(seed[:]),
		end:   fileHeader,
		index: map[int32][]record{},
	}
	dst, err := l.fs.OpenFile(c.tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	err = c.fill(dst, src, index)
	if err == nil {
		err = dst.Sync()
	}
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = l.fs.Remove(c.tmp) // swept at the next start otherwise
		return nil, fmt.Errorf("copy: %w", err)
	}
	return c, nil
}

func (c *copied) fill(dst, src fsx.File, index map[int32][]record) error {
	if _, err := dst.Write(appendFileHeader(nil, c.salt)); err != nil {
		return err
	}
	var body []byte
	flush := func() error {
		if len(body) == 0 {
			return nil
		}
		block := appendBlock(nil, c.salt, c.blocks+1, body)
		if _, err := dst.Write(block); err != nil {
			return err
		}
		c.blocks++
		c.end += int64(len(block))
		body = body[:0]
		return nil
	}
	for _, partition := range slices.Sorted(maps.Keys(index)) {
		for _, r := range index[partition] {
			b, err := readRecord(src, r)
			if err != nil {
				return err
			}
			if len(body) > 0 && len(body)+len(b) > blockBytes {
				if err := flush(); err != nil {
					return err
				}
			}
			r.at = c.end + blockHeader + int64(len(body))
			c.index[partition] = append(c.index[partition], r)
			body = append(body, b...)
		}
	}
	return flush()
}

// adopt makes a copy the log. After an error either file may be under the log's
// name; both say the same.
func (l *FileLog) adopt(c *copied) error {
	if err := l.fs.Rename(c.tmp, l.path); err != nil {
		_ = l.fs.Remove(c.tmp) // as in copy
		return err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	file, err := l.fs.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file, l.salt, l.blocks, l.end, l.index = file, c.salt, c.blocks, c.end, c.index
	l.broken, l.live, l.tryAt = nil, 0, 0
	for _, rs := range l.index {
		for _, r := range rs {
			l.live += r.size
		}
	}
	return nil
}
