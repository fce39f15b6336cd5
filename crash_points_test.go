package kafkatxn_test

import (
	"os"
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
	tests := testNames{}
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| crash |") {
			continue
		}
		rows++
		tests.demand(t, cells[0], cells[2])
	}
	if rows < 16 {
		t.Errorf("%d crash points", rows)
	}
}
