package minibroker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func createTopic(name string, partitions int32) kmsg.CreateTopicsRequestTopic {
	x := kmsg.NewCreateTopicsRequestTopic()
	x.Topic, x.NumPartitions, x.ReplicationFactor = name, partitions, 1
	return x
}

func create(t testing.TB, b *Broker, ts ...kmsg.CreateTopicsRequestTopic) []kmsg.CreateTopicsResponseTopic {
	t.Helper()
	r := kmsg.NewPtrCreateTopicsRequest()
	r.Topics = ts
	return ask[*kmsg.CreateTopicsResponse](t, b, r, 7).Topics
}

func TestWhichTopicsCanBeMade(t *testing.T) {
	b := start(t, Config{Limits: Limits{Partitions: 100}})
	assigned := func(name string, node int32, ps ...int32) kmsg.CreateTopicsRequestTopic {
		x := createTopic(name, -1)
		x.ReplicationFactor = -1
		for _, p := range ps {
			a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
			a.Partition, a.Replicas = p, []int32{node}
			x.ReplicaAssignment = append(x.ReplicaAssignment, a)
		}
		return x
	}
	replicated := createTopic("r", 1)
	replicated.ReplicationFactor = 3
	both := assigned("both", 0, 0)
	both.NumPartitions = 1
	for _, c := range []struct {
		topic kmsg.CreateTopicsRequestTopic
		want  *kerr.Error
	}{
		{createTopic("good.name_-9", 2), nil},
		{createTopic("good.name_-9", 2), kerr.TopicAlreadyExists},
		{createTopic("good_name.-9", 2), kerr.InvalidTopicException}, // Kafka's metrics do not tell . from _
		{createTopic("default", -1), nil},
		{createTopic("none", 0), kerr.InvalidPartitions},
		{createTopic("many", 1000), kerr.PolicyViolation},
		{createTopic("", 1), kerr.InvalidTopicException},
		{createTopic(".", 1), kerr.InvalidTopicException},
		{createTopic("..", 1), kerr.InvalidTopicException},
		{createTopic("../../etc/passwd", 1), kerr.InvalidTopicException},
		{createTopic("a/b", 1), kerr.InvalidTopicException},
		{createTopic("a\x00b", 1), kerr.InvalidTopicException},
		{createTopic("ünïcode", 1), kerr.InvalidTopicException},
		{createTopic(strings.Repeat("x", 249), 1), nil},
		{createTopic(strings.Repeat("x", 250), 1), kerr.InvalidTopicException},
		{createTopic("__consumer_offsets", 1), kerr.TopicAlreadyExists},
		{createTopic("__transaction_state", 1), kerr.TopicAlreadyExists},
		{replicated, kerr.InvalidReplicationFactor},
		{assigned("assigned", 0, 1, 0), nil},
		{assigned("elsewhere", 5, 0), kerr.InvalidReplicaAssignment},
		{assigned("gap", 0, 0, 2), kerr.InvalidReplicaAssignment},
		{assigned("twice", 0, 0, 0), kerr.InvalidReplicaAssignment},
		{both, kerr.InvalidRequest},
	} {
		got := create(t, b, c.topic)[0]
		refused(t, c.want, got.ErrorCode)
		if c.want == nil {
			require.NotZero(t, got.TopicID)
			require.Nil(t, got.ErrorMessage)
		} else {
			require.NotEmpty(t, *got.ErrorMessage)
		}
	}
	twice := create(t, b, createTopic("double", 1), createTopic("double", 1))
	require.Len(t, twice, 1)
	refused(t, kerr.InvalidRequest, twice[0].ErrorCode)
	dry := kmsg.NewPtrCreateTopicsRequest()
	dry.Topics, dry.ValidateOnly = []kmsg.CreateTopicsRequestTopic{createTopic("dry", 1)}, true
	refused(t, nil, ask[*kmsg.CreateTopicsResponse](t, b, dry, 7).Topics[0].ErrorCode)
	require.Nil(t, b.topics.get("dry"))
}

