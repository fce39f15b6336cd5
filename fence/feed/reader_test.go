package feed_test

import (
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/fence/feed"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// offers are what a Reader has offered.
type offers struct {
	mu  sync.Mutex
	all []txnstate.Producer
}

func (o *offers) offer(p txnstate.Producer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, p)
}

// take is what was offered since the last time.
func (o *offers) take() []txnstate.Producer {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.all
	o.all = nil
	return all
}

func newReader(t testing.TB, disk fsx.FS, tune func(*feed.ReaderConfig)) (*feed.Reader, *offers) {
	t.Helper()
	o := &offers{}
	cfg := feed.ReaderConfig{Dir: "shared", FS: disk, Offer: o.offer}
	if tune != nil {
		tune(&cfg)
	}
	r, err := feed.NewReader(cfg)
	require.NoError(t, err)
	run(t, r.Run)
	return r, o
}

func put(t testing.TB, disk fsx.FS, name, data string) {
	t.Helper()
	require.NoError(t, disk.MkdirAll("shared/producer_fences", 0o755))
	require.NoError(t, disk.Replace("shared/producer_fences/"+name, []byte(data), 0o644))
}

func poll() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestNewsIsOfferedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		r, o := newReader(t, disk, nil)
		poll()
		require.Empty(t, o.take(), "there is no directory yet")
		put(t, disk, "from-3.json", `{"102":3,"7":1}`)
		put(t, disk, "from-4.json", `{"8":2}`)
		poll()
		require.Equal(t, []txnstate.Producer{pr(7, 1), pr(8, 2), pr(102, 3)}, o.take())
		poll()
		require.Empty(t, o.take())
		put(t, disk, "from-3.json", `{"102":4,"9":0}`)
		poll()
		require.Equal(t, []txnstate.Producer{pr(9, 0), pr(102, 4)}, o.take())
		require.Equal(t, []txnstate.Producer{pr(8, 2), pr(9, 0), pr(102, 4)}, r.Known())
		put(t, disk, "from-4.json", `{"102":2,"8":2}`)
		poll()
		require.Equal(t, []txnstate.Producer{pr(102, 2)}, o.take(), "older than another broker's, which costs nothing")
		require.Equal(t, []txnstate.Producer{pr(8, 2), pr(9, 0), pr(102, 4)}, r.Known())
		require.NoError(t, disk.Remove("shared/producer_fences/from-3.json"))
		poll()
		require.Equal(t, []txnstate.Producer{pr(8, 2), pr(102, 2)}, r.Known())
	})
}

// W13: what was offered to partitions that are gone is offered to those that came.
func TestEverythingIsOfferedAgain_W13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		put(t, disk, "from-3.json", `{"102":3,"7":1}`)
		r, o := newReader(t, disk, func(c *feed.ReaderConfig) { c.Poll = time.Hour })
		synctest.Wait()
		both := []txnstate.Producer{pr(7, 1), pr(102, 3)}
		require.Equal(t, both, o.take())
		time.Sleep(24 * time.Hour)
		require.Empty(t, o.take())
		r.Reoffer()
		synctest.Wait()
		require.Equal(t, both, o.take())
		put(t, disk, "from-4.json", `{"8":2}`)
		r.Reoffer()
		r.Reoffer()
		synctest.Wait()
		require.Equal(t, []txnstate.Producer{pr(7, 1), pr(8, 2), pr(102, 3)}, o.take(), "with what is new")
		// A restart needs no call.
		_, again := newReader(t, disk, nil)
		synctest.Wait()
		require.Len(t, again.take(), 3)
	})
}

func TestAWriterReachesAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		w, _ := newWriter(t, disk, nil)
		_, o := newReader(t, disk, nil)
		for n := range int16(100) {
			require.NoError(t, w.Fence(t.Context(), pr(1, n)))
			poll()
			require.Equal(t, []txnstate.Producer{pr(1, n)}, o.take())
		}
	})
}

func TestADamagedFileLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, log := fsx.Mem(), &buffer{}
		put(t, disk, "from-3.json", `{"102":3}`)
		r, o := newReader(t, disk, func(c *feed.ReaderConfig) {
			c.Logger = log.logger()
			c.FileBytes = 100
		})
		poll()
		o.take()
		for i, bad := range []string{`{"102":`, ``, `{"102":40000}`, "nonsense", `{"102":4}` + strings.Repeat(" ", 100)} {
			put(t, disk, "from-3.json", bad)
			put(t, disk, "from-4.json", `{"8":`+string(rune('1'+i))+`}`)
			poll()
			require.Equal(t, []txnstate.Producer{pr(8, int16(1+i))}, o.take(), "the others are read")
			require.Equal(t, []txnstate.Producer{pr(8, int16(1+i)), pr(102, 3)}, r.Known())
			time.Sleep(10 * time.Minute)
			if n := strings.Count(log.String(), "level=ERROR"); n < 10*(i+1)-2 || n > 11*(i+1) {
				t.Errorf("told of %d times in %d minutes: it is to be loud, and not at every look", n, 10*(i+1))
			}
		}
		put(t, disk, "from-3.json", `{"102":5}`)
		poll()
		require.Equal(t, []txnstate.Producer{pr(102, 5)}, o.take())
	})
}

