package minibroker

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Failures of other systems, as the whole broker meets them: the table at the end
// of DESIGN.md says which test stands for which.

// session is a producer of a transactional id that speaks protocol 2.
type session struct {
	t   testing.TB
	b   *Broker
	id  string
	p   txnstate.Producer
	seq map[string]int32 // in the transaction, by partition
}

// begin initialises an id, as often as it takes.
func begin(t testing.TB, b *Broker, id string) *session {
	t.Helper()
	s := &session{t: t, b: b, id: id, seq: map[string]int32{}}
	require.Eventually(t, func() bool {
		code := s.init()
		require.Contains(t, []int16{0, kerr.ConcurrentTransactions.Code}, code)
		return code == 0
	}, limit, time.Millisecond)
	return s
}

func (s *session) init() int16 {
	r := kmsg.NewPtrInitProducerIDRequest()
	r.TransactionalID, r.TransactionTimeoutMillis = kmsg.StringPtr(s.id), 60_000
	resp := ask[*kmsg.InitProducerIDResponse](s.t, s.b, r, 4)
	s.p = txnstate.Producer{ID: resp.ProducerID, Epoch: resp.ProducerEpoch}
	return resp.ErrorCode
}

// write writes one record and returns its offset.
func (s *session) write(topic string, partition int32) (int64, int16) {
	s.t.Helper()
	key := fmt.Sprint(topic, partition)
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TransactionID = -1, kmsg.StringPtr(s.id)
	r.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{
		Partition: partition, Records: recordBatch(s.p, s.seq[key], 1, 10, true),
	}}}}
	x := ask[*kmsg.ProduceResponse](s.t, s.b, r, 12).Topics[0].Partitions[0]
	if x.ErrorCode == 0 {
		s.seq[key]++
	}
	return x.BaseOffset, x.ErrorCode
}

func (s *session) mustWrite(topic string, partition int32) (offset int64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		var code int16
		if offset, code = s.write(topic, partition); code == kerr.ConcurrentTransactions.Code {
			return false // the transaction before is being completed
		}
		refused(s.t, nil, code)
		return true
	}, limit, time.Millisecond)
	return offset
}

func (s *session) end(commit bool) int16 {
	s.t.Helper()
	r := kmsg.NewPtrEndTxnRequest()
	r.TransactionalID, r.ProducerID, r.ProducerEpoch, r.Commit = s.id, s.p.ID, s.p.Epoch, commit
	resp := ask[*kmsg.EndTxnResponse](s.t, s.b, r, 5)
	if resp.ErrorCode == 0 {
		s.p = txnstate.Producer{ID: resp.ProducerID, Epoch: resp.ProducerEpoch}
		clear(s.seq)
	}
	return resp.ErrorCode
}

// visible are the offsets of records that a read-committed reader is given from an
// offset on, in fetches of at most so many bytes. It reads as KafkaConsumer does.
func visible(t testing.TB, b *Broker, topic string, partition int32, from int64, most int32) (offsets []int64) {
	t.Helper()
	for {
		r := fetchRequest(topic, from, 0)
		r.IsolationLevel, r.MaxBytes = readCommitted, most
		r.Topics[0].Partitions[0].Partition, r.Topics[0].Partitions[0].PartitionMaxBytes = partition, most
		x := ask[*kmsg.FetchResponse](t, b, r, 11).Topics[0].Partitions[0]
		refused(t, nil, x.ErrorCode)
		if len(x.RecordBatches) == 0 {
			require.Equal(t, x.LastStableOffset, from, "nothing more below the last stable offset")
			return offsets
		}
		aborted := x.AbortedTransactions
		slices.SortFunc(aborted, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
			return int(a.FirstOffset - b.FirstOffset)
		})
		skip := map[int64]bool{}
		for rest := x.RecordBatches; len(rest) > 0; {
			h, base, size, err := fence.ParseHeader(rest)
			require.NoError(t, err)
			last := base + int64(h.Records) - 1
			for len(aborted) > 0 && aborted[0].FirstOffset <= last {
				skip[aborted[0].ProducerID] = true
				aborted = aborted[1:]
			}
			switch {
			case h.Control:
				m, _, err := markers.ParseControlBatch(rest[:size])
				require.NoError(t, err)
				if !m.Commit {
					delete(skip, h.Producer.ID)
				}
			case last >= from && !(h.Transactional && skip[h.Producer.ID]):
				for o := max(base, from); o <= last; o++ {
					offsets = append(offsets, o)
				}
			}
			from, rest = last+1, rest[size:]
		}
	}
}

