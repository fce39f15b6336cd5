package offsetstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/offsets"
)

// Harness says how the logs under test are made.
type Harness struct {
	// Open is a fresh, empty log. It registers what closes it with t.Cleanup.
	Open func(t testing.TB) offsets.Log
	// Reopen is a new handle on the data of l, as after the process was killed:
	// nothing of l is flushed or closed for the occasion. l is not used again.
	// nil skips the cases that need it.
	Reopen func(t testing.TB, l offsets.Log) offsets.Log
	// Break makes the next call of Append or Rewrite fail, as a disk that is full
	// or a network that is cut would. nil skips the cases that need it.
	Break func(t testing.TB, l offsets.Log)
}

// Run runs every case as a subtest. The name of a case is what it demands; a
// failure quotes the clause of offsets.Log that it guards.
func Run(t *testing.T, h Harness) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.needs != nil && !c.needs(h) {
				t.Skip("the harness has no function for this case")
			}
			c.run(t, h)
		})
	}
}

type testCase struct {
	name  string
	needs func(Harness) bool
	run   func(t testing.TB, h Harness)
}

var cases = []testCase{
	{"a partition never written to has no entries", nil, emptyPartition},
	{"entries come back in order", nil, inOrder},
	{"partitions are apart", nil, apart},
	{"odd entries come back as they are", nil, oddEntries},
	{"the log keeps none of the slices it is given", nil, keepsNothing},
	{"an error of f ends Replay and is returned", nil, replayError},
	{"f may call the log", nil, replayCalls},
	{"Rewrite replaces all of its partition and nothing else", nil, rewrite},
	{"appends follow what was rewritten", nil, appendAfterRewrite},
	{"nothing appended and nothing left", nil, nothing},
	{"partitions are appended to at the same time", nil, concurrent},
	{"a ctx that is done: none, all or the first few are written", nil, cancelled},
	{"what was acknowledged survives reopening", canReopen, reopen},
	{"what was rewritten survives reopening", canReopen, reopenRewritten},
	{"after a failed Append there are none, all or the first few", canBreak, brokenAppend},
	{"after a failed Rewrite there are the old entries or the new", canBreak, brokenRewrite},
	{"what a Replay did not show after a failure never appears", canBreak, nothingLate},
}

func canReopen(h Harness) bool { return h.Reopen != nil }
func canBreak(h Harness) bool  { return h.Break != nil }

var bg = context.Background()

func entry(s string) []byte { return []byte(s) }

func add(t testing.TB, l offsets.Log, partition int32, entries ...string) {
	t.Helper()
	var bs [][]byte
	for _, e := range entries {
		bs = append(bs, entry(e))
	}
	if err := l.Append(bg, partition, bs); err != nil {
		t.Fatalf("Append to partition %d: %v", partition, err)
	}
}

func show(t testing.TB, l offsets.Log, partition int32) []string {
	t.Helper()
	var out []string
	err := l.Replay(bg, partition, func(e []byte) error {
		out = append(out, string(e))
		return nil
	})
	if err != nil {
		t.Fatalf("Replay of partition %d: %v", partition, err)
	}
	return out
}

func want(t testing.TB, l offsets.Log, partition int32, clause string, entries ...string) {
	t.Helper()
	if got := show(t, l, partition); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", entries) {
		t.Fatalf("%s.\npartition %d has %.200q\nand should have %.200q", clause, partition, got, entries)
	}
}

func emptyPartition(t testing.TB, h Harness) {
	l := h.Open(t)
	want(t, l, 0, "A partition never written to has no entries")
	want(t, l, 49, "A partition never written to has no entries")
}

func inOrder(t testing.TB, h Harness) {
	l := h.Open(t)
	var all []string
	for i := range 200 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		add(t, l, 3, a, b)
		all = append(all, a, b)
	}
	for range 2 {
		want(t, l, 3, "Append adds entries at the end, in order; Replay shows them oldest first", all...)
	}
}

func apart(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "zero")
	add(t, l, 1, "one")
	add(t, l, 49, "last")
	add(t, l, 0, "more")
	want(t, l, 0, "Partitions are each a sequence of its own", "zero", "more")
	want(t, l, 1, "Partitions are each a sequence of its own", "one")
	want(t, l, 49, "Partitions are each a sequence of its own", "last")
}

func oddEntries(t testing.TB, h Harness) {
	l := h.Open(t)
	all := []string{"", "\x00", "\n", "\xff\xfe", string(bytes.Repeat([]byte("long"), 300_000)), "", "end"}
	add(t, l, 7, all...)
	want(t, l, 7, "Entries mean nothing to the log, and may be empty", all...)
	if h.Reopen != nil {
		want(t, h.Reopen(t, l), 7, "Entries mean nothing to the log, and may be empty", all...)
	}
}

