package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestConfigNamesAllThatIsWrong(t *testing.T) {
	_, err := lease.New(lease.Config{Broker: 4, Brokers: []int32{-1, 2}, TTL: time.Millisecond})
	for _, part := range []string{"Dir", "without Config.Broker", "negative", "50ms"} {
		require.ErrorContains(t, err, part)
	}
}

func TestSlotsAreSpreadOverTheLiveBrokersAndMoveWithThem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2, 3)
		defer c.end()
		a := c.start(1)
		pass(ttl / 2)
		require.Len(t, a.holds(), 17, "those who were never seen may be about to start")
		pass(ttl)
		c.spread(a)
		b, d := c.start(2), c.start(3)
		pass(ttl)
		c.spread(a, b, d)

		// The end of Run hands over at once.
		require.NoError(t, b.stop())
		pass(ttl / 6)
		require.Empty(t, b.holds())
		require.Empty(t, b.l.Alive())
		c.spread(a, d)

		// A broker that returns gets its slots back.
		b2 := c.start(2)
		pass(ttl)
		c.spread(a, b2, d)
	})
}

// What becomes of the others is no reason to give up what stays one's own.
func TestABrokerKeepsItsSlotsWhenOthersComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2, 3)
		defer c.end()
		a, b, d := c.start(1), c.start(2), c.start(3)
		pass(2 * ttl)
		c.spread(a, b, d)
		own := map[int]int32{}
		for _, s := range a.holds() {
			own[s] = a.epoch(s)
		}
		require.Len(t, own, 17)
		require.NoError(t, b.stop())
		pass(ttl)
		d.set(func(n *node) { n.dead = true })
		pass(2 * ttl)
		require.Len(t, a.holds(), txnstate.Slots)
		b = c.start(2)
		d.set(func(n *node) { n.dead = false })
		pass(2 * ttl)
		c.spread(a, b, d)
		for s, epoch := range own {
			require.Equal(t, epoch, a.epoch(s), "slot %d", s)
		}
	})
}

// How long slots are without an owner who serves them.
func TestATakeoverTakesTheTTLAndAHandoverOneLook(t *testing.T) {
	for name, tc := range map[string]struct {
		end              func(n *node)
		earliest, latest time.Duration
	}{
		"stopped":     {(*node).sleep, ttl - ttl/6, ttl + ttl/6},
		"cut off":     {func(n *node) { n.set(func(n *node) { n.dead = true }) }, ttl - ttl/6, ttl + ttl/6},
		"handed over": {func(n *node) { _ = n.stop() }, 0, ttl / 12},
	} {
		for offset := range time.Duration(6) { // between the looks of the two
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					c := newCluster(t, fsx.Mem(), 1, 2)
					defer c.end()
					a := c.start(1)
					pass(offset * ttl / 12 / 6)
					b := c.start(2)
					pass(2*ttl + offset*ttl/7)
					c.spread(a, b)
					from := time.Now()
					tc.end(b)
					for len(a.holds()) < txnstate.Slots {
						pass(10 * time.Millisecond)
						if tc.earliest > 0 && len(b.holds()) > 0 {
							require.Len(t, a.holds(), txnstate.Slots/2, "the one that is cut off gives up first")
						}
					}
					took := time.Since(from)
					require.GreaterOrEqual(t, took, tc.earliest)
					require.LessOrEqual(t, took, tc.latest+10*time.Millisecond)
				})
			})
		}
	}
}

func TestABrokerWhoseVolumeIsGoneGivesUpAndIsTakenOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a, b := c.start(1), c.start(2)
		pass(ttl)
		c.spread(a, b)
		b.set(func(n *node) { n.dead = true })
		pass(ttl - ttl/6)
		require.NotEmpty(t, b.holds(), "it is not dead for others yet")
		pass(ttl / 2)
		require.Empty(t, b.holds(), "others must think that it is dead")
		c.spread(a)

		b.set(func(n *node) { n.dead = false })
		pass(ttl)
		c.spread(a, b)
	})
}

func TestARunAsTheSameBrokerEndsTheOneBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a, old := c.start(1), c.start(2)
		pass(ttl)
		c.spread(a, old)
		later := c.start(2)
		pass(ttl)
		require.ErrorIs(t, old.stop(), lease.ErrReplaced)
		c.spread(a, later)
	})
}

func TestRunIsCalledOnce(t *testing.T) {
	l, err := lease.New(lease.Config{Dir: "d", Broker: 1, Brokers: []int32{1}, FS: fsx.Mem()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, l.Run(ctx))
	require.Error(t, l.Run(ctx))
}

func TestPlacementIsPickSlotOwners(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 7, 1, 4)
		defer c.end()
		a := c.add(4)
		_, ok := a.l.Owner(3)
		require.False(t, ok, "nobody is alive before Run")
		c.run(a)
		c.start(7)
		pass(ttl)
		require.Equal(t, []int32{4, 7}, a.l.Alive())
		for n := range 200 {
			want, _ := txnstate.PickSlotOwner(n, c.brokers, []int32{4, 7})
			got, ok := a.l.Owner(n)
			require.True(t, ok)
			require.Equal(t, want, got, n)
		}
		_, ok = a.l.Owner(-1)
		require.False(t, ok)
	})
}
