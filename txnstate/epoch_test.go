package txnstate

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// oneRecord is a store of one record, for one caller at a time.
type oneRecord struct{ rec Record }

func (s *oneRecord) Load(context.Context, string) (Record, error) { return s.rec.Clone(), nil }

func (s *oneRecord) Swap(_ context.Context, next Record, _ Durability) (Version, error) {
	if next.Version != s.rec.Version {
		return 0, ErrConflict
	}
	next.Version++
	s.rec = next
	return next.Version, nil
}

func (s *oneRecord) Delete(context.Context, string, Version) error { return ErrConflict }

func (s *oneRecord) Slot(_ context.Context, slot int) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if slot == Slot(s.rec.TxnID) {
			yield(s.rec.Clone(), nil)
		}
	}
}

// neverDelivers is a dispatcher and an allocator that do nothing.
type neverDelivers struct{}

func (neverDelivers) Dispatch(Outcome, func([]Participant)) {}
func (neverDelivers) Cancel(int, int32)                     {}
func (neverDelivers) Next(context.Context) (int64, error)   { return 1, nil }

// ownsAt owns a slot at an epoch.
type ownsAt struct {
	slot  int
	epoch int32
}

func (o ownsAt) Watch(ctx context.Context, acquired, _ func(int, int32)) error {
	acquired(o.slot, o.epoch)
	<-ctx.Done()
	return nil
}

// What was confirmed under one ownership does not complete the transaction under the
// next one of the same process, whose markers are on their way: if that one is lost
// too, the owner after it would find nothing to deliver (I4).
func TestACompletionIsStoredUnderItsOwnEpochOnly_I4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := Unknown("a")
		rec.State, rec.Producer, rec.PrevID, rec.TimeoutMs, rec.StartMs, rec.UpdateMs = PrepareCommit, Producer{ID: 7}, 7, 1000, 1, 1
		rec.Participants, rec.TxnSeq, rec.Version = []Participant{Partition("t", 0)}, 1, 1
		require.NoError(t, Check(rec))
		s := &oneRecord{rec}
		c, err := New(Config{Store: s, ProducerIDs: neverDelivers{}, Dispatcher: neverDelivers{}, Ownership: ownsAt{Slot("a"), 4}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run(ctx)
		}()
		synctest.Wait()
		finish := func(epoch int32) State {
			comp := &completion{h: hash32("a"), rec: rec, outcome: rec.Outcome(epoch), done: make(chan struct{})}
			c.finish(ctx, comp)
			return s.rec.State
		}
		require.Equal(t, PrepareCommit, finish(3))
		require.Equal(t, CompleteCommit, finish(4))
		cancel()
		<-done
	})
}
