package wire

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// part is one partition of a produce request on its way.
type part struct {
	topic     string
	partition int32
	records   []byte

	batch fence.Batch
	log   Log
	guard fence.Guard
	ask   bool // the coordinator is to be asked before the append

	internal bool // of a topic that takes no records from clients

	err     error
	base    int64
	stampMs int64 // -1, but for a duplicate: when the first one was appended
}

func (p *part) participant() txnstate.Participant { return txnstate.Partition(p.topic, p.partition) }

// produce is Produce. The order of the steps is Kafka's (§6.1): what one step
// refuses never reaches the next, and a partition that was added to the
// transaction stays so although its batch is then refused.
func (h *Handler) produce(ctx context.Context, who Principal, req *kmsg.ProduceRequest) (kmsg.Response, error) {
	c := h.caller(ctx, who)
	n := 0
	for _, t := range req.Topics {
		n += len(t.Partitions)
	}
	parts := make([][]*part, len(req.Topics))
	all, memory := make([]*part, 0, n), make([]part, n)
	for i, t := range req.Topics {
		from := len(all)
		for _, p := range t.Partitions {
			q := &memory[len(all)]
			*q = part{topic: t.Topic, partition: p.Partition, records: p.Records, base: -1, stampMs: -1}
			all = append(all, q)
		}
		parts[i] = all[from:len(all):len(all)]
	}
	if err := mayProduce(c, req, all); err != nil {
		for _, p := range all {
			p.err = err
		}
	} else {
		h.gateParts(c, req, parts)
		if err := oneProducer(all); err != nil {
			for _, p := range all {
				p.err = err
			}
		}
		h.verifyParts(ctx, req, all)
		if req.Acks < -1 || req.Acks > 1 {
			for _, p := range all {
				p.refuse(txnstate.CodeInvalidRequiredAcks.Errorf("", "acks %d, and -1, 0 and 1 are known", req.Acks))
			}
		}
		for _, p := range all {
			if p.internal {
				p.refuse(txnstate.CodeInvalidTopic.Errorf("", "topic %q takes no records from clients", brief(p.topic)))
			}
		}
		h.appendParts(ctx, all)
	}
	return h.produced(req, parts)
}

func (p *part) refuse(err error) {
	if p.err == nil {
		p.err = err
	}
}

// mayProduce: a request with a transactional batch names a transactional id that
// its sender may write as. Only the batches say whether they are transactional,
// not the id (KAFKA-14916).
func mayProduce(c caller, req *kmsg.ProduceRequest, all []*part) error {
	for _, p := range all {
		if !hasTransactional(p.records) {
			continue
		}
		if req.TransactionID == nil {
			return txnstate.CodeTxnIDAuthorization.Errorf("", "a transactional batch without a transactional id")
		}
		return c.writesAs(*req.TransactionID)
	}
	return nil
}

// hasTransactional looks at the transactional bit of every batch, as far as they
// can be told apart.
func hasTransactional(records []byte) bool {
	for len(records) > 0 {
		b, _, size, err := fence.ParseHeader(records)
		if err != nil {
			return false
		}
		if b.Transactional {
			return true
		}
		records = records[min(size, len(records)):]
	}
	return false
}

// gateParts refuses partitions that may not be written or are not known, and
// records that are not one good batch.
func (h *Handler) gateParts(c caller, req *kmsg.ProduceRequest, parts [][]*part) {
	for i, t := range req.Topics {
		name, err := h.topicName(keyProduce, req.Version, t.Topic, t.TopicID)
		if err == nil && !c.may(OpWrite, TopicResource, name) {
			err = txnstate.CodeTopicAuthorization.Errorf("", "%s has no WRITE on topic %q", c.who, brief(name))
		}
		for _, p := range parts[i] {
			p.topic, p.err = name, err
			if p.err == nil && !h.exists(p.topic, p.partition) {
				p.err = notKnown(p.topic, p.partition)
			}
			if p.err == nil {
				p.batch, p.err = fence.ParseProduce(p.records)
			}
		}
	}
}

// oneProducer: the transactional batches of a request are of one identity.
func oneProducer(all []*part) error {
	var first *part
	for _, p := range all {
		switch {
		case !p.transactional():
		case first == nil:
			first = p
		case first.batch.Producer != p.batch.Producer:
			return txnstate.CodeInvalidProducerIDMapping.Errorf("", "transactional batches of %s and %s in one request", first.batch.Producer, p.batch.Producer)
		}
	}
	return nil
}

// transactional: a batch without a producer id is plain data even where its
// transactional bit is set.
func (p *part) transactional() bool {
	return p.err == nil && p.batch.Transactional && p.batch.Producer.ID >= 0
}

// verifyParts asks the coordinator, in one question, about all partitions where
// the producer has no transaction open yet. Also about those of internal topics,
// which then take no records all the same: as in Kafka, whose look at the topic
// comes with the append (ReplicaManager.appendToLocalLog), an implicit add stays
// done.
func (h *Handler) verifyParts(ctx context.Context, req *kmsg.ProduceRequest, all []*part) {
	mode := fence.ProduceMode(req.Version)
	now := h.nowMs()
	ask, ps := make([]*part, 0, len(all)), make([]txnstate.Participant, 0, len(all))
	for _, p := range all {
		if p.err != nil {
			continue
		}
		t, _ := h.topic(p.topic)
		p.internal = t.Internal
		if p.ask, p.err = h.verifyPart(p, mode, now); p.err == nil && p.ask {
			ask = append(ask, p)
			ps = append(ps, p.participant())
		}
	}
	if len(ask) == 0 {
		return
	}
	for i, err := range h.verify(ctx, keyProduce, *req.TransactionID, ask[0].batch.Producer, ps, mode) {
		ask[i].err = err
	}
}

