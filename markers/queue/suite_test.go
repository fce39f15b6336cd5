package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errKilled = errors.New("the process was killed")

// process is what a process sees of a disk, until it is killed.
type process struct {
	fsx.FS
	killed atomic.Bool
	ctx    context.Context
	cancel context.CancelFunc
	done   chan error
	ended  bool
}

func newProcess(t testing.TB, disk fsx.FS) *process {
	p := &process{done: make(chan error, 1)}
	t.Cleanup(func() { p.stop(t) })
	p.FS = fsx.Hook(disk, func(fsx.Op, string) error {
		if p.killed.Load() {
			return errKilled
		}
		return nil
	})
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

func (p *process) run(f func(context.Context) error) { go func() { p.done <- f(p.ctx) }() }

// kill is the death of the process: nothing that it does from now on has an effect.
func (p *process) kill() {
	p.killed.Store(true)
	p.cancel()
}

// stop is an orderly end.
func (p *process) stop(t testing.TB) {
	p.cancel()
	if p.ended {
		return
	}
	p.ended = true
	if err := <-p.done; err != nil {
		t.Error(err)
	}
}

func (p *process) sink(t testing.TB, cfg queue.SinkConfig) *queue.Sink {
	cfg.FS = p.FS
	s, err := queue.NewSink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.run(s.Run)
	synctest.Wait() // what was left behind is gone
	return s
}

func (p *process) receiver(t testing.TB, cfg queue.ReceiverConfig) *queue.Receiver {
	cfg.FS = p.FS
	r, err := queue.NewReceiver(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.run(r.Run)
	return r
}

// recorder keeps the entries that were ever there.
type recorder struct {
	mu      sync.Mutex
	entries map[string][]byte
}

func (r *recorder) watch(disk fsx.FS) fsx.FS {
	return fsx.HookAfter(disk, func(op fsx.Op, name string, err error) error {
		if op == fsx.OpRename && err == nil && strings.HasSuffix(name, ".entry") {
			if data, err := disk.ReadFile(name); err == nil {
				r.mu.Lock()
				r.entries[name] = data
				r.mu.Unlock()
			}
		}
		return err
	})
}

func harness(disk func(t testing.TB) (fsx.FS, string)) markerstest.Harness {
	return markerstest.Harness{Bubble: true, Open: func(t testing.TB, c *markerstest.Cluster) *markerstest.Transport {
		fsys, dir := disk(t)
		seen := &recorder{entries: map[string][]byte{}}
		sender := newProcess(t, seen.watch(fsys))
		receivers := map[markers.Target]*process{}
		start := func(id markers.Target) {
			receivers[id] = newProcess(t, fsys)
			receivers[id].receiver(t, queue.ReceiverConfig{Dir: dir, Self: id, Apply: c.Broker(id)})
		}
		start(1)
		start(2)
		cfg := queue.SinkConfig{Dir: dir, Self: 9, Straggle: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
		return &markerstest.Transport{
			Sink: sender.sink(t, cfg),
			RestartSender: func(t testing.TB) markers.Sink {
				sender.kill()
				sender = newProcess(t, seen.watch(fsys))
				return sender.sink(t, cfg)
			},
			StopReceiver:  func(_ testing.TB, id markers.Target) { receivers[id].kill() },
			StartReceiver: func(_ testing.TB, id markers.Target) { start(id) },
			Again: func(t testing.TB, id markers.Target) {
				seen.mu.Lock()
				defer seen.mu.Unlock()
				for name, data := range seen.entries {
					if filepath.Base(filepath.Dir(name)) != fmt.Sprintf("to-%d", id) {
						continue
					}
					if err := fsx.CreateSynced(fsys, name, data, 0o644); err != nil {
						t.Fatal(err)
					}
					for {
						if _, err := fsys.ReadFile(strings.TrimSuffix(name, ".entry") + ".ack"); err == nil {
							break
						}
						time.Sleep(100 * time.Millisecond)
					}
					if err := fsys.Remove(name); err != nil {
						t.Fatal(err)
					}
				}
			},
		}
	}}
}

func TestTheQueueKeepsTheContractOfSinks(t *testing.T) {
	t.Run("in memory", func(t *testing.T) {
		markerstest.Run(t, harness(func(testing.TB) (fsx.FS, string) { return fsx.Mem(), "shared" }))
	})
	t.Run("on files", func(t *testing.T) {
		markerstest.Run(t, harness(func(t testing.TB) (fsx.FS, string) { return fsx.OS(), t.TempDir() }))
	})
}
