package conformance

import (
	"context"
	"strings"
)

// T is what Run needs of a *testing.T, without importing package testing into
// programs that use Check. S is the type itself.
type T[S any] interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Run(name string, f func(S)) bool
}

// Run is Check as a test: a subtest for each suite, and in it one for each
// scenario that differs, which fails with the story of the difference.
//
//	conformance.Run(t, "127.0.0.1:9092", conformance.Options{})
func Run[S T[S]](t S, addr string, o Options) {
	t.Helper()
	ctx := t.Context()
	e, suites, err := start(ctx, addr, o)
	if err != nil {
		t.Fatalf("%v", err)
		return
	}
	for _, n := range e.notes {
		t.Logf("%s", n)
	}
	for _, s := range suites {
		t.Run(s.Name, func(t S) {
			t.Helper()
			sr, err := e.suite(ctx, s)
			if sr.Skipped != "" {
				t.Skipf("%s", sr.Skipped)
				return
			}
			for _, d := range sr.Differences {
				t.Run(d.Scenario, func(t S) {
					t.Helper()
					var b strings.Builder
					d.write(&b, "")
					t.Errorf("%s", b.String())
				})
			}
			var b strings.Builder
			sr.write(&b, "", 0)
			t.Logf("%s", b.String())
			if err != nil {
				t.Fatalf("%v", err)
			}
		})
	}
}
