package segment

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// put adds one entry and waits for it.
func (j *Segment) put(b string) error {
	_, r, err := j.Add([]byte(b))
	if err != nil {
		return err
	}
	return j.Wait(r)
}

// contents opens a segment and returns the rounds it holds.
func contents(t testing.TB, fsys fsx.FS, name string, fsync bool) (*Segment, []string, error) {
	t.Helper()
	var got []string
	j, err := Open(fsys, name, fsync, func(s Stored) error {
		got = append(got, string(s.Payload))
		return nil
	})
	return j, got, err
}

func TestASegmentHoldsWhatWasPutInIt(t *testing.T) {
	fsys := fsx.Mem()
	j, got, err := contents(t, fsys, "j", true)
	require.NoError(t, err)
	require.Empty(t, got)
	for _, s := range []string{"one", "", "three"} {
		require.NoError(t, j.put(s))
	}
	j.Close()
	require.ErrorIs(t, j.put("late"), ErrClosed)
	j, got, err = contents(t, fsys, "j", true)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "", "three"}, got)
	require.NoError(t, j.put("four"))
	j.Close()
	j, got, err = contents(t, fsys, "j", true)
	require.NoError(t, err)
	require.Len(t, got, 4)
	j.Close()
}

// While one round is being written, the callers that come meanwhile form the
// next: however many they are, they cost one write and one sync.
func TestCallersShareASync(t *testing.T) {
	var syncs atomic.Int32
	held := make(chan struct{})
	release := make(chan struct{})
	fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpSync && syncs.Add(1) == 1 {
			close(held)
			<-release
		}
		return nil
	})
	j, _, err := contents(t, fsys, "j", true)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, j.put("first")) })
	<-held
	var rounds []*Round
	for i := range 50 {
		_, r, err := j.Add([]byte(fmt.Sprint(i)))
		require.NoError(t, err)
		rounds = append(rounds, r)
	}
	for _, r := range rounds {
		wg.Go(func() { require.NoError(t, j.Wait(r)) })
	}
	close(release)
	wg.Wait()
	require.EqualValues(t, 2, syncs.Load())
	j.Close()
}

// A crash can tear the last round and nothing else: what is left of it is cut
// off, wherever it ends.
func TestATornTailIsCut(t *testing.T) {
	fsys := fsx.Mem()
	j, _, err := contents(t, fsys, "j", true)
	require.NoError(t, err)
	require.NoError(t, j.put("whole"))
	keep := j.tail
	require.NoError(t, j.put("the last round"))
	j.Close()
	full, err := fsys.ReadFile("j")
	require.NoError(t, err)
	for n := keep; n < int64(len(full)); n++ {
		for _, hole := range []bool{false, true} {
			b := slices.Clone(full)
			if hole {
				clear(b[n:]) // the length was written, and the bytes were not
			} else {
				b = b[:n]
			}
			require.NoError(t, fsys.Replace("torn", b, 0o644))
			j, got, err := contents(t, fsys, "torn", true)
			require.NoError(t, err, "cut at %d", n)
			require.Equal(t, []string{"whole"}, got)
			require.NoError(t, j.put("again"))
			j.Close()
			j, got, err = contents(t, fsys, "torn", true)
			require.NoError(t, err)
			require.Equal(t, []string{"whole", "again"}, got)
			j.Close()
		}
	}
}

// Damage before the last round was there undamaged once, and acknowledged: it is
// reported, with the file and the place, and the file stays as it is.
func TestDamageInTheMiddleIsRefused(t *testing.T) {
	fsys := fsx.Mem()
	j, _, err := contents(t, fsys, "j", true)
	require.NoError(t, err)
	var starts []int64
	for i := range 3 {
		starts = append(starts, j.tail)
		require.NoError(t, j.put(fmt.Sprint("round ", i)))
	}
	j.Close()
	full, err := fsys.ReadFile("j")
	require.NoError(t, err)
	for n := range starts[2] {
		b := slices.Clone(full)
		b[n] ^= 0x40
		require.NoError(t, fsys.Replace("bad", b, 0o644))
		_, _, err := contents(t, fsys, "bad", true)
		var damage *DamageError
		require.ErrorAs(t, err, &damage, "byte %d", n)
		want := starts[0]
		if n >= starts[1] {
			want = starts[1]
		}
		require.Equal(t, want, damage.offset)
		require.ErrorContains(t, err, fmt.Sprintf("bad is damaged at byte %d", want))
		now, err := fsys.ReadFile("bad")
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, now), "the file was changed")
	}
}

// Without syncs a loss of power can leave a later round and not an earlier one:
// the file then ends at the first that is missing.
func TestWithoutSyncsAHoleEndsTheFile(t *testing.T) {
	fsys := fsx.Mem()
	j, _, err := contents(t, fsys, "j", false)
	require.NoError(t, err)
	require.NoError(t, j.put("one"))
	hole := j.tail
	require.NoError(t, j.put("two"))
	require.NoError(t, j.put("three"))
	j.Close()
	b, err := fsys.ReadFile("j")
	require.NoError(t, err)
	b[hole+HeaderBytes] ^= 1
	require.NoError(t, fsys.Replace("j", b, 0o644))
	j, got, err := contents(t, fsys, "j", false)
	require.NoError(t, err)
	require.Equal(t, []string{"one"}, got)
	j.Close()
}

