package wire_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type markTo struct {
	topic      string
	partitions []int32
}

func addMarker(req *kmsg.WriteTxnMarkersRequest, p producer, commit bool, coordinator int32, tv int8, to ...markTo) *kmsg.WriteTxnMarkersRequest {
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.Committed, m.CoordinatorEpoch, m.TransactionVersion = p.id, p.epoch, commit, coordinator, tv
	for _, to := range to {
		rt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		rt.Topic, rt.Partitions = to.topic, to.partitions
		m.Topics = append(m.Topics, rt)
	}
	req.Markers = append(req.Markers, m)
	return req
}

func markRequest(version int16) *kmsg.WriteTxnMarkersRequest {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Version = version
	return req
}

func markCodes(r *kmsg.WriteTxnMarkersResponse) []int16 {
	var out []int16
	for _, m := range r.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				out = append(out, p.ErrorCode)
			}
		}
	}
	return out
}

// §4.5.
func TestWriteTxnMarkers(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 3)
	p := producer{77, 3}
	mark := func(req *kmsg.WriteTxnMarkersRequest) []int16 {
		return markCodes(do[*kmsg.WriteTxnMarkersResponse](t, h, req))
	}
	a := func(ps ...int32) markTo { return markTo{"a", ps} }
	wantCodes(t, "2: nothing to do", mark(markRequest(1)))
	wantCodes(t, "a producer that nobody knows", mark(addMarker(markRequest(1), p, true, 5, 0, a(0))), 0)
	wantCodes(t, "3: not here, the others are written", mark(addMarker(markRequest(1), p, true, 5, 0, markTo{"missing", []int32{0}}, a(9, 1), markTo{"__consumer_offsets", []int32{50, 49}})), 3, 3, 0, 3, 0)
	wantCodes(t, "3: without an identity and without a partition here", mark(addMarker(markRequest(1), producer{-1, -1}, true, 5, 0, markTo{"missing", []int32{0}})), 3)
	wantCodes(t, "3a: the whole request", mark(addMarker(addMarker(markRequest(1), producer{-1, 0}, true, 5, 0, a(2), markTo{"missing", []int32{0}}), p, true, 6, 0, a(0))), -1, -1, -1)
	wantCodes(t, "5: an old epoch, an old coordinator, each partition its own", mark(addMarker(addMarker(markRequest(1), producer{77, 2}, true, 9, 0, a(0, 2)), p, true, 4, 0, a(1))), 47, 0, 52)
	wantCodes(t, "5: a negative transaction version", mark(addMarker(markRequest(2), p, true, 5, -1, a(0))), -1)
	wantCodes(t, "v1 has no transaction version", mark(addMarker(markRequest(1), p, true, 5, -1, a(0))), 0)

	// 6: markers of one producer id are merged, the later result stands.
	req := addMarker(addMarker(addMarker(markRequest(1), p, true, 5, 0, a(0)), producer{78, 0}, false, 5, 0, a(0)), producer{77, 0}, true, 5, 0, a(0))
	r := do[*kmsg.WriteTxnMarkersResponse](t, h, req)
	wantCodes(t, "merged", markCodes(r), 47, 0)
	if len(r.Markers) != 2 || r.Markers[0].ProducerID != 77 || r.Markers[1].ProducerID != 78 {
		t.Errorf("%+v", r.Markers)
	}

	l, _ := h.log("a", 2)
	if len(l.batches) != 1 {
		t.Fatalf("%d batches", len(l.batches))
	}
	// 3a: what stands before the marker that fails is written all the same.
	end := func(partition int32) int {
		l, _ := h.log("a", partition)
		return len(l.batches)
	}
	before := [3]int{end(0), end(1), end(2)}
	req = addMarker(addMarker(addMarker(markRequest(1), p, true, 5, 0, a(0)), producer{77, -1}, true, 5, 0, markTo{"__consumer_offsets", []int32{1}}, a(1)), p, true, 5, 0, a(2))
	wantCodes(t, "3a: in their order; of a producer id, the last is answered", mark(req), -1)
	if end(0) != before[0]+1 || end(1) != before[1] || end(2) != before[2] {
		t.Errorf("batches %d %d %d, before %v", end(0), end(1), end(2), before)
	}
	wantCodes(t, "a group's partition refuses it alone", mark(addMarker(addMarker(markRequest(1), producer{-1, 0}, true, 5, 0, markTo{"__consumer_offsets", []int32{1}}), p, true, 5, 0, a(0))), -1, 0)
	r = do[*kmsg.WriteTxnMarkersResponse](t, h, addMarker(addMarker(markRequest(1), producer{-1, 0}, true, 5, 0, a()), p, true, 5, 0, a(1, 1)))
	wantCodes(t, "a marker without partitions is not answered, a partition named twice takes it once", markCodes(r), 0)
	if len(r.Markers) != 1 || end(1) != before[1]+1 {
		t.Errorf("%+v, %d batches, before %v", r.Markers, end(1), before)
	}
	m, _, err := markers.ParseControlBatch(l.batches[0])
	if err != nil || m.Producer != (txnstate.Producer{ID: 77, Epoch: 2}) || !m.Commit || m.CoordinatorEpoch != 9 {
		t.Errorf("in the log: %+v, %v", m, err)
	}

	h.denyAll(t, wire.ClusterResource, wire.ClusterName, wire.OpAlter)
	wantCodes(t, "1: neither ALTER nor CLUSTER_ACTION", mark(addMarker(markRequest(1), p, true, 5, 0, a(0, 9))), 31, 31)
	if err := h.acls.Add(rule(wire.ClusterResource, wire.ClusterName, wire.AnyUser, wire.OpClusterAction, wire.AllowPermission)); err != nil {
		t.Fatal(err)
	}
	wantCodes(t, "1: CLUSTER_ACTION is enough", mark(addMarker(markRequest(1), p, true, 5, 0, a(0))), 0)
}

