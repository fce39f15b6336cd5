package fence_test

import (
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// host is a partition as a broker has it: a log, whose batches are all below the
// high watermark, and the state. Its coordinator says yes to everything.
type host struct {
	t   *testing.T
	p   *fence.Partition
	log []logged
	end int64
	now int64 // milliseconds
}

type logged struct {
	b    fence.Batch
	base int64
	mark *fence.Mark
}

func newHost(t *testing.T) *host {
	return &host{t: t, p: fence.NewPartition(fence.Config{}), now: 1_000_000}
}

// batch is a transactional batch.
func batch(pid int64, epoch int16, seq, records int32) fence.Batch {
	return fence.Batch{
		Producer: txnstate.Producer{ID: pid, Epoch: epoch}, FirstSequence: seq, Records: records,
		MaxTimestampMs: 500, Transactional: true,
	}
}

// plain is an idempotent batch.
func plain(pid int64, epoch int16, seq, records int32) fence.Batch {
	b := batch(pid, epoch, seq, records)
	b.Transactional = false
	return b
}

// produce is what happens to a batch: its offset, or the code.
func (h *host) produce(b fence.Batch, mode fence.Mode) string {
	g, _, err := h.p.Verify(b, mode, h.now)
	if err != nil {
		return codeOf(err)
	}
	return h.append(b, g)
}

// append is produce behind the question to the coordinator.
func (h *host) append(b fence.Batch, g fence.Guard) string {
	r, err := h.p.Reserve(b, g, h.now)
	switch {
	case err != nil:
		return codeOf(err)
	case r.Duplicate:
		return fmt.Sprintf("duplicate of %d", r.Offset)
	}
	h.put(logged{b: b}, r)
	return fmt.Sprintf("%d", h.end-int64(b.Records))
}

func (h *host) put(e logged, r fence.Reservation) {
	e.base = h.end
	h.log = append(h.log, e)
	h.end += int64(max(e.b.Records, 1))
	r.Settle(e.base)
}

func (h *host) mark(m markers.Marker) string {
	st, known := h.p.Producer(m.Producer.ID)
	if err := markers.Decide(m, st, known); err != nil {
		return codeOf(err)
	}
	mk := m.Mark(h.now)
	h.put(logged{b: fence.Batch{Producer: m.Producer, FirstSequence: -1, Records: 1, Control: true, Transactional: true}, mark: &mk}, h.p.ReserveMark(mk))
	return fmt.Sprintf("%d", h.end-1)
}

// commit and abort are markers of TV0.
func (h *host) commit(pid int64, epoch int16) string {
	return h.mark(markers.Marker{Producer: txnstate.Producer{ID: pid, Epoch: epoch}, Commit: true})
}

func (h *host) abort(pid int64, epoch int16) string {
	return h.mark(markers.Marker{Producer: txnstate.Producer{ID: pid, Epoch: epoch}})
}

func codeOf(err error) string { return txnstate.CodeOf(err).String() }

func (h *host) want(what, got, want string) {
	h.t.Helper()
	if got != want {
		h.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

const (
	outOfOrder   = "OUT_OF_ORDER_SEQUENCE_NUMBER"
	staleEpoch   = "INVALID_PRODUCER_EPOCH"
	invalidState = "INVALID_TXN_STATE"
	invalid      = "INVALID_RECORD"
	comeAgain    = "NOT_ENOUGH_REPLICAS"
	notYet       = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
)

// rebuilt is the state that a restart makes out of a snapshot and the log.
func (h *host) rebuilt(snapshot []byte) *fence.Partition {
	h.t.Helper()
	p := fence.NewPartition(fence.Config{})
	if snapshot != nil {
		var err error
		if p, err = fence.RestorePartition(fence.Config{}, snapshot); err != nil {
			h.t.Fatal(err)
		}
	}
	from := p.End()
	for _, e := range h.log {
		if e.base >= from {
			p.Replay(e.b, e.base, e.mark)
		}
	}
	return p
}

// known is all that a partition shows of itself.
func known(p *fence.Partition, end int64) string {
	return fmt.Sprintf("producers %+v\nopen %+v\nstable %d\naborted %+v", p.Producers(), p.Open(), p.LastStable(end), p.Aborted(0, end+1))
}
