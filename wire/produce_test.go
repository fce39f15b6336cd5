package wire_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (h *host) produce(t testing.TB, req *kmsg.ProduceRequest) []int16 {
	t.Helper()
	return produceCodes(do[*kmsg.ProduceResponse](t, h, req))
}

// §6.1 rows 1 to 7, and the order between them.
func TestProduceOrder(t *testing.T) {
	h := newHost(t, nil)
	for _, name := range []string{"a", "b", "closed", "away"} {
		h.addTopic(name, 2)
	}
	away, _ := h.log("away", 0)
	away.fail = txnstate.CodeNotEnoughReplicas.Errorf("", "for a test")
	h.denyAll(t, wire.TransactionalIDResource, "not-mine", wire.OpWrite)
	h.denyAll(t, wire.TopicResource, "closed", wire.OpWrite)
	p := h.initTxn(t, "tx")
	q := producer{p.id + 1000, 0}
	plain := func(seq int32) []byte { return batch(producer{-1, -1}, seq, 1, false) }
	control := batch(p, 0, 1, true)
	control[22] |= 0x20
	control = seal(control)
	corrupt := plain(-1)
	corrupt[len(corrupt)-1]++
	two := append(plain(-1), plain(-1)...)
	hidden := append(plain(-1), batch(p, 0, 1, true)...) // its second batch is transactional
	more := func(req *kmsg.ProduceRequest, topic string, partition int32, records []byte) *kmsg.ProduceRequest {
		addRecords(req, topic, partition, records)
		return req
	}
	for _, tt := range []struct {
		name string
		req  *kmsg.ProduceRequest
		want []int16
	}{
		{"1: transactional without an id, whole request", more(produceRequest(11, "", "a", 0, batch(p, 0, 1, true)), "b", 0, plain(-1)), []int16{53, 53}},
		{"1: somebody else's id", more(produceRequest(11, "not-mine", "missing", 0, plain(-1)), "a", 0, batch(p, 0, 1, true)), []int16{53, 53}},
		{"1: the bit of a later batch counts", produceRequest(11, "", "a", 0, hidden), []int16{53}},
		{"1: the bit alone, without a producer id", produceRequest(11, "", "a", 0, batch(producer{-1, -1}, -1, 1, true)), []int16{53}},
		{"an id does not make a batch transactional", produceRequest(11, "not-mine", "a", 0, plain(-1)), []int16{0}},
		{"2: permission before existence, each its own", more(more(more(produceRequest(11, "", "closed", 0, nil), "closed", 9, nil), "missing", 0, nil), "a", 2, nil), []int16{29, 29, 3, 3}},
		{"3: no batch, two batches, a broken one", more(more(produceRequest(11, "", "a", 0, []byte{1, 2}), "a", 1, two), "b", 0, corrupt), []int16{2, 87, 2}},
		{"4: two producers, whole request", more(more(produceRequest(12, "tx", "a", 0, batch(p, 0, 1, true)), "b", 0, batch(q, 0, 1, true)), "missing", 0, nil), []int16{49, 49, 49}},
		{"4: but not without the bit", more(produceRequest(11, "", "a", 0, batch(p, 0, 1, false)), "b", 0, batch(q, 0, 1, false)), []int16{0, 0}},
		{"5: what is refused later was added", more(produceRequest(12, "tx", "a", 1, control), "b", 1, batch(p, 0, 1, true)), []int16{87, 0}},
		{"6: internal topics", more(produceRequest(12, "", "__consumer_offsets", 0, plain(-1)), "__consumer_offsets", 77, plain(-1)), []int16{17, 3}},
		{"6: internal topics, transactional and not verified", produceRequest(11, "tx", "__consumer_offsets", 7, batch(p, 0, 1, true)), []int16{120}},
		{"6: but by the wrong holder, asked first", produceRequest(12, "tx", "__consumer_offsets", 7, batch(q, 0, 1, true)), []int16{49}},
		{"6: added, and then refused", produceRequest(12, "tx", "__consumer_offsets", 7, batch(p, 0, 1, true)), []int16{17}},
		{"7: the log's own refusal", produceRequest(12, "", "away", 0, plain(-1)), []int16{19}},
	} {
		if got := h.produce(t, tt.req); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	rec, err := h.coordinator.Describe(t.Context(), "tx")
	if err != nil || !rec.Has(txnstate.Partition("a", 1)) || !rec.Has(txnstate.Partition("b", 1)) || !rec.Has(txnstate.Partition("__consumer_offsets", 7)) {
		t.Errorf("the implicit add: %v, %v", rec, err)
	}
	bad := produceRequest(12, "", "a", 0, plain(-1))
	bad.Acks = 2
	wantCodes(t, "acks 2", h.produce(t, bad), 21)
	r := do[*kmsg.ProduceResponse](t, h, produceRequest(11, "", "a", 0, batch(p, 7, 1, false)))
	if part := r.Topics[0].Partitions[0]; part.ErrorCode != 45 || part.BaseOffset != -1 || part.LogAppendTime != -1 || part.ErrorMessage == nil {
		t.Errorf("a refused batch: %+v", part)
	}
}

// v13 names topics by id.
func TestProduceByTopicID(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	req := produceRequest(13, "", "", 0, batch(producer{-1, -1}, -1, 1, false))
	copy(req.Topics[0].TopicID[:], "a")
	addRecords(req, "", 0, nil) // no id at all
	addRecords(req, "", 0, nil)
	copy(req.Topics[2].TopicID[:], "missing")
	wantCodes(t, "v13", h.produce(t, req), 0, 100, 100)
	resp := do[*kmsg.ProduceResponse](t, h, req)
	if resp.Topics[0].TopicID != req.Topics[0].TopicID || resp.Topics[0].Partitions[0].BaseOffset != 1 {
		t.Errorf("%+v", resp.Topics[0])
	}
}

// acks 0: no answer, and a closed connection where something was refused.
func TestProduceWithoutAnswer(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	req := produceRequest(9, "", "a", 0, batch(producer{-1, -1}, -1, 1, false))
	req.Acks = 0
	if resp, err := h.Handle(t.Context(), req, "User:a"); resp != nil || err != nil {
		t.Errorf("answer %v, %v", resp, err)
	}
	addRecords(req, "missing", 0, nil)
	if resp, err := h.Handle(t.Context(), req, "User:a"); resp != nil || !errors.Is(err, wire.ErrClose) {
		t.Errorf("answer %v, %v", resp, err)
	}
	l, _ := h.log("a", 0)
	if l.end != 2 {
		t.Errorf("%d records, want both", l.end)
	}
}

// KIP-890: one question for all partitions of a request that need one, none for
// those whose transaction is open.
func TestProduceAsksOnce(t *testing.T) {
	v := &countingVerifier{}
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Verifier = v })
	h.addTopic("a", 4)
	p := producer{5, 0}
	req := produceRequest(11, "tx", "a", 0, batch(p, 0, 1, true))
	addRecords(req, "a", 1, batch(p, 0, 1, true))
	addRecords(req, "a", 2, batch(producer{-1, -1}, -1, 1, true)) // no producer id: plain data
	wantCodes(t, "first", h.produce(t, req), 0, 0, 0)
	if got := fmt.Sprint(v.asked); got != "[[a/0 a/1]]" {
		t.Errorf("asked %s", got)
	}
	req = produceRequest(11, "tx", "a", 0, batch(p, 1, 1, true))
	addRecords(req, "a", 3, batch(p, 0, 1, true))
	wantCodes(t, "second", h.produce(t, req), 0, 0)
	if got := fmt.Sprint(v.asked); got != "[[a/0 a/1] [a/3]]" {
		t.Errorf("asked %s", got)
	}
	// Two batches of one partition in one request keep their order.
	req = produceRequest(11, "tx", "a", 0, batch(p, 2, 2, true))
	addRecords(req, "a", 0, batch(p, 4, 1, true))
	wantCodes(t, "two of one partition", h.produce(t, req), 0, 0)
}

