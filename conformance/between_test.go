package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func steps(ops ...*Step) *Scenario { return &Scenario{Name: "x", Steps: ops} }

func never(Fact) bool { return false }

func TestBetweenComesWhereItDoesNoHarm(t *testing.T) {
	list := &Step{Op: OpListTxns}
	short := &Step{Op: OpInit, TxnID: "tx1", Producer: "none", TimeoutMs: 500, Want: Answer{Producer: "P1", Epoch: ptr[int16](0)}}
	long := &Step{Op: OpInit, TxnID: "tx1", Producer: "none", TimeoutMs: 60000, Want: Answer{Producer: "P1", Epoch: ptr[int16](0)}}
	sleep, nap := &Step{Op: OpSleep, SleepMs: 1500}, &Step{Op: OpSleep, SleepMs: 1000}
	mark := func(e int32) *Step { return &Step{Op: OpWriteMarkers, CoordinatorEpoch: e} }
	commit := func(generation int32) *Step {
		return &Step{Op: OpTxnOffsetCommit, Group: "g1", Generation: generation, Parts: shared0}
	}
	prod := func(err string, txnal bool) *Step {
		return &Step{Op: OpProduce, Producer: "P1", Parts: shared0, Transactional: txnal, Want: Answer{Err: err}}
	}
	again := func(epoch, gives int16) *Step {
		return &Step{Op: OpInit, TxnID: "tx1", Producer: "P1", Epoch: epoch, TimeoutMs: 60000, Want: Answer{Producer: "P1", Epoch: ptr(gives)}}
	}
	for _, c := range []struct {
		name   string
		sc     *Scenario
		forget []Fact
		want   int
	}{
		{"in the middle", steps(long, list, list, list), nil, 2},
		{"one step has no middle", steps(long), nil, 0},
		{"not while a short transaction may be open", steps(long, short, list, list, list, list), nil, 1},
		{"before the sleep in which its time is over", steps(short, list, list, list, sleep, list), nil, 4},
		{"after that sleep", steps(short, list, sleep, list, list, list, list, list), nil, 3},
		{"not before a sleep that is too short for that", steps(short, list, list, nap, list), nil, 0},
		{"not after the next one of the id", steps(short, sleep, list, list, list, list, list), nil, 2},
		{"not after a marker of a coming coordinator", steps(long, mark(0), mark(4), list, list, list, list), nil, 2},
		{"after a marker of this one", steps(long, mark(0), mark(-1), list, list, list), nil, 3},
		{"where an empty group is remembered", steps(long, commit(-1), list, commit(1), list), nil, 2},
		{"not where it may be forgotten", steps(long, commit(-1), list, commit(1), list), []Fact{Membership}, 1},
		{"where a refused batch is remembered", steps(long, list, prod("INVALID_TXN_STATE", true), list, prod("OUT_OF_ORDER_SEQUENCE_NUMBER", true), list), nil, 3},
		{"not where it may be forgotten", steps(long, list, prod("INVALID_TXN_STATE", true), list, prod("OUT_OF_ORDER_SEQUENCE_NUMBER", true), list), []Fact{Verification}, 2},
		{"a batch was accepted since", steps(long, prod("INVALID_TXN_STATE", true), prod("", true), list, prod("", true), list), []Fact{Verification}, 3},
		{"a batch outside transactions does not count", steps(long, prod("INVALID_TXN_STATE", true), prod("", false), list, prod("", true), list), []Fact{Verification}, 1},
		{"not before an old epoch that may be forgotten", steps(long, again(0, 1), list, list, again(0, 1), list, list), []Fact{PreviousEpoch}, 5},
		{"before the current one", steps(long, again(0, 1), list, list, again(1, 2), list), []Fact{PreviousEpoch}, 3},
		{"not between a timeout and the old epoch", steps(short, list, sleep, list, list, again(0, 1)), []Fact{PreviousEpoch}, 0},
	} {
		got := c.sc.cut(func(f Fact) bool { return slices.Contains(c.forget, f) })
		if got != c.want {
			t.Errorf("%s: before step %d, want %d", c.name, got, c.want)
		}
	}
}

