package slotfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// torn is a file system whose listings take time: while one is read, meanwhile
// happens. What was there before and after is in it, of the rest what rng chooses.
type torn struct {
	fsx.FS

	mu        sync.Mutex
	meanwhile func() // of the next listing
	rng       *rand.Rand
}

func (f *torn) next(meanwhile func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meanwhile = meanwhile
}

func (f *torn) ReadDir(name string) ([]fs.DirEntry, error) {
	before, err := f.FS.ReadDir(name)
	f.mu.Lock()
	do := f.meanwhile
	f.meanwhile = nil
	f.mu.Unlock()
	if err != nil || do == nil {
		return before, err
	}
	do()
	after, err := f.FS.ReadDir(name)
	if err != nil {
		return nil, err
	}
	has := func(es []fs.DirEntry, name string) bool {
		return slices.ContainsFunc(es, func(e fs.DirEntry) bool { return e.Name() == name })
	}
	var out []fs.DirEntry
	for _, e := range slices.Concat(before, after) {
		always := has(before, e.Name()) && has(after, e.Name())
		if !has(out, e.Name()) && (always || f.rng.IntN(2) == 0) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int {
		if a.Name() < b.Name() {
			return -1
		}
		return 1
	})
	return out, nil
}

// A listing is not one moment. A reader finds what was newest at one all the same,
// whatever others did during the listing, and whatever it knew before.
func TestAListingThatTakesTimeMisleadsNobody(t *testing.T) {
	for seed := range uint64(12) {
		for earlier := range 5 {
			for meanwhile := range 6 {
				disk := fsx.Mem()
				writer := mustOpen(t, disk, nil)
				slow := &torn{FS: disk, rng: rand.New(rand.NewPCG(seed, 1))}
				reader := mustOpen(t, slow, nil)
				r := swap(t, writer, idle("tx-ongoing", 0))
				if seed%2 == 0 {
					_, err := reader.Load(t.Context(), "tx-ongoing")
					require.NoError(t, err)
					require.NoError(t, reader.Flush(t.Context())) // it lists no more by itself
				}
				for range earlier {
					r.UpdateMs++
					r = swap(t, writer, r)
				}
				least := r.UpdateMs
				slow.next(func() { r = more(t, writer, r, meanwhile) })
				got, err := reader.Load(t.Context(), "tx-ongoing")
				require.NoError(t, err)
				require.GreaterOrEqual(t, got.UpdateMs, least, "what was stored when the Load began")
				got, err = reader.Load(t.Context(), "tx-ongoing")
				require.NoError(t, err)
				require.Equal(t, r, got)
			}
		}
	}
}

// more writes a record n times. It may be called by a goroutine of a store.
func more(t *testing.T, s *Store, r txnstate.Record, n int) txnstate.Record {
	for range n {
		r.UpdateMs++
		v, err := s.Swap(t.Context(), r, txnstate.Durable)
		if err != nil {
			t.Error(err)
		}
		r.Version = v
	}
	return r
}

