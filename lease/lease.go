package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// DefaultTTL is after how long without a heartbeat a broker is dead.
const DefaultTTL = 3 * time.Second

// ErrReplaced is what Run returns when a later process has begun to run as the
// same broker: two that share an id would take the slots from each other for ever.
var ErrReplaced = errors.New("lease: another process runs as this broker")

// Config is what a Lease is made of.
type Config struct {
	Dir     string  // the shared directory, in which "leases" is made; required
	Broker  int32   // this broker's id
	Brokers []int32 // all brokers of the cluster, this one among them; the same everywhere

	// TTL is after how long without a heartbeat a broker is dead; zero is
	// DefaultTTL, and less than 50 ms is refused. It should be the same
	// everywhere: a heartbeat comes six times within the writer's TTL, and is
	// missed for the reader's.
	TTL time.Duration

	FS     fsx.FS       // nil is the real file system
	Logger *slog.Logger // nil is silent
}

func (c Config) withDefaults() Config {
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Brokers = slices.Compact(slices.Sorted(slices.Values(c.Brokers)))
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("lease: Config.Dir is required"))
	}
	if !slices.Contains(c.Brokers, c.Broker) {
		errs = append(errs, fmt.Errorf("lease: Config.Brokers is %v, without Config.Broker, which is %d", c.Brokers, c.Broker))
	}
	if len(c.Brokers) > 0 && slices.Min(c.Brokers) < 0 {
		errs = append(errs, errors.New("lease: Config.Brokers has a negative id"))
	}
	if c.TTL != 0 && c.TTL < 50*time.Millisecond {
		errs = append(errs, fmt.Errorf("lease: Config.TTL is %v, and less than 50ms are refused", c.TTL))
	}
	return errors.Join(errs...)
}

// Lease is one broker's part in the cluster. Its methods may be called
// concurrently, before Run and after it too: then nobody is alive and no slot is
// owned. None but Run and Still touches a file.
type Lease struct {
	cfg   Config
	dir   string // of the heartbeats
	slots string // of the tokens
	self  heart  // used by the goroutine that beats

	durable bool // the directory of the tokens is; used by the one that claims

	mu      sync.Mutex
	started bool
	running bool                  // Run runs, and its context is not done
	fresh   bool                  // the own heartbeat is younger than TTL
	beatAt  time.Time             // when the last successful write of it began
	others  []int32               // the other brokers that are alive
	alive   []int32               // never changed in place
	held    [txnstate.Slots]int32 // epoch of each slot that is owned, or 0
	retry   [txnstate.Slots]time.Time
	view    chan struct{} // closed and replaced when alive changes
	notice  chan struct{} // the same for held
}

var (
	_ txnstate.Ownership        = (*Lease)(nil)
	_ txnstate.OwnershipChecker = (*Lease)(nil)
)

// New checks the configuration. It starts nothing and touches no file: what is
// wrong with the files is tried again by Run, so that a broker may start before
// its volume is there.
func New(cfg Config) (*Lease, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l := &Lease{
		cfg:    cfg,
		dir:    filepath.Join(cfg.Dir, "leases"),
		view:   make(chan struct{}),
		notice: make(chan struct{}),
	}
	l.slots = filepath.Join(l.dir, "slots")
	for _, b := range cfg.Brokers {
		if b != cfg.Broker {
			// Alive until it was silent for TTL: the first one of a cluster that
			// starts must not claim what belongs to the others.
			l.self.peers = append(l.self.peers, &peer{broker: b, alive: true})
		}
	}
	return l, nil
}

// step is how often the volume is looked at; every second time the own heartbeat
// is written too.
func (l *Lease) step() time.Duration { return l.cfg.TTL / 12 }

// Run takes part until ctx is done. Then it gives the slots up, waits for what is
// under way, and resigns, so that others take over at once. A host ends what
// serves the slots before it. Run returns nil or ErrReplaced, and may be called
// once. Faults of the volume are logged and tried again; an operation that hangs
// keeps Run from returning.
func (l *Lease) Run(ctx context.Context) error {
	l.mu.Lock()
	again := l.started
	l.started, l.running = true, true
	l.mu.Unlock()
	if again {
		return errors.New("lease: Run was called before")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	work.Go(func() {
		if err := l.beat(ctx); err != nil {
			cancel(err)
		}
	})
	work.Go(func() { l.keep(ctx) })
	tick := time.NewTicker(l.step())
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C:
			l.expire()
		case <-ctx.Done():
			done = true
		}
	}
	l.release()
	work.Wait()
	if err := context.Cause(ctx); errors.Is(err, ErrReplaced) {
		return err // the heartbeat is the other one's
	}
	l.resign()
	return nil
}

// Alive is the brokers that are alive by this one's view, itself among them while
// its own heartbeats are written, in ascending order. The slice is not to be
// changed.
func (l *Lease) Alive() []int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alive
}

// Changed is closed when Alive changes after the call. Who waits for a change asks
// for it before Alive, and anew each time.
func (l *Lease) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view
}

// Owner is the broker that a slot belongs to by placement, or that any other thing
// with a number does: txnstate.PickSlotOwner over Config.Brokers and Alive. ok is
// false where nobody is alive, and for a negative number. By placement: whether
// this broker serves the slot already is what Watch tells.
func (l *Lease) Owner(slot int) (broker int32, ok bool) {
	return txnstate.PickSlotOwner(slot, l.cfg.Brokers, l.Alive())
}

