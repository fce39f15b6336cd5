package wire_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// asker is an Authorizer that books what it is asked, and denies one thing.
type asker struct {
	mu    sync.Mutex
	asked []string
	deny  string
}

func (a *asker) Allow(_ context.Context, _ wire.Principal, op wire.Operation, r wire.Resource) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := fmt.Sprintf("%s %s %s", map[wire.Operation]string{
		wire.OpRead: "READ", wire.OpWrite: "WRITE", wire.OpDescribe: "DESCRIBE", wire.OpAlter: "ALTER",
		wire.OpClusterAction: "CLUSTER_ACTION", wire.OpIdempotentWrite: "IDEMPOTENT_WRITE",
	}[op], map[wire.ResourceType]string{
		wire.TopicResource: "topic", wire.GroupResource: "group", wire.ClusterResource: "cluster", wire.TransactionalIDResource: "id",
	}[r.Type], r.Name)
	a.asked = append(a.asked, q)
	return q != a.deny
}

func (a *asker) take() (asked []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked, a.asked = a.asked, nil
	return slices.Compact(asked)
}

// Which rights an API asks for, and in which order: KafkaApis. A denial of any of
// them is seen in the answer.
func TestTheRightsThatEachAPIAsksFor(t *testing.T) {
	auth := &asker{}
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Authorizer = auth })
	h.addTopic("a", 1)
	p := h.initTxn(t, "tx")
	named := kmsg.NewPtrInitProducerIDRequest()
	named.Version, named.TransactionalID, named.TransactionTimeoutMillis = 5, kmsg.StringPtr("tx"), 60000
	nameless := kmsg.NewPtrInitProducerIDRequest()
	nameless.Version = 5
	find := func(kind int8) kmsg.Request {
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.Version, r.CoordinatorType, r.CoordinatorKeys = 4, kind, []string{"k"}
		return r
	}
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "a", Partitions: []int32{0}}}
	transactions := kmsg.NewPtrDescribeTransactionsRequest()
	transactions.TransactionalIDs = []string{"tx"}
	auth.take()
	for _, c := range []struct {
		req   kmsg.Request
		asked []string
	}{
		{named, []string{"WRITE id tx"}},
		{nameless, []string{"IDEMPOTENT_WRITE cluster kafka-cluster"}},
		{addRequest(3, "tx", p, "a", 0), []string{"WRITE id tx", "WRITE topic a"}},
		{addRequest(5, "tx", p, "a", 0), []string{"CLUSTER_ACTION cluster kafka-cluster"}},
		{addOffsetsRequest(4, "tx", p, "g"), []string{"WRITE id tx", "READ group g"}},
		{endRequest(4, "tx", p, true), []string{"WRITE id tx"}},
		{txnOffsets(5, "tx", "g", p, "a"), []string{"WRITE id tx", "READ group g", "READ topic a"}},
		{plainOffsets(8, "g", "a"), []string{"READ group g", "READ topic a"}},
		{fetchRequest(8, "g", false, "a"), []string{"DESCRIBE group g", "DESCRIBE topic a"}},
		{fetchRequest(8, "g", false), []string{"DESCRIBE group g", "DESCRIBE topic a"}}, // all there are
		{addMarker(markRequest(1), p, true, 5, 0, markTo{"a", []int32{0}}), []string{"ALTER cluster kafka-cluster"}},
		{produceRequest(9, "", "a", 0, batch(producer{-1, -1}, 0, 1, false)), []string{"WRITE topic a"}},
		{produceRequest(9, "tx", "a", 0, batch(p, 0, 1, true)), []string{"WRITE id tx", "WRITE topic a"}},
		{find(0), []string{"DESCRIBE group k"}},
		{find(1), []string{"DESCRIBE id k"}},
		{producers, []string{"READ topic a"}},
		{transactions, []string{"DESCRIBE id tx"}},
		{kmsg.NewPtrListTransactionsRequest(), []string{"DESCRIBE id tx"}},
	} {
		name := kmsg.NameForKey(c.req.Key())
		good := c.req
		if f, ok := c.req.(*kmsg.OffsetFetchRequest); ok && len(f.Groups[0].Topics) == 0 {
			f.Groups[0].Topics = nil
		}
		answer, err := h.Handle(t.Context(), good, "User:test")
		require.NoError(t, err, name)
		asked := auth.take()
		if _, ok := c.req.(*kmsg.DescribeTransactionsRequest); ok {
			asked = asked[:1] // and the topics of the transaction, if there is one
		}
		require.Equal(t, c.asked, asked, name)
		for _, right := range c.asked {
			if right == "ALTER cluster kafka-cluster" {
				continue // CLUSTER_ACTION is as good
			}
			auth.deny = right
			refused, err := h.Handle(t.Context(), good, "User:test")
			auth.deny = ""
			require.NoError(t, err, name)
			require.NotEqual(t, fmt.Sprint(answer), fmt.Sprint(refused), "%s without %s", name, right)
			auth.take()
		}
	}

	// Two rights of which either is enough, asked for one after the other.
	mark := addMarker(markRequest(1), p, true, 5, 0, markTo{"a", []int32{0}})
	auth.deny = "ALTER cluster kafka-cluster"
	_, err := h.Handle(t.Context(), mark, "User:test")
	require.NoError(t, err)
	require.Equal(t, []string{"ALTER cluster kafka-cluster", "CLUSTER_ACTION cluster kafka-cluster"}, auth.take())
	auth.deny = "CLUSTER_ACTION cluster kafka-cluster"
	wantCodes(t, "ALTER alone", markCodes(do[*kmsg.WriteTxnMarkersResponse](t, h, mark)), 0)
}

