package minibroker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/internal/onesync"
	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/pidalloc"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// dir is the directory of a broker, locked. A nil dir is that of a broker in
// memory.
//
//	lock            held while a process uses the directory
//	node.json       whose it is, and the coordinator epoch
//	topics/         topics and records
//	offsets/        committed and staged offsets of groups
//	txn_state/      transactional ids in slot files,
//	txn_journal/    or in a journal
//	producer_ids/   producer ids that are used up
//	acls.json       access rules
//	sync.*.log      what of topics/, offsets/ and txn_journal/ is durable nowhere
//	                else yet; see package onesync
type dir struct {
	lock    io.Closer
	node    nodeJSON
	files   fsx.FS // of topics, offsets and the journal: they share their syncs
	closers []io.Closer
}

// nodeJSON is the content of node.json.
type nodeJSON struct {
	Node      int32  `json:"node"`
	ClusterID string `json:"clusterId"`
	// Store is where the transactional ids are: the records in topics/ mean
	// nothing without them.
	Store StoreKind `json:"store"`
	// CoordinatorEpoch is that of this start of the broker.
	CoordinatorEpoch int32 `json:"coordinatorEpoch"`
}

func openDir(cfg Config) (d *dir, err error) {
	if cfg.Dir == "" {
		return nil, nil
	}
	if err := fsx.MkdirSynced(cfg.FS, cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("minibroker: %w", err)
	}
	d = &dir{}
	d.lock, err = cfg.FS.Lock(filepath.Join(cfg.Dir, "lock"))
	if errors.Is(err, fsx.ErrLocked) {
		return nil, fmt.Errorf("minibroker: another process uses the directory %s: stop it first, or give this one a directory of its own: %w", cfg.Dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("minibroker: %w", err)
	}
	if err := d.start(cfg); err != nil {
		d.close()
		return nil, fmt.Errorf("minibroker: %w", err)
	}
	if err := d.share(cfg); err != nil {
		d.close()
		return nil, fmt.Errorf("minibroker: %w", err)
	}
	return d, nil
}

// share makes the file system of the logs. What is replaced whole, in files of
// its own, has no syncs to share and does without it.
func (d *dir) share(cfg Config) error {
	shared, err := onesync.Open(onesync.Config{FS: cfg.FS, Root: cfg.Dir})
	if err != nil {
		return err
	}
	if cfg.Fsync == Never {
		d.files = cfg.FS
		return shared.Close() // an earlier start may have left something in it
	}
	d.files = shared
	d.closers = append(d.closers, shared)
	return nil
}

// start raises the coordinator epoch, durably, so that markers of the process
// before are told from those of this one.
func (d *dir) start(cfg Config) error {
	file := filepath.Join(cfg.Dir, "node.json")
	if _, err := cfg.FS.ReadFile(filepath.Join(cfg.Dir, clusterFile)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("the directory %s is that of a cluster", cfg.Dir), err)
	}
	store := cfg.Store
	if cfg.OpenStore != nil {
		store = "own"
	}
	raw, err := cfg.FS.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.node = nodeJSON{Node: cfg.NodeID, ClusterID: cfg.ClusterID, Store: store}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(raw, &d.node); err != nil || d.node.CoordinatorEpoch < 0 {
			return fmt.Errorf("%s can't be read, and without it the broker does not know its coordinator epoch: %s", file, raw)
		}
		if d.node.Node != cfg.NodeID {
			return fmt.Errorf("%s: the directory is that of node %d, and this is node %d", file, d.node.Node, cfg.NodeID)
		}
		if d.node.Store != store {
			return fmt.Errorf("%s: the transactional ids of this directory are in store %q, and not in %q", file, d.node.Store, store)
		}
		d.node.CoordinatorEpoch++
	}
	raw, err = json.Marshal(d.node)
	if err != nil {
		return err
	}
	return cfg.FS.Replace(file, append(raw, '\n'), 0o644)
}

func (d *dir) epoch() int32 {
	if d == nil {
		return 0
	}
	return d.node.CoordinatorEpoch
}

// offsetsLog is where group offsets are kept.
func (d *dir) offsetsLog(cfg Config) (kxoffsets.Log, error) {
	if d == nil {
		return kxoffsets.NewMemLog(), nil
	}
	files := d.files
	if cfg.Fsync == Never {
		files = unsynced{files}
	}
	log, err := kxoffsets.OpenFileLog(filepath.Join(cfg.Dir, "offsets"), files)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, log)
	return log, nil
}

// unsynced is a file system whose syncs do nothing.
type unsynced struct{ fsx.FS }

func (u unsynced) SyncDir(string) error { return nil }

func (u unsynced) OpenFile(name string, flag int, perm fs.FileMode) (fsx.File, error) {
	f, err := u.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

type unsyncedFile struct{ fsx.File }

func (unsyncedFile) Sync() error { return nil }

// transactions are the stores of transactional ids and producer ids.
func (d *dir) transactions(cfg Config) (store txnstate.Store, ids txnstate.ProducerIDs, err error) {
	switch {
	case cfg.OpenStore != nil:
		store, err = cfg.OpenStore()
	case cfg.Store == Memory:
		store = memstore.New()
	case cfg.Store == Journal:
		var j *journal.Store
		if j, err = journal.Open(journal.Config{Dir: filepath.Join(cfg.Dir, "txn_journal"), FS: d.files, Logger: cfg.Logger}); err == nil {
			store = j
			d.closers = append(d.closers, j)
		}
	default:
		var f *slotfile.Store
		if f, err = slotfile.Open(slotfile.Config{Dir: cfg.Dir, FS: cfg.FS, Logger: cfg.Logger}); err == nil {
			store = f
			d.closers = append(d.closers, f)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if d == nil {
		return store, pidalloc.Memory(0), nil
	}
	ids, err = pidalloc.New(pidalloc.Config{Dir: cfg.Dir, Broker: cfg.NodeID, FS: cfg.FS})
	return store, ids, err
}

func (d *dir) close() {
	if d == nil {
		return
	}
	for _, c := range slices.Backward(d.closers) {
		_ = c.Close() // everything is durable by now, or was never promised
	}
	_ = d.lock.Close()
}