// A generation that came back, linked by a writer that slept while its number was
// used and removed, is nobody's newest: not where a listing misses those above it,
// nor for a reader that knew it when it was.
func TestAGenerationThatCameBackIsNobodysNewest(t *testing.T) {
	for seed := range uint64(64) {
		disk := fsx.Mem()
		writer := mustOpen(t, disk, nil)
		slow := &torn{FS: disk, rng: rand.New(rand.NewPCG(seed, 1))}
		reader := mustOpen(t, slow, nil)
		r := swap(t, writer, idle("tx-ongoing", 1))
		r = swap(t, writer, r)
		_, err := reader.Load(t.Context(), "tx-ongoing") // knows generation 3
		require.NoError(t, err)
		require.NoError(t, reader.Flush(t.Context()))
		three := get(t, disk, genName(25, 3))
		r = more(t, writer, r, 4)
		require.NoError(t, writer.Flush(t.Context()))
		put(t, disk, genName(25, 3), three)

		// A listing that may see generation 3 and none of the others, which all
		// went or came while it was read.
		slow.next(func() {
			r = more(t, writer, r, 3)
			if err := errors.Join(writer.Flush(t.Context()), disk.Replace(genName(25, 3), []byte(three), 0o644)); err != nil {
				t.Error(err)
			}
		})
		got, err := reader.Load(t.Context(), "tx-ongoing")
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
}

// A generation is removed only when the removal of the one before it can no longer
// be undone by a loss of power, and the first only when it is written down that
// there were any: see slotDir.newest.
func TestGenerationsAreRemovedInOrder(t *testing.T) {
	var mu sync.Mutex
	var removed []string // since the directory was last synced
	total := 0
	disk := fsx.Mem()
	d := slotDir{path: "d"}
	require.NoError(t, disk.MkdirAll("d", 0o755))
	d.fs = fsx.Hook(disk, func(op fsx.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		switch op {
		case fsx.OpSyncDir:
			removed = nil
		case fsx.OpRemove:
			require.Empty(t, removed, "removed before %s, and not synced", name)
			removed = append(removed, name)
			total++
			for gen := firstFile; gen < 20; gen++ {
				if d.file(gen) == filepath.Clean(name) {
					break
				}
				_, err := disk.ReadFile(d.file(gen))
				require.ErrorIs(t, err, fs.ErrNotExist, "%s is removed before %d", name, gen)
			}
			_, err := disk.ReadFile("d/begun")
			require.NoError(t, err)
		}
		return nil
	})
	for gen := firstFile; gen < 20; gen++ {
		put(t, disk, d.file(gen), "x")
	}
	gens := func() listing {
		l, err := d.list()
		require.NoError(t, err)
		return l
	}
	state, err := d.collect(gens(), 19)
	require.NoError(t, err)
	require.True(t, gens().begun)
	require.Equal(t, []uint64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, gens().gens, "the newest two, and a few that would cost a sync each")
	require.Equal(t, tended{gen: 19, listed: 19, oldest: 10, begun: true}, state)
	for range 3 { // each write removes one
		removed = nil
		state, err = d.collect(gens(), 19)
		require.NoError(t, err)
	}
	for range 10 { // also where it goes by what others listed
		removed = nil
		state, err = d.collectOne(state, 19)
		require.NoError(t, err)
	}
	require.Equal(t, []uint64{18, 19}, gens().gens)
	require.Equal(t, 16, total)
}

// A listing serves several generations. None is removed before the temporary file
// of each writer is that could still link its number: of those that were making it
// when somebody else did.
func TestNoGenerationIsRemovedBeforeTheFilesOfItsSleepers(t *testing.T) {
	var mu sync.Mutex
	listings, removals := 0, 0
	disk := fsx.Mem()
	var d slotDir
	s := mustOpen(t, fsx.Hook(disk, func(op fsx.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if filepath.Base(name) == "slot-25" && op == fsx.OpReadDir {
			listings++
		}
		digits, ok := strings.CutSuffix(filepath.Base(name), fileSuffix)
		if op != fsx.OpRemove || !ok {
			return nil
		}
		removals++
		gen, _ := parse16(digits)
		l, err := d.list()
		for _, x := range l.scratch {
			if x.gen < gen {
				err = fmt.Errorf("%s is there, and generation %d is removed", x.name, gen)
			}
		}
		if err != nil {
			t.Error(err)
		}
		return nil
	}), nil)
	d = slotDir{disk, s.slots[25].dir.path}
	r := swap(t, s, idle("tx-ongoing", 1))
	require.NoError(t, s.Flush(t.Context()))
	mu.Lock()
	listings = 0
	mu.Unlock()
	const writes = 100
	for range writes {
		// Somebody who is about to link the next number, and sleeps.
		put(t, disk, d.scratch(tmpPrefix, s.slots[25].current().gen, "sleeper"), "half a gener")
		r = swap(t, s, r)
	}
	require.NoError(t, s.Close())
	l, err := d.list()
	require.NoError(t, err)
	require.LessOrEqual(t, len(l.gens), listEvery+3)
	require.Greater(t, removals, writes-listEvery-3)
	require.LessOrEqual(t, listings, writes/listEvery+5)
}

// What another process made in between is listed with.
func TestAListingServesOnlyGenerationsOfItsOwn(t *testing.T) {
	disk := fsx.Mem()
	one, two := mustOpen(t, disk, nil), mustOpen(t, disk, nil)
	r := swap(t, one, idle("tx-ongoing", 1))
	for range 12 {
		r = swap(t, one, r)
	}
	l := one.slots[25]
	require.NoError(t, one.Flush(t.Context()))
	require.False(t, l.tended.due(l.tended.gen+1))
	r = swap(t, two, r)
	require.True(t, l.tended.due(two.slots[25].current().gen+1))
	for range 40 { // in turns
		r = swap(t, one, r)
		r = swap(t, two, r)
		in, err := l.dir.list()
		require.NoError(t, err)
		require.LessOrEqual(t, len(in.gens), listEvery+4)
	}
	require.NoError(t, one.Close())
	require.NoError(t, two.Close())
}

// A generation is known to be the newest without a listing, and only that one.
func TestAGenerationStandsUntilTheNextOneIsMade(t *testing.T) {
	disk := fsx.Mem()
	d := slotDir{disk, "d"}
	require.NoError(t, disk.MkdirAll("d", 0o755))
	stands := func(gen uint64) bool {
		ok, err := d.stands(gen)
		require.NoError(t, err)
		return ok
	}
	require.False(t, stands(takenOver), "not told without a listing")
	put(t, disk, d.file(2), "x")
	require.False(t, stands(firstFile), "not told without a listing")
	put(t, disk, d.file(3), "x")
	require.True(t, stands(3))
	put(t, disk, d.file(4), "x")
	require.False(t, stands(3))
	require.True(t, stands(4))
	require.NoError(t, disk.Remove(d.file(2)))
	require.True(t, stands(4))
	// 4 was used long ago, and its number comes back.
	require.NoError(t, disk.Remove(d.file(3)))
	require.False(t, stands(4))
}

// After a sync of the directory failed, a later one that succeeds proves nothing
// for what the first was for. So a Load makes a generation that it can trust
// before it answers, and no more than a few where that fails too.
func TestAGenerationWhoseSyncFailedIsMadeAgain(t *testing.T) {
	var mu sync.Mutex
	failing := 0
	disk := fsx.Mem()
	fsys := fsx.Hook(disk, func(op fsx.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == fsx.OpSyncDir && filepath.Base(name) == "slot-25" && failing > 0 {
			failing--
			return fs.ErrInvalid
		}
		return nil
	})
	fail := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		failing = n
	}
	s := mustOpen(t, fsys, nil)
	r := swap(t, s, idle("tx-ongoing", 1)) // generation 2
	fail(1)
	r.UpdateMs = 2
	_, err := s.Swap(t.Context(), r, txnstate.Durable) // 3
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	got, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	require.EqualValues(t, 2, got.UpdateMs)
	l, err := s.slots[25].dir.list()
	require.NoError(t, err)
	require.EqualValues(t, 4, l.highest())

	fail(1000)
	for range 100 {
		_, err := s.Load(t.Context(), "tx-ongoing")
		require.NoError(t, err, "what was shown before is still trusted")
		_, err = s.Swap(t.Context(), got, txnstate.Durable)
		require.Error(t, err)
		if _, err = s.Load(t.Context(), "tx-ongoing"); err != nil {
			break
		}
	}
	for range 100 {
		_, err = s.Load(t.Context(), "tx-ongoing")
		require.Error(t, err)
		_, err = s.Swap(t.Context(), got, txnstate.Durable)
		require.Error(t, err)
	}
	l, err = s.slots[25].dir.list()
	require.NoError(t, err)
	require.LessOrEqual(t, l.highest(), uint64(4+maxUnsynced+2), "the disk is not filled")
	fail(0)
	got, err = s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	swap(t, s, got)
}

