package histories

import (
	"context"
	"runtime"
	"sync"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// serial lets a wrong store keep books without a lock of its own. Between a look
// and a write of one owner the other still gets its turn.
func serial(s wrong) txnstate.Store { return &serialised{wrong: s} }

type serialised struct {
	wrong
	mu sync.Mutex
}

func (s *serialised) Load(ctx context.Context, id string) (txnstate.Record, error) {
	s.mu.Lock()
	defer runtime.Gosched() // a good moment for another owner
	defer s.mu.Unlock()
	return s.wrong.Load(ctx, id)
}

func (s *serialised) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrong.Swap(ctx, next, d)
}
