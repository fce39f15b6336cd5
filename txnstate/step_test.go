package txnstate

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// I9: the rotation at the end of the epochs fences the old producer id. A crash
// after the write and before the fence must not lose it.
func TestResumeFencesTheProducerIDThatARotationReplaced(t *testing.T) {
	rec := emptyAt(7, MaxEpoch)
	d, err := Step(rec, Init{Expected: NoProducer, TimeoutMs: 1, NewID: 8}, at(5))
	if err != nil {
		t.Fatal(err)
	}
	want := Producer{ID: 7, Epoch: FenceEpoch}
	if d.Effects.Fence != want || d.Grant != (Producer{ID: 8, Epoch: 0}) {
		t.Fatalf("fence %s, grant %s", d.Effects.Fence, d.Grant)
	}
	if got := Resume(d.Next); got != d.Effects {
		t.Errorf("Resume %+v, the effects were %+v", got, d.Effects)
	}
}

// -1 in PrevID means none: it is in records taken over from a log or a file that
// did not keep it. A client that sends -1 is not the holder of "none".
func TestNoPreviousProducerIDIsNobodysIdentity(t *testing.T) {
	for _, s := range []State{Empty, CompleteCommit, CompleteAbort} {
		rec := emptyAt(7, 0)
		rec.State, rec.PrevID = s, -1
		stranger := Producer{ID: -1, Epoch: MaxEpoch}
		for _, commit := range []bool{true, false} {
			d, err := Step(rec, End{Producer: stranger, Commit: commit, Client: TV2, NewID: 9}, at(5))
			if !errors.Is(err, ErrInvalidPIDMapping) {
				t.Errorf("%s: End by %s: grant %s, %v", s, stranger, d.Grant, err)
			}
		}
		if _, err := Step(rec, Init{Expected: stranger, TimeoutMs: 1, NewID: 9}, at(5)); !errors.Is(err, ErrProducerFenced) {
			t.Errorf("%s: Init by %s: %v", s, stranger, err)
		}
	}
}

