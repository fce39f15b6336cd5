package slotfile

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Config says where a Store keeps its files.
type Config struct {
	// Dir is the cluster's directory on the shared volume; the files go below
	// Dir/txn_state. It is made where there is none. Required.
	Dir string
	// FS is the file system; nil is the real one.
	FS fsx.FS
	// Logger hears of damage, and of files that can't be tidied away. nil is
	// silent.
	Logger *slog.Logger
}

// Store is a txnstate.Store on a directory that other processes may use at the
// same time. Its methods may be called concurrently. A context that ends stops
// the waiting; what is known of the write then is in the error.
type Store struct {
	fs    fsx.FS
	root  string // Dir/txn_state
	log   *slog.Logger
	slots [txnstate.Slots]*slot
	nonce func() string

	// later numbers Later writes; see laterVersions.
	later atomic.Uint64

	buffers sync.Pool // of *[]byte, for what is written to a file

	tasks     sync.WaitGroup // goroutines of slots
	closing   sync.Once
	closedErr error
}

var (
	_ txnstate.Store   = (*Store)(nil)
	_ txnstate.Flusher = (*Store)(nil)
	_ txnstate.Dropper = (*Store)(nil)
)

// laterVersions is where the versions of Later writes begin. Those of Durable
// writes are counted in the files. A Later write has to have one before any file
// knows of it, and no other handle may give the same, so each handle counts from
// a random place in the upper half: for two to meet, a number would have to be
// drawn that is within their count of the other, out of 2⁶².
const laterVersions txnstate.Version = 1 << 63

// Open opens or makes the store in a directory. It reads no slot: each is read
// when it is first used.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, errors.New("slotfile: Config.Dir is required")
	}
	if cfg.FS == nil {
		cfg.FS = fsx.OS()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{fs: cfg.FS, root: filepath.Join(cfg.Dir, "txn_state"), log: cfg.Logger, nonce: newNonce}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // it does not fail
	s.later.Store(uint64(laterVersions) | binary.BigEndian.Uint64(seed[:])>>2)
	versions := filepath.Join(s.root, ".versions")
	for i := range s.slots {
		s.slots[i] = newSlot(s, i, slotDir{s.fs, filepath.Join(versions, fmt.Sprintf("slot-%d", i))})
	}
	// Dir's own parent too, and where Dir is not there yet, all those that it is
	// made with.
	dirs := []string{versions, s.root, cfg.Dir}
	there := false
	for dir := filepath.Clean(cfg.Dir); !there && filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		_, err := s.fs.ReadDir(dir)
		there = !errors.Is(err, fs.ErrNotExist)
		dirs = append(dirs, filepath.Dir(dir))
	}
	// All slots' directories at once, so that no first write of a slot has to
	// think of more than its own.
	for _, l := range s.slots {
		if err := s.fs.MkdirAll(l.dir.path, 0o755); err != nil {
			return nil, fmt.Errorf("slotfile: %w", err)
		}
	}
	// Also where they were there: another process may have made them and not yet
	// synced.
	for i, dir := range dirs {
		err := s.fs.SyncDir(dir)
		if there && i == len(dirs)-1 && errors.Is(err, fs.ErrPermission) {
			break // above what was there already, and somebody else's
		}
		if err != nil {
			return nil, fmt.Errorf("slotfile: sync %s: %w", dir, err)
		}
	}
	return s, nil
}

// buffer is an empty one, to be released.
func (s *Store) buffer() *[]byte {
	if b, ok := s.buffers.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

func (s *Store) release(b *[]byte) {
	*b = (*b)[:0]
	s.buffers.Put(b)
}

func newNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return hex.EncodeToString(b[:])
}

// unsure is the answer to a write of which the caller must find out by loading.
func unsure(err error) error {
	if errors.Is(err, txnstate.ErrUncertain) {
		return err
	}
	return fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
}

func (s *Store) slot(txnID string) *slot { return s.slots[txnstate.Slot(txnID)] }

