package pidalloc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

var (
	_ txnstate.ProducerIDs = (*Allocator)(nil)
	_ txnstate.ProducerIDs = (*Counter)(nil)
)

const firstOfBroker0 = sliceSize

// allocator returns an allocator of broker 0 in the directory "data".
func allocator(t testing.TB, fsys fsx.FS, blockSize int) *Allocator {
	t.Helper()
	a, err := New(Config{Dir: "data", Broker: 0, BlockSize: blockSize, FS: fsys})
	require.NoError(t, err)
	return a
}

func next(t testing.TB, a *Allocator) int64 {
	t.Helper()
	id, err := a.Next(t.Context())
	require.NoError(t, err)
	return id
}

// failer is what *testing.T and *rapid.T have in common here.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// ledger remembers every id given out and fails the test when one is repeated.
// Any goroutine may add to it.
type ledger struct {
	mu   sync.Mutex
	seen map[int64]string
}

func (l *ledger) add(t failer, who string, id int64) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, repeated := l.seen[id]; repeated {
		t.Errorf("id %d (local %d) went to %s and to %s", id, id-firstOfBroker0, other, who)
	}
	if l.seen == nil {
		l.seen = map[int64]string{}
	}
	l.seen[id] = who
}

// take draws n ids into the ledger.
func (l *ledger) take(t testing.TB, who string, a *Allocator, n int) {
	t.Helper()
	for range n {
		l.add(t, who, next(t, a))
	}
}

func TestF27_ManyCallersGetDistinctIDs(t *testing.T) {
	t.Parallel()
	const callers, each = 64, 10_000
	a := allocator(t, fsx.Mem(), 0)
	got := make([][]int64, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				id, err := a.Next(t.Context())
				if !assert.NoError(t, err) {
					return
				}
				got[i] = append(got[i], id)
			}
		})
	}
	wg.Wait()
	seen := make([]bool, callers*each)
	for _, ids := range got {
		for _, id := range ids {
			local := id - firstOfBroker0
			require.Less(t, local, int64(len(seen)), "no id was skipped, for nothing failed")
			require.False(t, seen[local], "id %d twice", id)
			seen[local] = true
		}
	}
}

func TestF27_ARestartSkipsTheRestOfItsBlockAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	var l ledger
	for run := range 5 {
		a := allocator(t, fsys, 10)
		first := next(t, a)
		assert.EqualValues(t, firstOfBroker0+20*int64(run), first)
		l.add(t, fmt.Sprint("run ", run), first)
		l.take(t, fmt.Sprint("run ", run), a, 13)
	}
}

func TestF27_ABlockOfOneIDWorks(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	a, b := allocator(t, fsys, 1), allocator(t, fsys, 1)
	var l ledger
	for range 20 {
		l.take(t, "a", a, 2)
		l.take(t, "b", b, 1)
	}
}

func TestTwoProcessesMayDifferInTheBlockSize(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	a, b := allocator(t, fsys, 7), allocator(t, fsys, 3)
	var l ledger
	for range 20 {
		l.take(t, "a", a, 5)
		l.take(t, "b", b, 5)
	}
}

func TestBrokersHaveSlicesOfTheirOwn(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	for _, broker := range []int32{0, 1, 7, maxBroker} {
		a, err := New(Config{Dir: "data", Broker: broker, FS: fsys})
		require.NoError(t, err)
		assert.Equal(t, (int64(broker)+1)<<40, next(t, a))
	}
}

func TestTheConfigurationIsCheckedWhole(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Broker: -1, BlockSize: -1})
	require.Error(t, err)
	for _, field := range []string{"Dir", "Broker", "BlockSize"} {
		assert.ErrorContains(t, err, field)
	}
	_, err = New(Config{Dir: "data", Broker: maxBroker + 1})
	require.Error(t, err, "its last ids would not fit into an int64")
}

func TestNewTouchesNoFile(t *testing.T) {
	t.Parallel()
	allocator(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
		t.Errorf("%s %s", op, name)
		return nil
	}), 0)
}

func TestTheFilesAreWhereTheLayoutSays(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster")
	a, err := New(Config{Dir: dir, Broker: 3})
	require.NoError(t, err)
	assert.Equal(t, int64(4)<<40, next(t, a))
	b, err := os.ReadFile(filepath.Join(dir, "producer_ids", "kaas-3.json"))
	require.NoError(t, err)
	assert.Equal(t, `{"nextBlock":1000}`, string(b))

	// What is left behind is bounded: the chain and its token.
	for range 5000 {
		next(t, a)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "producer_ids", ".claims", "kaas-3"))
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.True(t, strings.HasSuffix(entries[0].Name(), "-6000"), entries[0].Name())
	assert.Equal(t, "chain", entries[1].Name())
}