// A host's test clock may stand at the zero time, long before 1970. -1 is "none"
// in a record, so a start before 1970 would be no start.
func TestAClockBefore1970StillMakesSoundRecords(t *testing.T) {
	rec := Unknown("pay")
	for _, ev := range []Event{
		Init{Expected: NoProducer, TimeoutMs: 1, NewID: 7},
		Add{Producer: Producer{ID: 7, Epoch: 0}, Participants: []Participant{Partition("a", 0)}},
		End{Producer: Producer{ID: 7, Epoch: 0}, Commit: true},
	} {
		d, err := Step(rec, ev, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(d.Next); err != nil {
			t.Fatalf("after %s: %v", ev.Name(), err)
		}
		rec = d.Next
	}
}

// The set operations against the obvious way to do them.
func TestParticipantSetsAreSets(t *testing.T) {
	participant := rapid.Custom(func(t *rapid.T) Participant {
		if rapid.IntRange(0, 3).Draw(t, "group") == 0 {
			return Group(rapid.SampledFrom([]string{"g", "h", "i"}).Draw(t, "g"))
		}
		return Partition(rapid.SampledFrom([]string{"a", "b", OffsetsTopic}).Draw(t, "topic"), rapid.Int32Range(0, 8).Draw(t, "p"))
	})
	has := func(set []Participant, p Participant) bool {
		return slices.ContainsFunc(set, func(q Participant) bool { return p.Wire() == q.Wire() })
	}
	rapid.Check(t, func(t *rapid.T) {
		a := union(nil, rapid.SliceOf(participant).Draw(t, "a"))
		b := rapid.SliceOf(participant).Draw(t, "b")
		wasA, wasB := slices.Clone(a), slices.Clone(b)
		sum, rest := union(a, b), without(a, b)
		for _, set := range [][]Participant{sum, rest} {
			for i := 1; i < len(set); i++ {
				if set[i-1].Compare(set[i]) >= 0 {
					t.Fatalf("not a sorted set: %v", set)
				}
			}
		}
		for _, p := range slices.Concat(a, b) {
			if !has(sum, p) {
				t.Fatalf("the union of %v and %v lacks %s", a, b, p)
			}
			if has(a, p) && slices.Contains(a, p) && !slices.Contains(sum, p) {
				t.Fatalf("%s changed its kind in the union", p)
			}
			if got, want := has(rest, p), has(a, p) && !has(b, p); got != want {
				t.Fatalf("%v without %v: %s is in it: %v", a, b, p, got)
			}
		}
		for _, p := range slices.Concat(sum, rest) {
			if !has(a, p) && !has(b, p) {
				t.Fatalf("%s came from nowhere", p)
			}
		}
		if !slices.Equal(a, wasA) || !slices.Equal(b, wasB) {
			t.Fatal("an operand was changed")
		}
	})
}

// F03, I13: a transaction of very many partitions costs no more than sorting
// them. Quadratic, this would take minutes.
func TestLargeTransactionsAreNotQuadratic(t *testing.T) {
	const n = 200_000
	ps := make([]Participant, n)
	for i := range ps {
		ps[i] = Partition(fmt.Sprintf("topic-%d", i%100), int32(n-i))
	}
	rec := emptyAt(7, 0)
	start := time.Now()
	for _, ev := range []Event{
		Add{Producer: rec.Producer, Participants: ps[:n/2]},
		Add{Producer: rec.Producer, Participants: ps},
		End{Producer: rec.Producer, Commit: true},
		Applied{Producer: rec.Producer, TxnSeq: 1, Participants: ps[n/2:]},
		Applied{Producer: rec.Producer, TxnSeq: 1, Participants: ps[:n/2]},
	} {
		d, err := Step(rec, ev, at(5))
		if err != nil {
			t.Fatal(err)
		}
		rec = d.Next
	}
	if rec.State != CompleteCommit {
		t.Errorf("it is in %s", rec.State)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %s", d)
	}
}

// Nothing that a caller can hand over makes Step panic.
func TestStepNeverPanics(t *testing.T) {
	events := func(r Record) []Event {
		var out []Event
		for _, p := range []Producer{r.Producer, r.Next, NoProducer, {ID: r.PrevID, Epoch: MaxEpoch}, {ID: r.Producer.ID, Epoch: r.LastEpoch}} {
			for v := TransactionVersion(-1); v <= 3; v++ {
				for _, n := range []int64{-1, 99} {
					out = append(out, Init{Expected: p, Server: v, NewID: n}, Add{Producer: p, Client: v, Participants: r.Participants, Limit: 3},
						End{Producer: p, Client: v, NewID: n}, End{Producer: p, Commit: true, Client: v, NewID: n},
						TimedOut{Server: v, NewID: n}, ForceAbort{Server: v, NewID: n})
				}
			}
			out = append(out, Verify{Producer: p, Participants: r.Participants}, Applied{Producer: p, TxnSeq: r.TxnSeq, Participants: r.Participants})
		}
		return append(out, Expire{AfterMs: -1}, Expire{AfterMs: 1 << 62}, nil, strangeEvent{})
	}
	rapid.Check(t, func(t *rapid.T) {
		rec := anyRecord().Draw(t, "record")
		now := time.UnixMilli(rapid.Int64().Draw(t, "now"))
		for _, ev := range events(rec) {
			if _, err := Step(rec, ev, now); err != nil && !errors.Is(err, ErrNeedProducerID) {
				if _, ok := errors.AsType[*Error](err); !ok {
					t.Fatalf("%T: the error is a %T", ev, err)
				}
			}
		}
		_, _, _ = Check(rec), Resume(rec), rec.Outcome(1)
	})
}

type strangeEvent struct{}

func (strangeEvent) Name() string { return "strange" }

// I6: a fence under TV1 at the last epoch leaves 32767 in the record. To a client
// of TV2 that was fenced this way its own abort looks done, and the answer to a
// retry is the identity in force: not this one.
func TestTheFencingEpochIsNotGrantedToARetry(t *testing.T) {
	rec := emptyAt(7, MaxEpoch)
	for _, ev := range []Event{
		Add{Producer: rec.Producer, Client: TV2},
		Init{Expected: NoProducer, TimeoutMs: 1000, Server: TV1, NewID: -1},
		Applied{Producer: Producer{ID: 7, Epoch: FenceEpoch}, TxnSeq: 1},
	} {
		d, err := Step(rec, ev, at(5))
		if err != nil {
			t.Fatal(err)
		}
		rec = d.Next
	}
	d, err := Step(rec, End{Producer: Producer{ID: 7, Epoch: MaxEpoch}, Client: TV2, NewID: -1}, at(5))
	if !errors.Is(err, ErrProducerFenced) {
		t.Errorf("in %s: grant %s, %v", rec, d.Grant, err)
	}
}
