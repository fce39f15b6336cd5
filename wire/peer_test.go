package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// An answer is as long as it says, within the limit, and what follows it is the next
// one.
func TestAnAnswerIsAsLongAsItSays(t *testing.T) {
	const limit = 200_000
	framed := func(n int, b byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(n)), bytes.Repeat([]byte{b}, n)...)
	}
	for _, n := range []int{4, 5, 511, 512, 513, 64 << 10, 64<<10 + 1, limit} {
		r := bufio.NewReader(bytes.NewReader(append(framed(n, 'a'), framed(7, 'b')...)))
		for _, want := range [][]byte{framed(n, 'a')[4:], framed(7, 'b')[4:]} {
			got, err := readAnswer(r, limit)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes: %d were read, %v", n, len(got), err)
			}
		}
		if _, err := readAnswer(bufio.NewReader(bytes.NewReader(framed(n, 'a')[:n+3])), limit); err == nil {
			t.Errorf("%d bytes of which one is missing were read", n)
		}
	}
	for _, n := range []int{-1, 0, 3, limit + 1} {
		head := binary.BigEndian.AppendUint32(nil, uint32(int32(n)))
		if _, err := readAnswer(bufio.NewReader(bytes.NewReader(append(head, make([]byte, limit+10)...))), limit); err == nil {
			t.Errorf("an answer of %d bytes was read", n)
		}
	}
}

// The tags of a header that nobody knows are skipped; one that ends too early is an
// error, and no answer.
func TestTagsOfAHeaderAreSkipped(t *testing.T) {
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Version = 1
	m := kmsg.NewWriteTxnMarkersResponseMarker()
	m.ProducerID = 77
	resp.Markers = append(resp.Markers, m)
	body := resp.AppendTo(nil)
	for _, header := range [][]byte{{0}, {1, 5, 3, 'x', 'y', 'z'}, {2, 5, 0, 0xff, 1, 1, 'x'}} {
		got := kmsg.NewPtrWriteTxnMarkersResponse()
		got.Version = 1
		if err := decodeAnswer(got, slices.Concat(header, body)); err != nil || len(got.Markers) != 1 || got.Markers[0].ProducerID != 77 {
			t.Errorf("header %x: %+v, %v", header, got, err)
		}
	}
	for _, cut := range [][]byte{{}, {1}, {1, 5}, {1, 5, 3, 'x', 'y'}, {1, 5, 1}, {0xff}, {2, 5, 1, 'x'}} {
		got := kmsg.NewPtrWriteTxnMarkersResponse()
		got.Version = 1
		if err := decodeAnswer(got, cut); err == nil {
			t.Errorf("header %x was read", cut)
		}
	}
	plain := kmsg.NewPtrInitProducerIDResponse()
	plain.Version = 1
	plain.ProducerID = 5
	got := kmsg.NewPtrInitProducerIDResponse()
	got.Version = 1
	if err := decodeAnswer(got, plain.AppendTo(nil)); err != nil || got.ProducerID != 5 {
		t.Errorf("without tags: %+v, %v", got, err)
	}
}

// The pause before an address is dialled again doubles up to its bound, however often
// that fails, and varies; a connection that was closed for want of use costs none.
func TestThePauseOfAnAddressGrowsToItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(PeerConfig{BackoffMin: 100 * time.Millisecond, BackoffMax: time.Second}, slog.New(slog.DiscardHandler))
		n := &peer{addr: "one:9092", changed: make(chan struct{})}
		p.nodes[n.addr] = n
		conn := func() *peerConn {
			c := &peerConn{peers: p, node: n}
			n.conns = append(n.conns, c)
			return c
		}
		for _, err := range []error{errPeerIdle, errPeerLeft} {
			if tell := p.gone(conn(), err); tell != 0 || n.failures != 0 || !n.next.IsZero() || len(n.conns) != 0 {
				t.Errorf("%v counts as a failure", err)
			}
		}
		seen := map[time.Duration]bool{}
		for i := range 100 {
			changed := n.changed
			tell := p.gone(conn(), errors.New("broken"))
			want := time.Second
			if i < 4 {
				want = min(want, 100*time.Millisecond<<i)
			}
			pause := time.Until(n.next)
			if pause < want/2 || pause > want {
				t.Errorf("failure %d: a pause of %v, want %v to %v", i, pause, want/2, want)
			}
			seen[pause] = true
			if powerOfTwo := (i+1)&i == 0; (tell == i+1) != powerOfTwo {
				t.Errorf("failure %d: told of %d", i, tell)
			}
			select {
			case <-changed:
			default:
				t.Error("nobody is woken")
			}
		}
		if len(seen) < 20 {
			t.Errorf("%d different pauses of 100", len(seen))
		}
		// It is not forgotten before it may be dialled, and is then.
		p.closeIdle(time.Now())
		if len(p.nodes) != 1 {
			t.Error("the pause is forgotten")
		}
		p.closeIdle(n.next.Add(1))
		if len(p.nodes) != 0 {
			t.Error("an address that nobody asks for is kept")
		}
	})
}

