package feed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/kafkatxn/kafkatxn/fence/feed"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errInjected = errors.New("injected")

// buffer is what a logger writes into.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func pr(id int64, epoch int16) txnstate.Producer { return txnstate.Producer{ID: id, Epoch: epoch} }

// run runs something until the end of the test, or stop.
func run(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func newWriter(t testing.TB, disk fsx.FS, tune func(*feed.WriterConfig)) (w *feed.Writer, stop func()) {
	t.Helper()
	cfg := feed.WriterConfig{Dir: "shared", Self: 3, FS: disk}
	if tune != nil {
		tune(&cfg)
	}
	w, err := feed.NewWriter(cfg)
	require.NoError(t, err)
	return w, run(t, w.Run)
}

func content(t testing.TB, disk fsx.FS) string {
	t.Helper()
	data, err := disk.ReadFile("shared/producer_fences/from-3.json")
	require.NoError(t, err)
	return string(data)
}

func TestAFenceIsInTheFileWhenItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		w, _ := newWriter(t, disk, nil)
		require.NoError(t, w.Fence(t.Context(), pr(102, 3)))
		require.Equal(t, `{"102":3}`, content(t, disk))
		require.NoError(t, w.Fence(t.Context(), pr(7, 1)))
		require.NoError(t, w.Fence(t.Context(), pr(102, 2)), "older: nothing changes")
		require.NoError(t, w.Fence(t.Context(), pr(102, 3)))
		require.NoError(t, w.Fence(t.Context(), txnstate.NoProducer))
		require.Equal(t, `{"102":3,"7":1}`, content(t, disk))
		require.NoError(t, w.Fence(t.Context(), pr(102, 4)))
		require.Equal(t, `{"7":1,"102":4}`, content(t, disk), "the longest known comes first")
	})
}

// W12: many fences are one write.
func TestFencesThatComeTogetherAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		writes := 0
		gate := make(chan struct{})
		disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpReplace {
				writes++
				<-gate
			}
			return nil
		})
		w, _ := newWriter(t, disk, nil)
		var all sync.WaitGroup
		for n := range int64(500) {
			all.Go(func() {
				if err := w.Fence(t.Context(), pr(n, int16(n%7))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(gate)
		all.Wait()
		require.LessOrEqual(t, writes, 3)
		require.Equal(t, 500, strings.Count(content(t, mem), ":"))
	})
}

func TestTheNextProcessKnowsWhatTheLastOneWrote_W13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		w, stop := newWriter(t, disk, nil)
		for _, p := range []txnstate.Producer{pr(1, 5), pr(2, 5), pr(3, 5)} {
			require.NoError(t, w.Fence(t.Context(), p))
		}
		stop()
		next, err := feed.NewWriter(feed.WriterConfig{Dir: "shared", Self: 3, FS: disk, Max: 4})
		require.NoError(t, err)
		early := make(chan error, 2)
		go func() { early <- next.Fence(t.Context(), pr(2, 4)) }() // before it has read the file
		go func() { early <- next.Fence(t.Context(), pr(4, 1)) }()
		synctest.Wait()
		run(t, next.Run)
		require.NoError(t, <-early)
		require.NoError(t, <-early)
		require.NoError(t, next.Fence(t.Context(), pr(3, 1)))
		require.NoError(t, next.Fence(t.Context(), pr(5, 1)))
		got := content(t, disk)
		require.NotContains(t, got, `"1":`, "there is one too many, and this is the oldest")
		for _, want := range []string{`"2":5`, `"3":5`, `"4":1`, `"5":1`} {
			require.Contains(t, got, want)
		}
	})
}

func TestTheNumberOfFencesIsBounded_I13_W12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		w, _ := newWriter(t, disk, func(c *feed.WriterConfig) { c.Max = 3 })
		for n := range int64(10) {
			require.NoError(t, w.Fence(t.Context(), pr(n, 1)))
			require.NoError(t, w.Fence(t.Context(), pr(0, int16(n+1))))
		}
		require.Equal(t, `{"8":1,"9":1,"0":10}`, content(t, disk), "the oldest are dropped, and one that is renewed is young")
	})
}

