package minibroker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// trio is three brokers on one directory in memory, in a bubble.
type trio struct {
	t     *testing.T
	disk  fsx.FS
	cfg   Config
	nodes map[int32]*node

	mu      sync.Mutex
	listens map[string]*plugs
}

// node is one broker of a trio.
type node struct {
	*Broker
	id   int32
	stop func() error

	mu     sync.Mutex
	asleep chan struct{} // not nil: it stops at its next operation, until this is closed
	dead   bool          // its operations fail
}

var errDead = errors.New("the process has died")

func (n *node) hook(op fsx.Op, _ string) error {
	if op == fsx.OpUnlock {
		return nil // which the operating system does for the dead
	}
	n.mu.Lock()
	asleep := n.asleep
	n.mu.Unlock()
	if asleep != nil {
		<-asleep
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return errDead
	}
	return nil
}

// sleep stops the broker at its next look at the volume; wake lets it go on.
func (n *node) sleep() (wake func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	asleep := make(chan struct{})
	n.asleep = asleep
	return sync.OnceFunc(func() {
		n.mu.Lock()
		n.asleep = nil
		n.mu.Unlock()
		close(asleep)
	})
}

// kill ends the broker without a word to the others.
func (n *node) kill() {
	n.mu.Lock()
	n.dead = true
	n.mu.Unlock()
	_ = n.stop() // what it can't write is what this is about
}

func addrOf(id int32) string { return fmt.Sprintf("broker-%d:9092", id) }

func newTrio(t *testing.T, cfg Config) *trio {
	tr := &trio{t: t, disk: fsx.Mem(), cfg: cfg, nodes: map[int32]*node{}, listens: map[string]*plugs{}}
	tr.cfg.Dir = "shared"
	tr.cfg.Cluster = map[int32]string{1: addrOf(1), 2: addrOf(2), 3: addrOf(3)}
	tr.cfg.Dial = tr.dial
	var wg sync.WaitGroup
	for id := range tr.cfg.Cluster {
		n := &node{id: id}
		tr.nodes[id] = n
		wg.Go(func() { tr.start(n) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, n := range tr.nodes {
			_ = n.stop()
		}
	})
	return tr
}

func (tr *trio) start(n *node) {
	n.mu.Lock()
	n.dead = false
	n.mu.Unlock()
	cfg := tr.cfg
	cfg.NodeID = n.id
	cfg.FS = fsx.Hook(tr.disk, n.hook)
	b, stop, err := Start(context.Background(), cfg)
	if err != nil {
		tr.t.Error(err)
		return
	}
	l := &plugs{addr: addrOf(n.id), conns: make(chan net.Conn), closed: make(chan struct{})}
	tr.mu.Lock()
	tr.listens[l.addr] = l
	tr.mu.Unlock()
	n.Broker = b
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = b.Serve(l)
	}()
	n.stop = sync.OnceValue(func() error {
		err := stop()
		<-served
		return err
	})
}

// plugs is a listener in memory.
type plugs struct {
	addr   string
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *plugs) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *plugs) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *plugs) Addr() net.Addr { return pipeAddr(l.addr) }

type pipeAddr string

func (a pipeAddr) Network() string { return "pipe" }
func (a pipeAddr) String() string  { return string(a) }

func (tr *trio) dial(ctx context.Context, addr string) (net.Conn, error) {
	tr.mu.Lock()
	l := tr.listens[addr]
	tr.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// as is a request to a broker by name.
func as[R kmsg.Response](tr *trio, n *node, req kmsg.Request, version int16) R {
	tr.t.Helper()
	req.SetVersion(version)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := n.Handle(ctx, req, anonymous)
	require.NoError(tr.t, err)
	return resp.(R)
}

// led is the log of a partition that the broker leads, nil where it does not.
func (n *node) led(t *topic, partition int32) *partitionLog {
	c := n.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.led[place{t.id, partition}]; x != nil {
		return x.log
	}
	return nil
}

// any is a broker that is alive.
func (tr *trio) any() *node {
	for id := int32(1); ; id++ {
		if n := tr.nodes[id]; !n.dead && n.asleep == nil {
			return n
		}
	}
}

// leads is whom another broker names as the leader of a partition.
func (tr *trio) leads(topic string, p int32) *node {
	for _, t := range tr.metadata(tr.any(), topic).Topics {
		for _, x := range t.Partitions {
			if x.Partition == p {
				return tr.nodes[x.Leader]
			}
		}
	}
	tr.t.Fatalf("no partition %s/%d", topic, p)
	return nil
}

func (tr *trio) metadata(n *node, topic string) *kmsg.MetadataResponse {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	return as[*kmsg.MetadataResponse](tr, n, req, 9)
}

// coordinates is whom another broker names as the coordinator of a transactional
// id or a group.
func (tr *trio) coordinates(kind int8, key string) *node {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKey = kind, key
	resp := as[*kmsg.FindCoordinatorResponse](tr, tr.any(), req, 3)
	require.Zero(tr.t, resp.ErrorCode)
	return tr.nodes[resp.NodeID]
}

// away is what a client finds of a broker that does not answer, in place of it.
func (n *node) away() int16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead || n.asleep != nil {
		return kerr.RequestTimedOut.Code
	}
	return 0
}

