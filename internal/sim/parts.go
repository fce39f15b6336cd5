package sim

import (
	"errors"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
	"github.com/kafkatxn/kafkatxn/wire"
)

// parts is a cluster that is put together from the parts of the library, around
// storage that is replicated somewhere below: partition logs and offset logs that
// survive every broker and take the writes of the newest leader only, a store of
// records that all brokers share, and somebody who decides who leads what and
// tells the brokers, late.
type parts struct {
	m     *model
	w     *world
	d     *dice
	files fsx.FS            // shared
	mem   *memstore.Store   // shared, or nil where the store is slotfile's
	shaky *storetest.Faulty // mem, with faults
	tune  tuning

	ids []string // transactional ids

	mu       sync.Mutex
	now      []*broker // the present incarnation of each broker, nil: down
	lives    []int
	starting []bool
	topics   map[string]*topic
	gone     map[string]bool
	madeUp   uint64
	slots    map[int]*unit // slots of transactional ids
	offs     map[int32]*offsetsPart
	clocks   []clock
	running  sync.WaitGroup

	ambushes  []*ambush
	outage    time.Time                // until when the store answers nothing
	unsaid    map[string]bool          // ids whose next write is made, and not said to be
	half      map[int]bool             // slots whose next load fails half-way
	meet      map[string]chan struct{} // see rendezvous
	met       map[string]string
	madeTwins int
}

// tuning is what the seed chooses for a whole run.
type tuning struct {
	endWait     time.Duration
	expireAfter time.Duration
	server      txnstate.TransactionVersion
	fencer      bool
	storeFaults float64 // of each call
	diskFaults  float64 // of each append
	slow        time.Duration
	queue       bool // markers go by files
	check       bool // brokers can ask whether they still own a slot
	stale       bool // brokers hear late who owns a slot
	oneClock    bool // all clocks agree
	direct      bool // completions are stored where the last participant is confirmed
}

// unit is something that one broker at a time is in charge of.
type unit struct {
	owner  int // -1: nobody
	epoch  int32
	before int         // the owner before, whom some still take for the owner
	told   []time.Time // when each broker hears of the new one
}

// heard is who a broker takes for the owner.
func (u *unit) heard(b int) int {
	if u.before >= 0 && b < len(u.told) && time.Now().Before(u.told[b]) {
		return u.before
	}
	return u.owner
}

// clock is a broker's idea of the time.
type clock struct {
	ahead time.Duration
	drift float64
	since time.Time
}

type topic struct {
	name  string
	id    [16]byte
	logs  []*plog
	other int32 // partitions of a topic that nobody writes to
}

func (t *topic) wire() wire.Topic {
	return wire.Topic{Name: t.name, ID: t.id, Partitions: int32(len(t.logs)) + t.other}
}

var errDead = errors.New("sim: the process is dead")

func newParts(w *world, m *model, n int, topics map[string]int32, txnIDs, groups []string, t tuning, files fsx.FS, slotfiles bool) *parts {
	c := &parts{
		w: w, m: m, d: w.dice("parts"), files: files, ids: txnIDs, tune: t, now: make([]*broker, n), lives: make([]int, n), starting: make([]bool, n), clocks: make([]clock, n),
		topics: map[string]*topic{}, gone: map[string]bool{}, slots: map[int]*unit{}, offs: map[int32]*offsetsPart{},
		unsaid: map[string]bool{}, half: map[int]bool{}, meet: map[string]chan struct{}{}, met: map[string]string{},
	}
	if !slotfiles {
		c.mem = memstore.New()
		c.shaky = storetest.NewFaulty(c.mem, c.fate)
	}
	for i := range c.clocks {
		if t.oneClock {
			c.clocks[i].since = time.Now()
			continue
		}
		c.clocks[i] = clock{ahead: c.d.between(-2*time.Second, 2*time.Second), drift: float64(c.d.n(2001)-1000) / 1e5, since: time.Now()}
	}
	for _, id := range txnIDs {
		c.slots[txnstate.Slot(id)] = &unit{owner: -1, before: -1}
	}
	for _, g := range groups {
		p := txnstate.OffsetsPartition(g)
		c.offs[p] = &offsetsPart{unit: unit{owner: -1, before: -1}, log: offsets.NewMemLog()}
	}
	for _, name := range sortedKeys(topics) {
		c.create(name, topics[name])
	}
	c.topics[inputTopic] = &topic{name: inputTopic, id: [16]byte{14: 1, 15: 1}, other: inputPartitions}
	return c
}

// fate is what becomes of a call of the shared store.
func (c *parts) fate(x storetest.Call) storetest.Fate {
	if c.w.calm.Load() {
		return storetest.Done
	}
	c.mu.Lock()
	unsaid, out := x.Method.Writes() && c.unsaid[x.TxnID], time.Now().Before(c.outage)
	if unsaid {
		delete(c.unsaid, x.TxnID)
	}
	c.mu.Unlock()
	faults := c.tune.storeFaults
	if x.Method == storetest.MethodSlot {
		faults *= 5 // there are few, and much depends on them
	}
	switch {
	case unsaid:
		return storetest.DoneUnsaid
	case out:
		return storetest.NotDone
	case !c.d.chance(faults):
		return storetest.Done
	}
	return []storetest.Fate{storetest.NotDone, storetest.DoneUnsaid, storetest.DoneLate, storetest.Overtaken}[c.d.n(4)]
}

func (c *parts) nodes() int { return len(c.now) }

// up is the present incarnation of a broker, or nil.
func (c *parts) up(i int) *broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now[i]
}

// create makes a topic and gives its partitions leaders.
func (c *parts) create(name string, n int32) {
	c.mu.Lock()
	c.madeUp++
	t := &topic{name: name}
	t.id[0], t.id[1], t.id[15] = byte(c.madeUp), byte(c.madeUp>>8), 1
	for p := range n {
		t.logs = append(t.logs, &plog{c: c, topic: name, number: p, unit: unit{owner: -1, before: -1}})
	}
	c.topics[name] = t
	delete(c.gone, name)
	c.mu.Unlock()
	for _, l := range t.logs {
		c.elect(l, c.d.n(c.nodes()))
	}
}

func (c *parts) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topics[name]
	if t == nil {
		return
	}
	delete(c.topics, name)
	c.gone[name] = true
	for _, l := range t.logs {
		l.deleted = true
		l.epoch++
	}
	for _, b := range c.now {
		if b != nil {
			b.dropLeads(t.logs)
		}
	}
}

// clock reads a broker's clock.
func (c *parts) clock(i int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.clocks[i]
	return time.Now().Add(k.ahead + time.Duration(float64(time.Since(k.since))*k.drift))
}

// jump moves a broker's clock.
func (c *parts) jump(i int, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clocks[i].ahead += by
	c.m.jumps(by)
}

// heal ends faults that last: everybody runs, everything has an owner.
func (c *parts) heal() {
	for i := range c.now {
		c.start(i)
		if b := c.up(i); b != nil {
			b.resume()
		}
	}
	c.adopt(c.orphans())
}

func (c *parts) stop() {
	for i := range c.now {
		c.kill(i)
	}
	c.running.Wait()
}
