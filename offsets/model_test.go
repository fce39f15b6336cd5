package offsets_test

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/offsets/offsetstest"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var ctx = context.Background()

// change is one thing that happened, as the model remembers it.
type change struct {
	what   string // stage, commit, marker, delete-group, delete-offsets, delete-topic, expire
	group  string
	pr     txnstate.Producer
	coord  int32
	commit bool
	os     []offsets.Offset
	tps    []offsets.TopicPartition
	topic  string
	before int64
}

// model is the slow and simple idea of one offsets partition: everything that
// ever happened, from which every question is answered anew.
type model struct{ history []change }

type modelSlot struct {
	committed *offsets.Offset
	at        int // place in the history of the committed value
	pending   map[int64]int
	value     map[int64]offsets.Offset
	epoch     map[int64]int16
}

func key(o offsets.Offset) offsets.TopicPartition {
	return offsets.TopicPartition{Topic: o.Topic, Partition: o.Partition}
}

// slot replays the history for one partition of one group.
func (m *model) slot(group string, tp offsets.TopicPartition) modelSlot {
	empty := func() modelSlot {
		return modelSlot{at: -1, pending: map[int64]int{}, value: map[int64]offsets.Offset{}, epoch: map[int64]int16{}}
	}
	s := empty()
	for i, c := range m.history {
		switch c.what {
		case "stage", "commit":
			for _, o := range c.os {
				if c.group != group || key(o) != tp {
					continue
				}
				if c.what == "commit" {
					s.committed, s.at = &o, i
				} else {
					s.pending[c.pr.ID], s.value[c.pr.ID], s.epoch[c.pr.ID] = i, o, c.pr.Epoch
				}
			}
		case "marker":
			if at, ok := s.pending[c.pr.ID]; ok && s.epoch[c.pr.ID] <= c.pr.Epoch {
				if o := s.value[c.pr.ID]; c.commit && at > s.at {
					s.committed, s.at = &o, at
				}
				delete(s.pending, c.pr.ID)
			}
		case "delete-group":
			if c.group == group {
				s = empty()
			}
		case "delete-offsets":
			if c.group == group && slices.Contains(c.tps, tp) {
				s = empty()
			}
		case "delete-topic":
			if c.topic == tp.Topic {
				s = empty()
			}
		case "expire":
			if s.committed != nil && s.committed.CommitMs < c.before && len(s.pending) == 0 {
				s.committed, s.at = nil, -1
			}
		}
	}
	return s
}

// producer replays the history for a producer id.
func (m *model) producer(pid int64) (epoch int16, coord int32, open bool) {
	epoch, coord = -1, -1
	for _, c := range m.history {
		if c.pr.ID != pid {
			continue
		}
		switch c.what {
		case "stage":
			epoch, open = c.pr.Epoch, true
		case "marker":
			epoch, coord, open = c.pr.Epoch, c.coord, false
		}
	}
	return epoch, coord, open
}

func (m *model) marker(mk markers.Marker) txnstate.Code {
	epoch, coord, open := m.producer(mk.Producer.ID)
	switch {
	case mk.Producer.Epoch < epoch,
		mk.Producer.Epoch == epoch && open && mk.TransactionVersion == txnstate.TV2:
		return txnstate.CodeInvalidProducerEpoch
	case mk.CoordinatorEpoch < coord:
		return txnstate.CodeCoordinatorFenced
	}
	return txnstate.CodeNone
}

// world is a Manager on a log with faults, and the models of its partitions.
type world struct {
	t      *rapid.T
	mu     sync.Mutex
	now    time.Time
	log    *offsetstest.Faulty
	m      *offsets.Manager
	models map[int32]*model
	fates  map[offsetstest.Op]offsetstest.Fate // of this step
	wrote  map[int32]bool                      // an Append of this step took effect
	down   map[int32]bool                      // the latest Replay failed
	failed map[int32]bool                      // a Replay is due
}

var (
	worldGroups = []string{"a", offsets.Neighbour("a"), "c"}
	worldTopics = []offsets.TopicPartition{{Topic: "in"}, {Topic: "in", Partition: 1}, {Topic: "out"}}
)

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.UnixMilli(1_700_000_000_000), models: map[int32]*model{},
		fates: map[offsetstest.Op]offsetstest.Fate{}, wrote: map[int32]bool{}, down: map[int32]bool{}, failed: map[int32]bool{},
	}
	w.log = &offsetstest.Faulty{Log: offsets.NewMemLog(), Fate: w.fate}
	for _, g := range worldGroups {
		w.models[txnstate.OffsetsPartition(g)] = &model{}
	}
	w.restart()
	return w
}

