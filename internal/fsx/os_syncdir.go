//go:build !windows && !linux

package fsx

import "os"

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		_ = d.Close() // the sync error is the one that matters
		return err
	}
	return d.Close()
}
