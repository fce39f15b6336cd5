// Command sim runs the simulation: seed after seed, until one goes wrong.
//
//	go run ./internal/sim/cmd/sim -seeds 1-1000             all of them
//	go run ./internal/sim/cmd/sim -for 10m                  fresh ones
//	go run ./internal/sim/cmd/sim -seeds 42 -story          what happened in one
//	go run ./internal/sim/cmd/sim -seeds 42 -shrink         with fewer faults
//	go run ./internal/sim/cmd/sim -planted                  every planted defect must be found
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/sim"
	"github.com/kafkatxn/kafkatxn/internal/sim/planted"
)

var (
	seeds    = flag.String("seeds", "", "seeds to run: N or FROM-TO")
	world    = flag.String("world", "", "kind of world: "+strings.Join(sim.Worlds(), ", ")+"; empty: the seed chooses")
	length   = flag.Duration("for", 0, "how long to go on; without -seeds from a seed that the clock chooses")
	story    = flag.Bool("story", false, "print what happened")
	shrink   = flag.Bool("shrink", false, "leave out faults as long as a seed still fails")
	procs    = flag.Int("procs", runtime.NumCPU(), "processes that run seeds")
	all      = flag.Bool("all", false, "go on after a seed that failed")
	without  = flag.String("without", "", "faults to leave out, by number, separated by commas")
	plant    = flag.Bool("planted", false, "switch on the planted defects, one at a time; each must be found")
	match    = flag.String("match", ".", "with -planted: only those whose name matches")
	most     = flag.Int("most", 3000, "with -planted: seeds until a defect counts as missed")
	exact    = flag.Bool("exact", true, "build with a runtime whose chance is the seed's too")
	overlay  = flag.String("overlay", "", "an overlay file of the go command; empty: that of GOFLAGS, or of go run")
	hashes   = flag.Bool("hashes", false, "print the hash of each seed's story")
	asWorker = flag.Bool("worker", false, "(internal) run seeds and print results as JSON")
)

func main() {
	flag.Parse()
	if *asWorker {
		worker()
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// bounds are the first and the last seed.
func bounds() (from, to uint64, err error) {
	if *seeds == "" {
		from = rand.Uint64() >> 24
		return from, from + 1<<40, nil
	}
	a, b, ok := strings.Cut(*seeds, "-")
	if from, err = strconv.ParseUint(a, 10, 64); err != nil {
		return 0, 0, err
	}
	if !ok {
		return from, from, nil
	}
	to, err = strconv.ParseUint(b, 10, 64)
	return from, to, err
}

// worker runs seeds in this process, which has one processor: the order of what
// happens is then the seed's.
func worker() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1) // collected between seeds
	from, to, err := bounds()
	if err != nil {
		panic(err)
	}
	o := sim.Options{World: *world, Story: *story}
	for _, s := range strings.Split(*without, ",") {
		if n, err := strconv.Atoi(s); err == nil {
			o.Without = append(o.Without, n)
		}
	}
	out := json.NewEncoder(os.Stdout)
	os.Args = []string{os.Args[0], "-test.timeout=0"}
	flag.CommandLine = flag.NewFlagSet("sim", flag.ExitOnError)
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "sim", F: func(t *testing.T) {
		for o.Seed = from; o.Seed <= to; o.Seed++ {
			if err := out.Encode(sim.Run(t, o)); err != nil {
				os.Exit(1)
			}
			runtime.GC()
		}
		os.Exit(0)
	}}}, nil, nil)
}

// pool runs seeds of one binary, each in a process of its own: so that nothing of
// one run, not even an address in memory, shows in the next.
type pool struct {
	binary string
	args   []string
}

