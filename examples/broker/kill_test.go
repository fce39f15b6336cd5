package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

var (
	kills    = flag.Int("kills", 50, "how often the broker is killed")
	killSeed = flag.Uint64("kill-seed", 0, "seed of the moments; 0 takes one from the clock")
)

const (
	killWorkers  = 12 // transactional ids at work
	killInFlight = 8  // open transactions that a kill waits for
	killPerTxn   = 6  // records of a transaction
	killParts    = 3
	killInput    = 2000 // records of each input partition
)

// The broker is killed with -9 again and again, at random moments, with
// transactions in flight: every one of them is wholly there or wholly absent,
// exactly once, in order; what was acknowledged stays so; a group's position
// agrees with what was written for it; nothing stays open for ever. (I2, I5, I7,
// I8, I12)
func TestKillsLoseNothingAndShowNoHalf(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts and kills real processes for half a minute")
	}
	exe := filepath.Join(t.TempDir(), "broker")
	build, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput()
	require.NoError(t, err, "%s", build)
	for version, store := range map[string]string{"2": "journal", "1": "slotfile"} {
		t.Run("transaction.version "+version+", "+store, func(t *testing.T) { killRun(t, exe, version, store) })
	}
}

func killRun(t *testing.T, exe, version, store string) {
	seed := *killSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-kill-seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	node := &process{exe: exe, dir: t.TempDir(), addr: freeAddr(t), args: []string{"-transaction-version", version, "-store", store, "-abort-interval", "200ms"}}
	node.start(t)
	defer node.kill()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	setUp(t, ctx, node.addr)

	w := &load{addr: node.addr, txns: map[string]*outcome{}}
	work, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range killWorkers {
		wg.Go(func() { w.produce(work, fmt.Sprintf("w%d", i), seed+uint64(i)) })
	}
	wg.Go(func() { w.copy(work) })

	decided := 0
	for n := 0; n < *kills; n++ {
		time.Sleep(time.Duration(20+rng.IntN(250)) * time.Millisecond)
		for deadline := time.Now().Add(10 * time.Second); w.inFlight.Load() < killInFlight; time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "%d transactions in flight after 10 s: the clients do not get on", w.inFlight.Load())
		}
		if n%5 == 0 { // the copier needs longer: it joins its group anew after each kill
			more := w.copied.Load() + 1
			for deadline := time.Now().Add(10 * time.Second); w.copied.Load() < more; time.Sleep(time.Millisecond) {
				require.True(t, time.Now().Before(deadline), "the copier does not get on")
			}
		}
		node.kill()
		if p := prepared(t, node.dir); p > 0 {
			decided++
		}
		node.start(t)
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	wg.Wait()
	t.Logf("%d kills, %d of them between a decision and its completion; %d commits, %d aborts, %d unknown; %d records copied",
		*kills, decided, w.count("commit"), w.count("abort"), w.count("?"), w.copied.Load())
	require.GreaterOrEqual(t, decided, min(10, *kills/5), "too few kills fell between a decision and its completion to show anything")
	require.Positive(t, w.count("commit"))
	require.Positive(t, w.count("abort"))
	require.Positive(t, w.copied.Load())
	// A client of protocol 1 bumps its epoch itself now and then, to recover.
	require.Equal(t, version == "2", w.bumped.Load() > w.kept.Load(), "%d ends bumped the epoch, %d kept it", w.bumped.Load(), w.kept.Load())

	w.verify(t, ctx)
}

// process is a broker of its own process.
type process struct {
	exe, dir, addr string
	args           []string
	cmd            *exec.Cmd
}

