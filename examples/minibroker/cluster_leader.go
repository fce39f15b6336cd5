package minibroker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/epochlog"
	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kerr"
)

// place is one partition of one topic, also where its name is used again.
type place struct {
	id        [16]byte
	partition int32
}

// leading is what this broker knows of a partition that it leads, or is to lead.
type leading struct {
	topic *topic
	log   *partitionLog // nil: not taken over
	busy  chan struct{} // not nil: somebody takes it over; closed when that is over
	// after is when a takeover may begin: a broker that was deposed, or has failed,
	// lets others have a try.
	after time.Time
	// looked is when the volume was last asked whether the log is still led.
	looked time.Time
}

// leadFile is an epochlog.Log as a partition has it.
type leadFile struct{ *epochlog.Log }

func (f leadFile) Add(parts ...[]byte) (int64, *segment.Round, error) {
	pos, r, err := f.Log.Add(parts...)
	return pos, r, leadError(err)
}
func (f leadFile) Wait(r *segment.Round) error      { return leadError(f.Log.Wait(r)) }
func (f leadFile) Check() error                     { return leadError(f.Log.Check()) }
func (f leadFile) ReadAt(b []byte, pos int64) error { return leadError(f.Log.ReadAt(b, pos)) }

// leadError gives an error its number: clients go and look for the leader.
func leadError(err error) error {
	if errors.Is(err, epochlog.ErrDeposed) || errors.Is(err, segment.ErrClosed) {
		return kafkaErrorf(kerr.NotLeaderForPartition, "%w", err)
	}
	return err
}

func (c *cluster) notLeader(t *topic, p int32) error {
	return kafkaErrorf(kerr.NotLeaderForPartition, "partition %s/%d is led by another broker", t.name, p)
}

func (c *cluster) logDir(t *topic, p int32) string {
	return filepath.Join(c.dirOf(t), fmt.Sprintf("p-%d", p))
}

func (c *cluster) epochs(dir string) epochlog.Config {
	return epochlog.Config{Dir: dir, FS: c.b.cfg.FS, Fsync: c.b.cfg.Fsync == Always}
}

// owner is sharedTopics'. The partitions of a topic follow one another, so that
// they are spread evenly.
func (c *cluster) owner(t *topic, p int32) int32 {
	if t.logs != nil || t.internal {
		return c.ownerOf(int(p))
	}
	return c.ownerOf(int(binary.BigEndian.Uint32(t.id[:])>>2) + int(p))
}

// leader is sharedTopics'. The epoch is read from the volume: where another broker
// has just taken over, clients that know its epoch must not be sent back.
func (c *cluster) leader(t *topic, p int32) (node, epoch int32) {
	if t.logs != nil || t.internal {
		return c.owner(t, p), 0
	}
	at := place{t.id, p}
	c.mu.Lock()
	known, ok := c.known[at]
	c.mu.Unlock()
	if !ok {
		known = -1
	}
	latest, err := epochlog.Latest(c.epochs(c.logDir(t, p)), known)
	if err == nil && latest > known {
		c.mu.Lock()
		c.known[at] = max(c.known[at], latest)
		c.mu.Unlock()
	}
	return c.owner(t, p), max(latest, 0)
}

// takeoverWait is how long a request waits for the log of a partition that this
// broker is to lead.
const takeoverWait = 500 * time.Millisecond

// log is sharedTopics'. It takes the partition over where that is due, which a
// client is not kept waiting for long.
func (c *cluster) log(t *topic, p int32) (*partitionLog, error) {
	var deadline <-chan time.Time
	for {
		l, busy := c.lead(t, p)
		if l != nil {
			return l, nil
		}
		if busy == nil {
			return nil, c.notLeader(t, p)
		}
		if deadline == nil {
			timer := time.NewTimer(takeoverWait)
			defer timer.Stop()
			deadline = timer.C
		}
		select {
		case <-busy:
		case <-deadline:
			return nil, c.notLeader(t, p)
		case <-c.ctx.Done():
			return nil, c.notLeader(t, p)
		}
	}
}

// lead is the log of a partition, or what to wait for, or neither where another
// broker leads it, or this one may not yet.
func (c *cluster) lead(t *topic, p int32) (*partitionLog, chan struct{}) {
	mine := c.owner(t, p) == c.b.cfg.NodeID
	at := place{t.id, p}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.led[at]
	if x != nil && x.log != nil && x.log.down() {
		c.release(x)
		x.after = time.Now().Add(c.patience())
	}
	switch {
	case c.ctx.Err() != nil:
		return nil, nil
	case !mine:
		if x != nil && x.log != nil {
			c.release(x)
		}
		return nil, nil
	case x == nil:
		if c.b.topics.getByID(t.id) == nil {
			return nil, nil // deleted
		}
		x = &leading{topic: t}
		c.led[at] = x
	case x.log != nil:
		return x.log, nil
	case x.busy != nil:
		return nil, x.busy
	}
	if time.Now().Before(x.after) || c.slept() {
		return nil, nil
	}
	x.busy = make(chan struct{})
	if !c.spawn(func() { c.takeOver(at, x) }) {
		x.busy = nil
	}
	return nil, x.busy
}

