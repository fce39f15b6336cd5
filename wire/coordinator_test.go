package wire_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// slots is an Ownership that never has anything or, with acquired set, has all:
// closed when it has said so.
type slots struct{ acquired chan struct{} }

func (s slots) Watch(ctx context.Context, acquired, _ func(int, int32)) error {
	if s.acquired != nil {
		for i := range txnstate.Slots {
			acquired(i, 1)
		}
		close(s.acquired)
	}
	<-ctx.Done()
	return nil
}

// loadingHost is a host whose coordinator never gets done with loading.
func loadingHost(t testing.TB) *host {
	acquired := make(chan struct{})
	h := newHost(t, func(_ *wire.Config, c *txnstate.Config) {
		c.Ownership, c.Store = slots{acquired}, hanging{memstore.New()}
	})
	<-acquired
	return h
}

// hanging is a store whose slots are never read to the end.
type hanging struct{ txnstate.Store }

func (hanging) Slot(ctx context.Context, _ int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		<-ctx.Done()
		yield(txnstate.Record{}, ctx.Err())
	}
}

// F33: what a producer that is refused is told, in every version of every API.
func TestF33_RefusalsOfEveryVersion(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("t", 1)
	notOwner := newHost(t, func(_ *wire.Config, c *txnstate.Config) { c.Ownership = slots{} })
	notOwner.addTopic("t", 1)
	loading := loadingHost(t)
	loading.addTopic("t", 1)

	h.initTxn(t, "open")
	open := h.initTxn(t, "open") // epoch 1: there is an older one
	wantCodes(t, "open", addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(3, "open", open, "t", 0))), 0)
	idle := h.initTxn(t, "idle")
	// A decision whose marker nobody takes: its topic has no log any more, and
	// nobody is sure that it was deleted.
	busy := h.initTxn(t, "busy")
	h.addTopic("lost", 1)
	wantCodes(t, "busy", addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(3, "busy", busy, "lost", 0))), 0)
	h.mu.Lock()
	delete(h.topics, "lost")
	h.mu.Unlock()
	if r := do[*kmsg.EndTxnResponse](t, h, endRequest(4, "busy", busy, true)); r.ErrorCode != 0 {
		t.Fatalf("EndTxn: %d", r.ErrorCode)
	}

	stale := producer{open.id, open.epoch - 1}
	stranger := producer{open.id + 5000, 0}
	apis := []struct {
		name     string
		max      int16
		fenced   int16 // first version with PRODUCER_FENCED
		endsWhat bool
		call     func(h *host, v int16, id string, p producer) int16
	}{
		{"InitProducerId", 5, 4, false, func(h *host, v int16, id string, p producer) int16 {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version, req.TransactionalID, req.TransactionTimeoutMillis = v, &id, 60000
			req.ProducerID, req.ProducerEpoch = p.id, p.epoch
			return do[*kmsg.InitProducerIDResponse](t, h, req).ErrorCode
		}},
		{"AddPartitionsToTxn", 5, 2, false, func(h *host, v int16, id string, p producer) int16 {
			return addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(v, id, p, "t", 0)))[0]
		}},
		{"AddOffsetsToTxn", 4, 2, false, func(h *host, v int16, id string, p producer) int16 {
			return do[*kmsg.AddOffsetsToTxnResponse](t, h, addOffsetsRequest(v, id, p, "g")).ErrorCode
		}},
		{"EndTxn", 5, 2, true, func(h *host, v int16, id string, p producer) int16 {
			return do[*kmsg.EndTxnResponse](t, h, endRequest(v, id, p, true)).ErrorCode
		}},
	}
	for _, api := range apis {
		for v := int16(0); v <= api.max; v++ {
			fenced := int16(txnstate.CodeProducerFenced)
			if v < api.fenced {
				fenced = int16(txnstate.CodeInvalidProducerEpoch)
			}
			type cell struct {
				when string
				h    *host
				id   string
				p    producer
				want int16
			}
			cells := []cell{
				{"the coordinator is another", notOwner, "open", open, 16},
				{"the coordinator is loading", loading, "open", open, 14},
			}
			if api.name == "InitProducerId" {
				if v >= 3 {
					cells = append(cells, cell{"another id's producer id", h, "idle", stranger, fenced},
						cell{"the previous transaction is completing", h, "busy", busy, 51})
				}
			} else {
				cells = append(cells,
					cell{"a stale epoch", h, "open", stale, fenced},
					cell{"another id's producer id", h, "open", stranger, 49},
					cell{"an id that nobody knows", h, "nobody", open, 49},
					cell{"the previous transaction is completing", h, "busy", busy, 51})
			}
			if api.endsWhat {
				cells = append(cells, cell{"no transaction is open", h, "idle", idle, 48})
			}
			for _, c := range cells {
				if got := api.call(c.h, v, c.id, c.p); got != c.want {
					t.Errorf("%s v%d, %s: %d, want %d", api.name, v, c.when, got, c.want)
				}
			}
		}
	}
}