func TestMetadata(t *testing.T) {
	b := start(t, listening(Config{NodeID: 3, Topics: map[string]int32{"a": 2, "b": 1}, AutoCreatePartitions: 4}))
	ask := func(version int16, auto bool, names ...string) *kmsg.MetadataResponse {
		r := kmsg.NewPtrMetadataRequest()
		r.AllowAutoTopicCreation = auto
		for _, n := range names {
			x := kmsg.NewMetadataRequestTopic()
			x.Topic = kmsg.StringPtr(n)
			r.Topics = append(r.Topics, x)
		}
		return ask[*kmsg.MetadataResponse](t, b, r, version)
	}
	all := ask(12, false)
	require.EqualValues(t, 3, all.ControllerID)
	require.Equal(t, b.Addr().String(), fmt.Sprintf("%s:%d", all.Brokers[0].Host, all.Brokers[0].Port))
	var names []string
	for _, x := range all.Topics {
		names = append(names, *x.Topic)
		require.Equal(t, strings.HasPrefix(*x.Topic, "__"), x.IsInternal)
		for _, p := range x.Partitions {
			require.EqualValues(t, 3, p.Leader)
			require.Equal(t, []int32{3}, p.ISR)
		}
	}
	require.Equal(t, []string{"__consumer_offsets", "__transaction_state", "a", "b"}, names)
	require.Len(t, all.Topics[2].Partitions, 2)
	require.Len(t, ask(0, false).Topics, 4)

	got := ask(12, false, "b", "missing", "a/b").Topics
	refused(t, nil, got[0].ErrorCode)
	refused(t, kerr.UnknownTopicOrPartition, got[1].ErrorCode)
	refused(t, kerr.InvalidTopicException, got[2].ErrorCode)
	require.Len(t, ask(12, true, "made").Topics[0].Partitions, 4)
	require.Len(t, ask(3, false, "made by an old client").Topics[0].Partitions, 0)
	require.Len(t, ask(3, false, "old").Topics[0].Partitions, 4)

	// By id, from v10 on.
	r := kmsg.NewPtrMetadataRequest()
	for _, id := range [][16]byte{all.Topics[2].TopicID, {1}} {
		x := kmsg.NewMetadataRequestTopic()
		x.TopicID = id
		r.Topics = append(r.Topics, x)
	}
	r.Version = 12
	resp, err := b.Handle(ctxFor(t), r, anonymous)
	require.NoError(t, err)
	byID := resp.(*kmsg.MetadataResponse).Topics
	require.Equal(t, "a", *byID[0].Topic)
	refused(t, kerr.UnknownTopicID, byID[1].ErrorCode)
}

func produce(t testing.TB, b *Broker, topic string, batch []byte) kmsg.ProduceResponseTopicPartition {
	t.Helper()
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TimeoutMillis = -1, 1000
	x := kmsg.NewProduceRequestTopic()
	x.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = batch
	x.Partitions = append(x.Partitions, p)
	r.Topics = append(r.Topics, x)
	return ask[*kmsg.ProduceResponse](t, b, r, 12).Topics[0].Partitions[0]
}

func fetchRequest(topic string, offset int64, wait time.Duration) *kmsg.FetchRequest {
	r := kmsg.NewPtrFetchRequest()
	r.MaxWaitMillis, r.MinBytes, r.MaxBytes, r.SessionEpoch = int32(wait.Milliseconds()), 1, 1<<20, -1
	x := kmsg.NewFetchRequestTopic()
	x.Topic = topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = offset, 1<<20, -1
	x.Partitions = append(x.Partitions, p)
	r.Topics = append(r.Topics, x)
	return r
}

