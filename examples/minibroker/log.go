package minibroker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"sync"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// partitionLog is one partition: its batches and the state of its producers. It
// implements wire.Log. With a file, which all partitions of the topic share,
// readers see only what is on the disk; without one, everything is kept in memory.
type partitionLog struct {
	name     string // topic/partition, for errors
	number   uint32 // of the partition
	file     logFile
	epoch    int32 // of the leader; 0 where this broker alone ever was
	maxBatch int   // bytes

	mu      sync.Mutex // never held during I/O
	state   *fence.Partition
	batches []batch
	index   []indexEntry
	sinceIx int64                                       // bytes since the last index entry
	bytes   int64                                       // of all batches
	end     int64                                       // offset of the next record
	high    int64                                       // high watermark: what is below is durable
	stable  int64                                       // last stable offset
	failed  error                                       // the partition is offline
	front   [batchPartition + batchLeaderEpoch + 4]byte // scratch for what is put in front of a batch
	parts   [2][]byte                                   // and for what is written
	waiting map[chan<- struct{}]struct{}
}

// logFile is where the bytes of a log are: a segment.Segment, or what a cluster has
// instead.
type logFile interface {
	Add(parts ...[]byte) (pos int64, r *segment.Round, err error)
	Wait(r *segment.Round) error
	ReadAt(b []byte, pos int64) error
	Close()
	End() // Close, and wait for what is on its way to the file
}

// fileChecker is a logFile that other brokers can take over. Check fails where
// one has.
type fileChecker interface{ Check() error }

var (
	_ wire.Log        = (*partitionLog)(nil)
	_ wire.LogChecker = (*partitionLog)(nil)
	_ wire.LogStarter = (*partitionLog)(nil)
)

// batch is where one batch is found.
type batch struct {
	base, last   int64
	maxTimestamp int64
	at           int64  // bytes of the batches before it, Kafka's place in the segment
	pos          int64  // place in the file
	data         []byte // the batch itself, where there is no file
	size         int32
}

// indexEntry is an entry of Kafka's offset index (OffsetIndex). Nothing is found
// by it here; but the aborted transactions that a fetch lists reach up to one
// (§6.6), so their list depends on where the entries are.
type indexEntry struct {
	last int64 // last offset of the batch
	at   int64
}

// indexInterval is Kafka's index.interval.bytes.
const indexInterval = 4096

// Places in a batch's header.
const (
	batchLeaderEpoch    = 12
	batchAttributes     = 21
	batchFirstTimestamp = 27
	batchHeader         = 61
)

func newPartitionLog(topic string, p, maxBatch int) *partitionLog {
	return &partitionLog{name: topic + "/" + strconv.Itoa(p), number: uint32(p), maxBatch: maxBatch, state: fence.NewPartition(fence.Config{}), waiting: map[chan<- struct{}]struct{}{}}
}

// newLogs are the logs of the partitions of a topic.
func newLogs(topic string, n int32, maxBatch int) []*partitionLog {
	ls := make([]*partitionLog, n)
	for p := range ls {
		ls[p] = newPartitionLog(topic, p, maxBatch)
	}
	return ls
}

// share gives logs the file that they share: a transaction writes to several of
// them at once, to all of them its markers, and what is written at once shares a
// sync. The file holds their batches as they were appended, each behind the number
// of its partition.
func share(ls []*partitionLog, s *segment.Segment) {
	for _, l := range ls {
		l.file = s
	}
}

// batchPartition is the bytes of that number.
const batchPartition = 4

// openLogs reads the logs of a topic from their file, which need not exist.
func openLogs(topic string, n int32, maxBatch int, fsys fsx.FS, path string, fsync bool) ([]*partitionLog, error) {
	ls := newLogs(topic, n, maxBatch)
	file, err := segment.Open(fsys, path, fsync, func(r segment.Stored) error { return replayRound(topic, ls, r) })
	if err != nil {
		return nil, fmt.Errorf("topic %s: %w", topic, err)
	}
	share(ls, file)
	for _, l := range ls {
		l.advance(l.end)
	}
	return ls, nil
}

