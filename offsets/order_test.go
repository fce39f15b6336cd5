package offsets

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// A repeat replaces what the producer staged before, also where it goes back: a
// consumer may have been sent to an earlier position (seek).
func TestALaterStageReplacesAHigherOne(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(1, 0), at(9))
	k.mustStage("g", pr(1, 0), at(5))
	k.mustMark("g", tv2(pr(1, 1), true))
	k.expect("g", "5", "5")
	k.commit("g", at(3))
	k.expect("g", "3", "3")
	k.restart()
}

// A fence reaches every partition that knows the producer, also where it has nothing
// staged at the moment: what was verified before is not taken after it (W13, W14).
func TestAFenceReachesAProducerThatHasNothingStaged_W13(t *testing.T) {
	k := newKit(t)
	k.mustStage("g", pr(1, 0), at(1))
	k.mustMark("g", tv1(pr(1, 0), true))
	g, ask, err := k.m.Verify("g", pr(1, 0), fence.ModeGeneric)
	require.NoError(t, err)
	require.True(t, ask)
	require.NoError(t, k.m.Fence(ctx, pr(1, 1)))
	_, err = k.m.Stage(ctx, "g", pr(1, 0), g, at(2))
	requireCode(t, txnstate.CodeInvalidProducerEpoch, err)
	_, _, err = k.m.Verify("g", pr(1, 0), fence.ModeGeneric)
	requireCode(t, txnstate.CodeInvalidProducerEpoch, err)
	k.expect("g", "1", "1")
}

// A snapshot has what the log has and nothing that still waits for it: else an entry
// would be read on top of what it has led to already, and a log that has come so far
// can't be read any more.
func TestASnapshotHasNothingThatWaitsForTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := newTapKit(t)
		for i := range 50 {
			k.commit("g", at(int64(i)))
		}
		p := k.m.of("g")
		p.mu.Lock()
		p.compactAt = 0 // a look is due with the next write
		p.mu.Unlock()
		appending, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		log.set(func(op string, _ [][]byte) error {
			if op == "append" {
				once.Do(func() {
					close(appending)
					<-goOn
				})
			}
			return nil
		}, nil)
		var wg sync.WaitGroup
		wg.Go(func() { k.mustStage("g", pr(1, 0), at(1)) })
		<-appending
		// These are judged, and wait.
		wg.Go(func() { k.mustMark("g", tv2(pr(1, 1), true)) })
		synctest.Wait()
		wg.Go(func() { k.mustStage("g", pr(1, 1), at(2)) })
		synctest.Wait()
		wg.Go(func() { k.mustMark("g", tv2(pr(1, 2), false)) })
		synctest.Wait()
		wg.Go(func() { k.mustStage("g", pr(1, 2), at(3)) })
		synctest.Wait()
		close(goOn)
		wg.Wait()
		require.NoError(t, p.idle(ctx))
		require.Positive(t, log.count("rewrite"))
		k.expect("g", "1", unstable)
		k.restart()
	})
}
