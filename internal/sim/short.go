package sim

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	aboutTxn       = regexp.MustCompile(`\bt\d+(-\d+)?\.\w+#\d+`)
	aboutID        = regexp.MustCompile(`\bt\d+(-\d+)?\b`)
	aboutPlain     = regexp.MustCompile(`\bp\d+\.\d+#\d+`)
	aboutPartition = regexp.MustCompile(`\b(a|b|tmp)-\d+\b`)
	aboutGroup     = regexp.MustCompile(`\bg\d+\b`)
	stuckAt        = regexp.MustCompile(`last stable offset of (\S+) stays at (\d+)`)
)

// shortLines is how long a short story may be.
const shortLines = 60

// Short is what a story tells of a complaint: what the transaction, the id or the
// partition that it names went through, and the faults of that time.
func Short(story []string, complaint string) []string {
	narrow, wide := subject(story, complaint)
	if narrow == nil {
		return tail(story, shortLines)
	}
	var times []float64
	for _, l := range story {
		if narrow(l) && !strings.Contains(l, " MODEL ") {
			times = append(times, when(l))
		}
	}
	if len(times) == 0 {
		return tail(story, shortLines)
	}
	from, to := times[0]-0.5, slices.Max(times)+2
	var out []string
	var said [6]string // what was said just before is not said again
	for _, l := range story {
		t := when(l)
		fault := strings.Contains(l, " FAULT ") || strings.Contains(l, " dies") || strings.Contains(l, " goes on") || strings.Contains(l, " starts")
		if narrow(l) || t >= from && t <= to && (fault || wide(l)) || strings.Contains(l, " MODEL ") && wide(l) {
			if what := l[min(len(l), 12):]; !slices.Contains(said[:], what) {
				said[len(out)%len(said)] = what
				out = append(out, l)
			}
		}
	}
	if n := len(out) - shortLines; n > 0 {
		keep := shortLines / 3
		out = slices.Concat(out[:keep], []string{fmt.Sprintf("             ... %d lines", n)}, out[keep+n:])
	}
	return out
}

// subject is what a complaint is about: lines that are of it, and lines that touch
// it.
func subject(story []string, complaint string) (narrow, wide func(string) bool) {
	word := func(s string) func(string) bool {
		re := regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(s) + `($|[^\w-])`)
		return re.MatchString
	}
	txn := aboutTxn.FindString(complaint)
	if m := stuckAt.FindStringSubmatch(complaint); m != nil {
		// Whose record is it that nothing gets past?
		at := regexp.MustCompile(`/` + regexp.QuoteMeta(m[1]) + `/\d+ .*NONE @` + m[2] + `$`)
		for _, l := range story {
			if at.MatchString(l) {
				txn = aboutTxn.FindString(l)
			}
		}
	}
	id := aboutID.FindString(complaint)
	switch {
	case txn != "":
		return word(txn), word(txn[:strings.Index(txn, ".")])
	case id != "":
		return word(id), word(id)
	}
	for _, re := range []*regexp.Regexp{aboutPlain, aboutGroup, aboutPartition} {
		if s := re.FindString(complaint); s != "" {
			return word(s), word(s)
		}
	}
	return nil, nil
}

func tail(ls []string, n int) []string { return ls[max(0, len(ls)-n):] }

// when is the time of a line of a story, in seconds.
func when(l string) float64 {
	t, _ := strconv.ParseFloat(strings.TrimSpace(l[:min(len(l), 12)]), 64)
	return t
}
