package epochlog

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

const (
	logSuffix  = ".log"
	sealSuffix = ".seal"
)

func logName(epoch int32) string  { return fmt.Sprintf("%010d%s", epoch, logSuffix) }
func sealName(epoch int32) string { return fmt.Sprintf("%010d%s", epoch, sealSuffix) }

// list is the epochs that were claimed, in order.
func list(fsys fsx.FS, dir string) ([]int32, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var epochs []int32
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), logSuffix)
		n, err := strconv.ParseInt(digits, 10, 32)
		if ok && err == nil && n >= 0 && logName(int32(n)) == e.Name() {
			epochs = append(epochs, int32(n))
		}
	}
	slices.Sort(epochs)
	return epochs, nil
}

// Latest is the latest epoch of a log, or -1 where there is none; known is one that
// there was at some time, or -1. It is a look at the volume.
func Latest(cfg Config, known int32) (int32, error) {
	if known < 0 {
		there, err := list(cfg.FS, cfg.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			return -1, nil
		}
		if err != nil || len(there) == 0 {
			return -1, err
		}
		return there[len(there)-1], nil
	}
	for {
		next, err := fsx.Exists(cfg.FS, cfg.log(known+1))
		if err != nil || !next {
			return known, err
		}
		known++
	}
}

// TakeOver makes this process the leader of a log, and hands every round that
// counts to visit, oldest first; its Pos is a place in the Log. It deposes whoever
// leads at present, also where it then fails. ErrDeposed: another broker was
// faster. visit nil reads nothing.
func TakeOver(ctx context.Context, cfg Config, visit func(segment.Stored) error) (*Log, error) {
	return takeOver(ctx, cfg, -1, visit)
}

// takeOver claims an epoch, or with -1 the next.
func takeOver(ctx context.Context, cfg Config, want int32, visit func(segment.Stored) error) (_ *Log, err error) {
	epoch, f, err := claim(ctx, cfg, want)
	if err != nil {
		return nil, err
	}
	l := &Log{cfg: cfg, epoch: epoch}
	l.own = segment.Confirmed(cfg.FS, cfg.log(epoch), f, cfg.Fsync, l.Check)
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	there, err := list(cfg.FS, cfg.Dir)
	if err != nil {
		return nil, err
	}
	if i := len(there) - 1; i < 0 || there[i] != epoch {
		return nil, ErrDeposed
	}
	seals, err := l.sealAll(ctx, there[:len(there)-1])
	if err != nil {
		return nil, err
	}
	for _, s := range seals {
		if s.Length > 0 {
			l.sealed = append(l.sealed, part{s.epoch, l.base, s.Length})
			l.base += s.Length
		}
	}
	for _, p := range l.sealed {
		if visit == nil {
			break
		}
		if err := l.replay(ctx, p, visit); err != nil {
			return nil, err
		}
	}
	return l, l.Check()
}

// claim creates the file of an epoch, or with -1 of the next, durably.
func claim(ctx context.Context, cfg Config, want int32) (int32, fsx.File, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, nil, err
		}
		there, err := list(cfg.FS, cfg.Dir)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(there) == 0 {
			// Also where it is there: whoever made it may not have synced it yet. The
			// first epoch is claimed after that.
			err = mkdir(cfg)
		}
		if err != nil {
			return 0, nil, err
		}
		epoch := int32(0)
		if n := len(there); n > 0 {
			if there[n-1] == math.MaxInt32-1 {
				return 0, nil, fmt.Errorf("%s: the epochs are used up", cfg.Dir)
			}
			epoch = there[n-1] + 1
		}
		if want >= 0 && epoch != want {
			return 0, nil, ErrDeposed
		}
		f, err := cfg.FS.OpenFile(cfg.log(epoch), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		if err := syncDir(cfg); err != nil {
			return 0, nil, errors.Join(err, f.Close())
		}
		return epoch, f, nil
	}
}

func mkdir(cfg Config) error {
	if cfg.Fsync {
		return fsx.MkdirSynced(cfg.FS, cfg.Dir, 0o755)
	}
	return cfg.FS.MkdirAll(cfg.Dir, 0o755)
}

func syncDir(cfg Config) error {
	if !cfg.Fsync {
		return nil
	}
	return cfg.FS.SyncDir(cfg.Dir)
}

// seal is how much of a segment counts.
type seal struct {
	epoch  int32
	Length int64 `json:"length"` // bytes
	// Reset: the segment begins with a round from which on the log counts.
	Reset bool   `json:"reset,omitempty"`
	Check string `json:"check"` // of what is before it
}

