package minibroker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// server is the broker's connections.
type server struct {
	b   *Broker
	ctx context.Context // ends with the service
	// calls is the context of requests that end by themselves. Where it can't end,
	// the coordinator needs no goroutine beside the connection's for a call.
	calls context.Context

	mu    sync.Mutex
	ended bool
	conns int
	wg    sync.WaitGroup // accept loops and connections
}

func newServer(b *Broker, ctx context.Context) *server {
	s := &server{b: b, ctx: ctx, calls: ctx}
	if b.cluster == nil { // in a cluster they wait for other brokers
		s.calls = context.WithoutCancel(ctx)
	}
	return s
}

const (
	// readAhead is how much of a connection is read while a request waits: what
	// comes is left there, and that nothing more can come tells that the client has
	// gone.
	readAhead = 4 << 10
	// growth is how much memory a request that only says how long it is may have.
	growth = 64 << 10
	// keepAnswer is how much memory of an answer is kept for the next.
	keepAnswer = 16 << 10
	// idle closes a connection that sends nothing (connections.max.idle.ms).
	idle = 10 * time.Minute
	// patience is how long a client may take to read an answer.
	patience = time.Minute
	// setAgain is how old a deadline of a connection may be, in parts of its
	// length: one for each request would cost more than it tells.
	setAgain = 8
)

// anonymous is who everybody is who comes by a connection: there is no
// authentication here.
const anonymous wire.Principal = "User:ANONYMOUS"

// enter counts an accept loop or a connection; false where the service has ended.
func (s *server) enter(conn bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.ctx.Err() != nil || conn && s.conns >= s.b.cfg.Limits.Connections {
		return false
	}
	if conn {
		s.conns++
	}
	s.wg.Add(1)
	return true
}

// wait returns when no connection is left. The context has ended.
func (s *server) wait() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.wg.Wait()
}

// serve accepts connections until the service ends, and closes l.
func (s *server) serve(l net.Listener) error {
	if !s.enter(false) {
		_ = l.Close()
		return nil
	}
	defer s.wg.Done()
	stop := context.AfterFunc(s.ctx, func() { _ = l.Close() })
	defer func() {
		if stop() {
			_ = l.Close()
		}
	}()
	for {
		c, err := l.Accept()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case err != nil:
			var pass interface{ Temporary() bool }
			if !errors.As(err, &pass) || !pass.Temporary() {
				return fmt.Errorf("minibroker: accept: %w", err)
			}
			// Out of file descriptors, say: it passes when connections end.
			select {
			case <-time.After(50 * time.Millisecond):
			case <-s.ctx.Done():
			}
			continue
		}
		if !s.enter(true) {
			_ = c.Close()
			continue
		}
		go func() {
			defer s.leave()
			s.connection(c)
		}()
	}
}

func (s *server) leave() {
	s.mu.Lock()
	s.conns--
	s.mu.Unlock()
	s.wg.Done()
}

// conn is one connection. Its requests are worked off in order, one at a time, as
// Kafka does.
type conn struct {
	net.Conn
	r             *bufio.Reader
	from          client
	readBy, setBy time.Time // when the deadlines were set
	waiting       *waiting  // of the request that is worked off
}

// connection serves one connection until it ends, or what it sends can't be
// understood, or the service ends.
func (s *server) connection(nc net.Conn) {
	defer nc.Close()
	stop := context.AfterFunc(s.ctx, func() { _ = nc.Close() })
	defer stop()
	c := &conn{Conn: nc, r: bufio.NewReaderSize(nc, readAhead), from: client{host: remoteHost(nc)}}
	var out []byte
	for {
		if now := time.Now(); now.Sub(c.readBy) > idle/setAgain {
			_ = c.SetReadDeadline(now.Add(idle))
			c.readBy = now
		}
		b, err := readFrame(c.r, s.b.cfg.Limits.FrameBytes)
		if err != nil {
			return
		}
		out, err = s.answer(s.calls, c.wait, b, c.from, out[:0])
		if err == nil && len(out) > 0 {
			if now := time.Now(); now.Sub(c.setBy) > patience/setAgain {
				_ = c.SetWriteDeadline(now.Add(patience))
				c.setBy = now
			}
			_, err = c.Write(out)
		}
		c.answered()
		if err != nil {
			return
		}
		if cap(out) > keepAnswer {
			out = nil
		}
	}
}

// waiting listens for the end of a connection while a request of it waits.
type waiting struct {
	over chan struct{} // closed when the request is answered
	done chan struct{} // closed when nobody reads any more
}

// wait is a context that ends when the client has gone, or the service ends. From
// here on until the request is answered the connection is read by nobody else.
func (c *conn) wait(ctx context.Context) context.Context {
	ctx, gone := context.WithCancel(ctx)
	w := &waiting{make(chan struct{}), make(chan struct{})}
	c.waiting = w
	go func() {
		defer close(w.done)
		defer gone()
		for c.r.Buffered() < c.r.Size() {
			if _, err := c.r.Peek(c.r.Buffered() + 1); err != nil {
				return
			}
		}
		<-w.over // there is more than is looked at
	}()
	return ctx
}

// answered ends wait.
func (c *conn) answered() {
	if c.waiting == nil {
		return
	}
	close(c.waiting.over)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // ends the reading
	<-c.waiting.done
	c.waiting, c.readBy = nil, time.Time{}
}

func remoteHost(c net.Conn) string {
	a := c.RemoteAddr()
	if a == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// headerBytes is what every request has at least: key, version and correlation id.
const headerBytes = 8

// readFrame reads one request. Memory is taken as bytes arrive, not as the length
// says. Other requests than produce can't be as long: their decoded form takes
// a multiple of their bytes.
func readFrame(r *bufio.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < headerBytes || n > limit {
		return nil, fmt.Errorf("minibroker: a request of %d bytes", n)
	}
	key, err := r.Peek(2)
	if err != nil {
		return nil, err
	}
	if k := int16(binary.BigEndian.Uint16(key)); k != int16(kmsg.Produce) && n > limit/8 {
		return nil, fmt.Errorf("minibroker: a request of key %d and %d bytes", k, n)
	}
	b := make([]byte, 0, min(n, growth))
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
