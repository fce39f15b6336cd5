package slotfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

type opKind uint8

const (
	opSwap opKind = iota
	opLater
	opDelete
	opFlush // write the overlay
	opRenew // write the newest generation again
	opCopy  // see that slot-N.json is up to date
)

// op is one change that waits to become part of a generation.
type op struct {
	kind     opKind
	id       string
	old      txnstate.Version
	value    []byte // of a swap: as appendRecord makes it
	internal bool   // also of a store that is closed

	// Of the worker, until done is closed.
	version txnstate.Version
	err     error
	planned bool
	rests   bool // the answer is true only if the generation is claimed
	done    chan struct{}

	// Guarded by slot.mu.
	gone  bool   // nobody waits for it any more
	claim *claim // while its generation is being claimed
}

// claim is the moment between deciding to link and knowing the outcome.
type claim struct {
	tmp     string
	settled chan struct{}
}

func newOp(kind opKind, id string, old txnstate.Version) *op {
	return &op{kind: kind, id: id, old: old, done: make(chan struct{})}
}

func (s *slot) submit(ctx context.Context, o *op) (txnstate.Version, error) {
	if err := s.enqueue(o); err != nil {
		return 0, unsure(err)
	}
	return s.await(ctx, o)
}

func (s *slot) enqueue(o *op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && !o.internal {
		return errClosed
	}
	s.queue = append(s.queue, o)
	if !s.working {
		s.working = true
		s.store.tasks.Go(s.work)
	}
	return nil
}

