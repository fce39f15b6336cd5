package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is the connections of one scenario. Without follow all requests go to
// the bootstrap broker. With it, each goes to the transaction coordinator, group
// coordinator or partition leader, as a client would send it; what spans several
// of those is split, and the answers are put together again.
type cluster struct {
	boot   string
	dial   Dial
	follow bool
	limits *limits
	conns  map[string]Conn
	coord  map[string]string // "0/group" or "1/transactional id" -> address
	lead   map[string]string // "topic/partition" -> address
}

func newCluster(boot string, dial Dial, follow bool, l *limits) *cluster {
	return &cluster{boot: boot, dial: dial, follow: follow, limits: l, conns: map[string]Conn{}, coord: map[string]string{}, lead: map[string]string{}}
}

// limits is how long an answer is waited for. An API that has kept several
// requests waiting for the full time gets less from then on: a broker that never
// answers one API would otherwise hold up the run by that time for every scenario.
type limits struct {
	full time.Duration
	mu   sync.Mutex
	late map[int16]int // API key -> requests that got no answer in time
}

func (l *limits) of(key int16) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.late[key] >= 3 {
		return l.full / 10
	}
	return l.full
}

func (l *limits) missed(key int16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late[key]++
}

// errUnreachable marks that no connection could be made, which says nothing
// about an answer.
var errUnreachable = errors.New("no connection")

func (c *cluster) close() {
	for a := range c.conns {
		c.drop(a)
	}
}

func (c *cluster) drop(addr string) {
	if x, ok := c.conns[addr]; ok {
		x.Close() // it is of no further use, whatever it says
		delete(c.conns, addr)
	}
}

func (c *cluster) forget() { clear(c.coord); clear(c.lead) }

// use runs f on the connection to addr, within the time of one answer. A
// connection that failed is not used again: what it carries next could be the
// answer to something else.
func (c *cluster) use(ctx context.Context, addr string, key int16, f func(context.Context, Conn) error) error {
	x, ok := c.conns[addr]
	if !ok {
		var err error
		if x, err = c.dial(ctx, addr); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w to %s: %w", errUnreachable, addr, err)
		}
		c.conns[addr] = x
	}
	limit := c.limits.of(key)
	rctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(rctx, x)
	if err == nil {
		return nil
	}
	c.drop(addr)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if isTimeout(err) {
		c.limits.missed(key)
		return fmt.Errorf("no answer within %v", limit)
	}
	return err
}

