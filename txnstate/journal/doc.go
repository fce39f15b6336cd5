// Package journal is the store for a process that owns its transactional ids
// alone: an append-only log in a directory, with all records in memory. It is
// the fast default of an embedded coordinator.
//
// A write costs one small append and a share of one sync, however many ids there
// are: whoever comes while a sync is under way shares the next one, and who is
// alone waits for nobody. Load and Slot never touch the disk. An idle
// id takes some 170 bytes of memory and 70 on disk, its name included.
//
// # Use
//
//	store, err := journal.Open(journal.Config{Dir: "/var/lib/broker/txn"})
//	...
//	err = store.Close()
//
// The directory belongs to one Store at a time. A lock keeps a second process
// out; it is the lock of the operating system, so nothing has to be cleaned up
// after a crash. On a network file system, where a lock may be lost without
// notice, use package slotfile.
//
// # What survives
//
// All that was acknowledged: every Durable write before Swap or Delete returns,
// and every Later write before the first Durable one after it, of whichever id,
// and before Flush and Close return. A crash takes at most the end of the
// sequence of all writes, all of which nobody was told of or which were Later.
//
// A Later write causes no sync, unless a mebibyte of them waits for one: then
// it is made durable like any other, so that what waits has a bound.
//
// # When the disk fails
//
// After a write or sync that failed nobody knows what the disk has, and asking
// the same file again may get a wrong answer: the operating system may have
// dropped what it could not write and show it to readers for a while. So every
// call then fails with an error that wraps txnstate.ErrUncertain, Load too, until
// the Store has repaired itself: the part of the file that an earlier sync has
// made durable is checked and copied into a new file, what waits to be written
// goes into another, and both are synced under their names. Only then is anything
// answered again, and it is answered from what is durable in these new files;
// the writes that nobody knew of have all been done. The first call after the
// failure tries this at once, later ones at most every second. So a disk that was
// full and no longer is needs no restart. Close and Open do the same.
//
// # Damage
//
// Open cuts what a crash left of a write that did not end: bytes at the very end
// of the last file, after which nothing whole follows. A last write that was whole
// once and was damaged since looks the same, unless the Store was closed, and is
// cut as well, with a warning.
// Anything else that does not check is refused with the file, the byte and the
// reason, and nothing is changed: cutting there would take back what was
// acknowledged. Then
//
//   - look at it with "kafkatxn journal DIR", which changes nothing;
//   - bring the file back from a copy, if there is one;
//   - or move the directory away and start with an empty one: every producer then
//     gets a new identity, and transactions that were open stay open at the
//     partition leaders until an operator aborts them.
//
// A record that is whole and can't be understood, because a newer version of the
// library wrote it, say, blocks its own id only, with txnstate.ErrDamaged.
//
// # Files
//
//	txn-0000000000000007.log       segments: the log, in order
//	txn-0000000000000008.log
//	txn-0000000000000007.snapshot  all records, as of the beginning of segment 7
//	                               or later
//	txn.lock                       held while a Store is open
//
// The log is read from the segment that has the snapshot's number; where there is
// no snapshot, from segment 1. When the log since then has grown to
// Config.SnapshotAt, and to the size of that snapshot, a new segment is begun, a
// snapshot with its number is written beside, without stopping anybody, and what
// is older is removed. So the directory holds about three times the state and
// SnapshotAt at most. format.go has every byte.
package journal
