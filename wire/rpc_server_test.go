package wire_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// rpcNet is brokers that can be dialled, in memory: it works in a bubble of
// testing/synctest.
type rpcNet struct {
	mu      sync.Mutex
	servers map[string]*rpcServer
	dials   map[string]int
	hang    bool // dials take for ever
}

func newRPCNet() *rpcNet { return &rpcNet{servers: map[string]*rpcServer{}, dials: map[string]int{}} }

var errRefused = errors.New("connection refused")

func (n *rpcNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[addr]++
	s, hang := n.servers[addr], n.hang
	n.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s == nil {
		return nil, errRefused
	}
	return s.accept()
}

func (n *rpcNet) dialled(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[addr]
}

// rpcServer is the requests of one broker: of each connection one at a time and
// in order, as Kafka's are.
type rpcServer struct {
	versions map[int16][2]int16
	handle   func(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	// edit may change an answer's bytes, or give none.
	edit func(key int16, answer []byte) []byte

	mu    sync.Mutex
	life  context.Context
	die   context.CancelFunc
	conns []net.Conn
	wg    sync.WaitGroup
	seen  [][]byte // requests, but for those for versions
}

func newRPCServer(t testing.TB, n *rpcNet, addr string, versions map[int16][2]int16, handle func(context.Context, kmsg.Request) (kmsg.Response, error)) *rpcServer {
	s := &rpcServer{versions: versions, handle: handle}
	s.start()
	n.mu.Lock()
	n.servers[addr] = s
	n.mu.Unlock()
	t.Cleanup(func() {
		s.stop()
		s.wg.Wait()
	})
	return s
}

func (s *rpcServer) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life, s.die = context.WithCancel(context.Background())
}

// stop is the death of the process: connections end, and so does what they wait for.
func (s *rpcServer) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.die()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

func (s *rpcServer) accept() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, errRefused
	}
	here, there := net.Pipe()
	s.take(here)
	return there, nil
}

// serve takes a connection that was made in another way.
func (s *rpcServer) serve(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(c)
}

func (s *rpcServer) take(c net.Conn) {
	s.conns = append(s.conns, c)
	life := s.life
	s.wg.Go(func() {
		defer c.Close()
		for s.one(life, c) == nil {
		}
	})
}

func (s *rpcServer) one(ctx context.Context, c net.Conn) error {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	frame := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c, frame); err != nil {
		return err
	}
	req, id, err := decodeRequest(frame)
	if err != nil {
		return err
	}
	var resp kmsg.Response
	if _, ok := req.(*kmsg.ApiVersionsRequest); ok {
		r := kmsg.NewPtrApiVersionsResponse()
		for key, v := range s.versions {
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey, k.MinVersion, k.MaxVersion = key, v[0], v[1]
			r.ApiKeys = append(r.ApiKeys, k)
		}
		resp = r
	} else {
		s.mu.Lock()
		s.seen = append(s.seen, frame)
		s.mu.Unlock()
		if resp, err = s.handle(ctx, req); err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	resp.SetVersion(req.GetVersion())
	b := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(id))
	if resp.IsFlexible() && resp.Key() != 18 {
		b = append(b, 0)
	}
	b = resp.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	if s.edit != nil {
		if b = s.edit(req.Key(), b); b == nil {
			return nil
		}
	}
	_, err = c.Write(b)
	return err
}

// again handles once more what was asked so far.
func (s *rpcServer) again(ctx context.Context) {
	s.mu.Lock()
	frames := slices.Clone(s.seen)
	s.mu.Unlock()
	for _, f := range frames {
		if req, _, err := decodeRequest(f); err == nil {
			_, _ = s.handle(ctx, req)
		}
	}
}

func (s *rpcServer) requests() []kmsg.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []kmsg.Request
	for _, f := range s.seen {
		req, _, err := decodeRequest(f)
		if err != nil {
			panic(err)
		}
		out = append(out, req)
	}
	return out
}

// open is how many connections there are.
func (s *rpcServer) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func decodeRequest(frame []byte) (req kmsg.Request, id int32, err error) {
	if len(frame) < 10 {
		return nil, 0, io.ErrUnexpectedEOF
	}
	be := binary.BigEndian
	req = kmsg.RequestForKey(int16(be.Uint16(frame)))
	if req == nil {
		return nil, 0, errors.New("unknown key")
	}
	req.SetVersion(int16(be.Uint16(frame[2:])))
	id = int32(be.Uint32(frame[4:]))
	client := frame[10:]
	n := int(int16(be.Uint16(frame[8:])))
	if n > len(client) {
		return nil, 0, io.ErrUnexpectedEOF
	}
	if n > 0 {
		client = client[n:]
	}
	if req.IsFlexible() {
		client = bytes.TrimPrefix(client, []byte{0})
	}
	return req, id, req.ReadFrom(client)
}
