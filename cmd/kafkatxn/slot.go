package main

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// readSlot prints a file of package slotfile: a readable copy, or a generation.
func readSlot(fsys fsx.FS, out *printer, name string, slot int) {
	b, err := fsys.ReadFile(name)
	if err != nil {
		out.bad(name, -1, err.Error())
		return
	}
	inSlot, generation := placeOf(name)
	if slot < 0 {
		slot = inSlot
	}
	if slot < 0 || slot >= txnstate.Slots {
		out.bad(name, -1, "its name does not say which slot it is; use -slot")
		return
	}
	// The store itself reads it, out of a directory in memory that has this file
	// alone, so that whatever the store does to it stays there.
	s, err := alone(b, slot, generation)
	if err != nil {
		out.bad(name, -1, err.Error())
		return
	}
	defer func() { _ = s.Close() }() // nothing was written
	if *out.json {
		out.object(map[string]any{"file": name, "slot": slot, "size": len(b)})
	} else {
		out.line("%s: slot %d, %d bytes", name, slot, len(b))
	}
	for r, err := range s.Slot(context.Background(), slot) {
		switch {
		case err != nil && r.TxnID != "":
			out.bad(name, -1, "transactional id "+quoted(r.TxnID)+": "+err.Error())
		case err != nil:
			out.bad(name, -1, err.Error())
		default:
			out.record("", r)
			if n := txnstate.Slot(r.TxnID); n != slot {
				out.bad(name, -1, "transactional id "+quoted(r.TxnID)+" belongs in slot "+strconv.Itoa(n))
			}
		}
	}
}

// alone is a store with one file of a slot.
func alone(b []byte, slot int, generation string) (*slotfile.Store, error) {
	fsys := fsx.Mem()
	n := strconv.Itoa(slot)
	dir, name := "/txn_state", "slot-"+n+".json"
	if generation != "" {
		dir, name = filepath.Join(dir, ".versions", "slot-"+n), generation
	}
	err := errors.Join(fsys.MkdirAll(dir, 0o755), fsys.Replace(filepath.Join(dir, name), b, 0o644))
	if err != nil {
		return nil, err
	}
	return slotfile.Open(slotfile.Config{Dir: "/", FS: fsys})
}

// placeOf is the slot that a path names, -1 for none, and the name of the
// generation where it is one.
func placeOf(path string) (slot int, generation string) {
	base := filepath.Base(path)
	number := regexp.MustCompile(`^slot-(\d{1,3})(\.json.*)?$`)
	m := number.FindStringSubmatch(base)
	if filepath.Ext(base) == ".slot" {
		generation = base
		m = number.FindStringSubmatch(filepath.Base(filepath.Dir(path)))
	}
	if m == nil {
		return -1, generation
	}
	slot, err := strconv.Atoi(m[1])
	if err != nil {
		return -1, generation // three digits always are a number
	}
	return slot, generation
}
