// Package lease tells the brokers of a cluster that share a directory who is
// alive, and gives each slot of transactional ids to one of them at a time, with
// an epoch.
//
// A [Lease] is the txnstate.Ownership of its process. Nothing else is needed than
// the directory: no broker talks to another, and there is no handshake.
//
//	l, err := lease.New(lease.Config{Dir: dir, Broker: 1, Brokers: []int32{1, 2, 3}})
//	coordinator, err := txnstate.New(txnstate.Config{Ownership: l /* … */})
//	go l.Run(ctx)
//
// # Files
//
//	leases/broker-2                               heartbeat of broker 2
//	leases/slots/slot-07.0000000005.broker-2      slot 7 is broker 2's by its fifth claim
//
// # Who is alive
//
// Each broker replaces its heartbeat six times within Config.TTL. Another broker
// is alive while its heartbeat changes. It is dead when the file has been looked
// at for TTL without a change, by the clock of the one who looks, or when it says
// that the broker resigned, as the end of Run writes. Files of this kind are not
// synced: they are a hint, never a proof. A file that can't be read is no sign of
// life and blocks nobody. A broker that starts takes the others for alive until
// they were silent for TTL, so that a cluster whose brokers start together gives
// every slot to its owner at once.
//
// A broker that has not been able to write its own heartbeat for TTL gives its
// slots up by itself, for the others think that it is dead.
//
// # Who owns
//
// Placement is txnstate.PickSlotOwner: a function of all brokers and of those
// alive, so that everybody who sees the same brokers alive names the same owner.
// A broker claims a slot that is its own by its view, whoever has it at present,
// and stops serving one that its view gives to another. Views differ for a moment
// now and then; a broker that was deposed waits for a third of TTL before it
// claims that slot again.
//
// Each slot has one file, its token, and a claim is the rename of the token to
// the next epoch. Renames of one name exclude one another, and a name that is
// gone never comes back, since epochs in names only grow. So a broker that is
// stopped anywhere on its way to a claim, and for however long, finds the name
// gone when it wakes up, and no epoch is ever held by two. Nothing read from a
// listing of the directory decides anything: a listing out of date makes a rename
// fail. An epoch is used only after the directory is synced, so that a loss of
// power does not bring it back either. The tokens themselves are founded once:
// they are made in a directory aside, which is then renamed to its place, where
// it refuses every other. The directory must not be removed while there is data:
// epochs would begin anew, and partitions refuse markers of a lower one than they
// have seen.
//
// # What it does not do
//
// A lease is a promise about the past. Between a look at the volume and what
// follows from it a process can be stopped for any time. What keeps two owners
// from doing harm is not here: the store compares and swaps, and markers carry
// the coordinator epoch. What is left are answers that write nothing; a
// coordinator asks [Lease.Still] before it gives one.
package lease
