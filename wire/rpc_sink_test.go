package wire_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// sinkBench is an RPCSink and one broker that a test scripts.
type sinkBench struct {
	*wire.RPCSink
	net    *rpcNet
	server *rpcServer
	log    *lockedBuffer
	end    func()

	mu   sync.Mutex
	code func(m kmsg.WriteTxnMarkersRequestMarker, topic string, partition int32) int16
	hang map[string]bool // partitions that are answered for when the broker stops
}

// lockedBuffer is what a logger writes into.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func benchConfig(n *rpcNet, log *lockedBuffer) wire.RPCSinkConfig {
	return wire.RPCSinkConfig{
		Addr: func(to markers.Target) (string, bool) { return "one:9092", to == 1 },
		Self: 9, Peers: wire.PeerConfig{Dial: n.dial},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
}

// newSinkBench makes one, in a bubble.
func newSinkBench(t testing.TB, versions [2]int16, tune func(*wire.RPCSinkConfig)) *sinkBench {
	b := &sinkBench{net: newRPCNet(), log: &lockedBuffer{}, hang: map[string]bool{}}
	b.server = newRPCServer(t, b.net, "one:9092", map[int16][2]int16{27: versions}, b.answer)
	cfg := benchConfig(b.net, b.log)
	if tune != nil {
		tune(&cfg)
	}
	var err error
	if b.RPCSink, err = wire.NewRPCSink(cfg); err != nil {
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

func (b *sinkBench) answer(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	r := req.(*kmsg.WriteTxnMarkersRequest)
	resp := r.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
	for _, m := range r.Markers {
		rm := kmsg.NewWriteTxnMarkersResponseMarker()
		rm.ProducerID = m.ProducerID
		for _, t := range m.Topics {
			rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				b.mu.Lock()
				hang, code := b.hang[fmt.Sprint(t.Topic, "/", p)], b.code
				b.mu.Unlock()
				if hang {
					<-ctx.Done()
				}
				rp := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
				rp.Partition = p
				if code != nil {
					rp.ErrorCode = code(m, t.Topic, p)
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			rm.Topics = append(rm.Topics, rt)
		}
		resp.Markers = append(resp.Markers, rm)
	}
	return resp, nil
}

func (b *sinkBench) hangs(partition string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang[partition] = yes
}

func to(id int64, epoch int16, commit bool, p txnstate.Participant) markers.Delivery {
	return markers.Delivery{Participant: p, Marker: markers.Marker{
		TxnID: fmt.Sprint("tx-", id), Producer: txnstate.Producer{ID: id, Epoch: epoch}, Commit: commit, CoordinatorEpoch: 3, TransactionVersion: txnstate.TV2,
	}}
}

func wantResults(t testing.TB, what string, got []markers.Result, want ...markers.Result) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// told prints requests: markers with their topics.
func told(reqs []kmsg.Request) []string {
	var out []string
	for _, req := range reqs {
		r := req.(*kmsg.WriteTxnMarkersRequest)
		s := fmt.Sprintf("v%d", r.Version)
		for _, m := range r.Markers {
			s += fmt.Sprintf(" %d/%d %t by %d tv%d", m.ProducerID, m.ProducerEpoch, m.Committed, m.CoordinatorEpoch, m.TransactionVersion)
			for _, t := range m.Topics {
				s += fmt.Sprintf(" %s%v", t.Topic, t.Partitions)
			}
		}
		out = append(out, s)
	}
	return out
}

func a(i int32) txnstate.Participant { return txnstate.Partition("a", i) }

// KafkaApis merges the results of two markers of one producer id.
func TestARequestHasOneMarkerOfAProducerID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		got := b.WriteMarkers(t.Context(), 1, []markers.Delivery{
			to(7, 1, true, a(0)), to(8, 4, false, a(0)), to(7, 1, true, txnstate.Partition("b", 2)), to(7, 1, true, a(1)),
			to(7, 2, false, a(0)), to(8, 4, false, a(3)), to(7, 2, false, a(0)), to(7, 1, true, a(0)),
		})
		wantResults(t, "all", got, slices.Repeat([]markers.Result{markers.Applied}, 8)...)
		want := []string{
			"v2 7/1 true by 3 tv2 a[0 1] b[2] 8/4 false by 3 tv2 a[0 3]",
			"v2 7/2 false by 3 tv2 a[0]",
			"v2 7/1 true by 3 tv2 a[0]",
		}
		if got := told(b.server.requests()); !slices.Equal(got, want) {
			t.Errorf("%q\nwant %q", got, want)
		}
	})
}

func TestAGroupGoesOutAsItsPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		g := txnstate.Group("g")
		wantResults(t, "group", b.WriteMarkers(t.Context(), 1, []markers.Delivery{
			to(7, 1, true, g), to(7, 1, true, txnstate.Participant{Kind: txnstate.KindHost, Name: "db"}), to(7, 1, true, g.Wire()),
		}), markers.Applied, markers.Retry, markers.Applied)
		if got := told(b.server.requests()); len(got) != 1 || !strings.HasSuffix(got[0], fmt.Sprintf("__consumer_offsets[%d]", g.Index)) {
			t.Errorf("%q", got)
		}
		if !strings.Contains(b.log.String(), "host's own kind") {
			t.Errorf("not told of: %s", b.log)
		}
	})
}

func TestTheVersionIsWhatBothKnow(t *testing.T) {
	for _, c := range []struct {
		serves [2]int16
		asked  string
	}{{[2]int16{0, 5}, "v2"}, {[2]int16{1, 2}, "v2"}, {[2]int16{1, 1}, "v1"}, {[2]int16{0, 1}, "v1"}, {[2]int16{3, 4}, ""}, {[2]int16{0, 0}, ""}} {
		synctest.Test(t, func(t *testing.T) {
			b := newSinkBench(t, c.serves, nil)
			got := b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))})
			asked := told(b.server.requests())
			if c.asked == "" {
				wantResults(t, fmt.Sprint(c.serves), got, markers.Retry)
				if len(asked) > 0 || !strings.Contains(b.log.String(), "takes no markers") {
					t.Errorf("%v: asked %q, told %s", c.serves, asked, b.log)
				}
				return
			}
			wantResults(t, fmt.Sprint(c.serves), got, markers.Applied)
			if len(asked) != 1 || !strings.HasPrefix(asked[0], c.asked) {
				t.Errorf("%v: asked %q", c.serves, asked)
			}
			if told := strings.Contains(b.log.String(), "no WriteTxnMarkers v2"); told != (c.asked == "v1") {
				t.Errorf("%v: %s", c.serves, b.log)
			}
		})
	}
}

// F10, F12: every answer leads to a repeat or to an end, of its own partition.
func TestEachPartitionHasTheMeaningOfItsCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		codes := []int16{0, 3, 6, 7, 16, 19, 20, 31, 35, 43, 47, 52, 56, -1, 999}
		b.code = func(_ kmsg.WriteTxnMarkersRequestMarker, _ string, p int32) int16 { return codes[p] }
		var ds []markers.Delivery
		var want []markers.Result
		for i, c := range codes {
			ds, want = append(ds, to(7, 1, true, a(int32(i)))), append(want, markers.ResultOf(txnstate.Code(c)))
		}
		wantResults(t, "codes", b.WriteMarkers(t.Context(), 1, ds), want...)
		if s := b.log.String(); strings.Count(s, "not foreseen") != 1 || !strings.Contains(s, "markers=3") {
			t.Errorf("31, -1 and 999 are told of once: %s", s)
		}
	})
}

// F10: an answer that is no good is none, and the next one counts again.
func TestABrokenAnswerConfirmsNothing(t *testing.T) {
	var sample []byte // an answer that is right
	for name, edit := range map[string]func(b []byte) []byte{
		"cut short": func(b []byte) []byte {
			return append(binary.BigEndian.AppendUint32(nil, uint32(len(b)-6)), b[4:len(b)-2]...)
		},
		"cut in the header":   func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, 4), b[4:8]...) },
		"of another request":  func(b []byte) []byte { b = slices.Clone(b); b[7]++; return b },
		"longer than allowed": func(b []byte) []byte { return binary.BigEndian.AppendUint32(nil, 1<<30) },
		"of no length":        func(b []byte) []byte { return make([]byte, 8) },
		"with tags without end": func(b []byte) []byte {
			return append([]byte{0, 0, 0, 12}, append(slices.Clone(b[4:8]), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f)...)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newSinkBench(t, [2]int16{1, 2}, nil)
			broken := true
			b.server.edit = func(key int16, answer []byte) []byte {
				if key != 27 || !broken {
					return answer
				}
				broken, sample = false, answer
				return edit(answer)
			}
			ds := []markers.Delivery{to(7, 1, true, a(0))}
			wantResults(t, name, b.WriteMarkers(t.Context(), 1, ds), markers.Retry)
			time.Sleep(time.Second) // the pause before the next dial
			wantResults(t, name+", again", b.WriteMarkers(t.Context(), 1, ds), markers.Applied)
			if n := b.net.dialled("one:9092"); n != 2 {
				t.Errorf("%s: dialled %d times, want 2", name, n)
			}
		})
	}
	if len(sample) == 0 {
		t.Error("nothing was broken")
	}
}

