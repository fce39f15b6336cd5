package slotfile_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

// gate counts the operations of one handle and stops its process before, or
// fails, one of them.
type gate struct {
	mu      sync.Mutex
	armed   bool
	n       int // operations since it was armed
	at      int
	fate    func() error // what becomes of the operation number at
	op      string       // that operation
	reached bool
}

func (g *gate) pass(op fsx.Op, name string) error {
	g.mu.Lock()
	hit := g.armed && g.n == g.at
	if g.armed {
		g.n++
	}
	if hit {
		g.reached, g.op = true, fmt.Sprintf("%s %s", op, name)
	}
	g.mu.Unlock()
	if hit {
		return g.fate()
	}
	return nil
}

func (g *gate) arm(at int, fate func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.n, g.at, g.fate, g.reached = true, 0, at, fate, false
}

func (g *gate) where() (op string, reached bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.op, g.reached
}

// forgiving is a file system that links a file which is no longer there, as a
// network file system may that has it in its cache. Nothing may rest on the
// source of a link being checked.
type forgiving struct{ fsx.FS }

func (f forgiving) OpenFile(name string, flag int, perm fs.FileMode) (fsx.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err == nil && flag&os.O_EXCL != 0 {
		err = errors.Join(f.FS.MkdirAll("/cached", 0o755), f.FS.Link(name, cached(name)))
	}
	return file, err
}

func (f forgiving) Link(old, new string) error {
	err := f.FS.Link(old, new)
	if errors.Is(err, fs.ErrNotExist) {
		return f.FS.Link(cached(old), new)
	}
	return err
}

func cached(name string) string { return "/cached/" + filepath.Base(name) }

func record(id string, n int64) txnstate.Record {
	r := txnstate.Unknown(id)
	r.State, r.Producer, r.PrevID = txnstate.CompleteCommit, txnstate.Producer{ID: 7, Epoch: 1}, 7
	r.UpdateMs = n
	return r
}

// Three ids of slot 25.
const (
	target, neighbour, third = "tx-ongoing", "pay-104", "pay-155"
)

func TestTheIDsOfTheseTestsShareASlot(t *testing.T) {
	for _, id := range []string{target, neighbour, third} {
		require.Equal(t, 25, txnstate.Slot(id), id)
	}
}

func open(t *testing.T, fsys fsx.FS) *slotfile.Store {
	t.Helper()
	s, err := slotfile.Open(slotfile.Config{Dir: "/cluster", FS: fsys})
	require.NoError(t, err)
	return s
}

// bump is one more write of an id, whatever is stored.
func bump(s txnstate.Store, id string, n int64) error {
	r, err := s.Load(context.Background(), id)
	if errors.Is(err, txnstate.ErrNotFound) {
		r, err = txnstate.Record{}, nil
	}
	if err != nil {
		return err
	}
	next := record(id, n)
	next.Version = r.Version
	_, err = s.Swap(context.Background(), next, txnstate.Durable)
	return err
}

// scene is what the slot looks like before a handle is stopped.
type scene struct {
	name string
	set  func(t *testing.T, fsys fsx.FS)
}

var scenes = []scene{
	{"an empty slot", func(*testing.T, fsx.FS) {}},
	{"a slot of the system before", func(t *testing.T, fsys fsx.FS) {
		require.NoError(t, fsys.MkdirAll("/cluster/txn_state", 0o755))
		require.NoError(t, fsys.Replace("/cluster/txn_state/slot-25.json", []byte(`{"tx-ongoing":{"pid":102,"epoch":0}}`), 0o644))
	}},
	{"a slot with a first generation", func(t *testing.T, fsys fsx.FS) {
		s := open(t, fsys)
		require.NoError(t, bump(s, target, 1))
		require.NoError(t, s.Close())
	}},
	{"a slot that has removed generations", func(t *testing.T, fsys fsx.FS) {
		s := open(t, fsys)
		for n := range int64(6) {
			require.NoError(t, bump(s, target, n))
		}
		require.NoError(t, s.Close())
	}},
}

// act is what the handle does that is stopped. r is the target's record as it
// found it.
type act struct {
	name string
	do   func(s txnstate.Store, r txnstate.Record)
}

var acts = []act{
	{"swap", func(s txnstate.Store, r txnstate.Record) {
		next := record(target, 1000)
		next.Version = r.Version
		_, _ = s.Swap(context.Background(), next, txnstate.Durable)
	}},
	{"delete", func(s txnstate.Store, r txnstate.Record) {
		_ = s.Delete(context.Background(), target, r.Version)
	}},
	{"load", func(s txnstate.Store, _ txnstate.Record) {
		_, _ = s.Load(context.Background(), target)
	}},
	{"swap and swap again", func(s txnstate.Store, r txnstate.Record) {
		next := record(target, 1000)
		next.Version = r.Version
		v, err := s.Swap(context.Background(), next, txnstate.Durable)
		if err == nil {
			next = record(target, 1001)
			next.Version = v
			_, _ = s.Swap(context.Background(), next, txnstate.Durable)
		}
	}},
}