func allVisible(t testing.TB, b *Broker, topic string, partition int32) []int64 {
	t.Helper()
	return visible(t, b, topic, partition, 0, 1<<20)
}

func stableAtEnd(t testing.TB, b *Broker, topic string, partition int32) {
	t.Helper()
	require.Eventually(t, func() bool {
		at, err := b.topics.get(topic).logs[partition].ends()
		require.NoError(t, err)
		return at.stable == at.high
	}, limit, time.Millisecond, "%s/%d: a last stable offset is stuck", topic, partition)
}

func deleteTopic(t testing.TB, b *Broker, name string) {
	t.Helper()
	r := kmsg.NewPtrDeleteTopicsRequest()
	r.TopicNames = []string{name}
	refused(t, nil, ask[*kmsg.DeleteTopicsResponse](t, b, r, 5).Topics[0].ErrorCode)
}

// killed is a broker on a copy of another's directory, as the kernel has it at
// this moment: what a kill -9 would leave.
func killed(t testing.TB, r *restarts) *restarts {
	t.Helper()
	cfg := r.cfg
	cfg.Dir = t.TempDir()
	require.NoError(t, os.CopyFS(cfg.Dir, os.DirFS(r.cfg.Dir)))
	return onDisk(t, cfg)
}

// F11, KAFKA-5202: topics of an open transaction are deleted, before or after its
// decision, and made again: the transaction gets done, and in the new topic of the
// old name there is nothing of it.
func TestF11_ATopicOfAnOpenTransactionIsDeleted(t *testing.T) {
	for _, after := range []bool{false, true} {
		for _, both := range []bool{false, true} {
			for _, again := range []bool{false, true} {
				t.Run(fmt.Sprintf("after the decision %v, both %v, made again %v", after, both, again), func(t *testing.T) {
					b := start(t, Config{Topics: map[string]int32{"a": 1, "b": 1}, EndWait: txnstate.AnswerAtDecision})
					s := begin(t, b, "tx")
					s.mustWrite("a", 0)
					s.mustWrite("b", 0)
					remove := func() {
						deleteTopic(t, b, "a")
						if both {
							deleteTopic(t, b, "b")
						}
						if again {
							create(t, b, createTopic("a", 1))
						}
					}
					release := b.HoldMarkers()
					if !after {
						remove()
					}
					refused(t, nil, s.end(true))
					if after {
						remove()
					}
					release()
					require.Eventually(t, func() bool { return state(t, b, "tx") == txnstate.CompleteCommit }, limit, time.Millisecond)
					if !both {
						require.Equal(t, []int64{0}, allVisible(t, b, "b", 0))
					}
					if again {
						require.Empty(t, allVisible(t, b, "a", 0))
						s.mustWrite("a", 0)
						refused(t, nil, s.end(true))
						stableAtEnd(t, b, "a", 0)
						require.Len(t, allVisible(t, b, "a", 0), 1)
					}
				})
			}
		}
	}
}

// F13, F38: the broker is killed between decision and completion, with the marker
// written at some of the partitions. After the restart each has it, what was
// decided is visible everywhere, and no last stable offset is stuck.
func TestF13_F38_AKillBetweenDecisionAndCompletionIsCarriedOn(t *testing.T) {
	r := onDisk(t, Config{Topics: map[string]int32{"t": 4}, EndWait: txnstate.AnswerAtDecision})
	s := begin(t, r.b, "tx")
	rng := rand.New(rand.NewPCG(1, 1))
	want := map[int32][]int64{}
	for round := range 12 {
		commit := round%3 > 0
		for p := range int32(4) {
			for range 1 + rng.IntN(2) {
				if o := s.mustWrite("t", p); commit {
					want[p] = append(want[p], o)
				}
			}
		}
		release := r.b.HoldMarkers()
		refused(t, nil, s.end(commit))
		// Some partitions have their marker, as if its answer had got lost.
		rec, err := r.b.coordinator.Describe(ctxFor(t), "tx")
		require.NoError(t, err)
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch, m.Committed, m.TransactionVersion = rec.Producer.ID, rec.Producer.Epoch, commit, 2
		m.CoordinatorEpoch = int32(round) // it grows by one with each start
		m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "t", Partitions: []int32{0, 1, 2, 3}[:round%4]}}
		if round%4 > 0 {
			w := kmsg.NewPtrWriteTxnMarkersRequest()
			w.Markers = append(w.Markers, m)
			for _, x := range ask[*kmsg.WriteTxnMarkersResponse](t, r.b, w, 2).Markers[0].Topics[0].Partitions {
				refused(t, nil, x.ErrorCode)
			}
		}
		next := killed(t, r)
		release()
		for p := range int32(4) {
			stableAtEnd(t, next.b, "t", p)
			require.Equal(t, want[p], allVisible(t, next.b, "t", p), "round %d, partition %d", round, p)
		}
		require.Eventually(t, func() bool { return !state(t, next.b, "tx").Decided() }, limit, time.Millisecond)
		r, s.b = next, next.b
	}
}

