package minibroker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// request is a request's frame without its length, at a version that the request
// itself need not know.
func request(req kmsg.Request, version int16) []byte {
	req.SetVersion(version)
	b := binary.BigEndian.AppendUint16(nil, uint16(req.Key()))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, 7)
	b = append(b, 0, 2, 'i', 'd')
	if req.IsFlexible() {
		b = append(b, 0)
	}
	return req.AppendTo(b)
}

func framed(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

// talk sends bytes on a connection of their own and returns what comes back until
// the broker closes it, or until n answers have come.
func talk(t testing.TB, b *Broker, sent []byte, n int) (answers [][]byte, closed bool) {
	t.Helper()
	c, err := net.Dial("tcp", b.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	go func() { _, _ = c.Write(sent) }() // fails where the broker closes early
	r := bufio.NewReader(c)
	for len(answers) < n {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			require.False(t, isTimeout(err), "no answer, and the connection is open")
			return answers, true
		}
		body := make([]byte, binary.BigEndian.Uint32(head[:]))
		_, err := io.ReadFull(r, body)
		require.NoError(t, err)
		answers = append(answers, body)
	}
	return answers, false
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

// works shows that a broker still takes and gives records.
func works(t testing.TB, b *Broker) {
	t.Helper()
	c := connect(t, b, kgo.DefaultProduceTopic("works"), kgo.TransactionalID("works"))
	require.NoError(t, c.BeginTransaction())
	require.NoError(t, c.ProduceSync(ctxFor(t), kgo.StringRecord("x")).FirstErr())
	require.NoError(t, c.EndTransaction(ctxFor(t), kgo.TryCommit))
}

// Bytes that are no request end their connection, and nothing else.
func TestBadFramesEndTheConnection(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"works": 1}}))
	metadata := request(kmsg.NewPtrMetadataRequest(), 1)
	header := func(key, version int16, rest ...byte) []byte {
		h := binary.BigEndian.AppendUint16(nil, uint16(key))
		h = binary.BigEndian.AppendUint16(h, uint16(version))
		return append(append(h, 0, 0, 0, 1), rest...)
	}
	for name, sent := range map[string][]byte{
		"no length":                     {0, 0},
		"a negative length":             {0xff, 0xff, 0xff, 0xff},
		"the least length":              {0x80, 0, 0, 0},
		"an absurd length":              {0x7f, 0xff, 0xff, 0xff, 0, 0},
		"a length of 0":                 {0, 0, 0, 0},
		"a length below a header":       framed([]byte{0, 3, 0, 1, 0, 0, 0}),
		"HTTP":                          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":                           {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
		"a length that is too long":     framed(metadata)[:10],
		"an unknown key":                framed(header(999, 0, 0xff, 0xff)),
		"a negative key":                framed(header(-1, 0, 0xff, 0xff)),
		"an unknown version":            framed(header(3, 99, 0xff, 0xff)),
		"a negative version":            framed(header(3, -1, 0xff, 0xff)),
		"InitProducerId v6":             framed(header(22, 6, 0xff, 0xff, 0, 0)), // not without two-phase commit
		"no client id":                  framed(header(3, 1)),
		"a client id that is too long":  framed(header(3, 1, 0x7f, 0xff, 'x')),
		"a client id of length -2":      framed(header(3, 1, 0xff, 0xfe)),
		"tags without end":              framed(header(3, 9, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)),
		"a tag that is too long":        framed(header(3, 9, 0, 0, 1, 1, 0x7f)),
		"an array of two billion":       framed(header(3, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff)),
		"half a body":                   framed(request(fetchRequest("t", 0, 0), 11)[:40]),
		"a large request of other keys": append(binary.BigEndian.AppendUint32(nil, 20<<20), header(3, 1)...),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", b.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
			_, err = c.Write(sent)
			require.NoError(t, err)
			require.NoError(t, c.(*net.TCPConn).CloseWrite())
			got, err := io.ReadAll(c)
			require.False(t, err != nil && isTimeout(err), "the connection is open")
			require.Empty(t, got)
		})
	}
	// What came before on the connection is answered.
	answers, closed := talk(t, b, append(framed(metadata), framed(header(999, 0, 0xff, 0xff))...), 2)
	require.Len(t, answers, 1)
	require.True(t, closed)
	works(t, b)
}

