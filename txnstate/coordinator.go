package txnstate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Coordinator is the transaction coordinator of the slots that this process
// owns. It serialises the events of one transactional id, and no two ids against
// each other: it loads the record, lets Step decide, stores the result, which is
// the commit point, and performs the effects. What a crash cuts off there, Run
// of the next process does from the same record.
//
// Its methods may be called concurrently. Ending the context of a call ends the
// caller's waiting only: a change that has begun is finished, and its effects
// performed, for as long as Run runs.
type Coordinator struct {
	cfg     Config
	ready   chan struct{}
	life    lifetime
	locks   idLocks
	under   completions
	toLook  awaited
	now     LaterNow // abilities of the store, or nil
	starter Starter
	dropper Dropper
	check   OwnershipChecker // the ownership's ability, or nil
	calls   sync.Pool        // of *call
	waits   sync.Pool        // of *time.Timer

	slots [Slots]slot
	ids   atomic.Int64 // records in the slots owned
	dirty atomic.Bool  // a Later write waits for a flush
}

// New makes a Coordinator from a Config. It starts nothing: until Run has loaded
// a slot, requests for it answer COORDINATOR_NOT_AVAILABLE, never a made-up
// identity.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{cfg: cfg.withDefaults(), ready: make(chan struct{})}
	c.now, _ = cfg.Store.(LaterNow)
	c.starter, _ = cfg.Store.(Starter)
	c.dropper, _ = cfg.Store.(Dropper)
	c.check, _ = cfg.Ownership.(OwnershipChecker)
	for i := range c.slots {
		c.slots[i].epoch = -1
		c.slots[i].show()
	}
	return c, nil
}

// TransactionVersion is the finalised transaction.version.
func (c *Coordinator) TransactionVersion() TransactionVersion { return c.cfg.TransactionVersion }

// Ready is closed when Run has tried to load every slot once, or, with an
// Ownership, when it has begun to watch.
func (c *Coordinator) Ready() <-chan struct{} { return c.ready }

// Run loads the records, takes up what they still owe, and works until ctx is
// done; then it waits for what is under way, flushes the store and returns nil.
// A slot that can't be loaded is tried again and blocks only its own ids. Run
// may be called once.
func (c *Coordinator) Run(ctx context.Context) error {
	if err := c.life.start(ctx); err != nil {
		return err
	}
	defer c.life.stop()
	if c.cfg.Ownership == nil {
		var loading sync.WaitGroup
		for i := range c.slots {
			c.slots[i].own(c.cfg.CoordinatorEpoch, true)
			loading.Add(1)
			first := sync.OnceFunc(loading.Done)
			if !c.life.spawn(func(ctx context.Context) {
				c.loadSlot(ctx, i, c.cfg.CoordinatorEpoch, first)
			}) {
				first()
			}
		}
		loading.Wait()
		close(c.ready)
		c.flushUntil(ctx)
		return nil
	}
	failed := make(chan error, 1)
	c.life.spawn(func(ctx context.Context) {
		if err := c.cfg.Ownership.Watch(ctx, c.acquired, c.lost); err != nil && ctx.Err() == nil {
			failed <- fmt.Errorf("txnstate: watch ownership: %w", err)
		}
	})
	close(c.ready)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	c.life.spawn(func(context.Context) {
		select {
		case err = <-failed:
			cancel()
		case <-ctx.Done():
		}
	})
	c.flushUntil(ctx)
	c.life.stop()
	return err
}

// flushTime is how long a flush is waited for. A store whose volume hangs for some of
// it must not keep the rest, or the end of Run, from being seen to.
const flushTime = 30 * time.Second

// flushUntil makes Later writes durable while nothing else does, and looks after
// those that were dropped.
func (c *Coordinator) flushUntil(ctx context.Context) {
	f, flushes := c.cfg.Store.(Flusher)
	if !flushes && c.dropper == nil {
		<-ctx.Done()
		return
	}
	flush := func(ctx context.Context) {
		if !flushes || !c.dirty.Swap(false) {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, flushTime)
		defer cancel()
		if err := f.Flush(ctx); err != nil {
			c.dirty.Store(true)
			c.cfg.Logger.Warn("flush of completed transactions failed, is tried again", "err", err)
		}
	}
	tick := time.NewTicker(c.cfg.FlushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			flush(ctx)
			if c.dropper != nil {
				c.look(c.dropper.Dropped())
			}
		case <-ctx.Done():
			c.life.stop()
			flush(context.WithoutCancel(ctx))
			return
		}
	}
}

