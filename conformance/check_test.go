package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// scripted is a broker that gives a success to everything, unless on says
// otherwise for an API key.
type scripted struct {
	on    map[int16]func(ctx context.Context, req kmsg.Request, resp kmsg.Response) error
	apis  [][3]int16 // key, lowest and highest version; none is all that are asked about
	mu    sync.Mutex
	asked map[int16]int
}

func (b *scripted) handle(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	b.mu.Lock()
	if b.asked == nil {
		b.asked = map[int16]int{}
	}
	b.asked[req.Key()]++
	b.mu.Unlock()
	resp := req.ResponseKind()
	if f := b.on[req.Key()]; f != nil {
		return resp, f(ctx, req, resp)
	}
	switch x := resp.(type) {
	case *kmsg.ApiVersionsResponse:
		apis := b.apis
		if apis == nil {
			for k := range int16(100) {
				apis = append(apis, [3]int16{k, 0, 20})
			}
		}
		for _, a := range apis {
			x.ApiKeys = append(x.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: a[0], MinVersion: a[1], MaxVersion: a[2]})
		}
	case *kmsg.InitProducerIDResponse:
		x.ProducerID = 4000
	case *kmsg.DescribeTransactionsResponse:
		for _, id := range req.(*kmsg.DescribeTransactionsRequest).TransactionalIDs {
			x.TransactionStates = append(x.TransactionStates, kmsg.DescribeTransactionsResponseTransactionState{TransactionalID: id, State: "Empty", ProducerID: 4000})
		}
	}
	return resp, nil
}

// recording makes Extra of one suite "s" with one scenario of each list of steps.
func recording(t testing.TB, scenarios ...[]*Step) fstest.MapFS {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for i, steps := range scenarios {
		if err := enc.Encode(&Scenario{Name: fmt.Sprintf("s-%d", i), Source: "a test", Steps: steps}); err != nil {
			t.Fatal(err)
		}
	}
	return fstest.MapFS{"s.jsonl": {Data: b.Bytes()}}
}

func options(b *scripted, extra fstest.MapFS) Options {
	return Options{Suites: []string{"s"}, Extra: extra, Dial: Handler{Handle: b.handle}.Dial, Patience: time.Millisecond, Timeout: time.Minute}
}

var (
	firstInit = &Step{Op: OpInit, Version: 4, TxnID: "tx1", Producer: "none", Epoch: -1, TimeoutMs: 60000, Want: Answer{Producer: "P1", Epoch: ptr[int16](0)}}
	shared0   = []TP{{Topic: "shared"}}
)

