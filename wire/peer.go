package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// PeerConfig says how connections to other brokers are made and kept. The zero
// value is plain TCP with Kafka's defaults.
type PeerConfig struct {
	// Dial opens a connection that is ready for Kafka requests: TLS, and the
	// exchange of SASL, are its affair. It returns when ctx ends. nil is plain TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ClientID is what the other broker is told about who asks; "" is "kafkatxn".
	ClientID string

	// Connections is how many connections one address has at most, besides those
	// that an RPCSink gives to single partitions that hang; zero is 4. A Kafka
	// broker works off one request of a connection at a time, so a request that
	// hangs there holds up only what follows it on its connection.
	Connections int
	// InFlight is how many requests one connection has at most; zero is 8. They
	// go to the connection that has the fewest.
	InFlight int

	// DialTimeout bounds Dial and the question for versions; zero is 10 seconds.
	DialTimeout time.Duration
	// RequestTimeout is how long an answer may take (request.timeout.ms); zero is
	// 30 seconds. After that the connection is closed.
	RequestTimeout time.Duration
	// BackoffMin and BackoffMax bound the pause before an address is dialled again
	// after a failure; it doubles each time and varies by half. Zero is 50 ms and
	// 1 s (reconnect.backoff.ms).
	BackoffMin, BackoffMax time.Duration
	// IdleAfter closes connections without a request; zero is 4 minutes, which is
	// less than the 10 after which brokers do.
	IdleAfter time.Duration
	// MaxAnswer is the longest answer in bytes; zero is 16 MiB. A longer one
	// closes the connection.
	MaxAnswer int
}

func (c PeerConfig) validate() error {
	if c.Connections < 0 || c.InFlight < 0 || c.MaxAnswer < 0 ||
		c.DialTimeout < 0 || c.RequestTimeout < 0 || c.BackoffMin < 0 || c.BackoffMax < 0 || c.IdleAfter < 0 {
		return errors.New("wire: PeerConfig has a negative number")
	}
	return nil
}

func (c PeerConfig) withDefaults() PeerConfig {
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	duration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.ClientID == "" {
		c.ClientID = "kafkatxn"
	}
	number(&c.Connections, 4)
	number(&c.InFlight, 8)
	number(&c.MaxAnswer, 16<<20)
	duration(&c.DialTimeout, 10*time.Second)
	duration(&c.RequestTimeout, 30*time.Second)
	duration(&c.BackoffMin, 50*time.Millisecond)
	duration(&c.BackoffMax, time.Second)
	duration(&c.IdleAfter, 4*time.Minute)
	return c
}

var (
	errPeersClosed = errors.New("wire: not running")
	errPeerTooOld  = errors.New("wire: the broker serves no version of the API that is spoken here")
	errPeerSilent  = errors.New("wire: no answer in time")
	errPeerIdle    = errors.New("wire: connection closed for want of use")
	errPeerLeft    = errors.New("wire: connection given up for a request that took too long")
)

// peers is connections to other brokers, by address. They live while run does.
type peers struct {
	cfg PeerConfig
	log *slog.Logger
	fmt *kmsg.RequestFormatter

	work sync.WaitGroup // all goroutines

	mu      sync.Mutex // never held in a call of Dial, or while something waits
	ctx     context.Context
	started bool
	nodes   map[string]*peer
}

// peer is one address. Guarded by peers.mu.
type peer struct {
	addr     string
	conns    []*peerConn
	changed  chan struct{} // closed when a connection gets room, or is gone
	failures int           // in a row
	next     time.Time     // when it may be dialled again
	last     error
}

func newPeers(cfg PeerConfig, log *slog.Logger) *peers {
	cfg = cfg.withDefaults()
	return &peers{cfg: cfg, log: log, fmt: kmsg.NewRequestFormatter(kmsg.FormatterClientID(cfg.ClientID)), nodes: map[string]*peer{}}
}

// run keeps connections until ctx is done; then it closes them, fails what waits
// for an answer, waits for every goroutine and returns nil.
func (p *peers) run(ctx context.Context) error {
	p.mu.Lock()
	if p.started {
		p.mu.Unlock()
		return errors.New("wire: Run was called before")
	}
	p.started, p.ctx = true, ctx
	p.mu.Unlock()
	tick := time.NewTicker(max(p.cfg.IdleAfter/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.closeIdle(time.Now())
			continue
		case <-ctx.Done():
		}
		p.mu.Lock()
		p.ctx = nil
		var all []*peerConn
		for _, n := range p.nodes {
			all = append(all, n.conns...)
		}
		p.mu.Unlock()
		for _, c := range all {
			c.fail(errPeersClosed)
		}
		p.work.Wait()
		return nil
	}
}

// spawn runs f until the end of run at the latest, or reports that it is over.
func (p *peers) spawn(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.ctx.Err() != nil {
		return false
	}
	ctx := p.ctx
	p.work.Go(func() { f(ctx) })
	return true
}

// closeIdle closes what is not used, and forgets addresses that nobody asks for
// any more: brokers come and go.
func (p *peers) closeIdle(now time.Time) {
	var idle []*peerConn
	p.mu.Lock()
	for addr, n := range p.nodes {
		for _, c := range n.conns {
			if c.load == 0 && now.Sub(c.used) >= p.cfg.IdleAfter {
				idle = append(idle, c)
			}
		}
		if len(n.conns) == 0 && now.After(n.next) {
			delete(p.nodes, addr)
		}
	}
	p.mu.Unlock()
	for _, c := range idle {
		c.fail(errPeerIdle)
	}
}

