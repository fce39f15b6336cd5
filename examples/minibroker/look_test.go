package minibroker

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// takenFile is the file of a log that another broker takes over at some moment,
// without this one having noticed.
type takenFile struct {
	logFile
	taken *atomic.Bool
}

func (f takenFile) Check() error {
	if f.taken.Load() {
		return kafkaErrorf(kerr.NotLeaderForPartition, "another broker leads")
	}
	return nil
}

// taken is a broker with one topic, whose log is led at an epoch.
func taken(t *testing.T, epoch int32) (*Broker, *partitionLog, *atomic.Bool) {
	b := start(t, Config{FS: fsx.Mem(), Dir: "d", Topics: map[string]int32{"t": 1}})
	l := b.topics.get("t").logs[0]
	f := takenFile{l.file, new(atomic.Bool)}
	l.mu.Lock()
	l.file, l.epoch = f, epoch
	l.mu.Unlock()
	return b, l, f.taken
}

// Each answer that writes nothing is given only after a look at the volume: a broker
// that was stopped, and wakes up, answers from nothing that it remembers (I10).
func TestNoAnswerIsGivenByALogThatWasTakenOver_I10(t *testing.T) {
	p := txnstate.Producer{ID: 5}
	batch := recordBatch(p, 0, 1, 10, false)
	offsets := kmsg.NewPtrListOffsetsRequest()
	offsets.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Timestamp: -1, CurrentLeaderEpoch: -1}}}}
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	for what, answer := range map[string]func(b *Broker) int16{
		"fetch": func(b *Broker) int16 {
			return ask[*kmsg.FetchResponse](t, b, fetchRequest("t", 0, 0), 12).Topics[0].Partitions[0].ErrorCode
		},
		"a fetch of nothing": func(b *Broker) int16 {
			return ask[*kmsg.FetchResponse](t, b, fetchRequest("t", 1, 0), 12).Topics[0].Partitions[0].ErrorCode
		},
		"list offsets": func(b *Broker) int16 {
			return ask[*kmsg.ListOffsetsResponse](t, b, offsets, 7).Topics[0].Partitions[0].ErrorCode
		},
		"describe producers": func(b *Broker) int16 {
			return ask[*kmsg.DescribeProducersResponse](t, b, producers, 0).Topics[0].Partitions[0].ErrorCode
		},
		"a duplicate": func(b *Broker) int16 { return produce(t, b, "t", batch).ErrorCode },
		"a refusal":   func(b *Broker) int16 { return produce(t, b, "t", recordBatch(p, 7, 1, 10, false)).ErrorCode },
	} {
		t.Run(what, func(t *testing.T) {
			b, _, is := taken(t, 0)
			require.Zero(t, produce(t, b, "t", batch).ErrorCode)
			before := answer(b)
			is.Store(true)
			require.NotEqual(t, kerr.NotLeaderForPartition.Code, before)
			require.Equal(t, kerr.NotLeaderForPartition.Code, answer(b))
		})
	}
}

// Nor does it say of what it has that it is durable: an answer may rest on that
// alone.
func TestALogThatWasTakenOverSaysNothingOfWhatIsDurable_I2(t *testing.T) {
	b, l, is := taken(t, 0)
	require.Zero(t, produce(t, b, "t", plain(1, 10)).ErrorCode)
	require.NoError(t, l.Durable(t.Context(), 0))
	is.Store(true)
	require.Error(t, l.Durable(t.Context(), 0))
}

// The leader's epoch is in each batch and in answers, and a client that knows
// another one is told so.
func TestTheLeaderEpochIsTold(t *testing.T) {
	b, l, _ := taken(t, 7)
	require.Zero(t, produce(t, b, "t", plain(1, 10)).ErrorCode)
	s, err := l.selectFrom(0, 1000, true, false)
	require.NoError(t, err)
	raw, err := l.read(s)
	require.NoError(t, err)
	require.EqualValues(t, 7, binary.BigEndian.Uint32(raw[batchLeaderEpoch:]))
	for known, want := range map[int32]int16{-1: 0, 7: 0, 0: kerr.FencedLeaderEpoch.Code, 6: kerr.FencedLeaderEpoch.Code, 8: kerr.UnknownLeaderEpoch.Code} {
		f := fetchRequest("t", 0, 0)
		f.Topics[0].Partitions[0].CurrentLeaderEpoch = known
		require.Equal(t, want, ask[*kmsg.FetchResponse](t, b, f, 12).Topics[0].Partitions[0].ErrorCode, "fetch, known %d", known)
		o := kmsg.NewPtrListOffsetsRequest()
		o.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Timestamp: -1, CurrentLeaderEpoch: known}}}}
		got := ask[*kmsg.ListOffsetsResponse](t, b, o, 7).Topics[0].Partitions[0]
		require.Equal(t, want, got.ErrorCode, "list offsets, known %d", known)
		if want == 0 {
			require.EqualValues(t, 7, got.LeaderEpoch)
		}
	}
}
