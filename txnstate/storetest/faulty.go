package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Fate is what becomes of one call to a Faulty store. All fates are within the
// contract of txnstate.Store.
type Fate uint8

const (
	// Done: the call is made and its answer returned.
	Done Fate = iota
	// NotDone: the call is not made and fails; a write with ErrUncertain. A
	// visit of a slot fails after its first record.
	NotDone
	// DoneUnsaid: the write is made and fails with ErrUncertain all the same. A
	// read fails.
	DoneUnsaid
	// DoneLate: the write fails with ErrUncertain and is made just before the
	// next call that concerns its id, where it is then still possible. A read
	// fails.
	DoneLate
	// Hung: the call is not made and returns when its context ends.
	Hung
	// DoneHung: the call is made and returns when its context ends.
	DoneHung
	// Overtaken: before the write somebody else writes the same record again, so
	// that it meets another version: a conflict as between two owners, with
	// nothing changed that could be told by its content. A read is made.
	Overtaken
)

var fateNames = [...]string{"Done", "NotDone", "DoneUnsaid", "DoneLate", "Hung", "DoneHung", "Overtaken"}

func (f Fate) String() string {
	if int(f) >= len(fateNames) {
		return fmt.Sprintf("Fate(%d)", uint8(f))
	}
	return fateNames[f]
}

// Method names a method of a store.
type Method string

// The methods of txnstate.Store and txnstate.Flusher.
const (
	MethodLoad   Method = "Load"
	MethodSwap   Method = "Swap"
	MethodDelete Method = "Delete"
	MethodSlot   Method = "Slot"
	MethodFlush  Method = "Flush"
)

// Writes reports whether the method changes records.
func (m Method) Writes() bool { return m == MethodSwap || m == MethodDelete }

// Call is a call whose fate has to be chosen.
type Call struct {
	N          int // calls before this one
	Method     Method
	TxnID      string              // of Load, Swap and Delete
	State      txnstate.State      // that a Swap would store
	Durability txnstate.Durability // of a Swap
	Slot       int                 // of Slot
}

// ErrFault is the cause of the failures that a Faulty store makes up.
var ErrFault = errors.New("storetest: made-up fault")

// Faulty is a store that lets calls to another one fail. It may be called
// concurrently. It is a txnstate.Flusher and a txnstate.Dropper; where the store
// below is none, Flush does nothing and Dropped is empty.
type Faulty struct {
	store txnstate.Store

	mu    sync.Mutex // not held while the store below is called
	fate  func(Call) Fate
	calls int
	late  map[string][]*lateWrite // writes that will still be made, by id
}

// lateWrite is made once, however many calls come that must not overtake it.
type lateWrite struct {
	do    func(context.Context)
	begun atomic.Bool
	made  chan struct{}
}

// make makes the write, or waits until it is made: by a channel, so that time goes
// on meanwhile in a bubble of testing/synctest.
func (w *lateWrite) make(ctx context.Context) {
	if w.begun.CompareAndSwap(false, true) {
		w.do(ctx)
		close(w.made)
	}
	<-w.made
}

var (
	_ txnstate.Store   = (*Faulty)(nil)
	_ txnstate.Flusher = (*Faulty)(nil)
	_ txnstate.Dropper = (*Faulty)(nil)
)

// NewFaulty wraps s. fate is asked once for each call, one call at a time; it
// must not call the store.
func NewFaulty(s txnstate.Store, fate func(Call) Fate) *Faulty {
	return &Faulty{store: s, fate: fate, late: map[string][]*lateWrite{}}
}

// SetFate replaces the function that chooses.
func (f *Faulty) SetFate(fate func(Call) Fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fate = fate
}

// Script gives writes one fate after another, and Done when it is used up.
// Other calls are Done.
func Script(fates ...Fate) func(Call) Fate {
	return func(c Call) Fate {
		if !c.Method.Writes() || len(fates) == 0 {
			return Done
		}
		next := fates[0]
		fates = fates[1:]
		return next
	}
}

// Odds are the probabilities of fates, from 0 to 1; what is left is Done.
type Odds struct {
	NotDone, DoneUnsaid, DoneLate, Hung, DoneHung, Overtaken float64
}

// Seeded draws fates. The same seed gives the same fates to the same order of
// calls.
func Seeded(seed uint64, odds Odds) func(Call) Fate {
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(Call) Fate {
		x := rng.Float64()
		for _, o := range []struct {
			fate Fate
			p    float64
		}{
			{NotDone, odds.NotDone}, {DoneUnsaid, odds.DoneUnsaid}, {DoneLate, odds.DoneLate},
			{Hung, odds.Hung}, {DoneHung, odds.DoneHung}, {Overtaken, odds.Overtaken},
		} {
			if x < o.p {
				return o.fate
			}
			x -= o.p
		}
		return Done
	}
}

