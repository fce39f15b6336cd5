package wire_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Failures of other systems, as requests meet them: the table at the end of
// DESIGN.md says which test stands for which.

// overtaking is a group coordinator where, just after a commit's member was
// looked at, the group rebalances and the partition's next owner asks for its
// position.
type overtaking struct {
	*host
	then func()
}

func (o overtaking) View(group string) offsets.GroupView {
	v := o.host.View(group)
	o.then()
	return v
}

// F30, F31: a commit whose member was found good is on its way, and who asks for
// a stable position is told to wait for it. Otherwise the partition's next owner
// would begin at the position before, and what the commit covers be processed
// twice.
func TestF30_F31_ACommitThatPassedItsCheckIsNotOverlooked(t *testing.T) {
	var h *host
	var seen []txnstate.Code
	h = newHost(t, func(w *wire.Config, _ *txnstate.Config) {
		w.Groups = overtaking{w.Groups.(*host), func() {
			for _, stable := range []bool{true, false} {
				got, err := h.offsets.Fetch("g", []offsets.TopicPartition{{Topic: "a"}, {Topic: "b"}}, stable)
				if err != nil {
					t.Error(err)
				}
				for _, f := range got {
					seen = append(seen, f.Code)
				}
			}
		}}
	})
	h.addTopic("a", 1)
	p := h.initTxn(t, "tx")
	want := []txnstate.Code{txnstate.CodeUnstableOffsetCommit, 0, 0, 0}
	for _, commit := range []func() []int16{
		func() []int16 { return h.plainCommit(t, plainOffsets(8, "g", "a")) },
		func() []int16 { return h.txnCommit(t, txnOffsets(5, "tx", "g", p, "a")) },
	} {
		seen = nil
		wantCodes(t, "commit", commit(), 0)
		if len(seen) != 4 || seen[0] != want[0] || seen[1] != want[1] || seen[2] != want[2] || seen[3] != want[3] {
			t.Errorf("while it was on its way: %v, want %v", seen, want)
		}
	}
	end := endRequest(5, "tx", p, true)
	if _, err := h.Handle(t.Context(), end, "User:test"); err != nil {
		t.Fatal(err)
	}
	h.completed(t, "tx") // it may be answered before
	if h.offsets.HasPending("g") {
		t.Error("an announcement was left behind")
	}
}

// settled asks again for as long as the answer is CONCURRENT_TRANSACTIONS: a
// completion is under way.
func settled(t testing.TB, ask func() int16) int16 {
	t.Helper()
	for range 10_000 {
		if c := ask(); c != int16(txnstate.CodeConcurrentTransactions) {
			return c
		}
		time.Sleep(time.Millisecond) // as a client does
	}
	t.Fatal("a transaction does not get done")
	return 0
}

func (h *host) init(t testing.TB, version int16, id string, p producer) (int16, producer) {
	t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = version, &id, 60000, p.id, p.epoch
	r := do[*kmsg.InitProducerIDResponse](t, h, req)
	return r.ErrorCode, producer{r.ProducerID, r.ProducerEpoch}
}

func (h *host) add(t testing.TB, version int16, id string, p producer, partitions ...int32) int16 {
	t.Helper()
	return settled(t, func() int16 {
		return addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, addRequest(version, id, p, "a", partitions...)))[0]
	})
}

func (h *host) addOffsets(t testing.TB, version int16, id string, p producer) int16 {
	t.Helper()
	return settled(t, func() int16 {
		return do[*kmsg.AddOffsetsToTxnResponse](t, h, addOffsetsRequest(version, id, p, "g")).ErrorCode
	})
}

func (h *host) end(t testing.TB, version int16, id string, p producer, commit bool) (int16, producer) {
	t.Helper()
	var next producer
	return settled(t, func() int16 {
		r := do[*kmsg.EndTxnResponse](t, h, endRequest(version, id, p, commit))
		next = producer{r.ProducerID, r.ProducerEpoch}
		return r.ErrorCode
	}), next
}

