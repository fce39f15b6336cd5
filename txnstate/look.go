package txnstate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// looks bounds how many ids lookAgain looks at beside one another, and lookTime how
// long it waits for one of them.
const (
	looks    = 64
	lookTime = 10 * time.Second
)

// awaited are the ids that somebody is about to look at: what happens to one meanwhile
// is seen then, so that an id waits once, however long its store is away.
type awaited struct {
	mu sync.Mutex
	m  map[string]struct{}
}

// add is false where the id is there already.
func (a *awaited) add(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.m[id]; ok {
		return false
	}
	if a.m == nil {
		a.m = map[string]struct{}{}
	}
	a.m[id] = struct{}{}
	return true
}

func (a *awaited) begin(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.m, id)
}

// look has ids looked at, soon: those that a load found decided, or could not be sure
// of; those whose Later writes the store has dropped, since that was a completion and
// the transaction is decided once more; and those of which the store could say neither
// whether it wrote nor what it has.
func (c *Coordinator) look(ids []string) {
	ids = slices.DeleteFunc(ids, func(id string) bool { return !c.toLook.add(id) })
	if len(ids) > 0 {
		c.life.spawn(func(ctx context.Context) { c.lookAgain(ctx, ids) })
	}
}

// lookAgain looks at ids until each has been seen as it is: its deadline is set, and a
// decided transaction is carried out.
func (c *Coordinator) lookAgain(ctx context.Context, ids []string) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var mu sync.Mutex
		var left []string
		var g errgroup.Group
		g.SetLimit(looks)
		for _, id := range ids {
			g.Go(func() error {
				c.toLook.begin(id)
				ctx, cancel := context.WithTimeout(ctx, lookTime)
				defer cancel()
				err := c.TimeOut(ctx, id, c.cfg.Now())
				if (errors.Is(err, ErrCoordinatorNotAvailable) || errors.Is(err, ErrCoordinatorLoading)) && c.toLook.add(id) {
					mu.Lock()
					left = append(left, id)
					mu.Unlock()
				}
				return nil
			})
		}
		_ = g.Wait() // the functions return nil
		if ids = left; len(ids) == 0 {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}
