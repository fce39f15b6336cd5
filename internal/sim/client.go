package sim

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// clientKit is what all clients of a run share.
type clientKit struct {
	w   *world
	m   *model
	net *network
	c   cluster

	topics  []tp // to write to
	timeout time.Duration
	longest time.Duration   // timeout of a transaction
	left    func(id string) // is told that the last process of an id has gone; may be nil
}

// instance is one life of a producer: a process that has got an identity and goes
// on with it until it is refused. Several of one transactional id may live at the
// same time; all but the newest are zombies.
type instance struct {
	kit   *clientKit
	name  string
	txnID string // "": idempotent only
	v2    bool   // transaction protocol 2
	d     *dice

	timeout time.Duration // of its transactions

	// dirty: something was sent under the present identity whose fate is not known.
	// Under protocol 1 it could arrive in the next transaction, which it can't be
	// told from, so the epoch is raised first, as clients do (KIP-360).
	dirty atomic.Bool

	mu     sync.Mutex
	p      txnstate.Producer
	seqs   map[tp]int32
	sentAs map[*rec]txnstate.Producer

	// These belong to the model.
	txns    int
	inits   int
	written map[tp]int
}

func (k *clientKit) instance(txnID, name string, v2 bool) *instance {
	d := k.w.dice("instance %s", name)
	timeout := d.between(2*time.Second, 12*time.Second)
	if k.longest > 25*time.Second && d.chance(0.4) {
		timeout = d.between(25*time.Second, k.longest)
	}
	return &instance{
		kit: k, name: name, txnID: txnID, v2: v2, d: d, timeout: timeout,
		p: txnstate.NoProducer, seqs: map[tp]int32{}, sentAs: map[*rec]txnstate.Producer{}, written: map[tp]int{},
	}
}

func (i *instance) identity() txnstate.Producer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.p
}

func (i *instance) adopt(p txnstate.Producer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p != i.p {
		clear(i.seqs)
	}
	i.p = p
	i.dirty.Store(false)
}

// sent is the identity that a record was sent with.
func (i *instance) sent(r *rec) txnstate.Producer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sentAs[r]
}

// verdict is what an answer means to a client.
type verdict int8

const (
	ok        verdict = iota
	fatal             // the instance is over
	abortable         // the transaction is over
	lost              // it may have happened or not, and nobody will say
)

func (v verdict) String() string { return [...]string{"ok", "fatal", "abortable", "lost"}[v] }

// judge sorts error codes as the Java client does.
func judgeCode(c int16) (v verdict, again bool) {
	switch txnstate.Code(c) {
	case txnstate.CodeNone:
		return ok, false
	case txnstate.CodeUnknownTopicOrPartition, txnstate.CodeNotLeaderOrFollower, txnstate.CodeRequestTimedOut, txnstate.CodeNetworkException,
		txnstate.CodeCoordinatorLoading, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeNotCoordinator, txnstate.CodeNotEnoughReplicas,
		txnstate.CodeNotEnoughReplicasAfter, txnstate.CodeConcurrentTransactions, txnstate.CodeKafkaStorageError:
		return lost, true
	case txnstate.CodeTransactionAbortable, txnstate.CodeUnknownMemberID, txnstate.CodeIllegalGeneration, txnstate.CodeOutOfOrderSequence:
		return abortable, false
	}
	return fatal, false
}

// pick is a partition to write to: of topics that are gone for good, clients hear.
func (k *clientKit) pick(d *dice) tp {
	for {
		if p := k.topics[d.n(len(k.topics))]; !k.m.isGone(p.topic) {
			return p
		}
	}
}

// coordinator asks any broker who coordinates a key, -1 if it can't say.
func (k *clientKit) coordinator(ctx context.Context, d *dice, kind int8, key string) int {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorType, req.CoordinatorKey = 3, kind, key
	resp, err := k.net.send(ctx, "", d.n(k.c.nodes()), req, k.timeout, call{})
	if err != nil {
		return -1
	}
	if r := resp.(*kmsg.FindCoordinatorResponse); r.ErrorCode == 0 {
		return int(r.NodeID)
	}
	return -1
}

