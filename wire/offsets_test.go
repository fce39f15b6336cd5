package wire_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// txnOffsets is a TxnOffsetCommit of offset 5 for partitions 0 of topics.
func txnOffsets(version int16, id, group string, p producer, topics ...string) *kmsg.TxnOffsetCommitRequest {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version, req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = version, id, group, p.id, p.epoch
	for _, name := range topics {
		rt := kmsg.NewTxnOffsetCommitRequestTopic()
		rt.Topic = name
		copy(rt.TopicID[:], name)
		rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		rp.Offset, rp.LeaderEpoch = 5, 9
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}
	return req
}

func (h *host) txnCommit(t testing.TB, req *kmsg.TxnOffsetCommitRequest) []int16 {
	t.Helper()
	var out []int16
	for _, topic := range do[*kmsg.TxnOffsetCommitResponse](t, h, req).Topics {
		for _, p := range topic.Partitions {
			out = append(out, p.ErrorCode)
		}
	}
	return out
}

func plainOffsets(version int16, group string, topics ...string) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group = version, group
	for _, name := range topics {
		rt := kmsg.NewOffsetCommitRequestTopic()
		rt.Topic = name
		copy(rt.TopicID[:], name)
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Offset, rp.LeaderEpoch = 3, 8
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}
	return req
}

func (h *host) plainCommit(t testing.TB, req *kmsg.OffsetCommitRequest) []int16 {
	t.Helper()
	var out []int16
	for _, topic := range do[*kmsg.OffsetCommitResponse](t, h, req).Topics {
		for _, p := range topic.Partitions {
			out = append(out, p.ErrorCode)
		}
	}
	return out
}

// fetched are offsets and codes of an answer to OffsetFetch, whatever its
// version: "topic/partition offset epoch code".
func fetched(r *kmsg.OffsetFetchResponse) []string {
	var out []string
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			out = append(out, fmt.Sprintf("%s/%d %d e%d %d", t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.ErrorCode))
		}
	}
	for _, g := range r.Groups {
		for _, t := range g.Topics {
			name := t.Topic
			if r.Version >= 10 {
				name = strings.TrimRight(string(t.TopicID[:]), "\x00")
			}
			for _, p := range t.Partitions {
				out = append(out, fmt.Sprintf("%s/%d %d e%d %d", name, p.Partition, p.Offset, p.LeaderEpoch, p.ErrorCode))
			}
		}
	}
	return out
}

func fetchRequest(version int16, group string, stable bool, topics ...string) *kmsg.OffsetFetchRequest {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.RequireStable = version, stable
	if version < 8 {
		req.Group = group
		for _, name := range topics {
			rt := kmsg.NewOffsetFetchRequestTopic()
			rt.Topic, rt.Partitions = name, []int32{0}
			req.Topics = append(req.Topics, rt)
		}
		return req
	}
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	for _, name := range topics {
		rt := kmsg.NewOffsetFetchRequestGroupTopic()
		rt.Topic, rt.Partitions = name, []int32{0}
		copy(rt.TopicID[:], name)
		g.Topics = append(g.Topics, rt)
	}
	req.Groups = append(req.Groups, g)
	return req
}