// replayRound takes in what is in one round; logs that are nil are not there.
func replayRound(topic string, ls []*partitionLog, r segment.Stored) error {
	pos, b := r.Pos, r.Payload
	for len(b) > 0 {
		if len(b) < batchPartition {
			return fmt.Errorf("%d bytes where the number of a partition should be", len(b))
		}
		p := binary.BigEndian.Uint32(b)
		if p >= uint32(len(ls)) || ls[p] == nil {
			return fmt.Errorf("a batch of partition %d, and topic %q has %d", p, topic, len(ls))
		}
		size, err := ls[p].replay(pos+batchPartition, b[batchPartition:])
		if err != nil {
			return fmt.Errorf("partition %s: %w", ls[p].name, err)
		}
		b, pos = b[batchPartition+size:], pos+batchPartition+int64(size)
	}
	return nil
}

// replay takes in the batch at the front of b, without any check: it was checked
// when it was appended.
func (l *partitionLog) replay(pos int64, b []byte) (size int, err error) {
	h, base, size, err := fence.ParseHeader(b)
	switch {
	case err != nil:
		return 0, err
	case size > len(b):
		return 0, fmt.Errorf("a batch of %d bytes, and %d are left", size, len(b))
	case base != l.end:
		return 0, fmt.Errorf("a batch at offset %d, and the next is %d", base, l.end)
	}
	var mark *fence.Mark
	if h.Control {
		m, ms, err := markers.ParseControlBatch(b[:size])
		switch {
		case err == nil:
			mk := m.Mark(ms)
			mark = &mk
		case !errors.Is(err, markers.ErrNotMarker):
			return 0, err
		}
	}
	l.enter(h, base, size, pos, nil)
	l.state.Replay(h, base, mark)
	return size, nil
}

// enter puts a batch at the end.
func (l *partitionLog) enter(h fence.Batch, base int64, size int, pos int64, data []byte) {
	last := base + int64(h.Records) - 1
	if l.sinceIx > indexInterval {
		l.index = append(l.index, indexEntry{last: last, at: l.bytes})
		l.sinceIx = 0
	}
	l.batches = append(l.batches, batch{base: base, last: last, maxTimestamp: h.MaxTimestampMs, at: l.bytes, pos: pos, data: data, size: int32(size)})
	l.sinceIx += int64(size)
	l.bytes += int64(size)
	l.end = last + 1
}

// With runs f with the producer state, alone.
func (l *partitionLog) With(f func(*fence.Partition)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.state)
}