func (w *world) fate(op offsetstest.Op, partition int32, entries [][]byte) offsetstest.Fate {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.fates[op]
	if w.failed[partition] && op != offsetstest.OpReplay {
		panic("after a failure of the log its partition is replayed first")
	}
	w.failed[partition] = f != offsetstest.Done
	switch op {
	case offsetstest.OpAppend:
		if len(entries) != 1 {
			panic("one request at a time makes one entry at a time")
		}
		w.wrote[partition] = f == offsetstest.Done || f == offsetstest.Applied
	case offsetstest.OpReplay:
		w.down[partition] = f != offsetstest.Done
	}
	return f
}

// restart is a crash: what is only in memory is lost.
func (w *world) restart() {
	w.fates = map[offsetstest.Op]offsetstest.Fate{}
	m, err := offsets.New(offsets.Config{
		Log: w.log, CompactBytes: 300,
		Now: func() time.Time { return w.now },
	})
	require.NoError(w.t, err)
	require.NoError(w.t, m.Load(ctx))
	w.m = m
}

// step prepares the faults of the next request.
func (w *world) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrote = map[int32]bool{}
	fault := rapid.SampledFrom([]offsetstest.Fate{
		offsetstest.Done, offsetstest.Done, offsetstest.Done, offsetstest.Done,
		offsetstest.Failed, offsetstest.Applied, offsetstest.First,
	})
	w.fates[offsetstest.OpAppend] = fault.Draw(w.t, "append")
	w.fates[offsetstest.OpReplay] = fault.Draw(w.t, "replay")
	w.fates[offsetstest.OpRewrite] = fault.Draw(w.t, "rewrite")
}

// request makes a request that writes c, and says what it should be answered if
// the partition can be asked.
func (w *world) request(partition int32, c change, want txnstate.Code, do func() error) {
	down := w.down[partition]
	err := do()
	w.m.Idle()
	got := txnstate.CodeOf(err)
	switch wrote := w.wrote[partition]; {
	case down:
		require.Equal(w.t, txnstate.CodeCoordinatorNotAvailable, got, "a partition that cannot be read: %v", err)
		require.False(w.t, wrote)
	case want != txnstate.CodeNone:
		require.Equal(w.t, want, got, "%v", err)
		require.False(w.t, wrote)
	case w.fates[offsetstest.OpAppend] == offsetstest.Done:
		require.NoError(w.t, err)
		require.True(w.t, wrote)
		w.models[partition].history = append(w.models[partition].history, c)
	default:
		require.Equal(w.t, txnstate.CodeCoordinatorNotAvailable, got, "%v", err)
		if wrote {
			w.models[partition].history = append(w.models[partition].history, c)
		}
	}
}

func (w *world) drawOffsets() []offsets.Offset {
	var os []offsets.Offset
	for _, tp := range worldTopics {
		if rapid.Bool().Draw(w.t, "offset of "+tp.Topic) {
			os = append(os, offsets.Offset{
				Topic: tp.Topic, Partition: tp.Partition, Offset: int64(rapid.IntRange(0, 99).Draw(w.t, "offset")),
				LeaderEpoch: -1, CommitMs: w.now.UnixMilli(),
			})
		}
	}
	if len(os) == 0 {
		return []offsets.Offset{{Topic: "in", CommitMs: w.now.UnixMilli()}}
	}
	return os
}

func (w *world) drawProducer() txnstate.Producer {
	return txnstate.Producer{
		ID: int64(rapid.IntRange(1, 3).Draw(w.t, "pid")), Epoch: int16(rapid.IntRange(0, 6).Draw(w.t, "epoch")),
	}
}

func (w *world) stage(group string) {
	partition := txnstate.OffsetsPartition(group)
	p, os := w.drawProducer(), w.drawOffsets()
	epoch, _, open := w.models[partition].producer(p.ID)
	down := w.down[partition]
	g, ask, err := w.m.Verify(group, p, fence.ModeAdd)
	w.m.Idle()
	switch {
	case down:
		requireIs(w.t, txnstate.CodeCoordinatorNotAvailable, err)
		return
	case p.Epoch < epoch:
		requireIs(w.t, txnstate.CodeInvalidProducerEpoch, err)
		return
	}
	require.NoError(w.t, err)
	require.Equal(w.t, !(open && p.Epoch == epoch), ask)
	want := txnstate.CodeNone
	if open && p.Epoch > epoch {
		want = txnstate.CodeNotEnoughReplicas // the marker of the transaction before is missing (F38)
	}
	w.request(partition, change{what: "stage", group: group, pr: p, os: os}, want, func() error {
		_, err := w.m.Stage(ctx, group, p, g, os)
		return err
	})
}

func requireIs(t require.TestingT, want txnstate.Code, err error) {
	require.Equal(t, want, txnstate.CodeOf(err), "%v", err)
}

