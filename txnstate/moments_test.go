package txnstate_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// moments is a host whose every word with the coordinator is a moment at which
// something may happen: the store's operations before and after they are done, the
// question who owns the slot, deliveries, deadlines, fences and hooks. It keeps what
// it hears, to judge it when everything is at rest.
type moments struct {
	mem *memstore.Store
	notices
	auto bool
	c    *txnstate.Coordinator

	mu      sync.Mutex
	armed   bool
	names   []string // of the moments so far
	at      int      // the one at which it happens, -1 for none
	happens string   // what does, see events
	when    string   // the moment at which it did
	kind    string   // of the call under way; "" between calls
	stale   bool     // the slot has another owner than when the call began
	leave   context.CancelFunc
	epoch   int32 // of the ownership
	lost    bool
	refused bool
	ids     int64
	loading int
	log     []txnstate.Record // as stored, in order
	told    []txnstate.Record // by Transition
	doubts  []bool            // by Uncertain
	due     map[string]string
	wrong   []string
}

// The first three may happen at any moment, the others when something is stored.
var events = []string{"lost", "lost and owned again", "left", "conflict", "not found", "damaged", "uncertain, not done", "uncertain, done"}

func (m *moments) complain(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrong = append(m.wrong, fmt.Sprintf("at %s: ", m.when)+fmt.Sprintf(format, args...))
}

// moment is the next one. before and after are what the store makes of it.
func (m *moments) moment(what string) (before, after error) {
	m.mu.Lock()
	now := false
	if m.armed {
		now = len(m.names) == m.at
		m.names = append(m.names, what)
	}
	if now {
		m.when = fmt.Sprintf("%s of %s", what, m.kind)
	}
	leave := m.leave
	m.mu.Unlock()
	if !now {
		return nil, nil
	}
	switch m.happens {
	case "lost":
		m.lose()
	case "lost and owned again":
		m.lose()
		m.own()
	case "left":
		leave()
	case "conflict":
		return txnstate.ErrConflict, nil
	case "not found":
		return txnstate.ErrNotFound, nil
	case "damaged":
		return txnstate.ErrDamaged, nil
	case "uncertain, not done":
		return txnstate.ErrUncertain, nil
	case "uncertain, done":
		return nil, txnstate.ErrUncertain
	}
	return nil, nil
}

const momentsSlot = "t"

func (m *moments) lose() {
	m.mu.Lock()
	epoch := m.epoch
	m.lost, m.stale = true, true
	m.mu.Unlock()
	m.notice(func(_, no func(int, int32)) { no(txnstate.Slot(momentsSlot), epoch) })
}

func (m *moments) own() {
	m.mu.Lock()
	m.epoch++
	epoch := m.epoch
	m.lost = false
	m.mu.Unlock()
	m.notice(func(yes, _ func(int, int32)) { yes(txnstate.Slot(momentsSlot), epoch) })
	time.Sleep(time.Millisecond) // until it is loaded
}

func (m *moments) notice(f func(yes, no func(int, int32))) {
	told := make(chan struct{})
	m.acquired <- func(yes, no func(int, int32)) {
		f(yes, no)
		close(told)
	}
	<-told
}

func (m *moments) Still(_ context.Context, _ int, epoch int32) (bool, error) {
	m.mu.Lock()
	ok := m.epoch == epoch && !m.lost
	m.mu.Unlock()
	m.moment("Still")
	return ok, nil // as it was at the beginning of the call
}

func (m *moments) Load(ctx context.Context, id string) (txnstate.Record, error) {
	m.moment("before Load")
	rec, err := m.mem.Load(ctx, id)
	m.moment("after Load")
	return rec, err
}

func (m *moments) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return func(yield func(txnstate.Record, error) bool) {
		m.mu.Lock()
		m.loading++
		m.mu.Unlock()
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.loading--
		}()
		m.mem.Slot(ctx, slot)(yield)
	}
}

// mayWrite complains of a write that is begun for a slot that is lost.
func (m *moments) mayWrite(rec txnstate.Record) {
	m.mu.Lock()
	lost, call := m.lost, m.stale && rec.State != txnstate.Empty && !complete(rec.State)
	m.mu.Unlock()
	if lost || call && !m.retaken(rec) {
		m.complain("%s is written for an owner before", rec)
	}
}

