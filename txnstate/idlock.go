package txnstate

import (
	"context"
	"slices"
	"sync"
)

// idLocks serialises the work on each transactional id and on nothing else.
// Whoever waits gets the id in the order in which they came, and can be
// interrupted by a context. h is hash32 of the id throughout.
type idLocks struct {
	shards [64]idLockShard
}

type idLockShard struct {
	mu sync.Mutex // never held while anything waits
	// m has the ids that somebody holds; nil where nobody waits, which is the
	// rule: so a lock that is free costs no memory, and one that is not, no
	// allocation.
	m map[string]*idQueue
}

// idQueue is who waits for an id, first come first.
type idQueue struct {
	turns []chan struct{} // each holds one element when its turn has come
}

func (l *idLocks) shard(h uint32) *idLockShard { return &l.shards[h%uint32(len(l.shards))] }

// lock waits until the id is free and takes it.
func (l *idLocks) lock(ctx context.Context, h uint32, id string) error {
	s := l.shard(h)
	s.mu.Lock()
	if s.take(id) {
		s.mu.Unlock()
		return nil
	}
	q := s.m[id]
	if q == nil {
		q = &idQueue{}
		s.m[id] = q
	}
	turn := make(chan struct{}, 1)
	q.turns = append(q.turns, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(q.turns, turn)
	if i >= 0 {
		q.turns = slices.Delete(q.turns, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		l.unlock(h, id) // the turn came at the same time: it is the next one's
	}
	return ctx.Err()
}

// try is lock for a caller who has other plans where the id is not free.
func (l *idLocks) try(h uint32, id string) (free bool) {
	s := l.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(id)
}

// unlock gives the id to the next who waits.
func (l *idLocks) unlock(h uint32, id string) {
	s := l.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.m[id]
	if q == nil || len(q.turns) == 0 {
		delete(s.m, id)
		return
	}
	q.turns[0] <- struct{}{}
	q.turns = slices.Delete(q.turns, 0, 1)
}

// take takes an id that is free. mu is held.
func (s *idLockShard) take(id string) bool {
	if _, held := s.m[id]; held {
		return false
	}
	if s.m == nil {
		s.m = map[string]*idQueue{}
	}
	s.m[id] = nil
	return true
}
