//go:build unix

package main_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/kafkatxn/kafkatxn/conformance"
)

// Three brokers together answer as one Apache Kafka was recorded to, with requests
// sent to who answers for them (I14): all suites with markers carried by requests,
// those about data and offsets with the queue. Then with brokers killed in the
// middle of the scenarios, some of which come back at once and some do not.
func TestAClusterAnswersAsKafka_I14(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts and kills real processes")
	}
	// A few of each suite, unless all are wanted.
	o := conformance.Options{Follow: true, Scenarios: (*scenarios + 2) / 3, Exclude: []string{"exhaust*", "rotation"}}
	for _, markers := range []string{"rpc", "queue"} {
		o := o
		if markers == "queue" {
			o.Suites = []string{"data*", "offsets*"}
		}
		t.Run("markers "+markers, func(t *testing.T) {
			// Nobody dies here, and a broker whose machine is busy is not to be taken for dead.
			c := startCluster(t, "-markers", markers, "-two-phase-commit", "-lease", "20s")
			conformance.Run(t, c.addrs[0], o)
		})
		t.Run("markers "+markers+", brokers killed in the middle", func(t *testing.T) {
			c := startCluster(t, "-markers", markers, "-two-phase-commit")
			k := &killer{cluster: c, rng: rand.New(rand.NewPCG(seedOf(t), 0))}
			// A takeover parts the ids that one request names, and time runs on meanwhile.
			o.Exclude = append([]string{"batch*", "timeout*"}, o.Exclude...)
			o.MayForget = []conformance.Fact{conformance.Membership, conformance.Verification}
			o.Between, o.Resend = k.between, true
			if *scenarios > 0 && markers == "rpc" {
				// Each suite waits for takeovers. None with members: they live in the
				// memory of their coordinator, and on a busy machine a broker is
				// taken for dead at other moments than the replay knows of.
				o.Suites = []string{"coord2", "offsets2", "data2"}
			}
			conformance.Run(t, c.addrs[0], o)
			t.Logf("%d brokers killed, %d of them for longer than their lease", k.kills, k.gone)
		})
	}
}

// killer kills nodes of a cluster. The first is the one that the replay asks who
// answers for what: it comes back at once.
type killer struct {
	cluster     *cluster
	rng         *rand.Rand
	dead        []int
	kills, gone int
}

// between kills one or two nodes and leaves one of them dead until the next call.
func (k *killer) between(ctx context.Context) error {
	for _, i := range k.dead {
		if err := k.cluster.nodes[i].launch(); err != nil {
			return err
		}
	}
	k.dead = nil
	at := k.rng.Perm(nodes)[:1+k.rng.IntN(2)]
	for _, i := range at {
		k.cluster.nodes[i].kill()
		k.kills++
	}
	for _, i := range at {
		if i > 0 && len(k.dead) == 0 && k.rng.IntN(3) > 0 {
			k.dead = append(k.dead, i)
			k.gone++
		} else if err := k.cluster.nodes[i].launch(); err != nil {
			return err
		}
	}
	return k.cluster.placed(ctx, k.dead)
}
