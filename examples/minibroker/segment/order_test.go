package segment

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// What is added while a round is being written is another round, in memory of its
// own.
func TestARoundBeingWrittenIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		held := make(chan struct{})
		var hold atomic.Bool
		j, _, err := contents(t, fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpWriteAt && hold.Load() {
				<-held
			}
			return nil
		}), "j", true)
		require.NoError(t, err)
		require.NoError(t, j.put("its memory is used again"))
		hold.Store(true)
		var failed atomic.Int32
		want := []string{"its memory is used again"}
		for _, s := range []string{"first", "again"} {
			want = append(want, s)
			go func() {
				if j.put(s) != nil {
					failed.Add(1)
				}
			}()
			synctest.Wait()
		}
		hold.Store(false)
		close(held)
		synctest.Wait()
		require.Zero(t, failed.Load())
		j.Close()
		j, got, err := contents(t, mem, "j", true)
		require.NoError(t, err)
		require.Equal(t, want, got)
		j.Close()
	})
}

// A reset is a round of its own, also where one waits to be written: what is in that
// one counts no more.
func TestAResetJoinsNoOtherRound(t *testing.T) {
	mem := fsx.Mem()
	j := New(mem, "j", true)
	_, a, err := j.Add([]byte("before"))
	require.NoError(t, err)
	_, b, err := j.Reset([]byte("after"))
	require.NoError(t, err)
	require.NoError(t, j.Wait(a))
	require.NoError(t, j.Wait(b))
	j.Close()
	var got []string
	j, err = Open(mem, "j", true, func(s Stored) error {
		got = append(got, fmt.Sprintf("%s %t", s.Payload, s.Reset))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"before false", "after true"}, got)
	j.Close()
}

// A later round is found wherever its header lies in what is searched for one.
func TestALaterRoundIsFoundAtAnyPlace(t *testing.T) {
	const window = 1 << 20
	for _, begin := range []int{window - HeaderBytes, window - HeaderBytes + 1, window - 9, window, window + 1} {
		mem := fsx.Mem()
		j := New(mem, "j", true)
		require.NoError(t, j.put(strings.Repeat("a", begin-HeaderBytes)))
		require.NoError(t, j.put("b"))
		j.Close()
		b, err := mem.ReadFile("j")
		require.NoError(t, err)
		b[HeaderBytes] ^= 1
		require.NoError(t, mem.Replace("j", b, 0o644))
		_, _, err = contents(t, mem, "j", true)
		var damage *DamageError
		require.ErrorAs(t, err, &damage, "a round that begins at byte %d", begin)
	}
}

// What was behind a torn round is gone for good, and does not come back when rounds
// have filled the hole.
func TestWhatWasCutDoesNotComeBack(t *testing.T) {
	mem := fsx.Mem()
	j := New(mem, "j", false) // so that rounds behind a hole are no damage
	for _, s := range []string{"a", "b", "c"} {
		require.NoError(t, j.put(s))
	}
	j.Close()
	b, err := mem.ReadFile("j")
	require.NoError(t, err)
	b[2*HeaderBytes+1] ^= 1 // the payload of the second
	require.NoError(t, mem.Replace("j", b, 0o644))
	j, got, err := contents(t, mem, "j", false)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, got)
	require.NoError(t, j.put("B"))
	j.Close()
	j, got, err = contents(t, mem, "j", false)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "B"}, got)
	j.Close()
}

// What a killed process has written and not synced is durable when the next one has
// read it.
func TestWhatIsReadStaysThroughALossOfPower(t *testing.T) {
	disk := crashfs.New(1)
	require.NoError(t, disk.MkdirAll("d", 0o755))
	require.NoError(t, disk.SyncDir("."))
	j, _, err := contents(t, disk, "d/j", true)
	require.NoError(t, err)
	require.NoError(t, j.put("acknowledged"))
	disk.CrashAt(disk.Ops() + 1) // the write is done, its sync is not
	require.ErrorIs(t, j.put("perhaps"), crashfs.ErrCrashed)
	disk = disk.AfterKill()
	j, got, err := contents(t, disk, "d/j", true)
	require.NoError(t, err)
	require.Equal(t, []string{"acknowledged", "perhaps"}, got)
	_, after, err := contents(t, disk.Image(0), "d/j", true)
	require.NoError(t, err)
	require.Equal(t, got, after)
	j.Close()
}

// A round that its reader can't take in ends the opening.
func TestARoundThatItsReaderRefusesEndsTheOpening(t *testing.T) {
	mem := fsx.Mem()
	j := New(mem, "j", true)
	require.NoError(t, j.put("a"))
	require.NoError(t, j.put("b"))
	j.Close()
	refusal := errors.New("refused")
	_, err := Open(mem, "j", true, func(s Stored) error {
		if string(s.Payload) == "a" {
			return refusal
		}
		return nil
	})
	require.ErrorIs(t, err, refusal)
}
