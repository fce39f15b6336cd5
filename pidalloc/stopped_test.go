package pidalloc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// stepped takes Replace apart, so that a process can be stopped inside it, for
// instance ahead of the rename that puts an old number over a newer one.
type stepped struct{ fsx.FS }

func (s stepped) Replace(name string, data []byte, perm fs.FileMode) error {
	return fsx.ReplaceInSteps(s.FS, name, data, perm)
}

const never = -1

var errInjected = errors.New("injected fault")

// process is an allocator on a disk that it shares with others. Its operations
// are numbered, and it can be stopped ahead of one and failed at one.
type process struct {
	name string
	a    *Allocator

	// Touched by the refill under way, and by the test while there is none.
	ops        int
	stopAt     int // stop ahead of this operation
	failBefore int // this operation fails and is not performed
	failAfter  int // this operation fails and is performed all the same
	failed     string
	trace      []string // what was performed

	stopped chan struct{}
	goOn    chan struct{}
	answer  chan answer
}

type answer struct {
	id  int64
	err error
}

func newProcess(t require.TestingT, name string, disk fsx.FS, blockSize int) *process {
	p := &process{
		name: name, stopAt: never, failBefore: never, failAfter: never,
		stopped: make(chan struct{}), goOn: make(chan struct{}), answer: make(chan answer),
	}
	fsys := fsx.HookAfter(disk, func(op fsx.Op, name string, err error) error {
		if p.ops-1 == p.failAfter {
			p.failed = string(op) + " " + name
			return errInjected
		}
		if err == nil {
			p.trace = append(p.trace, string(op)+" "+name)
		}
		return err
	})
	fsys = fsx.Hook(fsys, func(op fsx.Op, name string) error {
		n := p.ops
		p.ops++
		if n == p.stopAt {
			p.stopped <- struct{}{}
			<-p.goOn
		}
		if n == p.failBefore {
			p.failed = string(op) + " " + name
			return errInjected
		}
		return nil
	})
	a, err := New(Config{Dir: "data", BlockSize: blockSize, FS: stepped{fsys}})
	require.NoError(t, err)
	p.a = a
	return p
}

// next calls Next and waits until it answers or is stopped.
func (p *process) next() (a answer, stopped bool) {
	go func() {
		id, err := p.a.Next(context.Background())
		p.answer <- answer{id, err}
	}()
	return p.wait()
}

// wake lets a stopped process go on and waits as next does.
func (p *process) wake() (a answer, stopped bool) {
	p.goOn <- struct{}{}
	return p.wait()
}

func (p *process) wait() (a answer, stopped bool) {
	select {
	case a = <-p.answer:
		return a, false
	case <-p.stopped:
		return answer{}, true
	}
}

// take draws n ids, with no fault and no stop, into the ledger.
func (p *process) take(t failer, l *ledger, n int) {
	t.Helper()
	for range n {
		a, stopped := p.next()
		if stopped || a.err != nil {
			t.Fatalf("%s: %v", p.name, a.err)
		}
		l.add(t, p.name, a.id)
	}
}

// wakeInto wakes a stopped process and puts what it answers into the ledger.
func (p *process) wakeInto(t failer, l *ledger) {
	t.Helper()
	a, stopped := p.wake()
	if stopped || a.err != nil {
		t.Fatalf("%s woke up: %v", p.name, a.err)
	}
	l.add(t, p.name, a.id)
}

// disks gives the two states a process may start in: nothing there, and a chain
// that others have used before.
func disks(t *testing.T, test func(t *testing.T, disk func() (fsx.FS, *ledger))) {
	t.Run("on an empty disk", func(t *testing.T) {
		t.Parallel()
		test(t, func() (fsx.FS, *ledger) { return fsx.Mem(), &ledger{} })
	})
	t.Run("on a used disk", func(t *testing.T) {
		t.Parallel()
		test(t, func() (fsx.FS, *ledger) {
			disk, l := fsx.Mem(), &ledger{}
			newProcess(t, "earlier", disk, testBlock).take(t, l, testBlock+1)
			return disk, l
		})
	})
}

// Several blocks are used up between a stop and the wake-up, so that anything
// that was cleared away could have been, and is there to be repeated.
const (
	testBlock = 5
	several   = 4*testBlock + 2
)

// checkNothingPilesUp demands that the chain and its token are all there is.
func checkNothingPilesUp(t require.TestingT, disk fsx.FS) {
	for dir, want := range map[string]int{tokens: 2, "data/producer_ids": 2} {
		entries, err := disk.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, want, dir)
	}
}

