package twoowners

import (
	"context"
	"errors"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

var (
	everything = flag.Bool("everything", false, "interrupt all pairs of requests twice, whatever the time")
	slow       bool // with the race detector, which makes a run ten times as long
)

// fights are the pairs of requests that two owners get at the same time.
var fights = map[string]func() []*client{
	"a commit and an init, TV2": func() []*client {
		return []*client{{name: "commit", process: 0, ask: ending(true, txnstate.TV2)}, {name: "init", process: 1, ask: initialising}}
	},
	"a commit and an init, TV1": func() []*client {
		return []*client{{name: "commit", process: 0, ask: ending(true, txnstate.TV0)}, {name: "init", process: 1, ask: initialising}}
	},
	"a commit and an abort": func() []*client {
		return []*client{{name: "commit", process: 0, ask: ending(true, txnstate.TV2)}, {name: "abort", process: 1, ask: ending(false, txnstate.TV2)}}
	},
	"two inits": func() []*client {
		return []*client{{name: "init", process: 0, ask: initialising}, {name: "another init", process: 1, ask: initialising}}
	},
	"a commit and a timeout": func() []*client {
		return []*client{{name: "commit", process: 0, ask: ending(true, txnstate.TV2)}, {name: "timeout", process: 1, ask: timingOut}}
	},
}

func swap(t *testing.T, s txnstate.Store, r txnstate.Record) {
	_, err := s.Swap(context.Background(), r, txnstate.Durable)
	require.NoError(t, err)
}

// plain has each call of a store be a step.
func plain(s steps) txnstate.Store { return s }

func TestEveryInterleavingOfTwoOwnersLeavesOneOutcome_Memstore_I5_I6_I10(t *testing.T) {
	for name, clients := range fights {
		for how, wrap := range map[string]func(s steps) txnstate.Store{
			"swap":     plain,
			"swap now": func(s steps) txnstate.Store { return stepsNow{s} },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				all(t, func(t *testing.T, s *schedule) error { return overMemory(t, s, memstore.New(), wrap, clients()) })
			})
		}
	}
}

func overMemory(t *testing.T, s *schedule, store txnstate.Store, wrap func(s steps) txnstate.Store, clients []*client) error {
	swap(t, store, open())
	w := newWorld(t, []txnstate.Store{store, store}, wrap)
	return errors.Join(
		w.fight(s, -1, clients...),
		w.check(clients...),
		w.end(func() txnstate.Store { return store }))
}

// disk is a volume with the transaction on it.
func disk(t *testing.T) fsx.FS {
	fsys := fsx.Mem()
	s := slots(t, fsys)
	swap(t, s, open())
	require.NoError(t, s.Close())
	return fsys
}

func slots(t *testing.T, fsys fsx.FS) *slotfile.Store {
	s, err := slotfile.Open(slotfile.Config{Dir: "/cluster", FS: fsys})
	require.NoError(t, err)
	return s
}

// overFiles is two handles of one directory; under puts something below each.
func overFiles(t *testing.T, s *schedule, bound int, wrap func(s steps) txnstate.Store, under func(w *world, process int, fsys fsx.FS) fsx.FS, clients []*client) error {
	fsys := disk(t)
	w := &world{}
	var handles []*slotfile.Store
	var stores []txnstate.Store
	for i := range 2 {
		h := slots(t, under(w, i, fsys))
		handles, stores = append(handles, h), append(stores, h)
	}
	w.start(t, stores, wrap)
	return errors.Join(
		w.fight(s, bound, clients...),
		w.check(clients...),
		w.end(func() txnstate.Store {
			for _, h := range handles {
				require.NoError(t, h.Close())
			}
			return slots(t, fsys)
		}))
}

func TestEveryInterleavingOfTwoOwnersLeavesOneOutcome_Slotfile_I5_I6_I10(t *testing.T) {
	for name, clients := range fights {
		t.Run(name, func(t *testing.T) {
			all(t, func(t *testing.T, s *schedule) error {
				return overFiles(t, s, -1, plain, func(_ *world, _ int, fsys fsx.FS) fsx.FS { return fsys }, clients())
			})
		})
	}
}

// Below the store's calls: each operation of the file system is a step, and
// processes are interrupted at any two of them, one or both, to go on when the
// other one is done or interrupted too. Some pairs have so many operations that
// they are interrupted once, unless asked for.
func TestOwnersInterruptedAtAnyTwoOperationsLeaveOneOutcome_Slotfile_I5_I6_I10(t *testing.T) {
	for name, clients := range fights {
		t.Run(name, func(t *testing.T) {
			all(t, func(t *testing.T, s *schedule) error {
				bound := 2
				if !*everything && (testing.Short() || name == "two inits" || slow && name != "a commit and an init, TV1") {
					bound = 1
				}
				return overFiles(t, s, bound, func(s steps) txnstate.Store { return s.inner }, func(w *world, process int, fsys fsx.FS) fsx.FS {
					return fsx.Hook(fsys, func(op fsx.Op, _ string) error {
						w.sched.enter(process, string(op))
						return nil
					})
				}, clients())
			})
		})
	}
}
