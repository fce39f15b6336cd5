package conformance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Conn carries requests to one broker. Each belongs to one scenario, which uses
// it from one goroutine; Conns of different scenarios are used at the same time.
// After an error the Conn is closed and another one dialed.
//
// The end of ctx ends the wait with ctx's error. An error made with Unreadable
// says that the broker answered what cannot be decoded; any other means that
// there was no answer.
type Conn interface {
	// RoundTrip sends req at exactly req's version, whatever the broker
	// advertises. The request is the caller's again when RoundTrip returns, the
	// response is the caller's to keep.
	RoundTrip(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	// Raw sends the body of a flexible version that kmsg does not know, and
	// gives back the body of the answer: what follows the header and its tags.
	Raw(ctx context.Context, key, version int16, body []byte) ([]byte, error)
	Close() error
}

// Dial makes a Conn to the broker at addr: the address given to Check, or with
// Options.Follow one that the broker gave for itself or another. Dial may be
// called concurrently.
type Dial func(ctx context.Context, addr string) (Conn, error)

var errDecode = errors.New("unreadable answer")

// Unreadable marks err, in a Conn's answer, as the failure to decode what the
// broker said.
func Unreadable(err error) error { return fmt.Errorf("%w: %w", errDecode, err) }

const (
	clientID    = "kafkatxn-conformance"
	maxResponse = 16 << 20 // bytes of one answer; what the replay asks for is never near it
)

// DialTCP is the Dial that Check uses where Options.Dial is nil: plain TCP,
// without TLS or authentication.
func DialTCP(ctx context.Context, addr string) (Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewConn(c), nil
}

// NewConn speaks Kafka's protocol over c: for connections that need TLS or
// authentication first, or none at all (net.Pipe). Closing the Conn closes c.
func NewConn(c net.Conn) Conn {
	return &netConn{c: c, f: kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID))}
}

type netConn struct {
	c    net.Conn
	f    *kmsg.RequestFormatter
	corr int32
}

func (c *netConn) Close() error { return c.c.Close() }

func (c *netConn) RoundTrip(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	c.corr++
	body, err := c.exchange(ctx, c.f.AppendRequest(nil, req, c.corr))
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	// ApiVersions answers have the oldest header even in flexible versions, so that any client can read them.
	if resp.IsFlexible() && req.Key() != 18 {
		if body, err = skipTags(body); err != nil {
			return nil, Unreadable(fmt.Errorf("header of %s: %w", describe(req.Key(), req.GetVersion()), err))
		}
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, Unreadable(fmt.Errorf("%s: %w", describe(req.Key(), req.GetVersion()), err))
	}
	return resp, nil
}

func (c *netConn) Raw(ctx context.Context, key, version int16, payload []byte) ([]byte, error) {
	c.corr++
	b := make([]byte, 4, 32+len(payload))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, uint32(c.corr))
	b = binary.BigEndian.AppendUint16(b, uint16(len(clientID)))
	b = append(b, clientID...)
	b = append(b, 0) // no tags
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	body, err := c.exchange(ctx, b)
	if err != nil {
		return nil, err
	}
	if body, err = skipTags(body); err != nil {
		return nil, Unreadable(fmt.Errorf("header of %s: %w", describe(key, version), err))
	}
	return body, nil
}

// exchange writes a framed request and reads the answer to it: the body that
// follows the correlation id.
func (c *netConn) exchange(ctx context.Context, frame []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { c.c.SetDeadline(time.Unix(1, 0)) })()
	body, err := c.transfer(frame)
	switch {
	case err == nil:
		return body, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("the broker closed the connection: %w", err)
	}
	return nil, err
}

func (c *netConn) transfer(frame []byte) ([]byte, error) {
	if _, err := c.c.Write(frame); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c.c, head[:]); err != nil {
		return nil, err
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < 4 || size > maxResponse {
		return nil, Unreadable(fmt.Errorf("length %d, want 4 to %d", size, maxResponse))
	}
	if got := int32(binary.BigEndian.Uint32(head[4:])); got != c.corr {
		return nil, Unreadable(fmt.Errorf("correlation id %d, want %d", got, c.corr))
	}
	var b bytes.Buffer // grows with what arrives, not with what was announced
	if _, err := io.CopyN(&b, c.c, int64(size-4)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// skipTags is what follows the tagged fields at the start of b.
func skipTags(b []byte) ([]byte, error) {
	errCut := errors.New("cut short in its tags")
	n, w := binary.Uvarint(b)
	if w <= 0 {
		return nil, errCut
	}
	b = b[w:]
	for range n {
		_, w := binary.Uvarint(b)
		if w <= 0 {
			return nil, errCut
		}
		b = b[w:]
		size, w := binary.Uvarint(b)
		if w <= 0 || size > uint64(len(b)-w) {
			return nil, errCut
		}
		b = b[w+int(size):]
	}
	return b, nil
}

// isTimeout reports that nobody answered in time, where the caller itself is not done.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// Handler is a broker that is called without a socket. Its Dial makes Conns that
// send every request and response through their encoding, so that a field that a
// version lacks is lost as it would be on the wire, and hand them to Handle.
type Handler struct {
	// Handle answers one request. It may be called concurrently, but not for one
	// scenario. An error, or no response, is what a closed connection would be.
	Handle func(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	// HandleRaw is Handle for what kmsg cannot decode, see Conn.Raw. It may be nil.
	HandleRaw func(ctx context.Context, key, version int16, body []byte) ([]byte, error)
}

// Dial is the Dial for Options. It does not look at the address.
func (h Handler) Dial(context.Context, string) (Conn, error) { return handlerConn{h}, nil }

type handlerConn struct{ h Handler }

func (handlerConn) Close() error { return nil }

func (c handlerConn) RoundTrip(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	what := describe(req.Key(), req.GetVersion())
	got := kmsg.RequestForKey(req.Key())
	if got == nil {
		return nil, fmt.Errorf("%s: unknown API", what)
	}
	got.SetVersion(req.GetVersion())
	if err := got.ReadFrom(req.AppendTo(nil)); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	ans, err := c.h.Handle(ctx, got)
	if err != nil {
		return nil, err
	}
	if ans == nil {
		return nil, fmt.Errorf("%s: no response", what)
	}
	if ans.Key() != req.Key() {
		return nil, Unreadable(fmt.Errorf("%s was answered with a response of %s", what, describe(ans.Key(), ans.GetVersion())))
	}
	ans.SetVersion(req.GetVersion())
	resp := req.ResponseKind()
	if err := resp.ReadFrom(ans.AppendTo(nil)); err != nil {
		return nil, Unreadable(fmt.Errorf("%s: %w", what, err))
	}
	return resp, nil
}

func (c handlerConn) Raw(ctx context.Context, key, version int16, body []byte) ([]byte, error) {
	if c.h.HandleRaw == nil {
		return nil, fmt.Errorf("%s: not served", describe(key, version))
	}
	return c.h.HandleRaw(ctx, key, version, body)
}

func describe(key, version int16) string {
	return fmt.Sprintf("%s v%d", apiName(key), version)
}

// apiName is Kafka's name of an API, where kmsg's differs.
func apiName(key int16) string {
	switch key {
	case 22:
		return "InitProducerId"
	case 30:
		return "CreateAcls"
	}
	return kmsg.NameForKey(key)
}