// Names that are empty, missing, endless, or go elsewhere get an answer of
// Kafka's, or the connection is closed. Nothing is written outside the directory.
func TestAwkwardNamesGetAnAnswer(t *testing.T) {
	dir := t.TempDir()
	b := start(t, listening(Config{Dir: dir + "/data", Topics: map[string]int32{"works": 1}}))
	names := []string{"", ".", "..", "../../escaped", "/etc/passwd", "a/b\\c", "a\x00b", "\xff\xfe", strings.Repeat("n", 32<<10-1), strings.Repeat("/", 300), "%2e%2e", "nul", "ünï", "a\nb", "works"}
	for _, name := range names {
		for _, req := range namedRequests(name) {
			for _, version := range []int16{0, req.MaxVersion() / 2, req.MaxVersion()} {
				answers, closed := talk(t, b, framed(request(req, version)), 1)
				require.True(t, closed || len(answers) == 1)
			}
		}
	}
	entries, err := namesIn(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"data"}, entries)
	works(t, b)
}

// namedRequests are requests with one name in all places.
func namedRequests(name string) []kmsg.Request {
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Topics = append(create.Topics, createTopic(name, 1))
	deletes := kmsg.NewPtrDeleteTopicsRequest()
	deletes.TopicNames = []string{name}
	deletes.Topics = append(deletes.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &name}, kmsg.DeleteTopicsRequestTopic{})
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = append(meta.Topics, kmsg.MetadataRequestTopic{Topic: &name}, kmsg.MetadataRequestTopic{})
	meta.AllowAutoTopicCreation = true
	produce := kmsg.NewPtrProduceRequest()
	produce.Acks, produce.TransactionID = -1, &name
	produce.Topics = append(produce.Topics, kmsg.ProduceRequestTopic{Topic: name, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: plain(1, 1)}, {Partition: -1}, {Partition: math.MaxInt32, Records: []byte("x")}, {Records: []byte{}}}})
	list := kmsg.NewPtrListOffsetsRequest()
	list.Topics = append(list.Topics, kmsg.ListOffsetsRequestTopic{Topic: name, Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Timestamp: -1}, {Partition: -7, Timestamp: math.MinInt64}}})
	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.MemberID, join.InstanceID, join.SessionTimeoutMillis, join.ProtocolType, join.Protocols = name, name, &name, 10000, name, protocols(name, "")
	joinNew := kmsg.NewPtrJoinGroupRequest()
	joinNew.Group, joinNew.SessionTimeoutMillis, joinNew.ProtocolType, joinNew.Protocols = name, 10000, "consumer", protocols("range")
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.InstanceID, sync.GroupAssignment = name, name, &name, []kmsg.SyncGroupRequestGroupAssignment{{MemberID: name}}
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID = name, name
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group, leave.MemberID, leave.Members = name, name, []kmsg.LeaveGroupRequestMember{{MemberID: name}, {InstanceID: &name}}
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{name, name}
	groups := kmsg.NewPtrDeleteGroupsRequest()
	groups.Groups = []string{name}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = name, -1
	commit.Topics = append(commit.Topics, kmsg.OffsetCommitRequestTopic{Topic: name, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: -9, Metadata: &name}}})
	of := kmsg.NewPtrOffsetFetchRequest()
	of.Group, of.Topics = name, []kmsg.OffsetFetchRequestTopic{{Topic: name, Partitions: []int32{0, -1}}}
	of.Groups = append(of.Groups, kmsg.OffsetFetchRequestGroup{Group: name})
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey, find.CoordinatorType, find.CoordinatorKeys = name, 1, []string{name, ""}
	id := kmsg.NewPtrInitProducerIDRequest()
	id.TransactionalID, id.TransactionTimeoutMillis, id.ProducerID, id.ProducerEpoch = &name, 1000, -1, -1
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.Topics = name, []kmsg.AddPartitionsToTxnRequestTopic{{Topic: name, Partitions: []int32{0, -1, math.MaxInt32}}}
	add.Transactions = []kmsg.AddPartitionsToTxnRequestTransaction{{TransactionalID: name, Topics: []kmsg.AddPartitionsToTxnRequestTransactionTopic{{Topic: name, Partitions: []int32{0}}}}}
	offs := kmsg.NewPtrAddOffsetsToTxnRequest()
	offs.TransactionalID, offs.Group = name, name
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID = name
	txnc := kmsg.NewPtrTxnOffsetCommitRequest()
	txnc.TransactionalID, txnc.Group, txnc.Generation, txnc.Topics = name, name, -1, []kmsg.TxnOffsetCommitRequestTopic{{Topic: name, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Metadata: &name}}}}
	mark := kmsg.NewPtrWriteTxnMarkersRequest()
	mark.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: -5, ProducerEpoch: -7, CoordinatorEpoch: -9, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: name, Partitions: []int32{0, -1}}}}}
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: name, Partitions: []int32{0, -1}}}
	txns := kmsg.NewPtrDescribeTransactionsRequest()
	txns.TransactionalIDs = []string{name}
	lt := kmsg.NewPtrListTransactionsRequest()
	lt.StateFilters, lt.TransactionalIDPattern = []string{name}, &name
	acl := kmsg.NewPtrDescribeACLsRequest()
	acl.ResourceName, acl.Principal = &name, &name
	return []kmsg.Request{
		create, meta, produce, fetchRequest(name, -1, 0), list, join, joinNew, sync, beat, leave, describe, groups, commit, of, find, id,
		add, offs, end, txnc, mark, producers, txns, lt, acl, kmsg.NewPtrListGroupsRequest(), kmsg.NewPtrApiVersionsRequest(),
	}
}

