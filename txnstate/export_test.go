package txnstate

import "fmt"

// Busy reports whether somebody has the turn of an id.
func (c *Coordinator) Busy(id string) bool {
	s := c.locks.shard(hash32(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	_, held := s.m[id]
	return held
}

// Left is what the coordinator still keeps of work: nil where nothing is under way.
// Completions count as long as nobody has lost them.
func (c *Coordinator) Left() error {
	if n := c.life.under.Load(); n != 0 {
		return fmt.Errorf("%d pieces of work are under way", n)
	}
	for i := range c.locks.shards {
		s := &c.locks.shards[i]
		s.mu.Lock()
		defer s.mu.Unlock()
		for id, q := range s.m {
			return fmt.Errorf("the turn of %q is held: %v", id, q)
		}
	}
	return nil
}

// Completing is how many completions are under way.
func (c *Coordinator) Completing() (n int) {
	for i := range c.under.shards {
		s := &c.under.shards[i]
		s.mu.Lock()
		n += len(s.m)
		s.mu.Unlock()
	}
	return n
}
