package fence_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// TestLeaderAgainstModel drives a Partition and the model through the same
// requests, with appends that are known at once, late, out of order or never, and
// restarts in between.
func TestLeaderAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{ps: map[int64]*modelProducer{}, now: 1000}
		p := fence.NewPartition(fence.Config{})
		late := rapid.Bool().Draw(t, "late offsets")
		pid := rapid.Int64Range(1, 3)
		epoch := rapid.Int16Range(0, 3)
		var guards []fence.Guard
		who := func() txnstate.Producer {
			id := pid.Draw(t, "pid")
			if rapid.IntRange(0, 3).Draw(t, "current") > 0 {
				return txnstate.Producer{ID: id, Epoch: max(viewOf(m.producer(id).items, all).epoch, 0)}
			}
			return txnstate.Producer{ID: id, Epoch: epoch.Draw(t, "epoch")}
		}
		draw := func() fence.Batch {
			b := fence.Batch{Producer: who(), Records: rapid.Int32Range(1, 3).Draw(t, "records"), MaxTimestampMs: m.now}
			b.Transactional = rapid.IntRange(0, 5).Draw(t, "transactional") > 0
			v := viewOf(m.producer(b.Producer.ID).items, all)
			switch rapid.IntRange(0, 9).Draw(t, "sequence") {
			case 0:
				b.FirstSequence = rapid.Int32Range(0, 4).Draw(t, "any")
			case 1:
				b.FirstSequence = 2147483647 - rapid.Int32Range(0, 2).Draw(t, "near the wrap")
			case 2:
				if len(v.batches) > 0 { // one of the last six again
					again := v.batches[max(0, len(v.batches)-1-rapid.IntRange(0, 5).Draw(t, "again")):][0]
					b.FirstSequence, b.Records = again.b.FirstSequence, again.b.Records
				}
			default:
				if b.Producer.Epoch == v.epoch {
					b.FirstSequence = int32((int64(v.seq) + 1) & 0x7fffffff)
				}
			}
			return b
		}
		// settle tells the partition of something that is in the log.
		settle := func(it *item) {
			it.settled = true
			it.r.Settle(it.base)
			m.mend(m.producer(it.b.Producer.ID))
		}
		reserved := func(it *item) {
			m.letIn(it)
			if !late {
				m.put(it)
				settle(it)
			}
		}
		verify := func(b fence.Batch, mode fence.Mode, g fence.Guard, ask bool, err error) {
			mp := m.producer(b.Producer.ID)
			v := viewOf(mp.items, all)
			want := !(v.open && v.epoch == b.Producer.Epoch)
			stale := b.Producer.Epoch < mp.fence || want && b.Producer.Epoch < v.epoch
			if (err != nil) != stale || ask != (want && !stale) {
				t.Fatalf("Verify %+v: ask %v, %v", b, ask, err)
			}
			if err != nil || !ask {
				return
			}
			switch q := mp.entry; {
			case q == nil:
				mp.entry = &question{g: g, epoch: b.Producer.Epoch, lowest: b.FirstSequence, tv2: mode == fence.ModeAdd}
			case q.g != g:
				t.Fatal("a second token")
			case b.Producer.Epoch == q.epoch:
				q.lowest = min(q.lowest, b.FirstSequence)
			case b.Producer.Epoch > q.epoch:
				q.epoch, q.lowest = b.Producer.Epoch, b.FirstSequence
			}
			guards = append(guards, g)
		}
		modes := rapid.SampledFrom([]fence.Mode{fence.ModeDefault, fence.ModeGeneric, fence.ModeAdd})
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(*rapid.T) {
				b := draw()
				var g fence.Guard
				if mode := modes.Draw(t, "mode"); b.Transactional {
					var ask bool
					var err error
					g, ask, err = p.Verify(b, mode, m.now)
					verify(b, mode, g, ask, err)
					if err != nil {
						return
					}
				}
				if len(guards) > 0 && rapid.IntRange(0, 5).Draw(t, "old guard") == 0 {
					g = rapid.SampledFrom(guards).Draw(t, "guard")
				}
				dup, want := m.admit(b, g)
				r, err := p.Reserve(b, g, m.now)
				if txnstate.CodeOf(err) != want {
					t.Fatalf("Reserve %+v: %v, want %v", b, err, want)
				}
				if r.Duplicate != (dup != nil) || dup != nil && (r.Offset != dup.base || r.TimestampMs != dup.b.MaxTimestampMs) {
					t.Fatalf("Reserve %+v: %+v, want a duplicate of %+v", b, r, dup)
				}
				if err == nil && dup == nil {
					reserved(&item{b: b, r: r})
				}
			},
			"verify only": func(*rapid.T) {
				b, mode := draw(), modes.Draw(t, "mode")
				b.Transactional = true
				g, ask, err := p.Verify(b, mode, m.now)
				verify(b, mode, g, ask, err)
			},
			"offsets": func(*rapid.T) {
				b := fence.Batch{Producer: who(), FirstSequence: -1, Records: 1, MaxTimestampMs: m.now, Transactional: true}
				mode := modes.Draw(t, "mode")
				g, ask, err := p.VerifyOffsets(b.Producer, mode, m.now)
				verify(b, mode, g, ask, err)
				if err != nil {
					return
				}
				want := txnstate.CodeNone
				mp := m.producer(b.Producer.ID)
				if v := viewOf(mp.items, all); mp.broken || v.open && b.Producer.Epoch > v.epoch {
					want = txnstate.CodeNotEnoughReplicas
				}
				r, err := p.ReserveOffsets(b.Producer, g, m.now)
				if txnstate.CodeOf(err) != want {
					t.Fatalf("ReserveOffsets: %v, want %v", err, want)
				}
				if err == nil {
					reserved(&item{b: b, offsets: true, r: r})
				}
			},
			"mark": func(*rapid.T) {
				mk := fence.Mark{Producer: who(), Commit: rapid.Bool().Draw(t, "commit"), TimestampMs: m.now}
				if v := viewOf(m.producer(mk.Producer.ID).items, all); true {
					mk.Producer.Epoch = max(mk.Producer.Epoch, v.epoch) // it was decided on
					mk.CoordinatorEpoch = max(v.coord, 0) + rapid.Int32Range(0, 1).Draw(t, "coordinator")
				}
				b := fence.Batch{Producer: mk.Producer, FirstSequence: -1, Records: 1, MaxTimestampMs: m.now, Transactional: true, Control: true}
				reserved(&item{b: b, mark: &mk, r: p.ReserveMark(mk)})
			},
			"append": func(*rapid.T) { // the oldest of some producer reaches the log
				var able []*item
				for _, id := range []int64{1, 2, 3} {
					for _, it := range m.producer(id).items {
						if it.base < 0 {
							able = append(able, it)
							break
						}
					}
				}
				if len(able) > 0 {
					m.put(rapid.SampledFrom(able).Draw(t, "item"))
				}
			},
			"settle": func(*rapid.T) {
				var able []*item
				for _, it := range m.pending() {
					if it.base >= 0 {
						able = append(able, it)
					}
				}
				if len(able) > 0 {
					settle(rapid.SampledFrom(able).Draw(t, "item"))
				}
			},
			"cancel": func(*rapid.T) {
				var able []*item
				for _, it := range m.pending() {
					if it.base < 0 {
						able = append(able, it)
					}
				}
				if len(able) > 0 {
					it := rapid.SampledFrom(able).Draw(t, "item")
					m.cancel(it)
					it.r.Cancel()
					if rapid.Bool().Draw(t, "twice") {
						it.r.Settle(0)
						it.r.Cancel()
					}
				}
			},
			"fence": func(*rapid.T) {
				f := txnstate.Producer{ID: pid.Draw(t, "pid"), Epoch: epoch.Draw(t, "epoch")}
				if mp := m.producer(f.ID); len(mp.items) > 0 || mp.entry != nil {
					mp.fence = max(mp.fence, f.Epoch)
				}
				p.Fence(f)
			},
			"log start": func(*rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "rare") == 0 {
					top, _ := m.top()
					m.logStart = max(m.logStart, rapid.Int64Range(0, top).Draw(t, "offset"))
					p.LogStart(m.logStart)
				}
			},
			"restart": func(*rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rare") > 0 {
					return
				}
				snapshot, from := p.AppendSnapshot(nil), p.End()
				restored, err := fence.RestorePartition(fence.Config{}, snapshot)
				if err != nil {
					t.Fatal(err)
				}
				if restored.End() != from {
					t.Fatalf("end %d, want %d", restored.End(), from)
				}
				from = rapid.Int64Range(0, from).Draw(t, "from")
				for _, it := range m.log {
					if it.base >= from {
						restored.Replay(it.b, it.base, it.mark)
					}
				}
				p = restored
				for _, mp := range m.ps {
					if len(mp.items) == 0 || !mp.items[0].settled {
						mp.fence = -1 // it was for a producer that had nothing in the log
					}
					mp.items = slices.DeleteFunc(mp.items, func(it *item) bool { return it.base < 0 })
					for _, it := range mp.items {
						it.settled = true
					}
					mp.entry, mp.broken = nil, false
				}
			},
			"": func(*rapid.T) { check(t, m, p, !late) },
		})
	})
}