// release ends the service of a log. c.mu is held.
func (c *cluster) release(x *leading) {
	l := x.log
	x.log = nil
	l.stop(kafkaErrorf(kerr.NotLeaderForPartition, "partition %s is led by another broker", l.name))
	if !c.spawn(l.close) {
		l.close()
	}
}

// takeOver takes a partition over.
func (c *cluster) takeOver(at place, x *leading) {
	l, err := c.openLog(x, at.partition)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(x.busy)
	x.busy = nil
	x.looked = time.Now()
	switch {
	case err != nil:
		x.after = x.looked.Add(c.patience())
		if !errors.Is(err, epochlog.ErrDeposed) && c.ctx.Err() == nil {
			c.logger.Error("partition not taken over, is tried again", "partition", fmt.Sprintf("%s/%d", x.topic.name, at.partition), "err", err)
		}
		c.cleanDeleted(x.topic)
	case c.led[at] != x || c.ctx.Err() != nil: // deleted meanwhile, or over
		x.log = l
		c.release(x)
		c.cleanDeleted(x.topic)
	default:
		x.log = l
	}
}

// cleanDeleted removes what a takeover has made of a topic that was deleted
// meanwhile.
func (c *cluster) cleanDeleted(t *topic) {
	if c.b.topics.getByID(t.id) == nil {
		c.spawn(func() { c.clean(t) })
	}
}

// openLog takes over the log of a partition and reads it.
func (c *cluster) openLog(x *leading, p int32) (*partitionLog, error) {
	t := x.topic
	if err := c.awaitArrivals(); err != nil {
		return nil, err
	}
	select {
	case c.width <- struct{}{}:
		defer func() { <-c.width }()
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
	l := newPartitionLog(t.name, int(p), c.b.cfg.Limits.BatchBytes)
	ls := make([]*partitionLog, t.count)
	ls[p] = l
	file, err := epochlog.TakeOver(c.ctx, c.epochs(c.logDir(t, p)), func(r segment.Stored) error { return replayRound(t.name, ls, r) })
	if err != nil {
		return nil, err
	}
	l.file, l.epoch = leadFile{file}, file.Epoch()
	l.With(func(fp *fence.Partition) {
		for _, f := range c.fenced() {
			fp.Fence(f)
		}
	})
	l.mu.Lock()
	l.advance(l.end)
	l.mu.Unlock()
	return l, nil
}

// down reports whether the log can't be used any more.
func (l *partitionLog) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed != nil
}

// dropLogs ends the logs of a topic that is deleted.
func (c *cluster) dropLogs(t *topic) {
	c.mu.Lock()
	var gone []*partitionLog
	for p := range t.count {
		at := place{t.id, p}
		if x := c.led[at]; x != nil && x.log != nil {
			gone = append(gone, x.log)
		}
		delete(c.led, at)
		delete(c.known, at)
	}
	c.mu.Unlock()
	for _, l := range gone {
		l.remove()
		l.close()
	}
}

// logs is sharedTopics'.
func (c *cluster) logs() []*partitionLog {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*partitionLog
	for _, x := range c.led {
		if x.log != nil {
			out = append(out, x.log)
		}
	}
	return out
}

// tendLogs takes over what is due, gives up what is another's, and looks now and
// then whether what is led still is. It returns what has begun.
func (c *cluster) tendLogs() (begun []chan struct{}) {
	for _, t := range c.b.topics.all() {
		if t.internal || t.logs != nil {
			continue
		}
		for p := range t.count {
			l, busy := c.lead(t, p)
			if busy != nil {
				begun = append(begun, busy)
			}
			if l != nil && c.lookDue(place{t.id, p}) {
				_ = l.Check() // lead finds it down
			}
		}
	}
	return begun
}

func (c *cluster) lookDue(at place) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.led[at]
	if x == nil || time.Since(x.looked) < c.patience() {
		return false
	}
	x.looked = time.Now()
	return true
}

// closeLogs ends the service of all logs.
func (c *cluster) closeLogs() {
	for _, l := range c.logs() {
		l.stop(txnstate.CodeNotLeaderOrFollower.Errorf("", "the broker stops"))
		l.close()
	}
}

var _ sharedTopics = (*cluster)(nil)
