package offsets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Manager keeps the committed and the staged offsets of the groups whose
// offsets partitions this process serves. Its methods may be called
// concurrently. Errors are *txnstate.Error; where the log failed, or a ctx ended
// while it wrote, that is COORDINATOR_NOT_AVAILABLE: the change may have been
// made. A partition that is not loaded answers NOT_COORDINATOR, one that is
// being loaded COORDINATOR_LOAD_IN_PROGRESS.
type Manager struct {
	cfg    Config
	check  Checker // the log's ability, or nil
	parts  [partitions]*partition
	closed atomic.Bool
}

// New makes a Manager that serves nothing yet: see Load.
func New(cfg Config) (*Manager, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg.withDefaults()}
	m.check, _ = cfg.Log.(Checker)
	for i := range m.parts {
		// gen 0 is that of the zero Guard.
		m.parts[i] = &partition{m: m, index: int32(i), gen: 1, flight: map[place]int{}, announced: map[place]int{}}
	}
	return m, nil
}

func errClosed() error {
	return txnstate.CodeCoordinatorNotAvailable.Errorf("", "the offsets manager is closed")
}

// at is a partition by its number, which may come from a request.
func (m *Manager) at(partition int32) (*partition, error) {
	if partition < 0 || partition >= partitions {
		return nil, txnstate.CodeUnknownTopicOrPartition.Errorf("", "%s has partitions 0 to %d, and not %d", txnstate.OffsetsTopic, partitions-1, partition)
	}
	return m.parts[partition], nil
}

func (m *Manager) of(group string) *partition { return m.parts[txnstate.OffsetsPartition(group)] }

// loaders is how many partitions Load reads at a time.
const loaders = 8

// Load reads every partition and serves it from then on: for a process that
// coordinates all groups. A partition that cannot be read is in the error, and
// does not keep the others from being served; a request for it causes another
// attempt after a second.
func (m *Manager) Load(ctx context.Context) error {
	errs := make([]error, partitions)
	var next atomic.Int32
	var wg sync.WaitGroup
	for range loaders {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < partitions; i = next.Add(1) - 1 {
				errs[i] = m.parts[i].load(ctx)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("offsets: load: %w", err)
	}
	return nil
}

// LoadPartition reads one partition and serves it from then on: for a process
// that has become the coordinator of its groups. A partition that is served
// already is left alone.
func (m *Manager) LoadPartition(ctx context.Context, partition int32) error {
	p, err := m.at(partition)
	if err != nil {
		return err
	}
	return p.load(ctx)
}

// Unload stops serving a partition and forgets it: another process coordinates
// its groups. Requests under way are answered NOT_COORDINATOR, whether or not
// they were written. When it returns nil the log is not called for the partition
// any more; before, an Append may be under way, its ctx cancelled.
func (m *Manager) Unload(ctx context.Context, partition int32) error {
	p, err := m.at(partition)
	if err != nil {
		return err
	}
	return p.unload(ctx)
}

// Close refuses new requests, waits until those under way are answered, and
// returns when the Manager calls its log no more. When ctx ends first, the log's
// calls are cancelled, the requests are answered with an error, and Close still
// waits for the log to return. The log is the caller's to close.
func (m *Manager) Close(ctx context.Context) error {
	m.closed.Store(true)
	var errs []error
	for _, p := range m.parts {
		errs = append(errs, p.idle(ctx))
	}
	for _, p := range m.parts {
		_ = p.unload(context.Background()) // waits for a log that was told to stop
	}
	return errors.Join(errs...)
}

// Producers lists the producers that a partition of __consumer_offsets knows,
// by id, as DescribeProducers shows them; writes under way are included.
func (m *Manager) Producers(partition int32) ([]fence.ProducerState, error) {
	p, err := m.at(partition)
	if err != nil {
		return nil, err
	}
	states, err := p.producers()
	if err == nil {
		err = p.still()
	}
	if err != nil {
		return nil, err
	}
	return states, nil
}

func (p *partition) producers() ([]fence.ProducerState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(); err != nil {
		return nil, err
	}
	return p.st.fence.Producers(), nil
}

// still fails where another process has the partition by now. What was read
// before is then not to be told. mu is not held.
func (p *partition) still() error {
	if p.m.check == nil {
		return nil
	}
	if err := p.m.check.Check(p.index); err != nil {
		return txnstate.CodeNotCoordinator.Errorf("", "offsets partition %d: %w", p.index, err)
	}
	return nil
}

// Serves is nil where this process serves a group's partition, by its log too
// (Checker). A host asks before it answers for the group what needs no write.
func (m *Manager) Serves(group string) error {
	p := m.of(group)
	p.mu.Lock()
	err := p.refusal()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return p.still()
}

// Groups lists the groups that have a committed or a staged offset, sorted, of
// the partitions that can be asked at present.
func (m *Manager) Groups() []string {
	var out []string
	for _, p := range m.parts {
		p.mu.Lock()
		if p.phase == phaseReady {
			for g := range p.st.groups {
				out = append(out, g)
			}
		}
		p.mu.Unlock()
	}
	slices.Sort(out)
	return out
}
