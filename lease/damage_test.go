package lease_test

import (
	"context"
	"io/fs"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

func TestDamageBlocksNobody(t *testing.T) {
	for name, data := range map[string]string{
		"empty":             "",
		"garbage":           "\x00\x00\x00\x00",
		"another's":         "{}",
		"cut off":           `{"generation":3,"nonce":"A","counter":`,
		"huge":              strings.Repeat(" ", 1<<16),
		"an unknown state":  `{"generation":3,"nonce":"A","counter":1,"state":"?"}`,
		"beyond counting":   `{"generation":9223372036854775807,"nonce":"A","counter":1,"state":"up"}`,
		"a later process":   `{"generation":4000000000000000000,"nonce":"A","counter":1,"state":"up"}`,
		"resigned long ago": `{"generation":1,"nonce":"A","counter":1,"state":"resigned"}`,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCluster(t, fsx.Mem(), 1, 2)
				defer c.end()
				beat := "data/leases/broker-2"
				require.NoError(t, c.disk.MkdirAll("data/leases", 0o755))
				require.NoError(t, c.disk.Replace(beat, []byte(data), 0o644))
				a := c.start(1)
				pass(2 * ttl)
				c.spread(a)

				b := c.start(2)
				pass(ttl)
				c.spread(a, b)
				require.NoError(t, c.disk.Replace(beat, []byte(data), 0o644))
				for s, tok := range c.tokens() {
					if s%2 == 0 {
						require.NoError(t, c.disk.Replace(path.Join("data/leases/slots", tokenName(s, tok)), []byte(data), 0o644))
					}
				}
				pass(ttl)
				if name != "a later process" { // its own is the one that ends
					c.spread(a, b)
				}
			})
		})
	}
}

func tokenName(slot int, rest string) string {
	return "slot-" + string(rune('0'+slot/10)) + string(rune('0'+slot%10)) + "." + rest
}

func TestWhatIsNoTokenIsPassedOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		for _, name := range []string{
			"slot-07", "slot-7.0000000009.broker-2", "slot-07.9.broker-2", "slot-50.0000000009.broker-2",
			"slot-07.0000000000.broker-2", "slot-07.0000000009.nobody", "slot-07.9999999999.broker-2",
			"slot--1.0000000009.broker-2", "slot-07.0000000009.broker--2", ".nfs0001", "README",
		} {
			require.NoError(t, c.disk.Replace("data/leases/slots/"+name, nil, 0o644))
		}
		b := c.start(2)
		pass(ttl)
		c.spread(a, b)
		require.EqualValues(t, 2, b.epoch(7))
	})
}

// A token that a person removed leaves its slot without an owner: nobody knows
// which epoch would be a new one. The others go on.
func TestASlotWithoutATokenStaysAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		require.NoError(t, c.disk.Remove("data/leases/slots/slot-07.0000000001.broker-1"))
		pass(ttl)
		require.Zero(t, a.epoch(7))
		require.Len(t, a.holds(), 49)
		b := c.start(2)
		pass(ttl)
		require.Len(t, b.holds(), 24)
		require.Len(t, a.holds(), 25)
	})
}

// Two tokens of a slot, as a file system leaves them that breaks a rename apart
// when power is lost, are the higher one.
func TestOfTwoTokensTheHigherCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		require.NoError(t, c.disk.Replace("data/leases/slots/slot-07.0000000005.broker-2", nil, 0o644))
		b := c.start(2)
		pass(ttl)
		c.spread(a, b)
		require.EqualValues(t, 6, b.epoch(7))
		c.tokens() // one of each
	})
}

// stale is a volume whose listings can be stopped at what they are.
type stale struct {
	fsx.FS
	mu     sync.Mutex
	frozen map[string][]fs.DirEntry // nil: not frozen
}

func (s *stale) ReadDir(name string) ([]fs.DirEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		return s.FS.ReadDir(name)
	}
	if old, ok := s.frozen[name]; ok {
		return old, nil
	}
	entries, err := s.FS.ReadDir(name)
	if err == nil {
		s.frozen[name] = entries
	}
	return entries, err
}

func (s *stale) freeze(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = nil
	if on {
		s.frozen = map[string][]fs.DirEntry{}
	}
}

func TestAListingOutOfDateMisleadsNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		disk := fsx.Mem()
		c := newCluster(t, disk, 1, 2)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		cached := &stale{FS: disk}
		c.disk = cached
		b := c.start(2)
		c.disk = disk
		pass(ttl)
		c.spread(a, b)

		// b sees the directory as it is now, while a takes all and gives up again.
		cached.freeze(true)
		pass(ttl)
		b.sleep()
		pass(2 * ttl)
		c.spread(a)
		b.wake()
		pass(ttl)
		require.Empty(t, b.holds(), "its claims go by names that are gone")
		cached.freeze(false)
		pass(ttl)
		c.spread(a, b)
	})
}

// A claim that may not be durable is not used: power could bring its epoch back.
func TestAClaimThatCantBeSyncedIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a := c.add(1)
		a.filter = func(op fsx.Op, name string) error {
			if op == fsx.OpSyncDir && strings.HasSuffix(name, "leases/slots") {
				return errVolume
			}
			return nil
		}
		c.run(a)
		pass(2 * ttl)
		require.Equal(t, []int32{1}, a.l.Alive())
		require.Empty(t, a.holds())
		require.Zero(t, c.ledger.len())
		a.set(func(n *node) { n.filter = nil })
		pass(ttl)
		c.spread(a)
		require.Greater(t, a.epoch(7), int32(3), "the epochs of the claims that failed are passed over")
	})
}

// What a woken owner believes is one thing, and the volume another.
func TestStillAsksTheVolume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx := context.Background()
		c := newCluster(t, fsx.Mem(), 1, 2)
		defer c.end()
		a := c.start(1)
		pass(ttl)
		require.EqualValues(t, 1, a.epoch(7))
		still, err := a.l.Still(ctx, 7, 0)
		require.NoError(t, err)
		require.True(t, still)
		for _, no := range [][2]int{{7, -1}, {7, 1}, {-1, 0}, {50, 0}} {
			still, err = a.l.Still(ctx, no[0], int32(no[1]))
			require.NoError(t, err)
			require.False(t, still, no)
		}
		// A look that failed is no answer, and changes nothing.
		a.set(func(n *node) { n.dead = true })
		_, err = a.l.Still(ctx, 7, 0)
		require.ErrorIs(t, err, errVolume)
		a.set(func(n *node) { n.dead = false })
		still, err = a.l.Still(ctx, 7, 0)
		require.NoError(t, err)
		require.True(t, still)

		// Another has claimed it, and nobody has noticed yet.
		require.NoError(t, c.disk.Rename("data/leases/slots/slot-07.0000000001.broker-1", "data/leases/slots/slot-07.0000000002.broker-2"))
		require.EqualValues(t, 1, a.epoch(7))
		still, err = a.l.Still(ctx, 7, 0)
		require.NoError(t, err)
		require.False(t, still)
		pass(0)
		require.Zero(t, a.epoch(7), "the owner was told")
		pass(ttl / 6)
		require.Zero(t, a.epoch(7), "it does not take it back at once")
		pass(ttl)
		require.EqualValues(t, 3, a.epoch(7))
	})
}