// What a process leaves behind that dies is tidied by the next one to use the
// slot, also what it was making of the newest generation; and the readable copy
// that it did not come to is made.
func TestLeftoversOfDeadProcessesAreTidied(t *testing.T) {
	disk := fsx.Mem()
	s := mustOpen(t, disk, nil)
	swap(t, s, swap(t, s, idle("tx-ongoing", 1)))
	require.NoError(t, s.Close())
	d := s.slots[25].dir
	for _, gen := range []uint64{takenOver, 2, 3} {
		put(t, disk, d.scratch(tmpPrefix, gen, "dead"), "half a gener")
		put(t, disk, d.scratch(copyPrefix, gen, "dead"), "half a co")
	}
	current := get(t, disk, slotName(25))
	put(t, disk, slotName(25), "an old one")
	s = mustOpen(t, disk, nil)
	_, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context()))
	require.Equal(t, current, get(t, disk, slotName(25)))
	l, err := d.list()
	require.NoError(t, err)
	require.Empty(t, l.scratch)
	require.Equal(t, []uint64{2, 3}, l.gens)
}

// What became of a claim may be known only some claims later. A Later write that
// a generation has taken in does not come back when that generation's sync failed,
// the next claim's link failed, and the one after that deletes the record: the id
// is then as it was before the Later write made it.
func TestALaterWriteThatWasTakenInDoesNotComeBack(t *testing.T) {
	var mu sync.Mutex
	failing := map[fsx.Op]bool{}
	fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if failing[op] && strings.Contains(name, "slot-25") {
			failing[op] = false
			return fs.ErrInvalid
		}
		return nil
	})
	fail := func(op fsx.Op) {
		mu.Lock()
		defer mu.Unlock()
		failing[op] = true
	}
	s := mustOpen(t, fsys, nil)
	swap(t, s, idle("pay-155", 1))
	made, err := s.Swap(t.Context(), idle("pay-104", 1), txnstate.Later)
	require.NoError(t, err)
	fail(fsx.OpSyncDir)
	_, err = s.Swap(t.Context(), idle("tx-ongoing", 1), txnstate.Durable)
	require.ErrorIs(t, err, txnstate.ErrUncertain)
	fail(fsx.OpLink)
	require.ErrorIs(t, s.Delete(t.Context(), "pay-104", made), txnstate.ErrUncertain)
	require.NoError(t, s.Delete(t.Context(), "pay-104", made))
	_, err = s.Load(t.Context(), "pay-104")
	require.ErrorIs(t, err, txnstate.ErrNotFound)
	require.NoError(t, s.Flush(t.Context()))
	_, err = s.Load(t.Context(), "pay-104")
	require.ErrorIs(t, err, txnstate.ErrNotFound)
}