// leader asks any broker who leads a partition, -1 if it can't say.
func (k *clientKit) leader(ctx context.Context, d *dice, p tp) int {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 8
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(p.topic)
	req.Topics = append(req.Topics, t)
	resp, err := k.net.send(ctx, "", d.n(k.c.nodes()), req, k.timeout, call{})
	if err != nil {
		return -1
	}
	for _, t := range resp.(*kmsg.MetadataResponse).Topics {
		for _, x := range t.Partitions {
			if t.ErrorCode == 0 && x.ErrorCode == 0 && x.Partition == p.partition {
				return int(x.Leader)
			}
		}
	}
	return -1
}

// routes remembers where a client last found what it looked for.
type route struct {
	kind int8 // 0 a group, 1 a transactional id, 2 a partition
	key  string
	tp   tp
}

func (k *clientKit) find(ctx context.Context, d *dice, r route) int {
	if r.kind == 2 {
		return k.leader(ctx, d, r.tp)
	}
	return k.coordinator(ctx, d, r.kind, r.key)
}

// ask sends a request until it is answered for good. code reads the answer's
// error. It gives up after a time, as clients do (delivery.timeout.ms).
func (i *instance) ask(ctx context.Context, r route, make func() kmsg.Request, code func(kmsg.Response) int16, c call) (kmsg.Response, verdict, txnstate.Code) {
	k := i.kit
	c.who = i
	deadline := time.Now().Add(i.d.between(20*time.Second, 60*time.Second))
	to := -1
	for ctx.Err() == nil && time.Now().Before(deadline) {
		if to < 0 {
			if to = k.find(ctx, i.d, r); to < 0 {
				if !sleep(ctx, i.d.between(50*time.Millisecond, 300*time.Millisecond)) {
					break
				}
				continue
			}
		}
		resp, err := k.net.send(ctx, i.name, to, make(), k.timeout, c)
		if err != nil {
			if !errors_is_refused(err) {
				i.dirty.Store(true)
			}
			to = -1
			sleep(ctx, i.d.between(20*time.Millisecond, 200*time.Millisecond))
			continue
		}
		v, again := judgeCode(code(resp))
		if !again {
			return resp, v, txnstate.Code(code(resp))
		}
		if txnstate.Code(code(resp)) != txnstate.CodeConcurrentTransactions {
			i.dirty.Store(true)
			to = -1
		}
		sleep(ctx, i.d.between(10*time.Millisecond, 100*time.Millisecond))
	}
	i.dirty.Store(true)
	return nil, lost, txnstate.CodeRequestTimedOut
}

func errors_is_refused(err error) bool { return err == errDown }

// legacy is whether a copy that comes late must not arrive: protocol 1 can't tell
// a delayed request of the transaction before from one of this transaction, and
// every system that speaks it gets that wrong. A copy that comes under an older
// epoch is fenced, and may arrive.
func (i *instance) legacy(t *txn) func() bool {
	if i.v2 {
		return nil
	}
	p := i.identity()
	return func() bool { return i.kit.m.isOver(t) && i.identity() == p }
}

func (i *instance) initRequest() kmsg.Request {
	p := i.identity()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version = 4
	if i.v2 {
		req.Version = 5
	}
	if i.txnID != "" {
		req.TransactionalID = &i.txnID
	}
	req.TransactionTimeoutMillis = int32(i.timeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = p.ID, p.Epoch
	return req
}

func (i *instance) init(ctx context.Context) verdict {
	resp, v, _ := i.ask(ctx, i.home(), i.initRequest,
		func(r kmsg.Response) int16 { return r.(*kmsg.InitProducerIDResponse).ErrorCode }, call{})
	if v == ok {
		r := resp.(*kmsg.InitProducerIDResponse)
		i.adopt(txnstate.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch})
	}
	return v
}

// initAt asks one broker once.
func (i *instance) initAt(node int) {
	_, _ = i.kit.net.send(context.Background(), i.name, node, i.initRequest(), i.kit.timeout, call{who: i})
}

