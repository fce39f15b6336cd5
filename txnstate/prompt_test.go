package txnstate_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// starting is a store that begins its Durable writes: hold keeps them from being
// done until the test lets go.
type starting struct {
	*scriptStore
	mu   sync.Mutex
	hold chan struct{}
}

type begun struct {
	done chan struct{}
	err  error
}

func (b *begun) Done() <-chan struct{} { return b.done }
func (b *begun) Err() error            { return b.err }

func (s *starting) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if ctx.Err() != nil {
		return txnstate.Record{}, ctx.Err()
	}
	return s.scriptStore.Load(ctx, id)
}

func (s *starting) LoadNow(id string) (txnstate.Record, bool) {
	if s.onLoad != nil {
		return txnstate.Record{}, false // the test's hook may want to wait
	}
	r, err := s.Load(bg, id)
	return r, err == nil
}

func (s *starting) SwapStart(next txnstate.Record) (txnstate.Version, txnstate.Pending, bool) {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	now := s.get(next.TxnID)
	if now.Version != next.Version {
		return 0, nil, false
	}
	v := s.number()
	b := &begun{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		if hold != nil {
			<-hold
		}
		_, b.err = s.swap(bg, next, txnstate.Durable, v)
	}()
	return v, b, true
}

// held keeps writes that are begun from now on until the function is called.
func (s *starting) held() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{})
	s.hold = hold
	return func() {
		s.mu.Lock()
		s.hold = nil
		s.mu.Unlock()
		close(hold)
	}
}

type said struct {
	p   txnstate.Producer
	err error
}

func endBeside(ctx context.Context, c *txnstate.Coordinator, p txnstate.Producer) <-chan said {
	out := make(chan said, 1)
	go func() {
		next, err := c.End(ctx, "a", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		out <- said{next, err}
	}()
	return out
}

// Whoever waits for a write that was begun may leave: it is finished, its markers
// leave, and the next in turn finds what it has made.
func TestACallerThatLeavesAWriteUnderWayChangesNothing_I1_I5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := &starting{scriptStore: newScriptStore()}, &held{auto: true}
		c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerWhenApplied})
		p := initID(t, c, "a")
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		require.NoError(t, c.Add(ctx, "a", txnstate.Add{Producer: p, Participants: []txnstate.Participant{tp0}, Client: txnstate.TV2}))
		release := s.held()
		end := endBeside(ctx, c, p)
		synctest.Wait()
		require.Empty(t, h.outcomes(), "no marker before the decision is durable")
		cancel()
		e := <-end
		require.ErrorIs(t, e.err, txnstate.ErrCoordinatorNotAvailable)
		require.ErrorIs(t, e.err, context.Canceled)
		again := endBeside(bg, c, p)
		synctest.Wait()
		require.Empty(t, again, "the turn is still the first one's")
		require.Empty(t, h.outcomes())
		release()
		synctest.Wait()
		require.Len(t, h.outcomes(), 1)
		require.ErrorIs(t, (<-again).err, txnstate.ErrConcurrentTransactions, "it finds the decision")
		require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
		e = <-endBeside(bg, c, p)
		require.NoError(t, e.err)
		require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 1}, e.p)
	})
}

// The store can't say whether a write that was begun is done: the record tells.
func TestAWriteUnderWayThatNobodyIsSureOfIsLookedUp_I11(t *testing.T) {
	lost := errors.New("the disk is gone")
	for _, tc := range []struct {
		name          string
		before, after error
	}{
		{"done", nil, errors.Join(txnstate.ErrUncertain, lost)},
		{"not done", errors.Join(txnstate.ErrUncertain, lost), nil},
		{"another came first", txnstate.ErrConflict, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, h := &starting{scriptStore: newScriptStore()}, &held{auto: true}
				c := start(t, txnstate.Config{Store: s, Dispatcher: h, EndWait: txnstate.AnswerWhenApplied})
				p := initID(t, c, "a")
				require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
				fail := true
				s.onSwap = func(_ txnstate.Record, d txnstate.Durability) (error, error) {
					if !fail || d == txnstate.Later {
						return nil, nil
					}
					fail = false
					return tc.before, tc.after
				}
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				e := <-endBeside(ctx, c, p)
				require.NoError(t, e.err, "said by what is stored, or decided once more")
				require.Equal(t, txnstate.Producer{ID: p.ID, Epoch: 1}, e.p)
				synctest.Wait()
				require.Len(t, h.outcomes(), 1)
				require.Equal(t, txnstate.CompleteCommit, s.get("a").State)
				require.False(t, fail)
			})
		})
	}
}

// Run ends although a write that was begun is never done.
func TestRunDoesNotWaitForAWriteThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starting{scriptStore: newScriptStore()}
		c, err := txnstate.New(txnstate.Config{Store: s, Dispatcher: &held{auto: true}, ProducerIDs: &counter{n: 99}})
		require.NoError(t, err)
		stop := run(t, c)
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		defer s.held()()
		end := endBeside(bg, c, p)
		synctest.Wait()
		stop()
		require.Error(t, (<-end).err)
	})
}

