package txnstate

import (
	"context"
	"errors"
	"iter"
	"math"
	"time"
)

// Init answers InitProducerId of a transactional id: it gives the identity to
// go on with. Where the id has an open transaction, that is aborted and the
// answer is CONCURRENT_TRANSACTIONS until it is complete; callers come again.
// ev.Server and ev.NewID are filled in.
//
// The checks before the lookup are in the order of Kafka's
// TransactionCoordinator.handleInitProducerId: any broker answers them alike.
func (c *Coordinator) Init(ctx context.Context, txnID string, ev Init) (Producer, error) {
	if err := checkExpected(txnID, ev.Expected); err != nil {
		return NoProducer, err
	}
	switch {
	case txnID == "":
		return NoProducer, CodeInvalidRequest.Errorf(txnID, "the transactional id is empty")
	case len(txnID) > MaxTxnIDBytes:
		return NoProducer, CodeInvalidRequest.Errorf("", "a transactional id of %d bytes, and %d are allowed", len(txnID), MaxTxnIDBytes)
	case ev.TwoPhase && !c.cfg.TwoPhaseCommit:
		return NoProducer, CodeTxnIDAuthorization.Errorf(txnID, "two-phase commit is not enabled here")
	case ev.KeepPrepared:
		return NoProducer, CodeUnsupportedVersion.Errorf(txnID, "keeping a prepared transaction is not supported")
	case !ev.TwoPhase && (ev.TimeoutMs <= 0 || time.Duration(ev.TimeoutMs)*time.Millisecond > c.maxTimeout()):
		return NoProducer, CodeInvalidTxnTimeout.Errorf(txnID, "a timeout of %d ms, and 1 to %d are allowed", ev.TimeoutMs, c.maxTimeout().Milliseconds())
	}
	ev.Server, ev.NewID = c.cfg.TransactionVersion, -1
	r, err := c.do(ctx, txnID, ev)
	switch {
	case err != nil:
		return NoProducer, err
	case r.Refusal != nil:
		return NoProducer, r.Refusal
	}
	return r.Grant, nil
}

// InitIdempotent answers InitProducerId without a transactional id: a producer
// id of its own, epoch 0.
func (c *Coordinator) InitIdempotent(ctx context.Context, expected Producer) (Producer, error) {
	if err := checkExpected("", expected); err != nil {
		return NoProducer, err
	}
	n, err := c.nextID(ctx)
	if err != nil {
		return NoProducer, CodeCoordinatorLoading.Errorf("", "no producer id to be had: %w", err)
	}
	return Producer{ID: n, Epoch: 0}, nil
}

// MaxTxnIDBytes is the longest transactional id: its length is 16 bits in the
// key of Kafka's transaction log.
const MaxTxnIDBytes = math.MaxInt16

func (c *Coordinator) maxTimeout() time.Duration {
	if c.cfg.Limits.MaxTimeout < 0 {
		return math.MaxInt64
	}
	return c.cfg.Limits.MaxTimeout
}

func checkExpected(txnID string, p Producer) error {
	if (p.ID == -1) != (p.Epoch == -1) {
		return CodeInvalidRequest.Errorf(txnID, "producer id %d with epoch %d: both are given or neither", p.ID, p.Epoch)
	}
	return nil
}

func notEmpty(txnID string) error {
	if txnID == "" {
		return CodeInvalidRequest.Errorf(txnID, "the transactional id is empty")
	}
	return nil
}

// Add puts participants into the transaction of an id and opens one if none is
// open; durable when it returns nil. It is all or nothing. ev.Limit is filled in.
func (c *Coordinator) Add(ctx context.Context, txnID string, ev Add) error {
	if err := notEmpty(txnID); err != nil {
		return err
	}
	ev.Limit = max(c.cfg.Limits.Participants, 0)
	_, err := c.do(ctx, txnID, ev)
	return err
}

// Verify returns those of the participants that are not in the open transaction.
// Where a change of the id is under way it doesn't wait, and goes by what is
// stored: while a partition is being added the producer may write to the others
// (KAFKA-14904).
func (c *Coordinator) Verify(ctx context.Context, txnID string, ev Verify) (missing []Participant, err error) {
	if err := notEmpty(txnID); err != nil {
		return nil, err
	}
	run, ok := c.life.enter()
	if !ok {
		return nil, c.notRunning(txnID)
	}
	defer c.life.leave()
	return c.verify(run, ctx, txnID, ev)
}

func (c *Coordinator) verify(run, ctx context.Context, txnID string, ev Verify) ([]Participant, error) {
	h := hash32(txnID)
	epoch, err := c.ownedAt(h, txnID)
	if err != nil {
		return nil, err
	}
	load, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(run, cancel)()
	var r result
	if c.locks.try(h, txnID) {
		r, err = c.apply(load, h, txnID, ev, epoch, time.Time{})
		c.locks.unlock(h, txnID)
	} else if r.from, err = c.load(load, txnID); err == nil {
		r.Decision, err = Step(r.from, ev, c.cfg.Now())
		if lost := c.still(load, h, txnID, epoch); lost != nil {
			r.Decision, err = Decision{}, lost
		} else if c.delivering(h, &r.from) {
			r.Decision, err = Decision{}, stillDelivering(txnID)
		}
	}
	c.perform(run, txnID, ev, r, err)
	return r.Missing, err
}

