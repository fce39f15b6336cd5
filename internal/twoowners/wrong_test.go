package twoowners

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
)

// blind writes whatever version is there.
type blind struct{ txnstate.Store }

func (b blind) Swap(ctx context.Context, r txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	now, err := b.Load(ctx, r.TxnID)
	r.Version = now.Version
	if err != nil {
		r.Version = 0
	}
	return b.Store.Swap(ctx, r, d)
}

// polite says that it has written where another came first.
type polite struct{ txnstate.Store }

func (p polite) Swap(ctx context.Context, r txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if v, err := p.Store.Swap(ctx, r, d); err == nil {
		return v, nil
	}
	return r.Version + 1, nil
}

// The search is worth something: with stores that don't compare it finds orders in
// which a transaction gets two outcomes, or an identity two holders.
func TestTheSearchFindsWhatAStoreThatDoesNotCompareLeadsTo(t *testing.T) {
	for name, store := range map[string]func() txnstate.Store{
		"blind":  func() txnstate.Store { return blind{memstore.New()} },
		"polite": func() txnstate.Store { return polite{memstore.New()} },
	} {
		for fight, want := range map[string]string{
			"a commit and an init, TV2": "I5",
			"a commit and an abort":     "I5",
			"two inits":                 "I6",
		} {
			t.Run(name+", "+fight, func(t *testing.T) {
				_, err := explore(t, func(t *testing.T, s *schedule) error {
					return overMemory(t, s, store(), plain, fights[fight]())
				})
				t.Log(err)
				require.ErrorContains(t, err, want)
			})
		}
	}
}