// result is what work makes of one event.
type result struct {
	Decision
	from   Record
	comp   *completion   // of a decision
	unsure []uncertainty // the writes of which the store could not say
	missed int           // takeovers that another process was ahead of
}

// uncertainty is what Observer.Uncertain is told.
type uncertainty struct {
	written bool
	err     error
}

// do works one event off. The work goes on where the caller leaves.
func (c *Coordinator) do(ctx context.Context, id string, ev Event) (result, error) {
	return c.doAt(ctx, id, ev, time.Time{})
}

// doAt is do at a time of the caller's; zero is the coordinator's clock.
func (c *Coordinator) doAt(ctx context.Context, id string, ev Event, at time.Time) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	switch ev.(type) {
	case Add, End:
		if c.starter != nil && c.check == nil {
			if r, ok, err := c.prompt(ctx, id, ev); ok {
				return r, err
			}
		}
	}
	if ctx.Done() == nil {
		run, ok := c.life.enter()
		if !ok {
			return result{}, c.notRunning(id)
		}
		defer c.life.leave()
		return c.work(run, ctx, id, ev, at)
	}
	k, _ := c.calls.Get().(*call)
	if k == nil {
		k = &call{c: c, done: make(chan struct{}, 1)}
		k.run = k.work
	}
	k.ctx, k.id, k.ev, k.at = ctx, id, kept(ev), at
	if !c.life.spawn(k.run) {
		return result{}, c.notRunning(id)
	}
	select {
	case <-k.done:
		r, err := k.r, k.err
		k.ctx, k.id, k.ev, k.r, k.err = nil, "", nil, result{}, nil
		c.calls.Put(k)
		return r, err
	case <-ctx.Done():
		return result{}, c.left(ctx, id, ev)
	}
}

// left is the answer to a caller whom nobody hears any more.
func (c *Coordinator) left(ctx context.Context, id string, ev Event) error {
	return CodeCoordinatorNotAvailable.Errorf(id, "the caller stopped waiting for %s, which may yet happen: %w", nameOf(ev), ctx.Err())
}

// call is work that its caller may leave. One that was not left is used again.
type call struct {
	c    *Coordinator
	run  func(context.Context) // work
	done chan struct{}         // holds one element when r and err are set

	ctx context.Context
	id  string
	ev  Event
	at  time.Time
	r   result
	err error
}

func (k *call) work(run context.Context) {
	k.r, k.err = k.c.work(run, k.ctx, k.id, k.ev, k.at)
	k.done <- struct{}{}
}

func (c *Coordinator) notRunning(id string) error {
	return CodeCoordinatorNotAvailable.Errorf(id, "the coordinator is not running")
}

// work takes the id's turn, applies the event and performs what follows. run
// lasts as long as Run; ctx only limits the waiting for the turn.
func (c *Coordinator) work(run, ctx context.Context, id string, ev Event, at time.Time) (result, error) {
	return c.workUnder(run, ctx, id, ev, at, anyEpoch)
}

// anyEpoch is no coordinator epoch.
const anyEpoch int32 = -1

// workUnder is work under one coordinator epoch, and NOT_COORDINATOR under another.
func (c *Coordinator) workUnder(run, ctx context.Context, id string, ev Event, at time.Time, under int32) (result, error) {
	h := hash32(id)
	for {
		epoch, err := c.ownedAt(h, id)
		if err == nil && under != anyEpoch && epoch != under {
			err = CodeNotCoordinator.Errorf(id, "slot %d was lost, and is owned again at epoch %d", Slot(id), epoch)
		}
		if err != nil {
			return result{}, err
		}
		if err := c.locks.lock(ctx, h, id); err != nil {
			return result{}, CodeCoordinatorNotAvailable.Errorf(id, "the caller stopped waiting for its turn: %w", err)
		}
		r, err := c.apply(run, h, id, ev, epoch, at)
		c.locks.unlock(h, id)
		if errors.Is(err, ErrNeedProducerID) {
			// Outside the id's turn: the host's allocator may take its time.
			n, err := c.nextID(run)
			c.tell(id, r.unsure)
			if err != nil {
				return result{}, CodeCoordinatorLoading.Errorf(id, "no producer id to be had: %w", err)
			}
			ev = withNewID(ev, n)
			continue
		}
		c.perform(run, id, ev, r, err)
		return r, err
	}
}