// Most recorded scenarios can be interrupted somewhere inside, whatever may be forgotten.
func TestMostScenariosHaveAPlaceForBetween(t *testing.T) {
	for _, s := range Suites() {
		scs, err := Recording(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		strict, lenient := 0, 0
		for _, sc := range scs {
			if sc.cut(never) > 0 {
				strict++
			}
			if sc.cut(func(Fact) bool { return true }) > 0 {
				lenient++
			}
		}
		t.Logf("%s: %d of %d, %d where all may be forgotten", s.Name, strict, len(scs), lenient)
		// short transactions leave a place only after a sleep
		if least := len(scs) * 7 / 10; strict < least || lenient < least {
			t.Errorf("%s: only %d, and %d, of %d can be interrupted", s.Name, strict, lenient, len(scs))
		}
	}
}

// groupBroker has one classic group whose memory Between can take away.
type groupBroker struct {
	scripted
	member      string
	given       int
	generation  int32
	generations []int32 // as offset commits named them
}

func newGroupBroker() *groupBroker {
	b := &groupBroker{}
	b.on = map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		11: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
			q, x := req.(*kmsg.JoinGroupRequest), resp.(*kmsg.JoinGroupResponse)
			switch {
			case q.MemberID == "":
				b.given++
				x.MemberID, x.ErrorCode = fmt.Sprintf("member-%d", b.given), kerr.MemberIDRequired.Code
			case b.member != "" && q.MemberID != b.member, q.MemberID != fmt.Sprintf("member-%d", b.given):
				x.ErrorCode = kerr.UnknownMemberID.Code
			default:
				b.generation++
				b.member, x.MemberID, x.Generation = q.MemberID, q.MemberID, b.generation
			}
			return nil
		},
		8: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
			q := req.(*kmsg.OffsetCommitRequest)
			b.generations = append(b.generations, q.Generation)
			code := int16(0)
			switch {
			case q.MemberID != b.member:
				code = kerr.UnknownMemberID.Code
			case q.Generation != b.generation:
				code = kerr.IllegalGeneration.Code
			}
			rt := kmsg.NewOffsetCommitResponseTopic()
			rt.Topic = q.Topics[0].Topic
			rt.Partitions = []kmsg.OffsetCommitResponseTopicPartition{{ErrorCode: code}}
			resp.(*kmsg.OffsetCommitResponse).Topics = append(resp.(*kmsg.OffsetCommitResponse).Topics, rt)
			return nil
		},
	}
	return b
}

// A group's memory is a fact that may be lost: members join again, and answers
// about them stay comparable, stale generations included.
func TestMembersJoinAgainWhereMembershipMayBeForgotten(t *testing.T) {
	join := func(gen int32) *Step {
		s := &Step{Op: OpJoin, Group: "g1", Want: Answer{Member: "M1", Generation: gen}}
		if gen > 1 {
			s.Member = "M1"
		}
		return s
	}
	commit := func(gen int32, err string) *Step {
		return &Step{Op: OpOffsetCommit, Version: 6, Group: "g1", Member: "M1", Generation: gen, Parts: shared0, Want: Answer{Err: err}}
	}
	scenario := []*Step{join(1), join(2), join(3), commit(3, ""), commit(3, ""), commit(2, "ILLEGAL_GENERATION"), join(4), commit(4, "")}
	for name, c := range map[string]struct {
		forgets   bool
		mayForget []Fact
		agrees    bool
	}{
		"kept, and may be forgotten":      {false, []Fact{Membership}, true},
		"kept, and must be":               {false, nil, true},
		"forgotten, and may be":           {true, []Fact{Membership}, true},
		"forgotten, but must be kept":     {true, nil, false},
		"forgotten, another thing may be": {true, []Fact{Verification, PreviousEpoch}, false},
	} {
		b := newGroupBroker()
		o := options(&b.scripted, recording(t, scenario))
		o.MayForget = c.mayForget
		calls := 0
		o.Between = func(context.Context) error {
			calls++
			if c.forgets {
				b.member, b.generation, b.given = "", 0, b.given+10
			}
			return nil
		}
		r, err := Check(t.Context(), "nowhere", o)
		if err != nil || calls != 1 || r.OK() != c.agrees || r.Suites[0].Interrupted != 1 {
			t.Errorf("%s: agrees %v after %d calls, want %v after 1 (%v)\n%+v", name, r.OK(), calls, c.agrees, err, r.Suites[0].Differences)
		}
		for _, g := range b.generations {
			if g < 0 {
				t.Errorf("%s: generation %d was sent, which means none", name, g)
			}
		}
	}
}

