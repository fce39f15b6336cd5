package wire_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// verifierBench is an RPCVerifier and one coordinator's broker that a test scripts.
type verifierBench struct {
	*wire.RPCVerifier
	net    *rpcNet
	server *rpcServer
	log    *lockedBuffer
	end    func()

	mu    sync.Mutex
	gate  chan struct{} // while not nil, answers wait for it
	code  func(t kmsg.AddPartitionsToTxnRequestTransaction, topic string, partition int32) int16
	whole int16
}

func newVerifierBench(t testing.TB, versions [2]int16, tune func(*wire.RPCVerifierConfig)) *verifierBench {
	b := &verifierBench{net: newRPCNet(), log: &lockedBuffer{}}
	b.server = newRPCServer(t, b.net, "one:9092", map[int16][2]int16{24: versions}, b.answer)
	cfg := wire.RPCVerifierConfig{
		Coordinator: func(id string) (string, bool, bool) { return "one:9092", id == "local", id != "unknown" },
		Peers:       wire.PeerConfig{Dial: b.net.dial},
		Logger:      slog.New(slog.NewTextHandler(b.log, nil)),
	}
	if tune != nil {
		tune(&cfg)
	}
	var err error
	if b.RPCVerifier, err = wire.NewRPCVerifier(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.end)
	synctest.Wait()
	return b
}

func (b *verifierBench) answer(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	r := req.(*kmsg.AddPartitionsToTxnRequest)
	b.mu.Lock()
	gate, code := b.gate, b.code
	b.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	resp := r.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	resp.ErrorCode = b.whole
	for _, t := range r.Transactions {
		rt := kmsg.NewAddPartitionsToTxnResponseTransaction()
		rt.TransactionalID = t.TransactionalID
		for _, topic := range t.Topics {
			ro := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
			ro.Topic = topic.Topic
			for _, p := range topic.Partitions {
				c := int16(0)
				if code != nil {
					c = code(t, topic.Topic, p)
				}
				if c == silent {
					continue
				}
				rp := kmsg.NewAddPartitionsToTxnResponseTransactionTopicPartition()
				rp.Partition, rp.ErrorCode = p, c
				ro.Partitions = append(ro.Partitions, rp)
			}
			rt.Topics = append(rt.Topics, ro)
		}
		resp.Transactions = append(resp.Transactions, rt)
	}
	return resp, nil
}

const silent int16 = -999

// hold lets answers wait; the result lets them go.
func (b *verifierBench) hold() (release func()) {
	gate := make(chan struct{})
	b.mu.Lock()
	b.gate = gate
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		b.gate = nil
		b.mu.Unlock()
		close(gate)
	}
}

// verified is what a call of Verify returned.
type verified struct {
	codes []txnstate.Code
	err   error
}

// ask starts a call and waits until nothing more happens by itself.
func (b *verifierBench) ask(ctx context.Context, id string, p txnstate.Producer, mode fence.Mode, ps ...txnstate.Participant) <-chan verified {
	done := make(chan verified, 1)
	go func() {
		codes, err := b.Verify(ctx, id, p, ps, mode)
		done <- verified{codes, err}
	}()
	synctest.Wait()
	return done
}

func wantVerified(t testing.TB, what string, got <-chan verified, want ...txnstate.Code) {
	t.Helper()
	synctest.Wait()
	select {
	case v := <-got:
		if v.err != nil || !slices.Equal(v.codes, want) {
			t.Errorf("%s: %v, %v, want %v", what, v.codes, v.err, want)
		}
	default:
		t.Errorf("%s: not answered", what)
	}
}

// questions prints requests: transactions with their topics.
func questions(reqs []kmsg.Request) []string {
	var out []string
	for _, req := range reqs {
		r := req.(*kmsg.AddPartitionsToTxnRequest)
		s := fmt.Sprintf("v%d", r.Version)
		for _, t := range r.Transactions {
			s += fmt.Sprintf(" %s %d/%d", t.TransactionalID, t.ProducerID, t.ProducerEpoch)
			if t.VerifyOnly {
				s += " verify"
			}
			for _, topic := range t.Topics {
				s += fmt.Sprintf(" %s%v", topic.Topic, topic.Partitions)
			}
		}
		out = append(out, s)
	}
	return out
}

func pr(id int64, epoch int16) txnstate.Producer { return txnstate.Producer{ID: id, Epoch: epoch} }

