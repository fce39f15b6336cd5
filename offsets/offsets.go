package offsets

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Offset is a position of a group in one partition of a topic.
type Offset struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32  // of the record before it, -1 for unknown
	Metadata    string // the client's own
	// CommitMs is when it was committed, or staged, in milliseconds since 1970.
	// Zero or less is replaced by the time of the request; it is what retention
	// goes by.
	CommitMs int64
}

// TopicPartition names one partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

func (o Offset) key() TopicPartition { return TopicPartition{o.Topic, o.Partition} }

func (tp TopicPartition) compare(o TopicPartition) int {
	return cmp.Or(strings.Compare(tp.Topic, o.Topic), cmp.Compare(tp.Partition, o.Partition))
}

func sortOffsets(os []Offset) {
	slices.SortFunc(os, func(a, b Offset) int { return a.key().compare(b.key()) })
}

// Log is the durable log of the offsets partitions, 0 to
// txnstate.OffsetsPartitions-1, each a sequence of entries that mean nothing to
// it: bytes, never longer than MaxEntry, perhaps empty in the hands of others.
// Package offsetstest has the suite that an implementation must pass; FileLog
// and MemLog are ready ones.
//
// The methods may be called concurrently for different partitions; of one
// partition the Manager has one call under way at a time. No method keeps the
// slices it is given, nor what they hold, after it returns.
//
// One process uses a partition at a time. Where the ownership of partitions
// moves between processes, an Append or Rewrite of an owner that was deposed
// must fail once the new owner has begun to Replay: the Manager cannot know.
type Log interface {
	// Append adds entries at the end, in order. On nil they survive loss of
	// power and every later Replay shows them. An error means perhaps: a later
	// Replay shows none of them, all of them or the first few. What a Replay that
	// began after the error did not show never appears after it.
	// A ctx that ends is an error like any other.
	Append(ctx context.Context, partition int32, entries [][]byte) error

	// Replay calls f with every entry of the partition, oldest first, and ends
	// with f's error where f returns one. A partition never written to has no
	// entries. What it has shown is durable. The slice is good until f returns.
	// After a failed Append or Rewrite of the partition the Manager calls it to
	// learn what there is, before it writes again.
	Replay(ctx context.Context, partition int32, f func(entry []byte) error) error

	// Rewrite replaces all entries of the partition by these, for compaction. It
	// is durable on nil. After an error a later Replay shows all of the old
	// entries or all of the new, never a mixture.
	Rewrite(ctx context.Context, partition int32, entries [][]byte) error
}

// Checker is an optional ability of a Log whose partitions move between processes.
// Check is asked when the state of a partition was read, before an answer that
// writes nothing: nil where this process had the partition at some moment of the
// call. With an error the answer is NOT_COORDINATOR: another process has it, or
// nobody knows. It may be called concurrently, beside the other methods.
type Checker interface {
	Check(partition int32) error
}

// OffsetHook lets a host that keeps committed offsets itself have them. It is
// told every value before it becomes the committed one, by a commit marker or by
// Commit, and of one group in the order in which they do. A repeat is harmless:
// after a crash, or an error further on, the same values come again. Calls of
// different groups overlap.
//
// An error keeps the staged offsets, and with them the transaction in its
// Prepare state: the marker is delivered again. No lock is held, so the hook may
// call Fetch, Stage, HasPending and the like, but not Commit, Marker or
// DeleteGroup for the same group: those wait for it to return. The slice is the
// hook's to keep.
type OffsetHook interface {
	Commit(ctx context.Context, group string, os []Offset) error
}

// OffsetHookFunc is a function as an OffsetHook.
type OffsetHookFunc func(ctx context.Context, group string, os []Offset) error

// Commit calls f.
func (f OffsetHookFunc) Commit(ctx context.Context, group string, os []Offset) error {
	return f(ctx, group, os)
}

// Config is what a Manager is made of.
type Config struct {
	Log Log // required

	// Hook is told what becomes committed; nil where the Manager is the one that
	// keeps committed offsets.
	Hook OffsetHook
	// MaxMetadata is the longest metadata of an offset in bytes
	// (offset.metadata.max.bytes). Zero is 4096; negative allows none.
	MaxMetadata int
	// Fence says how the producer state of the offsets partitions behaves.
	Fence fence.Config
	// CompactBytes is the size a partition's log may have beyond four times
	// what is live in it before it is rewritten. Zero is 1 MiB.
	CompactBytes int
	// MaxQueued bounds the bytes of the entries of one partition that wait for
	// the log; a request beyond it is answered COORDINATOR_NOT_AVAILABLE. Zero is
	// 64 MiB.
	MaxQueued int

	Now    func() time.Time // stamps offsets and markers; nil is time.Now
	Logger *slog.Logger     // nil is silent
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxMetadata, 4096)
	def(&c.CompactBytes, 1<<20)
	def(&c.MaxQueued, 64<<20)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Log == nil {
		errs = append(errs, errors.New("offsets: Config.Log is required"))
	}
	if c.CompactBytes < 0 {
		errs = append(errs, errors.New("offsets: Config.CompactBytes is negative"))
	}
	if c.MaxQueued < 0 {
		errs = append(errs, errors.New("offsets: Config.MaxQueued is negative"))
	}
	return errors.Join(errs...)
}

// partitions is how many offsets partitions there are.
const partitions = txnstate.OffsetsPartitions