// What is wrong with one partition is said of that one, whatever stands before it.
func TestARefusedPartitionShiftsNoOther(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.WithoutTopicIDs = true })
	for _, name := range []string{"a", "b", "c"} {
		h.addTopic(name, 1)
	}
	p := h.initTxn(t, "tx")
	long := strings.Repeat("m", 100_000)
	txn := txnOffsets(5, "tx", "g", p, "missing", "a", "b", "c")
	txn.Topics[2].Partitions[0].Metadata = &long
	wantCodes(t, "TxnOffsetCommit", h.txnCommit(t, txn), 3, 0, 12, 0)
	plain := plainOffsets(8, "g", "missing", "a", "b", "c")
	plain.Topics[2].Partitions[0].Metadata = &long
	wantCodes(t, "OffsetCommit", h.plainCommit(t, plain), 3, 0, 12, 0)
}

// members are groups of which each has the static member m1, instance i1, at
// generation 7.
type members struct{}

func (members) View(string) offsets.GroupView {
	return offsets.GroupView{
		State: offsets.GroupStable, Generation: 7,
		Member:   func(id string) bool { return id == "m1" },
		Instance: func(id string) (string, bool) { return "m1", id == "i1" },
	}
}
func (members) Ensure(string) {}

// A static member that was replaced commits nothing, in no way (KIP-345).
func TestF31_AReplacedStaticMemberCommitsNothing(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Groups = members{} })
	h.addTopic("a", 1)
	p := h.initTxn(t, "tx")
	for _, c := range []struct {
		member string
		code   int16
	}{{"m1", 0}, {"m0", 82}} {
		txn := txnOffsets(5, "tx", "g", p, "a")
		txn.MemberID, txn.InstanceID, txn.Generation = c.member, kmsg.StringPtr("i1"), 7
		wantCodes(t, "TxnOffsetCommit of "+c.member, h.txnCommit(t, txn), c.code)
		plain := plainOffsets(8, "g", "a")
		plain.MemberID, plain.InstanceID, plain.Generation = c.member, kmsg.StringPtr("i1"), 7
		wantCodes(t, "OffsetCommit of "+c.member, h.plainCommit(t, plain), c.code)
	}
}

// A broker that does not coordinate a group says so, and not what its members seem
// to be; and its groups are none the more for it.
func TestAGroupOfAnotherBrokerIsNotJudgedNorMade(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	require.NoError(t, h.offsets.Unload(t.Context(), txnstate.OffsetsPartition("g")))
	wantCodes(t, "no member", h.plainCommit(t, plainOffsets(8, "g", "a")), 16)
	require.Equal(t, offsets.GroupMissing, h.View("g").State)
	plain := plainOffsets(8, "g", "a")
	plain.MemberID, plain.Generation = "m", 3
	wantCodes(t, "a member", h.plainCommit(t, plain), 16)
}

// Whether a decision that is taken up again has its marker is told by its own epoch,
// and only to the coordinator that may ask.
func TestTheMarkerOfAnotherEpochIsNotOnesOwn_F14(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	log, err := h.log("a", 0)
	require.NoError(t, err)
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h, Alone: true})
	require.NoError(t, err)
	send := func(epoch int16, coordinator int32, again bool) markers.Result {
		d := delivery(producer{7, epoch}, true, txnstate.Partition("a", 0))
		d.CoordinatorEpoch, d.Again = coordinator, again
		return sink.WriteMarkers(t.Context(), 1, []markers.Delivery{d})[0]
	}
	require.Equal(t, markers.Applied, send(3, 5, false))
	require.Len(t, log.batches, 1)
	require.Equal(t, markers.Applied, send(4, 5, true), "late batches of epoch 3 are to be kept out")
	require.Len(t, log.batches, 2)
	require.Equal(t, markers.FencedCoordinator, send(4, 4, true))
	require.Len(t, log.batches, 2)
}

// A marker that was waited for long enough may have been sent again, and more have
// come since: it is not appended late (F14).
func TestAMarkerThatNobodyWaitsForIsNotAppended_F14(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	log, err := h.log("a", 0)
	require.NoError(t, err)
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h})
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	d := delivery(producer{7, 3}, true, txnstate.Partition("a", 0))
	require.Equal(t, []markers.Result{markers.Retry}, sink.WriteMarkers(ended, 1, []markers.Delivery{d}))
	require.Empty(t, log.batches)
}
