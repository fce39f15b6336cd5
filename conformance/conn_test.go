package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is a Conn over a pipe at whose other end answer turns the frame that came
// into the bytes that go back; nil closes.
func wire(t *testing.T, answer func(frame []byte) []byte) Conn {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer b.Close()
		for {
			var size [4]byte
			if _, err := io.ReadFull(b, size[:]); err != nil {
				return
			}
			frame := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(b, frame); err != nil {
				return
			}
			out := answer(frame)
			if out == nil {
				return
			}
			if _, err := b.Write(out); err != nil {
				return
			}
		}
	}()
	c := NewConn(a)
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c
}

// framed puts length and correlation id before a body.
func framed(frame, body []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(append(out, frame[4:8]...), body...)
}

func TestRequestsAndAnswersCrossTheWire(t *testing.T) {
	for _, v := range []int16{1, 3} { // 3 is flexible
		resp := kmsg.NewPtrEndTxnResponse()
		resp.Version, resp.ErrorCode = v, 48
		c := wire(t, func(frame []byte) []byte {
			if key, got := binary.BigEndian.Uint16(frame), int16(binary.BigEndian.Uint16(frame[2:])); key != 26 || got != v {
				t.Errorf("key %d version %d", key, got)
			}
			var body []byte
			if v >= 3 {
				body = []byte{2, 9, 1, 'x', 10, 2, 'y', 'z'} // two tags that nobody knows
			}
			return framed(frame, resp.AppendTo(body))
		})
		req := kmsg.NewPtrEndTxnRequest()
		req.Version = v
		for range 2 { // the second finds the first one's correlation id gone by
			got, err := c.RoundTrip(t.Context(), req)
			if err != nil || got.(*kmsg.EndTxnResponse).ErrorCode != 48 {
				t.Errorf("version %d: %v, %v", v, got, err)
			}
		}
	}
	c := wire(t, func(frame []byte) []byte { return framed(frame, append([]byte{0}, frame[len(frame)-3:]...)) })
	if got, err := c.Raw(t.Context(), 22, 6, []byte("abc")); err != nil || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestBrokenAnswersAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		answer     func(frame []byte) []byte
		unreadable bool
		says       string
	}{
		"nothing":              {func([]byte) []byte { return nil }, false, "the broker closed the connection"},
		"half a length":        {func([]byte) []byte { return []byte{0, 0} }, false, ""},
		"a negative length":    {func(f []byte) []byte { return append([]byte{255, 255, 255, 255}, f[4:8]...) }, true, "length -1"},
		"a length of four GiB": {func(f []byte) []byte { return append([]byte{127, 255, 255, 255}, f[4:8]...) }, true, "length 2147483647"},
		"another's answer":     {func([]byte) []byte { return []byte{0, 0, 0, 4, 0, 0, 0, 99} }, true, "correlation id 99"},
		"no header":            {func(f []byte) []byte { return framed(f, nil) }, true, "tags"},
		"a tag without end":    {func(f []byte) []byte { return framed(f, []byte{1, 0, 200, 1}) }, true, "tags"},
		"half a body":          {func(f []byte) []byte { return framed(f, []byte{0, 0, 0}) }, true, "EndTxn v3"},
	} {
		t.Run(name, func(t *testing.T) {
			answered := false
			conn := wire(t, func(f []byte) []byte {
				if answered {
					return nil
				}
				answered = name != "half a length"
				return c.answer(f)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if name == "half a length" {
				ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
			}
			req := kmsg.NewPtrEndTxnRequest()
			req.Version = 3
			_, err := conn.RoundTrip(ctx, req)
			if err == nil || errors.Is(err, errDecode) != c.unreadable || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that says %q", err, c.says)
			}
		})
	}
}

