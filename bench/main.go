// Command bench measures the example broker, with every answer durable, against
// franz-go's kfake, which keeps all in memory, over loopback and with the same
// load. The two run in turns, since machines have moods, and what is told is
// their ratio: the median of the rounds, and its extremes.
//
//	go run -C bench . [-rounds 5] [-d 2s] [-loads coord:64,full:64,full:1] [-args "-store slotfile"]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 5, "how often each load is put on each broker")
	d := flag.Duration("d", 2*time.Second, "how long, each time")
	loads := flag.String("loads", "coord:64,full:64,full:1", "MODE:PRODUCERS, ...; the modes are coord and full")
	args := flag.String("args", "-store journal", "further arguments of examples/broker")
	flag.Parse()
	if err := run(*rounds, *d, *loads, strings.Fields(*args)); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(rounds int, d time.Duration, loads string, args []string) error {
	if rounds < 1 || d <= 0 {
		return errors.New("nothing to do")
	}
	var work []load
	for l := range strings.SplitSeq(loads, ",") {
		mode, c, _ := strings.Cut(l, ":")
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 || mode != "coord" && mode != "full" {
			return fmt.Errorf("no load: %q", l)
		}
		work = append(work, load{mode, n})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(2*rounds*len(work))*(2*d+30*time.Second))
	defer cancel()
	dir, err := os.MkdirTemp("", "kafkatxn-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, from := range map[string]string{"ours": "../examples/broker", "kfake": "kfake"} {
		build := exec.CommandContext(ctx, "go", "build", "-C", from, "-o", filepath.Join(dir, name), ".")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build %s: %w", from, err)
		}
	}
	for _, l := range work {
		var ratios []float64
		var our, their []outcome
		for round := range rounds {
			o, err := measure(ctx, l, d, filepath.Join(dir, "ours"), append([]string{"-listen", "127.0.0.1:0", "-log", "warn", "-data", filepath.Join(dir, fmt.Sprintf("%s-%d-%d", l.mode, l.c, round))}, args...)...)
			if err != nil {
				return fmt.Errorf("ours, %s: %w", l, err)
			}
			k, err := measure(ctx, l, d, filepath.Join(dir, "kfake"))
			if err != nil {
				return fmt.Errorf("kfake, %s: %w", l, err)
			}
			our, their, ratios = append(our, o), append(their, k), append(ratios, o.rate/k.rate)
		}
		slices.Sort(ratios)
		o, k := middle(our), middle(their)
		fmt.Printf("%-12s ours ÷ kfake %.2f (%.2f to %.2f)   ours %.0f txn/s, p50 %v   kfake %.0f txn/s, p50 %v\n", l,
			ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1], o.rate, o.p50.Round(10*time.Microsecond), k.rate, k.p50.Round(10*time.Microsecond))
	}
	return nil
}

func middle(os []outcome) outcome {
	slices.SortFunc(os, func(a, b outcome) int {
		if a.rate < b.rate {
			return -1
		}
		return 1
	})
	return os[len(os)/2]
}

// measure starts a broker, puts the load on it and ends it.
func measure(ctx context.Context, l load, d time.Duration, program string, args ...string) (outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return outcome{}, err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		return outcome{}, fmt.Errorf("%s said %q: %w", program, line, err)
	}
	if err := prepare(ctx, addr); err != nil {
		return outcome{}, err
	}
	return l.run(ctx, addr, fmt.Sprintf("b%d", time.Now().UnixNano()), d/4, d)
}
