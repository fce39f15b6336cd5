package markers_test

import (
	"fmt"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// TestDecideTable is the whole decision: epochs below, at and above the stored
// one, with a transaction open and without, under every transaction version, and
// coordinator epochs around the stored one. want is what the versions below 0,
// 0 and 1, and 2 and above answer.
func TestF13_F14_DecideTable(t *testing.T) {
	const stored, coordinator = 5, 3
	for _, c := range []struct {
		epoch       int16
		open        bool
		coordinator int32
		none        txnstate.Code // transaction version -1
		legacy      txnstate.Code // 0 and 1
		strict      txnstate.Code // 2 and above (KIP-1228)
	}{
		{4, true, 3, 47, 47, 47},
		{4, false, 3, 47, 47, 47},
		{4, false, 2, 47, 47, 47}, // the epoch is tested first
		{5, true, 3, -1, 0, 47},   // F13: it can't be this transaction's under TV2
		{5, true, 4, -1, 0, 47},
		{5, true, 2, -1, 52, 47},
		{5, false, 3, -1, 0, 0}, // a repeat (KAFKA-19999)
		{5, false, 4, -1, 0, 0},
		{5, false, 2, -1, 52, 52}, // F14
		{5, false, -1, -1, 52, 52},
		{6, true, 3, -1, 0, 0},
		{6, true, 2, -1, 52, 52},
		{6, false, 3, -1, 0, 0},
		{32767, true, 9, -1, 0, 0}, // any number ahead
	} {
		st := fence.ProducerState{Producer: txnstate.Producer{ID: 7, Epoch: stored}, CoordinatorEpoch: coordinator, Open: c.open}
		for tv, want := range map[txnstate.TransactionVersion]txnstate.Code{-1: c.none, 0: c.legacy, 1: c.legacy, 2: c.strict, 3: c.strict, 127: c.strict} {
			for _, commit := range []bool{true, false} {
				m := markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: c.epoch}, Commit: commit, CoordinatorEpoch: c.coordinator, TransactionVersion: tv}
				if got := txnstate.CodeOf(markers.Decide(m, st, true)); got != want {
					t.Errorf("epoch %d, open %v, coordinator %d, version %d: %s, want %s", c.epoch, c.open, c.coordinator, tv, got, want)
				}
			}
		}
	}
}

// The fencing epoch has none above it: its marker may find it stored.
func TestAMarkerAtTheFencingEpoch(t *testing.T) {
	st := fence.ProducerState{Producer: txnstate.Producer{ID: 7, Epoch: txnstate.FenceEpoch}, CoordinatorEpoch: 3, Open: true}
	m := markers.Marker{Producer: st.Producer, CoordinatorEpoch: 3, TransactionVersion: txnstate.TV2}
	if err := markers.Decide(m, st, true); err != nil {
		t.Error(err)
	}
	m.Producer.Epoch = txnstate.MaxEpoch
	if got := txnstate.CodeOf(markers.Decide(m, st, true)); got != txnstate.CodeInvalidProducerEpoch {
		t.Error(got)
	}
}

// F13: a partition that never saw the producer, or has forgotten it, writes the
// marker, whatever coordinator sends it.
func TestF13_AMarkerOfAnUnknownProducer(t *testing.T) {
	for tv := range txnstate.TransactionVersion(3) {
		for _, coordinator := range []int32{-1, 0, 7} {
			m := markers.Marker{Producer: txnstate.Producer{ID: 7}, CoordinatorEpoch: coordinator, TransactionVersion: tv}
			if err := markers.Decide(m, fence.ProducerState{}, false); err != nil {
				t.Errorf("version %d, coordinator %d: %v", tv, coordinator, err)
			}
		}
	}
}

func TestWhatIsNoMarker(t *testing.T) {
	for _, p := range []txnstate.Producer{{ID: -1, Epoch: 3}, {ID: 7, Epoch: -1}, txnstate.NoProducer} {
		if got := txnstate.CodeOf(markers.Decide(markers.Marker{Producer: p}, fence.ProducerState{}, false)); got != txnstate.CodeUnknownServerError {
			t.Errorf("%s: %s", p, got)
		}
	}
	m := markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: -2}}
	if got := txnstate.CodeOf(markers.Decide(m, fence.ProducerState{}, false)); got != txnstate.CodeInvalidProducerEpoch {
		t.Errorf("epoch -2: %s", got)
	}
}

// I4, W4: a marker closes only its own transaction. A duplicate, late, reordered
// or deposed one changes no record's visibility.
func TestW4_AMarkerClosesOnlyItsOwnTransaction(t *testing.T) {
	p := fence.NewPartition(fence.Config{})
	end := int64(0)
	send := func(epoch int16, commit bool, coordinator int32) string {
		m := markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: epoch}, Commit: commit, CoordinatorEpoch: coordinator, TransactionVersion: txnstate.TV2}
		st, known := p.Producer(7)
		if err := markers.Decide(m, st, known); err != nil {
			return txnstate.CodeOf(err).String()
		}
		p.Mark(m.Mark(0), end)
		end++
		return "written"
	}
	data := func(epoch int16) {
		b := fence.Batch{Producer: txnstate.Producer{ID: 7, Epoch: epoch}, Records: 1, Transactional: true}
		g, _, err := p.Verify(b, fence.ModeAdd, 0)
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Reserve(b, g, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(end)
		end++
	}
	visible := func() string { return fmt.Sprint(p.LastStable(end), p.Aborted(0, end)) }
	steps := []struct {
		name  string
		epoch int16 // of the marker
		co    int32
		want  string
		same  bool // nothing becomes visible or hidden, but for the marker itself
	}{
		{"its end", 1, 4, "written", false},
		{"the same again", 1, 4, "written", true},
		{"again, from the next coordinator", 1, 5, "written", true},
		{"from the deposed one", 1, 4, "TRANSACTION_COORDINATOR_FENCED", true},
	}
	data(0)
	for _, s := range steps {
		before := p.Aborted(0, end)
		if got := send(s.epoch, false, s.co); got != s.want {
			t.Errorf("%s: %s", s.name, got)
		}
		if s.same && fmt.Sprint(p.Aborted(0, end)) != fmt.Sprint(before) {
			t.Errorf("%s: %v, before %v", s.name, p.Aborted(0, end), before)
		}
	}
	data(1) // the next transaction
	before := visible()
	for _, late := range []bool{true, false} {
		if got := send(1, late, 5); got != "INVALID_PRODUCER_EPOCH" {
			t.Errorf("the marker of the transaction before, commit %v: %s", late, got)
		}
	}
	if got := visible(); got != before {
		t.Errorf("visible: %s, before %s", got, before)
	}
	if got := send(2, true, 5); got != "written" {
		t.Errorf("its own: %s", got)
	}
	if got := send(2, false, 5); got != "written" { // the opposite, and nothing is open
		t.Errorf("the opposite: %s", got)
	}
	if got := p.Aborted(0, end); len(got) != 1 || p.LastStable(end) != end {
		t.Errorf("aborted %+v, stable %d of %d", got, p.LastStable(end), end)
	}
}
