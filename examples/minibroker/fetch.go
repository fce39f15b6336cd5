package minibroker

import (
	"context"
	"time"

	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const readCommitted = 1

// maxFetchBytes is Kafka's fetch.max.bytes: what a client asks for beyond it is
// not given.
const maxFetchBytes = 55 << 20

// fetched is one partition of a fetch on its way.
type fetched struct {
	log    *partitionLog // nil: an internal topic's, or none
	offset int64
	max    int
	slice  slice
	err    error
}

// fetch returns what there is to read, and waits where that is too little. There
// are no fetch sessions: the session id in the answer is 0, which clients take
// for a server without.
func (b *Broker) fetch(ctx context.Context, who wire.Principal, r *kmsg.FetchRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.FetchResponse)
	if r.Version >= 7 && r.SessionEpoch > 0 {
		resp.ErrorCode = kerr.FetchSessionIDNotFound.Code
		return resp, nil
	}
	var parts []*fetched
	failed := false
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			f := b.fetchable(ctx, who, r, t, p)
			failed = failed || f.err != nil
			parts = append(parts, f)
		}
	}
	committed := r.IsolationLevel == readCommitted
	more := make(chan struct{}, 1)
	for _, f := range parts {
		if f.log != nil && !failed && r.MaxWaitMillis > 0 {
			defer f.log.watch(more)()
		}
	}
	wait := time.NewTimer(millis(max(r.MaxWaitMillis, 0)))
	defer wait.Stop()
	for {
		n, failed := choose(parts, r, committed)
		if failed || n >= int(r.MinBytes) || r.MaxWaitMillis <= 0 || len(parts) == 0 {
			break
		}
		select {
		case <-more:
			continue
		case <-wait.C:
		case <-ctx.Done():
		}
		choose(parts, r, committed)
		break
	}
	for _, t := range r.Topics {
		x := kmsg.NewFetchResponseTopic()
		x.Topic, x.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			x.Partitions = append(x.Partitions, parts[0].answer(p.Partition, committed))
			parts = parts[1:]
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp, nil
}

// fetchable finds a partition that is asked for.
func (b *Broker) fetchable(ctx context.Context, who wire.Principal, r *kmsg.FetchRequest, q kmsg.FetchRequestTopic, p kmsg.FetchRequestTopicPartition) *fetched {
	f := &fetched{offset: p.FetchOffset, max: int(max(p.PartitionMaxBytes, 0))}
	t, name := b.topics.get(q.Topic), q.Topic
	if r.Version >= 13 {
		if t = b.topics.getByID(q.TopicID); t == nil {
			f.err = kafkaErrorf(kerr.UnknownTopicID, "no topic has that id")
			return f
		}
		name = t.name
	}
	if !b.may(ctx, who, wire.OpRead, wire.TopicResource, name) {
		f.err = kafkaErrorf(kerr.TopicAuthorizationFailed, "%s has no READ on topic %q", who, name)
		return f
	}
	if t.has(p.Partition) && t.internal {
		if p.FetchOffset != 0 {
			f.err = kafkaErrorf(kerr.OffsetOutOfRange, "topic %q shows nothing", name)
		}
		return f
	}
	if f.log, f.err = b.topics.log(t, p.Partition); f.err == nil {
		f.err = f.log.checkEpoch(p.CurrentLeaderEpoch)
	}
	return f
}

// choose picks what to return of each partition, the first with anything at
// least one batch, however large (KIP-74), and returns the number of bytes.
func choose(parts []*fetched, r *kmsg.FetchRequest, committed bool) (n int, failed bool) {
	room := min(int(max(r.MaxBytes, 0)), maxFetchBytes)
	for _, f := range parts {
		if f.err == nil && f.log != nil {
			f.slice, f.err = f.log.selectFrom(f.offset, min(f.max, room-n), n == 0, committed)
			n += f.slice.bytes
		}
		failed = failed || f.err != nil
	}
	return n, failed
}

// answer reads what was chosen.
func (f *fetched) answer(partition int32, committed bool) kmsg.FetchResponseTopicPartition {
	x := kmsg.NewFetchResponseTopicPartition()
	x.Partition, x.PreferredReadReplica = partition, -1
	x.HighWatermark, x.LastStableOffset, x.LogStartOffset = -1, -1, -1
	x.RecordBatches = []byte{}
	if f.err == nil && f.log != nil {
		var raw []byte
		if raw, f.err = f.log.read(f.slice); f.err == nil {
			f.err = f.log.Check()
		}
		if f.err == nil && raw != nil {
			x.RecordBatches = raw
		}
	}
	if f.err != nil {
		x.ErrorCode = codeOf(f.err)
		return x
	}
	x.HighWatermark, x.LastStableOffset, x.LogStartOffset = f.slice.high, f.slice.stable, 0
	if committed {
		x.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
	}
	for _, a := range f.slice.aborted {
		y := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		y.ProducerID, y.FirstOffset = a.producerID, a.first
		x.AbortedTransactions = append(x.AbortedTransactions, y)
	}
	return x
}
