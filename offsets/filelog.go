package offsets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// FileLog is a Log in one file of a directory, for one process. All partitions
// share the file, so that those who append at the same time share one sync,
// whichever partitions they write to.
//
// After a write or sync that failed nothing is known of what the disk has, and
// asking the same file again may get a wrong answer: the operating system drops
// what it could not write and still shows it to readers for a while. So every
// call fails then until one of Replay copies what is whole into a new file, syncs
// that and its directory, and goes on there. OpenFileLog does the same copy, and
// so does Rewrite when most of the file is out of date: one path for all three.
//
// The end of the file may be torn by a crash and is cut. Damage before the end
// is an error that names file and byte; nothing is overwritten. A torn last
// block cannot be told from a last block that was whole once and was damaged
// since: both are cut.
type FileLog struct {
	fs       fsx.FS
	dir      string
	path     string
	lock     io.Closer
	copyFrom int64 // compactFrom, but in tests

	// turn is held by whoever writes the file or replaces it.
	turn chan struct{}

	mu      sync.Mutex // for the fields below; never held in a call of the file system
	waiting []*pendingWrite
	readers int   // Replay calls that read the file without the turn
	broken  error // why the file can't be trusted
	closed  bool

	// The fields below change under both turn and mu, and are read under either.
	file   fsx.File
	salt   uint64
	blocks uint64
	end    int64
	index  map[int32][]record
	live   int64 // bytes of the records in index
	tryAt  int64 // no compaction before the file is this long
}

// pendingWrite is a record that waits to be written.
type pendingWrite struct {
	kind      recordKind
	partition int32
	record    []byte
	done      chan struct{}
	err       error
}

const (
	logName  = "offsets.log"
	lockName = "offsets.lock"

	// blockBytes is about what one write carries at most.
	blockBytes = 4 << 20
	// compactFrom is the size from which a file is copied when most of it is out
	// of date.
	compactFrom = 4 << 20
)

var _ Log = (*FileLog)(nil)

// OpenFileLog opens the log in a directory, which is created where there is
// none. It fails with fsx.ErrLocked while another FileLog has the directory
// open. Where the system has no file locks it is the caller's duty that only one
// has. fsys nil is the real file system.
func OpenFileLog(dir string, fsys fsx.FS) (*FileLog, error) {
	if fsys == nil {
		fsys = fsx.OS()
	}
	l := &FileLog{fs: fsys, dir: dir, path: filepath.Join(dir, logName), copyFrom: compactFrom, turn: make(chan struct{}, 1)}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("offsets: open %s: %w", l.path, err)
	}
	return l, nil
}

func (l *FileLog) open() error {
	if err := fsx.MkdirSynced(l.fs, l.dir, 0o755); err != nil {
		return err
	}
	lock, err := l.fs.Lock(filepath.Join(l.dir, lockName))
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	l.lock = lock
	err = l.sweep()
	if err == nil {
		err = l.recover()
	}
	if err != nil && lock != nil {
		_ = lock.Close() // the first error tells more
	}
	return err
}

