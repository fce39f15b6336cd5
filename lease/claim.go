package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// tokenOf is the name of a slot's token. A token of epoch 0 is nobody's.
func tokenOf(slot int, epoch, broker int32) string {
	if epoch == 0 {
		return fmt.Sprintf("slot-%02d.%010d.nobody", slot, epoch)
	}
	return fmt.Sprintf("slot-%02d.%010d.broker-%d", slot, epoch, broker)
}

// parseToken takes no spelling but tokenOf's: two names of one epoch would be two
// tokens.
func parseToken(name string) (slot int, epoch, broker int32, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	number := func(s, prefix string, bits int) int64 {
		digits, found := strings.CutPrefix(s, prefix)
		n, err := strconv.ParseInt(digits, 10, bits)
		if !found || err != nil || n < 0 {
			ok = false
		}
		return n
	}
	ok = true
	slot, epoch = int(number(parts[0], "slot-", 16)), int32(number(parts[1], "", 32))
	if epoch != 0 {
		broker = int32(number(parts[2], "broker-", 32))
	}
	return slot, epoch, broker, ok && slot < txnstate.Slots && tokenOf(slot, epoch, broker) == name
}

// token is the name under which this broker holds a slot at an epoch.
func (l *Lease) token(slot int, epoch int32) string {
	return filepath.Join(l.slots, tokenOf(slot, epoch, l.cfg.Broker))
}

// keep claims slots and notices those that others have claimed.
func (l *Lease) keep(ctx context.Context) {
	tick := time.NewTicker(l.step())
	defer tick.Stop()
	failed := false
	for ctx.Err() == nil {
		changed := l.Changed()
		err := l.tend(ctx)
		if err != nil || failed {
			l.cfg.Logger.Warn("claims of slots", "broker", l.cfg.Broker, "err", err)
		}
		failed = err != nil
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// tend looks at the tokens once and claims what is wanted.
func (l *Lease) tend(ctx context.Context) error {
	if !l.isFresh() {
		return nil
	}
	tokens, err := l.list()
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.found(); err == nil {
			tokens, err = l.list()
		}
	}
	if err != nil {
		return err
	}
	if !l.durable {
		// Another broker may have put the tokens there and not synced it yet.
		if err := l.cfg.FS.SyncDir(l.dir); err != nil {
			return err
		}
		l.durable = true
	}
	for slot := range tokens {
		l.recheck(slot, tokens[slot])
	}
	var errs []error
	var claimed [txnstate.Slots]int32
	some := false
	for slot := range tokens {
		if !l.due(slot) || ctx.Err() != nil {
			continue
		}
		epoch, err := l.claim(slot, tokens[slot])
		if err != nil {
			errs = append(errs, fmt.Errorf("slot %d: %w", slot, err))
		}
		claimed[slot] = epoch
		some = some || epoch != 0
	}
	if some {
		// One sync for all. Before it a loss of power may bring an epoch back.
		if err := l.cfg.FS.SyncDir(l.slots); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	n := 0
	for slot, epoch := range claimed {
		if epoch == 0 {
			continue
		}
		// Another may have claimed it since. Who is stopped after this learns it at
		// the next look.
		_, err := l.cfg.FS.ReadFile(l.token(slot, epoch))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("slot %d: %w", slot, err))
		}
		if err == nil && l.take(slot, epoch) {
			n++
		}
	}
	if n > 0 {
		l.cfg.Logger.Info("slots claimed", "broker", l.cfg.Broker, "slots", n)
	}
	return errors.Join(errs...)
}

func (l *Lease) isFresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current()
}

// due reports whether a slot is to be claimed now, and puts the next try off: only
// a claim that succeeds needs none.
func (l *Lease) due(slot int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.wants(slot) || now.Before(l.retry[slot]) {
		return false
	}
	l.retry[slot] = now.Add(l.cfg.TTL / 3)
	return true
}

// token is what a listing shows of a slot.
type token struct {
	name  string // "" for none
	epoch int32
	lower []string // names of lower epochs
}

// list reads the tokens. A token that moves while the directory is read may be
// seen twice, or not at all.
func (l *Lease) list() (tokens [txnstate.Slots]token, err error) {
	entries, err := l.cfg.FS.ReadDir(l.slots)
	if err != nil {
		return tokens, err
	}
	for _, e := range entries { // sorted by name, and so by epoch
		slot, epoch, _, ok := parseToken(e.Name())
		if !ok {
			continue
		}
		t := &tokens[slot]
		if t.name != "" {
			t.lower = append(t.lower, t.name)
		}
		t.name, t.epoch = e.Name(), epoch
	}
	return tokens, nil
}

// recheck ends the ownership of a slot whose token another broker has taken.
func (l *Lease) recheck(slot int, seen token) {
	l.mu.Lock()
	epoch := l.held[slot]
	l.mu.Unlock()
	if epoch == 0 || seen.name == tokenOf(slot, epoch, l.cfg.Broker) {
		return
	}
	// The listing may be out of date; the name itself tells.
	if _, err := l.cfg.FS.ReadFile(l.token(slot, epoch)); errors.Is(err, fs.ErrNotExist) {
		l.deposed(slot, epoch)
	}
}

// claim takes the token of a slot to the next epoch, not yet durably. Epoch 0
// without an error means that somebody else was faster.
func (l *Lease) claim(slot int, t token) (epoch int32, err error) {
	if t.name == "" {
		// It moved while the directory was read, or a person removed it. A slot
		// without a token stays without an owner: nobody knows its epoch.
		return 0, errors.New("no token was seen")
	}
	for _, name := range t.lower {
		// What was passed over is gone, but for a file system that breaks a rename
		// apart when power is lost. Then nobody may find it again.
		if err := l.cfg.FS.Remove(filepath.Join(l.slots, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	if t.epoch == math.MaxInt32 {
		return 0, errors.New("its epochs are used up")
	}
	// After an error nobody knows whether the token has moved. The epoch is left
	// unused, and the next try goes by what is there then.
	err = l.cfg.FS.Rename(filepath.Join(l.slots, t.name), l.token(slot, t.epoch+1))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return t.epoch + 1, nil
}

// found makes the tokens, once for all brokers and for all times: they are made
// aside, and the directory is renamed to its place, where it refuses every later
// one. A broker that is stopped on the way, and wakes up later, finds it taken.
func (l *Lease) found() error {
	fsys := l.cfg.FS
	aside := filepath.Join(l.dir, ".slots."+rand.Text())
	defer l.discard(aside) // after success it is not there
	if err := fsys.MkdirAll(aside, 0o755); err != nil {
		return err
	}
	for slot := range txnstate.Slots {
		f, err := fsys.OpenFile(filepath.Join(aside, tokenOf(slot, 0, 0)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := fsys.SyncDir(aside); err != nil {
		return err
	}
	renamed := fsys.Rename(aside, l.slots)
	if errors.Is(renamed, fs.ErrExist) {
		return nil
	}
	return renamed
}

// discard removes a directory of tokens that mean nothing, as far as it can.
func (l *Lease) discard(dir string) {
	entries, err := l.cfg.FS.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		_ = l.cfg.FS.Remove(filepath.Join(dir, e.Name()))
	}
	_ = l.cfg.FS.Remove(dir)
}