// timeOut is the reaper's, when the transaction has outlived its timeout.
func (h *host) timeOut(t testing.TB, id string) {
	t.Helper()
	if err := h.coordinator.TimeOut(t.Context(), id, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	h.completed(t, id)
}

// completed returns when nothing of a decided transaction is left to be done.
func (h *host) completed(t testing.TB, id string) {
	t.Helper()
	settled(t, func() int16 {
		if rec, _ := h.coordinator.Describe(t.Context(), id); rec.State.Decided() {
			return int16(txnstate.CodeConcurrentTransactions)
		}
		return 0
	})
}

// oldEpoch is the code for a fenced producer, by the first version that knows
// PRODUCER_FENCED.
func oldEpoch(version, knows int16) int16 {
	if version < knows {
		return int16(txnstate.CodeInvalidProducerEpoch)
	}
	return int16(txnstate.CodeProducerFenced)
}

func wantCode(t testing.TB, what string, got, want int16) {
	t.Helper()
	wantCodes(t, what, []int16{got}, want)
}

// F07: partitions that were added and never written to are told like the others,
// and nothing moves there; so is a transaction in which nothing was written.
func TestF07_PartitionsWithoutDataAreToldToo(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 2)
	p := h.initTxn(t, "tx")
	stable := func(i int32) (end, stable int64) {
		l, _ := h.log("a", i)
		l.With(func(fp *fence.Partition) { end, stable = l.end, fp.LastStable(l.end) })
		return end, stable
	}
	for round := range int32(3) {
		wantCode(t, "add", h.add(t, 3, "tx", p, 0, 1), 0)
		if round < 2 {
			wantCodes(t, "produce", h.produce(t, produceRequest(11, "tx", "a", 0, batch(p, round, 1, true))), 0)
		}
		if end, lso := stable(1); lso != end {
			t.Errorf("a partition without data is held at %d of %d", lso, end)
		}
		code, _ := h.end(t, 4, "tx", p, round%2 == 0)
		wantCode(t, "end", code, 0)
		wantCode(t, "the next one needs no Init", h.add(t, 3, "tx", p, 0), 0)
		code, _ = h.end(t, 4, "tx", p, true)
		wantCode(t, "nothing was written", code, 0)
	}
	wantCode(t, "done", h.add(t, 3, "tx", p, 0), 0)
	for i, want := range []int64{2 + 6, 3} {
		if end, lso := stable(int32(i)); end != want || lso != want {
			t.Errorf("partition %d ends at %d and is stable to %d, want %d", i, end, lso, want)
		}
	}
}

// F16, KAFKA-9600: an epoch from the future is refused like one of the past, in
// the code that the version knows, and changes nothing.
func TestF16_NoOtherEpochIsTaken(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 2)
	var p producer
	for range 4 {
		p = h.initTxn(t, "tx")
	}
	wantCode(t, "add", h.add(t, 3, "tx", p, 0), 0)
	before, _ := h.coordinator.Describe(t.Context(), "tx")
	for _, epoch := range []int16{p.epoch + 1, p.epoch - 1} {
		other := producer{p.id, epoch}
		for v := int16(0); v <= 5; v++ {
			for _, commit := range []bool{true, false} {
				code, _ := h.end(t, v, "tx", other, commit)
				wantCode(t, fmt.Sprintf("EndTxn v%d at epoch %d", v, epoch), code, oldEpoch(v, 2))
			}
			wantCode(t, fmt.Sprintf("AddPartitions v%d", v), h.add(t, v, "tx", other, 1), oldEpoch(v, 2))
			if v <= 4 {
				wantCode(t, fmt.Sprintf("AddOffsets v%d", v), h.addOffsets(t, v, "tx", other), oldEpoch(v, 2))
			}
		}
	}
	code, _ := h.end(t, 4, "tx", producer{p.id + 1, p.epoch}, true)
	wantCodes(t, "another producer id", []int16{code, h.add(t, 3, "tx", producer{p.id + 1, p.epoch}, 1), h.add(t, 3, "nobody", p, 1)}, 49, 49, 49)
	if rec, _ := h.coordinator.Describe(t.Context(), "tx"); !rec.Equal(before) {
		t.Errorf("it is %v, and was %v", rec, before)
	}
	// (InitProducerId with an open transaction does not look at the epoch, as Kafka's.)
	h.initTxn(t, "idle")
	idle := h.initTxn(t, "idle")
	for v := int16(3); v <= 5; v++ {
		code, _ := h.init(t, v, "idle", producer{idle.id, idle.epoch + 1})
		wantCode(t, fmt.Sprintf("InitProducerId v%d", v), code, oldEpoch(v, 4))
	}
	code, _ = h.end(t, 4, "tx", p, true)
	wantCode(t, "its own", code, 0)
}

