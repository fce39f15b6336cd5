package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Check replays recordings against the broker at addr and says where its answers
// differ from Kafka's. Each scenario is replayed until its first difference, as
// later answers depend on it.
//
// The error is nil when all was replayed, whatever the broker answered. It says
// so when the broker cannot be reached, when it goes away for good, or when ctx
// ends; the Report then has what was found until then.
func Check(ctx context.Context, addr string, o Options) (Report, error) {
	e, suites, err := start(ctx, addr, o)
	if err != nil {
		return Report{Addr: addr}, err
	}
	r := e.report()
	for _, s := range suites {
		sr, err := e.suite(ctx, s)
		r.Suites = append(r.Suites, sr)
		if err != nil {
			return r, fmt.Errorf("suite %s: %w", s.Name, err)
		}
	}
	return r, nil
}

// env is one run: what all its scenarios share.
type env struct {
	addr    string
	o       Options
	limits  *limits
	apis    apis
	level   int16 // finalised transaction.version, -1 for unknown
	notes   []string
	epochs  epochs
	aclWait time.Duration // for an access rule to hold, where the broker cannot be asked
}

var sharedTopics = map[string]int{"shared": 3, "other": 1}

// start reaches the broker and makes what all scenarios share.
func start(ctx context.Context, addr string, o Options) (*env, []loaded, error) {
	if err := o.validate(); err != nil {
		return nil, nil, err
	}
	o = o.withDefaults()
	wallSleep := o.Sleep == nil
	if wallSleep {
		o.Sleep = pause
	}
	suites, err := load(o)
	if err != nil {
		return nil, nil, err
	}
	e := &env{addr: addr, o: o, aclWait: 100 * time.Millisecond, limits: &limits{full: o.Timeout, late: map[int16]int{}}}
	for i := range suites {
		s := &suites[i]
		s.OneByOne = s.OneByOne && !o.ParallelAll || !wallSleep && s.sleeps()
	}
	p := e.player(o.Prefix, o.Prefix)
	defer p.close()
	if e.apis, err = p.versions(ctx); err != nil {
		return nil, nil, fmt.Errorf("broker at %s: %w", addr, err)
	}
	e.level = p.level(ctx)
	if err := p.createTopics(ctx, sharedTopics); err != nil {
		return nil, nil, fmt.Errorf("broker at %s: %w", addr, err)
	}
	return e, suites, p.warm(ctx)
}

func (s loaded) sleeps() bool {
	for _, sc := range s.scenarios {
		for _, st := range sc.Steps {
			if st.Op == OpSleep {
				return true
			}
		}
	}
	return false
}

func (e *env) report() Report {
	return Report{Addr: e.addr, Notes: e.notes}
}