func TestOldFencesAreDropped_W12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		w, _ := newWriter(t, disk, nil)
		require.NoError(t, w.Fence(t.Context(), pr(1, 1)))
		time.Sleep(24 * time.Hour)
		require.NoError(t, w.Fence(t.Context(), pr(2, 1)))
		require.Equal(t, `{"1":1,"2":1}`, content(t, disk), "leaders may still know the producer")
		time.Sleep(28 * time.Hour)
		require.Equal(t, `{"2":1}`, content(t, disk))
		time.Sleep(48 * time.Hour)
		require.Equal(t, `{}`, content(t, disk))
	})
}

func TestADamagedFileOfTheOwnIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, log := fsx.Mem(), &buffer{}
		require.NoError(t, disk.MkdirAll("shared/producer_fences", 0o755))
		require.NoError(t, disk.Replace("shared/producer_fences/from-3.json", []byte(`{"102":`), 0o644))
		w, _ := newWriter(t, disk, func(c *feed.WriterConfig) { c.Logger = log.logger() })
		require.NoError(t, w.Fence(t.Context(), pr(1, 1)))
		require.Equal(t, `{"1":1}`, content(t, disk))
		aside, err := disk.ReadFile("shared/producer_fences/from-3.json.damaged")
		require.NoError(t, err)
		require.Equal(t, `{"102":`, string(aside))
		require.Contains(t, log.String(), "level=ERROR")
	})
}

func TestAFenceThatFailsIsWrittenLater(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpReplace, fsx.OpReadFile, fsx.OpSyncDir} {
		synctest.Test(t, func(t *testing.T) {
			mem, log := fsx.Mem(), &buffer{}
			var broken atomic.Bool
			broken.Store(true)
			disk := fsx.Hook(mem, func(o fsx.Op, _ string) error {
				if o == op && broken.Load() {
					return errInjected
				}
				return nil
			})
			w, _ := newWriter(t, disk, func(c *feed.WriterConfig) { c.Logger = log.logger() })
			require.ErrorIs(t, w.Fence(t.Context(), pr(1, 1)), errInjected)
			time.Sleep(time.Minute)
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "told of once in a row")
			broken.Store(false)
			time.Sleep(2 * time.Second)
			require.Equal(t, `{"1":1}`, content(t, mem))
			require.NoError(t, w.Fence(t.Context(), pr(1, 1)))
		})
	}
}

func TestAVolumeThatHangsHoldsUpACallerForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		gate := make(chan struct{})
		disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpReplace {
				<-gate
			}
			return nil
		})
		w, stop := newWriter(t, disk, nil)
		begun := time.Now()
		require.ErrorContains(t, w.Fence(t.Context(), pr(1, 1)), "written later")
		require.Equal(t, 5*time.Second, time.Since(begun))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, w.Fence(ctx, pr(2, 1)), context.DeadlineExceeded)
		close(gate)
		synctest.Wait()
		require.Equal(t, `{"1":1,"2":1}`, content(t, mem))
		stop()
		require.ErrorContains(t, w.Fence(t.Context(), pr(3, 1)), "ended")
		require.Error(t, w.Run(t.Context()))
	})
}

func TestTheEndWritesWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		var slow atomic.Bool
		disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpReplace && slow.Swap(false) {
				time.Sleep(time.Second)
			}
			return nil
		})
		w, stop := newWriter(t, disk, nil)
		slow.Store(true)
		done := make(chan error, 2)
		go func() { done <- w.Fence(t.Context(), pr(1, 1)) }()
		synctest.Wait()
		go func() { done <- w.Fence(t.Context(), pr(2, 1)) }()
		synctest.Wait()
		stop()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, `{"1":1,"2":1}`, content(t, mem))
	})
}

