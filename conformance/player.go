package conformance

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// player sends the steps of one scenario to a broker and makes its answers
// comparable. It is used by one goroutine at a time.
type player struct {
	e       *env
	c       *cluster
	prefix  string           // of transactional ids and groups
	tprefix string           // of topics
	pids    map[string]int64 // symbol -> the broker's id
	syms    map[int64]string
	holders map[string]string     // symbol -> the transactional id that it was given to
	unknown int64                 // a producer id that nobody holds, the scenario's own
	seen    map[string]bool       // transactional ids named so far
	stuck   bool                  // a transaction stays in Prepare whatever time it is given
	resent  bool                  // a request may have been carried out twice
	ids     map[string][16]byte   // local name of a topic -> its id
	members map[string]string     // symbol -> the member id that the broker gave
	joined  map[string]membership // group -> the membership that a join of this scenario gave
	genBy   map[string]int32      // group -> how far its generations lie above the recorded ones
}

// membership is what the recording says of a group's only member.
type membership struct {
	member     string // symbol
	generation int32  // as recorded
}

func (e *env) player(prefix, tprefix string) *player {
	h := fnv.New64a()
	h.Write([]byte(prefix))
	return &player{
		e: e, c: newCluster(e.addr, e.o.Dial, e.o.Follow, e.limits), prefix: prefix, tprefix: tprefix,
		pids: map[string]int64{}, syms: map[int64]string{}, holders: map[string]string{},
		// Above what brokers hand out: Kafka counts from 0, others put a broker's number above bit 40.
		unknown: 1<<60 + int64(h.Sum64()&(1<<50-1))<<1,
		seen:    map[string]bool{}, ids: map[string][16]byte{}, members: map[string]string{}, joined: map[string]membership{}, genBy: map[string]int32{},
	}
}

func (p *player) close() { p.c.close() }

func (p *player) name(s string) string   { return p.prefix + s }
func (p *player) local(s string) string  { return strings.TrimPrefix(s, p.prefix) }
func (p *player) ltopic(s string) string { return strings.TrimPrefix(s, p.tprefix) }

// topic is the broker's name of a topic. Internal ones are the same for all.
func (p *player) topic(s string) string {
	if strings.HasPrefix(s, "__") {
		return s
	}
	return p.tprefix + s
}

func (p *player) txnID(s *Step) string {
	if s.EmptyID {
		return ""
	}
	return p.name(s.TxnID)
}

// group keeps the empty group id, whose treatment is part of the recordings.
func (p *player) group(g string) string {
	if g == "" {
		return ""
	}
	return p.name(g)
}

func (p *player) sym(id int64) string {
	switch id {
	case -1:
		return "none"
	case p.unknown:
		return "unknown"
	}
	if s, ok := p.syms[id]; ok {
		return s
	}
	s := fmt.Sprintf("P%d", len(p.syms)+1)
	p.syms[id], p.pids[s] = s, id
	return s
}

func (p *player) pid(s string) int64 {
	switch s {
	case "none", "":
		return -1
	case "unknown":
		return p.unknown
	}
	if id, ok := p.pids[s]; ok {
		return id
	}
	return p.unknown + 1 // the broker never handed this one out
}

// holder is the transactional id of a step's producer.
func (p *player) holder(s *Step) string {
	if id, ok := p.holders[s.Producer]; ok {
		return p.name(id)
	}
	return p.txnID(s)
}

func (p *player) member(s string) string {
	if m, ok := p.members[s]; ok {
		return m
	}
	return s
}

// generation is the broker's number for a recorded one. Below 0 it means none.
func (p *player) generation(s *Step) int32 {
	if s.Generation < 0 {
		return s.Generation
	}
	return s.Generation + p.genBy[s.Group]
}

func errName(code int16) string {
	if code == 0 {
		return ""
	}
	var ke *kerr.Error
	// kerr answers a code that it does not know with another one
	if err := kerr.ErrorForCode(code); errors.As(err, &ke) && ke.Code == code {
		return ke.Message
	}
	return fmt.Sprintf("ERROR_%d", code)
}

// transient answers are retried, as every client does, and the settled one counts.
func transient(name string) bool {
	switch name {
	case "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR",
		"NOT_ENOUGH_REPLICAS", "NOT_LEADER_FOR_PARTITION", "NOT_LEADER_OR_FOLLOWER":
		return true
	}
	return false
}

func (a Answer) transient() bool {
	if transient(a.Err) {
		return true
	}
	for _, e := range a.Parts {
		if transient(e) {
			return true
		}
	}
	for _, x := range a.Txns {
		if x.transient() {
			return true
		}
	}
	return false
}

// leavesOpen tells of transient answers to requests that may have been carried out.
func (a Answer) leavesOpen() bool {
	open := func(name string) bool {
		switch name {
		case "COORDINATOR_NOT_AVAILABLE", "NOT_ENOUGH_REPLICAS", "NOT_LEADER_FOR_PARTITION", "NOT_LEADER_OR_FOLLOWER":
			return true
		}
		return false
	}
	for _, e := range a.Parts {
		if open(e) {
			return true
		}
	}
	for _, x := range a.Txns {
		if x.leavesOpen() {
			return true
		}
	}
	return open(a.Err)
}

