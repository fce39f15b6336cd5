package minibroker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// restarts is a broker that a test stops and starts on one directory.
type restarts struct {
	t    testing.TB
	cfg  Config
	b    *Broker
	stop func() error
}

func onDisk(t testing.TB, cfg Config) *restarts {
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	r := &restarts{t: t, cfg: listening(cfg)}
	t.Cleanup(func() { require.NoError(t, r.stop()) })
	r.start()
	return r
}

func (r *restarts) start() {
	r.t.Helper()
	var err error
	r.b, r.stop, err = Start(context.Background(), r.cfg)
	require.NoError(r.t, err)
}

func (r *restarts) again() {
	r.t.Helper()
	require.NoError(r.t, r.stop())
	r.start()
}

// What was acknowledged is there after a restart: topics with their ids, records,
// committed and staged offsets, access rules, an open transaction, which its
// producer goes on with, and a decided one, which is carried out (I5, I7).
func TestARestartFindsEverything(t *testing.T) {
	for fsync, store := range map[Fsync]StoreKind{Always: SlotFile, Never: Journal} {
		t.Run(fmt.Sprint(fsync, " ", store), func(t *testing.T) {
			r := onDisk(t, Config{Fsync: fsync, Store: store, EndWait: txnstate.AnswerAtDecision, Topics: map[string]int32{"t": 2}})
			raw := func(req kmsg.Request, version int16) kmsg.Response {
				req.SetVersion(version)
				resp, err := r.b.Handle(ctxFor(t), req, anonymous)
				require.NoError(t, err)
				return resp
			}
			topicID := r.b.topics.get("t").id
			refused(t, nil, produce(t, r.b, "t", plain(3, 10)).ErrorCode)

			init := kmsg.NewPtrInitProducerIDRequest()
			init.TransactionalID, init.TransactionTimeoutMillis = kmsg.StringPtr("tx"), 60000
			id := raw(init, 4).(*kmsg.InitProducerIDResponse)
			refused(t, nil, id.ErrorCode)
			p := txnstate.Producer{ID: id.ProducerID, Epoch: id.ProducerEpoch}
			data := func(seq int32) {
				req := kmsg.NewPtrProduceRequest()
				req.Acks, req.TransactionID = -1, kmsg.StringPtr("tx")
				req.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: recordBatch(p, seq, 1, 1, true)}}}}
				refused(t, nil, raw(req, 12).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
			}
			stage := func(offset int64) {
				req := kmsg.NewPtrTxnOffsetCommitRequest()
				req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = "tx", "g", p.ID, p.Epoch, -1
				req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Offset: offset, LeaderEpoch: -1}}}}
				refused(t, nil, raw(req, 5).(*kmsg.TxnOffsetCommitResponse).Topics[0].Partitions[0].ErrorCode)
			}
			end := func() {
				req := kmsg.NewPtrEndTxnRequest()
				req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = "tx", p.ID, p.Epoch, true
				resp := raw(req, 5).(*kmsg.EndTxnResponse)
				refused(t, nil, resp.ErrorCode)
				p = txnstate.Producer{ID: resp.ProducerID, Epoch: resp.ProducerEpoch}
			}
			committed := func(stable bool) kmsg.OffsetFetchResponseTopicPartition {
				req := kmsg.NewPtrOffsetFetchRequest()
				req.Group, req.RequireStable = "g", stable
				req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}}
				return raw(req, 7).(*kmsg.OffsetFetchResponse).Topics[0].Partitions[0]
			}
			readable := func(isolation int8) int64 {
				req := fetchRequest("t", 0, 0)
				req.IsolationLevel = isolation
				x := raw(req, 11).(*kmsg.FetchResponse).Topics[0].Partitions[0]
				refused(t, nil, x.ErrorCode)
				if isolation == readCommitted {
					return x.LastStableOffset
				}
				return x.HighWatermark
			}
			acl := kmsg.NewPtrCreateACLsRequest()
			acl.Creations = []kmsg.CreateACLsRequestCreation{{
				ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: "secret", ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral,
				Principal: "User:*", Host: "*", Operation: kmsg.ACLOperationRead, PermissionType: kmsg.ACLPermissionTypeDeny,
			}}
			refused(t, nil, raw(acl, 3).(*kmsg.CreateACLsResponse).Results[0].ErrorCode)

			data(0) // offset 3
			stage(7)
			r.again()
			require.Equal(t, topicID, r.b.topics.get("t").id)
			require.EqualValues(t, 4, readable(0))
			require.EqualValues(t, 3, readable(readCommitted), "the transaction is open")
			refused(t, kerr.UnstableOffsetCommit, committed(true).ErrorCode)
			require.EqualValues(t, -1, committed(false).Offset)
			refused(t, kerr.TopicAuthorizationFailed, raw(fetchRequest("secret", 0, 0), 11).(*kmsg.FetchResponse).Topics[0].Partitions[0].ErrorCode)

			carriedOut := func() {
				require.Eventually(t, func() bool { return state(t, r.b, "tx") == txnstate.CompleteCommit }, limit, time.Millisecond)
			}
			data(1) // 4: in sequence with what was before the restart
			end()   // 5
			carriedOut()
			require.EqualValues(t, 6, readable(readCommitted))
			require.EqualValues(t, 7, committed(true).Offset)

			release := r.b.HoldMarkers()
			data(0)
			stage(8)
			end()
			require.EqualValues(t, 6, readable(readCommitted), "decided, and not carried out")
			r.again()
			release() // of the broker that has ended
			carriedOut()
			require.EqualValues(t, 8, readable(readCommitted))
			require.EqualValues(t, 8, committed(true).Offset)
			r.again()
			require.EqualValues(t, 8, readable(0))
		})
	}
}