// nextID is a fresh producer id. -1 would be taken for none (I6).
func (c *Coordinator) nextID(ctx context.Context) (int64, error) {
	n, err := c.cfg.ProducerIDs.Next(ctx)
	if err == nil && n < 0 {
		err = fmt.Errorf("producer id %d", n)
	}
	return n, err
}

// withNewID gives an event the fresh producer id that it turned out to need.
func withNewID(ev Event, n int64) Event {
	switch ev := ev.(type) {
	case Init:
		ev.NewID = n
		return ev
	case End:
		ev.NewID = n
		return ev
	case TimedOut:
		ev.NewID = n
		return ev
	case ForceAbort:
		ev.NewID = n
		return ev
	}
	return ev
}

// storeTries bounds how often a change is decided anew because the record moved
// under it: only another process that believes it owns the id moves it.
const storeTries = 3

// apply is load, step and swap, in the id's turn.
func (c *Coordinator) apply(run context.Context, h uint32, id string, ev Event, epoch int32, at time.Time) (result, error) {
	var lost error
	var unsure []uncertainty
	if at.IsZero() {
		at = c.cfg.Now()
	}
	for range storeTries {
		rec, err := c.load(run, id)
		if err != nil {
			return result{unsure: unsure}, err
		}
		r := result{from: rec, unsure: unsure}
		write, err := c.judge(run, h, id, ev, epoch, at, &r)
		if err != nil || !write {
			return r, err
		}
		written, sure, err := c.write(run, &r)
		unsure = r.unsure
		if err != nil {
			return result{from: rec, unsure: unsure}, err
		}
		if written && !sure && plainBump(ev, r) {
			written = false // what is there may be another broker's, for another client
		}
		if written {
			err := c.stored(run, h, id, epoch, &r)
			return r, err
		}
		lost = CodeCoordinatorNotAvailable.Errorf(id, "the record was changed by another process, or the store did not take %s", nameOf(ev))
	}
	return result{unsure: unsure}, lost
}

// judge is what an event makes of the record r.from, up to the write; false where
// there is none.
func (c *Coordinator) judge(run context.Context, h uint32, id string, ev Event, epoch int32, at time.Time, r *result) (write bool, err error) {
	rec := &r.from
	r.Decision, err = Step(*rec, ev, at)
	if errors.Is(err, ErrNeedProducerID) {
		return false, err
	}
	// Before a write too: a request whose caller has long gone on with the next
	// owner would else be carried out on what that one has made of the record,
	// and end its next transaction (F22). Where the answer is yes, the write is
	// refused if anybody has changed the record since it was read.
	if err := c.still(run, h, id, epoch); err != nil {
		r.Decision = Decision{}
		return false, err
	}
	if rec.State.Decided() && (err != nil || r.Write == WriteNone) {
		// It is seen to here: who found it, in a load, looks at it, and the decision
		// may have been stored by a write whose answer nobody got (I11).
		mine := c.cfg.Ownership == nil || c.under.has(h, rec, epoch)
		_, reads := ev.(Verify) // in its caller's time, which may be over soon
		if !mine && !reads {
			taken, err := c.takeOver(run, h, epoch, r)
			if err != nil {
				r.Decision = Decision{}
				return false, err
			}
			if !taken {
				return c.judge(run, h, id, ev, epoch, at, r)
			}
			mine = true
		}
		if mine {
			r.comp = c.heal(*rec, epoch)
		} else {
			c.look([]string{id})
		}
	}
	if err != nil {
		return false, err
	}
	switch ev.(type) {
	case Add, Verify, End:
		if c.delivering(h, rec) {
			r.Decision = Decision{}
			return false, stillDelivering(id)
		}
	case Applied:
		if r.Write == WriteLater && c.takenOver(c.under.get(h, id)) {
			r.Write = WriteDurable
		}
	}
	if r.Write == WriteNone {
		// What made it look due may be out of date, and a transaction may have
		// been opened by a former owner whose write came after this one had
		// loaded the slot.
		c.completed(rec)
		c.setDeadline(rec)
		return false, nil
	}
	if !rec.Known() && c.cfg.Limits.TransactionalIDs >= 0 && c.ids.Load() >= int64(c.cfg.Limits.TransactionalIDs) {
		// Retriable: idle ids expire, and a client must not give up for good.
		return false, CodeCoordinatorNotAvailable.Errorf(id, "%d transactional ids are known, and no more are allowed", c.cfg.Limits.TransactionalIDs)
	}
	if now, err := c.ownedAt(h, id); err != nil || now != epoch {
		return false, CodeNotCoordinator.Errorf(id, "the slot was lost, nothing is written")
	}
	return true, nil
}