func (i *instance) home() route {
	key := i.txnID
	if key == "" {
		key = i.name
	}
	return route{kind: 1, key: key}
}

func (i *instance) produce(ctx context.Context, t *txn, p tp) verdict {
	return i.write(ctx, t, p, i.kit.m.record(t, p.topic, p.partition))
}

func (i *instance) write(ctx context.Context, t *txn, p tp, r *rec) verdict {
	i.mu.Lock()
	who, seq := i.p, i.seqs[p]
	i.sentAs[r] = who
	i.mu.Unlock()
	batch := recordBatch(who, seq, !t.plain, r.value)
	var stale func() bool
	if !i.v2 && !t.plain {
		stale = i.legacy(t)
	}
	_, v, _ := i.ask(ctx, route{kind: 2, tp: p}, func() kmsg.Request {
		req := kmsg.NewPtrProduceRequest()
		req.Version = 11
		if i.v2 {
			req.Version = 12
		}
		req.Acks, req.TimeoutMillis = -1, 10_000
		if !t.plain {
			req.TransactionID = &i.txnID
		}
		x := kmsg.NewProduceRequestTopic()
		x.Topic = p.topic
		y := kmsg.NewProduceRequestTopicPartition()
		y.Partition, y.Records = p.partition, append([]byte(nil), batch...)
		x.Partitions = append(x.Partitions, y)
		req.Topics = append(req.Topics, x)
		return req
	}, func(r kmsg.Response) int16 { return r.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode }, call{txn: t, rec: r, stale: stale})
	i.mu.Lock()
	if i.p == who {
		i.seqs[p] = seq + 1 // also where it failed: what was sent may yet be taken
	}
	i.mu.Unlock()
	if v != ok {
		i.dirty.Store(true)
	}
	return v
}

// addPartitions is protocol 1's way to put partitions into a transaction.
func (i *instance) addPartitions(ctx context.Context, t *txn, ps []tp) verdict {
	who := i.identity()
	_, v, _ := i.ask(ctx, i.home(), func() kmsg.Request {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, i.txnID, who.ID, who.Epoch
		for _, p := range ps {
			x := kmsg.NewAddPartitionsToTxnRequestTopic()
			x.Topic, x.Partitions = p.topic, []int32{p.partition}
			req.Topics = append(req.Topics, x)
		}
		return req
	}, func(r kmsg.Response) int16 {
		worst := int16(0)
		for _, x := range r.(*kmsg.AddPartitionsToTxnResponse).Topics {
			for _, y := range x.Partitions {
				if y.ErrorCode != 0 && txnstate.Code(y.ErrorCode) != txnstate.CodeOperationNotAttempted {
					worst = y.ErrorCode
				}
			}
		}
		return worst
	}, call{txn: t, stale: i.legacy(t)})
	return v
}

// stage commits an offset within the transaction.
func (i *instance) stage(ctx context.Context, t *txn, group string, partition int32) verdict {
	who := i.identity()
	if !i.v2 {
		_, v, _ := i.ask(ctx, i.home(), func() kmsg.Request {
			req := kmsg.NewPtrAddOffsetsToTxnRequest()
			req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = 3, i.txnID, who.ID, who.Epoch, group
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.AddOffsetsToTxnResponse).ErrorCode }, call{txn: t, stale: i.legacy(t)})
		if v != ok {
			return v
		}
	}
	s := i.kit.m.offset(t, group, partition)
	_, v, _ := i.ask(ctx, route{kind: 0, key: group}, func() kmsg.Request {
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.Version = 4
		if i.v2 {
			req.Version = 5
		}
		req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = i.txnID, group, who.ID, who.Epoch, -1
		x := kmsg.NewTxnOffsetCommitRequestTopic()
		x.Topic = inputTopic
		y := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		y.Partition, y.Offset, y.LeaderEpoch = partition, s.offset, -1
		x.Partitions = append(x.Partitions, y)
		req.Topics = append(req.Topics, x)
		return req
	}, func(r kmsg.Response) int16 {
		return r.(*kmsg.TxnOffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
	}, call{txn: t, off: s, stale: i.legacy(t)})
	return v
}