// Each way in which a broker can differ is told in words.
func TestDifferencesAreTold(t *testing.T) {
	respond := func(f func(kmsg.Response)) func(context.Context, kmsg.Request, kmsg.Response) error {
		return func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			f(resp)
			return nil
		}
	}
	fail := func(err error) func(context.Context, kmsg.Request, kmsg.Response) error {
		return func(context.Context, kmsg.Request, kmsg.Response) error { return err }
	}
	end := &Step{Op: OpEnd, Version: 3, TxnID: "tx1", Producer: "P1", Epoch: 2, Commit: true, Want: Answer{Err: "PRODUCER_FENCED"}}
	fetch := &Step{Op: OpFetch, Parts: []TP{{Topic: "d"}}, Isolation: 1, Want: Answer{HighWatermark: ptr[int64](2), LastStable: ptr[int64](2),
		Batches: []string{"0+1 data P1 e0 s0 txn", "1+1 COMMIT(keyv0,valv0,len6) P1 e0 s-1 txn"}}}
	for _, c := range []struct {
		name string
		step *Step
		on   func(context.Context, kmsg.Request, kmsg.Response) error
		kind string
		says []string // of the whole text
	}{
		{
			"another error", end, respond(func(r kmsg.Response) { r.(*kmsg.EndTxnResponse).ErrorCode = kerr.InvalidTxnState.Code }),
			"EndTxn: Kafka answers PRODUCER_FENCED, this broker INVALID_TXN_STATE",
			[]string{
				"s-0, step 1: EndTxn v3 (tx1, P1 epoch 2, commit): Kafka answered PRODUCER_FENCED, this broker answered INVALID_TXN_STATE\n",
				"Both agree on what came before:\n      0. InitProducerId v4 (tx1, no producer id, timeout 60000 ms): success (P1, epoch 0)\n",
				"The epoch must be the current one exactly",
				"this broker INVALID_TXN_STATE (v3)\n",
			},
		},
		{
			"no error", end, nil,
			"EndTxn: Kafka answers PRODUCER_FENCED, this broker success",
			[]string{"this broker answered success\n"},
		},
		{
			"an unknown code", end, respond(func(r kmsg.Response) { r.(*kmsg.EndTxnResponse).ErrorCode = 9999 }),
			"EndTxn: Kafka answers PRODUCER_FENCED, this broker ERROR_9999", nil,
		},
		{
			"an old error", &Step{Op: OpEnd, Version: 1, TxnID: "tx1", Producer: "P1", Want: Answer{Err: "INVALID_PRODUCER_EPOCH"}},
			respond(func(r kmsg.Response) { r.(*kmsg.EndTxnResponse).ErrorCode = kerr.ProducerFenced.Code }),
			"EndTxn: Kafka answers INVALID_PRODUCER_EPOCH, this broker PRODUCER_FENCED", []string{"KIP-588"},
		},
		{
			"another content", &Step{Op: OpDescribeTxns, TxnID: "tx1", Want: Answer{State: "Ongoing", Producer: "P1", Epoch: ptr[int16](0), TimeoutMs: 60000, InTxn: []string{"shared/0", "shared/1"}, Started: true}},
			respond(func(r kmsg.Response) {
				x := r.(*kmsg.DescribeTransactionsResponse)
				x.TransactionStates = []kmsg.DescribeTransactionsResponseTransactionState{{State: "Ongoing", ProducerID: 4000, ProducerEpoch: 1, TimeoutMillis: 60000, StartTimestamp: 5,
					Topics: []kmsg.DescribeTransactionsResponseTransactionStateTopic{{Topic: "t.shared", Partitions: []int32{1, 2}}}}}
			}),
			"DescribeTransactions: both answer success, but differ in epoch, partitions",
			[]string{"epoch: Kafka 0, this broker 1\n", "partitions: only Kafka has shared/0, only this broker shared/2\n"},
		},
		{
			"another state", &Step{Op: OpDescribeTxns, TxnID: "tx1", Want: Answer{State: "CompleteCommit", Producer: "P1", Epoch: ptr[int16](0), Started: true}},
			nil,
			"DescribeTransactions: both answer success, but differ in state (Kafka CompleteCommit, this broker Empty), start time (this broker has none)", nil,
		},
		{
			"errors of partitions", &Step{Op: OpAddPartitions, Version: 3, TxnID: "tx1", Producer: "P1", Parts: []TP{{Topic: "shared"}, {Topic: "missing"}},
				Want: Answer{Err: errMixed, Parts: map[string]string{"shared/0": "OPERATION_NOT_ATTEMPTED", "missing/0": "UNKNOWN_TOPIC_OR_PARTITION"}}},
			func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
				for _, t := range req.(*kmsg.AddPartitionsToTxnRequest).Topics {
					rp := kmsg.AddPartitionsToTxnResponseTopicPartition{}
					if t.Topic == "t.missing" {
						rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
					}
					x := resp.(*kmsg.AddPartitionsToTxnResponse)
					x.Topics = append(x.Topics, kmsg.AddPartitionsToTxnResponseTopic{Topic: t.Topic, Partitions: []kmsg.AddPartitionsToTxnResponseTopicPartition{rp}})
				}
				return nil
			},
			"AddPartitionsToTxn: Kafka answers OPERATION_NOT_ATTEMPTED beside UNKNOWN_TOPIC_OR_PARTITION, this broker UNKNOWN_TOPIC_OR_PARTITION beside success",
			[]string{"Kafka answered missing/0 UNKNOWN_TOPIC_OR_PARTITION, shared/0 OPERATION_NOT_ATTEMPTED, this broker answered missing/0 UNKNOWN_TOPIC_OR_PARTITION, shared/0 success\n", "nothing is added"},
		},
		{
			"other records", fetch, respond(func(r kmsg.Response) {
				x := r.(*kmsg.FetchResponse)
				x.Topics = []kmsg.FetchResponseTopic{{Partitions: []kmsg.FetchResponseTopicPartition{{HighWatermark: 2, LastStableOffset: 2}}}}
			}),
			"Fetch: both answer success, but differ in batches (this broker has none)",
			[]string{"batches: only Kafka has 0+1 data P1 e0 s0 txn; 1+1 COMMIT(keyv0,valv0,len6) P1 e0 s-1 txn, only this broker nothing\n", "control batch"},
		},
		{
			"a closed connection", end, fail(errors.New("the broker closed the connection")),
			"EndTxn: no answer", []string{"this broker gave no usable answer\n", "the broker closed the connection\n"},
		},
		{
			"an answer that cannot be decoded", end, fail(Unreadable(errors.New("three bytes"))),
			"EndTxn: the answer cannot be decoded", []string{"three bytes"},
		},
		{
			"records that cannot be decoded", fetch, respond(func(r kmsg.Response) {
				x := r.(*kmsg.FetchResponse)
				x.Topics = []kmsg.FetchResponseTopic{{Partitions: []kmsg.FetchResponseTopicPartition{{RecordBatches: make([]byte, 80)}}}}
			}),
			"Fetch: the answer cannot be decoded", []string{"record batch at byte 0"},
		},
		{
			"an answer to something else", &Step{Op: OpTxnOffsetCommit, Version: 3, TxnID: "tx1", Producer: "P1", Group: "g1", Generation: -1, Parts: shared0},
			nil,
			"TxnOffsetCommit: the answer leaves out what was asked about", []string{"nothing about shared/0"},
		},
		{
			"no patience left", end, respond(func(r kmsg.Response) { r.(*kmsg.EndTxnResponse).ErrorCode = kerr.ConcurrentTransactions.Code }),
			"EndTxn: Kafka answers PRODUCER_FENCED, this broker CONCURRENT_TRANSACTIONS", []string{"still being completed"},
		},
		{
			"another broker's business", end, respond(func(r kmsg.Response) { r.(*kmsg.EndTxnResponse).ErrorCode = kerr.NotCoordinator.Code }),
			"EndTxn: Kafka answers PRODUCER_FENCED, this broker NOT_COORDINATOR", []string{"-follow"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{}}
			keys := c.step.uses(Options{})
			if c.on != nil {
				b.on[keys[0][0]] = c.on
			}
			o := options(b, recording(t, []*Step{firstInit, c.step}))
			o.Prefix = "t."
			o.Settle = func(context.Context, []string) error { return nil }
			r, err := Check(t.Context(), "nowhere", o)
			if err != nil {
				t.Fatal(err)
			}
			s := r.Suites[0]
			if r.OK() || len(s.Kinds) != 1 || s.Kinds[0].Text != c.kind || s.Kinds[0].Count != 1 {
				t.Errorf("kinds %+v, want one:\n%s", s.Kinds, c.kind)
			}
			if s.StepsAgree != 1 || s.Steps != 2 || s.Replayed != 1 || s.Agree != 0 {
				t.Errorf("counts %+v, want one step of two to agree", s)
			}
			var text, js strings.Builder
			if err := errors.Join(r.WriteText(&text, 3), r.WriteJSON(&js)); err != nil {
				t.Fatal(err)
			}
			for _, w := range c.says {
				if !strings.Contains(text.String(), w) {
					t.Errorf("the text lacks %q:\n%s", w, text.String())
				}
			}
			var back Report
			if err := json.Unmarshal([]byte(js.String()), &back); err != nil || len(back.Suites) != 1 || len(back.Suites[0].Differences) != 1 {
				t.Errorf("the JSON does not read back: %v", err)
			}
		})
	}
}

