// Package fsx is the one door to the file system. Every file of the library,
// and of the example broker, is opened, written, synced, linked and removed
// through FS, so that a test can put a file system under it that forgets what
// was not synced, fails at a chosen operation, or stops a caller in the middle.
//
// OS is the real one, Mem keeps everything in memory, and Hook and HookAfter
// put a test between a caller and either of them.
//
// Methods of FS and File may be called concurrently. Errors are those of
// package io/fs: errors.Is(err, fs.ErrNotExist) and fs.ErrExist mean what they
// say and that nothing was changed; anything else means that the effect is
// unknown.
package fsx

import (
	"errors"
	"io"
	"io/fs"
)

// ErrLocked says that somebody else holds the lock asked for. Match it with
// errors.Is; nothing was changed.
var ErrLocked = errors.New("locked by another holder")

// File is an open file. Its methods may be called concurrently; Read and Write
// share one offset.
type File interface {
	io.Reader
	io.ReaderAt
	io.Writer
	// WriterAt fails on a file opened with O_APPEND, as package os does.
	io.WriterAt
	// Close releases the handle and promises nothing about durability. A second
	// Close fails with fs.ErrClosed.
	io.Closer
	// Sync makes the file's bytes and length durable. After an error nothing
	// is known about what reached the disk and the handle must not be trusted
	// again: the next Sync may report success for bytes that were dropped.
	Sync() error
	// Truncate cuts the file to size bytes, or fills it with zeros up to there.
	Truncate(size int64) error
	// Size is the present length in bytes.
	Size() (int64, error)
}

// FS is the set of operations that the library's files need.
type FS interface {
	// OpenFile opens name as os.OpenFile does. A file created by it is durable
	// under its name only after SyncDir of its directory.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// ReadFile returns the whole content; the slice is the caller's.
	ReadFile(name string) ([]byte, error)
	// ReadDir lists a directory, sorted by name. A name that is created,
	// removed or renamed while the directory is read may or may not be in the
	// answer: a file that moves may be listed twice, or not at all.
	ReadDir(name string) ([]fs.DirEntry, error)
	// MkdirAll creates name and what is missing above it; a directory that is
	// there already is not an error. Each one it made is durable only after
	// SyncDir of its parent.
	MkdirAll(name string, perm fs.FileMode) error
	// Link gives old a second name. It fails with fs.ErrExist when new is
	// taken: of several callers that link to one name exactly one succeeds.
	// Some network file systems check old only against what they have cached,
	// so a protocol may rest on new being free, never on old being there.
	Link(old, new string) error
	// Rename moves old to new and replaces what was there. Of several callers
	// that rename one old to different names exactly one succeeds and the rest
	// get fs.ErrNotExist. Within one directory it is atomic in a loss of power
	// too: the next start finds the state before or the one after, not both
	// names and not neither. When both are names of one file it does nothing
	// and succeeds, as POSIX has it. A directory that is in the way is refused.
	Rename(old, new string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// SyncDir makes the names in directory name durable.
	SyncDir(name string) error
	// Replace writes data to name, atomically and durably: when it returns nil
	// the new content survives loss of power; until then a reader, or the next
	// start, finds the old content or the new one, never a part. The file is a
	// new one, created with perm before umask; it may leave a temporary file
	// behind when the process dies, with a dot and name's last element at the
	// front, so whoever lists the directory passes over names with a dot.
	//
	// Two callers that replace one name never mix their contents, but the one
	// that was started first may be the one that lasts.
	Replace(name string, data []byte, perm fs.FileMode) error
	// Lock takes an exclusive, advisory lock on name, creating the file where
	// there is none, and fails with ErrLocked while another process (or another
	// Lock of this one) holds it. It never waits. The operating system drops
	// the lock when the process dies. Closing the result releases it; the file
	// stays, and nobody may remove it, for the lock belongs to the file and not
	// to its name. Its content means nothing and may be unreadable while it is
	// locked.
	//
	// A process that is stopped keeps its lock, and one on a network file
	// system may lose it without being told. So a lock keeps a second process
	// out by courtesy; it does not prove who owns what is written.
	Lock(name string) (io.Closer, error)
}
