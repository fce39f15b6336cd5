package minibroker

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/wire"
)

// changes is what the brokers of a cluster have in common beside records: topics
// and access rules, as a list of changes.
//
//	changes/0000000001.json    {"create":{"name":"orders","id":"…","partitions":3}}
//	changes/0000000002.json    {"delete":{"name":"orders","id":"…","partitions":3}}
//
// A change is made by linking its file to the next number, exclusively. So all
// brokers see the same changes in the same order, whoever makes one has seen all
// before it, and one look at a name tells that nothing is new.
type changes struct {
	fsys  fsx.FS
	dir   string
	fsync bool
	apply func(change) error

	turn chan struct{} // held by who looks or changes; also during I/O
	next int64         // guarded by turn
}

// change is one of its fields.
type change struct {
	Create *topicJSON `json:"create,omitempty"`
	Delete *topicJSON `json:"delete,omitempty"`
	ACL    *wire.ACL  `json:"acl,omitempty"`
}

func openChanges(cfg Config, apply func(change) error) (*changes, error) {
	c := &changes{fsys: cfg.FS, dir: filepath.Join(cfg.Dir, "changes"), fsync: cfg.Fsync == Always, apply: apply, turn: make(chan struct{}, 1), next: 1}
	if err := fsx.MkdirSynced(c.fsys, c.dir, 0o755); err != nil {
		return nil, err
	}
	return c, c.refresh()
}

func (c *changes) name(n int64) string { return filepath.Join(c.dir, fmt.Sprintf("%010d.json", n)) }

// refresh takes in what is new.
func (c *changes) refresh() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	return c.read()
}

// read is refresh where the turn is held.
func (c *changes) read() error {
	for first := true; ; first = false {
		raw, err := c.fsys.ReadFile(c.name(c.next))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if first {
			// Whoever made it may not have got so far, and what follows from it here
			// must not last longer.
			if err := c.sync(); err != nil {
				return err
			}
		}
		var ch change
		if err := json.Unmarshal(raw, &ch); err != nil {
			return fmt.Errorf("%s is damaged: %w", c.name(c.next), err)
		}
		if err := c.apply(ch); err != nil {
			return fmt.Errorf("%s: %w", c.name(c.next), err)
		}
		c.next++
	}
}

func (c *changes) sync() error {
	if !c.fsync {
		return nil
	}
	return c.fsys.SyncDir(c.dir)
}

// add makes a change: what make gives when all before it is known. After an error
// that is not make's it may have been made.
func (c *changes) add(make func() (change, error)) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	for {
		if err := c.read(); err != nil {
			return err
		}
		ch, err := make()
		if err != nil {
			return err
		}
		raw, err := json.Marshal(ch)
		if err != nil {
			return err
		}
		aside := filepath.Join(c.dir, ".change."+rand.Text())
		if err := c.write(aside, append(raw, '\n')); err != nil {
			return err
		}
		err = c.fsys.Link(aside, c.name(c.next))
		_ = c.fsys.Remove(aside) // a leftover is harmless
		if errors.Is(err, fs.ErrExist) {
			continue // another broker was faster
		}
		if err != nil {
			return err
		}
		return c.read()
	}
}

func (c *changes) write(name string, data []byte) error {
	f, err := c.fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && c.fsync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