// await waits for an op's answer. Where the context ends first the op is
// withdrawn, so that it is not done after a Load has answered without it: it is
// left out of what has not been claimed, and a claim that is under way is seen
// through to where its outcome can no longer change.
func (s *slot) await(ctx context.Context, o *op) (txnstate.Version, error) {
	select {
	case <-o.done:
		return o.version, o.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	o.gone = true
	c := o.claim
	removed := make(chan struct{})
	if c != nil {
		// A file that is gone can't be linked. Where the file system hangs both
		// may take their time, and then so does this.
		s.store.tasks.Go(func() {
			if err := s.dir.fs.Remove(c.tmp); err == nil || errors.Is(err, fs.ErrNotExist) {
				close(removed)
			}
		})
	}
	s.mu.Unlock()
	if c != nil {
		select {
		case <-c.settled:
		case <-removed:
		}
	}
	select {
	case <-o.done:
		return o.version, o.err
	default:
		return 0, unsure(ctx.Err())
	}
}

// swapLater keeps a write in memory, on top of what a fresh look shows. look is
// fresh; a test lets things happen behind it.
func (s *slot) swapLater(ctx context.Context, o *op, look func(context.Context) error) (txnstate.Version, error) {
	var failures int
	s.mu.Lock()
	for {
		failures = s.failures
		s.mu.Unlock()
		if err := look(ctx); err != nil {
			if errors.Is(err, txnstate.ErrDamaged) {
				return 0, err
			}
			return 0, unsure(err)
		}
		s.mu.Lock()
		if s.inflight[o.id] {
			s.mu.Unlock()
			return s.submit(ctx, o)
		}
		if s.failures == failures {
			break
		}
	}
	defer s.mu.Unlock()
	if s.closed {
		return 0, unsure(errClosed)
	}
	stored := s.cur.find(o.id)
	top, base := stored, versionOf(stored)
	if l, ok := s.overlay[o.id]; ok {
		top, base = l.e, l.base
	}
	if err := o.refusal(top); err != nil {
		return 0, err
	}
	v := s.store.laterVersion()
	s.overlay[o.id] = later{newEntry(o.id, o.value, v), base}
	return v, nil
}

func (s *Store) laterVersion() txnstate.Version { return txnstate.Version(s.later.Add(1)) }

// refusal is why o can't be done to the entry that is there.
func (o *op) refusal(e *entry) error {
	switch {
	case e != nil && e.bad != nil:
		return fmt.Errorf("%w: %w", txnstate.ErrDamaged, e.bad)
	case e == nil && o.kind == opDelete:
		return txnstate.ErrNotFound
	case versionOf(e) != o.old:
		return txnstate.ErrConflict
	}
	return nil
}

// work turns what is queued into generations, as many ops in one as there are,
// until nothing is left.
func (s *slot) work() {
	for {
		s.mu.Lock()
		batch := s.queue
		s.queue = nil
		if len(batch) == 0 && !s.copyNow() {
			s.working = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		changes, copies := split(batch)
		if len(changes) > 0 {
			s.process(changes)
		}
		if s.copyWanted(len(copies) > 0) {
			s.refreshCopy()
		}
		answer(copies)
	}
}

func split(batch []*op) (changes, copies []*op) {
	for _, o := range batch {
		if o.kind == opCopy {
			copies = append(copies, o)
		} else {
			changes = append(changes, o)
		}
	}
	return changes, copies
}

// process makes a batch durable, however many other processes come first.
func (s *slot) process(batch []*op) {
	var guess uint64
	if cur := s.current(); cur != nil {
		guess = cur.gen
	}
	highest, size, idle := guess, len(batch), 0
	for range maxLooks {
		batch = s.waiting(batch)
		if len(batch) == 0 {
			return
		}
		newest, done, err := s.attempt(guess, batch)
		if err != nil {
			s.fail(batch, err)
			return
		}
		if done {
			return
		}
		guess = newest
		// Where neither the slot nor the batch gets on, the file system says one
		// thing to a link and another to a look. Each attempt costs a sync.
		if idle++; newest > highest || len(batch) < size {
			highest, size, idle = max(highest, newest), len(batch), 0
		}
		if idle > maxIdle {
			break
		}
	}
	s.fail(batch, errBusy)
}

const maxIdle = 20

func (s *slot) waiting(batch []*op) []*op {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []*op
	for _, o := range batch {
		o.planned, o.rests = false, false
		if !o.gone {
			left = append(left, o)
		}
	}
	return left
}

// attempt makes one try at a generation. It is not done where another process
// was first, or where somebody left the batch; newest is the newest generation
// then, 0 where it has to be looked for.
func (s *slot) attempt(guess uint64, batch []*op) (newest uint64, done bool, err error) {
	writes := s.writes(batch)
	var tmp *tmpFile
	if writes && guess != 0 {
		if tmp, err = s.createTmp(guess); err != nil {
			return 0, false, err
		}
		defer tmp.discard()
	}
	// After the temporary file was made, and not before: whoever makes the next
	// generation after this look finds the file, and removes it before the number
	// is free again (see doc.go).
	base, trusted, err := s.look()
	if err != nil && !errors.Is(err, errSuspect) {
		return 0, false, err
	}
	if (writes || !trusted) && (tmp == nil || base.gen != guess) {
		return base.gen, false, nil
	}
	if !trusted && s.unsynced(base) > maxUnsynced {
		// Where syncs go on failing, more generations would only fill the disk.
		if err := s.dir.fs.SyncDir(s.dir.path); err != nil {
			return 0, false, err
		}
	}
	next := s.plan(base, trusted, tmp != nil, batch)
	if next == nil {
		answer(batch)
		return 0, true, nil
	}
	claimed := false
	defer func() {
		// Later writes of the batch's ids pass again, whatever became of it.
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inflight = nil
		if claimed && !done {
			s.failures++
			if err != nil {
				// Damage found here is not what the claim was refused for: the ops
				// may have been done before.
				err = fmt.Errorf("%w: %v", txnstate.ErrUncertain, err)
			}
		}
	}()
	if err := tmp.fill(next); err != nil {
		return 0, false, err
	}
	if !s.enter(next, batch, tmp.name) {
		return base.gen, false, nil
	}
	claimed = true
	err = s.dir.fs.Link(tmp.name, s.dir.file(next.gen))
	s.settle(batch)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		// Somebody was first, or has removed the temporary file since. Or this was
		// first: a network file system repeats a request whose answer was lost, and
		// meets its own link, or what others have made of it.
		if ours, newest, err := s.ours(next); err != nil || !ours {
			return newest, false, err
		}
	case err != nil:
		return 0, false, err
	}
	t := s.tended
	s.tended = tended{}
	var l listing
	still := false
	if !t.due(next.gen) {
		if still, err = s.dir.remains(base.gen); err != nil {
			return 0, false, err
		}
	}
	lists := !still
	if lists {
		if l, err = s.dir.list(); err != nil {
			return 0, false, err
		}
		still = l.holds(base.gen)
	}
	if !still {
		ours, newest, err := s.ours(next)
		if err != nil {
			return 0, false, err
		}
		if !ours {
			// It came back. Nobody can have taken it for the newest.
			_ = s.dir.fs.Remove(s.dir.file(next.gen)) // harmless where it stays
			return newest, false, nil
		}
	}
	clean := true
	if lists {
		clean = s.dir.clear(l, next.gen)
		tmp.gone = clean // it was one of those
	} else {
		clean = tmp.remove()
	}
	if err := s.dir.fs.SyncDir(s.dir.path); err != nil {
		s.mu.Lock()
		s.suspect = max(s.suspect, next.gen)
		s.mu.Unlock()
		return 0, false, fmt.Errorf("sync of generation %d: %w", next.gen, err)
	}
	s.mu.Lock()
	s.synced = max(s.synced, next.gen)
	s.replace(next)
	s.inflight = nil
	s.copyDue = true
	s.mu.Unlock()
	answer(batch)
	if clean {
		if lists {
			s.tended, err = s.dir.collect(l, next.gen)
		} else {
			s.tended, err = s.dir.collectOne(t, next.gen)
		}
		if err != nil {
			s.store.log.Debug("old generations of a slot stay for now", "slot", s.n, "err", err)
		}
	}
	return 0, true, nil
}

// maxUnsynced is how many generations are made on top of the last one that is
// known to be durable before a sync has to succeed first.
const maxUnsynced = 4

func (s *slot) unsynced(c *content) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.gen - min(c.gen, max(s.synced, takenOver))
}

