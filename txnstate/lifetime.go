package txnstate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// lifetime counts the goroutines and calls that Run has to wait for, and gives
// them a context that lasts as long as Run.
type lifetime struct {
	opened atomic.Bool  // between start and stop
	under  atomic.Int64 // work under way, and what is about to be refused

	mu      sync.Mutex
	ctx     context.Context // nil before start; not changed once opened
	cancel  context.CancelFunc
	stopped bool
	drained sync.Cond // of mu: under became 0 after stop

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
	l.opened.Store(!l.stopped)
	return nil
}

// over is closed when Run ends; nil before start.
func (l *lifetime) over() <-chan struct{} {
	if l.opened.Load() {
		return l.ctx.Done()
	}
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
	// In this order: either this finds it closed, or stop finds this.
	l.under.Add(1)
	if !l.opened.Load() || l.ctx.Err() != nil {
		l.leave()
		return nil, false
	}
	return l.ctx, true
}

func (l *lifetime) leave() {
	if l.under.Add(-1) == 0 && !l.opened.Load() {
		l.mu.Lock()
		l.drained.Broadcast()
		l.mu.Unlock()
	}
}

// spawn runs f in a goroutine that stop waits for; false means that it does not.
func (l *lifetime) spawn(f func(ctx context.Context)) bool {
	ctx, ok := l.enter()
	if !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.idle) - 1; n >= 0 {
		w := l.idle[n]
		l.idle = l.idle[:n]
		w <- f
		return true
	}
	l.workers.Go(func() { l.work(ctx, f) })
	return true
}

// adopt is spawn for who has entered and gives that up to f.
func (l *lifetime) adopt(f func(ctx context.Context)) {
	l.workers.Go(func() { l.run(l.ctx, f) })
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
	defer l.leave()
	f(ctx)
}

// stop lets nothing begin any more, ends the context and waits. It may be called
// again, and without start.
func (l *lifetime) stop() {
	l.mu.Lock()
	l.stopped = true
	l.opened.Store(false)
	cancel := l.cancel
	l.drained.L = &l.mu
	l.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	l.mu.Lock()
	for l.under.Load() != 0 {
		l.drained.Wait()
	}
	for _, w := range l.idle {
		close(w)
	}
	l.idle = nil
	l.mu.Unlock()
	l.workers.Wait()
}
