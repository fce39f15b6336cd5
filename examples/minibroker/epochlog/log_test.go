package epochlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/examples/minibroker/segment"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// put appends one round.
func (l *Log) put(s string) error {
	_, r, err := l.Add([]byte(s))
	if err != nil {
		return err
	}
	return l.Wait(r)
}

func config(fsys fsx.FS) Config { return Config{Dir: "logs/p", FS: fsys, Fsync: true} }

// lead takes a log over and returns what is in it.
func lead(fsys fsx.FS) (*Log, []string, error) {
	if err := fsx.MkdirSynced(fsys, "logs", 0o755); err != nil {
		return nil, nil, err
	}
	var got []string
	l, err := TakeOver(context.Background(), config(fsys), func(r segment.Stored) error {
		got = append(got, string(r.Payload))
		return nil
	})
	return l, got, err
}

func mustLead(t testing.TB, fsys fsx.FS) (*Log, []string) {
	t.Helper()
	l, got, err := lead(fsys)
	require.NoError(t, err)
	return l, got
}

func TestTheNextLeaderFindsWhatWasAcknowledged(t *testing.T) {
	fsys := fsx.Mem()
	var want []string
	var before *Log
	for epoch := range int32(5) {
		l, got := mustLead(t, fsys)
		require.Equal(t, epoch, l.Epoch())
		require.Equal(t, want, got)
		if before != nil {
			require.ErrorIs(t, before.put("late"), ErrDeposed)
			require.ErrorIs(t, before.Check(), ErrDeposed)
			_, _, err := before.Add([]byte("later"))
			require.ErrorIs(t, err, ErrDeposed)
		}
		for i := range int(epoch) % 3 {
			require.NoError(t, l.put(fmt.Sprint(epoch, i)))
			want = append(want, fmt.Sprint(epoch, i))
		}
		require.NoError(t, l.Check())
		if before != nil {
			before.Close()
		}
		before = l
	}
	before.Close()
	require.ErrorIs(t, before.put("closed"), segment.ErrClosed)
}

// Places are those of one file, whatever segments there are.
func TestReadingGoesOverSegments(t *testing.T) {
	fsys := fsx.Mem()
	at := map[string]int64{}
	for _, s := range []string{"first", "", "second", "third"} {
		l, _ := mustLead(t, fsys)
		if s != "" {
			pos, r, err := l.Add([]byte(s))
			require.NoError(t, err)
			require.NoError(t, l.Wait(r))
			at[s] = pos
		}
		l.Close()
	}
	found := map[string]int64{}
	l, err := TakeOver(t.Context(), config(fsys), func(r segment.Stored) error {
		found[string(r.Payload)] = r.Pos
		return nil
	})
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, at, found)
	require.NoError(t, l.put("fourth"))
	for s, pos := range at {
		b := make([]byte, len(s))
		require.NoError(t, l.ReadAt(b, pos))
		require.Equal(t, s, string(b))
	}
	b := make([]byte, at["third"]+5+segment.HeaderBytes+6-at["first"])
	require.NoError(t, l.ReadAt(b, at["first"]))
	for s, pos := range at {
		require.Equal(t, s, string(b[pos-at["first"]:][:len(s)]))
	}
	require.Equal(t, "fourth", string(b[len(b)-6:]))
}

// sleeper is a file system whose caller stops before an operation until it is
// woken.
type sleeper struct {
	mu     sync.Mutex
	left   int // operations before it sleeps; -1: it does not
	asleep chan struct{}
	wake   chan struct{}
}

func newSleeper() *sleeper {
	return &sleeper{left: -1, asleep: make(chan struct{}), wake: make(chan struct{})}
}

func (s *sleeper) over(fsys fsx.FS) fsx.FS {
	return fsx.Hook(fsys, func(fsx.Op, string) error {
		s.mu.Lock()
		now := s.left == 0
		if s.left >= 0 {
			s.left--
		}
		s.mu.Unlock()
		if now {
			close(s.asleep)
			<-s.wake
		}
		return nil
	})
}

