package txnstate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// One test for each claim of the protocol, of its improvement proposals and of
// the bugs that others had in it. A script is the life of one transactional id:
// the smallest shell that keeps the order load, step, store, effects.

type script struct {
	*testing.T
	rec     Record // as stored
	now     int64
	nextID  int64 // of the allocator; 0 is none to be had
	down    bool  // the store refuses every write
	writes  int
	markers []Outcome
	fences  []Producer
}

func newScript(t *testing.T) *script {
	return &script{T: t, rec: Unknown("pay"), now: 1_000_000, nextID: 100}
}

// scriptAt is a script whose id is in Empty, held by (7, epoch).
func scriptAt(t *testing.T, epoch int16) *script {
	s := newScript(t)
	s.rec = emptyAt(7, epoch)
	return s
}

// do applies an event and returns the answer: a code, and what is granted.
func (s *script) do(ev Event) (Code, Producer) {
	s.Helper()
	d, err := Step(s.rec, ev, at(s.now))
	if errors.Is(err, ErrNeedProducerID) {
		if s.nextID == 0 {
			return CodeCoordinatorLoading, NoProducer
		}
		switch e := ev.(type) {
		case Init:
			e.NewID = s.nextID
			ev = e
		case End:
			e.NewID = s.nextID
			ev = e
		case TimedOut:
			e.NewID = s.nextID
			ev = e
		}
		s.nextID++
		d, err = Step(s.rec, ev, at(s.now))
	}
	if err != nil {
		return CodeOf(err), NoProducer
	}
	if d.Write != WriteNone && s.down {
		return CodeCoordinatorNotAvailable, NoProducer
	}
	switch d.Write {
	case WriteDurable, WriteLater:
		if err := Check(d.Next); err != nil {
			s.Fatalf("%s: %v", ev.Name(), err)
		}
		s.writes++
		s.rec = d.Next
		if d.Effects.Markers {
			s.markers = append(s.markers, s.rec.Outcome(1))
		}
		if d.Effects.Fence != NoProducer {
			s.fences = append(s.fences, d.Effects.Fence)
		}
	case WriteDelete:
		s.writes++
		s.rec = Unknown(s.rec.TxnID)
	}
	switch {
	case d.Refusal != nil:
		return d.Refusal.Code, d.Grant
	case len(d.Missing) > 0:
		return CodeTransactionAbortable, d.Grant
	}
	return CodeNone, d.Grant
}

// want applies an event and demands an answer: "0", "90", "0 7/1".
func (s *script) want(answer string, ev Event) {
	s.Helper()
	c, g := s.do(ev)
	got := fmt.Sprint(int16(c))
	if g != NoProducer {
		got += " " + g.String()
	}
	if got != answer {
		s.Fatalf("%s%+v in %s: %s, want %s", ev.Name(), ev, s.rec, got, answer)
	}
}

// be demands a state and an identity: "Ongoing 7/1".
func (s *script) be(want string) {
	s.Helper()
	if got := fmt.Sprintf("%s %s", s.rec.State, s.rec.Producer); got != want {
		s.Fatalf("the record is %s, want %s", got, want)
	}
}

// apply has every participant apply the outcome, which completes the transaction.
func (s *script) apply() {
	s.Helper()
	s.want("0", Applied{Producer: s.rec.Producer, TxnSeq: s.rec.TxnSeq, Participants: s.rec.Participants})
	if s.rec.State.Decided() {
		s.Fatalf("%s is not complete", s.rec)
	}
}

// crash forgets everything but the bytes that are stored, and resumes.
func (s *script) crash() {
	s.Helper()
	rec, err := DecodeRecord(AppendRecord(nil, s.rec))
	if err != nil {
		s.Fatal(err)
	}
	s.rec = rec
	if Resume(rec).Markers {
		s.markers = append(s.markers, rec.Outcome(2))
	}
}

// sweep is the reaper's event, at a time when the open transaction is overdue.
func (s *script) sweep(server TransactionVersion) TimedOut {
	s.now = max(s.now, s.rec.StartMs+int64(s.rec.TimeoutMs)+1)
	return TimedOut{Server: server, NewID: -1}
}

func p(id int64, epoch int16) Producer { return Producer{ID: id, Epoch: epoch} }

func initNew() Init { return Init{Expected: NoProducer, TimeoutMs: 60000, Server: TV2, NewID: -1} }

func initAs(id int64, epoch int16) Init {
	ev := initNew()
	ev.Expected = p(id, epoch)
	return ev
}

func onServer(v TransactionVersion, ev Init) Init { ev.Server = v; return ev }

func add(id int64, epoch int16, ps ...Participant) Add {
	return Add{Producer: p(id, epoch), Participants: ps, Client: TV2}
}

func verify(id int64, epoch int16, ps ...Participant) Verify {
	return Verify{Producer: p(id, epoch), Participants: ps}
}

// commit and abort are EndTxn v5; commit1 and abort1 are v4 and before.
func commit(id int64, epoch int16) End {
	return End{Producer: p(id, epoch), Commit: true, Client: TV2, NewID: -1}
}
func abortTxn(id int64, epoch int16) End { return End{Producer: p(id, epoch), Client: TV2, NewID: -1} }
func commit1(id int64, epoch int16) End {
	return End{Producer: p(id, epoch), Commit: true, Client: TV0, NewID: -1}
}
func abort1(id int64, epoch int16) End { return End{Producer: p(id, epoch), Client: TV0, NewID: -1} }

var a0, a1, b0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)

// ---- InitProducerId (KIP-98, KIP-360)

func TestAFreshInitBumpsTheEpochAndFences(t *testing.T) {
	s := newScript(t)
	s.want("0 100/0", initNew())
	s.want("0 100/1", initNew())
	s.want("90", add(100, 0, a0))
	s.want("90", initAs(100, 0)) // a newer producer took over
	if !slices.Equal(s.fences, []Producer{p(100, 1)}) {
		t.Errorf("fences %v", s.fences)
	}
}