// All scenarios of a batch are in their middle, with nothing on the wire, when
// Between is called; none uses a connection from before.
func TestBetweenIsCalledOnceForAll(t *testing.T) {
	list := &Step{Op: OpListTxns}
	b := &scripted{}
	var many [][]*Step
	for range 50 {
		many = append(many, []*Step{firstInit, list, list, list})
	}
	o := options(b, recording(t, many...))
	era, stale := 0, 0
	o.Parallel = 1 // the counters below are shared
	o.Dial = func(context.Context, string) (Conn, error) {
		mine := era
		return handlerConn{Handler{Handle: func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
			if mine != era {
				stale++
				return nil, errors.New("the connection of another life")
			}
			return b.handle(ctx, req)
		}}}, nil
	}
	calls := 0
	o.Between = func(context.Context) error {
		era++
		calls++
		if b.asked[66] != 50 {
			t.Errorf("%d of 50 first halves were played", b.asked[66])
		}
		return nil
	}
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil || !r.OK() || calls != 1 || stale != 0 || r.Suites[0].Interrupted != 50 || b.asked[66] != 150 {
		t.Errorf("%v, %d calls, %d requests on old connections, %d second halves\n%+v", err, calls, stale, b.asked[66], r.Suites[0].Kinds)
	}
	o.Between = func(context.Context) error { return errors.New("it will not start") }
	if _, err := Check(t.Context(), "nowhere", o); err == nil || !strings.Contains(err.Error(), "it will not start") {
		t.Errorf("error %v", err)
	}
}

// The story of a difference shows where Between was called.
func TestTheStoryTellsOfBetween(t *testing.T) {
	n := 0
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		66: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
			if n++; n == 2 {
				resp.(*kmsg.ListTransactionsResponse).ErrorCode = kerr.UnknownServerError.Code
			}
			return nil
		},
	}}
	o := options(b, recording(t, []*Step{firstInit, {Op: OpListTxns}, {Op: OpListTxns}, {Op: OpListTxns}}))
	o.Between = func(context.Context) error { return nil }
	r, err := Check(t.Context(), "nowhere", o)
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Suites[0].Differences[0].String(); !strings.HasSuffix(s, "      1. ListTransactions (all): success\n      -- here Options.Between was called --\n") {
		t.Error(s)
	}
}

