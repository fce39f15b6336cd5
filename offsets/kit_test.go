package offsets

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
)

// clock is the time of a test: it stands still until it is moved.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.UnixMilli(1_700_000_000_000)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// kit is a Manager under test.
type kit struct {
	testing.TB
	cfg   Config
	clock *clock
	m     *Manager
}

func newKit(t testing.TB, change ...func(*Config)) *kit {
	k := &kit{TB: t, clock: newClock()}
	k.cfg = Config{Log: NewMemLog(), Now: k.clock.Now}
	for _, f := range change {
		f(&k.cfg)
	}
	k.m = k.fresh()
	return k
}

// fresh is a Manager that has read the log.
func (k *kit) fresh() *Manager {
	k.Helper()
	m, err := New(k.cfg)
	require.NoError(k, err)
	require.NoError(k, m.Load(context.Background()))
	k.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

// restart goes on with a Manager that has only the log. What it knows must be
// what the one before knew.
func (k *kit) restart() {
	k.Helper()
	before := dump(k.m)
	require.NoError(k, k.m.Close(context.Background()))
	k.m = k.fresh()
	require.Equal(k, before, dump(k.m), "what the log gives back")
}

// dump is all that a Manager knows, in a form to compare.
func dump(m *Manager) string {
	var b strings.Builder
	for _, p := range m.parts {
		p.mu.Lock()
		b.WriteString(p.dump())
		p.mu.Unlock()
	}
	return b.String()
}

func (p *partition) dump() string {
	var b strings.Builder
	if p.phase != phaseReady {
		return fmt.Sprintf("partition %d: phase %d\n", p.index, p.phase)
	}
	if err := p.st.check(); err != nil {
		fmt.Fprintf(&b, "partition %d: INVARIANT BROKEN: %v\n", p.index, err)
	}
	if p.st.applied == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "partition %d: %d entries\n", p.index, p.st.applied)
	for _, g := range slices.Sorted(maps.Keys(p.st.groups)) {
		slots := p.st.groups[g]
		for _, tp := range slices.SortedFunc(maps.Keys(slots), TopicPartition.compare) {
			sl := slots[tp]
			fmt.Fprintf(&b, "  %q %s-%d: %+v", g, tp.Topic, tp.Partition, sl.committed)
			pending := slices.Clone(sl.pending)
			slices.SortFunc(pending, func(x, y pendingValue) int { return cmp.Compare(x.pid, y.pid) })
			fmt.Fprintf(&b, " %+v\n", pending)
		}
	}
	for _, st := range p.st.fence.Producers() {
		fmt.Fprintf(&b, "  producer %+v\n", st)
	}
	return b.String()
}

// pendingValue is for where a variable is called pending.
type pendingValue = pending

// pr is a producer.
func pr(id int64, epoch int16) txnstate.Producer { return txnstate.Producer{ID: id, Epoch: epoch} }

// at is an offset of partition 0 of a topic "in".
func at(offset int64) []Offset {
	return []Offset{{Topic: "in", Offset: offset, LeaderEpoch: 3, Metadata: "m"}}
}

// stage verifies with a coordinator that says yes, and stages.
func (k *kit) stage(group string, p txnstate.Producer, os []Offset) error {
	k.Helper()
	g, _, err := k.m.Verify(group, p, fence.ModeAdd)
	if err != nil {
		return err
	}
	codes, err := k.m.Stage(context.Background(), group, p, g, os)
	if err == nil {
		require.Equal(k, make([]txnstate.Code, len(os)), codes)
	}
	return err
}

func (k *kit) mustStage(group string, p txnstate.Producer, os []Offset) {
	k.Helper()
	require.NoError(k, k.stage(group, p, os))
}

func (k *kit) commit(group string, os []Offset) {
	k.Helper()
	codes, err := k.m.Commit(context.Background(), group, os)
	require.NoError(k, err)
	require.Equal(k, make([]txnstate.Code, len(os)), codes)
}

// tv2 is a marker of a TV2 transaction whose data had the epoch below.
func tv2(p txnstate.Producer, commit bool) markers.Marker {
	return markers.Marker{Producer: p, Commit: commit, TransactionVersion: txnstate.TV2}
}

func tv1(p txnstate.Producer, commit bool) markers.Marker {
	return markers.Marker{Producer: p, Commit: commit, TransactionVersion: txnstate.TV1}
}

func (k *kit) mark(group string, mk markers.Marker) error {
	return k.m.Marker(context.Background(), txnstate.OffsetsPartition(group), mk)
}

func (k *kit) mustMark(group string, mk markers.Marker) {
	k.Helper()
	require.NoError(k, k.mark(group, mk))
}

// position is what a group has for partition 0 of "in": an offset, or the code
// in the place of one.
func (k *kit) position(group string, stable bool) string {
	k.Helper()
	got, err := k.m.Fetch(group, []TopicPartition{{"in", 0}}, stable)
	require.NoError(k, err)
	require.Len(k, got, 1)
	if got[0].Code != txnstate.CodeNone {
		require.Equal(k, Offset{Topic: "in", Offset: -1, LeaderEpoch: -1}, got[0].Offset)
		return got[0].Code.String()
	}
	return fmt.Sprint(got[0].Offset.Offset)
}

func (k *kit) expect(group string, committed, stable string) {
	k.Helper()
	require.Equal(k, committed, k.position(group, false), "committed")
	require.Equal(k, stable, k.position(group, true), "stable")
}

const unstable = "UNSTABLE_OFFSET_COMMIT"

func requireCode(t require.TestingT, want txnstate.Code, err error) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	require.Error(t, err)
	require.Equal(t, want, txnstate.CodeOf(err), "%v", err)
}

// neighbour is another group in the same offsets partition.
func neighbour(group string) string {
	for i := 0; ; i++ {
		if g := fmt.Sprintf("%s-%d", group, i); txnstate.OffsetsPartition(g) == txnstate.OffsetsPartition(group) {
			return g
		}
	}
}
