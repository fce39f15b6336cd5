package storetest

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Started is a harness for the same stores by their ability txnstate.Starter:
// reads are LoadNow, and Durable writes SwapStart, where these can do it.
func Started(h Harness) Harness {
	wrap := func(t testing.TB, s txnstate.Store) txnstate.Store {
		st, ok := s.(txnstate.Starter)
		if !ok {
			t.Fatalf("%T is no txnstate.Starter", s)
		}
		if f, ok := s.(txnstate.Flusher); ok {
			return struct {
				*started
				txnstate.Flusher
			}{&started{s, st}, f}
		}
		return &started{s, st}
	}
	inner := func(s txnstate.Store) txnstate.Store { return s.(interface{ unwrap() txnstate.Store }).unwrap() }
	next := func(f func(testing.TB, txnstate.Store) txnstate.Store) func(testing.TB, txnstate.Store) txnstate.Store {
		if f == nil {
			return nil
		}
		return func(t testing.TB, s txnstate.Store) txnstate.Store { return wrap(t, f(t, inner(s))) }
	}
	out := h
	out.Open = func(t testing.TB) txnstate.Store { return wrap(t, h.Open(t)) }
	out.Reopen, out.Crash, out.Peer = next(h.Reopen), next(h.Crash), next(h.Peer)
	if h.Syncs != nil {
		out.Syncs = func(s txnstate.Store) int { return h.Syncs(inner(s)) }
	}
	if h.Stall != nil {
		out.Stall = func(t testing.TB, s txnstate.Store, id string) (<-chan struct{}, func()) {
			return h.Stall(t, inner(s), id)
		}
	}
	return out
}

// started is a store by what it can begin.
type started struct {
	s     txnstate.Store
	start txnstate.Starter
}

func (s *started) unwrap() txnstate.Store { return s.s }

func (s *started) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if r, ok := s.start.LoadNow(id); ok && ctx.Err() == nil {
		return r.Clone(), nil
	}
	return s.s.Load(ctx, id)
}

func (s *started) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if ctx.Err() != nil || d == txnstate.Later {
		return s.s.Swap(ctx, next, d)
	}
	v, p, ok := s.start.SwapStart(next.Clone())
	switch {
	case !ok:
		return s.s.Swap(ctx, next, d)
	case p == nil:
		return v, nil
	}
	select {
	case <-p.Done():
		if err := p.Err(); err != nil {
			return 0, err
		}
		return v, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", txnstate.ErrUncertain, ctx.Err())
	}
}

func (s *started) Delete(ctx context.Context, id string, old txnstate.Version) error {
	return s.s.Delete(ctx, id, old)
}

func (s *started) Slot(ctx context.Context, slot int) iter.Seq2[txnstate.Record, error] {
	return s.s.Slot(ctx, slot)
}
