package explore

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// Result says what was walked through.
type Result struct {
	States int // different ones
	Moves  int // from one to the next
	Depth  int // moves to the farthest one
	// Cut are states that were not gone on from, since the transactions or the
	// producer ids of the model were used up. Stopped: Limit was reached.
	Cut     int
	Stopped bool
	// Violation is the first one found, with the way there, the shortest that
	// leads to any; "" for none.
	Violation string
}

// Explore walks through every reachable state of a world, breadth first, up to a
// limit of states; zero is none. States are told apart by 64 bits: of ten million
// of them two are taken for one with a probability of three in a million.
func Explore(w World, limit int) Result {
	e := &explorer{walker: walker{World: w}, seed: maphash.MakeSeed(), seen: map[uint64]int32{}, settled: map[uint64]struct{}{}}
	e.walker.emit = e.add
	e.from = -1
	begin := e.begin()
	e.add(label{}, &begin)
	e.run(limit)
	e.States = len(e.prints)
	return e.Result
}

type explorer struct {
	walker
	Result
	seed    maphash.Seed
	seen    map[uint64]int32    // numbers of states, by print
	prints  []uint64            // by number
	parents []int32             // by number
	settled map[uint64]struct{} // prints of what was settled, without what does not matter to that
	next    []state
	from    int32 // the state that is gone on from
}

func (e *explorer) print(s *state) uint64 { return maphash.Comparable(e.seed, *s) }

func (e *explorer) add(_ label, s *state) {
	e.Moves++
	print := e.print(s)
	if _, ok := e.seen[print]; ok {
		return
	}
	e.seen[print] = int32(len(e.prints))
	e.prints = append(e.prints, print)
	e.parents = append(e.parents, e.from)
	e.next = append(e.next, *s)
}

func (e *explorer) run(limit int) {
	var level []state
	first := int32(0) // number of the first state of the level
	for len(e.next) > 0 {
		level, e.next = e.next, level[:0]
		for i := range level {
			if e.Stopped = limit > 0 && len(e.prints) >= limit; e.Stopped {
				return
			}
			e.from = first + int32(i)
			s := &level[i]
			if s.g() > nTxns-3 || s.nextPID > nPIDs-1 {
				e.Cut++
				continue
			}
			if !e.try(func() { e.moves(s) }) || !e.try(func() { e.settleOnce(s) }) {
				return
			}
		}
		first += int32(len(level))
		e.Depth++
	}
}

// settleOnce is settle where that has not been done for a state that differs in
// nothing that matters to it.
func (e *explorer) settleOnce(s *state) {
	core := *s
	core.clients, core.faults, core.zombie, core.holder = [nClients]client{}, 0, false, 0
	print := e.print(&core)
	if _, ok := e.settled[print]; !ok {
		e.settled[print] = struct{}{}
		e.settle(*s)
	}
}

// try reports a violation in f, with the story that leads there.
func (e *explorer) try(f func()) (ok bool) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case broken:
			e.Violation = r.what + "\n" + e.story()
			ok = false
		default:
			panic(r)
		}
	}()
	f()
	return true
}

// story tells how the present state was reached.
func (e *explorer) story() string {
	var way []int32
	for at := e.from; at > 0; at = e.parents[at] {
		way = append(way, at)
	}
	slices.Reverse(way)
	var b strings.Builder
	s := e.begin()
	for i, at := range way {
		name, next := "?", s
		walk := &walker{World: e.World}
		walk.emit = func(l label, n *state) {
			if name == "?" && e.print(n) == e.prints[at] {
				name, next = l.String(), *n
			}
		}
		func() {
			defer func() { _ = recover() }() // this state was gone on from without a violation, or to one behind the move that is looked for
			walk.moves(&s)
		}()
		s = next
		fmt.Fprintf(&b, "  %d. %s\n", i+1, name)
	}
	fmt.Fprintf(&b, "  then: %s", s.String())
	return b.String()
}
