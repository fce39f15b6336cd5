package conformance

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Two brokers: n1 is asked first, coordinates all transactions and leads d/0; n2
// has the groups and d/1.
func twoBrokers(t *testing.T) (o Options, asked func() map[string][]string) {
	var mu sync.Mutex
	got := map[string][]string{}
	b := &scripted{}
	b.on = map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		10: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
			x := resp.(*kmsg.FindCoordinatorResponse)
			x.Host, x.Port = "n1", 9092
			if req.(*kmsg.FindCoordinatorRequest).CoordinatorType == coordGroup {
				x.Host = "n2"
			}
			return nil
		},
		3: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
			x := resp.(*kmsg.MetadataResponse)
			x.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "n1", Port: 9092}, {NodeID: 2, Host: "n2", Port: 9092}}
			for _, t := range req.(*kmsg.MetadataRequest).Topics {
				x.Topics = append(x.Topics, kmsg.MetadataResponseTopic{Topic: t.Topic, Partitions: []kmsg.MetadataResponseTopicPartition{{Partition: 0, Leader: 1}, {Partition: 1, Leader: 2}}})
			}
			return nil
		},
	}
	o = options(b, nil)
	o.Follow = true
	o.Dial = func(_ context.Context, addr string) (Conn, error) {
		addr = strings.TrimSuffix(addr, ":9092")
		return handlerConn{Handler{Handle: func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
			mu.Lock()
			got[addr] = append(got[addr], kmsg.NameForKey(req.Key()))
			mu.Unlock()
			return b.handle(ctx, req)
		}}}, nil
	}
	return o, func() map[string][]string {
		mu.Lock()
		defer mu.Unlock()
		out := got
		got = map[string][]string{}
		return out
	}
}

func TestRequestsGoToWhoAnswersForThem(t *testing.T) {
	o, asked := twoBrokers(t)
	e := testEnv(t)
	e.addr, e.o.Follow, e.o.Dial = "n1:9092", true, o.Dial
	d := func(ps ...int32) (out []TP) {
		for _, p := range ps {
			out = append(out, TP{Topic: "d", Partition: p})
		}
		return out
	}
	for _, c := range []struct {
		step   *Step
		n1, n2 string // what each is asked, beside who is who
	}{
		{firstInit, "InitProducerID", ""},
		{&Step{Op: OpInit, Version: 4, Producer: "none", Epoch: -1}, "InitProducerID", ""},
		{&Step{Op: OpAddPartitions, Version: 3, TxnID: "tx1", Parts: d(0)}, "AddPartitionsToTxn", ""},
		{&Step{Op: OpAddBatch, Version: 4, Txns: []*Step{{TxnID: "tx1", Parts: d(0)}}}, "AddPartitionsToTxn", ""},
		{&Step{Op: OpAddOffsets, Version: 3, TxnID: "tx1", Group: "g1"}, "AddOffsetsToTxn", ""},
		{&Step{Op: OpEnd, Version: 3, TxnID: "tx1"}, "EndTxn", ""},
		{&Step{Op: OpTxnOffsetCommit, Version: 3, TxnID: "tx1", Group: "g1", Parts: d(0)}, "", "TxnOffsetCommit"},
		{&Step{Op: OpOffsetCommit, Version: 6, Group: "g1", Parts: d(0)}, "", "OffsetCommit"},
		{&Step{Op: OpOffsetFetch, Group: "g1", Parts: d(0)}, "", "OffsetFetch"},
		{&Step{Op: OpOffsetFetch, Version: 8, Group: "g1", Parts: d(0)}, "", "OffsetFetch"},
		{&Step{Op: OpJoin, Group: "g1"}, "", "JoinGroup SyncGroup"},
		{&Step{Op: OpLeave, Version: 2, Group: "g1"}, "", "LeaveGroup"},
		{&Step{Op: OpProduce, Version: 9, Producer: "P1", Records: 1, Parts: d(1)}, "", "Produce"},
		{&Step{Op: OpFetch, Parts: d(1)}, "", "Fetch"},
		{&Step{Op: OpFetch, Parts: d(0)}, "Fetch", ""},
		{&Step{Op: OpWriteMarkers, Version: 1, Producer: "P1", CoordinatorEpoch: -1, Parts: d(1)}, "", "WriteTxnMarkers"},
		{&Step{Op: OpDescribeTxns, TxnID: "tx1"}, "DescribeTransactions", ""},
		{&Step{Op: OpListTxns}, "ListTransactions", "ListTransactions"},
		{&Step{Op: OpDescribeProducers, Parts: d(0, 1)}, "DescribeProducers", "DescribeProducers"},
	} {
		asked()
		p := e.player("t.", "t.")
		if _, _, err := p.play(t.Context(), c.step); err != nil {
			t.Fatal(err)
		}
		p.close()
		got := asked()
		for node, want := range map[string]string{"n1": c.n1, "n2": c.n2} {
			var names []string
			for _, n := range got[node] {
				if n != "FindCoordinator" && n != "Metadata" {
					names = append(names, n)
				}
			}
			if s := strings.Join(names, " "); s != want {
				t.Errorf("%v: %s is asked %q, want %q", c.step, node, s, want)
			}
		}
	}
}

