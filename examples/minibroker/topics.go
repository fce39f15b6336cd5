package minibroker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// topic is a topic and its partitions. It does not change.
type topic struct {
	name     string
	id       [16]byte
	count    int32           // partitions
	internal bool            // it is the one that groups stand for
	logs     []*partitionLog // none of that one; in a cluster, see sharedTopics
}

func (t *topic) partitions() int32 { return t.count }

// has reports whether there is a partition with a number; t may be nil.
func (t *topic) has(partition int32) bool {
	return t != nil && partition >= 0 && partition < t.count
}

// sharedTopics is what a cluster does otherwise: topics are made and deleted for
// all brokers, and the log of a partition is led by one of them.
type sharedTopics interface {
	create(name string, partitions int32, dryRun bool) (*topic, error)
	delete(name string) (*topic, error)
	// refresh takes in what others have made and deleted until now.
	refresh() error
	// log is the log of a partition that is there, if this broker leads it.
	log(t *topic, partition int32) (*partitionLog, error)
	logs() []*partitionLog
	// owner is the broker that is to lead a partition, or -1; leader tells its
	// epoch too.
	owner(t *topic, partition int32) (node int32)
	leader(t *topic, partition int32) (node, epoch int32)
	// coordinator is the broker that is to serve a partition of groups, or -1.
	coordinator(offsetsPartition int32) (node int32)
}

// topics is the table of topics. On disk a topic is a directory that is named
// after the topic's id, which no client chooses:
//
//	topics/<id>/topic.json     name, id and number of partitions
//	topics/<id>/records.log    the records of all its partitions
//
// A topic exists from the moment topic.json does. It is deleted by renaming that
// file to deleted.json; what is left is removed after that, or at the next start.
//
// It is all of wire.Topics, wire.TopicDeletions, wire.Leader and
// markers.LeaderResolver that one broker alone needs.
type topics struct {
	fsys  fsx.FS // nil: in memory
	dir   string
	fsync bool
	node  markers.Target
	limit Limits

	shared sharedTopics // nil: this broker is alone

	change sync.Mutex // one topic is made or deleted at a time; held during I/O
	failed error      // a change that failed: what is on the disk is known at the next start

	mu     sync.RWMutex // never held during I/O
	byName map[string]*topic
	byID   map[[16]byte]*topic
	count  int // partitions of all topics
}

var (
	_ wire.Topics            = (*topics)(nil)
	_ wire.TopicDeletions    = (*topics)(nil)
	_ wire.Leader            = (*topics)(nil)
	_ markers.LeaderResolver = (*topics)(nil)
	_ txnstate.Fencer        = (*topics)(nil)
)

const (
	topicFile   = "topic.json"
	deletedFile = "deleted.json"
	recordsFile = "records.log"
)

// topicJSON is the content of topicFile.
type topicJSON struct {
	Name       string `json:"name"`
	ID         string `json:"id"`
	Partitions int32  `json:"partitions"`
}

// newTopics is a table with nothing but the topics that are always there.
func newTopics(fsys fsx.FS, dir string, cfg Config) *topics {
	ts := &topics{
		fsys: fsys, dir: dir, fsync: cfg.Fsync == Always, node: markers.Target(cfg.NodeID), limit: cfg.Limits,
		byName: map[string]*topic{}, byID: map[[16]byte]*topic{},
	}
	// Groups stand for its partitions; nothing else is ever in it. The id is
	// fixed: clients may hold it across a restart.
	ts.put(&topic{name: txnstate.OffsetsTopic, id: [16]byte{15: 1}, count: txnstate.OffsetsPartitions, internal: true})
	// Nothing of the broker's is in it, but Kafka has it, and takes its partitions
	// into a transaction where a broker asks for that: they take the markers.
	ts.put(&topic{name: stateTopic, id: [16]byte{15: 2}, count: txnstate.Slots, logs: newLogs(stateTopic, txnstate.Slots, cfg.Limits.BatchBytes)})
	ts.count = 0
	return ts
}

// openTopics reads the table and every log. fsys nil keeps all in memory.
func openTopics(fsys fsx.FS, dir string, cfg Config) (*topics, error) {
	ts := newTopics(fsys, dir, cfg)
	if fsys == nil {
		return ts, nil
	}
	if err := fsx.MkdirSynced(fsys, dir, 0o755); err != nil {
		return nil, err
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := ts.open(e.Name()); err != nil {
			ts.close()
			return nil, err
		}
	}
	return ts, nil
}

// open reads one topic's directory.
func (ts *topics) open(base string) error {
	dir := filepath.Join(ts.dir, base)
	raw, err := ts.fsys.ReadFile(filepath.Join(dir, topicFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ts.clean(dir)
	}
	if err != nil {
		return err
	}
	var j topicJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, topicFile), err)
	}
	id, err := hex.DecodeString(j.ID)
	if err != nil || len(id) != 16 || j.ID != base || validTopicName(j.Name) != nil || j.Partitions < 1 {
		return fmt.Errorf("%s: not a topic that could be of this directory: %s", filepath.Join(dir, topicFile), raw)
	}
	t := &topic{name: j.Name, id: [16]byte(id), count: j.Partitions}
	if ts.byName[t.name] != nil {
		return fmt.Errorf("%s: topic %q is there twice", dir, t.name)
	}
	t.logs, err = openLogs(t.name, j.Partitions, ts.limit.BatchBytes, ts.fsys, filepath.Join(dir, recordsFile), ts.fsync)
	if err != nil {
		return err
	}
	ts.put(t)
	return nil
}

