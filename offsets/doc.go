// Package offsets is the group coordinator's side of a transaction: it keeps the
// offsets that a transaction commits for consumer groups until the transaction's
// outcome is known, beside the committed ones.
//
// A [Manager] serves partitions of __consumer_offsets. A group belongs to one of
// them (txnstate.OffsetsPartition), and all that happens to the groups of one
// partition has one order, that of its log. The life of a TxnOffsetCommit:
//
//	g, ask, err := m.Verify(group, producer, mode) // an old epoch ends here
//	if ask { ... }                                 // is the group in the transaction?
//	end := m.Announce(group, offsets)
//	defer end()
//	code := offsets.CheckTxnCommit(...)            // is the member one of the group?
//	codes, err := m.Stage(ctx, group, producer, g, offsets)
//
// and then, when the transaction has ended, of its marker:
//
//	err := m.Marker(ctx, partition, marker)
//
// On the wire a group is its partition, and a marker carries neither group nor
// transactional id, so it settles what its producer id has staged in the
// partition at epochs up to its own: under TV2 it is one above them (KIP-890). A
// commit makes a staged offset the committed one only where it is the newer in
// the order of the log: a plain commit that came after it stays (KAFKA-5247).
//
// # What survives
//
// Every change is in the [Log] before it is answered and before Fetch shows it
// (I7, KAFKA-17507): committed and staged offsets, and the producer and
// coordinator epochs that fence old writers (I9). What was verified and not yet
// staged is in memory only, as in Kafka: after a restart the coordinator is asked
// again.
//
// When the log fails, the Manager does not know what it holds, so it says neither
// yes nor no (I11): those who wait are answered COORDINATOR_NOT_AVAILABLE, which
// clients retry, the partition's state is dropped and read from the log again,
// and only then does it go on. Every request may be repeated.
//
// Requests of one partition that come at the same time share one Append.
// Partitions do not wait for each other. No lock is held while the host's Log or
// [OffsetHook] is called. A caller whose ctx ends stops waiting; what it asked
// for may still be written.
//
// # What the host does
//
// It decides who is a member (see [Groups], [CheckTxnCommit]), which groups may
// be deleted, and when offsets expire (Manager.Expire). Where several processes
// share the partitions it tells the Manager which are this one's (LoadPartition,
// Unload), and its Log refuses the writes of a process that was deposed.
//
// [FileLog] is a Log for one process on one disk, [MemLog] one that keeps
// nothing. Package offsetstest has the tests that any other must pass.
package offsets
