package twoowners

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// gate stops everything that a process does with files, from one operation on.
type gate struct {
	mu     sync.Mutex
	left   int // operations until then, -1: never
	op     string
	asleep chan struct{} // nil while awake
}

func (g *gate) before(op fsx.Op, name string) error {
	g.mu.Lock()
	if g.left == 0 && g.asleep == nil {
		g.asleep, g.op = make(chan struct{}), fmt.Sprintf("%s %s", op, name)
	}
	if g.left > 0 {
		g.left--
	}
	asleep := g.asleep
	g.mu.Unlock()
	if asleep != nil {
		<-asleep
	}
	return nil
}

func (g *gate) arm(left int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = left
}

func (g *gate) sleeping() (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.op, g.asleep != nil
}

func (g *gate) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = -1
	if g.asleep != nil {
		close(g.asleep)
		g.asleep = nil
	}
}

// The whole of it: two brokers with leases and slot files on one volume. The owner
// is stopped, with all its files, ahead of every operation of a request; the other
// takes over and gives the id to another client; the owner wakes up. What is stored
// stays as it is, and all that holds for two owners holds.
func TestAnOwnerStoppedAtAnyOperationOfAChangeWakesToNothing_I5_I6_I10(t *testing.T) {
	const ttl = 3 * time.Second
	for _, name := range []string{"a commit and an init, TV2", "two inits", "a commit and an abort", "a commit and a timeout"} {
		if slow && !*everything && name != "a commit and an init, TV2" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			k := 0
			for slept := true; slept; k++ {
				synctest.Test(t, func(t *testing.T) {
					slept = false
					fsys := disk(t)
					w := &world{}
					var g [2]gate
					var stores []txnstate.Store
					var owners []txnstate.Ownership
					var ends []func()
					for i := range 2 {
						g[i].left = -1
						under := fsx.Hook(fsys, g[i].before)
						h := slots(t, under)
						// The id's own broker comes first.
						own := int32(txnstate.SlotOrder(txnstate.Slot(id))+i) % 2
						l, err := lease.New(lease.Config{Dir: "/cluster", Broker: own, Brokers: []int32{0, 1}, TTL: ttl, FS: under})
						require.NoError(t, err)
						ctx, cancel := context.WithCancel(context.Background())
						done := make(chan error, 1)
						go func() { done <- l.Run(ctx) }()
						ends = append(ends, func() {
							cancel()
							require.NoError(t, <-done)
							require.NoError(t, h.Close())
						})
						stores, owners = append(stores, h), append(owners, l)
					}
					w.startOwned(t, stores, owners, func(s steps) txnstate.Store { return s.inner })
					w.sched.on = false
					time.Sleep(ttl)
					synctest.Wait()

					cs := fights[name]()
					ask := func(c *client) {
						for range 20 {
							if c.err = c.ask(w, w.procs[c.process], c.name); !retriable(c.err) {
								return
							}
							time.Sleep(time.Second)
						}
					}
					g[0].arm(k)
					answered := make(chan struct{})
					go func() {
						defer close(answered)
						cs[0].err = cs[0].ask(w, w.procs[0], cs[0].name)
					}()
					synctest.Wait()
					var op string
					op, slept = g[0].sleeping()
					if slept {
						time.Sleep(2 * ttl)
						ask(cs[1])
						time.Sleep(2 * ttl) // what was to be written later is written
						stored := func() txnstate.Record {
							h := slots(t, fsys)
							rec, err := h.Load(context.Background(), id)
							require.NoError(t, err)
							require.NoError(t, h.Close())
							return rec
						}
						before := stored()
						g[0].wake()
						<-answered
						synctest.Wait()
						require.Equal(t, before, stored(), "asleep ahead of %s, it wrote", op)
					}
					g[0].wake()
					<-answered
					// The one that was asked is told to look for the coordinator again: it is
					// the first once more, by now.
					time.Sleep(ttl)
					for _, c := range cs {
						if c.err == nil || txnstate.CodeOf(c.err) == txnstate.CodeNotCoordinator || retriable(c.err) {
							c.process = 0
							ask(c)
						}
					}
					w.procs = w.procs[:1] // the other one does not own the id
					require.NoError(t, w.check(cs...), "asleep ahead of %s", op)
					for _, stop := range w.stops {
						stop()
					}
					for _, end := range ends {
						end()
					}
				})
			}
			t.Logf("stopped ahead of each of %d operations", k-1)
			require.Greater(t, k, 10)
		})
	}
}