// Of two answers about one partition neither is believed.
func TestAContradictionConfirmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		inner := b.server.handle
		b.server.handle = func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
			resp, err := inner(ctx, req)
			r := resp.(*kmsg.WriteTxnMarkersResponse)
			again := r.Markers[0].Topics[0].Partitions[0]
			again.ErrorCode = 6
			r.Markers[0].Topics[0].Partitions = append(r.Markers[0].Topics[0].Partitions, again)
			return r, err
		}
		wantResults(t, "0 and 6", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0)), to(7, 1, true, a(1))}), markers.Retry, markers.Applied)
	})
}

func TestConnectionsAreReusedAndMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		one := []markers.Delivery{to(7, 1, true, a(0))}
		for range 20 {
			wantResults(t, "one after another", b.WriteMarkers(t.Context(), 1, one), markers.Applied)
		}
		// Two where a call comes before the connection of the one before is free.
		if n := b.net.dialled("one:9092"); n > 2 {
			t.Errorf("dialled %d times", n)
		}

		b.server.stop()
		begun := time.Now()
		failed := 0
		for time.Since(begun) < 10*time.Second {
			wantResults(t, "nobody there", b.WriteMarkers(t.Context(), 1, one), markers.Retry)
			failed++
			time.Sleep(time.Millisecond)
		}
		if n := b.net.dialled("one:9092"); n < 8 || n > 30 {
			t.Errorf("dialled %d times in 10 s, by %d calls: the pauses are 50 ms to 1 s", n, failed)
		}
		if n := strings.Count(b.log.String(), "connection to a broker failed"); n == 0 || n > 5 {
			t.Errorf("told of %d times", n)
		}
		b.server.start()
		time.Sleep(time.Second)
		wantResults(t, "back", b.WriteMarkers(t.Context(), 1, one), markers.Applied)

		time.Sleep(6 * time.Minute)
		dials := b.net.dialled("one:9092")
		wantResults(t, "after a while", b.WriteMarkers(t.Context(), 1, one), markers.Applied)
		if n := b.net.dialled("one:9092"); n != dials+1 {
			t.Errorf("an idle connection was kept: dialled %d times", n-dials)
		}
	})
}

func TestADialThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		b.net.hang = true
		begun := time.Now()
		wantResults(t, "hangs", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))}), markers.Retry)
		if d := time.Since(begun); d != 3*time.Second {
			t.Errorf("the call took %v, and its patience is 3 s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantResults(t, "hangs, the caller leaves", b.WriteMarkers(ctx, 1, []markers.Delivery{to(7, 1, true, a(0))}), markers.Retry)
		b.end()
	})
}

func TestAnAnswerThatDoesNotComeClosesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, func(c *wire.RPCSinkConfig) {
			c.Patience = time.Hour
			c.Peers.RequestTimeout = 30 * time.Second
		})
		b.hangs("a/0", true)
		begun := time.Now()
		wantResults(t, "silent", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0)), to(7, 1, true, a(1))}), markers.Retry, markers.Retry)
		if d := time.Since(begun); d != 30*time.Second {
			t.Errorf("after %v", d)
		}
		b.hangs("a/0", false)
		b.server.stop() // ends what hangs
		b.server.start()
		time.Sleep(time.Second)
		wantResults(t, "another connection", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))}), markers.Applied)
	})
}