func (w *world) marker(group string) {
	partition := txnstate.OffsetsPartition(group)
	mk := markers.Marker{
		Producer: w.drawProducer(), Commit: rapid.Bool().Draw(w.t, "commit"),
		CoordinatorEpoch:   int32(rapid.IntRange(0, 2).Draw(w.t, "coordinator epoch")),
		TransactionVersion: rapid.SampledFrom([]txnstate.TransactionVersion{txnstate.TV1, txnstate.TV2}).Draw(w.t, "version"),
	}
	c := change{what: "marker", pr: mk.Producer, coord: mk.CoordinatorEpoch, commit: mk.Commit}
	w.request(partition, c, w.models[partition].marker(mk), func() error { return w.m.Marker(ctx, partition, mk) })
}

func (w *world) commit(group string) {
	os := w.drawOffsets()
	w.request(txnstate.OffsetsPartition(group), change{what: "commit", group: group, os: os}, txnstate.CodeNone, func() error {
		_, err := w.m.Commit(ctx, group, os)
		return err
	})
}

func (w *world) deleteSome(group string) {
	partition := txnstate.OffsetsPartition(group)
	if rapid.Bool().Draw(w.t, "whole group") {
		w.request(partition, change{what: "delete-group", group: group}, txnstate.CodeNone, func() error { return w.m.DeleteGroup(ctx, group) })
		return
	}
	tps := []offsets.TopicPartition{rapid.SampledFrom(worldTopics).Draw(w.t, "partition")}
	w.request(partition, change{what: "delete-offsets", group: group, tps: tps}, txnstate.CodeNone, func() error { return w.m.DeleteOffsets(ctx, group, tps) })
}

// sweeping requests go to every partition; they are not mixed with faults.
func (w *world) sweep(c change, do func() error) {
	w.heal()
	w.fates = map[offsetstest.Op]offsetstest.Fate{}
	require.NoError(w.t, do())
	w.m.Idle()
	for _, m := range w.models {
		m.history = append(m.history, c)
	}
}

// heal lets time pass and faults end until every partition can be asked.
func (w *world) heal() {
	w.fates = map[offsetstest.Op]offsetstest.Fate{}
	w.now = w.now.Add(time.Minute)
	for p := range w.models {
		require.NoError(w.t, w.m.LoadPartition(ctx, p))
	}
}

func (w *world) check() {
	for p, m := range w.models {
		if w.down[p] {
			continue
		}
		for _, g := range worldGroups {
			if txnstate.OffsetsPartition(g) != p {
				continue
			}
			w.checkGroup(m, g)
		}
		states, err := w.m.Producers(p)
		require.NoError(w.t, err)
		for _, st := range states {
			epoch, coord, open := m.producer(st.Producer.ID)
			require.Equal(w.t, fmt.Sprint(epoch, coord, open), fmt.Sprint(st.Producer.Epoch, st.CoordinatorEpoch, st.Open), "producer id %d", st.Producer.ID)
		}
	}
	require.NotContains(w.t, w.m.Dump(), "INVARIANT BROKEN")
}

func (w *world) checkGroup(m *model, group string) {
	plain, err := w.m.Fetch(group, worldTopics, false)
	require.NoError(w.t, err)
	stable, err := w.m.Fetch(group, worldTopics, true)
	require.NoError(w.t, err)
	anyPending, anything, listed := false, false, 0
	for i, tp := range worldTopics {
		s := m.slot(group, tp)
		want := offsets.Fetched{Offset: offsets.Offset{Topic: tp.Topic, Partition: tp.Partition, Offset: -1, LeaderEpoch: -1}}
		unstable := want
		unstable.Code = txnstate.CodeUnstableOffsetCommit
		if s.committed != nil {
			want.Offset = *s.committed
			listed++
		}
		require.Equal(w.t, want, plain[i], "group %q", group)
		if len(s.pending) > 0 {
			want, anyPending = unstable, true
		}
		require.Equal(w.t, want, stable[i], "group %q, stable", group)
		anything = anything || s.committed != nil || len(s.pending) > 0
	}
	require.Equal(w.t, anyPending, w.m.HasPending(group), "pending in %q", group)
	require.Equal(w.t, anything, slices.Contains(w.m.Groups(), group), "existence of %q", group)
	all, err := w.m.Fetch(group, nil, false)
	require.NoError(w.t, err)
	require.Len(w.t, all, listed)
	require.True(w.t, sort.SliceIsSorted(all, func(i, j int) bool {
		return fmt.Sprint(all[i].Topic, all[i].Partition) < fmt.Sprint(all[j].Topic, all[j].Partition)
	}))
}

