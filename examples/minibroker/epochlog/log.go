package epochlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// ErrDeposed says that another broker has taken the log over. What it is the
// answer to may have been written all the same.
var ErrDeposed = errors.New("another broker has taken the log over")

// Config says where a log is.
type Config struct {
	// Dir is of this log alone. It is made where it is missing; what is above it is
	// the caller's to make, and to sync.
	Dir string
	FS  fsx.FS
	// Fsync: what is acknowledged survives a loss of power. Without it, the end of
	// processes only.
	Fsync bool
}

func (c Config) log(epoch int32) string  { return filepath.Join(c.Dir, logName(epoch)) }
func (c Config) seal(epoch int32) string { return filepath.Join(c.Dir, sealName(epoch)) }

// Log is a log that this process leads, at one epoch. Its methods may be called
// concurrently. Places in it are counted from the first round that counts,
// whichever segment it is in.
type Log struct {
	cfg     Config
	epoch   int32
	sealed  []part // that count, oldest first, none of them empty
	base    int64  // place of the own segment
	own     *segment.Segment
	deposed atomic.Bool
}

// part is a sealed segment.
type part struct {
	epoch        int32
	base, length int64
}

// Epoch is the leader epoch.
func (l *Log) Epoch() int32 { return l.epoch }

// Add queues parts of a round; see segment.Segment.
func (l *Log) Add(parts ...[]byte) (pos int64, r *segment.Round, err error) {
	if l.deposed.Load() {
		return 0, nil, ErrDeposed
	}
	pos, r, err = l.own.Add(parts...)
	return l.base + pos, r, err
}

// Wait returns when a round is durable and acknowledged, or not; everybody who
// added to it must call it. ErrDeposed: another broker leads, and may have read
// the round or not.
func (l *Log) Wait(r *segment.Round) error { return l.own.Wait(r) }

// Check is nil where no other broker had taken the log over at some moment of the
// call: what was read before it was read while this one led. ErrDeposed is final;
// another error means that nobody knows.
func (l *Log) Check() error {
	if l.deposed.Load() {
		return ErrDeposed
	}
	next, err := fsx.Exists(l.cfg.FS, l.cfg.log(l.epoch+1))
	if err != nil {
		return err
	}
	own := true
	if !next {
		// Where the next name is gone again, this one went before it.
		if own, err = fsx.Exists(l.cfg.FS, l.cfg.log(l.epoch)); err != nil {
			return err
		}
	}
	if next || !own {
		l.deposed.Store(true)
		return ErrDeposed
	}
	return nil
}

// ReadAt fills b from a place where rounds have been acknowledged, or were found
// at the takeover.
func (l *Log) ReadAt(b []byte, pos int64) error {
	for _, p := range l.sealed {
		if len(b) == 0 || pos >= p.base+p.length {
			continue
		}
		n := min(int64(len(b)), p.base+p.length-pos)
		if err := l.readSealed(p, b[:n], pos-p.base); err != nil {
			return err
		}
		b, pos = b[n:], pos+n
	}
	if len(b) == 0 {
		return nil
	}
	return l.own.ReadAt(b, pos-l.base)
}

func (l *Log) readSealed(p part, b []byte, pos int64) error {
	f, err := l.cfg.FS.OpenFile(l.cfg.log(p.epoch), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.ReadAt(b, pos)
	return errors.Join(err, f.Close())
}

// Close ends the service of this process. A round that is being written is
// finished; the log goes on with its next leader.
func (l *Log) Close() { l.own.Close() }

// End is Close, and returns when nothing is written any more.
func (l *Log) End() { l.own.End() }

// Rewrite replaces everything in the log by one round, and returns the log that
// goes on from there; l is done with. After an error the next takeover finds all
// of the old or all of the new. Nothing may be added meanwhile.
func (l *Log) Rewrite(ctx context.Context, parts ...[]byte) (*Log, error) {
	l.Close()
	next, err := takeOver(ctx, l.cfg, l.epoch+1, nil)
	if err != nil {
		return nil, err
	}
	_, r, err := next.own.Reset(parts...)
	if err == nil {
		err = next.own.Wait(r)
	}
	if err != nil {
		next.Close()
		return nil, err
	}
	// Nobody reads these any more, and whoever is late with this does no harm.
	old := next.sealed
	next.sealed, next.base = nil, 0
	if err := next.clean(old); err != nil {
		next.Close()
		return nil, err
	}
	return next, nil
}

// keep is how many epochs before a reset keep their names. A broker that has
// listed the directory and then sleeps while more than so many come and go could
// claim an epoch anew that is gone; the listing that follows the claim would then
// have to miss all of them.
const keep = 64

// clean empties segments that a reset has made void, and removes those that have
// been so for long, oldest first.
func (l *Log) clean(old []part) error {
	fsys := l.cfg.FS
	for _, p := range old {
		f, err := fsys.OpenFile(l.cfg.log(p.epoch), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(0), f.Close()); err != nil {
			return err
		}
	}
	there, err := list(fsys, l.cfg.Dir)
	if err != nil {
		return err
	}
	for _, epoch := range there {
		if epoch > l.epoch-keep {
			break
		}
		for _, name := range []string{l.cfg.seal(epoch), l.cfg.log(epoch)} {
			if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("a segment that counts no more: %w", err)
			}
		}
	}
	return nil
}
