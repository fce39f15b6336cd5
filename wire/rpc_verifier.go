package wire

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// RPCVerifierConfig is what an RPCVerifier is made of.
type RPCVerifierConfig struct {
	// Coordinator finds the broker that coordinates a transactional id: its
	// address as Peers.Dial wants it, or local where it is this one; ok is false
	// while that is not known. Required. It is asked for every question,
	// concurrently, and answers from memory.
	Coordinator func(txnID string) (addr string, local, ok bool)
	// Local answers for the ids that this broker coordinates: usually a
	// LocalVerifier. nil: it coordinates none.
	Local Verifier

	// Peers says how connections are made. An address has one request at a time,
	// so one connection as a rule.
	Peers PeerConfig
	// BatchSize is how many transactions one request asks about at most; zero is
	// 1,000. The rest wait for the next.
	BatchSize int

	Logger *slog.Logger // nil is silent
}

// RPCVerifier is the Verifier for transactional ids that other brokers
// coordinate: it asks them by AddPartitionsToTxn v4 and later, as Kafka's
// AddPartitionsToTxnManager does. Any Kafka broker can be at the other end.
//
// An address has one request under way at a time; what comes meanwhile is asked
// about in the next one, together. Of two questions about one transactional id
// that wait there, one is answered without being asked: the older one with
// INVALID_PRODUCER_EPOCH (47) if its epoch is lower, with NETWORK_EXCEPTION (13)
// if it is equal or of another producer id, for its client has probably given up
// on it; the newer one with 47 if its own is lower.
//
// What is on the way is answered as Kafka answers it: 15 for a coordinator that
// is not known, 13 for one that does not answer, or does not mention a partition
// that it was asked about. PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH. Two
// things Kafka does otherwise:
//
//   - There the mode of the first question decides for all of a request what a
//     partition outside of the transaction is called. Here each has its own.
//   - A coordinator too old for these versions can't verify: that is then passed
//     over, as in Kafka. Nor can it add, and there Kafka lets the record through
//     too, into a transaction that does not know of it; here the answer is 15.
//
// Its methods may be called concurrently.
type RPCVerifier struct {
	cfg   RPCVerifierConfig
	peers *peers

	mu    sync.Mutex
	nodes map[string]*asking
}

var _ Verifier = (*RPCVerifier)(nil)

// asking is the questions that wait for one address. It is there while a request
// is under way, so it is bounded by who waits.
type asking struct {
	waiting []*question // in the order in which they came
	byID    map[string]*question
}

// question is one call of Verify.
type question struct {
	txnID string
	p     txnstate.Producer
	ps    []txnstate.Participant // as the wire names them
	mode  fence.Mode
	done  chan []txnstate.Code // has room
}

// NewRPCVerifier makes an RPCVerifier. Until Run, questions to other brokers are
// answered with NETWORK_EXCEPTION.
func NewRPCVerifier(cfg RPCVerifierConfig) (*RPCVerifier, error) {
	var errs []error
	if cfg.Coordinator == nil {
		errs = append(errs, errors.New("wire: RPCVerifierConfig.Coordinator is required"))
	}
	if cfg.BatchSize < 0 {
		errs = append(errs, errors.New("wire: RPCVerifierConfig.BatchSize is negative"))
	}
	if err := errors.Join(append(errs, cfg.Peers.validate())...); err != nil {
		return nil, err
	}
	cfg.BatchSize = cmp.Or(cfg.BatchSize, 1000)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &RPCVerifier{cfg: cfg, peers: newPeers(cfg.Peers, cfg.Logger), nodes: map[string]*asking{}}, nil
}

// Run keeps the connections until ctx is done, then closes them, waits until
// nothing is left of them, and returns nil. It may be called once.
func (v *RPCVerifier) Run(ctx context.Context) error { return v.peers.run(ctx) }

// Verify asks the coordinator of a transactional id; see Verifier. Its error is
// that of ctx.
func (v *RPCVerifier) Verify(ctx context.Context, txnID string, p txnstate.Producer, ps []txnstate.Participant, mode fence.Mode) ([]txnstate.Code, error) {
	addr, local, ok := v.cfg.Coordinator(txnID)
	switch {
	case ok && local && v.cfg.Local != nil:
		return v.cfg.Local.Verify(ctx, txnID, p, ps, mode)
	case !ok || local:
		return repeat(txnstate.CodeCoordinatorNotAvailable, len(ps)), nil
	case len(ps) == 0:
		return nil, nil
	}
	q := &question{txnID: txnID, p: p, mode: mode, done: make(chan []txnstate.Code, 1)}
	for _, w := range ps {
		w = w.Wire()
		if w.Kind != txnstate.KindPartition {
			return nil, txnstate.CodeInvalidRequest.Errorf(txnID, "%s is of a kind that another broker can't be asked about", w)
		}
		q.ps = append(q.ps, w)
	}
	v.enqueue(addr, q)
	select {
	case codes := <-q.done:
		return codes, nil
	case <-ctx.Done():
		v.forget(addr, q)
		return nil, ctx.Err()
	}
}

func repeat(c txnstate.Code, n int) []txnstate.Code { return slices.Repeat([]txnstate.Code{c}, n) }

// answer ends a question with one code for all of it.
func (q *question) answer(c txnstate.Code) { q.done <- repeat(c, len(q.ps)) }

