package markers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A delivery says all that its outcome says.
func TestADeliveryIsItsOutcomeForOneParticipant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []markers.Delivery
		s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			got = append(got, d)
			return markers.Applied
		}}
		d := runDispatcher(t, markers.Config{Sink: s})
		var want []markers.Delivery
		for i := range 8 {
			o := txnstate.Outcome{
				TxnID: fmt.Sprint("t", i), TxnSeq: uint64(i), Producer: txnstate.Producer{ID: int64(i), Epoch: int16(2 * i)}, Commit: i&1 > 0,
				TransactionVersion: txnstate.TransactionVersion(i % 3), CoordinatorEpoch: int32(5 + i), Again: i&2 > 0,
				Participants: []txnstate.Participant{txnstate.Partition("1", int32(i)), txnstate.Group("1g")},
			}
			for _, p := range o.Participants {
				want = append(want, markers.Delivery{
					Marker: markers.Marker{
						TxnID: o.TxnID, Producer: o.Producer, Commit: o.Commit, CoordinatorEpoch: o.CoordinatorEpoch, TransactionVersion: o.TransactionVersion,
					},
					Participant: p, TxnSeq: o.TxnSeq, Again: o.Again,
				})
			}
			d.Dispatch(o, func([]txnstate.Participant) {})
			synctest.Wait()
		}
		require.Equal(t, want, got)
	})
}

// F14: what waits for a target when its slot is lost is not sent. What is tried
// again isn't either.
func TestF14_NothingOfALostSlotLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			switch d.TxnID {
			case "blocks":
				<-gate
			case "again":
				return markers.Retry
			}
			return markers.Applied
		}}
		a := &applied{}
		d := runDispatcher(t, markers.Config{Sink: s, InFlight: 1, RetryMin: time.Minute, RetryMax: time.Minute})
		for _, id := range []string{"again", "blocks", "lost", "kept"} {
			d.Dispatch(outcome(id, 3, txnstate.Partition("1", 0)), a.of(id))
			synctest.Wait()
		}
		require.NotEqual(t, txnstate.Slot("lost"), txnstate.Slot("kept"))
		d.Cancel(txnstate.Slot("lost"), 3)
		d.Cancel(txnstate.Slot("again"), 3)
		d.Cancel(txnstate.Slot("kept"), 2) // an ownership before
		close(gate)
		time.Sleep(time.Hour)
		require.Equal(t, []string{"1 again 1/0", "1 blocks 1/0", "1 kept 1/0"}, s.all())
		require.Equal(t, map[string]int{"blocks 1/0": 1, "kept 1/0": 1}, a.all())
		require.Zero(t, d.Pending())
	})
}

// I12: one that is tried again after a long pause holds up nobody who is to be
// tried again sooner; pauses grow, up to the longest.
func TestPausesGrowToTheirBoundAndAreEachForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lo, hi = 20 * time.Millisecond, 2 * time.Second
		pauses := map[string][]time.Duration{}
		at := map[string][]time.Time{}
		s := &sink{answer: func(_ context.Context, _ markers.Target, d markers.Delivery) markers.Result {
			at[d.TxnID] = append(at[d.TxnID], time.Now())
			return markers.Retry
		}}
		d := runDispatcher(t, markers.Config{Sink: s, InFlight: 1, RetryMin: lo, RetryMax: hi, Observer: markers.Observer{
			Retry: func(d markers.Delivery, _ markers.Result, attempt int, pause time.Duration) {
				pauses[d.TxnID] = append(pauses[d.TxnID], pause)
				require.Len(t, pauses[d.TxnID], attempt)
			},
		}})
		d.Dispatch(outcome("old", 0, txnstate.Partition("1", 0)), nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		d.Dispatch(outcome("new", 0, txnstate.Partition("1", 1)), nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, id := range []string{"old", "new"} {
			require.Greater(t, len(pauses[id]), 20)
			for i, p := range pauses[id] {
				most := min(hi, lo<<min(i, 20))
				require.LessOrEqual(t, p, most, "%s, attempt %d", id, i+1)
				require.GreaterOrEqual(t, p, most/2, "%s, attempt %d", id, i+1)
				if i+1 < len(at[id]) {
					require.Equal(t, p, at[id][i+1].Sub(at[id][i]), "%s waits for its own pause", id)
				}
			}
		}
	})
}

// F14, I13: a transaction that a newer coordinator stands in the way of is kept no
// longer.
func TestF14_WhatWasStoppedIsNotPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{answer: func(context.Context, markers.Target, markers.Delivery) markers.Result {
			return markers.FencedCoordinator
		}}
		a := &applied{}
		d := runDispatcher(t, markers.Config{Sink: s})
		d.Dispatch(outcome("a", 0, txnstate.Partition("1", 0), txnstate.Partition("2", 0)), a.of("a"))
		synctest.Wait()
		require.Zero(t, d.Pending())
		require.Empty(t, a.all())
	})
}

// A dispatcher that has nothing to do ends at once.
func TestIdleWorkersDoNotHoldUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := markers.NewDispatcher(markers.Config{Leaders: byName, Sink: &sink{}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		for to := range 9 {
			d.Dispatch(outcome("a", 0, txnstate.Partition(fmt.Sprint(to+1), 0)), func([]txnstate.Participant) {})
		}
		synctest.Wait()
		begin := time.Now()
		cancel()
		require.NoError(t, <-done)
		require.Zero(t, time.Since(begin))
	})
}

// I2: however calls to a target overlap, wait, and are tried again, each
// participant is confirmed once, and no call has another's deliveries.
func TestEachIsConfirmedOnceUnderLoad_I2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) }
		s := &slowly{roll: roll}
		a := &applied{}
		d := runDispatcher(t, markers.Config{Sink: s, BatchSize: 8, InFlight: 3})
		const n = 600
		want := 0
		for i := range n {
			var ps []txnstate.Participant
			for p := range 1 + roll(4) {
				ps = append(ps, txnstate.Partition(fmt.Sprint(1+roll(2)), int32(p)))
			}
			want += len(ps)
			id := fmt.Sprint("id", i)
			d.Dispatch(outcome(id, 0, ps...), a.of(id))
			if roll(3) == 0 {
				time.Sleep(time.Duration(roll(3000)) * time.Microsecond)
			}
		}
		time.Sleep(time.Minute)
		require.Zero(t, d.Pending())
		got := a.all()
		require.Len(t, got, want)
		for what, k := range got {
			require.Equal(t, 1, k, what)
		}
		require.Equal(t, 3, s.most)
		require.Equal(t, 8, s.largest)
	})
}

// slowly takes its time, and looks whether its deliveries stay the same meanwhile.
type slowly struct {
	roll func(int) int

	mu            sync.Mutex
	now           [10]int
	most, largest int
}

func (s *slowly) WriteMarkers(_ context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	s.mu.Lock()
	s.now[to]++
	s.most, s.largest = max(s.most, s.now[to]), max(s.largest, len(ds))
	s.mu.Unlock()
	time.Sleep(time.Duration(s.roll(4000)) * time.Microsecond)
	out := make([]markers.Result, len(ds))
	for i := range out {
		out[i] = []markers.Result{markers.Applied, markers.Applied, markers.Applied, markers.Retry, markers.Moved}[s.roll(5)]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[to]--
	return out
}