func (c *cluster) send(ctx context.Context, addr string, req kmsg.Request) (kmsg.Response, error) {
	var resp kmsg.Response
	err := c.use(ctx, addr, req.Key(), func(ctx context.Context, x Conn) (err error) {
		resp, err = x.RoundTrip(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	if resp == nil || resp.Key() != req.Key() {
		return nil, Unreadable(fmt.Errorf("%s: response of another API", describe(req.Key(), req.GetVersion())))
	}
	return resp, nil
}

func (c *cluster) coordinator(ctx context.Context, typ int8, key string) (string, error) {
	k := fmt.Sprintf("%d/%s", typ, key)
	if a, ok := c.coord[k]; ok {
		return a, nil
	}
	fc := kmsg.NewPtrFindCoordinatorRequest()
	fc.Version, fc.CoordinatorType, fc.CoordinatorKey = 2, typ, key
	x, err := ask[*kmsg.FindCoordinatorResponse](ctx, c, c.boot, fc)
	if err != nil {
		return "", err
	}
	if x.ErrorCode != 0 {
		return c.boot, nil // it will say why
	}
	c.coord[k] = hostPort(x.Host, x.Port)
	return c.coord[k], nil
}

func hostPort(host string, port int32) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func (c *cluster) leader(ctx context.Context, topic string, p int32) (string, error) {
	k := tpKey(topic, p)
	if a, ok := c.lead[k]; ok {
		return a, nil
	}
	m := kmsg.NewPtrMetadataRequest()
	m.Version = 7
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	m.Topics = append(m.Topics, t)
	x, err := ask[*kmsg.MetadataResponse](ctx, c, c.boot, m)
	if err != nil {
		return "", err
	}
	addr := map[int32]string{}
	for _, b := range x.Brokers {
		addr[b.NodeID] = hostPort(b.Host, b.Port)
	}
	for _, t := range x.Topics {
		for _, p := range t.Partitions {
			if a, ok := addr[p.Leader]; ok && p.ErrorCode == 0 && t.Topic != nil {
				c.lead[tpKey(*t.Topic, p.Partition)] = a
			}
		}
	}
	if a, ok := c.lead[k]; ok {
		return a, nil
	}
	return c.boot, nil
}

func (c *cluster) brokers(ctx context.Context) ([]string, error) {
	m := kmsg.NewPtrMetadataRequest()
	m.Version = 7
	m.Topics = []kmsg.MetadataRequestTopic{} // none, where nil would be all
	x, err := ask[*kmsg.MetadataResponse](ctx, c, c.boot, m)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, b := range x.Brokers {
		out = append(out, hostPort(b.Host, b.Port))
	}
	return out, nil
}

// ask is send for an answer of a known type.
func ask[R kmsg.Response](ctx context.Context, c *cluster, addr string, req kmsg.Request) (R, error) {
	var none R
	resp, err := c.send(ctx, addr, req)
	if err != nil {
		return none, err
	}
	x, ok := resp.(R)
	if !ok {
		return none, Unreadable(fmt.Errorf("%s: a %T", describe(req.Key(), req.GetVersion()), resp))
	}
	return x, nil
}

// do routes req and gives its answer.
func do[R kmsg.Response](ctx context.Context, c *cluster, req kmsg.Request) (R, error) {
	var none R
	resp, err := c.route(ctx, req)
	if err != nil {
		c.forget()
		return none, err
	}
	if moved(resp) {
		c.forget()
	}
	x, ok := resp.(R)
	if !ok {
		return none, Unreadable(fmt.Errorf("%s: a %T", describe(req.Key(), req.GetVersion()), resp))
	}
	return x, nil
}

func (c *cluster) raw(ctx context.Context, txnID string, key, version int16, body []byte) ([]byte, error) {
	to := c.boot
	if c.follow {
		var err error
		if to, err = c.coordinator(ctx, coordTxn, txnID); err != nil {
			return nil, err
		}
	}
	var out []byte
	err := c.use(ctx, to, key, func(ctx context.Context, x Conn) (err error) {
		out, err = x.Raw(ctx, key, version, body)
		return err
	})
	return out, err
}

func moved(resp kmsg.Response) bool {
	code := int16(0)
	switch x := resp.(type) {
	case *kmsg.InitProducerIDResponse:
		code = x.ErrorCode
	case *kmsg.EndTxnResponse:
		code = x.ErrorCode
	case *kmsg.AddOffsetsToTxnResponse:
		code = x.ErrorCode
	case *kmsg.OffsetFetchResponse:
		code = x.ErrorCode
	}
	return code == kerr.NotCoordinator.Code || code == kerr.CoordinatorNotAvailable.Code
}

// Coordinator types of FindCoordinator.
const (
	coordGroup int8 = 0
	coordTxn   int8 = 1
)

func (c *cluster) route(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	if !c.follow {
		return c.send(ctx, c.boot, req)
	}
	to, err := c.boot, error(nil)
	switch q := req.(type) {
	case *kmsg.InitProducerIDRequest:
		if q.TransactionalID != nil {
			to, err = c.coordinator(ctx, coordTxn, *q.TransactionalID)
		}
	case *kmsg.AddPartitionsToTxnRequest:
		id := q.TransactionalID
		if len(q.Transactions) > 0 {
			id = q.Transactions[0].TransactionalID
		}
		to, err = c.coordinator(ctx, coordTxn, id)
	case *kmsg.AddOffsetsToTxnRequest:
		to, err = c.coordinator(ctx, coordTxn, q.TransactionalID)
	case *kmsg.EndTxnRequest:
		to, err = c.coordinator(ctx, coordTxn, q.TransactionalID)
	case *kmsg.TxnOffsetCommitRequest:
		to, err = c.coordinator(ctx, coordGroup, q.Group)
	case *kmsg.OffsetFetchRequest:
		group := q.Group
		if len(q.Groups) > 0 { // since version 8
			group = q.Groups[0].Group
		}
		to, err = c.coordinator(ctx, coordGroup, group)
	case *kmsg.OffsetCommitRequest:
		to, err = c.coordinator(ctx, coordGroup, q.Group)
	case *kmsg.JoinGroupRequest:
		to, err = c.coordinator(ctx, coordGroup, q.Group)
	case *kmsg.SyncGroupRequest:
		to, err = c.coordinator(ctx, coordGroup, q.Group)
	case *kmsg.LeaveGroupRequest:
		to, err = c.coordinator(ctx, coordGroup, q.Group)
	case *kmsg.ProduceRequest:
		to, err = c.leader(ctx, q.Topics[0].Topic, q.Topics[0].Partitions[0].Partition)
	case *kmsg.FetchRequest:
		to, err = c.leader(ctx, q.Topics[0].Topic, q.Topics[0].Partitions[0].Partition)
	case *kmsg.WriteTxnMarkersRequest:
		t := q.Markers[0].Topics[0]
		to, err = c.leader(ctx, t.Topic, t.Partitions[0])
	case *kmsg.DescribeTransactionsRequest:
		return c.describeTxns(ctx, q)
	case *kmsg.ListTransactionsRequest:
		return c.listTxns(ctx, q)
	case *kmsg.ListOffsetsRequest:
		return c.listOffsets(ctx, q)
	case *kmsg.DescribeProducersRequest:
		return c.describeProducers(ctx, q)
	}
	if err != nil {
		return nil, err
	}
	return c.send(ctx, to, req)
}

func (c *cluster) describeTxns(ctx context.Context, q *kmsg.DescribeTransactionsRequest) (kmsg.Response, error) {
	all := kmsg.NewPtrDescribeTransactionsResponse()
	all.Version = q.Version
	for _, id := range q.TransactionalIDs {
		to, err := c.coordinator(ctx, coordTxn, id)
		if err != nil {
			return nil, err
		}
		one := *q
		one.TransactionalIDs = []string{id}
		x, err := ask[*kmsg.DescribeTransactionsResponse](ctx, c, to, &one)
		if err != nil {
			return nil, err
		}
		all.TransactionStates = append(all.TransactionStates, x.TransactionStates...)
	}
	return all, nil
}

func (c *cluster) listTxns(ctx context.Context, q *kmsg.ListTransactionsRequest) (kmsg.Response, error) {
	bs, err := c.brokers(ctx)
	if err != nil {
		return nil, err
	}
	all := kmsg.NewPtrListTransactionsResponse()
	all.Version = q.Version
	for _, to := range bs {
		x, err := ask[*kmsg.ListTransactionsResponse](ctx, c, to, q)
		if err != nil {
			return nil, err
		}
		if x.ErrorCode != 0 {
			all.ErrorCode = x.ErrorCode
		}
		all.TransactionStates = append(all.TransactionStates, x.TransactionStates...)
	}
	return all, nil
}

func (c *cluster) listOffsets(ctx context.Context, q *kmsg.ListOffsetsRequest) (kmsg.Response, error) {
	all := kmsg.NewPtrListOffsetsResponse()
	all.Version = q.Version
	c.forget() // it is asked to see whether there are leaders yet
	for _, t := range q.Topics {
		for _, p := range t.Partitions {
			to, err := c.leader(ctx, t.Topic, p.Partition)
			if err != nil {
				return nil, err
			}
			one := *q
			ot := t
			ot.Partitions = []kmsg.ListOffsetsRequestTopicPartition{p}
			one.Topics = []kmsg.ListOffsetsRequestTopic{ot}
			x, err := ask[*kmsg.ListOffsetsResponse](ctx, c, to, &one)
			if err != nil {
				return nil, err
			}
			all.Topics = append(all.Topics, x.Topics...)
		}
	}
	return all, nil
}

func (c *cluster) describeProducers(ctx context.Context, q *kmsg.DescribeProducersRequest) (kmsg.Response, error) {
	all := kmsg.NewPtrDescribeProducersResponse()
	all.Version = q.Version
	for _, t := range q.Topics {
		for _, p := range t.Partitions {
			to, err := c.leader(ctx, t.Topic, p)
			if err != nil {
				return nil, err
			}
			one := *q
			ot := t
			ot.Partitions = []int32{p}
			one.Topics = []kmsg.DescribeProducersRequestTopic{ot}
			x, err := ask[*kmsg.DescribeProducersResponse](ctx, c, to, &one)
			if err != nil {
				return nil, err
			}
			all.Topics = append(all.Topics, x.Topics...)
		}
	}
	return all, nil
}
