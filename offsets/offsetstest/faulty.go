package offsetstest

import (
	"context"
	"errors"
	"fmt"

	"github.com/kafkatxn/kafkatxn/offsets"
)

// Fate is what becomes of one call of a Faulty log.
type Fate uint8

const (
	Done    Fate = iota // as the log below does it
	Failed              // an error, and nothing was done
	Applied             // an error, although it was done
	First               // an error, and the first half of the entries were appended; a Rewrite or Replay just fails
	Hung                // nothing is done, and it does not return before ctx ends
)

func (f Fate) String() string {
	names := [...]string{"done", "failed", "applied", "first half", "hung"}
	if int(f) >= len(names) {
		return fmt.Sprintf("Fate(%d)", uint8(f))
	}
	return names[f]
}

// Op is a method of offsets.Log.
type Op string

const (
	OpAppend  Op = "append"
	OpReplay  Op = "replay"
	OpRewrite Op = "rewrite"
)

// ErrFault is what a Faulty log fails with.
var ErrFault = errors.New("injected fault")

// Faulty is a log whose calls meet a fate.
type Faulty struct {
	Log offsets.Log
	// Fate is asked before each call. Calls of it overlap where those of the log
	// do; nil is Done.
	Fate func(op Op, partition int32, entries [][]byte) Fate
}

var _ offsets.Log = (*Faulty)(nil)

func (f *Faulty) fate(op Op, partition int32, entries [][]byte) Fate {
	if f.Fate == nil {
		return Done
	}
	return f.Fate(op, partition, entries)
}

func fault(op Op) error { return fmt.Errorf("%s: %w", op, ErrFault) }

func (f *Faulty) do(ctx context.Context, op Op, fate Fate, perform func() error) error {
	switch fate {
	case Done:
		return perform()
	case Applied:
		if err := perform(); err != nil {
			return err
		}
	case Hung:
		<-ctx.Done()
		return ctx.Err()
	}
	return fault(op)
}

// Append adds entries, or not.
func (f *Faulty) Append(ctx context.Context, partition int32, entries [][]byte) error {
	fate := f.fate(OpAppend, partition, entries)
	if fate == First {
		if err := f.Log.Append(ctx, partition, entries[:len(entries)/2]); err != nil {
			return err
		}
	}
	return f.do(ctx, OpAppend, fate, func() error { return f.Log.Append(ctx, partition, entries) })
}

// Replay shows the entries, or fails.
func (f *Faulty) Replay(ctx context.Context, partition int32, g func(entry []byte) error) error {
	return f.do(ctx, OpReplay, f.fate(OpReplay, partition, nil), func() error { return f.Log.Replay(ctx, partition, g) })
}

// Rewrite replaces the entries, or not.
func (f *Faulty) Rewrite(ctx context.Context, partition int32, entries [][]byte) error {
	return f.do(ctx, OpRewrite, f.fate(OpRewrite, partition, entries), func() error { return f.Log.Rewrite(ctx, partition, entries) })
}
