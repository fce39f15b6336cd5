package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// reader reads one partition from its beginning, as a consumer does.
type reader struct {
	kit       *clientKit
	p         tp
	committed bool // read_committed
	d         *dice
	next      int64
	seen      []seen
	log       []logged // with markers; of one that reads all
	at        int      // the broker that leads it, -1: unknown
	high, lso int64
}

func (k *clientKit) reader(p tp, committed bool, name string) *reader {
	return &reader{kit: k, p: p, committed: committed, d: k.w.dice("reader %s %s", name, p), at: -1}
}

// logged is a record or a marker as a log has it.
type logged struct {
	offset         int64
	producer       txnstate.Producer
	value          string
	marker, commit bool
}

// poll fetches once. It reports the error code, or that nothing came back.
func (r *reader) poll(ctx context.Context) (txnstate.Code, error) {
	if r.at < 0 {
		if r.at = r.kit.leader(ctx, r.d, r.p); r.at < 0 {
			return 0, errLost
		}
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.ReplicaID = 11, 1<<20, -1
	if r.committed {
		req.IsolationLevel = 1
	}
	t := kmsg.NewFetchRequestTopic()
	t.Topic = r.p.topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = r.p.partition, r.next, int32(1+r.d.n(2000)), -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := r.kit.net.send(ctx, "", r.at, req, r.kit.timeout, call{})
	if err != nil {
		r.at = -1
		return 0, err
	}
	f := resp.(*kmsg.FetchResponse)
	if f.ErrorCode != 0 {
		return txnstate.Code(f.ErrorCode), nil
	}
	x := f.Topics[0].Partitions[0]
	if x.ErrorCode != 0 {
		r.at = -1
		return txnstate.Code(x.ErrorCode), nil
	}
	r.high, r.lso = x.HighWatermark, x.LastStableOffset
	r.take(x)
	return 0, nil
}

// take goes through what was fetched.
func (r *reader) take(x kmsg.FetchResponseTopicPartition) {
	ab := slices.Clone(x.AbortedTransactions)
	slices.SortFunc(ab, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return int(a.FirstOffset - b.FirstOffset)
	})
	active := map[int64]bool{}
	for b := x.RecordBatches; len(b) > 0; {
		h, base, size, err := fence.ParseHeader(b)
		if err != nil || size > len(b) {
			return // the rest of a batch that did not fit
		}
		last := base + int64(h.Records) - 1
		raw := b[:size]
		b = b[size:]
		for len(ab) > 0 && ab[0].FirstOffset <= last {
			active[ab[0].ProducerID] = true
			ab = ab[1:]
		}
		if last < r.next {
			continue
		}
		if base > r.next {
			r.kit.w.fail("order", "%s has nothing at offset %d and goes on at %d", r.p, r.next, base)
		}
		r.next = last + 1
		if h.Control {
			m, _, err := markers.ParseControlBatch(raw)
			if err == nil && !m.Commit {
				delete(active, h.Producer.ID)
			}
			if err == nil && !r.committed {
				r.log = append(r.log, logged{offset: base, producer: h.Producer, marker: true, commit: m.Commit})
			}
			continue
		}
		if r.committed && h.Transactional && active[h.Producer.ID] {
			continue
		}
		s := seen{base, valueOf(raw)}
		r.seen = append(r.seen, s)
		if r.committed {
			r.kit.m.shown(r.p, s)
		} else {
			r.log = append(r.log, logged{offset: base, producer: h.Producer, value: s.value})
		}
	}
}

// valueOf is the value of the one record of a batch.
func valueOf(raw []byte) string {
	b := raw[61:]
	_, n := binary.Varint(b) // length
	b = b[n+1:]              // attributes
	_, n = binary.Varint(b)  // timestamp
	b = b[n:]
	_, n = binary.Varint(b) // offset
	b = b[n:]
	k, n := binary.Varint(b) // key
	b = b[n+int(max(k, 0)):]
	k, n = binary.Varint(b)
	return string(b[n : n+int(k)])
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) {
	for sleep(ctx, r.d.between(200*time.Millisecond, 3*time.Second)) {
		_, _ = r.poll(ctx)
	}
}

// drain reads to the end; false where that does not come.
func (r *reader) drain(ctx context.Context) error {
	for range 3000 {
		at := r.next
		c, err := r.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil || c != 0:
			if c == txnstate.CodeUnknownTopicOrPartition {
				return fmt.Errorf("%s", c)
			}
			sleep(ctx, 200*time.Millisecond)
			continue
		}
		end := r.high
		if r.committed {
			end = r.lso
		}
		if r.next >= end {
			return nil
		}
		if r.next == at {
			sleep(ctx, 20*time.Millisecond)
		}
	}
	return fmt.Errorf("%s is not read to the end: at %d, high watermark %d, last stable offset %d", r.p, r.next, r.high, r.lso)
}

// position reads a group's position once; the code tells what stands in the way.
func (k *clientKit) position(ctx context.Context, d *dice, g groupPart, stable bool) (int64, txnstate.Code, error) {
	to := k.coordinator(ctx, d, 0, g.group)
	if to < 0 {
		return 0, 0, errLost
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group, req.RequireStable = 7, g.group, stable
	t := kmsg.NewOffsetFetchRequestTopic()
	t.Topic, t.Partitions = inputTopic, []int32{g.partition}
	req.Topics = append(req.Topics, t)
	resp, err := k.net.send(ctx, "", to, req, k.timeout, call{})
	if err != nil {
		return 0, 0, err
	}
	r := resp.(*kmsg.OffsetFetchResponse)
	if r.ErrorCode != 0 {
		return 0, txnstate.Code(r.ErrorCode), nil
	}
	p := r.Topics[0].Partitions[0]
	return p.Offset, txnstate.Code(p.ErrorCode), nil
}

// watch looks at a group's position now and then.
func (k *clientKit) watch(ctx context.Context, g groupPart) {
	d := k.w.dice("watch %s %d", g.group, g.partition)
	for sleep(ctx, d.between(300*time.Millisecond, 4*time.Second)) {
		floor := k.m.floor(g.group, g.partition)
		if off, c, err := k.position(ctx, d, g, d.chance(0.5)); err == nil && c == 0 {
			k.m.fetched(g.group, g.partition, off, floor)
		}
	}
}