// The host hears the same of a change whoever works it off: the caller, a goroutine
// of the coordinator, or the one that takes over from a caller who leaves.
func TestObserversHearOfEveryChangeOnce(t *testing.T) {
	for _, way := range []string{"waited for", "begun", "begun and left"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var told []string
				tell := func(s string) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, s)
				}
				s := &starting{scriptStore: newScriptStore()}
				var store txnstate.Store = s.scriptStore
				if way != "waited for" {
					store = s
				}
				c := start(t, txnstate.Config{Store: store, Dispatcher: &held{auto: true}, EndWait: txnstate.AnswerWhenApplied,
					Observer: txnstate.Observer{
						Transition: func(from txnstate.State, rec txnstate.Record) { tell(from.String() + "-" + rec.State.String()) },
						Refused:    func(_, event string, _ error) { tell("refused " + event) },
					}})
				p := initID(t, c, "a")
				told = nil
				require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
				require.Error(t, add(c, "a", txnstate.Producer{ID: p.ID, Epoch: 7}, txnstate.TV2, tp1))
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				release := func() {}
				if way == "begun and left" {
					release = s.held()
				}
				end := endBeside(ctx, c, p)
				synctest.Wait()
				if way == "begun and left" {
					cancel()
					require.Error(t, (<-end).err)
				}
				release()
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, []string{
					txnstate.Empty.String() + "-" + txnstate.Ongoing.String(),
					"refused Add",
					txnstate.Ongoing.String() + "-" + txnstate.PrepareCommit.String(),
					txnstate.PrepareCommit.String() + "-" + txnstate.CompleteCommit.String(),
				}, told)
			})
		})
	}
}

// F02, F14: of a write under way whose caller has left, and whose slot is lost before
// it is done, no marker leaves here either.
func TestF02_F14_AWriteUnderWayThatOutlivesItsOwnershipIsTheNextOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starting{scriptStore: newScriptStore()}
		a, b := newSeat(t, s), newSeat(t, s.scriptStore)
		a.own("a", 5)
		p := initID(t, a.Coordinator, "a")
		require.NoError(t, add(a.Coordinator, "a", p, txnstate.TV2, tp0))
		release := s.held()
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		end := endBeside(ctx, a.Coordinator, p)
		synctest.Wait()
		cancel()
		require.Error(t, (<-end).err)
		a.lose("a", 5)
		b.own("a", 6)
		release()
		synctest.Wait()
		require.Equal(t, txnstate.PrepareCommit, s.get("a").State)
		require.Empty(t, a.outcomes(), "a deposed coordinator sends nothing")
		require.ErrorIs(t, (<-endBeside(bg, b.Coordinator, p)).err, txnstate.ErrConcurrentTransactions)
		require.Len(t, b.outcomes(), 1)
	})
}

// hanging is an Ownership of all slots, which takes its time to say so once more.
type hanging struct {
	hang *atomic.Bool
	gate chan struct{}
}

func (h hanging) Watch(ctx context.Context, yes, _ func(slot int, epoch int32)) error {
	for i := range txnstate.Slots {
		yes(i, 1)
	}
	<-ctx.Done()
	return nil
}

func (h hanging) Still(context.Context, int, int32) (bool, error) {
	if h.hang.Load() {
		<-h.gate
	}
	return true, nil
}

// A caller may leave while somebody is asked whether the slot is still owned.
func TestACallerMayLeaveWhileTheOwnerIsAskedFor_I13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starting{scriptStore: newScriptStore()}
		h := hanging{new(atomic.Bool), make(chan struct{})}
		c := start(t, txnstate.Config{Store: s, Ownership: h})
		synctest.Wait()
		p := initID(t, c, "a")
		require.NoError(t, add(c, "a", p, txnstate.TV2, tp0))
		h.hang.Store(true)
		ctx, cancel := context.WithCancel(bg)
		end := endBeside(ctx, c, p)
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Len(t, end, 1)
		require.ErrorIs(t, (<-end).err, context.Canceled)
		close(h.gate)
	})
}

// Run ends after the hooks of what was under way: a host may take away what they use.
func TestRunWaitsForTheHooksOfACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starting{scriptStore: newScriptStore()}
		gate, over := make(chan struct{}), make(chan struct{})
		c, err := txnstate.New(txnstate.Config{Store: s, Dispatcher: &held{auto: true}, ProducerIDs: &counter{n: 99},
			Observer: txnstate.Observer{Transition: func(_ txnstate.State, rec txnstate.Record) {
				if rec.State == txnstate.Ongoing {
					<-gate
				}
			}}})
		require.NoError(t, err)
		stop := run(t, c)
		p := initID(t, c, "a")
		go func() { _ = add(c, "a", p, txnstate.TV2, tp0) }()
		synctest.Wait()
		go func() {
			stop()
			close(over)
		}()
		synctest.Wait()
		select {
		case <-over:
			t.Fatal("a hook is still running")
		default:
		}
		close(gate)
		<-over
	})
}
