package lease_test

import (
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// wakeSlowly lets a sleeper go on operation by operation. As long as it does not
// know to be alive again, nothing on the volume but its heartbeat may change, and
// it may own nothing.
func (c *cluster) wakeSlowly(n *node, broker int32) {
	c.t.Helper()
	before := c.tokens()
	for range 10 {
		n.nap()
		for _, b := range n.l.Alive() {
			if b == broker {
				return
			}
		}
		require.Equal(c.t, before, c.tokens())
		require.Empty(c.t, n.holds())
	}
}

// A broker is stopped ahead of every operation of its first heartbeats and claims,
// and of those that follow: the others take over, and it wakes up to nothing.
func TestABrokerStoppedAtAnyOperationWakesToNothing_I10(t *testing.T) {
	join := func(t *testing.T, k int, test func(c *cluster, a, b *node)) {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			a := c.start(1)
			pass(ttl)
			c.spread(a)
			b := c.add(2)
			b.stopAt = k
			c.run(b)
			pass(ttl / 2)
			test(c, a, b)
		})
	}
	var ops []string
	join(t, -1, func(c *cluster, a, b *node) {
		c.spread(a, b)
		ops = b.log
	})
	for k := range ops {
		join(t, k, func(c *cluster, a, b *node) {
			pass(2 * ttl)
			require.True(t, b.sleeping())
			require.Empty(t, b.holds(), "stopped ahead of %s", b.log[k])
			c.spread(a)
			c.wakeSlowly(b, 2)
			b.wake()
			pass(ttl)
			c.spread(a, b)
		})
	}
	t.Logf("stopped ahead of each of %d operations", len(ops))
	require.Greater(t, len(ops), 80)
}

// foundation is the operations of a broker that comes to an empty volume, up to
// its first claims.
func foundation(t *testing.T) (ops []string) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		n := c.start(1)
		pass(0)
		ops = n.log
	})
	end := slices.IndexFunc(ops, func(op string) bool { return strings.HasPrefix(op, "rename data/leases/slots/") })
	require.Greater(t, end, 100)
	return ops[:end]
}

// The same for the broker that founds the tokens.
func TestABrokerStoppedWhileItFoundsTheTokensDisturbsNobody(t *testing.T) {
	stops := 0
	ops := foundation(t)
	for k, op := range ops {
		if strings.Contains(op, "/.slots.") && strings.Contains(op, "nobody") && !strings.Contains(op, "slot-03") {
			continue // the files are made one like the other
		}
		stops++
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			a := c.add(1)
			a.stopAt = k
			c.run(a)
			pass(0)
			b := c.start(2)
			pass(2 * ttl)
			c.spread(b)
			c.wakeSlowly(a, 1)
			a.wake()
			pass(ttl)
			c.spread(a, b)
			require.NoError(t, a.stop())
			a = c.start(1) // the next start has cleared up
			pass(ttl)
			c.spread(a, b)
			entries, err := c.disk.ReadDir("data/leases")
			require.NoError(t, err)
			require.Len(t, entries, 3, entries)
		})
	}
	t.Logf("%d stops in %d operations", stops, len(ops))
	require.Greater(t, stops, 15)
}

// A broker that dies at any operation of a claim is one that never wakes.
func TestABrokerKilledAtAnyOperationIsReplacedByItsNextStart(t *testing.T) {
	for k, more := 0, true; more; k += 7 {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			a := c.start(1)
			b := c.add(2)
			b.stopAt = k
			c.run(b)
			pass(ttl)
			more = b.sleeping()
			b2 := c.start(2)
			pass(ttl)
			c.spread(a, b2)
		})
	}
}

// What a founder leaves that dies on the way is cleared up by whoever starts later.
func TestWhatADeadFounderLeavesIsClearedUp(t *testing.T) {
	ops := foundation(t)
	at := slices.IndexFunc(ops, func(op string) bool { return strings.HasPrefix(op, "sync dir data/leases/.slots.") })
	require.Positive(t, at)
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2, 3)
		defer c.end()
		dead := c.add(1)
		dead.stopAt = at
		c.run(dead)
		pass(0)
		b := c.start(2)
		pass(2 * ttl)
		c.spread(b)
		d := c.start(3)
		pass(ttl)
		c.spread(b, d)
		entries, err := c.disk.ReadDir("data/leases")
		require.NoError(t, err)
		for _, e := range entries {
			require.False(t, strings.HasPrefix(e.Name(), ".slots."), e.Name())
		}
	})
}

