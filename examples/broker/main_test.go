package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"go.uber.org/goleak"
)

// asBroker makes the test's own binary the broker.
const asBroker = "RUN_AS_BROKER"

func TestMain(m *testing.M) {
	if os.Getenv(asBroker) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// limit bounds what a test waits for.
const limit = 30 * time.Second

// process is a broker of its own.
type process struct {
	cmd    *exec.Cmd
	addr   string
	stderr *bytes.Buffer
}

// launch starts a broker and returns when it accepts connections, or has ended.
func launch(t testing.TB, args ...string) (*process, error) {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), stderr: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), asBroker+"=1")
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return p, p.cmd.Wait()
	}
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	require.True(t, ok, line)
	p.addr = addr
	return p, nil
}

func start(t testing.TB, args ...string) *process {
	t.Helper()
	p, err := launch(t, args...)
	require.NoError(t, err, "%s", p.stderr)
	require.NotEmpty(t, p.addr, "%s", p.stderr)
	return p
}

func ctxFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func client(t testing.TB, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.FetchMaxWait(100 * time.Millisecond), kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestItStopsCleanlyOnASignal(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		p := start(t, "-listen", "127.0.0.1:0", "-data", t.TempDir(), "-log", "warn")
		c := client(t, p.addr)
		require.NoError(t, c.Ping(ctxFor(t)))
		require.NoError(t, p.cmd.Process.Signal(s))
		require.NoError(t, p.cmd.Wait(), "exit status 0")
		require.Empty(t, p.stderr.String())
	}
}

func TestASecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	start(t, "-listen", "127.0.0.1:0", "-data", dir)
	p, err := launch(t, "-listen", "127.0.0.1:0", "-data", dir)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, p.stderr.String(), "another process uses the directory "+dir)
}

func TestArgumentsThatCantBe(t *testing.T) {
	for _, args := range [][]string{
		{"-transaction-version", "3"}, {"-transaction-version", "-1"}, {"-log", "loud"}, {"-store", "paper"}, {"-store", "slotfile"},
		{"-cluster", "1"}, {"-cluster", "x=a:1"}, {"-cluster", "1=a:1,1=b:1"}, {"-node", "1", "-cluster", "1=a:1"}, {"-data", "d", "-cluster", "1=a:1"},
		{"-markers", "pigeon"},
		{"-fsync", "sometimes"}, {"extra"}, {"-abort-interval", "-1s"}, {"-nothing"}, {"-listen", "nowhere:x"}, {"-node", "x"},
	} {
		err := run(context.Background(), append([]string{"-listen", "127.0.0.1:0"}, args...), io.Discard, io.Discard)
		require.Error(t, err, "%v", args)
	}
}