// End decides the transaction of an id. When it returns nil the decision is
// durable and will be carried out whatever happens. Under TV2 it returns the
// identity of the next transaction, otherwise NoProducer. ev.NewID and
// ev.RetriesAsKafka are filled in.
//
// It then waits for the participants as Config.EndWait says; the answer is the
// same where they take longer.
func (c *Coordinator) End(ctx context.Context, txnID string, ev End) (Producer, error) {
	if err := notEmpty(txnID); err != nil {
		return NoProducer, err
	}
	ev.NewID, ev.RetriesAsKafka = -1, c.cfg.RetriesAsKafka
	r, err := c.do(ctx, txnID, ev)
	if err != nil {
		return NoProducer, err
	}
	if r.comp != nil {
		c.await(ctx, r.comp.done, c.life.over(), c.cfg.EndWait)
	}
	return r.Grant, nil
}

// await waits for done, for as long as the caller, the coordinator and d let it.
func (c *Coordinator) await(ctx context.Context, done, over <-chan struct{}, d time.Duration) {
	select {
	case <-done:
		return
	default:
	}
	if d < 0 {
		return
	}
	var late <-chan time.Time
	if d != AnswerWhenApplied {
		t, _ := c.waits.Get().(*time.Timer)
		if t == nil {
			t = time.NewTimer(d)
		} else {
			t.Reset(d)
		}
		defer func() {
			t.Stop()
			c.waits.Put(t)
		}()
		late = t.C
	}
	select {
	case <-done:
	case <-over: // the next process goes on with it
	case <-late:
	case <-ctx.Done():
	}
}

// ForceAbort aborts the open transaction of an id against its holder, which is
// fenced. INVALID_TXN_STATE where none is open.
func (c *Coordinator) ForceAbort(ctx context.Context, txnID string) error {
	_, err := c.do(ctx, txnID, ForceAbort{Server: c.cfg.TransactionVersion, NewID: -1})
	return err
}

// TimeOut aborts the open transaction of an id if it has outlived its timeout at
// a time. It is the reaper's call; Deadlines is told when to come again.
func (c *Coordinator) TimeOut(ctx context.Context, txnID string, now time.Time) error {
	_, err := c.doAt(ctx, txnID, TimedOut{Server: c.cfg.TransactionVersion, NewID: -1}, now)
	return err
}

// Expire removes an id that was not used for Config.ExpireAfter before a time.
// It is the reaper's call; Deadlines is told when to come again.
func (c *Coordinator) Expire(ctx context.Context, txnID string, now time.Time) error {
	_, err := c.doAt(ctx, txnID, Expire{AfterMs: c.cfg.ExpireAfter.Milliseconds()}, now)
	return err
}

// Describe is the record of an id. While the transaction is completing, its
// participants are those that have not confirmed. TRANSACTIONAL_ID_NOT_FOUND for
// an unknown id.
func (c *Coordinator) Describe(ctx context.Context, txnID string) (Record, error) {
	if err := notEmpty(txnID); err != nil {
		return Record{}, err
	}
	epoch, err := c.owned(txnID)
	if err != nil {
		return Record{}, err
	}
	rec, err := c.load(ctx, txnID)
	if err != nil {
		return Record{}, err
	}
	if err := c.still(ctx, hash32(txnID), txnID, epoch); err != nil {
		return Record{}, err
	}
	if !rec.Known() {
		return Record{}, CodeTxnIDNotFound.Errorf(txnID, "the id is not known")
	}
	if comp := c.under.get(hash32(txnID), txnID); comp != nil && rec.State.Decided() && comp.outcome.Producer == rec.Producer && comp.outcome.TxnSeq == rec.TxnSeq {
		rec.Participants = append([]Participant(nil), comp.remaining()...)
	}
	return rec, nil
}

// List visits the records of all slots that this process owns, in no order. A
// slot that is being loaded makes it fail with COORDINATOR_LOAD_IN_PROGRESS
// before the first record; an error is the last pair.
func (c *Coordinator) List(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		var mine []int
		var epochs [Slots]int32
		for i := range c.slots {
			switch p, epoch := c.slots[i].state(); p {
			case serving:
				mine, epochs[i] = append(mine, i), epoch
			case loading:
				yield(Record{}, CodeCoordinatorLoading.Errorf("", "slot %d is being loaded", i))
				return
			case starting:
				yield(Record{}, CodeCoordinatorNotAvailable.Errorf("", "slot %d is not loaded yet", i))
				return
			}
		}
		for _, i := range mine {
			visit := c.cfg.Store.Slot(ctx, i)
			if c.check != nil {
				visit = c.checked(ctx, visit, i, epochs[i])
			}
			for rec, err := range visit {
				if err != nil && rec.TxnID != "" {
					continue // damaged: reported when it was loaded
				}
				if !yield(rec, err) || err != nil {
					return
				}
			}
		}
	}
}

// checked is a visit of a slot that shows nothing before all is read, and nothing
// where the slot was lost meanwhile: then its next owner lists it.
func (c *Coordinator) checked(ctx context.Context, visit iter.Seq2[Record, error], i int, epoch int32) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		var recs []Record
		for rec, err := range visit {
			if err != nil && rec.TxnID == "" {
				yield(rec, err)
				return
			}
			if err == nil {
				recs = append(recs, rec)
			}
		}
		if err := c.ask(ctx, i, "", epoch); err != nil {
			if !errors.Is(err, ErrNotCoordinator) {
				yield(Record{}, err)
			}
			return
		}
		for _, rec := range recs {
			if !yield(rec, nil) {
				return
			}
		}
	}
}
