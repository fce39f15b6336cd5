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
	wg      sync.WaitGroup // work under way

	workers sync.WaitGroup
	idle    []chan func(context.Context) // workers without work, the latest last
}

// maxIdle is how many goroutines without work are kept for the next. A new one
// would have to grow its stack each time, which costs more than the work does.
const maxIdle = 256

func (l *lifetime) start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx != nil {
		return errors.New("txnstate: Run was called before")
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return nil
}

// open reports whether work may begin. mu is held.
func (l *lifetime) open() bool { return l.ctx != nil && !l.stopped && l.ctx.Err() == nil }

// over is closed when Run ends; nil before start.
func (l *lifetime) over() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return nil
	}
	return l.ctx.Done()
}

// enter counts work that the caller does itself; false means that it may not
// begin. leave ends it.
func (l *lifetime) enter() (context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open() {
		return nil, false
	}
	l.wg.Add(1)
	return l.ctx, true
}

func (l *lifetime) leave() { l.wg.Done() }

// spawn runs f in a goroutine that stop waits for; false means that it does not.
func (l *lifetime) spawn(f func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open() {
		return false
	}
	l.wg.Add(1)
	if n := len(l.idle) - 1; n >= 0 {
		w := l.idle[n]
		l.idle = l.idle[:n]
		w <- f
		return true
	}
	ctx := l.ctx
	l.workers.Go(func() { l.work(ctx, f) })
	return true
}

// work does f, and what spawn hands over after that.
func (l *lifetime) work(ctx context.Context, f func(context.Context)) {
	w := make(chan func(context.Context), 1) // an idle worker's is empty
	for f != nil {
		l.run(ctx, f)
		f = nil // its memory is not kept while there is no work
		l.mu.Lock()
		if l.stopped || len(l.idle) >= maxIdle {
			l.mu.Unlock()
			return
		}
		l.idle = append(l.idle, w)
		l.mu.Unlock()
		f = <-w
	}
}

func (l *lifetime) run(ctx context.Context, f func(context.Context)) {
	defer l.wg.Done()
	f(ctx)
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
	l.mu.Lock()
	for _, w := range l.idle {
		close(w)
	}
	l.idle = nil
	l.mu.Unlock()
	l.workers.Wait()
}