func (i *instance) endRequest(commit bool) kmsg.Request {
	who := i.identity()
	req := kmsg.NewPtrEndTxnRequest()
	req.Version = 4
	if i.v2 {
		req.Version = 5
	}
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = i.txnID, who.ID, who.Epoch, commit
	return req
}

// end commits or aborts.
func (i *instance) end(ctx context.Context, t *txn, commit bool) verdict {
	req := i.endRequest(commit)
	i.kit.m.end(t, commit)
	resp, v, _ := i.ask(ctx, i.home(), func() kmsg.Request { return req },
		func(r kmsg.Response) int16 { return r.(*kmsg.EndTxnResponse).ErrorCode }, call{txn: t, stale: i.legacy(t)})
	if v == ok && i.v2 {
		r := resp.(*kmsg.EndTxnResponse)
		i.adopt(txnstate.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch})
	}
	return v
}

// endAndLeave asks for the end of a transaction, and nobody is there to hear the
// answer.
func (i *instance) endAndLeave(ctx context.Context, t *txn, commit bool) {
	to := i.kit.coordinator(ctx, i.d, 1, i.txnID)
	if to < 0 {
		return
	}
	i.kit.w.log(i.name, "asks for the end of %s, and is gone", t)
	i.kit.m.end(t, commit)
	_, _ = i.kit.net.send(ctx, i.name, to, i.endRequest(commit), time.Millisecond, call{who: i, txn: t})
}

// resend is a zombie's: it repeats the end of a transaction with the identity that
// it had then. Under protocol 1 only where that has been replaced, see legacy.
func (i *instance) resend(ctx context.Context, t *txn, commit bool) {
	to := i.kit.coordinator(ctx, i.d, 1, i.txnID)
	if to < 0 || !i.v2 && !i.kit.m.replaced(i) {
		return
	}
	i.kit.w.log(i.name, "repeats the end of %s", t)
	_, _ = i.kit.net.send(ctx, i.name, to, i.endRequest(commit), i.kit.timeout, call{who: i, txn: t})
}

// commitOffset commits an offset outside of a transaction.
func (i *instance) commitOffset(ctx context.Context, t *txn, group string, partition int32) verdict {
	s := i.kit.m.offset(t, group, partition)
	gone := new(atomic.Bool)
	_, v, _ := i.ask(ctx, route{kind: 0, key: group}, func() kmsg.Request {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.Generation = 8, group, -1
		x := kmsg.NewOffsetCommitRequestTopic()
		x.Topic = inputTopic
		y := kmsg.NewOffsetCommitRequestTopicPartition()
		y.Partition, y.Offset, y.LeaderEpoch = partition, s.offset, -1
		x.Partitions = append(x.Partitions, y)
		req.Topics = append(req.Topics, x)
		return req
	}, func(r kmsg.Response) int16 { return r.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode }, call{txn: t, off: s, stale: gone.Load})
	gone.Store(true) // what comes late would take the group back, and may
	i.kit.m.past(s, v == ok)
	return v
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordBatch is a batch of one record.
func recordBatch(p txnstate.Producer, seq int32, transactional bool, value string) []byte {
	rec := kmsg.Record{Value: []byte(value)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1) // a length of 0 takes one byte
	ms := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, FirstTimestamp: ms, MaxTimestamp: ms,
		ProducerID: p.ID, ProducerEpoch: p.Epoch, FirstSequence: seq, NumRecords: 1, Records: rec.AppendTo(nil),
	}
	if transactional {
		b.Attributes |= 0x10
	}
	enc := b.AppendTo(nil)
	binary.BigEndian.PutUint32(enc[8:], uint32(len(enc)-12))
	binary.BigEndian.PutUint32(enc[17:], crc32.Checksum(enc[21:], castagnoli))
	return enc
}

// What groups have positions in.
const (
	inputTopic      = "in"
	inputPartitions = 16
)
