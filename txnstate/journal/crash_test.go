package journal_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// script has every kind of write, several snapshots on the way, an orderly
// restart, and records from a few bytes to some sectors.
func script() []step {
	var steps []step
	for i := range 26 {
		id := fmt.Sprintf("id-%d", i%5)
		switch {
		case i%7 == 6:
			steps = append(steps, step{id: id, delete: true})
		default:
			steps = append(steps, step{id: id, durability: txnstate.Durability(i%3 != 0), size: i % 4 * (1 + i%4*40)})
		}
	}
	return steps
}

const restartAt = 15

// run performs the script from an empty directory. It stops at the first error.
func run(fsys *crashfs.FS, m *model) (err error) {
	s, err := open(fsys)
	if err != nil {
		return err
	}
	defer func() {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for i, st := range script() {
		if i == restartAt {
			err := s.Close()
			s = nil
			if err != nil {
				return err
			}
			m.sure = len(m.states) - 1
			if s, err = open(fsys); err != nil {
				return err
			}
		}
		if err := m.do(s, st, i); err != nil {
			return err
		}
	}
	return nil
}

func open(fsys fsx.FS) (*journal.Store, error) {
	return journal.Open(journal.Config{Dir: dir, FS: fsys, SnapshotAt: 34 << 10})
}

func freshDisk(t testing.TB) *crashfs.FS {
	fsys := crashfs.New(1)
	require.NoError(t, fsx.MkdirSynced(fsys, "data", 0o755))
	return fsys.Image(0)
}

// I7 and I11 of the record store: whatever the operation before which the power
// fails, all that was acknowledged is there afterwards, and of the rest a part
// without gaps. So it is when the power fails again at any operation of opening.
func TestPowerFailsAtEveryOperation(t *testing.T) {
	t.Parallel()
	const seeds = 5
	for k := 0; ; k++ {
		m := newModel()
		fsys := freshDisk(t)
		fsys.CrashAt(k)
		err := run(fsys, m)
		at, crashed := fsys.Crashed()
		if !crashed {
			require.NoError(t, err)
			require.Greater(t, k, 80, "the script has more operations than that")
			return
		}
		for seed := range uint64(seeds) {
			when := fmt.Sprintf("power failed before operation %d (%s), seed %d", k, at, seed)
			// One more seed for each k, so that all of them together are many.
			image := func(f *crashfs.FS) *crashfs.FS {
				if seed >= 3 {
					return f.Image(seed + seeds*uint64(k))
				}
				return f.Image(seed)
			}
			wantRecovered(t, *m, image(fsys), when)
			if (k+int(seed))%8 != 0 {
				continue
			}
			for j := 0; ; j++ {
				disk := image(fsys)
				disk.CrashAt(j)
				s, err := open(disk)
				if err == nil {
					_ = s.Close() // it crashes in there perhaps
				}
				again, crashed := disk.Crashed()
				if !crashed {
					break
				}
				wantRecovered(t, *m, image(disk), fmt.Sprintf("%s, and again before operation %d of opening (%s)", when, j, again))
			}
		}
	}
}

// wantRecovered opens what a crash left, and wants what it answers to be durable.
func wantRecovered(t *testing.T, m model, disk *crashfs.FS, when string) {
	t.Helper()
	s, err := open(disk)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	m.wantContents(t, s, when)
	// It was answered, so it must not go again.
	m.sure = len(m.states) - 1
	next := disk.Image(0)
	s2, err := open(next)
	if err != nil {
		t.Fatalf("%s, and again at once: %v", when, err)
	}
	m.wantContents(t, s2, when+", and again at once")
	// Versions go on where no earlier one can be met, neither of what the crash took.
	if v, err := s.Swap(t.Context(), idle("another"), txnstate.Durable); err != nil || v <= m.top {
		t.Fatalf("%s, and the next version is %d (%v); %d was given before", when, v, err, m.top)
	}
	if err := m.do(s2, step{id: "id-0", durability: txnstate.Durable}, 1000); err != nil {
		t.Fatalf("%s, and the first write afterwards: %v", when, err)
	}
	m.wantContents(t, s2, when+", and one write later")
	_ = s.Close() // of another time line
	if err := s2.Close(); err != nil {
		t.Fatalf("%s, and closed: %v", when, err)
	}
}

// A process that is killed leaves bytes that can be read and are not on the
// disk. What the next one answers from them must be, before it answers.
func TestAProcessIsKilledAtEveryOperation(t *testing.T) {
	t.Parallel()
	for k := 0; ; k++ {
		m := newModel()
		fsys := freshDisk(t)
		fsys.CrashAt(k)
		err := run(fsys, m)
		at, crashed := fsys.Crashed()
		if !crashed {
			require.NoError(t, err)
			return
		}
		wantRecovered(t, *m, fsys.AfterKill(), fmt.Sprintf("killed before operation %d (%s)", k, at))
	}
}
