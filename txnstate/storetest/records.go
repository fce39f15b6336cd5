package storetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

var recordCases = []testCase{
	{
		name:   "every field comes back as it went in",
		clause: "Load is the record of an id",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
				for _, r := range extremes(fmt.Sprintf("extreme-%t", d)) {
					r.Version = mustSwap(t, s, r, d)
					wantRecord(t, s, r)
				}
			}
			if h.Reopen == nil {
				return
			}
			all := extremes("kept")
			for i, r := range all {
				all[i].Version = mustSwap(t, s, r, txnstate.Durable)
			}
			s = h.Reopen(t, s)
			for _, r := range all {
				wantRecord(t, s, r)
			}
		},
	},
	{
		name:   "odd ids are ids like any other",
		clause: "Store keeps one record for each transactional id",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			want := map[string]txnstate.Record{}
			for i, id := range oddIDs() {
				r := sample(id, int64(i))
				r.Version = mustSwap(t, s, r, txnstate.Durability(i%2 == 0))
				want[id] = r
			}
			check := func() {
				t.Helper()
				for _, r := range want {
					wantRecord(t, s, r)
				}
				n := 0
				for slot := range txnstate.Slots {
					for id, rs := range visit(t, s, slot) {
						n += len(rs)
						if _, ok := want[id]; !ok {
							t.Errorf("Slot(%d) gives the id %.60q, which nobody stored", slot, id)
						}
					}
				}
				if n != len(want) {
					t.Errorf("all visits together give %d records, want %d", n, len(want))
				}
			}
			check()
			if h.Reopen != nil {
				for id, r := range want { // what was Later need not be there after reopening
					r.Version = mustSwap(t, s, r, txnstate.Durable)
					want[id] = r
				}
				s = h.Reopen(t, s)
				check()
			}
			for id, r := range want {
				mustDelete(t, s, id, r.Version)
				wantMissing(t, s, id)
				delete(want, id)
				if len(want)%16 == 0 {
					check()
				}
			}
		},
	},
	{
		name:   "a record passed in stays the caller's",
		clause: "A record passed in stays the caller's",
		run: func(t testing.TB, h Harness) {
			for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
				s := h.Open(t)
				r := open("id", 3)
				r.Extra = []byte("extra")
				kept := r.Clone()
				kept.Version = mustSwap(t, s, r, d)
				scribble(r)
				wantRecord(t, s, kept)
			}
		},
	},
	{
		name:   "a record returned is the caller's to change",
		clause: "a record returned is the caller's to change",
		run: func(t testing.TB, h Harness) {
			for _, d := range []txnstate.Durability{txnstate.Durable, txnstate.Later} {
				s := h.Open(t)
				r := open("id", 3)
				r.Extra = []byte("extra")
				r.Version = mustSwap(t, s, r, d)
				scribble(mustLoad(t, s, "id"))
				wantRecord(t, s, r)
				for _, rs := range visit(t, s, txnstate.Slot("id")) {
					scribble(rs[0])
				}
				wantRecord(t, s, r)
			}
		},
	},
	{
		name:   "participants come and go",
		clause: "Swap stores next in place of the version that next.Version names",
		run: func(t testing.TB, h Harness) {
			s := h.Open(t)
			var v txnstate.Version
			for i, n := range []int{0, 1, 300, 2, 0, 5, 4, 3, 40, 1, 0} {
				r := at(open("id", n), v)
				if n == 0 {
					r = at(sample("id", 1), v)
				}
				v = mustSwap(t, s, r, txnstate.Durability(i%2 == 0))
				wantRecord(t, s, at(r, v))
			}
		},
	},
}

// open is a record in an open transaction with n participants.
func open(id string, n int) txnstate.Record {
	r := sample(id, 1)
	r.State = txnstate.Ongoing
	for i := range n {
		r.Participants = append(r.Participants, txnstate.Partition("topic", int32(i)))
	}
	return r
}

// scribble changes all memory that a record refers to.
func scribble(r txnstate.Record) {
	for i := range r.Participants {
		r.Participants[i] = txnstate.Partition("scribbled", 99)
	}
	for i := range r.Extra {
		r.Extra[i] = '?'
	}
}

