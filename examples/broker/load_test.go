package main_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What the clients of a test do. Producers write transactions of perTxn records
// over all partitions of topic "txns", each named PRODUCER-TRANSACTION-RECORD;
// copiers, members of one group, carry what was committed to the same partitions
// of topic "out"; a producer without transactions writes to topic "plain".
const (
	parts  = 4
	perTxn = 2 * parts // records of a transaction

	copyGroup = "copiers"
	// A transaction whose client is gone is aborted after this time.
	txnTimeout = 6 * time.Second
)

var topics = []string{"txns", "out", "plain"}

// clients is the clients' side: where the brokers are, what the clients did and
// what they were told.
type clients struct {
	addrs []string
	opts  []kgo.Opt
	history

	inFlight, commits, copied, fenced atomic.Int32
	// Ends of transactions that kept the producer epoch (protocol 1), and that
	// bumped it (protocol 2).
	kept, bumped atomic.Int32
}

func newClients(opts []kgo.Opt, addrs ...string) *clients {
	return &clients{addrs: addrs, opts: opts, history: history{txns: map[string]*outcome{}, shown: map[view]map[place][]record{}}}
}

func (c *clients) options(more ...kgo.Opt) []kgo.Opt {
	return append(append([]kgo.Opt{
		kgo.SeedBrokers(c.addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }), kgo.RequestRetries(1000),
		kgo.RetryTimeout(20 * time.Second), kgo.MetadataMinAge(20 * time.Millisecond), kgo.ConnIdleTimeout(time.Minute),
	}, c.opts...), more...)
}

func (c *clients) client(t testing.TB, more ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(c.options(more...)...)
	require.NoError(t, err)
	return cl
}

func (c *clients) makeTopics(t testing.TB, ctx context.Context) {
	cl := c.client(t)
	defer cl.Close()
	_, err := kadm.NewClient(cl).CreateTopics(ctx, parts, 1, nil, topics...)
	require.NoError(t, err)
}

// produce runs transactions of one transactional id. A client that was told
// nothing, or an error, is replaced: its successor takes the id over.
func (c *clients) produce(ctx context.Context, id string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for n := 0; ctx.Err() == nil; n++ {
		cl, err := kgo.NewClient(c.options(kgo.TransactionalID(id), kgo.TransactionTimeout(txnTimeout))...)
		if err != nil {
			return
		}
		for ctx.Err() == nil && c.transaction(ctx, cl, fmt.Sprintf("%s-%d", id, n), rng) {
			n++
		}
		cl.CloseAllowingRebalance()
	}
}

// rival is one of several producers that fight for a transactional id. Each
// takes it over from the others again and again, with transactions open.
func (c *clients) rival(ctx context.Context, name, id string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for n := 0; ctx.Err() == nil; n++ {
		cl, err := kgo.NewClient(c.options(kgo.TransactionalID(id), kgo.TransactionTimeout(txnTimeout))...)
		if err != nil {
			return
		}
		pid, epoch, err := cl.ProducerID(ctx)
		if err == nil {
			c.granted(ctx, cl, pid, epoch)
		}
		for k := rng.IntN(10); err == nil && k >= 0 && c.transaction(ctx, cl, fmt.Sprintf("%s-%d", name, n), rng); k-- {
			n++
		}
		cl.CloseAllowingRebalance()
		pause(ctx, time.Duration(rng.IntN(100))*time.Millisecond)
	}
}

// granted notes where the partitions ended after an identity was granted: what
// producers of older epochs wrote lies before.
func (c *clients) granted(ctx context.Context, cl *kgo.Client, pid int64, epoch int16) {
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, "txns")
	if err != nil {
		return
	}
	g := grant{producer: pid, epoch: epoch, ends: map[int32]int64{}}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			g.ends[o.Partition] = o.Offset
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grants = append(c.grants, g)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// transaction reports whether the client is fit for another one.
func (c *clients) transaction(ctx context.Context, cl *kgo.Client, name string, rng *rand.Rand) bool {
	commit, inTwo := rng.IntN(10) < 7, rng.IntN(3) == 0
	if cl.BeginTransaction() != nil {
		return false
	}
	o := &outcome{told: "?"}
	c.note(func() { c.txns[name] = o })
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	var failed atomic.Bool
	for i := range perTxn {
		cl.Produce(ctx, &kgo.Record{Topic: "txns", Partition: int32(i % parts), Value: fmt.Appendf(nil, "%s-%d", name, i)},
			func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(true)
					c.refused(err)
				}
			})
		if inTwo && i == perTxn/2 && cl.Flush(ctx) != nil {
			return false
		}
	}
	if cl.Flush(ctx) != nil || ctx.Err() != nil {
		return false
	}
	_, before, _ := cl.ProducerID(ctx)
	told := "abort"
	if commit && !failed.Load() {
		told = "commit"
		c.note(func() { o.asked = true })
	}
	if err := cl.EndTransaction(ctx, told == "commit"); err != nil {
		c.refused(err)
		return false
	}
	if _, after, err := cl.ProducerID(ctx); err == nil && after == before {
		c.kept.Add(1)
	} else if err == nil {
		c.bumped.Add(1)
	}
	c.note(func() { o.told = told })
	if told == "commit" {
		c.commits.Add(1)
	}
	return true
}