func (p *process) start(t *testing.T) {
	t.Helper()
	args := append([]string{"-listen", p.addr, "-log", "error"}, p.args...)
	if p.dir != "" {
		args = append(args, "-data", p.dir)
	}
	cmd := exec.Command(p.exe, args...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var log strings.Builder
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	p.cmd = cmd
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "listening on") {
			return
		}
	}
	_ = cmd.Wait()
	t.Fatalf("the broker does not start: %s", log.String())
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // SIGKILL
	_ = p.cmd.Wait()
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// prepared counts the transactional ids that a killed broker left decided and
// not complete, as its journal or its readable slot files say.
func prepared(t *testing.T, dir string) (n int) {
	n += preparedInJournal(t, filepath.Join(dir, "txn_journal"))
	files, err := filepath.Glob(filepath.Join(dir, "txn_state", "slot-*.json"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		var slot map[string]struct{ State string }
		if json.Unmarshal(b, &slot) != nil {
			continue // the copy for people; the next start does not read it
		}
		for _, r := range slot {
			if strings.HasPrefix(r.State, "Prepare") {
				n++
			}
		}
	}
	return n
}

func preparedInJournal(t *testing.T, dir string) (n int) {
	segments, err := filepath.Glob(filepath.Join(dir, "txn-*.log")) // in order
	require.NoError(t, err)
	decided := map[string]bool{}
	for _, f := range segments {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		_, frames, err := journal.Read(b)
		require.NoError(t, err)
		for frame, err := range frames {
			if err != nil {
				break // what the kill left of a write
			}
			for e, err := range frame.Entries() {
				require.NoError(t, err)
				if r, err := e.Record(); err == nil && !e.Deleted {
					decided[e.TxnID] = r.State.Decided()
				}
			}
		}
	}
	for _, d := range decided {
		if d {
			n++
		}
	}
	return n
}

func clientOpts(addr string, more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }), kgo.RequestRetries(1000),
		kgo.RetryTimeout(20 * time.Second), kgo.MetadataMinAge(20 * time.Millisecond), kgo.ConnIdleTimeout(time.Minute),
	}, more...)
}

func setUp(t *testing.T, ctx context.Context, addr string) {
	c, err := kgo.NewClient(clientOpts(addr)...)
	require.NoError(t, err)
	defer c.Close()
	_, err = kadm.NewClient(c).CreateTopics(ctx, killParts, 1, nil, "txns", "in", "out")
	require.NoError(t, err)
	var rs []*kgo.Record
	for i := range killInput {
		for p := range int32(killParts) {
			rs = append(rs, &kgo.Record{Topic: "in", Partition: p, Value: []byte(strconv.Itoa(i))})
		}
	}
	require.NoError(t, c.ProduceSync(ctx, rs...).FirstErr())
}

// load is the clients' side: what they did and what they were told.
type load struct {
	addr     string
	inFlight atomic.Int32
	copied   atomic.Int32
	// Ends of transactions that kept the producer epoch (protocol 1), and that
	// bumped it (protocol 2).
	kept, bumped atomic.Int32

	mu   sync.Mutex
	txns map[string]*outcome
}

// outcome of a transaction, as its client was told: "commit", "abort" or "?".
type outcome struct{ told string }

func (l *load) count(told string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.txns {
		if o.told == told {
			n++
		}
	}
	return n
}

// produce runs transactions of one transactional id. A client that was told
// nothing, or an error, is replaced: its successor takes the id over.
func (l *load) produce(ctx context.Context, id string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 0
	for ctx.Err() == nil {
		c, err := kgo.NewClient(clientOpts(l.addr, kgo.TransactionalID(id))...)
		if err != nil {
			return
		}
		for ctx.Err() == nil && l.transaction(ctx, c, fmt.Sprintf("%s-%d", id, n), rng.IntN(10) < 7) {
			n++
		}
		n++
		c.CloseAllowingRebalance()
	}
}