func TestAClusterIsReplayed(t *testing.T) {
	o, _ := twoBrokers(t)
	o.Extra = recording(t, []*Step{firstInit, {Op: OpListTxns}, {Op: OpDescribeTxns, TxnID: "tx1", Want: Answer{State: "Empty", Producer: "P1", Epoch: ptr[int16](0)}}})
	r, err := Check(t.Context(), "n1:9092", o)
	if err != nil || !r.OK() {
		t.Errorf("%v: %+v", err, r.Suites)
	}
}

// A broker that dies takes an answer with it. The request is sent again if that is
// wanted, and a scenario counts then only if it agrees: both may have been carried out.
func TestRequestsAreSentAgain(t *testing.T) {
	end := func(want string) *Step {
		return &Step{Op: OpEnd, Version: 3, TxnID: "tx1", Producer: "P1", Commit: true, Want: Answer{Err: want}}
	}
	for _, c := range []struct {
		name                    string
		resend                  bool
		answers                 []int16 // to EndTxn; -1 is none
		want                    string
		agree, differs, resents int
	}{
		{"no", false, []int16{-1, 0}, "", 0, 1, 0},
		{"yes", true, []int16{-1, -1, 0}, "", 1, 0, 0},
		{"the second differs", true, []int16{-1, kerr.InvalidTxnState.Code}, "", 0, 0, 1},
		{"a difference without that", true, []int16{kerr.InvalidTxnState.Code}, "", 0, 1, 0},
		{"perhaps carried out", true, []int16{kerr.CoordinatorNotAvailable.Code, kerr.InvalidTxnState.Code}, "", 0, 0, 1},
		{"not carried out", true, []int16{kerr.NotCoordinator.Code, kerr.InvalidTxnState.Code}, "", 0, 1, 0},
	} {
		b := &scripted{}
		b.on = map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
			26: func(_ context.Context, _ kmsg.Request, resp kmsg.Response) error {
				a := c.answers[0]
				c.answers = c.answers[1:]
				if a == -1 {
					return io.EOF
				}
				resp.(*kmsg.EndTxnResponse).ErrorCode = a
				return nil
			},
		}
		o := options(b, recording(t, []*Step{firstInit, end(c.want)}))
		o.Resend, o.Patience = c.resend, time.Minute
		r, err := Check(t.Context(), "nowhere", o)
		if err != nil {
			t.Fatal(err)
		}
		s := r.Suites[0]
		if s.Agree != c.agree || len(s.Differences) != c.differs || s.Resent != c.resents || s.Replayed != c.agree+c.differs {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

// Ids that one request names get names whose coordinator is the same, and groups
// of one scenario get partitions of their own.
func TestNamesAreChosenSoThatRequestsAreComparable(t *testing.T) {
	e := testEnv(t)
	e.o.Follow = true
	home := func(id string) string { return fmt.Sprintf("n%d", offsetsPartition(id)%3) }
	b := &scripted{on: map[int16]func(context.Context, kmsg.Request, kmsg.Response) error{
		10: func(_ context.Context, req kmsg.Request, resp kmsg.Response) error {
			resp.(*kmsg.FindCoordinatorResponse).Host = home(req.(*kmsg.FindCoordinatorRequest).CoordinatorKey)
			return nil
		},
	}}
	e.o.Dial = Handler{Handle: b.handle}.Dial
	sc := &Scenario{Name: "x", Steps: []*Step{
		{Op: OpAddBatch, Txns: []*Step{{TxnID: "tx1"}, {TxnID: "other2"}}},
		{Op: OpAddOffsets, Group: "g1"}, {Op: OpAddOffsets, Group: "g2"}, {Op: OpAddOffsets, Group: ""},
	}}
	for i := range 200 {
		r := &replay{e: e, suite: "s", sc: sc, index: i}
		prefix, err := r.pickPrefix(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if a, b := home(prefix+"tx1"), home(prefix+"other2"); a != b {
			t.Errorf("%s: coordinators %s and %s", prefix, a, b)
		}
		g1, g2, none := offsetsPartition(prefix+"g1"), offsetsPartition(prefix+"g2"), offsetsPartition("")
		if g1 == g2 || g1 == none || g2 == none {
			t.Errorf("%s: offsets partitions %d, %d and %d", prefix, g1, g2, none)
		}
	}
}

// Hashes below 0 go by their absolute value, as Kafka's: two groups that are not
// seen to share a partition count as one participant.
func TestOffsetsPartitionsAreKafkas(t *testing.T) {
	for group, want := range map[string]int32{
		"": 0, "g": 3, "group": 47, "consumer-group": 38, "orders": 31, "polygenelubricants": 0, // the last three have hashes below 0
	} {
		if got := offsetsPartition(group); got != want {
			t.Errorf("group %q is in partition %d, not %d", group, got, want)
		}
	}
}
