package journal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// answer collects what a call beside the test has to say.
type answer struct {
	mu   sync.Mutex
	done bool
	err  error
}

func beside(call func() error) *answer {
	a := new(answer)
	go func() {
		err := call()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.done, a.err = true, err
	}()
	return a
}

func (a *answer) get() (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.done, a.err
}

func inBubble(t *testing.T, test func(t *testing.T, fsys *crashfs.FS, s *journal.Store)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := freshDisk(t)
		s, err := journal.Open(journal.Config{Dir: dir, FS: fsys}) // no snapshot in these tests
		require.NoError(t, err)
		test(t, fsys, s)
		require.NoError(t, s.Close()) // and the bubble sees to it that nothing outlives it
	})
}

// I1 rests on this: a Durable write is neither answered nor seen before its sync
// is done, and a Load that would have to say what it was before waits as well.
func TestNothingIsAnsweredBeforeItsSync(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		ctx := t.Context()
		old, err := s.Swap(ctx, idle("a"), txnstate.Durable)
		require.NoError(t, err)
		_, err = s.Swap(ctx, idle("b"), txnstate.Durable)
		require.NoError(t, err)
		release := fsys.HoldSyncs()

		next := working("a")
		next.Version = old
		waiting := map[string]*answer{
			"swap": beside(func() error { _, err := s.Swap(ctx, next, txnstate.Durable); return err }),
		}
		synctest.Wait()
		waiting["load"] = beside(func() error {
			r, err := s.Load(ctx, "a")
			if err == nil && r.State != txnstate.Ongoing {
				err = fmt.Errorf("load gives %v", r)
			}
			return err
		})
		waiting["visit"] = beside(func() error {
			for r, err := range s.Slot(ctx, txnstate.Slot("a")) {
				if err != nil || r.State != txnstate.Ongoing {
					return fmt.Errorf("visit gives %v, %w", r, err)
				}
			}
			return nil
		})
		waiting["create"] = beside(func() error { _, err := s.Swap(ctx, idle("new"), txnstate.Durable); return err })
		waiting["flush"] = beside(func() error { return s.Flush(ctx) })
		lost := beside(func() error { _, err := s.Swap(ctx, next, txnstate.Later); return err })
		synctest.Wait()
		for what, a := range waiting {
			done, _ := a.get()
			assert.False(t, done, what)
		}
		done, _ := lost.get()
		assert.False(t, done, "a swap that another one is ahead of")
		_, now := s.SwapNow(next)
		assert.False(t, now, "it does not wait")
		_, _, begun := s.SwapStart(next)
		assert.False(t, begun, "another write of the id is under way")
		_, seen := s.LoadNow("a")
		assert.False(t, seen, "what it will be is not known yet")

		// Other ids are not kept waiting by what is not a write.
		r, err := s.Load(ctx, "b")
		require.NoError(t, err)
		_, err = s.Swap(ctx, r, txnstate.Later)
		require.NoError(t, err)

		release()
		synctest.Wait()
		for what, a := range waiting {
			done, err := a.get()
			assert.True(t, done, what)
			assert.NoError(t, err, what)
		}
		_, err = lost.get()
		require.ErrorIs(t, err, txnstate.ErrConflict)
		after, err := open(fsys.Image(0))
		require.NoError(t, err)
		for _, id := range []string{"a", "new"} {
			_, err := after.Load(ctx, id)
			require.NoError(t, err)
		}
		require.NoError(t, after.Close())
	})
}

// A Flush waits for the Later writes that are on their way with somebody else's.
func TestAFlushWaitsForWhatIsBeingWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		ctx := t.Context()
		release := fsys.HoldSyncs()
		v, err := s.Swap(ctx, idle("later"), txnstate.Later)
		require.NoError(t, err)
		swap := beside(func() error { _, err := s.Swap(ctx, idle("durable"), txnstate.Durable); return err })
		synctest.Wait()
		flush := beside(func() error { return s.Flush(ctx) })
		synctest.Wait()
		for _, a := range []*answer{swap, flush} {
			done, _ := a.get()
			require.False(t, done)
		}
		release()
		synctest.Wait()
		for _, a := range []*answer{swap, flush} {
			done, err := a.get()
			require.True(t, done)
			require.NoError(t, err)
		}
		after, err := journal.Open(journal.Config{Dir: dir, FS: fsys.Image(0)})
		require.NoError(t, err)
		r, err := after.Load(ctx, "later")
		require.NoError(t, err)
		require.Equal(t, v, r.Version)
		require.NoError(t, after.Close())
	})
}