// enqueue puts a question behind those that wait for an address, and starts to
// ask where nothing does yet.
func (v *RPCVerifier) enqueue(addr string, q *question) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.nodes[addr]
	if n != nil {
		if old := n.byID[q.txnID]; old != nil {
			same := q.p.ID == old.p.ID
			switch {
			case same && q.p.Epoch < old.p.Epoch:
				q.answer(txnstate.CodeInvalidProducerEpoch)
				return
			case same && q.p.Epoch > old.p.Epoch:
				old.answer(txnstate.CodeInvalidProducerEpoch)
			default:
				old.answer(txnstate.CodeNetworkException)
			}
			n.remove(old)
		}
		n.add(q)
		return
	}
	n = &asking{byID: map[string]*question{}}
	n.add(q)
	if !v.peers.spawn(func(ctx context.Context) { v.askAll(ctx, addr, n) }) {
		q.answer(txnstate.CodeNetworkException)
		return
	}
	v.nodes[addr] = n
}

func (n *asking) add(q *question) {
	n.waiting = append(n.waiting, q)
	n.byID[q.txnID] = q
}

func (n *asking) remove(q *question) {
	if i := slices.Index(n.waiting, q); i >= 0 {
		n.waiting = slices.Delete(n.waiting, i, i+1)
		delete(n.byID, q.txnID)
	}
}

// forget drops a question whose caller has left, unless it is being asked.
func (v *RPCVerifier) forget(addr string, q *question) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.nodes[addr]; n != nil {
		n.remove(q)
	}
}

// askAll asks an address until nothing waits for it.
func (v *RPCVerifier) askAll(ctx context.Context, addr string, n *asking) {
	for {
		v.mu.Lock()
		some := min(len(n.waiting), v.cfg.BatchSize)
		batch := n.waiting[:some:some]
		if some == 0 {
			delete(v.nodes, addr)
			v.mu.Unlock()
			return
		}
		n.waiting = n.waiting[len(batch):]
		for _, q := range batch {
			delete(n.byID, q.txnID)
		}
		v.mu.Unlock()
		v.askBatch(ctx, addr, batch)
	}
}

func (v *RPCVerifier) askBatch(ctx context.Context, addr string, batch []*question) {
	resp, err := v.peers.ask(ctx, addr, keyAddPartitionsToTxn, func(lo, hi int16) (kmsg.Request, error) {
		ver := min(hi, 5)
		if ver < 4 || lo > 5 {
			return nil, errPeerTooOld
		}
		req := questionsRequest(batch)
		req.SetVersion(ver)
		return req, nil
	})
	if errors.Is(err, errPeerTooOld) {
		v.cfg.Logger.Error("a transaction coordinator serves no AddPartitionsToTxn v4: records are taken without verification, and nothing is added", "addr", addr)
		for _, q := range batch {
			if q.mode == fence.ModeAdd {
				q.answer(txnstate.CodeCoordinatorNotAvailable)
			} else {
				q.answer(txnstate.CodeNone)
			}
		}
		return
	}
	if err != nil {
		for _, q := range batch {
			q.answer(txnstate.CodeNetworkException)
		}
		return
	}
	r := resp.(*kmsg.AddPartitionsToTxnResponse)
	if c := txnstate.Code(r.ErrorCode); c != txnstate.CodeNone {
		v.cfg.Logger.Error("a transaction coordinator refused to be asked", "addr", addr, "code", c.String(), "transactions", len(batch))
		for _, q := range batch {
			q.answer(c)
		}
		return
	}
	answers := map[string]map[txnstate.Participant]txnstate.Code{}
	for _, t := range r.Transactions {
		codes := answers[t.TransactionalID]
		if codes == nil {
			codes = map[txnstate.Participant]txnstate.Code{}
			answers[t.TransactionalID] = codes
		}
		for _, topic := range t.Topics {
			for _, p := range topic.Partitions {
				codes[txnstate.Partition(topic.Topic, p.Partition)] = txnstate.Code(p.ErrorCode)
			}
		}
	}
	for _, q := range batch {
		codes := make([]txnstate.Code, len(q.ps))
		for i, p := range q.ps {
			c, ok := answers[q.txnID][p]
			switch {
			case !ok:
				c = txnstate.CodeNetworkException // not mentioned, so nobody knows
			case c == txnstate.CodeProducerFenced:
				c = txnstate.CodeInvalidProducerEpoch
			}
			codes[i] = c
		}
		q.done <- codes
	}
}

// questionsRequest is the request for questions about different transactional ids.
func questionsRequest(batch []*question) *kmsg.AddPartitionsToTxnRequest {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	for _, q := range batch {
		t := kmsg.NewAddPartitionsToTxnRequestTransaction()
		t.TransactionalID, t.ProducerID, t.ProducerEpoch = q.txnID, q.p.ID, q.p.Epoch
		t.VerifyOnly = q.mode != fence.ModeAdd
		topics := map[string]int{}
		seen := map[txnstate.Participant]bool{} // groups can share a partition
		for _, p := range q.ps {
			if seen[p] {
				continue
			}
			seen[p] = true
			ti, ok := topics[p.Name]
			if !ok {
				ti = len(t.Topics)
				topics[p.Name] = ti
				rt := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
				rt.Topic = p.Name
				t.Topics = append(t.Topics, rt)
			}
			t.Topics[ti].Partitions = append(t.Topics[ti].Partitions, p.Index)
		}
		req.Transactions = append(req.Transactions, t)
	}
	return req
}