// TestAHandleStoppedAnywhereIsHarmless stops handle A before every single
// operation of what it does, lets handle B write once, twice and ten times, so
// that the generations which A saw are removed, and wakes A. What all of them
// were told must fit one store that does one thing at a time: no two successes
// from one version, nothing lost, no success that was none (I10, I11). Where B wrote
// the id that A was about to change, the slot stays as B left it.
func TestAHandleStoppedAnywhereIsHarmless(t *testing.T) {
	for _, forgives := range []bool{false, true} {
		for k, sc := range scenes {
			for i, a := range acts {
				for _, warm := range []bool{true, false} {
					if !warm && (forgives || i%2 == 1) || forgives && (i == 2 || i == 3 && k < 3) {
						continue // the same operations again
					}
					t.Run(fmt.Sprintf("%s, %s, warm %t, forgiving links %t", sc.name, a.name, warm, forgives), func(t *testing.T) {
						t.Parallel()
						stops := 0
						counts := []int{1, 2, 10}
						if testing.Short() {
							counts = counts[2:]
						}
						for _, writes := range counts {
							for _, who := range [][]string{{target}, {neighbour, third}} {
								for at := 0; ; at++ {
									if !stopAndWake(t, sc, a, warm, forgives, at, writes, who) {
										stops += at
										break
									}
								}
							}
						}
						t.Logf("stopped %d times", stops)
					})
				}
			}
		}
	}
}

func stopAndWake(t *testing.T, sc scene, a act, warm, forgives bool, at, writes int, ids []string) (reached bool) {
	t.Helper()
	disk := fsx.Mem()
	sc.set(t, disk)
	underA := disk
	if forgives {
		underA = forgiving{disk}
	}
	var g gate
	stopped, wake := make(chan struct{}), make(chan struct{})
	slow := open(t, fsx.Hook(underA, g.pass))
	quick := open(t, disk)

	h := storetest.History{Used: true}
	sa, sb := h.Of(slow), h.Of(quick)
	var r txnstate.Record
	if warm {
		r, _ = sa.Load(t.Context(), target)
	} else {
		r, _ = sb.Load(t.Context(), target)
	}
	require.NoError(t, slow.Flush(t.Context()))
	require.NoError(t, quick.Flush(t.Context()))

	g.arm(at, func() error {
		close(stopped)
		<-wake
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.do(sa, r)
		_ = slow.Flush(context.Background()) // what comes after the answer is stopped too
	}()
	select {
	case <-stopped:
	case <-done:
	}
	op, reached := g.where()
	what := fmt.Sprintf("stopped before operation %d, %s; then %d writes of %v", at, op, writes, ids)
	for n := range writes {
		require.NoError(t, bump(sb, ids[n%len(ids)], int64(n)), what)
	}
	var left string
	if slices.Contains(ids, target) {
		left = newestFile(t, disk)
	}
	close(wake)
	<-done
	if left != "" {
		require.Equal(t, left, newestFile(t, disk), "%s: awake, it wrote", what)
	}

	// Everybody looks, and goes on.
	fresh := open(t, disk)
	sc2 := h.Of(fresh)
	for _, id := range []string{target, neighbour, third} {
		for _, s := range []txnstate.Store{sa, sb, sc2, sa} {
			_, _ = s.Load(t.Context(), id)
		}
	}
	require.NoError(t, bump(sa, target, 2000), what)
	require.NoError(t, bump(sb, target, 2001), what)
	require.NoError(t, bump(sc2, target, 2002), what)
	_, _ = sa.Load(t.Context(), target)
	require.NoError(t, h.Check(), what)

	for _, s := range []*slotfile.Store{slow, quick, fresh} {
		require.NoError(t, s.Close(), what)
	}
	wantTidy(t, disk, what)
	return reached
}

// A Later write is in memory only until it is flushed. Where the handle is stopped
// anywhere in that, and another writes the id first, the write is dropped; the slot
// stays as the other left it.
func TestALaterWriteOfAHandleStoppedAnywhereGivesWay(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			for at, reached := 0, true; reached; at++ {
				disk := fsx.Mem()
				sc.set(t, disk)
				var g gate
				stopped, wake := make(chan struct{}), make(chan struct{})
				slow, quick := open(t, fsx.Hook(disk, g.pass)), open(t, disk)
				require.NoError(t, bump(quick, target, 1))
				r, err := slow.Load(t.Context(), target)
				require.NoError(t, err)
				g.arm(at, func() error {
					close(stopped)
					<-wake
					return nil
				})
				done := make(chan struct{})
				go func() {
					defer close(done)
					next := record(target, 1000)
					next.Version = r.Version
					if _, err := slow.Swap(context.Background(), next, txnstate.Later); err == nil {
						_ = slow.Flush(context.Background()) // perhaps of nothing
					}
				}()
				select {
				case <-stopped:
				case <-done:
				}
				var op string
				op, reached = g.where()
				require.NoError(t, bump(quick, target, 2))
				left := newestFile(t, disk)
				close(wake)
				<-done
				require.Equal(t, left, newestFile(t, disk), "stopped ahead of operation %d, %s, it wrote", at, op)
				got, err := slow.Load(t.Context(), target)
				require.NoError(t, err)
				require.EqualValues(t, 2, got.UpdateMs)
				require.NoError(t, slow.Close())
				require.NoError(t, quick.Close())
				wantTidy(t, disk, op)
				if !reached {
					t.Logf("stopped %d times", at)
					require.Greater(t, at, 10)
				}
			}
		})
	}
}