// KIP-360: the answer to a bump was lost. KAFKA-8710.
func TestARepeatedInitIsAnsweredTheSame(t *testing.T) {
	for _, reload := range []bool{false, true} { // KAFKA-20357: also by the next coordinator
		s := scriptAt(t, 3)
		s.want("0 7/4", initAs(7, 3))
		if reload {
			s.crash()
		}
		s.want("0 7/4", initAs(7, 3))
		s.want("0 7/4", initAs(7, 3))
		s.want("90", initAs(7, 2))
		s.want("0 7/5", initAs(7, 4))
	}
}

// KAFKA-5283: at the end of the epochs a new producer id is given.
func TestF19_ARotationIsRepeatableOnce(t *testing.T) {
	for _, reload := range []bool{false, true} {
		s := scriptAt(t, MaxEpoch)
		s.want("0 100/0", initAs(7, MaxEpoch))
		if reload {
			s.crash()
		}
		s.want("0 100/0", initAs(7, MaxEpoch))
		s.want("90", initAs(7, MaxEpoch)) // Kafka: the repeat made the new id the previous one
	}
	s := scriptAt(t, MaxEpoch)
	s.want("0 100/0", initNew()) // somebody else's: nobody can repeat it
	s.want("90", initAs(7, MaxEpoch))
	s.want("49", add(7, MaxEpoch, a0))
	if !slices.Equal(s.fences, []Producer{p(7, FenceEpoch)}) {
		t.Errorf("fences %v", s.fences)
	}
}

// A pair that is not the present one meets an internal error where the epochs are
// used up, and 90 everywhere else. It is Kafka 4.4's answer, probed (F19 would
// have 90).
func TestF19_AStalePairAtTheEndOfTheEpochs(t *testing.T) {
	s := scriptAt(t, MaxEpoch)
	s.want("-1", initAs(7, MaxEpoch-2))
	s.want("90", initAs(8, MaxEpoch))
	s.be("Empty 7/32766")
}

func TestARotationByEndTxnIsRepeatableByInitOnce(t *testing.T) {
	s := scriptAt(t, MaxEpoch)
	s.want("0", add(7, MaxEpoch, a0))
	s.want("0 100/0", commit(7, MaxEpoch))
	s.apply()
	s.want("90", initAs(7, MaxEpoch-1))
	s.want("0 100/0", initAs(7, MaxEpoch))
	s.want("90", initAs(7, MaxEpoch))
	s.want("0", add(100, 0, a0))
	s.want("90", initAs(7, MaxEpoch)) // once the new id is in use
	s.be("Ongoing 100/0")
}

// F34, KAFKA-18019: an id that expired is unknown; a producer that initialises
// with what it had gets another producer id, so it can't duplicate anything.
func TestF34_AnExpiredIDIsUnknown(t *testing.T) {
	s := scriptAt(t, 3)
	s.now += 7 * 24 * 3600 * 1000
	s.want("0", Expire{AfterMs: 7 * 24 * 3600 * 1000})
	if s.rec.Known() {
		t.Fatal("it is still known")
	}
	s.want("49", add(7, 3, a0))
	s.want("49", verify(7, 3, a0))
	s.want("49", commit(7, 3))
	s.want("49", commit1(7, 3))
	s.want("0 100/0", initAs(7, 3))
	s.want("49", add(7, 3, a0))
	s.want("90", initAs(7, 3))
}

// KAFKA-5279, F34: use restarts the idle clock, an answer without a write does
// not, and an open or prepared transaction never expires.
func TestF34_OnlyIdleIDsExpire(t *testing.T) {
	const week = 1000
	s := newScript(t)
	due := func(want bool) {
		t.Helper()
		early, _ := Step(s.rec, Expire{AfterMs: week}, at(s.now+week-1))
		late, _ := Step(s.rec, Expire{AfterMs: week}, at(s.now+week))
		if early.Write != WriteNone || (late.Write == WriteDelete) != want {
			t.Errorf("%s: early %v, late %v", s.rec, early.Write, late.Write)
		}
	}
	s.want("0 100/0", initNew())
	due(true)
	s.want("0", add(100, 0, a0))
	due(false)
	s.want("0 100/1", commit(100, 0))
	due(false)
	s.apply()
	due(true)
	s.now += 10
	before := s.rec.UpdateMs
	s.want("0 100/1", commit(100, 0)) // a retry
	if s.rec.UpdateMs != before {
		t.Error("a retry restarted the clock")
	}
	s.want("0 100/2", initNew())
	due(true)
}

// KAFKA-14417, KAFKA-14694: no id to be had is for the caller to retry, and
// changes nothing.
func TestF19_WithoutAProducerIDNothingChanges(t *testing.T) {
	s := newScript(t)
	s.nextID = 0
	s.want("14", initNew())
	s.rec = emptyAt(7, MaxEpoch)
	s.want("14", initNew())
	s.want("14", abortTxn(7, MaxEpoch))
	s.want("0", add(7, MaxEpoch, a0))
	s.want("14", initNew())
	s.want("14", commit(7, MaxEpoch))
	s.want("14", s.sweep(TV2))
	s.be("Ongoing 7/32766") // F19: the transaction stays open
}

// ---- Takeover (F18, F39)

