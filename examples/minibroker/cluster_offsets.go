package minibroker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/epochlog"
	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// sharedOffsets is the offsets log of a cluster: each partition of groups is a log
// of its own, led by the broker that coordinates its groups.
//
//	offsets/p-07/    see package epochlog
//
// An entry is its length (4 bytes) and its bytes.
type sharedOffsets struct {
	c   *cluster
	dir string

	mu    sync.Mutex
	parts [txnstate.OffsetsPartitions]offsetsPart
}

type offsetsPart struct {
	log    *epochlog.Log // nil: not taken over
	served bool          // the manager has it
	busy   bool          // somebody loads or unloads it
	after  time.Time     // see leading
	looked time.Time
}

var (
	_ kxoffsets.Log     = (*sharedOffsets)(nil)
	_ kxoffsets.Checker = (*sharedOffsets)(nil)
)

func openSharedOffsets(c *cluster) (*sharedOffsets, error) {
	o := &sharedOffsets{c: c, dir: filepath.Join(c.b.cfg.Dir, "offsets")}
	return o, fsx.MkdirSynced(c.b.cfg.FS, o.dir, 0o755)
}

func (o *sharedOffsets) config(p int32) epochlog.Config {
	return o.c.epochs(filepath.Join(o.dir, fmt.Sprintf("p-%02d", p)))
}

// at is the log of a partition, if this broker leads it.
func (o *sharedOffsets) at(p int32) (*epochlog.Log, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.parts[p].log == nil {
		return nil, notCoordinator(p)
	}
	return o.parts[p].log, nil
}

func notCoordinator(p int32) error {
	return txnstate.CodeNotCoordinator.Errorf("", "offsets partition %d is another broker's", p)
}

func withLengths(entries [][]byte) [][]byte {
	parts := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		parts = append(parts, binary.BigEndian.AppendUint32(nil, uint32(len(e))), e)
	}
	return parts
}

// Append is offsets.Log's.
func (o *sharedOffsets) Append(_ context.Context, p int32, entries [][]byte) error {
	l, err := o.at(p)
	if err != nil {
		return err
	}
	_, r, err := l.Add(withLengths(entries)...)
	if err == nil {
		err = l.Wait(r)
	}
	return o.failed(p, l, err)
}

// failed lets go of a log that is of no use any more.
func (o *sharedOffsets) failed(p int32, l *epochlog.Log, err error) error {
	if err == nil {
		return nil
	}
	o.mu.Lock()
	x := &o.parts[p]
	if x.log == l {
		x.log = nil
		x.after = time.Now().Add(o.c.patience())
	}
	o.mu.Unlock()
	l.Close()
	o.c.nudge()
	return err
}

// Replay is offsets.Log's: it takes the partition over.
func (o *sharedOffsets) Replay(ctx context.Context, p int32, f func(entry []byte) error) error {
	o.mu.Lock()
	x := &o.parts[p]
	old := x.log
	x.log = nil
	early := time.Now().Before(x.after)
	o.mu.Unlock()
	if old != nil {
		old.Close()
	}
	if early || o.c.coordinator(p) != o.c.b.cfg.NodeID {
		return notCoordinator(p)
	}
	l, err := epochlog.TakeOver(ctx, o.config(p), func(r segment.Stored) error { return entriesOf(r.Payload, f) })
	o.mu.Lock()
	defer o.mu.Unlock()
	if x.looked = time.Now(); err != nil {
		x.after = x.looked.Add(o.c.patience())
		return err
	}
	x.log = l
	return nil
}

