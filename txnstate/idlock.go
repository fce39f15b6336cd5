package txnstate

import (
	"context"
	"sync"
)

// idLocks serialises the work on each transactional id and on nothing else. A
// waiter can be interrupted by its context.
type idLocks struct {
	shards [64]struct {
		mu sync.Mutex // never held while anything waits
		m  map[string]*idLock
	}
}

type idLock struct {
	token chan struct{} // holds one element while somebody has the id
	users int           // holder and waiters; the entry goes with the last
}

// lock waits until the id is free and returns its unlock.
func (l *idLocks) lock(ctx context.Context, id string) (unlock func(), err error) {
	k, leave := l.join(id)
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; leave() }, nil
	default:
	}
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// try is lock for a caller who has other plans where the id is not free.
func (l *idLocks) try(id string) (unlock func(), free bool) {
	k, leave := l.join(id)
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; leave() }, true
	default:
		leave()
		return nil, false
	}
}

// join counts the caller among the users of an id's lock.
func (l *idLocks) join(id string) (k *idLock, leave func()) {
	s := &l.shards[hash32(id)%uint32(len(l.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	k = s.m[id]
	if k == nil {
		if s.m == nil {
			s.m = map[string]*idLock{}
		}
		k = &idLock{token: make(chan struct{}, 1)}
		s.m[id] = k
	}
	k.users++
	return k, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(s.m, id)
		}
	}
}
