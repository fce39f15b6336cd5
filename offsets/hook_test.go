package offsets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// hostStore is a host's own committed offsets, told by a hook.
type hostStore struct {
	mu     sync.Mutex
	pos    map[string]int64
	calls  []string
	before func(group string) error
	after  func(group string) error
}

func (h *hostStore) Commit(ctx context.Context, group string, os []Offset) error {
	h.mu.Lock()
	before, after := h.before, h.after
	h.mu.Unlock()
	if before != nil {
		if err := before(group); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	for _, o := range os {
		key := fmt.Sprintf("%s/%s-%d", group, o.Topic, o.Partition)
		h.pos[key] = o.Offset
		h.calls = append(h.calls, fmt.Sprintf("%s=%d", key, o.Offset))
	}
	h.mu.Unlock()
	if after != nil {
		return after(group)
	}
	return nil
}

func (h *hostStore) set(before, after func(group string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before, h.after = before, after
}

func (h *hostStore) positions() map[string]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.pos)
}

func newHookKit(t *testing.T) (*kit, *hostStore, *tap) {
	store := &hostStore{pos: map[string]int64{}}
	k, log := newTapKit(t, func(c *Config) { c.Hook = store })
	return k, store, log
}

func always(err error) func(string) error { return func(string) error { return err } }

// Every value is told before it becomes the committed one, plain or not, and
// nothing else is.
func TestTheHookIsToldWhatBecomesCommitted(t *testing.T) {
	k, store, _ := newHookKit(t)
	other := neighbour("g")
	k.mustStage("g", pr(1, 0), []Offset{{Topic: "b", Offset: 2}, {Topic: "a", Partition: 1, Offset: 1}})
	k.mustStage(other, pr(1, 0), at(3))
	k.mustStage("g", pr(2, 0), at(4))
	require.Empty(t, store.calls)
	k.mustMark("g", tv2(pr(1, 1), true))
	k.mustMark("g", tv2(pr(2, 1), false))
	k.commit("g", at(5))
	require.Equal(t, []string{"g/a-1=1", "g/b-0=2", other + "/in-0=3", "g/in-0=5"}, store.calls)

	// KAFKA-5247: what is older than the committed value does not become it.
	k.mustStage("g", pr(2, 1), at(6))
	k.commit("g", at(7))
	k.mustMark("g", tv2(pr(2, 2), true))
	require.EqualValues(t, 7, store.pos["g/in-0"])
	k.expect("g", "7", "7")
	k.restart()
}

// W10: an error of the hook keeps everything as it was, and the transaction in
// its Prepare state: the marker comes again. So does a crash between the hook
// and the entry: the hook is told again what it knows.
func TestW10_AFailingHookKeepsWhatIsStaged(t *testing.T) {
	errDown := errors.New("database down")
	for _, tc := range []struct {
		name string
		fail func(*hostStore, *tap)
	}{
		{"refused", func(s *hostStore, _ *tap) { s.set(always(errDown), nil) }},
		{"done and reported as failed", func(s *hostStore, _ *tap) { s.set(nil, always(errDown)) }},
		{"done, and the log fails", func(_ *hostStore, l *tap) { l.set(onOp("append", errDown), nil) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k, store, log := newHookKit(t)
			k.commit("g", at(5))
			k.mustStage("g", pr(1, 0), at(9))
			for range 2 {
				tc.fail(store, log)
				err := k.mark("g", tv2(pr(1, 1), true))
				requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
				require.ErrorIs(t, err, errDown)
				store.set(nil, nil)
				log.set(nil, nil)
				k.expect("g", "5", unstable)
				k.restart()
			}
			k.mustMark("g", tv2(pr(1, 1), true))
			k.expect("g", "9", "9")
			require.EqualValues(t, 9, store.pos["g/in-0"])
			k.restart()
		})
	}
}