func complete(s txnstate.State) bool {
	return s == txnstate.CompleteCommit || s == txnstate.CompleteAbort
}

func (m *moments) wrote(rec txnstate.Record, v txnstate.Version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec.Version = v
	m.log = append(m.log, rec)
}

func (m *moments) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	m.mayWrite(next)
	if complete(next.State) == (d == txnstate.Durable) && !m.takenOver(next.TxnSeq) {
		m.complain("%s is written with durability %v", next, d)
	}
	before, after := m.moment("before Swap to " + next.State.String())
	if before != nil {
		return 0, before
	}
	v, err := m.mem.Swap(ctx, next, d)
	if err == nil {
		m.wrote(next, v)
		m.moment("after Swap to " + next.State.String())
	}
	if after != nil {
		v, err = 0, after
	}
	return v, err
}

// takenOver reports whether a decision was stored twice: it was taken over, and its
// completion is waited for.
func (m *moments) takenOver(seq uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, r := range m.log {
		if r.State.Decided() && r.TxnSeq == seq {
			n++
		}
	}
	return n > 1
}

// retaken reports whether a write changes nothing but the version.
func (m *moments) retaken(next txnstate.Record) bool {
	now, err := m.mem.Load(bg, next.TxnID)
	return err == nil && now.State.Decided() && now.Equal(next)
}

func (m *moments) Delete(ctx context.Context, id string, v txnstate.Version) error {
	before, after := m.moment("before Delete")
	if before != nil {
		return before
	}
	if err := m.mem.Delete(ctx, id, v); err != nil {
		return err
	}
	m.moment("after Delete")
	return after
}

// atOnce is moments with a store that has the abilities of one in memory.
type atOnce struct{ *moments }

func (m atOnce) LoadNow(id string) (txnstate.Record, bool) {
	rec, ok := m.mem.LoadNow(id)
	m.moment("after LoadNow")
	return rec, ok
}

func (m atOnce) SwapStart(next txnstate.Record) (txnstate.Version, txnstate.Pending, bool) {
	m.mayWrite(next)
	now, err := m.mem.Load(bg, next.TxnID)
	if err != nil || now.Version != next.Version {
		return 0, nil, false
	}
	b := &begun{done: make(chan struct{})}
	v, err := m.mem.Swap(bg, next, txnstate.Durable)
	if err != nil {
		return 0, nil, false
	}
	m.wrote(next, v)
	go func() {
		defer close(b.done)
		_, b.err = m.moment("after Swap to " + next.State.String())
	}()
	return v, b, true
}

func (m atOnce) SwapNow(next txnstate.Record) (txnstate.Version, bool) {
	m.mayWrite(next)
	before, after := m.moment("before SwapNow")
	if before != nil {
		return 0, false
	}
	v, ok := m.mem.SwapNow(next)
	if ok {
		m.wrote(next, v)
		m.moment("after SwapNow")
	}
	return v, ok && after == nil
}

func (m *moments) Dispatch(o txnstate.Outcome, applied func([]txnstate.Participant)) {
	m.mu.Lock()
	stored := false
	for _, r := range m.log {
		stored = stored || r.TxnID == o.TxnID && r.State.Decided() && r.Producer == o.Producer && r.TxnSeq == o.TxnSeq && len(r.Participants) == len(o.Participants)
	}
	idle := m.at < 0 && m.c.Busy(o.TxnID)
	m.mu.Unlock()
	if !stored {
		m.complain("%v is delivered, and not stored: %v", o, m.log)
	}
	if idle {
		m.complain("%v is delivered in the turn of its id", o)
	}
	m.moment("Dispatch")
	if m.auto {
		for _, p := range o.Participants {
			applied([]txnstate.Participant{p})
			m.moment("applied")
		}
		return
	}
	time.AfterFunc(time.Second, func() { applied(o.Participants) })
}

func (m *moments) Cancel(int, int32) {}