// writes reports whether a batch may need a generation.
func (s *slot) writes(batch []*op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range batch {
		if o.kind == opSwap || o.kind == opDelete || o.kind == opRenew || o.kind == opFlush && len(s.overlay) > 0 {
			return true
		}
	}
	return s.suspect > s.synced // look will want a new generation before anything else
}

// plan decides every op of a batch on top of base and returns the generation to
// claim, nil where none is needed: the answers are final then. Without a
// temporary file there can't be one.
func (s *slot) plan(base *content, trusted, canClaim bool, batch []*op) *content {
	next := base.next(s.store.nonce())
	edits := map[string]*entry{}
	touched := map[string]bool{}

	s.mu.Lock()
	defer s.mu.Unlock()
	// Of the claims made here before, those that are not in base will never be:
	// their links have returned.
	s.claims = slices.DeleteFunc(s.claims, func(p claimed) bool {
		landed, known := base.descends(p.gen, p.nonce)
		return known && !landed
	})
	top := map[string]later{} // the Later writes that stand on top of base
	for id, l := range s.overlay {
		if b, what := s.survives(id, l, base); what == stands {
			top[id] = later{l.e, b}
		}
	}
	before := func(id string) *entry {
		if l, ok := top[id]; ok {
			return l.e
		}
		return base.find(id)
	}
	see := func(id string) *entry {
		if e, ok := edits[id]; ok {
			return e
		}
		return before(id)
	}
	claim := !trusted
	for _, o := range batch {
		o.planned, o.version = true, 0
		switch o.kind {
		case opFlush:
			claim = claim || canClaim && len(top) > 0 // else they came after Flush was called
			o.rests, o.err = true, nil
			continue
		case opRenew:
			claim = true
			o.rests, o.err = true, nil
			continue
		case opSwap, opLater, opDelete, opCopy:
		}
		o.err = o.refusal(see(o.id))
		// A refusal by an earlier op of the batch is worth as much as that one.
		o.rests = o.err == nil || !trusted || touched[o.id] && !errors.Is(o.refusal(before(o.id)), o.err)
		if o.err != nil {
			continue
		}
		touched[o.id] = true
		switch o.kind {
		case opDelete:
			edits[o.id] = nil
			claim = true
			continue
		case opLater:
			o.version = s.store.laterVersion()
		default:
			o.version = next.seq
			claim = true
		}
		edits[o.id] = newEntry(o.id, o.value, o.version)
	}
	if !claim {
		for id := range touched { // by Later swaps alone
			b, ok := top[id]
			if !ok {
				b.base = versionOf(base.find(id))
			}
			s.overlay[id] = later{edits[id], b.base}
		}
		return nil
	}
	next.consumed = map[string]txnstate.Version{}
	for id, l := range top {
		next.consumed[id] = l.e.version
		if _, ok := edits[id]; !ok {
			edits[id] = l.e
		}
	}
	next.entries = base.with(edits)
	s.inflight = touched
	return next
}

