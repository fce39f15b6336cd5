package offsets

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Commit makes offsets the committed ones of a group, without a transaction.
// There is a code for each offset, as in Stage. What is staged for the group is
// left alone; of a staged value and this one the later in the order of the
// requests wins, whatever the order of the markers.
func (m *Manager) Commit(ctx context.Context, group string, os []Offset) ([]txnstate.Code, error) {
	codes, e, err := m.accept(kindCommit, group, os)
	if err != nil || len(e.items) == 0 {
		return codes, err
	}
	p := m.of(group)
	if m.cfg.Hook != nil {
		err = p.commitWithHook(ctx, e)
	} else {
		err = p.write(ctx, e)
	}
	if err != nil {
		return nil, err
	}
	return codes, nil
}

// accept sorts out the offsets that are kept. The entry shares no memory with
// the caller, whose strings may be parts of a request's buffer.
func (m *Manager) accept(k kind, group string, os []Offset) ([]txnstate.Code, entry, error) {
	codes := make([]txnstate.Code, len(os))
	if err := tooLong(offsetsSize(group, os)); err != nil {
		return nil, entry{}, err
	}
	now := m.cfg.Now().UnixMilli()
	e := entry{kind: k, group: strings.Clone(group), stampMs: now}
	topic := ""
	for i, o := range os {
		if len(o.Metadata) > max(m.cfg.MaxMetadata, 0) {
			codes[i] = txnstate.CodeOffsetMetadataTooLarge
			continue
		}
		if o.Topic != topic || topic == "" {
			topic = strings.Clone(o.Topic)
		}
		o.Topic, o.Metadata = topic, strings.Clone(o.Metadata)
		if o.CommitMs <= 0 {
			o.CommitMs = now
		}
		e.items = append(e.items, itemOf(o))
	}
	return codes, e, nil
}

// tooLong is the refusal of an entry of n bytes that does not fit. A snapshot
// needs a few bytes more for the same offset, so they are left free.
func tooLong(n int) error {
	if n <= MaxEntry-64 {
		return nil
	}
	return txnstate.CodeUnknownServerError.Errorf("", "an entry of %d bytes, and the offsets log takes %d", n, MaxEntry-64)
}

// put queues an entry that nothing can refuse.
func (p *partition) put(ctx context.Context, e entry) (*write, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	e.number = p.st.admitted + 1
	return p.admit(e), nil
}

// write is put, and the wait for it.
func (p *partition) write(ctx context.Context, e entry) error {
	w, err := p.put(ctx, e)
	if err != nil {
		return err
	}
	return w.wait(ctx)
}

// DeleteGroup removes what a group has committed and what anybody staged for
// it; a commit marker that comes later finds nothing (DeleteGroups). Whether the
// group may be deleted, which with members it may not, is the caller's question.
// Deleting nothing is not an error.
func (m *Manager) DeleteGroup(ctx context.Context, group string) error {
	if err := tooLong(len(group) + 64); err != nil {
		return err
	}
	p := m.of(group)
	if m.cfg.Hook != nil {
		// Not between the telling of the hook and the entry of a commit.
		release, err := p.turns.take(ctx, groupTurn(group))
		if err != nil {
			return err
		}
		defer release()
	}
	return p.write(ctx, entry{kind: kindDeleteGroup, group: strings.Clone(group)})
}

// DeleteOffsets removes what a group has committed, and what anybody staged for
// it, in some partitions (OffsetDelete).
func (m *Manager) DeleteOffsets(ctx context.Context, group string, tps []TopicPartition) error {
	p := m.of(group)
	e := entry{kind: kindDeleteOffsets, group: strings.Clone(group)}
	size := entryHeader + 8 + 4 + len(group) + 4
	for _, tp := range tps {
		e.items = append(e.items, item{key: TopicPartition{strings.Clone(tp.Topic), tp.Partition}})
		size += keySize + len(tp.Topic)
	}
	if len(tps) == 0 {
		return nil
	}
	if err := tooLong(size); err != nil {
		return err
	}
	if m.cfg.Hook != nil {
		release, err := p.turns.take(ctx, groupTurn(group))
		if err != nil {
			return err
		}
		defer release()
	}
	return p.write(ctx, e)
}

// DeleteTopic removes what any group has committed or staged for a topic, in
// the partitions that are served. It is repeated after an error.
func (m *Manager) DeleteTopic(ctx context.Context, topic string) error {
	if err := tooLong(len(topic) + 64); err != nil {
		return err
	}
	var errs []error
	var ws []*write
	for _, p := range m.parts {
		p.mu.Lock()
		absent := p.phase == phaseAbsent
		p.mu.Unlock()
		if absent {
			continue
		}
		w, err := p.deleteTopic(ctx, topic)
		if err != nil {
			errs = append(errs, err)
		} else if w != nil {
			ws = append(ws, w)
		}
	}
	for _, w := range ws {
		errs = append(errs, w.wait(ctx))
	}
	return errors.Join(errs...)
}

func (p *partition) deleteTopic(ctx context.Context, topic string) (*write, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	if !p.st.hasTopic(topic) && !p.anyComing(func(pl place) bool { return pl.Topic == topic }) {
		return nil, nil
	}
	return p.admit(entry{kind: kindDeleteTopic, number: p.st.admitted + 1, topic: strings.Clone(topic)}), nil
}

func (s *state) hasTopic(topic string) bool {
	for _, slots := range s.groups {
		for tp := range slots {
			if tp.Topic == topic {
				return true
			}
		}
	}
	return false
}

// expireItems is how many offsets one entry of Expire removes at most.
const expireItems = 1000

// Expire removes offsets committed before a time and reports how many there
// were. It leaves alone a partition with a staged value, or one on its way, and
// so never removes a group of an open transaction (KAFKA-19163); nor does it ever
// remove a value newer than the one it looked at. When it is called is the
// host's business, and so is idle, which says whether a group's offsets may
// expire: in Kafka those of a group that has had no members for
// offsets.retention.minutes. It is called with no lock held; nil means all
// groups may.
func (m *Manager) Expire(ctx context.Context, before time.Time, idle func(group string) bool) (removed int, err error) {
	var errs []error
	for _, group := range m.Groups() {
		if idle != nil && !idle(group) {
			continue
		}
		n, err := m.of(group).expireGroup(ctx, group, before.UnixMilli())
		removed += n
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return removed, errors.Join(errs...)
}

func (p *partition) expireGroup(ctx context.Context, group string, beforeMs int64) (int, error) {
	if err := p.enter(ctx); err != nil {
		return 0, err
	}
	var ws []*write
	e := entry{kind: kindExpire, group: group}
	flush := func() {
		if len(e.items) > 0 {
			e.number = p.st.admitted + 1
			ws = append(ws, p.admit(e))
			e.items = nil
		}
	}
	for tp, sl := range p.st.groups[group] {
		v := sl.committed
		if v.order == 0 || v.commitMs >= beforeMs || len(sl.pending) > 0 || p.coming(place{group, tp}) {
			continue
		}
		e.items = append(e.items, item{key: tp, value: value{order: v.order}})
		if len(e.items) == expireItems {
			flush()
		}
	}
	flush()
	p.mu.Unlock()
	n := 0
	for _, w := range ws {
		if err := w.wait(ctx); err != nil {
			return n, err
		}
		n += len(w.entry.items)
	}
	return n, nil
}