// The same of a write that nobody waits for: it says itself when it is done.
func TestAWriteThatWasBegunIsDoneWithItsSync(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		next := idle("a")
		var err error
		next.Version, err = s.Swap(t.Context(), next, txnstate.Durable)
		require.NoError(t, err)
		release := fsys.HoldSyncs()
		next.State = txnstate.Ongoing
		v, p, ok := s.SwapStart(next)
		require.True(t, ok)
		synctest.Wait()
		select {
		case <-p.Done():
			t.Fatal("done before its sync")
		default:
		}
		release()
		<-p.Done()
		require.NoError(t, p.Err())
		now, ok := s.LoadNow("a")
		require.True(t, ok)
		assert.Equal(t, v, now.Version)
		assert.Equal(t, txnstate.Ongoing, now.State)

		_, _, ok = s.SwapStart(next)
		assert.False(t, ok, "from a version that is over")
		next.Version = v
		fsys.FailSync(0)
		_, p, ok = s.SwapStart(next)
		require.True(t, ok)
		<-p.Done()
		require.ErrorIs(t, p.Err(), txnstate.ErrUncertain)
		_, ok = s.LoadNow("a")
		assert.False(t, ok, "nothing is said before the repair")
		_, _, ok = s.SwapStart(next)
		assert.False(t, ok)
	})
}

// A write that waits behind one that fails is not told to be done: it is in no file
// yet, and where the process ends before the repair it never will be (I1, I11).
func TestWhatWaitsBehindAFailedWriteIsNotDone_I1(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		begun := idle("begun")
		var err error
		begun.Version, err = s.Swap(t.Context(), begun, txnstate.Durable)
		require.NoError(t, err)
		release := fsys.HoldSyncs()
		fsys.FailSync(0)
		first := beside(func() error { _, err := s.Swap(t.Context(), idle("first"), txnstate.Durable); return err })
		synctest.Wait()
		second := beside(func() error { _, err := s.Swap(t.Context(), idle("second"), txnstate.Durable); return err })
		begun.State = txnstate.Ongoing
		_, p, ok := s.SwapStart(begun)
		require.True(t, ok)
		synctest.Wait()
		flush := beside(func() error { return s.Flush(t.Context()) })
		synctest.Wait()
		release()
		synctest.Wait()
		for _, a := range []*answer{first, second, flush} {
			done, err := a.get()
			require.True(t, done)
			require.ErrorIs(t, err, txnstate.ErrUncertain)
		}
		<-p.Done()
		require.ErrorIs(t, p.Err(), txnstate.ErrUncertain)
	})
}

// A caller that goes is told that nobody knows. Its write goes on, and no Load
// answers without it from then on.
func TestACallerThatStopsWaitingIsUnsure(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		release := fsys.HoldSyncs()
		ctx, cancel := context.WithCancel(t.Context())
		swap := beside(func() error { _, err := s.Swap(ctx, idle("a"), txnstate.Durable); return err })
		synctest.Wait()
		cancel()
		synctest.Wait()
		done, err := swap.get()
		require.True(t, done)
		require.ErrorIs(t, err, txnstate.ErrUncertain)
		require.ErrorIs(t, err, context.Canceled)

		ctx, cancel = context.WithCancel(t.Context())
		impatient := beside(func() error { _, err := s.Load(ctx, "a"); return err })
		patient := beside(func() error { _, err := s.Load(t.Context(), "a"); return err })
		cancel()
		synctest.Wait()
		_, err = impatient.get()
		require.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, txnstate.ErrNotFound, "it may yet be there")
		release()
		synctest.Wait()
		done, err = patient.get()
		require.True(t, done)
		require.NoError(t, err)
	})
}

