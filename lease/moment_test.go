package lease_test

import (
	"context"
	"encoding/json"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// What follows happens at one moment of an operation that takes its time.

// gate is an operation that waits for somebody.
type gate struct {
	op     fsx.Op
	suffix string
	open   chan struct{}
	once   sync.Once
	met    chan struct{} // closed when the operation is there
}

func newGate(op fsx.Op, suffix string) *gate {
	return &gate{op: op, suffix: suffix, open: make(chan struct{}), met: make(chan struct{})}
}

func (g *gate) filter(op fsx.Op, name string) error {
	if op == g.op && strings.HasSuffix(name, g.suffix) {
		g.once.Do(func() { close(g.met) })
		<-g.open
	}
	return nil
}

func (c *cluster) beatFile(broker string, generation int64, nonce, state string) {
	c.t.Helper()
	b, err := json.Marshal(map[string]any{"generation": generation, "nonce": nonce, "counter": int64(1 << 40), "state": state})
	require.NoError(c.t, err)
	require.NoError(c.t, c.disk.MkdirAll("data/leases", 0o755))
	require.NoError(c.t, c.disk.Replace("data/leases/"+broker, b, 0o644))
}

// A claim whose sync takes its time is used only if nobody has claimed the slot in
// the meantime, if it is known that nobody has, and if the claimer is still alive.
func TestAClaimIsUsedOnlyIfItStillCounts_I10(t *testing.T) {
	const token = "data/leases/slots/slot-07.0000000001.broker-1"
	for name, tc := range map[string]struct {
		meanwhile func(c *cluster, a *node)
		owned     int
	}{
		"nothing happened": {func(*cluster, *node) {}, 50},
		"another has claimed one": {func(c *cluster, _ *node) {
			require.NoError(c.t, c.disk.Rename(token, "data/leases/slots/slot-07.0000000002.broker-2"))
		}, 49},
		"one can't be looked at": {func(_ *cluster, a *node) {
			a.set(func(n *node) {
				n.filter = func(op fsx.Op, name string) error {
					if op == fsx.OpReadFile && name == token {
						return errVolume
					}
					return nil
				}
			})
		}, 49},
		"the heartbeats have failed": {func(_ *cluster, a *node) {
			a.set(func(n *node) {
				n.filter = func(op fsx.Op, name string) error {
					if op == fsx.OpRename && path.Base(name) == "broker-1" {
						return errVolume
					}
					return nil
				}
			})
			pass(2 * ttl)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCluster(t, fsx.Mem(), 1)
				defer c.end()
				a := c.add(1)
				g := newGate(fsx.OpSyncDir, "leases/slots")
				a.filter = g.filter
				c.run(a)
				<-g.met
				require.Empty(t, a.holds(), "the claims are not durable")
				tc.meanwhile(c, a)
				close(g.open)
				pass(0)
				require.Len(t, a.holds(), tc.owned)
				require.Len(t, a.told(), tc.owned)
			})
		})
	}
}

// A look of Still that took long tells of the claim it was about, not of a later one.
func TestALookThatTookLongEndsNoLaterClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		const first = "data/leases/slots/slot-07.0000000001.broker-1"
		g := newGate(fsx.OpReadFile, path.Base(first))
		a.set(func(n *node) { n.filter = g.filter })
		answer := make(chan bool)
		go func() {
			still, err := a.l.Still(context.Background(), 7, 0)
			answer <- still || err != nil
		}()
		<-g.met
		a.set(func(n *node) { n.filter = nil })
		require.NoError(t, c.disk.Rename(first, "data/leases/slots/slot-07.0000000002.broker-2"))
		pass(ttl)
		require.EqualValues(t, 3, a.epoch(7))
		close(g.open)
		require.False(t, <-answer)
		pass(0)
		require.EqualValues(t, 3, a.epoch(7))
	})
}

// What was given up is not owned, though the volume still says so.
func TestStillIsFalseForWhatWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		require.EqualValues(t, 1, a.epoch(7))
		require.NoError(t, a.stop())
		require.Equal(t, "0000000001.broker-1", c.tokens()[7])
		still, err := a.l.Still(context.Background(), 7, 0)
		require.NoError(t, err)
		require.False(t, still)
	})
}

// A watcher that is slow hears of a loss before it hears of the claim after it.
func TestASlowWatcherHearsOfALossFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		slow := make(chan struct{})
		var told []int32
		go func() {
			_ = a.l.Watch(ctx, func(slot int, epoch int32) {
				if slot == 7 {
					told = append(told, epoch+1)
				}
				<-slow
			}, func(slot int, epoch int32) {
				if slot == 7 {
					told = append(told, -epoch-1)
				}
			})
		}()
		pass(0)
		const dir = "data/leases/slots/slot-07."
		require.NoError(t, c.disk.Rename(dir+"0000000001.broker-1", dir+"0000000002.broker-2"))
		pass(ttl)
		require.EqualValues(t, 3, a.epoch(7))
		close(slow)
		pass(0)
		require.Equal(t, []int32{1, -1, 3}, told)
	})
}

// Who resigns owns nothing any more, and beats no more: others act on it at once.
func TestABrokerResignsWhenItHasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		var resigning []bool // of each heartbeat, whether nothing is owned
		a.set(func(n *node) {
			n.filter = func(op fsx.Op, name string) error {
				if op == fsx.OpRename && path.Base(name) == "broker-1" {
					resigning = append(resigning, len(a.l.Alive()) == 0)
				}
				return nil
			}
		})
		require.NoError(t, a.stop())
		require.Equal(t, []bool{true}, resigning)
	})
}

