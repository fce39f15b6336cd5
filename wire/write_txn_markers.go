package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// writeTxnMarkers is WriteTxnMarkers: a coordinator, or an operator, ends
// transactions on this broker. No coordinator is asked whether they exist.
func (h *Handler) writeTxnMarkers(ctx context.Context, who Principal, req *kmsg.WriteTxnMarkersRequest) kmsg.Response {
	c := h.caller(ctx, who)
	var ds []markers.Delivery
	for _, m := range req.Markers {
		tv := txnstate.TransactionVersion(m.TransactionVersion)
		if req.Version < 2 {
			tv = txnstate.TV0 // the field came with KIP-1228
		}
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				ds = append(ds, markers.Delivery{
					Marker: markers.Marker{
						Producer: txnstate.Producer{ID: m.ProducerID, Epoch: m.ProducerEpoch}, Commit: m.Committed,
						CoordinatorEpoch: m.CoordinatorEpoch, TransactionVersion: tv,
					},
					Participant: txnstate.Partition(t.Topic, p),
				})
			}
		}
	}
	errs := make([]error, len(ds))
	switch {
	case !c.may(OpAlter, ClusterResource, ClusterName) && !c.may(OpClusterAction, ClusterResource, ClusterName):
		fill(errs, txnstate.CodeClusterAuthorization.Errorf("", "%s has neither ALTER nor CLUSTER_ACTION", who))
	case h.noProducer(ds):
		// Kafka's handler fails as a whole on these, whatever else is asked.
		fill(errs, txnstate.CodeUnknownServerError.Errorf("", "a marker without producer id or epoch"))
	default:
		errs = h.sink.applyAll(ctx, ds)
	}
	resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
	a := markerAnswers{resp: resp}
	i := 0
	for _, m := range req.Markers {
		topics := a.of(m.ProducerID)
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				topics.set(t.Topic, p, h.code(errs[i], keyWriteTxnMarkers, req.Version))
				i++
			}
		}
	}
	return resp
}

// noProducer reports a marker without an identity that reaches a partition of
// this broker. One that reaches none ends before its identity is looked at.
func (h *Handler) noProducer(ds []markers.Delivery) bool {
	for _, d := range ds {
		if d.Producer.ID != -1 && d.Producer.Epoch != -1 {
			continue
		}
		// A partition that another broker leads is on this one perhaps.
		if _, err := h.sink.online(d.Participant.Wire()); CodeOf(err, keyWriteTxnMarkers, 2) != txnstate.CodeUnknownTopicOrPartition {
			return true
		}
	}
	return false
}

func fill(errs []error, err error) {
	for i := range errs {
		errs[i] = err
	}
}

// markerAnswers builds an answer whose results go by producer id: of two markers
// of one id, the later result of a partition stands.
type markerAnswers struct {
	resp *kmsg.WriteTxnMarkersResponse
	rows map[int64]*markerRows
}

type markerRows struct {
	m      *kmsg.WriteTxnMarkersResponse
	marker int
	topics map[string]int
	parts  map[txnstate.Participant]int
}

func (a *markerAnswers) of(producer int64) *markerRows {
	if r := a.rows[producer]; r != nil {
		return r
	}
	m := kmsg.NewWriteTxnMarkersResponseMarker()
	m.ProducerID = producer
	a.resp.Markers = append(a.resp.Markers, m)
	r := &markerRows{m: a.resp, marker: len(a.resp.Markers) - 1, topics: map[string]int{}, parts: map[txnstate.Participant]int{}}
	if a.rows == nil {
		a.rows = map[int64]*markerRows{}
	}
	a.rows[producer] = r
	return r
}

func (r *markerRows) set(topic string, partition int32, code int16) {
	m := &r.m.Markers[r.marker]
	ti, ok := r.topics[topic]
	if !ok {
		t := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
		t.Topic = topic
		ti = len(m.Topics)
		m.Topics = append(m.Topics, t)
		r.topics[topic] = ti
	}
	t := &m.Topics[ti]
	p := txnstate.Partition(topic, partition)
	pi, ok := r.parts[p]
	if !ok {
		rp := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
		rp.Partition = partition
		pi = len(t.Partitions)
		t.Partitions = append(t.Partitions, rp)
		r.parts[p] = pi
	}
	t.Partitions[pi].ErrorCode = code
}
