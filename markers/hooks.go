package markers

import (
	"context"
	"runtime/debug"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A hook of the host that panics costs the transaction it was called for, not
// the sender: markers of every other one go through the same goroutines (F12).
// The panic is logged with its stack, and what it was about is tried again.

func (d *Dispatcher) panicked(hook string, p any) {
	d.cfg.Logger.Error("a hook panicked, is tried again", "hook", hook, "panic", p, "stack", string(debug.Stack()))
}

// leader is LeaderResolver.Leader, and Unknown where that panics.
func (d *Dispatcher) leader(p txnstate.Participant) (to Target, s Standing) {
	defer func() {
		if r := recover(); r != nil {
			d.panicked("LeaderResolver.Leader", r)
			to, s = 0, Unknown
		}
	}()
	return d.cfg.Leaders.Leader(p)
}

// write is Sink.WriteMarkers. Where that panics each delivery is tried by
// itself, so that only the one that it is about has to come again.
func (d *Dispatcher) write(ctx context.Context, to Target, ds []Delivery) []Result {
	rs, ok := d.tryWrite(ctx, to, ds)
	if ok || len(ds) < 2 {
		return rs
	}
	rs = make([]Result, len(ds)) // Retry
	for i := range ds {
		if one, _ := d.tryWrite(ctx, to, ds[i:i+1]); len(one) > 0 {
			rs[i] = one[0]
		}
	}
	return rs
}

func (d *Dispatcher) tryWrite(ctx context.Context, to Target, ds []Delivery) (rs []Result, ok bool) {
	defer func() {
		if r := recover(); r != nil {
			d.panicked("Sink.WriteMarkers", r)
			rs, ok = nil, false
		}
	}()
	return d.cfg.Sink.WriteMarkers(ctx, to, ds), true
}

// stillOpen is OpenChecker.StillOpen, and "open" where that panics.
func (d *Dispatcher) stillOpen(ctx context.Context, asker OpenChecker, to Target, dl Delivery) (open bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			d.panicked("OpenChecker.StillOpen", r)
			open, err = true, nil
		}
	}()
	return asker.StillOpen(ctx, to, dl)
}
