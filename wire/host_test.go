package wire_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// host is the least that a broker has to be around a Handler: topics and logs in
// memory, and groups with at most one member.
type host struct {
	*wire.Handler
	coordinator *txnstate.Coordinator
	offsets     *offsets.Manager
	acls        *wire.ACLs

	mu      sync.Mutex
	topics  map[string]wire.Topic
	logs    map[txnstate.Participant]*memLog
	deleted map[string]bool
	groups  map[string]*group
	members int
}

// newHost makes a host and runs it until the test ends.
func newHost(t testing.TB, tune func(*wire.Config, *txnstate.Config)) *host {
	t.Helper()
	h := &host{topics: map[string]wire.Topic{}, logs: map[txnstate.Participant]*memLog{}, deleted: map[string]bool{}, groups: map[string]*group{}, acls: &wire.ACLs{Default: true}}
	ok := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	h.offsets, err = offsets.New(offsets.Config{Log: new(memOffsetsLog)})
	ok(err)
	ok(h.offsets.Load(t.Context()))
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h, Offsets: h.offsets})
	ok(err)
	dispatcher, err := markers.NewDispatcher(markers.Config{Sink: sink, StopOnFencedEpoch: true, Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) {
		return 0, markers.Known
	})})
	ok(err)
	tc := txnstate.Config{Store: memstore.New(), ProducerIDs: new(counter), Dispatcher: dispatcher, EndWait: 20 * time.Millisecond}
	wc := wire.Config{
		Topics: h, Leader: h, Offsets: h.offsets, Groups: h, Authorizer: h.acls,
		FindCoordinator: func(context.Context, int8, string) (int32, string, int32, error) { return 7, "broker7", 9092, nil },
	}
	if tune != nil {
		tune(&wc, &tc)
	}
	h.coordinator, err = txnstate.New(tc)
	ok(err)
	wc.Coordinator = h.coordinator
	h.Handler, err = wire.New(wc)
	ok(err)

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = dispatcher.Run(ctx) })
	running.Go(func() { _ = h.coordinator.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-h.coordinator.Ready()
	return h
}

// do sends one request for a test, as User:test.
func do[R kmsg.Response](t testing.TB, h *host, req kmsg.Request) R {
	t.Helper()
	resp, err := h.Handle(t.Context(), req, "User:test")
	if err != nil {
		t.Fatalf("%T v%d: %v", req, req.GetVersion(), err)
	}
	return resp.(R)
}

func (h *host) addTopic(name string, partitions int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := wire.Topic{Name: name, Partitions: partitions}
	copy(t.ID[:], name)
	h.topics[name] = t
}

// dropTopic deletes a topic, for certain.
func (h *host) dropTopic(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.topics, name)
	h.deleted[name] = true
	for k := range h.logs {
		if k.Name == name {
			delete(h.logs, k)
		}
	}
}

func (h *host) Topic(name string) (wire.Topic, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok := h.topics[name]
	return t, ok
}

func (h *host) TopicByID(id [16]byte) (wire.Topic, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if t.ID == id {
			return t, true
		}
	}
	return wire.Topic{}, false
}

func (h *host) Deleted(topic string, _ int32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deleted[topic]
}

func (h *host) Log(topic string, partition int32) (wire.Log, error) { return h.log(topic, partition) }

func (h *host) log(topic string, partition int32) (*memLog, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok := h.topics[topic]
	if !ok || partition < 0 || partition >= t.Partitions {
		return nil, txnstate.CodeUnknownTopicOrPartition.Errorf("", "no %s/%d here", topic, partition)
	}
	k := txnstate.Partition(topic, partition)
	if h.logs[k] == nil {
		h.logs[k] = &memLog{state: fence.NewPartition(fence.Config{})}
	}
	return h.logs[k], nil
}

// memLog is a partition's log in memory.
type memLog struct {
	mu      sync.Mutex
	state   *fence.Partition
	batches [][]byte
	end     int64
	fail    error         // of Append, before admit
	sync    chan struct{} // what Append and Durable wait for where it is set
}

func (l *memLog) With(f func(*fence.Partition)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.state)
}

func (l *memLog) Append(_ context.Context, batch []byte, admit func(*fence.Partition, int64) error) error {
	l.mu.Lock()
	if l.fail != nil {
		defer l.mu.Unlock()
		return l.fail
	}
	if err := admit(l.state, l.end); err != nil {
		l.mu.Unlock()
		return err
	}
	b, _, _, err := fence.ParseHeader(batch)
	if err != nil {
		panic(err) // only what was parsed gets here
	}
	batch = slices.Clone(batch)
	binary.BigEndian.PutUint64(batch, uint64(l.end))
	l.batches = append(l.batches, batch)
	l.end += int64(b.Records)
	l.state.Stabilize(l.end)
	wait := l.sync
	l.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return nil
}

