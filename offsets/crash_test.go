package offsets_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// script is a sequence of requests to a Manager, the same each time.
func script() []func(m *offsets.Manager) error {
	a, b, c := "a", offsets.Neighbour("a"), "c"
	long := strings.Repeat("m", 200)
	at := func(o int64) []offsets.Offset {
		return []offsets.Offset{{Topic: "in", Offset: o, Metadata: long}, {Topic: "in", Partition: 1, Offset: o + 1}}
	}
	stage := func(group string, pid int64, epoch int16, o int64) func(*offsets.Manager) error {
		return func(m *offsets.Manager) error {
			p := txnstate.Producer{ID: pid, Epoch: epoch}
			g, _, err := m.Verify(group, p, fence.ModeAdd)
			if err != nil {
				return err
			}
			_, err = m.Stage(ctx, group, p, g, at(o))
			return err
		}
	}
	mark := func(group string, pid int64, epoch int16, commit bool) func(*offsets.Manager) error {
		return func(m *offsets.Manager) error {
			return m.Marker(ctx, txnstate.OffsetsPartition(group), markers.Marker{
				Producer: txnstate.Producer{ID: pid, Epoch: epoch}, Commit: commit, CoordinatorEpoch: 4, TransactionVersion: txnstate.TV2,
			})
		}
	}
	commit := func(group string, o int64) func(*offsets.Manager) error {
		return func(m *offsets.Manager) error {
			_, err := m.Commit(ctx, group, at(o))
			return err
		}
	}
	steps := []func(*offsets.Manager) error{
		commit(a, 1), stage(a, 1, 0, 10), stage(b, 1, 0, 11), stage(c, 1, 0, 12), stage(a, 2, 5, 20),
		commit(a, 2), mark(c, 1, 1, true), mark(a, 1, 1, true), stage(a, 1, 1, 13),
		func(m *offsets.Manager) error {
			return m.DeleteOffsets(ctx, b, []offsets.TopicPartition{{Topic: "in"}})
		},
	}
	for o := range int64(8) { // enough to be rewritten
		steps = append(steps, commit(b, 30+o))
	}
	return append(steps,
		stage(c, 3, 0, 40), mark(a, 1, 2, false), func(m *offsets.Manager) error { return m.DeleteGroup(ctx, c) },
		mark(c, 3, 1, true), mark(a, 2, 6, true), commit(c, 3),
	)
}

func scriptConfig(log offsets.Log) offsets.Config {
	return offsets.Config{Log: log, CompactBytes: 500, Now: func() time.Time { return time.UnixMilli(1_700_000_000_000) }}
}

// scriptStates is what a Manager knows after 0, 1, 2, ... requests.
func scriptStates(t testing.TB) []string {
	m, err := offsets.New(scriptConfig(offsets.NewMemLog()))
	require.NoError(t, err)
	require.NoError(t, m.Load(ctx))
	states := []string{m.Dump()}
	for _, f := range script() {
		require.NoError(t, f(m))
		m.Idle()
		states = append(states, m.Dump())
	}
	return states
}

// process is one life of a process.
type process struct {
	log *offsets.FileLog
	m   *offsets.Manager
}

func start(fsys fsx.FS) (*process, error) {
	log, err := offsets.OpenFileLog("data/offsets", fsys)
	if err != nil {
		return nil, err
	}
	log.SetCopyFrom(1500)
	m, err := offsets.New(scriptConfig(log))
	if err == nil {
		err = m.Load(ctx)
	}
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	return &process{log, m}, nil
}

func (p *process) stop() {
	_ = p.m.Close(ctx)
	_ = p.log.Close()
}

// newDisk has the directory that the log's own is made in.
func newDisk(t testing.TB, seed uint64) *crashfs.FS {
	fsys := crashfs.New(seed)
	require.NoError(t, fsys.MkdirAll("data", 0o755))
	require.NoError(t, fsys.SyncDir("/"))
	return fsys
}