type countingVerifier struct{ asked [][]txnstate.Participant }

func (v *countingVerifier) Verify(_ context.Context, _ string, _ txnstate.Producer, ps []txnstate.Participant, _ fence.Mode) ([]txnstate.Code, error) {
	v.asked = append(v.asked, ps)
	return make([]txnstate.Code, len(ps)), nil
}

// §6.3.
func TestProduceVerificationAnswers(t *testing.T) {
	for _, tt := range []struct {
		code txnstate.Code
		want [3]int16 // v10, v11, v12
	}{
		{13, [3]int16{19, 19, 19}}, {14, [3]int16{19, 19, 19}}, {15, [3]int16{19, 19, 19}}, {16, [3]int16{19, 19, 19}},
		{51, [3]int16{19, 19, 51}}, {48, [3]int16{48, 48, 48}}, {120, [3]int16{48, 120, 120}}, {90, [3]int16{47, 47, 47}},
		{42, [3]int16{42, 42, 42}}, {49, [3]int16{49, 49, 49}}, {47, [3]int16{47, 47, 47}}, {55, [3]int16{55, 55, 55}},
		{3, [3]int16{3, 3, 3}}, {31, [3]int16{48, 48, 48}},
	} {
		h := newHost(t, func(w *wire.Config, _ *txnstate.Config) {
			w.Verifier, w.AddRetryFor = asked{code: tt.code}, -1
		})
		h.addTopic("a", 1)
		var got [3]int16
		for i := range got {
			got[i] = h.produce(t, produceRequest(10+int16(i), "tx", "a", 0, batch(producer{5, 0}, 0, 1, true)))[0]
		}
		if got != tt.want {
			t.Errorf("%s: %v, want %v", tt.code, got, tt.want)
		}
	}
}

