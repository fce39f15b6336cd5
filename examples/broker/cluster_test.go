//go:build unix

package main_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	faults     = flag.Int("faults", 0, "how many faults a cluster is put through, for each transport and protocol; 0 is a few, for two of these pairs")
	faultSeed  = flag.Uint64("fault-seed", 0, "seed of the faults; 0 takes one from the clock")
	faultLease = flag.Duration("fault-lease", time.Second, "lease time of the clusters")
	faultDir   = flag.String("fault-dir", "", "keep what the clusters leave in this `directory`")
	faultLog   = flag.String("fault-log", "error", "log level of the nodes, whose output is shown when the test fails")
)

const (
	fewFaults = 8
	nodes     = 3
	// What is to come to an end after the last fault has done so within this time.
	settleTime = 30 * time.Second

	clusterWorkers = 6
)

// Three brokers on one directory are killed with -9, stopped for longer than
// their lease and woken up, and stopped in an orderly way, one or two at a time,
// at random moments, while clients are at work: producers that commit and abort,
// a group that consumes, transforms and produces, two producers that fight for
// one transactional id, one without transactions, and readers. Every transaction
// is whole or absent, once, in order; what was acknowledged or shown stays so;
// the group's position agrees with what was written for it; who was fenced writes
// nothing more; and soon after the faults nothing is open, undecided or stuck.
// (I2, I3, I5, I7, I8, I9, I10, I12)
func TestAClusterLosesNothingAndShowsNoHalf(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts and kills real processes for half a minute")
	}
	for _, markers := range []string{"rpc", "queue"} {
		for _, version := range []string{"2", "1"} {
			t.Run(fmt.Sprintf("markers %s, transaction.version %s", markers, version), func(t *testing.T) {
				if *faults == 0 && (markers == "rpc") != (version == "2") {
					t.Skip("without -faults, one protocol for each transport")
				}
				clusterRun(t, markers, version)
			})
		}
	}
}

// cluster is brokers that share a directory.
type cluster struct {
	dir   string
	nodes []*process
	addrs []string
}

