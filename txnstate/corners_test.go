package txnstate

import (
	"testing"
)

// Corners that the other tests walk past: found by changing the code and seeing
// no test fail (internal/mutate).

// Kafka's first producer id is 0: it is an id like any other.
func TestProducerIDZeroIsAnID(t *testing.T) {
	zero := func(ev Event) Event { return withNewID(ev, 0) }
	s := newScript(t)
	s.want("0 0/0", zero(initNew()))
	s.rec = emptyAt(7, MaxEpoch)
	s.want("0 0/0", zero(initAs(7, MaxEpoch)))
	s.rec = emptyAt(7, MaxEpoch)
	s.want("0", add(7, MaxEpoch, a0))
	s.want("0 0/0", zero(commit(7, MaxEpoch)))
	s.rec = emptyAt(7, MaxEpoch)
	s.want("0", add(7, MaxEpoch, a0))
	s.now = s.rec.StartMs + int64(s.rec.TimeoutMs) + 1
	s.want("0", zero(TimedOut{Server: TV2, NewID: -1}))
	s.be("PrepareAbort 7/32767")
	if s.rec.Next != (Producer{ID: 0, Epoch: 0}) {
		t.Errorf("next %v", s.rec.Next)
	}

	// and so is the one before.
	s = newScript(t)
	s.rec = emptyAt(0, MaxEpoch)
	s.want("0 100/0", initAs(0, MaxEpoch))
	s.want("0 100/0", initAs(0, MaxEpoch))
	s.rec = emptyAt(0, MaxEpoch)
	s.want("0", add(0, MaxEpoch, a0))
	s.want("0 101/0", commit(0, MaxEpoch))
	s.apply()
	s.want("0 101/0", commit(0, MaxEpoch))
	if f := Resume(s.rec).Fence; f != (Producer{ID: 0, Epoch: FenceEpoch}) {
		t.Errorf("the fence is %v", f)
	}
}

// A load offers the fence of every epoch but the first, below which is nothing.
func TestResumeFencesWhatIsBelowTheEpoch(t *testing.T) {
	for epoch, want := range map[int16]Producer{0: NoProducer, 1: p(7, 1), 2: p(7, 2), MaxEpoch: p(7, MaxEpoch)} {
		if got := Resume(emptyAt(7, epoch)).Fence; got != want {
			t.Errorf("epoch %d: %v, want %v", epoch, got, want)
		}
	}
}

// What can't be is a server's error: no client has done it.
func TestWhatCannotBeIsAnInternalError(t *testing.T) {
	if _, err := Step(emptyAt(7, 0), nil, at(1)); CodeOf(err) != CodeUnknownServerError {
		t.Errorf("no event: %v", err)
	}
	if _, err := moved(emptyAt(7, 0), Record{State: CompleteCommit}, WriteDurable); CodeOf(err) != CodeUnknownServerError {
		t.Errorf("an illegal move: %v", err)
	}
}

func TestARecordIsCopiedWhole(t *testing.T) {
	r := emptyAt(7, 0)
	r.Participants, r.Extra = []Participant{a0, b0}, []byte{1, 2}
	c := r.Clone()
	c.Participants[0], c.Extra[0] = b0, 9
	if r.Participants[0] != a0 || r.Extra[0] != 1 {
		t.Errorf("%v, %v", r, r.Extra)
	}
}

func TestStatesThatAreNoneHaveANameToo(t *testing.T) {
	for s, want := range map[State]string{-1: "State(-1)", 6: "State(6)", 127: "State(127)", 5: "CompleteAbort", 0: "Empty"} {
		if got := s.String(); got != want {
			t.Errorf("%d: %s", int8(s), got)
		}
	}
}

func TestWhichParticipantsAreOffsetsPartitions(t *testing.T) {
	for p, want := range map[Participant]bool{
		Group("g"): true, Partition(OffsetsTopic, 3): true, a0: false, Partition("", 0): false,
		{Kind: KindHost, Name: OffsetsTopic}: false, {Kind: KindHost, Name: "db"}: false,
	} {
		if n, ok := p.Offsets(); ok != want || ok && p.Kind == KindGroup && n != OffsetsPartition("g") {
			t.Errorf("%s: %d, %v", p, n, ok)
		}
	}
}