// each runs seeds until f says that it is enough, or all are done. A process that
// dies has met a panic or a deadlock: f gets what it said.
func (p pool) each(from, to uint64, f func(r sim.Result, crash string) (enough bool)) {
	var mu sync.Mutex
	next, done := from, false
	var wg sync.WaitGroup
	for range max(*procs, 1) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				if done || seed > to || seed < from {
					mu.Unlock()
					return
				}
				next++
				mu.Unlock()
				r, crash := p.one(seed)
				mu.Lock()
				done = done || f(r, crash)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func (p pool) one(seed uint64) (r sim.Result, crash string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.binary, append([]string{"-worker", "-seeds", strconv.FormatUint(seed, 10)}, p.args...)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it says where it hangs
	err := cmd.Run()
	if json.Unmarshal(out.Bytes(), &r) != nil || err != nil {
		return sim.Result{Seed: seed}, fmt.Sprintf("%v: %s%s", err, &out, &said)
	}
	return r, ""
}

func run() error {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	more := map[string]string{}
	if *exact {
		if more, err = exactRuntime(); err != nil {
			return err
		}
	}
	others, err := given()
	if err != nil {
		return err
	}
	maps.Copy(more, others)
	if *plant {
		return plantAll(root, dir, more)
	}
	binary := filepath.Join(dir, "sim.exe")
	if err := build(root, dir, binary, nil, more); err != nil {
		return err
	}
	p := pool{binary: binary, args: []string{"-world", *world, "-without", *without}}
	if *story {
		p.args = append(p.args, "-story")
	}
	from, to, err := bounds()
	if err != nil {
		return err
	}
	var failed []sim.Result
	start, ran, txns, commits := time.Now(), 0, 0, 0
	p.each(from, to, func(r sim.Result, crash string) bool {
		ran++
		txns, commits = txns+r.Txns, commits+r.Commits
		if crash != "" {
			r.Broken = []string{"crash: " + crash}
		}
		if *story {
			fmt.Println(strings.Join(r.Story, "\n"))
		}
		if len(r.Broken) > 0 {
			failed = append(failed, r)
			fmt.Printf("seed %d, world %s, story %x:\n  %s\n", r.Seed, r.World, r.Hash, strings.Join(r.Broken, "\n  "))
			if !*story {
				for _, l := range sim.Short(r.Story, r.Broken[0]) {
					fmt.Println("   ", l)
				}
			}
			if path := filepath.Join(os.TempDir(), fmt.Sprintf("kafkatxn-sim-%d.txt", r.Seed)); !*story && crash == "" {
				if err := os.WriteFile(path, []byte(strings.Join(r.Story, "\n")+"\n"), 0o600); err == nil {
					fmt.Println("  all that happened is in", path)
				}
			}
		} else if from == to || *hashes {
			fmt.Printf("seed %d, world %s, story %x: fine\n", r.Seed, r.World, r.Hash)
		}
		return len(r.Broken) > 0 && !*all || *length > 0 && time.Since(start) > *length
	})
	fmt.Printf("%d seeds from %d in %s: %d transactions, %d known to be committed, %d seeds failed\n", ran, from, time.Since(start).Round(time.Second), txns, commits, len(failed))
	if len(failed) == 0 {
		return nil
	}
	if *shrink {
		shrinkSeed(p, failed[0])
	}
	return fmt.Errorf("run one again with -seeds %d -story", failed[0].Seed)
}

// shrinkSeed leaves out faults while the seed fails: many at once first, then
// fewer, in the end one by one. It prints what is left, and what happened then.
func shrinkSeed(p pool, r sim.Result) {
	var out []int
	try := func(some []int) bool {
		all := slices.Concat(out, some)
		q := pool{p.binary, slices.Concat(p.args, []string{"-without", numbers(all)})}
		got, crash := q.one(r.Seed)
		if len(got.Broken) == 0 && crash == "" {
			return false
		}
		if out = all; crash == "" {
			r = got
		}
		return true
	}
	var rest []int
	for i := range r.Faults {
		rest = append(rest, i)
	}
	for size := max(len(rest)/2, 1); ; size = max(size/2, 1) {
		var kept []int
		for some := range slices.Chunk(rest, size) {
			if !try(some) {
				kept = append(kept, some...)
			}
		}
		less := len(kept) < len(rest)
		if rest = kept; len(rest) == 0 || size == 1 && !less {
			break
		}
	}
	slices.Sort(out)
	fmt.Printf("seed %d fails with these faults alone (-without %s):\n", r.Seed, numbers(out))
	for _, i := range rest {
		fmt.Printf("  %d: %s\n", i, r.Faults[i])
	}
	if len(r.Broken) > 0 {
		fmt.Println(" ", r.Broken[0])
		for _, l := range sim.Short(r.Story, r.Broken[0]) {
			fmt.Println("   ", l)
		}
	}
}

func numbers(ns []int) string {
	var out []string
	for _, n := range ns {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ",")
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(strings.TrimSpace(string(out))), err
}

func build(root, dir, binary string, files map[string][]byte, more map[string]string) error {
	path, err := planted.Overlay(root, dir, files, more)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-ldflags=-w", "-overlay", path, "-o", binary, "./internal/sim/cmd/sim")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// plantAll builds and runs each defect until it is found, and prints a table. The
// quick worlds go first; where those find nothing, some seeds are of the slow one.
func plantAll(root, dir string, more map[string]string) error {
	ds, err := planted.All()
	if err != nil {
		return err
	}
	re, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	from := uint64(1)
	if *seeds != "" {
		if from, _, err = bounds(); err != nil {
			return err
		}
	}
	fmt.Println("| defect | kinds | seeds | time | found by |\n|---|---|---|---|---|")
	missed, total, start := 0, 0, time.Now()
	for _, d := range ds {
		if !re.MatchString(d.Name) {
			continue
		}
		total++
		files, err := d.Apply(root)
		if err != nil {
			return err
		}
		binary := filepath.Join(dir, d.Name+".exe")
		if err := build(root, dir, binary, files, more); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		began := time.Now()
		quick, slow := where(files)
		ran, found, r := hunt(binary, from, quick, slow)
		if found == "" {
			missed++
			found = "MISSED"
		}
		fmt.Printf("| %s | %s | %d | %s | %.150s |\n", d.Name, d.Kinds, ran, time.Since(began).Round(100*time.Millisecond), strings.ReplaceAll(found, "|", "/"))
		if *shrink && len(r.Broken) > 0 {
			shrinkSeed(pool{binary, []string{"-world", r.World}}, r)
		}
		_ = os.Remove(binary)
	}
	fmt.Printf("\n%d of %d found, in %s\n", total-missed, total, time.Since(start).Round(time.Second))
	if missed > 0 {
		return fmt.Errorf("%d planted defects are not found", missed)
	}
	return nil
}

// where lists the worlds that a change of files can be seen in, quick ones first.
func where(files map[string][]byte) (quick, slow []string) {
	ws := sim.Worlds() // parts, single, the cluster
	for name := range files {
		switch {
		case strings.HasPrefix(name, "lease/"), strings.Contains(name, "/epochlog/"), strings.Contains(name, "/cluster"):
			return ws[2:], nil
		case strings.HasPrefix(name, "examples/"):
			return ws[1:2], ws[2:]
		}
	}
	return ws[:2], ws[2:]
}

// hunt runs seeds until one fails. It returns how many, and what the failure was.
func hunt(binary string, from uint64, quick, slow []string) (ran int, found string, failed sim.Result) {
	take := func(r sim.Result, crash string) bool {
		ran++
		switch {
		case found != "":
		case len(r.Broken) > 0:
			found, failed = fmt.Sprintf("%s, seed %d: %s", r.World, r.Seed, r.Broken[0]), r
		case crash != "":
			found = fmt.Sprintf("seed %d ends the process: %s", r.Seed, firstLines(crash))
		}
		return found != ""
	}
	if *world != "" {
		pool{binary: binary, args: []string{"-world", *world}}.each(from, from+uint64(*most)-1, take)
		return ran, found, failed
	}
	const stretch = 20 // seeds of one world, then of the other
	for at := from; found == "" && at < from+uint64(*most); at += stretch * uint64(len(quick)) {
		for _, w := range quick {
			if found == "" {
				pool{binary: binary, args: []string{"-world", w}}.each(at, at+stretch-1, take)
			}
		}
	}
	for _, w := range slow {
		if found == "" {
			pool{binary: binary, args: []string{"-world", w}}.each(from, from+uint64(*most)/20, take)
		}
	}
	return ran, found, failed
}

func firstLines(s string) string {
	ls := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(ls[:min(len(ls), 3)], " | ")
}
