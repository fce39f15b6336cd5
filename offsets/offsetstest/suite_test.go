package offsetstest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/stretchr/testify/require"
)

// memHarness tests a MemLog whose handles can be renewed and broken.
func memHarness(wrap func(offsets.Log) offsets.Log) Harness {
	type handle struct {
		offsets.Log
		mem    *offsets.MemLog
		faulty *Faulty
		fate   *[]Fate
	}
	open := func(mem *offsets.MemLog) offsets.Log {
		h := &handle{mem: mem, fate: &[]Fate{}}
		var mu sync.Mutex
		h.faulty = &Faulty{Log: mem, Fate: func(op Op, _ int32, _ [][]byte) Fate {
			mu.Lock()
			defer mu.Unlock()
			if op == OpReplay || len(*h.fate) == 0 {
				return Done
			}
			f := (*h.fate)[0]
			*h.fate = (*h.fate)[1:]
			return f
		}}
		h.Log = wrap(h.faulty)
		return h
	}
	fates := []Fate{Failed, Applied, First}
	n := 0
	return Harness{
		Open:   func(testing.TB) offsets.Log { return open(offsets.NewMemLog()) },
		Reopen: func(_ testing.TB, l offsets.Log) offsets.Log { return open(l.(*handle).mem) },
		Break: func(_ testing.TB, l offsets.Log) {
			h := l.(*handle)
			*h.fate = append(*h.fate, fates[n%len(fates)])
			n++
		},
	}
}

func TestMemLog(t *testing.T) {
	for range 3 { // every case with every fate
		Run(t, memHarness(func(l offsets.Log) offsets.Log { return l }))
	}
}

// fileHandle is a FileLog whose file system fails on demand.
type fileHandle struct {
	*offsets.FileLog
	dir  string
	fs   fsx.FS
	arm  *string // the operation that fails next
	once sync.Mutex
}

func openFile(t testing.TB, fs fsx.FS, dir string) *fileHandle {
	h := &fileHandle{dir: dir, fs: fs, arm: new(string)}
	l, err := offsets.OpenFileLog(dir, fsx.Hook(fs, func(op fsx.Op, _ string) error {
		h.once.Lock()
		defer h.once.Unlock()
		if *h.arm == string(op) {
			*h.arm = ""
			return errors.New("disk on fire")
		}
		return nil
	}))
	require.NoError(t, err)
	h.FileLog = l
	t.Cleanup(func() { _ = l.Close() })
	return h
}

func fileHarness(fs func() fsx.FS, dir func(testing.TB) string, broken fsx.Op) Harness {
	return Harness{
		Open: func(t testing.TB) offsets.Log { return openFile(t, fs(), dir(t)) },
		Reopen: func(t testing.TB, l offsets.Log) offsets.Log {
			h := l.(*fileHandle)
			require.NoError(t, h.Close()) // gives up the lock, as death does
			return openFile(t, h.fs, h.dir)
		},
		Break: func(_ testing.TB, l offsets.Log) {
			h := l.(*fileHandle)
			h.once.Lock()
			defer h.once.Unlock()
			*h.arm = string(broken)
		},
	}
}

func TestFileLog(t *testing.T) {
	for _, broken := range []fsx.Op{fsx.OpWriteAt, fsx.OpSync} {
		t.Run("in memory, broken "+string(broken), func(t *testing.T) {
			Run(t, fileHarness(fsx.Mem, func(testing.TB) string { return "dir/log" }, broken))
		})
	}
	t.Run("on disk", func(t *testing.T) {
		Run(t, fileHarness(fsx.OS, func(t testing.TB) string {
			return filepath.Join(t.TempDir(), "log")
		}, fsx.OpSync))
	})
}

// wrong is a log that does one thing wrong.
type wrong struct {
	offsets.Log
	appendTo func(next offsets.Log, p int32, es [][]byte) error
	replay   func(next offsets.Log, p int32, f func([]byte) error) error
	rewrite  func(next offsets.Log, p int32, es [][]byte) error
}

func (w *wrong) Append(ctx context.Context, p int32, es [][]byte) error {
	if w.appendTo != nil {
		return w.appendTo(w.Log, p, es)
	}
	return w.Log.Append(ctx, p, es)
}