// Coordinator epochs in recorded markers are counted from that of the broker's
// own coordinator, which a restart moves; in a cluster from that of the id's.
func TestMarkersByHandFollowTheCoordinatorsEpoch(t *testing.T) {
	for _, follow := range []bool{false, true} {
		epoch := int32(6)
		of := func(string) int32 { return epoch }
		if follow {
			of = func(id string) int32 { return epoch*10 + int32(shardsOf(id).fnv) } // each slot has its own
		}
		type mark struct {
			producer int64
			epoch    int32
		}
		var ids []string // producer id i is that of ids[i]
		var sent, want []mark
		recorded := []int32{-1, -1, 0, 0, 4}
		b := &scripted{}
		b.on = map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
			22: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
				ids = append(ids, *req.(*kmsg.InitProducerIDRequest).TransactionalID)
				resp.(*kmsg.InitProducerIDResponse).ProducerID = int64(len(ids) - 1)
				return nil
			},
			24: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
				t := req.(*kmsg.AddPartitionsToTxnRequest).Topics[0].Topic
				x := resp.(*kmsg.AddPartitionsToTxnResponse)
				x.Topics = append(x.Topics, kmsg.AddPartitionsToTxnResponseTopic{Topic: t, Partitions: []kmsg.AddPartitionsToTxnResponseTopicPartition{{}}})
				return nil
			},
			27: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
				m := req.(*kmsg.WriteTxnMarkersRequest).Markers[0]
				sent = append(sent, mark{m.ProducerID, m.CoordinatorEpoch})
				e := recorded[len(want)]
				if e >= 0 {
					e += of(ids[m.ProducerID])
				}
				want = append(want, mark{m.ProducerID, e})
				rm := kmsg.WriteTxnMarkersResponseMarker{ProducerID: m.ProducerID, Topics: []kmsg.WriteTxnMarkersResponseMarkerTopic{{
					Topic: m.Topics[0].Topic, Partitions: []kmsg.WriteTxnMarkersResponseMarkerTopicPartition{{}}}}}
				resp.(*kmsg.WriteTxnMarkersResponse).Markers = append(resp.(*kmsg.WriteTxnMarkersResponse).Markers, rm)
				return nil
			},
			1: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
				o := &oracle{t: t, p: testEnv(t).player("", "")}
				o.fetch(req.(*kmsg.FetchRequest), Answer{Batches: []string{"0+1 COMMIT(keyv0,valv0,len6) P1 e0 s-1 txn"}}, resp.(*kmsg.FetchResponse))
				raw := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches
				raw[len(raw)-2] = byte(of(ids[len(ids)-1])) // the value ends with it, then the count of headers
				return nil
			},
		}
		init := func(id, p string) *Step {
			return &Step{Op: OpInit, Version: 4, TxnID: id, Producer: "none", Epoch: -1, TimeoutMs: 60000, Want: Answer{Producer: p, Epoch: ptr[int16](0)}}
		}
		steps := []*Step{init("tx1", "P1"), init("tx2", "P2")}
		for i, e := range recorded {
			steps = append(steps, &Step{Op: OpWriteMarkers, Version: 1, TxnID: "tx1", Producer: []string{"P1", "P2"}[i%2], CoordinatorEpoch: e, Parts: shared0})
		}
		o := options(b, recording(t, steps))
		o.Follow = follow
		o.Between = func(context.Context) error { epoch = 9; return nil }
		r, err := Check(t.Context(), "nowhere", o)
		if err != nil || !r.OK() || len(sent) != len(recorded) || !slices.Equal(sent, want) {
			t.Errorf("follow %v: %v: sent %v, want %v\n%+v", follow, err, sent, want, r.Suites[0].Differences)
		}
	}
}

// Slow restarts leave less time for the first halves, slow second halves make the
// batches smaller.
func TestBatchesAreDoneBeforeTransactionsTimeOut(t *testing.T) {
	for _, c := range []struct {
		n               int
		between, second time.Duration
		want            pace
	}{
		{8, time.Second, 40 * time.Millisecond, pace{16, 12 * time.Second}},
		{300, time.Second, 40 * time.Millisecond, pace{400, 12 * time.Second}},
		{8, 30 * time.Second, 20 * time.Second, pace{4, 10 * time.Second}},
		{8, 2 * time.Minute, time.Minute, pace{1, time.Second}},
		{400, 0, 48 * time.Second, pace{100, 12 * time.Second}},
	} {
		if got := newPace(true).after(c.n, c.between, c.second); got != c.want {
			t.Errorf("after %d scenarios, Between of %v and second halves of %v: %v, want %v", c.n, c.between, c.second, got, c.want)
		}
	}
}
