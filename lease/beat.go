package lease

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// beat is the content of a heartbeat.
type beat struct {
	// Generation and Nonce name the process. A later process of the same broker
	// has a higher generation; the nonce tells two that began together.
	Generation int64  `json:"generation"`
	Nonce      string `json:"nonce"`
	Counter    int64  `json:"counter"` // grows with every heartbeat
	State      string `json:"state"`
}

const (
	up       = "up"
	resigned = "resigned"
)

// What is longer than a heartbeat, or further ahead, is damage.
const (
	maxBeat       = 1024
	maxGeneration = math.MaxInt64 / 2
)

// process compares the processes of two heartbeats, the later one is greater.
func (b beat) process(o beat) int {
	return cmp.Or(cmp.Compare(b.Generation, o.Generation), strings.Compare(b.Nonce, o.Nonce))
}

func decodeBeat(data []byte) (beat, error) {
	var b beat
	if len(data) > maxBeat {
		return b, fmt.Errorf("a heartbeat of %d bytes", len(data))
	}
	if err := json.Unmarshal(bytes.TrimSpace(data), &b); err != nil {
		return b, err
	}
	if b.Generation <= 0 || b.Generation > maxGeneration || b.Nonce == "" || b.State != up && b.State != resigned {
		return b, errors.New("not a heartbeat")
	}
	return b, nil
}

func encodeBeat(b beat) []byte {
	data, err := json.Marshal(b)
	if err != nil {
		panic("lease: " + err.Error()) // a struct of numbers and strings
	}
	return append(data, '\n')
}

// heart is what the goroutine that beats knows.
type heart struct {
	ready bool // the directory is there
	own   beat // as written last; without a nonce before the first
	peers []*peer
	at    time.Time // of the last look
	dumb  bool      // the last write failed, and was logged
}

// peer is what is known of another broker.
type peer struct {
	broker int32
	last   beat // the latest that counted; no nonce before the first
	silent time.Duration
	alive  bool
}

func (l *Lease) beatFile(broker int32) string {
	return filepath.Join(l.dir, fmt.Sprintf("broker-%d", broker))
}

// beat writes heartbeats and looks for those of others.
func (l *Lease) beat(ctx context.Context) error {
	tick := time.NewTicker(l.step())
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		if n%2 == 0 {
			at := time.Now()
			err := l.write(up)
			if errors.Is(err, ErrReplaced) {
				return err
			}
			if failed := err != nil; failed != l.self.dumb {
				l.self.dumb = failed
				l.cfg.Logger.Warn("heartbeats", "broker", l.cfg.Broker, "written", !failed, "err", err)
			}
			if err == nil {
				l.beaten(at)
			}
		}
		l.look()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// write replaces the own heartbeat. It is not synced: it is of no use to the next
// start.
func (l *Lease) write(state string) error {
	h := &l.self
	if !h.ready {
		// Dir is the host's and is made only where it is missing: its parent may be
		// of a kind that can't be synced.
		if l.cfg.FS.SyncDir(l.cfg.Dir) != nil {
			if err := fsx.MkdirSynced(l.cfg.FS, l.cfg.Dir, 0o755); err != nil {
				return err
			}
		}
		if err := fsx.MkdirSynced(l.cfg.FS, l.dir, 0o755); err != nil {
			return err
		}
		h.ready = true
	}
	there, err := l.read(l.cfg.Broker)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDamaged):
		return err
	case err != nil:
		there = beat{}
	}
	next := h.own
	if next.Nonce == "" {
		// By the clock, so that it is later than a process whose file is damaged.
		next.Generation = max(time.Now().UnixMilli(), there.Generation+1)
		next.Nonce = rand.Text()
		l.tidy()
	} else if there.process(next) > 0 {
		return fmt.Errorf("%w, begun later: broker %d", ErrReplaced, l.cfg.Broker)
	}
	next.Counter++
	next.State = state
	// The name is the process's own: another one of this broker, stopped in the
	// middle, must not put its half into this file.
	tmp := filepath.Join(l.dir, fmt.Sprintf(".broker-%d.%s", l.cfg.Broker, next.Nonce))
	if err := fill(l.cfg.FS, tmp, encodeBeat(next)); err != nil {
		return err
	}
	if err := l.cfg.FS.Rename(tmp, l.beatFile(l.cfg.Broker)); err != nil {
		return err
	}
	h.own = next
	return nil
}

func fill(fsys fsx.FS, name string, data []byte) error {
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close() // the write error is the one that matters
		return err
	}
	return f.Close()
}

// tidy removes what earlier processes left when they died in the middle of
// something. One of this broker that is only stopped fails to rename its
// heartbeat, and tries again; one that was founding the tokens finds them there.
func (l *Lease) tidy() {
	fsys := l.cfg.FS
	entries, err := fsys.ReadDir(l.dir)
	if err != nil {
		return // the next start has another try
	}
	_, err = fsys.ReadDir(l.slots)
	founded := err == nil
	for _, e := range entries {
		name := filepath.Join(l.dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), fmt.Sprintf(".broker-%d.", l.cfg.Broker)):
			_ = fsys.Remove(name)
		case founded && strings.HasPrefix(e.Name(), ".slots."):
			l.discard(name)
		}
	}
}

// resign tells the others not to wait for this broker.
func (l *Lease) resign() {
	if l.self.own.Nonce == "" {
		return // nobody has heard of it
	}
	if err := l.write(resigned); err != nil {
		l.cfg.Logger.Warn("could not resign, others wait until the heartbeat is out of date", "broker", l.cfg.Broker, "err", err)
	}
}

var errDamaged = errors.New("damaged heartbeat")

func (l *Lease) read(broker int32) (beat, error) {
	data, err := l.cfg.FS.ReadFile(l.beatFile(broker))
	if err != nil {
		return beat{}, err
	}
	b, err := decodeBeat(data)
	if err != nil {
		return beat{}, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return b, nil
}

// look reads the heartbeats of the others.
func (l *Lease) look() {
	h := &l.self
	now := time.Now()
	// A process that was stopped has looked once in all that time, and must not
	// take the others for dead that it did not look at.
	gap := min(now.Sub(h.at), 2*l.step())
	h.at = now
	var alive []int32
	for _, p := range h.peers {
		b, err := l.read(p.broker)
		switch {
		case err == nil:
			p.heard(b, gap, l.cfg.TTL)
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errDamaged):
			p.missed(gap, l.cfg.TTL)
		default: // it is this broker that can't see
		}
		if p.alive {
			alive = append(alive, p.broker)
		}
	}
	l.seen(alive)
}

// heard books a heartbeat that was found after a gap. The first one of a broker
// counts, though nobody knows how old it is: a cluster that starts again must not
// move everything to who comes first.
func (p *peer) heard(b beat, gap, ttl time.Duration) {
	news := b.Counter > p.last.Counter
	if c := b.process(p.last); c != 0 {
		// An earlier process, stopped and woken, may write over the heartbeat of a
		// later one.
		news = c > 0 || !p.alive
	}
	if !news {
		p.missed(gap, ttl)
		return
	}
	p.last, p.silent, p.alive = b, 0, b.State == up
}

func (p *peer) missed(gap, ttl time.Duration) {
	p.silent = min(p.silent+gap, ttl)
	if p.silent >= ttl {
		p.alive = false
	}
}