func TestFetch(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 2}})
	refused(t, nil, produce(t, b, "t", plain(3, 10)).ErrorCode)
	fetch := func(version int16, change func(*kmsg.FetchRequest)) *kmsg.FetchResponse {
		r := fetchRequest("t", 0, 0)
		change(r)
		return ask[*kmsg.FetchResponse](t, b, r, version)
	}
	part := func(r *kmsg.FetchResponse) kmsg.FetchResponseTopicPartition { return r.Topics[0].Partitions[0] }
	for version := int16(4); version <= 18; version++ {
		p := part(fetch(version, func(r *kmsg.FetchRequest) { r.Topics[0].TopicID = b.topics.get("t").id }))
		refused(t, nil, p.ErrorCode)
		require.EqualValues(t, 3, p.HighWatermark)
		require.EqualValues(t, 3, p.LastStableOffset)
		require.Len(t, p.RecordBatches, len(plain(3, 10)))
		require.Nil(t, p.AbortedTransactions)
	}
	committed := part(fetch(11, func(r *kmsg.FetchRequest) { r.IsolationLevel = 1 }))
	require.NotNil(t, committed.AbortedTransactions)
	for name, c := range map[string]struct {
		change func(*kmsg.FetchRequest)
		want   *kerr.Error
	}{
		"beyond the end":       {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = 4 }, kerr.OffsetOutOfRange},
		"before the beginning": {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = -1 }, kerr.OffsetOutOfRange},
		"at the end":           {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = 3 }, nil},
		"no such topic":        {func(r *kmsg.FetchRequest) { r.Topics[0].Topic = "x" }, kerr.UnknownTopicOrPartition},
		"no such partition":    {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].Partition = 2 }, kerr.UnknownTopicOrPartition},
		"a negative partition": {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].Partition = -1 }, kerr.UnknownTopicOrPartition},
		"a later leader epoch": {func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = 1 }, kerr.UnknownLeaderEpoch},
		"an internal topic":    {func(r *kmsg.FetchRequest) { r.Topics[0].Topic = "__consumer_offsets" }, nil},
	} {
		p := part(fetch(11, c.change))
		refused(t, c.want, p.ErrorCode)
		if c.want != nil {
			require.EqualValues(t, -1, p.HighWatermark, name)
			require.EqualValues(t, -1, p.LastStableOffset, name)
		}
	}
	refused(t, kerr.UnknownTopicID, part(fetch(13, func(r *kmsg.FetchRequest) { r.Topics[0].TopicID = [16]byte{9} })).ErrorCode)
	for _, epoch := range []int32{1, 2} {
		session := fetch(11, func(r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = 5, epoch })
		refused(t, kerr.FetchSessionIDNotFound, session.ErrorCode)
	}
	require.Zero(t, fetch(11, func(r *kmsg.FetchRequest) { r.SessionEpoch = 0 }).SessionID)

	// Bytes are limited over all partitions, and somebody gets something.
	two := func(r *kmsg.FetchRequest) {
		r.MaxBytes = 1
		r.Topics[0].Partitions = append([]kmsg.FetchRequestTopicPartition{{Partition: 1, PartitionMaxBytes: 1, CurrentLeaderEpoch: -1}}, r.Topics[0].Partitions...)
	}
	x := fetch(11, two).Topics[0].Partitions
	require.Empty(t, x[0].RecordBatches)
	require.NotEmpty(t, x[1].RecordBatches)
}

// A fetch with nothing to return waits: for data, for the last stable offset to
// move, for its time, or for its client to leave.
func TestAFetchWaits(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 1}})
	wait := func(ctx context.Context, r *kmsg.FetchRequest) <-chan kmsg.FetchResponseTopicPartition {
		r.Version = 11
		c := make(chan kmsg.FetchResponseTopicPartition, 1)
		go func() {
			resp, err := b.Handle(ctx, r, anonymous)
			require.NoError(t, err)
			c <- resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
		}()
		log, err := b.topics.log(b.topics.get("t"), 0)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			log.mu.Lock()
			defer log.mu.Unlock()
			return len(log.waiting) == 1
		}, limit, time.Millisecond)
		return c
	}
	got := wait(ctxFor(t), fetchRequest("t", 0, time.Hour))
	refused(t, nil, produce(t, b, "t", plain(1, 1)).ErrorCode)
	require.NotEmpty(t, (<-got).RecordBatches)

	r := fetchRequest("t", 1, time.Hour)
	r.MinBytes = int32(len(plain(1, 1))) + 1
	got = wait(ctxFor(t), r)
	refused(t, nil, produce(t, b, "t", plain(1, 1)).ErrorCode)
	refused(t, nil, produce(t, b, "t", plain(1, 1)).ErrorCode)
	require.Len(t, (<-got).RecordBatches, 2*len(plain(1, 1)))

	r = fetchRequest("t", 3, time.Millisecond)
	resp := ask[*kmsg.FetchResponse](t, b, r, 11)
	require.Empty(t, resp.Topics[0].Partitions[0].RecordBatches)

	ctx, cancel := context.WithCancel(context.Background())
	got = wait(ctx, fetchRequest("t", 3, time.Hour))
	cancel()
	require.Empty(t, (<-got).RecordBatches)

	got = wait(ctxFor(t), fetchRequest("t", 3, time.Hour))
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"t"}
	refused(t, nil, ask[*kmsg.DeleteTopicsResponse](t, b, del, 5).Topics[0].ErrorCode)
	refused(t, kerr.UnknownTopicOrPartition, (<-got).ErrorCode)
}

