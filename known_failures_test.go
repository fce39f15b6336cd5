package kafkatxn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	name := regexp.MustCompile("`([a-z/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_*]+)`")
	seen := map[string]bool{}
	tests := map[string][]string{} // by directory
	for _, r := range row.FindAllStringSubmatch(table, -1) {
		if seen[r[1]] {
			t.Errorf("%s is there twice", r[1])
		}
		seen[r[1]] = true
		names := name.FindAllStringSubmatch(r[2], -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", r[1])
		}
		for _, n := range names {
			dir, pattern := n[1], regexp.MustCompile("^"+strings.ReplaceAll(n[2], "*", ".*")+"$")
			if tests[dir] == nil {
				tests[dir] = testsOf(t, dir)
			}
			found := false
			for _, x := range tests[dir] {
				found = found || pattern.MatchString(x)
			}
			if !found {
				t.Errorf("%s: %s has no test %s", r[1], dir, n[2])
			}
		}
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
