package lease_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 3 * time.Second

var errVolume = errors.New("the volume is gone")

// ledger is who was told that it owns what. Nobody may be told what another was.
type ledger struct {
	mu    sync.Mutex
	owner map[[2]int32]string // slot and epoch
	wrong []string
}

func (l *ledger) acquired(name string, slot int, epoch int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := [2]int32{int32(slot), epoch}
	if other, ok := l.owner[k]; ok {
		l.wrong = append(l.wrong, fmt.Sprintf("slot %d at epoch %d went to %s and to %s", slot, epoch, other, name))
	}
	if l.owner == nil {
		l.owner = map[[2]int32]string{}
	}
	l.owner[k] = name
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.owner)
}

// node is a broker, or one of several processes of a broker.
type node struct {
	name string
	l    *lease.Lease

	mu      sync.Mutex
	ops     int
	log     []string // operations
	stopAt  int      // the operation ahead of which everything stops, or -1
	asleep  chan struct{}
	dead    bool // every operation fails
	filter  func(op fsx.Op, name string) error
	owns    map[int]int32 // by the notices
	history []string

	stop  func() error  // ends Run
	over  chan struct{} // closed when Run has returned
	watch func()        // ends Watch
}

// cluster is brokers on one volume, in a bubble.
type cluster struct {
	t       *testing.T
	disk    fsx.FS
	ledger  ledger
	brokers []int32
	nodes   []*node
}

func newCluster(t *testing.T, disk fsx.FS, brokers ...int32) *cluster {
	return &cluster{t: t, disk: disk, brokers: brokers}
}

// add makes a process of a broker; it is started by start.
func (c *cluster) add(broker int32) *node {
	n := &node{name: fmt.Sprintf("broker %d process %d", broker, len(c.nodes)), stopAt: -1, owns: map[int]int32{}}
	l, err := lease.New(lease.Config{Dir: "data", Broker: broker, Brokers: c.brokers, TTL: ttl, FS: fsx.Hook(c.disk, n.before)})
	require.NoError(c.t, err)
	n.l = l
	c.nodes = append(c.nodes, n)
	return n
}

func (c *cluster) start(broker int32) *node {
	n := c.add(broker)
	c.run(n)
	return n
}

func (c *cluster) run(n *node) {
	watching, unwatch := context.WithCancel(context.Background())
	go func() {
		_ = n.l.Watch(watching, func(slot int, epoch int32) {
			epoch++ // the number of the claim, as in the token's name
			c.ledger.acquired(n.name, slot, epoch)
			n.mu.Lock()
			defer n.mu.Unlock()
			n.owns[slot] = epoch
			n.history = append(n.history, fmt.Sprintf("+%d@%d", slot, epoch))
		}, func(slot int, epoch int32) {
			epoch++
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.owns[slot] == epoch {
				delete(n.owns, slot)
			}
			n.history = append(n.history, fmt.Sprintf("-%d@%d", slot, epoch))
		})
	}()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	n.over = make(chan struct{})
	go func() {
		defer close(n.over)
		done <- n.l.Run(ctx)
	}()
	n.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	n.watch = unwatch
}

// end ends all, also those that sleep, and demands that no epoch was held twice.
func (c *cluster) end() {
	for _, n := range c.nodes {
		n.wake()
		if n.stop != nil {
			_ = n.stop()
			synctest.Wait()
			require.Empty(c.t, n.holds(), "%s has ended", n.name)
			n.watch()
		}
	}
	synctest.Wait()
	require.Empty(c.t, c.ledger.wrong)
}

func (n *node) before(op fsx.Op, name string) error {
	n.mu.Lock()
	if n.asleep == nil && n.ops == n.stopAt {
		n.asleep = make(chan struct{})
	}
	n.ops++
	n.log = append(n.log, string(op)+" "+name)
	asleep := n.asleep
	n.mu.Unlock()
	if asleep != nil {
		<-asleep
	}
	n.mu.Lock()
	dead, filter := n.dead, n.filter
	n.mu.Unlock()
	if dead {
		return &fs.PathError{Op: string(op), Path: name, Err: errVolume}
	}
	if filter != nil {
		return filter(op, name)
	}
	return nil
}

// sleep stops the process ahead of its next operation.
func (n *node) sleep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopAt = n.ops
}

// sleeping reports whether an operation is held up.
func (n *node) sleeping() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asleep != nil
}

// wake lets everything go on.
func (n *node) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopAt = -1
	if n.asleep != nil {
		close(n.asleep)
		n.asleep = nil
	}
}

// nap lets what is held up do its one operation, and stops what comes after it.
func (n *node) nap() {
	n.mu.Lock()
	old := n.asleep
	n.asleep = make(chan struct{})
	n.mu.Unlock()
	if old != nil {
		close(old)
	}
	synctest.Wait()
}

func (n *node) set(change func(n *node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// holds is the slots that the process was told it owns.
func (n *node) holds() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var slots []int
	for s := range txnstate.Slots {
		if _, ok := n.owns[s]; ok {
			slots = append(slots, s)
		}
	}
	return slots
}

func (n *node) epoch(slot int) int32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.owns[slot]
}

func (n *node) told() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.history)
}

// pass lets time go by and everything come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// spread demands that every slot is served by exactly the broker that placement
// over those alive gives it.
func (c *cluster) spread(nodes ...*node) {
	c.t.Helper()
	var alive []int32
	byBroker := map[int32]*node{}
	for _, n := range nodes {
		var b int32
		_, err := fmt.Sscanf(n.name, "broker %d", &b)
		require.NoError(c.t, err)
		alive = append(alive, b)
		byBroker[b] = n
	}
	slices.Sort(alive)
	// Thousands of these are compared in a test, and require is slow at it.
	for _, n := range nodes {
		if !slices.Equal(alive, n.l.Alive()) {
			require.Equal(c.t, alive, n.l.Alive(), n.name)
		}
	}
	for s := range txnstate.Slots {
		owner, _ := txnstate.PickSlotOwner(s, c.brokers, alive)
		for b, n := range byBroker {
			if served := n.epoch(s) != 0; served != (b == owner) {
				require.Fail(c.t, "wrong owner", "slot %d is broker %d's, and served is %v at %s", s, owner, served, n.name)
			}
			if by, ok := n.l.Owner(s); !ok || by != owner {
				require.Fail(c.t, "wrong placement", "slot %d is broker %d's, and %s says %d", s, owner, n.name, by)
			}
		}
	}
}

// tokens is what the volume has: who holds each slot, and at which epoch.
func (c *cluster) tokens() map[int]string {
	c.t.Helper()
	entries, err := c.disk.ReadDir("data/leases/slots")
	require.NoError(c.t, err)
	found := map[int]string{}
	for _, e := range entries {
		var slot int
		if _, err := fmt.Sscanf(e.Name(), "slot-%d.", &slot); err != nil {
			continue
		}
		if have, twice := found[slot]; twice {
			require.Fail(c.t, "two tokens", "slot %d: %s and %s", slot, have, e.Name())
		}
		found[slot] = strings.TrimPrefix(e.Name(), fmt.Sprintf("slot-%02d.", slot))
	}
	require.Len(c.t, found, txnstate.Slots)
	return found
}

func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}
