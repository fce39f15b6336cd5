//go:build unix

package slotfile_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

const childEnv = "SLOTFILE_TEST_CHILD_DIR"

// childMain is a process that counts up one id for as long as it is let, and says
// so each time: before it tries, and after it succeeded.
func childMain() bool {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return false
	}
	s, err := slotfile.Open(slotfile.Config{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		return true
	}
	for {
		r, err := s.Load(context.Background(), target)
		if err != nil {
			fmt.Println("error", err)
			return true
		}
		r.UpdateMs++
		fmt.Println("try")
		_, err = s.Swap(context.Background(), r, txnstate.Durable)
		switch {
		case err == nil:
			fmt.Println("done")
		case errors.Is(err, txnstate.ErrConflict):
			fmt.Println("conflict")
		default:
			fmt.Println("unsure", err)
		}
	}
}

// TestProcessesThatAreStoppedAndKilledLoseNothing lets real processes count up
// one id on real files while they are stopped, woken and killed with SIGKILL
// anywhere (I10, I11, W1). Every increment that was reported is counted, and none
// that was not, but for one that a killed process may have had under way.
func TestProcessesThatAreStoppedAndKilledLoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	s, err := slotfile.Open(slotfile.Config{Dir: dir})
	require.NoError(t, err)
	_, err = s.Swap(t.Context(), record(target, 0), txnstate.Durable)
	require.NoError(t, err)

	type said struct {
		child int
		what  string
	}
	lines := make(chan said)
	var wg sync.WaitGroup
	const children = 4
	var running [children]*exec.Cmd
	start := func(i int) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		running[i] = cmd
		wg.Go(func() {
			in := bufio.NewScanner(out)
			for in.Scan() {
				lines <- said{i, in.Text()}
			}
			_ = cmd.Wait() // it was killed
		})
	}
	for i := range children {
		start(i)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	done, kills := 0, 0
	stopped := -1
	count := func(l said) {
		switch l.what {
		case "try", "conflict":
		case "done":
			done++
		default:
			t.Errorf("child %d says: %s", l.child, l.what)
		}
	}
	drained := make(chan struct{})
	for events := 0; done < 150; events++ {
		count(<-lines)
		if events%3 != 0 {
			continue
		}
		if stopped >= 0 { // the others got on while it slept
			require.NoError(t, running[stopped].Process.Signal(syscall.SIGCONT))
		}
		stopped = rng.IntN(children)
		require.NoError(t, running[stopped].Process.Signal(syscall.SIGSTOP))
		if events%60 == 0 {
			victim := stopped
			kills++
			require.NoError(t, running[victim].Process.Kill())
			stopped = -1
			start(victim)
		}
	}
	for _, c := range running {
		require.NoError(t, c.Process.Kill())
		kills++
	}
	go func() {
		defer close(drained)
		wg.Wait()
	}()
	for open := true; open; {
		select {
		case l := <-lines:
			count(l)
		case <-drained:
			open = false
		}
	}
	r, err := s.Load(t.Context(), target)
	require.NoError(t, err)
	t.Logf("%d increments reported, %d counted, %d processes killed", done, r.UpdateMs, kills)
	require.GreaterOrEqual(t, r.UpdateMs, int64(done))
	require.LessOrEqual(t, r.UpdateMs, int64(done+kills))
	require.NoError(t, bump(s, target, 1))
	require.NoError(t, s.Close())
}
