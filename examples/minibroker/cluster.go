package minibroker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/fence/feed"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
	"github.com/kafkatxn/kafkatxn/pidalloc"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// cluster is what makes a Broker one of several that share a directory:
//
//	cluster.json       which brokers there are
//	changes/           topics and access rules
//	topics/, offsets/  logs that one broker leads at a time
//	leases/            who is alive, and who coordinates which transactional ids
//	txn_state/         transactional ids
//	marker_queue/, producer_fences/, producer_ids/
//
// What a broker does follows from who is alive by its view (package lease); what
// it may do is decided by what is on the volume when it does it.
type cluster struct {
	b       *Broker
	logger  *slog.Logger
	lock    io.Closer
	store   io.Closer
	lease   *lease.Lease
	changes *changes
	offsets *sharedOffsets
	peerID  string // the client id by which brokers know one another

	writer *feed.Writer // nil with Config.KafkaFencing
	reader *feed.Reader
	runs   []func(context.Context) error

	ctx     context.Context // ends with run
	cancel  context.CancelFunc
	width   chan struct{} // takeovers under way
	wake    chan struct{}
	settled chan struct{} // closed when what is this broker's was taken over once

	mu    sync.Mutex // never held during I/O, but for the end of a log
	over  bool
	work  sync.WaitGroup
	led   map[place]*leading
	known map[place]int32 // latest epochs that were seen
	arrivals
	awake  time.Time // the last time somebody looked
	rested time.Time // when what came during a sleep has been read
}

// takeovers is how many logs are taken over at a time.
const takeovers = 8