// sweep removes what copies that did not end have left behind.
func (l *FileLog) sweep() error {
	names, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasPrefix(n.Name(), "."+logName) {
			if err := l.fs.Remove(filepath.Join(l.dir, n.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// Append adds entries at the end of a partition; see Log. When ctx ends before
// the write was begun nothing is written; a write that was begun is waited for.
func (l *FileLog) Append(ctx context.Context, partition int32, entries [][]byte) error {
	if len(entries) == 0 {
		return ctx.Err()
	}
	return l.submit(ctx, recordAppend, partition, entries)
}

// Rewrite replaces the entries of a partition; see Log.
func (l *FileLog) Rewrite(ctx context.Context, partition int32, entries [][]byte) error {
	if err := l.submit(ctx, recordReplace, partition, entries); err != nil {
		return err
	}
	l.turn <- struct{}{}
	l.compact()
	<-l.turn
	return nil
}

func (l *FileLog) submit(ctx context.Context, k recordKind, partition int32, entries [][]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if n := recordSize(entries); n > maxBlock {
		return fmt.Errorf("offsets: %d bytes at once, and a block of the log takes %d", n, maxBlock)
	}
	a := &pendingWrite{
		kind: k, partition: partition, done: make(chan struct{}),
		record: appendRecord(nil, k, partition, entries),
	}
	l.mu.Lock()
	if err := l.usable(); err != nil {
		l.mu.Unlock()
		return err
	}
	l.waiting = append(l.waiting, a)
	l.mu.Unlock()
	// Whoever gets the turn writes for all who wait.
	for {
		select {
		case <-a.done:
			return a.err
		case l.turn <- struct{}{}:
			l.flush()
			<-l.turn
		case <-ctx.Done():
			if l.withdraw(a) {
				return ctx.Err()
			}
			<-a.done
			return a.err
		}
	}
}

// usable is nil when the file can be written. mu is held.
func (l *FileLog) usable() error {
	switch {
	case l.closed:
		return fmt.Errorf("offsets: %s: %w", l.path, fs.ErrClosed)
	case l.broken != nil:
		return fmt.Errorf("offsets: %s is not trusted before it is replayed: %w", l.path, l.broken)
	}
	return nil
}

// withdraw takes back what nobody has begun to write.
func (l *FileLog) withdraw(a *pendingWrite) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == a {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// flush writes and syncs one block of what waits. The turn is held.
func (l *FileLog) flush() {
	l.mu.Lock()
	err := l.usable()
	batch := l.waiting
	if err == nil {
		n, size := 0, 0
		for n < len(batch) && (n == 0 || size+len(batch[n].record) <= blockBytes) {
			size += len(batch[n].record)
			n++
		}
		batch = batch[:n]
	}
	l.waiting = append([]*pendingWrite(nil), l.waiting[len(batch):]...)
	l.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	if err == nil {
		err = l.write(batch)
	}
	for _, a := range batch {
		a.err = err
		close(a.done)
	}
}

// write appends a block to the file. The turn is held.
func (l *FileLog) write(batch []*pendingWrite) error {
	var body []byte
	records := make([]record, len(batch))
	for i, a := range batch {
		records[i] = record{
			kind: a.kind, partition: a.partition,
			at: l.end + blockHeader + int64(len(body)), size: int64(len(a.record)),
		}
		body = append(body, a.record...)
	}
	block := appendBlock(nil, l.salt, l.blocks+1, body)
	_, err := l.file.WriteAt(block, l.end)
	if err == nil {
		err = l.file.Sync()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.broken = err
		return fmt.Errorf("offsets: write %s at byte %d: %w", l.path, l.end, err)
	}
	l.blocks++
	l.end += int64(len(block))
	for _, r := range records {
		l.note(r)
	}
	return nil
}

// note lets the index have a record. mu is held.
func (l *FileLog) note(r record) {
	if r.kind == recordReplace {
		for _, old := range l.index[r.partition] {
			l.live -= old.size
		}
		l.index[r.partition] = nil
	}
	l.index[r.partition] = append(l.index[r.partition], r)
	l.live += r.size
}

// Replay shows the entries of a partition; see Log. f may call the log.
func (l *FileLog) Replay(ctx context.Context, partition int32, f func(entry []byte) error) error {
	file, records, err := l.reader(ctx, partition)
	if err != nil {
		return err
	}
	defer func() {
		_ = file.Close() // it was read only
		l.mu.Lock()
		l.readers--
		l.mu.Unlock()
	}()
	for _, r := range records {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := readRecord(file, r)
		if err != nil {
			return fmt.Errorf("offsets: %s: %w", l.path, err)
		}
		if err := entriesOf(b, f); err != nil {
			if errors.Is(err, errBadEntry) {
				err = fmt.Errorf("offsets: %s: record at byte %d: %w", l.path, r.at, err)
			}
			return err
		}
	}
	return nil
}

// reader opens the file for reading what a partition has in it at this moment:
// all earlier writes have ended, and none of those that failed shows up later.
func (l *FileLog) reader(ctx context.Context, partition int32) (fsx.File, []record, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	l.mu.Lock()
	closed, broken := l.closed, l.broken
	l.mu.Unlock()
	if closed {
		return nil, nil, fmt.Errorf("offsets: %s: %w", l.path, fs.ErrClosed)
	}
	if broken != nil {
		if err := l.recover(); err != nil {
			return nil, nil, fmt.Errorf("offsets: %s: %w", l.path, err)
		}
	}
	file, err := l.fs.OpenFile(l.path, os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("offsets: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	return file, append([]record(nil), l.index[partition]...), nil
}

// Close ends the use of the file. Calls under way are waited for; later ones
// fail with fs.ErrClosed.
func (l *FileLog) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("offsets: %s: %w", l.path, fs.ErrClosed)
	}
	l.closed = true
	waiting := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, a := range waiting {
		a.err = fmt.Errorf("offsets: %s: %w", l.path, fs.ErrClosed)
		close(a.done)
	}
	var errs []error
	if l.file != nil {
		errs = append(errs, l.file.Close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}