// during runs f, lets it sleep before its k-th operation, calls meanwhile, wakes
// it and returns its error. false where f has fewer operations.
func (s *sleeper) during(k int, f func() error, meanwhile func()) (err error, slept bool) {
	s.mu.Lock()
	s.left = k
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		err := f()
		s.mu.Lock()
		s.left = -1
		s.mu.Unlock()
		done <- err
	}()
	select {
	case err := <-done:
		return err, false
	case <-s.asleep:
	}
	meanwhile()
	close(s.wake)
	return <-done, true
}

// A leader that is stopped before any operation of an append, deposed, and woken:
// what it then acknowledges is what its successor has found. (I10)
func TestALeaderThatSleepsInAnAppend(t *testing.T) {
	for k := 0; ; k++ {
		fsys := fsx.Mem()
		s := newSleeper()
		old, _ := mustLead(t, s.over(fsys))
		require.NoError(t, old.put("a"))
		var got []string
		var next *Log
		err, slept := s.during(k, func() error { return old.put("b") }, func() {
			next, got = mustLead(t, fsys)
			require.NoError(t, next.put("c"))
		})
		if !slept {
			require.NoError(t, err)
			require.GreaterOrEqual(t, k, 4, "write, sync, and the looks")
			old.Close()
			return
		}
		require.Equal(t, "a", got[0])
		if err == nil {
			require.Equal(t, []string{"a", "b"}, got, "acknowledged after sleeping before operation %d", k)
		} else {
			require.ErrorIs(t, err, ErrDeposed)
		}
		require.ErrorIs(t, old.Check(), ErrDeposed)
		require.ErrorIs(t, old.put("d"), ErrDeposed)
		last, all := mustLead(t, fsys)
		require.Equal(t, append(got, "c"), all, "k %d", k)
		last.Close()
		next.Close()
		old.Close()
	}
}

// The same for an answer that writes nothing.
func TestALeaderThatSleepsInALook(t *testing.T) {
	for k := 0; ; k++ {
		fsys := fsx.Mem()
		s := newSleeper()
		old, _ := mustLead(t, s.over(fsys))
		err, slept := s.during(k, old.Check, func() {
			next, _ := mustLead(t, fsys)
			next.Close()
		})
		if !slept {
			require.NoError(t, err)
			return
		}
		if k == 0 {
			require.ErrorIs(t, err, ErrDeposed)
		}
		require.ErrorIs(t, old.Check(), ErrDeposed)
	}
}

// A successor that is stopped before any operation of its takeover, while another
// takes over and serves, and woken. It leads with everything, if it claims after
// that, or never leads; nothing acknowledged is lost, and nothing of it doubled.
func TestAClaimantThatSleeps(t *testing.T) {
	for _, served := range []int{0, 1, 2} { // epochs before
		for k := 0; ; k++ {
			fsys := fsx.Mem()
			var want []string
			var old *Log
			for i := range served {
				old, _ = mustLead(t, fsys)
				want = append(want, fmt.Sprint("round of ", i))
				require.NoError(t, old.put(want[i]))
			}
			s := newSleeper()
			var other, woken *Log
			var got []string
			err, slept := s.during(k, func() (err error) {
				woken, got, err = lead(s.over(fsys))
				return err
			}, func() {
				if old != nil && k%2 == 0 {
					if err := old.put("in between"); err == nil {
						want = append(want, "in between")
					} else {
						require.ErrorIs(t, err, ErrDeposed)
						// It is on the disk, and so it may be within the seal.
					}
				}
				var seen []string
				other, seen = mustLead(t, fsys)
				require.Subset(t, seen, want)
				want = seen
				require.NoError(t, other.put("other"))
				want = append(want, "other")
			})
			if !slept {
				require.NoError(t, err)
				require.Equal(t, want, got)
				break
			}
			if err != nil {
				require.ErrorIs(t, err, ErrDeposed, "k %d", k)
				require.NoError(t, other.put("and more"))
				want = append(want, "and more")
			} else if err := woken.put("woken"); err != nil {
				require.ErrorIs(t, err, ErrDeposed)
				require.NoError(t, other.put("and more"))
				want = append(want, "and more")
			} else {
				require.Equal(t, want, got, "k %d", k)
				want = append(want, "woken")
				require.ErrorIs(t, other.put("late"), ErrDeposed)
			}
			_, all := mustLead(t, fsys)
			require.Equal(t, want, all, "k %d", k)
		}
	}
}

