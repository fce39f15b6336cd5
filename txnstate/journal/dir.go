package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

const (
	namePrefix     = "txn-"
	segmentSuffix  = ".log"
	snapshotSuffix = ".snapshot"
	lockName       = "txn.lock"
)

func segmentName(number uint64) string {
	return fmt.Sprintf("%s%016d%s", namePrefix, number, segmentSuffix)
}

func snapshotName(number uint64) string {
	return fmt.Sprintf("%s%016d%s", namePrefix, number, snapshotSuffix)
}

// aside is the name that a file has before it is complete. A name with a dot at
// the front is removed by Open.
func aside(name string) string { return "." + name + ".new" }

func (s *Store) path(name string) string { return filepath.Join(s.cfg.Dir, name) }

// listing is what is in a directory, in ascending order.
type listing struct {
	segments, snapshots []uint64
	leftovers           []string
}

func list(fsys fsx.FS, dir string) (l listing, err error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return l, err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, "."+namePrefix) {
			l.leftovers = append(l.leftovers, name)
		}
		if n, ok := numberOf(name, segmentSuffix); ok {
			l.segments = append(l.segments, n)
		}
		if n, ok := numberOf(name, snapshotSuffix); ok {
			l.snapshots = append(l.snapshots, n)
		}
	}
	slices.Sort(l.segments)
	slices.Sort(l.snapshots)
	return l, nil
}

// numberOf is the number in a file's name. Other ways to write it are other
// files, which are none of ours.
func numberOf(name, suffix string) (n uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, suffix); !ok {
		return 0, false
	}
	if _, err := fmt.Sscanf(digits, "%d", &n); err != nil {
		return 0, false
	}
	return n, n > 0 && name == fmt.Sprintf("%s%016d%s", namePrefix, n, suffix)
}

// remove takes files away that nothing is read from any more. It is not an error
// if they stay: whoever lists the directory next tries again.
func (s *Store) remove(names []string) {
	for _, name := range names {
		if err := s.fs.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Logger.Warn("a file of the journal that is out of date stays for now", "file", s.path(name), "err", err)
		}
	}
}

// before is the names of all that a snapshot makes out of date.
func (l listing) before(number uint64) []string {
	var names []string
	for _, n := range l.segments {
		if n < number {
			names = append(names, segmentName(n))
		}
	}
	for _, n := range l.snapshots {
		if n < number {
			names = append(names, snapshotName(n))
		}
	}
	return names
}

// begin makes a segment whose content up to now is h and frames, which are
// durable under its name when it returns, and goes on writing there. The turn is
// held, or nobody else has the store yet.
func (s *Store) begin(h Header, frames []byte, count uint32, seq uint64) error {
	name := s.path(segmentName(h.Number))
	content := append(appendHeader(nil, h), frames...)
	if err := s.fs.Replace(name, content, 0o644); err != nil {
		return err
	}
	return s.goOn(h, int64(len(content)), count, seq)
}

// goOn opens a segment for writing. The old one is not used any more.
func (s *Store) goOn(h Header, end int64, count uint32, seq uint64) error {
	f, err := s.fs.OpenFile(s.path(segmentName(h.Number)), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if s.file.file != nil {
		_ = s.file.file.Close() // all that counts in it was synced
	}
	s.file = segment{file: f, number: h.Number, salt: h.salt, frames: count, end: end, seq: seq}
	return nil
}

// newHeader is the header of a segment or snapshot with a salt of its own.
func newHeader(number, first uint64) Header {
	var salt [8]byte
	_, _ = rand.Read(salt[:]) // never fails, as crypto/rand documents
	return Header{Version: formatVersion, Number: number, First: first, salt: binary.BigEndian.Uint64(salt[:])}
}