// clean removes a directory without a topic: one that was deleted, or that was
// being made.
func (ts *topics) clean(dir string) error {
	entries, err := ts.fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	deleted := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == deletedFile })
	for _, e := range entries {
		if e.Name() == deletedFile {
			continue
		}
		if !deleted && !strings.HasPrefix(e.Name(), ".") {
			return fmt.Errorf("%s holds %s and no %s: nothing is removed there; restore it, or move the directory away", dir, e.Name(), topicFile)
		}
		if err := ts.fsys.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if deleted {
		// Last, and after the others are gone for good.
		if err := ts.fsys.SyncDir(dir); err != nil {
			return err
		}
		if err := ts.fsys.Remove(filepath.Join(dir, deletedFile)); err != nil {
			return err
		}
	}
	return ts.fsys.Remove(dir)
}

func (ts *topics) put(t *topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.byName[t.name], ts.byID[t.id] = t, t
	ts.count += int(t.count)
}

// drop takes a topic out of the table.
func (ts *topics) drop(t *topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.byName, t.name)
	delete(ts.byID, t.id)
	ts.count -= int(t.count)
}

// validTopicName is nil for a name that Kafka allows (Topic.validate).
func validTopicName(name string) error {
	bad := func(why string) error {
		return kafkaErrorf(kerr.InvalidTopicException, "topic name %q: %s", name[:min(len(name), 300)], why)
	}
	switch {
	case name == "":
		return bad("empty")
	case name == "." || name == "..":
		return bad("reserved")
	case len(name) > 249:
		return bad("longer than 249 characters")
	}
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return bad("other characters than [a-zA-Z0-9._-]")
		}
	}
	return nil
}

// create makes a topic, durably. dryRun only says whether it could be made.
func (ts *topics) create(name string, partitions int32, dryRun bool) (*topic, error) {
	if err := validTopicName(name); err != nil {
		return nil, err
	}
	if partitions < 1 {
		return nil, kafkaErrorf(kerr.InvalidPartitions, "%d partitions", partitions)
	}
	if ts.shared != nil {
		return ts.shared.create(name, partitions, dryRun)
	}
	ts.change.Lock()
	defer ts.change.Unlock()
	if ts.failed != nil {
		return nil, ts.failed
	}
	if err := ts.admit(name, partitions); err != nil {
		return nil, err
	}
	t := &topic{name: name, count: partitions, logs: newLogs(name, partitions, ts.limit.BatchBytes)}
	_, _ = rand.Read(t.id[:]) // never fails
	if dryRun {
		return t, nil
	}
	dir := filepath.Join(ts.dir, hex.EncodeToString(t.id[:]))
	if ts.fsys != nil {
		share(t.logs, segment.New(ts.fsys, filepath.Join(dir, recordsFile), ts.fsync))
		if err := ts.store(dir, t); err != nil {
			// It may be there at the next start, and must not be made twice.
			ts.failed = kafkaErrorf(kerr.KafkaStorageError, "topics can't be changed until the next start: %w", err)
			return nil, ts.failed
		}
	}
	ts.put(t)
	return t, nil
}