// F32: null, empty and half-given identities.
func TestF32_InitProducerIDShapes(t *testing.T) {
	h := newHost(t, nil)
	empty, id := "", "id"
	long := strings.Repeat("é", txnstate.MaxTxnIDBytes/2) + "x" // the longest there can be
	tooLong := long + "x"
	for v := int16(0); v <= 5; v++ {
		for _, tt := range []struct {
			name string
			id   *string
			p    producer
			want int16
			old  int16 // before v3, which has no identity to give
		}{
			{"null id", nil, producer{-1, -1}, 0, 0},
			{"null id with an identity, which is not looked at", nil, producer{7, 7}, 0, 0},
			{"null id with half an identity", nil, producer{7, -1}, 42, 0},
			{"empty id", &empty, producer{-1, -1}, 42, 42},
			{"no identity", &id, producer{-1, -1}, 0, 0},
			{"producer id alone", &id, producer{7, -1}, 42, 0},
			{"epoch alone", &id, producer{-1, 7}, 42, 0},
			{"the longest id", &long, producer{-1, -1}, 0, 0},
			{"a longer one", &tooLong, producer{-1, -1}, 42, 42},
		} {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version, req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = v, tt.id, 60000, tt.p.id, tt.p.epoch
			resp := do[*kmsg.InitProducerIDResponse](t, h, req)
			want := tt.want
			if v < 3 {
				want = tt.old
			}
			if resp.ErrorCode != want || resp.Version != v {
				t.Errorf("v%d, %s: %d in a v%d, want %d", v, tt.name, resp.ErrorCode, resp.Version, want)
			}
			if got := (producer{resp.ProducerID, resp.ProducerEpoch}); want != 0 && got != (producer{-1, -1}) {
				t.Errorf("v%d, %s: an error with identity %v", v, tt.name, got)
			}
		}
	}
}

