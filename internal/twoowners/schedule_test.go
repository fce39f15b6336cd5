package twoowners

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// step is something that a process is about to do.
type step struct {
	process int
	name    string
	order   int // of arrival, among those of its process
	granted chan struct{}
}

// scheduler stops processes before each step.
type scheduler struct {
	mu      sync.Mutex
	on      bool
	arrived int
	pending []*step
}

// enter waits until the process may do its next step.
func (s *scheduler) enter(process int, name string) {
	s.mu.Lock()
	if !s.on {
		s.mu.Unlock()
		return
	}
	st := &step{process, name, s.arrived, make(chan struct{})}
	s.arrived++
	s.pending = append(s.pending, st)
	s.mu.Unlock()
	<-st.granted
}

// waiting is what can be done next, in an order that does not depend on chance.
func (s *scheduler) waiting() []*step {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.pending, func(a, b *step) int {
		return cmp.Or(cmp.Compare(a.process, b.process), strings.Compare(a.name, b.name), cmp.Compare(a.order, b.order))
	})
	return slices.Clone(s.pending)
}

func (s *scheduler) grant(st *step) {
	s.mu.Lock()
	s.pending = slices.DeleteFunc(s.pending, func(p *step) bool { return p == st })
	s.mu.Unlock()
	close(st.granted)
}

// release lets everything go on from now on.
func (s *scheduler) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = false
	for _, st := range s.pending {
		close(st.granted)
	}
	s.pending = nil
}

// schedule is one way through the choices, and the means to find the next one.
type schedule struct {
	choices []choice
	at      int
	trace   []string
}

type choice struct {
	taken   int
	options string // what there was to choose from
	n       int
}

// choose takes one of n options. In a run that repeats the beginning of the one
// before, they have to be the same.
func (s *schedule) choose(n int, options string) (int, error) {
	if s.at == len(s.choices) {
		s.choices = append(s.choices, choice{0, options, n})
	}
	c := s.choices[s.at]
	s.at++
	if c.options != options {
		return 0, fmt.Errorf("the run does not repeat itself: choice %d was among %s, and is among %s", s.at, c.options, options)
	}
	return c.taken, nil
}

// next moves to the next schedule; false means that all have been run.
func (s *schedule) next() bool {
	s.at, s.trace = 0, nil
	for n := len(s.choices) - 1; n >= 0; n-- {
		if c := &s.choices[n]; c.taken+1 < c.n {
			c.taken++
			s.choices = s.choices[:n+1]
			return true
		}
	}
	return false
}

// drive lets steps happen one at a time until nothing has been waiting for a
// while. With a bound, a process goes on until it has nothing to do, or is
// preempted, which happens at most so often; without one (negative), each step is
// a choice among all.
func (s *schedule) drive(sched *scheduler, bound int, over func() bool) error {
	last := -1
	for idle := 0; idle < 3; {
		steps := sched.waiting()
		if len(steps) == 0 {
			if over() {
				idle++
			}
			time.Sleep(time.Second) // timers of the coordinators
			continue
		}
		idle = 0
		if bound >= 0 {
			steps, bound = perProcess(steps, last, bound)
		}
		names := make([]string, len(steps))
		for i, st := range steps {
			names[i] = fmt.Sprintf("%d:%s", st.process, st.name)
		}
		i, err := s.choose(len(steps), strings.Join(names, ", "))
		if err != nil {
			return err
		}
		if i > 0 && steps[0].process == last && bound > 0 {
			bound--
		}
		last = steps[i].process
		s.trace = append(s.trace, names[i])
		sched.grant(steps[i])
	}
	return nil
}

// perProcess keeps one step of each process, that of the running one first, and
// alone where nobody may preempt it.
func perProcess(steps []*step, last, bound int) ([]*step, int) {
	var firsts []*step
	for _, st := range steps {
		if !slices.ContainsFunc(firsts, func(f *step) bool { return f.process == st.process }) {
			firsts = append(firsts, st)
		}
	}
	if i := slices.IndexFunc(firsts, func(f *step) bool { return f.process == last }); i >= 0 {
		firsts[0], firsts[i] = firsts[i], firsts[0]
		if bound == 0 {
			firsts = firsts[:1]
		}
	}
	return firsts, bound
}

// explore runs a test under every schedule until one fails, which it describes,
// and tells how many there were.
func explore(t *testing.T, run func(t *testing.T, s *schedule) error) (schedules int, err error) {
	t.Helper()
	var s schedule
	longest := 0
	for n := 1; ; n++ {
		synctest.Test(t, func(t *testing.T) { err = run(t, &s) })
		longest = max(longest, len(s.trace))
		if err != nil || t.Failed() {
			return n, fmt.Errorf("schedule %d: %w\n\t%s", n, err, strings.Join(s.trace, "\n\t"))
		}
		if !s.next() {
			t.Logf("%d schedules of up to %d steps", n, longest)
			return n, nil
		}
	}
}

// all demands that a test succeeds under every schedule.
func all(t *testing.T, run func(t *testing.T, s *schedule) error) {
	t.Helper()
	if _, err := explore(t, run); err != nil {
		t.Error(err)
	}
}