func keepsNothing(t testing.TB, h Harness) {
	l := h.Open(t)
	const clause = "No method keeps the slices it is given after it returns"
	es := [][]byte{entry("one"), entry("two")}
	if err := l.Append(bg, 0, es); err != nil {
		t.Fatal(err)
	}
	copy(es[0], "XXX")
	es[1] = entry("YYY")
	want(t, l, 0, clause, "one", "two")
	es = [][]byte{entry("three")}
	if err := l.Rewrite(bg, 0, es); err != nil {
		t.Fatal(err)
	}
	copy(es[0], "XXX")
	want(t, l, 0, clause, "three")
	// What Replay shows is f's until it returns: changing it changes nothing.
	_ = l.Replay(bg, 0, func(e []byte) error {
		clear(e)
		return nil
	})
	want(t, l, 0, "What Replay shows is a copy", "three")
}

func replayError(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a", "b", "c")
	stop := errors.New("stop")
	n := 0
	err := l.Replay(bg, 0, func([]byte) error {
		if n++; n == 2 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || n != 2 {
		t.Fatalf("Replay ends with f's error where f returns one: it returned %v after %d calls", err, n)
	}
}

func replayCalls(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a")
	add(t, l, 1, "b")
	var inner []string
	err := l.Replay(bg, 0, func([]byte) error {
		inner = show(t, l, 1)
		add(t, l, 1, "c")
		return nil
	})
	if err != nil || len(inner) != 1 {
		t.Fatalf("f calls the log for another partition: %v, %q", err, inner)
	}
	want(t, l, 1, "f calls the log for another partition", "b", "c")
}

func rewrite(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a", "b", "c")
	add(t, l, 1, "keep")
	rewriteTo(t, l, 0, "x", "y")
	want(t, l, 0, "Rewrite replaces all entries of the partition by these", "x", "y")
	want(t, l, 1, "Rewrite leaves other partitions alone", "keep")
	rewriteTo(t, l, 0)
	want(t, l, 0, "Rewrite to nothing leaves nothing")
	rewriteTo(t, l, 5, "new")
	want(t, l, 5, "Rewrite of a partition never written to", "new")
}

func rewriteTo(t testing.TB, l offsets.Log, partition int32, entries ...string) {
	t.Helper()
	var bs [][]byte
	for _, e := range entries {
		bs = append(bs, entry(e))
	}
	if err := l.Rewrite(bg, partition, bs); err != nil {
		t.Fatalf("Rewrite of partition %d: %v", partition, err)
	}
}

func appendAfterRewrite(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a")
	rewriteTo(t, l, 0, "x")
	add(t, l, 0, "b")
	rewriteTo(t, l, 0, "y")
	add(t, l, 0, "c", "d")
	want(t, l, 0, "Appends follow what was rewritten", "y", "c", "d")
	if h.Reopen != nil {
		want(t, h.Reopen(t, l), 0, "Appends follow what was rewritten, after reopening too", "y", "c", "d")
	}
}

func nothing(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0)
	want(t, l, 0, "An Append of nothing adds nothing")
	add(t, l, 0, "a")
	add(t, l, 0)
	want(t, l, 0, "An Append of nothing adds nothing", "a")
}

func concurrent(t testing.TB, h Harness) {
	l := h.Open(t)
	const each = 50
	var wg sync.WaitGroup
	errs := make(chan error, 50)
	for p := range int32(50) {
		wg.Go(func() {
			for i := range each {
				if err := l.Append(bg, p, [][]byte{entry(fmt.Sprint(p, "/", i))}); err != nil {
					errs <- err
					return
				}
				if i == each/2 {
					_ = l.Replay(bg, p, func([]byte) error { return nil })
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatalf("Append: %v", err)
	default:
	}
	for p := range int32(50) {
		var all []string
		for i := range each {
			all = append(all, fmt.Sprint(p, "/", i))
		}
		want(t, l, p, "The methods may be called concurrently for different partitions", all...)
	}
}

// prefix fails unless what a partition has is old followed by some first part of
// what a failed Append was to add.
func prefix(t testing.TB, l offsets.Log, partition int32, clause string, old, added []string) int {
	t.Helper()
	got := show(t, l, partition)
	for n := range len(added) + 1 {
		if fmt.Sprintf("%q", got) == fmt.Sprintf("%q", append(append([]string{}, old...), added[:n]...)) {
			return n
		}
	}
	t.Fatalf("%s.\npartition %d has %.200q\nbefore it had %.200q\nto which %.200q was to be added", clause, partition, got, old, added)
	return 0
}

func cancelled(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a")
	ctx, cancel := context.WithCancel(bg)
	cancel()
	added := []string{"b", "c"}
	err := l.Append(ctx, 0, [][]byte{entry("b"), entry("c")})
	n := prefix(t, l, 0, "A ctx that ends is an error like any other: none, all or the first few are there", []string{"a"}, added)
	if err == nil && n != 2 {
		t.Fatalf("On nil every later Replay shows the entries: it shows %d of 2", n)
	}
	add(t, l, 0, "d")
	want(t, l, 0, "What comes after a failed Append follows what a Replay showed", append(append([]string{"a"}, added[:n]...), "d")...)
}

func reopen(t testing.TB, h Harness) {
	l := h.Open(t)
	var all []string
	for i := range 5 {
		e := fmt.Sprint("entry ", i)
		add(t, l, 2, e, e+"+")
		all = append(all, e, e+"+")
		add(t, l, 3, e)
		l = h.Reopen(t, l)
		want(t, l, 2, "On nil they survive loss of power and every later Replay shows them", all...)
	}
	want(t, l, 3, "On nil they survive loss of power and every later Replay shows them",
		"entry 0", "entry 1", "entry 2", "entry 3", "entry 4")
	l = h.Reopen(t, h.Reopen(t, l))
	want(t, l, 2, "Reopening twice changes nothing", all...)
}

func reopenRewritten(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a", "b")
	add(t, l, 1, "keep")
	rewriteTo(t, l, 0, "x")
	l = h.Reopen(t, l)
	want(t, l, 0, "Rewrite is durable on nil", "x")
	want(t, l, 1, "Rewrite leaves other partitions alone", "keep")
	add(t, l, 0, "c")
	want(t, h.Reopen(t, l), 0, "Rewrite is durable on nil", "x", "c")
}

func brokenAppend(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a")
	add(t, l, 1, "other")
	added := []string{"b", "c", "d"}
	h.Break(t, l)
	if err := l.Append(bg, 0, [][]byte{entry("b"), entry("c"), entry("d")}); err == nil {
		t.Fatal("Break did not make Append fail")
	}
	const clause = "An error means perhaps: a later Replay shows none, all or the first few"
	n := prefix(t, l, 0, clause, []string{"a"}, added)
	all := append([]string{"a"}, added[:n]...)
	want(t, l, 1, "A failed Append leaves other partitions alone", "other")
	add(t, l, 0, "e")
	all = append(all, "e")
	want(t, l, 0, "After a Replay the log goes on", all...)
	if h.Reopen != nil {
		l = h.Reopen(t, l)
		want(t, l, 0, "What a Replay showed after a failure is durable", all...)
		want(t, l, 1, "A failed Append leaves other partitions alone", "other")
	}
}

func brokenRewrite(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a", "b")
	h.Break(t, l)
	if err := l.Rewrite(bg, 0, [][]byte{entry("x"), entry("y"), entry("z")}); err == nil {
		t.Fatal("Break did not make Rewrite fail")
	}
	const clause = "After an error a later Replay shows all of the old entries or all of the new"
	got := show(t, l, 0)
	if s := fmt.Sprintf("%q", got); s != `["a" "b"]` && s != `["x" "y" "z"]` {
		t.Fatalf("%s: it shows %s", clause, s)
	}
	add(t, l, 0, "c")
	got = append(got, "c")
	want(t, l, 0, clause, got...)
	if h.Reopen != nil {
		want(t, h.Reopen(t, l), 0, clause, got...)
	}
}

func nothingLate(t testing.TB, h Harness) {
	l := h.Open(t)
	add(t, l, 0, "a")
	h.Break(t, l)
	_ = l.Append(bg, 0, [][]byte{entry("late"), entry("later")})
	seen := show(t, l, 0)
	for i := range 3 {
		add(t, l, 1, fmt.Sprint("elsewhere ", i))
		want(t, l, 0, "What a Replay that began after the error did not show never appears after it", seen...)
	}
	add(t, l, 0, "b")
	seen = append(seen, "b")
	want(t, l, 0, "What a Replay that began after the error did not show never appears after it", seen...)
	if h.Reopen != nil {
		want(t, h.Reopen(t, l), 0, "What a Replay that began after the error did not show never appears after it", seen...)
	}
}
