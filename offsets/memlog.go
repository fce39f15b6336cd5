package offsets

import (
	"bytes"
	"context"
	"slices"
	"sync"
)

// MemLog is a Log in memory, for tests and for hosts that want to keep nothing.
// What was written survives as long as the value: a second Manager on it sees
// what the first wrote.
type MemLog struct {
	mu sync.Mutex
	m  map[int32][][]byte
}

var _ Log = (*MemLog)(nil)

// NewMemLog is an empty MemLog.
func NewMemLog() *MemLog { return &MemLog{m: map[int32][][]byte{}} }

// Append adds entries; see Log. It fails only when ctx is done.
func (l *MemLog) Append(ctx context.Context, partition int32, entries [][]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		l.m[partition] = append(l.m[partition], bytes.Clone(e))
	}
	return nil
}

// Replay shows the entries that are there when it begins; see Log.
func (l *MemLog) Replay(ctx context.Context, partition int32, f func(entry []byte) error) error {
	l.mu.Lock()
	entries := slices.Clone(l.m[partition])
	l.mu.Unlock()
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(bytes.Clone(e)); err != nil {
			return err
		}
	}
	return nil
}

// Rewrite replaces the entries of a partition; see Log.
func (l *MemLog) Rewrite(ctx context.Context, partition int32, entries [][]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m[partition] = nil
	for _, e := range entries {
		l.m[partition] = append(l.m[partition], bytes.Clone(e))
	}
	return nil
}
