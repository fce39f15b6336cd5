// Package queue carries markers between brokers that share nothing but a volume.
// A [Sink] writes deliveries as files into the inbox of a broker, and returns
// when that broker has said what became of them; a [Receiver] reads the inbox of
// its broker, applies what is there and writes the answers. Where brokers can
// talk to each other, wire.RPCSink is the faster way.
//
// # Files
//
//	marker_queue/
//	  to-2/                                                          inbox of broker 2
//	    1-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000042.entry      from broker 1
//	    1-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000042.ack        what became of it
//	    1-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-00000000000000000017.damaged    set aside
//
// A name has the sender's broker id, a random name of the sender's process, and
// the number of the entry within it: no two entries ever have one name, whatever
// they carry, and a name that is gone does not come back. Both kinds of file are a
// line with a version and a checksum, and JSON below it.
//
// # Who does what
//
// The sender makes and removes entries, the receiver makes and removes
// acknowledgements; neither touches the other's but for what a dead process left
// behind.
//
//  1. The sender writes an entry aside, syncs it, renames it to its name and syncs
//     the directory.
//  2. The receiver applies the deliveries, each participant's in the order of the
//     entries, and writes the results into the acknowledgement: applied, moved,
//     fenced, deleted, or to be tried again. Where some take long, it writes those
//     that it has, and the rest later.
//  3. The sender reads the acknowledgement, removes its entry, syncs the directory,
//     and only then tells its caller. The same where the caller does not wait any
//     more, or the rest takes too long: what is not known by then is Retry.
//  4. The receiver removes acknowledgements whose entry is gone.
//
// # Why nothing is lost, and nothing comes late
//
// A result that a sender reports is one that the receiver wrote for this very
// entry: the acknowledgement quotes the entry's checksum. The receiver writes
// applied only when its own sink said so, which means durable. So wherever a
// process is stopped or dies, however long, at worst a result does not arrive;
// the delivery is then Retry and comes again, in another entry, to the leader that
// is found then, which makes it harmless (see markers.Sink).
//
// An entry is in an inbox only while its sender waits for it, for the removal is
// durable before anything is reported. While the sender waits, the transaction is
// not complete, and the next one of its id has not begun; so what a receiver finds
// and applies, now or after its restart, or finds again after a loss of power,
// belongs to a transaction that is still being ended. Under protocol 1, where
// the next transaction has the same producer epoch, a leader could not tell a
// marker that comes later than that from one that is due.
//
// What remains are entries of a sender that died or was stopped. Another process
// coordinates its transactions by then, at a higher coordinator epoch, has told
// every participant, and leaders refuse what comes from the one before
// (markers.Decide); the host has to raise the epoch at a restart too, see
// txnstate.Config. A sender that starts removes what its last process left. What
// nobody comes back for, the receiver removes when it has been acknowledged for
// ReceiverConfig.AbandonAfter: removing files can't make anything look applied.
//
// A receiver that was stopped with entries in its memory, and wakes up when another
// broker leads: its sink refuses, as it does for any other request, and what is
// acknowledged is the refusal. Before it goes on with an entry that it read more
// than a second ago it looks whether the entry is still wanted. So under protocol
// 1 one case is left to the host, here as with requests: a process that is stopped
// inside the call of its sink, loses the partition and, before it goes on, gets it
// back; it has to treat the call as one from before.
//
// While a delivery's entry is not certainly gone, its sender sends no other marker
// of the same producer id to the same participant: it answers Retry, and order is
// kept.
//
// # Network file systems
//
// Nothing rests on how soon a change is seen elsewhere, only the speed does: a
// client that caches directories for a minute delivers markers once a minute.
// NFS wants lookupcache=positive or none, and acdirmin and acdirmax of a second or
// less. A receiver in the sender's process is woken at once: see SinkConfig.Sent
// and ReceiverConfig.Acked.
package queue