// ask sends one request to an address and gives its answer; see start. The end
// of ctx ends the waiting.
func (p *peers) ask(ctx context.Context, addr string, key int16, build func(lo, hi int16) (kmsg.Request, error)) (kmsg.Response, error) {
	call, err := p.start(ctx, addr, key, false, build)
	if err != nil {
		return nil, err
	}
	select {
	case err := <-call.done:
		return call.resp, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start sends one request to an address. build makes it for the versions that the
// broker serves. One that is alone shares its connection with no other: it may
// hang. The end of ctx ends the waiting for a connection; once started, the
// request keeps its place until it is answered, or the connection is closed for
// it, and call.done is told in any case.
//
// An error, here or there, means that nobody knows whether the broker has seen it.
func (p *peers) start(ctx context.Context, addr string, key int16, alone bool, build func(lo, hi int16) (kmsg.Request, error)) (call *peerCall, err error) {
	c, err := p.acquire(ctx, addr, alone)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.release(c, alone)
		}
	}()
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := c.failure(); err != nil {
		return nil, err
	}
	v, ok := c.versions[key]
	if !ok {
		return nil, errPeerTooOld
	}
	req, err := build(v[0], v[1])
	if err != nil {
		return nil, err
	}
	call = &peerCall{resp: req.ResponseKind(), alone: alone, done: make(chan error, 1)}
	return call, c.send(req, call)
}

// acquire finds a place for a request on a connection: on one that has nothing
// to do, on a new one, on the one that has least to do, or later.
func (p *peers) acquire(ctx context.Context, addr string, alone bool) (*peerConn, error) {
	for {
		p.mu.Lock()
		if p.ctx == nil || p.ctx.Err() != nil {
			p.mu.Unlock()
			return nil, errPeersClosed
		}
		n := p.nodes[addr]
		if n == nil {
			n = &peer{addr: addr, changed: make(chan struct{})}
			p.nodes[addr] = n
		}
		c, err := p.place(n, alone)
		changed, again := n.changed, time.Until(n.next)
		if c != nil {
			c.load++
			c.alone = c.alone || alone
			c.used = time.Now()
		}
		p.mu.Unlock()
		if c != nil || err != nil {
			return c, err
		}
		var dialable <-chan time.Time
		var timer *time.Timer
		if again > 0 {
			timer = time.NewTimer(again)
			dialable = timer.C
		}
		select {
		case <-changed:
		case <-dialable:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if timer != nil {
			timer.Stop()
		}
		if err != nil {
			return nil, err
		}
	}
}

// aloneFactor bounds the connections of requests that may hang, as a multiple of
// PeerConfig.Connections, which they do not count against.
const aloneFactor = 4

// place is acquire's choice; nil and nil to wait. p.mu is held.
func (p *peers) place(n *peer, alone bool) (*peerConn, error) {
	var best *peerConn // of those that are shared
	hanging := 0
	for _, c := range n.conns {
		if c.alone {
			hanging++
		} else if best == nil || c.load < best.load {
			best = c
		}
	}
	if best != nil && best.load == 0 {
		return best, nil
	}
	room := len(n.conns)-hanging < p.cfg.Connections
	if alone {
		room = hanging < aloneFactor*p.cfg.Connections
	}
	if room {
		switch wait := time.Until(n.next); {
		case wait <= 0:
			c := p.dial(n)
			n.conns = append(n.conns, c)
			return c, nil
		case len(n.conns) == 0:
			return nil, fmt.Errorf("wire: %s is not dialled again for %v: %w", n.addr, wait, n.last)
		}
	}
	if best == nil || alone || best.load >= p.cfg.InFlight {
		return nil, nil
	}
	return best, nil
}

// release gives back the place of a request that was not sent.
func (p *peers) release(c *peerConn, alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freed(c, alone)
}

// freed books the end of a request. p.mu is held.
func (p *peers) freed(c *peerConn, alone bool) {
	c.load--
	if alone {
		c.alone = false
	}
	c.used = time.Now()
	c.node.wake()
}

func (n *peer) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// gone takes a connection off its address and says when the next one may be
// dialled. It reports how many failures that makes, where that is worth a word: at
// 1, 2, 4, 8 of them. p.mu is held.
func (p *peers) gone(c *peerConn, err error) (tell int) {
	n := c.node
	for i := range n.conns {
		if n.conns[i] == c {
			n.conns = append(n.conns[:i], n.conns[i+1:]...)
			break
		}
	}
	if err != errPeerIdle && err != errPeerLeft {
		pause := p.cfg.BackoffMax
		if n.failures < 20 {
			pause = min(pause, p.cfg.BackoffMin<<n.failures)
		}
		n.failures++
		n.last = err
		n.next = time.Now().Add(pause/2 + rand.N(pause/2+1))
		if n.failures&(n.failures-1) == 0 {
			tell = n.failures
		}
		if errors.Is(err, io.EOF) || errors.Is(err, errPeersClosed) || errors.Is(err, context.Canceled) {
			tell = 0 // closed by the other side, or by the end of run
		}
	}
	n.wake()
	return tell
}
