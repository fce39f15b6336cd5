// Package crashfs is a file system that forgets: an fsx.FS in memory that keeps
// apart what a running process sees and what the disk has. Tests of everything
// that is stored run on it.
//
//	fsys := crashfs.New(seed)
//	fsys.CrashAt(k)                 // the k-th operation and all after it fail
//	work(fsys)
//	next := fsys.Image(seed)        // what the next process finds after a loss of power
//
// A test runs its work with k = 0, 1, 2, ... until a run ends without a crash,
// opens each image under several seeds, and looks whether all that was
// acknowledged is there. Then it crashes the opening too.
//
// The disk has of a file the bytes that File.Sync made durable, and of a
// directory the names that SyncDir made durable. Of the rest an Image has a
// part that the seed chooses: sectors of one write separately, later writes
// without earlier ones, a length without its bytes, a name without the name
// that was made before it. A rename within one directory is whole or absent, as
// fsx.FS promises; one between directories may be found half done. Replace is
// the steps of fsx.ReplaceInSteps, each an operation to crash at.
//
// A Sync that fails behaves as Linux does: the bytes it was for are dropped from
// what is still to be written, readers of this process and of the next go on
// seeing them for as long as there is power, and a later Sync reports success.
//
// It is a simulation of a disk that keeps its word. One that lies about a sync
// is out of reach of any software.
package crashfs