func TestAgreementIsTold(t *testing.T) {
	b := &scripted{}
	r, err := Check(t.Context(), "nowhere", options(b, recording(t, []*Step{firstInit}, []*Step{firstInit, {Op: OpListTxns}})))
	if err != nil || !r.OK() {
		t.Errorf("%v, %+v", err, r)
	}
	var text strings.Builder
	if err := r.WriteText(&text, 3); err != nil || !strings.Contains(text.String(), "total: 2 of 2 scenarios agree (100.0 %), 3 of 3 answers") {
		t.Error(text.String(), err)
	}
	if (Report{}).OK() {
		t.Error("a report of nothing is OK")
	}
}

func TestTransientAnswersAreAskedAgain(t *testing.T) {
	n := 0
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		26: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			if n++; n < 4 {
				resp.(*kmsg.EndTxnResponse).ErrorCode = kerr.ConcurrentTransactions.Code
			}
			return nil
		},
	}}
	o := options(b, recording(t, []*Step{firstInit, {Op: OpEnd, Version: 3, TxnID: "tx1", Producer: "P1"}}))
	o.Patience = time.Minute
	if r, err := Check(t.Context(), "nowhere", o); err != nil || !r.OK() || n != 4 {
		t.Errorf("%v after %d requests: %+v", err, n, r)
	}
}