// stored is what follows in the id's turn from a decision that was written.
func (c *Coordinator) stored(run context.Context, h uint32, id string, epoch int32, r *result) error {
	if p, now := c.slots[h%Slots].state(); p == away || now != epoch {
		return c.outlived(r, p, now)
	}
	if r.Effects.Markers {
		switch err := c.still(run, h, id, epoch); {
		case errors.Is(err, ErrNotCoordinator):
			p, now := c.slots[h%Slots].state()
			return c.outlived(r, p, now)
		case err != nil:
			c.written(r, epoch)
			return err // it is carried out, and the caller comes again
		}
	}
	c.written(r, epoch)
	return nil
}

// outlived is for a change that was stored after its ownership had ended: the
// next owner may have looked at the record before. It may not be told as done,
// and it is the next owner, met by the caller's retry or by the transaction's
// timeout, who carries out what was decided; no marker leaves here (F14). Where
// this process is the next owner itself, it does both now.
func (c *Coordinator) outlived(r *result, p phase, epoch int32) error {
	if p != away {
		c.setDeadline(&r.Next)
		c.slots[Slot(r.Next.TxnID)].changed(r.Next.TxnID)
		if r.Effects.Markers {
			r.comp = c.under.begin(r.Next, epoch, false)
		}
	}
	return CodeNotCoordinator.Errorf(r.from.TxnID, "the slot was lost while the change was stored")
}

// load is the record as stored, checked, or Unknown.
func (c *Coordinator) load(ctx context.Context, id string) (Record, error) {
	rec, err := c.cfg.Store.Load(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return Unknown(id), nil
	case errors.Is(err, ErrDamaged):
		c.cfg.Logger.Error("stored record is damaged", "txn_id", id, "err", err)
		return rec, &Error{Code: CodeUnknownServerError, TxnID: id, Msg: "load", Cause: err}
	case err != nil:
		return rec, &Error{Code: CodeCoordinatorNotAvailable, TxnID: id, Msg: "load", Cause: err}
	}
	if err := Check(rec); err != nil {
		c.cfg.Logger.Error("stored record breaks an invariant", "txn_id", id, "err", err)
		return rec, &Error{Code: CodeUnknownServerError, TxnID: id, Msg: "stored record", Cause: err}
	}
	return rec, nil
}

// plainBump reports whether an identity is given to somebody who has shown none,
// and nothing in the record tells one who is given it from another: two brokers
// that both believe they own the id may have stored the same at the same
// millisecond. One of them says so, the other bumps once more (I6).
func plainBump(ev Event, r result) bool {
	ini, ok := ev.(Init)
	return ok && ini.Expected == NoProducer && r.Grant != NoProducer && r.Grant.ID == r.from.Producer.ID
}

// write is the commit point. It reports whether the decision is stored: false
// without an error means that it is not, and that deciding again makes sense.
// Where the store can't say, the record is loaded again to see (I11): what is
// there then is the same, if not for sure by this write.
func (c *Coordinator) write(ctx context.Context, r *result) (written, sure bool, err error) {
	d := &r.Decision
	old := d.Next.Version
	id := d.Next.TxnID
	if d.Write == WriteDelete {
		err = c.cfg.Store.Delete(ctx, id, old)
	} else {
		if err := Check(d.Next); err != nil {
			c.cfg.Logger.Error("a step led to a broken record", "txn_id", id, "err", err)
			return false, true, &Error{Code: CodeUnknownServerError, TxnID: id, Msg: "step", Cause: err}
		}
		var v Version
		v, err = c.cfg.Store.Swap(ctx, d.Next, Durability(d.Write != WriteLater))
		if err == nil {
			d.Next.Version = v
		}
	}
	return c.ended(ctx, r, old, err)
}

// ended is write when the store has answered. old is the version before.
func (c *Coordinator) ended(ctx context.Context, r *result, old Version, err error) (written, sure bool, _ error) {
	d := &r.Decision
	id := d.Next.TxnID
	if d.Write == WriteLater {
		c.dirty.Store(true) // whoever has the slot by now
	}
	switch {
	case err == nil:
		return true, true, nil
	case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
		return false, true, nil
	case errors.Is(err, ErrDamaged):
		return false, true, &Error{Code: CodeUnknownServerError, TxnID: id, Msg: "store", Cause: err}
	}
	now, lerr := c.cfg.Store.Load(ctx, id)
	gone := errors.Is(lerr, ErrNotFound)
	done := d.Write == WriteDelete && gone || lerr == nil && now.Version != old && now.Equal(d.Next)
	if gone {
		lerr = nil
	}
	r.unsure = append(r.unsure, uncertainty{done, lerr})
	c.cfg.Logger.Warn("the store could not say whether it wrote", "txn_id", id, "state", d.Next.State.String(), "written", done, "err", err)
	if lerr != nil {
		c.look([]string{id}) // the caller may never come back
		return false, false, &Error{Code: CodeCoordinatorNotAvailable, TxnID: id, Msg: "the store can't say whether it wrote", Cause: err}
	}
	if done {
		d.Next = now
	}
	return done, false, nil
}

