package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// speaker is a broker at the other end of a pipe: it tells its versions, and answer
// says what it says to the request with an id, nil for nothing.
type speaker struct {
	refuses int16 // the code of its answer about versions
	answer  func(id int32) []byte
}

func (s *speaker) serve(conn net.Conn) {
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, frame); err != nil {
			return
		}
		id := int32(binary.BigEndian.Uint32(frame[4:]))
		var out []byte
		if key := int16(binary.BigEndian.Uint16(frame)); key == 18 {
			v := kmsg.NewPtrApiVersionsResponse()
			v.ErrorCode = s.refuses
			v.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 22, MinVersion: 0, MaxVersion: 1}}
			out = answered(id, v)
		} else {
			out = s.answer(id)
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func answered(id int32, resp kmsg.Response) []byte {
	b := resp.AppendTo(binary.BigEndian.AppendUint32(make([]byte, 4), uint32(id)))
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func given(id int32) []byte {
	r := kmsg.NewPtrInitProducerIDResponse()
	r.Version, r.ProducerID = 1, int64(id)
	return answered(id, r)
}

const addr = "one:9092"

// speaking are peers that run, and find s wherever they dial.
func speaking(t *testing.T, s *speaker, cfg PeerConfig) *peers {
	if s.answer == nil {
		s.answer = given
	}
	if cfg.Dial == nil {
		cfg.Dial = func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go s.serve(there)
			return here, nil
		}
	}
	p := newPeers(cfg, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	synctest.Wait()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *peers) init(ctx context.Context) (int64, error) {
	resp, err := p.ask(ctx, addr, 22, func(int16, int16) (kmsg.Request, error) {
		r := kmsg.NewPtrInitProducerIDRequest()
		r.Version = 1
		return r, nil
	})
	if err != nil {
		return 0, err
	}
	return resp.(*kmsg.InitProducerIDResponse).ProducerID, nil
}

func (p *peers) only(t *testing.T) *peerConn {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[addr]; n != nil && len(n.conns) == 1 {
		return n.conns[0]
	}
	t.Fatal("not one connection")
	return nil
}

// A broker that refuses to tell its versions is asked nothing, and its code is told.
func TestARefusalToTellVersionsIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := speaking(t, &speaker{refuses: 35, answer: func(int32) []byte { t.Error("it was asked"); return nil }}, PeerConfig{})
		if _, err := p.init(t.Context()); err == nil || errors.Is(err, errPeerTooOld) {
			t.Error(err)
		}
	})
}

// An answered request is over: it waits for nothing any more, the failures before it
// are forgotten, and a second answer to it ends the connection.
func TestAnAnsweredRequestIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twice, broken := false, false
		p := speaking(t, &speaker{answer: func(id int32) []byte {
			switch {
			case twice:
				return append(given(id), given(id)...)
			case broken:
				return append(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 6}, uint32(id)), 0, 0)
			}
			return given(id)
		}}, PeerConfig{IdleAfter: time.Hour}) // the address is not forgotten meanwhile
		if _, err := p.init(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := p.only(t)
		n := c.node
		look := func(what string, failures, conns int) {
			t.Helper()
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			if n.failures != failures || len(n.conns) != conns || len(c.pending) != 0 || c.load != 0 {
				t.Fatalf("%s: %d failures, %d connections, %d pending, load %d", what, n.failures, len(n.conns), len(c.pending), c.load)
			}
		}
		p.mu.Lock()
		n.failures = 3
		p.mu.Unlock()
		if _, err := p.init(t.Context()); err != nil {
			t.Fatal(err)
		}
		look("answered", 0, 1)
		twice = true
		if _, err := p.init(t.Context()); err != nil {
			t.Fatal(err)
		}
		look("answered twice", 1, 0)
		twice, broken = false, true
		time.Sleep(time.Minute)
		p.mu.Lock()
		n.failures = 3
		p.mu.Unlock()
		if _, err := p.init(t.Context()); err == nil {
			t.Error("half an answer was taken")
		}
		look("half an answer", 4, 0)
		if err := c.send(kmsg.NewPtrInitProducerIDRequest(), &peerCall{}); err == nil {
			t.Error("a dead connection took a request")
		}
	})
}

// The ids of requests stay what they are on the wire, from 0 up, and never that of
// the question for versions.
func TestIDsOfRequestsWrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []int32
		p := speaking(t, &speaker{answer: func(id int32) []byte { ids = append(ids, id); return given(id) }}, PeerConfig{})
		for i := range 4 {
			if _, err := p.init(t.Context()); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				c := p.only(t)
				p.mu.Lock()
				c.next = math.MaxInt32 - 1
				p.mu.Unlock()
			}
		}
		if want := []int32{0, math.MaxInt32 - 1, 0, 1}; !slices.Equal(ids, want) {
			t.Errorf("%v, want %v", ids, want)
		}
	})
}