// §7.1, row by row and in that order.
func TestTxnOffsetCommitOrder(t *testing.T) {
	for v := int16(0); v <= 6; v++ {
		t.Run(fmt.Sprintf("v%d", v), func(t *testing.T) {
			h := newHost(t, nil)
			for _, name := range []string{"a", "b", "closed"} {
				h.addTopic(name, 1)
			}
			h.denyAll(t, wire.TransactionalIDResource, "not-mine", wire.OpWrite)
			h.denyAll(t, wire.GroupResource, "theirs", wire.OpRead)
			h.denyAll(t, wire.TopicResource, "closed", wire.OpWrite) // which denies READ too
			h.initTxn(t, "tx")
			p := h.initTxn(t, "tx")
			unknown := int16(3)
			if v >= 6 {
				unknown = 100
			}
			commit := func(id, group string, p producer, topics ...string) []int16 {
				return h.txnCommit(t, txnOffsets(v, id, group, p, topics...))
			}
			wantCodes(t, "1: id before group", commit("not-mine", "theirs", p, "a", "closed", "missing"), 53, 53, 53)
			wantCodes(t, "1: group", commit("tx", "theirs", p, "a", "closed", "missing"), 30, 30, 30)
			wantCodes(t, "4: nothing left", commit("tx", "g", producer{77, 7}, "closed", "missing"), 29, unknown)
			wantCodes(t, "5: group without a name", commit("tx", "", p, "a", "closed", "missing"), 24, 29, unknown)
			if rec, _ := h.coordinator.Describe(t.Context(), "tx"); rec.State != txnstate.Empty {
				t.Fatalf("before row 6 something was added: %v", rec)
			}
			wantCodes(t, "6: another's producer id", commit("tx", "g", producer{p.id + 50, 0}, "a", "closed"), 49, 29)
			wantCodes(t, "6: no producer id", commit("tx", "g", producer{-1, -1}, "a"), 49)
			// F33: 47 in all versions.
			wantCodes(t, "6: a stale epoch", commit("tx", "g", producer{p.id, 0}, "a"), 47)
			req := txnOffsets(v, "tx", "g", p, "a", "b", "closed", "missing")
			if v < 5 {
				notIn := int16(48)
				if v == 4 {
					notIn = 120
				}
				wantCodes(t, "6: not in the transaction", h.txnCommit(t, req), notIn, notIn, 29, unknown)
				do[*kmsg.AddOffsetsToTxnResponse](t, h, addOffsetsRequest(3, "tx", p, "g"))
			}
			if v >= 3 {
				req.Generation = 4
				want := int16(22)
				if v >= 6 {
					want = 69
				}
				wantCodes(t, "7: generation of a missing group", h.txnCommit(t, req), want, want, 29, unknown)
				if rec, _ := h.coordinator.Describe(t.Context(), "tx"); !rec.Has(txnstate.Group("g")) {
					t.Error("row 6 comes before row 7: the group is to be in the transaction")
				}
				if g := h.View("g"); g.State != offsets.GroupMissing {
					t.Error("a refused commit made a group")
				}
				req.Generation = -1
			}
			long := strings.Repeat("m", 4097)
			req.Topics[1].Partitions[0].Metadata = &long
			wantCodes(t, "8: metadata", h.txnCommit(t, req), 0, 12, 29, unknown)
			if g := h.View("g"); g.State != offsets.GroupEmpty {
				t.Errorf("an accepted commit makes a simple group, and it is %s", g.State)
			}
			// A transaction of exactly this producer is open there: the id of the
			// request is not looked at.
			wantCodes(t, "6: open, any id", commit("nobody", "g", p, "a"), 0)
			if r := do[*kmsg.EndTxnResponse](t, h, endRequest(5, "tx", p, true)); r.ErrorCode != 0 {
				t.Fatalf("EndTxn: %d", r.ErrorCode)
			}
			epoch := 9
			if v < 2 {
				epoch = -1
			}
			got := fetched(do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(7, "g", true, "a", "b")))
			if want := []string{fmt.Sprintf("a/0 5 e%d 0", epoch), "b/0 -1 e-1 0"}; !slices.Equal(got, want) {
				t.Errorf("committed %v, want %v", got, want)
			}
		})
	}
}

// asked is a Verifier that says what it is told to.
type asked struct {
	code txnstate.Code
	err  error
}

func (a asked) Verify(_ context.Context, _ string, _ txnstate.Producer, ps []txnstate.Participant, _ fence.Mode) ([]txnstate.Code, error) {
	return slices.Repeat([]txnstate.Code{a.code}, len(ps)), a.err
}

// §7.1's mapping, and that CONCURRENT_TRANSACTIONS goes to the client at once.
func TestTxnOffsetCommitVerification(t *testing.T) {
	for _, tt := range []struct {
		code txnstate.Code
		want int16 // from v5 on
		old  int16 // v0
	}{
		{13, 14, 15}, {14, 14, 15}, {15, 15, 15}, {16, 16, 16}, {51, 51, 51}, {49, 49, 49}, {90, 47, 47}, {47, 47, 47},
		{48, 48, 48}, {120, 120, 48}, {3, 15, 15}, {7, 15, 15}, {19, 15, 15}, {6, 16, 16}, {56, 16, 16}, {10, -1, -1}, {31, 48, 48}, {42, 42, 42},
	} {
		h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Verifier = asked{code: tt.code} })
		h.addTopic("a", 1)
		wantCodes(t, tt.code.String(), []int16{
			h.txnCommit(t, txnOffsets(5, "tx", "g", producer{1, 1}, "a"))[0],
			h.txnCommit(t, txnOffsets(0, "tx", "g", producer{1, 1}, "a"))[0],
		}, tt.want, tt.old)
	}
}

// §7.2 beside it.
func TestOffsetCommitGates(t *testing.T) {
	h := newHost(t, nil)
	for _, name := range []string{"a", "closed"} {
		h.addTopic(name, 1)
	}
	h.denyAll(t, wire.GroupResource, "theirs", wire.OpRead)
	h.denyAll(t, wire.TopicResource, "closed", wire.OpRead)
	for v := int16(2); v <= 10; v++ {
		group := fmt.Sprintf("g%d", v)
		unknown, missing := int16(3), int16(22)
		if v >= 9 {
			missing = 69
		}
		if v >= 10 {
			unknown = 100
		}
		wantCodes(t, "group", h.plainCommit(t, plainOffsets(v, "theirs", "a", "closed", "missing")), 30, 30, 30)
		req := plainOffsets(v, group, "a", "closed", "missing")
		req.Generation = 1
		wantCodes(t, fmt.Sprintf("v%d: generation of a missing group", v), h.plainCommit(t, req), missing, 29, unknown)
		req.Generation = -1
		wantCodes(t, "accepted", h.plainCommit(t, req), 0, 29, unknown)
		if h.View(group).State != offsets.GroupEmpty {
			t.Error("no simple group was made")
		}
		member, generation := h.join(group, "")
		wantCodes(t, "no member", h.plainCommit(t, req), 25, 29, unknown)
		req.MemberID, req.Generation = member, generation
		wantCodes(t, "the member", h.plainCommit(t, req), 0, 29, unknown)
	}
	wantCodes(t, "a group without a name is a group", h.plainCommit(t, plainOffsets(8, "", "a")), 0)
}