// checkDurable demands of a process that has just claimed its block and given
// out the first id: the moved token was synced, and after that a JSON file that
// is not behind, whoever wrote it.
func checkDurable(t require.TestingT, p *process) {
	moved := slices.IndexFunc(p.trace, func(s string) bool { return strings.HasPrefix(s, "rename "+tokens) })
	require.GreaterOrEqual(t, moved, 0, p.trace)
	after := p.trace[moved:]
	synced := slices.Index(after, "sync dir "+tokens)
	require.Positive(t, synced, after)
	require.Contains(t, after[synced:], "sync dir data/producer_ids")
}

// checkFiles demands that the JSON file has been brought up to the token.
func checkFiles(t failer, disk fsx.FS) {
	t.Helper()
	entries, err := disk.ReadDir(tokens)
	if err != nil {
		t.Fatalf("%v", err)
	}
	chain, err := disk.ReadFile(tokens + "/chain")
	if err != nil {
		t.Fatalf("%v", err)
	}
	var at []int64
	for _, e := range entries {
		if n, ok := parseToken(string(chain), e.Name()); ok {
			at = append(at, n)
		}
	}
	b, err := disk.ReadFile(jsonFile)
	if err != nil {
		t.Fatalf("%v", err)
	}
	n, err := decodeBlockFile(b)
	if err != nil || len(at) != 1 || n != at[0] {
		t.Fatalf("tokens at %d, but the file says %s (%v)", at, b, err)
	}
}

func TestI6_AProcessStoppedAtAnyOperationRepeatsNothing(t *testing.T) {
	t.Parallel()
	disks(t, func(t *testing.T, newDisk func() (fsx.FS, *ledger)) {
		for k := 0; ; k++ {
			disk, l := newDisk()
			a, b := newProcess(t, "a", disk, testBlock), newProcess(t, "b", disk, testBlock)
			a.stopAt = k
			got, stopped := a.next()
			if !stopped {
				require.NoError(t, got.err)
				require.Greater(t, k, 15, "it has more operations than that to be stopped at")
				return
			}
			b.take(t, l, several)
			a.wakeInto(t, l)
			checkDurable(t, a)
			checkFiles(t, disk) // mended, if it was put back
			checkNothingPilesUp(t, disk)
			a.take(t, l, several)
			b.take(t, l, several)
			newProcess(t, "c", disk, testBlock).take(t, l, several)
			checkFiles(t, disk)
		}
	})
}

func TestI6_TwoProcessesStoppedAtAnyTwoOperationsRepeatNothing(t *testing.T) {
	t.Parallel()
	disks(t, func(t *testing.T, newDisk func() (fsx.FS, *ledger)) {
		for k := 0; ; k++ {
			for j := 0; ; j++ {
				disk, l := newDisk()
				a, b := newProcess(t, "a", disk, testBlock), newProcess(t, "b", disk, testBlock)
				a.stopAt, b.stopAt = k, j
				if got, stopped := a.next(); !stopped {
					require.NoError(t, got.err)
					return
				}
				got, stopped := b.next()
				if !stopped {
					require.NoError(t, got.err)
					l.add(t, "b", got.id)
					a.wakeInto(t, l)
					break
				}
				newProcess(t, "c", disk, testBlock).take(t, l, several)
				first, second := a, b
				if (k+j)%2 == 1 {
					first, second = b, a
				}
				first.wakeInto(t, l)
				first.take(t, l, several)
				second.wakeInto(t, l)
				second.take(t, l, several)
				newProcess(t, "d", disk, testBlock).take(t, l, several)
				checkFiles(t, disk)
				checkNothingPilesUp(t, disk)
			}
		}
	})
}

// A process that dies is one that was stopped and never woken.
func TestF27_AProcessKilledAtAnyOperationLosesIDsAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	disks(t, func(t *testing.T, newDisk func() (fsx.FS, *ledger)) {
		for k := 0; ; k++ {
			disk, l := newDisk()
			a := newProcess(t, "killed", disk, testBlock)
			a.stopAt = k
			if _, stopped := a.next(); !stopped {
				return
			}
			t.Cleanup(func() { _, _ = a.wake() }) // lets its goroutine end, long after
			newProcess(t, "restarted", disk, testBlock).take(t, l, several)
			checkFiles(t, disk)
		}
	})
}

