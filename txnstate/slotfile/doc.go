// Package slotfile keeps transactional ids in files on a volume that several
// brokers share: one JSON object a slot, which can be read with cat and taken over
// by another broker without replaying anything.
//
//	Dir/txn_state/slot-N.json                          for people: a copy of the newest generation
//	Dir/txn_state/.versions/slot-N/0000000000000042.slot   a generation: a header line, then the object
//	Dir/txn_state/.versions/slot-N/begun               generations were removed here
//	Dir/txn_state/.versions/slot-N/tmp-*, copy-*       on their way to becoming one of those
//	Dir/txn_state/slot-N.json.damaged-*                what could not be read, set aside
//
// N is txnstate.Slot of the id. The object has a member for each id, in the names
// of the system that introduced the layout, with those of this package beside them.
// Such a system's slot-N.json is taken over as it is when it is first read; do not
// let that system go on writing. Members that this version does not know stay.
// Strings that are not UTF-8 are written as U+0000, "hex:" and their digits.
//
// # Stopped anywhere
//
// Any process may be stopped inside a write, with SIGSTOP or by a mount that hangs,
// and go on minutes later. So there is no lock, which a stopped process would keep,
// and nothing that counts is renamed over something newer. A write of a slot is:
//
//  1. Make a temporary file that has the number of the newest generation, g, in
//     its name.
//  2. Look: is g still the newest? Otherwise begin again.
//  3. Compare versions, write the whole slot with the changes, sync the file.
//  4. Link it as g+1. Of several that try, one succeeds.
//  5. Is g there? Where it is missing, find out from the newest generation,
//     which names those before it, whether this g+1 is among them.
//  6. Remove the temporary file; sync the directory. Now the write is done.
//  7. Remove the oldest generation but for g+1 and g, if it may be removed.
//
// At every eighth step 5, and always where g is not its own, a process lists the
// directory, and in step 6 removes all temporary files made for generations below
// g+1: from then on the generations up to g+1 may be removed, one with each write.
//
// Step 4 alone would do if names were never free again. But generations are
// removed, and a process that slept since step 2 could then link a g+1 that was
// used long ago. Why its write can't count:
//
//   - A generation is removed only by someone who listed the directory after it was
//     made, and has then removed every temporary file meant for a number up to its
//     own. The sleeper's is among them: it was made before its look found g the
//     newest (1 before 2), so before anyone made g+1. Its link finds no file.
//   - Where a file system links a file all the same that others removed, g+1 comes
//     back. But g was removed before g+1 was, in this order always, and does not
//     come back: step 5 misses it, and the newest generation tells that another
//     g+1 led to it. The sleeper takes its own away and tries again on what it
//     finds, where the version of its id decides.
//   - Readers never take it for the newest: the newest is still there, and higher.
//     Nor do they rest on a listing, which is not one moment: see slotDir.newest.
//
// A record's version is the count of Durable writes in the slot when it was
// written; the count is in the header and never goes back, so an id does not meet
// a version again after it was deleted.
//
// A reader that finds a generation which it did not sync itself syncs the directory
// before it shows anything of it: the maker may be stopped before step 6, and what
// it linked could vanish. Where a sync fails, nothing is shown until a further
// generation is made and synced.
//
// A process that knows a generation finds out without a listing whether it is still
// the newest: the next one is missing, and afterwards it and the one before it are
// still there, which go before the next one does.
//
// Later writes are kept in memory on top of what the file has, and go into the next
// generation that this process makes in the slot, or that Flush or Close does.
// Where another process changes the id first, they are dropped, and Dropped tells.
//
// # What it costs
//
// Writes of one slot that wait for one another share a generation; those of
// different slots do not meet. A generation takes two syncs and writes the slot
// whole, so it suits slots of up to some thousands of ids; about ten generations of
// a slot are on the volume. For one broker's own disk, and for more ids, there is
// package journal.
//
// slot-N.json is written when a slot changes, and four times a second while it goes
// on changing: so it may be a quarter of a second behind, and where a process died,
// until the slot is used again. Flush and Close bring it up to date.
//
// # The volume
//
// The file system must have hard links, make them exclusive, show a name to all processes once one
// of them has made it, and list all names that were there throughout. A local file
// system does. NFS needs mounts that do not cache names and attributes
// (lookupcache=none, noac) of an export that is written through (sync); with
// caching, what a Load finds may be old, and a Swap on top of it fails.
//
// # Damage
//
// A slot whose newest generation can't be read, its checksum included, answers
// ErrDamaged for all its ids, one that was reported and set aside, and is never
// written again. Nor is an older generation taken in its place: what the newest
// held was acknowledged. An entry that can't be read blocks its own id and is
// carried along.
//
// To repair a slot, stop the brokers, put the right object into slot-N.json, remove
// .versions/slot-N, and start them again. Where the object can be had from:
// slot-N.json.damaged-* is what could not be read, a header line and the object;
// the numbered file before the damaged one is the slot one write earlier; and
// slot-N.json itself may be up to date, but nothing waits for it to be.
package slotfile
