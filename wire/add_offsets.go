package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// addOffsets is AddOffsetsToTxn: the partition of __consumer_offsets that holds
// the group joins the transaction. Whether the group exists is not looked at,
// and "" is a group like any other (§2.5).
func (h *Handler) addOffsets(ctx context.Context, who Principal, req *kmsg.AddOffsetsToTxnRequest) kmsg.Response {
	c := h.caller(ctx, who)
	err := c.writesAs(req.TransactionalID)
	if err == nil {
		err = c.readsGroup(req.Group)
	}
	if err == nil {
		err = h.cfg.Coordinator.Add(ctx, req.TransactionalID, txnstate.Add{
			Producer:     txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch},
			Participants: []txnstate.Participant{txnstate.Group(req.Group)},
			Client:       txnstate.TV0, // of every version: clients of TV2 do not send it
		})
	}
	resp := req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse)
	resp.ErrorCode = h.code(err, keyAddOffsetsToTxn, req.Version)
	return resp
}

func (c caller) readsGroup(group string) error {
	if c.may(OpRead, GroupResource, group) {
		return nil
	}
	return txnstate.CodeGroupAuthorization.Errorf("", "%s has no READ on group %q", c.who, brief(group))
}