func TestListOffsets(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 1, "empty": 1, "open": 1}})
	require.Zero(t, produce(t, b, "t", plain(3, 10)).BaseOffset) // timestamps 1000, 1001, 1002
	later := plain(2, 10)
	refused(t, nil, produce(t, b, "t", later).ErrorCode)
	zipped := plain(2, 10)
	zipped[22] |= 2 // says it is compressed: it is not opened
	refused(t, kerr.CorruptMessage, produce(t, b, "t", zipped).ErrorCode)
	p := txnstate.Producer{}
	id := kmsg.NewPtrInitProducerIDRequest()
	id.TransactionalID, id.TransactionTimeoutMillis = kmsg.StringPtr("tx"), 1000
	got := ask[*kmsg.InitProducerIDResponse](t, b, id, 4)
	p.ID, p.Epoch = got.ProducerID, got.ProducerEpoch
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TransactionID = -1, kmsg.StringPtr("tx")
	x := kmsg.NewProduceRequestTopic()
	x.Topic = "t"
	x.Partitions = append(x.Partitions, kmsg.ProduceRequestTopicPartition{Records: recordBatch(p, 0, 1, 1, true)})
	r.Topics = append(r.Topics, x)
	x.Topic = "open"
	r.Topics = append(r.Topics, x)
	for _, x := range ask[*kmsg.ProduceResponse](t, b, r, 12).Topics {
		refused(t, nil, x.Partitions[0].ErrorCode)
	}

	list := func(topic string, at int64, committed int8) kmsg.ListOffsetsResponseTopicPartition {
		r := kmsg.NewPtrListOffsetsRequest()
		r.IsolationLevel = committed
		x := kmsg.NewListOffsetsRequestTopic()
		x.Topic = topic
		q := kmsg.NewListOffsetsRequestTopicPartition()
		q.Timestamp = at
		x.Partitions = append(x.Partitions, q)
		r.Topics = append(r.Topics, x)
		return ask[*kmsg.ListOffsetsResponse](t, b, r, 9).Topics[0].Partitions[0]
	}
	for _, c := range []struct {
		topic             string
		at                int64
		committed         int8
		offset, timestamp int64
	}{
		{"t", -1, 0, 6, -1}, {"t", -1, 1, 5, -1}, {"t", -2, 0, 0, -1}, {"t", -4, 0, 0, -1}, {"t", -5, 0, -1, -1},
		{"t", -3, 0, 2, 1002}, {"t", 0, 0, 0, 1000}, {"t", 1001, 0, 1, 1001}, {"t", 1002, 0, 2, 1002}, {"t", 1003, 0, -1, -1},
		// What is found has to be below the last stable offset too (Partition.fetchOffsetForTimestamp).
		{"open", 0, 0, 0, 1000}, {"open", 0, 1, -1, -1}, {"open", -3, 0, 0, 1000}, {"open", -3, 1, -1, -1}, {"t", -3, 1, 2, 1002},
		{"empty", -1, 0, 0, -1}, {"empty", -3, 0, -1, -1}, {"empty", 5, 0, -1, -1},
		{"__consumer_offsets", -1, 0, 0, -1}, {"__consumer_offsets", -3, 0, -1, -1},
	} {
		got := list(c.topic, c.at, c.committed)
		refused(t, nil, got.ErrorCode)
		require.Equal(t, c.offset, got.Offset, "%+v", c)
		require.Equal(t, c.timestamp, got.Timestamp, "%+v", c)
	}
	refused(t, kerr.UnknownTopicOrPartition, list("missing", -1, 0).ErrorCode)
	refused(t, kerr.UnsupportedVersion, list("t", -99, 0).ErrorCode)
}

