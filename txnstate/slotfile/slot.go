package slotfile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// slot is one slot of one handle. Reading and writing go on beside each other,
// each in a goroutine that is there while somebody waits for it; neither touches
// a file with mu held.
type slot struct {
	store *Store
	n     int
	dir   slotDir
	copy  string // slot-N.json

	mu     sync.Mutex
	closed bool

	// cur is the newest generation known and trusted; nil before the first look.
	cur *content
	// synced is the highest generation whose name is known to be durable;
	// suspect is one whose sync failed here, 0 for none. A later sync that
	// succeeds proves nothing for it: what failed may have been dropped.
	synced, suspect uint64
	// pending is the generation that was last claimed here, so that a reader who
	// meets it need not read it.
	pending *content
	// claims are those made here on top of cur: what they took of the overlay is
	// settled when a generation is published that tells which of them count.
	claims []claimed
	// overlay holds Later writes that are in no file yet.
	overlay map[string]later
	// dropped are ids whose Later write another process overtook, until Dropped.
	dropped map[string]struct{}
	// inflight names the ids that the batch under way wants to change: a Later
	// write of one of them has to wait for the outcome.
	inflight map[string]bool
	// failures counts claims of which it is not known what became: what was
	// looked at before may be out of date without anybody having published it.
	failures int

	queue   []*op
	working bool
	round   *round // that has not begun to look
	reading bool

	touched  bool // the directory was tidied once
	reported string

	copyDue   bool      // slot-N.json is not the newest
	copied    time.Time // when it was last made so
	copyTimer *time.Timer
	copySet   bool // the timer will start the worker

	tended tended // the worker's
}

// claimed is a generation that was, or was to be, linked here.
type claimed struct {
	gen      uint64
	nonce    string
	consumed map[string]txnstate.Version // as in content
}

// later is a Later write on top of what the file has, or had.
type later struct {
	e    *entry
	base txnstate.Version
}

func newSlot(s *Store, n int, d slotDir) *slot {
	return &slot{
		store: s, n: n, dir: d, copy: filepath.Join(s.root, fmt.Sprintf("slot-%d.json", n)),
		overlay: map[string]later{}, dropped: map[string]struct{}{},
	}
}

// round is one look at the directory that several callers wait for.
type round struct {
	done chan struct{}
	err  error
}