// What the broker does not advertise is said, and a suite that needs it is left
// out unless it is asked for.
func TestWhatABrokerLacksIsSaid(t *testing.T) {
	deny := &Step{Op: OpDeny, Resource: "topic", ResourceName: "x", Operation: "read"}
	v6 := &Step{Op: OpInit, Version: 6, TxnID: "tx1", Producer: "none", Epoch: -1}
	list := &Step{Op: OpListTxns}
	b := &scripted{apis: [][3]int16{{22, 0, 4}, {19, 0, 5}, {2, 0, 5}}}
	o := options(b, recording(t, []*Step{firstInit, list}))
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Suites[0].Missing; len(m) != 1 || m[0] != "1 requests are ListTransactions, which the broker does not have (wanted in version 0)" {
		t.Errorf("missing %q", m)
	}
	e := testEnv(t)
	for _, c := range []struct {
		step    *Step
		apis    apis
		missing string
		skip    string
	}{
		{deny, apis{}, "which the broker does not have (wanted in version 2)", "CreateAcls"},
		{v6, apis{22: {0, 5}}, "which the broker has in versions 0-5, not in 6", "InitProducerId version 6"},
		{list, apis{66: {0, 1}}, "", ""},
		{v6, nil, "", ""},
	} {
		scs := []*Scenario{{Name: "x", Steps: []*Step{c.step}}}
		m := strings.Join(c.apis.missing(scs, e.o), "\n")
		if skip := c.apis.skip(scs, e.o); !strings.Contains(m, c.missing) || (c.missing == "") != (m == "") || !strings.Contains(skip, c.skip) || (c.skip == "") != (skip == "") {
			t.Errorf("%v: missing %q, skipped %q", c.step, m, skip)
		}
	}
	withDeny := Options{Deny: func(context.Context, Rule) error { return nil }}
	if s := (apis{}).skip([]*Scenario{{Steps: []*Step{deny}}}, withDeny); s != "" {
		t.Errorf("with Options.Deny rules are possible, and yet: %s", s)
	}
}

