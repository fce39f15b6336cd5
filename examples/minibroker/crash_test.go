package minibroker

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var (
	crashStride = flag.Int("crash-stride", 53, "every how many operations of the disk the power fails; 1 is at every one")
	crashFrom   = flag.Int("crash-from", -1, "the first such operation; -1 draws one below the stride")
	crashAgain  = flag.Int("crash-again", 20, "every how many of the operations of a recovery the power fails again; 1 is at every one, 0 never")
)

// story is a short workload, and what of it was acknowledged.
type story struct {
	t     *testing.T
	b     *Broker
	acked map[string]bool // by step
	tried map[string]bool
	a, c  *session
}

// storySteps: a topic that comes and goes, a transaction that commits and one that
// aborts, both with offsets, one that stays open, and a plain batch and commit of
// offsets between them. Records of a step are told by the size of their batch.
var storySteps = []struct {
	name string
	do   func(s *story) int16
}{
	{"create", func(s *story) int16 { return create(s.t, s.b, createTopic("gone", 1))[0].ErrorCode }},
	{"init a", func(s *story) int16 { return s.a.init() }},
	{"plain", func(s *story) int16 { return produce(s.t, s.b, "t", plain(1, storySizes["plain"])).ErrorCode }},
	{"a1 t/0", func(s *story) int16 { return s.a.writeSized("t", 0, storySizes["a1 t/0"]) }},
	{"a1 gone/0", func(s *story) int16 { return s.a.writeSized("gone", 0, storySizes["a1 gone/0"]) }},
	{"a1 t/1", func(s *story) int16 { return s.a.writeSized("t", 1, storySizes["a1 t/1"]) }},
	{"a1 stage", func(s *story) int16 { return s.a.stage("g", 7) }},
	{"a1 commit", func(s *story) int16 { return s.a.end(true) }},
	{"init c", func(s *story) int16 { return s.c.init() }},
	{"c t/1", func(s *story) int16 { return s.c.writeSized("t", 1, storySizes["c t/1"]) }},
	{"delete", func(s *story) int16 {
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TopicNames = []string{"gone"}
		return ask[*kmsg.DeleteTopicsResponse](s.t, s.b, r, 5).Topics[0].ErrorCode
	}},
	{"a2 t/0", func(s *story) int16 { return s.a.writeSized("t", 0, storySizes["a2 t/0"]) }},
	{"a2 stage", func(s *story) int16 { return s.a.stage("g", 8) }},
	{"offsets", func(s *story) int16 {
		r := kmsg.NewPtrOffsetCommitRequest()
		r.Group, r.Generation = "plain", -1
		r.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 1, Offset: 9, LeaderEpoch: -1}}}}
		return ask[*kmsg.OffsetCommitResponse](s.t, s.b, r, 8).Topics[0].Partitions[0].ErrorCode
	}},
	{"a2 abort", func(s *story) int16 { return s.a.end(false) }},
}

// storySizes are those of the values of records.
var storySizes = map[string]int{"plain": 10, "a1 t/0": 11, "a1 gone/0": 12, "a1 t/1": 13, "c t/1": 14, "a2 t/0": 15}

// writeSized is write with a value of a size.
func (s *session) writeSized(topic string, partition int32, size int) int16 {
	key := fmt.Sprint(topic, partition)
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TransactionID = -1, kmsg.StringPtr(s.id)
	r.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{
		Partition: partition, Records: recordBatch(s.p, s.seq[key], 1, size, true),
	}}}}
	code := ask[*kmsg.ProduceResponse](s.t, s.b, r, 12).Topics[0].Partitions[0].ErrorCode
	if code == 0 {
		s.seq[key]++
	}
	return code
}

// stage stages an offset of t/0 for a group.
func (s *session) stage(group string, offset int64) int16 {
	r := kmsg.NewPtrTxnOffsetCommitRequest()
	r.TransactionalID, r.Group, r.ProducerID, r.ProducerEpoch, r.Generation = s.id, group, s.p.ID, s.p.Epoch, -1
	r.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 0, Offset: offset, LeaderEpoch: -1}}}}
	return ask[*kmsg.TxnOffsetCommitResponse](s.t, s.b, r, 5).Topics[0].Partitions[0].ErrorCode
}

// tell performs the steps until one fails for good.
func (s *story) tell(crashed func() bool) {
	for _, st := range storySteps {
		s.tried[st.name] = true
		code := st.do(s)
		for code == kerr.ConcurrentTransactions.Code && !crashed() {
			time.Sleep(10 * time.Millisecond) // of the bubble: the transaction before is being completed
			code = st.do(s)
		}
		if code != 0 {
			require.True(s.t, crashed(), "%s: %v", st.name, kerr.ErrorForCode(code))
			return
		}
		s.acked[st.name] = true
	}
}