// KAFKA-5231, F18, F39: the open transaction of the holder before is aborted, with
// the epoch bumped once, and its participants are told before anybody goes on.
func TestF18_F39_InitOverAnOpenTransactionAbortsIt(t *testing.T) {
	for _, v := range []TransactionVersion{TV1, TV2} {
		s := newScript(t)
		s.want("0 100/0", onServer(v, initNew()))
		s.want("0", add(100, 0, a0, b0))
		s.want("51", onServer(v, initNew()))
		s.be("PrepareAbort 100/1")
		if len(s.markers) != 1 || s.markers[0].Commit || s.markers[0].Producer != p(100, 1) || len(s.markers[0].Participants) != 2 {
			t.Fatalf("markers %+v", s.markers)
		}
		for range 100 {
			s.want("51", onServer(v, initNew()))
		}
		s.be("PrepareAbort 100/1") // no further bump while markers are out
		s.want("51", add(100, 0, a0))
		s.apply()
		s.be("CompleteAbort 100/1")
		s.want("0 100/2", onServer(v, initNew()))
		s.want("90", add(100, 0, a0)) // the first client's late requests
		s.want("90", commit(100, 0))
		s.want("90", commit1(100, 0))
		s.want("90", add(100, 1, a0))
	}
}

// F18: a failed write is told as such, not as 51.
func TestF18_InitOverAnOpenTransactionThatCantBeStored(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0))
	s.down = true
	s.want("15", initNew())
	s.be("Ongoing 7/0")
	if len(s.markers)+len(s.fences) > 0 {
		t.Errorf("I1: markers %v, fences %v", s.markers, s.fences)
	}
}

// F18: a decided commit is finished, not aborted, by the next holder.
func TestF18_W34_InitOverADecidedCommitLeavesItCommitted(t *testing.T) {
	for _, end := range []End{commit1(7, 0), commit(7, 0)} {
		s := scriptAt(t, 0)
		s.want("0", add(7, 0, a0))
		s.do(end)
		s.want("51", initNew())
		s.apply()
		if s.rec.State != CompleteCommit {
			t.Fatal(s.rec)
		}
		next := s.rec.Producer.Epoch + 1
		s.want(fmt.Sprintf("0 7/%d", next), initNew())
		if len(s.markers) != 1 || !s.markers[0].Commit {
			t.Errorf("markers %+v", s.markers)
		}
	}
}

// Kafka 4.4 does not compare the epoch here (recorded): the transaction of the
// rightful holder is aborted by a stale caller, who is refused afterwards.
func TestAStaleInitAbortsTheOpenTransactionAndIsThenRefused(t *testing.T) {
	s := scriptAt(t, 3)
	s.want("0", add(7, 3, a0))
	s.want("51", initAs(7, 1))
	s.apply()
	s.want("90", initAs(7, 1))
}

// Two producers race: each fences the one before.
func TestTwoPlainInitsFenceEachOther(t *testing.T) {
	s := newScript(t)
	s.want("0 100/0", initNew())
	s.want("0 100/1", initNew())
	s.want("90", add(100, 0, a0))
	s.want("0", add(100, 1, a0))
}

// KAFKA-19367, F20: under TV2 the abort of a takeover is the one bump.
func TestF20_ATakeoverUsesTwoEpochsExactly(t *testing.T) {
	for e := int16(32760); e <= MaxEpoch; e++ {
		for _, v := range []TransactionVersion{TV1, TV2} {
			s := scriptAt(t, e)
			s.want("0", add(7, e, a0))
			s.down = true
			s.want("15", onServer(v, initNew()))
			s.down = false
			s.want("51", onServer(v, initNew()))
			s.be(fmt.Sprintf("PrepareAbort 7/%d", e+1))
			s.apply()
			want := fmt.Sprintf("0 7/%d", e+2)
			switch {
			case v == TV2 && e == MaxEpoch:
				want = "0 101/1" // KAFKA-20090: the abort itself moved to a new id (100 went with the failed write)
			case e >= MaxEpoch-1:
				want = "0 100/0"
			}
			s.want(want, onServer(v, initNew()))
			old, _ := s.do(add(7, e, a0))
			if old != CodeProducerFenced && old != CodeInvalidProducerIDMapping {
				t.Errorf("the old producer is told %s", old)
			}
		}
	}
}

// KAFKA-9666, F21: fences that can't be stored use up no epochs, nor does a crash
// among them.
func TestF21_FailedFencesUseUpNoEpochs(t *testing.T) {
	for _, v := range []TransactionVersion{TV1, TV2} {
		for _, sweep := range []bool{false, true} {
			s := scriptAt(t, 7)
			s.want("0", add(7, 7, a0))
			s.down = true
			for i := range 50_000 {
				if sweep {
					s.want("15", s.sweep(v))
				} else {
					s.want("15", onServer(v, initNew()))
				}
				if i == 25_000 {
					s.crash()
				}
			}
			s.down = false
			if sweep {
				s.want("0", s.sweep(v))
			} else {
				s.want("51", onServer(v, initNew()))
			}
			s.be("PrepareAbort 7/8")
			s.apply()
			s.want("0 7/9", onServer(v, initNew()))
			s.want("90", add(7, 7, a0))
		}
	}
}

// ---- AddPartitionsToTxn

// KAFKA-5322, F08: adding again is harmless and writes nothing, a partition twice
// is one, and what is refused adds nothing.
func TestF08_AddingIsASetOperation(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0))
	start, n := s.rec.StartMs, s.writes
	s.now += 500
	s.want("0", add(7, 0, a0))
	s.want("0", add(7, 0))
	if s.writes != n || s.rec.UpdateMs == s.now {
		t.Error("a repeated add was written")
	}
	s.want("0", add(7, 0, a0, a1, a1))
	if s.writes != n+1 || !slices.Equal(s.rec.Participants, []Participant{a0, a1}) || s.rec.StartMs != start {
		t.Errorf("%d writes, %v, started %d", s.writes-n, s.rec.Participants, s.rec.StartMs)
	}
	ev := add(7, 0, b0, Partition("c", 0))
	ev.Limit = 3
	s.want("44", ev) // I13, all or nothing
	s.down = true
	s.want("15", add(7, 0, b0))
	s.down = false
	if !slices.Equal(s.rec.Participants, []Participant{a0, a1}) {
		t.Errorf("a refused add left %v", s.rec.Participants)
	}
	s.want("0 7/1", commit(7, 0))
	if len(s.markers) != 1 || !slices.Equal(s.markers[0].Participants, []Participant{a0, a1}) {
		t.Errorf("markers %+v", s.markers)
	}
}

