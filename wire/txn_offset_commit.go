package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitItem is one partition of a commit request on its way.
type commitItem struct {
	offsets.Offset
	err error
}

// live are the offsets that nothing has refused yet, and where their items are.
func live(items []commitItem) (os []offsets.Offset, at []int) {
	for i := range items {
		if items[i].err == nil {
			os = append(os, items[i].Offset)
			at = append(at, i)
		}
	}
	return os, at
}

// gateTopic is the gate in front of a topic's offsets, the same for both kinds of
// commit: it exists, and the caller may read it.
func (h *Handler) gateTopic(c caller, key, version int16, topic string, id [16]byte) (string, error) {
	name, err := h.topicName(key, version, topic, id)
	if err == nil && !c.may(OpRead, TopicResource, name) {
		err = txnstate.CodeTopicAuthorization.Errorf("", "%s has no READ on topic %q", c.who, brief(name))
	}
	return name, err
}

// gateItem refuses a partition that is not known, unless its topic was refused.
func (h *Handler) gateItem(o offsets.Offset, topicErr error) commitItem {
	it := commitItem{Offset: o, err: topicErr}
	if it.err == nil && !h.exists(o.Topic, o.Partition) {
		it.err = notKnown(o.Topic, o.Partition)
	}
	return it
}

// settle gives what is left of items the outcome of the group coordinator: an
// error for all, or a code each.
func settle(items []commitItem, at []int, codes []txnstate.Code, err error) {
	for k, i := range at {
		switch {
		case err != nil:
			items[i].err = err
		case k >= len(codes):
			items[i].err = txnstate.CodeUnknownServerError.Errorf("", "no outcome for %s/%d", brief(items[i].Topic), items[i].Partition)
		case codes[k] != txnstate.CodeNone:
			items[i].err = codes[k].Errorf("", "%s/%d", brief(items[i].Topic), items[i].Partition)
		}
	}
}

// txnOffsetCommit is TxnOffsetCommit (§7.1): offsets of a group are staged until
// the transaction ends.
func (h *Handler) txnOffsetCommit(ctx context.Context, who Principal, req *kmsg.TxnOffsetCommitRequest) kmsg.Response {
	c := h.caller(ctx, who)
	err := c.writesAs(req.TransactionalID)
	if err == nil {
		err = c.readsGroup(req.Group)
	}
	var items []commitItem
	for _, t := range req.Topics {
		name, topicErr := t.Topic, err
		if err == nil {
			name, topicErr = h.gateTopic(c, keyTxnOffsetCommit, req.Version, t.Topic, t.TopicID)
		}
		for _, p := range t.Partitions {
			o := offsets.Offset{Topic: name, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: -1}
			if req.Version >= 2 {
				o.LeaderEpoch = p.LeaderEpoch
			}
			if p.Metadata != nil {
				o.Metadata = *p.Metadata
			}
			items = append(items, h.gateItem(o, topicErr))
		}
	}
	if os, at := live(items); len(os) > 0 {
		codes, err := h.stage(ctx, req, os)
		settle(items, at, codes, err)
	}
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	i := 0
	for _, t := range req.Topics {
		rt := kmsg.NewTxnOffsetCommitResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, h.code(items[i].err, keyTxnOffsetCommit, req.Version)
			rt.Partitions = append(rt.Partitions, rp)
			i++
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// stage brings offsets into the transaction. The coordinator is asked before the
// member is looked at: so a request of TV2 may have joined its transaction
// although the commit is then refused.
func (h *Handler) stage(ctx context.Context, req *kmsg.TxnOffsetCommitRequest, os []offsets.Offset) ([]txnstate.Code, error) {
	if req.Group == "" {
		return nil, txnstate.CodeInvalidGroupID.Errorf("", "a group without a name")
	}
	p := txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
	mode := fence.OffsetCommitMode(req.Version)
	guard, ask, err := h.cfg.Offsets.Verify(req.Group, p, mode)
	if err != nil {
		return nil, err
	}
	if ask {
		group := []txnstate.Participant{txnstate.Group(req.Group)}
		if err := h.verify(ctx, keyTxnOffsetCommit, req.TransactionalID, p, group, mode)[0]; err != nil {
			return nil, err
		}
	}
	member := offsets.Caller{Generation: -1}
	if req.Version >= 3 {
		member = offsets.Caller{MemberID: req.MemberID, InstanceID: req.InstanceID, Generation: req.Generation}
	}
	defer h.cfg.Offsets.Announce(req.Group, os)() // before the look at the member, see there
	view := h.cfg.Groups.View(req.Group)
	if code := offsets.CheckTxnCommit(view, member, req.Version); code != txnstate.CodeNone {
		return nil, h.refusedMember(code, req.Group, member)
	}
	codes, err := h.cfg.Offsets.Stage(ctx, req.Group, p, guard, os)
	h.ensure(view, req.Group, err)
	return codes, err
}

// refusedMember refuses a member that is none, unless another broker knows better.
func (h *Handler) refusedMember(code txnstate.Code, group string, c offsets.Caller) error {
	if err := h.cfg.Offsets.Serves(group); err != nil {
		return err
	}
	return code.Errorf("", "member %q, generation %d of group %q", brief(c.MemberID), c.Generation, brief(group))
}

// ensure makes a simple group of one that was missing when its commit was
// accepted.
func (h *Handler) ensure(view offsets.GroupView, group string, err error) {
	if err == nil && view.State == offsets.GroupMissing {
		h.cfg.Groups.Ensure(group)
	}
}