// top is the highest high watermark that a host may have: it has told of all
// below, but for what stands before something of the same producer that it has
// told of.
func (m *model) top() (top int64, quiet bool) {
	top, quiet = m.end, true
	for _, it := range m.pending() {
		quiet = false
		mp := m.producer(it.b.Producer.ID)
		i := slices.Index(mp.items, it)
		overtaken := slices.ContainsFunc(mp.items[i+1:], func(l *item) bool { return l.settled })
		if it.base >= 0 && !overtaken {
			top = min(top, it.base)
		}
	}
	return top, quiet
}

// check compares what the partition shows.
func check(t *rapid.T, m *model, p *fence.Partition, exact bool) {
	for id, mp := range m.ps {
		v := viewOf(mp.items, all)
		st, known := p.Producer(id)
		if known != (len(mp.items) > 0) {
			t.Fatalf("producer %d known: %v", id, known)
		}
		if !known {
			continue
		}
		if st.Producer.Epoch != v.epoch || st.CoordinatorEpoch != v.coord || st.LastSequence != v.seq || st.Open != v.open || st.FencedBelow != mp.fence {
			t.Fatalf("producer %+v, want %+v", st, v)
		}
		if told := viewOf(mp.items, func(it *item) bool { return it.settled }); len(m.pending()) == 0 && st.OpenSince != told.since {
			t.Fatalf("producer %+v, want it open since %d", st, told.since)
		}
	}
	top, quiet := m.top()
	hw := rapid.Int64Range(min(m.logStart, top), top).Draw(t, "high watermark")
	got, want := p.LastStable(hw), m.stable(hw)
	if got > want || quiet && got != want {
		t.Fatalf("last stable %d under %d, want %d (quiet: %v)", got, hw, want, quiet)
	}
	if !quiet {
		// A reader is given no more than what is stable.
		from := rapid.Int64Range(m.logStart, max(m.end, m.logStart)).Draw(t, "from")
		compare(t, m, p, from, rapid.Int64Range(0, max(got, 0)).Draw(t, "bound"), false)
		return
	}
	for from := max(m.logStart, m.end-20); from < m.end; from++ {
		for bound := from + 1; bound <= m.end; bound++ {
			compare(t, m, p, from, bound, exact)
		}
	}
}

func compare(t *rapid.T, m *model, p *fence.Partition, from, bound int64, exact bool) {
	if from >= bound {
		return
	}
	need, have := m.needed(from, bound), p.Aborted(from, bound)
	if fmt.Sprint(ranges(need)) != fmt.Sprint(shown(have)) {
		t.Fatalf("aborted from %d to %d: %+v, want %+v", from, bound, have, need)
	}
	for i, a := range have {
		if exact && a.LastStable != need[i].storedLSO {
			t.Fatalf("aborted %+v, and the last stable offset was %d", a, need[i].storedLSO)
		}
	}
}

func ranges(ts []transaction) (out [][3]int64) {
	for _, t := range ts {
		out = append(out, [3]int64{t.pid, t.first, t.last})
	}
	return out
}

func shown(as []fence.Aborted) (out [][3]int64) {
	for _, a := range as {
		out = append(out, [3]int64{a.ProducerID, a.First, a.Last})
	}
	return out
}