// Those who come while a sync is under way share the next one.
func TestOneSyncServesAllWhoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		release := fsys.HoldSyncs()
		first := beside(func() error { _, err := s.Swap(t.Context(), idle("first"), txnstate.Durable); return err })
		synctest.Wait()
		before := fsys.Syncs()
		rest := make([]*answer, 200)
		for i := range rest {
			rest[i] = beside(func() error {
				_, err := s.Swap(t.Context(), idle(fmt.Sprint("rest-", i)), txnstate.Durable)
				return err
			})
		}
		synctest.Wait()
		release()
		synctest.Wait()
		for _, a := range append(rest, first) {
			done, err := a.get()
			assert.True(t, done)
			require.NoError(t, err)
		}
		assert.Equal(t, 2, fsys.Syncs()-before)
	})
}

// Close waits for a write under way, and takes along what waits for a sync.
func TestCloseMakesEverythingDurable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fsys := freshDisk(t)
		s, err := open(fsys)
		require.NoError(t, err)
		release := fsys.HoldSyncs()
		swap := beside(func() error { _, err := s.Swap(t.Context(), idle("a"), txnstate.Durable); return err })
		synctest.Wait()
		next := beside(func() error { _, err := s.Swap(t.Context(), idle("b"), txnstate.Durable); return err })
		_, err = s.Swap(t.Context(), idle("c"), txnstate.Later)
		require.NoError(t, err)
		closed := beside(s.Close)
		synctest.Wait()
		done, _ := closed.get()
		assert.False(t, done)
		release()
		synctest.Wait()
		for _, a := range []*answer{swap, next, closed} {
			done, err := a.get()
			assert.True(t, done)
			require.NoError(t, err)
		}
		after, err := open(fsys.Image(0))
		require.NoError(t, err)
		got, err := contents(t.Context(), after)
		require.NoError(t, err)
		assert.Len(t, got, 3)
		require.NoError(t, after.Close())
	})
}

// A Later write causes no sync, but what waits for one has a bound.
func TestLaterWritesWaitForSomebodysSyncUpToABound(t *testing.T) {
	inBubble(t, func(t *testing.T, fsys *crashfs.FS, s *journal.Store) {
		before := fsys.Syncs()
		for i := range 1000 {
			_, err := s.Swap(t.Context(), idle(fmt.Sprint("id-", i)), txnstate.Later)
			require.NoError(t, err)
		}
		synctest.Wait()
		assert.Equal(t, before, fsys.Syncs())
		for i := range 20_000 {
			_, err := s.Swap(t.Context(), idle(fmt.Sprint("more-", i)), txnstate.Later)
			require.NoError(t, err)
		}
		synctest.Wait()
		after, err := open(fsys.Image(0))
		require.NoError(t, err)
		got, err := contents(t.Context(), after)
		require.NoError(t, err)
		assert.Greater(t, len(got), 10_000)
		require.NoError(t, after.Close())
	})
}

// Callers of many ids, while snapshots are written and the power fails at some
// moment: of each id the last acknowledged record is there, or a later one.
func TestPowerFailsUnderManyCallers(t *testing.T) {
	t.Parallel()
	for k := 40; k < 400; k += 9 {
		fsys := freshDisk(t)
		fsys.CrashAt(k)
		s, err := open(fsys)
		require.NoError(t, err)
		const callers = 12
		var sure, tried [callers]int64
		var wg sync.WaitGroup
		for w := range callers {
			wg.Go(func() {
				r := working(fmt.Sprint("id-", w))
				for n := int64(1); ; n++ {
					r.UpdateMs = n
					tried[w] = n
					d := txnstate.Durability(n%3 != 0)
					v, err := s.Swap(context.Background(), r, d)
					if err != nil {
						return
					}
					r.Version = v
					if d == txnstate.Durable {
						sure[w] = n
					}
				}
			})
		}
		wg.Wait()
		_ = s.Close() // it has crashed
		for seed := range uint64(4) {
			after, err := open(fsys.Image(seed))
			require.NoError(t, err)
			got, err := contents(t.Context(), after)
			require.NoError(t, err)
			for w := range callers {
				n := got[fmt.Sprint("id-", w)].UpdateMs
				if got[fmt.Sprint("id-", w)].TxnID == "" {
					n = 0
				}
				if n < sure[w] || n > tried[w] {
					t.Errorf("crash at %d, seed %d: caller %d finds write %d, number %d was acknowledged", k, seed, w, n, sure[w])
				}
			}
			require.NoError(t, after.Close())
		}
	}
}
