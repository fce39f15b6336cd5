package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// writeTxnMarkers is WriteTxnMarkers: a coordinator, or an operator, ends
// transactions on this broker. No coordinator is asked whether they exist. A
// marker without partitions is not in the answer.
func (h *Handler) writeTxnMarkers(ctx context.Context, who Principal, req *kmsg.WriteTxnMarkersRequest) kmsg.Response {
	c := h.caller(ctx, who)
	var ds []markers.Delivery
	var at []int // beside ds, the index of its marker
	for i, m := range req.Markers {
		tv := txnstate.TransactionVersion(m.TransactionVersion)
		if req.Version < 2 {
			tv = txnstate.TV0 // the field came with KIP-1228
		}
		named := map[txnstate.Participant]bool{}
		for _, t := range m.Topics {
			for _, n := range t.Partitions {
				p := txnstate.Partition(t.Topic, n)
				if named[p] {
					continue // once is enough (Kafka writes once and never answers)
				}
				named[p] = true
				ds = append(ds, markers.Delivery{
					Marker: markers.Marker{
						Producer: txnstate.Producer{ID: m.ProducerID, Epoch: m.ProducerEpoch}, Commit: m.Committed,
						CoordinatorEpoch: m.CoordinatorEpoch, TransactionVersion: tv,
					},
					Participant: p,
				})
				at = append(at, i)
			}
		}
	}
	errs := make([]error, len(ds))
	failed := false // the whole request
	if !c.may(OpAlter, ClusterResource, ClusterName) && !c.may(OpClusterAction, ClusterResource, ClusterName) {
		failed = true
		fill(errs, txnstate.CodeClusterAuthorization.Errorf("", "%s has neither ALTER nor CLUSTER_ACTION", who))
	} else if bad, ok := h.noProducer(ds); ok {
		// Kafka's handler works off one marker after the other and fails on this one:
		// those before it are written, as are the offsets of this one, and the
		// answer to the whole request is the failure.
		var before []markers.Delivery
		for i, d := range ds {
			if _, group := d.Participant.Wire().Offsets(); at[i] < at[bad] || at[i] == at[bad] && group {
				before = append(before, d)
			}
		}
		h.sink.applyAll(ctx, before)
		failed = true
		fill(errs, txnstate.CodeUnknownServerError.Errorf("", "a marker without producer id or epoch"))
	} else {
		errs = h.sink.applyAll(ctx, ds)
	}
	resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
	a := markerAnswers{resp: resp}
	last := map[int64]int{}
	if failed { // then every marker is answered, but only the last of a producer id
		for i, m := range req.Markers {
			last[m.ProducerID] = i
			a.of(m.ProducerID)
		}
	}
	for i, d := range ds {
		if failed && at[i] != last[d.Producer.ID] {
			continue
		}
		a.of(d.Producer.ID).set(d.Participant.Name, d.Participant.Index, h.code(errs[i], keyWriteTxnMarkers, req.Version))
	}
	return resp
}

// noProducer finds the first marker without an identity that reaches the log of a
// partition of this broker. One that reaches none ends before its identity is
// looked at, and a group's partition refuses it by itself.
func (h *Handler) noProducer(ds []markers.Delivery) (int, bool) {
	for i, d := range ds {
		p := d.Participant.Wire()
		if _, group := p.Offsets(); group || d.Producer.ID != -1 && d.Producer.Epoch != -1 {
			continue
		}
		// A partition that another broker leads is on this one perhaps.
		if _, err := h.sink.online(p); CodeOf(err, keyWriteTxnMarkers, 2) != txnstate.CodeUnknownTopicOrPartition {
			return i, true
		}
	}
	return 0, false
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
