// Package kafkatxn is the tour of a library that gives a Kafka-compatible broker
// complete transactions. The code is in the packages below it.
//
// # The three roles
//
// A transaction involves brokers in up to three roles, perhaps three different
// brokers:
//
//   - The transaction coordinator keeps the state of transactional ids: package
//     txnstate, with a store (txnstate/memstore, txnstate/slotfile, or the
//     host's own, tested by txnstate/storetest), producer ids from pidalloc,
//     deadlines by reaper, and the sending side of markers.
//   - The partition leader keeps, for each of its partitions, the epochs and
//     sequences of producers, the open transactions and the last stable offset:
//     package fence, and the deciding side of markers.
//   - The group coordinator keeps offsets that were committed within a
//     transaction until its outcome is known: package offsets.
//
// Package wire answers Kafka's requests for all three, with kmsg's types.
//
// # What happens
//
//	InitProducerId ──► an identity, durable before the answer
//	AddPartitions / AddOffsets / first batch ──► Ongoing, durable before the answer
//	    data, verified at its leader to be part of the transaction
//	    offsets, staged durably at the group coordinator
//	EndTxn ──► PrepareCommit or PrepareAbort: the decision, durable before any marker leaves
//	    markers to every partition and group, each retried until applied or known to be gone
//	all applied ──► CompleteCommit or CompleteAbort: the id may begin its next transaction
//
// # The host's duties, in order
//
//  1. Give the coordinator a Store whose durable writes are durable and whose
//     compare-and-swap holds for every process that can reach it.
//  2. Run the coordinator, the dispatcher and the reaper for as long as the
//     broker serves, and raise the coordinator epoch from one start to the next.
//  3. At a partition leader, ask fence.Partition before each append of a producer,
//     atomically with the append, and tell it the offset; do the same for markers.
//  4. Move the high watermark, and with it what readers see, only over what is
//     durable.
//  5. After a restart or a change of leader, rebuild fence.Partition from the log
//     or from its snapshot before anything is appended.
//
// # What survives a crash
//
// Identities, decisions and staged offsets that were acknowledged, everywhere. A
// decision that was made but not carried out is carried out by the next process
// that owns the id. Verification in progress, and deliveries under way, are
// begun anew; both are harmless to repeat.
//
// DESIGN.md has the reasons, README.md the ten-minute path.
package kafkatxn