// The shapes of OffsetFetch, and what stable means.
func TestOffsetFetch(t *testing.T) {
	h := newHost(t, nil)
	for _, name := range []string{"a", "b", "hidden"} {
		h.addTopic(name, 1)
	}
	wantCodes(t, "commit", h.plainCommit(t, plainOffsets(8, "g", "a", "b", "hidden")), 0, 0, 0)
	h.denyAll(t, wire.TopicResource, "hidden", wire.OpDescribe)
	h.denyAll(t, wire.GroupResource, "theirs", wire.OpDescribe)
	p := h.initTxn(t, "tx")
	wantCodes(t, "stage", h.txnCommit(t, txnOffsets(5, "tx", "g", p, "b")), 0)
	for v := int16(1); v <= 10; v++ {
		fetch := func(group string, stable bool, topics ...string) *kmsg.OffsetFetchResponse {
			return do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(v, group, stable, topics...))
		}
		a, b := "a/0 3 e8 0", "b/0 3 e8 0"
		missing, unstable := "missing/0 -1 e-1 0", b
		if v >= 7 {
			unstable = "b/0 -1 e-1 88"
		}
		if v >= 10 {
			missing = "missing/0 -1 e-1 100"
		}
		got := fetched(fetch("g", true, "b", "hidden", "a", "missing"))
		if want := []string{unstable, "hidden/0 -1 e-1 29", a, missing}; !slices.Equal(got, want) {
			t.Errorf("v%d, some: %v, want %v", v, got, want)
		}
		if got := fetched(fetch("g", false, "b")); !slices.Equal(got, []string{b}) {
			t.Errorf("v%d, not stable: %v", v, got)
		}
		if v >= 2 {
			if got := fetched(fetch("g", false)); !slices.Equal(got, []string{a, b}) {
				t.Errorf("v%d, all: %v", v, got)
			}
			none := fetchRequest(v, "g", false)
			if none.Topics = []kmsg.OffsetFetchRequestTopic{}; v >= 8 {
				none.Groups[0].Topics = []kmsg.OffsetFetchRequestGroupTopic{}
			}
			if got := fetched(do[*kmsg.OffsetFetchResponse](t, h, none)); len(got) != 0 {
				t.Errorf("v%d, none: %v", v, got)
			}
		}
		if got := fetched(fetch("nobody", true, "a")); !slices.Equal(got, []string{"a/0 -1 e-1 0"}) {
			t.Errorf("v%d, unknown group: %v", v, got)
		}
		refused := fetch("theirs", false, "a")
		switch {
		case v < 2:
			if got := fetched(refused); !slices.Equal(got, []string{"a/0 -1 e-1 30"}) {
				t.Errorf("v%d, not allowed: %v", v, got)
			}
		case v < 8:
			if refused.ErrorCode != 30 || len(refused.Topics) != 0 {
				t.Errorf("v%d, not allowed: %+v", v, refused)
			}
		case refused.Groups[0].ErrorCode != 30 || len(refused.Groups[0].Topics) != 0:
			t.Errorf("v%d, not allowed: %+v", v, refused)
		}
	}
}

// An offsets partition that is not served is no empty answer: a consumer would
// start over.
func TestOffsetsOfAnotherBroker(t *testing.T) {
	h := newHost(t, nil)
	h.addTopic("a", 1)
	if err := h.offsets.Unload(t.Context(), txnstate.OffsetsPartition("g")); err != nil {
		t.Fatal(err)
	}
	wantCodes(t, "commits", append(h.plainCommit(t, plainOffsets(8, "g", "a")), h.txnCommit(t, txnOffsets(5, "tx", "g", producer{1, 1}, "a"))...), 16, 16)
	for _, stable := range []bool{false, true} {
		if r := do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(7, "g", stable, "a")); r.ErrorCode != 16 {
			t.Errorf("stable %v: code %d", stable, r.ErrorCode)
		}
	}
	if got := fetched(do[*kmsg.OffsetFetchResponse](t, h, fetchRequest(1, "g", false, "a"))); !slices.Equal(got, []string{"a/0 -1 e-1 16"}) {
		t.Errorf("v1: %v", got)
	}
}

// A Verifier that breaks its contract costs its request, not the process.
func TestVerifierOfTheWrongLength(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Verifier = short{} })
	h.addTopic("a", 1)
	wantCodes(t, "short answer", h.txnCommit(t, txnOffsets(5, "tx", "g", producer{1, 1}, "a")), -1)
	h = newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.Verifier = asked{err: errors.New("boom")} })
	h.addTopic("a", 1)
	wantCodes(t, "an error without a code", h.txnCommit(t, txnOffsets(5, "tx", "g", producer{1, 1}, "a")), 14)
}

type short struct{}

func (short) Verify(context.Context, string, txnstate.Producer, []txnstate.Participant, fence.Mode) ([]txnstate.Code, error) {
	return nil, nil
}