// same is for requests that wait as long as any.
func same(ctx context.Context) context.Context { return ctx }

func TestStringsThatWouldNotFitElsewhereAreRefused(t *testing.T) {
	b := start(t, Config{})
	s := newServer(b, ctxFor(t))
	long := strings.Repeat("x", math.MaxInt16+1)
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Version, beat.Group = 4, long
	_, err := s.answer(ctxFor(t), same, request(beat, 4), client{}, nil)
	require.ErrorIs(t, err, errBadFrame)
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Version, leave.Group, leave.Members = 5, "g", []kmsg.LeaveGroupRequestMember{{InstanceID: &long}}
	_, err = s.answer(ctxFor(t), same, request(leave, 5), client{}, nil)
	require.ErrorIs(t, err, errBadFrame)
	beat.Group = long[1:]
	_, err = s.answer(ctxFor(t), same, request(beat, 4), client{}, nil)
	require.NoError(t, err)
}

// Requests that are sent ahead are answered in their order, also behind one that
// waits.
func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"t": 1}}))
	var sent []byte
	const n = 100
	for i := range n {
		var r []byte
		if i%10 == 5 {
			r = request(fetchRequest("t", 0, 2*time.Millisecond), 11)
		} else {
			r = request(kmsg.NewPtrMetadataRequest(), 1)
		}
		binary.BigEndian.PutUint32(r[4:], uint32(i))
		sent = append(sent, framed(r)...)
	}
	answers, _ := talk(t, b, sent, n)
	require.Len(t, answers, n)
	for i, a := range answers {
		require.EqualValues(t, i, binary.BigEndian.Uint32(a))
	}
}

// A produce request that wants no answer gets none; one that fails ends the
// connection, which is all that its client can see (acks 0).
func TestProduceWithoutAnAnswer(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"t": 1}}))
	silent := func(topic string) []byte {
		r := kmsg.NewPtrProduceRequest()
		r.Version = 9
		r.Topics = append(r.Topics, kmsg.ProduceRequestTopic{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: plain(1, 1)}}})
		return framed(request(r, 9))
	}
	after := framed(request(kmsg.NewPtrMetadataRequest(), 1))
	answers, closed := talk(t, b, append(silent("t"), after...), 1)
	require.Len(t, answers, 1)
	require.False(t, closed)
	answers, closed = talk(t, b, append(silent("missing"), after...), 1)
	require.Empty(t, answers)
	require.True(t, closed)
	at, err := b.topics.get("t").logs[0].ends()
	require.NoError(t, err)
	require.EqualValues(t, 1, at.high)
}

