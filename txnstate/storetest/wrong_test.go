package storetest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// disk is what handles of the reference store share. It is slow, obvious and,
// without flaws, right.
type disk struct {
	flaws map[flaw]bool

	mu      sync.Mutex
	records map[string]txnstate.Record
	last    txnstate.Version
}

// handle is one process' view of a disk.
type handle struct {
	d *disk

	mu      sync.Mutex // taken after disk.mu
	overlay map[string]pending
	order   []string // ids of Later writes, in their order
	cache   map[string]txnstate.Record
	syncs   int
	stalled map[string]*stalled
	dropped map[string]bool
	all     sync.Mutex // only for flawOneLock
}

type pending struct {
	rec  txnstate.Record
	base txnstate.Version
}

type stalled struct{ hung, release chan struct{} }

// flaw is one thing that a wrong store does wrong.
type flaw string

const (
	flawInvents       flaw = "Load makes up a record for an id that is not there"
	flawStaleReturn   flaw = "Swap returns the version that it replaced"
	flawBlind         flaw = "Swap does not compare versions"
	flawOverwrites    flaw = "Swap from zero replaces a record"
	flawResurrects    flaw = "Swap of a missing id ignores the version"
	flawConflictWrite flaw = "Swap writes, and then sees the conflict"
	flawCheckThenAct  flaw = "Swap compares, lets go, and writes"
	flawBlindDelete   flaw = "Delete does not compare versions"
	flawLazyDelete    flaw = "Delete of a missing id says done"
	flawPlainCtx      flaw = "a write says only that the context ended"
	flawABA           flaw = "versions begin again after a delete"
	flawKeepsPassed   flaw = "a record passed in is not copied"
	flawSharesOut     flaw = "a record returned is not copied"
	flawDropsField    flaw = "a field is not stored"
	flawTrims         flaw = "ids are trimmed"
	flawFolds         flaw = "ids are made valid UTF-8"
	flawSlotAll       flaw = "the visit gives other slots' records too"
	flawSlotTwice     flaw = "the visit gives a Later record twice"
	flawSlotLocks     flaw = "the visit holds a lock while it yields"
	flawSlotWraps     flaw = "slots are taken modulo their number"
	flawOneLock       flaw = "one lock for all ids, held during I/O"
	flawForgetsLast   flaw = "reopening loses the latest write"
	flawUndeletes     flaw = "reopening brings deleted records back"
	flawRestartsCount flaw = "reopening begins versions again"
	flawLaterHidden   flaw = "a Later write is visible once it is durable"
	flawLaterSyncs    flaw = "a Later write syncs"
	flawNotDurable    flaw = "a Durable write is kept as a Later one is"
	flawOnlyOwn       flaw = "a Durable write leaves Later ones of its slot behind"
	flawTornOrder     flaw = "a crash keeps the Later writes of one id only"
	flawLazyFlush     flaw = "Flush does nothing"
	flawStaleCache    flaw = "Load believes its cache"
	flawComesBack     flaw = "a Later write that was overtaken comes back"
	flawDropsSilently flaw = "nobody is told of a Later write that was overtaken"
	flawTellsTwice    flaw = "Dropped says the same again"
	flawTellsSettled  flaw = "Dropped names what was not given up"
	flawBlindNow      flaw = "SwapNow does not compare versions"
	flawBoastfulNow   flaw = "SwapNow says that it has done what it has not"
)

func newHandle(d *disk) *handle {
	return &handle{d: d, overlay: map[string]pending{}, cache: map[string]txnstate.Record{}, stalled: map[string]*stalled{}, dropped: map[string]bool{}}
}

func (d *disk) has(f flaw) bool { return d.flaws[f] }

// key is the id as stored.
func (d *disk) key(id string) string {
	if d.has(flawTrims) {
		id = strings.TrimRight(id, " \x00\n")
	}
	if d.has(flawFolds) {
		id = strings.ToValidUTF8(id, "\ufffd")
	}
	return id
}

// lookup is the record as this handle sees it. Both mutexes are held.
func (h *handle) lookup(id string) (txnstate.Record, bool) {
	stored, ok := h.d.records[id]
	if p, has := h.overlay[id]; has {
		if p.base == stored.Version || h.d.has(flawComesBack) {
			return p.rec, true
		}
		h.drop(id)
	}
	return stored, ok
}