// choose asks for the fate of a call, and makes the late writes that it would
// otherwise answer without.
func (f *Faulty) choose(ctx context.Context, c Call) Fate {
	f.mu.Lock()
	c.N = f.calls
	f.calls++
	fate := f.fate(c)
	due := map[string][]*lateWrite{}
	for id, writes := range f.late {
		if id == c.TxnID || c.Method == MethodFlush || c.Method == MethodSlot && txnstate.Slot(id) == c.Slot {
			due[id] = writes
		}
	}
	f.mu.Unlock()
	for id, writes := range due {
		for _, w := range writes {
			w.make(context.WithoutCancel(ctx))
		}
		// Only now: until it is made, every call for the id must find it.
		f.mu.Lock()
		f.late[id] = slices.DeleteFunc(slices.Clone(f.late[id]), func(w *lateWrite) bool { return slices.Contains(writes, w) })
		if len(f.late[id]) == 0 {
			delete(f.late, id)
		}
		f.mu.Unlock()
	}
	return fate
}

func (f *Faulty) later(id string, do func(context.Context)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late[id] = append(f.late[id], &lateWrite{do: do, made: make(chan struct{})})
}

// Load implements txnstate.Store.
func (f *Faulty) Load(ctx context.Context, txnID string) (txnstate.Record, error) {
	fate := f.choose(ctx, Call{Method: MethodLoad, TxnID: txnID})
	if err := read(ctx, fate); err != nil {
		return txnstate.Record{}, err
	}
	return f.store.Load(ctx, txnID)
}

// read is the fate of a call that changes nothing.
func read(ctx context.Context, fate Fate) error {
	switch fate {
	case NotDone, DoneUnsaid, DoneLate:
		return ErrFault
	case Hung, DoneHung:
		<-ctx.Done()
		return context.Cause(ctx)
	case Done, Overtaken:
	}
	return nil
}

// Swap implements txnstate.Store.
func (f *Faulty) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	fate := f.choose(ctx, Call{Method: MethodSwap, TxnID: next.TxnID, State: next.State, Durability: d})
	kept := next.Clone() // a late write comes when next is the caller's again
	var v txnstate.Version
	err := f.write(ctx, fate, next.TxnID, next.Version, func(ctx context.Context) (err error) {
		v, err = f.store.Swap(ctx, kept, d)
		return err
	})
	if err != nil {
		return 0, err
	}
	return v, nil
}

// Delete implements txnstate.Store.
func (f *Faulty) Delete(ctx context.Context, txnID string, old txnstate.Version) error {
	fate := f.choose(ctx, Call{Method: MethodDelete, TxnID: txnID})
	return f.write(ctx, fate, txnID, old, func(ctx context.Context) error { return f.store.Delete(ctx, txnID, old) })
}

// write is the fate of a call that changes the record of id.
func (f *Faulty) write(ctx context.Context, fate Fate, id string, old txnstate.Version, do func(context.Context) error) error {
	unsure := func(cause error) error { return fmt.Errorf("%w: %w", txnstate.ErrUncertain, cause) }
	switch fate {
	case NotDone:
		return unsure(ErrFault)
	case DoneUnsaid:
		_ = do(ctx) // whatever it answered, the caller is not told
		return unsure(ErrFault)
	case DoneLate:
		f.later(id, func(ctx context.Context) { _ = do(ctx) })
		return unsure(ErrFault)
	case Hung:
		<-ctx.Done()
		return unsure(context.Cause(ctx))
	case DoneHung:
		_ = do(ctx) // as above
		<-ctx.Done()
		return unsure(context.Cause(ctx))
	case Overtaken:
		r, err := f.store.Load(ctx, id)
		if errors.Is(err, txnstate.ErrNotFound) && old == 0 {
			// Somebody else made the record and removed it again.
			return txnstate.ErrConflict
		}
		if err == nil {
			_, _ = f.store.Swap(ctx, r, txnstate.Durable) // refused where another call came first: a conflict too
		}
	case Done:
	}
	return do(ctx)
}

// Slot implements txnstate.Store.
func (f *Faulty) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		err := read(ctx, f.choose(ctx, Call{Method: MethodSlot, Slot: slot}))
		for rec, rerr := range f.store.Slot(ctx, slot) {
			if !yield(rec, rerr) {
				return
			}
			if err != nil {
				break // a visit that fails has often begun
			}
		}
		if err != nil {
			yield(txnstate.Record{}, err)
		}
	}
}

// Dropped implements txnstate.Dropper, where the store below does.
func (f *Faulty) Dropped() []string {
	if d, ok := f.store.(txnstate.Dropper); ok {
		return d.Dropped()
	}
	return nil
}

// Flush implements txnstate.Flusher.
func (f *Faulty) Flush(ctx context.Context) error {
	fate := f.choose(ctx, Call{Method: MethodFlush})
	if fate == DoneUnsaid || fate == DoneHung {
		_ = flush(ctx, f.store) // whatever it answered, the caller is not told
	}
	if err := read(ctx, fate); err != nil {
		return fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
	}
	return flush(ctx, f.store)
}