// §2.2.1 rows 1 to 3, and 7 after them.
func TestInitProducerIDGates(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.TwoPhaseCommit = true })
	h.denyAll(t, wire.TransactionalIDResource, "mine-not", wire.OpWrite)
	init := func(id *string, v int16, twoPhase bool) int16 {
		if v < 6 {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version, req.TransactionalID, req.TransactionTimeoutMillis = v, id, 60000
			return do[*kmsg.InitProducerIDResponse](t, h, req).ErrorCode
		}
		req := &wire.InitProducerIDV6Request{TransactionalID: id, TransactionTimeoutMillis: 60000, ProducerID: -1, ProducerEpoch: -1, Enable2PC: twoPhase}
		return do[*wire.InitProducerIDV6Response](t, h, req).ErrorCode
	}
	str := kmsg.StringPtr
	wantCodes(t, "no WRITE", []int16{init(str("mine-not"), 4, false), init(str("mine-not"), 6, true)}, 53, 53)
	wantCodes(t, "two-phase commit is off in the coordinator", []int16{init(str("x"), 6, true)}, 53)
	off := h
	h = newHost(t, func(w *wire.Config, c *txnstate.Config) { w.TwoPhaseCommit, c.TwoPhaseCommit = true, true })
	for _, op := range []wire.Operation{wire.OpWrite, wire.OpDescribe} { // a rule of any kind ends what is allowed by default
		if err := h.acls.Add(rule(wire.TransactionalIDResource, "one-phase", wire.AnyUser, op, wire.AllowPermission)); err != nil {
			t.Fatal(err)
		}
	}
	wantCodes(t, "no TWO_PHASE_COMMIT", []int16{init(str("one-phase"), 6, true), init(str("one-phase"), 6, false), init(str("x"), 6, true)}, 53, 0, 0)
	h = off
	wantCodes(t, "one phase in v6", []int16{init(str("x"), 6, false)}, 0)
	wantCodes(t, "no id, allowed by default", []int16{init(nil, 5, false)}, 0)
	// KIP-679: IDEMPOTENT_WRITE, or WRITE on any topic.
	h.denyAll(t, wire.ClusterResource, wire.ClusterName, wire.OpIdempotentWrite)
	wantCodes(t, "no id, WRITE by default", []int16{init(nil, 5, false)}, 0)
	h.denyAll(t, wire.TopicResource, wire.AnyName, wire.OpWrite)
	wantCodes(t, "no id, no WRITE anywhere", []int16{init(nil, 5, false)}, 31)
}

// F08: all or nothing, and each its own reason.
func TestF08_AddPartitionsIsAllOrNothing(t *testing.T) {
	h := newHost(t, nil)
	for _, name := range []string{"good", "closed"} {
		h.addTopic(name, 2)
	}
	h.denyAll(t, wire.TopicResource, "closed", wire.OpWrite)
	h.denyAll(t, wire.TransactionalIDResource, "not-mine", wire.OpWrite)
	p := h.initTxn(t, "tx")
	req := func(id string, topics ...string) *kmsg.AddPartitionsToTxnRequest {
		r := addRequest(3, id, p, "good", 0, 1)
		for _, name := range topics {
			rt := kmsg.NewAddPartitionsToTxnRequestTopic()
			rt.Topic, rt.Partitions = name, []int32{0}
			r.Topics = append(r.Topics, rt)
		}
		return r
	}
	add := func(r *kmsg.AddPartitionsToTxnRequest) []int16 {
		return addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, r))
	}
	wantCodes(t, "one closed, one missing", add(req("tx", "closed", "missing")), 55, 55, 29, 3)
	// Internal topics are barred before anything is said of their existence.
	wantCodes(t, "internal topics", add(req("tx", "__consumer_offsets", "__transaction_state", "__share_group_state")), 55, 55, 29, 29, 29)
	wantCodes(t, "somebody else's id hides all", add(req("not-mine", "closed", "missing")), 53, 53, 53, 53)
	// The gate comes before the coordinator: an unknown topic hides 49.
	wantCodes(t, "an unknown id and an unknown topic", add(req("nobody", "missing")), 55, 55, 3)
	wantCodes(t, "a partition too far", add(addRequest(3, "tx", p, "good", 2, -1)), 3, 3)
	if rec, err := h.coordinator.Describe(t.Context(), "tx"); err != nil || rec.State != txnstate.Empty {
		t.Fatalf("something was added: %v, %v", rec, err)
	}
	wantCodes(t, "a topic named twice", add(req("tx", "good")), 0, 0, 0)
	if rec, _ := h.coordinator.Describe(t.Context(), "tx"); len(rec.Participants) != 2 {
		t.Errorf("%v", rec)
	}
}

