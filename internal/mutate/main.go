// Command mutate asks what the tests are worth: it changes the code in one small
// way after the other and runs the tests of the package, which have to fail. It
// never touches the tree: go test reads the changed file through -overlay.
//
//	go run ./internal/mutate ./txnstate/step.go ./markers/decide.go ./fence
//	go run ./internal/mutate -takeouts
//
// What survives is printed with its place. Results are kept in the state file, so
// that a run that was stopped goes on where it was; a changed file begins anew.
//
// With -takeouts it takes out, one after the other, the fixes that takeouts.txt
// lists, each with the tests that prove it, which have to fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	state := fs.String("state", filepath.Join(os.TempDir(), "mutate.jsonl"), "file with the results so far")
	parallel := fs.Int("parallel", 2, "tests run at once")
	timeout := fs.Duration("timeout", time.Minute, "how long the tests of one change may take; longer counts as caught")
	sample := fs.Int("sample", 0, "changes tried of each file, chosen by seed; 0 is all")
	seed := fs.Uint64("seed", 1, "of the choice")
	replay := fs.String("replay", "./wire", "package whose TestRecordedAnswers is tried on what survives its own tests; none if empty")
	only := fs.String("only", "", "regular expression of the kinds of change, or with -takeouts of their names")
	takeouts := fs.Bool("takeouts", false, "take out what takeouts.txt lists")
	if err := fs.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	r := &runner{root: root, timeout: *timeout, replay: *replay}
	if *takeouts {
		return r.takeOut(ctx, match, *parallel)
	}
	files, err := goFiles(root, fs.Args())
	if err != nil {
		return err
	}
	book, err := openBook(*state)
	if err != nil {
		return err
	}
	defer book.close()
	var todo []mutant
	all := 0
	for _, f := range files {
		ms, err := mutants(root, f)
		if err != nil {
			return err
		}
		ms = slices.DeleteFunc(ms, func(m mutant) bool { return !match.MatchString(m.kind) })
		all += len(ms)
		if *sample > 0 && len(ms) > *sample {
			rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
			ms = ms[:*sample]
		}
		todo = append(todo, ms...)
	}
	fmt.Printf("%d changes in %d files, %d of them are tried\n", all, len(files), len(todo))
	count := map[string]int{}
	each(*parallel, todo, func(m mutant) string {
		if v, ok := book.known(m); ok {
			return v
		}
		v := r.try(ctx, m)
		if ctx.Err() != nil {
			return ""
		}
		book.write(m, v)
		return v
	}, func(m mutant, v string) {
		count[v]++
		if v == survived {
			fmt.Println(m)
		}
	})
	tried := count[killed] + count[replayed] + count[survived]
	fmt.Printf("%d do not compile; of %d that do, %d are caught by the package's tests, %d by the recorded answers alone, %d survive\n",
		count[broken], tried, count[killed], count[replayed], count[survived])
	return ctx.Err()
}

// each runs f for all of what, n at a time, and done for each result in turn. An
// empty result is none.
func each[T any](n int, what []T, f func(T) string, done func(T, string)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	tokens := make(chan struct{}, max(n, 1))
	for _, w := range what {
		tokens <- struct{}{}
		wg.Go(func() {
			v := f(w)
			<-tokens
			mu.Lock()
			defer mu.Unlock()
			if v != "" {
				done(w, v)
			}
		})
	}
	wg.Wait()
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			err = errors.New("not in a module")
		}
		dir = up
	}
	return "", err
}

// goFiles are the files that arguments name, relative to the module: files, or
// directories with all of their files but tests.
func goFiles(root string, args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, errors.New("name files or directories to change")
	}
	var out []string
	for _, a := range args {
		path := filepath.Join(root, a)
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		found := []string{path}
		if info.IsDir() {
			if found, err = filepath.Glob(filepath.Join(path, "*.go")); err != nil {
				return nil, err
			}
		}
		for _, f := range found {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			rel, err := filepath.Rel(root, f)
			if err != nil {
				return nil, err
			}
			out = append(out, filepath.ToSlash(rel))
		}
	}
	return out, nil
}