// The answers are those of a LocalVerifier in the coordinator's process.
func TestAskingAnotherBrokerIsLikeAskingTheCoordinator(t *testing.T) {
	for _, version := range []int16{4, 5} {
		h := newHost(t, nil)
		h.addTopic("a", 4)
		open, idle := h.initTxn(t, "open"), h.initTxn(t, "idle")
		wantCodes(t, "add", addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(3, "open", open, "a", 0))), 0)
		network := newRPCNet()
		newRPCServer(t, network, "one", map[int16][2]int16{24: {0, version}}, func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
			return h.Handle(ctx, req, "User:broker")
		})
		v, err := wire.NewRPCVerifier(wire.RPCVerifierConfig{
			Coordinator: func(string) (string, bool, bool) { return "one", false, true },
			Peers:       wire.PeerConfig{Dial: network.dial},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- v.Run(ctx) }()
		local := wire.LocalVerifier{Coordinator: h.coordinator}
		at := func(p producer, epoch int16) txnstate.Producer { return pr(p.id, p.epoch+epoch) }
		for _, c := range []struct {
			id string
			p  txnstate.Producer
			ps []txnstate.Participant
		}{
			{"open", at(open, 0), []txnstate.Participant{a(0)}},
			{"open", at(open, 0), []txnstate.Participant{a(1), a(0), txnstate.Group("g")}},
			{"open", at(open, 1), []txnstate.Participant{a(0)}},
			{"open", pr(open.id+99, 0), []txnstate.Participant{a(0)}},
			{"idle", at(idle, 0), []txnstate.Participant{a(0)}},
			{"nobody", at(idle, 0), []txnstate.Participant{a(0), a(1)}},
		} {
			for _, mode := range []fence.Mode{fence.ModeDefault, fence.ModeGeneric} {
				want, werr := local.Verify(t.Context(), c.id, c.p, c.ps, mode)
				if werr != nil {
					want = slices.Repeat([]txnstate.Code{txnstate.CodeOf(werr)}, len(c.ps))
				}
				for i := range want {
					if want[i] == txnstate.CodeProducerFenced {
						want[i] = txnstate.CodeInvalidProducerEpoch
					}
				}
				var got []txnstate.Code
				for { // Run may not have begun
					if got, err = v.Verify(t.Context(), c.id, c.p, c.ps, mode); err != nil {
						t.Fatal(err)
					}
					if !slices.Contains(got, txnstate.CodeNetworkException) {
						break
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("v%d, %s %s %v, mode %s: %v, want %v", version, c.id, c.p, c.ps, mode, got, want)
				}
			}
		}
		got, err := v.Verify(t.Context(), "idle", at(idle, 0), []txnstate.Participant{a(2), a(3)}, fence.ModeAdd)
		if err != nil || !slices.Equal(got, []txnstate.Code{0, 0}) {
			t.Error(got, err)
		}
		if r, err := h.coordinator.Describe(t.Context(), "idle"); err != nil || len(r.Participants) != 2 {
			t.Error(r, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// §6.2: one request under way for a coordinator, what waits goes together.
func TestQuestionsThatWaitAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 5}, func(c *wire.RPCVerifierConfig) { c.BatchSize = 3 })
		release := b.hold()
		b.code = func(t kmsg.AddPartitionsToTxnRequestTransaction, _ string, p int32) int16 {
			return int16(t.ProducerID) + int16(p)
		}
		first := b.ask(t.Context(), "first", pr(100, 0), fence.ModeAdd, a(0))
		var rest []<-chan verified
		for i := range int64(5) {
			rest = append(rest, b.ask(t.Context(), fmt.Sprint("t", i), pr(200+10*i, 0), []fence.Mode{fence.ModeDefault, fence.ModeGeneric, fence.ModeAdd}[i%3], a(1), txnstate.Partition("b", 0), a(2)))
		}
		if got := questions(b.server.requests()); !slices.Equal(got, []string{"v5 first 100/0 a[0]"}) {
			t.Errorf("%q", got)
		}
		release()
		wantVerified(t, "first", first, 100)
		for i := range rest {
			c := txnstate.Code(200 + 10*i)
			wantVerified(t, "one that waited", rest[i], c+1, c, c+2)
		}
		// Each has its own mode, whatever the first of the request has.
		want := []string{
			"v5 first 100/0 a[0]",
			"v5 t0 200/0 verify a[1 2] b[0] t1 210/0 verify a[1 2] b[0] t2 220/0 a[1 2] b[0]",
			"v5 t3 230/0 verify a[1 2] b[0] t4 240/0 verify a[1 2] b[0]",
		}
		if got := questions(b.server.requests()); !slices.Equal(got, want) {
			t.Errorf("%q\nwant %q", got, want)
		}
		if n := b.net.dialled("one:9092"); n != 1 {
			t.Errorf("dialled %d times", n)
		}
	})
}

