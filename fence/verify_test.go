package fence_test

import (
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// verify asks for a batch and fails the test where nobody is to be asked.
func (h *host) verify(b fence.Batch, mode fence.Mode) fence.Guard {
	h.t.Helper()
	g, ask, err := h.p.Verify(b, mode, h.now)
	if err != nil || !ask {
		h.t.Fatalf("Verify: ask %v, %v", ask, err)
	}
	return g
}

func TestWhoIsAskedFor(t *testing.T) {
	off := fence.Config{NoVerification: true}
	for _, c := range []struct {
		name string
		cfg  fence.Config
		b    fence.Batch
		mode fence.Mode
		ask  bool
		err  string
	}{
		{"the first of a transaction", fence.Config{}, batch(1, 0, 0, 1), fence.ModeDefault, true, "NONE"},
		{"the first of a transaction, generic", fence.Config{}, batch(1, 0, 0, 1), fence.ModeGeneric, true, "NONE"},
		{"the first of a transaction, TV2", fence.Config{}, batch(1, 0, 0, 1), fence.ModeAdd, true, "NONE"},
		{"a batch outside of transactions", fence.Config{}, plain(1, 0, 0, 1), fence.ModeAdd, false, "NONE"},
		{"a batch of an open transaction", fence.Config{}, batch(7, 5, 1, 1), fence.ModeAdd, false, "NONE"},
		{"one of a later epoch", fence.Config{}, batch(7, 6, 0, 1), fence.ModeAdd, true, "NONE"},
		{"a stale one (KAFKA-18042)", fence.Config{}, batch(7, 4, 0, 1), fence.ModeAdd, false, staleEpoch},
		{"verification off", off, batch(1, 0, 0, 1), fence.ModeDefault, false, "NONE"},
		{"verification off, stale", off, batch(7, 4, 0, 1), fence.ModeGeneric, false, "NONE"},
		{"verification off, TV2 adds all the same", off, batch(1, 0, 0, 1), fence.ModeAdd, true, "NONE"},
	} {
		p := fence.NewPartition(c.cfg)
		g, _, _ := p.Verify(batch(7, 5, 0, 1), fence.ModeDefault, 0)
		r, err := p.Reserve(batch(7, 5, 0, 1), g, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(0)
		_, ask, err := p.Verify(c.b, c.mode, 0)
		if ask != c.ask || codeOf(err) != c.err {
			t.Errorf("%s: ask %v, %v", c.name, ask, err)
		}
	}
}

// Nothing enters the log of which no coordinator knows (KIP-890, W18, F23).
func TestF23_W18_ATransactionalBatchNeedsItsGuard(t *testing.T) {
	h := newHost(t)
	b := batch(7, 0, 0, 1)
	h.want("never asked", h.append(b, fence.Guard{}), invalidState)
	g := h.verify(b, fence.ModeDefault)
	h.want("another partition's guard", h.append(b, newHost(t).verify(b, fence.ModeDefault)), invalidState)
	h.want("another producer's", h.append(b, h.verify(batch(8, 0, 0, 1), fence.ModeDefault)), invalidState)
	h.want("its own", h.append(b, g), "0")
	h.want("none, while the transaction is open", h.append(batch(7, 0, 1, 1), fence.Guard{}), "1")
	h.commit(7, 0)
	h.want("the old one", h.append(batch(7, 0, 2, 1), g), invalidState)
	h.want("a stale epoch, which is tested first (KAFKA-19690)", func() string { h.abort(7, 1); return h.append(batch(7, 0, 2, 1), g) }(), staleEpoch)
	if lso := h.p.LastStable(h.end); lso != h.end {
		t.Errorf("last stable %d of %d", lso, h.end)
	}

	p := fence.NewPartition(fence.Config{NoVerification: true})
	if _, err := p.Reserve(b, fence.Guard{}, 0); err != nil {
		t.Errorf("verification off: %v", err)
	}
}

// F23: the transaction has timed out while its producer was away.
func TestF23_ABatchBehindTheAbortOfItsTransaction(t *testing.T) {
	h := newHost(t)
	b := batch(7, 0, 0, 1)
	h.produce(b, fence.ModeAdd)
	g := h.verify(batch(7, 1, 0, 1), fence.ModeAdd) // asked while the marker is on its way
	h.mark(markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 1}, TransactionVersion: txnstate.TV2})
	h.want("the old epoch", h.produce(batch(7, 0, 1, 1), fence.ModeAdd), staleEpoch)
	if lso := h.p.LastStable(h.end); lso != h.end {
		t.Errorf("last stable %d of %d", lso, h.end)
	}
	h.want("the next transaction, which was early", h.append(batch(7, 1, 0, 1), g), "2")
}

