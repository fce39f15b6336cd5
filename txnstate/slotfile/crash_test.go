package slotfile_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// slotState is what a slot holds: by id, the number that the record was written
// with.
type slotState map[string]int64

func (s slotState) with(id string, n int64) slotState {
	next := slotState{}
	for k, v := range s {
		next[k] = v
	}
	if next[id] = n; n < 0 {
		delete(next, id)
	}
	return next
}

func (s slotState) equal(o slotState) bool {
	if len(s) != len(o) {
		return false
	}
	for id, n := range s {
		if m, ok := o[id]; !ok || n != m {
			return false
		}
	}
	return true
}

// ledger is what a slot may look like after a crash: any state from the last
// that is known to be durable on, the one that was being written included.
type ledger struct {
	states  []slotState
	durable int
}

func (l *ledger) write(s slotState) { l.states = append(l.states, s) }
func (l *ledger) last() slotState   { return l.states[len(l.states)-1] }
func (l *ledger) sync()             { l.durable = len(l.states) - 1 }

func (l *ledger) check(t *testing.T, s txnstate.Store, what string) slotState {
	t.Helper()
	found := slotState{}
	for r, err := range s.Slot(t.Context(), 25) {
		require.NoError(t, err, what)
		require.NoError(t, txnstate.Check(r), what)
		found[r.TxnID] = r.UpdateMs
	}
	for _, may := range l.states[l.durable:] {
		if may.equal(found) {
			return found
		}
	}
	t.Fatalf("%s: the slot holds %v, and may hold one of %v", what, found, l.states[l.durable:])
	return nil
}

// work does a bit of everything to one slot, until it is done or the process has
// died, and writes down what it was told.
func work(s txnstate.Store, l *ledger) {
	ctx := context.Background()
	n := int64(0)
	versions := map[string]txnstate.Version{}
	swap := func(id string, d txnstate.Durability) bool {
		n++
		r := record(id, n)
		r.Version = versions[id]
		l.write(l.last().with(id, n))
		v, err := s.Swap(ctx, r, d)
		if err != nil {
			return false
		}
		versions[id] = v
		if d == txnstate.Durable {
			l.sync()
		}
		return true
	}
	remove := func(id string) bool {
		l.write(l.last().with(id, -1))
		if s.Delete(ctx, id, versions[id]) != nil {
			return false
		}
		l.sync()
		versions[id] = 0
		return true
	}
	flush := func() bool {
		if s.(txnstate.Flusher).Flush(ctx) != nil {
			return false
		}
		l.sync()
		return true
	}
	_ = swap(target, txnstate.Durable) && swap(neighbour, txnstate.Later) && swap(target, txnstate.Later) &&
		swap(third, txnstate.Durable) && remove(target) && swap(target, txnstate.Durable) &&
		swap(neighbour, txnstate.Later) && swap(neighbour, txnstate.Later) && flush() &&
		swap(third, txnstate.Later) && remove(neighbour) && swap(neighbour, txnstate.Later) &&
		swap(target, txnstate.Durable) && swap(target, txnstate.Later)
}

func openOn(fsys fsx.FS) (*slotfile.Store, error) {
	return slotfile.Open(slotfile.Config{Dir: "/cluster", FS: fsys})
}

// TestALossOfPowerAnywhereLosesNothingAcknowledged cuts the power before every
// operation of a process' life, looks at several images of the disk, and cuts it
// again before every operation of the next process' start.
func TestALossOfPowerAnywhereLosesNothingAcknowledged(t *testing.T) {
	const seeds = 4
	for k := 0; ; k++ {
		disk := crashfs.New(uint64(k))
		l := &ledger{states: []slotState{{}}}
		disk.CrashAt(k)
		if s, err := openOn(disk); err == nil {
			work(s, l)
			_ = s.Close()
		}
		at, crashed := disk.Crashed()
		for seed := range uint64(seeds) {
			what := fmt.Sprintf("power lost before operation %d, %s; image %d", k, at, seed)
			image := disk.Image(seed)
			wantInOrder(t, image, what)
			if k%16 == 7 && seed == 3 {
				crashTheNext(t, image, l, what)
			}
			s, err := openOn(image)
			require.NoError(t, err, what)
			goOn(t, s, l, l.check(t, s, what), what)
			require.NoError(t, s.Close(), what)
		}
		if !crashed {
			t.Logf("%d operations", k)
			return
		}
	}
}

