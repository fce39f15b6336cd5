package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// peerConn is one connection to another broker: being made until ready is
// closed, of use until dead is.
type peerConn struct {
	peers *peers
	node  *peer

	ready    chan struct{}
	versions map[int16][2]int16 // by API key, lowest and highest; read after ready
	out      chan []byte        // as many as there are requests in flight, so that nobody waits to put one in
	dead     chan struct{}
	once     sync.Once

	// Guarded by peers.mu.
	load    int  // requests that have a place here
	alone   bool // one of them shares it with no other
	used    time.Time
	net     net.Conn
	pending map[int32]*peerCall
	next    int32
	err     error // once dead
}

// peerCall is a request that waits for its answer.
type peerCall struct {
	conn  *peerConn
	resp  kmsg.Response
	alone bool
	timer *time.Timer
	done  chan error // has room
}

// dial starts a connection. p.mu is held, and p.ctx runs.
func (p *peers) dial(n *peer) *peerConn {
	c := &peerConn{
		peers: p, node: n, ready: make(chan struct{}), dead: make(chan struct{}),
		out: make(chan []byte, p.cfg.InFlight), pending: map[int32]*peerCall{}, used: time.Now(),
	}
	ctx := p.ctx
	p.work.Go(func() { c.live(ctx) })
	return c
}

// live makes the connection and reads answers until it ends.
func (c *peerConn) live(ctx context.Context) {
	ready := sync.OnceFunc(func() { close(c.ready) })
	defer ready()
	err := c.open(ctx)
	if err == nil {
		ready()
		c.peers.work.Go(c.write) // run waits, for this goroutine is counted
		err = c.read()
	}
	c.fail(err)
}

// open dials and asks for versions.
func (c *peerConn) open(ctx context.Context) error {
	cfg := &c.peers.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	conn, err := cfg.Dial(ctx, c.node.addr)
	if err != nil {
		return fmt.Errorf("wire: dial %s: %w", c.node.addr, err)
	}
	c.peers.mu.Lock()
	c.net = conn
	over := c.err
	c.peers.mu.Unlock()
	if over != nil { // failed meanwhile, and nobody else closes it
		_ = conn.Close()
		return over
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	// Version 0 is understood by all: a broker that does not know a later one
	// answers in it.
	req := kmsg.NewPtrApiVersionsRequest()
	if _, err := conn.Write(c.peers.fmt.AppendRequest(nil, req, math.MaxInt32)); err != nil {
		return fmt.Errorf("wire: %s: ask for versions: %w", c.node.addr, err)
	}
	frame, err := readAnswer(bufio.NewReader(conn), cfg.MaxAnswer)
	if err != nil {
		return fmt.Errorf("wire: %s: versions: %w", c.node.addr, err)
	}
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	if err := resp.ReadFrom(frame[4:]); err != nil {
		return fmt.Errorf("wire: %s: versions: %w", c.node.addr, err)
	}
	if resp.ErrorCode != 0 {
		return fmt.Errorf("wire: %s: versions: error %d", c.node.addr, resp.ErrorCode)
	}
	c.versions = map[int16][2]int16{}
	for _, k := range resp.ApiKeys {
		c.versions[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	return ctx.Err()
}

// send puts a request, with the place it has, on the connection.
func (c *peerConn) send(req kmsg.Request, call *peerCall) error {
	p := c.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if c.next == math.MaxInt32 {
		c.next = 0
	}
	id := c.next
	c.next++
	c.pending[id] = call
	call.conn = c
	call.timer = time.AfterFunc(p.cfg.RequestTimeout, func() { c.fail(fmt.Errorf("%w: %s, API %d", errPeerSilent, c.node.addr, req.Key())) })
	c.out <- p.fmt.AppendRequest(nil, req, id) // has room: as many as have a place
	return nil
}

func (c *peerConn) write() {
	for {
		select {
		case b := <-c.out:
			_ = c.net.SetWriteDeadline(time.Now().Add(c.peers.cfg.RequestTimeout))
			if _, err := c.net.Write(b); err != nil {
				c.fail(fmt.Errorf("wire: write to %s: %w", c.node.addr, err))
				return
			}
		case <-c.dead:
			return
		}
	}
}

func (c *peerConn) read() error {
	r := bufio.NewReader(c.net)
	for {
		frame, err := readAnswer(r, c.peers.cfg.MaxAnswer)
		if err != nil {
			return err
		}
		id := int32(binary.BigEndian.Uint32(frame))
		c.peers.mu.Lock()
		call := c.pending[id]
		delete(c.pending, id)
		c.peers.mu.Unlock()
		if call == nil {
			return fmt.Errorf("wire: %s answered a request %d that waits for none", c.node.addr, id)
		}
		call.timer.Stop()
		err = decodeAnswer(call.resp, frame[4:])
		call.done <- err
		c.peers.mu.Lock()
		c.peers.freed(c, call.alone)
		if err == nil {
			c.node.failures = 0
		}
		c.peers.mu.Unlock()
		if err != nil {
			return fmt.Errorf("wire: answer of %s: %w", c.node.addr, err)
		}
	}
}

// fail ends the connection: what waits for an answer gets the error.
func (c *peerConn) fail(err error) {
	c.once.Do(func() {
		p := c.peers
		p.mu.Lock()
		c.err = err
		conn := c.net
		calls := c.pending
		c.pending = nil
		tell := p.gone(c, err)
		p.mu.Unlock()
		if tell > 0 {
			p.log.Warn("connection to a broker failed", "addr", c.node.addr, "failures", tell, "err", err)
		}
		close(c.dead)
		if conn != nil {
			_ = conn.Close()
		}
		for _, call := range calls {
			call.timer.Stop()
			call.done <- err
		}
	})
}

// giveUp closes the connection of a request that nobody waits for any more. What
// was sent behind it would have waited as well.
func (call *peerCall) giveUp() { call.conn.fail(errPeerLeft) }

// failure is why the connection is of no use any more, or nil.
func (c *peerConn) failure() error {
	c.peers.mu.Lock()
	defer c.peers.mu.Unlock()
	return c.err
}

// readAnswer reads one answer, from its correlation id on. Memory is taken as
// bytes arrive, not as the length says.
func readAnswer(r *bufio.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < 4 || n > limit {
		return nil, fmt.Errorf("wire: an answer of %d bytes", n)
	}
	const step = 64 << 10
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		b = slices.Grow(b, min(n-len(b), max(len(b), 512)))
		k, err := io.ReadFull(r, b[len(b):min(cap(b), n)])
		b = b[:len(b)+k]
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// decodeAnswer reads the rest of an answer: what is left of its header, and its
// body.
func decodeAnswer(resp kmsg.Response, b []byte) error {
	if !resp.IsFlexible() {
		return resp.ReadFrom(b)
	}
	number := func() (v uint64) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			b = nil
			return math.MaxUint64
		}
		b = b[n:]
		return v
	}
	for tags := number(); tags > 0; tags-- {
		_ = number() // which tag
		size := number()
		if size > uint64(len(b)) {
			return errors.New("header cut short")
		}
		b = b[size:]
	}
	return resp.ReadFrom(b)
}
