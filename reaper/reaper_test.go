package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var bg = context.Background()

// desk remembers what it is asked and answers as the test says.
type desk struct {
	mu   sync.Mutex
	got  []string
	then func(id string) error
}

func (d *desk) ask(what, id string) error {
	d.mu.Lock()
	d.got = append(d.got, what+" "+id)
	d.mu.Unlock()
	if d.then != nil {
		return d.then(id)
	}
	return nil
}

func (d *desk) TimeOut(_ context.Context, id string, _ time.Time) error { return d.ask("time out", id) }
func (d *desk) Expire(_ context.Context, id string, _ time.Time) error  { return d.ask("expire", id) }

func (d *desk) asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.got...)
}

func at(ms int64) time.Time { return time.UnixMilli(ms) }

func TestOnlyWhatIsPastItsDeadlineIsReaped(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{}
	r.Set("a", 100, true)
	r.Set("b", 100, false)
	r.Set("c", 101, true)
	r.Set("d", -1, true)
	require.Zero(t, r.Reap(bg, d, at(100)), "strictly past, as Kafka's scan")
	require.Equal(t, 2, r.Reap(bg, d, at(101)))
	require.ElementsMatch(t, []string{"time out a", "expire b"}, d.got)
	require.Zero(t, r.Reap(bg, d, at(101)), "once, until the coordinator sets a deadline again")
	r.Set("a", 100, true)
	require.Equal(t, 2, r.Reap(bg, d, at(102)))
}

func TestADeadlineThatMovedIsTheOneThatCounts(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{}
	for i := range 1000 { // an id's life: open, decided, idle, open again
		r.Set("a", int64(1000+i), true)
		r.Set("a", -1, false)
		r.Set("a", int64(1_000_000+i), false)
	}
	r.Set("sooner", 500_000, false)
	r.Set("sooner", 10, true)
	require.Equal(t, 1, r.Reap(bg, d, at(5000)))
	require.Equal(t, []string{"time out sooner"}, d.got)
	require.Equal(t, 1, r.Reap(bg, d, at(1_001_000)))
	require.Equal(t, "expire a", d.got[1])
	require.Equal(t, 2, r.Len(), "known until the coordinator says that they are gone")
	r.Set("a", -1, false)
	r.Set("sooner", -1, false)
	require.Zero(t, r.Len())
}

func TestWhatFailsIsTriedAgainAtTheNextLook_F25(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{then: func(string) error { return errors.New("store is away") }}
	r.Set("a", 100, true)
	for i := range int64(3) {
		require.Equal(t, 1, r.Reap(bg, d, at(200+i)))
		require.Zero(t, r.Reap(bg, d, at(200+i)), "not twice in one look")
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	require.Zero(t, r.Reap(ctx, d, at(300)), "a look that is called off")
	d.then = nil
	require.Equal(t, 1, r.Reap(bg, d, at(301)), "loses nothing")
}

func TestAnIdOfASlotThatIsNotOursIsForgotten(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{then: func(string) error { return &txnstate.Error{Code: txnstate.CodeNotCoordinator} }}
	r.Set("a", 100, true)
	require.Equal(t, 1, r.Reap(bg, d, at(200)))
	require.Zero(t, r.Len())
}

func TestADeadlineSetWhileItIsBeingReapedIsKept(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{}
	d.then = func(id string) error {
		r.Set(id, 500, true) // the coordinator found it renewed
		return errors.New("and then failed")
	}
	r.Set("a", 100, true)
	require.Equal(t, 1, r.Reap(bg, d, at(200)))
	require.Zero(t, r.Reap(bg, d, at(201)))
	require.Equal(t, 1, r.Reap(bg, d, at(501)))
}

func TestRunLooksOnceAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, d := reaper.New(reaper.Config{Every: 10 * time.Second}), &desk{}
		r.Set("a", time.Now().Add(5*time.Second).UnixMilli(), true)
		ctx, cancel := context.WithCancel(bg)
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx, d) }()
		time.Sleep(10*time.Second - 1)
		synctest.Wait()
		require.Empty(t, d.asked())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, []string{"time out a"}, d.asked())
		cancel()
		require.NoError(t, <-done)
	})
}

