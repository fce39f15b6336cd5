package minibroker

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"

	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// api is one of the broker's own APIs; those with transactions in them are
// wire.Handler's.
type api struct {
	min, max int16
	waits    bool // for others: the request ends when its client has gone
	handle   func(context.Context, wire.Principal, kmsg.Request) (kmsg.Response, error)
}

// handles makes a handler of one type of request one of any.
func handles[R kmsg.Request](f func(context.Context, wire.Principal, R) (kmsg.Response, error)) func(context.Context, wire.Principal, kmsg.Request) (kmsg.Response, error) {
	return func(ctx context.Context, who wire.Principal, req kmsg.Request) (kmsg.Response, error) {
		r, ok := req.(R)
		if !ok {
			return nil, wire.ErrClose
		}
		return f(ctx, who, r)
	}
}

// ownAPIs are the APIs of the broker itself. Older versions are those that Kafka
// 4 has dropped (KIP-896).
func (b *Broker) ownAPIs() map[int16]api {
	return map[int16]api{
		int16(kmsg.Fetch):          {4, 18, true, handles(b.fetch)},
		int16(kmsg.ListOffsets):    {1, 10, false, handles(b.listOffsets)},
		int16(kmsg.Metadata):       {0, 13, false, handles(b.metadata)},
		int16(kmsg.JoinGroup):      {2, 9, true, handles(b.joinGroup)},
		int16(kmsg.Heartbeat):      {0, 4, false, handles(b.heartbeat)},
		int16(kmsg.LeaveGroup):     {0, 5, false, handles(b.leaveGroup)},
		int16(kmsg.SyncGroup):      {0, 5, true, handles(b.syncGroup)},
		int16(kmsg.DescribeGroups): {0, 6, false, handles(b.describeGroups)},
		int16(kmsg.ListGroups):     {0, 5, false, handles(b.listGroups)},
		int16(kmsg.DeleteGroups):   {0, 2, false, handles(b.deleteGroups)},
		int16(kmsg.ApiVersions):    {0, 4, false, handles(b.apiVersions)},
		int16(kmsg.CreateTopics):   {2, 7, false, handles(b.createTopics)},
		int16(kmsg.DeleteTopics):   {1, 6, false, handles(b.deleteTopics)},
		int16(kmsg.DescribeACLs):   {1, 3, false, handles(b.describeACLs)},
		int16(kmsg.CreateACLs):     {1, 3, false, handles(b.createACLs)},
	}
}

// apiVersions tells what this broker speaks.
func (b *Broker) apiVersions(_ context.Context, _ wire.Principal, r *kmsg.ApiVersionsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.ApiVersionsResponse)
	if r.Version >= 3 && (!plainName(r.ClientSoftwareName) || !plainName(r.ClientSoftwareVersion)) {
		resp.ErrorCode = kerr.InvalidRequest.Code // KIP-511
		return resp, nil
	}
	add := func(key, min, max int16) {
		x := kmsg.NewApiVersionsResponseApiKey()
		x.ApiKey, x.MinVersion, x.MaxVersion = key, min, max
		resp.ApiKeys = append(resp.ApiKeys, x)
	}
	for key, a := range b.apis {
		add(key, a.min, a.max)
	}
	for _, v := range b.handler.Versions() {
		add(v.Key, v.Min, v.Max)
	}
	slices.SortFunc(resp.ApiKeys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return cmp.Compare(a.ApiKey, b.ApiKey) })
	resp.SupportedFeatures, resp.FinalizedFeatures = b.handler.Features()
	resp.FinalizedFeaturesEpoch = 0
	if r.Version < 4 {
		for i := range resp.SupportedFeatures {
			// Clients of v3 fail on a lowest level of 0 (KAFKA-17011).
			resp.SupportedFeatures[i].MinVersion = max(resp.SupportedFeatures[i].MinVersion, 1)
		}
	}
	return resp, nil
}

