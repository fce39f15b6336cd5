package offsets

import "github.com/kafkatxn/kafkatxn/txnstate"

// MaxEntry is the longest entry in bytes. A request that would need a longer
// one is refused with UNKNOWN_SERVER_ERROR, as Kafka answers MESSAGE_TOO_LARGE
// from the log of __consumer_offsets.
const MaxEntry = 16 << 20

// The kinds of entries. A number is never given a new meaning: see
// the format in codec.go.
type kind uint8

const (
	kindStage         kind = 1 // TxnOffsetCommit
	kindCommit        kind = 2 // OffsetCommit
	kindMarker        kind = 3
	kindDeleteGroup   kind = 4
	kindDeleteOffsets kind = 5
	kindDeleteTopic   kind = 6
	kindExpire        kind = 7

	// The entries that a rewritten log begins with.
	kindSnapshot          kind = 16 // announces the ones below
	kindSnapshotProducers kind = 17
	kindSnapshotCommitted kind = 18
	kindSnapshotStaged    kind = 19
)

var kindNames = map[kind]string{
	kindStage: "stage", kindCommit: "commit", kindMarker: "marker", kindDeleteGroup: "delete-group",
	kindDeleteOffsets: "delete-offsets", kindDeleteTopic: "delete-topic", kindExpire: "expire",
	kindSnapshot: "snapshot", kindSnapshotProducers: "snapshot-producers",
	kindSnapshotCommitted: "snapshot-committed", kindSnapshotStaged: "snapshot-staged",
}

// entry is one thing that happened to an offsets partition, or one piece of a
// snapshot. Which fields a kind has is in codec.go.
type entry struct {
	kind kind
	// number is the entry's place among all entries of the partition ever
	// written, from 1: what Kafka calls the record's offset. Of a snapshot it is
	// the number of the last entry the snapshot accounts for.
	number int64

	producer         txnstate.Producer
	coordinatorEpoch int32
	commit           bool
	stampMs          int64

	group string
	topic string
	items []item

	count int    // kindSnapshot: how many entries of the snapshot follow
	last  bool   // kindSnapshotProducers: no further piece follows
	blob  []byte // kindSnapshotProducers
}

// item is one partition that an entry speaks of. A deletion has the key alone,
// an expiry the key and the order.
type item struct {
	key TopicPartition
	value
	epoch int16 // kindSnapshotStaged: of the producer when it staged the value
}

// value is a position as the state keeps it.
type value struct {
	offset      int64
	leaderEpoch int32
	commitMs    int64
	metadata    string
	// order is the number of the entry that brought the value. Between two
	// values of a partition the higher one is the newer (KAFKA-5247).
	order int64
}

func (v value) at(tp TopicPartition) Offset {
	return Offset{
		Topic: tp.Topic, Partition: tp.Partition, Offset: v.offset,
		LeaderEpoch: v.leaderEpoch, Metadata: v.metadata, CommitMs: v.commitMs,
	}
}

func itemOf(o Offset) item {
	return item{key: o.key(), value: value{
		offset: o.Offset, leaderEpoch: o.LeaderEpoch, commitMs: o.CommitMs, metadata: o.Metadata,
	}}
}
