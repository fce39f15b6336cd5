package pidalloc

import (
	"context"
	"fmt"
	"math"
	"sync"
)

// Counter gives out consecutive producer ids and keeps nothing: a new one
// begins where it is told to. It serves tests, and brokers that forget
// everything else at the end as well. It is safe for concurrent use.
type Counter struct {
	mu   sync.Mutex
	next int64
	done bool // the largest int64 was given out
}

// Memory returns a Counter whose first id is start, which may be any number
// that Kafka allows for a producer id, from 0 to 2⁶³−1. Two Counters know
// nothing of each other: a process needs one.
func Memory(start int64) *Counter { return &Counter{next: start} }

// Next gives out the next id, whatever ctx is: it never waits. It fails with
// ErrExhausted after the id 2⁶³−1, and always when the start was negative.
func (c *Counter) Next(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return 0, ErrExhausted
	}
	if c.next < 0 {
		return 0, fmt.Errorf("pidalloc: producer ids cannot start at %d", c.next)
	}
	id := c.next
	if id == math.MaxInt64 {
		c.done = true
	} else {
		c.next++
	}
	return id, nil
}
