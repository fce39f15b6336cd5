package sim

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is the brokers of a world, as clients and faults see them.
type cluster interface {
	// nodes is how many brokers there are, numbered from 0.
	nodes() int
	// handle has a broker answer a request that has arrived there. It fails where
	// the broker is down or the connection ends, and takes as long as the broker is
	// stopped.
	handle(node int, req kmsg.Request) (kmsg.Response, error)
	// heal ends all faults that last.
	heal()
	// stop ends all.
	stop()
	// check looks at what only the inside shows, when all has settled.
	check()
}

var (
	errLost = errors.New("sim: no answer")
	errDown = errors.New("sim: the connection is refused")
)

// network carries requests of clients. While faults last, a message may be lost,
// come late or come twice.
type network struct {
	w *world
	c cluster
	m *model

	chances *dice
	loss    float64 // of each message, and so on
	late    float64
	twice   float64
	slowest time.Duration // of a late one
}

// call is one request on its way: who sends it and for what.
type call struct {
	who *instance // nil: nobody that the model watches
	txn *txn
	rec *rec
	off *staged
	// stale is asked when a copy arrives that its sender may have given up on; see
	// instance.legacy.
	stale func() bool
}

// delay is how long a message takes, and whether it arrives.
func (n *network) delay() (d time.Duration, arrives bool) {
	d = n.chances.between(50*time.Microsecond, 3*time.Millisecond)
	if n.w.calm.Load() {
		return d, true
	}
	if n.chances.chance(n.loss) {
		return d, false
	}
	if n.chances.chance(n.late) {
		d += n.chances.skewed(n.slowest)
	}
	return d, true
}

type answer struct {
	resp kmsg.Response
	err  error
}

// send sends a request to a broker and waits for the answer.
func (n *network) send(ctx context.Context, from string, node int, req kmsg.Request, patience time.Duration, c call) (kmsg.Response, error) {
	n.w.mu.Lock()
	n.w.messages++
	n.w.mu.Unlock()
	answers := make(chan answer, 2)
	copies := 1
	if !n.w.calm.Load() && n.chances.chance(n.twice) {
		copies = 2
		if c.who != nil {
			c.who.dirty.Store(true)
		}
	}
	for i := range copies {
		d, arrives := n.delay()
		if i > 0 {
			d += n.chances.skewed(n.slowest)
		}
		back, returns := n.delay()
		if !arrives {
			continue
		}
		go func() {
			time.Sleep(d)
			if c.stale != nil && c.stale() {
				return
			}
			at := time.Now()
			n.m.arrives(c, req)
			plain := c.off != nil && c.txn.plain
			if plain {
				n.m.enters(c.off)
			}
			resp, err := n.c.handle(node, req)
			if plain {
				n.m.leaves(c.off)
			}
			if err == nil {
				n.m.answered(c, node, req, resp, at)
			} else if err == errDown {
				n.m.refused(c, req)
			}
			if !returns {
				return
			}
			time.Sleep(back)
			answers <- answer{resp, err}
		}()
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case a := <-answers:
		return a.resp, a.err
	case <-t.C:
		return nil, errLost
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
