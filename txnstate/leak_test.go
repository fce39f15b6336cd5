package txnstate_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(bothWays{m}) }

// swapsBegin: the scripted store of a test begins its Durable writes, where the
// test has no word in its reads (txnstate.Starter).
var swapsBegin bool

// bothWays runs the tests, and those of the Coordinator once more with swapsBegin:
// what they prove holds for the calls that work in the caller's goroutine too.
type bothWays struct{ m *testing.M }

func (b bothWays) Run() int {
	code := b.m.Run()
	for _, name := range []string{"test.run", "test.skip", "test.bench", "test.fuzz", "test.list"} {
		if code != 0 || flag.Lookup(name).Value.String() != "" {
			return code // somebody has chosen
		}
	}
	swapsBegin = true
	_ = flag.Set("test.skip", "Step|Codec|Model|Txnlog|TxnLog|Record|Union|Example|Slot|Fuzz") // no Coordinator in them
	return b.m.Run()
}
