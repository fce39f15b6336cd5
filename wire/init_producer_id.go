package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (h *Handler) initProducerID(ctx context.Context, who Principal, req *kmsg.InitProducerIDRequest) kmsg.Response {
	ev := txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: req.TransactionTimeoutMillis}
	if req.Version >= 3 { // earlier versions have no such fields (F32)
		ev.Expected = txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
	}
	p, err := h.initProducer(h.caller(ctx, who), req.TransactionalID, ev)
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ErrorCode = h.code(err, keyInitProducerID, req.Version)
	resp.ProducerID, resp.ProducerEpoch = p.ID, p.Epoch
	return resp
}

func (h *Handler) initProducerIDV6(ctx context.Context, who Principal, req *InitProducerIDV6Request) kmsg.Response {
	p, err := h.initProducer(h.caller(ctx, who), req.TransactionalID, txnstate.Init{
		Expected:     txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch},
		TimeoutMs:    req.TransactionTimeoutMillis,
		TwoPhase:     req.Enable2PC,
		KeepPrepared: req.KeepPreparedTxn,
	})
	return &InitProducerIDV6Response{
		ErrorCode:  h.code(err, keyInitProducerID, 6),
		ProducerID: p.ID, ProducerEpoch: p.Epoch,
		// Filled in only for a kept transaction, which Kafka 4.4 refuses.
		OngoingTxnProducerID: -1, OngoingTxnProducerEpoch: -1,
	}
}

// initProducer is the gate of InitProducerId (§2.2.1 rows 1 to 3; KafkaApis). An
// error comes with NoProducer.
func (h *Handler) initProducer(c caller, txnID *string, ev txnstate.Init) (txnstate.Producer, error) {
	if txnID == nil {
		if !c.may(OpIdempotentWrite, ClusterResource, ClusterName) && !c.mayAny(OpWrite, TopicResource) {
			return txnstate.NoProducer, txnstate.CodeClusterAuthorization.Errorf("", "%s has neither IDEMPOTENT_WRITE on the cluster nor WRITE on a topic", c.who)
		}
		// Timeout and two-phase commit mean nothing here and are not looked at.
		return h.cfg.Coordinator.InitIdempotent(c.ctx, ev.Expected)
	}
	if err := c.writesAs(*txnID); err != nil {
		return txnstate.NoProducer, err
	}
	if ev.TwoPhase && !c.may(OpTwoPhaseCommit, TransactionalIDResource, *txnID) {
		return txnstate.NoProducer, txnstate.CodeTxnIDAuthorization.Errorf(*txnID, "%s has no TWO_PHASE_COMMIT", c.who)
	}
	return h.cfg.Coordinator.Init(c.ctx, *txnID, ev)
}

// writesAs is the gate of everything that is done under a transactional id.
func (c caller) writesAs(txnID string) error {
	if c.may(OpWrite, TransactionalIDResource, txnID) {
		return nil
	}
	return txnstate.CodeTxnIDAuthorization.Errorf(txnID, "%s has no WRITE", c.who)
}
