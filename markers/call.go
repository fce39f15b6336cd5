package markers

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of one call of a sink. It is made a real one, with a
// timer, when somebody asks for more than its values: a sink that applies markers
// at once never does.
type callContext struct {
	run   context.Context
	until time.Time

	mu     sync.Mutex
	real   context.Context // nil while nobody has asked
	cancel context.CancelFunc
	over   bool
}

func newCall(run context.Context, timeout time.Duration) *callContext {
	return &callContext{run: run, until: time.Now().Add(timeout)}
}

func (c *callContext) get() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.real != nil:
	case c.over: // it ended before its time, whatever the time is now
		c.real, c.cancel = context.WithCancel(c.run)
		c.cancel()
	default:
		c.real, c.cancel = context.WithDeadline(c.run, c.until)
	}
	return c.real
}

// end is the cancel function of the context.
func (c *callContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *callContext) Deadline() (time.Time, bool) { return c.get().Deadline() }
func (c *callContext) Done() <-chan struct{}       { return c.get().Done() }
func (c *callContext) Err() error                  { return c.get().Err() }
func (c *callContext) Value(key any) any           { return c.get().Value(key) }