// What the broker says it speaks is what it speaks: every API at every version
// answers, and the versions around are refused.
func TestApiVersionsAreTrue(t *testing.T) {
	b := start(t, Config{TwoPhaseCommit: true})
	said := ask[*kmsg.ApiVersionsResponse](t, b, &kmsg.ApiVersionsRequest{ClientSoftwareName: "a", ClientSoftwareVersion: "1"}, 4)
	refused(t, nil, said.ErrorCode)
	require.Len(t, said.ApiKeys, 28)
	s := newServer(b, ctxFor(t))
	for _, k := range said.ApiKeys {
		for v := k.MinVersion - 1; v <= k.MaxVersion+1; v++ {
			req := kmsg.RequestForKey(k.ApiKey)
			if n, err := b.handler.NewRequest(k.ApiKey, v); err == nil {
				req = n
			}
			out, err := s.answer(ctxFor(t), same, request(req, v), client{}, nil)
			switch {
			case k.ApiKey == int16(kmsg.ApiVersions) && (v < k.MinVersion || v > k.MaxVersion):
				require.NoError(t, err)
				resp := kmsg.NewPtrApiVersionsResponse()
				require.NoError(t, resp.ReadFrom(out[8:]))
				refused(t, kerr.UnsupportedVersion, resp.ErrorCode)
				require.Equal(t, int16(kmsg.ApiVersions), resp.ApiKeys[0].ApiKey)
			case v < k.MinVersion || v > k.MaxVersion:
				require.ErrorIs(t, err, wire.ErrClose, "key %d v%d", k.ApiKey, v)
			default:
				require.NoError(t, err, "key %d v%d", k.ApiKey, v)
			}
		}
	}
	for _, name := range []string{"", "-a", "a-", "a b"} {
		got := ask[*kmsg.ApiVersionsResponse](t, b, &kmsg.ApiVersionsRequest{ClientSoftwareName: name, ClientSoftwareVersion: "1"}, 3)
		refused(t, kerr.InvalidRequest, got.ErrorCode)
	}
	_, err := b.Handle(ctxFor(t), kmsg.NewPtrVoteRequest(), anonymous)
	require.ErrorIs(t, err, wire.ErrClose)
	_, err = b.Handle(ctxFor(t), nil, anonymous)
	require.ErrorIs(t, err, wire.ErrClose)
}

// Clients of ApiVersions v3 do not take a lowest feature level of 0
// (KAFKA-17011), and a feature at level 0 is not finalised.
func TestFeatures(t *testing.T) {
	for level, want := range map[txnstate.TransactionVersion]int16{txnstate.ServerTV0: 0, txnstate.TV1: 1, 0: 2} {
		b := start(t, Config{TransactionVersion: level})
		for _, version := range []int16{3, 4} {
			got := ask[*kmsg.ApiVersionsResponse](t, b, &kmsg.ApiVersionsRequest{ClientSoftwareName: "a", ClientSoftwareVersion: "1"}, version)
			require.EqualValues(t, map[int16]int16{3: 1, 4: 0}[version], got.SupportedFeatures[0].MinVersion)
			if want == 0 {
				require.Empty(t, got.FinalizedFeatures)
				continue
			}
			require.Equal(t, "transaction.version", got.FinalizedFeatures[0].Name)
			require.Equal(t, want, got.FinalizedFeatures[0].MaxVersionLevel)
		}
	}
}