func (l *memLog) Durable(ctx context.Context, _ int64) error {
	l.mu.Lock()
	wait := l.sync
	l.mu.Unlock()
	if wait == nil {
		return nil
	}
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// group is a consumer group of the classic protocol with at most one member.
type group struct {
	generation int32
	member     string
}

func (h *host) View(name string) offsets.GroupView {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groups[name]
	switch {
	case g == nil:
		return offsets.GroupView{}
	case g.member == "":
		return offsets.GroupView{State: offsets.GroupEmpty, Generation: g.generation}
	}
	member := g.member
	return offsets.GroupView{State: offsets.GroupStable, Generation: g.generation, Member: func(id string) bool { return id == member }}
}

func (h *host) Ensure(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups[name] == nil {
		h.groups[name] = &group{}
	}
}

// join makes a member the group's only one.
func (h *host) join(name, member string) (id string, generation int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.groups[name] == nil {
		h.groups[name] = &group{}
	}
	g := h.groups[name]
	if member == "" || g.member != member {
		h.members++
		member = fmt.Sprintf("member-%d", h.members)
	}
	g.member = member
	g.generation++
	return member, g.generation
}

func (h *host) leave(name, member string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groups[name]
	if g == nil || g.member != member || member == "" {
		return false
	}
	g.member = ""
	g.generation++
	return true
}

type counter struct{ n atomic.Int64 }

func (c *counter) Next(context.Context) (int64, error) { return c.n.Add(1) + 999, nil }

// memOffsetsLog is an offsets.Log in memory.
type memOffsetsLog struct {
	mu    sync.Mutex
	parts map[int32][][]byte
}

func (l *memOffsetsLog) Append(_ context.Context, p int32, es [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parts == nil {
		l.parts = map[int32][][]byte{}
	}
	for _, e := range es {
		l.parts[p] = append(l.parts[p], slices.Clone(e))
	}
	return nil
}

func (l *memOffsetsLog) Replay(_ context.Context, p int32, f func([]byte) error) error {
	l.mu.Lock()
	es := slices.Clone(l.parts[p])
	l.mu.Unlock()
	for _, e := range es {
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}

func (l *memOffsetsLog) Rewrite(ctx context.Context, p int32, es [][]byte) error {
	l.mu.Lock()
	delete(l.parts, p)
	l.mu.Unlock()
	return l.Append(ctx, p, es)
}

// who a producer is, and what it writes.
type producer struct {
	id    int64
	epoch int16
}

// initTxn gives a transactional id its identity.
func (h *host) initTxn(t testing.TB, id string) producer {
	t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 5, &id, 60000
	resp := do[*kmsg.InitProducerIDResponse](t, h, req)
	if resp.ErrorCode != 0 {
		t.Fatalf("InitProducerId %q: %d", id, resp.ErrorCode)
	}
	return producer{resp.ProducerID, resp.ProducerEpoch}
}

func addRequest(version int16, id string, p producer, topic string, partitions ...int32) *kmsg.AddPartitionsToTxnRequest {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = version
	if version < 4 {
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = id, p.id, p.epoch
		rt := kmsg.NewAddPartitionsToTxnRequestTopic()
		rt.Topic, rt.Partitions = topic, partitions
		req.Topics = append(req.Topics, rt)
		return req
	}
	tx := kmsg.NewAddPartitionsToTxnRequestTransaction()
	tx.TransactionalID, tx.ProducerID, tx.ProducerEpoch = id, p.id, p.epoch
	rt := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
	rt.Topic, rt.Partitions = topic, partitions
	tx.Topics = append(tx.Topics, rt)
	req.Transactions = append(req.Transactions, tx)
	return req
}

// addCodes are the codes of an answer to AddPartitionsToTxn, in its order.
func addCodes(resp *kmsg.AddPartitionsToTxnResponse) []int16 {
	var out []int16
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, p.ErrorCode)
		}
	}
	for _, tx := range resp.Transactions {
		for _, t := range tx.Topics {
			for _, p := range t.Partitions {
				out = append(out, p.ErrorCode)
			}
		}
	}
	return out
}

func endRequest(version int16, id string, p producer, commit bool) *kmsg.EndTxnRequest {
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = version, id, p.id, p.epoch, commit
	return req
}

func addOffsetsRequest(version int16, id string, p producer, group string) *kmsg.AddOffsetsToTxnRequest {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = version, id, p.id, p.epoch, group
	return req
}

// batch encodes one record batch.
func batch(p producer, seq, records int32, transactional bool) []byte {
	var recs []byte
	for i := range records {
		r := kmsg.Record{OffsetDelta: i, Value: []byte("v")}
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		recs = r.AppendTo(recs)
	}
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: records - 1, FirstTimestamp: 1, MaxTimestamp: 1,
		ProducerID: p.id, ProducerEpoch: p.epoch, FirstSequence: seq, NumRecords: records, Records: recs,
	}
	if transactional {
		b.Attributes |= 0x10
	}
	return seal(b.AppendTo(nil))
}

// seal writes length and checksum of an encoded batch.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func produceRequest(version int16, id string, topic string, partition int32, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks = version, -1
	if id != "" {
		req.TransactionID = &id
	}
	addRecords(req, topic, partition, records)
	return req
}

func addRecords(req *kmsg.ProduceRequest, topic string, partition int32, records []byte) {
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, records
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
}

// produceCodes are the codes of an answer to Produce, in its order.
func produceCodes(resp *kmsg.ProduceResponse) []int16 {
	var out []int16
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, p.ErrorCode)
		}
	}
	return out
}

// denyAll adds a rule against everybody.
func (h *host) denyAll(t testing.TB, r wire.ResourceType, name string, op wire.Operation) {
	t.Helper()
	if err := h.acls.Add(rule(r, name, wire.AnyUser, op, wire.DenyPermission)); err != nil {
		t.Fatal(err)
	}
}

func wantCodes(t testing.TB, what string, got []int16, want ...int16) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: codes %v, want %v", what, got, want)
	}
}