// Append is wire.Log's. The bytes of b are copied, once. It does not leave when
// ctx ends: an admitted batch is on its way to the disk.
func (l *partitionLog) Append(ctx context.Context, b []byte, admit func(p *fence.Partition, base int64) error) error {
	wait, err := l.Start(b, admit)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// Start is wire.LogStarter's.
func (l *partitionLog) Start(b []byte, admit func(p *fence.Partition, base int64) error) (wait func(context.Context) error, err error) {
	h, _, size, err := fence.ParseHeader(b)
	if err != nil {
		return nil, err
	}
	if size != len(b) {
		return nil, txnstate.CodeCorruptMessage.Errorf("", "a batch of %d bytes in %d", size, len(b))
	}
	if size > l.maxBatch {
		return nil, txnstate.CodeMessageTooLarge.Errorf("", "a batch of %d bytes, and partition %s takes %d", size, l.name, l.maxBatch)
	}
	end, r, err := l.enqueue(h, b, admit)
	if err != nil {
		if cerr := l.Check(); cerr != nil {
			return nil, cerr // what was refused was refused by a state out of date
		}
		return nil, err
	}
	return func(context.Context) error { return l.settle(r, end) }, nil
}

// settle waits for a round, nil without a file, and books what was in it.
func (l *partitionLog) settle(r *segment.Round, end int64) error {
	if r == nil {
		return nil
	}
	err := l.file.Wait(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		// The producer state counts a batch that may not be there, so nothing is
		// appended any more until the log has been read again.
		return l.offline(err)
	}
	l.advance(end)
	return nil
}

func (l *partitionLog) enqueue(h fence.Batch, b []byte, admit func(p *fence.Partition, base int64) error) (end int64, r *segment.Round, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return 0, nil, l.failed
	}
	base := l.end
	if err := admit(l.state, base); err != nil {
		return 0, nil, err
	}
	// The checksum begins behind these two fields.
	front := l.front[batchPartition:]
	copy(front, b)
	binary.BigEndian.PutUint64(front, uint64(base))
	binary.BigEndian.PutUint32(front[batchLeaderEpoch:], uint32(l.epoch))
	if l.file == nil {
		data := slices.Concat(front, b[len(front):])
		l.enter(h, base, len(b), 0, data)
		l.advance(l.end)
		return l.end, nil, nil
	}
	binary.BigEndian.PutUint32(l.front[:], l.number)
	l.parts = [2][]byte{l.front[:], b[len(front):]}
	pos, r, err := l.file.Add(l.parts[:]...)
	l.parts[1] = nil
	if err != nil {
		return 0, nil, l.offline(err)
	}
	l.enter(h, base, len(b), pos+batchPartition, nil)
	return l.end, r, nil
}

// Durable is wire.Log's.
func (l *partitionLog) Durable(ctx context.Context, offset int64) error {
	more := make(chan struct{}, 1)
	defer l.watch(more)()
	for {
		switch at, err := l.ends(); {
		case err != nil:
			return err
		case offset < at.high:
			return l.Check()
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Check is wire.LogChecker's: it fails where another broker has taken the log over.
func (l *partitionLog) Check() error {
	c, ok := l.file.(fileChecker)
	if !ok {
		return nil
	}
	err := c.Check()
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.offline(err)
	}
	return nil
}

// offline ends the partition's service; mu is held. Deleting it does so too, and
// its reason stays.
func (l *partitionLog) offline(err error) error {
	var coded *txnstate.Error
	switch {
	case l.failed != nil:
	case errors.As(err, &coded):
		l.failed = coded
		l.wake()
	default:
		l.failed = txnstate.CodeKafkaStorageError.Errorf("", "partition %s is offline until the next start: %w", l.name, err)
		l.wake()
	}
	return l.failed
}

// advance moves the high watermark up to end and tells those who wait for data.
// mu is held.
func (l *partitionLog) advance(end int64) {
	if end <= l.high {
		return // a later round was faster to say so
	}
	l.high = end
	l.state.Stabilize(end)
	l.stable = l.state.LastStable(end)
	l.wake()
}

func (l *partitionLog) wake() {
	for c := range l.waiting {
		select {
		case c <- struct{}{}:
		default: // it has been told
		}
	}
}

// watch has c told, without waiting for it, when there may be more to read. The
// result ends that.
func (l *partitionLog) watch(c chan<- struct{}) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[c] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting, c)
	}
}

// expire forgets producers that have not written for long.
func (l *partitionLog) expire(nowMs int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Expire(nowMs)
}

// stop takes the partition offline from outside.
func (l *partitionLog) stop(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.offline(err)
}

// remove takes the partition out of service for good.
func (l *partitionLog) remove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = txnstate.CodeUnknownTopicOrPartition.Errorf("", "partition %s is deleted", l.name)
	}
	l.wake()
}

// close closes the file, of the other partitions too.
func (l *partitionLog) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// finish is close, and waits for what is on its way to the file.
func (l *partitionLog) finish() {
	if l.file != nil {
		l.file.End()
	}
}

