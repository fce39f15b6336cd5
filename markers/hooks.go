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

// write is Sink.WriteMarkers, and nothing confirmed where that panics. What
// comes again comes each after a pause of its own, and so meets other company.
func (d *Dispatcher) write(ctx context.Context, to Target, ds []Delivery) (rs []Result) {
	defer func() {
		if r := recover(); r != nil {
			d.panicked("Sink.WriteMarkers", r)
			rs = nil
		}
	}()
	return d.cfg.Sink.WriteMarkers(ctx, to, ds)
}

// writeNow is Immediate.WriteNow, and nothing confirmed where that panics.
func (d *Dispatcher) writeNow(to Target, ds []Delivery) (rs []Result) {
	defer func() {
		if r := recover(); r != nil {
			d.panicked("Immediate.WriteNow", r)
			rs = nil
		}
	}()
	return d.now.WriteNow(to, ds)
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