// Group and its partition of __consumer_offsets are one party, as on the wire.
func TestW9_AGroupIsItsOffsetsPartition(t *testing.T) {
	s := scriptAt(t, 0)
	g := Group("g")
	s.want("0", Add{Producer: p(7, 0), Participants: []Participant{g}, Client: TV0})
	n := s.writes
	s.want("0", add(7, 0, g.Wire())) // the implicit add of TxnOffsetCommit v5
	s.want("0", verify(7, 0, g.Wire()))
	if s.writes != n || len(s.rec.Participants) != 1 {
		t.Errorf("%d writes, %v", s.writes-n, s.rec.Participants)
	}
}

// KAFKA-14904, F23: verification answers from the record, writes nothing and opens
// nothing.
func TestF23_VerificationChangesNothing(t *testing.T) {
	s := scriptAt(t, 1)
	s.want("120", verify(7, 1, a0))
	s.be("Empty 7/1")
	s.want("0", add(7, 1, a0))
	n := s.writes
	s.want("0", verify(7, 1, a0))
	s.want("120", verify(7, 1, a0, b0))
	d, err := Step(s.rec, verify(7, 1, a0, b0, a1), at(s.now))
	if err != nil || !slices.Equal(d.Missing, []Participant{b0, a1}) {
		t.Errorf("missing %v, %v", d.Missing, err)
	}
	s.want("90", verify(7, 0, a0))
	s.want("90", verify(7, 2, a0))
	s.want("49", verify(8, 1, a0))
	if s.writes != n {
		t.Error("it wrote")
	}
	s.want("0 7/2", abortTxn(7, 1))
	s.want("51", verify(7, 2, a0))
	s.want("90", verify(7, 1, a0)) // a late batch of the ended transaction
	s.apply()
	s.want("120", verify(7, 2, a0))
}

// KAFKA-9600, F16: clients must have the epoch exactly; the refused calls change
// nothing. KAFKA-9911, KAFKA-10687: the code is 90 here.
func TestF16_EpochsFromTheFutureAreRefused(t *testing.T) {
	s := scriptAt(t, 3)
	s.want("0", add(7, 3, a0))
	n, was := s.writes, s.rec
	for _, e := range []int16{4, 2, 0, -1, MaxEpoch, FenceEpoch, math.MinInt16} {
		s.want("90", commit(7, e))
		s.want("90", abortTxn(7, e))
		s.want("90", commit1(7, e))
		s.want("90", abort1(7, e))
		s.want("90", add(7, e, b0))
		s.want("90", verify(7, e, a0))
	}
	for _, ev := range []Event{commit(8, 3), commit1(8, 3), add(8, 3, b0), verify(8, 3, a0), add(-1, -1, a0), commit(-1, -1)} {
		s.want("49", ev)
	}
	if s.writes != n || !s.rec.Equal(was) {
		t.Error("a refused call changed something")
	}
	s.want("0 7/4", commit(7, 3))
	t.Run("Init", func(t *testing.T) {
		s := scriptAt(t, 3)
		s.want("90", initAs(7, 4))
		s.be("Empty 7/3")
	})
}

// ---- EndTxn

// F05: a commit that succeeded is never reported as refused, at whichever point
// the coordinator died; KAFKA-5059, KAFKA-5131: what is decided is finished.
func TestF05_EndTxnIsRepeatableAtEveryCrashPoint(t *testing.T) {
	type point struct {
		name string
		to   func(s *script, end End)
	}
	decided := func(s *script, end End) { s.do(end) }
	points := []point{
		{"before the decision", func(*script, End) {}},
		{"decided", decided},
		{"one has applied it", func(s *script, end End) {
			decided(s, end)
			s.want("0", Applied{Producer: s.rec.Producer, TxnSeq: s.rec.TxnSeq, Participants: []Participant{a0}})
		}},
		{"complete", func(s *script, end End) { decided(s, end); s.apply() }},
	}
	for _, tv := range []TransactionVersion{TV0, TV2} {
		for _, yes := range []bool{true, false} {
			for i, pt := range points {
				t.Run(fmt.Sprintf("TV%d commit %v, %s", tv, yes, pt.name), func(t *testing.T) {
					end := End{Producer: p(7, 4), Commit: yes, Client: tv, NewID: -1}
					other := end
					other.Commit = !yes
					ok := map[TransactionVersion]string{TV0: "0", TV2: "0 7/5"}[tv]
					s := scriptAt(t, 4)
					s.want("0", add(7, 4, a0, b0))
					pt.to(s, end)
					s.crash()
					if i == 0 {
						s.want(ok, end)
					}
					if s.rec.State.Decided() {
						s.want("51", end)
						s.want("51", other)
						s.apply()
					}
					s.want(ok, end)
					s.want(ok, end)
					s.want("48", other) // never NONE
					for _, m := range s.markers {
						if m.Commit != yes {
							t.Errorf("G1: a marker for the other outcome: %+v", m)
						}
					}
				})
			}
		}
	}
}

