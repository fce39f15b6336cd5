package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Config says where a journal is and how it is kept.
type Config struct {
	// Dir is the directory, required. It is created where there is none.
	Dir string
	// FS is the file system; nil means the real one.
	FS fsx.FS
	// SnapshotAt is how many bytes the log grows at least before a snapshot is
	// written and what is older removed; zero means 16 MiB. A larger one costs disk
	// space and time at Open, a smaller one writes the state more often.
	SnapshotAt int64
	// Logger is told of repairs, of what Open cut off, and of snapshots that
	// failed; nil is silent.
	Logger *slog.Logger
	// Now is the clock that spaces out attempts at repair; nil means time.Now.
	// Calls of it may overlap.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	if c.SnapshotAt == 0 {
		c.SnapshotAt = 16 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no Dir"))
	}
	if c.SnapshotAt < 0 {
		errs = append(errs, fmt.Errorf("SnapshotAt of %d bytes", c.SnapshotAt))
	}
	if len(errs) > 0 {
		return fmt.Errorf("journal: %w", errors.Join(errs...))
	}
	return nil
}

// Store is a txnstate.Store in a directory. Make one with Open, and Close it. Its
// methods may be called concurrently.
//
// A Durable write is in effect from the moment its sync is done, which is before
// it is answered. While it is under way nothing else of its id is answered: a
// Load, or a second write, waits for its end. That is what makes calls of one id
// linearizable when a caller stops waiting: the write goes on, and nobody can have
// seen the id without it. Of a write that was begun, the end of its context is
// ErrUncertain; of one that was not, too, and nothing is written.
type Store struct {
	cfg    Config
	fs     fsx.FS
	lock   io.Closer
	shards [txnstate.Slots]shard

	// work counts the goroutines that write for the callers: one while somebody
	// waits for a sync, one while a snapshot is written. None outlives Close.
	work sync.WaitGroup
	// turn is held by whoever uses the file, and guards it.
	turn chan struct{}
	file segment

	trouble atomic.Bool // failed or closed: look under mu

	// mu guards what is below. It is taken with a shard's mutex held, never the
	// other way, and not held in a call of the file system.
	mu         sync.Mutex
	next       uint64   // sequence number of the next entry
	queue      *batch   // what the next write has
	writing    *batch   // what is being written, or nil
	committing bool     // a goroutine is there that writes what is wanted
	stuck      []*batch // what could not be written, in order
	failed     error    // why the file is not trusted
	attempt    *attempt // at repairing it
	retryAt    time.Time
	closed     bool

	logged   int64 // bytes of log that would be read by Open, files counted generously
	state    int64 // bytes of the newest snapshot
	snapAt   int64 // how far logged has to grow
	snapping bool
	stop     chan struct{} // closed by Close: the snapshot is given up
}

var (
	_ txnstate.Store    = (*Store)(nil)
	_ txnstate.Flusher  = (*Store)(nil)
	_ txnstate.LaterNow = (*Store)(nil)
	_ txnstate.Starter  = (*Store)(nil)
)

// maxWaiting is how many bytes of Later writes wait for somebody's sync.
const maxWaiting = 1 << 20

// Load implements txnstate.Store.
func (s *Store) Load(ctx context.Context, txnID string) (txnstate.Record, error) {
	sh := s.shard(txnID)
	for {
		if err := s.ready(ctx); err != nil {
			return txnstate.Record{}, err
		}
		sh.mu.Lock()
		e := sh.ids[txnID]
		if e == nil {
			sh.mu.Unlock()
			return txnstate.Record{}, txnstate.ErrNotFound
		}
		now := *e
		sh.mu.Unlock()
		if now.pending == nil {
			return decode(txnID, now.version, now.record)
		}
		if err := s.wait(ctx, now.pending); err != nil {
			return txnstate.Record{}, err
		}
	}
}

// Swap implements txnstate.Store.
func (s *Store) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	var buf [256]byte
	encoded := encode(buf[:0], next)
	if len(next.TxnID)+len(encoded)+maxEntry > maxBody {
		return 0, s.unsure(fmt.Errorf("transactional id %.80q: a record of %d bytes is not stored", next.TxnID, len(encoded)))
	}
	return s.write(ctx, next.TxnID, uint64(next.Version), slices.Clone(encoded), d)
}

// SwapNow implements txnstate.LaterNow. Where a write of the id is under way, or a
// mebibyte of Later writes waits, it leaves the matter to Swap.
func (s *Store) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	if s.trouble.Load() {
		return 0, false
	}
	var buf [256]byte
	encoded := encode(buf[:0], next)
	if len(next.TxnID)+len(encoded)+maxEntry > maxBody {
		return 0, false
	}
	sh := s.shard(next.TxnID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.ids[next.TxnID]
	if e == nil || e.pending != nil || e.version != uint64(next.Version) {
		return 0, false
	}
	b, version, _, err := s.enqueue(sh, next.TxnID, slices.Clone(encoded), txnstate.Later)
	return txnstate.Version(version), err == nil && b == nil
}

// LoadNow implements txnstate.Starter.
func (s *Store) LoadNow(txnID string) (txnstate.Record, bool) {
	if s.trouble.Load() {
		return txnstate.Record{}, false
	}
	sh := s.shard(txnID)
	sh.mu.Lock()
	e := sh.ids[txnID]
	if e == nil || e.pending != nil {
		sh.mu.Unlock()
		return txnstate.Record{}, false
	}
	now := *e
	sh.mu.Unlock()
	rec, err := decode(txnID, now.version, now.record)
	return rec, err == nil
}