func (h *handle) drop(id string) {
	delete(h.overlay, id)
	h.dropped[id] = true
}

func (h *handle) Dropped() []string {
	defer h.lock()()
	if h.d.has(flawDropsSilently) {
		return nil
	}
	ids := slices.Collect(maps.Keys(h.dropped))
	if !h.d.has(flawTellsTwice) {
		clear(h.dropped)
	}
	return ids
}

func (h *handle) lock() (unlock func()) {
	h.d.mu.Lock()
	h.mu.Lock()
	return func() {
		h.mu.Unlock()
		h.d.mu.Unlock()
	}
}

func (h *handle) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if err := ctx.Err(); err != nil {
		return txnstate.Record{}, err
	}
	if h.d.has(flawOneLock) {
		h.all.Lock()
		defer h.all.Unlock()
	}
	defer h.lock()()
	id = h.d.key(id)
	r, ok := h.lookup(id)
	if c, cached := h.cache[id]; cached && h.d.has(flawStaleCache) {
		r, ok = c, true
	}
	if p := h.overlay[id]; ok && h.d.has(flawLaterHidden) && p.rec.Version == r.Version {
		r, ok = h.d.records[id]
	}
	switch {
	case !ok && h.d.has(flawInvents):
		return txnstate.Unknown(id), nil
	case !ok:
		return txnstate.Record{}, txnstate.ErrNotFound
	case h.d.has(flawStaleCache):
		h.cache[id] = r
	case h.d.has(flawSharesOut):
		return r, nil
	}
	return r.Clone(), nil
}

func (h *handle) version(id string) txnstate.Version {
	if h.d.has(flawABA) {
		r, _ := h.lookup(id)
		return r.Version + 1
	}
	h.d.last++
	return h.d.last
}

func (h *handle) stall(id string) {
	h.mu.Lock()
	st := h.stalled[id]
	delete(h.stalled, id)
	h.mu.Unlock()
	if st != nil {
		close(st.hung)
		<-st.release
	}
}

func (h *handle) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	switch {
	case h.d.has(flawBlindNow):
		r, _ := h.Load(context.Background(), next.TxnID)
		next.Version = r.Version
	case h.d.has(flawBoastfulNow):
		return next.Version + 1, true
	}
	v, err := h.Swap(context.Background(), next, txnstate.Later)
	return v, err == nil
}

func (h *handle) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if err := ctx.Err(); err != nil {
		return 0, h.ended(err)
	}
	if h.d.has(flawOneLock) {
		h.all.Lock()
		defer h.all.Unlock()
	}
	id := h.d.key(next.TxnID)
	h.stall(id)
	unlock := h.lock()
	defer func() { unlock() }()
	r, ok := h.lookup(id)
	fits := r.Version == next.Version
	switch {
	case h.d.has(flawBlind),
		ok && next.Version == 0 && h.d.has(flawOverwrites),
		!ok && h.d.has(flawResurrects):
		fits = true
	}
	if !fits && !h.d.has(flawConflictWrite) {
		return 0, txnstate.ErrConflict
	}
	if h.d.has(flawCheckThenAct) {
		unlock()
		for range 100 {
			runtime.Gosched()
		}
		unlock = h.lock()
		r, _ = h.lookup(id)
	}
	old := r.Version
	if !h.d.has(flawKeepsPassed) {
		next = next.Clone()
	}
	if h.d.has(flawDropsField) {
		next.TxnSeq = 0
	}
	next.TxnID = id
	next.Version = h.version(id)
	h.cache[id] = next
	if h.d.has(flawNotDurable) {
		d = txnstate.Later
	}
	if d == txnstate.Later {
		if h.d.has(flawLaterSyncs) {
			h.syncs++
		}
		base := h.d.records[id].Version
		if p, ok := h.overlay[id]; ok {
			base = p.base
		}
		h.overlay[id] = pending{next, base}
		h.order = append(h.order, id)
	} else {
		h.merge(id)
		h.d.records[id] = next
		h.syncs++
	}
	if !fits {
		return 0, txnstate.ErrConflict
	}
	if h.d.has(flawStaleReturn) && old != 0 {
		return old, nil
	}
	return next.Version, nil
}