// §6.2: the same id queued twice.
func TestOfTwoQuestionsAboutOneIDOneIsAsked(t *testing.T) {
	for _, c := range []struct {
		name     string
		old, new txnstate.Producer
		oldCode  txnstate.Code
		newCode  txnstate.Code
		asked    string
	}{
		{"a higher epoch replaces", pr(7, 3), pr(7, 4), txnstate.CodeInvalidProducerEpoch, 0, "v5 t 7/4 verify a[1]"},
		{"an equal one replaces", pr(7, 3), pr(7, 3), txnstate.CodeNetworkException, 0, "v5 t 7/3 verify a[1]"},
		{"a lower one is refused", pr(7, 3), pr(7, 2), 0, txnstate.CodeInvalidProducerEpoch, "v5 t 7/3 verify a[0]"},
		{"another producer id has no order, and the newer counts", pr(7, 32766), pr(8, 0), txnstate.CodeNetworkException, 0, "v5 t 8/0 verify a[1]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newVerifierBench(t, [2]int16{0, 5}, nil)
			release := b.hold()
			under := b.ask(t.Context(), "t", pr(7, 9), fence.ModeDefault, a(9))
			older := b.ask(t.Context(), "t", c.old, fence.ModeDefault, a(0))
			newer := b.ask(t.Context(), "t", c.new, fence.ModeDefault, a(1))
			if c.oldCode != 0 {
				wantVerified(t, c.name+": the older", older, c.oldCode)
			} else {
				wantVerified(t, c.name+": the newer", newer, c.newCode)
			}
			release()
			wantVerified(t, c.name+": the one under way", under, 0)
			if c.oldCode == 0 {
				wantVerified(t, c.name+": the older", older, 0)
			} else {
				wantVerified(t, c.name+": the newer", newer, 0)
			}
			if got := questions(b.server.requests()); len(got) != 2 || got[1] != c.asked {
				t.Errorf("%s: %q, want %q", c.name, got, c.asked)
			}
		})
	}
}

func TestWhatComesBackFromACoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 5}, nil)
		codes := []int16{0, 120, 90, 47, 49, 48, 51, 14, 16, silent, 3}
		b.code = func(_ kmsg.AddPartitionsToTxnRequestTransaction, _ string, p int32) int16 { return codes[p] }
		var ps []txnstate.Participant
		for i := range codes {
			ps = append(ps, a(int32(i)))
		}
		wantVerified(t, "each its own; fenced as an epoch, not mentioned as unknown",
			b.ask(t.Context(), "t", pr(7, 1), fence.ModeAdd, ps...), 0, 120, 47, 47, 49, 48, 51, 14, 16, 13, 3)
		same := txnstate.Participant{Kind: txnstate.KindGroup, Name: "h", Index: txnstate.OffsetsPartition("g")}
		codes = make([]int16, 50)
		wantVerified(t, "groups of one partition", b.ask(t.Context(), "t", pr(7, 1), fence.ModeAdd, txnstate.Group("g"), same), 0, 0)
		wantVerified(t, "nothing to ask", b.ask(t.Context(), "t", pr(7, 1), fence.ModeAdd))
		wantVerified(t, "coordinator unknown", b.ask(t.Context(), "unknown", pr(7, 1), fence.ModeAdd, a(0), a(1)), 15, 15)
		wantVerified(t, "coordinated here, which it is not", b.ask(t.Context(), "local", pr(7, 1), fence.ModeAdd, a(0)), 15)
		if _, err := b.Verify(t.Context(), "t", pr(7, 1), []txnstate.Participant{{Kind: txnstate.KindHost}}, fence.ModeAdd); !errors.Is(err, txnstate.ErrInvalidRequest) {
			t.Error(err)
		}
		b.whole = 31
		wantVerified(t, "not allowed to ask", b.ask(t.Context(), "t", pr(7, 1), fence.ModeDefault, a(0), a(1)), 31, 31)
		if !strings.Contains(b.log.String(), "refused to be asked") {
			t.Errorf("not told of: %s", b.log)
		}
	})
}

