//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package fsx

import (
	"errors"
	"io"
	"io/fs"
)

// Lock refuses rather than pretend: a lock that excludes nobody is worse than
// none.
func (osFS) Lock(name string) (io.Closer, error) {
	return nil, &fs.PathError{Op: "lock", Path: name, Err: errors.ErrUnsupported}
}
