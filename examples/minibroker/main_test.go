package minibroker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds what a test waits for; nothing is measured by it.
const limit = 30 * time.Second

func ctxFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// start runs a broker for the time of a test.
func start(t testing.TB, cfg Config) *Broker {
	t.Helper()
	b, stop, err := Start(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return b
}

// listening is a Config with a listener.
func listening(cfg Config) Config {
	cfg.Listen = "127.0.0.1:0"
	return cfg
}

// connect makes a client of a broker for the time of a test.
func connect(t testing.TB, b *Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.Addr().String()),
		kgo.FetchMaxWait(250 * time.Millisecond),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.CloseAllowingRebalance)
	return c
}

// ask sends a request by Handle and returns the answer.
func ask[R kmsg.Response](t testing.TB, b *Broker, req kmsg.Request, version int16) R {
	t.Helper()
	req.SetVersion(version)
	resp, err := b.Handle(ctxFor(t), req, anonymous)
	require.NoError(t, err)
	return resp.(R)
}

// refused fails where a code is not that of e; nil is no error.
func refused(t testing.TB, e *kerr.Error, code int16) {
	t.Helper()
	want := int16(0)
	if e != nil {
		want = e.Code
	}
	require.Equal(t, want, code, "%v", kerr.ErrorForCode(code))
}

// clock is a time that a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.UnixMilli(1_700_000_000_000)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

// values are the values of records, in order.
func values(rs []*kgo.Record) []string {
	out := []string{}
	for _, r := range rs {
		out = append(out, string(r.Value))
	}
	return out
}

// poll returns n records of a client, in the order in which they come.
func poll(t testing.TB, c *kgo.Client, n int) []*kgo.Record {
	t.Helper()
	ctx := ctxFor(t)
	var out []*kgo.Record
	for len(out) < n {
		fs := c.PollFetches(ctx)
		require.NoError(t, fs.Err0())
		fs.EachError(func(topic string, p int32, err error) { require.NoError(t, err, "%s/%d", topic, p) })
		out = append(out, fs.Records()...)
	}
	return out
}
