package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// journalReader prints a directory of package journal, or one file of it.
type journalReader struct {
	fs     fsx.FS
	out    *printer
	frames bool // print them

	records map[string]journal.Entry // as the files read so far leave them
}

func (j *journalReader) read(path string) {
	j.records = map[string]journal.Entry{}
	entries, err := j.fs.ReadDir(path)
	if err != nil {
		// Not a directory; whether it is a file will turn out.
		j.frames = true
		j.file(path, false)
		return
	}
	files := j.load(path, entries)
	for _, f := range j.inForce(path, files) {
		j.file(f.path, !f.last)
	}
	if *j.out.json {
		j.out.object(map[string]any{"journal": path, "records": len(j.records)})
	} else {
		j.out.line("records: %d", len(j.records))
	}
	for _, id := range slices.Sorted(maps.Keys(j.records)) {
		r, err := j.records[id].Record()
		if err != nil {
			j.out.bad(path, -1, err.Error())
			continue
		}
		j.out.record("", r)
	}
}

// found is a file of a directory.
type found struct {
	path     string
	snapshot bool
	number   uint64
	last     bool // a crash may have cut it off
}

// load lists the files of a journal in a directory.
func (j *journalReader) load(dir string, entries []fs.DirEntry) []found {
	var files []found
	for _, e := range entries {
		var n uint64
		rest, isLog := strings.CutSuffix(e.Name(), ".log")
		if !isLog {
			var is bool
			if rest, is = strings.CutSuffix(e.Name(), ".snapshot"); !is {
				continue
			}
		}
		if _, err := fmt.Sscanf(rest, "txn-%d", &n); err != nil || rest != fmt.Sprintf("txn-%016d", n) {
			continue
		}
		files = append(files, found{path: filepath.Join(dir, e.Name()), snapshot: !isLog, number: n})
	}
	if len(files) == 0 {
		j.out.bad(dir, -1, "there is no file of a journal in it")
	}
	return files
}

// inForce is the files that Open would read, in order. It says which are out of
// date and which are missing.
func (j *journalReader) inForce(dir string, files []found) []found {
	from := uint64(1)
	for _, f := range files {
		if f.snapshot {
			from = max(from, f.number)
		}
	}
	var use []found
	for _, f := range files {
		if f.number < from {
			j.out.note(f.path, "out of date, and will be removed")
			continue
		}
		use = append(use, f)
	}
	// A snapshot comes before the segment of its number.
	slices.SortFunc(use, func(a, b found) int {
		if a.number == b.number && a.snapshot {
			return -1
		}
		return cmp.Compare(a.number, b.number)
	})
	want := from
	for i := range use {
		f := &use[i]
		f.last = i == len(use)-1 && !f.snapshot
		if f.snapshot {
			continue
		}
		for ; want < f.number; want++ {
			j.out.bad(dir, -1, fmt.Sprintf("segment %d is missing", want))
			if f.number-want > 10 {
				want = f.number - 1
			}
		}
		want++
	}
	if len(use) > 0 && want == from {
		j.out.bad(dir, -1, fmt.Sprintf("segment %d is missing", from))
	}
	return use
}

// file prints a file. whole: it has to have an end frame.
func (j *journalReader) file(name string, whole bool) {
	b, err := j.fs.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !j.frames {
		j.out.note(name, "gone meanwhile, which a running broker may do")
		return
	}
	if err != nil {
		j.out.bad(name, -1, err.Error())
		return
	}
	h, frames, err := journal.Read(b)
	if err != nil {
		var d *journal.Damage
		errors.As(err, &d)
		j.out.bad(name, d.Offset, d.Reason)
		return
	}
	j.header(name, h, len(b))
	ended, count := false, 0
	for f, err := range frames {
		if d := (*journal.Damage)(nil); errors.As(err, &d) {
			j.damage(name, d, int64(len(b)), whole || h.Snapshot || ended)
			continue
		}
		count++
		ended = f.Type == journal.EndFrame
		j.frame(name, f)
	}
	if !ended && (whole || h.Snapshot) {
		j.out.bad(name, int64(len(b)), "the file does not end with an end frame: something is missing")
	}
	if !j.frames && !*j.out.json {
		j.out.line("  frames: %d%s", count, map[bool]string{true: ", complete", false: ", not ended: in use, or the process was killed"}[ended])
	}
}

func (j *journalReader) header(name string, h journal.Header, size int) {
	kind := "segment"
	if h.Snapshot {
		kind = "snapshot"
	}
	if *j.out.json {
		j.out.object(map[string]any{"file": name, "kind": kind, "format": h.Version, "number": h.Number, "first": h.First, "size": size})
		return
	}
	j.out.line("%s: %s %d, format %d, from version %d, %d bytes", name, kind, h.Number, h.Version, h.First, size)
}

// damage says what can't be read, or that it is what a crash leaves.
func (j *journalReader) damage(name string, d *journal.Damage, size int64, whole bool) {
	if d.Next < 0 && !whole {
		j.out.note(name, fmt.Sprintf("at byte %d: %d bytes of a write that did not end, or is under way; Open cuts them off", d.Offset, size-d.Offset))
		return
	}
	j.out.bad(name, d.Offset, d.Reason)
}

// frame prints a frame that checks, and lets the records have it.
func (j *journalReader) frame(name string, f journal.Frame) {
	count := 0
	for range f.Entries() {
		count++
	}
	if j.frames {
		if *j.out.json {
			j.out.object(map[string]any{"frame": f.Number, "offset": f.Offset, "size": f.Size, "type": f.Type.String(), "sequence": f.Sequence, "entries": count})
		} else {
			j.out.line("  frame %d at byte %d, %d bytes, checks: %s, entries: %d", f.Number, f.Offset, f.Size, f.Type, count)
		}
	}
	for e, err := range f.Entries() {
		if err != nil {
			return // it was said of the frame
		}
		if e.Deleted {
			delete(j.records, e.TxnID)
		} else {
			j.records[e.TxnID] = e
		}
		if j.frames {
			j.entry(name, f, e)
		}
	}
}

func (j *journalReader) entry(name string, f journal.Frame, e journal.Entry) {
	if e.Deleted {
		if *j.out.json {
			j.out.object(map[string]any{"txnId": e.TxnID, "deleted": true, "version": e.Version})
		} else {
			j.out.line("    %s deleted version=%d", quoted(e.TxnID), e.Version)
		}
		return
	}
	r, err := e.Record()
	if err != nil {
		if errors.Is(err, txnstate.ErrDamaged) {
			err = fmt.Errorf("version %d: %w", e.Version, err)
		}
		j.out.bad(name, f.Offset, err.Error())
		return
	}
	j.out.record("    ", r)
}