// A leader that is stopped before any operation of a rewrite: the successor finds
// all of the old or all of the new, and what it appends is never overwritten.
func TestALeaderThatSleepsInARewrite(t *testing.T) {
	for k := 0; ; k++ {
		fsys := fsx.Mem()
		s := newSleeper()
		old, _ := mustLead(t, s.over(fsys))
		require.NoError(t, old.put("a"))
		require.NoError(t, old.put("b"))
		var got []string
		err, slept := s.during(k, func() error {
			next, err := old.Rewrite(t.Context(), []byte("ab"))
			if err == nil {
				err = next.put("later")
			}
			return err
		}, func() {
			var next *Log
			next, got = mustLead(t, fsys)
			require.NoError(t, next.put("c"))
		})
		if !slept {
			require.NoError(t, err)
			_, all := mustLead(t, fsys)
			require.Equal(t, []string{"ab", "later"}, all)
			return
		}
		head := strings.Join(got, "")
		require.Contains(t, []string{"ab", "ablater"}, head, "k %d", k)
		if err == nil {
			require.Equal(t, "ablater", head)
		}
		_, all := mustLead(t, fsys)
		require.Equal(t, append(got, "c"), all, "k %d", k)
	}
}

// Names stay long enough for sleepers, and not for ever; contents go at once.
func TestRewritesLeaveLittleBehind(t *testing.T) {
	fsys := fsx.Mem()
	l, _ := mustLead(t, fsys)
	for i := range 3 * keep {
		require.NoError(t, l.put(strings.Repeat("x", 1000)))
		next, err := l.Rewrite(t.Context(), []byte(fmt.Sprint(i)))
		require.NoError(t, err)
		require.Equal(t, l.Epoch()+1, next.Epoch())
		l = next
	}
	entries, err := fsys.ReadDir("logs/p")
	require.NoError(t, err)
	require.LessOrEqual(t, len(entries), 2*keep+2)
	sum := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		sum += info.Size()
	}
	require.Less(t, sum, int64(100*2*keep))
	require.NoError(t, l.put("more"))
	_, got := mustLead(t, fsys)
	require.Equal(t, []string{fmt.Sprint(3*keep - 1), "more"}, got)
}

// A listing from long ago: the epoch that follows from it is free again.
func TestAClaimAfterAListingOutOfDate(t *testing.T) {
	fsys := fsx.Mem()
	l, _ := mustLead(t, fsys)
	s := newSleeper()
	var got []string
	err, slept := s.during(3, func() (err error) { // after the listing
		_, got, err = lead(s.over(fsys))
		return err
	}, func() {
		for range 2 * keep {
			next, err := l.Rewrite(t.Context(), []byte("x"))
			require.NoError(t, err)
			l = next
		}
	})
	require.True(t, slept)
	require.ErrorIs(t, err, ErrDeposed)
	require.Empty(t, got)
	require.NoError(t, l.put("y"))
	_, all := mustLead(t, fsys)
	require.Equal(t, []string{"x", "y"}, all)
}

