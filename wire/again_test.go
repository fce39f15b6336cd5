package wire_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// A decision that is taken up again after a crash finds its marker in the log,
// and does not append it a second time; where the transaction is open, or the
// partition was never told, it does. It counts as applied only when the marker
// that is there is durable (I2).
func TestADecisionTakenUpAgainAppendsOnlyWhatIsMissing_I2(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("t", 1)
	log, err := h.log("t", 0)
	require.NoError(t, err)
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h, Alone: true})
	require.NoError(t, err)
	d := markers.Delivery{
		Marker:      markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 3}, Commit: true, TransactionVersion: txnstate.TV0},
		Participant: txnstate.Partition("t", 0),
	}
	send := func(ctx context.Context, again bool, want markers.Result, markersInLog int) {
		t.Helper()
		d.Again = again
		require.Equal(t, []markers.Result{want}, sink.WriteMarkers(ctx, 1, []markers.Delivery{d}))
		require.Len(t, log.batches, markersInLog)
	}
	bg := context.Background()
	send(bg, true, markers.Applied, 1)  // never told
	send(bg, true, markers.Applied, 1)  // has it
	send(bg, false, markers.Applied, 2) // just decided: Kafka's log has a marker for it
	d.CoordinatorEpoch = 1
	send(bg, true, markers.Applied, 2) // taken up by the next coordinator

	log.With(func(p *fence.Partition) { // an open transaction of the same epoch
		g, _, err := p.Verify(fence.Batch{Producer: d.Producer, Records: 1, Transactional: true}, fence.ModeDefault, 0)
		require.NoError(t, err)
		r, err := p.Reserve(fence.Batch{Producer: d.Producer, Records: 1, Transactional: true}, g, 0)
		require.NoError(t, err)
		r.Settle(log.end)
		log.end++
	})
	send(bg, true, markers.Applied, 3)

	log.sync = make(chan struct{}) // nothing becomes durable any more
	ended, cancel := context.WithCancel(bg)
	cancel()
	send(ended, true, markers.Retry, 3)
}

// A coordinator that was deposed wakes up with a marker of protocol 1 that it has
// not been told is applied, and the next transaction has the same epoch. It is kept
// out also where its successor had nothing to close: that one has said who it is.
func TestADeposedCoordinatorIsKeptOutOfPartitionsThatHadItsMarker_F14_I4(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("t", 1)
	log, err := h.log("t", 0)
	require.NoError(t, err)
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h})
	require.NoError(t, err)
	send := func(d markers.Delivery) markers.Result {
		return sink.WriteMarkers(t.Context(), 1, []markers.Delivery{d})[0]
	}
	p := txnstate.Producer{ID: 7, Epoch: 3}
	d := markers.Delivery{Marker: markers.Marker{Producer: p, CoordinatorEpoch: 5, TransactionVersion: txnstate.TV1}, Participant: txnstate.Partition("t", 0)}
	require.Equal(t, markers.Applied, send(d)) // the answer gets lost
	next := d
	next.CoordinatorEpoch, next.Again = 6, true
	require.Equal(t, markers.Applied, send(next))
	log.With(func(fp *fence.Partition) {
		fp.Replay(fence.Batch{Producer: p, Records: 1, Transactional: true}, log.end, nil)
		log.end++
	})
	require.Equal(t, markers.FencedCoordinator, send(d))
	open, err := sink.StillOpen(t.Context(), 1, d)
	require.NoError(t, err)
	require.True(t, open, "the next transaction")
}