// A payload that holds a round's bytes is not taken for one: its position is
// another.
func TestARoundInsideAPayloadIsNotFound(t *testing.T) {
	fsys := fsx.Mem()
	j, _, err := contents(t, fsys, "inner", true)
	require.NoError(t, err)
	require.NoError(t, j.put("x"))
	j.Close()
	inner, err := fsys.ReadFile("inner")
	require.NoError(t, err)
	j, _, err = contents(t, fsys, "j", true)
	require.NoError(t, err)
	require.NoError(t, j.put(string(inner)+roundMagic))
	j.Close()
	b, err := fsys.ReadFile("j")
	require.NoError(t, err)
	b[len(b)-1] ^= 1
	require.NoError(t, fsys.Replace("j", b, 0o644))
	j, got, err := contents(t, fsys, "j", true)
	require.NoError(t, err)
	require.Empty(t, got)
	j.Close()
}

// After a write or sync that failed nobody knows what is on the disk: nobody is
// told yes any more, and nothing more is written.
func TestAFailedWriteEndsTheSegment(t *testing.T) {
	for _, bad := range []fsx.Op{fsx.OpOpenFile, fsx.OpSyncDir, fsx.OpWriteAt, fsx.OpSync} {
		t.Run(string(bad), func(t *testing.T) {
			broken := errors.New("the disk is broken")
			var fail atomic.Bool
			var writes atomic.Int32
			fsys := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
				if op == fsx.OpWriteAt {
					writes.Add(1)
				}
				if fail.Load() && op == bad {
					return broken
				}
				return nil
			})
			j := New(fsys, "j", true)
			if bad != fsx.OpOpenFile && bad != fsx.OpSyncDir {
				require.NoError(t, j.put("good"))
			}
			fail.Store(true)
			require.ErrorIs(t, j.put("bad"), broken)
			fail.Store(false)
			before := writes.Load()
			require.ErrorIs(t, j.put("after"), broken)
			require.Equal(t, before, writes.Load())
			j.Close()
		})
	}
}

// Whatever bytes a file has, opening it ends in a segment that works or in an
// error that names the file, and never changes what was good.
func TestAnyFileIsOpenedOrRefused(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fsys := fsx.Mem()
		j := New(fsys, "j", true)
		n := rapid.IntRange(0, 4).Draw(rt, "rounds")
		var put []string
		for i := range n {
			put = append(put, string(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(rt, fmt.Sprint("round", i))))
			if err := j.put(put[i]); err != nil {
				rt.Fatal(err)
			}
		}
		j.Close()
		b, err := fsys.ReadFile("j")
		if err != nil {
			b = nil
		}
		for range rapid.IntRange(0, 3).Draw(rt, "damages") {
			if len(b) > 0 {
				b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "by"))
			}
		}
		b = append(b, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(rt, "tail")...)
		if err := fsys.Replace("j", b, 0o644); err != nil {
			rt.Fatal(err)
		}
		j, got, err := contents(t, fsys, "j", true)
		if err != nil {
			var damage *DamageError
			if !errors.As(err, &damage) || damage.file != "j" {
				rt.Fatal(err)
			}
			return
		}
		if len(got) > len(put) || !slices.Equal(got, put[:len(got)]) {
			rt.Fatalf("put %q, found %q", put, got)
		}
		if err := j.put("more"); err != nil {
			rt.Fatal(err)
		}
		j.Close()
	})
}

// A sync fails, the process is killed, the next one goes on, and then the power
// fails: what the failed sync dropped was still shown to the next process, which
// would have gone on behind a hole.
func TestARoundWhoseSyncFailedIsMadeDurableByTheNextProcess(t *testing.T) {
	for seed := range uint64(20) {
		disk := crashfs.New(seed)
		require.NoError(t, disk.MkdirAll("d", 0o755))
		require.NoError(t, disk.SyncDir("."))
		j, _, err := contents(t, disk, "d/j", true)
		require.NoError(t, err)
		require.NoError(t, j.put("acknowledged"))
		disk.FailSync(0)
		require.Error(t, j.put("perhaps"))

		disk = disk.AfterKill()
		j, got, err := contents(t, disk, "d/j", true)
		require.NoError(t, err)
		want := append(got, "after")
		require.NoError(t, j.put("after"))

		disk.Crash()
		j, got, err = contents(t, disk.Image(seed), "d/j", true)
		require.NoError(t, err)
		require.Equal(t, want, got)
		j.Close()
	}
}

func TestASegmentThatIsNotThereIsEmpty(t *testing.T) {
	fsys := fsx.Mem()
	j, _, err := contents(t, fsys, "none", true)
	require.NoError(t, err)
	require.Error(t, j.ReadAt(make([]byte, 1), 0))
	j.Close()
	_, err = fsys.ReadFile("none")
	require.ErrorIs(t, err, os.ErrNotExist)
}
