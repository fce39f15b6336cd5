package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// History records the calls that are made to a store, through any number of
// handles, and tells whether they are linearizable: whether one store that does
// one thing at a time, each between its call and its return, could have given
// the same answers. The zero History is ready to use, by several goroutines.
//
// A write that ended with ErrUncertain may have been done, at any time up to the
// first later Load of its id that answered without it. Later writes of several
// handles must not be mixed in, for a handle need not see those of another.
type History struct {
	// Used says that the store was not empty at the beginning: what an id held
	// is learned from the first answer then.
	Used bool

	mu    sync.Mutex
	clock int // of calls and returns: the order is all that counts
	calls []*call
}

type callKind uint8

const (
	callLoad callKind = iota
	callSwap
	callDelete
)

// call is one call and its answer.
type call struct {
	kind       callKind
	id         string
	from, till int // on the History's clock; till is 0 while it runs

	old  txnstate.Version // of writes
	next txnstate.Record  // of a Swap: what it wanted to store
	rec  txnstate.Record  // of a Load: what it found; of a Swap: Version only
	err  error
}

// Of returns a store that does what s does, and records it. Its Slot and Flush
// are those of s and are not recorded.
func (h *History) Of(s txnstate.Store) txnstate.Store { return &recorded{s, h} }

func (h *History) begin(c *call) *call {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	c.from = h.clock
	h.calls = append(h.calls, c)
	return c
}

func (h *History) end(c *call, rec txnstate.Record, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	c.till, c.rec, c.err = h.clock, rec, err
}

type recorded struct {
	s txnstate.Store
	h *History
}

func (r *recorded) Load(ctx context.Context, txnID string) (txnstate.Record, error) {
	c := r.h.begin(&call{kind: callLoad, id: txnID})
	rec, err := r.s.Load(ctx, txnID)
	r.h.end(c, rec.Clone(), err)
	return rec, err
}

func (r *recorded) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	c := r.h.begin(&call{kind: callSwap, id: next.TxnID, old: next.Version, next: next.Clone()})
	v, err := r.s.Swap(ctx, next, d)
	r.h.end(c, txnstate.Record{Version: v}, err)
	return v, err
}

func (r *recorded) Delete(ctx context.Context, txnID string, old txnstate.Version) error {
	c := r.h.begin(&call{kind: callDelete, id: txnID, old: old})
	err := r.s.Delete(ctx, txnID, old)
	r.h.end(c, txnstate.Record{}, err)
	return err
}

func (r *recorded) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return r.s.Slot(ctx, slot)
}

func (r *recorded) Flush(ctx context.Context) error { return flush(ctx, r.s) }

func flush(ctx context.Context, s txnstate.Store) error {
	if f, ok := s.(txnstate.Flusher); ok {
		return f.Flush(ctx)
	}
	return nil
}

// Check is nil where the calls recorded so far are linearizable, and otherwise
// an error that lists those of the id that are not. All calls must have returned
// but for those that never will, which count as uncertain.
func (h *History) Check() error {
	h.mu.Lock()
	byID := map[string][]*call{}
	for _, c := range h.calls {
		byID[c.id] = append(byID[c.id], c)
	}
	h.mu.Unlock()
	for id, calls := range byID {
		if !linearizable(calls, model{unset: h.Used}) {
			var b strings.Builder
			for _, c := range calls {
				fmt.Fprintf(&b, "\n\t%s", c)
			}
			return fmt.Errorf("no single order of these calls for %.60q gives these answers:%s", id, b.String())
		}
	}
	return nil
}

func (c *call) String() string {
	till := "never"
	if c.till > 0 {
		till = fmt.Sprint(c.till)
	}
	at := fmt.Sprintf("%d to %s: ", c.from, till)
	switch c.kind {
	case callSwap:
		return at + fmt.Sprintf("Swap of version %d by %d: version %d, %v", c.old, c.next.UpdateMs, c.rec.Version, c.err)
	case callDelete:
		return at + fmt.Sprintf("Delete at version %d: %v", c.old, c.err)
	case callLoad:
	}
	return at + fmt.Sprintf("Load: %d at version %d, %v", c.rec.UpdateMs, c.rec.Version, c.err)
}

// unsure reports that the call may have been done although it did not say so.
func (c *call) unsure() bool {
	return c.kind != callLoad && (c.till == 0 || c.err != nil && !c.refused())
}

// refused reports that the answer promises that nothing was changed.
func (c *call) refused() bool {
	return errors.Is(c.err, txnstate.ErrConflict) || errors.Is(c.err, txnstate.ErrNotFound) || errors.Is(c.err, txnstate.ErrDamaged)
}

// silent reports a call that says nothing: a Load that failed or never returned.
func (c *call) silent() bool {
	return c.kind == callLoad && (c.till == 0 || c.err != nil && !errors.Is(c.err, txnstate.ErrNotFound))
}

// model is what the one store would hold for the id. An unsure Swap leaves a
// version that nobody was told: it is learned from the first answer that shows
// it.
type model struct {
	version txnstate.Version // 0 is no record
	rec     *txnstate.Record
	unknown bool // there is a record, and its version is not known
	unset   bool // nothing is known yet
}

