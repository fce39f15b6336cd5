package main_test

import (
	"context"
	"flag"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/conformance"
)

var scenarios = flag.Int("scenarios", 8, "how many recorded scenarios of each suite are replayed against the process; 0 is all, which takes minutes")

// The process answers as Apache Kafka was recorded to (I14): in memory, with a
// directory, and killed with -9 in the middle of the scenarios. All of them are
// replayed in process by package minibroker; here it is each suite's beginning,
// or -scenarios 0. The suites that use up the epochs of a producer id take 32,000
// requests a scenario and are left to the replay in process.
func TestTheProcessAnswersAsKafka_I14(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "broker")
	build, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput()
	require.NoError(t, err, "%s", build)
	flags := []string{"-two-phase-commit", "-abort-interval", "200ms"}
	o := conformance.Options{Scenarios: *scenarios, Exclude: []string{"exhaust*", "rotation"}}

	t.Run("in memory", func(t *testing.T) {
		t.Parallel()
		node := &process{exe: exe, addr: freeAddr(t), args: flags}
		node.start(t)
		defer node.kill()
		conformance.Run(t, node.addr, o)
	})
	for _, store := range []string{"slotfile", "journal"} {
		args := append([]string{"-store", store}, flags...)
		t.Run("in "+store, func(t *testing.T) {
			t.Parallel()
			node := &process{exe: exe, dir: t.TempDir(), addr: freeAddr(t), args: args}
			node.start(t)
			defer node.kill()
			conformance.Run(t, node.addr, o)
		})
		t.Run("killed in the middle, in "+store, func(t *testing.T) {
			t.Parallel()
			node := &process{exe: exe, dir: t.TempDir(), addr: freeAddr(t), args: args}
			node.start(t)
			defer func() { node.kill() }()
			o := o
			o.MayForget = []conformance.Fact{conformance.Membership, conformance.Verification}
			o.Between = func(context.Context) error {
				node.kill()
				node.start(t)
				return nil
			}
			conformance.Run(t, node.addr, o)
		})
	}
}