// F17, KAFKA-6119: after a timeout the epoch is another, at the partitions too.
// What its producer is told depends on the version and, as in Kafka, on whether
// the server bumps epochs for every transaction.
func TestF17_AProducerThatWasTimedOutWritesNoMore(t *testing.T) {
	for _, server := range []txnstate.TransactionVersion{txnstate.ServerTV0, txnstate.TV2} {
		for v := int16(0); v <= 5; v++ {
			t.Run(fmt.Sprintf("server %d, EndTxn v%d", server, v), func(t *testing.T) {
				h := newHost(t, func(_ *wire.Config, c *txnstate.Config) { c.TransactionVersion = server })
				h.addTopic("a", 1)
				p := h.initTxn(t, "tx")
				wantCode(t, "add", h.add(t, 3, "tx", p, 0), 0)
				wantCodes(t, "produce", h.produce(t, produceRequest(11, "tx", "a", 0, batch(p, 0, 1, true))), 0)
				h.timeOut(t, "tx")
				h.timeOut(t, "tx") // once
				l, _ := h.log("a", 0)
				l.With(func(fp *fence.Partition) {
					st, _ := fp.Producer(p.id)
					if st.Open || st.Producer.Epoch != p.epoch+1 || fp.LastStable(l.end) != l.end || l.end != 2 {
						t.Errorf("the partition has %+v and ends at %d", st, l.end)
					}
				})
				for _, pv := range []int16{9, 11, 12} { // F23: a late batch does not hold the partition
					wantCodes(t, "data", h.produce(t, produceRequest(pv, "tx", "a", 0, batch(p, 1, 1, true))), 47)
				}
				if l.end != 2 {
					t.Error("a late batch was written")
				}
				wantCodes(t, "add", []int16{h.add(t, 1, "tx", p, 0), h.add(t, 3, "tx", p, 0)}, 47, 90)
				wantCodes(t, "offsets", h.txnCommit(t, txnOffsets(3, "tx", "g", p, "a")), 47)
				code, _ := h.end(t, v, "tx", p, true)
				want := oldEpoch(v, 2)
				if v == 5 {
					want = 48
				}
				wantCode(t, "commit", code, want)
				code, next := h.end(t, v, "tx", p, false)
				if v == 5 {
					// That rule looks at the epoch alone: its abort is what was decided,
					// and nobody else was given the epoch.
					want = 0
					if next != (producer{p.id, p.epoch + 1}) {
						t.Errorf("abort gives %v", next)
					}
				}
				wantCode(t, "abort", code, want)
				if server != txnstate.TV2 {
					for iv := int16(3); iv <= 5; iv++ {
						code, _ = h.init(t, iv, "tx", p)
						wantCode(t, "Init with what it had", code, oldEpoch(iv, 4))
					}
				}
				if code, next = h.init(t, 5, "tx", producer{-1, -1}); code != 0 || next != (producer{p.id, p.epoch + 2}) {
					t.Errorf("Init: %d, %v", code, next)
				}
				if h.offsets.HasPending("g") {
					t.Error("offsets are staged")
				}
			})
		}
	}
}

// F23: one question about many transactions is answered for each, and opens none.
func TestF23_AQuestionAboutManyIsAnsweredForEach(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 2)
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = 5
	var want []int16
	for i := range 100 {
		id := fmt.Sprint("tx", i)
		p, code := h.initTxn(t, id), int16(0)
		if i != 10 {
			wantCode(t, "add", h.add(t, 3, id, p, 0), 0)
		}
		switch i {
		case 10:
			code = 120
		case 20:
			p.epoch++
			code = 90
		case 30:
			id, code = "nobody", 49
		}
		tx := addRequest(5, id, p, "a", 0).Transactions[0]
		tx.VerifyOnly = true
		req.Transactions = append(req.Transactions, tx)
		want = append(want, code)
	}
	wantCodes(t, "verify", addCodes(do[*kmsg.AddPartitionsToTxnResponse](t, h, req)), want...)
	if rec, _ := h.coordinator.Describe(t.Context(), "tx10"); rec.State != txnstate.Empty {
		t.Errorf("the question opened %v", rec)
	}
}

// F26, KAFKA-5132: bounds of the transaction timeout.
func TestF26_TimeoutsHaveBounds(t *testing.T) {
	h := newHost(t, nil)
	id := "tx"
	for _, tt := range []struct {
		id   *string
		ms   int32
		want int16
	}{{&id, 0, 50}, {&id, -1, 50}, {&id, 900_001, 50}, {&id, 900_000, 0}, {&id, 1, 0}, {nil, 0, 0}, {nil, -1, 0}, {nil, 900_001, 0}} {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 4, tt.id, tt.ms
		wantCode(t, fmt.Sprintf("%d ms", tt.ms), do[*kmsg.InitProducerIDResponse](t, h, req).ErrorCode, tt.want)
	}
	if rec, _ := h.coordinator.Describe(t.Context(), id); rec.TimeoutMs != 1 {
		t.Errorf("the latest one counts: %v", rec.TimeoutMs)
	}
}