// at asks a broker, if it answers.
func at(n *node, f func(*node) int16) int16 {
	if code := n.away(); code != 0 {
		return code
	}
	return f(n)
}

// until repeats what clients repeat, for so long as clients do.
func (tr *trio) until(f func() int16) {
	tr.t.Helper()
	var code int16
	for range 600 {
		code = f()
		if e := kerr.TypedErrorForCode(code); e == nil {
			return
		} else if !e.Retriable && e != kerr.NotCoordinator && e != kerr.ConcurrentTransactions && e != kerr.CoordinatorNotAvailable {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	tr.t.Fatalf("%v", kerr.ErrorForCode(code))
}

// untilAt repeats a request at the coordinator.
func (tr *trio) untilAt(kind int8, key string, f func(*node) int16) {
	tr.t.Helper()
	tr.until(func() int16 { return at(tr.coordinates(kind, key), f) })
}

func (tr *trio) create(n *node, topic string, partitions int32) int16 {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}
	return as[*kmsg.CreateTopicsResponse](tr, n, req, 6).Topics[0].ErrorCode
}

// producer is a client of one transactional id.
type producer struct {
	tr  *trio
	id  string
	at  txnstate.Producer
	old bool // it speaks protocol 1
	seq map[string]int32
}

func (tr *trio) producer(id string) *producer {
	p := &producer{tr: tr, id: id, old: tr.cfg.TransactionVersion == txnstate.TV1, seq: map[string]int32{}}
	p.init()
	return p
}

func (p *producer) init() {
	p.tr.t.Helper()
	p.tr.untilAt(1, p.id, func(n *node) int16 {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &p.id, 60_000, -1, -1
		r := as[*kmsg.InitProducerIDResponse](p.tr, n, req, 5)
		p.at = txnstate.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch}
		return r.ErrorCode
	})
}

// batchTo is a produce request of n records at a broker.
func (p *producer) batchTo(n *node, topic string, part int32, records int) int16 {
	key := fmt.Sprintf("%s/%d", topic, part)
	b := recordBatch(p.at, p.seq[key], records, 10, true)
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &p.id, -1, 1000
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: part, Records: b}}}}
	version := int16(12)
	if p.old {
		version = 11
	}
	code := as[*kmsg.ProduceResponse](p.tr, n, req, version).Topics[0].Partitions[0].ErrorCode
	if code == 0 {
		p.seq[key] += int32(records)
	}
	return code
}

func (p *producer) send(topic string, part int32, records int) {
	p.tr.t.Helper()
	if p.old {
		p.tr.untilAt(1, p.id, func(n *node) int16 {
			req := kmsg.NewPtrAddPartitionsToTxnRequest()
			req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.id, p.at.ID, p.at.Epoch
			req.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: topic, Partitions: []int32{part}}}
			return as[*kmsg.AddPartitionsToTxnResponse](p.tr, n, req, 3).Topics[0].Partitions[0].ErrorCode
		})
	}
	p.tr.until(func() int16 {
		return at(p.tr.leads(topic, part), func(n *node) int16 { return p.batchTo(n, topic, part, records) })
	})
}

// stage commits an offset of a group in the transaction.
func (p *producer) stage(group, topic string, part int32, offset int64) {
	p.tr.t.Helper()
	p.tr.untilAt(0, group, func(n *node) int16 {
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = p.id, group, p.at.ID, p.at.Epoch, -1
		req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: part, Offset: offset, LeaderEpoch: -1}}}}
		return as[*kmsg.TxnOffsetCommitResponse](p.tr, n, req, 5).Topics[0].Partitions[0].ErrorCode
	})
}