func (m *moments) Set(id string, at int64, open bool) {
	m.mu.Lock()
	held := m.loading > 0 || m.c.Busy(id)
	m.due[id] = fmt.Sprintf("%d open=%v", at, open)
	m.mu.Unlock()
	if !held {
		m.complain("a deadline of %s is set outside its turn", id)
	}
	m.moment("Deadlines")
}

func (m *moments) Next(context.Context) (int64, error) {
	m.moment("Next")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids++
	return m.ids, nil
}

func (m *moments) Fence(context.Context, txnstate.Producer) error {
	m.moment("Fence")
	return nil
}

func (m *moments) observer() txnstate.Observer {
	return txnstate.Observer{
		Transition: func(_ txnstate.State, rec txnstate.Record) {
			m.mu.Lock()
			m.told = append(m.told, rec)
			m.mu.Unlock()
			m.moment("Transition")
		},
		Refused: func(string, string, error) { m.moment("Refused") },
		Uncertain: func(_ string, written bool, _ error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.doubts = append(m.doubts, written)
		},
	}
}

// call makes a call until it is done, as a client does: what is only not to be had
// now is asked for again. The slot comes back after the first refusal.
func (m *moments) call(t *testing.T, kind string, call func(ctx context.Context) error) {
	for range 20 {
		ctx, cancel := context.WithCancel(bg)
		m.mu.Lock()
		m.kind, m.stale, m.leave = kind, false, cancel
		m.mu.Unlock()
		err := call(ctx)
		cancel()
		m.mu.Lock()
		when, stale, lost := m.when, m.stale, m.lost
		m.kind, m.stale = "", false
		m.mu.Unlock()
		if stale && err == nil && strings.Contains(when, "Swap to") && !strings.Contains(when, "Complete") {
			m.complain("%s is told as done by an owner before", kind)
		}
		synctest.Wait()
		if lost {
			m.own()
		}
		if m.happens == "damaged" && strings.HasPrefix(when, "before Swap to") && !strings.Contains(when, "Complete") && !m.refused {
			m.refused = true
			require.Equal(t, txnstate.CodeUnknownServerError, txnstate.CodeOf(err), "%s: %v", when, err)
		}
		switch code := txnstate.CodeOf(err); code {
		case txnstate.CodeNone:
			return
		case txnstate.CodeConcurrentTransactions, txnstate.CodeNotCoordinator, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeCoordinatorLoading:
		case txnstate.CodeUnknownServerError:
			require.Equal(t, "damaged", m.happens, "%s: %v", kind, err)
		default:
			require.NoError(t, err, kind)
		}
		time.Sleep(5 * time.Second)
	}
	require.Fail(t, "no end", kind)
}

// Whatever happens at any one moment of a transaction's life - its slot is lost, and
// perhaps owned again, its client leaves, the store refuses or can't say - a client
// that comes again gets to the end of all its transactions; nothing is written for an
// owner before, or told as done by one; the host hears of every change as it was
// stored, and has the deadline of what is stored; and nothing is left. (I1, I11, I12)
func TestAnythingMayHappenAtAnyMoment_I1_I11_I12(t *testing.T) {
	for _, way := range []struct {
		name                        string
		atOnce, asks, auto, observe bool
	}{
		{"a store that waits", false, false, false, true},
		{"a store that waits, and an owner who is asked", false, true, true, true},
		{"a store that begins", true, false, true, false},
		{"a store that begins, slow leaders", true, false, false, true},
		{"a store that begins, and an owner who is asked", true, true, true, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			live := func(what string, at int) (names []string) {
				synctest.Test(t, func(t *testing.T) {
					m := &moments{mem: memstore.New(), auto: way.auto, at: at, happens: what, due: map[string]string{}, epoch: 4, notices: notices{acquired: make(chan func(yes, no func(int, int32)))}}
					cfg := txnstate.Config{Store: m, Ownership: m.notices, ProducerIDs: m, Dispatcher: m, Deadlines: m, Fencer: m, ExpireAfter: time.Hour,
						Limits: txnstate.Limits{TransactionalIDs: 2}, Now: time.Now}
					if way.atOnce {
						cfg.Store = atOnce{m}
					}
					if way.asks {
						cfg.Ownership = m
					}
					if way.observe {
						cfg.Observer = m.observer()
					}
					c, err := txnstate.New(cfg)
					require.NoError(t, err)
					m.c = c
					stop := run(t, c)
					m.own()
					m.arm(true)
					m.life(t)
					names = m.arm(false)
					m.judge(t, way.observe)
					stop()
					require.NoError(t, c.Left(), m.when)
				})
				if t.Failed() {
					t.Fatalf("%s at moment %d of %v", what, at, names)
				}
				return names
			}
			names := live("nothing", -1)
			for _, what := range events {
				for at, name := range names {
					if slices.Contains(events[:3], what) || strings.Contains(name, "Swap") {
						live(what, at)
					}
				}
			}
		})
	}
}

