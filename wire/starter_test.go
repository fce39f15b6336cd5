package wire_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// startingLog counts what is started and what is waited for.
type startingLog struct {
	wire.Log
	fp             *fence.Partition
	base           int64
	started, ended int
	most           int // started at the first wait
	fail           error
}

func (l *startingLog) Start(_ []byte, admit func(*fence.Partition, int64) error) (func(context.Context) error, error) {
	if err := admit(l.fp, l.base); err != nil {
		return nil, err
	}
	l.base++
	l.started++
	return func(context.Context) error {
		if l.ended++; l.ended == 1 {
			l.most = l.started
		}
		return l.fail
	}, nil
}

type oneLog struct{ log wire.Log }

func (o oneLog) Log(string, int32) (wire.Log, error) { return o.log, nil }

// The markers of a batch are on their way before the first is waited for, and
// each is answered by its own end (I2).
func TestMarkersOfABatchAreStartedBeforeOneIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		fail error
		want markers.Result
	}{
		"applied": {nil, markers.Applied},
		"failed":  {errors.New("no disk"), markers.Retry},
	} {
		t.Run(name, func(t *testing.T) {
			l := &startingLog{fp: fence.NewPartition(fence.Config{}), fail: c.fail}
			s, err := wire.NewLocalSink(wire.LocalSinkConfig{Leader: oneLog{l}})
			require.NoError(t, err)
			var ds []markers.Delivery
			for id := range int64(5) {
				ds = append(ds, markers.Delivery{
					Marker:      markers.Marker{Producer: txnstate.Producer{ID: id, Epoch: 1}, Commit: true, CoordinatorEpoch: 3},
					Participant: txnstate.Partition("t", 0),
				})
			}
			old := ds[0]
			old.CoordinatorEpoch = 2 // refused by admit, after the first
			got := s.WriteMarkers(t.Context(), 0, append(ds, old))
			for _, r := range got[:5] {
				require.Equal(t, c.want, r)
			}
			require.Equal(t, markers.FencedCoordinator, got[5])
			require.Equal(t, 5, l.most)
			require.Equal(t, 5, l.ended)
		})
	}
}