// transaction reports whether the client is fit for another one.
func (l *load) transaction(ctx context.Context, c *kgo.Client, name string, commit bool) bool {
	if c.BeginTransaction() != nil {
		return false
	}
	o := &outcome{told: "?"}
	l.mu.Lock()
	l.txns[name] = o
	l.mu.Unlock()
	l.inFlight.Add(1)
	defer l.inFlight.Add(-1)
	var failed atomic.Bool
	for i := range killPerTxn {
		c.Produce(ctx, &kgo.Record{Topic: "txns", Partition: int32(i % killParts), Value: fmt.Appendf(nil, "%s-%d", name, i)},
			func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(true)
				}
			})
	}
	if c.Flush(ctx) != nil || ctx.Err() != nil {
		return false
	}
	_, before, _ := c.ProducerID(ctx)
	told := "abort"
	if commit && !failed.Load() {
		told = "commit"
	}
	if c.EndTransaction(ctx, told == "commit") != nil {
		return false
	}
	if _, after, err := c.ProducerID(ctx); err == nil && after == before {
		l.kept.Add(1)
	} else if err == nil {
		l.bumped.Add(1)
	}
	l.mu.Lock()
	o.told = told
	l.mu.Unlock()
	return true
}

// copy is a consume-transform-produce loop from topic in to topic out.
func (l *load) copy(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := kgo.NewGroupTransactSession(clientOpts(l.addr, kgo.TransactionalID("copier"),
			kgo.ConsumerGroup("copiers"), kgo.ConsumeTopics("in"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(50*time.Millisecond),
			kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(100*time.Millisecond))...)
		if err != nil {
			return
		}
		// Take the id over before the group's position is read: what the session
		// before left staged would keep it unstable until its transaction times out.
		_, _, err = s.Client().ProducerID(ctx)
		for err == nil && ctx.Err() == nil && l.copySome(ctx, s) {
		}
		s.Close()
	}
}

func (l *load) copySome(ctx context.Context, s *kgo.GroupTransactSession) bool {
	poll, cancel := context.WithTimeout(ctx, time.Second)
	fetches := s.PollRecords(poll, 20)
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
		l.copied.Add(int32(fetches.NumRecords()))
	}
	return err == nil
}

// verify reads everything back.
func (l *load) verify(t *testing.T, ctx context.Context) {
	c, err := kgo.NewClient(clientOpts(l.addr)...)
	require.NoError(t, err)
	defer c.Close()
	adm := kadm.NewClient(c)

	// Transactions that their clients left open time out, or are taken over.
	for i := range killWorkers {
		takeOver(t, ctx, l.addr, fmt.Sprintf("w%d", i))
	}
	takeOver(t, ctx, l.addr, "copier")
	require.Eventually(t, func() bool {
		stable, err1 := adm.ListCommittedOffsets(ctx, "txns", "out")
		ends, err2 := adm.ListEndOffsets(ctx, "txns", "out")
		if err := errors.Join(err1, err2); err != nil {
			return false
		}
		same := true
		ends.Each(func(o kadm.ListedOffset) {
			s, ok := stable.Lookup(o.Topic, o.Partition)
			same = same && ok && s.Offset == o.Offset
		})
		return same
	}, 30*time.Second, 50*time.Millisecond, "a last stable offset stays behind its high watermark (I12)")

	checkTransactions(t, l.txns, readAll(t, ctx, l.addr, adm, "txns"))

	out := readAll(t, ctx, l.addr, adm, "out")
	offsets, err := adm.FetchOffsets(ctx, "copiers")
	require.NoError(t, err)
	for p := range int32(killParts) {
		for i, v := range out[p] {
			require.Equal(t, strconv.Itoa(i), v, "partition %d of out: exactly once and in order", p)
		}
		if at, ok := offsets.Lookup("in", p); ok || len(out[p]) > 0 {
			require.Equal(t, int64(len(out[p])), at.At, "the position of the group in partition %d, and what was written for it", p)
		}
	}
	states, err := adm.DescribeTransactions(ctx)
	require.NoError(t, err)
	for _, s := range states.Sorted() {
		require.NotContains(t, s.State, "Prepare", "%s", s.TxnID)
	}
}

