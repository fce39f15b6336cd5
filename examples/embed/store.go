package main

import (
	"context"
	"iter"
	"sync"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// store keeps a record for each transactional id: it compares and swaps. Yours does
// so durably, and passes txnstate/storetest; packages journal and slotfile do.
type store struct {
	mu   sync.Mutex
	last txnstate.Version // never goes back
	recs map[string]txnstate.Record
}

func newStore() *store { return &store{recs: map[string]txnstate.Record{}} }

func (s *store) Load(_ context.Context, id string) (txnstate.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.recs[id]; ok {
		return r.Clone(), nil
	}
	return txnstate.Record{}, txnstate.ErrNotFound
}

func (s *store) Swap(_ context.Context, next txnstate.Record, _ txnstate.Durability) (txnstate.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recs[next.TxnID].Version != next.Version {
		return 0, txnstate.ErrConflict
	}
	s.last++
	next.Version = s.last
	s.recs[next.TxnID] = next.Clone()
	return s.last, nil
}

func (s *store) Delete(_ context.Context, id string, old txnstate.Version) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r, ok := s.recs[id]; {
	case !ok:
		return txnstate.ErrNotFound
	case r.Version != old:
		return txnstate.ErrConflict
	}
	delete(s.recs, id)
	return nil
}

func (s *store) Slot(_ context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		s.mu.Lock()
		var recs []txnstate.Record // the lock is not held while the caller looks at them
		for id, r := range s.recs {
			if txnstate.Slot(id) == slot {
				recs = append(recs, r.Clone())
			}
		}
		s.mu.Unlock()
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}
}
