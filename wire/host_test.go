package wire_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
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
	now         atomic.Pointer[func() time.Time]

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
	dispatcher, err := markers.NewDispatcher(markers.Config{Sink: sink, Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) {
		return 0, markers.Known
	})})
	ok(err)
	tc := txnstate.Config{Store: newMemStore(), ProducerIDs: new(counter), Dispatcher: dispatcher, EndWait: txnstate.AnswerWhenApplied}
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

// memStore is a txnstate.Store in memory.
type memStore struct {
	mu   sync.Mutex
	recs map[string]txnstate.Record
	last txnstate.Version
}

func newMemStore() *memStore { return &memStore{recs: map[string]txnstate.Record{}} }

func (s *memStore) Load(_ context.Context, id string) (txnstate.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.recs[id]
	if !ok {
		return r, txnstate.ErrNotFound
	}
	return r.Clone(), nil
}

func (s *memStore) Swap(_ context.Context, next txnstate.Record, _ txnstate.Durability) (txnstate.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recs[next.TxnID].Version != next.Version {
		return 0, txnstate.ErrConflict
	}
	s.last++
	next = next.Clone()
	next.Version = s.last
	s.recs[next.TxnID] = next
	return s.last, nil
}

func (s *memStore) Delete(_ context.Context, id string, old txnstate.Version) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recs[id].Version != old {
		return txnstate.ErrConflict
	}
	delete(s.recs, id)
	return nil
}

func (s *memStore) Slot(_ context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []txnstate.Record
	for id, r := range s.recs {
		if txnstate.Slot(id) == slot {
			out = append(out, r.Clone())
		}
	}
	return func(yield func(txnstate.Record, error) bool) {
		for _, r := range out {
			if !yield(r, nil) {
				return
			}
		}
	}
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