func newCluster(b *Broker) *cluster {
	c := &cluster{
		b: b, logger: b.cfg.Logger, width: make(chan struct{}, takeovers), wake: make(chan struct{}, 1), settled: make(chan struct{}),
		led: map[place]*leading{}, known: map[place]int32{}, arrivals: arrivals{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.awake = time.Now()
	return c
}

// openCluster is open for a broker of a cluster.
func (b *Broker) openCluster() (err error) {
	c := newCluster(b)
	b.cluster = c
	defer func() {
		if err != nil {
			err = fmt.Errorf("minibroker: %w", err)
			c.close()
		}
	}()
	cfg := b.cfg
	if err := c.join(); err != nil {
		return err
	}
	c.lease, err = lease.New(lease.Config{Dir: cfg.Dir, Broker: cfg.NodeID, Brokers: slices.Collect(maps.Keys(cfg.Cluster)), TTL: cfg.Lease, FS: cfg.FS, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	c.runs = append(c.runs, c.lease.Run)
	dir := filepath.Join(cfg.Dir, "topics")
	if err := fsx.MkdirSynced(cfg.FS, dir, 0o755); err != nil {
		return err
	}
	b.topics = newTopics(cfg.FS, dir, cfg)
	b.topics.shared = c
	if b.auth = cfg.Authorizer; b.auth == nil {
		b.acls = &acls{rules: newRules(), shared: c.addACL}
		b.auth = b.acls.rules
	}
	b.auth = withPeers(b.auth)
	if c.changes, err = openChanges(cfg, c.apply); err != nil {
		return err
	}
	for name, n := range cfg.Topics {
		if _, err := b.topics.create(name, n, false); err != nil && codeOf(err) != kerr.TopicAlreadyExists.Code {
			return err
		}
	}
	if c.offsets, err = openSharedOffsets(c); err != nil {
		return err
	}
	if err := b.openGroups(c.offsets); err != nil {
		return err
	}
	b.groups.elsewhere = b.offsets.Serves
	if err := c.openFences(); err != nil {
		return err
	}
	store, err := slotfile.Open(slotfile.Config{Dir: cfg.Dir, FS: cfg.FS, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	c.store = store
	ids, err := pidalloc.New(pidalloc.Config{Dir: cfg.Dir, Broker: cfg.NodeID, FS: cfg.FS})
	if err != nil {
		return err
	}
	return b.openTransactions(store, ids, 0)
}

// clusterFile says whose the directory is.
const clusterFile = "cluster.json"

// identity is the content of clusterFile.
type identity struct {
	ClusterID string  `json:"clusterId"`
	Brokers   []int32 `json:"brokers"`
	// Secret is what brokers know one another by: who can read the directory is one.
	Secret string `json:"secret"`
}

// join finds the cluster in its directory, or founds it.
func (c *cluster) join() (err error) {
	cfg := c.b.cfg
	if err := fsx.MkdirSynced(cfg.FS, cfg.Dir, 0o755); err != nil {
		return err
	}
	if _, err := cfg.FS.ReadFile(filepath.Join(cfg.Dir, "node.json")); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("the directory %s is that of a broker alone", cfg.Dir), err)
	}
	c.lock, err = cfg.FS.Lock(filepath.Join(cfg.Dir, fmt.Sprintf("lock-%d", cfg.NodeID)))
	if errors.Is(err, fsx.ErrLocked) {
		return fmt.Errorf("another process runs as broker %d in %s: stop it first: %w", cfg.NodeID, cfg.Dir, err)
	}
	if err != nil {
		return err
	}
	file := filepath.Join(cfg.Dir, clusterFile)
	want := identity{ClusterID: cfg.ClusterID, Brokers: slices.Sorted(maps.Keys(cfg.Cluster)), Secret: rand.Text()}
	raw, err := json.Marshal(want)
	if err != nil {
		return err
	}
	aside := filepath.Join(cfg.Dir, ".cluster.json."+rand.Text())
	if err := fsx.CreateSynced(cfg.FS, aside, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	err = cfg.FS.Link(aside, file)
	_ = cfg.FS.Remove(aside) // a leftover is harmless
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := cfg.FS.SyncDir(cfg.Dir); err != nil {
		return err
	}
	if raw, err = cfg.FS.ReadFile(file); err != nil {
		return err
	}
	var have identity
	if err := json.Unmarshal(raw, &have); err != nil || have.Secret == "" {
		return fmt.Errorf("%s can't be read: %s", file, raw)
	}
	if have.ClusterID != want.ClusterID || !slices.Equal(have.Brokers, want.Brokers) {
		return fmt.Errorf("%s: the directory is that of cluster %q with brokers %v, and this is one of cluster %q with brokers %v", file, have.ClusterID, have.Brokers, want.ClusterID, want.Brokers)
	}
	c.peerID = "kafkatxn-" + have.Secret
	return nil
}

// peerPrincipal is who other brokers of the cluster are.
const peerPrincipal wire.Principal = "Broker:peer"

// withPeers lets other brokers do everything.
func withPeers(a wire.Authorizer) wire.Authorizer {
	if any, ok := a.(wire.AnyResourceAuthorizer); ok {
		return struct {
			peerAuthorizer
			wire.AnyResourceAuthorizer
		}{peerAuthorizer{a}, any}
	}
	return peerAuthorizer{a}
}

type peerAuthorizer struct{ clients wire.Authorizer }

func (a peerAuthorizer) Allow(ctx context.Context, who wire.Principal, op wire.Operation, r wire.Resource) bool {
	return who == peerPrincipal || a.clients.Allow(ctx, who, op, r)
}

// ownerOf is the broker that a slot, or anything with a number, is placed on at
// present, or -1.
func (c *cluster) ownerOf(n int) int32 {
	if b, ok := c.lease.Owner(n); ok {
		return b
	}
	return -1
}

// coordinator is sharedTopics'.
func (c *cluster) coordinator(offsetsPartition int32) int32 { return c.ownerOf(int(offsetsPartition)) }

// patience is how long a broker that was deposed leaves a thing to others.
func (c *cluster) patience() time.Duration { return c.b.cfg.Lease / 3 }

// nudge has run look now.
func (c *cluster) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// spawn runs f until the end of run at the latest; false where that has come.
// c.mu is held.
func (c *cluster) spawn(f func()) bool {
	if !c.over {
		c.work.Go(f)
	}
	return !c.over
}

// every is how often a broker looks for what others have changed. Requests do not
// wait for it.
const every = 100 * time.Millisecond

// run keeps this broker's part of the work what it is to be, until ctx is done.
func (c *cluster) run(ctx context.Context) error {
	defer c.work.Wait()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
	}()
	defer c.cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	failed := false
	c.mu.Lock()
	c.awake = time.Now()
	c.mu.Unlock()
	for first := true; ; {
		changed := c.lease.Changed()
		err := c.refresh()
		if err != nil || failed {
			c.logger.Warn("changes of topics and access rules", "err", err)
		}
		failed = err != nil
		c.mu.Lock()
		slept := c.slept()
		c.mu.Unlock()
		begun := append(c.tendLogs(), c.offsets.tend(slept)...)
		if first && len(c.lease.Alive()) > 0 {
			first = false
			for _, done := range begun {
				select {
				case <-done:
				case <-ctx.Done():
				}
			}
			close(c.settled)
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-c.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// close gives back what is left when nothing runs any more.
func (c *cluster) close() {
	c.cancel()
	c.closeLogs()
	if c.offsets != nil {
		c.offsets.close()
	}
	if c.store != nil {
		_ = c.store.Close() // everything is durable by now, or was never promised
	}
	if c.lock != nil {
		_ = c.lock.Close()
	}
}

// brokers are the ids of the brokers that are alive, in order. There is one at
// least: who asks has reached this one.
func (b *Broker) brokers() []int32 {
	if b.cluster != nil {
		if alive := b.cluster.lease.Alive(); len(alive) > 0 {
			return alive
		}
	}
	return []int32{b.cfg.NodeID}
}

// address is where clients reach a broker.
func (b *Broker) address(id int32) (host string, port int32) {
	if b.cluster == nil {
		return b.advertised()
	}
	host, port, _ = splitHostPort(b.cfg.Cluster[id]) // checked by New
	return host, port
}

// findCoordinator names the broker that coordinates a group or a transactional id.
func (b *Broker) findCoordinator(_ context.Context, kind int8, key string) (id int32, host string, port int32, err error) {
	id = b.cfg.NodeID
	if c := b.cluster; c != nil {
		const group = 0
		if id = c.ownerOf(txnstate.Slot(key)); kind == group {
			id = c.coordinator(txnstate.OffsetsPartition(key))
		}
	}
	if id < 0 {
		return 0, "", 0, txnstate.CodeCoordinatorNotAvailable.Errorf("", "no broker is alive")
	}
	host, port = b.address(id)
	return id, host, port, nil
}