// F06, KAFKA-14562: a retry goes by the outcome that was decided, and under TV2 by
// the epochs.
func TestF06_ARetryOfTheOtherOutcomeIsRefused(t *testing.T) {
	s := scriptAt(t, 4)
	s.want("0", add(7, 4, a0))
	s.want("0 7/5", commit(7, 4))
	s.apply()
	s.want("0 7/5", commit(7, 4))
	s.want("48", abortTxn(7, 4))
	s.want("90", commit(7, 3))
	s.want("90", abortTxn(7, 6))
	s.want("48", commit(7, 5)) // nothing is open
	s = scriptAt(t, 4)
	s.want("0", add(7, 4, a0))
	s.want("0", abort1(7, 4))
	s.apply()
	s.want("0", abort1(7, 4))
	s.want("48", commit1(7, 4))
}

// KAFKA-18401, KAFKA-18464, KAFKA-14563, F07: transactions without partitions.
func TestF07_TransactionsWithoutPartitions(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("48", commit1(7, 0))
	s.want("48", abort1(7, 0))
	s.want("48", commit(7, 0))
	s.be("Empty 7/0")
	s.want("0 7/1", abortTxn(7, 0)) // an abort bumps all the same
	s.be("PrepareAbort 7/1")
	if m := s.markers[len(s.markers)-1]; len(m.Participants) != 0 {
		t.Errorf("somebody is told: %+v", m)
	}
	s.apply()
	s.want("0 7/1", abortTxn(7, 0))
	s.want("48", commit(7, 1))
	s.want("0 7/2", abortTxn(7, 1))
	s.apply()
	s.want("0", add(7, 2)) // an empty list opens a transaction too (probed)
	s.be("Ongoing 7/2")
	s.want("0 7/3", commit(7, 2))
	s.apply()
	s.be("CompleteCommit 7/3")
	s.want("0 7/4", abortTxn(7, 3))
	s.apply()
	s.want("0", add(7, 4, a0)) // no Init needed
}

// KAFKA-5268, F03: a completed record has no partitions, and the next transaction
// has its own only; what was stored is not changed by what happens afterwards.
func TestF03_TheSetOfATransactionIsItsOwn(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0, a1))
	open := s.rec
	s.want("0", add(7, 0, b0))
	s.want("0", commit1(7, 0))
	decided := s.rec
	s.want("0", Applied{Producer: p(7, 0), TxnSeq: 1, Participants: []Participant{a1, a0}})
	if !slices.Equal(open.Participants, []Participant{a0, a1}) || !slices.Equal(decided.Participants, []Participant{a0, a1, b0}) {
		t.Errorf("stored records changed: %v, %v", open, decided)
	}
	s.apply()
	s.crash()
	if len(s.rec.Participants) != 0 || s.rec.State != CompleteCommit {
		t.Fatal(s.rec)
	}
	s.markers = nil
	s.want("0", add(7, 0, b0))
	s.want("0", commit1(7, 0))
	if len(s.markers) != 1 || !slices.Equal(s.markers[0].Participants, []Participant{b0}) {
		t.Errorf("markers %+v", s.markers)
	}
}

// KAFKA-10080, F09: the last confirmation completes the transaction once; a
// repeated one does nothing, also not to the next transaction, which under TV1 has
// the same producer and epoch.
func TestF09_W3_ALateConfirmationDoesNotCompleteTheNextTransaction(t *testing.T) {
	s := scriptAt(t, 0)
	for range 2 {
		s.want("0", add(7, 0, a0))
		s.want("0", commit1(7, 0))
		first := Applied{Producer: s.rec.Producer, TxnSeq: s.rec.TxnSeq, Participants: s.rec.Participants}
		s.want("0", first)
		s.be("CompleteCommit 7/0")
		n := s.writes
		s.want("0", first)
		s.want("0", add(7, 0, a0))
		s.want("0", first)
		s.want("0", abort1(7, 0))
		s.want("0", first)
		s.be("PrepareAbort 7/0")
		if s.writes != n+2 {
			t.Errorf("late confirmations wrote %d times", s.writes-n-2)
		}
		s.apply()
	}
}

// KAFKA-17754, F22: under TV2 a delayed request of the transaction before is told
// from one of this transaction.
func TestF22_ADelayedEndTxnDoesNotEndTheNextTransaction(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0))
	s.want("0 7/1", commit(7, 0))
	s.want("51", add(7, 0, a0)) // a delayed add, while it completes
	s.apply()
	s.want("0", add(7, 1, a0))
	was := s.rec
	for _, ev := range []Event{commit(7, 0), abortTxn(7, 0), add(7, 0, b0), verify(7, 0, a0), commit1(7, 0)} {
		s.want("90", ev)
	}
	if !s.rec.Equal(was) {
		t.Error("the open transaction was touched")
	}
	s.want("0 7/2", abortTxn(7, 1))
	s.apply()
	s.want("90", commit(7, 0)) // two transactions later
	s.want("90", abortTxn(7, 0))
}

// F22: under TV1 it can't be told, as in Kafka; but all of it gets one outcome.
func TestF22_UnderTV1ADelayedEndTxnEndsTheNextTransactionWhole(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0))
	s.want("0", commit1(7, 0))
	s.apply()
	s.want("0", add(7, 0, a0, b0))
	s.want("0", commit1(7, 0)) // the duplicate
	if m := s.markers[1]; !m.Commit || len(m.Participants) != 2 {
		t.Errorf("markers %+v", m)
	}
	s.apply()
	s.want("0", add(7, 0, a0))
	s.be("Ongoing 7/0")
}

