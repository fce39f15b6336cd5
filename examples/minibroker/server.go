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

	mu    sync.Mutex
	ended bool
	conns int
	wg    sync.WaitGroup // accept loops and connections
}

func newServer(b *Broker, ctx context.Context) *server { return &server{b: b, ctx: ctx} }

const (
	// pipelined is how many requests of a connection are read ahead. They are
	// worked off in order, one at a time, as Kafka does; reading ahead tells that
	// a client has gone while its request waits.
	pipelined = 16
	// readAhead is the size from which a request is worked off before the next
	// is read.
	readAhead = 64 << 10
	// idle closes a connection that sends nothing (connections.max.idle.ms).
	idle = 10 * time.Minute
	// patience is how long a client may take to read an answer.
	patience = time.Minute
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

// frame is one request as it came.
type frame struct {
	bytes []byte
	done  chan struct{} // closed when it is answered
}

// connection serves one connection until it ends, or what it sends can't be
// understood, or ctx is done.
func (s *server) connection(c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(s.ctx, func() { _ = c.Close() })
	defer stop()
	from := client{host: remoteHost(c)}

	frames := make(chan frame, pipelined)
	gone, leave := context.WithCancel(s.ctx) // ends when nothing more can be read
	quit := make(chan struct{})              // closed when nothing more is answered
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(frames)
		defer leave()
		s.read(c, frames, quit)
	})
	for f := range frames {
		out, err := s.answer(s.ctx, gone, f.bytes, from)
		if err == nil && len(out) > 0 {
			_ = c.SetWriteDeadline(time.Now().Add(patience))
			_, err = c.Write(out)
		}
		close(f.done)
		if err != nil {
			break
		}
	}
	_ = c.Close()
	close(quit)
	reader.Wait()
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

// read hands over requests until the connection ends.
func (s *server) read(c net.Conn, frames chan<- frame, quit <-chan struct{}) {
	r := bufio.NewReaderSize(c, 4096)
	for {
		_ = c.SetReadDeadline(time.Now().Add(idle))
		b, err := readFrame(r, s.b.cfg.Limits.FrameBytes)
		if err != nil {
			return
		}
		f := frame{b, make(chan struct{})}
		select {
		case frames <- f:
		case <-quit:
			return
		}
		if len(b) < readAhead {
			continue
		}
		select {
		case <-f.done:
		case <-quit:
			return
		}
	}
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
	b := make([]byte, 0, min(n, readAhead))
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
