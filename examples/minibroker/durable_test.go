package minibroker

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
)

// step is a request that changes something durable, and its error code.
type step struct {
	name string
	do   func(s *session) int16
}

// durableSteps are one transaction over two partitions of one topic, another
// topic and a group, and a plain commit of offsets.
var durableSteps = []step{
	{"init", (*session).init},
	{"t/0", func(s *session) int16 { _, code := s.write("t", 0); return code }},
	{"t/1", func(s *session) int16 { _, code := s.write("t", 1); return code }},
	{"u/0", func(s *session) int16 { _, code := s.write("u", 0); return code }},
	{"stage", func(s *session) int16 {
		r := kmsg.NewPtrTxnOffsetCommitRequest()
		r.TransactionalID, r.Group, r.ProducerID, r.ProducerEpoch, r.Generation = s.id, "g", s.p.ID, s.p.Epoch, -1
		r.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 0, Offset: 7, LeaderEpoch: -1}}}}
		return ask[*kmsg.TxnOffsetCommitResponse](s.t, s.b, r, 5).Topics[0].Partitions[0].ErrorCode
	}},
	{"end", func(s *session) int16 { return s.end(true) }},
	{"commit", func(s *session) int16 {
		r := kmsg.NewPtrOffsetCommitRequest()
		r.Group, r.Generation = "plain", -1
		r.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 1, Offset: 9, LeaderEpoch: -1}}}}
		return ask[*kmsg.OffsetCommitResponse](s.t, s.b, r, 8).Topics[0].Partitions[0].ErrorCode
	}},
}

// onCrashFS starts a broker on a file system that forgets.
func onCrashFS(t testing.TB, fs *crashfs.FS, store StoreKind) (*Broker, func() error) {
	t.Helper()
	b, stop, err := Start(context.Background(), Config{Dir: "data", FS: fs, Store: store, Topics: map[string]int32{"t": 2, "u": 1}})
	require.NoError(t, err)
	return b, stop
}

// I1, I11: whatever a request makes durable, in whichever log, its answer waits
// for a disk that takes its time.
func TestNothingIsAnsweredBeforeItsSync(t *testing.T) {
	for _, store := range []StoreKind{Journal, SlotFile} {
		t.Run(string(store), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := crashfs.New(0)
				b, stop := onCrashFS(t, fs, store)
				var s *session
				for i := range 2 * len(durableSteps) {
					// The first sync of a file is its own, and the second that of the
					// log that all share.
					step := durableSteps[i%len(durableSteps)]
					if i%len(durableSteps) == 0 {
						s = &session{t: t, b: b, id: fmt.Sprint("id", i), seq: map[string]int32{}}
					}
					release := fs.HoldSyncs()
					answer := make(chan int16, 1)
					go func() { answer <- step.do(s) }()
					synctest.Wait()
					require.Empty(t, answer, "%s was answered before its sync", step.name)
					release()
					refused(t, nil, <-answer)
				}
				require.NoError(t, stop())
			})
		})
	}
}

// I1, I7, I8, I11: wherever one sync fails, in the log of a topic, of the groups
// or of the transactional ids, what was acknowledged is there after a loss of
// power, and a commit that was acknowledged is carried out.
func TestWhatIsAcknowledgedSurvivesAFailedSyncAndALossOfPower(t *testing.T) {
	for _, store := range []StoreKind{Journal, SlotFile} {
		t.Run(string(store), func(t *testing.T) {
			for _, before := range []int{0, 1} {
				for k := 0; ; k++ {
					failed := false
					synctest.Test(t, func(t *testing.T) { failed = failSync(t, store, before, k) })
					if !failed {
						require.Greater(t, k, 5)
						break
					}
				}
			}
		})
	}
}

// failSync lets the k-th sync fail after a number of transactions, and reports
// whether there were as many. After one the files share their syncs.
func failSync(t *testing.T, store StoreKind, transactions, k int) bool {
	fs := crashfs.New(uint64(k))
	b, stop := onCrashFS(t, fs, store)
	visible := []int64{0}
	for i := range transactions {
		s := &session{t: t, b: b, id: fmt.Sprint("before", i), seq: map[string]int32{}}
		for _, step := range durableSteps {
			require.Zero(t, step.do(s), step.name)
		}
		synctest.Wait()
		visible = append(visible, int64(2*i+2)) // a record and a marker
	}
	before := fs.Syncs()
	fs.FailSync(k)
	s := &session{t: t, b: b, id: "id", seq: map[string]int32{}}
	acked := map[string]bool{}
	for _, step := range durableSteps {
		acked[step.name] = step.do(s) == 0
	}
	failed := fs.Syncs()-before > k
	for seed := range uint64(4) {
		after, stop := onCrashFS(t, fs.Image(seed), store)
		what := fmt.Sprintf("after %d transactions sync %d failed, seed %d, acknowledged: %v", transactions, k, seed, acked)
		for name, l := range map[string]*partitionLog{"t/0": after.topics.get("t").logs[0], "t/1": after.topics.get("t").logs[1], "u/0": after.topics.get("u").logs[0]} {
			at, err := l.ends()
			require.NoError(t, err)
			if acked[name] {
				require.Greater(t, at.high, int64(2*transactions), "%s: %s", name, what)
			}
		}
		if acked["end"] {
			stableAtEnd(t, after, "t", 0)
			stableAtEnd(t, after, "t", 1)
			stableAtEnd(t, after, "u", 0)
			for name, offsets := range map[string][]int64{"t/0": allVisible(t, after, "t", 0), "t/1": allVisible(t, after, "t", 1), "u/0": allVisible(t, after, "u", 0)} {
				if acked[name] {
					require.Equal(t, visible, offsets, "%s: %s", name, what)
				}
			}
			if acked["stage"] {
				require.EqualValues(t, 7, committed(t, after, "g", 0), what)
			}
		}
		if acked["commit"] {
			require.EqualValues(t, 9, committed(t, after, "plain", 1), what)
		}
		require.NoError(t, stop())
	}
	_ = stop() // its disk has failed
	return failed
}

// committed is the offset of a group in a partition of t.
func committed(t testing.TB, b *Broker, group string, partition int32) int64 {
	t.Helper()
	r := kmsg.NewPtrOffsetFetchRequest()
	r.Group = group
	r.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{partition}}}
	resp := ask[*kmsg.OffsetFetchResponse](t, b, r, 7)
	refused(t, nil, resp.ErrorCode)
	return resp.Topics[0].Partitions[0].Offset
}