// What a marker does to a question that was asked before it: KAFKA-16570 and the
// answers of Kafka 4.4.
func TestMarkersAndWhatWasAskedBefore(t *testing.T) {
	for _, c := range []struct {
		name  string
		mode  fence.Mode // of the question, at epoch 5
		epoch int16      // of the marker
		tv    txnstate.TransactionVersion
		kept  bool
	}{
		{"TV1, the epoch it was asked at", fence.ModeDefault, 5, txnstate.TV0, false},
		{"TV1, generic", fence.ModeGeneric, 5, txnstate.TV0, false},
		{"TV1, a later epoch", fence.ModeDefault, 6, txnstate.TV0, false},
		{"TV2, the marker of the transaction before", fence.ModeAdd, 5, txnstate.TV2, true},
		{"TV2, though the marker is of TV1", fence.ModeAdd, 5, txnstate.TV0, true},
		{"TV2, the transaction's own marker", fence.ModeAdd, 6, txnstate.TV2, false},
		{"TV2, an older marker", fence.ModeAdd, 4, txnstate.TV2, false},
	} {
		h := newHost(t)
		g := h.verify(batch(7, 5, 0, 1), c.mode)
		if got := h.mark(markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: c.epoch}, TransactionVersion: c.tv}); got != "0" {
			t.Fatalf("%s: the marker: %s", c.name, got)
		}
		want := invalidState
		if c.kept {
			want = "1"
		} else if c.epoch > 5 {
			want = staleEpoch
		}
		h.want(c.name, h.append(batch(7, 5, 0, 1), g), want)
	}
}

func TestTheEntryStaysUntilABatchIsIn(t *testing.T) {
	h := newHost(t)
	g := h.verify(batch(7, 0, 0, 1), fence.ModeDefault)
	// The coordinator has refused; the client tries again.
	if g2 := h.verify(batch(7, 0, 0, 1), fence.ModeDefault); g2 != g {
		t.Error("a second question gave another token")
	}
	if g2 := h.verify(batch(7, 3, 0, 1), fence.ModeDefault); g2 != g {
		t.Error("another epoch gave another token: it is one per producer id")
	}
	h.want("a batch outside of transactions", h.produce(plain(7, 0, 0, 1), fence.ModeDefault), "0")
	h.want("a refused one", h.append(batch(7, 0, 5, 1), g), outOfOrder)
	r, err := h.p.Reserve(batch(7, 3, 0, 1), g, h.now)
	if err != nil {
		t.Fatal(err)
	}
	r.Cancel()
	if g2 := h.verify(batch(7, 3, 0, 1), fence.ModeDefault); g2 != g {
		t.Error("a failed append took the entry along")
	}
	h.want("the batch", h.append(batch(7, 3, 0, 1), g), "1")
	h.commit(7, 3)
	if g2 := h.verify(batch(7, 3, 1, 1), fence.ModeDefault); g2 == g {
		t.Error("the next transaction has the token of the one before")
	}
}

// An entry lives for ExpireAfter from the first question: asking again does not keep
// it alive, so that no answer is believed for longer (I7).
func TestAskingAgainDoesNotProlongAnAnswer(t *testing.T) {
	h := newHost(t)
	h.p = fence.NewPartition(fence.Config{ExpireAfter: time.Hour})
	b := batch(7, 0, 0, 1)
	g := h.verify(b, fence.ModeDefault)
	for range 3 {
		h.now += hour / 4
		if again := h.verify(b, fence.ModeDefault); again != g {
			t.Fatal("a question within the hour gave another token")
		}
	}
	h.now += hour / 4
	h.want("an answer of an hour ago", h.append(b, g), invalidState)
	if again := h.verify(b, fence.ModeDefault); again == g {
		t.Error("the entry is still there after an hour")
	}
}