// A crash at every operation of the file system, a loss of power or a kill:
// what was acknowledged is there, and of the rest at most the one request that
// was under way (I7, I11). Then a crash at every operation of the start that
// follows.
func TestACrashAtEveryOperationLosesNothingAcknowledged(t *testing.T) {
	states := scriptStates(t)
	steps := script()
	for k := 0; ; k++ {
		disk := newDisk(t, uint64(k))
		disk.CrashAt(disk.Ops() + k)
		done := 0
		if p, err := start(disk); err == nil {
			for _, f := range steps {
				if f(p.m) != nil {
					break
				}
				done++
			}
			p.m.Idle()
			p.stop()
		}
		where, crashed := disk.Crashed()
		allowed := states[done : done+1]
		if crashed && done < len(steps) {
			allowed = states[done : done+2]
		}
		name := fmt.Sprintf("crash at operation %d (%s), %d requests acknowledged", k, where, done)
		check := func(name string, disk *crashfs.FS) {
			p, err := start(disk)
			require.NoError(t, err, name)
			require.Contains(t, allowed, p.m.Dump(), name)
			p.stop()
		}
		for seed := range uint64(4) {
			check(fmt.Sprintf("%s, image %d", name, seed), disk.Image(seed))
		}
		check(name+", killed", disk.AfterKill())

		for j := 0; k%5 == 0; j++ {
			// The plain images among them, of the first crash and of the second.
			second := disk.Image(uint64(j) % 4)
			second.CrashAt(second.Ops() + j)
			if p, err := start(second); err == nil {
				p.stop()
			}
			at, again := second.Crashed()
			check(fmt.Sprintf("%s, then at operation %d of the start (%s)", name, j, at), second.Image(uint64(j/4+k/5)%4))
			if !again {
				break
			}
		}
		if !crashed {
			require.Equal(t, len(steps), done)
			require.Greater(t, k, 50)
			break
		}
	}
}

// Every sync fails once, or the disk is full for a while. The clients that are
// told so ask again; in the end all is there, on the disk too.
func TestAFaultAtEverySyncIsSurvived(t *testing.T) {
	states := scriptStates(t)
	last := states[len(states)-1]
	for k := 0; ; k++ {
		disk := newDisk(t, uint64(k))
		p, err := start(disk)
		require.NoError(t, err)
		syncs := disk.Syncs()
		if k%2 == 0 {
			disk.FailSync(k / 2)
		} else {
			disk.Full(int64(k) * 20)
		}
		failed := 0
		for i, f := range script() {
			for f(p.m) != nil {
				failed++
				disk.Full(-1)
				require.Less(t, failed, 20)
				for part := range int32(txnstate.OffsetsPartitions) {
					_ = p.m.LoadPartition(ctx, part)
				}
			}
			p.m.Idle()
			require.Contains(t, p.m.Dump(), "entries", "request %d", i)
		}
		// Repeated requests have numbers of their own, so the offsets count.
		require.Equal(t, positions(t, p.m), lastPositions(t), "sync %d", k)
		for seed := range uint64(3) {
			q, err := start(disk.Image(seed))
			require.NoError(t, err)
			require.Equal(t, p.m.Dump(), q.m.Dump(), "sync %d, image %d", k, seed)
			q.stop()
		}
		if failed == 0 {
			require.Equal(t, last, p.m.Dump())
		}
		p.stop()
		if k/2 > disk.Syncs()-syncs {
			return
		}
	}
}

func positions(t testing.TB, m *offsets.Manager) string {
	t.Helper()
	var all []string
	for _, g := range []string{"a", offsets.Neighbour("a"), "c"} {
		got, err := m.Fetch(g, nil, true)
		require.NoError(t, err)
		for _, f := range got {
			all = append(all, fmt.Sprint(g, " ", f.Topic, " ", f.Partition, " ", f.Offset.Offset, " ", f.Code))
		}
	}
	return strings.Join(all, "\n")
}

func lastPositions(t testing.TB) string {
	m, err := offsets.New(scriptConfig(offsets.NewMemLog()))
	require.NoError(t, err)
	require.NoError(t, m.Load(ctx))
	for _, f := range script() {
		require.NoError(t, f(m))
	}
	return positions(t, m)
}
