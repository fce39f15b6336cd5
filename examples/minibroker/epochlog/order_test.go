package epochlog

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// A look that fails is no answer: neither that nobody has taken over, nor that
// somebody has, and a round is not acknowledged by it.
func TestALookThatFailsTellsNothing(t *testing.T) {
	mem := fsx.Mem()
	var fail atomic.Pointer[string]
	errLook := errors.New("no look")
	l, _ := mustLead(t, fsx.Hook(mem, func(op fsx.Op, name string) error {
		if f := fail.Load(); f != nil && op == fsx.OpExists && strings.HasSuffix(name, *f) {
			return errLook
		}
		return nil
	}))
	defer l.Close()
	for _, epoch := range []int32{1, 0} {
		name := logName(epoch)
		fail.Store(&name)
		require.ErrorIs(t, l.Check(), errLook)
		fail.Store(nil)
		require.NoError(t, l.Check())
	}
	name := logName(1)
	fail.Store(&name)
	require.ErrorIs(t, l.put("a"), errLook)
}

// A takeover that another one overtakes while it reads says so.
func TestATakeoverIsOvertakenWhileItReads(t *testing.T) {
	mem := fsx.Mem()
	l, _ := mustLead(t, mem)
	require.NoError(t, l.put("a"))
	_, err := TakeOver(t.Context(), config(mem), func(segment.Stored) error {
		next, _ := mustLead(t, mem)
		next.Close()
		return nil
	})
	require.ErrorIs(t, err, ErrDeposed)
	l.Close()
}

// Where a segment ends is settled once: by a loss of power too, whatever a deposed
// leader has written behind it.
func TestASealOutlastsALossOfPower(t *testing.T) {
	for image := range uint64(4) {
		disk := crashfs.New(image)
		l, _ := mustLead(t, disk)
		require.NoError(t, l.put("first"))
		next, got := mustLead(t, disk)
		require.Equal(t, []string{"first"}, got)
		require.ErrorIs(t, l.put("late"), ErrDeposed) // it is on the disk
		require.NoError(t, next.put("second"))
		after := disk.Image(image)
		last, got := mustLead(t, after)
		require.Equal(t, []string{"first", "second"}, got)
		last.Close()
		l.Close()
		next.Close()
	}
}

// Of two that seal a segment, and have measured differently, the first has said how
// long it is, for both.
func TestTheFirstSealCounts(t *testing.T) {
	mem := fsx.Mem()
	l, _ := mustLead(t, mem)
	require.NoError(t, l.put("first"))
	other := &Log{cfg: config(mem)}
	short, err := other.measure(0)
	require.NoError(t, err)
	_, r, err := l.Add([]byte("late"))
	require.NoError(t, err)
	claimed, _, err := claim(t.Context(), config(mem), -1)
	require.NoError(t, err)
	require.EqualValues(t, 1, claimed)
	require.ErrorIs(t, l.Wait(r), ErrDeposed)
	sealed := false
	hook := fsx.Hook(mem, func(op fsx.Op, name string) error {
		if op != fsx.OpLink || !strings.HasSuffix(name, sealName(0)) || sealed {
			return nil
		}
		sealed = true
		short.Check = short.check()
		raw := `{"length":` + strconv.FormatInt(short.Length, 10) + `,"check":"` + short.Check + `"}`
		return mem.Replace(name, []byte(raw), 0o644)
	})
	next, got := mustLead(t, hook)
	require.True(t, sealed)
	require.Equal(t, []string{"first"}, got)
	l.Close()
	next.Close()
}

// The seal of one segment is not another's.
func TestASealOfAnotherSegmentIsDamage(t *testing.T) {
	mem := fsx.Mem()
	for _, s := range []string{"a", "b", ""} {
		l, _ := mustLead(t, mem)
		if s != "" {
			require.NoError(t, l.put(s))
		}
		l.Close()
	}
	cfg := config(mem)
	b, err := mem.ReadFile(cfg.seal(0))
	require.NoError(t, err)
	require.NoError(t, mem.Replace(cfg.seal(1), b, 0o644))
	_, _, err = lead(mem)
	require.ErrorContains(t, err, "is damaged")
}

// The latest epoch is found from any that there was.
func TestLatestIsTheLatest(t *testing.T) {
	mem := fsx.Mem()
	known, err := Latest(config(mem), -1)
	require.NoError(t, err)
	require.EqualValues(t, -1, known)
	for epoch := range int32(4) {
		l, _ := mustLead(t, mem)
		l.Close()
		for from := int32(-1); from <= epoch; from++ {
			known, err := Latest(config(mem), from)
			require.NoError(t, err)
			require.Equal(t, epoch, known, "from %d", from)
		}
	}
}

// Names of epochs stay for long after a reset, so that who has slept with an old
// listing can claim none of them anew.
func TestNamesOfEpochsStayForLong(t *testing.T) {
	mem := fsx.Mem()
	l, _ := mustLead(t, mem)
	for range keep - 1 {
		require.NoError(t, l.put("x"))
		next, err := l.Rewrite(t.Context(), []byte("y"))
		require.NoError(t, err)
		l = next
	}
	l.Close()
	there, err := list(mem, "logs/p")
	require.NoError(t, err)
	require.Len(t, there, keep)
}