// crashConfig is that of every start in these tests.
func crashConfig(fs *crashfs.FS, store StoreKind) Config {
	return Config{Dir: "data", FS: fs, Store: store, Topics: map[string]int32{"t": 2}, AbortInterval: time.Second}
}

// told is a run of the story on a disk that may fail.
func told(t *testing.T, fs *crashfs.FS, store StoreKind) *story {
	s := &story{t: t, acked: map[string]bool{}, tried: map[string]bool{}}
	b, stop, err := Start(context.Background(), crashConfig(fs, store))
	if err != nil {
		return s
	}
	s.b = b
	s.a = &session{t: t, b: b, id: "a", seq: map[string]int32{}}
	s.c = &session{t: t, b: b, id: "c", seq: map[string]int32{}}
	s.tell(func() bool { _, c := fs.Crashed(); return c })
	_ = stop() // its disk has failed
	return s
}

// settle lets the broker carry out what was decided, and abort what has been open
// for longer than its timeout.
func settle(b *Broker) {
	synctest.Wait()
	_ = b.Advance(context.Background(), 2*time.Minute) // twice the transactions' timeout
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// batchSizes counts the batches of a partition by their size; markers are left
// out.
func batchSizes(t *testing.T, b *Broker, topic string, partition int32) (counts map[int]int, at map[int64]int) {
	t.Helper()
	counts, at = map[int]int{}, map[int64]int{}
	r := fetchRequest(topic, 0, 0)
	r.Topics[0].Partitions[0].Partition = partition
	x := ask[*kmsg.FetchResponse](t, b, r, 11).Topics[0].Partitions[0]
	refused(t, nil, x.ErrorCode)
	for rest := x.RecordBatches; len(rest) > 0; {
		h, base, size, err := fence.ParseHeader(rest)
		require.NoError(t, err)
		if !h.Control {
			counts[size]++
			at[base] = size
		}
		rest = rest[size:]
	}
	return counts, at
}

// sizeOf is the size of the batch of a step.
func sizeOf(step string) int {
	if step == "plain" {
		return len(plain(1, storySizes[step]))
	}
	return len(recordBatch(txnstate.Producer{ID: 1}, 0, 1, storySizes[step], true))
}

// found checks a broker that was started after the crash: all that was
// acknowledged is there, and nothing is half there.
func (s *story) found(t *testing.T, b *Broker, what string) {
	t.Helper()
	settle(b)
	for _, id := range []string{"a", "c"} {
		rec, err := b.coordinator.Describe(ctxFor(t), id)
		if err != nil {
			require.ErrorIs(t, err, txnstate.ErrTxnIDNotFound, what)
			require.False(t, s.acked["init "+id], "%s: the id is gone", what)
			continue
		}
		require.NoError(t, txnstate.Check(rec), what)
		require.False(t, rec.State == txnstate.Ongoing || rec.State.Decided(), "I12, %s: %s", what, rec)
	}
	gone := b.topics.get("gone") != nil
	if s.acked["create"] && !s.tried["delete"] {
		require.True(t, gone, "%s: the topic is not there", what)
	}
	if s.acked["delete"] || !s.tried["create"] {
		require.False(t, gone, "%s: the topic is there", what)
	}
	visible := map[string]bool{}
	for _, p := range []struct {
		topic     string
		partition int32
		steps     []string
	}{
		{"t", 0, []string{"plain", "a1 t/0", "a2 t/0"}},
		{"t", 1, []string{"a1 t/1", "c t/1"}},
		{"gone", 0, []string{"a1 gone/0"}},
	} {
		if p.topic == "gone" && !gone {
			continue
		}
		stableAtEnd(t, b, p.topic, p.partition)
		counts, at := batchSizes(t, b, p.topic, p.partition)
		seen := map[int]bool{}
		for _, o := range allVisible(t, b, p.topic, p.partition) {
			seen[at[o]] = true
		}
		for _, step := range p.steps {
			n := counts[sizeOf(step)]
			delete(counts, sizeOf(step))
			require.LessOrEqual(t, n, 1, "%s: %s is there %d times", what, step, n)
			if s.acked[step] {
				require.Equal(t, 1, n, "%s: the records of %s are gone", what, step)
			}
			if !s.tried[step] {
				require.Zero(t, n, "%s: records of %s", what, step)
			}
			visible[step] = seen[sizeOf(step)]
		}
		require.Empty(t, counts, "%s: more than was written", what)
	}
	if s.acked["plain"] {
		require.True(t, visible["plain"], what)
	}
	// I5, I8: the first transaction whole or not at all, and as it was answered.
	whole := visible["a1 t/0"]
	require.Equal(t, whole, visible["a1 t/1"], "I8, %s", what)
	if gone {
		require.Equal(t, whole, visible["a1 gone/0"], "I8, %s", what)
	}
	g := committed(t, b, "g", 0)
	want := int64(-1)
	if whole {
		want = 7
	}
	require.Equal(t, want, g, "I7, I8, %s", what)
	if s.acked["a1 commit"] {
		require.True(t, whole, "I5, %s: the commit was acknowledged", what)
	}
	if !s.tried["a1 commit"] {
		require.False(t, whole, "I5, %s: nobody asked for a commit", what)
	}
	require.False(t, visible["a2 t/0"] || visible["c t/1"], "I8, %s: what was not committed is visible: %v", what, visible)
	if s.acked["offsets"] {
		require.EqualValues(t, 9, committed(t, b, "plain", 1), what)
	}
}

// goesOn checks that the ids can be used.
func (s *story) goesOn(t *testing.T, b *Broker, what string) {
	t.Helper()
	before := len(allVisible(t, b, "t", 1))
	n := begin(t, b, "a")
	if s.a != nil && s.a.p.ID == n.p.ID {
		require.Greater(t, n.p.Epoch, s.a.p.Epoch, "I6, %s", what)
	}
	n.mustWrite("t", 0)
	n.mustWrite("t", 1)
	refused(t, nil, n.end(true))
	stableAtEnd(t, b, "t", 1)
	require.Len(t, allVisible(t, b, "t", 1), before+1, what)
}

// recovered starts a broker on what a crash left and checks it. Then it lets the
// power fail once more, and checks that.
func (s *story) recovered(t *testing.T, fs *crashfs.FS, store StoreKind, what string) {
	t.Helper()
	for again := range 2 {
		b, stop, err := Start(context.Background(), crashConfig(fs, store))
		require.NoError(t, err, what)
		s.found(t, b, what)
		if again == 1 {
			s.goesOn(t, b, what)
		}
		require.NoError(t, stop(), what)
		fs, what = fs.Image(0), what+", and after it settled"
	}
}

// crashes tells the story on a disk whose power fails before the k-th operation,
// and checks what the next process finds. It reports whether there were as many.
func crashes(t *testing.T, store StoreKind, k int) bool {
	fs := crashfs.New(uint64(k))
	fs.CrashAt(k)
	s := told(t, fs, store)
	at, crashed := fs.Crashed()
	if !crashed {
		require.Len(t, s.acked, len(storySteps))
	}
	what := fmt.Sprintf("%s, power fails before operation %d (%s)", store, k, at)
	for seed := range uint64(3) {
		// 0 keeps nothing that was not synced, 1 all of it.
		if seed == 2 {
			seed += uint64(k)
		}
		s.recovered(t, fs.Image(seed), store, fmt.Sprintf("%s, image %d", what, seed))
	}
	s.recovered(t, fs.AfterKill(), store, what+", killed")
	for j := 0; *crashAgain > 0; j += *crashAgain {
		// The plain images among them, of the first crash and of the second.
		n := j / *crashAgain
		first, then := uint64(k+n)%5, uint64(k/5+n)%4
		second := fs.Image(first)
		second.CrashAt(j + k%*crashAgain)
		b, stop, err := Start(context.Background(), crashConfig(second, store))
		if err == nil {
			settle(b)
			_ = stop()
		}
		at, again := second.Crashed()
		if !again {
			break
		}
		s.recovered(t, second.Image(then), store, fmt.Sprintf("%s, image %d, and fails before operation %d of the recovery (%s), image %d", what, first, j+k%*crashAgain, at, then))
	}
	return crashed
}

// I1, I2, I5 to I8, I11, I12: wherever the power fails in a broker's life, in
// whichever of its files, and fails again in the recovery, all that was
// acknowledged is there, every transaction is there whole or not at all, and the
// broker goes on.
func TestThePowerFailsAnywhereInABroker(t *testing.T) {
	for _, store := range []StoreKind{Journal, SlotFile} {
		t.Run(string(store), func(t *testing.T) {
			first, stride := *crashFrom, *crashStride
			if store == SlotFile && stride > 1 {
				stride *= 3 // it takes as many times the operations
			}
			if first < 0 {
				first = rand.IntN(stride)
			}
			t.Logf("-crash-from %d -crash-stride %d -crash-again %d", first, *crashStride, *crashAgain)
			points := 0
			for k := first; ; k += stride {
				crashed := false
				synctest.Test(t, func(t *testing.T) { crashed = crashes(t, store, k) })
				if !crashed {
					break
				}
				points++
			}
			t.Logf("%d crash points", points)
			require.Greater(t, points*stride, 100)
		})
	}
}
