package txnstate

import (
	"context"
	"errors"
	"sync"
)

// lifetime counts the goroutines and calls that Run has to wait for, and gives
// them a context that lasts as long as Run.
type lifetime struct {
	mu      sync.Mutex
	ctx     context.Context // nil before start
	cancel  context.CancelFunc
	stopped bool
	wg      sync.WaitGroup
}

func (l *lifetime) start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx != nil {
		return errors.New("txnstate: Run was called before")
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return nil
}

// over is closed when Run ends; nil before start.
func (l *lifetime) over() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return nil
	}
	return l.ctx.Done()
}

// enter reports whether work may begin, and counts it.
func (l *lifetime) enter() (context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.stopped || l.ctx.Err() != nil {
		return nil, false
	}
	l.wg.Add(1)
	return l.ctx, true
}

// with runs f in the caller's goroutine; false means that it did not.
func (l *lifetime) with(f func(ctx context.Context)) bool {
	ctx, ok := l.enter()
	if !ok {
		return false
	}
	defer l.wg.Done()
	f(ctx)
	return true
}

// spawn runs f in a goroutine that stop waits for; false means that it does not.
func (l *lifetime) spawn(f func(ctx context.Context)) bool {
	ctx, ok := l.enter()
	if !ok {
		return false
	}
	go func() {
		defer l.wg.Done()
		f(ctx)
	}()
	return true
}

// stop lets nothing begin any more, ends the context and waits. It may be called
// again, and without start.
func (l *lifetime) stop() {
	l.mu.Lock()
	l.stopped = true
	cancel := l.cancel
	l.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	l.wg.Wait()
}