// refused counts the requests of producers that somebody has taken the id from.
func (c *clients) refused(err error) {
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		c.fenced.Add(1)
	}
}

// plain writes without transactions, with an idempotent producer: what was
// acknowledged stays, once, in order.
func (c *clients) plain(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		cl, err := kgo.NewClient(c.options(kgo.StopProducerOnDataLossDetected())...)
		if err != nil {
			return
		}
		for ; err == nil && ctx.Err() == nil; n++ {
			var rs []*kgo.Record
			for p := range int32(parts) {
				rs = append(rs, &kgo.Record{Topic: "plain", Partition: p, Value: fmt.Append(nil, n)})
			}
			for _, r := range cl.ProduceSync(ctx, rs...) {
				if r.Err == nil {
					c.note(func() { c.acked = append(c.acked, acked{r.Record.Partition, r.Record.Offset, n}) })
				}
				err = errors.Join(err, r.Err)
			}
			pause(ctx, 20*time.Millisecond)
		}
		cl.Close()
	}
}

// copy is a consume-transform-produce loop from topic txns to topic out.
func (c *clients) copy(ctx context.Context, id string) {
	for ctx.Err() == nil {
		s, err := kgo.NewGroupTransactSession(c.options(kgo.TransactionalID(id), kgo.TransactionTimeout(txnTimeout),
			kgo.ConsumerGroup(copyGroup), kgo.ConsumeTopics("txns"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(50*time.Millisecond),
			kgo.SessionTimeout(6*time.Second), kgo.RebalanceTimeout(5*time.Second), kgo.HeartbeatInterval(100*time.Millisecond))...)
		if err != nil {
			return
		}
		// Take the id over before the group's position is read: what the session
		// before left staged would keep it unstable until its transaction times out.
		_, _, err = s.Client().ProducerID(ctx)
		for err == nil && ctx.Err() == nil && c.copySome(ctx, s) {
		}
		s.Close()
	}
}

func (c *clients) copySome(ctx context.Context, s *kgo.GroupTransactSession) bool {
	poll, cancel := context.WithTimeout(ctx, time.Second)
	fetches := s.PollRecords(poll, 200)
	cancel()
	if fetches.NumRecords() == 0 {
		return true
	}
	if s.Begin() != nil {
		return false
	}
	var failed atomic.Bool
	fetches.EachRecord(func(r *kgo.Record) {
		s.Produce(ctx, &kgo.Record{Topic: "out", Partition: r.Partition, Value: r.Value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(true)
			}
		})
	})
	if s.Client().Flush(ctx) != nil {
		return false
	}
	ok, err := s.End(ctx, kgo.TransactionEndTry(!failed.Load()))
	if ok {
		c.copied.Add(int32(fetches.NumRecords()))
	}
	return err == nil
}

// watch notes what a consumer of the topics is shown while all goes on.
func (c *clients) watch(ctx context.Context, v view) {
	cl, err := kgo.NewClient(c.options(v.options(kgo.ConsumeTopics(topics...))...)...)
	if err != nil {
		return
	}
	defer cl.Close()
	for ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		c.note(func() {
			fetches.EachError(func(topic string, p int32, err error) {
				if lost, ok := errors.AsType[*kgo.ErrDataLoss](err); ok {
					c.complaints = append(c.complaints, fmt.Sprintf("a %s consumer: %v", v, lost))
				}
			})
			shown := c.shown[v]
			if shown == nil {
				shown = map[place][]record{}
				c.shown[v] = shown
			}
			fetches.EachRecord(func(r *kgo.Record) {
				at := place{r.Topic, r.Partition}
				shown[at] = append(shown[at], asRecord(r))
			})
		})
	}
}

// takeOver ends what clients have left open under transactional ids.
func (c *clients) takeOver(t testing.TB, ctx context.Context, ids ...string) {
	for _, id := range ids {
		cl := c.client(t, kgo.TransactionalID(id))
		_, _, err := cl.ProducerID(ctx)
		require.NoError(t, err, "%s", id)
		cl.Close()
	}
}

// settled says what is not yet at its end: last stable offsets behind their
// high watermarks, transactions open or decided and not complete. "" is nothing.
func (c *clients) settled(ctx context.Context, adm *kadm.Client, topics ...string) string {
	stable, err1 := adm.ListCommittedOffsets(ctx, topics...)
	ends, err2 := adm.ListEndOffsets(ctx, topics...)
	states, err3 := adm.DescribeTransactions(ctx)
	if err := errors.Join(err1, err2, err3, stable.Error(), ends.Error()); err != nil {
		return err.Error()
	}
	var left []string
	ends.Each(func(o kadm.ListedOffset) {
		if s, ok := stable.Lookup(o.Topic, o.Partition); !ok || s.Offset != o.Offset {
			left = append(left, fmt.Sprintf("%s/%d is stable to %d of %d (I12)", o.Topic, o.Partition, s.Offset, o.Offset))
		}
	})
	for _, s := range states.Sorted() {
		if s.Err != nil {
			left = append(left, fmt.Sprintf("%s: %v", s.TxnID, s.Err))
		} else if s.State == "Ongoing" || strings.HasPrefix(s.State, "Prepare") {
			left = append(left, fmt.Sprintf("%s is %s, of %v (I12)", s.TxnID, s.State, s.Topics))
		}
	}
	return strings.Join(left, "; ")
}