func TestW16_AFaultAtAnyOperationIsAnErrorAndNeverAnID(t *testing.T) {
	t.Parallel()
	for what, set := range map[string]func(p *process, k int){
		"not performed":             func(p *process, k int) { p.failBefore = k },
		"performed all the same":    func(p *process, k int) { p.failAfter = k },
		"performed, and it repeats": func(p *process, k int) { p.failAfter, p.failBefore = k, k+1 },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			disks(t, func(t *testing.T, newDisk func() (fsx.FS, *ledger)) {
				for k := 0; ; k++ {
					disk, l := newDisk()
					a, b := newProcess(t, "a", disk, testBlock), newProcess(t, "b", disk, testBlock)
					set(a, k)
					got, _ := a.next()
					if got.err == nil && a.ops <= k {
						require.Greater(t, k, 15)
						return
					}
					if got.err == nil {
						// The host's directory was there before, or is made anew.
						require.Contains(t, []string{"sync dir data", "sync dir ."}, a.failed)
						l.add(t, "a", got.id)
					} else {
						require.ErrorIs(t, got.err, errInjected)
						require.Zero(t, got.id)
					}
					a.failBefore, a.failAfter = never, never
					b.take(t, l, several)
					a.take(t, l, several) // the fault is over and so is the failing
					newProcess(t, "c", disk, testBlock).take(t, l, several)
					checkFiles(t, disk)
				}
			})
		})
	}
}

// Processes with one broker id, in any number, are started, stopped, woken,
// killed and failed at random. The model is a set: no id twice.
func TestI6_NoScheduleOfProcessesStopsAndFaultsRepeatsAnID(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		disk, l := fsx.Mem(), &ledger{}
		var awake, asleep []*process
		last := map[*process]int64{}
		started := 0
		// settle takes note of an answer and puts the process where it belongs.
		settle := func(p *process, got answer, stopped bool) {
			switch {
			case stopped:
				asleep = append(asleep, p)
				return
			case got.err == nil:
				l.add(t, p.name, got.id)
				if before, ok := last[p]; ok && got.id <= before {
					t.Fatalf("%s: %d after %d", p.name, got.id, before)
				}
				last[p] = got.id
			case !errors.Is(got.err, errInjected):
				t.Fatalf("%s: %v", p.name, got.err)
			}
			awake = append(awake, p)
		}
		// draw takes a process out of a list.
		draw := func(from *[]*process, label string) *process {
			if len(*from) == 0 {
				t.Skip("nobody there")
			}
			i := rapid.IntRange(0, len(*from)-1).Draw(t, label)
			p := (*from)[i]
			*from = append((*from)[:i:i], (*from)[i+1:]...)
			return p
		}
		ahead := rapid.IntRange(0, 30)
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				started++
				size := rapid.IntRange(1, 4).Draw(t, "block size")
				awake = append(awake, newProcess(t, fmt.Sprintf("p%d", started), disk, size))
			},
			"next": func(t *rapid.T) {
				p := draw(&awake, "process")
				got, stopped := p.next()
				settle(p, got, stopped)
			},
			"stop": func(t *rapid.T) {
				p := draw(&awake, "process")
				p.stopAt = p.ops + ahead.Draw(t, "ahead of")
				awake = append(awake, p)
			},
			"wake": func(t *rapid.T) {
				p := draw(&asleep, "process")
				got, stopped := p.wake()
				settle(p, got, stopped)
			},
			"fail": func(t *rapid.T) {
				p := draw(&awake, "process")
				k := p.ops + ahead.Draw(t, "operation")
				if rapid.Bool().Draw(t, "performed") {
					p.failAfter = k
				} else {
					p.failBefore = k
				}
				awake = append(awake, p)
			},
		})
		for len(asleep) > 0 {
			p := asleep[0]
			asleep = asleep[1:]
			got, stopped := p.wake()
			settle(p, got, stopped)
		}
		newProcess(t, "last", disk, testBlock).take(t, l, several)
		checkFiles(t, disk)
	})
}

func TestTheLedgerNoticesARepeat(t *testing.T) {
	t.Parallel()
	var l ledger
	var f recorder
	l.add(&f, "a", 7)
	assert.Empty(t, f.failures)
	l.add(&f, "b", 7)
	require.Len(t, f.failures, 1)
	assert.True(t, strings.Contains(f.failures[0], "went to a and to b"), f.failures[0])
}

type recorder struct{ failures []string }

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