// arm lets something happen from now on, or no more; it returns what the moments were.
func (m *moments) arm(on bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = on
	return m.names
}

// life is two transactions of an id, one of which is given up for an Init.
func (m *moments) life(t *testing.T) {
	var p txnstate.Producer
	c := m.c
	get := func(ctx context.Context) (err error) {
		p, err = c.Init(ctx, "t", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
		return err
	}
	adds := func(ctx context.Context) error {
		return c.Add(ctx, "t", txnstate.Add{Producer: p, Participants: []txnstate.Participant{tp0, tp1}, Client: txnstate.TV2})
	}
	m.call(t, "Init", get)
	m.call(t, "Add", adds)
	m.call(t, "End", func(ctx context.Context) error {
		next, err := c.End(ctx, "t", txnstate.End{Producer: p, Commit: true, Client: txnstate.TV2})
		if err == nil {
			p = next
		}
		return err
	})
	m.rest()
	rec, err := m.mem.Load(bg, "t")
	require.NoError(t, err)
	require.Equal(t, txnstate.CompleteCommit, rec.State, "%s: nobody had to ask for it", m.when)
	m.call(t, "Add", adds)
	m.call(t, "Init", get)
}

// rest waits until nothing is under way. Somebody owns the slot meanwhile.
func (m *moments) rest() {
	for range 2 {
		time.Sleep(time.Minute)
		synctest.Wait()
		m.mu.Lock()
		lost := m.lost
		m.mu.Unlock()
		if lost {
			m.own()
		}
	}
}

// judge demands what holds at rest.
func (m *moments) judge(t *testing.T, observe bool) {
	c := m.c
	m.rest()
	require.Empty(t, m.wrong)
	rec, err := m.mem.Load(bg, "t")
	require.NoError(t, err)
	require.Equal(t, txnstate.Empty, rec.State, "%s: %s", m.when, rec)
	require.Zero(t, c.Completing(), m.when)
	for _, r := range m.told {
		found := false
		for _, w := range m.log {
			found = found || w.Version == r.Version && w.Equal(r)
		}
		require.True(t, found, "%s: %s was never stored", m.when, r)
	}
	require.Equal(t, fmt.Sprintf("%d open=false", rec.UpdateMs+time.Hour.Milliseconds()), m.due["t"], m.when)
	switch doubtful := m.happens == "uncertain, done" || m.happens == "uncertain, not done"; {
	case !doubtful:
		require.Empty(t, m.doubts, m.when)
	case len(m.doubts) > 0:
		require.Equal(t, []bool{m.happens == "uncertain, done"}, m.doubts, m.when)
	}
	if observe && m.at < 0 {
		require.Len(t, m.told, len(m.log), "each change is told of once")
	}

	// Two ids are allowed: this one, and another.
	other := func(id string) error {
		_, err := c.Init(bg, id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
		return err
	}
	_, u := sameSlot()
	v := u
	for i := 0; v == u || v == "t" || txnstate.Slot(v) != txnstate.Slot("t"); i++ {
		v = fmt.Sprint("v", i)
	}
	if m.happens == "lost and owned again" {
		m.lose() // the load may have come before the id
		m.own()
	}
	require.NoError(t, other(u), m.when)
	require.ErrorIs(t, other(v), txnstate.ErrCoordinatorNotAvailable, m.when)
	require.NoError(t, c.Expire(bg, u, time.Now().Add(2*time.Hour)))
	require.Equal(t, "-1 open=false", m.due[u])
	require.NoError(t, other(v), m.when)
}