func TestAccessRules(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 1}})
	deny := func(kind kmsg.ACLResourceType, name string, op kmsg.ACLOperation) int16 {
		r := kmsg.NewPtrCreateACLsRequest()
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName, c.ResourcePatternType = kind, name, kmsg.ACLResourcePatternTypeLiteral
		c.Principal, c.Host, c.Operation, c.PermissionType = "User:*", "*", op, kmsg.ACLPermissionTypeDeny
		r.Creations = append(r.Creations, c)
		return ask[*kmsg.CreateACLsResponse](t, b, r, 3).Results[0].ErrorCode
	}
	refused(t, nil, deny(kmsg.ACLResourceTypeTopic, "t", kmsg.ACLOperationRead))
	refused(t, kerr.InvalidRequest, deny(kmsg.ACLResourceTypeTopic, "", kmsg.ACLOperationRead))
	refused(t, kerr.TopicAuthorizationFailed, ask[*kmsg.FetchResponse](t, b, fetchRequest("t", 0, 0), 11).Topics[0].Partitions[0].ErrorCode)
	byID := fetchRequest("t", 0, 0)
	byID.Topics[0].TopicID = b.topics.get("t").id
	refused(t, kerr.TopicAuthorizationFailed, ask[*kmsg.FetchResponse](t, b, byID, 13).Topics[0].Partitions[0].ErrorCode)
	refused(t, nil, deny(kmsg.ACLResourceTypeTopic, "t", kmsg.ACLOperationAll))
	for _, x := range ask[*kmsg.MetadataResponse](t, b, kmsg.NewPtrMetadataRequest(), 12).Topics {
		require.NotEqual(t, "t", *x.Topic, "a topic that may not be described is not listed")
	}
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"t"}
	refused(t, kerr.TopicAuthorizationFailed, ask[*kmsg.DeleteTopicsResponse](t, b, del, 5).Topics[0].ErrorCode)

	r := kmsg.NewPtrDescribeACLsRequest()
	r.ResourceType, r.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	r.Operation, r.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	got := ask[*kmsg.DescribeACLsResponse](t, b, r, 3)
	require.Len(t, got.Resources, 1)
	require.Len(t, got.Resources[0].ACLs, 2)

	refused(t, nil, deny(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationAll))
	refused(t, kerr.ClusterAuthorizationFailed, deny(kmsg.ACLResourceTypeTopic, "x", kmsg.ACLOperationAll))
	refused(t, kerr.ClusterAuthorizationFailed, ask[*kmsg.DescribeACLsResponse](t, b, r, 3).ErrorCode)
	refused(t, nil, create(t, b, createTopic("new", 1))[0].ErrorCode) // no rule is about the topic itself

	own := start(t, Config{Authorizer: wire.AuthorizerFunc(func(context.Context, wire.Principal, wire.Operation, wire.Resource) bool { return true })})
	refused(t, kerr.SecurityDisabled, ask[*kmsg.DescribeACLsResponse](t, own, r, 3).ErrorCode)
}

// A topic that is made again is another one: nothing of the first is left, its
// offsets included.
func TestATopicThatIsMadeAgainIsEmpty(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 1}})
	refused(t, nil, produce(t, b, "t", plain(3, 1)).ErrorCode)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = "g", -1
	x := kmsg.NewOffsetCommitRequestTopic()
	x.Topic = "t"
	x.Partitions = append(x.Partitions, kmsg.OffsetCommitRequestTopicPartition{Offset: 3})
	commit.Topics = append(commit.Topics, x)
	refused(t, nil, ask[*kmsg.OffsetCommitResponse](t, b, commit, 8).Topics[0].Partitions[0].ErrorCode)
	first := b.topics.get("t").id
	del := kmsg.NewPtrDeleteTopicsRequest()
	for _, id := range [][16]byte{first, first} {
		q := kmsg.NewDeleteTopicsRequestTopic()
		q.TopicID = id
		del.Topics = append(del.Topics, q)
	}
	got := ask[*kmsg.DeleteTopicsResponse](t, b, del, 6)
	refused(t, nil, got.Topics[0].ErrorCode)
	require.Equal(t, "t", *got.Topics[0].Topic)
	refused(t, kerr.UnknownTopicID, got.Topics[1].ErrorCode)
	refused(t, kerr.UnknownTopicOrPartition, produce(t, b, "t", plain(1, 1)).ErrorCode)
	del = kmsg.NewPtrDeleteTopicsRequest()
	del.TopicNames = []string{"t", "__consumer_offsets"}
	got = ask[*kmsg.DeleteTopicsResponse](t, b, del, 5)
	refused(t, kerr.UnknownTopicOrPartition, got.Topics[0].ErrorCode)
	refused(t, kerr.InvalidTopicException, got.Topics[1].ErrorCode)

	refused(t, nil, create(t, b, createTopic("t", 1))[0].ErrorCode)
	require.NotEqual(t, first, b.topics.get("t").id)
	require.Zero(t, produce(t, b, "t", plain(1, 1)).BaseOffset)
	of := kmsg.NewPtrOffsetFetchRequest()
	of.Group = "g"
	y := kmsg.NewOffsetFetchRequestTopic()
	y.Topic, y.Partitions = "t", []int32{0}
	of.Topics = append(of.Topics, y)
	require.EqualValues(t, -1, ask[*kmsg.OffsetFetchResponse](t, b, of, 7).Topics[0].Partitions[0].Offset)
}