// The log wrote the marker and said it did not: the marker that comes again
// finds nothing to tell.
func TestAMarkerThatWasWrittenAfterAllTellsTheHookOnce(t *testing.T) {
	k, store, log := newHookKit(t)
	k.mustStage("g", pr(1, 0), at(9))
	log.set(nil, onOp("append", errDisk))
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.mark("g", tv2(pr(1, 1), true)))
	log.set(nil, nil)
	k.expect("g", "9", "9")
	k.commit("g", at(3)) // the group goes back
	k.mustMark("g", tv2(pr(1, 1), true))
	require.Equal(t, []string{"g/in-0=9", "g/in-0=3"}, store.calls)
}

// A plain commit that the hook refuses does not become the committed one.
func TestACommitThatTheHookRefusesIsNone(t *testing.T) {
	k, store, _ := newHookKit(t)
	k.commit("g", at(5))
	store.set(always(errDisk), nil)
	_, err := k.m.Commit(ctx, "g", at(6))
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, err)
	k.expect("g", "5", "5")
}

// F15, design §6: while the hook of one group is called nothing else waits for
// it: not reading, not staging, not the commits of other groups in the same
// partition, nor their deletion.
func TestF15_AHookThatBlocksHoldsUpItsGroupOnly(t *testing.T) { synctest.Test(t, aHookThatBlocks) }

func aHookThatBlocks(t *testing.T) {
	k, store, _ := newHookKit(t)
	other := neighbour("g")
	k.mustStage("g", pr(1, 0), at(9))
	gate := make(chan struct{})
	store.set(func(group string) error {
		if group == "g" {
			<-gate
		}
		return nil
	}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { k.mustMark("g", tv2(pr(1, 1), true)) })
	synctest.Wait()

	k.expect("g", "-1", unstable)
	k.mustStage("g", pr(2, 0), at(4))
	k.mustStage(other, pr(2, 0), at(4))
	k.commit(other, at(3))
	k.mustMark(other, tv2(pr(3, 1), true)) // nothing staged
	require.NoError(t, k.m.DeleteGroup(ctx, other))
	k.mustMark("g", tv2(pr(2, 1), false))

	// The group's own commits, and the producer's own staging, come after.
	var order []string
	var mu sync.Mutex
	did := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	wg.Go(func() { k.commit("g", at(20)); did("commit") })
	wg.Go(func() {
		requireCode(k, txnstate.CodeInvalidProducerEpoch, k.stage("g", pr(1, 0), at(30)))
		did("late stage")
	})
	synctest.Wait()
	require.Empty(t, order)
	short, cancel := context.WithCancel(ctx)
	cancel()
	requireCode(t, txnstate.CodeCoordinatorNotAvailable, k.m.DeleteOffsets(short, "g", []TopicPartition{{"in", 0}}))
	close(gate)
	wg.Wait()
	require.Len(t, order, 2)
	k.expect("g", "20", "20")
	require.EqualValues(t, 20, store.pos["g/in-0"])
	require.Empty(t, k.m.of("g").turns.m, "nobody's turn is left behind")
	k.restart()
}

func TestAFunctionIsAHook(t *testing.T) {
	var told []Offset
	k := newKit(t, func(c *Config) {
		c.Hook = OffsetHookFunc(func(_ context.Context, group string, os []Offset) error {
			require.Equal(t, "g", group)
			told = append(told, os...)
			return nil
		})
	})
	k.commit("g", at(5))
	require.Len(t, told, 1)
	require.EqualValues(t, 5, told[0].Offset)
}

// The hook may use the Manager.
func TestTheHookMayCallTheManager(t *testing.T) {
	k, store, _ := newHookKit(t)
	k.mustStage("g", pr(1, 0), at(9))
	other := neighbour("g")
	store.set(func(group string) error {
		if group != "g" {
			return nil
		}
		k.expect("g", "-1", unstable)
		k.mustStage("g", pr(2, 0), at(4))
		k.commit(other, at(1))
		_, _, err := k.m.Verify("g", pr(1, 0), fence.ModeAdd)
		return err
	}, nil)
	k.mustMark("g", tv2(pr(1, 1), true))
	k.expect("g", "9", unstable)
	store.set(nil, nil)
	k.mustMark("g", tv2(pr(2, 1), true))
	k.expect("g", "4", "4")
}