// Epochs don't wrap.
func TestTheLastEpochIsTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		const dir = "data/leases/slots/slot-07."
		require.NoError(t, c.disk.Rename(dir+"0000000001.broker-1", dir+"2147483647.broker-2"))
		pass(2 * ttl)
		require.Len(t, a.holds(), 49)
		require.Equal(t, "2147483647.broker-2", c.tokens()[7])
	})
}

// Who can't read the heartbeat of another takes nobody for dead.
func TestABrokerThatCantSeeTakesNobodyForDead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a, b := c.start(1), c.start(2)
		pass(ttl)
		c.spread(a, b)
		a.set(func(n *node) {
			n.filter = func(op fsx.Op, name string) error {
				if op == fsx.OpReadFile && path.Base(name) == "broker-2" {
					return errVolume
				}
				return nil
			}
		})
		pass(3 * ttl)
		c.spread(a, b)
		require.Len(t, a.holds(), 25)
		require.Len(t, a.told(), 25, "nothing has moved")
	})
}

// An earlier process of a broker, which was stopped and wakes up, disturbs nobody by
// what it writes; the process that lives is believed.
func TestAHeartbeatOfAnEarlierProcessIsNoNews(t *testing.T) {
	for _, state := range []string{"up", "resigned"} {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			a, b := c.start(1), c.start(2)
			pass(ttl)
			for range 6 {
				c.beatFile("broker-2", 1, "A", state)
				pass(ttl / 5) // not in step with the heartbeats
			}
			c.spread(a, b)
			require.Len(t, a.told(), 25, "nothing has moved")
		})
	}
}

// A broker whose clock went back, or whose heartbeat was damaged, starts as the later
// process, at once.
func TestALaterProcessIsLaterByClockOrByFile(t *testing.T) {
	t.Run("the clock went back", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			c.beatFile("broker-2", time.Now().Add(time.Hour).UnixMilli(), "A", "up")
			a := c.start(1)
			pass(ttl / 2)
			b := c.start(2)
			pass(2 * ttl)
			c.spread(a, b)
			require.Len(t, a.told(), 25, "it was not taken for dead")
		})
	})
	t.Run("the file was damaged", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			a, old := c.start(1), c.start(2)
			pass(ttl)
			old.sleep()
			pass(ttl / 3)
			require.NoError(t, c.disk.Replace("data/leases/broker-2", []byte("{"), 0o644))
			later := c.start(2)
			pass(ttl / 6)
			old.wake()
			pass(ttl)
			require.ErrorIs(t, old.stop(), lease.ErrReplaced)
			c.spread(a, later)
		})
	})
	t.Run("a generation that nobody can reach", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := newCluster(t, fsx.Mem(), 1, 2)
			defer c.end()
			c.beatFile("broker-2", 1<<61, "A", "up")
			a := c.start(1)
			pass(2 * ttl)
			c.spread(a)
			require.NoError(t, c.disk.Remove("data/leases/broker-2"))
			b := c.start(2)
			pass(ttl)
			c.spread(a, b)
		})
	})
}

// Two processes of a broker never write to one temporary file.
func TestProcessesOfABrokerHaveFilesOfTheirOwn_W20(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		defer c.end()
		a, b := c.start(1), c.start(1)
		pass(ttl)
		var made [2]map[string]bool
		for i, n := range []*node{a, b} {
			made[i] = map[string]bool{}
			n.set(func(n *node) {
				for _, line := range n.log {
					if name, ok := strings.CutPrefix(line, string(fsx.OpOpenFile)+" "); ok {
						made[i][name] = true
					}
				}
			})
			require.NotEmpty(t, made[i])
		}
		for name := range made[0] {
			require.NotContains(t, made[1], name)
		}
	})
}

// A listing that is out of date ends no ownership: the name itself is asked.
func TestAListingOutOfDateEndsNoOwnership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		disk := fsx.Mem()
		c := newCluster(t, disk, 1)
		defer c.end()
		require.NoError(t, c.start(1).stop()) // makes the tokens, perhaps not claimed
		cached := &stale{FS: disk}
		cached.freeze(true)
		c.disk = cached
		a := c.start(1)
		pass(3 * ttl)
		require.Len(t, a.holds(), 50)
		require.Len(t, a.told(), 50, "nothing was lost")
		c.disk = disk
	})
}

// A heartbeat counts from when its writing began: others may have seen it then, and
// wait no longer.
func TestAHeartbeatCountsFromTheBeginningOfItsWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1)
		n := c.start(1)
		pass(10 * ttl)
		require.Len(t, n.holds(), txnstate.Slots)
		var began time.Time
		n.set(func(n *node) {
			n.filter = func(_ fsx.Op, name string) error {
				if !strings.Contains(name, ".broker-1.") {
					return nil
				}
				if began.IsZero() {
					began = time.Now()
					time.Sleep(3 * ttl / 4)
					return nil
				}
				if time.Since(began) > 3*ttl/4 {
					return errVolume
				}
				return nil
			}
		})
		pass(ttl/6 + ttl + ttl/6)
		require.Empty(t, n.holds())
		c.end()
	})
}