// behind says how far the group of copiers is from the end of what there is.
func (c *clients) behind(ctx context.Context, adm *kadm.Client, in contents) string {
	at, err := adm.FetchOffsets(ctx, copyGroup)
	if err = errors.Join(err, at.Error()); err != nil {
		return err.Error()
	}
	var left []string
	for p, rs := range in.committed {
		if o, ok := at.Lookup("txns", p); len(rs) > 0 && (!ok || o.At <= rs[len(rs)-1].offset) {
			left = append(left, fmt.Sprintf("the group is at %d of txns/%d, and %d is committed there", o.At, p, rs[len(rs)-1].offset))
		}
	}
	return strings.Join(left, "; ")
}

// reaches waits until a number is there: the clients get on.
func reaches(t testing.TB, n *atomic.Int32, want int32, what string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); n.Load() < want; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "%d %s after a minute, want %d: the clients do not get on", n.Load(), what, want)
	}
}

// until waits for what keeps something from being done to become "", and fails
// with it after the time.
func until(t testing.TB, limit time.Duration, what func() string) {
	t.Helper()
	left := ""
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if left = what(); left == "" {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(t, left, "after %v", limit)
		}
	}
}

// read gives what is in a topic to its end, for the two kinds of consumer.
func (c *clients) read(t testing.TB, ctx context.Context, adm *kadm.Client, topic string) contents {
	t.Helper()
	ends, err := adm.ListEndOffsets(ctx, topic)
	require.NoError(t, err)
	require.NoError(t, ends.Error())
	read := func(v view) map[int32][]record {
		cl := c.client(t, v.options(kgo.ConsumeTopics(topic), kgo.KeepControlRecords())...)
		defer cl.Close()
		left := map[int32]int64{}
		ends.Each(func(o kadm.ListedOffset) {
			if o.Offset > 0 {
				left[o.Partition] = o.Offset
			}
		})
		found := map[int32][]record{}
		for idle := time.Now(); len(left) > 0; {
			require.Less(t, time.Since(idle), 20*time.Second, "topic %s: %v not read to its end", topic, left)
			poll, cancel := context.WithTimeout(ctx, time.Second)
			fetches := cl.PollFetches(poll)
			cancel()
			fetches.EachRecord(func(r *kgo.Record) {
				idle = time.Now()
				if v == uncommitted || !r.Attrs.IsControl() {
					found[r.Partition] = append(found[r.Partition], asRecord(r))
				}
				if r.Offset+1 >= left[r.Partition] {
					delete(left, r.Partition)
				}
			})
		}
		return found
	}
	return contents{all: read(uncommitted), committed: read(committed)}
}

// find reads everything that is there.
func (c *clients) find(t testing.TB, ctx context.Context, adm *kadm.Client) found {
	t.Helper()
	f := found{topics: map[string]contents{}, positions: map[int32]int64{}}
	for _, topic := range topics {
		f.topics[topic] = c.read(t, ctx, adm, topic)
	}
	at, err := adm.FetchOffsets(ctx, copyGroup)
	require.NoError(t, err)
	require.NoError(t, at.Error())
	at.Each(func(o kadm.OffsetResponse) { f.positions[o.Partition] = o.At })
	return f
}

// view is a kind of consumer.
type view string

const (
	committed   view = "read-committed"
	uncommitted view = "read-uncommitted"
)

func (v view) options(more ...kgo.Opt) []kgo.Opt {
	more = append(more, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	if v == committed {
		return append(more, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	return append(more, kgo.KeepControlRecords())
}

func asRecord(r *kgo.Record) record {
	x := record{offset: r.Offset, producer: r.ProducerID, epoch: r.ProducerEpoch, control: r.Attrs.IsControl()}
	if !x.control {
		x.value = string(r.Value)
	}
	return x
}

// others are the clients beside the producers of transactions.
func (c *clients) others(copiers ...string) []func(context.Context) {
	fs := []func(context.Context){
		c.plain,
		func(ctx context.Context) { c.watch(ctx, committed) },
		func(ctx context.Context) { c.watch(ctx, uncommitted) },
	}
	for _, id := range copiers {
		fs = append(fs, func(ctx context.Context) { c.copy(ctx, id) })
	}
	return fs
}

// rivals are two producers that fight for a transactional id.
func (c *clients) rivals(id string, seed uint64) []func(context.Context) {
	return []func(context.Context){
		func(ctx context.Context) { c.rival(ctx, id+".a", id, seed) },
		func(ctx context.Context) { c.rival(ctx, id+".b", id, seed+1) },
	}
}

// spawn runs the clients until ctx is done; wait returns when they are.
func spawn(ctx context.Context, fs ...func(context.Context)) (wait func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() { f(ctx) })
	}
	return wg.Wait
}