// §2.3, v4 and later: between brokers.
func TestAddPartitionsInBatches(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("t", 2)
	h.denyAll(t, wire.TopicResource, "t", wire.OpWrite) // which brokers are not asked for
	h.denyAll(t, wire.TransactionalIDResource, "a", wire.OpWrite)
	var ps []producer
	ids := []string{"a", "b", "c"}
	for _, id := range ids {
		p, err := h.coordinator.Init(t.Context(), id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 1000})
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, producer{p.ID, p.Epoch})
	}
	for v := int16(4); v <= 5; v++ {
		req := addRequest(v, "a", ps[0], "t", 0)
		req.Transactions = append(req.Transactions,
			addRequest(v, "b", ps[0], "t", 0, 1).Transactions[0],                            // another's producer id
			addRequest(v, "c", ps[2], "missing", 0).Transactions[0],                         // hides what the coordinator would say
			addRequest(v, "", ps[2], "t", 0).Transactions[0],                                // no id
			addRequest(v, "a", ps[0], "__consumer_offsets", 3).Transactions[0],              // internal, and fine
			addRequest(v, "c", producer{ps[2].id, ps[2].epoch + 1}, "t", 1).Transactions[0]) // never downgraded to 47
		verify := addRequest(v, "a", ps[0], "t", 0, 1).Transactions[0]
		verify.VerifyOnly = true
		req.Transactions = append(req.Transactions, verify)
		resp := do[*kmsg.AddPartitionsToTxnResponse](t, h, req)
		wantCodes(t, fmt.Sprintf("v%d", v), addCodes(resp), 0, 49, 49, 3, 42, 0, 90, 0, 120)
		if resp.ErrorCode != 0 || resp.Transactions[1].TransactionalID != "b" {
			t.Errorf("v%d: %+v", v, resp)
		}
		if r := do[*kmsg.AddPartitionsToTxnResponse](t, h, &kmsg.AddPartitionsToTxnRequest{Version: v}); r.ErrorCode != 0 || len(r.Transactions) != 0 {
			t.Errorf("an empty batch: %+v", r)
		}
	}
	h.denyAll(t, wire.ClusterResource, wire.ClusterName, wire.OpClusterAction)
	if r := do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(4, "a", ps[0], "t", 0)); r.ErrorCode != 31 || len(r.Transactions) != 0 {
		t.Errorf("a client in a broker's place: %+v", r)
	}
}

func TestAddOffsetsGates(t *testing.T) {
	h := newHost(t, nil)
	p := h.initTxn(t, "tx")
	h.denyAll(t, wire.GroupResource, "theirs", wire.OpRead)
	h.denyAll(t, wire.TransactionalIDResource, "not-mine", wire.OpWrite)
	add := func(id, group string) int16 {
		return do[*kmsg.AddOffsetsToTxnResponse](t, h, addOffsetsRequest(3, id, p, group)).ErrorCode
	}
	wantCodes(t, "id before group", []int16{add("not-mine", "theirs"), add("tx", "theirs"), add("", "g"), add("tx", ""), add("tx", "g")}, 53, 30, 42, 0, 0)
	rec, err := h.coordinator.Describe(t.Context(), "tx")
	if err != nil || !rec.Has(txnstate.Group("g")) || !rec.Has(txnstate.Group("")) {
		t.Errorf("%v, %v", rec, err)
	}
	// Clients of protocol 2 do not send it, whatever its version: what it opens is a
	// transaction of protocol 1, whose end is told by its epoch.
	for v := int16(0); v <= 4; v++ {
		id := fmt.Sprint("of-", v)
		p := h.initTxn(t, id)
		wantCodes(t, id, []int16{do[*kmsg.AddOffsetsToTxnResponse](t, h, addOffsetsRequest(v, id, p, "g")).ErrorCode}, 0)
		if rec, err := h.coordinator.Describe(t.Context(), id); err != nil || rec.ClientVersion != txnstate.TV0 {
			t.Errorf("v%d: %+v, %v", v, rec, err)
		}
	}
}

