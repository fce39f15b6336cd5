package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// lan is the network between the brokers of a trio: connections that keep the
// order of bytes, take their time, and end anywhere.
type lan struct {
	c *trio

	mu   sync.Mutex
	cuts map[[2]int]chan struct{} // from, to: nothing comes through until it is closed

	// ends is the share of connections that are cut after some bytes; refused that of
	// dials that are.
	ends, refused float64
	// stubborn: what was written before a connection was closed may still arrive.
	stubborn bool
}

func addrOf(i int) string { return fmt.Sprintf("broker-%d:9092", i) }

func newLAN(c *trio) *lan {
	return &lan{c: c, cuts: map[[2]int]chan struct{}{}}
}

// cut is closed when bytes get from one broker to another again; nil: they do.
func (n *lan) cut(from, to int) chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cuts[[2]int{from, to}]
}

// sever keeps bytes from getting from one broker to another until mend.
func (n *lan) sever(from, to int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := [2]int{from, to}; n.cuts[k] == nil && !n.c.w.calm.Load() {
		n.cuts[k] = make(chan struct{})
	}
}

func (n *lan) mend(from, to int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := [2]int{from, to}; n.cuts[k] != nil {
		close(n.cuts[k])
		delete(n.cuts, k)
	}
}

func (n *lan) heal() {
	for i := range n.c.nodes() {
		for j := range n.c.nodes() {
			n.mend(i, j)
		}
	}
}

// reset ends all connections between two brokers.
func (n *lan) reset(i, j int) {
	var cs []*conn
	for _, own := range []int{i, j} {
		if p := n.c.up(own); p != nil {
			cs = append(cs, p.backlog.with(i+j-own)...)
		}
	}
	for _, c := range cs {
		c.snap()
	}
}

// backlog is the listener of one life.
type backlog struct {
	p     *member
	queue chan net.Conn
	once  sync.Once
	over  chan struct{}

	mu    sync.Mutex
	conns []*conn
	shutd bool
}

func newBacklog(p *member) *backlog {
	return &backlog{p: p, queue: make(chan net.Conn, 1024), over: make(chan struct{})}
}

func (l *backlog) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		if err := l.p.pass(); err != nil {
			return nil, net.ErrClosed
		}
		return c, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

func (l *backlog) Close() error {
	l.once.Do(func() { close(l.over) })
	return nil
}

type lanAddr string

func (a lanAddr) Network() string { return "lan" }
func (a lanAddr) String() string  { return string(a) }

func (l *backlog) Addr() net.Addr { return lanAddr(addrOf(l.p.id)) }

// shut ends all connections of a life; told: the other sides hear of it.
func (l *backlog) shut(told bool) {
	_ = l.Close()
	l.mu.Lock()
	l.shutd = true
	cs := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range cs {
		_ = c.shut(told, syscall.ECONNRESET)
	}
}

// adds books a connection of a life; false where that is over.
func (l *backlog) adds(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shutd {
		return false
	}
	l.conns = append(l.conns, c)
	return true
}

// with is the connections with a broker.
func (l *backlog) with(i int) (cs []*conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if c.other.id == i {
			cs = append(cs, c)
		}
	}
	return cs
}

func (l *backlog) drops(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = slices.DeleteFunc(slices.Clone(l.conns), func(x *conn) bool { return x == c })
}