// Where a request finds its place: those that may hang have connections of their own,
// in a bounded number, and take none from the others.
func TestWhereARequestFindsItsPlace_F12(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		what          string
		hanging, busy int  // connections
		load          int  // of the busy ones, the first has one less
		paused, alone bool // the address is not dialled now; the request may hang
		want          string
	}{
		{"the first", 0, 0, 0, false, false, "new"},
		{"all others hang", 16, 0, 0, false, false, "new"},
		{"all others hang, and so may this one", 15, 0, 0, false, true, "new"},
		{"too many hang", 16, 0, 0, false, true, "waits"},
		{"one is free", 1, 2, 1, false, false, "first"},
		{"one is free for one that may hang", 1, 2, 1, false, true, "first"},
		{"all are busy, and there is room", 0, 3, 5, false, false, "new"},
		{"all are busy", 3, 4, 5, false, false, "first"},
		{"all are busy, for one that may hang", 3, 4, 5, false, true, "new"},
		{"all are full", 3, 4, 9, false, false, "waits"},
		{"it is not dialled now", 0, 2, 5, true, false, "first"},
		{"it is not dialled now, and all are full", 0, 2, 9, true, false, "waits"},
		{"it is not dialled now, for one that may hang", 0, 2, 5, true, true, "waits"},
		{"it is not dialled now, and there is none", 0, 0, 0, true, false, "error"},
	} {
		p := newPeers(PeerConfig{Dial: func(ctx context.Context, _ string) (net.Conn, error) { return nil, ctx.Err() }}, slog.New(slog.DiscardHandler))
		p.ctx = ctx
		n := &peer{addr: "one:9092", changed: make(chan struct{})}
		for range c.hanging {
			n.conns = append(n.conns, &peerConn{alone: true, load: 1})
		}
		for i := range c.busy {
			n.conns = append(n.conns, &peerConn{load: c.load - max(0, 1-i)})
		}
		if c.paused {
			n.next, n.last = time.Now().Add(time.Hour), errors.New("broken")
		}
		before := slices.Clone(n.conns)
		p.mu.Lock()
		got, err := p.place(n, c.alone)
		p.mu.Unlock()
		is := "error"
		switch {
		case err != nil:
		case got == nil:
			is = "waits"
		case !slices.Contains(before, got):
			is = "new"
		case got == before[c.hanging]:
			is = "first"
		default:
			is = "another one"
		}
		if is != c.want {
			t.Errorf("%s: %s, want %s", c.what, is, c.want)
		}
		p.work.Wait()
	}
}

// A broker that takes a connection and says nothing costs its place until DialTimeout.
func TestABrokerThatSaysNothingIsGivenUp_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(PeerConfig{DialTimeout: 5 * time.Second, Dial: func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			return here, nil
		}}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		synctest.Wait()
		begun := time.Now()
		_, err := p.ask(t.Context(), "one:9092", 27, func(int16, int16) (kmsg.Request, error) { return nil, errors.New("not asked") })
		if d := time.Since(begun); err == nil || d != 5*time.Second {
			t.Errorf("%v after %v", err, d)
		}
		p.mu.Lock()
		if n := p.nodes["one:9092"]; len(n.conns) != 0 || n.failures != 1 {
			t.Errorf("%d connections, %d failures", len(n.conns), n.failures)
		}
		p.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
