package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// endTxn is EndTxn. From v5 on the answer carries the identity to go on with.
func (h *Handler) endTxn(ctx context.Context, who Principal, req *kmsg.EndTxnRequest) kmsg.Response {
	p := txnstate.NoProducer
	err := h.caller(ctx, who).writesAs(req.TransactionalID)
	if err == nil {
		p, err = h.cfg.Coordinator.End(ctx, req.TransactionalID, txnstate.End{
			Producer: txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch},
			Commit:   req.Commit,
			Client:   clientVersion(req.Version),
		})
	}
	resp := req.ResponseKind().(*kmsg.EndTxnResponse)
	resp.ErrorCode = h.code(err, keyEndTxn, req.Version)
	resp.ProducerID, resp.ProducerEpoch = p.ID, p.Epoch
	return resp
}
