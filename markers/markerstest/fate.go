package markerstest

import (
	"context"
	"sync"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Fate is what happens to one attempt to append a marker. apply appends it, if
// the leader's rules let it, and may be called once; what a Fate returns is what
// the leader answers. ctx ends with the request and with the broker's process.
type Fate func(ctx context.Context, apply func() error) error

// Refuse appends nothing and answers with a code.
func Refuse(code txnstate.Code) Fate {
	return func(context.Context, func() error) error {
		return code.Errorf("", "refused by the script")
	}
}

// Lose appends, and the leader's answer is that it does not know.
func Lose() Fate {
	return func(_ context.Context, apply func() error) error {
		if err := apply(); err != nil {
			return err
		}
		return txnstate.CodeRequestTimedOut.Errorf("", "appended, and nobody knows")
	}
}

// Hang is an append that takes its time.
type Hang struct {
	// Reached is closed when the attempt has arrived.
	Reached <-chan struct{}

	reached chan struct{}
	once    sync.Once
	release chan struct{}
	free    sync.Once
}

// NewHang is a Hang to make fates of.
func NewHang() *Hang {
	h := &Hang{reached: make(chan struct{}), release: make(chan struct{})}
	h.Reached = h.reached
	return h
}

// Release lets it go on, and all that come later pass.
func (h *Hang) Release() { h.free.Do(func() { close(h.release) }) }

func (h *Hang) wait(ctx context.Context) error {
	h.once.Do(func() { close(h.reached) })
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Before appends when released; where the request or the process ends first,
// nothing is appended.
func (h *Hang) Before() Fate {
	return func(ctx context.Context, apply func() error) error {
		if err := h.wait(ctx); err != nil {
			return err
		}
		return apply()
	}
}

// Deaf is Before for a leader that does not notice that a request has ended: it
// appends when released, however late, unless its process has died.
func (h *Hang) Deaf() Fate {
	return func(ctx context.Context, apply func() error) error {
		if err := h.wait(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		return apply()
	}
}

// After appends at once and answers when released.
func (h *Hang) After() Fate {
	return func(ctx context.Context, apply func() error) error {
		if err := apply(); err != nil {
			return err
		}
		return h.wait(ctx)
	}
}
