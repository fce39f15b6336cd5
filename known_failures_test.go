package kafkatxn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table of known failures at the end of DESIGN.md has a line for each, and
// each line tests that exist.
func TestKnownFailuresHaveTheirTests(t *testing.T) {
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(design), "\n## Known failures of other systems\n")
	if !ok {
		t.Fatal("DESIGN.md has no table of known failures")
	}
	row := regexp.MustCompile(`(?m)^\| ([FW]\d+) \| [^|]+ \| ([^|]+) \|$`)
	seen := map[string]bool{}
	tests := testNames{}
	for _, r := range row.FindAllStringSubmatch(table, -1) {
		if seen[r[1]] {
			t.Errorf("%s is there twice", r[1])
		}
		seen[r[1]] = true
		tests.demand(t, r[1], r[2])
	}
	for i := 1; i <= 40; i++ {
		if n := fmt.Sprintf("F%02d", i); !seen[n] {
			t.Errorf("%s is missing", n)
		}
	}
	for i := 1; i <= 35; i++ {
		if n := fmt.Sprintf("W%d", i); !seen[n] {
			t.Errorf("%s is missing", n)
		}
	}
	if len(seen) != 75 {
		t.Errorf("%d lines", len(seen))
	}
}

// testNames are the names of the test functions of packages, by directory.
type testNames map[string][]string

var testName = regexp.MustCompile("`([a-z/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_*]+)`")

// demand is that a cell of a table, in the line of that name, names tests, and that
// they exist. A * stands for the rest of a name.
func (ts testNames) demand(t *testing.T, line, cell string) {
	t.Helper()
	names := testName.FindAllStringSubmatch(cell, -1)
	if len(names) == 0 {
		t.Errorf("%s names no test", line)
	}
	for _, n := range names {
		dir, pattern := n[1], regexp.MustCompile("^"+strings.ReplaceAll(n[2], "*", ".*")+"$")
		if ts[dir] == nil {
			ts[dir] = testsOf(t, dir)
		}
		if !slices.ContainsFunc(ts[dir], pattern.MatchString) {
			t.Errorf("%s: %s has no test %s", line, dir, n[2])
		}
	}
}

// testsOf are the names of the test functions of a package.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	fn := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fn.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