func startCluster(t *testing.T, args ...string) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir()}
	if *faultDir != "" {
		var err error
		c.dir, err = os.MkdirTemp(*faultDir, "cluster-")
		require.NoError(t, err)
		t.Log("data in", c.dir)
	}
	var all []string
	for i := range nodes {
		c.addrs = append(c.addrs, freeAddr(t))
		all = append(all, fmt.Sprintf("%d=%s", i+1, c.addrs[i]))
	}
	for i := range nodes {
		c.nodes = append(c.nodes, &process{
			// The test's own binary: with -race the brokers look for races too.
			exe: os.Args[0], env: []string{"RUN_AS_BROKER=1"}, dir: c.dir, addr: c.addrs[i], level: *faultLog,
			args: append([]string{"-node", strconv.Itoa(i + 1), "-cluster", strings.Join(all, ","), "-lease", faultLease.String(), "-abort-interval", "200ms"}, args...),
		})
	}
	t.Cleanup(func() {
		for i, n := range c.nodes {
			n.kill()
			said := n.stderr.String()
			for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
				if strings.Contains(said, bad) {
					t.Errorf("node %d: %s\n%s", i+1, bad, said)
				}
			}
			if t.Failed() {
				t.Logf("node %d said:\n%s", i+1, said)
			}
		}
	})
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() {
			if err := n.launch(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	require.NoError(t, c.placed(t.Context(), nil))
	return c
}

func seedOf(t *testing.T) uint64 {
	seed := *faultSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-fault-seed %d", seed)
	return seed
}

// placed waits until everything is placed on the nodes that are not dead, and on
// all of these.
func (c *cluster) placed(ctx context.Context, dead []int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(newClients(nil, c.addrs[0]).options()...)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	var ids []string
	for i := range 60 {
		ids = append(ids, fmt.Sprintf("somebody%d", i))
	}
	var want []int32
	for i := range c.nodes {
		if !slices.Contains(dead, i) {
			want = append(want, int32(i+1))
		}
	}
	for {
		got := map[int32]bool{}
		m, err := adm.Metadata(ctx)
		for _, topic := range m.Topics {
			err = errors.Join(err, topic.Err)
			for _, p := range topic.Partitions {
				err = errors.Join(err, p.Err)
				got[p.Leader] = true
			}
		}
		for _, found := range []kadm.FindCoordinatorResponses{adm.FindTxnCoordinators(ctx, ids...), adm.FindGroupCoordinators(ctx, ids...)} {
			err = errors.Join(err, found.Error())
			for _, f := range found {
				got[f.NodeID] = true
			}
		}
		var on []int32
		for node := range got {
			on = append(on, node)
		}
		slices.Sort(on)
		if err == nil && slices.Equal(on, want) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("everything is on %v, want %v: %w", on, want, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// prepared counts the transactional ids that are decided and not complete, in
// the slots that a node has.
func (c *cluster) prepared(node int) (n int) {
	tokens, _ := filepath.Glob(filepath.Join(c.dir, "leases", "slots", fmt.Sprintf("slot-*.broker-%d", node)))
	for _, token := range tokens {
		var slot int
		if _, err := fmt.Sscanf(filepath.Base(token), "slot-%d.", &slot); err == nil {
			n += preparedInSlot(filepath.Join(c.dir, "txn_state", fmt.Sprintf("slot-%d.json", slot)))
		}
	}
	return n
}

// epochs are those of the slots, and of the leaders of partitions, added up. They
// grow by one with each takeover.
type epochs struct{ slots, logs int }

func (c *cluster) epochs(t *testing.T) (e epochs) {
	logs := map[string]int{}
	require.NoError(t, filepath.WalkDir(c.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // a file that is gone again
		}
		var slot, broker, epoch int
		if _, err := fmt.Sscanf(d.Name(), "slot-%d.%d.broker-%d", &slot, &epoch, &broker); err == nil {
			e.slots += epoch
		}
		if name, ok := strings.CutSuffix(d.Name(), ".log"); ok {
			if epoch, err := strconv.Atoi(name); err == nil {
				logs[filepath.Dir(path)] = max(logs[filepath.Dir(path)], epoch)
			}
		}
		return nil
	}))
	for _, epoch := range logs {
		e.logs += epoch
	}
	return e
}

// A fault is done to a node and healed after some time.
type fault struct {
	kind string
	for_ time.Duration
}

const (
	killed    = "kill -9"
	stopped   = "SIGSTOP"       // for longer than the lease
	blinked   = "short SIGSTOP" // for less
	dismissed = "SIGTERM"
)

func someFault(rng *rand.Rand) fault {
	lease := float64(*faultLease)
	between := func(a, b float64) time.Duration { return time.Duration((a + rng.Float64()*(b-a)) * lease) }
	switch k := rng.IntN(100); {
	case k < 40:
		return fault{killed, between(0, 2.5)}
	case k < 75:
		return fault{stopped, between(1.3, 3)}
	case k < 85:
		return fault{blinked, between(0.1, 0.9)}
	default:
		return fault{dismissed, between(0, 2)}
	}
}

// begin does it to a node.
func (f fault) begin(t *testing.T, n *process) {
	switch f.kind {
	case killed:
		n.kill()
	case stopped, blinked:
		require.NoError(t, n.cmd.Process.Signal(syscall.SIGSTOP))
	case dismissed:
		require.NoError(t, n.dismiss(), "it ends by itself, with exit status 0: %s", &n.stderr)
	}
}

func (f fault) end(n *process) error {
	switch f.kind {
	case killed, dismissed:
		return n.launch()
	default:
		return n.cmd.Process.Signal(syscall.SIGCONT)
	}
}

func clusterRun(t *testing.T, markers, version string) {
	seed, most := seedOf(t), *faults
	if most == 0 {
		most = fewFaults
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	nodes := startCluster(t, "-transaction-version", version, "-markers", markers)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(most)*time.Minute)
	defer cancel()
	// A request that a stopped node has is sent to its successor after this time.
	c := newClients([]kgo.Opt{kgo.RequestTimeoutOverhead(max(2*time.Second, 2**faultLease)), kgo.ProduceRequestTimeout(time.Second), kgo.DialTimeout(2 * time.Second)}, nodes.addrs...)
	c.makeTopics(t, ctx)
	copying, stopCopying := context.WithCancel(ctx)
	defer stopCopying()
	others := spawn(copying, c.others("copier1", "copier2")...)
	work, stop := context.WithCancel(ctx)
	defer stop()
	run := c.rivals("duel", seed)
	for i := range clusterWorkers {
		run = append(run, func(ctx context.Context) { c.produce(ctx, fmt.Sprintf("w%d", i), seed+uint64(i)) })
	}
	workers := spawn(work, run...)
	reaches(t, &c.commits, 3, "commits before the first fault")
	reaches(t, &c.copied, 1, "records copied before the first fault")

	counts, decided, twice, began := map[string]int{}, 0, 0, time.Now()
	before := nodes.epochs(t)
	n := 0
	for round := 0; n < most; round++ {
		time.Sleep(time.Duration(20+rng.IntN(250)) * time.Millisecond)
		at := rng.Perm(len(nodes.nodes))[:1]
		if rng.IntN(5) == 0 && n+1 < most {
			at = rng.Perm(len(nodes.nodes))[:2]
			twice++
		}
		var wg sync.WaitGroup
		for _, i := range at {
			f := someFault(rng)
			counts[f.kind]++
			n++
			node := nodes.nodes[i]
			f.begin(t, node)
			if nodes.prepared(i+1) > 0 {
				decided++
			}
			wg.Go(func() {
				time.Sleep(f.for_)
				if err := f.end(node); err != nil {
					t.Errorf("%s of node %d: %v", f.kind, i+1, err)
				}
			})
		}
		wg.Wait()
		require.False(t, t.Failed())
		if round%4 == 3 {
			continue // the next one meets what this one has left
		}
		reaches(t, &c.commits, c.commits.Load()+3, "commits")
		if round%4 == 0 {
			reaches(t, &c.copied, c.copied.Load()+1, "records copied")
		}
	}
	ended := time.Now()
	stop()
	workers()
	after := nodes.epochs(t)

	// What clients have left open times out.
	adm := kadm.NewClient(c.client(t))
	defer adm.Close()
	left := func(topics ...string) {
		t.Helper()
		until(t, settleTime-time.Since(ended), func() string { return c.settled(ctx, adm, topics...) })
	}
	left("txns")
	in := c.read(t, ctx, adm, "txns")
	until(t, settleTime-time.Since(ended), func() string { return c.behind(ctx, adm, in) })
	stopCopying()
	others()
	left(topics...)
	settled := time.Since(ended)

	t.Logf("%d faults in %v: %v, %d times two nodes at once; %d of them between a decision and its completion",
		n, ended.Sub(began).Round(time.Second), counts, twice, decided)
	t.Logf("%d commits, %d aborts, %d unknown; %d requests of fenced producers refused; %d records copied, %d without transaction",
		c.count("commit"), c.count("abort"), c.count("?"), c.fenced.Load(), c.copied.Load(), len(c.acked))
	t.Logf("%d slots and %d logs were taken over; settled %v after the faults", after.slots-before.slots, after.logs-before.logs, settled.Round(time.Millisecond))
	require.NoError(t, c.check(c.find(t, ctx, adm)))
	require.Positive(t, c.count("abort"))
	require.Positive(t, after.slots-before.slots)
	require.Positive(t, after.logs-before.logs)
}