// F12: a partition that hangs is alone after a few rounds, has one request under
// way at most, and holds up no other after that.
func TestAHangingPartitionEndsUpAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		b.hangs("a/123", true)
		b.hangs("a/7", true)
		var left []markers.Delivery
		for i := range int32(200) {
			left = append(left, to(int64(i), 1, true, a(i)))
		}
		rounds := 0
		begun := time.Now()
		for ; len(left) > 2 && rounds < 20; rounds++ {
			rs := b.WriteMarkers(t.Context(), 1, left)
			var rest []markers.Delivery
			for i, r := range rs {
				if r != markers.Applied {
					rest = append(rest, left[i])
				}
			}
			left = rest
			time.Sleep(100 * time.Millisecond)
		}
		if len(left) != 2 || left[0].Participant != a(7) || left[1].Participant != a(123) {
			t.Fatalf("%d deliveries are left after %d rounds", len(left), rounds)
		}
		if d := time.Since(begun); rounds > 4 || d > 20*time.Second {
			t.Errorf("it took %d rounds and %v", rounds, d)
		}
		others := []markers.Delivery{to(7, 2, true, a(0)), to(7, 2, true, a(1)), to(7, 2, true, a(2)), to(7, 2, true, a(3))}
		before := len(b.server.requests())
		for range 100 {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			rs := b.WriteMarkers(ctx, 1, append(slices.Clone(others), left...))
			cancel()
			wantResults(t, "beside it", rs, markers.Applied, markers.Applied, markers.Applied, markers.Applied, markers.Retry, markers.Retry)
			if d := time.Since(begun); d > 50*time.Millisecond {
				t.Errorf("beside it: %v", d)
			}
		}
		if n := len(b.server.requests()) - before; n > 100+2 {
			t.Errorf("%d requests for 100 calls: the partitions that hang were asked again before they answered", n)
		}
		if n := b.server.open(); n > 20 {
			t.Errorf("%d connections were made", n)
		}
		b.hangs("a/123", false)
		b.hangs("a/7", false)
		b.server.stop()
		b.server.start()
		time.Sleep(time.Second)
		wantResults(t, "in the end", b.WriteMarkers(t.Context(), 1, left), markers.Applied, markers.Applied)
	})
}

func TestALargeCallIsSeveralRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, func(c *wire.RPCSinkConfig) { c.RequestBytes = 4000 })
		var ds []markers.Delivery
		for i := range int32(300) {
			ds = append(ds, to(7, 1, true, txnstate.Partition(strings.Repeat("t", 100), i)))
		}
		wantResults(t, "all", b.WriteMarkers(t.Context(), 1, ds), slices.Repeat([]markers.Result{markers.Applied}, 300)...)
		reqs := b.server.requests()
		if len(reqs) < 10 {
			t.Errorf("%d requests", len(reqs))
		}
		for _, r := range reqs {
			if n := len(r.AppendTo(nil)); n > 4000 {
				t.Errorf("a request of %d bytes", n)
			}
		}
		if n := b.net.dialled("one:9092"); n > 4 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestAnUnknownAddressIsNotGone_F38(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		wantResults(t, "no address", b.WriteMarkers(t.Context(), 2, []markers.Delivery{to(7, 1, true, a(0))}), markers.Retry)
		if _, err := b.StillOpen(t.Context(), 2, to(7, 1, true, a(0))); err == nil {
			t.Error("nobody was asked, and there is an answer")
		}
	})
}

// sinkFunc is a function as a markers.Sink.
type sinkFunc func(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result

func (f sinkFunc) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	return f(ctx, to, ds)
}

type askableSink struct{ sinkFunc }

func (askableSink) StillOpen(context.Context, markers.Target, markers.Delivery) (bool, error) {
	return true, nil
}

func TestWhatGoesToThisBrokerStaysHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := sinkFunc(func(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
			return slices.Repeat([]markers.Result{markers.FencedEpoch}, len(ds))
		})
		b := newSinkBench(t, [2]int16{1, 2}, func(c *wire.RPCSinkConfig) { c.Local = askableSink{local} })
		d := to(7, 1, true, a(0))
		wantResults(t, "here", b.WriteMarkers(t.Context(), 9, []markers.Delivery{d}), markers.FencedEpoch)
		if open, err := b.StillOpen(t.Context(), 9, d); !open || err != nil {
			t.Error(open, err)
		}
		other := newSinkBench(t, [2]int16{1, 2}, func(c *wire.RPCSinkConfig) { c.Local = local })
		if _, err := other.StillOpen(t.Context(), 9, d); err == nil {
			t.Error("a sink that can't be asked gave an answer")
		}
	})
}

func TestNothingOutlivesRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		b.hangs("a/0", true)
		done := make(chan []markers.Result)
		go func() {
			done <- b.WriteMarkers(context.Background(), 1, []markers.Delivery{to(7, 1, true, a(0)), to(7, 2, true, a(1))})
		}()
		synctest.Wait()
		b.end()
		wantResults(t, "under way", <-done, markers.Retry, markers.Retry)
		wantResults(t, "after", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))}), markers.Retry)
		if err := b.Run(t.Context()); err == nil {
			t.Error("Run ran twice")
		}
		fresh, err := wire.NewRPCSink(benchConfig(b.net, b.log))
		if err != nil {
			t.Fatal(err)
		}
		wantResults(t, "before", fresh.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))}), markers.Retry)
	})
}

