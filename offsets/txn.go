package offsets

import (
	"context"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Guard ties a Stage to the Verify before it. The zero Guard is none.
type Guard struct {
	guard fence.Guard
	gen   uint64 // of the state it was taken from; 0 for the zero Guard
}

// Verify is asked before anything is done for a TxnOffsetCommit. When ask
// is true the caller asks the transaction coordinator whether
// txnstate.Group(group) is in the producer's transaction, or in fence.ModeAdd to
// add it, before it goes on; the answer decides what the client is told (see
// Answer). ask is false where a transaction of exactly this producer is open in
// the group's partition: then the transactional id of the request does not
// matter either. A producer epoch that is known to be old is refused with
// INVALID_PRODUCER_EPOCH at once.
func (m *Manager) Verify(group string, pr txnstate.Producer, mode fence.Mode) (g Guard, ask bool, err error) {
	p := m.of(group)
	if g, ask, err = p.verify(pr, mode); err != nil {
		if cerr := p.still(); cerr != nil {
			err = cerr
		}
		return Guard{}, false, err
	}
	return g, ask, nil
}

func (p *partition) verify(pr txnstate.Producer, mode fence.Mode) (g Guard, ask bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return Guard{}, false, err
	}
	g.gen = p.gen
	g.guard, ask, err = p.st.fence.VerifyOffsets(pr, mode, p.m.cfg.Now().UnixMilli())
	return g, ask, err
}

// VerifyProduce is what Verify is, for a batch that a client wants to have in a
// partition of __consumer_offsets. It will not be taken, but Kafka verifies it, or
// adds it to its transaction, before it looks at the topic.
func (m *Manager) VerifyProduce(partition int32, b fence.Batch, mode fence.Mode) (ask bool, err error) {
	p, err := m.at(partition)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return false, MarkerAnswer(err).Errorf("", "offsets partition %d: %w", partition, err)
	}
	_, ask, err = p.st.fence.Verify(b, mode, m.cfg.Now().UnixMilli())
	return ask, err
}

// Answer is what a TxnOffsetCommit of this version is answered with on all
// partitions, where verification or the append failed with c (§7.1 of Kafka's
// GroupCoordinatorService.commitTransactionalOffsets). There is no server-side
// retry of CONCURRENT_TRANSACTIONS here, as there is for Produce.
func Answer(c txnstate.Code, version int16) txnstate.Code {
	switch c {
	case txnstate.CodeNetworkException:
		c = txnstate.CodeCoordinatorLoading
	case txnstate.CodeUnknownTopicOrPartition, txnstate.CodeRequestTimedOut, txnstate.CodeNotEnoughReplicas,
		txnstate.CodeNotEnoughReplicasAfter:
		c = txnstate.CodeCoordinatorNotAvailable
	case txnstate.CodeNotLeaderOrFollower, txnstate.CodeKafkaStorageError:
		c = txnstate.CodeNotCoordinator
	case txnstate.CodeMessageTooLarge, txnstate.CodeRecordListTooLarge:
		c = txnstate.CodeUnknownServerError
	case txnstate.CodeTransactionAbortable:
		if fence.OffsetCommitMode(version) == fence.ModeDefault {
			c = txnstate.CodeInvalidTxnState // the client does not know 120
		}
	case txnstate.CodeProducerFenced:
		c = txnstate.CodeInvalidProducerEpoch
	}
	if version < 2 && c == txnstate.CodeCoordinatorLoading {
		c = txnstate.CodeCoordinatorNotAvailable // KAFKA-9656: old clients crash on 14
	}
	return c
}

// Stage keeps offsets for a group until a marker settles them. The transaction
// was verified (g) and the caller's membership checked (CheckTxnCommit, between
// Announce and here). There is a code for each offset: NONE, or OFFSET_METADATA_TOO_LARGE for one that is left
// out; those with NONE are durable. With an error nothing is known to be staged:
// INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE where the guard is not that of the
// producer's verification any more, or one of the Manager's. A repeat replaces
// what the producer staged before.
func (m *Manager) Stage(ctx context.Context, group string, pr txnstate.Producer, g Guard, os []Offset) ([]txnstate.Code, error) {
	codes, e, err := m.accept(kindStage, group, os)
	if err != nil || len(e.items) == 0 {
		return codes, err
	}
	e.producer = pr
	p := m.of(group)
	release := func() {}
	if m.cfg.Hook != nil {
		// A marker of this producer that the hook is being told of comes first.
		if release, err = p.turns.take(ctx, producerTurn(pr.ID)); err != nil {
			return nil, err
		}
	}
	w, err := p.stage(ctx, e, g)
	release() // only its place in the queue matters
	if err != nil {
		if cerr := p.still(); cerr != nil {
			err = cerr
		}
		return nil, err
	}
	if err := w.wait(ctx); err != nil {
		return nil, err
	}
	return codes, nil
}

