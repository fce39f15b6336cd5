package txnstate

import (
	"context"
	"errors"
	"sync"
	"time"
)

// completion is a decided transaction whose participants are being told. It
// lives in memory only: the record says the same to the next process.
type completion struct {
	h       uint32 // of the id
	rec     Record // as decided, and as stored when the completion was begun
	outcome Outcome
	done    chan struct{} // closed when the transaction is complete, or not ours any more

	mu         sync.Mutex
	rest       []Participant // not confirmed yet
	dispatched bool
	finishing  bool
	over       bool
}

// completions are those under way, by id. There is at most one for an id, so
// they are bounded by the ids.
type completions struct {
	shards [64]struct {
		mu sync.Mutex
		m  map[string]*completion
	}
}

// begin is the completion of a decided record: the one under way, or a new one.
// again tells a decision that was found from one that was just made. Where a newer
// ownership has begun one, that stays, and who asks for an older one, in a load
// that took its time, gets one that is over.
func (cs *completions) begin(rec Record, epoch int32, again bool) *completion {
	h := hash32(rec.TxnID)
	s := &cs.shards[h%uint32(len(cs.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.m[rec.TxnID]
	if old != nil && old.outcome.TxnSeq == rec.TxnSeq && old.outcome.Producer == rec.Producer && old.outcome.CoordinatorEpoch == epoch {
		return old
	}
	c := &completion{h: h, rec: rec, outcome: rec.Outcome(epoch), done: make(chan struct{}), rest: rec.Participants}
	c.outcome.Again = again
	switch {
	case old != nil && old.outcome.CoordinatorEpoch > epoch:
		c.end()
		return c
	case old != nil:
		old.end()
	}
	if s.m == nil {
		s.m = map[string]*completion{}
	}
	s.m[rec.TxnID] = c
	return c
}

func (cs *completions) get(h uint32, id string) *completion {
	s := &cs.shards[h%uint32(len(cs.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[id]
}

// has reports whether the completion of a decided record is under way at an epoch.
func (cs *completions) has(h uint32, rec *Record, epoch int32) bool {
	c := cs.get(h, rec.TxnID)
	return c != nil && c.outcome.TxnSeq == rec.TxnSeq && c.outcome.Producer == rec.Producer && c.outcome.CoordinatorEpoch == epoch
}

// remove ends c. A newer completion of the id stays (KAFKA-16352).
func (cs *completions) remove(c *completion) {
	s := &cs.shards[c.h%uint32(len(cs.shards))]
	s.mu.Lock()
	if s.m[c.outcome.TxnID] == c {
		delete(s.m, c.outcome.TxnID)
	}
	s.mu.Unlock()
	c.end()
}

// drop ends those of a slot at epochs up to epoch.
func (cs *completions) drop(slot int, epoch int32) {
	for i := range cs.shards {
		s := &cs.shards[i]
		s.mu.Lock()
		for id, c := range s.m {
			if c.slot() == slot && c.outcome.CoordinatorEpoch <= epoch {
				delete(s.m, id)
				c.end()
			}
		}
		s.mu.Unlock()
	}
}

func (c *completion) slot() int { return int(c.h % Slots) }

func (c *completion) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over = true
		close(c.done)
	}
}

// remaining are the participants that have not confirmed.
func (c *completion) remaining() []Participant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rest
}

// delivering reports whether the outcome of a transaction before that of a record
// is still on its way to participants, under the same producer epoch. That can be
// where another broker, deposed by this one, has stored the completion after this
// one had found the decision and begun to carry it out. Under protocol 1 a leader
// could not tell such a marker from one of the next transaction (I4), so that one
// has to wait.
func (c *Coordinator) delivering(h uint32, rec *Record) bool {
	if rec.State.Decided() {
		return false
	}
	comp := c.under.get(h, rec.TxnID)
	return comp != nil && comp.outcome.Producer == rec.Producer && len(comp.remaining()) > 0
}

func stillDelivering(id string) error {
	return CodeConcurrentTransactions.Errorf(id, "the outcome of the transaction before is still on its way")
}

// takenOver reports whether a decision was taken over from another owner. Its
// completion is not left to memory: while that owner does not know, the two would take
// the decision from each other, and drop each other's completion, for as long as both
// are asked.
func (c *Coordinator) takenOver(comp *completion) bool {
	return comp != nil && comp.outcome.Again && c.cfg.Ownership != nil
}

// heal is the completion of a decided record, which its dispatch begins where
// nobody works on it.
func (c *Coordinator) heal(rec Record, epoch int32) *completion {
	return c.under.begin(rec, epoch, true)
}

// dispatch hands a completion over for delivery, once.
func (c *Coordinator) dispatch(comp *completion) {
	comp.mu.Lock()
	again := comp.dispatched || comp.over
	comp.dispatched = true
	comp.mu.Unlock()
	if again {
		return
	}
	if len(comp.outcome.Participants) == 0 {
		c.applied(comp, nil) // an abort without a transaction
		return
	}
	c.cfg.Dispatcher.Dispatch(comp.outcome, func(ps []Participant) { c.applied(comp, ps) })
	if p, epoch := c.slots[comp.slot()].state(); p == away || epoch != comp.outcome.CoordinatorEpoch {
		// The slot was lost meanwhile, and what was cancelled and dropped then did
		// not have this: its callers would wait until Run ends.
		c.cfg.Dispatcher.Cancel(comp.slot(), comp.outcome.CoordinatorEpoch)
		c.under.remove(comp)
	}
}

// applied books participants that have the outcome; the last one completes the
// transaction.
func (c *Coordinator) applied(comp *completion, ps []Participant) {
	comp.mu.Lock()
	comp.rest = without(comp.rest, ps)
	last := len(comp.rest) == 0 && !comp.finishing && !comp.over
	if last {
		comp.finishing = true
	}
	comp.mu.Unlock()
	if last && !c.finishNow(comp) {
		c.life.spawn(func(ctx context.Context) { c.finish(ctx, comp) })
	}
}

// finishNow is finish where nothing has to be waited for: neither the id's turn,
// nor the store, nor a hook of the host. That is the rule, and cheaper than a
// goroutine for each transaction.
func (c *Coordinator) finishNow(comp *completion) bool {
	if c.now == nil || c.cfg.Observer.Transition != nil || c.takenOver(comp) {
		return false
	}
	if _, ok := c.life.enter(); !ok {
		return false
	}
	defer c.life.leave()
	o := &comp.outcome
	h := comp.h
	if !c.locks.try(h, o.TxnID) {
		return false
	}
	defer c.locks.unlock(h, o.TxnID)
	if epoch, err := c.ownedAt(h, o.TxnID); err != nil || epoch != o.CoordinatorEpoch {
		return false
	}
	// The record as it was decided: where it has changed since, its version is
	// another one, and finish looks.
	d, err := Step(comp.rec, Applied{Producer: o.Producer, TxnSeq: o.TxnSeq, Participants: o.Participants}, c.cfg.Now())
	if err != nil || d.Write != WriteLater || Check(d.Next) != nil {
		return false
	}
	v, ok := c.now.SwapNow(d.Next)
	if !ok {
		return false
	}
	c.dirty.Store(true)
	d.Next.Version = v
	if epoch, err := c.ownedAt(h, o.TxnID); err == nil && epoch == o.CoordinatorEpoch {
		c.written(&result{Decision: d, from: comp.rec}, epoch)
	}
	c.under.remove(comp)
	return true
}

// finish stores the completion, as often as it takes: the participants are done,
// and the id must not stay in Prepare (I12).
func (c *Coordinator) finish(ctx context.Context, comp *completion) {
	defer c.under.remove(comp)
	o := comp.outcome
	ev := Applied{Producer: o.Producer, TxnSeq: o.TxnSeq, Participants: o.Participants}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		// Only under its own epoch: one that the slot came back at has the markers
		// on their way once more, and completes the transaction itself (I4).
		_, err := c.workUnder(ctx, ctx, o.TxnID, ev, time.Time{}, o.CoordinatorEpoch)
		if err == nil || errors.Is(err, ErrNotCoordinator) {
			return
		}
		if f := c.cfg.Observer.Stuck; f != nil {
			f(o, err)
		}
		c.cfg.Logger.Warn("completion not stored, is tried again", "txn_id", o.TxnID, "producer_id", o.Producer.ID, "epoch", o.Producer.Epoch, "err", err)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-comp.done:
			t.Stop()
			return
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}
