package journal_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// model is the store as a list: every state it was in, one for each write. It is
// for one caller, so that the order of the writes is known.
type model struct {
	states []map[string]txnstate.Record // after 0, 1, 2, ... writes
	// sure is the state that can't be lost: a Durable write has been answered.
	sure int
	// unsure: nobody knows of the last write whether it was done.
	unsure bool
	top    txnstate.Version // the highest that was given
}

func newModel() *model { return &model{states: []map[string]txnstate.Record{{}}} }

func (m *model) now() map[string]txnstate.Record { return m.states[len(m.states)-1] }

// wrote adds a write. err is what the store said of it; a write whose error says
// that nothing was changed is none.
func (m *model) wrote(id string, next *txnstate.Record, v txnstate.Version, d txnstate.Durability, err error) {
	state := maps.Clone(m.now())
	delete(state, id)
	if next != nil {
		r := next.Clone()
		r.Version = v // 0 where nobody knows
		state[id] = r
	}
	m.states = append(m.states, state)
	m.unsure = err != nil
	m.top = max(m.top, v)
	if err == nil && d == txnstate.Durable {
		m.sure = len(m.states) - 1
	}
}

// found looks which state the store is in, and goes on from it. It fails where
// that is none that a crash may leave.
func (m *model) found(got map[string]txnstate.Record) error {
	for i := len(m.states) - 1; i >= m.sure; i-- {
		if m.same(m.states[i], got) {
			m.states = append(m.states[:i:i], got)
			m.unsure = false
			for _, r := range got {
				m.top = max(m.top, r.Version)
			}
			return nil
		}
	}
	return fmt.Errorf("found %v,\nwhich is none of the states since the last that was sure: %v", got, m.states[m.sure:])
}

func (m *model) same(want, got map[string]txnstate.Record) bool {
	if len(want) != len(got) {
		return false
	}
	for id, w := range want {
		g, ok := got[id]
		if !ok || !g.Equal(w) || w.Version != 0 && g.Version != w.Version {
			return false
		}
		if w.Version == 0 && g.Version <= m.top {
			return false // a version that was given before
		}
	}
	return true
}

// contents is all that a store has, by Slot and by Load.
func contents(ctx context.Context, s txnstate.Store) (map[string]txnstate.Record, error) {
	got := map[string]txnstate.Record{}
	for slot := range txnstate.Slots {
		for r, err := range s.Slot(ctx, slot) {
			if err != nil {
				return nil, fmt.Errorf("Slot(%d): %w", slot, err)
			}
			if _, twice := got[r.TxnID]; twice {
				return nil, fmt.Errorf("Slot(%d) gives %q twice", slot, r.TxnID)
			}
			got[r.TxnID] = r
			l, err := s.Load(ctx, r.TxnID)
			if err != nil || !l.Equal(r) || l.Version != r.Version {
				return nil, fmt.Errorf("Slot gives %v and Load gives %v, %w", r, l, err)
			}
		}
	}
	return got, nil
}

// step is one call of a script, made by its number.
type step struct {
	id         string
	delete     bool
	durability txnstate.Durability
	size       int  // participants
	now        bool // by SwapNow, with Later
}

// do performs a step on the model's present record, and lets the model have it.
// It returns the store's error.
func (m *model) do(s *journal.Store, st step, n int) error {
	ctx := context.Background()
	now, ok := m.now()[st.id]
	if st.delete {
		if !ok {
			return nil
		}
		err := s.Delete(ctx, st.id, now.Version)
		m.wrote(st.id, nil, 0, txnstate.Durable, err)
		return err
	}
	next := idle(st.id)
	next.UpdateMs, next.Version = int64(n), now.Version
	if st.size > 0 {
		next.State = txnstate.Ongoing
		for i := range st.size {
			next.Participants = append(next.Participants, txnstate.Partition("orders", int32(i)))
		}
	}
	if st.now {
		// Where it did not do it, nobody knows, as with any error.
		v, done := s.SwapNow(next)
		var err error
		if !done {
			v, err = 0, txnstate.ErrUncertain
		} else if v <= m.top {
			return fmt.Errorf("version %d is given, and %d was before", v, m.top)
		}
		m.wrote(st.id, &next, v, txnstate.Later, err)
		return err
	}
	v, err := swap(ctx, s, next, st.durability, n)
	if err == nil && v <= m.top {
		return fmt.Errorf("version %d is given, and %d was before", v, m.top)
	}
	m.wrote(st.id, &next, v, st.durability, err)
	return err
}

// swap is Swap, or for every other Durable write SwapStart, which begins it.
func swap(ctx context.Context, s *journal.Store, next txnstate.Record, d txnstate.Durability, n int) (txnstate.Version, error) {
	if d == txnstate.Durable && n%2 == 0 {
		if v, p, ok := s.SwapStart(next); ok {
			<-p.Done()
			return v, p.Err()
		}
	}
	return s.Swap(ctx, next, d)
}

// wantContents holds a store against the model.
func (m *model) wantContents(t testing.TB, s *journal.Store, when string) {
	t.Helper()
	got, err := contents(context.Background(), s)
	if err == nil {
		err = m.found(got)
	}
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}