// Processes are stopped, woken, cut off, ended and started anew in any order: no
// epoch goes to two, and when that is over all is as it should be.
func TestNoScheduleGivesAnEpochToTwo_I10(t *testing.T) {
	const seeds = 20
	acquired := 0
	for seed := range uint64(seeds) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			c := newCluster(t, fsx.Mem(), 1, 2, 3)
			defer c.end()
			latest := map[int32]*node{1: c.start(1), 2: c.start(2), 3: c.start(3)}
			for range 25 {
				b := int32(1 + r.IntN(3))
				n := latest[b]
				switch r.IntN(6) {
				case 0:
					n.set(func(n *node) { n.stopAt = n.ops + r.IntN(20) })
				case 1:
					c.nodes[r.IntN(len(c.nodes))].wake()
				case 2:
					n.set(func(n *node) { n.dead = !n.dead })
				case 3:
					n.wake()
					_ = n.stop()
					latest[b] = c.start(b)
				case 4: // the old process goes on, or sleeps
					latest[b] = c.start(b)
				case 5:
					n.nap()
				}
				pass(time.Duration(r.Int64N(int64(ttl))))
			}
			for _, n := range c.nodes {
				n.set(func(n *node) { n.dead = false })
				n.wake()
			}
			pass(ttl)
			for b, n := range latest {
				select {
				case <-n.over: // an earlier one had its first heartbeat still ahead, and began later
					latest[b] = c.start(b)
				default:
				}
			}
			pass(2 * ttl)
			c.spread(latest[1], latest[2], latest[3])
			acquired += c.ledger.len()
		})
	}
	t.Logf("%d schedules, %d ownerships", seeds, acquired)
}

func TestBrokersThatBelieveEachOtherDeadNeverShareAnEpoch_I10(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a, b := c.start(1), c.start(2)
		pass(ttl)
		c.spread(a, b)
		blind := func(file string) func(n *node) {
			return func(n *node) {
				n.filter = func(op fsx.Op, name string) error {
					if op == fsx.OpReadFile && strings.HasSuffix(name, file) {
						return fs.ErrNotExist
					}
					return nil
				}
			}
		}
		a.set(blind("broker-2"))
		b.set(blind("leases/broker-1"))
		before := c.ledger.len()
		pass(20 * ttl)
		require.Equal(t, []int32{1}, a.l.Alive())
		require.Equal(t, []int32{2}, b.l.Alive())
		// They take the slots from each other, but not all the time.
		moves := (c.ledger.len() - before) / 50
		require.Greater(t, moves, 20)
		require.Less(t, moves, 20*6+2)
		for _, n := range c.nodes {
			n.set(func(n *node) { n.filter = nil })
		}
		pass(ttl)
		c.spread(a, b)
	})
}

// When a whole machine sleeps, nobody has been away, and nothing moves to another
// broker.
func TestBrokersThatSleptTogetherKeepWhatIsTheirs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2, 3)
		defer c.end()
		nodes := []*node{c.start(1), c.start(2), c.start(3)}
		pass(ttl)
		c.spread(nodes...)
		var mine []map[int]bool
		for _, n := range nodes {
			n.sleep()
			m := map[int]bool{}
			for _, s := range n.holds() {
				m[s] = true
			}
			mine = append(mine, m)
			n.set(func(n *node) { n.history = nil })
		}
		pass(10 * ttl)
		for _, n := range nodes {
			n.wake()
		}
		pass(2 * ttl)
		c.spread(nodes...)
		for i, n := range nodes {
			for _, s := range n.holds() {
				require.True(t, mine[i][s])
			}
			require.Len(t, n.told(), 2*len(mine[i]), "each slot was lost and acquired once")
		}
	})
}

func TestALossOfPowerAtAnyOperationBringsNoEpochBack(t *testing.T) {
	k := 0
	for crashed := true; crashed; k += 4 {
		bubble(t, func(t *testing.T) {
			disk := crashfs.New(uint64(k))
			require.NoError(t, disk.MkdirAll("data", 0o755))
			require.NoError(t, disk.SyncDir("/"))
			disk.CrashAt(disk.Ops() + k)
			c := newCluster(t, disk, 1, 2)
			a := c.start(1)
			c.start(2)
			pass(ttl)
			require.NoError(t, a.stop()) // hands over
			pass(ttl / 3)
			_, crashed = disk.Crashed()
			c.end()
			for _, seed := range []uint64{uint64(k) % 5} {
				next := newCluster(t, disk.Image(seed), 1, 2)
				next.ledger.owner = map[[2]int32]string{}
				for key, name := range c.ledger.owner {
					next.ledger.owner[key] = name
				}
				a, b := next.start(1), next.start(2)
				pass(ttl)
				next.spread(a, b)
				next.end()
			}
		})
	}
	t.Logf("%d operations, every fourth of them", k-4)
	require.Greater(t, k, 400)
}