// The lowest sequence binds every batch of the producer id (KAFKA-14561, and as
// recorded).
func TestTheLowestSequenceAskedAbout(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  []fence.Batch
		try  fence.Batch
		want string
	}{
		{"below", []fence.Batch{batch(7, 0, 5, 1)}, batch(7, 0, 4, 1), "0"},
		{"at", []fence.Batch{batch(7, 0, 5, 1)}, batch(7, 0, 5, 1), "0"},
		{"above", []fence.Batch{batch(7, 0, 5, 1)}, batch(7, 0, 6, 1), outOfOrder},
		{"above the lower of two", []fence.Batch{batch(7, 0, 9, 1), batch(7, 0, 5, 1)}, batch(7, 0, 9, 1), outOfOrder},
		{"a later question with a higher one changes nothing", []fence.Batch{batch(7, 0, 5, 1), batch(7, 0, 9, 1)}, batch(7, 0, 6, 1), outOfOrder},
		{"a higher epoch takes over", []fence.Batch{batch(7, 0, 0, 1), batch(7, 1, 8, 1)}, batch(7, 1, 8, 1), "0"},
		{"and binds the epoch before", []fence.Batch{batch(7, 0, 9, 1), batch(7, 1, 0, 1)}, batch(7, 0, 9, 1), outOfOrder},
		{"a lower epoch changes nothing", []fence.Batch{batch(7, 1, 8, 1), batch(7, 0, 0, 1)}, batch(7, 1, 8, 1), "0"},
		{"batches outside of transactions too", []fence.Batch{batch(7, 0, 5, 1)}, plain(7, 0, 6, 1), outOfOrder},
		{"not those of other producers", []fence.Batch{batch(7, 0, 5, 1)}, plain(8, 0, 6, 1), "0"},
	} {
		h := newHost(t)
		var g fence.Guard
		for _, b := range c.ask {
			g = h.verify(b, fence.ModeDefault)
		}
		h.want(c.name, h.append(c.try, g), c.want)
	}
}

// The flag of the request that made the entry stays with it, whoever asks later.
func TestTheEntryKeepsTheModeItWasMadeWith(t *testing.T) {
	h := newHost(t)
	h.verify(batch(7, 0, 4, 1), fence.ModeAdd)
	g := h.verify(batch(7, 1, 4, 1), fence.ModeDefault)
	h.want("made by TV2", h.append(batch(7, 1, 4, 1), g), outOfOrder)
	h.want("and outside of transactions", h.append(plain(7, 1, 4, 1), fence.Guard{}), outOfOrder)
	h = newHost(t)
	h.verify(batch(7, 0, 4, 1), fence.ModeDefault)
	g = h.verify(batch(7, 1, 4, 1), fence.ModeAdd)
	h.want("made by TV1", h.append(batch(7, 1, 4, 1), g), "0")
}

func TestAQuestionThatCameToNothingIsForgotten(t *testing.T) {
	h := newHost(t)
	g := h.verify(batch(7, 0, 0, 1), fence.ModeDefault)
	h.now += (24*time.Hour - time.Millisecond).Milliseconds()
	h.want("it binds to the last", h.append(plain(7, 0, 3, 1), fence.Guard{}), outOfOrder)
	h.now++
	h.want("its token is worth nothing", h.append(batch(7, 0, 0, 1), g), invalidState)
	h.want("and it binds nobody", h.append(plain(7, 0, 3, 1), fence.Guard{}), "0")
}