// I13: as many at once as are allowed, and no more.
func TestALookIsBoundedInWhatItDoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reaper.New(reaper.Config{Parallel: 3})
		var mu sync.Mutex
		now, most := 0, 0
		d := &desk{}
		d.then = func(string) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
		for i := range 500 {
			r.Set(fmt.Sprint(i), 1, false)
		}
		require.Equal(t, 500, r.Reap(bg, d, at(10)))
		require.Zero(t, now, "a look ends behind all that it began")
		require.Equal(t, 3, most)
	})
}

// F25: a deadline that has moved back is looked at where it is now, to the
// millisecond, and one that was taken back is not kept.
func TestADeadlineThatMovedBackIsStrictToo(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{}
	r.Set("a", 50, true)
	r.Set("a", 100, true)
	r.Set("gone", 50, true)
	r.Set("gone", -1, false)
	require.Zero(t, r.Reap(bg, d, at(100)))
	require.Equal(t, 1, r.Len())
	require.Equal(t, 1, r.Reap(bg, d, at(101)))
}

// The slot comes back while its former owner's answer is on its way.
func TestADeadlineSetBeforeTheAnswerThatTheSlotIsLostIsKept_F25(t *testing.T) {
	r, d := reaper.New(reaper.Config{}), &desk{}
	d.then = func(id string) error {
		r.Set(id, 500, true)
		return &txnstate.Error{Code: txnstate.CodeNotCoordinator}
	}
	r.Set("a", 100, true)
	require.Equal(t, 1, r.Reap(bg, d, at(200)))
	require.Equal(t, 1, r.Len())
	r.Set("a", 700, true)
	require.Zero(t, r.Reap(bg, d, at(501)), "there is one deadline of an id")
	require.Equal(t, 1, r.Reap(bg, d, at(701)))
}

// hung answers when its context ends.
type hung struct{}

func (hung) TimeOut(ctx context.Context, _ string, _ time.Time) error { <-ctx.Done(); return ctx.Err() }
func (hung) Expire(ctx context.Context, _ string, _ time.Time) error  { <-ctx.Done(); return ctx.Err() }

// hangs is a coordinator that one id hangs at.
type hangs struct{ desk }

func (h *hangs) TimeOut(ctx context.Context, id string, now time.Time) error {
	err := h.desk.TimeOut(ctx, id, now)
	if id == "hangs" {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// An id that does not answer keeps no other, and is asked again.
func TestAnIdThatHangsKeepsNoOther_I12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reaper.New(reaper.Config{Every: 10 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		h, done := &hangs{}, make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Run(ctx, h)
		}()
		r.Set("hangs", time.Now().UnixMilli(), true)
		time.Sleep(15 * time.Second)
		r.Set("other", time.Now().UnixMilli(), true)
		time.Sleep(2 * time.Minute)
		require.Contains(t, h.asked(), "time out other")
		n := 0
		for _, what := range h.asked() {
			if what == "time out hangs" {
				n++
			}
		}
		require.Greater(t, n, 1)
		cancel()
		<-done
	})
}

func TestALookEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reaper.New(reaper.Config{})
		r.Set("a", 1, true)
		r.Set("b", 1, false)
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		r.Reap(ctx, hung{}, at(10))
		require.Equal(t, 2, r.Reap(bg, &desk{}, at(11)), "and loses nothing")
	})
}

func BenchmarkIdleTickWithAMillionIds(b *testing.B) {
	r, d := reaper.New(reaper.Config{}), &desk{}
	for i := range 1_000_000 {
		r.Set(fmt.Sprint(i), int64(1_000_000+i), false)
	}
	for b.Loop() {
		r.Reap(bg, d, at(1000))
	}
}

// A reaper keeps the deadlines that a coordinator tells it, and acts through
// the coordinator.
func ExampleReaper() {
	r := reaper.New(reaper.Config{})
	r.Set("orders-1", 1_000, true) // what a coordinator does after each change
	d := &desk{}
	r.Reap(bg, d, time.UnixMilli(900))
	fmt.Println(d.got)
	r.Reap(bg, d, time.UnixMilli(1_001))
	fmt.Println(d.got)
	// Output:
	// []
	// [time out orders-1]
}
