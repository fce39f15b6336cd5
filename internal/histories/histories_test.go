package histories

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	seeds = flag.Uint64("seeds", 15, "histories of each kind")
	from  = flag.Uint64("from", 1, "the first seed")
)

// stores opens each kind of store on a file system. Opened again on the same one
// it is what the next process finds, or another process beside the first.
var stores = map[string]func(t testing.TB, fsys fsx.FS) (txnstate.Store, error){
	"journal": func(t testing.TB, fsys fsx.FS) (txnstate.Store, error) {
		s, err := journal.Open(journal.Config{Dir: "data/journal", FS: fsys, SnapshotAt: 34 << 10})
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
		return s, err
	},
	"slotfile": func(t testing.TB, fsys fsx.FS) (txnstate.Store, error) {
		s, err := slotfile.Open(slotfile.Config{Dir: "data", FS: fsys})
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
		return s, err
	},
}

func open(t testing.TB, kind string, fsys fsx.FS) txnstate.Store {
	t.Helper()
	if kind == "memstore" {
		return memstore.New()
	}
	s, err := stores[kind](t, fsys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFS(t testing.TB, seed uint64) *crashfs.FS {
	fsys := crashfs.New(seed)
	if err := fsx.MkdirSynced(fsys, "data", 0o755); err != nil {
		t.Fatal(err)
	}
	return fsys
}

func eachSeed(t *testing.T, f func(t *testing.T, seed uint64)) {
	for seed := *from; seed < *from+*seeds; seed++ {
		f(t, seed)
	}
}

// odds of a store that fails, overtakes, and can't say.
var odds = storetest.Odds{NotDone: 0.04, DoneUnsaid: 0.05, DoneLate: 0.04, Overtaken: 0.04}

// I3, I5, I6, I9, I11: the answers to callers of one coordinator are those of one
// record that one of them has at a time; with a store that fails too.
func TestTheAnswersOfACoordinatorAreLinearizable(t *testing.T) {
	for _, kind := range []string{"memstore", "journal", "slotfile"} {
		for _, faulty := range []bool{false, true} {
			name := kind
			if faulty {
				name += " that fails"
			}
			t.Run(name, func(t *testing.T) {
				calls, changed, unsure := 0, 0, 0
				eachSeed(t, func(t *testing.T, seed uint64) {
					w := newWorld(t, 2)
					s := open(t, kind, newFS(t, seed))
					w.fill(s)
					if faulty {
						s = storetest.NewFaulty(s, faults(seed))
					}
					c := w.own(s, 1)
					w.together(seed, 5, 24, c)
					c.stop()
					w.want(true, seed)
					calls += len(w.ops)
					unsure += w.unsure
					changed += w.changed
				})
				t.Logf("%d histories, %d calls, %d that changed something, %d writes of unknown outcome", *seeds, calls, changed, unsure)
				if faulty && unsure == 0 {
					t.Error("no write had an unknown outcome")
				}
			})
		}
	}
}

// faults spares the load at the start and flushes: there is nobody to answer.
func faults(seed uint64) func(storetest.Call) storetest.Fate {
	draw := storetest.Seeded(seed, odds)
	return func(c storetest.Call) storetest.Fate {
		if c.Method == storetest.MethodSlot || c.Method == storetest.MethodFlush {
			return storetest.Done
		}
		return draw(c)
	}
}

// I10: so they are where two coordinators on one directory both believe that
// they own the ids.
func TestTheAnswersOfTwoOwnersAreLinearizable_I10(t *testing.T) {
	for _, faulty := range []bool{false, true} {
		name := "slotfile"
		if faulty {
			name += " that fails"
		}
		t.Run(name, func(t *testing.T) {
			calls, changed, unsure := 0, 0, 0
			eachSeed(t, func(t *testing.T, seed uint64) {
				w := newWorld(t, 2)
				fsys := newFS(t, seed)
				a, b := open(t, "slotfile", fsys), open(t, "slotfile", fsys)
				w.fill(a)
				if faulty {
					a, b = storetest.NewFaulty(a, faults(seed)), storetest.NewFaulty(b, faults(seed+1))
				}
				c, d := w.own(a, 1), w.own(b, 2)
				w.together(seed, 6, 16, c, d)
				c.stop()
				d.stop()
				w.want(false, seed)
				calls += len(w.ops)
				unsure += w.unsure
				changed += w.changed
			})
			t.Logf("%d histories, %d calls, %d that changed something, %d writes of unknown outcome", *seeds, calls, changed, unsure)
		})
	}
}

// I1, I5, I7: and so they are where the power fails in the middle, and another
// process goes on with what it finds.
func TestTheAnswersAreLinearizableAcrossACrash(t *testing.T) {
	for kind := range stores {
		t.Run(kind, func(t *testing.T) {
			calls := 0
			eachSeed(t, func(t *testing.T, seed uint64) {
				rng := rand.New(rand.NewPCG(seed, 99))
				w := newWorld(t, 2)
				fsys := newFS(t, seed)
				s := open(t, kind, fsys)
				w.fill(s)
				for life := range int32(3) {
					c := w.own(s, life)
					fsys.CrashAt(fsys.Ops() + 20 + rng.IntN(200))
					w.together(seed*10+uint64(life), 4, 12, c)
					fsys.Crash()
					c.stop()
					w.crashed()
					next := fsys.Image(seed)
					if life == 1 {
						next = fsys.AfterKill()
					}
					fsys = next
					s = open(t, kind, fsys)
				}
				c := w.own(s, 3)
				w.together(seed, 3, 8, c)
				c.stop()
				w.want(false, seed)
				calls += len(w.ops)
			})
			t.Logf("%d histories with 3 crashes each, %d calls", *seeds, calls)
		})
	}
}

// crashed ends the calls that were cut off: what they have not done by now they
// never do.
func (w *world) crashed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := w.clock.Add(1)
	for i := range w.ops {
		if w.ops[i].Return > end {
			w.ops[i].Return = end
		}
	}
}

// wrong is a store with one mistake.
type wrong struct {
	txnstate.Store
	load func(ctx context.Context, s txnstate.Store, id string) (txnstate.Record, error)
	swap func(ctx context.Context, s txnstate.Store, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error)
}

func (s wrong) Load(ctx context.Context, id string) (txnstate.Record, error) {
	if s.load == nil {
		return s.Store.Load(ctx, id)
	}
	return s.load(ctx, s.Store, id)
}

func (s wrong) Swap(ctx context.Context, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
	if s.swap == nil {
		return s.Store.Swap(ctx, next, d)
	}
	return s.swap(ctx, s.Store, next, d)
}

// A check that finds nothing would show nothing, were it blind: stores that break
// their contract are found out by the answers of the coordinator alone.
func TestWrongStoresAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		owners int
		plant  func(rng *rand.Rand) wrong
	}{
		"two owners, and the later write wins": {2, func(*rand.Rand) wrong {
			return wrong{swap: func(ctx context.Context, s txnstate.Store, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
				now, err := s.Load(ctx, next.TxnID)
				if err != nil {
					return 0, err
				}
				next.Version = now.Version
				return s.Swap(ctx, next, d)
			}}
		}},
		"a write that is acknowledged and not done": {1, func(rng *rand.Rand) wrong {
			return wrong{swap: func(ctx context.Context, s txnstate.Store, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
				if d == txnstate.Durable && rng.IntN(8) == 0 {
					return next.Version, nil
				}
				return s.Swap(ctx, next, d)
			}}
		}},
		"a conflict is reported of a write that is done": {1, func(rng *rand.Rand) wrong {
			return wrong{swap: func(ctx context.Context, s txnstate.Store, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
				v, err := s.Swap(ctx, next, d)
				if d == txnstate.Durable && rng.IntN(8) == 0 {
					err = txnstate.ErrConflict
				}
				return v, err
			}}
		}},
		"a write of unknown outcome that happens after a look showed nothing": {1, func(rng *rand.Rand) wrong {
			var late *txnstate.Record
			var loads int
			w := wrong{}
			w.swap = func(ctx context.Context, s txnstate.Store, next txnstate.Record, d txnstate.Durability) (txnstate.Version, error) {
				if d == txnstate.Durable && late == nil && rng.IntN(6) == 0 {
					r := next.Clone()
					late, loads = &r, 3+rng.IntN(4)
					return 0, txnstate.ErrUncertain
				}
				return s.Swap(ctx, next, d)
			}
			w.load = func(ctx context.Context, s txnstate.Store, id string) (txnstate.Record, error) {
				rec, err := s.Load(ctx, id)
				if late != nil && late.TxnID == id {
					if loads--; loads == 0 {
						late.Version = rec.Version
						_, _ = s.Swap(ctx, *late, txnstate.Durable)
						late = nil
					}
				}
				return rec, err
			}
			return w
		}},
		"a look that is out of date": {1, func(rng *rand.Rand) wrong {
			old := map[string]txnstate.Record{}
			return wrong{load: func(ctx context.Context, s txnstate.Store, id string) (txnstate.Record, error) {
				rec, err := s.Load(ctx, id)
				if was, ok := old[id]; ok && rng.IntN(4) == 0 {
					return was, nil
				}
				old[id] = rec
				return rec, err
			}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 60; seed++ {
				w := newWorld(t, 1)
				var s txnstate.Store = memstore.New()
				w.fill(s)
				bad := c.plant(rand.New(rand.NewPCG(seed, 7)))
				bad.Store = s
				var owners []*owner
				for i := range c.owners {
					owners = append(owners, w.own(serial(bad), int32(i)))
				}
				w.together(seed, 4, 20, owners...)
				for _, o := range owners {
					o.stop()
				}
				if w.check(c.owners == 1, time.Second) == porcupine.Illegal {
					t.Logf("found in history %d", seed)
					return
				}
			}
			t.Error("not found in 60 histories")
		})
	}
}