func (w *wrong) Replay(ctx context.Context, p int32, f func([]byte) error) error {
	if w.replay != nil {
		return w.replay(w.Log, p, f)
	}
	return w.Log.Replay(ctx, p, f)
}

func (w *wrong) Rewrite(ctx context.Context, p int32, es [][]byte) error {
	if w.rewrite != nil {
		return w.rewrite(w.Log, p, es)
	}
	return w.Log.Rewrite(ctx, p, es)
}

// recorder is a testing.TB that notes a failure instead of failing.
type recorder struct {
	testing.TB
	failed bool
	said   string
}

func (r *recorder) Helper()        {}
func (r *recorder) Cleanup(func()) {}
func (r *recorder) Fatal(args ...any) {
	r.failed, r.said = true, fmt.Sprint(args...)
	runtime.Goexit()
}
func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// failing lists the cases that a harness fails.
func failing(t *testing.T, h Harness) []string {
	var out []string
	for _, c := range cases {
		r := &recorder{TB: t}
		var wg sync.WaitGroup
		wg.Go(func() { c.run(r, h) })
		wg.Wait()
		if r.failed {
			out = append(out, c.name)
		}
	}
	return out
}

// Every wrong log fails the case that is meant for it.
func TestWrongLogsAreCaught(t *testing.T) {
	entries := func(next offsets.Log, p int32) (all [][]byte) {
		_ = next.Replay(bg, p, func(e []byte) error { all = append(all, slices.Clone(e)); return nil })
		return all
	}
	for _, tc := range []struct {
		name string
		want string
		wrap func(next offsets.Log) offsets.Log
	}{
		{"newest first", "entries come back in order", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, replay: func(next offsets.Log, p int32, f func([]byte) error) error {
				for _, e := range slices.Backward(entries(next, p)) {
					if err := f(e); err != nil {
						return err
					}
				}
				return nil
			}}
		}},
		{"one partition for all", "partitions are apart", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next,
				appendTo: func(next offsets.Log, _ int32, es [][]byte) error { return next.Append(bg, 0, es) },
				replay:   func(next offsets.Log, _ int32, f func([]byte) error) error { return next.Replay(bg, 0, f) },
			}
		}},
		{"passes over empty entries", "odd entries come back as they are", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, replay: func(next offsets.Log, p int32, f func([]byte) error) error {
				return next.Replay(bg, p, func(e []byte) error {
					if len(e) == 0 {
						return nil
					}
					return f(e)
				})
			}}
		}},
		{"keeps the caller's slices", "the log keeps none of the slices it is given", func(offsets.Log) offsets.Log {
			var mu sync.Mutex
			kept := map[int32][][]byte{}
			return &wrong{
				Log: offsets.NewMemLog(),
				appendTo: func(_ offsets.Log, p int32, es [][]byte) error {
					mu.Lock()
					defer mu.Unlock()
					kept[p] = append(kept[p], es...)
					return nil
				},
				rewrite: func(_ offsets.Log, p int32, es [][]byte) error {
					mu.Lock()
					defer mu.Unlock()
					kept[p] = es
					return nil
				},
				replay: func(_ offsets.Log, p int32, f func([]byte) error) error {
					mu.Lock()
					es := kept[p]
					mu.Unlock()
					for _, e := range es {
						if err := f(e); err != nil {
							return err
						}
					}
					return nil
				},
			}
		}},
		{"swallows the error of f", "an error of f ends Replay and is returned", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, replay: func(next offsets.Log, p int32, f func([]byte) error) error {
				_ = next.Replay(bg, p, f)
				return nil
			}}
		}},
		{"goes on after the error of f", "an error of f ends Replay and is returned", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, replay: func(next offsets.Log, p int32, f func([]byte) error) error {
				var first error
				_ = next.Replay(bg, p, func(e []byte) error {
					if err := f(e); err != nil && first == nil {
						first = err
					}
					return nil
				})
				return first
			}}
		}},
		{"rewrites by appending", "Rewrite replaces all of its partition and nothing else", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, rewrite: func(next offsets.Log, p int32, es [][]byte) error { return next.Append(bg, p, es) }}
		}},
		{"rewrites every partition", "Rewrite replaces all of its partition and nothing else", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, rewrite: func(next offsets.Log, p int32, es [][]byte) error {
				for other := range int32(50) {
					if other != p {
						_ = next.Rewrite(bg, other, nil)
					}
				}
				return next.Rewrite(bg, p, es)
			}}
		}},
		{"a rewrite of nothing is passed over", "Rewrite replaces all of its partition and nothing else", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, rewrite: func(next offsets.Log, p int32, es [][]byte) error {
				if len(es) == 0 {
					return nil
				}
				return next.Rewrite(bg, p, es)
			}}
		}},
		{"a rewrite that fails has emptied the partition", "after a failed Rewrite there are the old entries or the new", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, rewrite: func(next offsets.Log, p int32, es [][]byte) error {
				f := next.(*Faulty)
				if err := f.Rewrite(bg, p, es); err != nil {
					_ = f.Log.Rewrite(bg, p, es[:1])
					return err
				}
				return nil
			}}
		}},
		{"an append that fails leaves its last entry", "after a failed Append there are none, all or the first few", func(next offsets.Log) offsets.Log {
			return &wrong{Log: next, appendTo: func(next offsets.Log, p int32, es [][]byte) error {
				f := next.(*Faulty)
				before := entries(f.Log, p)
				if err := f.Append(bg, p, es); err != nil {
					_ = f.Log.Rewrite(bg, p, append(before, es[len(es)-1]))
					return err
				}
				return nil
			}}
		}},
		{"what failed is written with the next append", "what a Replay did not show after a failure never appears", func(next offsets.Log) offsets.Log {
			type held struct {
				p  int32
				es [][]byte
			}
			var mu sync.Mutex
			var late []held
			return &wrong{Log: next, appendTo: func(next offsets.Log, p int32, es [][]byte) error {
				mu.Lock()
				defer mu.Unlock()
				f := next.(*Faulty)
				before := entries(f.Log, p)
				if err := f.Append(bg, p, es); err != nil {
					_ = f.Log.Rewrite(bg, p, before)
					late = append(late, held{p, es})
					return err
				}
				for _, h := range late {
					_ = f.Log.Append(bg, h.p, h.es)
				}
				late = nil
				return nil
			}}
		}},
		{"a done ctx is answered with nil and nothing", "a ctx that is done: none, all or the first few are written", func(next offsets.Log) offsets.Log {
			return &nilOnDone{next}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Contains(t, failing(t, memHarness(tc.wrap)), tc.want)
		})
	}

	t.Run("forgets on reopening", func(t *testing.T) {
		h := memHarness(func(l offsets.Log) offsets.Log { return l })
		h.Reopen = func(t testing.TB, _ offsets.Log) offsets.Log { return h.Open(t) }
		require.Subset(t, failing(t, h), []string{"what was acknowledged survives reopening", "what was rewritten survives reopening"})
	})
	t.Run("nothing wrong", func(t *testing.T) {
		require.Empty(t, failing(t, memHarness(func(l offsets.Log) offsets.Log { return l })))
	})
}