// The host's store and the Manager agree at the end, whatever ran at the same
// time, and failed.
func TestTheHookSeesTheOrderOfTheLog(t *testing.T) {
	k, store, _ := newHookKit(t)
	groups := []string{"g", neighbour("g"), "elsewhere"}
	var wg sync.WaitGroup
	for w := range int64(8) {
		wg.Go(func() {
			for i := range int64(30) {
				group := groups[(w+i)%3]
				if w%2 == 0 {
					_, err := k.m.Commit(ctx, group, at(1000*w+i))
					require.NoError(k, err)
					continue
				}
				p := pr(w, int16(i))
				require.NoError(k, k.stage(group, p, at(1000*w+i)))
				require.NoError(k, k.mark(group, tv2(pr(w, int16(i+1)), i%3 != 0)))
			}
		})
	}
	wg.Wait()
	for _, g := range groups {
		require.Equal(t, k.position(g, true), fmt.Sprint(store.positions()[g+"/in-0"]), g)
	}
	k.restart()
}

// The hook is not told of what is still on its way to the log and may never
// arrive (I11).
func TestTheHookIsNotToldWhatMayNeverHappen(t *testing.T) { synctest.Test(t, theHookIsNotTold) }

func theHookIsNotTold(t *testing.T) {
	k, store, log := newHookKit(t)
	reached, goOn := make(chan struct{}), make(chan struct{})
	log.set(func(op string, _ [][]byte) error {
		if op != "append" {
			return nil
		}
		close(reached)
		<-goOn
		return errDisk
	}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { requireCode(k, txnstate.CodeCoordinatorNotAvailable, k.stage("g", pr(1, 0), at(9))) })
	<-reached
	wg.Go(func() { requireCode(k, txnstate.CodeCoordinatorNotAvailable, k.mark("g", tv2(pr(1, 1), true))) })
	synctest.Wait()
	close(goOn)
	wg.Wait()
	log.set(nil, nil)
	require.Empty(t, store.calls)
	k.mustMark("g", tv2(pr(1, 1), true))
	require.Empty(t, store.calls)
	k.expect("g", "-1", "-1")
}

// A marker that comes while its staging is on its way has the turn of the group
// all the same.
func TestAMarkerRightBehindItsStagingHasTheTurn(t *testing.T) { synctest.Test(t, aMarkerRightBehind) }

func aMarkerRightBehind(t *testing.T) {
	k, store, log := newHookKit(t)
	entered, release := log.stall()
	gate := make(chan struct{})
	store.set(func(string) error { <-gate; return nil }, nil)
	var wg sync.WaitGroup
	wg.Go(func() { k.mustStage("g", pr(1, 0), at(9)) })
	<-entered
	wg.Go(func() { k.mustMark("g", tv2(pr(1, 1), true)) })
	synctest.Wait()
	release()
	synctest.Wait() // the hook is being told
	store.set(nil, nil)
	wg.Go(func() { k.commit("g", at(12)) })
	synctest.Wait()
	require.Empty(t, store.positions(), "the commit waits for the marker")
	close(gate)
	wg.Wait()
	require.Equal(t, []string{"g/in-0=9", "g/in-0=12"}, store.calls)
	k.expect("g", "12", "12")
}

// A commit whose caller has given up is newer than what was staged before it,
// also while it is on its way.
func TestACommitThatNobodyWaitsForStillCounts(t *testing.T) { synctest.Test(t, aCommitNobodyWaitsFor) }

func aCommitNobodyWaitsFor(t *testing.T) {
	k, store, log := newHookKit(t)
	k.mustStage("g", pr(1, 0), at(9))
	gate := make(chan struct{})
	store.set(func(string) error { <-gate; return nil }, nil)
	short, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := k.m.Commit(short, "g", at(12))
		require.ErrorIs(k, err, context.Canceled)
	})
	synctest.Wait()
	wg.Go(func() { k.mustMark("g", tv2(pr(1, 1), true)) }) // waits for the turn
	synctest.Wait()
	entered, release := log.stall()
	store.set(nil, nil)
	close(gate)
	<-entered
	cancel()
	synctest.Wait()
	release()
	wg.Wait()
	require.Equal(t, []string{"g/in-0=12"}, store.calls)
	k.expect("g", "12", "12")
}