// enter is the last moment at which somebody can leave the batch.
func (s *slot) enter(next *content, batch []*op, tmp string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range batch {
		if o.gone && o.rests {
			return false
		}
	}
	c := &claim{tmp, make(chan struct{})}
	for _, o := range batch {
		o.claim = c
	}
	s.pending = next
	s.claims = append(s.claims, claimed{next.gen, next.nonce, next.consumed})
	return true
}

func (s *slot) settle(batch []*op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(batch[0].claim.settled)
	for _, o := range batch {
		o.claim = nil
	}
}

// ours looks whether a generation that was linked, or was not, is among those
// that led to the newest.
func (s *slot) ours(c *content) (ours bool, newest uint64, err error) {
	now, _, err := s.look()
	if err != nil && !errors.Is(err, errSuspect) {
		return false, 0, err
	}
	is, known := now.descends(c.gen, c.nonce)
	if !known {
		return false, 0, fmt.Errorf("generation %d is too long ago to tell who made it", c.gen)
	}
	return is, now.gen, nil
}

func answer(batch []*op) {
	for _, o := range batch {
		close(o.done)
	}
}

// fail answers a batch that led to nothing, or to nobody knows what.
func (s *slot) fail(batch []*op, err error) {
	for _, o := range batch {
		switch {
		case o.planned && !o.rests: // refused, whatever became of the others
		case errors.Is(err, txnstate.ErrDamaged):
			o.version, o.err = 0, err
		default:
			o.version, o.err = 0, unsure(err)
		}
	}
	answer(batch)
}

// tmpFile is a generation before it is claimed. Once it failed to be written or
// synced it is not used again, and neither is what was meant to be in it.
type tmpFile struct {
	s    *slot
	name string
	f    fsx.File // nil once it is closed
	gone bool     // its name was removed
}

func (s *slot) createTmp(base uint64) (*tmpFile, error) {
	name := s.dir.scratch(tmpPrefix, base, s.store.nonce())
	f, err := s.dir.fs.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return &tmpFile{s: s, name: name, f: f}, nil
}

func (t *tmpFile) fill(c *content) error {
	buf := t.s.store.buffer()
	defer t.s.store.release(buf)
	*buf = c.appendFile(*buf, t.s.n)
	if _, err := t.f.Write(*buf); err != nil {
		return err
	}
	if err := t.f.Sync(); err != nil {
		return err
	}
	f := t.f
	t.f = nil
	return f.Close()
}

func (t *tmpFile) remove() bool {
	err := t.s.dir.fs.Remove(t.name)
	t.gone = err == nil || errors.Is(err, fs.ErrNotExist)
	return t.gone
}

// discard removes the name, which after a claim is the second of two. What it
// leaves behind is removed with the generation it was made for.
func (t *tmpFile) discard() {
	if t.f != nil {
		_ = t.f.Close() // nothing in it is wanted
	}
	if !t.gone {
		t.remove() // as above
	}
}