func TestAFileLeftByAnotherSystemIsTakenUpWhereItEnds(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	writeJSON(t, fsys, `{"nextBlock":5000}`)
	a := allocator(t, fsys, 0)
	assert.EqualValues(t, firstOfBroker0+5000, next(t, a))
	assert.Equal(t, `{"nextBlock":6000}`, readJSON(t, fsys))
}

func TestAJSONFileAheadOfTheTokenIsRespected(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	next(t, allocator(t, fsys, 0))
	writeJSON(t, fsys, `{"nextBlock":7500}`)
	assert.EqualValues(t, firstOfBroker0+7500, next(t, allocator(t, fsys, 0)))
	assert.Equal(t, `{"nextBlock":8500}`, readJSON(t, fsys))
}

func TestAJSONFileBehindTheTokenIsNotBelieved(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	var l ledger
	l.take(t, "before", allocator(t, fsys, 10), 35)
	writeJSON(t, fsys, `{"nextBlock":10}`)
	l.take(t, "behind", allocator(t, fsys, 10), 1)
	assert.Equal(t, `{"nextBlock":50}`, readJSON(t, fsys))
	require.NoError(t, fsys.Remove(jsonFile))
	l.take(t, "removed", allocator(t, fsys, 10), 1)
	assert.Equal(t, `{"nextBlock":60}`, readJSON(t, fsys))
}

// The files of broker 0 in the directory "data".
const (
	jsonFile = "data/producer_ids/kaas-0.json"
	tokens   = "data/producer_ids/.claims/kaas-0"
)

func writeJSON(t testing.TB, fsys fsx.FS, content string) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll("data/producer_ids", 0o755))
	require.NoError(t, fsys.Replace(jsonFile, []byte(content), 0o644))
}

func readJSON(t testing.TB, fsys fsx.FS) string {
	t.Helper()
	b, err := fsys.ReadFile(jsonFile)
	require.NoError(t, err)
	return string(b)
}

func TestW16_ACorruptFileIsAnErrorAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	for _, content := range corruptFiles {
		t.Run(content, func(t *testing.T) {
			t.Parallel()
			fsys := fsx.Mem()
			writeJSON(t, fsys, content)
			fresh := allocator(t, fsys, 10)
			for range 2 {
				_, err := fresh.Next(t.Context())
				require.ErrorIs(t, err, ErrCorrupt)
				require.ErrorContains(t, err, "kaas-0.json")
			}
			assert.Equal(t, content, readJSON(t, fsys))

			// Mended, it is read anew; and damaged again it stops an allocator
			// that has a token as well, once the block in memory is used up.
			writeJSON(t, fsys, `{"nextBlock":100}`)
			for i := range int64(10) {
				require.Equal(t, firstOfBroker0+100+i, next(t, fresh))
			}
			writeJSON(t, fsys, content)
			_, err := fresh.Next(t.Context())
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

func TestADamagedChainOrALostTokenIsAnError(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	a := allocator(t, fsys, 1)
	next(t, a)
	chain, err := fsys.ReadFile(tokens + "/chain")
	require.NoError(t, err)
	token := tokens + "/" + tokenName(string(chain), 1)

	require.NoError(t, fsys.Rename(token, "token"))
	_, err = a.Next(t.Context())
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, string(chain))
	require.NoError(t, fsys.Rename("token", token))

	require.NoError(t, fsys.Replace(tokens+"/chain", chain[:5], 0o644))
	_, err = a.Next(t.Context())
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, fsys.Replace(tokens+"/chain", chain, 0o644))
	assert.EqualValues(t, firstOfBroker0+1, next(t, a))
}

func TestF27_ABlockAtOrBelowTheLastOneIsRefused(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	a := allocator(t, fsys, 10)
	var l ledger
	l.take(t, "a", a, 30)
	// Somebody restores yesterday's directory under the running process.
	chain, err := fsys.ReadFile(tokens + "/chain")
	require.NoError(t, err)
	move := func(from, to int64) {
		t.Helper()
		require.NoError(t, fsys.Rename(tokens+"/"+tokenName(string(chain), from), tokens+"/"+tokenName(string(chain), to)))
	}
	for _, restored := range []int64{29, 20, 0} {
		move(30, restored)
		writeJSON(t, fsys, fmt.Sprintf(`{"nextBlock":%d}`, restored))
		_, err := a.Next(t.Context())
		require.ErrorIs(t, err, ErrCorrupt)
		move(restored, 30)
	}
	l.take(t, "a", a, 10)
	// As the documentation says for a restore: a number that is high enough.
	move(40, 0)
	writeJSON(t, fsys, `{"nextBlock":1000}`)
	l.take(t, "a", a, 10)
	l.take(t, "restarted", allocator(t, fsys, 10), 10)
}

func TestF27_TheEndOfTheSliceIsAnErrorAndNoWrapAround(t *testing.T) {
	t.Parallel()
	for _, broker := range []int32{0, maxBroker} {
		fsys := fsx.Mem()
		require.NoError(t, fsys.MkdirAll("data/producer_ids", 0o755))
		require.NoError(t, fsys.Replace(fmt.Sprintf("data/producer_ids/kaas-%d.json", broker),
			fmt.Appendf(nil, `{"nextBlock":%d}`, sliceSize-3), 0o644))
		a, err := New(Config{Dir: "data", Broker: broker, FS: fsys})
		require.NoError(t, err)
		last := (int64(broker)+2)<<40 - 1 // for the last broker this is the largest int64
		for _, want := range []int64{last - 2, last - 1, last} {
			assert.Equal(t, want, next(t, a))
		}
		for range 3 {
			_, err = a.Next(t.Context())
			require.ErrorIs(t, err, ErrExhausted)
		}
		b, err := New(Config{Dir: "data", Broker: broker, FS: fsys})
		require.NoError(t, err)
		_, err = b.Next(t.Context())
		require.ErrorIs(t, err, ErrExhausted)
	}
}

// gate stops every operation of a kind until it is opened.
type gate struct {
	reached chan struct{} // gets a value when an operation arrives
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) pass() {
	g.reached <- struct{}{}
	<-g.open
}

func TestTheEndOfAContextEndsTheWaitingOnly(t *testing.T) {
	t.Parallel()
	g, renames := newGate(), 0
	a := allocator(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpRename {
			renames++
			g.pass()
		}
		return nil
	}), 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error)
	go func() {
		_, err := a.Next(ctx)
		failed <- err
	}()
	<-g.reached // the volume hangs in the middle
	reason := errors.New("the client went away")
	cancel(reason)
	require.ErrorIs(t, <-failed, reason)

	got := make(chan answer)
	go func() {
		id, err := a.Next(t.Context())
		got <- answer{id, err}
	}()
	close(g.open)
	assert.Equal(t, answer{id: firstOfBroker0}, <-got, "the block that the first caller asked for was not lost")
	assert.Equal(t, 1, renames)

	_, err := a.Next(ctx)
	require.NoError(t, err, "an id in memory needs no waiting, so no context ends it")
}

func TestACallThatNobodyWaitsForFetchesNothing(t *testing.T) {
	t.Parallel()
	a := allocator(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
		t.Errorf("%s %s", op, name)
		return nil
	}), 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := a.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestConcurrentCallersShareOneBlock(t *testing.T) {
	t.Parallel()
	const callers = 50
	g, renames := newGate(), 0
	a := allocator(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpRename {
			renames++
			g.pass()
		}
		return nil
	}), callers)
	var l ledger
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			if id, err := a.Next(t.Context()); assert.NoError(t, err) {
				l.add(t, fmt.Sprint("caller ", i), id)
			}
		})
	}
	<-g.reached
	close(g.open)
	wg.Wait()
	assert.Equal(t, 1, renames)
	assert.Len(t, l.seen, callers)
}

func TestCallersWhoWaitShareAFailureAndTheNextOneTriesAgain(t *testing.T) {
	t.Parallel()
	fault, failing := errors.New("no space left on device"), true
	a := allocator(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpRename && failing {
			return fault
		}
		return nil
	}), 0)
	for range 3 {
		id, err := a.Next(t.Context())
		require.ErrorIs(t, err, fault)
		require.Zero(t, id)
	}
	failing = false
	assert.EqualValues(t, firstOfBroker0, next(t, a))
}