func TestTroubleOnTheWayIsANetworkException(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 5}, nil)
		ask := func() <-chan verified { return b.ask(t.Context(), "t", pr(7, 1), fence.ModeDefault, a(0), a(1)) }
		wantVerified(t, "fine", ask(), 0, 0)

		_ = b.hold() // the process dies, and nothing lets it go on
		under, waiting := ask(), b.ask(t.Context(), "other", pr(7, 1), fence.ModeDefault, a(0))
		b.server.stop()
		wantVerified(t, "the connection ends", under, 13, 13)
		wantVerified(t, "and nobody is there", waiting, 13)
		wantVerified(t, "not yet dialled again", ask(), 13, 13)

		b.server.start()
		b.mu.Lock()
		b.gate = nil
		b.mu.Unlock()
		time.Sleep(2 * time.Second)
		wantVerified(t, "back", ask(), 0, 0)

		release := b.hold()
		silent := ask()
		time.Sleep(31 * time.Second)
		wantVerified(t, "no answer in time", silent, 13, 13)
		release()

		b.end()
		wantVerified(t, "not running", ask(), 13, 13)
	})
}

// KIP-890: a coordinator that can't verify is passed over; one that can't add is
// not a yes (I11).
func TestACoordinatorThatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 3}, nil)
		wantVerified(t, "verify", b.ask(t.Context(), "t", pr(7, 1), fence.ModeGeneric, a(0)), 0)
		wantVerified(t, "add", b.ask(t.Context(), "t", pr(7, 1), fence.ModeAdd, a(0)), 15)
		if len(b.server.requests()) != 0 {
			t.Errorf("%q", questions(b.server.requests()))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{4, 4}, nil)
		wantVerified(t, "add", b.ask(t.Context(), "t", pr(7, 1), fence.ModeAdd, a(0)), 0)
		if got := questions(b.server.requests()); !slices.Equal(got, []string{"v4 t 7/1 a[0]"}) {
			t.Errorf("%q", got)
		}
	})
}

func TestACallerThatLeavesIsNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 5}, nil)
		release := b.hold()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		under := b.ask(ctx, "a", pr(7, 1), fence.ModeDefault, a(0))
		waiting := b.ask(ctx, "b", pr(7, 1), fence.ModeDefault, a(0))
		third := b.ask(t.Context(), "c", pr(7, 1), fence.ModeDefault, a(0))
		cancel()
		synctest.Wait()
		for _, c := range []<-chan verified{under, waiting} {
			if v := <-c; !errors.Is(v.err, context.Canceled) {
				t.Error(v)
			}
		}
		release()
		wantVerified(t, "the third", third, 0)
		want := []string{"v5 a 7/1 verify a[0]", "v5 c 7/1 verify a[0]"}
		if got := questions(b.server.requests()); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestEveryCallerGetsItsOwnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 5}, nil)
		b.code = func(t kmsg.AddPartitionsToTxnRequestTransaction, _ string, p int32) int16 {
			if t.VerifyOnly {
				return 1000
			}
			return int16(t.ProducerID)*10 + int16(p)
		}
		var all sync.WaitGroup
		for n := range int64(300) {
			all.Go(func() {
				for range 5 {
					mode, want := fence.ModeAdd, txnstate.Code(10*n+n%7)
					if n%3 == 0 {
						mode, want = fence.ModeDefault, 1000
					}
					codes, err := b.Verify(t.Context(), fmt.Sprint("t", n), pr(n, 0), []txnstate.Participant{a(int32(n % 7))}, mode)
					if err != nil || len(codes) != 1 || codes[0] != want {
						t.Errorf("%d: %v, %v, want %d", n, codes, err, want)
					}
				}
			})
		}
		all.Wait()
		if n := len(b.server.requests()); n > 1000 {
			t.Errorf("%d requests for 1500 questions", n)
		}
	})
}

func TestRPCVerifierConfigIsChecked(t *testing.T) {
	_, err := wire.NewRPCVerifier(wire.RPCVerifierConfig{BatchSize: -1, Peers: wire.PeerConfig{Connections: -1}})
	for _, want := range []string{"Coordinator", "BatchSize", "PeerConfig"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// localVerifierFunc is a function as a wire.Verifier.
type localVerifierFunc func() []txnstate.Code

func (f localVerifierFunc) Verify(context.Context, string, txnstate.Producer, []txnstate.Participant, fence.Mode) ([]txnstate.Code, error) {
	return f(), nil
}

func TestIDsOfThisBrokerAreAskedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newVerifierBench(t, [2]int16{0, 5}, func(c *wire.RPCVerifierConfig) {
			c.Local = localVerifierFunc(func() []txnstate.Code { return []txnstate.Code{51} })
		})
		wantVerified(t, "local", b.ask(t.Context(), "local", pr(7, 1), fence.ModeAdd, a(0)), 51)
		wantVerified(t, "remote", b.ask(t.Context(), "t", pr(7, 1), fence.ModeAdd, a(0)), 0)
		if n := len(b.server.requests()); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}