// checkTransactions holds the records of each partition, in order, against what
// the clients were told.
func checkTransactions(t require.TestingT, txns map[string]*outcome, parts map[int32][]string) {
	seen := map[string]int{}
	for p, values := range parts {
		last := map[string]int{} // by id: the place of its latest record
		for _, v := range values {
			f := strings.Split(v, "-")
			require.Len(t, f, 3, "record %q", v)
			txn, _ := strconv.Atoi(f[1])
			rec, _ := strconv.Atoi(f[2])
			place := txn*killPerTxn + rec + 1
			require.Greater(t, place, last[f[0]], "partition %d: record %s is doubled or out of order", p, v)
			last[f[0]] = place
			require.Equal(t, int(p), rec%killParts, "record %s", v)
			seen[f[0]+"-"+f[1]]++
		}
	}
	for name, n := range seen {
		require.Equal(t, killPerTxn, n, "transaction %s is half there", name)
		require.Contains(t, txns, name)
	}
	for name, o := range txns {
		switch o.told {
		case "commit":
			require.Equal(t, killPerTxn, seen[name], "transaction %s was committed", name)
		case "abort":
			require.Zero(t, seen[name], "transaction %s was aborted", name)
		}
	}
}

func takeOver(t *testing.T, ctx context.Context, addr, id string) {
	c, err := kgo.NewClient(clientOpts(addr, kgo.TransactionalID(id))...)
	require.NoError(t, err)
	defer c.Close()
	_, _, err = c.ProducerID(ctx)
	require.NoError(t, err, "%s", id)
}

// readAll is what a read-committed consumer finds in a topic.
func readAll(t *testing.T, ctx context.Context, addr string, adm *kadm.Client, topic string) map[int32][]string {
	ends, err := adm.ListEndOffsets(ctx, topic)
	require.NoError(t, err)
	c, err := kgo.NewClient(clientOpts(addr, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())...)
	require.NoError(t, err)
	defer c.Close()
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	parts := map[int32][]string{}
	for idle := time.Now(); len(left) > 0; {
		require.Less(t, time.Since(idle), 10*time.Second, "topic %s: %v not read to its end", topic, left)
		poll, cancel := context.WithTimeout(ctx, time.Second)
		fetches := c.PollFetches(poll)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			idle = time.Now()
			if !r.Attrs.IsControl() {
				parts[r.Partition] = append(parts[r.Partition], string(r.Value))
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return parts
}

// The checker itself notices what it is there to notice.
func TestTheCheckerNoticesLostDoubledReorderedAndHalfTransactions(t *testing.T) {
	good := func() (map[string]*outcome, map[int32][]string) {
		parts := map[int32][]string{}
		for txn := range 3 {
			for i := range killPerTxn {
				parts[int32(i%killParts)] = append(parts[int32(i%killParts)], fmt.Sprintf("w0-%d-%d", txn, i))
			}
		}
		return map[string]*outcome{"w0-0": {"commit"}, "w0-1": {"?"}, "w0-2": {"commit"}, "w0-3": {"abort"}, "w0-4": {"?"}}, parts
	}
	for name, harm := range map[string]func(txns map[string]*outcome, parts map[int32][]string){
		"":          func(map[string]*outcome, map[int32][]string) {},
		"lost":      func(txns map[string]*outcome, _ map[int32][]string) { txns["w0-4"].told = "commit" },
		"undead":    func(txns map[string]*outcome, _ map[int32][]string) { txns["w0-1"].told = "abort" },
		"half":      func(_ map[string]*outcome, parts map[int32][]string) { parts[1] = parts[1][1:] },
		"doubled":   func(_ map[string]*outcome, parts map[int32][]string) { parts[2] = append(parts[2], parts[2][5]) },
		"reordered": func(_ map[string]*outcome, parts map[int32][]string) { slices.Reverse(parts[0]) },
		"unasked":   func(txns map[string]*outcome, _ map[int32][]string) { delete(txns, "w0-1") },
	} {
		txns, parts := good()
		harm(txns, parts)
		var f failures
		func() {
			defer func() { _ = recover() }()
			checkTransactions(&f, txns, parts)
		}()
		require.Equal(t, name != "", f > 0, "%q", name)
	}
}

// failures counts what a check complains of, and ends it there.
type failures int

func (f *failures) Errorf(string, ...any) { *f++ }
func (f *failures) FailNow()              { panic("failed") }