// fresh looks at the directory, at some time between its call and its return, so
// that find and snapshot then show what was newest at that time or later.
func (s *slot) fresh(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	// A look that is under way may have seen its fill already: join the next.
	r := s.round
	if r == nil {
		r = &round{done: make(chan struct{})}
		s.round = r
		if !s.reading {
			s.reading = true
			s.store.tasks.Go(s.read)
		}
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slot) read() {
	for {
		s.mu.Lock()
		r := s.round
		s.round = nil
		if r == nil {
			s.reading = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		_, _, r.err = s.look()
		if errors.Is(r.err, errSuspect) {
			r.err = s.renew()
		}
		close(r.done)
	}
}

// renew writes the newest generation again, as the next one.
func (s *slot) renew() error {
	o := newOp(opRenew, "", 0)
	o.internal = true
	if err := s.enqueue(o); err != nil {
		return err
	}
	<-o.done
	return o.err
}

// find is the entry of an id as this handle sees it, nil for none.
func (s *slot) find(id string) (*entry, taken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.overlay[id]; ok {
		return l.e, s.cur.taken
	}
	return s.cur.find(id), s.cur.taken
}

func (s *slot) snapshot() (entries, strays []*entry, t taken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries = s.cur.entries
	if len(s.overlay) > 0 {
		edits := map[string]*entry{}
		for id, l := range s.overlay {
			edits[id] = l.e
		}
		entries = s.cur.with(edits)
	}
	return entries, s.cur.strays, s.cur.taken
}

func (s *slot) current() *content {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// errSuspect: the newest generation can't be trusted until it is written again.
var errSuspect = errors.New("slotfile: the newest generation was not synced")

// look finds the newest generation, reads it where it is new, and makes sure that
// it can't vanish any more. The caller may rest an answer on what it returns
// without an error; with errSuspect only a new generation that replaces it.
func (s *slot) look() (c *content, trusted bool, err error) {
	for range maxLooks {
		cur := s.current()
		var file []byte
		if cur == nil || cur.gen == takenOver {
			// Before it is known that there is no generation: afterwards the file
			// may be a copy of one.
			if file, err = s.store.fs.ReadFile(s.copy); errors.Is(err, fs.ErrNotExist) {
				file = nil
			} else if err != nil {
				return nil, false, err
			}
		}
		gen, err := s.newest(cur)
		switch {
		case errors.Is(err, errLost):
			return nil, false, s.damage(err, nil)
		case err != nil:
			return nil, false, err
		case cur != nil && gen < cur.gen:
			// Somebody laid the directory anew under a running process.
			return nil, false, fmt.Errorf("slotfile: slot %d went back from generation %d to %d: open the store anew", s.n, cur.gen, gen)
		case gen == takenOver:
			c, err = s.take(file, cur)
		case cur != nil && gen == cur.gen:
			c = cur
		default:
			c, err = s.readGen(gen, cur)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since: there is a newer one
		}
		if err != nil {
			return nil, false, err
		}
		if err := s.trust(c); errors.Is(err, errSuspect) {
			return c, false, err
		} else if err != nil {
			return nil, false, err
		}
		s.publish(c, cur)
		return c, true, nil
	}
	return nil, false, errBusy
}

// newest is slotDir.newest for who knows cur. Mostly nothing newer has been made.
func (s *slot) newest(cur *content) (uint64, error) {
	if cur != nil {
		if stands, err := s.dir.stands(cur.gen); stands || err != nil {
			return cur.gen, err
		}
	}
	return s.dir.newest()
}

// take is the slot as slot-N.json has it, where there is no generation.
func (s *slot) take(file []byte, cur *content) (*content, error) {
	if cur != nil && (file == nil) == (cur.source == nil) && bytes.Equal(file, cur.source) {
		return cur, nil
	}
	modified := int64(-1)
	if file != nil {
		entries, err := s.store.fs.ReadDir(s.store.root)
		if err != nil {
			return nil, err
		}
		i, ok := slices.BinarySearchFunc(entries, filepath.Base(s.copy), func(e fs.DirEntry, name string) int { return strings.Compare(e.Name(), name) })
		if ok {
			if info, err := entries[i].Info(); err == nil {
				modified = info.ModTime().UnixMilli()
			}
		}
		// That was the time of the file that was read only if nobody has begun to
		// write since.
		if gen, err := s.dir.newest(); err != nil {
			return nil, err
		} else if gen != takenOver {
			return nil, fs.ErrNotExist
		}
	}
	c, err := takeOver(file, s.n, modified)
	if err != nil {
		return nil, s.damage(err, file)
	}
	if file != nil {
		// Whoever wrote it need not have synced.
		f, err := s.store.fs.OpenFile(s.copy, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return nil, err
		}
		if err := s.store.fs.SyncDir(s.store.root); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readGen reads a generation that is not in memory.
func (s *slot) readGen(gen uint64, cur *content) (*content, error) {
	file, err := s.store.fs.ReadFile(s.dir.file(gen))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	p := s.pending
	s.mu.Unlock()
	if p != nil && p.gen == gen {
		line, _, _ := bytes.Cut(file, []byte("\n"))
		var h header
		if json.Unmarshal(line, &h) == nil && h.Nonce == p.nonce {
			return p, nil // written here
		}
	}
	c, err := decode(file, s.n, gen, cur)
	if err != nil {
		return nil, s.damage(fmt.Errorf("generation %d: %w", gen, err), file)
	}
	return c, nil
}

// trust makes a generation's name durable that another process made, or that is
// being made: its maker may never come to sync it.
func (s *slot) trust(c *content) error {
	s.mu.Lock()
	synced, suspect := s.synced, s.suspect
	s.mu.Unlock()
	if c.gen <= synced || c.gen == takenOver {
		return nil
	}
	if c.gen == suspect {
		return errSuspect
	}
	err := s.dir.fs.SyncDir(s.dir.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.suspect = max(s.suspect, c.gen)
		return err
	}
	s.synced = max(s.synced, c.gen)
	return nil
}

// publish makes c what readers of this handle see, unless they have seen a newer
// one. before is what they saw when c was looked for.
func (s *slot) publish(c, before *content) {
	s.mu.Lock()
	changed := s.replace(c)
	first := !s.touched
	s.touched = true
	s.mu.Unlock()
	if changed {
		s.report(c, before)
	}
	if first {
		s.tidy(c)
	}
}

// replace is publish with mu held.
func (s *slot) replace(c *content) bool {
	if s.cur == c || s.cur != nil && (c.gen < s.cur.gen || c.gen == s.cur.gen && c.gen != takenOver) {
		return false
	}
	for id, l := range s.overlay {
		base, what := s.survives(id, l, c)
		switch what {
		case stands:
			s.overlay[id] = later{l.e, base}
			continue
		case overtaken:
			s.dropped[id] = struct{}{}
		case settled:
		}
		delete(s.overlay, id)
	}
	if len(s.overlay) == 0 {
		s.overlay = map[string]later{} // a map does not shrink
	}
	s.claims = slices.DeleteFunc(s.claims, func(p claimed) bool { return p.gen <= c.gen })
	if s.pending != nil && s.pending.gen <= c.gen {
		s.pending = nil
	}
	s.cur = c
	return true
}

// fate is what became of a Later write.
type fate uint8

const (
	stands    fate = iota
	settled        // a generation has it
	overtaken      // another write of the id came first, or that can't be ruled out
)

// survives says what a Later write is on top of c, and where it still stands on
// which version. The mutex is held.
func (s *slot) survives(id string, l later, c *content) (base txnstate.Version, what fate) {
	base = l.base
	for _, p := range s.claims {
		v, has := p.consumed[id]
		if !has || p.gen > c.gen {
			continue
		}
		landed, known := c.descends(p.gen, p.nonce)
		switch {
		case !known:
			return 0, overtaken
		case landed && v == l.e.version:
			return 0, settled
		case landed:
			base = v // it was written since, on top of the one that landed
		}
	}
	if e := c.find(id); versionOf(e) != base || e != nil && e.bad != nil {
		return 0, overtaken
	}
	return base, stands
}

// report tells of entries that can't be read, once each.
func (s *slot) report(c, before *content) {
	for _, es := range [][]*entry{c.entries, c.strays} {
		for _, e := range es {
			if e.bad == nil || before != nil && (slices.ContainsFunc(before.strays, e.same) || e.same(before.find(e.id))) {
				continue
			}
			s.store.log.Error("stored record is damaged: it blocks its id and is kept as it is",
				"txn_id", e.id, "slot", s.n, "generation", c.gen, "err", e.bad)
		}
	}
}

func (e *entry) same(o *entry) bool { return o != nil && bytes.Equal(e.member, o.member) }

// damage reports a slot that can't be read, once for each content, keeps a copy
// of it, and is the error for its ids.
func (s *slot) damage(cause error, file []byte) error {
	err := fmt.Errorf("%w: slot %d: %w", txnstate.ErrDamaged, s.n, cause)
	sum := checksum(file)
	s.mu.Lock()
	seen := s.reported == sum
	s.reported = sum
	s.mu.Unlock()
	if seen {
		return err
	}
	aside := ""
	if file != nil {
		// Named by content: a process that starts again and again sets aside once.
		aside = s.copy + ".damaged-" + sum
		if werr := s.store.fs.Replace(aside, file, 0o644); werr != nil {
			s.store.log.Error("damaged slot could not be copied aside", "slot", s.n, "err", werr)
			aside = ""
		}
	}
	s.store.log.Error("slot is damaged: all its ids are blocked until it is repaired", "slot", s.n, "copy", aside, "err", cause)
	return err
}

// tidy is done once, when the slot is first used: it removes what dead processes
// left in the directory, and looks whether the readable copy is one. What it takes
// from a living process costs that one another attempt.
func (s *slot) tidy(c *content) {
	l, err := s.dir.list()
	if err != nil {
		return // the next generation tidies as well
	}
	s.dir.clear(l, c.gen+1)
	if c.gen == takenOver {
		return
	}
	file, err := s.store.fs.ReadFile(s.copy)
	if err == nil && bytes.Equal(file, c.body()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copyDue = true
	if !s.working && !s.closed {
		s.working = true
		s.store.tasks.Go(s.work)
	}
}

// owes reports whether Flush has anything to do here: Later writes, or else a
// worker that may still have to refresh the copy.
func (s *slot) owes() (writes, copies bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.overlay) > 0, s.copyDue || s.working
}

// takeDropped is Store.Dropped for one slot, appended to ids.
func (s *slot) takeDropped(ids []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dropped) == 0 {
		return ids
	}
	ids = slices.AppendSeq(ids, maps.Keys(s.dropped))
	s.dropped = map[string]struct{}{} // a map does not shrink
	return ids
}

func (s *slot) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.copyTimer != nil {
		s.copyTimer.Stop()
	}
}
