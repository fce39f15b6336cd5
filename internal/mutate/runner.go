package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// What becomes of a change.
const (
	killed   = "killed"   // a test of its package fails
	replayed = "replayed" // only a recorded answer of Kafka differs
	survived = "survived"
	broken   = "broken" // it does not compile
)

type runner struct {
	root    string
	timeout time.Duration
	replay  string
}

func (r *runner) try(ctx context.Context, m mutant) string {
	pkg := "./" + path.Dir(m.file)
	files := map[string][]byte{m.file: m.text()}
	v := r.test(ctx, files, pkg, "")
	if v == survived && r.replay != "" && r.test(ctx, files, r.replay, "^TestRecordedAnswers$") == killed {
		v = replayed
	}
	return v
}

// test runs tests of a package, not of those below it, with files replaced.
func (r *runner) test(ctx context.Context, files map[string][]byte, pkg, match string) string {
	dir, err := overlay(r.root, files)
	if err != nil {
		panic(err) // nothing can be tried
	}
	defer os.RemoveAll(dir)
	args := []string{"test", "-vet=off", "-failfast", "-count=1", "-overlay", filepath.Join(dir, "overlay.json"), "-timeout", r.timeout.String()}
	if match != "" {
		args = append(args, "-run", match)
	}
	args = append(args, pkg)
	if r.usesRapid(pkg) {
		args = append(args, "-rapid.nofailfile") // it would leave them in the tree
	}
	ctx, cancel := context.WithTimeout(ctx, 2*r.timeout+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return survived
	case strings.Contains(string(out), "[build failed]"), strings.Contains(string(out), "[setup failed]"):
		return broken
	}
	return killed
}

// overlay puts files and what go test -overlay reads about them into a directory.
func overlay(root string, files map[string][]byte) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "mutate"); err != nil {
		return "", err
	}
	replace := map[string]string{}
	write := func(name string, b []byte) {
		err = errors.Join(err, os.WriteFile(name, b, 0o600))
	}
	for file, text := range files {
		changed := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), path.Base(file)))
		write(changed, text)
		replace[filepath.Join(root, file)] = changed
	}
	j, _ := json.Marshal(map[string]any{"Replace": replace})
	write(filepath.Join(dir, "overlay.json"), j)
	return dir, err
}

// usesRapid reports whether the tests of a package know the flags of rapid.
func (r *runner) usesRapid(pkg string) bool {
	files, _ := filepath.Glob(filepath.Join(r.root, pkg, "*_test.go"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), `"pgregory.net/rapid"`) {
			return true
		}
	}
	return false
}

// book keeps results across runs.
type book struct {
	mu   sync.Mutex
	file *os.File
	m    map[string]string
}

type line struct{ Key, Result, What string }

func openBook(name string) (*book, error) {
	b := &book{m: map[string]string{}}
	old, err := os.Open(name)
	if err == nil {
		defer old.Close()
		for s := bufio.NewScanner(old); s.Scan(); {
			var l line
			if json.Unmarshal(s.Bytes(), &l) == nil {
				b.m[l.Key] = l.Result
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	b.file, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return b, err
}

func (b *book) known(m mutant) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.m[m.key()]
	return v, ok
}

func (b *book) write(m mutant, v string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j, _ := json.Marshal(line{m.key(), v, m.String()})
	if _, err := fmt.Fprintf(b.file, "%s\n", j); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
}

func (b *book) close() { _ = b.file.Close() }