// position is what a stable fetch and another say of a/0.
func (h *host) position(t testing.TB) (stable, committed string) {
	t.Helper()
	short := func(s []string) string { return strings.Join(s, "; ") }
	return short(fetched(do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(7, "g", true, "a")))),
		short(fetched(do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(7, "g", false, "a"))))
}

func (h *host) expect(t testing.TB, when, stable, committed string) {
	t.Helper()
	if s, c := h.position(t); s != stable || c != committed {
		t.Errorf("%s: stable %q, committed %q, want %q, %q", when, s, c, stable, committed)
	}
}

func stageAt(version int16, p producer, offset int64) *kmsg.TxnOffsetCommitRequest {
	req := txnOffsets(version, "tx", "g", p, "a")
	req.Topics[0].Partitions[0].Offset = offset
	return req
}

const unstable = "a/0 -1 e-1 88"

// F28, KAFKA-5160: transactions that do nothing but stage offsets.
func TestF28_OffsetsBelongToTheirTransaction(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	h.addTopic("other", 1)
	p := h.initTxn(t, "tx")
	at := func(n int) string { return fmt.Sprintf("a/0 %d e9 0", n) }

	wantCode(t, "of a group that does not exist yet", h.addOffsets(t, 3, "tx", p), 0)
	for _, n := range []int64{5, 5, 7} {
		wantCodes(t, "stage", h.txnCommit(t, stageAt(3, p, n)), 0)
	}
	h.expect(t, "staged", unstable, "a/0 -1 e-1 0")
	code, _ := h.end(t, 4, "tx", p, true)
	wantCode(t, "commit", code, 0)
	h.expect(t, "committed", at(7), at(7))

	wantCode(t, "a transaction without offsets", h.add(t, 3, "tx", p, 0), 0)
	code, _ = h.end(t, 4, "tx", p, true)
	wantCode(t, "commit", code, 0)
	h.expect(t, "nothing comes back", at(7), at(7))

	wantCode(t, "add", h.addOffsets(t, 3, "tx", p), 0)
	wantCodes(t, "stage", h.txnCommit(t, stageAt(3, p, 9)), 0)
	code, _ = h.end(t, 4, "tx", p, false)
	wantCode(t, "abort", code, 0)
	h.expect(t, "aborted", at(7), at(7))

	wantCode(t, "add", h.addOffsets(t, 3, "tx", p), 0)
	wantCodes(t, "stage", h.txnCommit(t, stageAt(3, p, 9)), 0)
	h.timeOut(t, "tx")
	h.expect(t, "timed out", at(7), at(7))
	wantCodes(t, "an old epoch", h.txnCommit(t, stageAt(3, p, 11)), 47)

	p = h.initTxn(t, "tx")
	wantCodes(t, "not in the transaction", []int16{h.txnCommit(t, stageAt(3, p, 11))[0], h.txnCommit(t, stageAt(4, p, 11))[0]}, 48, 120)
	h.expect(t, "refused", at(7), at(7))
	req := stageAt(5, p, 12) // the protocol that needs no AddOffsetsToTxn
	bad := req.Topics[0].Partitions[0]
	bad.Partition = 99
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, bad)
	wantCodes(t, "one partition is not known, the other is staged", h.txnCommit(t, req), 0, 3)
	h.expect(t, "staged", unstable, at(7))
	code, _ = h.end(t, 5, "tx", p, true)
	wantCode(t, "commit", code, 0)
	h.expect(t, "committed", at(12), at(12))
	if h.offsets.HasPending("g") {
		t.Error("something survived")
	}
}