// merge makes the Later writes of id's slot durable, ahead of a Durable one.
func (h *handle) merge(id string) {
	for other, p := range h.overlay {
		if txnstate.Slot(other) != txnstate.Slot(id) || other != id && h.d.has(flawOnlyOwn) {
			continue
		}
		if p.base == h.d.records[other].Version || h.d.has(flawComesBack) {
			h.d.records[other] = p.rec
			delete(h.overlay, other)
			if h.d.has(flawTellsSettled) {
				h.dropped[other] = true
			}
		} else {
			h.drop(other)
		}
	}
}

func (h *handle) ended(err error) error {
	if h.d.has(flawPlainCtx) {
		return err
	}
	return fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
}

func (h *handle) Delete(ctx context.Context, id string, old txnstate.Version) error {
	if err := ctx.Err(); err != nil {
		return h.ended(err)
	}
	if h.d.has(flawOneLock) {
		h.all.Lock()
		defer h.all.Unlock()
	}
	defer h.lock()()
	id = h.d.key(id)
	r, ok := h.lookup(id)
	switch {
	case !ok && h.d.has(flawLazyDelete):
		return nil
	case !ok:
		return txnstate.ErrNotFound
	case r.Version != old && !h.d.has(flawBlindDelete):
		return txnstate.ErrConflict
	}
	h.merge(id)
	delete(h.d.records, id)
	delete(h.cache, id)
	if h.d.has(flawUndeletes) {
		h.d.records["deleted "+id] = r
	}
	h.syncs++
	return nil
}

