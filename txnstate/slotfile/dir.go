package slotfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Generations are numbered from here. The first has no file of its own: it is
// slot-N.json as it was when the first generation was claimed, or nothing.
const (
	takenOver uint64 = 1
	firstFile uint64 = 2
)

// begunName is made before the first generation is removed. Without it, a slot
// directory without generations means that there never were any.
const begunName = "begun"

const begunText = `This slot has removed generations that it no longer needs. Its state is in the
file with the highest number here; slot-*.json two directories up is a copy of
it, for reading. Where this file is there and no numbered one is, state was lost.
`

const (
	fileSuffix = ".slot"
	tmpPrefix  = "tmp-"
	copyPrefix = "copy-"
)

// slotDir is the version directory of one slot: names and what they mean. It
// keeps nothing in memory.
type slotDir struct {
	fs   fsx.FS
	path string
}

const separator = string(filepath.Separator)

// append16 appends a number with at least 16 digits.
func append16(b []byte, n uint64) []byte {
	for least := uint64(1e15); n < least && least > 1; least /= 10 {
		b = append(b, '0')
	}
	return strconv.AppendUint(b, n, 10)
}

func (d slotDir) file(gen uint64) string {
	var b [24]byte
	return d.path + separator + string(append16(b[:0], gen)) + fileSuffix
}

// scratch names a file that nobody else will ever name so. The generation in it
// is the one that its maker holds to be the newest: as soon as there is a newer
// one the file is of no use to its maker, and anybody may remove it.
func (d slotDir) scratch(prefix string, gen uint64, nonce string) string {
	var b [24]byte
	return d.path + separator + prefix + string(append16(b[:0], gen)) + "-" + strconv.Itoa(os.Getpid()) + "-" + nonce
}

// listing is what a directory held. It need not have held all of it at any one
// moment, but what was there from before until after is in it.
type listing struct {
	gens    []uint64 // ascending
	scratch []scratch
	begun   bool
}

type scratch struct {
	name string
	gen  uint64
}

func (l listing) highest() uint64 {
	if len(l.gens) == 0 {
		return takenOver
	}
	return l.gens[len(l.gens)-1]
}

// holds reports whether a generation was not yet removed. The one without a file
// is, in effect, removed by the making of begun.
func (l listing) holds(gen uint64) bool {
	if gen == takenOver {
		return !l.begun
	}
	_, ok := slices.BinarySearch(l.gens, gen)
	return ok
}

func (d slotDir) list() (listing, error) {
	var l listing
	entries, err := d.fs.ReadDir(d.path)
	if err != nil {
		return l, err
	}
	for _, e := range entries {
		name := e.Name()
		if name == begunName {
			l.begun = true
		} else if digits, ok := strings.CutSuffix(name, fileSuffix); ok {
			if gen, ok := parse16(digits); ok && gen >= firstFile {
				l.gens = append(l.gens, gen)
			}
		} else if rest, ok := cutAnyPrefix(name, tmpPrefix, copyPrefix); ok && len(rest) > 16 {
			if gen, ok := parse16(rest[:16]); ok {
				l.scratch = append(l.scratch, scratch{name, gen})
			}
		}
	}
	return l, nil
}

func cutAnyPrefix(s string, prefixes ...string) (string, bool) {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(s, p); ok {
			return rest, true
		}
	}
	return s, false
}