func (p *producer) end(commit bool) {
	p.tr.t.Helper()
	p.tr.untilAt(1, p.id, func(n *node) int16 {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, p.at.ID, p.at.Epoch, commit
		if p.old {
			return as[*kmsg.EndTxnResponse](p.tr, n, req, 4).ErrorCode
		}
		r := as[*kmsg.EndTxnResponse](p.tr, n, req, 5)
		if r.ErrorCode == 0 && r.ProducerID >= 0 {
			p.at = txnstate.Producer{ID: r.ProducerID, Epoch: r.ProducerEpoch}
			p.seq = map[string]int32{}
		}
		return r.ErrorCode
	})
}

// list is an end of a partition: -1 the latest.
func (tr *trio) list(n *node, topic string, part int32, committed bool) (offset int64, code int16) {
	req := kmsg.NewPtrListOffsetsRequest()
	if committed {
		req.IsolationLevel = 1
	}
	req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Partition: part, CurrentLeaderEpoch: -1, Timestamp: -1}}}}
	r := as[*kmsg.ListOffsetsResponse](tr, n, req, 7).Topics[0].Partitions[0]
	return r.Offset, r.ErrorCode
}

// ends are the high watermark and the last stable offset of a partition.
func (tr *trio) ends(topic string, part int32) (high, stable int64) {
	tr.t.Helper()
	tr.until(func() int16 {
		return at(tr.leads(topic, part), func(n *node) (code int16) {
			if high, code = tr.list(n, topic, part, false); code == 0 {
				stable, code = tr.list(n, topic, part, true)
			}
			return code
		})
	})
	return high, stable
}

// settled waits until nothing is open in a partition, and returns its end.
func (tr *trio) settled(topic string, part int32) int64 {
	tr.t.Helper()
	for range 600 {
		if high, stable := tr.ends(topic, part); high == stable {
			return high
		}
		time.Sleep(50 * time.Millisecond)
	}
	tr.t.Fatalf("the last stable offset of %s/%d is stuck", topic, part)
	return 0
}

// records is how many records of clients there are in a partition in which
// nothing is open.
func (tr *trio) records(topic string, part int32) (n int) {
	tr.t.Helper()
	tr.settled(topic, part)
	tr.until(func() int16 {
		return at(tr.leads(topic, part), func(at *node) int16 {
			r := tr.fetch(at, topic, part, 0)
			n = 0
			for b := r.RecordBatches; len(b) > 0; {
				h, _, size, err := fence.ParseHeader(b)
				require.NoError(tr.t, err)
				if b = b[size:]; !h.Control {
					n += int(h.Records)
				}
			}
			return r.ErrorCode
		})
	})
	return n
}

// aborted is how many aborted transactions a reader of a partition is told of.
func (tr *trio) aborted(topic string, part int32) (n int) {
	tr.t.Helper()
	tr.until(func() int16 {
		return at(tr.leads(topic, part), func(at *node) int16 {
			r := tr.fetch(at, topic, part, 0)
			n = len(r.AbortedTransactions)
			return r.ErrorCode
		})
	})
	return n
}

func (tr *trio) fetch(n *node, topic string, part int32, offset int64) kmsg.FetchResponseTopicPartition {
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.IsolationLevel = 1<<20, 1
	x := kmsg.NewFetchRequestTopicPartition()
	x.Partition, x.FetchOffset, x.PartitionMaxBytes = part, offset, 1<<20
	req.Topics = []kmsg.FetchRequestTopic{{Topic: topic, Partitions: []kmsg.FetchRequestTopicPartition{x}}}
	return as[*kmsg.FetchResponse](tr, n, req, 12).Topics[0].Partitions[0]
}

// position is what a group has committed; pending: a transaction is.
func (tr *trio) position(group, topic string, part int32) (offset int64, pending bool) {
	tr.t.Helper()
	tr.untilAt(0, group, func(n *node) int16 {
		r := tr.positionAt(n, group, topic, part)
		if r.ErrorCode != 0 {
			return r.ErrorCode
		}
		x := r.Topics[0].Partitions[0]
		offset, pending = x.Offset, x.ErrorCode == kerr.UnstableOffsetCommit.Code
		return 0
	})
	return offset, pending
}

