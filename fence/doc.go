// Package fence keeps the producer state of one partition at its leader: which
// epochs of a producer are gone, which batch is the next in sequence and which
// was seen before, which transactions are open, up to where a reader with
// isolation read_committed may read, and what was aborted. Its answers are Kafka
// 4.4's (ProducerStateManager, KIP-98, KIP-890, KIP-1228).
//
// It is pure: no I/O, no clock, no goroutine. A host keeps one [Partition] for
// each partition it leads or follows and calls it under the lock that orders the
// appends of that partition.
//
// # What the host does
//
// For each batch of a produce request, in this order:
//
//  1. Read it with [ParseProduce].
//  2. [Partition.Verify], under the lock. Where it says so, ask the transaction
//     coordinator, without the lock; its refusal ends the batch
//     ([Mode.ProduceAnswer]).
//  3. [Partition.Reserve], under the lock. An error ends the batch, a duplicate
//     is answered with what the Reservation says.
//  4. Append the batch, and [Reservation.Settle] with its offset. A host that
//     appends under the lock does 3 and 4 in one go (first example). One that
//     learns the offset later gives the lock back in between (second example).
//     Where the append failed and nothing was written, [Reservation.Cancel].
//     Where that is unknown, drop the Partition and rebuild it.
//
// For each marker: [Partition.Producer] and markers.Decide, then append
// markers.AppendControlBatch and [Partition.Mark], under one lock; or
// [Partition.ReserveMark] in the place of Mark where the offset comes later.
//
// For each fetch: [Partition.LastStable], and [Partition.Aborted] for a reader
// with isolation read_committed. When the high watermark has moved:
// [Partition.Stabilize]. When the start of the log has: [Partition.LogStart]. Now
// and then: [Partition.Expire].
//
// At start-up: [RestorePartition] of the last snapshot, if there is one, and
// [Partition.Replay] of every batch from [Partition.End] on. A follower replays
// what it copies.
//
// # What survives
//
// All but two things are in the log or in a snapshot. What was verified is
// memory only, as in Kafka: after a restart or a change of leader the question is
// asked again. What is reserved and not settled is known by its place in the log
// alone, if it got there.
//
// # What it costs
//
// A batch of a known producer takes a few hundred nanoseconds and no memory, and
// does not depend on how many producers there are; nor do LastStable and the list
// of open transactions. A producer takes about 300 bytes, and there is a bound on
// them (Config.MaxProducers); a reservation takes about 170 while it lasts. An
// aborted transaction takes 32 bytes as long as the log holds it: they are
// forgotten with LogStart alone, since a reader that is not told of one would
// read its data.
package fence