// SwapStart implements txnstate.Starter.
func (s *Store) SwapStart(next txnstate.Record) (txnstate.Version, txnstate.Pending, bool) {
	if s.trouble.Load() {
		return 0, nil, false
	}
	var buf [256]byte
	encoded := encode(buf[:0], next)
	if len(next.TxnID)+len(encoded)+maxEntry > maxBody {
		return 0, nil, false
	}
	sh := s.shard(next.TxnID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.ids[next.TxnID]
	if e == nil || e.pending != nil || e.version != uint64(next.Version) {
		return 0, nil, false
	}
	b, version, full, err := s.enqueue(sh, next.TxnID, slices.Clone(encoded), txnstate.Durable)
	if err != nil || full {
		return 0, nil, false
	}
	return txnstate.Version(version), b, true
}

// Delete implements txnstate.Store.
func (s *Store) Delete(ctx context.Context, txnID string, old txnstate.Version) error {
	_, err := s.write(ctx, txnID, uint64(old), nil, txnstate.Durable)
	return err
}

// write stores a record, or deletes the one there is where record is nil.
func (s *Store) write(ctx context.Context, id string, old uint64, record []byte, d txnstate.Durability) (txnstate.Version, error) {
	sh := s.shard(id)
	for {
		if err := s.ready(ctx); err != nil {
			return 0, err
		}
		sh.mu.Lock()
		e := sh.ids[id]
		switch {
		case e != nil && e.pending != nil:
			b := e.pending
			sh.mu.Unlock()
			if err := s.wait(ctx, b); err != nil {
				return 0, err
			}
			continue
		case e == nil && record == nil:
			sh.mu.Unlock()
			return 0, txnstate.ErrNotFound
		case e == nil && old != 0, e != nil && old != e.version:
			sh.mu.Unlock()
			return 0, txnstate.ErrConflict
		}
		b, version, wait, err := s.enqueue(sh, id, record, d)
		sh.mu.Unlock()
		switch {
		case err != nil:
			return 0, err
		case b == nil:
			return txnstate.Version(version), nil
		}
		if err := s.wait(ctx, b); err != nil {
			return 0, err
		}
		if wait {
			continue // the batch was full
		}
		if b.err != nil {
			return 0, s.unsure(b.err)
		}
		return txnstate.Version(version), nil
	}
}

// Flush makes every Later write durable that was answered before.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.whyNot(); err != nil {
		s.mu.Unlock()
		return s.unsure(err)
	}
	b := s.queue
	if b.empty() {
		b = s.writing
	} else {
		s.want(b)
	}
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	if err := s.wait(ctx, b); err != nil {
		return err
	}
	if b.err != nil {
		return s.unsure(b.err)
	}
	return nil
}

// Slot implements txnstate.Store. The ids are those that the visit finds first,
// in order; each record is the one at its turn.
func (s *Store) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if slot < 0 || slot >= txnstate.Slots {
			yield(txnstate.Record{}, fmt.Errorf("journal: no slot %d", slot))
			return
		}
		if err := s.ready(ctx); err != nil {
			yield(txnstate.Record{}, err)
			return
		}
		var ids []string
		s.shards[slot].each(func(items []item) bool {
			for _, it := range items {
				ids = append(ids, it.id)
			}
			return true
		})
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			rec, err := s.Load(ctx, id)
			switch {
			case errors.Is(err, txnstate.ErrNotFound):
			case err != nil && !errors.Is(err, txnstate.ErrDamaged):
				yield(txnstate.Record{}, err)
				return
			case !yield(rec, err):
				return
			}
		}
	}
}

// wait waits for the end of a batch, or of the caller's patience.
func (s *Store) wait(ctx context.Context, b *batch) error {
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return s.unsure(fmt.Errorf("the caller stopped waiting: %w", ctx.Err()))
	}
}

func (s *Store) unsure(err error) error {
	return fmt.Errorf("journal: %s: %w: %w", s.cfg.Dir, txnstate.ErrUncertain, err)
}

// ready is nil when calls can be answered. After a failure the caller who finds
// it tries to repair the file, or waits for the one who does.
func (s *Store) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return s.unsure(ctx.Err())
	}
	if !s.trouble.Load() {
		return nil
	}
	return s.settle(ctx)
}

func (s *Store) settle(ctx context.Context) error {
	for {
		s.mu.Lock()
		switch {
		case s.closed:
			s.mu.Unlock()
			return s.unsure(fs.ErrClosed)
		case s.failed == nil:
			s.mu.Unlock()
			return nil
		}
		a, failed := s.attempt, s.failed
		if a == nil && !s.cfg.Now().Before(s.retryAt) {
			a = &attempt{done: make(chan struct{})}
			s.attempt = a
			s.work.Go(func() { s.repair(a) })
		}
		s.mu.Unlock()
		if a == nil {
			return s.unsure(failed)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return s.unsure(ctx.Err())
		}
		if a.err != nil {
			return s.unsure(fmt.Errorf("%w, and repairing it failed: %w", failed, a.err))
		}
	}
}