// verifyPart is what the partition itself says before the coordinator is asked.
func (h *Handler) verifyPart(p *part, mode fence.Mode, now int64) (ask bool, err error) {
	if n, group := p.participant().Offsets(); group {
		if h.cfg.Offsets == nil || !p.transactional() {
			return false, nil
		}
		return h.cfg.Offsets.VerifyProduce(n, p.batch, mode)
	}
	if p.log, err = h.cfg.Leader.Log(p.topic, p.partition); err != nil || !p.transactional() {
		if p.internal {
			err = nil // what it is comes before where it is
		}
		return false, err
	}
	p.log.With(func(fp *fence.Partition) { p.guard, ask, err = fp.Verify(p.batch, mode, now) })
	if err != nil {
		err = cmp.Or(still(p.log), err)
	}
	return ask, err
}

// appendParts appends what is left: partitions at once, so that they share
// syncs, and the batches of one partition in their order.
func (h *Handler) appendParts(ctx context.Context, all []*part) {
	if len(all) == 1 {
		if all[0].err == nil {
			h.appendPart(ctx, all[0])
		}
		return
	}
	var g errgroup.Group
	g.SetLimit(batchWidth)
	defer func() { _ = g.Wait() }()
	if all = h.startParts(ctx, &g, all); len(all) == 0 {
		return
	}
	lines := map[txnstate.Participant][]*part{}
	var order []txnstate.Participant
	for _, p := range all {
		if p.err != nil {
			continue
		}
		if lines[p.participant()] == nil {
			order = append(order, p.participant())
		}
		lines[p.participant()] = append(lines[p.participant()], p)
	}
	for _, k := range order {
		g.Go(func() error {
			for _, p := range lines[k] {
				h.appendPart(ctx, p)
			}
			return nil
		})
	}
}

// startParts appends to logs that are LogStarters, and gives the rest back. One
// goroutine waits for all of a topic; the caller itself for the last one.
func (h *Handler) startParts(ctx context.Context, g *errgroup.Group, all []*part) (rest []*part) {
	type started struct {
		*part
		fence.Reservation
		wait func(context.Context) error
		err  error
	}
	begun := make([]started, 0, len(all)) // never moved before all of it is started
	for _, p := range all {
		if p.err != nil {
			continue
		}
		log, ok := p.log.(LogStarter)
		if !ok {
			rest = append(rest, p)
			continue
		}
		begun = append(begun, started{part: p})
		s := &begun[len(begun)-1]
		s.wait, s.err = log.Start(p.records, p.admit(&s.Reservation, h.nowMs()))
	}
	finish := func(of []started) {
		for i := range of {
			s := &of[i]
			if s.err == nil {
				s.err = s.wait(ctx)
			}
			s.appended(ctx, &s.Reservation, s.err)
		}
	}
	// Those of one topic together, in their order.
	slices.SortStableFunc(begun, func(a, b started) int { return cmp.Compare(a.topic, b.topic) })
	for len(begun) > 0 {
		n := 1
		for n < len(begun) && begun[n].topic == begun[0].topic {
			n++
		}
		of := begun[:n]
		if begun = begun[n:]; len(begun) == 0 && len(rest) == 0 {
			finish(of) // there is nothing else to do
			break
		}
		g.Go(func() error {
			finish(of)
			return nil
		})
	}
	return rest
}

// errDuplicate keeps a batch that is in the log already from being appended
// again.
var errDuplicate = errors.New("wire: the batch was appended before")

func (h *Handler) appendPart(ctx context.Context, p *part) {
	var r fence.Reservation
	p.appended(ctx, &r, p.log.Append(ctx, p.records, p.admit(&r, h.nowMs())))
}

// admit is what admits the batch, and leaves in r what came of it.
func (p *part) admit(r *fence.Reservation, now int64) func(*fence.Partition, int64) error {
	return func(fp *fence.Partition, base int64) error {
		var err error
		if *r, err = fp.Reserve(p.batch, p.guard, now); err != nil {
			return err
		}
		if r.Duplicate {
			return errDuplicate
		}
		r.Settle(base)
		p.base = base
		return nil
	}
}

// appended is the end of an append.
func (p *part) appended(ctx context.Context, r *fence.Reservation, err error) {
	if errors.Is(err, errDuplicate) {
		// The first attempt may not be durable yet, and its answer is lost: this
		// one stands for it.
		p.base, p.stampMs = r.Offset, r.TimestampMs
		err = p.log.Durable(ctx, r.Offset)
	}
	if err != nil {
		p.err, p.base, p.stampMs = err, -1, -1
	}
}

// produced is the answer. With acks 0 there is none, and the connection is
// closed where something was refused.
func (h *Handler) produced(req *kmsg.ProduceRequest, parts [][]*part) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	failed := false
	for i, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range parts[i] {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition = p.partition
			rp.ErrorCode = h.code(p.err, keyProduce, req.Version)
			rp.BaseOffset, rp.LogAppendTime = p.base, p.stampMs
			if p.err != nil {
				rp.ErrorMessage = message(p.err)
				failed = true
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	switch {
	case req.Acks != 0:
		return resp, nil
	case failed:
		return nil, ErrClose
	}
	return nil, nil
}