// check is CRC-32C, of the epoch too: a seal does not fit another segment.
func (s seal) check() string {
	text := fmt.Sprintf("%d %d %t", s.epoch, s.Length, s.Reset)
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// sealAll seals the segments of these epochs and returns those that count, oldest
// first.
func (l *Log) sealAll(ctx context.Context, epochs []int32) ([]seal, error) {
	var seals []seal
	// The latest seals are looked for first: before a reset nothing counts. What
	// is not sealed is younger than what is, but for epochs nobody served at.
	begin := 0
	found := map[int32]seal{}
	for i := len(epochs) - 1; i >= 0; i-- {
		s, ok, err := readSeal(l.cfg, epochs[i])
		if err != nil {
			return nil, err
		}
		if ok {
			found[epochs[i]] = s
		}
		if s.Reset {
			begin = i
			break
		}
	}
	for _, epoch := range epochs[begin:] {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, ok := found[epoch]
		if !ok {
			var err error
			if s, err = l.seal(epoch); err != nil {
				return nil, err
			}
		}
		if s.Reset {
			seals = nil
		}
		seals = append(seals, s)
	}
	// One sync for all, and for those that somebody else linked a moment ago.
	return seals, syncDir(l.cfg)
}

func readSeal(cfg Config, epoch int32) (seal, bool, error) {
	raw, err := cfg.FS.ReadFile(cfg.seal(epoch))
	if errors.Is(err, fs.ErrNotExist) {
		return seal{}, false, nil
	}
	if err != nil {
		return seal{}, false, err
	}
	s := seal{epoch: epoch}
	if err := json.Unmarshal(raw, &s); err != nil || s.Length < 0 || s.Check != s.check() {
		return seal{}, false, fmt.Errorf("%s is damaged, and nobody can say what of the log counts: %q", cfg.seal(epoch), raw)
	}
	return s, true, nil
}

// seal seals one segment, or finds that somebody else has.
func (l *Log) seal(epoch int32) (seal, error) {
	s, err := l.measure(epoch)
	if err != nil {
		return s, err
	}
	s.Check = s.check()
	raw, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	fsys, name := l.cfg.FS, l.cfg.seal(epoch)
	aside := filepath.Join(l.cfg.Dir, "."+sealName(epoch)+"."+rand.Text())
	if err := l.write(aside, append(raw, '\n')); err != nil {
		return s, err
	}
	err = fsys.Link(aside, name)
	_ = fsys.Remove(aside) // a leftover is harmless
	if !errors.Is(err, fs.ErrExist) {
		return s, err
	}
	first, ok, err := readSeal(l.cfg, epoch)
	if err == nil && !ok {
		err = ErrDeposed // it was there, and is gone: there has been a reset since
	}
	return first, err
}

func (l *Log) write(name string, data []byte) error {
	f, err := l.cfg.FS.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && l.cfg.Fsync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// measure reads a segment that is not sealed, and makes durable what is whole.
func (l *Log) measure(epoch int32) (s seal, err error) {
	s.epoch = epoch
	name := l.cfg.log(epoch)
	f, err := l.cfg.FS.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrDeposed // removed after a reset
	}
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return s, err
	}
	var last int64
	s.Length, last, err = segment.Scan(f, name, size, func(r segment.Stored) error {
		s.Reset = s.Reset || r.Reset
		return nil
	})
	if err != nil || s.Length == 0 || !l.cfg.Fsync {
		return s, err
	}
	// The last round may be in memory only, where its sync has failed and has
	// been forgotten; the bytes are the same.
	b := make([]byte, s.Length-last)
	if _, err = f.ReadAt(b, last); err != nil {
		return s, err
	}
	if _, err = f.WriteAt(b, last); err != nil {
		return s, err
	}
	return s, f.Sync()
}

// replay hands the rounds of a sealed segment to visit.
func (l *Log) replay(ctx context.Context, p part, visit func(segment.Stored) error) (err error) {
	name := l.cfg.log(p.epoch)
	f, err := l.cfg.FS.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	end, _, err := segment.Scan(f, name, min(size, p.length), func(r segment.Stored) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.Pos += p.base
		return visit(r)
	})
	if err == nil && end != p.length {
		err = fmt.Errorf("%s is damaged at byte %d: its seal says that %d bytes count", name, end, p.length)
	}
	return err
}