// A network file system that repeats a request whose answer was lost reports
// the second attempt: the link that exists, the name that is gone.
func TestAnAnswerLostOnTheNetworkCostsIDsAndNothingElse(t *testing.T) {
	t.Parallel()
	for op, answer := range map[fsx.Op]error{fsx.OpLink: fs.ErrExist, fsx.OpRename: fs.ErrNotExist} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			inner, lost := fsx.Mem(), 1
			fsys := fsx.HookAfter(inner, func(did fsx.Op, _ string, err error) error {
				if did == op && err == nil && lost > 0 {
					lost--
					return answer
				}
				return err
			})
			var l ledger
			l.take(t, "a", allocator(t, fsys, 10), 15)
			l.take(t, "b", allocator(t, inner, 10), 15)
			assert.Zero(t, lost)
		})
	}
}

func TestATokenThatIsMissedWhileItMovesIsLookedForAgain(t *testing.T) {
	t.Parallel()
	fsys := &flickering{FS: fsx.Mem()}
	a := allocator(t, fsys, 1)
	var l ledger
	l.take(t, "a", a, 1)
	fsys.hidden = maxAttempts - 1
	l.take(t, "a", a, 1)
	fsys.hidden = math.MaxInt
	_, err := a.Next(t.Context())
	require.ErrorIs(t, err, ErrCorrupt, "it does not look for ever")
}

// flickering lists no names for a while.
type flickering struct {
	fsx.FS
	hidden int
}

func (f *flickering) ReadDir(name string) ([]fs.DirEntry, error) {
	if f.hidden > 0 {
		f.hidden--
		return nil, nil
	}
	return f.FS.ReadDir(name)
}

// A file system without journal may come back from a crash with both names of a
// rename that was under way.
func TestOfTwoTokensTheLowerIsNeverTaken(t *testing.T) {
	t.Parallel()
	fsys := fsx.Mem()
	var l ledger
	l.take(t, "before", allocator(t, fsys, 10), 30)
	chain, err := fsys.ReadFile(tokens + "/chain")
	require.NoError(t, err)
	for _, at := range []int64{0, 9, 20} {
		require.NoError(t, fsys.Link(tokens+"/chain", tokens+"/"+tokenName(string(chain), at)))
	}
	// Nor may the JSON file make up for it: it may be behind.
	require.NoError(t, fsys.Remove("data/producer_ids/kaas-0.json"))
	a, b := allocator(t, fsys, 10), allocator(t, fsys, 10)
	for range 5 {
		l.take(t, "a", a, 7)
		l.take(t, "b", b, 7)
	}
	entries, err := fsys.ReadDir(tokens)
	require.NoError(t, err)
	assert.Len(t, entries, 2)
}

// The child is a process that draws ids and prints them.
func TestI6_ProcessesThatShareABrokerIDGetDistinctIDs(t *testing.T) {
	const variable, each = "PIDALLOC_TEST_DIR", 60
	if dir := os.Getenv(variable); dir != "" {
		a, err := New(Config{Dir: dir, BlockSize: 3})
		require.NoError(t, err)
		for range each {
			fmt.Printf("id %d\n", next(t, a))
		}
		return
	}
	t.Parallel()
	dir := t.TempDir()
	var l ledger
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestI6_ProcessesThatShareABrokerIDGetDistinctIDs$")
			cmd.Env = append(os.Environ(), variable+"="+dir)
			out, err := cmd.CombinedOutput()
			if !assert.NoError(t, err, string(out)) {
				return
			}
			for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
				if digits, ok := strings.CutPrefix(lines.Text(), "id "); ok {
					id, err := strconv.ParseInt(digits, 10, 64)
					assert.NoError(t, err)
					l.add(t, fmt.Sprint("process ", i), id)
				}
			}
		})
	}
	wg.Wait()
	assert.Len(t, l.seen, 3*each)
}

func TestMemoryNeverRepeatsAndEndsAtTheLargestInt64(t *testing.T) {
	t.Parallel()
	c := Memory(7)
	var l ledger
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				id, err := c.Next(t.Context())
				assert.NoError(t, err)
				l.add(t, "memory", id)
			}
		})
	}
	wg.Wait()
	assert.Len(t, l.seen, 8000)
	assert.Contains(t, l.seen, int64(7))

	c = Memory(math.MaxInt64 - 1)
	for _, want := range []int64{math.MaxInt64 - 1, math.MaxInt64} {
		id, err := c.Next(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, id)
	}
	for range 2 {
		_, err := c.Next(t.Context())
		require.ErrorIs(t, err, ErrExhausted)
	}
	_, err := Memory(-1).Next(t.Context())
	require.Error(t, err, "no client may be given a negative id")
}
