package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// movedLog is a log that another broker may have taken over.
type movedLog struct {
	*memLog
	moved error
}

func (l *movedLog) Check() error { return l.moved }

// What a state out of date would say is not said: a leader that was deposed and
// does not know it sends its clients away. (I10)
func TestAnswersThatWriteNothingAreCheckedByTheLog_I10(t *testing.T) {
	log := &movedLog{memLog: &memLog{state: fence.NewPartition(fence.Config{})}}
	h := newHost(t, func(wc *wire.Config, _ *txnstate.Config) { wc.Leader = oneLog{log} })
	h.addTopic("t", 1)
	p := txnstate.Producer{ID: 1, Epoch: 3}
	log.With(func(fp *fence.Partition) {
		fp.Replay(fence.Batch{Producer: p, FirstSequence: 0, Records: 1, Transactional: true}, 0, nil)
	})
	describe := func() int16 {
		req := kmsg.NewPtrDescribeProducersRequest()
		req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
		return do[*kmsg.DescribeProducersResponse](t, h, req).Topics[0].Partitions[0].ErrorCode
	}
	produce := func() int16 {
		req := produceRequest(9, "x", "t", 0, batch(producer{p.ID, p.Epoch - 1}, 0, 1, true))
		return produceCodes(do[*kmsg.ProduceResponse](t, h, req))[0]
	}
	sink, err := wire.NewLocalSink(wire.LocalSinkConfig{Leader: oneLog{log}})
	require.NoError(t, err)
	open := func() (bool, error) {
		return sink.StillOpen(t.Context(), 0, markers.Delivery{Marker: markers.Marker{Producer: p}, Participant: txnstate.Partition("t", 0)})
	}
	require.Zero(t, describe())
	require.Equal(t, int16(txnstate.CodeInvalidProducerEpoch), produce())
	is, err := open()
	require.NoError(t, err)
	require.True(t, is)

	log.moved = txnstate.CodeNotLeaderOrFollower.Errorf("", "another broker leads")
	require.Equal(t, int16(txnstate.CodeNotLeaderOrFollower), describe())
	require.Equal(t, int16(txnstate.CodeNotLeaderOrFollower), produce())
	_, err = open()
	require.ErrorIs(t, err, log.moved)
}