func entriesOf(b []byte, f func(entry []byte) error) error {
	for len(b) > 0 {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			return errors.New("an entry that ends early")
		}
		n := 4 + int(binary.BigEndian.Uint32(b))
		if err := f(b[4:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Rewrite is offsets.Log's.
func (o *sharedOffsets) Rewrite(ctx context.Context, p int32, entries [][]byte) error {
	l, err := o.at(p)
	if err != nil {
		return err
	}
	next, err := l.Rewrite(ctx, withLengths(entries)...)
	if err != nil {
		return o.failed(p, l, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.parts[p].log != l {
		next.Close() // given up meanwhile
		return notCoordinator(p)
	}
	o.parts[p].log = next
	return nil
}

// Check is offsets.Checker's.
func (o *sharedOffsets) Check(p int32) error {
	l, err := o.at(p)
	if err != nil {
		return err
	}
	return o.failed(p, l, l.Check())
}

// tend loads what is this broker's and not served, and unloads what is not this
// broker's any more. It returns what it waits for.
func (o *sharedOffsets) tend(slept bool) (begun []chan struct{}) {
	for p := range int32(txnstate.OffsetsPartitions) {
		mine := o.c.coordinator(p) == o.c.b.cfg.NodeID && o.c.ctx.Err() == nil
		o.mu.Lock()
		x := &o.parts[p]
		now := time.Now()
		var f func()
		look := false
		switch {
		case x.busy:
		case x.served && (!mine || x.log == nil):
			f = func() { o.unload(p) }
		case mine && !x.served && !slept && !now.Before(x.after):
			f = func() { o.load(p) }
		case x.served && now.Sub(x.looked) >= o.c.patience():
			x.looked = now
			look = true
		}
		if f != nil {
			x.busy = true
		}
		o.mu.Unlock()
		if look {
			_ = o.Check(p)
		}
		if f == nil {
			continue
		}
		done := make(chan struct{})
		begun = append(begun, done)
		o.c.work.Go(func() { // run waits for it, and it is run that calls
			defer close(done)
			f()
		})
	}
	return begun
}

func (o *sharedOffsets) load(p int32) {
	err := o.c.awaitArrivals()
	if err == nil {
		err = o.take(p)
	}
	o.mu.Lock()
	x := &o.parts[p]
	x.busy, x.served = false, err == nil
	failed := err != nil && !errors.Is(err, epochlog.ErrDeposed) && o.c.ctx.Err() == nil
	if err != nil {
		x.after = time.Now().Add(o.c.patience())
	}
	o.mu.Unlock()
	if failed {
		o.c.logger.Error("offsets partition not taken over, is tried again", "partition", p, "err", err)
	}
	o.c.nudge()
}

func (o *sharedOffsets) take(p int32) error {
	c := o.c
	select {
	case c.width <- struct{}{}:
		defer func() { <-c.width }()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	c.b.groups.forget(p) // what a request from before may have left
	if err := c.b.offsets.LoadPartition(c.ctx, p); err != nil {
		return err
	}
	for _, f := range c.fenced() {
		_ = c.b.offsets.Fence(c.ctx, f) // never fails
	}
	o.removeDeleted(p)
	return nil
}

// removeDeleted removes offsets of topics that were deleted while nobody served
// the partition, or by somebody who died before he had removed them.
func (o *sharedOffsets) removeDeleted(p int32) {
	c := o.c
	if err := c.refresh(); err != nil {
		return // the next takeover has another try
	}
	gone := map[string]bool{}
	for _, group := range c.b.offsets.Groups() {
		if txnstate.OffsetsPartition(group) != p {
			continue
		}
		fetched, err := c.b.offsets.Fetch(group, nil, false)
		if err != nil {
			return
		}
		for _, f := range fetched {
			if c.b.topics.get(f.Topic) == nil {
				gone[f.Topic] = true
			}
		}
	}
	for topic := range gone {
		if err := c.b.offsets.DeleteTopic(c.ctx, topic); err != nil {
			c.logger.Warn("offsets of a deleted topic not removed", "topic", topic, "err", err)
		}
	}
}

func (o *sharedOffsets) unload(p int32) {
	err := o.c.b.offsets.Unload(context.WithoutCancel(o.c.ctx), p)
	o.c.b.groups.forget(p)
	o.mu.Lock()
	x := &o.parts[p]
	l := x.log
	x.log, x.busy, x.served = nil, false, false
	o.mu.Unlock()
	if l != nil {
		l.Close()
	}
	if err != nil {
		o.c.logger.Warn("offsets partition not given up in order", "partition", p, "err", err)
	}
	o.c.nudge()
}

// close ends the service of what is left; the manager is closed.
func (o *sharedOffsets) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p := range o.parts {
		if l := o.parts[p].log; l != nil {
			o.parts[p].log = nil
			l.Close()
		}
	}
}
