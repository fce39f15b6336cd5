package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Topics is what this broker knows of the cluster's topics. Its methods answer
// from memory and may be called concurrently.
//
// The partitions of __consumer_offsets are known to a Handler without it: on the
// wire they stand for groups.
type Topics interface {
	// Topic is the topic with a name. ok is false where this broker knows none,
	// which may mean that it has not heard of it yet.
	Topic(name string) (t Topic, ok bool)
	// TopicByID is the topic with an id. It is not called with
	// Config.WithoutTopicIDs.
	TopicByID(id [16]byte) (t Topic, ok bool)
}

// Topic is a topic of the cluster.
type Topic struct {
	Name       string
	ID         [16]byte
	Partitions int32 // numbered from 0
	// Internal topics take no records from clients and can't be added to a
	// transaction by them. Kafka's own internal topics are so by their names.
	Internal bool
}

// TopicDeletions is an optional ability of Topics: to tell a partition that was
// deleted from one that is not known yet. A marker for a deleted partition is
// done with. Without it nothing counts as deleted, and markers are retried until
// the host's LeaderResolver says that their partition is gone.
type TopicDeletions interface {
	// Deleted reports that the partition existed and its deletion is certain.
	Deleted(topic string, partition int32) bool
}

// Leader finds the logs of the partitions that this broker leads.
type Leader interface {
	// Log is the log of a partition. Its error is an *Error of txnstate:
	// UNKNOWN_TOPIC_OR_PARTITION where there is none on this broker,
	// NOT_LEADER_OR_FOLLOWER where another broker leads it, KAFKA_STORAGE_ERROR
	// where it can't be used. It answers from memory and may be called
	// concurrently.
	Log(topic string, partition int32) (Log, error)
}

// Log is one partition's log and the producer state beside it. Its methods may be
// called concurrently.
type Log interface {
	// With runs f with the partition's producer state, alone. f does not block
	// and keeps no reference to p.
	With(f func(p *fence.Partition))

	// Append appends one record batch. Under the partition's lock it calls admit
	// with the producer state and the offset that the batch would get; admit does
	// not block.
	//
	// Where admit returns an error, nothing is appended and Append returns that
	// error as it is. Where admit returns nil, the batch takes that offset: the
	// host writes offset and leader epoch into the batch's header (they are not
	// covered by its checksum). Append returns nil when the batch is in the log
	// and durable. Others may append meanwhile, so that syncs are shared.
	//
	// A batch that is refused before admit, for its size or for want of replicas,
	// is an *Error of txnstate. When the write fails after admit, the host drops
	// the producer state, which has taken the batch in, and rebuilds it from its
	// log before it appends again, or takes the partition offline; the error is
	// KAFKA_STORAGE_ERROR. When ctx ends after admit, Append may return ctx's
	// error: the batch stays admitted.
	//
	// The batch is the host's from the call on; with a nil error or not.
	Append(ctx context.Context, batch []byte, admit func(p *fence.Partition, base int64) error) error

	// Durable returns nil when the record at an offset that was admitted is
	// durable, and an error where its write failed or ctx ends. The answer to a
	// repeated batch waits for it: the first attempt may still be on its way to
	// the disk, and a success that power takes back is none. A host whose Append
	// holds the lock until the sync is done returns nil at once.
	Durable(ctx context.Context, offset int64) error
}

// LogChecker is an optional ability of a Log, for a host whose partitions move
// between brokers. Check is asked when the producer state was read, before an
// answer that writes nothing: nil where this broker led the partition at some
// moment of the call. Otherwise its error, NOT_LEADER_OR_FOLLOWER as a rule, is
// the answer. What a Log itself answers without writing, an error of admit or a
// Durable, it checks by itself.
type LogChecker interface {
	Check() error
}

// still asks a Log that can be asked.
func still(l Log) error {
	if c, ok := l.(LogChecker); ok {
		return c.Check()
	}
	return nil
}

// LogStarter is an optional ability of a Log: an append whose end is waited for
// apart. With it the markers of a batch, and the partitions of a produce request,
// take one goroutine for each topic, and not one for each of them.
type LogStarter interface {
	// Start is Append up to the end of admit, of which it returns the error. Where
	// it returns none, wait is the rest of Append, and is called once. Logs of one
	// topic may be waited for one after another, in the order of their Starts.
	Start(batch []byte, admit func(p *fence.Partition, base int64) error) (wait func(ctx context.Context) error, err error)
}

// Verifier asks the coordinator of a transactional id whether partitions are in
// its open transaction, before a leader or a group coordinator takes a record of
// it (KIP-890). With fence.ModeAdd the coordinator adds those that are not.
//
// There is one answer a participant, in their order; an error stands for all. A
// transport's troubles are codes that Kafka's brokers use: 15 for a coordinator
// that is not known, 13 for one that does not answer, which an error without a
// code counts as. It may be called concurrently, and a repeat is harmless.
type Verifier interface {
	Verify(ctx context.Context, txnID string, p txnstate.Producer, ps []txnstate.Participant, mode fence.Mode) ([]txnstate.Code, error)
}

// Kafka's internal topics, which are internal even where they do not exist.
const (
	transactionStateTopic = "__transaction_state"
	shareStateTopic       = "__share_group_state"
)

func internalName(topic string) bool {
	return topic == txnstate.OffsetsTopic || topic == transactionStateTopic || topic == shareStateTopic
}

// topic is what is known of a topic.
func (h *Handler) topic(name string) (Topic, bool) {
	if name == txnstate.OffsetsTopic {
		t, _ := h.cfg.Topics.Topic(name)
		return Topic{Name: name, ID: t.ID, Partitions: txnstate.OffsetsPartitions, Internal: true}, true
	}
	t, ok := h.cfg.Topics.Topic(name)
	t.Internal = t.Internal || internalName(name)
	return t, ok
}

// exists reports whether a partition is known to this broker.
func (h *Handler) exists(topic string, partition int32) bool {
	t, ok := h.topic(topic)
	return ok && partition >= 0 && partition < t.Partitions
}

// topicName is the name of a topic that a request names, or, by its version,
// identifies.
func (h *Handler) topicName(key, version int16, name string, id [16]byte) (string, error) {
	if a, ok := apiOf(key); !ok || version < a.byID {
		return name, nil
	}
	t, ok := Topic{}, false
	if id != [16]byte{} { // which is what a topic without an id has
		t, ok = h.cfg.Topics.TopicByID(id)
	}
	if !ok {
		return "", txnstate.CodeUnknownTopicID.Errorf("", "no topic has the id %x", id)
	}
	return t.Name, nil
}
