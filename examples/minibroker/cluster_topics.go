package minibroker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// In a cluster a topic exists from the change that creates it to the one that
// deletes it. Its partitions have a directory each:
//
//	topics/<id>/p-0/    the log of partition 0, see package epochlog

// apply takes a change in. It is called with the turn of changes held.
func (c *cluster) apply(ch change) error {
	switch {
	case ch.Create != nil:
		t, err := topicOf(*ch.Create)
		if err != nil {
			return err
		}
		c.b.topics.put(t)
	case ch.Delete != nil:
		t, err := topicOf(*ch.Delete)
		if err != nil {
			return err
		}
		c.b.topics.drop(t)
		c.dropLogs(t)
		if c.b.offsets != nil { // else nothing is served yet
			// A topic that is made again with the name starts without committed
			// offsets. What can't be written here is left to the next takeover.
			if err := c.b.offsets.DeleteTopic(c.ctx, t.name); err != nil {
				c.logger.Warn("offsets of a deleted topic not removed", "topic", t.name, "err", err)
			}
		}
	case ch.ACL != nil && c.b.acls != nil:
		return c.b.acls.rules.Add(*ch.ACL)
	}
	return nil
}

func topicOf(j topicJSON) (*topic, error) {
	id, err := hex.DecodeString(j.ID)
	if err != nil || len(id) != 16 || validTopicName(j.Name) != nil || j.Partitions < 1 {
		return nil, fmt.Errorf("not a topic: %+v", j)
	}
	return &topic{name: j.Name, id: [16]byte(id), count: j.Partitions}, nil
}

func (c *cluster) dirOf(t *topic) string {
	return filepath.Join(c.b.topics.dir, hex.EncodeToString(t.id[:]))
}

func (t *topic) json() *topicJSON {
	return &topicJSON{Name: t.name, ID: hex.EncodeToString(t.id[:]), Partitions: t.count}
}

// refresh is sharedTopics'.
func (c *cluster) refresh() error { return c.changes.refresh() }

// create is sharedTopics'.
func (c *cluster) create(name string, partitions int32, dryRun bool) (*topic, error) {
	t := &topic{name: name, count: partitions}
	_, _ = rand.Read(t.id[:]) // never fails
	if dryRun {
		if err := c.refresh(); err != nil {
			return nil, storageError(err)
		}
		return t, c.b.topics.admit(name, partitions)
	}
	made := false
	err := c.changes.add(func() (change, error) {
		if err := c.b.topics.admit(name, partitions); err != nil {
			if made { // and another broker was faster
				_ = c.b.cfg.FS.Remove(c.dirOf(t))
			}
			return change{}, err
		}
		if !made {
			// Before the topic is there: the leaders of its partitions go on from it.
			if err := fsx.MkdirSynced(c.b.cfg.FS, c.dirOf(t), 0o755); err != nil {
				return change{}, err
			}
			made = true
		}
		return change{Create: t.json()}, nil
	})
	if err != nil {
		return nil, storageError(err)
	}
	return t, nil
}

// delete is sharedTopics'.
func (c *cluster) delete(name string) (*topic, error) {
	if internalTopic(name) {
		return nil, kafkaErrorf(kerr.InvalidTopicException, "topic %q is the broker's own", name)
	}
	var t *topic
	err := c.changes.add(func() (change, error) {
		if t = c.b.topics.get(name); t == nil {
			return change{}, kafkaErrorf(kerr.UnknownTopicOrPartition, "no topic %q", name)
		}
		return change{Delete: t.json()}, nil
	})
	if err != nil {
		return nil, storageError(err)
	}
	c.clean(t)
	return t, nil
}

// clean removes the records of a deleted topic, as far as it can. A leader that
// has not heard finds the file of its epoch gone.
func (c *cluster) clean(t *topic) {
	fsys := c.b.cfg.FS
	for p := range t.count {
		dir := c.logDir(t, p)
		entries, err := fsys.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries { // in order, the latest epoch last
			_ = fsys.Remove(filepath.Join(dir, e.Name()))
		}
		_ = fsys.Remove(dir)
	}
	_ = fsys.Remove(c.dirOf(t))
}

// addACL makes an access rule for all brokers.
func (c *cluster) addACL(rule wire.ACL) error {
	if err := newRules().Add(rule); err != nil {
		return err
	}
	return storageError(c.changes.add(func() (change, error) { return change{ACL: &rule}, nil }))
}

// storageError gives an error that has no number one.
func storageError(err error) error {
	if err == nil || codeOf(err) != kerr.UnknownServerError.Code {
		return err
	}
	return kafkaErrorf(kerr.KafkaStorageError, "%w", errors.Join(err))
}