// KAFKA-18660, F19: at the overflow EndTxn gives the next producer id, which is
// told to wait, not that it is unknown, until it is in force.
func TestF19_W17_EpochOverflowAtTheEndOfATransaction(t *testing.T) {
	for _, yes := range []bool{true, false} {
		end := End{Producer: p(7, MaxEpoch), Commit: yes, Client: TV2, NewID: -1}
		s := scriptAt(t, MaxEpoch)
		s.want("0", add(7, MaxEpoch, a0))
		s.want("0 100/0", end)
		s.be(outcome(yes).String() + " 7/32767") // what the markers carry
		s.want("51", add(100, 0, a0))
		s.want("51", commit(100, 0))
		s.want("51", initNew())
		s.crash() // KAFKA-20310: the promise survives
		if m := s.markers[len(s.markers)-1]; m.Producer != p(7, FenceEpoch) || m.TransactionVersion != TV2 {
			t.Fatalf("markers %+v", m)
		}
		s.apply()
		s.be(complete(yes).String() + " 100/0")
		s.crash()
		s.want("0 100/0", end) // the retry
		s.want("48", End{Producer: p(7, MaxEpoch), Commit: !yes, Client: TV2, NewID: -1})
		s.want("49", End{Producer: p(7, MaxEpoch-1), Commit: yes, Client: TV2, NewID: -1})
		s.want("49", add(7, MaxEpoch, a0))
		s.want("0", add(100, 0, a0))
		s.want("49", end)
		s.want("0 100/1", commit(100, 0))
	}
}

// KAFKA-20090: 32767 in a record, left by a fence under TV1, is lived with.
func TestTheFencingEpochIsLivedWith(t *testing.T) {
	fenced := func() *script {
		s := scriptAt(t, MaxEpoch)
		s.want("0", add(7, MaxEpoch, a0))
		s.want("51", onServer(TV1, initNew()))
		s.be("PrepareAbort 7/32767")
		s.apply()
		return s
	}
	s := fenced()
	s.want("0 100/0", initNew())
	s = fenced()
	s.want("0 100/0", initAs(7, FenceEpoch))
	s = fenced()
	s.want("-1", initAs(7, MaxEpoch))
	for _, v := range []TransactionVersion{TV1, TV2} { // a client that sends 32767 all the same (probed)
		s = fenced()
		s.want("0", add(7, FenceEpoch, a0))
		s.want("-1", commit(7, FenceEpoch))
		s.be("Ongoing 7/32767")
		s.want("51", onServer(v, initNew())) // fenced again, the epoch stays
		s.be("PrepareAbort 7/32767")
		s.apply()
		if v == TV1 {
			s.want("0 100/0", initNew())
		} else {
			s.want("0 100/1", initNew())
		}
	}
	s = fenced()
	s.want("0", add(7, FenceEpoch, a0))
	s.want("0 100/0", abortTxn(7, FenceEpoch))
	s.apply()
	s.want("49", abortTxn(7, FenceEpoch))
	s.want("0 100/0", abortTxn(7, MaxEpoch))
	s = fenced()
	s.want("0", add(7, FenceEpoch, a0))
	s.want("0", commit1(7, FenceEpoch))
	s.apply()
	s.be("CompleteCommit 7/32767")
}

// KAFKA-18227: one id may change protocol between transactions, in both
// directions, and each request is taken by its own rules.
func TestBothProtocolsOnOneID(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", Add{Producer: p(7, 0), Participants: []Participant{a0}, Client: TV0})
	s.want("0", commit1(7, 0))
	s.apply()
	s.want("0 7/1", initAs(7, 0)) // the client's bump on its way to TV2
	s.want("0", add(7, 1, a0))
	s.want("0 7/2", commit(7, 1))
	s.apply()
	s.want("0", Add{Producer: p(7, 2), Participants: []Participant{a0}, Client: TV0})
	if s.rec.ClientVersion != TV0 {
		t.Errorf("client version %d", s.rec.ClientVersion)
	}
	s.want("0", abort1(7, 2))
	if m := s.markers[len(s.markers)-1]; m.TransactionVersion != TV0 || m.Producer != p(7, 2) {
		t.Errorf("markers %+v", m)
	}
	s.apply()
	s.want("0 7/3", abortTxn(7, 2)) // a no-op abort, of EndTxn v5
	s.apply()
	// EndTxn v5 where the transaction was opened by an old client, and whatever the
	// server's level is: its own rules.
	s.want("0", Add{Producer: p(7, 3), Participants: []Participant{a0}, Client: TV0})
	s.want("0 7/4", commit(7, 3))
	if m := s.markers[len(s.markers)-1]; m.TransactionVersion != TV2 || m.Producer != p(7, 4) {
		t.Errorf("markers %+v", m)
	}
}

// Kafka's retry rule of EndTxn v5 looks at the epoch only: after a transaction of
// TV1 the epoch below the holder's counts as a retry too (recorded for epoch -1
// below 0), and the answer names the identity. Where that epoch was somebody's,
// who was replaced, we don't: two clients would go on with one identity (I6). It
// stays a retry for who bumped the epoch himself.
func TestTheRetryRuleAfterATransactionOfTV1(t *testing.T) {
	for _, c := range []struct {
		was  int16
		init Event // nil: none
		want string
	}{
		{-1, nil, "0 7/0"},
		{3, initNew(), "90"},
		{3, initAs(7, 3), "0 7/4"},
	} {
		s := scriptAt(t, max(c.was, 0))
		if c.init != nil {
			s.want(fmt.Sprintf("0 7/%d", c.was+1), c.init)
		}
		s.want("0", add(7, c.was+1, a0))
		s.want("0", commit1(7, c.was+1))
		s.apply()
		n := s.writes
		s.want(c.want, commit(7, c.was))
		s.want("48", abortTxn(7, c.was))
		as := commit(7, c.was)
		as.RetriesAsKafka = true
		s.want(fmt.Sprintf("0 7/%d", c.was+1), as)
		if s.writes != n {
			t.Error("it changed something")
		}
	}
}

// ---- Timeouts (F17, F26)