func TestABrokerWithoutAccessControlIsNotAskedForIt(t *testing.T) {
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		30: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			resp.(*kmsg.CreateACLsResponse).Results = []kmsg.CreateACLsResponseResult{{ErrorCode: kerr.SecurityDisabled.Code}}
			return nil
		},
	}}
	o := options(b, nil)
	o.Extra, o.Suites, o.Exclude = nil, nil, []string{"[^a]*"}
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil || len(r.Suites) != 2 || !strings.Contains(r.Suites[0].Skipped, "SECURITY_DISABLED") || r.OK() {
		t.Errorf("%v: %d suites", err, len(r.Suites))
	}
}

func TestABrokerThatIsNotThereIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = Check(t.Context(), addr, Options{})
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Errorf("error %v, want one that names %s", err, addr)
	}
}

// A broker that is lost on the way ends the run with an error, not with a
// difference in each of the remaining scenarios.
func TestABrokerThatGoesAwayEndsTheRun(t *testing.T) {
	b := &scripted{}
	o := options(b, recording(t, []*Step{firstInit}, []*Step{firstInit}, []*Step{firstInit}))
	o.Parallel = 1
	var dials atomic.Int32
	o.Dial = func(context.Context, string) (Conn, error) {
		if dials.Add(1) > 2 {
			return nil, errors.New("connection refused")
		}
		return handlerConn{Handler{Handle: b.handle}}, nil
	}
	r, err := Check(t.Context(), "nowhere", o)
	if err == nil || !strings.Contains(err.Error(), "s-1, step 0: the broker went away: no connection to nowhere: connection refused") {
		t.Errorf("error %v", err)
	}
	if s := r.Suites[0]; s.Agree != 1 || s.Unfinished != 2 || len(s.Differences) != 0 || r.OK() {
		t.Errorf("%+v", s)
	}
}

func TestTheEndOfTheContextEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		66: func(ctx context.Context, _ kmsg.Request, _ kmsg.Response) error {
			cancel(nil)
			<-ctx.Done()
			return ctx.Err()
		},
	}}
	_, err := Check(ctx, "nowhere", options(b, recording(t, []*Step{firstInit, {Op: OpListTxns}})))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// An API that never answers must not hold up the run for the full time again and again.
func TestAnAPIThatNeverAnswersGetsLessTime(t *testing.T) {
	l := &limits{full: 10 * time.Second, late: map[int16]int{}}
	for range 3 {
		if l.of(66) != 10*time.Second {
			t.Error("less time before it was late three times")
		}
		l.missed(66)
	}
	if l.of(66) != time.Second || l.of(65) != 10*time.Second {
		t.Errorf("%v for the late API, %v for another", l.of(66), l.of(65))
	}
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		66: func(ctx context.Context, _ kmsg.Request, _ kmsg.Response) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}}
	o := options(b, recording(t, []*Step{firstInit, {Op: OpListTxns}}))
	o.Timeout = 10 * time.Millisecond
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil || r.Suites[0].Differences[0].Trouble != "no answer within 10ms" {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestScenariosAreChosen(t *testing.T) {
	b := &scripted{}
	one := []*Step{firstInit}
	o := options(b, recording(t, one, one, one, one, one))
	o.Exclude, o.Scenarios = []string{"s-1"}, 3
	r, err := Check(t.Context(), "nowhere", o)
	if s := r.Suites[0]; err != nil || s.Replayed != 3 || s.Excluded != 1 {
		t.Errorf("%v: %+v, want 3 replayed and 1 excluded", err, s)
	}
	if _, err := Check(t.Context(), "nowhere", Options{Exclude: []string{"["}, Parallel: -1, MayForget: []Fact{"all"}}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three wrong options: %v", err)
	}
}

// Suites that Kafka itself does not answer the same with several clients go one
// scenario at a time, and so do those that move a shared clock.
func TestScenariosThatMustBeAloneAre(t *testing.T) {
	var now, most atomic.Int32
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		66: func(context.Context, kmsg.Request, kmsg.Response) error {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Millisecond) // the others would come meanwhile
			now.Add(-1)
			return nil
		},
	}}
	var many [][]*Step
	for range 16 {
		many = append(many, []*Step{firstInit, {Op: OpListTxns}, {Op: OpSleep, SleepMs: 5000}})
	}
	o := options(b, recording(t, many...))
	slept := 0
	o.Sleep = func(_ context.Context, d time.Duration) error {
		if d == 5*time.Second {
			slept++
		}
		return nil
	}
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil || !r.OK() || most.Load() != 1 || slept != 16 || !r.Suites[0].OneByOne {
		t.Errorf("%v, at most %d at a time, slept %d times", err, most.Load(), slept)
	}
	for _, s := range Suites() {
		alone := slices.ContainsFunc([]string{"data", "marker", "wrap", "oddo", "oddd", "blend", "deletes", "rotation", "timeouts", "expiry", "level"}, func(p string) bool {
			return strings.HasPrefix(s.Name, p)
		})
		if s.OneByOne != alone {
			t.Errorf("%s one by one: %v", s.Name, s.OneByOne)
		}
	}
}

