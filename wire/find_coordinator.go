package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Key types of FindCoordinator. Share groups (2) have no coordinator here.
const (
	groupKey int8 = 0
	txnKey   int8 = 1
)

// findCoordinator names the coordinators of the keys asked for. A broker that is
// still loading is named too: it will say so itself.
func (h *Handler) findCoordinator(ctx context.Context, who Principal, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	c := h.caller(ctx, who)
	kind := req.CoordinatorType
	if req.Version < 1 {
		kind = groupKey
	}
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	if req.Version < 4 {
		node, host, port, err := h.find(c, kind, req.CoordinatorKey)
		resp.ErrorCode = h.code(err, keyFindCoordinator, req.Version)
		resp.ErrorMessage = message(err)
		resp.NodeID, resp.Host, resp.Port = node, host, port
		return resp
	}
	for _, key := range req.CoordinatorKeys {
		rc := kmsg.NewFindCoordinatorResponseCoordinator()
		var err error
		rc.Key = key
		rc.NodeID, rc.Host, rc.Port, err = h.find(c, kind, key)
		rc.ErrorCode = h.code(err, keyFindCoordinator, req.Version)
		rc.ErrorMessage = message(err)
		resp.Coordinators = append(resp.Coordinators, rc)
	}
	return resp
}

func (h *Handler) find(c caller, kind int8, key string) (node int32, host string, port int32, err error) {
	switch {
	case kind == groupKey && !c.may(OpDescribe, GroupResource, key):
		err = txnstate.CodeGroupAuthorization.Errorf("", "%s has no DESCRIBE on group %q", c.who, brief(key))
	case kind == txnKey && !c.may(OpDescribe, TransactionalIDResource, key):
		err = txnstate.CodeTxnIDAuthorization.Errorf(key, "%s has no DESCRIBE", c.who)
	case kind != groupKey && kind != txnKey:
		err = txnstate.CodeInvalidRequest.Errorf("", "coordinators of key type %d, and 0 and 1 are known", kind)
	default:
		node, host, port, err = h.cfg.FindCoordinator(c.ctx, kind, key)
	}
	if err != nil {
		return -1, "", -1, err
	}
	return node, host, port, nil
}