// Whatever comes in whatever order, with faults of the log that wrote and that
// did not, rewrites, and crashes at any moment, the answers are those of a model
// that remembers everything (I5, I7, I8, I11).
func TestTheManagerIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		group := func() string { return rapid.SampledFrom(worldGroups).Draw(t, "group") }
		t.Repeat(map[string]func(*rapid.T){
			"stage":  func(*rapid.T) { w.step(); w.stage(group()) },
			"marker": func(*rapid.T) { w.step(); w.marker(group()) },
			"commit": func(*rapid.T) { w.step(); w.commit(group()) },
			"delete": func(*rapid.T) { w.step(); w.deleteSome(group()) },
			"delete topic": func(*rapid.T) {
				topic := rapid.SampledFrom([]string{"in", "out", "none"}).Draw(t, "topic")
				w.sweep(change{what: "delete-topic", topic: topic}, func() error { return w.m.DeleteTopic(ctx, topic) })
			},
			"expire": func(t *rapid.T) {
				before := w.now.Add(-time.Duration(rapid.IntRange(-1, 20).Draw(t, "minutes")) * time.Minute)
				w.heal()
				w.sweep(change{what: "expire", before: before.UnixMilli()}, func() error {
					_, err := w.m.Expire(ctx, before, nil)
					return err
				})
			},
			"time":    func(*rapid.T) { w.now = w.now.Add(time.Minute) },
			"crash":   func(*rapid.T) { w.restart() },
			"healing": func(*rapid.T) { w.heal() },
			"":        func(*rapid.T) { w.check() },
		})
		w.heal()
		w.check()
		before := w.m.Dump()
		w.restart()
		require.Equal(t, before, w.m.Dump())
	})
}

// Many at once, with faults. Each worker has a producer and partitions of its
// own, so it knows what it was promised; what failed it asks for again.
func TestManyAtOnceGetWhatTheyWerePromised(t *testing.T) {
	var mu sync.Mutex
	n := 0
	log := &offsetstest.Faulty{Log: offsets.NewMemLog(), Fate: func(op offsetstest.Op, _ int32, _ [][]byte) offsetstest.Fate {
		mu.Lock()
		defer mu.Unlock()
		n++
		switch {
		case op == offsetstest.OpReplay:
			return offsetstest.Done
		case n%17 == 0:
			return offsetstest.Applied
		case n%13 == 0:
			return offsetstest.First
		case n%11 == 0:
			return offsetstest.Failed
		}
		return offsetstest.Done
	}}
	cfg := offsets.Config{Log: log, CompactBytes: 4000}
	m, err := offsets.New(cfg)
	require.NoError(t, err)
	require.NoError(t, m.Load(ctx))
	groups := []string{"a", offsets.Neighbour("a"), "c"}

	again := func(f func() error) {
		for {
			err := f()
			switch txnstate.CodeOf(err) {
			case txnstate.CodeNone:
				return
			case txnstate.CodeCoordinatorNotAvailable, txnstate.CodeCoordinatorLoading:
			default:
				t.Errorf("not retriable: %v", err)
				return
			}
		}
	}
	want := make([]int64, 16)
	var wg sync.WaitGroup
	for w := range want {
		wg.Go(func() {
			want[w] = -1
			group := groups[w%len(groups)]
			for i := range int64(60) {
				os := []offsets.Offset{{Topic: "in", Partition: int32(w), Offset: i, CommitMs: 1}}
				commit := i%3 != 2
				if i%5 == 4 {
					again(func() error {
						_, err := m.Commit(ctx, group, os)
						return err
					})
					want[w] = i
					continue
				}
				p := txnstate.Producer{ID: int64(w), Epoch: int16(i)}
				again(func() error {
					g, _, err := m.Verify(group, p, fence.ModeAdd)
					if err != nil {
						return err
					}
					_, err = m.Stage(ctx, group, p, g, os)
					return err
				})
				p.Epoch++
				again(func() error {
					return m.Marker(ctx, txnstate.OffsetsPartition(group), markers.Marker{Producer: p, Commit: commit, TransactionVersion: txnstate.TV2})
				})
				if commit {
					want[w] = i
				}
			}
		})
	}
	wg.Wait()
	m.Idle()
	before := m.Dump()
	require.NotContains(t, before, "INVARIANT BROKEN")
	for range 2 {
		for w, o := range want {
			got, err := m.Fetch(groups[w%len(groups)], []offsets.TopicPartition{{Topic: "in", Partition: int32(w)}}, true)
			require.NoError(t, err)
			require.Equal(t, o, got[0].Offset.Offset, "worker %d", w)
		}
		require.NoError(t, m.Close(ctx))
		m, err = offsets.New(cfg)
		require.NoError(t, err)
		require.NoError(t, m.Load(ctx))
		require.Equal(t, before, m.Dump())
	}
	require.NoError(t, m.Close(ctx))
}