func (tr *trio) positionAt(n *node, group, topic string, part int32) kmsg.OffsetFetchResponseGroup {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	g.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: topic, Partitions: []int32{part}}}
	req.Groups = append(req.Groups, g)
	return as[*kmsg.OffsetFetchResponse](tr, n, req, 8).Groups[0]
}

// bubble runs a test with a trio by both transports of markers.
func bubble(t *testing.T, cfg Config, f func(*trio)) {
	for _, m := range []MarkerTransport{MarkersRPC, MarkersQueue} {
		t.Run(string(m), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := cfg
				cfg.Markers = m
				f(newTrio(t, cfg))
			})
		})
	}
}

// keyOn is a name that a broker coordinates.
func (tr *trio) keyOn(kind int8, n *node, prefix string) string {
	for i := 0; ; i++ {
		key := fmt.Sprint(prefix, i)
		if tr.coordinates(kind, key) == n {
			return key
		}
	}
}

// partitionOn is a partition that a broker leads.
func (tr *trio) partitionOn(n *node, topic string) int32 {
	for p := int32(0); ; p++ {
		if tr.leads(topic, p) == n {
			return p
		}
	}
}

// ownAgain waits until a broker has back what is its own.
func (tr *trio) ownAgain(n *node, part int32, group, txnID string) {
	tr.t.Helper()
	for range 600 {
		if tr.leads("t", part) == n && tr.coordinates(0, group) == n && tr.coordinates(1, txnID) == n {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	tr.t.Fatalf("broker %d does not get back what is its own", n.id)
}

func TestATransactionOverThreeBrokers(t *testing.T) {
	bubble(t, Config{}, func(tr *trio) {
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		led := map[*node]bool{}
		for p := range int32(3) {
			led[tr.leads("t", p)] = true
		}
		require.Len(t, led, 3, "the partitions of a topic are spread")
		p := tr.producer(tr.keyOn(1, tr.nodes[2], "x"))
		group := tr.keyOn(0, tr.nodes[3], "g")
		for round, commit := range []bool{true, false, true} {
			for part := range int32(3) {
				p.send("t", part, 2)
				high, stable := tr.ends("t", part)
				require.Equal(t, int64(3*round), stable)
				require.Equal(t, int64(3*round+2), high)
			}
			p.stage(group, "t", 0, int64(round+1))
			_, pending := tr.position(group, "t", 0)
			require.True(t, pending)
			p.end(commit)
			for part := range int32(3) {
				require.Equal(t, int64(3*round+3), tr.settled("t", part))
			}
			want := []int64{1, 1, 3}[round]
			at, pending := tr.position(group, "t", 0)
			require.Equal(t, want, at)
			require.False(t, pending)
		}
		for part := range int32(3) {
			require.Equal(t, 1, tr.aborted("t", part))
		}
	})
}

// A broker dies that has everything of a transaction: its coordinator, its
// partition and its group. What was acknowledged is there, and goes on. (I5, I7)
func TestABrokerDies(t *testing.T) {
	bubble(t, Config{}, func(tr *trio) {
		n := tr.nodes[2]
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(n, "t")
		p := tr.producer(tr.keyOn(1, n, "x"))
		group := tr.keyOn(0, n, "g")
		p.send("t", part, 3)
		p.stage(group, "t", part, 7)
		n.kill()
		high, stable := tr.ends("t", part)
		require.Equal(t, int64(3), high, "what was acknowledged")
		require.Zero(t, stable)
		_, pending := tr.position(group, "t", part)
		require.True(t, pending, "what was staged")
		p.send("t", part, 2)
		p.end(true)
		require.Equal(t, 5, tr.records("t", part))
		require.Zero(t, tr.aborted("t", part))
		offset, _ := tr.position(group, "t", part)
		require.Equal(t, int64(7), offset)

		// It comes back, and gets back what is its own.
		p.send("t", part, 1)
		tr.start(n)
		tr.ownAgain(n, part, group, p.id)
		p.end(false)
		require.Equal(t, 6, tr.records("t", part))
		require.Equal(t, 1, tr.aborted("t", part))
	})
}

// A broker is stopped for longer than its lease, with everything of a transaction;
// the others go on without it. When it wakes up it says that it is not in charge,
// whatever it is asked, and changes nothing. (I9, I10)
func TestABrokerSleepsAndWakes(t *testing.T) {
	bubble(t, Config{}, func(tr *trio) {
		n := tr.nodes[2]
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(n, "t")
		p := tr.producer(tr.keyOn(1, n, "x"))
		group := tr.keyOn(0, n, "g")
		p.send("t", part, 3)
		p.stage(group, "t", part, 7)
		zombie := *p
		zombie.seq = map[string]int32{fmt.Sprintf("t/%d", part): 3}

		wake := n.sleep()
		p.send("t", part, 2)
		p.end(true)
		require.Equal(t, 5, tr.records("t", part))
		p.send("t", part, 1)
		type answer struct {
			what string
			code int16
		}
		answers := make(chan answer, 10)
		ask := func(what string, f func() int16) { go func() { answers <- answer{what, f()} }() }
		// As if these lay in its connections when it was stopped.
		asked := 0
		for what, f := range map[string]func() int16{
			"produce": func() int16 { return zombie.batchTo(n, "t", part, 1) },
			"list": func() int16 {
				_, code := tr.list(n, "t", part, false)
				return code
			},
			"fetch":    func() int16 { return tr.fetch(n, "t", part, 0).ErrorCode },
			"position": func() int16 { return tr.positionAt(n, group, "t", part).ErrorCode },
			"commit": func() int16 {
				req := kmsg.NewPtrEndTxnRequest()
				req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, zombie.at.ID, zombie.at.Epoch, false
				return as[*kmsg.EndTxnResponse](tr, n, req, 5).ErrorCode
			},
			"describe": func() int16 {
				req := kmsg.NewPtrDescribeProducersRequest()
				req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: []int32{part}}}
				return as[*kmsg.DescribeProducersResponse](tr, n, req, 0).Topics[0].Partitions[0].ErrorCode
			},
			"group": func() int16 {
				req := kmsg.NewPtrDescribeGroupsRequest()
				req.Groups = []string{group}
				return as[*kmsg.DescribeGroupsResponse](tr, n, req, 5).Groups[0].ErrorCode
			},
		} {
			ask(what, f)
			asked++
		}
		synctest.Wait()
		wake()
		elsewhere := []int16{kerr.NotLeaderForPartition.Code, kerr.NotCoordinator.Code, kerr.CoordinatorNotAvailable.Code, kerr.CoordinatorLoadInProgress.Code}
		for range asked {
			a := <-answers
			if a.what == "commit" && a.code == kerr.ProducerFenced.Code {
				continue // which is so, by what is stored
			}
			require.Contains(t, elsewhere, a.code, "%s: %v", a.what, kerr.ErrorForCode(a.code))
		}
		p.end(false)
		require.Equal(t, 6, tr.records("t", part))
		require.Equal(t, 1, tr.aborted("t", part))
		offset, _ := tr.position(group, "t", part)
		require.Equal(t, int64(7), offset)
		tr.ownAgain(n, part, group, p.id)
		p.send("t", part, 1)
		p.end(true)
		require.Equal(t, 7, tr.records("t", part))
	})
}

