package txnstate_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// scriptStore keeps records in memory and does to each call what the test says. A
// call whose context is over does nothing.
// Its lock is not held while a hook of the test runs.
type scriptStore struct {
	mu   sync.Mutex
	recs map[string]txnstate.Record
	next txnstate.Version

	onLoad func(id string) error
	// onSwap may refuse a write: before says so without writing, after writes
	// and then answers its error.
	onSwap func(rec txnstate.Record, d txnstate.Durability) (before, after error)
	onSlot func(slot int) error
}

func newScriptStore(recs ...txnstate.Record) *scriptStore {
	s := &scriptStore{recs: map[string]txnstate.Record{}}
	for _, r := range recs {
		s.put(r)
	}
	return s
}

func (s *scriptStore) put(r txnstate.Record) txnstate.Version { return s.putAt(r, s.number()) }

func (s *scriptStore) putAt(r txnstate.Record, v txnstate.Version) txnstate.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Version = v
	s.recs[r.TxnID] = r.Clone()
	return v
}

// number is a version that no record has had.
func (s *scriptStore) number() txnstate.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next
}

func (s *scriptStore) get(id string) txnstate.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recs[id].Clone()
}

func (s *scriptStore) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if s.onLoad != nil {
		if err := s.onLoad(id); err != nil {
			return txnstate.Record{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return txnstate.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.recs[id]
	if !ok {
		return txnstate.Record{}, txnstate.ErrNotFound
	}
	return r.Clone(), nil
}

func (s *scriptStore) Swap(ctx context.Context, r txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	return s.swap(ctx, r, d, s.number())
}

// swap is Swap with the version that the record gets.
func (s *scriptStore) swap(ctx context.Context, r txnstate.Record, d txnstate.Durability, v txnstate.Version) (txnstate.Version, error) {
	var before, after error
	if s.onSwap != nil {
		before, after = s.onSwap(r, d)
	}
	if err := ctx.Err(); err != nil && before == nil {
		before = fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
	}
	if before != nil {
		return 0, before
	}
	s.mu.Lock()
	conflict := s.recs[r.TxnID].Version != r.Version
	s.mu.Unlock()
	if conflict {
		return 0, txnstate.ErrConflict
	}
	return s.putAt(r, v), after
}

func (s *scriptStore) Delete(ctx context.Context, id string, v txnstate.Version) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", txnstate.ErrUncertain, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.recs[id]; !ok || r.Version != v {
		return txnstate.ErrConflict
	}
	delete(s.recs, id)
	return nil
}

func (s *scriptStore) Slot(_ context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		s.mu.Lock()
		var rs []txnstate.Record
		for id, r := range s.recs {
			if txnstate.Slot(id) == slot {
				rs = append(rs, r.Clone())
			}
		}
		s.mu.Unlock()
		slices.SortFunc(rs, func(a, b txnstate.Record) int { return int(int64(a.Version) - int64(b.Version)) })
		for _, r := range rs {
			if !yield(r, nil) {
				return
			}
		}
		if s.onSlot != nil {
			if err := s.onSlot(slot); err != nil {
				yield(txnstate.Record{}, err)
			}
		}
	}
}

// counter gives out producer ids, or fails.
type counter struct {
	mu  sync.Mutex
	n   int64
	err error
}

func (c *counter) Next(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.n++
	return c.n, nil
}

// held keeps dispatched outcomes until the test lets them through.
type held struct {
	mu        sync.Mutex
	out       []heldOutcome
	cancelled []string
	at        func(o txnstate.Outcome) // called for each, before anything else
	auto      bool
}

type heldOutcome struct {
	txnstate.Outcome
	applied func([]txnstate.Participant)
}

func (h *held) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	if h.at != nil {
		h.at(o)
	}
	h.mu.Lock()
	h.out = append(h.out, heldOutcome{o, applied})
	h.mu.Unlock()
	if h.auto {
		applied(o.Participants)
	}
}

func (h *held) Cancel(slot int, epoch int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancelled = append(h.cancelled, fmt.Sprintf("%d@%d", slot, epoch))
}

func (h *held) outcomes() []heldOutcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.out)
}

// deadlines remembers the latest deadline of each id.
type deadlines struct {
	mu sync.Mutex
	at map[string]string
}

func (d *deadlines) Set(id string, at int64, open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[string]string{}
	}
	d.at[id] = fmt.Sprintf("%d open=%v", at, open)
}

func (d *deadlines) of(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at[id]
}

var t0 = time.UnixMilli(1_700_000_000_000)

// start runs a coordinator until the test ends.
func start(t *testing.T, cfg txnstate.Config) *txnstate.Coordinator {
	t.Helper()
	if cfg.ProducerIDs == nil {
		cfg.ProducerIDs = &counter{n: 99}
	}
	if cfg.Dispatcher == nil {
		cfg.Dispatcher = &held{auto: true}
	}
	if cfg.Now == nil {
		cfg.Now = func() time.Time { return t0 }
	}
	if s, ok := cfg.Store.(*scriptStore); ok && swapsBegin {
		cfg.Store = &starting{scriptStore: s}
	}
	c, err := txnstate.New(cfg)
	require.NoError(t, err)
	run(t, c)
	return c
}

func run(t *testing.T, c *txnstate.Coordinator) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.Ready()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

var bg = context.Background()

func initID(t *testing.T, c *txnstate.Coordinator, id string) txnstate.Producer {
	t.Helper()
	p, err := c.Init(bg, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
	require.NoError(t, err)
	return p
}

func add(c *txnstate.Coordinator, id string, p txnstate.Producer, v txnstate.TransactionVersion, ps ...txnstate.Participant) error {
	return c.Add(bg, id, txnstate.Add{Producer: p, Participants: ps, Client: v})
}

func ongoing(id string, p txnstate.Producer, ps ...txnstate.Participant) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State, r.Producer, r.PrevID, r.TimeoutMs = txnstate.Ongoing, p, p.ID, 60_000
	r.Participants, r.StartMs, r.UpdateMs = ps, t0.UnixMilli(), t0.UnixMilli()
	return r
}

func prepared(id string, p txnstate.Producer, ps ...txnstate.Participant) txnstate.Record {
	r := ongoing(id, p, ps...)
	r.State, r.TxnSeq = txnstate.PrepareCommit, 1
	return r
}