// A Durable write may be done although its claim reported a failure. A Later write
// that looked before, and comes after, must look again: it is a second write from
// one version.
func TestALaterWriteLooksAgainAfterAClaimOfUnknownOutcome(t *testing.T) {
	var mu sync.Mutex
	fails := false
	fsys := fsx.HookAfter(fsx.Mem(), func(op fsx.Op, _ string, err error) error {
		mu.Lock()
		defer mu.Unlock()
		if op == fsx.OpLink && fails && err == nil {
			fails = false
			return fs.ErrInvalid
		}
		return err
	})
	s := mustOpen(t, fsys, nil)
	r := swap(t, s, idle("tx-ongoing", 1))
	l := s.slots[25]
	o := newOp(opLater, r.TxnID, r.Version)
	o.value = appendRecord(nil, idle("tx-ongoing", 2))
	first := true
	_, err := l.swapLater(t.Context(), o, func(ctx context.Context) error {
		err := l.fresh(ctx)
		if first {
			first = false
			mu.Lock()
			fails = true
			mu.Unlock()
			r.UpdateMs = 3
			_, err := s.Swap(ctx, r, txnstate.Durable)
			require.ErrorIs(t, err, txnstate.ErrUncertain)
		}
		return err
	})
	require.ErrorIs(t, err, txnstate.ErrConflict)
	got, err := s.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	require.EqualValues(t, 3, got.UpdateMs)
}