// A leader that sleeps while its epoch, and those after it, are removed.
func TestALeaderThatSleepsVeryLong(t *testing.T) {
	fsys := fsx.Mem()
	old, _ := mustLead(t, fsys)
	l, _ := mustLead(t, fsys)
	for range 2 * keep {
		next, err := l.Rewrite(t.Context(), []byte("x"))
		require.NoError(t, err)
		l = next
	}
	_, err := fsys.ReadFile(config(fsys).log(1))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, old.put("late"), ErrDeposed)
	_, err = fsys.ReadFile(config(fsys).log(0))
	require.ErrorIs(t, err, fs.ErrNotExist, "it does not come back")
}

func TestNobodyReadsPastASeal(t *testing.T) {
	fsys := fsx.Mem()
	old, _ := mustLead(t, fsys)
	require.NoError(t, old.put("a"))
	next, got := mustLead(t, fsys)
	require.Equal(t, []string{"a"}, got)
	require.ErrorIs(t, old.put("behind the seal"), ErrDeposed)
	require.NoError(t, next.put("b"))
	last, got := mustLead(t, fsys)
	require.Equal(t, []string{"a", "b"}, got)
	b := make([]byte, segment.HeaderBytes+1)
	require.NoError(t, last.ReadAt(b, segment.HeaderBytes+1))
	require.Equal(t, "b", string(b[segment.HeaderBytes:]), "what follows the first round is the second")
}

// The power fails before any operation of a story, and again before any operation
// of the takeover after it. What was acknowledged is there, once, in order.
func TestALossOfPowerAnywhere(t *testing.T) {
	ctx := context.Background()
	story := func(disk *crashfs.FS) (acked []string, last string) {
		step := func(l *Log, s string) bool {
			last = s
			if l.put(s) != nil {
				return false
			}
			acked, last = append(acked, s), ""
			return true
		}
		l, _, err := lead(disk)
		if err != nil || !step(l, "a") || !step(l, "b") {
			return
		}
		l, _, err = lead(disk) // the first is not told
		if err != nil || !step(l, "c") {
			return
		}
		if l, err = l.Rewrite(ctx, []byte("a"), []byte("b"), []byte("c")); err != nil || !step(l, "d") {
			return
		}
		if l, _, err = lead(disk); err == nil {
			step(l, "e")
		}
		return
	}
	check := func(disk *crashfs.FS, acked []string, last string, why string) {
		l, got, err := lead(disk)
		require.NoError(t, err, why)
		all, want := strings.Join(got, ""), strings.Join(acked, "")
		require.Contains(t, []string{want, want + last}, all, why)
		require.NoError(t, l.put("z"), why)
		l, got, err = lead(disk)
		require.NoError(t, err, why)
		require.Equal(t, all+"z", strings.Join(got, ""), why)
		l.Close()
	}
	for k := 0; ; k++ {
		disk := crashfs.New(1)
		disk.CrashAt(k)
		acked, last := story(disk)
		_, crashed := disk.Crashed()
		for seed := range uint64(5) {
			check(disk.Image(seed), acked, last, fmt.Sprintf("operation %d, image %d", k, seed))
		}
		check(disk.AfterKill(), acked, last, fmt.Sprintf("operation %d, killed", k))
		if k%5 == 0 {
			for j := 0; ; j++ {
				again := disk.Image(uint64(j) % 5)
				again.CrashAt(again.Ops() + j)
				_, _, err := lead(again)
				if _, crashed := again.Crashed(); !crashed {
					require.NoError(t, err)
					break
				}
				check(again.Image(uint64(j/5+k/5)%5), acked, last, fmt.Sprintf("operation %d, then %d of the takeover", k, j))
			}
		}
		if !crashed {
			return
		}
	}
}

// A sync that fails: the leader takes over from itself, and what it then finds is
// on the disk, although the first sync has dropped it.
func TestATakeoverAfterAFailedSync(t *testing.T) {
	for seed := range uint64(20) {
		disk := crashfs.New(seed)
		l, _ := mustLead(t, disk)
		require.NoError(t, l.put("a"))
		disk.FailSync(0)
		require.Error(t, l.put("b"))
		require.Error(t, l.put("c"), "the segment is not trusted any more")
		next, got := mustLead(t, disk)
		require.NoError(t, next.put("d"))
		_, after, err := lead(disk.Image(0))
		require.NoError(t, err)
		require.Equal(t, append(got, "d"), after)
	}
}

