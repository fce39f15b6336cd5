package wire

import (
	"context"
	"slices"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// addPartitions is AddPartitionsToTxn v0 to v3: a client puts partitions into
// its own transaction.
func (h *Handler) addPartitions(ctx context.Context, who Principal, req *kmsg.AddPartitionsToTxnRequest) kmsg.Response {
	c := h.caller(ctx, who)
	resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	refusal := c.writesAs(req.TransactionalID)
	n := 0
	for _, t := range req.Topics {
		n += len(t.Partitions)
	}
	ps := participants{list: make([]txnstate.Participant, 0, n), errs: make([]error, 0, n)}
	resp.Topics = slices.Grow(resp.Topics, len(req.Topics))
	for _, t := range req.Topics {
		rt := kmsg.NewAddPartitionsToTxnResponseTopic()
		rt.Topic = t.Topic
		rt.Partitions = slices.Grow(rt.Partitions, len(t.Partitions))
		// A client never writes to an internal topic, so it can't add one: refused
		// like a missing permission, before anything is said of its existence.
		barred := internalName(t.Topic) || refusal == nil && !c.may(OpWrite, TopicResource, t.Topic)
		if known, ok := h.topic(t.Topic); ok && known.Internal {
			barred = true
		}
		for _, p := range t.Partitions {
			rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			rp.Partition = p
			rt.Partitions = append(rt.Partitions, rp)
			ps.add(h, t.Topic, p, barred)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	err := refusal
	if err == nil {
		err = h.addAll(ctx, &ps, req.TransactionalID, txnstate.Add{
			Producer:     txnstate.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch},
			Participants: ps.list,
			Client:       txnstate.TV0,
		})
	}
	i := 0
	for t := range resp.Topics {
		for p := range resp.Topics[t].Partitions {
			resp.Topics[t].Partitions[p].ErrorCode = h.code(ps.errOr(i, err, refusal != nil), keyAddPartitionsToTxn, req.Version)
			i++
		}
	}
	return resp
}

// batchWidth is how many transactions of one request, or partitions of one
// produce request, are worked on at once: enough for them to share syncs.
const batchWidth = 64

// addPartitionsBatch is AddPartitionsToTxn v4 and later: a broker adds partitions
// on behalf of producers, or asks about them (KIP-890). Transactions are judged
// one by one; an empty list is answered empty (Kafka forgets to answer).
func (h *Handler) addPartitionsBatch(ctx context.Context, who Principal, req *kmsg.AddPartitionsToTxnRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	if !h.caller(ctx, who).may(OpClusterAction, ClusterResource, ClusterName) {
		err := txnstate.CodeClusterAuthorization.Errorf("", "%s has no CLUSTER_ACTION", who)
		resp.ErrorCode = h.code(err, keyAddPartitionsToTxn, req.Version)
		return resp
	}
	resp.Transactions = make([]kmsg.AddPartitionsToTxnResponseTransaction, len(req.Transactions))
	byID := map[string][]int{} // entries of one id keep their order
	var ids []string
	for i, t := range req.Transactions {
		if byID[t.TransactionalID] == nil {
			ids = append(ids, t.TransactionalID)
		}
		byID[t.TransactionalID] = append(byID[t.TransactionalID], i)
	}
	var g errgroup.Group
	g.SetLimit(batchWidth)
	for _, id := range ids {
		g.Go(func() error {
			for _, i := range byID[id] {
				resp.Transactions[i] = h.addTransaction(ctx, &req.Transactions[i], req.Version)
			}
			return nil
		})
	}
	_ = g.Wait()
	return resp
}

func (h *Handler) addTransaction(ctx context.Context, t *kmsg.AddPartitionsToTxnRequestTransaction, version int16) kmsg.AddPartitionsToTxnResponseTransaction {
	rt := kmsg.NewAddPartitionsToTxnResponseTransaction()
	rt.TransactionalID = t.TransactionalID
	var ps participants
	for _, topic := range t.Topics {
		to := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
		to.Topic = topic.Topic
		for _, p := range topic.Partitions {
			tp := kmsg.NewAddPartitionsToTxnResponseTransactionTopicPartition()
			tp.Partition = p
			to.Partitions = append(to.Partitions, tp)
			ps.add(h, topic.Topic, p, false) // brokers are not asked for rights on topics
		}
		rt.Topics = append(rt.Topics, to)
	}
	p := txnstate.Producer{ID: t.ProducerID, Epoch: t.ProducerEpoch}
	var err error
	missing := map[txnstate.Participant]bool{}
	if t.VerifyOnly {
		if !ps.refused {
			var out []txnstate.Participant
			out, err = h.cfg.Coordinator.Verify(ctx, t.TransactionalID, txnstate.Verify{Producer: p, Participants: ps.list})
			for _, m := range out {
				missing[m.Wire()] = true
			}
		} else {
			err = errNotAttempted
		}
	} else {
		err = h.addAll(ctx, &ps, t.TransactionalID, txnstate.Add{Producer: p, Participants: ps.list, Client: txnstate.TV2})
	}
	i := 0
	for k := range rt.Topics {
		for l := range rt.Topics[k].Partitions {
			e := ps.errOr(i, err, false)
			if e == nil && missing[ps.list[i].Wire()] {
				e = txnstate.CodeTransactionAbortable.Errorf(t.TransactionalID, "%s is not in the transaction", ps.list[i])
			}
			rt.Topics[k].Partitions[l].ErrorCode = h.code(e, keyAddPartitionsToTxn, version)
			i++
		}
	}
	return rt
}

// addAll adds the participants, unless one of them was refused.
func (h *Handler) addAll(ctx context.Context, ps *participants, txnID string, ev txnstate.Add) error {
	if ps.refused {
		return errNotAttempted
	}
	return h.cfg.Coordinator.Add(ctx, txnID, ev)
}

// errNotAttempted goes to the partitions that could have been added, had
// another not been refused: all or nothing (F08).
var errNotAttempted error = txnstate.CodeOperationNotAttempted.Errorf("", "another partition was refused, none was added")

// participants are the partitions of one transaction in a request, in its order.
type participants struct {
	list    []txnstate.Participant
	errs    []error
	refused bool
}

func (ps *participants) add(h *Handler, topic string, partition int32, barred bool) {
	var err error
	switch {
	case barred:
		err = txnstate.CodeTopicAuthorization.Errorf("", "no WRITE on topic %q", brief(topic))
	case !h.exists(topic, partition):
		err = notKnown(topic, partition)
	}
	ps.refused = ps.refused || err != nil
	ps.list = append(ps.list, txnstate.Partition(topic, partition))
	ps.errs = append(ps.errs, err)
}

// errOr is a partition's own error, or that of all; whole says that the latter
// hides the former.
func (ps *participants) errOr(i int, all error, whole bool) error {
	if ps.errs[i] != nil && !whole {
		return ps.errs[i]
	}
	return all
}
