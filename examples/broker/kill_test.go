package main_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

var (
	kills    = flag.Int("kills", 50, "how often the broker is killed")
	killSeed = flag.Uint64("kill-seed", 0, "seed of the moments; 0 takes one from the clock")
)

const (
	killWorkers  = 12 // transactional ids at work
	killInFlight = 8  // open transactions that a kill waits for
)

// The broker is killed with -9 again and again, at random moments, with
// transactions in flight: every one of them is wholly there or wholly absent,
// exactly once, in order; what was acknowledged stays so; a group's position
// agrees with what was written for it; nothing stays open for ever. (I2, I5, I7,
// I8, I9, I12)
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
	c := newClients(nil, node.addr)
	c.makeTopics(t, ctx)
	work, stop := context.WithCancel(ctx)
	ids := []string{"copier", "duel"}
	run := append(c.others("copier"), c.rivals("duel", seed)...)
	for i := range killWorkers {
		id := fmt.Sprintf("w%d", i)
		ids = append(ids, id)
		run = append(run, func(ctx context.Context) { c.produce(ctx, id, seed+uint64(i)) })
	}
	wait := spawn(work, run...)

	decided := 0
	for n := 0; n < *kills; n++ {
		time.Sleep(time.Duration(20+rng.IntN(250)) * time.Millisecond)
		reaches(t, &c.inFlight, killInFlight, "transactions in flight")
		if n%5 == 0 { // the copier needs longer: it joins its group anew after each kill
			reaches(t, &c.copied, c.copied.Load()+1, "records copied")
		}
		node.kill()
		if p := prepared(t, node.dir); p > 0 {
			decided++
		}
		node.start(t)
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	wait()
	t.Logf("%d kills, %d of them between a decision and its completion; %d commits, %d aborts, %d unknown, %d refused to a fenced producer; %d records copied",
		*kills, decided, c.count("commit"), c.count("abort"), c.count("?"), c.fenced.Load(), c.copied.Load())
	require.GreaterOrEqual(t, decided, min(10, *kills/5), "too few kills fell between a decision and its completion to show anything")
	require.Positive(t, c.count("commit"))
	require.Positive(t, c.count("abort"))
	require.Positive(t, c.copied.Load())
	// A client of protocol 1 bumps its epoch itself now and then, to recover.
	require.Equal(t, version == "2", c.bumped.Load() > c.kept.Load(), "%d ends bumped the epoch, %d kept it", c.bumped.Load(), c.kept.Load())

	c.takeOver(t, ctx, ids...) // what was left open would time out, later
	cl := c.client(t)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	until(t, 30*time.Second, func() string { return c.settled(ctx, adm, topics...) })
	require.NoError(t, c.check(c.find(t, ctx, adm)))
}

// process is a broker of its own process.
type process struct {
	exe, dir, addr string
	level          string // of its log; "" is error
	args, env      []string
	cmd            *exec.Cmd
	stderr         output
}

// output is what a process has said, over all its starts.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (p *process) start(t *testing.T) {
	t.Helper()
	require.NoError(t, p.launch())
}

// launch starts it, and returns when it accepts connections.
func (p *process) launch() error {
	args := append([]string{"-listen", p.addr, "-log", cmp.Or(p.level, "error")}, p.args...)
	if p.dir != "" {
		args = append(args, "-data", p.dir)
	}
	cmd := exec.Command(p.exe, args...)
	cmd.Env = append(os.Environ(), p.env...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = &p.stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "listening on") {
			return nil
		}
	}
	return fmt.Errorf("the broker does not start: %v: %s", cmd.Wait(), &p.stderr)
}

func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // SIGKILL
		_ = p.cmd.Wait()
	}
}

// dismiss lets it stop by itself.
func (p *process) dismiss() error {
	defer time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() }).Stop()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// freeAddr is an address below the ports that a system takes for connections of
// clients: one of these could take it while its broker is down.
func freeAddr(t testing.TB) string {
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	require.Fail(t, "no free port")
	return ""
}

// prepared counts the transactional ids that a killed broker left decided and
// not complete, as its journal or its readable slot files say.
func prepared(t *testing.T, dir string) (n int) {
	n += preparedInJournal(t, filepath.Join(dir, "txn_journal"))
	files, err := filepath.Glob(filepath.Join(dir, "txn_state", "slot-*.json"))
	require.NoError(t, err)
	for _, f := range files {
		n += preparedInSlot(f)
	}
	return n
}

// preparedInSlot goes by the copy of a slot for people, which may be absent.
func preparedInSlot(file string) (n int) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	var slot map[string]struct{ State string }
	if json.Unmarshal(b, &slot) != nil {
		return 0
	}
	for _, r := range slot {
		if strings.HasPrefix(r.State, "Prepare") {
			n++
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
