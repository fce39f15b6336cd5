package offsets

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// movedLog is a log that another process may have taken over.
type movedLog struct {
	Log
	moved error
}

func (l *movedLog) Check(int32) error { return l.moved }

// What a state out of date would say is not said: the coordinator that was deposed
// and does not know it sends its clients away. (I10)
func TestAnswersThatWriteNothingAreCheckedByTheLog_I10(t *testing.T) {
	log := &movedLog{Log: NewMemLog()}
	k := newKit(t, func(c *Config) { c.Log = log })
	const group = "g"
	k.commit(group, at(5))
	k.mustStage(group, pr(1, 3), at(7))
	n := txnstate.OffsetsPartition(group)
	tps := []TopicPartition{{"in", 0}}
	asked := map[string]func() error{
		"Fetch":     func() error { _, err := k.m.Fetch(group, tps, false); return err },
		"Producers": func() error { _, err := k.m.Producers(n); return err },
		"Serves":    func() error { return k.m.Serves(group) },
	}
	// These are refused by what the state knows, which may be out of date.
	refused := map[string]func() error{
		"Verify": func() error { _, _, err := k.m.Verify(group, pr(1, 2), fence.ModeAdd); return err },
		"Stage": func() error {
			_, err := k.m.Stage(context.Background(), group, pr(1, 2), Guard{}, at(8))
			return err
		},
		"Marker": func() error { return k.mark(group, tv1(pr(1, 2), true)) },
	}
	for name, f := range asked {
		require.NoError(t, f(), name)
	}
	for name, f := range refused {
		requireCode(t, txnstate.CodeInvalidProducerEpoch, f())
		_ = name
	}
	for _, why := range []error{errors.New("another broker has the partition"), errors.New("nobody knows")} {
		log.moved = why
		for name, f := range asked {
			requireCode(t, txnstate.CodeNotCoordinator, f())
			require.ErrorIs(t, f(), why, name)
		}
		for name, f := range refused {
			requireCode(t, txnstate.CodeNotCoordinator, f())
			require.ErrorIs(t, f(), why, name)
		}
	}
	log.moved = nil
	k.expect(group, "5", unstable)
	require.NoError(t, k.m.Unload(context.Background(), n))
	requireCode(t, txnstate.CodeNotCoordinator, k.m.Serves(group))
}