// A group coordinator that is not ready is shown as 6: the transaction
// coordinator tries again.
func TestMarkersForOffsetsElsewhere(t *testing.T) {
	h := newHost(t, nil)
	if err := h.offsets.Unload(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	req := addMarker(markRequest(1), producer{1, 1}, true, 0, 0, markTo{"__consumer_offsets", []int32{7}})
	wantCodes(t, "not served", markCodes(do[*kmsg.WriteTxnMarkersResponse](t, h, req)), 6)
}

func delivery(p producer, commit bool, to txnstate.Participant) markers.Delivery {
	return markers.Delivery{Participant: to, Marker: markers.Marker{
		TxnID: "tx", Producer: txnstate.Producer{ID: p.id, Epoch: p.epoch}, Commit: commit, TransactionVersion: txnstate.TV2, CoordinatorEpoch: 1,
	}}
}

// I2, F38: unknown is not gone, and only certain deletion is.
func TestF38_LocalSinkResults(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	h.addTopic("gone", 1)
	h.dropTopic("gone")
	broken := errors.New("disk on fire")
	h.addTopic("broken", 1)
	l, _ := h.log("broken", 0)
	l.fail = broken
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h, Offsets: h.offsets})
	if err != nil {
		t.Fatal(err)
	}
	p := producer{9, 4}
	ds := []markers.Delivery{
		delivery(p, true, txnstate.Partition("a", 0)),
		delivery(p, true, txnstate.Group("g")),
		delivery(p, true, txnstate.Partition("gone", 0)),
		delivery(p, true, txnstate.Partition("missing", 0)),
		delivery(p, true, txnstate.Partition("broken", 0)),
		delivery(producer{9, 3}, true, txnstate.Partition("a", 0)), // behind the first, of the same producer
		delivery(p, true, txnstate.Participant{Kind: txnstate.KindHost, Name: "db"}),
	}
	want := []markers.Result{markers.Applied, markers.Applied, markers.Deleted, markers.Moved, markers.Retry, markers.FencedEpoch, markers.Retry}
	if got := sink.WriteMarkers(t.Context(), 0, ds); !slices.Equal(got, want) {
		t.Errorf("results %v, want %v", got, want)
	}
	// A repeat is applied, also where it came first (F13).
	if got := sink.WriteMarkers(t.Context(), 0, ds[:2]); !slices.Equal(got, want[:2]) {
		t.Errorf("again: %v", got)
	}
	// A host's own participants go to the host.
	own, err := wire.NewLocalSink(wire.LocalSinkConfig{Host: func(context.Context, markers.Delivery) markers.Result { return markers.Applied }})
	if err != nil {
		t.Fatal(err)
	}
	if got := own.WriteMarkers(t.Context(), 0, []markers.Delivery{ds[6], ds[0], ds[1]}); !slices.Equal(got, []markers.Result{markers.Applied, markers.Moved, markers.Moved}) {
		t.Errorf("host: %v", got)
	}
	if _, err := wire.NewLocalSink(wire.LocalSinkConfig{}); err == nil {
		t.Error("a sink to nothing was made")
	}
}