// wantInOrder checks what the search for the newest generation rests on: they
// were removed in order, and none before it was written down that there were any.
func wantInOrder(t *testing.T, image fsx.FS, what string) {
	t.Helper()
	entries, err := image.ReadDir("/cluster/txn_state/.versions/slot-25")
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	require.NoError(t, err)
	var gens []int
	begun := false
	for _, e := range entries {
		begun = begun || e.Name() == "begun"
		if digits, ok := strings.CutSuffix(e.Name(), ".slot"); ok {
			n, err := strconv.Atoi(digits)
			require.NoError(t, err)
			gens = append(gens, n)
		}
	}
	for i, n := range gens {
		require.Equal(t, gens[0]+i, n, "%s: generations %v", what, gens)
	}
	require.True(t, begun || len(gens) == 0 || gens[0] == 2, "%s: generations %v without begun", what, gens)
}

// goOn writes to the slot as it was found, and checks that it works (I12).
func goOn(t *testing.T, s txnstate.Store, l *ledger, found slotState, what string) {
	t.Helper()
	after := &ledger{states: []slotState{found}}
	for _, id := range []string{target, neighbour} {
		require.NoError(t, bump(s, id, 5000), what)
		after.write(after.last().with(id, 5000))
		after.sync()
	}
	after.check(t, s, what)
}

func crashTheNext(t *testing.T, image *crashfs.FS, l *ledger, what string) {
	t.Helper()
	for j := 0; ; j++ {
		again := image.Image(1)
		again.CrashAt(j)
		after := &ledger{states: append([]slotState(nil), l.states...), durable: l.durable}
		if s, err := openOn(again); err == nil {
			if r, err := s.Load(t.Context(), target); err == nil || errors.Is(err, txnstate.ErrNotFound) {
				next := record(target, 7000)
				next.Version = r.Version
				// Whatever the start found, the write comes on top of it.
				for _, st := range l.states[l.durable:] {
					after.write(st.with(target, 7000))
				}
				if _, err := s.Swap(t.Context(), next, txnstate.Durable); err == nil {
					after.durable = len(l.states)
				}
			}
			_ = s.Close()
		}
		_, crashed := again.Crashed()
		for _, seed := range []uint64{0, 3} {
			s, err := openOn(again.Image(seed))
			require.NoError(t, err, what)
			after.check(t, s, fmt.Sprintf("%s; then again before operation %d; image %d", what, j, seed))
			require.NoError(t, s.Close())
		}
		if !crashed {
			return
		}
	}
}

