package queue

import (
	"log/slog"
	"time"
)

// calmFor is how long the same complaint is not repeated: what fails at one look
// into a directory fails at the next one too.
const calmFor = 10 * time.Second

// calm is a logger for what is tried again and again. It belongs to one goroutine.
type calm struct {
	log  *slog.Logger
	next map[string]time.Time // by message, of which there are few
}

func (c *calm) warn(msg string, args ...any) {
	now := time.Now()
	if now.Before(c.next[msg]) {
		return
	}
	if c.next == nil {
		c.next = map[string]time.Time{}
	}
	c.next[msg] = now.Add(calmFor)
	c.log.Warn(msg, args...)
}