func (h *handle) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if h.d.has(flawSlotWraps) {
			slot = ((slot % txnstate.Slots) + txnstate.Slots) % txnstate.Slots
		}
		unlock := h.lock()
		var rs []txnstate.Record
		for id := range h.d.records {
			if r, ok := h.lookup(id); ok && (txnstate.Slot(id) == slot || h.d.has(flawSlotAll)) && !strings.HasPrefix(id, "deleted ") {
				rs = append(rs, r.Clone())
			}
		}
		for id := range h.overlay {
			_, stored := h.d.records[id]
			if r, ok := h.lookup(id); ok && (!stored || h.d.has(flawSlotTwice)) && txnstate.Slot(id) == slot {
				rs = append(rs, r.Clone())
			}
		}
		if h.d.has(flawSlotLocks) {
			defer unlock()
		} else {
			unlock()
		}
		for _, r := range rs {
			if err := ctx.Err(); err != nil {
				yield(txnstate.Record{}, err)
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (h *handle) Flush(context.Context) error {
	defer h.lock()()
	if h.d.has(flawLazyFlush) {
		return nil
	}
	for _, id := range slices.Collect(maps.Keys(h.overlay)) {
		h.merge(id)
	}
	return nil
}

// reopened is the disk as the next process finds it.
func (d *disk) reopened() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &disk{flaws: d.flaws, records: maps.Clone(d.records), last: d.last}
	if d.has(flawRestartsCount) {
		n.last = 0
	}
	if d.has(flawForgetsLast) {
		for id, r := range n.records {
			if r.Version == n.last {
				delete(n.records, id)
			}
		}
	}
	for id, r := range d.records {
		if old, ok := strings.CutPrefix(id, "deleted "); ok {
			delete(n.records, id)
			n.records[old] = r
		}
	}
	return n
}

func harnessOf(flaws ...flaw) Harness {
	set := map[flaw]bool{}
	for _, f := range flaws {
		set[f] = true
	}
	return Harness{
		Open: func(testing.TB) txnstate.Store {
			return newHandle(&disk{flaws: set, records: map[string]txnstate.Record{}})
		},
		Reopen: func(t testing.TB, s txnstate.Store) txnstate.Store {
			h := s.(*handle)
			if err := h.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			return newHandle(h.d.reopened())
		},
		Crash: func(_ testing.TB, s txnstate.Store) txnstate.Store {
			h := s.(*handle)
			if h.d.has(flawTornOrder) && len(h.order) > 0 {
				if p, ok := h.overlay[h.order[0]]; ok {
					h.d.records[h.order[0]] = p.rec
				}
			}
			return newHandle(h.d)
		},
		Peer:  func(_ testing.TB, s txnstate.Store) txnstate.Store { return newHandle(s.(*handle).d) },
		Syncs: func(s txnstate.Store) int { return s.(*handle).syncs },
		Stall: func(_ testing.TB, s txnstate.Store, id string) (<-chan struct{}, func()) {
			h, st := s.(*handle), &stalled{make(chan struct{}), make(chan struct{})}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.stalled[id] = st
			return st.hung, func() { close(st.release) }
		},
	}
}

// recorder is a testing.TB that fails nobody but itself. Skips and failures end
// the goroutine, as they do in a test.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	said   []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(...any)          { runtime.Goexit() }
func (r *recorder) Skipf(string, ...any) { runtime.Goexit() }
func (r *recorder) Fatal(args ...any)    { r.Fatalf("%s", fmt.Sprint(args...)) }
func (r *recorder) Error(args ...any)    { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Log(...any)           {}
func (r *recorder) Logf(string, ...any)  {}

// judge runs one case and reports whether it failed, and what it said.
func judge(t *testing.T, c testCase, h Harness) (failed bool, said []string) {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.execute(r, h)
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed, r.said
}

func TestTheSuiteAcceptsAStoreThatIsRight(t *testing.T) {
	Run(t, harnessOf())
}

func TestEveryCaseHasANameOfItsOwnAndAClause(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases() {
		if c.name == "" || c.clause == "" || seen[c.name] {
			t.Errorf("case %q, clause %q", c.name, c.clause)
		}
		seen[c.name] = true
	}
}

func TestTheSampleRecordsAreLegal(t *testing.T) {
	all := append(extremes("x"), sample("x", 1), open("x", 9))
	for _, r := range all {
		if err := txnstate.Check(r); err != nil {
			t.Error(err)
		}
	}
}

// Cases that several wrong stores fail.
const (
	conflictCase    = "a swap from another version is a conflict and changes nothing"
	missingSwapCase = "a swap of a missing id from a version is a conflict and stores nothing"
	versionsCase    = "an id never meets a version again, also when it was deleted and made anew"
	reversionsCase  = "an id never meets a version again after reopening"
	everyFieldCase  = "every field comes back as it went in"
	oddIDsCase      = "odd ids are ids like any other"
	withinCase      = "the store can be called from within a visit"
	stillCase       = "a visit that stands still stops nobody"
	hangCase        = "a write that hangs stops no other id"
	laterCase       = "a Later write is visible at once"
	overtakenCase   = "a Later write that another handle overtook is gone"
	finePeersCase   = "what one handle stored the other finds"
)

// TestTheSuiteCatchesWrongStores: a suite that nothing fails proves nothing.
// Each wrong store must fail the cases that are about its flaw. Those in may
// meet the flaw by chance, or on their way to something else; all the others
// must pass.
func TestTheSuiteCatchesWrongStores(t *testing.T) {
	races := []string{
		"of racing creators one succeeds", "of racing swaps from one version one succeeds", "racing increments lose nothing",
		"of two handles' racing swaps one succeeds", "racing increments over two handles lose nothing",
		"what callers see fits one store that does one thing at a time",
		"what callers of two handles see fits one store that does one thing at a time",
	}
	histories := races[len(races)-2:]
	for _, w := range []struct {
		flaw  flaw
		fails []string
		may   []string
	}{
		{flawInvents, []string{"an id that was never stored is not found"}, append([]string{
			missingSwapCase, nowCase, "a deleted record is gone and can be made anew", "a delete of a missing id is refused", oddIDsCase,
			"what was deleted stays deleted after reopening", laterCase, "a Durable write survives a crash", finePeersCase,
			"a context that is done does not leave a write half done",
		}, races...)},
		{flawStaleReturn, []string{"a swap from the present version replaces the record"}, nil}, // and all that swap twice
		{flawBlind, []string{conflictCase}, nil},                                                // and whatever else rests on it
		{flawOverwrites, []string{conflictCase, "of racing creators one succeeds"}, append([]string{laterCase, nowCase, "a version that another handle has replaced is a conflict"}, races...)},
		{flawResurrects, []string{missingSwapCase}, append([]string{nowCase, versionsCase, finePeersCase}, histories...)},
		{flawConflictWrite, []string{conflictCase}, nil},
		{flawCheckThenAct, []string{"of racing creators one succeeds", "of racing swaps from one version one succeeds"}, races},
		{flawBlindDelete, []string{"a delete at another version removes nothing"}, append([]string{versionsCase, "a version that another handle has replaced is a conflict"}, histories...)},
		{flawLazyDelete, []string{"a delete of a missing id is refused"}, histories},
		{flawPlainCtx, []string{"a context that is done does not leave a write half done"}, nil},
		{flawABA, []string{versionsCase, reversionsCase}, append([]string{overtakenCase}, histories...)},
		{flawKeepsPassed, []string{"a record passed in stays the caller's"}, nil},
		{flawSharesOut, []string{"a record returned is the caller's to change"}, nil},
		{flawDropsField, []string{everyFieldCase}, nil},
		{flawTrims, []string{oddIDsCase}, nil},
		{flawFolds, []string{oddIDsCase}, nil},
		{flawSlotAll, []string{"the visit of a slot gives each of its records once and no other"}, []string{oddIDsCase, "a slot that there isn't has no records"}},
		{flawSlotTwice, []string{"the visit of a slot gives each of its records once and no other", laterCase}, []string{oddIDsCase, "a Later write that another handle overtook is gone"}},
		{flawSlotLocks, []string{withinCase, stillCase}, nil},
		{flawSlotWraps, []string{"a slot that there isn't has no records"}, nil},
		{flawOneLock, []string{hangCase}, nil},
		{flawForgetsLast, []string{"what was written is there after reopening"}, []string{everyFieldCase, oddIDsCase, reversionsCase}},
		{flawUndeletes, []string{"what was deleted stays deleted after reopening"}, []string{reversionsCase, oddIDsCase}},
		{flawRestartsCount, []string{reversionsCase}, nil},
		{flawLaterHidden, []string{laterCase}, []string{
			everyFieldCase, oddIDsCase, versionsCase, nowCase, "a record passed in stays the caller's", "a record returned is the caller's to change",
			"participants come and go", "a Later write causes no sync of its own", "of racing creators one succeeds", "of racing swaps from one version one succeeds",
		}},
		{flawBlindNow, []string{nowCase}, nil},
		{flawBoastfulNow, []string{nowCase}, nil},
		{flawLaterSyncs, []string{"a Later write causes no sync of its own"}, nil},
		{flawNotDurable, []string{"a Durable write survives a crash", "a Later write becomes durable with the next Durable write of its slot"}, append([]string{
			"what a crash takes of Later writes is the end of their order", finePeersCase, "a version that another handle has replaced is a conflict",
			"handles that write different ids of one slot lose nothing", overtakenCase,
		}, races...)},
		{flawOnlyOwn, []string{"a Later write becomes durable with the next Durable write of its slot"}, nil},
		{flawTornOrder, []string{"what a crash takes of Later writes is the end of their order"}, nil},
		{flawLazyFlush, []string{"flushed Later writes survive a crash"}, nil},
		{flawStaleCache, []string{finePeersCase}, append([]string{"a version that another handle has replaced is a conflict", overtakenCase, "handles that write different ids of one slot lose nothing"}, races...)},
		{flawDropsSilently, []string{overtakenCase}, nil},
		{flawTellsTwice, []string{overtakenCase}, nil},
		{flawTellsSettled, []string{overtakenCase}, nil},
		{flawComesBack, []string{overtakenCase}, []string{versionsCase, laterCase, "a deleted record is gone and can be made anew", "what was deleted stays deleted after reopening"}},
	} {
		t.Run(string(w.flaw), func(t *testing.T) {
			h := harnessOf(w.flaw).withDefaults()
			hangs := w.flaw == flawSlotLocks || w.flaw == flawOneLock
			for _, c := range cases() {
				meant := slices.Contains(w.fails, c.name)
				if w.flaw == flawStaleReturn || w.flaw == flawBlind || w.flaw == flawConflictWrite || hangs {
					// These break nearly everything, or hang where the case is not
					// about hanging.
					if !meant {
						continue
					}
				}
				if hangs {
					h.patience = 100 * time.Millisecond // it hangs for certain
				}
				failed, said := judge(t, c, h)
				switch {
				case meant && !failed:
					t.Errorf("the suite does not notice: case %q passes", c.name)
				case meant && !strings.Contains(said[0], c.clause):
					t.Errorf("case %q fails without naming its clause: %s", c.name, said[0])
				case failed && !meant && !slices.Contains(w.may, c.name):
					t.Errorf("case %q is about something else, and fails: %s", c.name, said[0])
				}
			}
		})
	}
}
