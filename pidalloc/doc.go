// Package pidalloc gives out Kafka producer ids, none of them twice.
//
// A producer id that is given to two producers corrupts both without an error:
// partition leaders drop the batches of the second as duplicates of the first,
// and the coordinator lets one end the other's transaction. So an id comes with
// a proof on disk or not at all: a write that failed, or a file that does not
// parse, is an error of Next, and there is no second source to fall back to.
//
// # Layout
//
// Each broker has a slice of 2⁴⁰ ids to itself:
//
//	id = (broker + 1) · 2⁴⁰ + local,  0 ≤ local < 2⁴⁰
//
// and takes local numbers from it in blocks, of 1,000 unless told otherwise.
// Below Config.Dir there are
//
//	producer_ids/kaas-<broker>.json                 {"nextBlock":N}
//	producer_ids/.claims/kaas-<broker>/chain        the name of the chain
//	producer_ids/.claims/kaas-<broker>/<chain>-<N>  the token
//
// In both, N is the first local number that nobody has reserved. The end of a
// block is durable in both before its first id is given out, so that a crash
// skips ids and never repeats them.
//
// The JSON file is for people and for other programs that know it. A file that
// another program has left behind is taken up where it ends, and a number in it
// that is ahead of the token is respected; a number that is behind is not
// believed. The token decides. A program that knows only the JSON file may take
// over again when no Allocator runs any more; it must not run beside one.
//
// # Several processes with one broker id
//
// That is a mistake of whoever set them up, and it happens: two pods with one
// ordinal, an old process that was thought dead. Their ids are disjoint all the
// same, on one machine or on a shared volume, and also when one of them is
// stopped anywhere in the middle and goes on a day later. No lock is involved
// that a stopped process could keep. claim.go has the argument.
//
// The volume must have hard links and atomic renames within a directory, as
// POSIX file systems and NFS do.
//
// # Restoring a backup
//
// A directory that is put back to an earlier state gives out again what was
// given out since. A running Allocator notices and refuses; a new one cannot.
// After such a restore, write a nextBlock into the JSON file that is above
// every local number ever used, for instance by adding a few million.
package pidalloc
