package txnstate

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// A slot tells what the notices of its ownership make of it, in whatever order they
// come, and the sum of all slots' ids is theirs at any time.
func TestSlotsAreTheirModel_F02(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type model struct {
			phase phase
			epoch int32
			ids   int64
			again []string
			load  context.Context // of this ownership
			past  []context.Context
		}
		var total atomic.Int64
		slots, models := make([]slot, 2), []model{{epoch: -1}, {epoch: -1}}
		for i := range slots {
			slots[i].epoch = -1
			slots[i].show()
		}
		for range 40 {
			i := rapid.IntRange(0, 1).Draw(t, "slot")
			s, m := &slots[i], &models[i]
			epoch := max(0, m.epoch+rapid.Int32Range(-2, 2).Draw(t, "epoch"))
			n := rapid.Int64Range(0, 5).Draw(t, "ids")
			var got, want bool
			switch what := rapid.SampledFrom([]string{"own", "own first", "load", "changed", "serve", "leave", "count", "uncount"}).Draw(t, "what"); what {
			case "own", "own first":
				got, want = s.own(epoch, what == "own first"), epoch > m.epoch
				if want {
					if m.load != nil {
						m.past = append(m.past, m.load)
					}
					m.epoch, m.phase, m.again, m.load = epoch, loading, nil, nil
					if what == "own first" {
						m.phase = starting
					}
				}
			case "load": // an ownership loads once
				if m.load == nil {
					ctx, _ := s.load(t.Context(), epoch)
					if epoch == m.epoch && m.phase != away {
						m.load = ctx
					} else {
						m.past = append(m.past, ctx)
					}
				}
			case "changed":
				s.changed(fmt.Sprint(n))
				if m.phase == loading || m.phase == starting {
					m.again = append(m.again, fmt.Sprint(n))
				}
			case "serve":
				var again []string
				again, got = s.serve(epoch, n, &total)
				want = epoch == m.epoch && (m.phase == loading || m.phase == starting)
				if want {
					if !slices.Equal(again, m.again) {
						t.Fatalf("%v were changed meanwhile, and it knows of %v", m.again, again)
					}
					m.phase, m.ids, m.again = serving, n, nil
				}
			case "leave":
				got, want = s.leave(epoch, &total), epoch >= m.epoch
				if want {
					if m.load != nil {
						m.past = append(m.past, m.load)
					}
					*m = model{phase: away, epoch: epoch, past: m.past}
				}
			case "count", "uncount":
				if what == "uncount" {
					n = -min(n, m.ids)
				}
				s.count(&total, n)
				if m.phase == serving {
					m.ids += n
				}
			}
			if got != want {
				t.Fatalf("answered %v", got)
			}
			if s.loads(m.epoch) != (m.phase == loading || m.phase == starting) || s.loads(m.epoch-1) {
				t.Fatal("it loads, and does not, or does not, and does")
			}
			for _, ctx := range m.past {
				if ctx.Err() == nil {
					t.Fatal("a load outlives its ownership")
				}
			}
			if m.load != nil && m.load.Err() != nil {
				t.Fatal("the load of the present ownership is over")
			}
			if p, e := s.state(); p != m.phase || e != m.epoch {
				t.Fatalf("phase %d at epoch %d, and it should be %d at %d", p, e, m.phase, m.epoch)
			}
			if sum := models[0].ids + models[1].ids; total.Load() != sum {
				t.Fatalf("%d ids are counted, and there are %d", total.Load(), sum)
			}
		}
	})
}

// There is one completion for an id: that of the newest ownership that has asked for
// one, and of the decision it has found. Whoever waits for another is let go.
func TestCompletionsAreTheirModel_F02_F15(t *testing.T) {
	ids := []string{"a", "b"}
	for i := 0; len(ids) < 3; i++ { // two of one slot, and of different shards
		if id := fmt.Sprint("a", i); Slot(id) == Slot("a") && hash32(id)%64 != hash32("a")%64 {
			ids = append(ids, id)
		}
	}
	for i := 0; len(ids) < 4; i++ { // one in the last shard
		if id := fmt.Sprint("z", i); hash32(id)%64 == 63 {
			ids = append(ids, id)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var cs completions
		now := map[string]*completion{}
		var all []*completion
		ended := map[*completion]bool{}
		for range 40 {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			epoch := rapid.Int32Range(1, 4).Draw(t, "epoch")
			old := now[id]
			switch rapid.SampledFrom([]string{"begin", "begin", "remove", "drop"}).Draw(t, "what") {
			case "begin":
				rec := emptyAt(rapid.Int64Range(7, 8).Draw(t, "producer"), int16(rapid.IntRange(0, 1).Draw(t, "producer epoch")))
				rec.TxnID, rec.State, rec.TxnSeq = id, PrepareCommit, rapid.Uint64Range(1, 2).Draw(t, "seq")
				rec.Participants = []Participant{Partition("t", 0)}
				again := rapid.Bool().Draw(t, "again")
				c := cs.begin(rec, epoch, again)
				o := c.outcome
				if o.TxnID != id || o.Producer != rec.Producer || o.TxnSeq != rec.TxnSeq || o.CoordinatorEpoch != epoch || c.h != hash32(id) {
					t.Fatalf("asked for %s at epoch %d, and got %+v", rec, epoch, o)
				}
				same := old != nil && old.outcome.Producer == rec.Producer && old.outcome.TxnSeq == rec.TxnSeq && old.outcome.CoordinatorEpoch == epoch
				if same != (c == old) {
					t.Fatalf("the one under way was given: %v", c == old)
				}
				if same {
					break
				}
				all = append(all, c)
				if o.Again != again || c.dispatched || len(c.remaining()) != 1 {
					t.Fatalf("a new one is %+v", c)
				}
				if old != nil && old.outcome.CoordinatorEpoch > epoch {
					ended[c] = true
					break
				}
				now[id] = c
				if old != nil {
					ended[old] = true
				}
			case "remove":
				if len(all) == 0 {
					break
				}
				c := rapid.SampledFrom(all).Draw(t, "which")
				cs.remove(c)
				ended[c] = true
				if now[c.outcome.TxnID] == c {
					delete(now, c.outcome.TxnID)
				}
			case "drop":
				cs.drop(Slot(id), epoch)
				for other, c := range now {
					if Slot(other) == Slot(id) && c.outcome.CoordinatorEpoch <= epoch {
						ended[c] = true
						delete(now, other)
					}
				}
			}
			for _, id := range ids {
				if cs.get(hash32(id), id) != now[id] {
					t.Fatalf("%s has %v, and should have %v", id, cs.get(hash32(id), id), now[id])
				}
			}
			for _, c := range all {
				over := false
				select {
				case <-c.done:
					over = true
				default:
				}
				if over != ended[c] || c.over != over {
					t.Fatalf("%+v is over: %v", c.outcome, over)
				}
			}
		}
	})
}