// Under protocol 1 the next transaction has the same epoch. A marker that a broker
// had in its hands when it was stopped comes when that one is open, and does not
// end it. (I4)
func TestALateMarkerOfProtocol1ChangesNothing_I4(t *testing.T) {
	bubble(t, Config{TransactionVersion: txnstate.TV1}, func(tr *trio) {
		n := tr.nodes[2]
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(n, "t")
		p := tr.producer(tr.keyOn(1, tr.nodes[1], "x"))
		p.send("t", part, 1)
		wake := n.sleep()
		before := p.at
		p.end(true) // the marker goes to n first
		require.Equal(t, 1, tr.records("t", part))
		p.send("t", part, 1)
		require.Equal(t, before, p.at)
		wake()
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			high, stable := tr.ends("t", part)
			require.Equal(t, high-1, stable, "what is open stays so")
		}
		require.Equal(t, n, tr.leads("t", part))
		p.end(false)
		require.Equal(t, 2, tr.records("t", part))
		require.Equal(t, 1, tr.aborted("t", part))
	})
}

// A broker that is told to stop hands its work over at once, not when its lease
// has run out.
func TestABrokerThatStopsHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{Lease: time.Minute})
		n := tr.nodes[3]
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(n, "t")
		p := tr.producer(tr.keyOn(1, n, "x"))
		p.send("t", part, 1)
		require.NoError(t, n.stop())
		n.dead = true
		began := time.Now()
		p.send("t", part, 1)
		p.end(true)
		require.Equal(t, int64(3), tr.settled("t", part))
		require.Less(t, time.Since(began), 15*time.Second, "in the time of the bubble")
	})
}