// I12: a marker that is refused for its epoch is done where nothing waits for it.
func TestStillOpen(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 2)
	p := h.initTxn(t, "tx")
	wantCodes(t, "produce", h.produce(t, produceRequest(12, "tx", "a", 0, batch(p, 0, 1, true))), 0)
	wantCodes(t, "commit", h.txnCommit(t, txnOffsets(5, "tx", "g", p, "a")), 0)
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h, Offsets: h.offsets})
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want bool, to ...txnstate.Participant) {
		t.Helper()
		for _, to := range to {
			if open, err := sink.StillOpen(t.Context(), 0, delivery(p, true, to)); open != want || err != nil {
				t.Errorf("%s, %s: %v, %v", when, to, open, err)
			}
		}
	}
	check("open", true, txnstate.Partition("a", 0), txnstate.Group("g"))
	// It is asked because the partition knows a newer epoch than the marker's (F13).
	now := p
	p.epoch--
	check("open under a newer epoch", true, txnstate.Partition("a", 0), txnstate.Group("g"))
	p = now
	check("elsewhere", false, txnstate.Partition("a", 1), txnstate.Group("other"))
	if r := do[*kmsg.EndTxnResponse](t, h, endRequest(5, "tx", p, true)); r.ErrorCode != 0 {
		t.Fatal(r.ErrorCode)
	}
	check("ended", false, txnstate.Partition("a", 0), txnstate.Group("g"))
	if _, err := sink.StillOpen(t.Context(), 0, delivery(p, true, txnstate.Partition("missing", 0))); err == nil {
		t.Error("a partition that is not here was judged")
	}
}

// §6.9.
func TestDescribeProducers(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	h.addTopic("closed", 1)
	h.denyAll(t, wire.TopicResource, "closed", wire.OpRead)
	p := h.initTxn(t, "tx")
	wantCodes(t, "produce", h.produce(t, produceRequest(12, "tx", "a", 0, batch(p, 0, 3, true))), 0)
	wantCodes(t, "commit", h.txnCommit(t, txnOffsets(5, "tx", "g", p, "a")), 0)
	l, _ := h.log("a", 0)
	l.With(func(fp *fence.Partition) { fp.Fence(txnstate.Producer{ID: 1, Epoch: 1}) })
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, to := range []markTo{{"a", []int32{0, 1}}, {"closed", []int32{0}}, {"missing", []int32{0}}, {"..", []int32{0}}, {"sp ace", []int32{0}}, {"__consumer_offsets", []int32{txnstate.OffsetsPartition("g")}}} {
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = to.topic, to.partitions
		req.Topics = append(req.Topics, rt)
	}
	r := do[*kmsg.DescribeProducersResponse](t, h, req)
	var codes []int16
	for _, topic := range r.Topics {
		for _, p := range topic.Partitions {
			codes = append(codes, p.ErrorCode)
		}
	}
	wantCodes(t, "describe", codes, 0, 3, 29, 3, 17, 17, 0)
	got := r.Topics[0].Partitions[0].ActiveProducers
	if len(got) == 0 {
		t.Fatal("no producers")
	}
	ap := got[len(got)-1]
	if ap.ProducerID != p.id || ap.LastSequence != 2 || ap.CurrentTxnStartOffset != 0 || ap.CoordinatorEpoch != -1 || ap.LastTimestamp != 1 {
		t.Errorf("%+v", ap)
	}
	if ap := r.Topics[5].Partitions[0].ActiveProducers; len(ap) != 1 || ap[0].ProducerID != p.id || ap[0].LastSequence != -1 || ap[0].CurrentTxnStartOffset < 0 {
		t.Errorf("offsets: %+v", ap)
	}
}
