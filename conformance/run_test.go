package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fakeT is a *testing.T that remembers. fatal and skip end the function as those
// of testing do.
type fakeT struct {
	ctx   context.Context
	name  string
	lines *[]string
}

type endOfTest struct{}

func (t *fakeT) Helper()                  {}
func (t *fakeT) Context() context.Context { return t.ctx }
func (t *fakeT) say(what, format string, args []any) {
	*t.lines = append(*t.lines, what+" "+t.name+": "+fmt.Sprintf(format, args...))
}
func (t *fakeT) Logf(format string, args ...any)   { t.say("log", format, args) }
func (t *fakeT) Errorf(format string, args ...any) { t.say("fail", format, args) }
func (t *fakeT) Fatalf(format string, args ...any) { t.say("fatal", format, args); panic(endOfTest{}) }
func (t *fakeT) Skipf(format string, args ...any)  { t.say("skip", format, args); panic(endOfTest{}) }
func (t *fakeT) Run(name string, f func(*fakeT)) bool {
	defer func() {
		if p := recover(); p != nil && p != any(endOfTest{}) {
			panic(p)
		}
	}()
	f(&fakeT{t.ctx, t.name + "/" + name, t.lines})
	return true
}

func runOn(ctx context.Context, addr string, o Options) []string {
	var lines []string
	t := &fakeT{ctx: ctx, lines: &lines}
	t.Run("x", func(t *fakeT) { Run(t, addr, o) })
	return lines
}

func TestRunFailsWhereTheBrokerDiffers(t *testing.T) {
	n := 0
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		66: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			if n++; n == 2 {
				resp.(*kmsg.ListTransactionsResponse).ErrorCode = kerr.UnknownServerError.Code
			}
			return nil
		},
	}}
	list := []*Step{firstInit, {Op: OpListTxns}}
	o := options(b, recording(t, list, list, list))
	o.Parallel = 1
	lines := runOn(t.Context(), "nowhere", o)
	if len(lines) != 2 ||
		!strings.HasPrefix(lines[0], "fail /x/s/s-1: step 1: ListTransactions (all): Kafka answered success, this broker answered UNKNOWN_SERVER_ERROR\n") ||
		!strings.HasPrefix(lines[1], "log /x/s: 2 of 3 scenarios agree") {
		t.Errorf("%q", lines)
	}
}

func TestRunSaysWhyItCannot(t *testing.T) {
	o := Options{Dial: func(context.Context, string) (Conn, error) { return nil, errors.New("nobody home") }}
	if lines := runOn(t.Context(), "nowhere", o); len(lines) != 1 || !strings.HasPrefix(lines[0], "fatal /x: broker at nowhere: no connection to nowhere: nobody home") {
		t.Errorf("%q", lines)
	}
	b := &scripted{apis: [][3]int16{{22, 0, 5}}}
	o = options(b, nil)
	o.Extra, o.Suites, o.Exclude = nil, nil, []string{"[^t]*", "timeout*"}
	if lines := runOn(t.Context(), "nowhere", o); len(lines) != 1 || !strings.HasPrefix(lines[0], "skip /x/twopc: the broker does not have InitProducerId version 6") {
		t.Errorf("%q", lines)
	}
}

// *testing.T must fit.
func TestRunTakesATestingT(t *testing.T) {
	Run(t, "nowhere", options(&scripted{}, recording(t, []*Step{firstInit})))
}