func (p *partition) stage(ctx context.Context, e entry, g Guard) (*write, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	if g.gen != 0 && g.gen != p.gen {
		// The state that gave the guard, or that had the transaction open, is
		// gone. INVALID_TXN_STATE would be fatal to the client; this makes it ask
		// again.
		return nil, txnstate.CodeCoordinatorNotAvailable.Errorf("", "offsets partition %d was read again since the transaction was verified", p.index)
	}
	r, err := p.st.fence.ReserveOffsets(e.producer, g.guard, e.stampMs)
	if err != nil {
		return nil, err
	}
	e.number = p.st.admitted + 1
	r.Settle(e.number)
	return p.admit(e), nil
}

// Fence says that epochs of a producer id below pr.Epoch are gone, so that
// staging under them is refused before the marker comes that says the same. It
// is remembered in memory only, by partitions that know the producer id; others
// ask the coordinator before they take anything of it. Fence never fails: the
// error makes the Manager a txnstate.Fencer.
func (m *Manager) Fence(_ context.Context, pr txnstate.Producer) error {
	for _, p := range m.parts {
		p.mu.Lock()
		if p.phase == phaseReady {
			p.st.fence.Fence(pr)
		}
		p.mu.Unlock()
	}
	return nil
}

var _ txnstate.Fencer = (*Manager)(nil)

// Marker settles, in one partition of __consumer_offsets, what the marker's
// producer id staged there at epochs up to the marker's own: a commit makes it
// the committed offsets, except where a newer value was committed since
// (KAFKA-5247), an abort drops it. It is written also when nothing is staged, as
// in Kafka, and a repeat is harmless. On nil all of it is durable and seen by
// Fetch (KAFKA-17507).
//
// INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED are the answers of
// markers.Decide. The Manager's own errors, 14, 15 and 16, are shown as
// NOT_LEADER_OR_FOLLOWER in WriteTxnMarkers (MarkerAnswer): the transaction
// coordinator tries again, and so it does after an error of the hook.
func (m *Manager) Marker(ctx context.Context, partition int32, mk markers.Marker) error {
	p, err := m.at(partition)
	if err != nil {
		return err
	}
	e := entry{
		kind: kindMarker, producer: mk.Producer, commit: mk.Commit,
		coordinatorEpoch: mk.CoordinatorEpoch, stampMs: m.cfg.Now().UnixMilli(),
	}
	if m.cfg.Hook != nil && mk.Commit {
		return p.markWithHook(ctx, mk, e)
	}
	w, err := p.mark(ctx, mk, e, 0)
	if err != nil {
		if cerr := p.still(); cerr != nil {
			err = cerr
		}
		return err
	}
	return w.wait(ctx)
}

// MarkerAnswer is how an error of Marker is shown in WriteTxnMarkers.
func MarkerAnswer(err error) txnstate.Code {
	switch c := txnstate.CodeOf(err); c {
	case txnstate.CodeCoordinatorLoading, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeNotCoordinator:
		return txnstate.CodeNotLeaderOrFollower
	default:
		return c
	}
}

// mark decides about a marker and queues it. gen is the state it must meet, 0
// for any.
func (p *partition) mark(ctx context.Context, mk markers.Marker, e entry, gen uint64) (*write, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	if gen != 0 && gen != p.gen {
		return nil, txnstate.CodeCoordinatorNotAvailable.Errorf("", "offsets partition %d was read again since the hook was told", p.index)
	}
	if err := p.decide(mk); err != nil {
		return nil, err
	}
	e.number = p.st.admitted + 1
	p.st.fence.Mark(e.mark(), e.number)
	return p.admit(e), nil
}

func (p *partition) decide(mk markers.Marker) error {
	st, known := p.st.fence.Producer(mk.Producer.ID)
	return markers.Decide(mk, st, known)
}