// linearizable looks for an order, depth first: at each step any call may be
// next that began before every call left over returned.
func linearizable(calls []*call, begin model) bool {
	calls = slices.DeleteFunc(slices.Clone(calls), (*call).silent)
	given := map[txnstate.Version]bool{} // versions that some answer named as its own
	for _, c := range calls {
		if c.kind == callSwap && c.till > 0 && c.err == nil {
			if given[c.rec.Version] {
				return false // one version for two writes
			}
			given[c.rec.Version] = true
		}
	}
	done := make([]bool, len(calls))
	tried := map[string]bool{}
	var search func(m model, lastLoad int) bool
	search = func(m model, lastLoad int) bool {
		horizon, left := int(^uint(0)>>1), false
		for i, c := range calls {
			if !done[i] && !c.unsure() {
				left = true
				horizon = min(horizon, c.till)
			}
		}
		if !left {
			return true // what is unsure may not have been done at all
		}
		key := fmt.Sprint(done, m.version, m.unknown, m.unset, lastLoad)
		if m.rec != nil {
			key += brief(*m.rec)
		}
		if tried[key] {
			return false
		}
		tried[key] = true
		for i, c := range calls {
			if done[i] || c.from > horizon {
				continue
			}
			if c.unsure() && c.till > 0 && lastLoad > c.till {
				continue // a Load that began after its return went without it
			}
			next, ok := m.answer(c, given)
			if !ok {
				continue
			}
			load := lastLoad
			if c.kind == callLoad {
				load = max(load, c.from)
			}
			done[i] = true
			if search(next, load) {
				return true
			}
			done[i] = false
		}
		return false
	}
	return search(begin, 0)
}

// is says whether the present version can be v, and what the model knows then.
func (m model) is(v txnstate.Version, given map[txnstate.Version]bool) (model, bool) {
	if m.unknown {
		// A version that another write was given can't be this one's.
		return model{version: v, rec: m.rec}, v != 0 && !given[v]
	}
	return m, m.version == v
}

// answer is the model after a call, and whether the one store could have
// answered so.
func (m model) answer(c *call, given map[txnstate.Version]bool) (model, bool) {
	if m.unset {
		return m.first(c)
	}
	switch {
	case c.kind == callLoad && errors.Is(c.err, txnstate.ErrNotFound):
		return m, m.version == 0 && !m.unknown
	case c.kind == callLoad:
		n, ok := m.is(c.rec.Version, given)
		return n, ok && n.rec != nil && n.rec.Equal(c.rec)
	case errors.Is(c.err, txnstate.ErrNotFound):
		return m, m.version == 0 && !m.unknown
	case c.refused():
		// An unknown version may always be another one than the caller's.
		return m, m.unknown || m.version != c.old
	}
	n, ok := m.is(c.old, given)
	if c.old == 0 {
		n, ok = m, m.version == 0 && !m.unknown
	}
	if !ok {
		return m, false
	}
	if c.kind == callDelete {
		return model{}, n.version != 0
	}
	if c.unsure() {
		return model{rec: &c.next, unknown: true}, true
	}
	return model{version: c.rec.Version, rec: &c.next}, true
}

// first is answer where nothing is known of what was there before the call.
func (m model) first(c *call) (model, bool) {
	switch {
	case errors.Is(c.err, txnstate.ErrNotFound):
		return model{}, true
	case c.kind == callLoad:
		return model{version: c.rec.Version, rec: &c.rec}, true
	case c.refused():
		return m, true
	case c.kind == callDelete:
		return model{}, c.old != 0
	case c.unsure():
		return model{rec: &c.next, unknown: true}, true
	}
	return model{version: c.rec.Version, rec: &c.next}, true
}

// durably makes every write Durable.
type durably struct{ txnstate.Store }

func (s durably) Swap(ctx context.Context, next txnstate.Record, _ txnstate.Durability) (txnstate.Version, error) {
	return s.Store.Swap(ctx, next, txnstate.Durable)
}

// wantLinearizable lets one goroutine per store do random things to two ids and
// checks the history.
func wantLinearizable(t testing.TB, seed uint64, stores []txnstate.Store) {
	t.Helper()
	var h History
	var wg sync.WaitGroup
	ids := idsOf(7, 2, "history")
	for i, s := range stores {
		s := h.Of(durably{s})
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			known := map[string]txnstate.Version{}
			for n := range int64(15) {
				id := ids[rng.IntN(len(ids))]
				switch k := rng.IntN(10); {
				case k < 4:
					if r, err := s.Load(t.Context(), id); err == nil {
						known[id] = r.Version
					} else {
						known[id] = 0
					}
				case k < 8:
					// n and i make every record unlike every other.
					r := at(sample(id, n*100+int64(i)), known[id])
					if v, err := s.Swap(t.Context(), r, txnstate.Durable); err == nil {
						known[id] = v
					}
				default:
					if err := s.Delete(t.Context(), id, known[id]); err == nil {
						known[id] = 0
					}
				}
			}
		})
	}
	wg.Wait()
	if err := h.Check(); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
}