// dial connects a broker to another one.
func (p *member) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, n := p.c, p.c.lan
	to := -1
	for i := range c.nodes() {
		if addrOf(i) == addr {
			to = i
		}
	}
	if err := p.pass(); err != nil {
		return nil, err
	}
	if !sleep(ctx, p.fate("dial", addr).between(100*time.Microsecond, 3*time.Millisecond)) {
		return nil, ctx.Err()
	}
	for _, way := range [2][2]int{{p.id, to}, {to, p.id}} {
		for cut := n.cut(way[0], way[1]); cut != nil; cut = n.cut(way[0], way[1]) {
			select {
			case <-cut:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	if err := p.pass(); err != nil {
		return nil, err
	}
	there := c.up(to)
	if there == nil || !c.w.calm.Load() && p.fate("dialled", addr).chance(n.refused) {
		return nil, syscall.ECONNREFUSED
	}
	d := c.w.dice("connection %s %s %d", p.name, there.name, p.dialled[to].Add(1))
	here, far := newFlow(n, p, there), newFlow(n, there, p)
	a, b := newConn(p, there, far, here, d), newConn(there, p, here, far, d)
	if !p.backlog.adds(a) {
		return nil, errDead
	}
	if !there.backlog.adds(b) {
		p.backlog.drops(a)
		return nil, syscall.ECONNREFUSED
	}
	c.running.Go(func() { here.pump(far) })
	c.running.Go(func() { far.pump(here) })
	select {
	case there.backlog.queue <- b:
		return a, nil
	default:
		a.snap()
		return nil, syscall.ECONNREFUSED
	}
}

// flow is one direction of a connection.
type flow struct {
	n        *lan
	from, to *member

	mu       sync.Mutex
	way      []parcel // on its way, in the order of arrival
	silent   bool     // nothing more comes, and nobody is told
	in       []byte   // has arrived
	end      error    // comes behind it
	unread   bool     // the reader has closed it
	deadline time.Time
	changed  chan struct{} // closed when one of these changes
}

type parcel struct {
	at  time.Time
	b   []byte
	end error // in place of bytes
}

func newFlow(n *lan, from, to *member) *flow {
	return &flow{n: n, from: from, to: to, changed: make(chan struct{})}
}

// change changes something.
func (f *flow) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// put has something on its way.
func (f *flow) put(d *dice, b []byte, end error) {
	wait := d.between(50*time.Microsecond, 3*time.Millisecond)
	if !f.n.c.w.calm.Load() && d.chance(0.01) {
		wait += d.skewed(4 * time.Second)
	}
	f.change(func() {
		at := time.Now().Add(wait)
		if k := len(f.way); k > 0 && !at.After(f.way[k-1].at) {
			at = f.way[k-1].at.Add(1)
		}
		f.way = append(f.way, parcel{at, b, end})
	})
}

// finish ends a flow at once.
func (f *flow) finish(err error) {
	f.change(func() {
		f.way = nil
		if f.end == nil {
			f.end = err
		}
	})
}

// pump carries what is on its way to its end. back is the other direction.
func (f *flow) pump(back *flow) {
	for {
		f.mu.Lock()
		if f.end != nil || f.silent || f.unread {
			f.mu.Unlock()
			return
		}
		changed := f.changed
		var wait time.Duration
		if len(f.way) > 0 {
			wait = time.Until(f.way[0].at)
		}
		idle := len(f.way) == 0
		f.mu.Unlock()
		if idle {
			<-changed
			continue
		}
		if wait > 0 {
			time.Sleep(wait)
			continue
		}
		if cut := f.n.cut(f.from.id, f.to.id); cut != nil {
			select {
			case <-cut:
			case <-changed:
			}
			continue
		}
		if f.to.dead.Load() {
			f.mu.Lock()
			f.way = nil
			f.mu.Unlock()
			if f.n.c.up(f.to.id) != nil {
				back.finish(syscall.ECONNRESET) // the machine is up again, and knows nothing of it
				return
			}
			continue
		}
		f.change(func() {
			if len(f.way) > 0 { // else it was called off
				f.in, f.end = append(f.in, f.way[0].b...), f.way[0].end
				f.way = f.way[1:]
			}
		})
	}
}

// conn is one end of a connection.
type conn struct {
	own, other *member
	r, w       *flow
	d          *dice

	mu      sync.Mutex
	left    int // bytes that may be written before it is cut, -1: any
	closed  bool
	writeBy time.Time
}

func newConn(own, other *member, r, w *flow, d *dice) *conn {
	c := &conn{own: own, other: other, r: r, w: w, d: d, left: -1}
	if !own.c.w.calm.Load() && d.chance(own.c.lan.ends) {
		c.left = d.n(4000)
	}
	return c
}

func (c *conn) Read(p []byte) (int, error) {
	f := c.r
	for {
		if err := c.own.pass(); err != nil {
			return 0, err
		}
		f.mu.Lock()
		n := 0
		var err error
		switch {
		case f.unread:
			err = net.ErrClosed
		case !f.deadline.IsZero() && !time.Now().Before(f.deadline):
			err = os.ErrDeadlineExceeded
		case len(f.in) > 0:
			n = copy(p, f.in)
			f.in = f.in[n:]
		default:
			err = f.end
		}
		changed, by := f.changed, f.deadline
		f.mu.Unlock()
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if by.IsZero() {
			<-changed
			continue
		}
		t := time.NewTimer(time.Until(by))
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if err := c.own.pass(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r.mu.Lock()
	broken := c.r.end
	c.r.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case broken != nil && broken != io.EOF:
		return 0, broken
	case !c.writeBy.IsZero() && !time.Now().Before(c.writeBy):
		return 0, os.ErrDeadlineExceeded
	case c.left >= 0 && len(p) > c.left:
		c.w.put(c.d, slices.Clone(p[:c.left]), nil)
		c.w.put(c.d, nil, syscall.ECONNRESET)
		c.r.finish(syscall.ECONNRESET)
		return c.left, syscall.ECONNRESET
	case c.left >= 0:
		c.left -= len(p)
	}
	c.w.put(c.d, slices.Clone(p), nil)
	return len(p), nil
}

// Close ends the connection. Under protocol 1 nobody can tell a marker that comes
// late from one that is due, so what is on its way then is lost, but for worlds
// without that protocol.
func (c *conn) Close() error { return c.shut(true, io.EOF) }

// shut ends this end; told: the other one hears of it.
func (c *conn) shut(told bool, how error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.own.backlog.drops(c)
	c.r.change(func() { c.r.unread = true })
	c.w.change(func() {
		if !c.own.c.lan.stubborn {
			c.w.way = nil
		}
		c.w.silent = !told
	})
	if told {
		c.w.put(c.d, nil, how)
	}
	return nil
}

// snap cuts it.
func (c *conn) snap() {
	c.r.finish(syscall.ECONNRESET)
	c.w.finish(syscall.ECONNRESET)
}

func (c *conn) LocalAddr() net.Addr  { return lanAddr(addrOf(c.own.id)) }
func (c *conn) RemoteAddr() net.Addr { return lanAddr(addrOf(c.other.id)) }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.r.change(func() { c.r.deadline = t })
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return nil
}