// KAFKA-6119, F17: the timeout bumps the epoch once. Under TV1 its producer is
// fenced for good.
func TestF17_ATimedOutProducerOfTV1IsFenced(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0))
	sweep := s.sweep(TV1)
	s.want("0", sweep)
	s.want("0", sweep)
	s.be("PrepareAbort 7/1")
	if len(s.markers) != 1 || s.markers[0].Producer != p(7, 1) || s.markers[0].Commit {
		t.Fatalf("markers %+v", s.markers)
	}
	s.apply()
	s.want("0", sweep)
	s.be("CompleteAbort 7/1")
	s.want("90", add(7, 0, a0))
	s.want("90", commit1(7, 0))
	s.want("90", abort1(7, 0))
	s.want("90", initAs(7, 0))
	// The one way back is an abort of TV2, as recorded: its epoch was given to
	// nobody else.
	s.want("48", commit(7, 0))
	s.want("0 7/1", abortTxn(7, 0))
	s.want("0 7/1", abortTxn(7, 0))
	s.want("0 7/2", initNew())
	s.want("90", abortTxn(7, 0))
	s.want("90", abortTxn(7, 1))
}

// The fence that takes the last epoch lets nobody back in: 32767 is given to no
// client (I6), but by a host that asks for Kafka's answer.
func TestTheFencingEpochIsGrantedOnlyWhereKafkasAnswerIsWanted(t *testing.T) {
	s := scriptAt(t, MaxEpoch)
	s.want("0", add(7, MaxEpoch, a0))
	s.want("0", s.sweep(TV1))
	s.be("PrepareAbort 7/32767")
	s.apply()
	again := abortTxn(7, MaxEpoch)
	s.want("90", again)
	again.RetriesAsKafka = true
	s.want("0 7/32767", again)
}

// Under TV2 Kafka lets it back in by InitProducerId and by its own abort, and
// answers its commit with 48 (90 since KAFKA-20785, which 4.4 does not have).
func TestF17_ATimedOutProducerOfTV2MayComeBack(t *testing.T) {
	timedOut := func() *script {
		s := scriptAt(t, 0)
		s.want("0", add(7, 0, a0))
		s.want("0", s.sweep(TV2))
		s.be("PrepareAbort 7/1")
		s.want("51", commit(7, 0)) // F06: client commit against the reaper: one wins
		s.want("51", abortTxn(7, 0))
		s.apply()
		s.want("90", add(7, 0, a0))
		return s
	}
	s := timedOut()
	s.want("48", commit(7, 0))
	s.want("0 7/1", initAs(7, 0))
	s = timedOut()
	s.want("0 7/1", abortTxn(7, 0))
	s.want("0", add(7, 1, a0))
	s = timedOut()
	s.want("0 7/2", initNew()) // the next holder comes first
	s.want("90", abortTxn(7, 0))
	s.want("90", initAs(7, 0))
	// at the last epoch the abort moves to a new id, and so does the producer
	s = scriptAt(t, MaxEpoch)
	s.want("0", add(7, MaxEpoch, a0))
	s.want("0", s.sweep(TV2))
	s.be("PrepareAbort 7/32767")
	s.apply()
	s.want("0 100/0", initAs(7, MaxEpoch))
}

// The client's abort comes between the sweep's look and its own abort: the client
// wins and the sweep changes nothing (no fence is left pending).
func TestF06_TheClientsEndBeatsTheSweep(t *testing.T) {
	s := scriptAt(t, 0)
	s.want("0", add(7, 0, a0))
	sweep := s.sweep(TV2)
	s.want("0 7/1", commit(7, 0)) // in Kafka a commit here fails with -1; here nothing lies between
	n := s.writes
	s.want("0", sweep)
	s.be("PrepareCommit 7/1")
	s.apply()
	s.want("0", sweep)
	if s.writes != n+1 {
		t.Error("the sweep wrote")
	}
}

// F26: the clock starts with the first participant, later ones do not extend it,
// an id without a transaction never times out, and two-phase commit has no
// timeout. KAFKA-14638: the bound is strict.
func TestF26_TheTimeoutRunsFromTheFirstParticipant(t *testing.T) {
	s := newScript(t)
	ev := initNew()
	ev.TimeoutMs = 1000
	s.want("0 100/0", ev)
	s.now += 5000
	if Overdue(s.rec, s.now) {
		t.Error("without a transaction")
	}
	s.want("0", Add{Producer: p(100, 0), Participants: []Participant{Group("g")}, Client: TV0}) // AddOffsets counts too
	start := s.now
	s.now = start + 900
	s.want("0", add(100, 0, a1))
	s.crash()
	for _, c := range []struct {
		after int64
		due   bool
	}{{999, false}, {1000, false}, {1001, true}, {-5000, false}} {
		if got := Overdue(s.rec, start+c.after); got != c.due {
			t.Errorf("after %d ms: %v", c.after, got)
		}
	}
	s.now = start + 1000
	s.want("0", TimedOut{Server: TV2, NewID: -1})
	s.be("Ongoing 100/0")
	s.now++
	s.want("0", TimedOut{Server: TV2, NewID: -1})
	s.be("PrepareAbort 100/1")
	if Overdue(s.rec, math.MaxInt64) {
		t.Error("a decided transaction times out")
	}
	s.apply()
	ev.TimeoutMs, ev.TwoPhase = 0, true
	s.want("0 100/2", ev)
	if s.rec.TimeoutMs != NoTimeout || !s.rec.TwoPhase {
		t.Fatal(s.rec)
	}
	s.want("0", add(100, 2, a0))
	if Overdue(s.rec, s.now+int64(NoTimeout)+1) {
		t.Error("KIP-939: a prepared transaction times out")
	}
	s.want("51", initNew())
	s.apply()
	s.want("0 100/4", initNew()) // without two-phase commit: the request's timeout again
	if s.rec.TimeoutMs != 60000 || s.rec.TwoPhase {
		t.Error(s.rec)
	}
}