// F39: an id is initialised again while its transaction is open. That is aborted at
// every partition before the new identity can be used, and nothing of it, nor of
// what the old client still sends, is ever visible.
func TestF39_ATakeoverPublishesNothingOfTheOldClient(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 2}, EndWait: txnstate.AnswerAtDecision})
	var want []int64
	for round := range 20 {
		old := begin(t, b, "tx")
		old.mustWrite("t", 0)
		old.mustWrite("t", 1)
		release := b.HoldMarkers()
		s := &session{t: t, b: b, id: "tx", seq: map[string]int32{}}
		for range 3 {
			refused(t, kerr.ConcurrentTransactions, s.init())
		}
		_, code := old.write("t", 0)
		refused(t, kerr.InvalidProducerEpoch, code) // from the decision on
		release()
		s = begin(t, b, "tx")
		for _, p := range []int32{0, 1} {
			_, code = old.write("t", p)
			refused(t, kerr.InvalidProducerEpoch, code)
		}
		want = append(want, s.mustWrite("t", 0))
		_, code = old.write("t", 0)
		refused(t, kerr.InvalidProducerEpoch, code)
		refused(t, kerr.ProducerFenced, old.end(true))
		refused(t, nil, s.end(true))
		stableAtEnd(t, b, "t", 0)
		stableAtEnd(t, b, "t", 1) // which the new client has not written to
		require.Equal(t, want, allVisible(t, b, "t", 0), "round %d", round)
		require.Empty(t, allVisible(t, b, "t", 1))
	}
}

// F40: transactions over two topics with the same partition numbers, and a kill.
// What read-committed readers see is what they saw before, wherever they begin and
// however much they ask for at a time.
func TestF40_ReplayTellsTopicsApart(t *testing.T) {
	topics := []string{"a", "b"}
	r := onDisk(t, Config{Topics: map[string]int32{"a": 2, "b": 2}})
	rng := rand.New(rand.NewPCG(4, 0))
	ids := []*session{begin(t, r.b, "x"), begin(t, r.b, "y"), begin(t, r.b, "z")}
	want := map[string][]int64{}
	for range 30 {
		s, commit := ids[rng.IntN(3)], rng.IntN(2) == 0
		for range 1 + rng.IntN(4) {
			topic, p := topics[rng.IntN(2)], int32(rng.IntN(2))
			if o := s.mustWrite(topic, p); commit {
				want[fmt.Sprint(topic, p)] = append(want[fmt.Sprint(topic, p)], o)
			}
		}
		if rng.IntN(3) == 0 { // another in between, whose end comes first
			other := begin(t, r.b, "w")
			other.mustWrite(topics[rng.IntN(2)], int32(rng.IntN(2)))
			refused(t, nil, other.end(false))
		}
		refused(t, nil, s.end(commit))
	}
	ids[0].mustWrite("a", 0) // stays open: it ends what can be read of a/0, not of b/0
	for _, topic := range topics {
		for p := range int32(2) {
			if topic != "a" || p != 0 {
				stableAtEnd(t, r.b, topic, p)
			}
		}
	}
	check := func(b *Broker) {
		for _, topic := range topics {
			for p := range int32(2) {
				all := want[fmt.Sprint(topic, p)]
				at, err := b.topics.get(topic).logs[p].ends()
				require.NoError(t, err)
				require.Equal(t, topic == "a" && p == 0, at.stable < at.high, "%s/%d", topic, p)
				for from := range at.stable + 1 {
					for _, most := range []int32{1, 300, 1 << 20} {
						i, _ := slices.BinarySearch(all, from)
						if got := visible(t, b, topic, p, from, most); !slices.Equal(got, all[i:]) {
							t.Fatalf("%s/%d from %d by %d bytes: %v, want %v", topic, p, from, most, got, all[i:])
						}
					}
				}
			}
		}
	}
	check(r.b)
	check(killed(t, r).b)
}
