package queue

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
)

// lane is the way to one inbox. One goroutine does all operations of it, one after
// another, for as long as there is something to do.
type lane struct {
	s    *Sink
	to   markers.Target
	dir  string
	wake chan struct{}

	queue []*letter // guarded by Sink.mu

	// What follows belongs to the goroutine.
	calm  calm
	made  bool    // the inbox is there, durably
	under []*sent // entries that are there, or may be
	bytes int     // of them
}

// sent is a letter with a file.
type sent struct {
	*letter
	name  string
	check uint32
	since time.Time // of the first verdict
	lost  int       // how many times in a row neither entry nor acknowledgement was seen
	over  bool      // it is to be removed
}

// lostAfter is how many times a directory that lacks an entry is looked at before
// that is believed: a network file system may show one that is out of date.
const lostAfter = 5

func (n *lane) nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run works until nothing is left, or ctx is done.
func (n *lane) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		n.publish(ctx)
		n.look()
		n.remove()
		if ctx.Err() != nil {
			n.end()
			return
		}
		s := n.s
		s.mu.Lock()
		more := len(n.queue) > 0 && n.room(n.queue[0])
		if len(n.under) == 0 && len(n.queue) == 0 {
			delete(s.lanes, n.to)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if more {
			continue
		}
		timer.Reset(s.cfg.Poll)
		select {
		case <-timer.C:
		case <-n.wake:
		case <-ctx.Done():
		}
	}
}

// room reports whether a letter fits besides what is under way.
func (n *lane) room(l *letter) bool {
	return len(n.under) == 0 || len(n.under) < n.s.cfg.Entries && n.bytes+l.bytes <= n.s.cfg.Bytes
}

// publish writes entries for what is queued, as far as there is room.
func (n *lane) publish(ctx context.Context) {
	s := n.s
	var fresh []*sent
	for ctx.Err() == nil {
		s.mu.Lock()
		if len(n.queue) == 0 || !n.room(n.queue[0]) {
			s.mu.Unlock()
			break
		}
		l := n.queue[0]
		n.queue = n.queue[1:]
		l.state = taken
		s.seq++
		l.address = address{s.cfg.Self, s.process, s.seq}
		s.mu.Unlock()
		q := &sent{letter: l, name: l.address.String()}
		n.under = append(n.under, q)
		n.bytes += l.bytes
		if err := n.write(q); err != nil {
			// Whether there is an entry nobody knows: it is removed before the letter
			// is over.
			n.calm.warn("entry not written, its deliveries are tried again", "inbox", n.dir, "entry", q.name, "err", err)
			q.over = true
			continue
		}
		fresh = append(fresh, q)
	}
	if len(fresh) == 0 {
		return
	}
	if err := s.cfg.FS.SyncDir(n.dir); err != nil {
		n.calm.warn("entries not synced, their deliveries are tried again", "inbox", n.dir, "err", err)
		for _, q := range fresh {
			q.over = true
		}
		return
	}
	if s.cfg.Sent != nil {
		s.cfg.Sent(n.to)
	}
}

// write makes the file of one entry, not synced under its name yet.
func (n *lane) write(q *sent) error {
	s := n.s
	if !n.made {
		if err := fsx.MkdirSynced(s.cfg.FS, n.dir, 0o755); err != nil {
			return err
		}
		n.made = true
	}
	data, check := q.encode()
	q.check = check
	tmp := filepath.Join(n.dir, tempName(q.name+entryExt, s.process))
	if err := fsx.CreateSynced(s.cfg.FS, tmp, data, 0o644); err != nil {
		_ = remove(s.cfg.FS, tmp) // a leftover is harmless, and the first error tells more
		return err
	}
	s.mu.Lock()
	left := q.left
	s.mu.Unlock()
	if left { // the process was stopped meanwhile, perhaps
		_ = remove(s.cfg.FS, tmp)
		return errors.New("its caller has left")
	}
	// The name is free: it is this process', and used once. So nothing is replaced.
	return s.cfg.FS.Rename(tmp, filepath.Join(n.dir, q.name+entryExt))
}

