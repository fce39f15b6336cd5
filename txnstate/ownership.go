package txnstate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

type phase uint8

const (
	away     phase = iota // another broker's, or nobody's: NOT_COORDINATOR
	starting              // ours from the start, not loaded: COORDINATOR_NOT_AVAILABLE
	loading               // taken over, not loaded: COORDINATOR_LOAD_IN_PROGRESS
	serving
)

// slot is what the coordinator knows of one slot.
type slot struct {
	now atomic.Uint64 // phase and epoch, for who only looks: every event does, several times

	mu    sync.Mutex
	phase phase
	epoch int32 // coordinator epoch; -1 before the first notice
	ids   int64 // records counted into Coordinator.ids
	// again are ids that were changed under an ownership before while this one loads:
	// the load may have seen them as they were.
	again []string
	end   context.CancelFunc // of the load under way, or the last; may be nil
}

// own begins an ownership at an epoch; false where it is no news.
func (s *slot) own(epoch int32, first bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch <= s.epoch {
		return false // late or repeated; at the same epoch lost is final
	}
	s.epoch, s.phase = epoch, loading
	if first {
		s.phase = starting
	}
	s.endLoad()
	s.show()
	return true
}

// load is ctx until the ownership of an epoch ends, or cancel is called.
func (s *slot) load(ctx context.Context, epoch int32) (_ context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch || s.phase == away {
		cancel()
	} else {
		s.end = cancel
	}
	return ctx, cancel
}

// endLoad ends the load of an ownership before. mu is held.
func (s *slot) endLoad() {
	if s.end != nil {
		s.end()
	}
	s.end, s.again = nil, nil
}

// loads reports whether the slot is being loaded under an epoch.
func (s *slot) loads(epoch int32) bool {
	p, now := s.state()
	return now == epoch && (p == starting || p == loading)
}

// changed has an id looked at behind the load under way, if there is one.
func (s *slot) changed(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == starting || s.phase == loading {
		s.again = append(s.again, id)
	}
}

// serve ends the loading of an epoch; false where it is over already. again are ids
// to look at now.
func (s *slot) serve(epoch int32, ids int64, total *atomic.Int64) (again []string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch || s.phase != starting && s.phase != loading {
		return nil, false
	}
	s.phase = serving
	s.show()
	total.Add(ids - s.ids)
	s.ids = ids
	again, s.again = s.again, nil
	return again, true
}

// leave ends the ownership of an epoch and those before; false where a newer one
// has begun (KAFKA-18137).
func (s *slot) leave(epoch int32, total *atomic.Int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch < s.epoch {
		return false
	}
	s.epoch, s.phase = epoch, away
	s.endLoad()
	s.show()
	total.Add(-s.ids)
	s.ids = 0
	return true
}

func (s *slot) count(total *atomic.Int64, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == serving {
		s.ids += n
		total.Add(n)
	}
}

// show publishes what has changed. mu is held.
func (s *slot) show() { s.now.Store(uint64(s.phase)<<32 | uint64(uint32(s.epoch))) }

func (s *slot) state() (phase, int32) {
	now := s.now.Load()
	return phase(now >> 32), int32(now)
}

// owned is the coordinator epoch of an id that this process serves, or why not.
func (c *Coordinator) owned(id string) (int32, error) { return c.ownedAt(hash32(id), id) }

// ownedAt is owned where the id's hash32 is known.
func (c *Coordinator) ownedAt(h uint32, id string) (int32, error) {
	p, epoch := c.slots[h%Slots].state()
	switch {
	case p == serving:
		return epoch, nil
	case p == loading:
		return 0, CodeCoordinatorLoading.Errorf(id, "slot %d is being loaded", Slot(id))
	case p == starting, c.cfg.Ownership == nil:
		return 0, CodeCoordinatorNotAvailable.Errorf(id, "slot %d is not loaded yet", Slot(id))
	}
	return 0, CodeNotCoordinator.Errorf(id, "slot %d is not owned here", Slot(id))
}

// acquired begins to load a slot.
func (c *Coordinator) acquired(i int, epoch int32) {
	if i < 0 || i >= Slots || !c.slots[i].own(epoch, false) {
		return
	}
	c.forget(i, epoch-1)
	c.life.spawn(func(ctx context.Context) { c.loadSlot(ctx, i, epoch, func() {}) })
}

// lost stops serving a slot. What is stored goes on by its next owner.
func (c *Coordinator) lost(i int, epoch int32) {
	if i < 0 || i >= Slots || !c.slots[i].leave(epoch, &c.ids) {
		return
	}
	c.forget(i, epoch)
}

// still is nil where the slot of an id is this process's for sure, or where
// nobody can be asked. What was read before the call was read by its owner then.
func (c *Coordinator) still(ctx context.Context, h uint32, id string, epoch int32) error {
	if c.check == nil {
		return nil
	}
	return c.ask(ctx, int(h%Slots), id, epoch)
}