func TestTopicsAreMadeAndDeletedByAnyBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		var wg sync.WaitGroup
		codes := make(chan int16, 30)
		for i := range 30 {
			wg.Go(func() { codes <- tr.create(tr.nodes[int32(i%3+1)], fmt.Sprint("t", i/3), 2) })
		}
		wg.Wait()
		made := 0
		for range 30 {
			if code := <-codes; code == 0 {
				made++
			} else {
				require.Equal(t, kerr.TopicAlreadyExists.Code, code)
			}
		}
		require.Equal(t, 10, made, "each once, of three that try")
		p := tr.producer("x")
		p.send("t1", 1, 3)
		p.stage("g", "t1", 1, 5)
		p.end(true)
		require.Equal(t, int64(4), tr.settled("t1", 1))
		id := tr.metadata(tr.nodes[1], "t1").Topics[0].TopicID
		drop := kmsg.NewPtrDeleteTopicsRequest()
		drop.TopicNames = []string{"t1"}
		require.Zero(t, as[*kmsg.DeleteTopicsResponse](tr, tr.nodes[2], drop, 5).Topics[0].ErrorCode)
		for _, n := range tr.nodes {
			require.Equal(t, kerr.UnknownTopicOrPartition.Code, tr.metadata(n, "t1").Topics[0].ErrorCode)
		}
		require.Zero(t, tr.create(tr.nodes[3], "t1", 2))
		require.NotEqual(t, id, tr.metadata(tr.nodes[1], "t1").Topics[0].TopicID)
		high, _ := tr.ends("t1", 1)
		require.Zero(t, high, "a topic that is made again is empty")
		at, _ := tr.position("g", "t1", 1)
		require.Equal(t, int64(-1), at, "and nobody has a position in it")
		p.send("t1", 1, 1)
		p.end(true)
		require.Equal(t, int64(2), tr.settled("t1", 1))
		time.Sleep(time.Second) // who was taking a partition of it over has noticed, by the bubble's clock
		synctest.Wait()
		entries, err := tr.disk.ReadDir("shared/topics")
		require.NoError(t, err)
		require.Len(t, entries, 10, "records of a deleted topic are removed")
	})
}

// A transaction whose topic is deleted, while its leader is down, ends.
func TestATransactionOfADeletedTopicEnds_F11(t *testing.T) {
	bubble(t, Config{}, func(tr *trio) {
		n := tr.nodes[2]
		require.Zero(t, tr.create(n, "t", 3))
		require.Zero(t, tr.create(n, "u", 3))
		p := tr.producer(tr.keyOn(1, tr.nodes[1], "x"))
		for part := range int32(3) {
			p.send("t", part, 1)
			p.send("u", part, 1)
		}
		wake := n.sleep()
		defer wake()
		drop := kmsg.NewPtrDeleteTopicsRequest()
		drop.TopicNames = []string{"t"}
		require.Zero(t, as[*kmsg.DeleteTopicsResponse](tr, tr.nodes[1], drop, 5).Topics[0].ErrorCode)
		p.end(true)
		for part := range int32(3) {
			require.Equal(t, int64(2), tr.settled("u", part))
		}
		p.send("u", 0, 1) // the id is free again
		wake()
		p.end(true)
		require.Equal(t, int64(4), tr.settled("u", 0))
	})
}

