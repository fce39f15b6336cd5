package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchTopic is one topic of an offset fetch, in the question and in the answer.
type fetchTopic struct {
	name       string
	id         [16]byte
	partitions []int32
	fetched    []offsets.Fetched // beside partitions
}

// offsetFetch is OffsetFetch. Up to v7 it is about one group, from v8 on about
// several.
func (h *Handler) offsetFetch(ctx context.Context, who Principal, req *kmsg.OffsetFetchRequest) kmsg.Response {
	c := h.caller(ctx, who)
	stable := req.Version >= 7 && req.RequireStable // KIP-447
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	if req.Version < 8 {
		var topics []fetchTopic
		for _, t := range req.Topics {
			topics = append(topics, fetchTopic{name: t.Topic, partitions: t.Partitions})
		}
		topics, err := h.fetchGroup(c, req.Version, req.Group, topics, req.Version >= 2 && req.Topics == nil, stable)
		code := h.code(err, keyOffsetFetch, req.Version)
		if req.Version >= 2 {
			resp.ErrorCode = code
		}
		for _, t := range topics {
			if err != nil && req.Version >= 2 {
				break
			}
			resp.Topics = append(resp.Topics, h.fetchedTopic(t, code))
		}
		return resp
	}
	for _, g := range req.Groups {
		rg := kmsg.NewOffsetFetchResponseGroup()
		rg.Group = g.Group
		var topics []fetchTopic
		for _, t := range g.Topics {
			topics = append(topics, fetchTopic{name: t.Topic, id: t.TopicID, partitions: t.Partitions})
		}
		topics, err := h.fetchGroup(c, req.Version, g.Group, topics, g.Topics == nil, stable)
		rg.ErrorCode = h.code(err, keyOffsetFetch, req.Version)
		for _, t := range topics {
			if err != nil {
				break
			}
			rg.Topics = append(rg.Topics, h.fetchedGroupTopic(t))
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

// noOffset is the answer where nothing is committed, or nothing may be said.
func noOffset(topic string, partition int32, code txnstate.Code) offsets.Fetched {
	return offsets.Fetched{Offset: offsets.Offset{Topic: topic, Partition: partition, Offset: -1, LeaderEpoch: -1}, Code: code}
}

// fetchGroup answers for one group: the topics asked for, in order, or with all
// set those that have committed offsets.
func (h *Handler) fetchGroup(c caller, version int16, group string, topics []fetchTopic, all, stable bool) ([]fetchTopic, error) {
	if !c.may(OpDescribe, GroupResource, group) {
		return topics, txnstate.CodeGroupAuthorization.Errorf("", "%s has no DESCRIBE on group %q", c.who, brief(group))
	}
	if stable {
		// What was accepted before is seen, or refused: not answered with a
		// position from before it.
		if err := h.cfg.Offsets.Await(c.ctx, group); err != nil {
			return topics, err
		}
	}
	if all {
		return h.fetchAll(c, version, group, stable)
	}
	var ask []offsets.TopicPartition
	allowed := make([]bool, len(topics))
	for i := range topics {
		t := &topics[i]
		code := txnstate.CodeNone
		name, err := h.topicName(keyOffsetFetch, version, t.name, t.id)
		switch {
		case err != nil:
			code = CodeOf(err, keyOffsetFetch, version)
		case !c.may(OpDescribe, TopicResource, name):
			code = txnstate.CodeTopicAuthorization
		default:
			allowed[i] = true
		}
		t.name = name
		for _, p := range t.partitions {
			t.fetched = append(t.fetched, noOffset(name, p, code))
			if allowed[i] {
				ask = append(ask, offsets.TopicPartition{Topic: name, Partition: p})
			}
		}
	}
	if len(ask) == 0 {
		return topics, nil // nil would ask for all
	}
	found := map[offsets.TopicPartition]offsets.Fetched{}
	fetched, err := h.cfg.Offsets.Fetch(group, ask, stable)
	if err != nil {
		return topics, err
	}
	for _, f := range fetched {
		found[offsets.TopicPartition{Topic: f.Topic, Partition: f.Partition}] = f
	}
	for i := range topics {
		for k, p := range topics[i].partitions {
			if f, ok := found[offsets.TopicPartition{Topic: topics[i].name, Partition: p}]; ok && allowed[i] {
				topics[i].fetched[k] = f
			}
		}
	}
	return topics, nil
}

// fetchAll are the partitions with a committed offset. What the caller may not
// see is left out.
func (h *Handler) fetchAll(c caller, version int16, group string, stable bool) ([]fetchTopic, error) {
	fetched, err := h.cfg.Offsets.Fetch(group, nil, stable)
	if err != nil {
		return nil, err
	}
	var out []fetchTopic
	index := map[string]int{} // -1: not to be seen
	for _, f := range fetched {
		i, ok := index[f.Topic]
		if !ok {
			i = -1
			t := fetchTopic{name: f.Topic}
			visible := c.may(OpDescribe, TopicResource, f.Topic)
			if a, _ := apiOf(keyOffsetFetch); visible && version >= a.byID {
				known, ok := h.cfg.Topics.Topic(f.Topic)
				t.id, visible = known.ID, ok // a topic that is gone has no id to be named by
			}
			if visible {
				i = len(out)
				out = append(out, t)
			}
			index[f.Topic] = i
		}
		if i >= 0 {
			out[i].partitions = append(out[i].partitions, f.Partition)
			out[i].fetched = append(out[i].fetched, f)
		}
	}
	return out, nil
}

// fetchedTopic is a topic in an answer up to v7. all is the code of every
// partition where the versions before 2 have no other place for it.
func (h *Handler) fetchedTopic(t fetchTopic, all int16) kmsg.OffsetFetchResponseTopic {
	rt := kmsg.NewOffsetFetchResponseTopic()
	rt.Topic = t.name
	for k, p := range t.partitions {
		f := noOffset(t.name, p, txnstate.Code(all))
		if all == 0 && k < len(t.fetched) {
			f = t.fetched[k]
		}
		rp := kmsg.NewOffsetFetchResponseTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = f.Partition, f.Offset.Offset, f.LeaderEpoch
		rp.Metadata, rp.ErrorCode = kmsg.StringPtr(f.Metadata), int16(f.Code)
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}

// fetchedGroupTopic is a topic in an answer from v8 on.
func (h *Handler) fetchedGroupTopic(t fetchTopic) kmsg.OffsetFetchResponseGroupTopic {
	rt := kmsg.NewOffsetFetchResponseGroupTopic()
	rt.Topic, rt.TopicID = t.name, t.id
	for _, f := range t.fetched {
		rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = f.Partition, f.Offset.Offset, f.LeaderEpoch
		rp.Metadata, rp.ErrorCode = kmsg.StringPtr(f.Metadata), int16(f.Code)
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}
