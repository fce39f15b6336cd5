package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"time"
)

// Options says what is replayed and how. The zero value replays everything over
// plain TCP.
type Options struct {
	// Suites are the names, or patterns as of path.Match, of the suites to
	// replay; none means all, except those whose needs the broker visibly lacks
	// (they are reported as skipped).
	Suites []string
	// Scenarios is how many of each suite are replayed, from its beginning; 0 is all.
	Scenarios int
	// Exclude are patterns, as of path.Match, of scenarios and suites that are left out.
	Exclude []string
	// Extra holds further recordings: every *.jsonl and *.jsonl.gz at its top is
	// a suite of that name, see Scenario.
	Extra fs.FS

	// Parallel is how many scenarios are replayed at a time; 0 means 4. Some
	// suites are replayed one scenario at a time all the same (Suite.OneByOne):
	// with several clients at once Kafka itself is not certain to give the
	// recorded answer, because one client's produce version decides how a
	// verification that it shares with another is answered. ParallelAll replays
	// these in parallel too.
	Parallel    int
	ParallelAll bool

	// Prefix starts the name of every topic, group and transactional id. "" is a
	// new one for each run. With a fixed one the broker must be a fresh one.
	Prefix string

	// Dial makes connections; nil is DialTCP.
	Dial Dial
	// Follow sends each request to the transaction coordinator, group coordinator
	// or partition leader, as clients do, for a cluster of several brokers.
	// Without it everything goes to the one address.
	Follow bool

	// CreateTopic makes a topic, for brokers without CreateTopics; nil sends that
	// request. It returns when the topic can be written to.
	CreateTopic func(ctx context.Context, name string, partitions int) error
	// Deny adds an access rule, for brokers without CreateAcls; nil sends that
	// request. The rule holds when it returns.
	Deny func(ctx context.Context, r Rule) error

	// Sleep lets the time of a sleep step pass; nil waits. A broker in the same
	// process may move its clock instead, and let what is due then happen before
	// it returns. Scenarios that sleep are then replayed one at a time, as they
	// share that clock.
	Sleep func(ctx context.Context, d time.Duration) error
	// Now stamps the records that are produced; nil is time.Now. A broker whose
	// clock is not the wall's may refuse others.
	Now func() time.Time
	// Settle waits until the markers of ended transactions are in place for these
	// transactional ids; nil asks DescribeTransactions until none of them is in a
	// Prepare state. Its error ends the run.
	Settle func(ctx context.Context, txnIDs []string) error
	// Patience is how long transient answers (CONCURRENT_TRANSACTIONS,
	// NOT_COORDINATOR and their like) and Prepare states may last before they
	// count as the answer; 0 means 8 s. Where Kafka's own answer is a transient
	// one, a quarter of it.
	Patience time.Duration
	// Timeout is how long one answer may take; 0 means 20 s.
	Timeout time.Duration

	// Between, if set, is called in the middle of the scenarios: many are
	// replayed to a step near their middle and settled, then Between is called,
	// then all go on over new connections. It is for a restart of the broker,
	// also a kill -9, or a change of leaders. When it returns the broker may still
	// be starting, but should answer within half a minute: transactions with a
	// timeout of 60 s are open. It may be called several times in a suite, as transactions
	// must not time out meanwhile. MayForget says what the broker need not
	// remember.
	Between   func(ctx context.Context) error
	MayForget []Fact
	// Resend sends a request again, as clients do, where no connection could be
	// made or no answer came: for clusters whose brokers die meanwhile. It may have
	// been carried out twice then, as it may where a broker answered that it is not
	// the leader or that the coordinator is not available. A scenario that differs
	// after that is not counted, see SuiteReport.Resent.
	Resend bool

	// Logger hears of progress; nil is silent.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	if o.Prefix == "" {
		o.Prefix = fmt.Sprintf("conformance-%x.", time.Now().UnixNano()&0xffffffffff)
	}
	if o.Dial == nil {
		o.Dial = DialTCP
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Patience == 0 {
		o.Patience = 8 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	var errs []error
	if o.Scenarios < 0 || o.Parallel < 0 || o.Patience < 0 || o.Timeout < 0 {
		errs = append(errs, errors.New("conformance: Scenarios, Parallel, Patience and Timeout must not be negative"))
	}
	for _, p := range append(append([]string(nil), o.Exclude...), o.Suites...) {
		if _, err := path.Match(p, ""); err != nil {
			errs = append(errs, fmt.Errorf("conformance: pattern %q: %w", p, err))
		}
	}
	for _, f := range o.MayForget {
		if !slices.Contains(Facts(), f) {
			errs = append(errs, fmt.Errorf("conformance: unknown fact %q", f))
		}
	}
	return errors.Join(errs...)
}

func (o Options) excludes(suite, scenario string) bool {
	for _, p := range o.Exclude {
		for _, n := range []string{suite, scenario} {
			if ok, _ := path.Match(p, n); ok && n != "" { // validate has looked at the patterns
				return true
			}
		}
	}
	return false
}

func (o Options) mayForget(f Fact) bool {
	return slices.Contains(o.MayForget, f)
}