// F32: an answer has the fields of its version; §0.3: the version chooses the
// rules, whatever level is finalised.
func TestF32_EndTxnAnswersByVersion(t *testing.T) {
	h := newHost(t, func(_ *wire.Config, c *txnstate.Config) { c.TransactionVersion = txnstate.ServerTV0 })
	h.addTopic("t", 1)
	p := h.initTxn(t, "tx")
	for v := int16(0); v <= 5; v++ {
		wantCodes(t, "add", addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(3, "tx", p, "t", 0))), 0)
		r := do[*kmsg.EndTxnResponse](t, h, endRequest(v, "tx", p, v%2 == 0))
		want := producer{-1, -1}
		if v == 5 {
			want = producer{p.id, p.epoch + 1}
		}
		if got := (producer{r.ProducerID, r.ProducerEpoch}); r.ErrorCode != 0 || got != want {
			t.Errorf("v%d: code %d, identity %v, want %v", v, r.ErrorCode, got, want)
		}
		back := kmsg.NewPtrEndTxnResponse()
		back.Version = v
		if err := back.ReadFrom(r.AppendTo(nil)); err != nil || v < 5 && back.ProducerID != -1 {
			t.Errorf("v%d on the wire: %+v, %v", v, back, err)
		}
	}
}

func TestDescribeTransactions(t *testing.T) {
	h := newHost(t, nil)
	for _, name := range []string{"b", "hidden", "a"} {
		h.addTopic(name, 3)
	}
	p := h.initTxn(t, "tx")
	req := addRequest(3, "tx", p, "b", 2, 0)
	for _, name := range []string{"hidden", "a"} {
		req.Topics = append(req.Topics, addRequest(3, "tx", p, name, 1).Topics[0])
	}
	wantCodes(t, "add", addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, req)), 0, 0, 0, 0)
	do[*kmsg.AddOffsetsToTxnResponse](t, h, addOffsetsRequest(3, "tx", p, "g"))
	h.denyAll(t, wire.TopicResource, "hidden", wire.OpDescribe)
	h.denyAll(t, wire.TransactionalIDResource, "secret", wire.OpDescribe)
	d := kmsg.NewPtrDescribeTransactionsRequest()
	d.TransactionalIDs = []string{"tx", "secret", "nobody", ""}
	states := do[*kmsg.DescribeTransactionsResponse](t, h, d).TransactionStates
	var codes []int16
	for _, s := range states {
		codes = append(codes, s.ErrorCode)
	}
	wantCodes(t, "describe", codes, 0, 53, 105, 42)
	s := states[0]
	if s.State != "Ongoing" || s.ProducerID != p.id || s.ProducerEpoch != p.epoch || s.TimeoutMillis != 60000 || s.StartTimestamp <= 0 {
		t.Errorf("%+v", s)
	}
	got := map[string][]int32{}
	for _, topic := range s.Topics {
		got[topic.Topic] = topic.Partitions
	}
	want := map[string][]int32{"a": {1}, "b": {0, 2}, "__consumer_offsets": {txnstate.OffsetsPartition("g")}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("topics %v, want %v", got, want)
	}
}

