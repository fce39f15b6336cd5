package wire_test

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// end is what package wire needs around one broker of a markerstest.Cluster.
type end struct {
	b       *markerstest.Broker
	offsets *offsets.Manager
}

func newEnd(t testing.TB, b *markerstest.Broker, shared *groupLogs) *end {
	t.Helper()
	m, err := offsets.New(offsets.Config{Log: groupLog{b, shared}})
	if err == nil {
		err = m.Load(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return &end{b, m}
}

func (e *end) Log(topic string, partition int32) (wire.Log, error) {
	return e.b.Log(txnstate.Partition(topic, partition))
}

func (e *end) Topic(name string) (wire.Topic, bool) {
	return wire.Topic{Name: name, Partitions: 1000}, true
}
func (e *end) TopicByID([16]byte) (wire.Topic, bool) { return wire.Topic{}, false }

// groupLogs are the logs of __consumer_offsets, which outlive a broker.
type groupLogs struct {
	mu    sync.Mutex
	parts map[int32][][]byte
}

// groupLog is those logs in the hands of one broker.
type groupLog struct {
	b *markerstest.Broker
	*groupLogs
}

func (l groupLog) Append(ctx context.Context, n int32, es [][]byte) error {
	log, err := l.b.Log(txnstate.Partition(txnstate.OffsetsTopic, n))
	if err != nil {
		return err
	}
	return log.Carry(ctx, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, e := range es {
			l.parts[n] = append(l.parts[n], slices.Clone(e))
			if m, ok := offsetsMarker(e); ok {
				log.Record(m)
			}
		}
		return nil
	})
}

func (l groupLog) Replay(_ context.Context, n int32, f func([]byte) error) error {
	l.mu.Lock()
	es := slices.Clone(l.parts[n])
	l.mu.Unlock()
	for _, e := range es {
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}

func (l groupLog) Rewrite(_ context.Context, n int32, es [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts[n] = nil
	for _, e := range es {
		l.parts[n] = append(l.parts[n], slices.Clone(e))
	}
	return nil
}

// offsetsMarker reads a marker's entry of package offsets, whose format is fixed.
func offsetsMarker(e []byte) (markers.Marker, bool) {
	const kindMarker, size = 3, 6 + 8 + 8 + 2 + 4 + 8 + 1
	if len(e) != size || e[1] != kindMarker {
		return markers.Marker{}, false
	}
	return markers.Marker{
		Producer:         txnstate.Producer{ID: int64(binary.BigEndian.Uint64(e[14:])), Epoch: int16(binary.BigEndian.Uint16(e[22:]))},
		CoordinatorEpoch: int32(binary.BigEndian.Uint32(e[24:])),
		Commit:           e[size-1] == 1,
	}, true
}

// localSinks are the local sinks of several brokers, as one.
type localSinks map[markers.Target]*wire.LocalSink

func (s localSinks) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	return s[to].WriteMarkers(ctx, to, ds)
}

func (s localSinks) StillOpen(ctx context.Context, to markers.Target, d markers.Delivery) (bool, error) {
	return s[to].StillOpen(ctx, to, d)
}

func TestLocalSinkKeepsTheContractOfSinks(t *testing.T) {
	markerstest.Run(t, markerstest.Harness{Bubble: true, Open: func(t testing.TB, c *markerstest.Cluster) *markerstest.Transport {
		sinks, shared := localSinks{}, &groupLogs{parts: map[int32][][]byte{}}
		for id := range markers.Target(4) {
			e := newEnd(t, c.Broker(id), shared)
			var err error
			if sinks[id], err = wire.NewLocalSink(wire.LocalSinkConfig{Leader: e, Offsets: e.offsets}); err != nil {
				t.Fatal(err)
			}
		}
		return &markerstest.Transport{Sink: sinks}
	}})
}

// rpcHarness is senders and, behind WriteTxnMarkers up to a version, brokers.
func rpcHarness(version int16) markerstest.Harness {
	addrs := map[markers.Target]string{1: "one:9092", 2: "two:9092", 3: "three:9092"}
	return markerstest.Harness{Bubble: true, Open: func(t testing.TB, c *markerstest.Cluster) *markerstest.Transport {
		network, shared := newRPCNet(), &groupLogs{parts: map[int32][][]byte{}}
		servers := map[markers.Target]*rpcServer{}
		var mu sync.Mutex
		leaveOut := map[markers.Target]int{}
		for id := range markers.Target(3) {
			if id == 0 {
				continue
			}
			e := newEnd(t, c.Broker(id), shared)
			h, err := wire.New(wire.Config{Leader: e, Offsets: e.offsets, Topics: e, Groups: noGroups{}, Verifier: noVerifier{}})
			if err != nil {
				t.Fatal(err)
			}
			servers[id] = newRPCServer(t, network, addrs[id], map[int16][2]int16{27: {1, version}, 61: {0, 0}}, func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
				resp, err := h.Handle(ctx, req, "User:broker")
				if r, ok := resp.(*kmsg.WriteTxnMarkersResponse); ok {
					mu.Lock()
					defer mu.Unlock()
					for ; leaveOut[id] > 0; leaveOut[id]-- {
						dropLast(r)
					}
				}
				return resp, err
			})
		}
		sender := func() (markers.Sink, func()) {
			s, err := wire.NewRPCSink(wire.RPCSinkConfig{
				Addr:  func(to markers.Target) (string, bool) { a, ok := addrs[to]; return a, ok },
				Peers: wire.PeerConfig{Dial: network.dial},
				// Less than a dispatcher of the suite waits.
				Patience: 200 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			synctest.Wait()
			return s, sync.OnceFunc(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
		sink, end := sender()
		t.Cleanup(func() { end() })
		return &markerstest.Transport{
			Sink: sink,
			RestartSender: func(testing.TB) markers.Sink {
				end()
				sink, end = sender()
				return sink
			},
			StopReceiver:   func(_ testing.TB, id markers.Target) { servers[id].stop() },
			StartReceiver:  func(_ testing.TB, id markers.Target) { servers[id].start() },
			Again:          func(t testing.TB, id markers.Target) { servers[id].again(t.Context()) },
			Short:          func(id markers.Target, n int) { mu.Lock(); leaveOut[id] = n; mu.Unlock() },
			WithoutVersion: version < 2,
		}
	}}
}

// dropLast leaves the last partition out of an answer.
func dropLast(r *kmsg.WriteTxnMarkersResponse) {
	m := &r.Markers[len(r.Markers)-1]
	t := &m.Topics[len(m.Topics)-1]
	t.Partitions = t.Partitions[:len(t.Partitions)-1]
	if len(t.Partitions) == 0 {
		if m.Topics = m.Topics[:len(m.Topics)-1]; len(m.Topics) == 0 {
			r.Markers = r.Markers[:len(r.Markers)-1]
		}
	}
}

// noGroups are groups without members.
type noGroups struct{}

func (noGroups) View(string) offsets.GroupView { return offsets.GroupView{} }
func (noGroups) Ensure(string)                 {}

func TestRPCSinkKeepsTheContractOfSinks(t *testing.T) {
	t.Run("v2", func(t *testing.T) { markerstest.Run(t, rpcHarness(2)) })
	t.Run("v1", func(t *testing.T) { markerstest.Run(t, rpcHarness(1)) })
}

// noVerifier is for brokers that are asked for markers only.
type noVerifier struct{ wire.Verifier }

// The other transport ends in the same LocalSink.
func TestTheQueueIntoLocalSinksKeepsTheContract(t *testing.T) {
	markerstest.Run(t, markerstest.Harness{Bubble: true, Open: func(t testing.TB, c *markerstest.Cluster) *markerstest.Transport {
		disk, shared := fsx.Mem(), &groupLogs{parts: map[int32][][]byte{}}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		t.Cleanup(func() {
			cancel()
			running.Wait()
		})
		run := func(f func(context.Context) error) {
			running.Go(func() {
				if err := f(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		for _, id := range []markers.Target{1, 2} {
			e := newEnd(t, c.Broker(id), shared)
			local, err := wire.NewLocalSink(wire.LocalSinkConfig{Leader: e, Offsets: e.offsets})
			if err != nil {
				t.Fatal(err)
			}
			r, err := queue.NewReceiver(queue.ReceiverConfig{Dir: "shared", Self: id, Apply: local, FS: disk})
			if err != nil {
				t.Fatal(err)
			}
			run(r.Run)
		}
		s, err := queue.NewSink(queue.SinkConfig{Dir: "shared", Self: 9, Straggle: 200 * time.Millisecond, FS: disk})
		if err != nil {
			t.Fatal(err)
		}
		run(s.Run)
		synctest.Wait()
		return &markerstest.Transport{Sink: s}
	}})
}
