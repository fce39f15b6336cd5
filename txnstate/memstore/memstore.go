package memstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Store is a txnstate.Store in memory. Make one with New. Its methods may be
// called concurrently and never wait for anything but memory; a context that is
// done is noticed on entry, and nothing is changed then.
type Store struct {
	// One counter for all ids, so that an id that is deleted and made again
	// can't meet a version it had before.
	last  atomic.Uint64
	slots [txnstate.Slots]slot
}

// slot is also the unit of locking: a visit reads one map, and ids of different
// slots do not meet.
type slot struct {
	mu      sync.RWMutex
	records map[string]*txnstate.Record // written in place, under mu only; not what their slices hold
	_       [64]byte                    // neighbours on one cache line would slow each other down
}

var (
	_ txnstate.Store    = (*Store)(nil)
	_ txnstate.LaterNow = (*Store)(nil)
	_ txnstate.Starter  = (*Store)(nil)
)

// New is an empty store.
func New() *Store {
	s := new(Store)
	for i := range s.slots {
		s.slots[i].records = map[string]*txnstate.Record{}
	}
	return s
}

func (s *Store) slot(txnID string) *slot { return &s.slots[txnstate.Slot(txnID)] }

// Load implements txnstate.Store.
func (s *Store) Load(ctx context.Context, txnID string) (txnstate.Record, error) {
	if err := ctx.Err(); err != nil {
		return txnstate.Record{}, err
	}
	if rec, ok := s.slot(txnID).get(txnID); ok {
		return rec.Clone(), nil
	}
	return txnstate.Record{}, txnstate.ErrNotFound
}

// get is a record whose slices are shared.
func (l *slot) get(txnID string) (txnstate.Record, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r, ok := l.records[txnID]
	if !ok {
		return txnstate.Record{}, false
	}
	return *r, true
}

// LoadNow implements txnstate.Starter.
func (s *Store) LoadNow(txnID string) (txnstate.Record, bool) { return s.slot(txnID).get(txnID) }

// Swap implements txnstate.Store. Durable and Later are the same here: both are
// visible on return and last as long as the Store.
func (s *Store) Swap(ctx context.Context, next txnstate.Record, _ txnstate.Durability) (txnstate.Version, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
	}
	return s.swap(next.Clone())
}

// SwapNow implements txnstate.LaterNow.
func (s *Store) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	v, err := s.swap(next.Clone())
	return v, err == nil
}

// SwapStart implements txnstate.Starter.
func (s *Store) SwapStart(next txnstate.Record) (txnstate.Version, txnstate.Pending, bool) {
	v, err := s.swap(next)
	return v, nil, err == nil
}

// swap keeps the slices of next.
func (s *Store) swap(next txnstate.Record) (txnstate.Version, error) {
	l := s.slot(next.TxnID)
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.records[next.TxnID]
	switch {
	case r == nil && next.Version != 0, r != nil && next.Version != r.Version:
		return 0, txnstate.ErrConflict
	case r == nil:
		// The caller's id may be a piece of a request's buffer.
		r = &txnstate.Record{TxnID: strings.Clone(next.TxnID)}
		l.records[r.TxnID] = r
	}
	next.TxnID = r.TxnID
	next.Version = txnstate.Version(s.last.Add(1))
	*r = next
	return next.Version, nil
}

// Delete implements txnstate.Store.
func (s *Store) Delete(ctx context.Context, txnID string, old txnstate.Version) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
	}
	l := s.slot(txnID)
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.records[txnID]
	switch {
	case !ok:
		return txnstate.ErrNotFound
	case r.Version != old:
		return txnstate.ErrConflict
	}
	delete(l.records, txnID)
	return nil
}

// Slot implements txnstate.Store. The ids are those at the beginning of the
// visit, in order; each record is the one at its turn.
func (s *Store) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if slot < 0 || slot >= txnstate.Slots {
			yield(txnstate.Record{}, fmt.Errorf("memstore: no slot %d", slot))
			return
		}
		l := &s.slots[slot]
		for _, id := range l.ids() {
			if err := ctx.Err(); err != nil {
				yield(txnstate.Record{}, err)
				return
			}
			if rec, ok := l.get(id); ok && !yield(rec.Clone(), nil) {
				return
			}
		}
	}
}

// ids is sorted, so that a seeded simulation on this store repeats itself.
func (l *slot) ids() []string {
	l.mu.RLock()
	ids := make([]string, 0, len(l.records))
	for id := range l.records {
		ids = append(ids, id)
	}
	l.mu.RUnlock()
	slices.Sort(ids)
	return ids
}
