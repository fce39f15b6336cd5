package slotfile

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
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
	disk := fsx.Mem()
	writer := mustOpen(t, disk, nil)
	slow := &torn{FS: disk, rng: rand.New(rand.NewPCG(1, 1))}
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

	// The listing sees generation 3 and none of the others, which all went or
	// came while it was read.
	slow.next(func() {
		r = more(t, writer, r, 4)
		if err := errors.Join(writer.Flush(t.Context()), disk.Replace(genName(25, 3), []byte(three), 0o644)); err != nil {
			t.Error(err)
		}
	})
	got, err := reader.Load(t.Context(), "tx-ongoing")
	require.NoError(t, err)
	require.Equal(t, r, got)
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
	for gen := firstFile; gen < 14; gen++ {
		put(t, disk, d.file(gen), "x")
	}
	l, err := d.list()
	require.NoError(t, err)
	require.NoError(t, d.collect(l, 13))
	l, err = d.list()
	require.NoError(t, err)
	require.True(t, l.begun)
	require.Equal(t, []uint64{9, 10, 11, 12, 13}, l.gens, "the newest two, and a few that would cost a sync each")
	for range 3 { // each write removes one
		l, err = d.list()
		require.NoError(t, err)
		removed = nil
		require.NoError(t, d.collect(l, 13))
	}
	l, err = d.list()
	require.NoError(t, err)
	require.Equal(t, []uint64{12, 13}, l.gens)
	require.Equal(t, 10, total)
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