// A broker that fails on the way leaves an epoch behind, and nothing else.
func TestATakeoverThatFailsAtEveryOperation(t *testing.T) {
	for k := 0; ; k++ {
		mem := fsx.Mem()
		l, _ := mustLead(t, mem)
		require.NoError(t, l.put("a"))
		n := 0
		broken := errors.New("broken")
		_, _, err := lead(fsx.Hook(mem, func(op fsx.Op, name string) error {
			if n++; n-1 == k {
				return broken
			}
			return nil
		}))
		if n <= k {
			require.NoError(t, err)
			return
		}
		next, got := mustLead(t, mem)
		require.Equal(t, []string{"a"}, got)
		require.NoError(t, next.put("b"))
	}
}

func TestDamageIsNamedAndNothingIsServed(t *testing.T) {
	build := func() fsx.FS {
		fsys := fsx.Mem()
		for range 2 {
			l, _ := mustLead(t, fsys)
			for i := range 3 {
				require.NoError(t, l.put(fmt.Sprint("round", i)))
			}
		}
		return fsys
	}
	change := func(name string, f func([]byte) []byte) error {
		fsys := build()
		b, err := fsys.ReadFile("logs/p/" + name)
		require.NoError(t, err)
		require.NoError(t, fsys.Replace("logs/p/"+name, f(slices.Clone(b)), 0o644))
		_, _, err = lead(fsys)
		return err
	}
	flip := func(i int) func([]byte) []byte {
		return func(b []byte) []byte { b[i] ^= 1; return b }
	}
	require.NoError(t, change("0000000000.log", func(b []byte) []byte { return b }))
	require.ErrorContains(t, change("0000000000.seal", flip(11)), "0000000000.seal is damaged")
	require.ErrorContains(t, change("0000000000.seal", func(b []byte) []byte { return nil }), "0000000000.seal is damaged")
	require.ErrorContains(t, change("0000000000.log", flip(segment.HeaderBytes)), "0000000000.log is damaged at byte 0")
	require.ErrorContains(t, change("0000000000.log", func(b []byte) []byte { return b[:len(b)-1] }), "its seal says")
	require.ErrorContains(t, change("0000000001.log", flip(segment.HeaderBytes)), "0000000001.log is damaged at byte 0")
	require.NoError(t, change("0000000001.log", func(b []byte) []byte { return b[:len(b)-1] }), "a torn tail")
}

func TestTheTakeoverEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := TakeOver(ctx, config(fsx.Mem()), nil)
	require.ErrorIs(t, err, context.Canceled)
}

// Brokers that take a log from one another without end: every round that was
// acknowledged is there once.
func TestBrokersThatFightForALog(t *testing.T) {
	fsys := fsx.Mem()
	var mu sync.Mutex
	var acked []string
	var wg sync.WaitGroup
	for b := range 4 {
		wg.Go(func() {
			for n := range 30 {
				l, _, err := lead(fsys)
				if err != nil {
					if !errors.Is(err, ErrDeposed) {
						t.Error(err)
					}
					continue
				}
				for i := range 5 {
					s := fmt.Sprintf("%d/%d/%d", b, n, i)
					switch err := l.put(s); {
					case err == nil:
						mu.Lock()
						acked = append(acked, s)
						mu.Unlock()
					case !errors.Is(err, ErrDeposed):
						t.Error(err)
					}
				}
				l.Close()
			}
		})
	}
	wg.Wait()
	_, all := mustLead(t, fsys)
	require.Subset(t, all, acked)
	slices.Sort(all)
	require.Equal(t, len(all), len(slices.Compact(all)), "a round is there twice")
	t.Logf("%d rounds acknowledged, %d there", len(acked), len(all))
}
