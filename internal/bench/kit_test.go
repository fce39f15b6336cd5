package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/pidalloc"
	"github.com/kafkatxn/kafkatxn/reaper"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// partitions is how many partitions the benchmarks' topic has; a transaction
// has three.
const partitions = 12

// leaders is a cluster of one broker and one topic. A marker is applied where it
// is counted: all but the log of a partition is there.
type leaders struct {
	parts [partitions]struct {
		mu      sync.Mutex
		applied int64
		last    txnstate.Producer
		_       [64]byte
	}
}

func (*leaders) Leader(txnstate.Participant) (markers.Target, markers.Standing) {
	return 0, markers.Known
}

// WriteNow implements markers.Immediate.
func (l *leaders) WriteNow(to markers.Target, ds []markers.Delivery) []markers.Result {
	return l.WriteMarkers(context.Background(), to, ds)
}

func (l *leaders) WriteMarkers(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	out := make([]markers.Result, len(ds))
	for i := range ds {
		p := &l.parts[ds[i].Participant.Index]
		p.mu.Lock()
		p.applied++
		p.last = ds[i].Producer
		p.mu.Unlock()
		out[i] = markers.Applied
	}
	return out
}

func (l *leaders) applied() (n int64) {
	for i := range l.parts {
		l.parts[i].mu.Lock()
		n += l.parts[i].applied
		l.parts[i].mu.Unlock()
	}
	return n
}

// rig is a coordinator with all that it works with.
type rig struct {
	*txnstate.Coordinator
	*leaders
	reaper *reaper.Reaper
	stop   func()
}

func start(tb testing.TB, store txnstate.Store) *rig { return startWith(tb, store, false) }

// startWith is start with a sink that has to be called by a goroutine of the
// target's, as one that waits for a disk or a network has.
func startWith(tb testing.TB, store txnstate.Store, calls bool) *rig {
	r := &rig{leaders: &leaders{}, reaper: reaper.New(reaper.Config{})}
	var sink markers.Sink = r.leaders
	if calls {
		sink = struct{ markers.Sink }{sink}
	}
	d, err := markers.NewDispatcher(markers.Config{Leaders: r.leaders, Sink: sink})
	require.NoError(tb, err)
	r.Coordinator, err = txnstate.New(txnstate.Config{
		Store: store, ProducerIDs: pidalloc.Memory(0), Dispatcher: d, Deadlines: r.reaper,
		EndWait: txnstate.AnswerWhenApplied, Limits: txnstate.Limits{TransactionalIDs: -1},
	})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.Run(ctx); err != nil {
			tb.Error(err)
		}
	})
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			tb.Error(err)
		}
	})
	<-r.Ready()
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	tb.Cleanup(r.stop)
	return r
}

func name(i int) string { return fmt.Sprintf("payments-service-%07d", i) }

// session is one producer that commits one transaction after another.
type session struct {
	id string
	p  txnstate.Producer
	ps [3]txnstate.Participant
	n  int32
}

func (r *rig) session(tb testing.TB, i int) *session {
	s := &session{id: name(i), n: int32(i)}
	var err error
	s.p, err = r.Init(context.Background(), s.id, txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
	require.NoError(tb, err)
	return s
}

// commit opens a transaction of three partitions and commits it; when it returns
// every partition has its marker and the record is complete.
func (r *rig) commit(ctx context.Context, s *session) error {
	s.n++
	for k := range s.ps {
		s.ps[k] = txnstate.Partition("bench", (s.n+int32(k))%partitions)
	}
	if err := r.Add(ctx, s.id, txnstate.Add{Producer: s.p, Participants: s.ps[:], Client: txnstate.TV2}); err != nil {
		return err
	}
	p, err := r.End(ctx, s.id, txnstate.End{Producer: s.p, Commit: true, Client: txnstate.TV2})
	s.p = p
	return err
}

// stores are those of the library, durable ones in a new directory on the disk
// that TMPDIR names; syncs counts what they cost.
var stores = []struct {
	name string
	open func(tb testing.TB, dir string, syncs *atomic.Int64) (txnstate.Store, func())
}{
	{"memstore", func(testing.TB, string, *atomic.Int64) (txnstate.Store, func()) { return memstore.New(), func() {} }},
	{"journal", func(tb testing.TB, dir string, syncs *atomic.Int64) (txnstate.Store, func()) {
		s, err := journal.Open(journal.Config{Dir: dir, FS: counting(syncs)})
		require.NoError(tb, err)
		return s, func() { require.NoError(tb, s.Close()) }
	}},
	{"slotfile", func(tb testing.TB, dir string, syncs *atomic.Int64) (txnstate.Store, func()) {
		s, err := slotfile.Open(slotfile.Config{Dir: dir, FS: counting(syncs)})
		require.NoError(tb, err)
		return s, func() {}
	}},
}

func counting(syncs *atomic.Int64) fsx.FS {
	return fsx.Hook(fsx.OS(), func(op fsx.Op, _ string) error {
		if op == fsx.OpSync || op == fsx.OpSyncDir {
			syncs.Add(1)
		}
		return nil
	})
}

// load runs step in c goroutines for about d and is how many steps a second
// there were.
func load(tb testing.TB, c int, d time.Duration, step func(worker int) error) float64 {
	var n atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range c {
		wg.Go(func() {
			mine := int64(0)
			for ; !over.Load(); mine++ {
				if err := step(w); err != nil {
					tb.Errorf("worker %d: %v", w, err)
					return
				}
			}
			n.Add(mine)
		})
	}
	time.Sleep(d)
	over.Store(true)
	wg.Wait()
	return float64(n.Load()) / time.Since(begin).Seconds()
}

// bareLog is the least that a log with group commit does: bytes in, one write and
// one sync for all who wait, and nothing else.
type bareLog struct {
	f    *os.File
	mu   sync.Mutex
	buf  []byte
	done chan struct{} // of those who wait for buf
	want bool          // somebody waits
	busy bool
}

func newBareLog(tb testing.TB) *bareLog {
	f, err := os.OpenFile(filepath.Join(tb.TempDir(), "log"), os.O_WRONLY|os.O_CREATE, 0o644)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = f.Close() })
	return &bareLog{f: f, done: make(chan struct{})}
}

func (l *bareLog) append(p []byte, wait bool) {
	l.mu.Lock()
	l.buf = append(l.buf, p...)
	done := l.done
	lead := wait && !l.busy
	l.want = l.want || wait
	l.busy = l.busy || lead
	l.mu.Unlock()
	if lead {
		go l.commit()
	}
	if wait {
		<-done
	}
}

func (l *bareLog) commit() {
	var spare []byte
	at := int64(0)
	if n, err := l.f.Seek(0, 2); err == nil {
		at = n
	}
	for {
		runtime.Gosched()
		l.mu.Lock()
		if !l.want {
			l.busy = false
			l.mu.Unlock()
			return
		}
		buf, done := l.buf, l.done
		l.buf, l.done, l.want = spare[:0], make(chan struct{}), false
		l.mu.Unlock()
		if _, err := l.f.WriteAt(buf, at); err != nil {
			panic(err)
		}
		if err := l.f.Sync(); err != nil {
			panic(err)
		}
		at += int64(len(buf))
		close(done)
		spare = buf
	}
}

// heap is the live heap after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
