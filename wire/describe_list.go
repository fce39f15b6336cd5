package wire

import (
	"context"
	"regexp"
	"slices"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// describeTransactions is DescribeTransactions (KIP-664). The identity shown is
// the stored one: in the Prepare states of TV2 that is already the bumped epoch.
func (h *Handler) describeTransactions(ctx context.Context, who Principal, req *kmsg.DescribeTransactionsRequest) kmsg.Response {
	c := h.caller(ctx, who)
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	for _, id := range req.TransactionalIDs {
		st := kmsg.NewDescribeTransactionsResponseTransactionState()
		st.TransactionalID = id
		if rec, err := h.describe(c, id); err != nil {
			st.ErrorCode = h.code(err, keyDescribeTransactions, req.Version)
		} else {
			st.State = rec.State.String()
			st.TimeoutMillis, st.StartTimestamp = rec.TimeoutMs, rec.StartMs
			st.ProducerID, st.ProducerEpoch = rec.Producer.ID, rec.Producer.Epoch
			st.Topics = h.describeTopics(c, rec.Participants)
		}
		resp.TransactionStates = append(resp.TransactionStates, st)
	}
	return resp
}

func (h *Handler) describe(c caller, id string) (txnstate.Record, error) {
	if !c.may(OpDescribe, TransactionalIDResource, id) {
		return txnstate.Record{}, txnstate.CodeTxnIDAuthorization.Errorf(id, "%s has no DESCRIBE", c.who)
	}
	return h.cfg.Coordinator.Describe(c.ctx, id)
}

// describeTopics are the participants by topic, without those that the caller
// may not see. Participants of a host's own kinds have no name on the wire.
func (h *Handler) describeTopics(c caller, ps []txnstate.Participant) []kmsg.DescribeTransactionsResponseTransactionStateTopic {
	var out []kmsg.DescribeTransactionsResponseTransactionStateTopic
	index := map[string]int{} // -1: not to be seen
	for _, p := range ps {
		p = p.Wire()
		if p.Kind != txnstate.KindPartition {
			continue
		}
		i, ok := index[p.Name]
		if !ok {
			i = -1
			if c.may(OpDescribe, TopicResource, p.Name) {
				i = len(out)
				t := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
				t.Topic = p.Name
				out = append(out, t)
			}
			index[p.Name] = i
		}
		if i >= 0 {
			out[i].Partitions = append(out[i].Partitions, p.Index)
		}
	}
	return out
}

// listTransactions is ListTransactions: what this broker coordinates and the
// caller may see.
func (h *Handler) listTransactions(ctx context.Context, who Principal, req *kmsg.ListTransactionsRequest) kmsg.Response {
	c := h.caller(ctx, who)
	resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
	f, unknown, err := newListFilter(req, h.nowMs())
	var found []kmsg.ListTransactionsResponseTransactionState
	for rec, e := range h.cfg.Coordinator.List(ctx) {
		if e != nil {
			err = e // a coordinator that can't answer says so before it looks at the filters
		}
		if err != nil {
			break
		}
		if !f.match(rec) || !c.may(OpDescribe, TransactionalIDResource, rec.TxnID) {
			continue
		}
		st := kmsg.NewListTransactionsResponseTransactionState()
		st.TransactionalID, st.ProducerID, st.TransactionState = rec.TxnID, rec.Producer.ID, rec.State.String()
		found = append(found, st)
	}
	if err != nil {
		resp.ErrorCode = h.code(err, keyListTransactions, req.Version)
		return resp
	}
	// Names of states that are not known are told back. With no other name given
	// nothing matches.
	resp.UnknownStateFilters, resp.TransactionStates = unknown, found
	return resp
}

// listFilter is what a ListTransactions request looks for.
type listFilter struct {
	states    []txnstate.State
	byState   bool
	producers []int64
	olderMs   int64 // -1 for any age
	nowMs     int64
	pattern   *regexp.Regexp
}

func newListFilter(req *kmsg.ListTransactionsRequest, nowMs int64) (f listFilter, unknown []string, err error) {
	f = listFilter{byState: len(req.StateFilters) > 0, producers: req.ProducerIDFilters, olderMs: -1, nowMs: nowMs}
	for _, name := range req.StateFilters {
		switch s, ok := txnstate.ParseState(name); {
		case ok:
			f.states = append(f.states, s)
		case name == "Dead", name == "PrepareEpochFence":
			// Kafka knows these; no record here is ever in them.
		default:
			unknown = append(unknown, name)
		}
	}
	if req.Version >= 1 {
		f.olderMs = req.DurationFilterMillis
	}
	if req.Version >= 2 && req.TransactionalIDPattern != nil && *req.TransactionalIDPattern != "" {
		f.pattern, err = wholePattern(*req.TransactionalIDPattern)
	}
	return f, unknown, err
}

// wholePattern compiles a pattern that has to match a whole id (KIP-1152). The
// syntax is RE2's, as the KIP says; Kafka takes Java's.
func wholePattern(p string) (*regexp.Regexp, error) {
	re, err := regexp.Compile(p) // by itself first: "a)|(b" is no pattern
	if err == nil {
		re, err = regexp.Compile(`\A(?:` + p + `)\z`)
	}
	if err != nil {
		return nil, txnstate.CodeInvalidRegularExpression.Errorf("", "pattern %q: %w", p, err)
	}
	return re, nil
}

func (f listFilter) match(rec txnstate.Record) bool {
	switch {
	case f.byState && !slices.Contains(f.states, rec.State),
		len(f.producers) > 0 && !slices.Contains(f.producers, rec.Producer.ID),
		// An id that never began a transaction has no start, -1, and passes as
		// very old, as in Kafka.
		f.olderMs >= 0 && f.nowMs-rec.StartMs <= f.olderMs,
		f.pattern != nil && !f.pattern.MatchString(rec.TxnID):
		return false
	}
	return true
}