// coarse shows one time for all files.
type coarse struct{ fsx.FS }

func (c coarse) ReadDir(name string) ([]fs.DirEntry, error) {
	es, err := c.FS.ReadDir(name)
	for i := range es {
		es[i] = coarseEntry{es[i]}
	}
	return es, err
}

type coarseEntry struct{ fs.DirEntry }

func (e coarseEntry) Info() (fs.FileInfo, error) {
	info, err := e.DirEntry.Info()
	return coarseInfo{info}, err
}

type coarseInfo struct{ fs.FileInfo }

func (coarseInfo) ModTime() time.Time { return time.Time{} }

// A change that neither size nor time shows is seen, unless the file has not
// changed for long.
func TestFilesAreNotTakenForUnchangedTooSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		reads := 0
		disk := coarse{fsx.Hook(mem, func(op fsx.Op, name string) error {
			if op == fsx.OpOpenFile {
				reads++
			}
			return nil
		})}
		put(t, mem, "from-3.json", `{"102":3}`)
		_, o := newReader(t, disk, nil)
		poll()
		require.Len(t, o.take(), 1)
		put(t, mem, "from-3.json", `{"102":4}`)
		poll()
		require.Equal(t, []txnstate.Producer{pr(102, 4)}, o.take())
		time.Sleep(time.Hour)
		require.Less(t, reads, 15, "and what has not changed is not read for ever (W12)")
	})
}

func TestOtherFilesAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		for _, name := range []string{".from-3.json.TMP", "from-3.json.damaged", "README", "to-3.json"} {
			put(t, disk, name, `{"1":1}`)
		}
		require.NoError(t, disk.MkdirAll("shared/producer_fences/from-9.json", 0o755))
		put(t, disk, "from-4.json", `{"8":2}`)
		_, o := newReader(t, disk, nil)
		poll()
		require.Equal(t, []txnstate.Producer{pr(8, 2)}, o.take())
	})
}

func TestAReaderLivesWithAVolumeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, broken := fsx.Mem(), true
		var mu sync.Mutex
		disk := fsx.Hook(mem, func(fsx.Op, string) error {
			mu.Lock()
			defer mu.Unlock()
			if broken {
				return errInjected
			}
			return nil
		})
		put(t, mem, "from-3.json", `{"102":3}`)
		r, o := newReader(t, disk, nil)
		time.Sleep(time.Hour)
		require.Empty(t, o.take())
		mu.Lock()
		broken = false
		mu.Unlock()
		poll()
		require.Equal(t, []txnstate.Producer{pr(102, 3)}, o.take())
		require.Error(t, r.Run(t.Context()))
	})
}

func TestOfferMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := fsx.Mem()
		put(t, disk, "from-3.json", `{"102":3}`)
		var r *feed.Reader
		seen := make(chan []txnstate.Producer, 10)
		r, err := feed.NewReader(feed.ReaderConfig{Dir: "shared", FS: disk, Offer: func(txnstate.Producer) {
			seen <- r.Known()
			if len(seen) == 1 {
				r.Reoffer()
			}
		}})
		require.NoError(t, err)
		run(t, r.Run)
		synctest.Wait()
		require.Len(t, seen, 2)
		require.True(t, slices.Equal(<-seen, <-seen))
	})
}

func TestReaderConfigIsChecked(t *testing.T) {
	_, err := feed.NewReader(feed.ReaderConfig{Poll: -1})
	for _, want := range []string{"Dir", "Offer", "negative"} {
		require.ErrorContains(t, err, want)
	}
}

// W13: a partition that is taken over while the files are looked at hears of all
// fences too.
func TestAReofferDuringALookIsNotLost_W13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		put(t, mem, "from-3.json", `{"7":1}`)
		reached, gate := make(chan struct{}, 1), make(chan struct{})
		var hold atomic.Bool
		disk := fsx.Hook(mem, func(op fsx.Op, _ string) error {
			if op == fsx.OpReadDir && hold.Swap(false) {
				reached <- struct{}{}
				<-gate
			}
			return nil
		})
		r, o := newReader(t, disk, nil)
		poll()
		require.Equal(t, []txnstate.Producer{pr(7, 1)}, o.take())
		hold.Store(true)
		<-reached
		r.Reoffer()
		close(gate)
		synctest.Wait()
		require.Equal(t, []txnstate.Producer{pr(7, 1)}, o.take())
	})
}