// KAFKA-5415, KAFKA-8803: a clock that steps back breaks no transition and leaves
// no id busy.
func TestF26_AClockThatStepsBackBreaksNothing(t *testing.T) {
	s := scriptAt(t, 0)
	for _, ev := range []Event{initNew(), add(7, 1, a0), add(7, 1, b0), commit(7, 1)} {
		s.now -= 10_000
		if c, _ := s.do(ev); c != CodeNone {
			t.Fatalf("%s: %s", ev.Name(), c)
		}
	}
	s.now -= 10_000
	s.apply()
	s.now -= 10_000
	s.want("0", add(7, 2, a0))
	if Overdue(s.rec, s.now-10_000) {
		t.Error("it times out early")
	}
}

// ---- Failed writes

// KAFKA-5351, F01: a write that fails leaves nothing pending: the next request is
// answered as if the failed one had not been made.
func TestF01_AFailedWriteLeavesNothingBehind(t *testing.T) {
	for name, c := range map[string]struct {
		prepare []Event
		ev      Event
		want    string
	}{
		"Init":         {nil, initNew(), "0 7/1"},
		"Add":          {nil, add(7, 0, a0), "0"},
		"commit":       {[]Event{add(7, 0, a0)}, commit(7, 0), "0 7/1"},
		"abort":        {[]Event{add(7, 0, a0)}, abort1(7, 0), "0"},
		"no-op abort":  {nil, abortTxn(7, 0), "0 7/1"},
		"takeover":     {[]Event{add(7, 0, a0)}, initNew(), "51"},
		"forced abort": {[]Event{add(7, 0, a0)}, ForceAbort{Server: TV2, NewID: -1}, "0"},
		"confirmation": {[]Event{add(7, 0, a0), commit(7, 0)}, Applied{Producer: p(7, 1), TxnSeq: 1, Participants: []Participant{a0}}, "0"},
		"expiry":       {nil, Expire{}, "0"}, // KAFKA-7519, F24
	} {
		t.Run(name, func(t *testing.T) {
			s := scriptAt(t, 0)
			for _, ev := range c.prepare {
				s.do(ev)
			}
			was := s.rec
			s.down = true
			for range 3 {
				s.want("15", c.ev)
			}
			if !s.rec.Equal(was) {
				t.Fatalf("%s, was %s", s.rec, was)
			}
			s.down = false
			s.want(c.want, c.ev)
		})
	}
}

// F01: the write was done and the caller was told it was not. The retry ends in
// the same answer, whatever it was.
func TestF01_AnAmbiguousWriteIsAnsweredByTheRetry(t *testing.T) {
	for name, c := range map[string]struct {
		prepare []Event
		ev      Event
		retry   string
	}{
		"KIP-360 bump": {nil, initAs(7, 0), "0 7/1"},
		"plain bump":   {nil, initNew(), "0 7/2"},
		"add":          {nil, add(7, 0, a0), "0"},
		"commit":       {[]Event{add(7, 0, a0)}, commit(7, 0), "0 7/1"},
		"commit, TV1":  {[]Event{add(7, 0, a0)}, commit1(7, 0), "0"},
		"no-op abort":  {nil, abortTxn(7, 0), "0 7/1"},
		"takeover":     {[]Event{add(7, 0, a0)}, initNew(), "0 7/2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := scriptAt(t, 0)
			for _, ev := range append(c.prepare, c.ev) {
				s.do(ev)
			}
			if s.rec.State.Decided() {
				s.want("51", c.ev)
				s.apply()
			}
			s.want(c.retry, c.ev)
		})
	}
}

// KAFKA-14880, KAFKA-12772: a record is stored only with an identity that was
// granted, and only moves that Kafka's table of states has are made.
func TestOnlyMovesOfKafkasTableAreMade(t *testing.T) {
	for _, from := range States() {
		for _, to := range States() {
			rec, next := emptyAt(7, 0), emptyAt(7, 1)
			rec.State, next.State = from, to
			_, err := moved(rec, next, WriteDurable)
			if got, want := err == nil, slices.Contains(legal[to], from); got != want {
				t.Errorf("%s to %s: allowed %v", from, to, got)
			}
		}
	}
	const kafka = `Empty<Empty Empty<CompleteCommit Empty<CompleteAbort Ongoing<Ongoing Ongoing<Empty Ongoing<CompleteCommit Ongoing<CompleteAbort
PrepareCommit<Ongoing PrepareAbort<Ongoing PrepareAbort<Empty PrepareAbort<CompleteCommit PrepareAbort<CompleteAbort
CompleteCommit<PrepareCommit CompleteAbort<PrepareAbort`
	var got []string
	for to, froms := range legal {
		for _, from := range froms {
			got = append(got, fmt.Sprintf("%s<%s", State(to), from))
		}
	}
	if want := strings.Fields(kafka); !slices.Equal(got, want) {
		t.Errorf("the table is %v", got)
	}
}

// An operator's abort works on whoever holds the id, and says why it does not.
func TestForceAbortFencesTheHolder(t *testing.T) {
	force := ForceAbort{Server: TV2, NewID: -1}
	s := newScript(t)
	s.want("105", force)
	s.rec = emptyAt(7, 0)
	s.want("48", force)
	s.want("0", add(7, 0, a0))
	s.rec.TwoPhase, s.rec.TimeoutMs = true, NoTimeout // also a prepared one
	s.want("0", force)
	s.be("PrepareAbort 7/1")
	if !slices.Equal(s.fences, []Producer{p(7, 1)}) {
		t.Errorf("fences %v", s.fences)
	}
	s.want("51", force)
	s.apply()
	s.want("48", force)
	s.want("90", add(7, 0, a0))
}
