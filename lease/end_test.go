package lease_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
)

// The end gives everything up at once, also where the volume hangs, and a heartbeat
// that ends well afterwards takes nothing back (I10).
func TestTheEndWaitsForNoHeartbeatBeforeSlotsAreGivenUp_I10(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		require.Len(t, a.holds(), 50)
		g := newGate(fsx.OpRename, "broker-1")
		a.set(func(n *node) { n.filter = g.filter })
		<-g.met
		ended := make(chan error, 1)
		go func() { ended <- a.stop() }()
		pass(0)
		require.Empty(t, a.holds())
		require.Empty(t, a.l.Alive())
		require.Empty(t, ended, "the heartbeat is under way")
		close(g.open)
		require.NoError(t, <-ended)
		require.Empty(t, a.l.Alive())
		_, ok := a.l.Owner(7)
		require.False(t, ok)
	})
}

// A process that was replaced says so also when the later one has resigned already.
func TestAProcessReplacedByOneThatHasResignedSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		c.beatFile("broker-1", math.MaxInt64/4, "later", "resigned")
		pass(ttl)
		require.Empty(t, a.holds())
		require.ErrorIs(t, a.stop(), lease.ErrReplaced)
	})
}