func (ts *topics) store(dir string, t *topic) error {
	raw, err := json.Marshal(topicJSON{Name: t.name, ID: hex.EncodeToString(t.id[:]), Partitions: t.count})
	if err != nil {
		return err
	}
	if err := ts.fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := ts.fsys.Replace(filepath.Join(dir, topicFile), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return ts.fsys.SyncDir(ts.dir)
}

// admit checks a new topic against those that are there.
func (ts *topics) admit(name string, partitions int32) error {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	if ts.byName[name] != nil || internalTopic(name) {
		return kafkaErrorf(kerr.TopicAlreadyExists, "topic %q is there already", name)
	}
	if strings.ContainsAny(name, "._") {
		// Kafka's metrics do not tell the two characters apart (Topic.hasCollision).
		flat := strings.ReplaceAll(name, ".", "_")
		for other := range ts.byName {
			if strings.ReplaceAll(other, ".", "_") == flat {
				return kafkaErrorf(kerr.InvalidTopicException, "topic %q collides with %q", name, other)
			}
		}
	}
	if int(partitions) > ts.limit.Partitions-ts.count {
		return kafkaErrorf(kerr.PolicyViolation, "%d more partitions, and %d of %d are there", partitions, ts.count, ts.limit.Partitions)
	}
	return nil
}

const stateTopic = "__transaction_state"

func internalTopic(name string) bool {
	return name == txnstate.OffsetsTopic || name == stateTopic || name == "__share_group_state"
}

// delete removes a topic, and returns what it was. Without an error the topic does
// not come back.
func (ts *topics) delete(name string) (*topic, error) {
	if ts.shared != nil {
		return ts.shared.delete(name)
	}
	ts.change.Lock()
	defer ts.change.Unlock()
	t := ts.get(name)
	switch {
	case ts.failed != nil:
		return nil, ts.failed
	case internalTopic(name):
		return nil, kafkaErrorf(kerr.InvalidTopicException, "topic %q is the broker's own", name)
	case t == nil:
		return nil, kafkaErrorf(kerr.UnknownTopicOrPartition, "no topic %q", name)
	}
	dir := filepath.Join(ts.dir, hex.EncodeToString(t.id[:]))
	if ts.fsys != nil {
		err := ts.fsys.Rename(filepath.Join(dir, topicFile), filepath.Join(dir, deletedFile))
		if err == nil {
			err = ts.fsys.SyncDir(dir)
		}
		if err != nil {
			// It may be gone at the next start, so nothing is acknowledged in it.
			for _, l := range t.logs {
				l.stop(err)
			}
			ts.failed = kafkaErrorf(kerr.KafkaStorageError, "topics can't be changed until the next start: %w", err)
			return nil, ts.failed
		}
	}
	ts.drop(t)
	for _, l := range t.logs {
		l.remove()
	}
	t.logs[0].finish() // the file is that of all
	if ts.fsys != nil {
		_ = ts.clean(dir) // what stays is removed at the next start
	}
	return t, nil
}

// get is the topic with a name, or nil.
func (ts *topics) get(name string) *topic {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.byName[name]
}

// getByID is the topic with an id, or nil.
func (ts *topics) getByID(id [16]byte) *topic {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.byID[id]
}

// all is every topic, by name.
func (ts *topics) all() []*topic {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	out := make([]*topic, 0, len(ts.byName))
	for _, t := range ts.byName {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *topic) int { return cmp.Compare(a.name, b.name) })
	return out
}

// eachLog calls f with every log of this broker.
func (ts *topics) eachLog(f func(*partitionLog)) {
	if ts.shared != nil {
		for _, l := range ts.shared.logs() {
			f(l)
		}
		return
	}
	for _, t := range ts.all() {
		for _, l := range t.logs {
			f(l)
		}
	}
}

func (ts *topics) close() { ts.eachLog((*partitionLog).finish) }

// Topic is wire.Topics'.
func (ts *topics) Topic(name string) (wire.Topic, bool) { return ts.get(name).wire() }

// TopicByID is wire.Topics'.
func (ts *topics) TopicByID(id [16]byte) (wire.Topic, bool) { return ts.getByID(id).wire() }

func (t *topic) wire() (wire.Topic, bool) {
	if t == nil {
		return wire.Topic{}, false
	}
	return wire.Topic{Name: t.name, ID: t.id, Partitions: t.partitions(), Internal: internalTopic(t.name)}, true
}

// Deleted is wire.TopicDeletions'. What another broker has made and this one has
// not heard of is not deleted.
func (ts *topics) Deleted(name string, partition int32) bool {
	if ts.shared != nil && ts.shared.refresh() != nil {
		return false
	}
	return !ts.get(name).has(partition)
}

// Leader is markers.LeaderResolver's.
func (ts *topics) Leader(p txnstate.Participant) (markers.Target, markers.Standing) {
	w := p.Wire()
	if w.Kind == txnstate.KindPartition && ts.Deleted(w.Name, w.Index) {
		return 0, markers.Gone
	}
	if ts.shared == nil {
		return ts.node, markers.Known
	}
	node := int32(-1)
	if n, ok := w.Offsets(); ok {
		node = ts.shared.coordinator(n)
	} else if t := ts.get(w.Name); t.has(w.Index) {
		node = ts.shared.owner(t, w.Index)
	}
	if node < 0 {
		return 0, markers.Unknown
	}
	return markers.Target(node), markers.Known
}

// leader is the broker that leads a partition, or -1, and its epoch.
func (ts *topics) leader(t *topic, partition int32) (node, epoch int32) {
	if ts.shared == nil {
		return int32(ts.node), 0
	}
	return ts.shared.leader(t, partition)
}

// Log is wire.Leader's.
func (ts *topics) Log(name string, partition int32) (wire.Log, error) {
	l, err := ts.log(ts.get(name), partition)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// log is a partition of a topic, which may be nil.
func (ts *topics) log(t *topic, partition int32) (*partitionLog, error) {
	if !t.has(partition) || t.internal {
		return nil, kafkaErrorf(kerr.UnknownTopicOrPartition, "no such partition: %d", partition)
	}
	if ts.shared != nil && t.logs == nil {
		return ts.shared.log(t, partition)
	}
	return t.logs[partition], nil
}

// Fence is txnstate.Fencer's: the logs that know the producer refuse its older
// epochs from now on.
func (ts *topics) Fence(_ context.Context, p txnstate.Producer) error {
	ts.eachLog(func(l *partitionLog) {
		l.With(func(fp *fence.Partition) { fp.Fence(p) })
	})
	return nil
}
