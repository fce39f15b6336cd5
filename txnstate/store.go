package txnstate

import (
	"context"
	"errors"
	"iter"
)

// Durability says what a write to a Store waits for.
type Durability bool

const (
	// Durable: on return the write survives loss of power.
	Durable Durability = true
	// Later: on return the write is visible, and may be lost with the process
	// or with power. It takes its place in the order of all writes of its slot
	// and becomes durable with the first Durable write after it: what is lost is
	// only ever the end of that order. It causes no sync of its own.
	Later Durability = false
)

// Store keeps one record for each transactional id.
//
// Methods may be called concurrently. Calls for one id are linearizable, across
// processes that share the store too: of several Swaps from one version exactly
// one succeeds, whatever the timing, and also where its caller was stopped in
// the middle and woke up later. (What a Later write of another process has
// done may be missing until it is durable; see Dropper.) Calls for different ids
// do not wait for one another beyond sharing a sync.
//
// A record passed in stays the caller's; a record returned is the caller's to
// change.
//
// A nil error means done. ErrNotFound, ErrConflict and ErrDamaged mean that
// nothing was changed. Any other error, the end of the context included, means
// that the store can't say: for a write it wraps ErrUncertain, and the caller
// loads again to see. The store may leave such a write undone or do it later,
// but never after a later Load of the id has answered without it.
//
// Load and Slot return what is durable, or visible by a Later write; never a
// Durable write whose sync is not done, since what a reader does next would
// rest on something that can still vanish.
type Store interface {
	// Load is the record of an id, or ErrNotFound.
	Load(ctx context.Context, txnID string) (Record, error)

	// Swap stores next in place of the version that next.Version names, zero
	// where there must be no record, and returns the version stored. It fails
	// with ErrConflict, changing nothing, where that is not the present version.
	Swap(ctx context.Context, next Record, d Durability) (Version, error)

	// Delete removes the record of an id at a version, durably, and fails with
	// ErrConflict where that is not the present version (or ErrNotFound).
	Delete(ctx context.Context, txnID string, old Version) error

	// Slot visits the records of a slot in any order. Records that are written
	// meanwhile may or may not be visited; every other one is visited once. A
	// record that can't be read comes as an error that wraps ErrDamaged, with
	// its TxnID set, and the visit goes on; any other error is the last pair.
	// The caller may call the store from within the loop.
	Slot(ctx context.Context, slot int) iter.Seq2[Record, error]
}

// Flusher is an optional ability of a Store: make every Later write durable.
// The coordinator calls it now and then while it is idle, and when Run ends. A
// store without it leaves them until the next Durable write of their slot.
type Flusher interface {
	Flush(ctx context.Context) error
}

// Dropper is an ability that a Store must have which gives a Later write up where
// another process changes the id first: it tells. Whoever changes an id that is not
// its own has been deposed and does not know it, and what it has put back, a decided
// transaction say, would rest until somebody asks for the id. The coordinator looks
// again at what is told (I12).
type Dropper interface {
	// Dropped is the ids whose Later writes were given up since the last call, each
	// once, in any order. Where the store is a Flusher too, a Flush finds out at the
	// latest. It waits for nothing but memory.
	Dropped() []string
}

// LaterNow is an optional ability of a Store: a Later write that waits for
// nothing but memory. With it the coordinator completes a transaction where its
// last participant is confirmed, instead of in a goroutine of its own.
type LaterNow interface {
	// SwapNow is Swap with Later. Where it would have to wait, or fails for any
	// reason, ok is false and nobody knows whether it is done: the caller loads
	// to see.
	SwapNow(next Record) (v Version, ok bool)
}

// Starter is an optional ability of a Store: reads that wait for nothing but
// memory, and Durable writes that are begun without being waited for. With it the
// coordinator works in the goroutine of its caller, whose context may end.
//
// The slices of records given and returned are shared: neither side changes them,
// neither then nor later.
type Starter interface {
	// LoadNow is Load. ok is false where it would have to wait, where there is no
	// record, and where it fails.
	LoadNow(txnID string) (rec Record, ok bool)
	// SwapStart is Swap with Durable, up to where it would wait. Where p is nil
	// the write is done, and v is its version; otherwise p says when it is, and
	// until then the store's calls for the id behave as with a Swap that somebody
	// waits for. ok is false where it can't begin, for whatever reason: nothing is
	// changed.
	SwapStart(next Record) (v Version, p Pending, ok bool)
}

// Pending is a write that was begun. Its methods may be called concurrently.
type Pending interface {
	// Done is closed when the store has done with the write.
	Done() <-chan struct{}
	// Err, once Done is closed, is nil where the write is done, and as of Swap
	// otherwise.
	Err() error
}

// Errors of a Store, for errors.Is.
var (
	// ErrNotFound: the store has no record of the id.
	ErrNotFound = errors.New("txnstate: no such transactional id")
	// ErrConflict: another write came first. Nothing was written.
	ErrConflict = errors.New("txnstate: the record has another version")
	// ErrUncertain: the write may or may not have been done.
	ErrUncertain = errors.New("txnstate: the write may or may not have been done")
	// ErrDamaged: what is stored for the id, or for its slot, can't be read. It
	// stays where it is and blocks its own ids until a person has looked at it.
	ErrDamaged = errors.New("txnstate: the stored record is damaged")
)