// look reads the acknowledgements that there are.
func (n *lane) look() {
	if len(n.under) == 0 {
		return
	}
	s := n.s
	s.mu.Lock()
	for _, q := range n.under {
		q.over = q.over || q.left
	}
	s.mu.Unlock()
	files, err := s.cfg.FS.ReadDir(n.dir)
	if err != nil {
		n.calm.warn("inbox not read", "inbox", n.dir, "err", err)
		return
	}
	there := map[string]bool{}
	for _, f := range files {
		there[f.Name()] = true
	}
	for _, q := range n.under {
		switch {
		case q.over:
		case there[q.name+ackExt]:
			q.lost = 0
			n.read(q)
		case there[q.name+entryExt]:
			q.lost = 0
		default:
			// Taken away by an operator, or by a receiver that took its sender for
			// dead.
			if q.lost++; q.lost >= lostAfter {
				s.cfg.Logger.Warn("an entry is gone without an acknowledgement, its deliveries are tried again", "inbox", n.dir, "entry", q.name)
				q.over = true
			}
		}
	}
}

// read takes in one acknowledgement.
func (n *lane) read(q *sent) {
	s := n.s
	data, err := s.cfg.FS.ReadFile(filepath.Join(n.dir, q.name+ackExt))
	if errors.Is(err, fs.ErrNotExist) {
		return // replaced in this moment, on a file system where that shows
	}
	var a *ack
	if err == nil {
		a, err = decodeAck(data)
	}
	if err != nil {
		// Not synced by its writer, who will write it again if it is not whole.
		n.calm.warn("acknowledgement not read", "inbox", n.dir, "entry", q.name, "err", err)
		return
	}
	if a.Refused != "" {
		s.cfg.Logger.Error("a receiver refused an entry, its deliveries are tried again", "inbox", n.dir, "entry", q.name, "reason", a.Refused)
		q.over = true
		return
	}
	if a.Entry != quote(q.check) || len(a.Verdicts) != len(q.ds) {
		s.cfg.Logger.Error("an acknowledgement is of other contents, and counts for nothing", "inbox", n.dir, "entry", q.name, "of", a.Entry, "want", quote(q.check))
		return
	}
	some, all := false, true
	s.mu.Lock()
	for i, v := range a.Verdicts {
		// What was said once stays: of two receivers that answer, an old one may
		// be the last.
		if q.verdicts[i] == pending {
			q.verdicts[i] = v
		}
		some, all = some || q.verdicts[i] != pending, all && q.verdicts[i] != pending
	}
	s.mu.Unlock()
	if some && q.since.IsZero() {
		q.since = time.Now()
	}
	q.over = all || some && time.Since(q.since) >= s.cfg.Straggle
}

// remove makes the entries that are over go, durably, and settles their letters.
// What can't be removed now is tried again.
func (n *lane) remove() {
	s := n.s
	var gone, rest []*sent
	for _, q := range n.under {
		if !q.over {
			rest = append(rest, q)
			continue
		}
		if err := remove(s.cfg.FS, filepath.Join(n.dir, q.name+entryExt)); err != nil {
			n.calm.warn("entry not removed, is tried again", "inbox", n.dir, "entry", q.name, "err", err)
			rest = append(rest, q)
			continue
		}
		gone = append(gone, q)
	}
	if len(gone) == 0 {
		return
	}
	if err := s.cfg.FS.SyncDir(n.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.calm.warn("removal of entries not synced, is tried again", "inbox", n.dir, "err", err)
		return
	}
	n.under = rest
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range gone {
		n.bytes -= q.bytes
		s.settle(q.letter)
	}
}

// end is the end of Run: entries are removed if they can be, and callers told that
// nothing is known. What stays is for the next process to remove.
func (n *lane) end() {
	for _, q := range n.under {
		q.over = true
	}
	n.remove()
	s := n.s
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lanes, n.to)
	for _, q := range n.under {
		clear(q.verdicts)
		s.settle(q.letter)
	}
	for _, l := range n.queue {
		s.settle(l)
	}
	n.queue, n.under = nil, nil
}

// remove is FS.Remove for a file that may be gone already.
func remove(fsys fsx.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
