package sim

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// world is what everything in a run shares: the seed, the time, the story.
type world struct {
	seed  uint64
	start time.Time
	calm  atomic.Bool // faults have stopped

	mu       sync.Mutex
	story    []string
	hash     uint64
	broken   []string // what the model complains of
	messages int      // requests that were sent
}

func newWorld(seed uint64) *world {
	return &world{seed: seed, start: time.Now(), hash: 14695981039346656037}
}

// dice are one stream of the seed's chance. Each actor has its own, so that a
// fault that is left out changes as little as possible of the rest.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (w *world) dice(format string, args ...any) *dice {
	h := fnv.New64a()
	fmt.Fprintf(h, format, args...)
	return &dice{r: rand.New(rand.NewPCG(w.seed, h.Sum64()))}
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) chance(p float64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.Float64() < p
}

// between is a duration between two, to the nanosecond: two that are drawn are
// hardly ever equal, so what happens first is the seed's choice.
func (d *dice) between(from, to time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return from + time.Duration(d.r.Int64N(int64(to-from)+1))
}

// skewed is a duration up to a bound, mostly a short one.
func (d *dice) skewed(to time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.r.Float64()
	return time.Duration(float64(to)*f*f*f*f) + time.Duration(d.r.Int64N(1000))
}

// sleep is a pause of simulated time, cut short by ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// log adds a line to the story. Its hash tells two runs of a seed apart.
func (w *world) log(who, format string, args ...any) {
	line := fmt.Sprintf("%12.6f %-10s %s", time.Since(w.start).Seconds(), who, fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range []byte(line) {
		w.hash = (w.hash ^ uint64(c)) * 1099511628211
	}
	w.story = append(w.story, line)
}

// fail records that something happened that must not.
func (w *world) fail(rule, format string, args ...any) {
	what := rule + ": " + fmt.Sprintf(format, args...)
	w.log("MODEL", "%s", what)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.broken) < 20 {
		w.broken = append(w.broken, what)
	}
}

// logger is what a broker says, in the story.
func (w *world) logger(who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(teller{w, who}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type teller struct {
	w   *world
	who string
}

func (t teller) Write(b []byte) (int, error) {
	t.w.log(t.who, "%s", bytes.TrimSpace(b))
	return len(b), nil
}
