package minibroker

import (
	"context"
	"encoding/binary"

	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What ListOffsets asks for instead of a time.
const (
	atLatest        = -1
	atEarliest      = -2
	atMaxTimestamp  = -3
	atEarliestLocal = -4
	atLatestTiered  = -5
)

func (b *Broker) listOffsets(ctx context.Context, who wire.Principal, r *kmsg.ListOffsetsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, t := range r.Topics {
		x := kmsg.NewListOffsetsResponseTopic()
		x.Topic = t.Topic
		for _, p := range t.Partitions {
			y := kmsg.NewListOffsetsResponseTopicPartition()
			y.Partition, y.Timestamp, y.Offset, y.LeaderEpoch = p.Partition, -1, -1, -1
			o, err := b.listOffset(ctx, who, t.Topic, p, r.IsolationLevel == readCommitted)
			if err == nil && o.offset >= 0 {
				y.Timestamp, y.Offset, y.LeaderEpoch = o.timestamp, o.offset, o.epoch
			}
			y.ErrorCode = codeOf(err)
			x.Partitions = append(x.Partitions, y)
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp, nil
}

func (b *Broker) listOffset(ctx context.Context, who wire.Principal, topic string, p kmsg.ListOffsetsRequestTopicPartition, committed bool) (timedOffset, error) {
	if !b.may(ctx, who, wire.OpDescribe, wire.TopicResource, topic) {
		return timedOffset{}, kafkaErrorf(kerr.TopicAuthorizationFailed, "%s has no DESCRIBE on topic %q", who, topic)
	}
	t := b.topics.get(topic)
	if t.has(p.Partition) && t.internal {
		if p.Timestamp == atLatest || p.Timestamp == atEarliest {
			return timedOffset{timestamp: -1}, nil
		}
		return noOffset, nil
	}
	l, err := b.topics.log(t, p.Partition)
	if err != nil {
		return timedOffset{}, err
	}
	if err := l.checkEpoch(p.CurrentLeaderEpoch); err != nil {
		return timedOffset{}, err
	}
	o, err := l.lookUp(p.Timestamp, committed)
	if err == nil {
		err = l.Check()
	}
	o.epoch = l.epoch
	return o, err
}

// lookUp finds what ListOffsets asks for by a time, or by a number that stands for
// one.
func (l *partitionLog) lookUp(timestamp int64, committed bool) (timedOffset, error) {
	at, err := l.ends()
	if err != nil {
		return timedOffset{}, err
	}
	end := at.high
	if committed {
		end = at.stable
	}
	switch {
	case timestamp == atLatest:
		return timedOffset{offset: end, timestamp: -1}, nil
	case timestamp == atEarliest, timestamp == atEarliestLocal:
		return timedOffset{timestamp: -1}, nil
	case timestamp == atMaxTimestamp:
		o, err := l.newest(at.high)
		if o.offset >= end {
			o = noOffset // another one is not looked for
		}
		return o, err
	case timestamp == atLatestTiered:
		return noOffset, nil
	case timestamp < 0:
		return timedOffset{}, kafkaErrorf(kerr.UnsupportedVersion, "timestamp %d", timestamp)
	}
	return l.firstFrom(timestamp, end)
}

// checkEpoch compares what a client knows of the leader; -1 is nothing.
func (l *partitionLog) checkEpoch(known int32) error {
	switch {
	case known > l.epoch:
		return kafkaErrorf(kerr.UnknownLeaderEpoch, "leader epoch %d, and it is %d", known, l.epoch)
	case known >= 0 && known < l.epoch:
		return kafkaErrorf(kerr.FencedLeaderEpoch, "leader epoch %d, and it is %d", known, l.epoch)
	}
	return nil
}

// timedOffset is a record's offset and timestamp; -1 for none.
type timedOffset struct {
	offset, timestamp int64
	epoch             int32 // of the leader
}

var noOffset = timedOffset{offset: -1, timestamp: -1}

// firstFrom is the first record below end of a time, or later.
func (l *partitionLog) firstFrom(ms, end int64) (timedOffset, error) {
	l.mu.Lock()
	found := slice{}
	for i, b := range l.batches {
		if b.base >= end {
			break
		}
		if b.maxTimestamp >= ms {
			found = slice{batches: l.batches[i : i+1 : i+1], bytes: int(b.size)}
			break
		}
	}
	l.mu.Unlock()
	o, err := l.record(found, func(t int64) bool { return t >= ms })
	if o.offset >= end {
		o = noOffset
	}
	return o, err
}

// newest is the record with the greatest timestamp below end; of several, the
// first.
func (l *partitionLog) newest(end int64) (timedOffset, error) {
	l.mu.Lock()
	best := -1
	for i, b := range l.batches {
		if b.base < end && (best < 0 || b.maxTimestamp > l.batches[best].maxTimestamp) {
			best = i
		}
	}
	found := slice{}
	if best >= 0 {
		b := l.batches[best]
		found = slice{batches: l.batches[best : best+1 : best+1], bytes: int(b.size)}
	}
	l.mu.Unlock()
	return l.record(found, func(t int64) bool { return t == found.batches[0].maxTimestamp })
}

// record is the first record of a batch that match takes by its timestamp. A
// compressed batch is not opened: its first record stands for it, which is no
// later than the one looked for.
func (l *partitionLog) record(s slice, match func(ms int64) bool) (timedOffset, error) {
	if len(s.batches) == 0 {
		return noOffset, nil
	}
	b := s.batches[0]
	raw, err := l.read(s)
	if err != nil {
		return timedOffset{}, err
	}
	first := int64(binary.BigEndian.Uint64(raw[batchFirstTimestamp:]))
	compressed := raw[batchAttributes+1]&0x07 != 0
	for rest := raw[batchHeader:]; len(rest) > 0 && !compressed; {
		n, k := binary.Varint(rest)
		if k <= 0 || n < 1 || n > int64(len(rest)-k) {
			break
		}
		body := rest[k:][:n]
		rest = rest[k:][n:]
		dt, k := binary.Varint(body[1:]) // behind the attributes
		if k <= 0 {
			break
		}
		do, k2 := binary.Varint(body[1+k:])
		if k2 <= 0 {
			break
		}
		if match(first+dt) && do >= 0 && do <= b.last-b.base {
			return timedOffset{offset: b.base + do, timestamp: first + dt}, nil
		}
	}
	return timedOffset{offset: b.base, timestamp: b.maxTimestamp}, nil
}