// W20, W21: what was answered is there after a loss of power at any operation, and
// the file is whole.
func TestAnsweredFencesSurviveALossOfPower(t *testing.T) {
	for k := 0; ; k++ {
		crashed := false
		for seed := range uint64(4) {
			synctest.Test(t, func(t *testing.T) {
				disk := crashfs.New(seed)
				disk.CrashAt(k)
				w, _ := newWriter(t, disk, nil)
				var answered []txnstate.Producer
				for n := range int64(4) {
					if w.Fence(t.Context(), pr(n%3, int16(n))) == nil {
						answered = append(answered, pr(n%3, int16(n)))
					}
				}
				_, crashed = disk.Crashed()
				next := disk.Image(seed)
				var got sync.Map
				r, err := feed.NewReader(feed.ReaderConfig{Dir: "shared", FS: next, Offer: func(p txnstate.Producer) { got.Store(p.ID, p.Epoch) }})
				require.NoError(t, err)
				run(t, r.Run)
				synctest.Wait()
				for _, p := range answered {
					epoch, _ := got.Load(p.ID)
					require.NotNil(t, epoch, "crash at %d, seed %d: %s is gone", k, seed, p)
					require.GreaterOrEqual(t, epoch, p.Epoch)
				}
				w2, _ := newWriter(t, next, nil)
				require.NoError(t, w2.Fence(t.Context(), pr(9, 9)), "and the next process goes on")
			})
		}
		if !crashed {
			require.Greater(t, k, 10)
			return
		}
	}
}

// I9: against a model, with restarts.
func TestFencesOnlyGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := fsx.Mem()
		model := map[int64]int16{}
		begin := func() (*feed.Writer, func()) {
			w, err := feed.NewWriter(feed.WriterConfig{Dir: "shared", Self: 3, FS: disk})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			return w, func() { cancel(); require.NoError(t, <-done) }
		}
		w, stop := begin()
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			if rapid.IntRange(0, 5).Draw(t, "what") == 0 {
				stop()
				w, stop = begin()
				continue
			}
			p := pr(rapid.Int64Range(0, 4).Draw(t, "id"), rapid.Int16Range(0, 5).Draw(t, "epoch"))
			require.NoError(t, w.Fence(context.Background(), p))
			model[p.ID] = max(model[p.ID], p.Epoch)
			data, err := disk.ReadFile("shared/producer_fences/from-3.json")
			require.NoError(t, err)
			require.Equal(t, len(model), strings.Count(string(data), ":"))
			for id, epoch := range model {
				require.Contains(t, string(data), fmt.Sprintf(`"%d":%d`, id, epoch))
			}
		}
		stop()
	})
}

func TestWriterConfigIsChecked(t *testing.T) {
	_, err := feed.NewWriter(feed.WriterConfig{Max: -1})
	require.ErrorContains(t, err, "Dir")
	require.ErrorContains(t, err, "negative")
	_, err = feed.NewWriter(feed.WriterConfig{Dir: "x", ProducerExpiry: 48 * time.Hour, Retain: 40 * time.Hour})
	require.ErrorContains(t, err, "Retain")
	_, err = feed.NewWriter(feed.WriterConfig{Dir: "x", ProducerExpiry: 7 * 24 * time.Hour})
	require.NoError(t, err)
}

// A fence below one that is being written is answered with that one, and not before:
// what it asks for is in the file then, and not yet.
func TestALowerFenceWaitsForTheHigherOneThatIsUnderWay_W13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
			if op == fsx.OpReplace {
				<-gate
			}
			return nil
		})
		w, _ := newWriter(t, disk, nil)
		answers := make(chan error, 3)
		for _, epoch := range []int16{5, 4, 5} {
			go func() { answers <- w.Fence(t.Context(), pr(7, epoch)) }()
			synctest.Wait()
		}
		require.Empty(t, answers, "nothing is durable")
		close(gate)
		for range 3 {
			require.NoError(t, <-answers)
		}
		require.Equal(t, `{"7":5}`, content(t, disk))
	})
}

// The bound drops none that somebody waits for, however many come at once: each is
// in the file when it is answered.
func TestNoFenceIsDroppedBeforeItIsWritten_I13_W12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
			if op == fsx.OpReplace {
				<-gate
			}
			return nil
		})
		w, _ := newWriter(t, disk, func(c *feed.WriterConfig) { c.Max = 2 })
		var all sync.WaitGroup
		for n := range int64(5) {
			all.Go(func() {
				if err := w.Fence(t.Context(), pr(n, 1)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(gate)
		all.Wait()
		got := content(t, disk)
		for n := range 5 {
			require.Contains(t, got, fmt.Sprintf(`"%d":1`, n))
		}
		require.NoError(t, w.Fence(t.Context(), pr(9, 1)))
		require.Equal(t, 2, strings.Count(content(t, disk), ":"), "then the bound holds again")
	})
}