// written keeps the coordinator's own books of a stored decision, in the id's
// turn, so that they are in the order of the changes.
func (c *Coordinator) written(r *result, epoch int32) {
	switch {
	case r.Write == WriteDelete:
		c.slots[Slot(r.Next.TxnID)].count(&c.ids, -1)
		if c.cfg.Deadlines != nil {
			c.cfg.Deadlines.Set(r.Next.TxnID, -1, false)
		}
		return
	case r.from.Version == 0:
		c.slots[Slot(r.Next.TxnID)].count(&c.ids, +1)
	}
	if r.from.State.Decided() {
		c.completed(&r.Next)
	}
	c.setDeadline(&r.Next)
	if r.Effects.Markers {
		r.comp = c.under.begin(r.Next, epoch, false)
	}
}

// completed ends the completion of a transaction that is complete, in the id's turn: who
// finds it decided once more, since the store had to drop that, must not take it for
// under way.
func (c *Coordinator) completed(rec *Record) {
	if c.dropper == nil || rec.State.Decided() {
		return
	}
	if comp := c.under.get(hash32(rec.TxnID), rec.TxnID); comp != nil && len(comp.remaining()) == 0 {
		c.under.remove(comp)
	}
}

// setDeadline says when an id has to be looked at again.
func (c *Coordinator) setDeadline(rec *Record) {
	if c.cfg.Deadlines == nil {
		return
	}
	switch {
	case !rec.Known(), rec.State.Decided():
		c.cfg.Deadlines.Set(rec.TxnID, -1, false)
	case rec.State == Ongoing && (rec.TwoPhase || rec.TimeoutMs == NoTimeout):
		c.cfg.Deadlines.Set(rec.TxnID, -1, false)
	case rec.State == Ongoing:
		c.cfg.Deadlines.Set(rec.TxnID, rec.StartMs+int64(rec.TimeoutMs), true)
	default:
		c.cfg.Deadlines.Set(rec.TxnID, rec.UpdateMs+c.cfg.ExpireAfter.Milliseconds(), false)
	}
}

// perform does what follows from a stored decision, outside the id's turn: the
// hooks may call back.
func (c *Coordinator) perform(ctx context.Context, id string, ev Event, r result, err error) {
	o := &c.cfg.Observer
	c.tell(id, r.unsure)
	if err != nil {
		if o.Refused != nil {
			o.Refused(id, nameOf(ev), err)
		}
	} else if r.Write == WriteDelete {
		c.cfg.Logger.Info("transactional id expired", "txn_id", id, "producer_id", r.Next.Producer.ID)
		if o.Expired != nil {
			o.Expired(r.Next)
		}
	} else if r.Write != WriteNone {
		if o.Transition != nil {
			o.Transition(r.from.State, r.Next)
		}
		if _, ok := ev.(TimedOut); ok {
			c.cfg.Logger.Info("transaction timed out and is aborted", "txn_id", id, "producer_id", r.Next.Producer.ID, "epoch", r.Next.Producer.Epoch)
			if o.TimedOut != nil {
				o.TimedOut(r.Next)
			}
		}
	}
	if r.comp != nil {
		c.dispatch(r.comp)
	}
	if err == nil && r.Write != WriteNone {
		c.fence(ctx, r.Effects.Fence)
	}
}

func (c *Coordinator) tell(id string, unsure []uncertainty) {
	if f := c.cfg.Observer.Uncertain; f != nil {
		for _, u := range unsure {
			f(id, u.written, u.err)
		}
	}
}

func (c *Coordinator) fence(ctx context.Context, p Producer) {
	if p == NoProducer || c.cfg.Fencer == nil {
		return
	}
	if err := c.cfg.Fencer.Fence(ctx, p); err != nil {
		c.cfg.Logger.Warn("fence not delivered, leaders learn of it by markers and verification", "producer_id", p.ID, "epoch", p.Epoch, "err", err)
	}
}
