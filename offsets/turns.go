package offsets

import (
	"context"
	"slices"
	"sync"
)

// turns serialises callers by key, in hosts with a hook. It is a channel for
// each key in use, so that a caller's ctx can end the waiting.
type turns struct {
	mu sync.Mutex
	m  map[string]*turn
}

type turn struct {
	slot  chan struct{}
	users int
}

// take waits for the turns of all keys and returns what gives them back. Keys
// are taken in sorted order, so two callers can't wait for each other.
func (t *turns) take(ctx context.Context, keys ...string) (release func(), err error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	held := 0
	release = func() {
		for _, k := range keys[:held] {
			t.leave(k, true)
		}
	}
	for _, k := range keys {
		select {
		case t.join(k) <- struct{}{}:
			held++
		case <-ctx.Done():
			t.leave(k, false)
			release()
			return nil, interrupted(ctx, "waiting for another commit of the group")
		}
	}
	return release, nil
}

func (t *turns) join(key string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[string]*turn{}
	}
	u := t.m[key]
	if u == nil {
		u = &turn{slot: make(chan struct{}, 1)}
		t.m[key] = u
	}
	u.users++
	return u.slot
}

func (t *turns) leave(key string, held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.m[key]
	if held {
		<-u.slot
	}
	if u.users--; u.users == 0 {
		delete(t.m, key)
	}
}
