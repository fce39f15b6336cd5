package minibroker

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/conformance"
)

var allScenarios = flag.Bool("all-scenarios", false, "replay every recorded scenario, which takes minutes, in place of a few of each suite")

// some is how many scenarios of each suite are replayed otherwise.
const some = 20

// scenarios is how many are replayed where n are enough; 0 is all.
func scenarios(n int) int {
	if *allScenarios {
		return 0
	}
	return n
}

func replay(t *testing.T, cfg Config, o conformance.Options) {
	t.Helper()
	cfg.TwoPhaseCommit = true
	b := start(t, listening(cfg))
	o.Sleep, o.Now = b.Advance, b.now
	conformance.Run(t, b.Addr().String(), o)
}

// Every answer that Apache Kafka was recorded to give is this broker's too, over
// its connections (I14). Scenario marker1-1-0011 is left to the next test. Those
// that use up the epochs of a producer id take 32,000 requests each; package wire
// replays them without connections.
func TestAnswersAreKafkas(t *testing.T) {
	o := conformance.Options{Scenarios: scenarios(some / 3), Patience: 500 * time.Millisecond, Exclude: []string{"marker1-1-0011"}}
	if !*allScenarios {
		o.Exclude = append(o.Exclude, "exhaust*", "rotation")
	}
	replay(t, Config{}, o)
}

// With the two settings that do worse than need be, also where a marker of
// somebody else's has overtaken a transaction: Kafka never completes it.
func TestAnswersAreKafkasAlsoWhereItGivesUp(t *testing.T) {
	replay(t, Config{KafkaFencing: true, StopOnFencedEpoch: true, RetriesAsKafka: true}, conformance.Options{
		Suites: []string{"marker*"}, Scenarios: scenarios(some / 2), Patience: 200 * time.Millisecond,
	})
}

// A broker with a directory that is started again in the middle of the scenarios
// gives the same answers. Its members join again, and verification begins anew.
func TestAnswersAreKafkasThroughARestart(t *testing.T) {
	r := onDisk(t, Config{TwoPhaseCommit: true, Fsync: Never})
	r.cfg.Listen = r.b.Addr().String()
	conformance.Run(t, r.b.Addr().String(), conformance.Options{
		Suites: []string{"coord*", "offsets*", "member*", "data*", "wrap*"}, Scenarios: scenarios(some / 2),
		Between: func(context.Context) (err error) {
			if err := r.stop(); err != nil {
				return err
			}
			r.b, r.stop, err = Start(context.Background(), r.cfg)
			return err
		},
		MayForget: []conformance.Fact{conformance.Membership, conformance.Verification},
	})
}