// plainName is [a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?
func plainName(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (c != '-' && c != '.' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != ""
}

// client is what a request's sender says of itself.
type client struct {
	id, host string
}

type clientKey struct{}

func clientOf(ctx context.Context) client {
	c, _ := ctx.Value(clientKey{}).(client)
	return c
}

// answer works off one request and appends the bytes to send back to out, or says
// why the connection ends. wait gives a context for requests that wait for others
// than the broker; it is called once at most.
func (s *server) answer(ctx context.Context, wait func(context.Context) context.Context, b []byte, from client, out []byte) ([]byte, error) {
	key := int16(binary.BigEndian.Uint16(b))
	version := int16(binary.BigEndian.Uint16(b[2:]))
	correlation := b[4:8]
	own, ok := s.b.apis[key]
	if key == int16(kmsg.ApiVersions) && (version < own.min || version > own.max) {
		return appendFrame(out, correlation, unsupportedApiVersions(own)), nil
	}
	req, err := s.newRequest(own, ok, key, version)
	if err != nil {
		return nil, err
	}
	body, id, err := skipHeader(b[headerBytes:], req.IsFlexible())
	if err != nil {
		return nil, err
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, err
	}
	if len(b) > math.MaxInt16 && !shortStrings(reflect.ValueOf(req)) {
		return nil, errBadFrame
	}
	from.id = id
	if own.waits || key == int16(kmsg.WriteTxnMarkers) && s.b.cluster != nil {
		ctx = wait(s.ctx) // a marker whose sender has gone has been sent again
	}
	who := anonymous
	if c := s.b.cluster; c != nil && id == c.peerID {
		who = peerPrincipal
	}
	resp, err := s.b.Handle(context.WithValue(ctx, clientKey{}, from), req, who)
	if err != nil || resp == nil {
		return nil, err
	}
	return appendFrame(out, correlation, resp), nil
}

var errBadFrame = errors.New("minibroker: a request that can't be read")

// newRequest is an empty request to decode into.
func (s *server) newRequest(own api, isOwn bool, key, version int16) (kmsg.Request, error) {
	if !isOwn {
		return s.b.handler.NewRequest(key, version)
	}
	if version < own.min || version > own.max {
		return nil, wire.ErrClose
	}
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	return req, nil
}

// skipHeader reads what follows the correlation id in a request's header: the
// client's name and, of flexible versions, tags.
func skipHeader(b []byte, flexible bool) (body []byte, clientID string, err error) {
	if len(b) < 2 {
		return nil, "", errBadFrame
	}
	n := int(int16(binary.BigEndian.Uint16(b)))
	b = b[2:]
	switch {
	case n < -1 || n > len(b):
		return nil, "", errBadFrame
	case n > 0:
		clientID, b = string(b[:n]), b[n:]
	}
	if !flexible {
		return b, clientID, nil
	}
	next := func() (uint64, bool) {
		v, k := binary.Uvarint(b)
		if k <= 0 {
			return 0, false
		}
		b = b[k:]
		return v, true
	}
	tags, ok := next()
	for ; ok && tags > 0; tags-- {
		var size uint64
		if _, ok = next(); ok {
			size, ok = next()
		}
		if ok = ok && size <= uint64(len(b)); ok {
			b = b[size:]
		}
	}
	if !ok {
		return nil, "", errBadFrame
	}
	return b, clientID, nil
}

// shortStrings reports whether no string of a request is longer than a string may
// be. The compact form could hold more; but what comes by it may go out in the
// other one.
func shortStrings(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return v.Len() <= math.MaxInt16
	case reflect.Pointer:
		return v.IsNil() || shortStrings(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if !shortStrings(v.Field(i)) {
				return false
			}
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k != reflect.String && k != reflect.Struct && k != reflect.Slice && k != reflect.Pointer {
			return true
		}
		for i := range v.Len() {
			if !shortStrings(v.Index(i)) {
				return false
			}
		}
	}
	return true
}

// unsupportedApiVersions is the answer to an ApiVersions request of a version
// that is not served: at v0, with the versions that are (KIP-511).
func unsupportedApiVersions(own api) kmsg.Response {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = kerr.UnsupportedVersion.Code
	x := kmsg.NewApiVersionsResponseApiKey()
	x.ApiKey, x.MinVersion, x.MaxVersion = int16(kmsg.ApiVersions), own.min, own.max
	resp.ApiKeys = append(resp.ApiKeys, x)
	return resp
}

// appendFrame appends an answer as it goes out.
func appendFrame(out, correlation []byte, resp kmsg.Response) []byte {
	at := len(out)
	out = append(append(out, 0, 0, 0, 0), correlation...)
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		out = append(out, 0) // no tags; ApiVersions never has them, so that any client can read it
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	return out
}