// Load implements txnstate.Store. It looks at the directory each time, so that
// it sees what other processes wrote.
func (s *Store) Load(ctx context.Context, txnID string) (txnstate.Record, error) {
	l := s.slot(txnID)
	if err := l.fresh(ctx); err != nil {
		return txnstate.Record{}, err
	}
	e, t := l.find(txnID)
	if e == nil {
		return txnstate.Record{}, txnstate.ErrNotFound
	}
	return e.record(t)
}

// Swap implements txnstate.Store. A Later write is kept in memory and goes into
// the next generation of its slot; where another process writes the id first, it
// is dropped.
func (s *Store) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if err := ctx.Err(); err != nil {
		return 0, unsure(err)
	}
	if err := txnstate.Check(next); err != nil {
		// It would be damage to whoever reads it.
		return 0, unsure(fmt.Errorf("not written: %w", err))
	}
	o := newOp(opSwap, strings.Clone(next.TxnID), next.Version)
	o.value = appendRecord(make([]byte, 0, 256+32*len(next.Participants)), next)
	l := s.slot(next.TxnID)
	if d == txnstate.Later {
		o.kind = opLater
		return l.swapLater(ctx, o, l.fresh)
	}
	return l.submit(ctx, o)
}

// Delete implements txnstate.Store.
func (s *Store) Delete(ctx context.Context, txnID string, old txnstate.Version) error {
	if err := ctx.Err(); err != nil {
		return unsure(err)
	}
	_, err := s.slot(txnID).submit(ctx, newOp(opDelete, strings.Clone(txnID), old))
	return err
}

// Slot implements txnstate.Store. It visits the slot as it is at the beginning,
// ids in order, and then what can't be read. Where the slot as a whole can't be
// read, the error wraps ErrDamaged, names no id, and is the last.
func (s *Store) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		if slot < 0 || slot >= txnstate.Slots {
			yield(txnstate.Record{}, fmt.Errorf("slotfile: no slot %d", slot))
			return
		}
		l := s.slots[slot]
		if err := l.fresh(ctx); err != nil {
			yield(txnstate.Record{}, err)
			return
		}
		entries, strays, t := l.snapshot()
		for _, e := range slices.Concat(entries, strays) {
			if err := ctx.Err(); err != nil {
				yield(txnstate.Record{}, err)
				return
			}
			if !yield(e.record(t)) {
				return
			}
		}
	}
}

// Flush implements txnstate.Flusher: every Later write that returned before is
// durable when it returns nil, or was overtaken by another process. The readable
// copies are up to date then, too.
func (s *Store) Flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return unsure(err)
	}
	return s.flush(ctx, false)
}

// Dropped implements txnstate.Dropper.
func (s *Store) Dropped() []string {
	var ids []string
	for _, l := range s.slots {
		ids = l.takeDropped(ids)
	}
	return ids
}

func (s *Store) flush(ctx context.Context, closing bool) error {
	return errors.Join(
		s.each(ctx, opFlush, closing, func(l *slot) bool { writes, _ := l.owes(); return writes }),
		s.each(ctx, opCopy, closing, func(l *slot) bool { _, copies := l.owes(); return copies }),
	)
}

// each has one op done by the slots that want it, all at the same time.
func (s *Store) each(ctx context.Context, kind opKind, internal bool, wants func(*slot) bool) error {
	ops := map[*slot]*op{}
	var errs []error
	for _, l := range s.slots {
		if !wants(l) {
			continue
		}
		o := newOp(kind, "", 0)
		o.internal = internal
		if err := l.enqueue(o); err != nil {
			errs = append(errs, unsure(err))
			continue
		}
		ops[l] = o
	}
	for l, o := range ops {
		if _, err := l.await(ctx, o); err != nil {
			errs = append(errs, fmt.Errorf("slot %d: %w", l.n, unsure(err)))
		}
	}
	return errors.Join(errs...)
}

// Close makes Later writes durable, waits for what is under way and ends the use
// of the store: calls after it fail with fs.ErrClosed. Closing again returns the
// same.
func (s *Store) Close() error {
	s.closing.Do(func() {
		for _, l := range s.slots {
			l.close()
		}
		s.closedErr = s.flush(context.Background(), true)
		s.tasks.Wait()
	})
	return s.closedErr
}

var errClosed = fmt.Errorf("slotfile: %w", fs.ErrClosed)