// extremes are records that Check accepts, with every field at its ends.
func extremes(prefix string) []txnstate.Record {
	var all []txnstate.Record
	add := func(name string, change func(r *txnstate.Record)) {
		r := txnstate.Unknown(prefix + "-" + name)
		r.Producer = txnstate.Producer{ID: 0, Epoch: 0}
		change(&r)
		all = append(all, r)
	}
	add("all small", func(r *txnstate.Record) {})
	add("all zero", func(r *txnstate.Record) {
		r.PrevID, r.LastEpoch, r.StartMs, r.UpdateMs = 0, 0, 0, 0
	})
	for _, state := range txnstate.States() {
		add("small "+state.String(), func(r *txnstate.Record) {
			r.State, r.StartMs = state, 0
		})
		add("large "+state.String(), func(r *txnstate.Record) {
			r.State = state
			r.Producer = txnstate.Producer{ID: math.MaxInt64, Epoch: txnstate.FenceEpoch}
			if state == txnstate.Empty {
				r.Producer.Epoch = txnstate.MaxEpoch
			}
			r.PrevID, r.LastEpoch = math.MaxInt64, math.MaxInt16
			r.TimeoutMs, r.StartMs, r.UpdateMs = math.MaxInt32, math.MaxInt64, math.MaxInt64
			r.ClientVersion, r.TxnSeq = math.MaxInt8, math.MaxUint64
		})
	}
	add("two-phase", func(r *txnstate.Record) { r.TwoPhase, r.TimeoutMs = true, txnstate.NoTimeout })
	add("no timeout", func(r *txnstate.Record) { r.TimeoutMs = txnstate.NoTimeout })
	add("next id", func(r *txnstate.Record) {
		r.State, r.StartMs, r.Producer.Epoch = txnstate.PrepareAbort, 5, txnstate.FenceEpoch
		r.Next = txnstate.Producer{ID: math.MaxInt64, Epoch: 0}
	})
	add("next id is zero", func(r *txnstate.Record) {
		r.State, r.StartMs, r.Producer.ID = txnstate.PrepareCommit, 5, 1
		r.Next = txnstate.Producer{}
	})
	add("times before 1970", func(r *txnstate.Record) { r.StartMs, r.UpdateMs = math.MinInt64, math.MinInt64 })
	add("participants", func(r *txnstate.Record) {
		r.State, r.StartMs = txnstate.Ongoing, 1
		r.Participants = oddParticipants()
	})
	add("many participants", func(r *txnstate.Record) {
		r.State, r.StartMs = txnstate.PrepareCommit, 1
		for i := range int32(2000) {
			r.Participants = append(r.Participants, txnstate.Partition(fmt.Sprintf("topic-%02d", i/100), i))
		}
	})
	for name, extra := range map[string]string{
		"bytes":            "\x00\xff\x80\n\"'{}[],:\\",
		"object":           `{"shareGroups":["g"],"n":1}`,
		"spaced object":    "{ \"a\" : 1 }\n",
		"known names":      `{"pid":1}`,
		"its own name":     `{"extra":"AAAA"}`,
		"its own and more": `{"extra":"AAAA","more":null}`,
		"repeated names":   `{"a":1,"a":2}`,
		"nested":           `{"a":{"b":[1,{"c":"}]"}]}}`,
		"not quite":        `{"a":1`,
		"empty object":     `{}`,
		"long":             strings.Repeat("long ", 10_000),
	} {
		add("extra "+name, func(r *txnstate.Record) { r.Extra = []byte(extra) })
	}
	return all
}

// oddParticipants are of every kind, under names that some format may not like.
func oddParticipants() []txnstate.Participant {
	ps := []txnstate.Participant{
		txnstate.Partition("t", 0), txnstate.Partition("t", math.MaxInt32),
		txnstate.Partition("a.b_c-D", 7), txnstate.Partition(strings.Repeat("x", 249), 1),
		txnstate.Partition(txnstate.OffsetsTopic, 49),
		// A group on a partition that is not the one of its name.
		{Kind: txnstate.KindGroup, Name: "elsewhere", Index: 1000},
		{Kind: 2, Name: "of a later version", Index: 3}, {Kind: 63, Name: "", Index: 0},
		{Kind: txnstate.KindHost, Name: "", Index: 0}, {Kind: txnstate.KindHost, Name: "db", Index: math.MaxInt32},
		{Kind: math.MaxUint8, Name: "db", Index: 1},
	}
	for _, name := range []string{"", "g", "Gruppe ö 組", "\xff\xfe", "a/b\\c", "line\nbreak", "\x00", "\x00hex:00", `"quoted"`} {
		ps = append(ps, txnstate.Group(name), txnstate.Participant{Kind: txnstate.KindHost + 1, Name: name, Index: 2})
	}
	slices.SortFunc(ps, txnstate.Participant.Compare)
	// Groups on one partition are one party.
	return slices.CompactFunc(ps, func(a, b txnstate.Participant) bool { return a.Compare(b) == 0 })
}

// oddIDs are legal transactional ids, among them pairs that are easily taken for
// one another.
func oddIDs() []string {
	ids := []string{
		" ", "a", "A", "a ", " a", "a\x00", "a\n", "a\r\n", "\t",
		".", "..", "/", "../../escaped", "a/b", "a\\b", "/etc/passwd", "C:\\x", "con", "a.tmp", "slot-7.json",
		"%", "%2F", "a%2Fb", "\x00", "\x00a", "\x00hex:", "\x00hex:61", "\x00hex:ff", "hex:ff",
		"\xff", "\xff\xfe", "\xc3", "\xc3\x28", "a\xff", "\xed\xa0\x80", "\ufffd", "\xef\xbf\xbd\xff",
		"é", "e\u0301", "組", "\U0001F600", "\u2028", "\u202e", "\ufeff", "\x7f", "\x1b[31m",
		`"`, `\"`, `\u0061`, `'`, "{}", `{"a":1}`, "null", "true", "0", "-0", "__proto__", "constructor",
		"__consumer_offsets", "__transaction_state", "$", "$ref", "#",
	}
	long := strings.Repeat("long-", 6553) + "12" // 32767 bytes: what a string of the protocol holds
	for _, end := range []string{"", "\xff"} {
		ids = append(ids, long[:len(long)-len(end)]+end, long[:255-len(end)]+end, long[:256-len(end)]+end, long[:4096-len(end)]+end)
	}
	return ids
}