func TestListTransactions(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	h := newHost(t, func(w *wire.Config, c *txnstate.Config) {
		c.Now = func() time.Time { return now }
		w.Now = func() time.Time { return now.Add(5 * time.Second) }
	})
	h.addTopic("t", 1)
	pids := map[string]int64{}
	for _, id := range []string{"idle", "open-1", "open-2", "secret"} {
		p := h.initTxn(t, id)
		pids[id] = p.id
		if strings.HasPrefix(id, "open") {
			do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(3, id, p, "t", 0))
		}
	}
	h.denyAll(t, wire.TransactionalIDResource, "secret", wire.OpDescribe)
	for _, tt := range []struct {
		name    string
		tune    func(*kmsg.ListTransactionsRequest)
		want    []string
		unknown []string
		code    int16
	}{
		{"all that may be seen", nil, []string{"idle", "open-1", "open-2"}, nil, 0},
		{"by state", func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Ongoing", "ongoing"} }, []string{"open-1", "open-2"}, []string{"ongoing"}, 0},
		{"only unknown states match nothing", func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Nonsense"} }, nil, []string{"Nonsense"}, 0},
		{"Kafka's states without records are known", func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Dead", "PrepareEpochFence"} }, nil, nil, 0},
		{"by producer id", func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{pids["open-2"], 1} }, []string{"open-2"}, nil, 0},
		{"older than 4 s, and those without a start", func(r *kmsg.ListTransactionsRequest) { r.DurationFilterMillis = 4000 }, []string{"idle", "open-1", "open-2"}, nil, 0},
		{"older than 5 s is strict", func(r *kmsg.ListTransactionsRequest) { r.DurationFilterMillis = 5000 }, []string{"idle"}, nil, 0},
		{"a pattern matches whole ids", func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = kmsg.StringPtr("open-[0-9]|idl") }, []string{"open-1", "open-2"}, nil, 0},
		{"an empty pattern is none", func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = kmsg.StringPtr("") }, []string{"idle", "open-1", "open-2"}, nil, 0},
		{"no pattern", func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = kmsg.StringPtr("a)|(b") }, nil, nil, 128},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := kmsg.NewPtrListTransactionsRequest()
			req.Version = 2
			if tt.tune != nil {
				tt.tune(req)
			}
			resp := do[*kmsg.ListTransactionsResponse](t, h, req)
			var ids []string
			for _, s := range resp.TransactionStates {
				ids = append(ids, s.TransactionalID)
			}
			slices.Sort(ids)
			if resp.ErrorCode != tt.code || !slices.Equal(ids, tt.want) || !slices.Equal(resp.UnknownStateFilters, tt.unknown) {
				t.Errorf("code %d, ids %v, unknown %v", resp.ErrorCode, ids, resp.UnknownStateFilters)
			}
		})
	}
	t.Run("filters of later versions are not looked at", func(t *testing.T) {
		req := kmsg.NewPtrListTransactionsRequest()
		req.DurationFilterMillis, req.TransactionalIDPattern = 5000, kmsg.StringPtr("nothing")
		if n := len(do[*kmsg.ListTransactionsResponse](t, h, req).TransactionStates); n != 3 {
			t.Errorf("%d ids", n)
		}
	})
	loading := loadingHost(t)
	req := kmsg.NewPtrListTransactionsRequest()
	req.Version, req.TransactionalIDPattern = 2, kmsg.StringPtr("(")
	if r := do[*kmsg.ListTransactionsResponse](t, loading, req); r.ErrorCode != 14 {
		t.Errorf("while loading: %d", r.ErrorCode)
	}
}

func TestFindCoordinator(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) {
		w.FindCoordinator = func(_ context.Context, kind int8, key string) (int32, string, int32, error) {
			if key == "down" {
				return 3, "x", 1, errors.New("nobody is alive")
			}
			return int32(kind) + 10, "host-" + key, 9092, nil
		}
	})
	h.denyAll(t, wire.TransactionalIDResource, "secret", wire.OpDescribe)
	h.denyAll(t, wire.GroupResource, "secret", wire.OpDescribe)
	for v := int16(0); v <= 6; v++ {
		for _, tt := range []struct {
			kind int8
			key  string
			code int16
			node int32
		}{
			{0, "k", 0, 10}, {1, "k", 0, 11}, {1, "", 0, 11}, {0, "secret", 30, -1}, {1, "secret", 53, -1},
			{1, "down", 15, -1}, {2, "k", 42, -1}, {9, "k", 42, -1},
		} {
			if v == 0 && tt.kind != 0 {
				continue // v0 has no types
			}
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.Version, req.CoordinatorType = v, tt.kind
			if v < 4 {
				req.CoordinatorKey = tt.key
			} else {
				req.CoordinatorKeys = []string{tt.key, tt.key}
			}
			r := do[*kmsg.FindCoordinatorResponse](t, h, req)
			code, node, host := r.ErrorCode, r.NodeID, r.Host
			if v >= 4 {
				if len(r.Coordinators) != 2 || r.Coordinators[1].Key != tt.key {
					t.Fatalf("v%d: %+v", v, r)
				}
				c := r.Coordinators[1]
				code, node, host = c.ErrorCode, c.NodeID, c.Host
			}
			if code != tt.code || node != tt.node || code != 0 && host != "" {
				t.Errorf("v%d, type %d, key %q: code %d, node %d, host %q", v, tt.kind, tt.key, code, node, host)
			}
		}
	}
}