// ends are where a partition ends, as readers see it: the high watermark and the
// last stable offset.
type ends struct {
	high, stable int64
}

// ends are the present ends, or why there are none.
func (l *partitionLog) ends() (ends, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ends{l.high, l.stable}, l.failed
}

// aborted is an entry of the list that comes with what a read_committed fetch
// returns.
type aborted struct {
	producerID, first int64
}

// slice is a piece of the log that was chosen to be read.
type slice struct {
	ends
	batches []batch // neighbours; not to be changed
	bytes   int
	aborted []aborted // not nil where it was asked for
}

// selectFrom chooses whole batches from offset on, up to maxBytes of them, and
// the first one whole if atLeastOne. committed stops at the last stable offset
// and lists aborted transactions (UnifiedLog.read).
func (l *partitionLog) selectFrom(offset int64, maxBytes int, atLeastOne, committed bool) (slice, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return slice{}, l.failed
	}
	if offset < 0 || offset > l.end {
		return slice{}, txnstate.Code(kerr.OffsetOutOfRange.Code).Errorf("", "offset %d of partition %s, and it has 0 to %d", offset, l.name, l.end)
	}
	s := slice{ends: ends{l.high, l.stable}}
	bound := l.high
	if committed {
		bound = l.stable
		s.aborted = []aborted{}
	}
	if offset >= bound {
		return s, nil // Kafka does not look at the aborted index here
	}
	first := l.find(offset)
	n := first
	for ; n < len(l.batches) && l.batches[n].base < bound; n++ {
		size := int(l.batches[n].size)
		if s.bytes+size > maxBytes && (n > first || !atLeastOne) {
			break
		}
		s.bytes += size
	}
	if n == first {
		return s, nil
	}
	s.batches = l.batches[first:n:n]
	if committed {
		for _, a := range l.state.Aborted(offset, l.abortedBound(first, s.bytes)) {
			s.aborted = append(s.aborted, aborted{a.ProducerID, a.First})
		}
	}
	return s, nil
}

// find is the index of the batch that holds offset.
func (l *partitionLog) find(offset int64) int {
	return sort.Search(len(l.batches), func(i int) bool { return l.batches[i].last >= offset })
}

// abortedBound is the offset up to which the aborted transactions are listed: that
// of the first index entry past the bytes returned, or the end of the log
// (LogSegment.fetchUpperBoundOffset). There is one segment.
func (l *partitionLog) abortedBound(first, bytes int) int64 {
	to := l.batches[first].at + int64(bytes)
	i := sort.Search(len(l.index), func(i int) bool { return l.index[i].at >= to })
	if i < len(l.index) {
		return l.index[i].last
	}
	return l.end
}

// readGap is how many bytes between two batches are read and thrown away rather
// than asking the file twice.
const readGap = 4096

// read is the bytes of a slice. Rounds, and other partitions, leave gaps in the
// file.
func (l *partitionLog) read(s slice) ([]byte, error) {
	if len(s.batches) == 0 {
		return nil, nil
	}
	if l.file == nil {
		if len(s.batches) == 1 {
			return s.batches[0].data, nil
		}
		out := make([]byte, 0, s.bytes)
		for _, b := range s.batches {
			out = append(out, b.data...)
		}
		return out, nil
	}
	out := make([]byte, 0, s.bytes)
	var buf []byte
	for rest := s.batches; len(rest) > 0; {
		n, from := 1, rest[0].pos
		end := from + int64(rest[0].size)
		for n < len(rest) && rest[n].pos-end <= readGap {
			end = rest[n].pos + int64(rest[n].size)
			n++
		}
		buf = slices.Grow(buf[:0], int(end-from))[:end-from]
		if err := l.file.ReadAt(buf, from); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			return nil, l.offline(err)
		}
		for _, b := range rest[:n] {
			out = append(out, buf[b.pos-from:][:b.size]...)
		}
		rest = rest[n:]
	}
	return out, nil
}