// Without Kafka's gap: a producer that was fenced can't go on in its open
// transaction at any leader, also where the abort is held back. (I9)
func TestAFencedProducerIsFencedAtEveryLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		c := tr.nodes[2]
		p := tr.producer(tr.keyOn(1, c, "x"))
		for part := range int32(3) {
			p.send("t", part, 1)
		}
		group := tr.keyOn(0, tr.nodes[3], "g")
		p.stage(group, "t", 0, 5)
		release := c.HoldMarkers()
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &p.id, 60_000, -1, -1
		require.Equal(t, kerr.ConcurrentTransactions.Code, as[*kmsg.InitProducerIDResponse](tr, c, req, 5).ErrorCode)
		time.Sleep(time.Second) // a look at the feed is due every 100 ms
		for part := range int32(3) {
			code := p.batchTo(tr.leads("t", part), "t", part, 1)
			require.Contains(t, []int16{kerr.InvalidProducerEpoch.Code, kerr.ProducerFenced.Code}, code, "partition %d: %v", part, kerr.ErrorForCode(code))
		}
		// A leader that takes over hears of it before it serves.
		part := tr.partitionOn(tr.nodes[3], "t")
		tr.nodes[3].kill()
		tr.until(func() int16 {
			code := at(tr.leads("t", part), func(n *node) int16 { return p.batchTo(n, "t", part, 1) })
			if code == kerr.InvalidProducerEpoch.Code {
				return 0
			}
			require.NotZero(t, code)
			return code
		})
		// So does who takes its offsets over.
		tr.untilAt(0, group, func(n *node) int16 {
			req := kmsg.NewPtrTxnOffsetCommitRequest()
			req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = p.id, group, p.at.ID, p.at.Epoch, -1
			req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Offset: 6, LeaderEpoch: -1}}}}
			code := as[*kmsg.TxnOffsetCommitResponse](tr, n, req, 5).Topics[0].Partitions[0].ErrorCode
			if code == kerr.InvalidProducerEpoch.Code {
				return 0
			}
			require.NotZero(t, code)
			return code
		})
		release()
		next := tr.producer(p.id)
		require.Greater(t, next.at.Epoch, p.at.Epoch)
		for part := range int32(3) {
			require.Equal(t, int64(2), tr.settled("t", part))
		}
	})
}

// Who has heard of a leader, and of its epoch, from any broker is served by it; who
// knows the one before is sent to look again, by its records and by its answers
// (KIP-320).
func TestTheLeadersEpochIsTheSameEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(tr.nodes[3], "t")
		p := tr.producer(tr.keyOn(1, tr.nodes[2], "x"))
		told := func() (epoch int32) {
			for _, x := range tr.metadata(tr.nodes[1], "t").Topics[0].Partitions {
				if x.Partition == part {
					epoch = x.LeaderEpoch
				}
			}
			return epoch
		}
		for n := range int64(2) {
			p.send("t", part, 1)
			epoch, leader := told(), tr.leads("t", part)
			ask := func(known int32) kmsg.FetchResponseTopicPartition {
				req := kmsg.NewPtrFetchRequest()
				req.MaxBytes = 1 << 20
				x := kmsg.NewFetchRequestTopicPartition()
				x.Partition, x.FetchOffset, x.PartitionMaxBytes, x.CurrentLeaderEpoch = part, n, 1<<20, known
				req.Topics = []kmsg.FetchRequestTopic{{Topic: "t", Partitions: []kmsg.FetchRequestTopicPartition{x}}}
				return as[*kmsg.FetchResponse](tr, leader, req, 12).Topics[0].Partitions[0]
			}
			got := ask(epoch)
			require.Zero(t, got.ErrorCode)
			require.Equal(t, epoch, int32(binary.BigEndian.Uint32(got.RecordBatches[12:])), "of the record")
			if n > 0 {
				require.Equal(t, kerr.FencedLeaderEpoch.Code, ask(epoch-1).ErrorCode)
			}
			require.Equal(t, kerr.UnknownLeaderEpoch.Code, ask(epoch+1).ErrorCode)
			if n == 0 {
				leader.kill()
			}
		}
	})
}

// Markers that lie in the inbox of a broker that has died go to its successor.
func TestMarkersForADeadBrokerGoToItsSuccessor(t *testing.T) {
	bubble(t, Config{}, func(tr *trio) {
		n := tr.nodes[3]
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(n, "t")
		p := tr.producer(tr.keyOn(1, tr.nodes[1], "x"))
		p.send("t", part, 1)
		n.kill()
		at := time.Now()
		p.end(true) // its leader by the coordinator's view is dead
		require.Equal(t, int64(2), tr.settled("t", part))
		require.Less(t, time.Since(at), 15*time.Second, "in the time of the bubble")
	})
}

func TestAccessRulesAreOfAllBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		p := tr.producer("x")
		for part := range int32(3) {
			p.send("t", part, 1)
		}
		rule := kmsg.NewPtrCreateACLsRequest()
		for _, op := range []kmsg.ACLOperation{kmsg.ACLOperationClusterAction, kmsg.ACLOperationAlter} {
			x := kmsg.NewCreateACLsRequestCreation()
			x.ResourceType, x.ResourceName, x.ResourcePatternType = kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLResourcePatternTypeLiteral
			x.Principal, x.Host, x.Operation, x.PermissionType = "User:ANONYMOUS", "*", op, kmsg.ACLPermissionTypeDeny
			rule.Creations = append(rule.Creations, x)
		}
		for _, r := range as[*kmsg.CreateACLsResponse](tr, tr.nodes[1], rule, 3).Results {
			require.Zero(t, r.ErrorCode)
		}
		// What clients may not do, brokers may: the markers go out.
		for _, n := range tr.nodes {
			m := kmsg.NewPtrWriteTxnMarkersRequest()
			m.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: 1, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "t", Partitions: []int32{0}}}}}
			require.Equal(t, kerr.ClusterAuthorizationFailed.Code, as[*kmsg.WriteTxnMarkersResponse](tr, n, m, 1).Markers[0].Topics[0].Partitions[0].ErrorCode)
		}
		p.end(true)
		for part := range int32(3) {
			require.Equal(t, int64(2), tr.settled("t", part))
		}
	})
}

func TestAClusterIsWhatItsDirectorySays(t *testing.T) {
	start := func(fsys fsx.FS, cfg Config) error {
		cfg.FS, cfg.Dir = fsys, "d"
		_, stop, err := Start(context.Background(), cfg)
		if err == nil {
			err = stop()
		}
		return err
	}
	two := map[int32]string{1: "a:1", 2: "b:1"}
	fsys := fsx.Mem()
	require.NoError(t, start(fsys, Config{NodeID: 1, Cluster: two}))
	require.ErrorContains(t, start(fsys, Config{NodeID: 1, Cluster: map[int32]string{1: "a:1", 3: "b:1"}}), "with brokers [1 2]")
	require.ErrorContains(t, start(fsys, Config{NodeID: 1, Cluster: two, ClusterID: "other"}), "cluster \"kafkatxn\"")
	alone := fsx.Mem()
	require.NoError(t, start(alone, Config{NodeID: 1}))
	require.ErrorContains(t, start(alone, Config{NodeID: 1, Cluster: two}), "a broker alone")
	require.ErrorContains(t, start(fsys, Config{NodeID: 1}), "a cluster")
	_, err := New(Config{NodeID: 5, Cluster: map[int32]string{1: "x", -1: "a:1"}, Store: Journal, Markers: "pigeon", Lease: -1})
	for _, want := range []string{"a Dir", "Store", "NodeID", "address x", "-1", "pigeon", "Lease"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "%!")
	require.True(t, strings.Contains(err.Error(), "minibroker"))
}

// The log of a group's partition is rewritten when most of it is out of date, and
// the next coordinator goes on from that.
func TestOffsetsOfAClusterAreCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		require.Zero(t, tr.create(tr.nodes[1], "t", 1))
		n := tr.nodes[2]
		group := tr.keyOn(0, n, "g")
		meta := strings.Repeat("m", 4000)
		const commits = 1000
		for i := range int64(commits) {
			tr.untilAt(0, group, func(n *node) int16 {
				req := kmsg.NewPtrOffsetCommitRequest()
				req.Group, req.Generation = group, -1
				req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: i, Metadata: &meta, LeaderEpoch: -1}}}}
				return as[*kmsg.OffsetCommitResponse](tr, n, req, 8).Topics[0].Partitions[0].ErrorCode
			})
		}
		p := tr.producer("x")
		p.stage(group, "t", 0, 7)
		dir := fmt.Sprintf("shared/offsets/p-%02d", txnstate.OffsetsPartition(group))
		entries, err := tr.disk.ReadDir(dir)
		require.NoError(t, err)
		size := int64(0)
		for _, e := range entries {
			info, err := e.Info()
			require.NoError(t, err)
			size += info.Size()
		}
		require.Less(t, size, int64(commits*len(meta)/2))
		n.kill()
		_, pending := tr.position(group, "t", 0)
		require.True(t, pending)
		p.end(false)
		offset, _ := tr.position(group, "t", 0)
		require.Equal(t, int64(commits-1), offset)
	})
}