// §6.3: under TV2 the leader tries CONCURRENT_TRANSACTIONS again every 20 ms, for
// 100 ms; in the verifying modes not at all (KAFKA-18654).
func TestF37_ProduceOutlastsTheCompletion(t *testing.T) {
	for _, tt := range []struct {
		name    string
		version int16
		until   int32 // number of the answer that is no longer 51
		want    int16
		asked   int32
		took    time.Duration
	}{
		{"completes at the fourth question", 12, 4, 0, 4, 60 * time.Millisecond},
		{"does not complete in time", 12, 100, 51, 5, 100 * time.Millisecond},
		{"verification does not wait", 11, 100, 19, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &busyVerifier{until: tt.until}
				h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Verifier = v })
				h.addTopic("a", 1)
				start := time.Now()
				wantCodes(t, "produce", h.produce(t, produceRequest(tt.version, "tx", "a", 0, batch(producer{5, 0}, 0, 1, true))), tt.want)
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				if n := v.n.Load(); n < tt.asked || n > tt.asked+1 { // at 100 ms both timers are due
					t.Errorf("asked %d times, want %d", n, tt.asked)
				}
			})
		})
	}
}

type busyVerifier struct {
	n     atomic.Int32
	until int32
}

func (v *busyVerifier) Verify(_ context.Context, _ string, _ txnstate.Producer, ps []txnstate.Participant, _ fence.Mode) ([]txnstate.Code, error) {
	if v.n.Add(1) < v.until {
		return slices.Repeat([]txnstate.Code{txnstate.CodeConcurrentTransactions}, len(ps)), nil
	}
	return make([]txnstate.Code, len(ps)), nil
}

// A repeated batch is answered like the first, but not before the first is
// durable: its success would be taken back by a loss of power.
func TestDuplicateWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, nil)
		h.addTopic("a", 1)
		l, _ := h.log("a", 0)
		l.sync = make(chan struct{})
		p := producer{5, 0}
		answers := make(chan *kmsg.ProduceResponse, 2)
		send := func() {
			answers <- do[*kmsg.ProduceResponse](t, h, produceRequest(9, "", "a", 0, batch(p, 0, 2, false)))
		}
		go send()
		synctest.Wait()
		go send()
		synctest.Wait()
		if len(answers) > 0 {
			t.Error("an answer before the batch is durable")
		}
		close(l.sync)
		stamps := map[int64]bool{}
		for range 2 {
			part := (<-answers).Topics[0].Partitions[0]
			if part.ErrorCode != 0 || part.BaseOffset != 0 {
				t.Errorf("%+v", part)
			}
			stamps[part.LogAppendTime] = true
		}
		if !stamps[-1] || !stamps[1] {
			t.Errorf("times %v: the repeat tells that of the first", stamps)
		}
		if l.end != 2 {
			t.Errorf("%d records: appended twice", l.end)
		}
		// Where the first attempt failed, so does the repeat.
		l.sync = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		resp, err := h.Handle(ctx, produceRequest(9, "", "a", 0, batch(p, 0, 2, false)), "User:a")
		if err != nil || resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode != 7 {
			t.Errorf("%+v, %v", resp, err)
		}
		close(l.sync)
	})
}

// Partitions of one request share a sync: none waits for another's.
func TestPartitionsOfARequestAreAppendedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, nil)
		h.addTopic("a", 8)
		req := produceRequest(9, "", "a", 0, batch(producer{-1, -1}, -1, 1, false))
		gate := make(chan struct{})
		for i := range int32(8) {
			if i > 0 {
				addRecords(req, "a", i, batch(producer{-1, -1}, -1, 1, false))
			}
			l, _ := h.log("a", i)
			l.sync = gate
		}
		done := make(chan []int16)
		go func() { done <- h.produce(t, req) }()
		synctest.Wait()
		for i := range int32(8) {
			l, _ := h.log("a", i)
			l.mu.Lock()
			if l.end != 1 {
				t.Errorf("partition %d waits for another", i)
			}
			l.mu.Unlock()
		}
		close(gate)
		wantCodes(t, "produce", <-done, 0, 0, 0, 0, 0, 0, 0, 0)
	})
}