func parse16(s string) (uint64, bool) {
	if len(s) != 16 || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// remains is listing.holds at this moment.
func (d slotDir) remains(gen uint64) (bool, error) {
	if gen == takenOver {
		begun, err := fsx.Exists(d.fs, filepath.Join(d.path, begunName))
		return !begun, err
	}
	return fsx.Exists(d.fs, d.file(gen))
}

// maxLooks bounds loops in which each turn means that somebody else got on.
const maxLooks = 1000

var (
	errBusy = errors.New("slotfile: the slot changes faster than it can be read")
	errLost = errors.New("slotfile: the slot's generations are gone")
)

// newest is the number of the newest generation at some moment during the call.
//
// The listing alone can't tell: it is not one moment. Generations are made one
// after the other and removed in the same order, each removal after the one
// before it, so: gen+1 was missing and afterwards gen was still there, hence
// gen+1 had not been removed, hence it had never been made. What is left is a
// generation that came back, linked by a writer that slept while its number was
// used and removed (see slot.claim). Such a number is never the highest, but a
// listing made while others come and go could miss those above it. It is told by
// the generation before it, which went when it did and does not come back with
// it. A listing that finds the same twice has missed nothing.
func (d slotDir) newest() (uint64, error) {
	var last uint64
	lost := 0
	for range maxLooks {
		l, err := d.list()
		if err != nil {
			return 0, err
		}
		gen := l.highest()
		above, err := fsx.Exists(d.fs, d.file(gen+1))
		if err != nil {
			return 0, err
		}
		still, err := d.remains(gen)
		if err != nil {
			return 0, err
		}
		if !above && still {
			if gen == takenOver || l.holds(gen-1) || gen == last {
				return gen, nil
			}
			last = gen
			continue
		}
		last = 0
		if gen == takenOver && l.begun && !above {
			if lost++; lost == 100 {
				return 0, errLost
			}
		}
	}
	return 0, errBusy
}

// stands reports whether gen, which was the newest once, is it still, at some
// moment during the call; without a listing. By the order of removals, as in
// newest: gen+1 was missing, and afterwards gen and the one before were still there.
// false may also mean that this can't be told: newest can.
func (d slotDir) stands(gen uint64) (bool, error) {
	if gen <= firstFile {
		return false, nil
	}
	above, err := fsx.Exists(d.fs, d.file(gen+1))
	if above || err != nil {
		return false, err
	}
	still, err := fsx.Exists(d.fs, d.file(gen))
	if !still || err != nil {
		return false, err
	}
	return fsx.Exists(d.fs, d.file(gen-1))
}

// clear removes scratch files of generations below gen, and reports whether none
// is left of those that l has.
func (d slotDir) clear(l listing, gen uint64) bool {
	ok := true
	for _, s := range l.scratch {
		if s.gen >= gen {
			continue
		}
		if err := d.fs.Remove(filepath.Join(d.path, s.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			ok = false
		}
	}
	return ok
}

// tended is what a listing found, brought up to date with the generations made
// since: all of them here, one on top of the other.
type tended struct {
	gen    uint64 // the newest generation that is in it, 0 for none
	listed uint64 // made here: no scratch file is left that was meant for it or an earlier one
	oldest uint64 // those before it are removed
	begun  bool
}

// listEvery is how many generations share a listing. As many old ones stay in the
// directory.
const listEvery = 8

// due reports whether a generation has to be listed with: it is not next to those
// that are known, or those that may be removed run out.
func (t tended) due(gen uint64) bool { return t.gen+1 != gen || gen >= t.listed+listEvery }

// keepOld is how many generations too many are left alone: removing several at
// once costs a sync for each.
const keepOld = listEvery

// collect removes generations that are no longer needed below the newest, gen,
// and the one before it. l was listed before the directory was last synced, so
// that what l lacks is gone for good: a loss of power must not bring back a
// generation whose successor is removed. No scratch file is left of those that l
// has below gen.
func (d slotDir) collect(l listing, gen uint64) (tended, error) {
	end, _ := slices.BinarySearch(l.gens, gen-1)
	old := l.gens[:end]
	t := tended{gen: gen, listed: gen, oldest: max(gen-1, firstFile), begun: l.begun}
	for i, x := range old {
		t.oldest = x
		if i > 0 {
			if len(old)-i <= keepOld {
				return t, nil
			}
			if err := d.fs.SyncDir(d.path); err != nil {
				return tended{}, err
			}
		}
		if err := d.drop(x, &t); err != nil {
			return tended{}, err
		}
	}
	return t, nil
}

// collectOne removes the oldest generation, if it may be: it was made before the
// last listing, which found the temporary file of any writer that slept since
// before it was made. The directory was synced since the one before it was removed.
func (d slotDir) collectOne(t tended, gen uint64) (tended, error) {
	t.gen = gen
	if t.oldest > t.listed || t.oldest+1 >= gen {
		return t, nil
	}
	if err := d.drop(t.oldest, &t); err != nil {
		return tended{}, err
	}
	return t, nil
}

func (d slotDir) drop(gen uint64, t *tended) error {
	if gen == firstFile && !t.begun {
		if err := d.markBegun(); err != nil {
			return err
		}
		t.begun = true
	}
	if err := d.fs.Remove(d.file(gen)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.oldest = gen + 1
	return nil
}

func (d slotDir) markBegun() error {
	f, err := d.fs.OpenFile(filepath.Join(d.path, begunName), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(begunText))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return d.fs.SyncDir(d.path)
}
