package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// offsetCommit is OffsetCommit: outside any transaction, whose staged offsets it
// leaves alone. A group named "" is a group like any other here.
func (h *Handler) offsetCommit(ctx context.Context, who Principal, req *kmsg.OffsetCommitRequest) kmsg.Response {
	c := h.caller(ctx, who)
	err := c.readsGroup(req.Group)
	var items []commitItem
	for _, t := range req.Topics {
		name, topicErr := t.Topic, err
		if err == nil {
			name, topicErr = h.gateTopic(c, keyOffsetCommit, req.Version, t.Topic, t.TopicID)
		}
		for _, p := range t.Partitions {
			o := offsets.Offset{Topic: name, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: -1}
			if req.Version >= 6 {
				o.LeaderEpoch = p.LeaderEpoch
			}
			if p.Metadata != nil {
				o.Metadata = *p.Metadata
			}
			items = append(items, h.gateItem(o, topicErr))
		}
	}
	if os, at := live(items); len(os) > 0 {
		codes, err := h.commit(ctx, req, os)
		settle(items, at, codes, err)
	}
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	i := 0
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, h.code(items[i].err, keyOffsetCommit, req.Version)
			rt.Partitions = append(rt.Partitions, rp)
			i++
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (h *Handler) commit(ctx context.Context, req *kmsg.OffsetCommitRequest, os []offsets.Offset) ([]txnstate.Code, error) {
	member := offsets.Caller{MemberID: req.MemberID, Generation: req.Generation}
	if req.Version >= 7 {
		member.InstanceID = req.InstanceID
	}
	defer h.cfg.Offsets.Announce(req.Group, os)() // before the look at the member, see there
	view := h.cfg.Groups.View(req.Group)
	if code := offsets.CheckCommit(view, member, req.Version); code != txnstate.CodeNone {
		return nil, h.refusedMember(code, req.Group, member)
	}
	codes, err := h.cfg.Offsets.Commit(ctx, req.Group, os)
	h.ensure(view, req.Group, err)
	return codes, err
}