// repeating is a network file system whose answer to a link was lost: it asks
// again, and meets its own.
type repeating struct {
	fsx.FS
	meanwhile func()
}

func (f repeating) Link(old, new string) error {
	if err := f.FS.Link(old, new); err != nil {
		return err
	}
	f.meanwhile()
	return f.FS.Link(old, new)
}

func TestALinkWhoseAnswerWasLostIsRecognised(t *testing.T) {
	for writes := range 6 { // by another, between the two requests
		disk := fsx.Mem()
		other := open(t, disk)
		h := storetest.History{}
		b := h.Of(other)
		var failed error
		s := open(t, repeating{disk, func() {
			for n := range writes {
				failed = errors.Join(failed, bump(b, neighbour, int64(n)))
			}
		}})
		a := h.Of(s)
		for n := range int64(4) {
			require.NoError(t, bump(a, target, n), "%d writes between", writes)
			require.NoError(t, bump(b, target, n+100))
		}
		require.NoError(t, failed)
		require.NoError(t, h.Check())
		require.NoError(t, s.Close())
		require.NoError(t, other.Close())
	}
}

// wantTidy checks what is left in slot 25's directory, and that the readable copy
// is one (I13).
func wantTidy(t *testing.T, disk fsx.FS, what string) {
	t.Helper()
	entries, err := disk.ReadDir("/cluster/txn_state/.versions/slot-25")
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		require.False(t, strings.HasPrefix(e.Name(), "tmp-") && e.Name() < "tmp-"+newestName(entries), "%s: %v", what, names)
	}
	require.LessOrEqual(t, len(names), 12, "%s: %v", what, names)
	_, body, _ := strings.Cut(newestFile(t, disk), "\n")
	readable, err := disk.ReadFile("/cluster/txn_state/slot-25.json")
	require.NoError(t, err)
	require.Equal(t, body, string(readable), what)
}

// newestFile is the newest generation of slot 25.
func newestFile(t *testing.T, disk fsx.FS) string {
	t.Helper()
	const dir = "/cluster/txn_state/.versions/slot-25/"
	entries, err := disk.ReadDir(dir)
	require.NoError(t, err)
	file, err := disk.ReadFile(dir + newestName(entries) + ".slot")
	require.NoError(t, err)
	return string(file)
}

func newestName(entries []fs.DirEntry) string {
	newest := ""
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".slot"); ok {
			newest = max(newest, name)
		}
	}
	return newest
}

// TestAFailureAnywhereIsTold fails each single operation of what a handle does,
// before it is performed and after, and asks everybody what they find: an error
// means not done or perhaps done, a success means done (I11), and the handle goes
// on working (I12).
func TestAFailureAnywhereIsTold(t *testing.T) {
	broken := errors.New("made-up I/O error")
	for _, sc := range scenes {
		for _, a := range acts {
			for _, when := range []string{"before", "after", "from then on"} {
				t.Run(fmt.Sprintf("%s, %s, %s", sc.name, a.name, when), func(t *testing.T) {
					t.Parallel()
					for at := 0; ; at++ {
						disk := fsx.Mem()
						sc.set(t, disk)
						var g gate
						var fsys fsx.FS
						if when == "after" {
							fsys = fsx.HookAfter(disk, func(op fsx.Op, name string, err error) error {
								if fault := g.pass(op, name); fault != nil && err == nil {
									return fault
								}
								return err
							})
						} else {
							fsys = fsx.Hook(disk, g.pass)
						}
						slow, quick := open(t, fsys), open(t, disk)
						h := storetest.History{Used: true}
						sa, sb := h.Of(slow), h.Of(quick)
						r, _ := sa.Load(t.Context(), target)
						require.NoError(t, slow.Flush(t.Context()))
						g.arm(at, func() error {
							if when == "from then on" {
								g.mu.Lock()
								g.at++
								g.mu.Unlock()
							}
							return broken
						})
						a.do(sa, r)
						_ = slow.Flush(t.Context())
						op, reached := g.where()
						what := fmt.Sprintf("operation %d, %s, failed", at, op)
						_, _ = sa.Load(t.Context(), target)
						_, _ = sb.Load(t.Context(), target)
						g.arm(-1, nil)
						for n, s := range []txnstate.Store{sa, sb, sa, sb} {
							require.NoError(t, bump(s, target, int64(2000+n)), what)
							require.NoError(t, bump(s, neighbour, int64(2000+n)), what)
						}
						_, _ = sa.Load(t.Context(), target)
						_, _ = sb.Load(t.Context(), target)
						require.NoError(t, h.Check(), what)
						require.NoError(t, slow.Close())
						require.NoError(t, quick.Close())
						wantTidy(t, disk, what)
						if !reached {
							return
						}
					}
				})
			}
		}
	}
}