func (c *Coordinator) ask(ctx context.Context, i int, id string, epoch int32) error {
	ok, err := c.check.Still(ctx, i, epoch)
	switch {
	case err != nil:
		return CodeCoordinatorNotAvailable.Errorf(id, "nobody knows whether slot %d is still owned here: %w", i, err)
	case ok:
		return nil
	}
	if c.slots[i].leave(epoch, &c.ids) {
		// The turn of the id may be held, and a hook of the host's be called.
		c.life.spawn(func(context.Context) { c.forget(i, epoch) })
	}
	return CodeNotCoordinator.Errorf(id, "slot %d was lost, and nobody had said so", i)
}

func (c *Coordinator) forget(i int, epoch int32) {
	c.under.drop(i, epoch)
	c.cfg.Dispatcher.Cancel(i, epoch)
}

// takeOver gives a decided record whose completion this process has not begun a new
// version, so that a completion which another owner has under way is refused. It would
// be right; but a still later owner would find the transaction complete, have nothing
// to deliver, and let the next one begin, while markers of this one are on their way. A
// leader that has heard of neither takes them, under protocol 1, for the next
// transaction's (I4). It is called in the id's turn, by who has just found out that the
// slot is its own. Where another process came first, taken is false, and r.from is the
// record as it is then.
func (c *Coordinator) takeOver(ctx context.Context, h uint32, epoch int32, r *result) (taken bool, err error) {
	rec := &r.from
	id := rec.TxnID
	if now, err := c.ownedAt(h, id); err != nil || now != epoch {
		return false, CodeNotCoordinator.Errorf(id, "the slot was lost, nothing is taken over")
	}
	v, err := c.cfg.Store.Swap(ctx, *rec, Durable)
	switch {
	case err == nil:
		rec.Version = v
		return true, nil
	case !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotFound):
		return false, &Error{Code: CodeCoordinatorNotAvailable, TxnID: id, Msg: "it was decided and is not taken over", Cause: err}
	}
	if *rec, err = c.load(ctx, id); err != nil {
		return false, err
	}
	if r.missed++; r.missed >= storeTries {
		return false, CodeCoordinatorNotAvailable.Errorf(id, "it was decided, and another process changes it all the time")
	}
	return false, nil
}

// loadSlot loads a slot until it succeeds or the ownership ends, and calls tried
// after the first attempt. A load that failed half-way is not used: what it did
// not see could be a decision.
func (c *Coordinator) loadSlot(ctx context.Context, i int, epoch int32, tried func()) {
	ctx, cancel := c.slots[i].load(ctx, epoch)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := c.tryLoad(ctx, i, epoch)
		tried()
		if err == nil || ctx.Err() != nil {
			return
		}
		c.cfg.Logger.Error("slot not loaded, is tried again", "slot", i, "err", err)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (c *Coordinator) tryLoad(ctx context.Context, i int, epoch int32) error {
	var owed []*completion
	var again []string
	var fences []Producer
	var n int64
	for rec, err := range c.cfg.Store.Slot(ctx, i) {
		if err == nil {
			err = Check(rec)
			if err != nil {
				err = errors.Join(ErrDamaged, err)
			}
		}
		if errors.Is(err, ErrDamaged) {
			c.cfg.Logger.Error("stored record is damaged and blocks its id", "txn_id", rec.TxnID, "slot", i, "err", err)
			continue
		}
		if err != nil {
			return err
		}
		n++
		e := Resume(rec)
		switch booked := c.loaded(i, epoch, &rec); {
		case e.Markers && c.cfg.Ownership == nil:
			// Nobody else writes, and nothing is served yet: it is as it was read.
			owed = append(owed, c.under.begin(rec, epoch, true))
		case e.Markers, !booked:
			again = append(again, rec.TxnID)
		}
		if e.Fence != NoProducer && c.cfg.Fencer != nil {
			fences = append(fences, e.Fence)
		}
	}
	changed, ok := c.slots[i].serve(epoch, n, &c.ids)
	if !ok {
		return nil // the ownership ended meanwhile
	}
	for _, comp := range owed {
		c.dispatch(comp)
	}
	c.look(append(again, changed...))
	for _, p := range fences {
		c.fence(ctx, p)
	}
	return nil
}

// loaded sets the deadline of a record that a load has read. It is false where the
// id's turn is not to be had: who has it, in an ownership before, changes the id.
func (c *Coordinator) loaded(i int, epoch int32, rec *Record) bool {
	// Without an Ownership there was none before, and nothing is served yet.
	if c.cfg.Ownership != nil {
		h := hash32(rec.TxnID)
		if !c.locks.try(h, rec.TxnID) {
			return false
		}
		defer c.locks.unlock(h, rec.TxnID)
		if !c.slots[i].loads(epoch) {
			return true // the next ownership has set it, or will
		}
	}
	c.setDeadline(rec)
	return true
}
