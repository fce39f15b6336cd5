package kafkatxn_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each line of the table of crash points in DESIGN.md names tests, and they exist.
func TestCrashPointsHaveTheirTests(t *testing.T) {
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(design), "\n## Crash points\n")
	if !ok {
		t.Fatal("DESIGN.md has no table of crash points")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	name := regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9_*]+)`")
	tests := map[string][]string{} // by directory
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| crash |") {
			continue
		}
		rows++
		names := name.FindAllStringSubmatch(cells[2], -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", cells[0])
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
				t.Errorf("%s: %s has no test %s", cells[0], dir, n[2])
			}
		}
	}
	if rows < 16 {
		t.Errorf("%d crash points", rows)
	}
}