// Hooks take the place of requests that a broker may lack.
func TestHooksReplaceRequests(t *testing.T) {
	b := &scripted{}
	o := options(b, recording(t, []*Step{{Op: OpDeny, Resource: "txn", ResourceName: "tx1", Operation: "write"}, firstInit}))
	o.Prefix = "t."
	var rule Rule
	o.Deny = func(_ context.Context, r Rule) error { rule = r; return nil }
	var topics []string
	o.CreateTopic = func(_ context.Context, name string, n int) error {
		topics = append(topics, fmt.Sprint(name, n))
		return nil
	}
	var settled []string
	o.Settle = func(_ context.Context, ids []string) error { settled = ids; return nil }
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil || !r.OK() {
		t.Fatalf("%v: %+v", err, r)
	}
	if !strings.HasPrefix(rule.Name, "t.s.0.") || !strings.HasSuffix(rule.Name, ".tx1") || rule.Resource != "txn" || rule.Operation != "write" {
		t.Errorf("rule %+v", rule)
	}
	if len(topics) != 2 || len(settled) != 1 || b.asked[19] != 0 || b.asked[30] != 0 {
		t.Errorf("topics %v, settled %v, requests %v", topics, settled, b.asked)
	}
}

func TestPackedRecordingsCanBeExtra(t *testing.T) {
	dir := t.TempDir()
	b, err := recordings.ReadFile("recordings/exhaust1.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine.jsonl.gz"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := load(Options{Extra: os.DirFS(dir), Suites: []string{"mine"}})
	if err != nil || len(got) != 1 || got[0].Scenarios != 20 {
		t.Errorf("%v: %+v", err, got)
	}
}

// A rule is waited for until the broker itself knows it.
func TestRulesAreWaitedFor(t *testing.T) {
	n := 0
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		30: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			resp.(*kmsg.CreateACLsResponse).Results = make([]kmsg.CreateACLsResponseResult, 1)
			return nil
		},
		29: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			if n++; n == 3 {
				resp.(*kmsg.DescribeACLsResponse).Resources = make([]kmsg.DescribeACLsResponseResource, 1)
			}
			return nil
		},
	}}
	e := testEnv(t)
	e.o.Patience, e.o.Dial = time.Minute, Handler{Handle: b.handle}.Dial
	p := e.player("t.", "t.")
	if a, err := p.deny(t.Context(), &Step{Op: OpDeny, Resource: "topic", ResourceName: "x", Operation: "read"}); err != nil || a.Err != "" || n != 3 {
		t.Errorf("%v, %v after asking %d times, want 3", a, err, n)
	}
}