// nilOnDone says yes when it was told not to go on.
type nilOnDone struct{ offsets.Log }

func (l *nilOnDone) Append(ctx context.Context, p int32, es [][]byte) error {
	if ctx.Err() != nil {
		return nil
	}
	return l.Log.Append(ctx, p, es)
}

// The fates of a Faulty log do what their names say.
func TestFaulty(t *testing.T) {
	var next Fate
	f := &Faulty{Log: offsets.NewMemLog(), Fate: func(op Op, _ int32, _ [][]byte) Fate {
		if op == OpReplay {
			return Done
		}
		return next
	}}
	es := [][]byte{entry("1"), entry("2")}
	for _, tc := range []struct {
		fate    Fate
		written []string
	}{{Failed, nil}, {Applied, []string{"1", "2"}}, {First, []string{"1"}}, {Done, []string{"1", "2"}}} {
		t.Run(tc.fate.String(), func(t *testing.T) {
			f.Log = offsets.NewMemLog()
			next = tc.fate
			err := f.Append(bg, 0, es)
			require.Equal(t, tc.fate != Done, errors.Is(err, ErrFault))
			require.Equal(t, tc.written, show(t, f, 0))
		})
	}
	next = Hung
	ctx, cancel := context.WithCancel(bg)
	cancel()
	require.ErrorIs(t, f.Rewrite(ctx, 0, es), context.Canceled)
	require.Equal(t, "Fate(9)", Fate(9).String())
	require.NoError(t, (&Faulty{Log: offsets.NewMemLog()}).Append(bg, 0, es))
}