// F30: a position is unstable for as long as somebody's transaction is pending on
// it, and no longer, whatever becomes of the producer.
func TestF30_APositionIsUnstableWhileATransactionIs(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	h.addTopic("b", 1)
	wantCodes(t, "commit", h.plainCommit(t, plainOffsets(8, "g", "a", "b")), 0, 0)
	const was = "a/0 3 e8 0"
	p := h.initTxn(t, "tx")
	wantCodes(t, "stage", h.txnCommit(t, stageAt(5, p, 9)), 0)
	h.expect(t, "staged", unstable, was)
	if got := fetched(do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(7, "g", true, "b"))); got[0] != "b/0 3 e8 0" {
		t.Errorf("another partition: %v", got)
	}
	if code, _ := h.init(t, 5, "tx", producer{-1, -1}); code != 51 {
		t.Errorf("the producer was killed, and comes again: %d", code)
	}
	wantCode(t, "Init", settled(t, func() int16 { c, _ := h.init(t, 5, "tx", producer{-1, -1}); return c }), 0)
	h.expect(t, "taken over", was, was)

	p = h.initTxn(t, "tx")
	wantCodes(t, "stage", h.txnCommit(t, stageAt(5, p, 9)), 0)
	h.timeOut(t, "tx") // the producer never comes back
	h.expect(t, "timed out", was, was)

	p = h.initTxn(t, "tx")
	q := h.initTxn(t, "second")
	wantCodes(t, "stage", h.txnCommit(t, stageAt(5, p, 9)), 0)
	second := txnOffsets(5, "second", "g", q, "a")
	wantCodes(t, "stage", h.txnCommit(t, second), 0)
	code, _ := h.end(t, 5, "tx", p, true)
	wantCode(t, "commit", code, 0)
	h.expect(t, "one of two has ended", unstable, "a/0 9 e9 0")
	code, _ = h.end(t, 5, "second", q, false)
	wantCode(t, "abort", code, 0)
	h.expect(t, "both have", "a/0 9 e9 0", "a/0 9 e9 0")
}

// F34, KAFKA-18019: an id that has expired is unknown, and its producer id is
// nobody's again.
func TestF34_AnExpiredIDIsUnknown(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	expire := func() {
		if err := h.coordinator.Expire(context.Background(), "tx", time.Now().Add(8*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	var p producer
	for range 4 {
		p = h.initTxn(t, "tx")
	}
	expire()
	for v := int16(0); v <= 5; v++ {
		code, _ := h.end(t, v, "tx", p, true)
		wantCodes(t, fmt.Sprintf("v%d", v), []int16{code, h.add(t, v, "tx", p, 0)}, 49, 49)
		if v <= 4 {
			wantCode(t, fmt.Sprintf("AddOffsets v%d", v), h.addOffsets(t, v, "tx", p), 49)
		}
	}
	q := h.initTxn(t, "tx") // a new instance
	if q.id == p.id || q.epoch != 0 {
		t.Errorf("it got %v, and %v had expired", q, p)
	}
	wantCode(t, "the old one", h.add(t, 3, "tx", p, 0), 49)
	for v := int16(3); v <= 5; v++ {
		code, _ := h.init(t, v, "tx", p)
		wantCode(t, fmt.Sprintf("Init v%d with what it had", v), code, oldEpoch(v, 4))
	}
	expire()
	if code, r := h.init(t, 5, "tx", p); code != 0 || r.epoch != 0 || r.id == p.id || r.id == q.id {
		t.Errorf("without a new instance: %d, %v", code, r)
	}
}

// F23, KIP-890: a decision is taken up anew, and its partition has nothing of it
// yet but a batch that was verified and is on its way. Without a marker of its own
// that would open a transaction which nobody ends.
func TestF23_ADecisionTakenUpAgainKeepsOutWhatWasVerifiedForIt(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	p := h.initTxn(t, "tx")
	wantCode(t, "add", h.add(t, 3, "tx", p, 0), 0)
	wantCodes(t, "produce", h.produce(t, produceRequest(11, "tx", "a", 0, batch(p, 0, 1, true))), 0)
	code, _ := h.end(t, 4, "tx", p, true)
	wantCode(t, "the transaction before", code, 0)

	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Topics: h, Leader: h, Offsets: h.offsets, Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	d := delivery(p, true, txnstate.Partition("a", 0))
	d.TransactionVersion, d.Again = txnstate.TV1, true
	l, _ := h.log("a", 0)
	late := fence.Batch{Producer: txnstate.Producer{ID: p.id, Epoch: p.epoch}, FirstSequence: 1, Records: 1, Transactional: true}
	apply := func(when string, end int64) {
		t.Helper()
		if r := sink.WriteMarkers(t.Context(), 0, []markers.Delivery{d}); r[0] != markers.Applied || l.end != end {
			t.Errorf("%s: %s, and the log ends at %d, want %d", when, r[0], l.end, end)
		}
	}
	apply("nothing is on its way", 2)
	now := time.Now().UnixMilli()
	var g fence.Guard
	l.With(func(fp *fence.Partition) { g, _, err = fp.Verify(late, fence.ModeDefault, now) })
	if err != nil {
		t.Fatal(err)
	}
	apply("something is", 3)
	l.With(func(fp *fence.Partition) { _, err = fp.Reserve(late, g, now) })
	if txnstate.CodeOf(err) != txnstate.CodeInvalidTxnState {
		t.Errorf("the late batch: %v", err)
	}
	apply("nothing any more", 3)
}