// A real client sees a restart as a pause.
func TestAClientGoesOnAfterARestart(t *testing.T) {
	r := onDisk(t, Config{Topics: map[string]int32{"t": 1}})
	r.cfg.Listen = r.b.Addr().String()
	c := connect(t, r.b, kgo.DefaultProduceTopic("t"), kgo.TransactionalID("tx"))
	for i := range 3 {
		require.NoError(t, c.BeginTransaction())
		require.NoError(t, c.ProduceSync(ctxFor(t), kgo.StringRecord(fmt.Sprint(i))).FirstErr())
		r.again()
		require.NoError(t, c.ProduceSync(ctxFor(t), kgo.StringRecord(fmt.Sprint(i, "b"))).FirstErr())
		require.NoError(t, c.EndTransaction(ctxFor(t), kgo.TryCommit))
	}
	got := poll(t, connect(t, r.b, kgo.ConsumeTopics("t"), kgo.FetchIsolationLevel(kgo.ReadCommitted())), 6)
	require.Equal(t, []string{"0", "0b", "1", "1b", "2", "2b"}, values(got))
}

// The coordinator epoch is 0 in a fresh directory and one more at each start,
// durably (so that markers of two starts are told apart).
func TestEachStartHasItsCoordinatorEpoch(t *testing.T) {
	r := onDisk(t, Config{})
	for want := range int32(3) {
		raw, err := os.ReadFile(filepath.Join(r.cfg.Dir, "node.json"))
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"node":0,"clusterId":"kafkatxn","store":"journal","coordinatorEpoch":%d}`, want), string(raw))
		r.again()
	}
}

func TestADirectoryIsOfOneProcessAndOneNode(t *testing.T) {
	r := onDisk(t, Config{})
	_, _, err := Start(context.Background(), r.cfg)
	require.ErrorIs(t, err, fsx.ErrLocked)
	require.ErrorContains(t, err, "another process uses the directory "+r.cfg.Dir)
	require.NoError(t, r.stop())
	other := r.cfg
	other.NodeID = 1
	_, _, err = Start(context.Background(), other)
	require.ErrorContains(t, err, "the directory is that of node 0, and this is node 1")
	other = r.cfg
	other.Store = SlotFile
	_, _, err = Start(context.Background(), other)
	require.ErrorContains(t, err, `are in store "journal", and not in "slotfile"`)
	r.start()
}

// What can't be read stops the start, with the name of the file: nothing that was
// acknowledged is thrown away in silence.
func TestDamagedFilesStopTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		file func(dir string) string
		do   func(file string) error
		want string
	}{
		"node.json":     {func(d string) string { return d + "/node.json" }, truncate(3), "node.json can't be read"},
		"acls.json":     {func(d string) string { return d + "/acls.json" }, truncate(3), "acls.json"},
		"topic.json":    {func(d string) string { return topicDir(d) + "/topic.json" }, truncate(10), "topic.json"},
		"no topic.json": {func(d string) string { return topicDir(d) + "/topic.json" }, os.Remove, "and no topic.json"},
		"a log":         {func(d string) string { return topicDir(d) + "/records.log" }, flip(segment.HeaderBytes + 70), "records.log is damaged at byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := onDisk(t, Config{Topics: map[string]int32{"t": 1}})
			refused(t, nil, produce(t, r.b, "t", plain(3, 10)).ErrorCode)
			refused(t, nil, produce(t, r.b, "t", plain(3, 10)).ErrorCode)
			acl := kmsg.NewPtrCreateACLsRequest()
			acl.Creations = []kmsg.CreateACLsRequestCreation{{
				ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: "x", ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral,
				Principal: "User:*", Host: "*", Operation: kmsg.ACLOperationRead, PermissionType: kmsg.ACLPermissionTypeDeny,
			}}
			refused(t, nil, ask[*kmsg.CreateACLsResponse](t, r.b, acl, 3).Results[0].ErrorCode)
			require.NoError(t, r.stop())
			file := c.file(r.cfg.Dir)
			whole, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, c.do(file))
			_, _, err = Start(context.Background(), r.cfg)
			require.ErrorContains(t, err, c.want)
			require.NoError(t, os.WriteFile(file, whole, 0o644))
			r.start()
			require.EqualValues(t, 6, produce(t, r.b, "t", plain(1, 1)).BaseOffset)
		})
	}
}

func topicDir(dir string) string {
	names, err := namesIn(dir + "/topics")
	if err != nil || len(names) != 1 {
		panic(fmt.Sprint(names, err))
	}
	return filepath.Join(dir, "topics", names[0])
}

func truncate(n int64) func(string) error { return func(f string) error { return os.Truncate(f, n) } }

func flip(at int) func(string) error {
	return func(f string) error {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		b[at] ^= 1
		return os.WriteFile(f, b, 0o644)
	}
}

// A deletion is final from its first step on, and what is left of it, or of a
// topic that was being made, is removed at the next start.
func TestACrashInTheMiddleOfADeletion(t *testing.T) {
	r := onDisk(t, Config{})
	refused(t, nil, create(t, r.b, createTopic("t", 1))[0].ErrorCode)
	refused(t, nil, produce(t, r.b, "t", plain(3, 10)).ErrorCode)
	require.NoError(t, r.stop())
	dir := topicDir(r.cfg.Dir)
	require.NoError(t, os.Rename(filepath.Join(dir, topicFile), filepath.Join(dir, deletedFile)))
	require.NoError(t, os.MkdirAll(filepath.Join(r.cfg.Dir, "topics", strings.Repeat("0", 32)), 0o755))
	r.start()
	require.Nil(t, r.b.topics.get("t"))
	names, err := namesIn(filepath.Join(r.cfg.Dir, "topics"))
	require.NoError(t, err)
	require.Empty(t, names)
	refused(t, nil, create(t, r.b, createTopic("t", 1))[0].ErrorCode)
	require.Zero(t, produce(t, r.b, "t", plain(3, 10)).BaseOffset)
}

// A change of the table of topics that failed may be there at the next start: no
// other is made until then, and a topic that may be gone takes nothing more.
func TestAFailedChangeOfTheTopics(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpReplace, fsx.OpSyncDir, fsx.OpRename} {
		t.Run(string(op), func(t *testing.T) {
			var broken bool
			fsys := fsx.Hook(fsx.OS(), func(o fsx.Op, name string) error {
				if broken && o == op && strings.Contains(name, "topics") {
					return os.ErrPermission
				}
				return nil
			})
			r := onDisk(t, Config{FS: fsys, Topics: map[string]int32{"old": 1}})
			refused(t, nil, produce(t, r.b, "old", plain(1, 1)).ErrorCode)
			broken = true
			if op == fsx.OpRename {
				del := kmsg.NewPtrDeleteTopicsRequest()
				del.TopicNames = []string{"old"}
				refused(t, kerr.KafkaStorageError, ask[*kmsg.DeleteTopicsResponse](t, r.b, del, 5).Topics[0].ErrorCode)
				refused(t, kerr.KafkaStorageError, produce(t, r.b, "old", plain(1, 1)).ErrorCode)
			} else {
				refused(t, kerr.KafkaStorageError, create(t, r.b, createTopic("new", 1))[0].ErrorCode)
				require.EqualValues(t, 1, produce(t, r.b, "old", plain(1, 1)).BaseOffset)
			}
			broken = false
			refused(t, kerr.KafkaStorageError, create(t, r.b, createTopic("other", 1))[0].ErrorCode)
			r.again()
			refused(t, nil, create(t, r.b, createTopic("other", 1))[0].ErrorCode)
		})
	}
}

// A topic whose file fails answers KAFKA_STORAGE_ERROR, and the others go on.
func TestAFileThatFails(t *testing.T) {
	var broken bool
	fsys := fsx.Hook(fsx.OS(), func(o fsx.Op, name string) error {
		if broken && o == fsx.OpWriteAt && strings.HasSuffix(name, "records.log") {
			return os.ErrPermission
		}
		return nil
	})
	r := onDisk(t, Config{FS: fsys, Topics: map[string]int32{"t": 2, "other": 1}})
	refused(t, nil, produce(t, r.b, "t", plain(1, 1)).ErrorCode)
	refused(t, nil, produce(t, r.b, "other", plain(1, 1)).ErrorCode)
	broken = true
	refused(t, kerr.KafkaStorageError, produce(t, r.b, "t", plain(1, 1)).ErrorCode)
	broken = false
	refused(t, kerr.KafkaStorageError, produce(t, r.b, "t", plain(1, 1)).ErrorCode)
	refused(t, nil, produce(t, r.b, "other", plain(1, 1)).ErrorCode)
	refused(t, kerr.KafkaStorageError, ask[*kmsg.FetchResponse](t, r.b, fetchRequest("t", 0, 0), 11).Topics[0].Partitions[0].ErrorCode)
	r.again()
	require.Positive(t, produce(t, r.b, "t", plain(1, 1)).BaseOffset)
}

// When the log fails that all share, nothing is acknowledged any more until the
// next start, in whichever topic. What was is there.
func TestADiskThatFails(t *testing.T) {
	var broken bool
	fsys := fsx.Hook(fsx.OS(), func(o fsx.Op, name string) error {
		if broken && o == fsx.OpSync && strings.HasPrefix(filepath.Base(name), "sync.") {
			return os.ErrPermission
		}
		return nil
	})
	r := onDisk(t, Config{FS: fsys, Topics: map[string]int32{"t": 2, "other": 1}})
	for range 2 { // the first sync of a file is its own
		refused(t, nil, produce(t, r.b, "t", plain(1, 1)).ErrorCode)
		refused(t, nil, produce(t, r.b, "other", plain(1, 1)).ErrorCode)
	}
	broken = true
	refused(t, kerr.KafkaStorageError, produce(t, r.b, "t", plain(1, 1)).ErrorCode)
	broken = false
	refused(t, kerr.KafkaStorageError, produce(t, r.b, "t", plain(1, 1)).ErrorCode)
	refused(t, kerr.KafkaStorageError, produce(t, r.b, "other", plain(1, 1)).ErrorCode)
	r.again()
	require.GreaterOrEqual(t, produce(t, r.b, "t", plain(1, 1)).BaseOffset, int64(2))
	require.GreaterOrEqual(t, produce(t, r.b, "other", plain(1, 1)).BaseOffset, int64(2))
}

// The names of topics are not names of files.
func TestFilesAreNamedAfterIDs(t *testing.T) {
	r := onDisk(t, Config{Topics: map[string]int32{"...": 1, "CON": 1, "con": 1, "a.b": 1}})
	names, err := namesIn(filepath.Join(r.cfg.Dir, "topics"))
	require.NoError(t, err)
	require.Len(t, names, 4)
	for _, n := range names {
		require.Regexp(t, "^[0-9a-f]{32}$", n)
	}
	r.again()
	c := connect(t, r.b)
	list, err := kadm.NewClient(c).ListTopics(ctxFor(t))
	require.NoError(t, err)
	got := list.Names()
	slices.Sort(got)
	require.Equal(t, []string{"...", "CON", "a.b", "con"}, got)
}
