package wire

import (
	"context"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// LocalVerifier is the Verifier for transactional ids that are coordinated in
// this process.
type LocalVerifier struct {
	Coordinator *txnstate.Coordinator
}

var _ Verifier = LocalVerifier{}

// Verify asks the Coordinator. With fence.ModeAdd the participants are added, all
// or none; otherwise those that are not in the open transaction are answered
// TRANSACTION_ABORTABLE.
func (v LocalVerifier) Verify(ctx context.Context, txnID string, p txnstate.Producer, ps []txnstate.Participant, mode fence.Mode) ([]txnstate.Code, error) {
	codes := make([]txnstate.Code, len(ps))
	if mode == fence.ModeAdd {
		return codes, v.Coordinator.Add(ctx, txnID, txnstate.Add{Producer: p, Participants: ps, Client: txnstate.TV2})
	}
	missing, err := v.Coordinator.Verify(ctx, txnID, txnstate.Verify{Producer: p, Participants: ps})
	if err != nil {
		return nil, err
	}
	out := make(map[txnstate.Participant]bool, len(missing))
	for _, m := range missing {
		out[m.Wire()] = true
	}
	for i, q := range ps {
		if out[q.Wire()] {
			codes[i] = txnstate.CodeTransactionAbortable
		}
	}
	return codes, nil
}

// verify asks about participants on behalf of a request, and gives each what its
// client is to be told: nil for one that is in the transaction.
func (h *Handler) verify(ctx context.Context, key int16, txnID string, p txnstate.Producer, ps []txnstate.Participant, mode fence.Mode) []error {
	codes := h.askVerifier(ctx, txnID, p, ps, mode)
	if key == keyProduce && mode == fence.ModeAdd && h.cfg.AddRetryFor > 0 {
		codes = h.retryAdd(ctx, txnID, p, ps, codes)
	}
	errs := make([]error, len(ps))
	for i, c := range codes {
		if c == txnstate.CodeNone {
			continue
		}
		shown := c
		if key == keyProduce {
			shown = mode.ProduceAnswer(c)
		} else if c == txnstate.CodeClusterAuthorization {
			// A broker that may not ask can't take the offsets: nothing that the
			// client could be told about rights of its own.
			shown = txnstate.CodeInvalidTxnState
		}
		errs[i] = shown.Errorf(txnID, "producer %s and %s: the transaction coordinator says %s", p, ps[i], c)
	}
	return errs
}

// retryAdd spares the client the time in which its previous transaction
// completes: under TV2 it writes right after EndTxn is answered, and the first
// that it hears of the completion would be CONCURRENT_TRANSACTIONS
// (KAFKA-18654). Offsets are not tried again: their client is.
func (h *Handler) retryAdd(ctx context.Context, txnID string, p txnstate.Producer, ps []txnstate.Participant, codes []txnstate.Code) []txnstate.Code {
	busy := func() bool {
		for _, c := range codes {
			if c == txnstate.CodeConcurrentTransactions {
				return true
			}
		}
		return false
	}
	if !busy() {
		return codes
	}
	limit := time.NewTimer(h.cfg.AddRetryFor)
	defer limit.Stop()
	tick := time.NewTicker(h.cfg.AddRetryEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-limit.C:
			return codes
		case <-ctx.Done():
			return codes
		}
		if codes = h.askVerifier(ctx, txnID, p, ps, fence.ModeAdd); !busy() {
			return codes
		}
	}
}

// askVerifier is one question: a code for each participant, whatever happens.
func (h *Handler) askVerifier(ctx context.Context, txnID string, p txnstate.Producer, ps []txnstate.Participant, mode fence.Mode) []txnstate.Code {
	codes, err := h.cfg.Verifier.Verify(ctx, txnID, p, ps, mode)
	all := txnstate.CodeOf(err)
	switch {
	case all == txnstate.CodeUnknownServerError && err != nil:
		// Nobody knows what the coordinator made of it: clients try again.
		h.cfg.Logger.Warn("transaction coordinator not asked", "txn_id", txnID, "producer_id", p.ID, "err", err)
		all = txnstate.CodeNetworkException
	case err == nil && len(codes) != len(ps):
		h.cfg.Logger.Error("Config.Verifier answered for another number of participants", "txn_id", txnID, "asked", len(ps), "answered", len(codes))
		all = txnstate.CodeUnknownServerError
	}
	if all == txnstate.CodeNone {
		return codes
	}
	codes = make([]txnstate.Code, len(ps))
	for i := range codes {
		codes[i] = all
	}
	return codes
}