// play sends one step until the answer is settled. An error is the end of ctx, or
// the loss of the broker (errUnreachable); what else goes wrong is an Answer, with
// why in words.
func (p *player) play(ctx context.Context, s *Step) (a Answer, why string, err error) {
	switch s.Op {
	case OpSleep:
		if err := p.e.o.Sleep(ctx, time.Duration(s.SleepMs)*time.Millisecond); err != nil {
			return Answer{}, "", err
		}
		return Answer{}, "", p.settle(ctx)
	case OpAge:
		return p.age(ctx, s)
	}
	start := time.Now()
	for {
		a, err = p.once(ctx, s)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return Answer{}, "", ctx.Err()
		case p.again(ctx, err, start):
			p.resent = true
			continue
		case errors.Is(err, errUnreachable):
			return Answer{}, "", err
		case errors.Is(err, errDecode):
			return Answer{Err: errUnreadable}, err.Error(), nil
		case errors.Is(err, errShort):
			return Answer{Err: errIncomplete}, err.Error(), nil
		default:
			return Answer{Err: errNoAnswer}, err.Error(), nil
		}
		patience := p.e.o.Patience
		if a.equal(s.Want) {
			patience /= 4 // Kafka gave this transient answer to the end: see only that it is not about to change
		}
		if !a.transient() || time.Since(start) > patience {
			break
		}
		p.resent = p.resent || a.leavesOpen()
		p.c.forget() // a moved coordinator or leader is looked up again
		if err := pause(ctx, 4*time.Millisecond); err != nil {
			return Answer{}, "", err
		}
	}
	if s.TxnID != "" {
		p.seen[s.TxnID] = true
	}
	if s.Op == OpEnd || s.Op == OpInit {
		return a, "", p.settle(ctx)
	}
	return a, "", nil
}

// again reports whether a request that failed is to be sent again, and waits for
// a moment.
func (p *player) again(ctx context.Context, err error, since time.Time) bool {
	return p.e.o.Resend && !errors.Is(err, errDecode) && !errors.Is(err, errShort) &&
		time.Since(since) < p.e.o.Patience && pause(ctx, 20*time.Millisecond) == nil
}

// patiently repeats what does no harm when it is repeated.
func (p *player) patiently(ctx context.Context, f func() error) error {
	for since := time.Now(); ; {
		if err := f(); err == nil || ctx.Err() != nil || !p.again(ctx, err, since) {
			return err
		}
	}
}

// age bumps an id's producer epoch by InitProducerId with the current identity.
// The answer is the last one.
func (p *player) age(ctx context.Context, s *Step) (Answer, string, error) {
	i := &Step{Op: OpInit, Version: s.Version, TxnID: s.TxnID, Producer: s.Producer, Epoch: s.Epoch, TimeoutMs: s.TimeoutMs}
	for {
		a, err := p.once(ctx, i)
		if err == nil && a.transient() || err != nil && ctx.Err() == nil {
			var why string
			if a, why, err = p.play(ctx, i); why != "" {
				return a, why, err
			}
		}
		if err != nil || a.Err != "" || a.Epoch == nil || *a.Epoch >= s.UntilEpoch {
			p.seen[s.TxnID] = true
			return a, "", err
		}
		if a.Producer != i.Producer || *a.Epoch != i.Epoch+1 {
			return a, fmt.Sprintf("InitProducerId with (%s, epoch %d) gave (%s, epoch %d), not the next epoch", i.Producer, i.Epoch, a.Producer, *a.Epoch), nil
		}
		i.Epoch = *a.Epoch
	}
}

// pause waits for the broker, in real time: unlike Options.Sleep it is not part
// of a recording.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle waits until no transaction seen so far is being completed: markers
// reach partitions and groups after EndTxn has been answered. What the broker
// answers wrongly here shows in the next step; only the end of ctx is an error.
func (p *player) settle(ctx context.Context) error {
	if len(p.seen) == 0 {
		return nil
	}
	ids := make([]string, 0, len(p.seen))
	for id := range p.seen {
		ids = append(ids, p.name(id))
	}
	if p.e.o.Settle != nil {
		return p.e.o.Settle(ctx, ids)
	}
	patience := p.e.o.Patience
	if p.stuck {
		patience = min(patience, 100*time.Millisecond)
	}
	start := time.Now()
	for {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = ids
		x, err := do[*kmsg.DescribeTransactionsResponse](ctx, p.c, req)
		if err != nil && ctx.Err() == nil && p.again(ctx, err, start) {
			continue
		}
		if err != nil {
			return ctx.Err()
		}
		busy := false
		for _, st := range x.TransactionStates {
			busy = busy || strings.HasPrefix(st.State, "Prepare") || p.e.o.Resend && transient(errName(st.ErrorCode))
		}
		if !busy {
			p.stuck = false
			return nil
		}
		if time.Since(start) > patience {
			p.stuck = true
			return nil
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}