// TestNothingIsShownThatCanStillVanish stops a writer before every operation of a
// write, lets another process look, and cuts the power: what the other was shown
// must be there. A reader that does not sync shows a generation whose writer had
// not come to it yet.
func TestNothingIsShownThatCanStillVanish(t *testing.T) {
	for _, sc := range scenes {
		for at := 0; ; at++ {
			disk := crashfs.New(uint64(at))
			sc.set(t, disk)
			var g gate
			stopped, wake := make(chan struct{}), make(chan struct{})
			slow, quick := open(t, fsx.Hook(disk, g.pass)), open(t, disk)
			r, _ := slow.Load(t.Context(), target)
			require.NoError(t, slow.Flush(t.Context()))
			g.arm(at, func() error {
				close(stopped)
				<-wake
				return nil
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				next := record(target, 1000)
				next.Version = r.Version
				_, _ = slow.Swap(context.Background(), next, txnstate.Durable)
				_ = slow.Flush(context.Background())
			}()
			select {
			case <-stopped:
			case <-done:
			}
			op, reached := g.where()
			seen, err := quick.Load(t.Context(), target)
			missing := errors.Is(err, txnstate.ErrNotFound)
			if !missing {
				require.NoError(t, err)
			}
			for seed := range uint64(6) {
				what := fmt.Sprintf("%s: writer stopped before operation %d, %s; image %d", sc.name, at, op, seed)
				s, err := openOn(disk.Image(seed))
				require.NoError(t, err, what)
				now, err := s.Load(t.Context(), target)
				if missing && errors.Is(err, txnstate.ErrNotFound) {
					continue
				}
				require.NoError(t, err, what)
				if now.Version == 1 {
					now.UpdateMs = seen.UpdateMs // the time of a file, which an image does not keep
				}
				if !missing && now.UpdateMs != 1000 {
					require.Equal(t, seen, now, what)
				}
				require.NoError(t, s.Close(), what)
			}
			close(wake)
			<-done
			require.NoError(t, slow.Close())
			require.NoError(t, quick.Close())
			if !reached {
				break
			}
		}
	}
}

// A file that was taken over need not have been synced by whoever wrote it (W21).
func TestATakenOverFileIsSyncedBeforeItIsShown(t *testing.T) {
	for seed := range uint64(6) {
		disk := crashfs.New(seed)
		_, err := openOn(disk)
		require.NoError(t, err)
		f, err := disk.OpenFile("/cluster/txn_state/slot-25.json", os.O_WRONLY|os.O_CREATE, 0o644)
		require.NoError(t, err)
		_, err = f.Write([]byte(`{"tx-ongoing":{"pid":102,"epoch":4}}`))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		s := open(t, disk)
		seen, err := s.Load(t.Context(), target)
		require.NoError(t, err)
		require.Equal(t, txnstate.Producer{ID: 102, Epoch: 4}, seen.Producer)
		require.NoError(t, s.Close())
		s = open(t, disk.Image(seed))
		now, err := s.Load(t.Context(), target)
		require.NoError(t, err, "image %d", seed)
		require.Equal(t, seen.Producer, now.Producer, "image %d", seed)
		require.NoError(t, s.Close())
	}
}

// TestAfterAFailedSyncNothingOfItIsTrusted fails each sync of a few writes. What
// a Load answers afterwards must survive a loss of power: the bytes and names that
// the sync was for may be gone although the next sync reports success.
func TestAfterAFailedSyncNothingOfItIsTrusted(t *testing.T) {
	for k := 0; ; k++ {
		disk := crashfs.New(uint64(k))
		s := open(t, disk)
		require.NoError(t, bump(s, target, 1))
		disk.FailSync(k)
		before := disk.Syncs()
		failed := 0
		for n := int64(2); n < 5; n++ {
			if err := bump(s, target, n); err != nil {
				require.ErrorIs(t, err, txnstate.ErrUncertain)
				failed++
			}
			seen, err := s.Load(t.Context(), target)
			require.NoError(t, err)
			for seed := range uint64(6) {
				what := fmt.Sprintf("sync %d failed; image %d", k, seed)
				next, err := openOn(disk.Image(seed))
				require.NoError(t, err, what)
				now, err := next.Load(t.Context(), target)
				require.NoError(t, err, what)
				require.Equal(t, seen, now, what)
				require.NoError(t, next.Close())
			}
		}
		did := disk.Syncs() - before
		disk.FailSync(-1)
		require.NoError(t, bump(s, target, 9))
		require.NoError(t, s.Close())
		if k >= did {
			require.Zero(t, failed)
			return
		}
	}
}

// TestAFullDiskIsToldAndForgotten: I11, I12.
func TestAFullDiskIsToldAndForgotten(t *testing.T) {
	disk := crashfs.New(1)
	s := open(t, disk)
	require.NoError(t, bump(s, target, 1))
	require.NoError(t, s.Flush(t.Context()))
	for room := range int64(700) {
		disk.Full(room)
		err := bump(s, target, 100+room)
		if err != nil {
			require.ErrorIs(t, err, txnstate.ErrUncertain)
		}
		require.NoError(t, s.Flush(t.Context()))
		r, lerr := s.Load(t.Context(), target)
		require.NoError(t, lerr)
		if err == nil {
			require.Equal(t, 100+room, r.UpdateMs)
		}
	}
	disk.Full(-1)
	require.NoError(t, bump(s, target, 2))
	require.NoError(t, s.Close())
}
