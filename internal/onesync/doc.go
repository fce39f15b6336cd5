// Package onesync lets the files of a directory share their syncs. FS is an
// fsx.FS on top of another one. What is written at an offset of a file goes to
// that file at once, so that it can be read, but the file is not synced: Sync
// appends the bytes to a log of the whole directory and waits for the log's sync,
// which it shares with everybody who waits, for whichever file. A store that has
// several logs, each with a discipline of its own, so pays for one.
//
// A file whose owner gathers what many callers want written is written and synced by
// fsx.WriteSync: what is gathered is taken when a sync of the log begins, and not
// while the one before is under way. Two stores that gather would else keep each
// other waiting: what has just missed a sync would miss the next one too, which is
// the other store's.
//
// The log is small, bounded and written in place over what it held before, which
// is the cheapest sync there is: no size changes and no block is added. When one
// of its two files is full the other is begun, and the files whose bytes are in
// the full one are synced in the background.
//
// Open puts the bytes of the log where they belong, syncs those files and only
// then returns: without that the files may lack, anywhere, what was acknowledged.
// So whoever opens the directory opens it by this package, and nobody takes the
// files sync.0.log and sync.1.log away.
//
// # What is not in the log
//
// A file's first Sync after it was opened, created or renamed goes to the file
// itself: nobody knows what of it is on the disk. So do those after a Write
// without an offset, after a Truncate, and after more bytes at once than are worth
// writing twice. Before a file is renamed, removed, replaced, linked or truncated,
// what the log has of it is made void: all files in the log are synced and the log
// says so. These are rare and may be slow.
//
// # When the disk fails
//
// After a write or sync of the log that failed, or of a file of which the log has
// something, every Sync fails until the directory is opened again, and so does
// every operation on a name that would have to make something void. A torn last
// frame is cut off at Open. A damaged one that others follow is refused: those who
// wrote what follows were told that it is safe.
//
// A file with two names must be used by one of them, unless the second was made by
// this FS.
package onesync