// A request that waits ends when its client has gone.
func TestAClientThatGoesEndsItsWait(t *testing.T) {
	b := start(t, listening(Config{Topics: map[string]int32{"t": 1}}))
	c, err := net.Dial("tcp", b.Addr().String())
	require.NoError(t, err)
	_, err = c.Write(framed(request(fetchRequest("t", 0, time.Hour), 11)))
	require.NoError(t, err)
	l := b.topics.get("t").logs[0]
	watched := func(n int) func() bool {
		return func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.waiting) == n
		}
	}
	require.Eventually(t, watched(1), limit, time.Millisecond)
	require.NoError(t, c.Close())
	require.Eventually(t, watched(0), limit, time.Millisecond)
}

func TestConnectionsAreBounded(t *testing.T) {
	b := start(t, listening(Config{Limits: Limits{Connections: 2}}))
	meta := framed(request(kmsg.NewPtrMetadataRequest(), 1))
	var open []net.Conn
	for range 2 {
		c, err := net.Dial("tcp", b.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(meta)
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 4))
		require.NoError(t, err)
		open = append(open, c)
	}
	_, closed := talk(t, b, meta, 1)
	require.True(t, closed)
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		answers, _ := talk(t, b, meta, 1)
		return len(answers) == 1
	}, limit, time.Millisecond)
}

// A listener of a test's own, without a socket.
func TestServeTakesAnyListener(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 1}})
	l := &pipes{make(chan net.Conn), make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- b.Serve(l) }()
	c, err := kgo.NewClient(kgo.SeedBrokers("minibroker:9092"), kgo.DefaultProduceTopic("t"), kgo.Dialer(func(context.Context, string, string) (net.Conn, error) { return l.dial() }))
	require.NoError(t, err)
	require.NoError(t, c.ProduceSync(ctxFor(t), kgo.StringRecord("x")).FirstErr())
	c.Close()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-done, net.ErrClosed)
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipes) dial() (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// The memory for a request is taken as its bytes come.
func TestALengthAloneTakesNoMemory(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, 100<<20)
	sent := append(head, make([]byte, 1000)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readFrame(bufio.NewReader(bytes.NewReader(sent)), 100<<20)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(10<<20)) // others allocate too
}

func FuzzFrame(f *testing.F) {
	f.Add(framed(request(kmsg.NewPtrMetadataRequest(), 1)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bufio.NewReader(bytes.NewReader(b)), 1<<20)
		if err != nil {
			return
		}
		if !bytes.Equal(framed(got), b[:len(got)+4]) {
			t.Fatalf("%x became %x", b, got)
		}
	})
}

// Whatever a frame holds, it gets an answer that its correlation id comes with, or
// the connection is closed; and what is answered can be read by the client.
func FuzzRequest(f *testing.F) {
	for _, req := range namedRequests("works") {
		for _, v := range []int16{0, 1, req.MaxVersion()} {
			f.Add(request(req, v))
		}
	}
	b := start(f, Config{Topics: map[string]int32{"works": 1}, TwoPhaseCommit: true, AutoCreatePartitions: 1, Limits: Limits{Partitions: 100, Groups: 10, GroupMembers: 10}})
	s := newServer(b, context.Background())
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < headerBytes {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		defer cancel()
		out, err := s.answer(context.Background(), func(context.Context) context.Context { return ctx }, frame, client{}, nil)
		if err != nil || out == nil {
			return
		}
		if n := binary.BigEndian.Uint32(out); int(n) != len(out)-4 || !bytes.Equal(out[4:8], frame[4:8]) {
			t.Fatalf("%x was answered %x", frame, out)
		}
		key, version := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:]))
		resp := kmsg.ResponseForKey(key)
		if resp == nil || key == 22 && version == 6 {
			return
		}
		if own := s.b.apis[key]; key == int16(kmsg.ApiVersions) && (version < own.min || version > own.max) {
			version = 0
		}
		resp.SetVersion(version)
		body := out[8:]
		if resp.IsFlexible() && key != int16(kmsg.ApiVersions) {
			body = body[1:]
		}
		if err := resp.ReadFrom(body); err != nil {
			t.Fatalf("key %d v%d: the answer %x: %v", key, version, body, err)
		}
	})
}

// namesIn lists the names in a directory.
func namesIn(name string) (names []string, err error) {
	entries, err := os.ReadDir(name)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