// createTopics makes topics and waits until every partition can be asked.
func (p *player) createTopics(ctx context.Context, ts map[string]int) error {
	if len(ts) == 0 {
		return nil
	}
	if f := p.e.o.CreateTopic; f != nil {
		for t, n := range ts {
			if err := f(ctx, p.topic(t), n); err != nil {
				return fmt.Errorf("create topic %s: %w", p.topic(t), err)
			}
		}
		return nil
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = p.e.apis.best(req.Key(), 5)
	req.TimeoutMillis = 10000
	for t, n := range ts {
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = p.topic(t), int32(n), 1
		req.Topics = append(req.Topics, rt)
	}
	x, err := do[*kmsg.CreateTopicsResponse](ctx, p.c, req)
	if err != nil {
		return fmt.Errorf("CreateTopics: %w", err)
	}
	for _, t := range x.Topics {
		if t.ErrorCode != 0 && t.ErrorCode != kerr.TopicAlreadyExists.Code {
			return fmt.Errorf("create topic %s: %s", t.Topic, errName(t.ErrorCode))
		}
	}
	lo := kmsg.NewPtrListOffsetsRequest()
	lo.Version = p.e.apis.best(lo.Key(), 5)
	lo.ReplicaID = -1
	for t, n := range ts {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = p.topic(t)
		for i := range n {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = int32(i), -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		lo.Topics = append(lo.Topics, rt)
	}
	for begin := time.Now(); ; {
		x, err := do[*kmsg.ListOffsetsResponse](ctx, p.c, lo)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, errUnreachable) {
				return err
			}
			return nil // a broker without ListOffsets is believed
		}
		var code int16
		for _, t := range x.Topics {
			for _, tp := range t.Partitions {
				if tp.ErrorCode != 0 {
					code = tp.ErrorCode
				}
			}
		}
		if code == 0 {
			return nil
		}
		if time.Since(begin) > 10*time.Second {
			return fmt.Errorf("a new topic's partitions still answer ListOffsets with %s after 10 s", errName(code))
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// warm makes the broker create whatever it creates lazily (state topics, group
// offsets) before the first answer that counts. Kafka creates its state topics
// when a client looks for a coordinator.
func (p *player) warm(ctx context.Context) error {
	begin := time.Now()
	try := func(f func() (bool, error)) error {
		for {
			ok, err := f()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// what does not work here shows in the scenarios
			if ok || err != nil || time.Since(begin) > 20*time.Second {
				return nil
			}
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return err
			}
		}
	}
	for _, typ := range []int8{coordGroup, coordTxn} {
		if err := try(func() (bool, error) {
			fc := kmsg.NewPtrFindCoordinatorRequest()
			fc.Version, fc.CoordinatorType, fc.CoordinatorKey = 2, typ, p.name("warm")
			x, err := do[*kmsg.FindCoordinatorResponse](ctx, p.c, fc)
			return err == nil && x.ErrorCode == 0, err
		}); err != nil {
			return err
		}
	}
	for _, s := range []*Step{
		{Op: OpInit, Version: p.e.apis.best(22, 4), TxnID: "warm", Producer: "none", Epoch: -1, TimeoutMs: 60000},
		{Op: OpOffsetFetch, Group: "warm", Parts: []TP{{Topic: "shared"}}},
	} {
		if err := try(func() (bool, error) {
			a, err := p.once(ctx, s)
			return err == nil && a.Err == "", err
		}); err != nil {
			return err
		}
	}
	return nil
}

// suite replays one suite.
func (e *env) suite(ctx context.Context, s loaded) (SuiteReport, error) {
	sr := SuiteReport{Suite: s.Suite}
	begin := time.Now()
	var scs []*Scenario
	for _, sc := range s.scenarios {
		if e.o.Scenarios > 0 && len(scs) >= e.o.Scenarios {
			break
		}
		if e.o.excludes(s.Name, sc.Name) {
			sr.Excluded++
			continue
		}
		scs = append(scs, sc)
	}
	sr.Missing = e.apis.missing(scs, e.o)
	if len(e.o.Suites) == 0 {
		sr.Skipped = e.apis.skip(scs, e.o)
		if level := levelOf(s.Name); s.OnRequest || level >= 0 && e.level >= 0 && level != e.level {
			sr.Skipped = "it needs " + s.Needs
		}
	}
	if e.o.Follow && slices.ContainsFunc(scs, (*Scenario).oneBroker) {
		sr.Skipped = "some of its requests span partitions that one broker must lead"
	}
	if sr.Skipped == "" && e.deniesNothing(ctx, scs) && len(e.o.Suites) == 0 {
		sr.Skipped = "the broker has no access control (CreateAcls: SECURITY_DISABLED)"
	}
	if sr.Skipped != "" {
		return sr, ctx.Err()
	}
	if err := e.learnEpoch(ctx, scs); err != nil {
		return sr, err
	}
	runs := make([]*replay, len(scs))
	for i, sc := range scs {
		runs[i] = &replay{e: e, suite: s.Name, sc: sc, index: i}
	}
	var err error
	if e.o.Between == nil {
		err = e.each(ctx, s.OneByOne, runs, func(ctx context.Context, r *replay) error { return r.run(ctx, len(r.sc.Steps)) })
	} else {
		err = e.interrupted(ctx, s.OneByOne, runs)
	}
	for _, r := range runs {
		r.close()
		sr.add(r)
	}
	sr.sort()
	sr.Seconds = time.Since(begin).Seconds()
	e.o.Logger.Info("suite replayed", "suite", s.Name, "scenarios", sr.Replayed, "agree", sr.Agree, "err", err)
	return sr, err
}

// each runs f for every replay, some at a time, and stops at the first error.
func (e *env) each(ctx context.Context, oneByOne bool, runs []*replay, f func(context.Context, *replay) error) error {
	n := e.o.Parallel
	if oneByOne {
		n = 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *replay)
	var wg sync.WaitGroup
	for range min(n, len(runs)) {
		wg.Go(func() {
			for r := range next {
				if err := f(ctx, r); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for _, r := range runs {
		select {
		case next <- r:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
