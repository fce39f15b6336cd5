// Package epochlog is a log in a shared directory that brokers take over from one
// another. It has one leader by what is on the volume, and not by what anybody
// believes: a leader that was stopped for a minute, or forever, changes nothing
// when it wakes up.
//
//	0000000000.log    rounds of leader epoch 0, as package segment writes them
//	0000000000.seal   how many bytes of them count
//	0000000001.log    rounds of leader epoch 1, whose leader is the present one
//
// # Claim
//
// A broker becomes the leader by creating the file of the next epoch, exclusively:
// of several, one succeeds. The directory is synced before anything else is done.
//
// # Seals
//
// Then the segments of the epochs before are sealed, oldest first: what is whole
// in them is read, synced, and its length made durable in a file that is linked
// exclusively. The first seal is the one that counts, for everybody and for good;
// bytes behind it do not. A successor that dies on the way leaves an empty epoch,
// which the next one seals too.
//
// # Acknowledgement
//
// A round counts when, after its sync, the file of the next epoch is not there.
// Then it was on the disk before that file was made, and every successor reads
// the segment after it has made it: so it is within the seal. Otherwise the leader
// is deposed, once and for all, and says so for every round that it can't vouch
// for, although some of them may be within the seal. Answers that write nothing
// are given after a [Log.Check], which is the same look.
//
// # Reset
//
// [Log.Rewrite] replaces everything: it claims the next epoch and begins its
// segment with a round that says so. What was before it is emptied, and removed
// much later: a name that is gone could be claimed again by a broker that has
// slept since it last looked.
//
// # After an error
//
// A segment with a write or a sync that failed is not used any more. The same
// broker may take over from itself. A round is written when the one before it has
// been synced, so only the last one can be in the reader's memory and not on the
// disk: whoever seals a segment writes it once more before the sync.
package epochlog