func TestTheEndOfTheContextEndsARoundTrip(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := wire(t, func([]byte) []byte {
		cancel()
		return []byte{} // and no more
	})
	if _, err := c.RoundTrip(ctx, kmsg.NewPtrEndTxnRequest()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := c.RoundTrip(ctx, kmsg.NewPtrEndTxnRequest()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// What a version does not carry must not reach a handler that is called without a
// socket, nor come back from it.
func TestHandlersSeeWhatTheWireCarries(t *testing.T) {
	c, err := Handler{Handle: func(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
		q := req.(*kmsg.InitProducerIDRequest)
		if q.ProducerID != -1 || q.GetVersion() != 2 || q.TransactionTimeoutMillis != 7 {
			t.Errorf("request %+v", q)
		}
		resp := kmsg.NewPtrInitProducerIDResponse() // of version 0, which is corrected
		resp.ProducerID = 5
		return resp, nil
	}}.Dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.ProducerID, req.TransactionTimeoutMillis = 2, 9, 7 // producer ids came with version 3
	resp, err := c.RoundTrip(t.Context(), req)
	if err != nil || resp.(*kmsg.InitProducerIDResponse).ProducerID != 5 || resp.GetVersion() != 2 {
		t.Errorf("%+v, %v", resp, err)
	}
	for name, h := range map[string]func(context.Context, kmsg.Request) (kmsg.Response, error){
		"nothing":       func(context.Context, kmsg.Request) (kmsg.Response, error) { return nil, nil },
		"an error":      func(context.Context, kmsg.Request) (kmsg.Response, error) { return nil, io.EOF },
		"another's":     func(context.Context, kmsg.Request) (kmsg.Response, error) { return kmsg.NewPtrEndTxnResponse(), nil },
		"a raw request": nil,
	} {
		c := handlerConn{Handler{Handle: h}}
		if h == nil {
			_, err = c.Raw(t.Context(), 22, 6, nil)
		} else {
			_, err = c.RoundTrip(t.Context(), req)
		}
		if err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}

// decoder answers every request by decoding the same bytes.
type decoder struct{ b []byte }

func (decoder) Close() error { return nil }

func (d decoder) RoundTrip(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
	resp := req.ResponseKind()
	if err := resp.ReadFrom(d.b); err != nil {
		return nil, Unreadable(err)
	}
	return resp, nil
}

func (d decoder) Raw(context.Context, int16, int16, []byte) ([]byte, error) { return d.b, nil }

// Whatever bytes a broker answers, to whichever step, there is an Answer to tell about.
func FuzzAnswers(f *testing.F) {
	var steps []*Step
	seen := map[string]bool{}
	for _, suite := range []string{"coord1", "coord2", "batch2", "member2", "data1", "data2", "marker2", "acl1", "twopc"} {
		scs, err := Recording(suite)
		if err != nil {
			f.Fatal(err)
		}
		for _, sc := range scs {
			for _, s := range sc.Steps {
				if k := describe(int16(len(s.Op)), s.Version) + string(s.Op); !seen[k] {
					seen[k] = true
					steps = append(steps, s)
				}
			}
		}
	}
	e := testEnv(f)
	// the oracle's responses are the seeds
	for i, s := range steps {
		o := &oracle{t: f, step: s, p: e.player("t.", "t.")}
		o.p.c.dial = func(context.Context, string) (Conn, error) {
			return handlerConn{Handler{HandleRaw: o.raw, Handle: func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
				resp, err := o.handle(ctx, req)
				if err == nil {
					resp.SetVersion(req.GetVersion())
					f.Add(i, resp.AppendTo(nil))
				}
				return resp, err
			}}}, nil
		}
		if _, err := o.p.once(f.Context(), s); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		s := steps[uint(i)%uint(len(steps))]
		p := e.player("t.", "t.")
		p.c.dial = func(context.Context, string) (Conn, error) { return decoder{b}, nil }
		a, why, err := p.play(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		r := &replay{e: e, sc: &Scenario{Name: "x", Steps: []*Step{s}}, p: p}
		if d := r.explain(a, why); !a.equal(s.Want) && (d.Text == "" || d.Kind == "") {
			t.Errorf("%+v: nothing is said about it", a)
		}
		if ws, _ := differing(s.Want, a); (len(ws) == 0) != a.equal(s.Want) {
			t.Errorf("%v and %v: fields differ %v, answers equal %v", s.Want, a, ws, a.equal(s.Want))
		}
	})
}