func TestRPCSinkConfigIsChecked(t *testing.T) {
	_, err := wire.NewRPCSink(wire.RPCSinkConfig{Patience: -1, Peers: wire.PeerConfig{InFlight: -1}})
	for _, want := range []string{"Addr", "RPCSinkConfig has a negative", "PeerConfig has a negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// The default is TCP.
func TestRPCSinkOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	server := newRPCServer(t, newRPCNet(), "", map[int16][2]int16{27: {1, 2}}, new(sinkBench).answer)
	var accepting sync.WaitGroup
	defer accepting.Wait()
	defer l.Close()
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server.serve(c)
		}
	})
	s, err := wire.NewRPCSink(wire.RPCSinkConfig{Addr: func(markers.Target) (string, bool) { return l.Addr().String(), true }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	d, err := markers.NewDispatcher(markers.Config{Sink: s, Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) {
		return 1, markers.Known
	})})
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- d.Run(ctx) }()
	applied := make(chan int, 100)
	const txns = 50
	for n := range int64(txns) {
		d.Dispatch(txnstate.Outcome{TxnID: fmt.Sprint(n), Producer: txnstate.Producer{ID: n}, Participants: []txnstate.Participant{a(0), a(int32(n + 1))}},
			func(ps []txnstate.Participant) { applied <- len(ps) })
	}
	for n := 0; n < 2*txns; n += <-applied {
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// A marker does not overtake one of its producer that nobody knows of.
func TestAProducersNextMarkerWaitsForItsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		b.hangs("a/0", true)
		ds := []markers.Delivery{to(7, 1, true, a(0)), to(7, 2, false, a(0)), to(7, 2, false, a(1)), to(8, 1, true, a(2))}
		wantResults(t, "the first hangs", b.WriteMarkers(t.Context(), 1, ds), slices.Repeat([]markers.Result{markers.Retry}, 4)...)
		if got := told(b.server.requests()); !slices.Equal(got, []string{"v2 7/1 true by 3 tv2 a[0] 8/1 true by 3 tv2 a[2]"}) {
			t.Errorf("%q", got)
		}
	})
}

// F12: a broker works off one request of a connection at a time, so one that was
// given up must not keep its connection.
func TestRequestsThatWereGivenUpHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, func(c *wire.RPCSinkConfig) { c.Peers.Connections = 2 })
		for i := range int32(6) {
			b.hangs(fmt.Sprint("a/", 2*i), true)
			wantResults(t, "hangs", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(2*i)), to(7, 1, true, a(2*i+1))}), markers.Retry, markers.Retry)
		}
		begun := time.Now()
		wantResults(t, "another", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(8, 1, true, a(100))}), markers.Applied)
		if d := time.Since(begun); d > 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// A request that is not sent after all keeps no place from others: here, since the
// broker serves no version of it.
func TestARequestThatIsNotSentKeepsNoPlace_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{90, 91}, nil)
		begun := time.Now()
		for range 100 {
			wantResults(t, "too new", b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))}), markers.Retry)
		}
		if d := time.Since(begun); d > 0 {
			t.Errorf("they waited for %v", d)
		}
	})
}

// A connection is not idle while somebody waits for an answer.
func TestAConnectionThatIsWaitedForIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, func(c *wire.RPCSinkConfig) {
			c.Patience = time.Hour
			c.Peers.IdleAfter = time.Second
		})
		b.hangs("a/0", true)
		done := make(chan []markers.Result, 1)
		go func() { done <- b.WriteMarkers(t.Context(), 1, []markers.Delivery{to(7, 1, true, a(0))}) }()
		time.Sleep(10 * time.Second)
		if len(done) > 0 || b.net.dialled("one:9092") != 1 {
			t.Error("its connection was closed")
		}
		b.end()
		<-done
	})
}

// A dial that hangs gives its place back in the end.
func TestADialThatHangsKeepsNoPlace_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		b.net.hang = true
		one := []markers.Delivery{to(7, 1, true, a(0))}
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			wantResults(t, "hangs", b.WriteMarkers(ctx, 1, one), markers.Retry)
			cancel()
		}
		synctest.Wait()
		b.net.hang = false
		time.Sleep(time.Minute)
		wantResults(t, "no more", b.WriteMarkers(t.Context(), 1, one), markers.Applied)
	})
}

// A request that was answered does not end its connection later.
func TestAnAnsweredRequestLeavesItsConnectionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSinkBench(t, [2]int16{1, 2}, nil)
		one := []markers.Delivery{to(7, 1, true, a(0))}
		for range 5 {
			wantResults(t, "now and then", b.WriteMarkers(t.Context(), 1, one), markers.Applied)
			time.Sleep(40 * time.Second) // longer than a request may take
		}
		if n := b.net.dialled("one:9092"); n != 1 {
			t.Errorf("dialled %d times", n)
		}
	})
}