// Watch implements txnstate.Ownership. The notices of a slot come in order; of
// several changes in between the last may be all that is told. The coordinator
// epoch is the claim's less one: Kafka's first leader epoch is 0. It may be called
// for several watchers, returns nil, and outlasts Run: the end of Run is a loss of
// every slot.
func (l *Lease) Watch(ctx context.Context, acquired, lost func(slot int, epoch int32)) error {
	var told [txnstate.Slots]int32
	for {
		l.mu.Lock()
		held, notice := l.held, l.notice
		l.mu.Unlock()
		for i, epoch := range held {
			if told[i] == epoch {
				continue
			}
			if told[i] != 0 {
				lost(i, told[i]-1)
			}
			if epoch != 0 {
				acquired(i, epoch-1)
			}
			told[i] = epoch
		}
		select {
		case <-notice:
		case <-ctx.Done():
			return nil
		}
	}
}

// Still implements txnstate.OwnershipChecker. It looks at the volume whether nobody has claimed a slot after this broker
// did so at an epoch. False is final: the slot is lost at that epoch. An error
// means that nobody knows. True was so at some moment of the call: whatever was
// read before it was read while the slot was owned.
//
// The end of ctx does not interrupt the look, which is one operation of the file
// system.
func (l *Lease) Still(_ context.Context, slot int, epoch int32) (bool, error) {
	if epoch++; slot < 0 || slot >= txnstate.Slots || !l.holds(slot, epoch) {
		return false, nil
	}
	switch _, err := l.cfg.FS.ReadFile(l.token(slot, epoch)); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		l.deposed(slot, epoch)
		return false, nil
	default:
		return false, fmt.Errorf("lease: look for the claim of slot %d: %w", slot, err)
	}
}

func (l *Lease) holds(slot int, epoch int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return epoch > 0 && l.held[slot] == epoch
}

// take begins to own a slot at an epoch that was claimed, durably, if it is still
// wanted.
func (l *Lease) take(slot int, epoch int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.wants(slot) {
		return false
	}
	l.held[slot] = epoch
	l.tell(&l.notice)
	return true
}

// wants reports whether a slot is this broker's by placement and not held yet.
// l.mu is held.
func (l *Lease) wants(slot int) bool {
	b, ok := txnstate.PickSlotOwner(slot, l.cfg.Brokers, l.alive)
	return l.current() && ok && b == l.cfg.Broker && l.held[slot] == 0
}

// current reports whether others must still think that this broker is alive. l.mu
// is held.
func (l *Lease) current() bool {
	return l.running && l.fresh && time.Since(l.beatAt) < l.cfg.TTL
}

// deposed ends the ownership of a slot that another broker has claimed.
func (l *Lease) deposed(slot int, epoch int32) {
	l.mu.Lock()
	held := l.held[slot] == epoch
	if held {
		l.held[slot] = 0
		l.retry[slot] = time.Now().Add(l.cfg.TTL / 3)
		l.tell(&l.notice)
	}
	l.mu.Unlock()
	if !held {
		return
	}
	l.cfg.Logger.Info("another broker has claimed the slot", "slot", slot, "epoch", epoch)
}

// seen books who is alive besides this broker.
func (l *Lease) seen(others []int32) { l.change(func() { l.others = others }) }

// beaten books a heartbeat whose writing began at some time.
func (l *Lease) beaten(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beatAt, l.fresh = at, l.running && time.Since(at) < l.cfg.TTL
}

// expire gives everything up when others must think that this broker is dead.
func (l *Lease) expire() {
	expired := false
	l.change(func() {
		expired = l.fresh && !l.current()
		l.fresh = l.fresh && !expired
	})
	if expired {
		l.cfg.Logger.Warn("no heartbeat could be written in time, slots are given up", "broker", l.cfg.Broker)
	}
}

// release gives everything up for good.
func (l *Lease) release() {
	l.change(func() { l.running, l.fresh, l.others = false, false, nil })
}

// change changes what alive and held follow from.
func (l *Lease) change(f func()) {
	l.mu.Lock()
	f()
	alive, changed := l.settle()
	l.mu.Unlock()
	if changed {
		l.cfg.Logger.Info("brokers alive", "broker", l.cfg.Broker, "alive", alive)
	}
}

// settle makes alive and held what they have to be, and tells whether alive was
// something else. l.mu is held.
func (l *Lease) settle() (alive []int32, changed bool) {
	alive = slices.Clone(l.others)
	if l.fresh {
		alive = append(alive, l.cfg.Broker)
		slices.Sort(alive)
	}
	if slices.Equal(alive, l.alive) {
		return nil, false
	}
	l.alive = alive
	l.tell(&l.view)
	given := false
	for i, epoch := range l.held {
		// Where this broker is not alive itself, nothing is its own.
		if b, ok := txnstate.PickSlotOwner(i, l.cfg.Brokers, alive); epoch != 0 && (!ok || b != l.cfg.Broker) {
			l.held[i] = 0
			given = true
		}
	}
	if given {
		l.tell(&l.notice)
	}
	return alive, true
}

// tell wakes those who wait for a change. l.mu is held.
func (l *Lease) tell(c *chan struct{}) {
	close(*c)
	*c = make(chan struct{})
}