// A connection that is made when its place has failed already is closed.
func TestAConnectionMadeTooLateIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		here, there := net.Pipe()
		p := newPeers(PeerConfig{Dial: func(context.Context, string) (net.Conn, error) { <-gate; return here, nil }}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		synctest.Wait()
		asked := make(chan error, 1)
		go func() { _, err := p.init(t.Context()); asked <- err }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(gate)
		if err := <-asked; err == nil {
			t.Error("an answer")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := here.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("it is open: %v", err)
		}
		_ = there.Close()
		if _, err := p.acquire(t.Context(), addr, false); !errors.Is(err, errPeersClosed) {
			t.Error(err)
		}
	})
}

// failsSecond is a connection that can be written to once.
type failsSecond struct {
	net.Conn
	n atomic.Int64
}

func (c *failsSecond) Write(b []byte) (int, error) {
	if c.n.Add(1) > 1 {
		return 0, errors.New("made-up write error")
	}
	return c.Conn.Write(b)
}

// A request that can't be written fails at once, and not when its time is over.
func TestAWriteThatFailsEndsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &speaker{}
		p := speaking(t, s, PeerConfig{Dial: func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go s.serve(there)
			return &failsSecond{Conn: here}, nil
		}})
		begun := time.Now()
		if _, err := p.init(t.Context()); err == nil || time.Since(begun) != 0 {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// Who waits for a place has it as soon as there is one: when a request is answered,
// or when the address may be dialled again.
func TestWhoWaitsForAPlaceHasItAtOnce(t *testing.T) {
	for _, connections := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			goOn := make(chan struct{})
			var first atomic.Bool
			p := speaking(t, &speaker{answer: func(id int32) []byte {
				if first.Swap(false) {
					<-goOn
				}
				return given(id)
			}}, PeerConfig{Connections: connections, InFlight: 1})
			first.Store(true)
			answers := make(chan error, 2)
			ask := func() { _, err := p.init(t.Context()); answers <- err }
			go ask()
			synctest.Wait()
			n := p.only(t).node
			p.mu.Lock()
			n.next = time.Now().Add(2 * time.Second)
			p.mu.Unlock()
			go ask()
			begun, want := time.Now(), 2*time.Second
			synctest.Wait()
			if connections == 1 {
				want = time.Second
				time.Sleep(want)
				goOn <- struct{}{}
				if err := <-answers; err != nil {
					t.Error(err)
				}
			}
			if err := <-answers; err != nil || time.Since(begun) != want {
				t.Errorf("%v after %v, want %v", err, time.Since(begun), want)
			}
			if connections == 2 {
				goOn <- struct{}{}
				if err := <-answers; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A caller that leaves is gone at once, whether it waits for a connection or for an
// answer.
func TestACallerThatLeavesIsGoneAtOnce(t *testing.T) {
	for _, dials := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			goOn := make(chan struct{})
			s := &speaker{answer: func(id int32) []byte { <-goOn; return given(id) }}
			p := speaking(t, s, PeerConfig{Dial: func(context.Context, string) (net.Conn, error) {
				if dials {
					<-goOn
				}
				here, there := net.Pipe()
				go s.serve(there)
				return here, nil
			}})
			ctx, leave := context.WithCancel(t.Context())
			asked := make(chan error, 1)
			go func() { _, err := p.init(ctx); asked <- err }()
			synctest.Wait()
			begun := time.Now()
			leave()
			time.AfterFunc(time.Second, func() { close(goOn) })
			if err := <-asked; !errors.Is(err, context.Canceled) || time.Since(begun) != 0 {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
			time.Sleep(time.Second)
		})
	}
}

// A request that may hang has its connection to itself while it has its place (F12).
func TestARequestThatMayHangHasItsConnectionToItself_F12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := speaking(t, &speaker{}, PeerConfig{})
		if _, err := p.init(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := p.acquire(t.Context(), addr, true)
		if err != nil || !c.alone {
			t.Fatal(err)
		}
		other, err := p.acquire(t.Context(), addr, false)
		if err != nil || other == c {
			t.Errorf("it is shared: %v", err)
		}
		p.release(other, false)
		p.release(c, true)
		if c.alone {
			t.Error("it stays alone")
		}
	})
}