func TestOffsetsOfAGroup(t *testing.T) {
	h := newHost(t)
	who := txnstate.Producer{ID: 7, Epoch: 2}
	stage := func(who txnstate.Producer, g fence.Guard) string {
		r, err := h.p.ReserveOffsets(who, g, h.now)
		if err == nil {
			h.put(logged{b: fence.Batch{Producer: who, FirstSequence: -1, Records: 1, MaxTimestampMs: h.now, Transactional: true}}, r)
		}
		return codeOf(err)
	}
	_, ask, err := h.p.VerifyOffsets(txnstate.NoProducer, fence.ModeAdd, h.now)
	if !ask || err != nil {
		t.Errorf("producer id -1 is asked about like any other: %v, %v", ask, err)
	}
	h.want("producer id -1", stage(txnstate.NoProducer, fence.Guard{}), "INVALID_PRODUCER_ID_MAPPING")
	h.want("not verified", stage(who, fence.Guard{}), invalidState)
	g, ask, err := h.p.VerifyOffsets(who, fence.ModeAdd, h.now)
	if !ask || err != nil {
		t.Fatal(ask, err)
	}
	if _, ask, err := h.p.VerifyOffsets(txnstate.Producer{ID: 7, Epoch: -2}, fence.ModeAdd, h.now); !ask || err != nil {
		t.Errorf("an epoch below any is asked about where none is known: %v, %v", ask, err)
	}
	h.want("verified", stage(who, g), "NONE")
	if _, ask, err := h.p.VerifyOffsets(who, fence.ModeAdd, h.now); ask || err != nil {
		t.Errorf("while it is open nobody is asked: %v, %v", ask, err)
	}
	h.want("again: there are no duplicates", stage(who, fence.Guard{}), "NONE")
	if st, ok := h.p.Producer(7); !ok || !st.Open || st.OpenSince != 0 || st.LastSequence != -1 {
		t.Errorf("%+v", st)
	}
	h.mark(markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 3}, Commit: true, TransactionVersion: txnstate.TV2})
	if _, _, err := h.p.VerifyOffsets(who, fence.ModeAdd, h.now); codeOf(err) != staleEpoch {
		t.Errorf("an older epoch: %v", err)
	}
	h.want("an older epoch", stage(who, fence.Guard{}), staleEpoch)
	if got, want := known(h.rebuilt(nil), h.end), known(h.p, h.end); got != want {
		t.Errorf("rebuilt:\n%s\nwant\n%s", got, want)
	}
}

func TestModes(t *testing.T) {
	for version, want := range map[int16]fence.Mode{3: fence.ModeDefault, 10: fence.ModeDefault, 11: fence.ModeGeneric, 12: fence.ModeAdd, 13: fence.ModeAdd} {
		if got := fence.ProduceMode(version); got != want {
			t.Errorf("Produce v%d: %s", version, got)
		}
	}
	for version, want := range map[int16]fence.Mode{0: fence.ModeDefault, 3: fence.ModeDefault, 4: fence.ModeGeneric, 5: fence.ModeAdd, 6: fence.ModeAdd} {
		if got := fence.OffsetCommitMode(version); got != want {
			t.Errorf("TxnOffsetCommit v%d: %s", version, got)
		}
	}
}

func TestWhatAProducerIsTold(t *testing.T) {
	for _, c := range []struct{ from, inDefault, generic, add txnstate.Code }{
		{txnstate.CodeNetworkException, 19, 19, 19},
		{txnstate.CodeCoordinatorLoading, 19, 19, 19},
		{txnstate.CodeCoordinatorNotAvailable, 19, 19, 19},
		{txnstate.CodeNotCoordinator, 19, 19, 19},
		{txnstate.CodeConcurrentTransactions, 19, 19, 51},
		{txnstate.CodeInvalidTxnState, 48, 48, 48},
		{txnstate.CodeTransactionAbortable, 48, 120, 120},
		{txnstate.CodeProducerFenced, 47, 47, 47},
		{txnstate.CodeClusterAuthorization, 48, 48, 48},
		{txnstate.CodeInvalidProducerEpoch, 47, 47, 47},
		{txnstate.CodeInvalidProducerIDMapping, 49, 49, 49},
		{txnstate.CodeInvalidRequest, 42, 42, 42},
		{txnstate.CodeOperationNotAttempted, 55, 55, 55},
		{txnstate.CodeUnknownTopicOrPartition, 3, 3, 3},
		{txnstate.CodeNone, 0, 0, 0},
	} {
		for mode, want := range map[fence.Mode]txnstate.Code{fence.ModeDefault: c.inDefault, fence.ModeGeneric: c.generic, fence.ModeAdd: c.add} {
			if got := mode.ProduceAnswer(c.from); got != want {
				t.Errorf("%s, %s: %s, want %s", c.from, mode, got, want)
			}
		}
	}
}
