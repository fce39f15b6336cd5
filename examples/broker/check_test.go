package main_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// history is what clients did and were told.
type history struct {
	mu     sync.Mutex
	txns   map[string]*outcome // by PRODUCER-TRANSACTION
	grants []grant
	acked  []acked // records without transaction
	// What consumers were shown while all went on, in the order in which they were.
	shown      map[view]map[place][]record
	complaints []string
}

func (h *history) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// outcome of a transaction, as its client was told: "commit", "abort" or "?".
type outcome struct {
	told  string
	asked bool // for a commit
}

// grant is an identity that was given to a producer, and where the partitions of
// topic txns ended some time after that.
type grant struct {
	producer int64
	epoch    int16
	ends     map[int32]int64
}

type acked struct {
	partition int32
	offset    int64
	n         int
}

type place struct {
	topic     string
	partition int32
}

// record is one as a consumer found it.
type record struct {
	offset   int64
	value    string // "" of a control record
	producer int64
	epoch    int16
	control  bool
}

// contents of a topic, by partition: for a consumer that reads everything,
// control records too, and for one that reads what is committed.
type contents struct{ all, committed map[int32][]record }

// found is what is there at the end: topics txns, out and plain, and how far the
// group of copiers has got in txns.
type found struct {
	topics    map[string]contents
	positions map[int32]int64
}

func (h *history) count(told string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.txns {
		if o.told == told {
			n++
		}
	}
	return n
}

// check gives everything in which what is there at the end does not agree with
// what was done and told.
func (h *history) check(at found) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var c complaints
	for _, x := range h.complaints {
		c.add("%s", x)
	}
	c.transactions(h.txns, at.topics["txns"].committed)
	for topic, in := range at.topics {
		c.epochs(topic, in.all)
	}
	c.fenced(h.grants, at.topics["txns"].all)
	c.copied(at.topics["txns"].committed, at.topics["out"].committed, at.positions)
	c.acknowledged(h.acked, at.topics["plain"].committed)
	for view, shown := range h.shown {
		for place, rs := range shown {
			in := at.topics[place.topic].committed
			if view == uncommitted {
				in = at.topics[place.topic].all
			}
			c.shown(fmt.Sprintf("a %s consumer of %s/%d", view, place.topic, place.partition), rs, in[place.partition])
		}
	}
	return c.err()
}

// complaints are what a check finds: the first of each kind, as one wrong thing
// leads to many.
type complaints struct {
	seen  map[string]int
	first []string
}

func (c *complaints) add(format string, args ...any) {
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	if c.seen[format]++; c.seen[format] <= 3 {
		c.first = append(c.first, fmt.Sprintf(format, args...))
	}
}

func (c *complaints) err() error {
	var errs []error
	for _, x := range c.first {
		errs = append(errs, errors.New(x))
	}
	for format, n := range c.seen {
		if n > 3 {
			errs = append(errs, fmt.Errorf("%d times: %s", n, format))
		}
	}
	return errors.Join(errs...)
}

// transactions: each is whole or absent, exactly once, in order, and is what its
// client was told (I5, I8).
func (c *complaints) transactions(txns map[string]*outcome, in map[int32][]record) {
	seen := map[string]int{}
	for p, rs := range in {
		last := map[string]int{} // by producer: the place of its latest record
		for _, r := range rs {
			f := strings.Split(r.value, "-")
			if len(f) != 3 {
				c.add("txns/%d: a record %q that nobody wrote", p, r.value)
				continue
			}
			txn, _ := strconv.Atoi(f[1])
			rec, _ := strconv.Atoi(f[2])
			place := txn*perTxn + rec + 1
			if place <= last[f[0]] {
				c.add("txns/%d: record %s at offset %d is doubled or out of order", p, r.value, r.offset)
			}
			last[f[0]] = place
			if int(p) != rec%parts {
				c.add("txns/%d: record %s is of another partition", p, r.value)
			}
			seen[f[0]+"-"+f[1]]++
		}
	}
	for name, n := range seen {
		if n != perTxn {
			c.add("transaction %s is half there: %d of %d records", name, n, perTxn)
		}
		if txns[name] == nil {
			c.add("transaction %s is there, and nobody began it", name)
		}
	}
	for name, o := range txns {
		switch n := seen[name]; {
		case o.told == "commit" && n == 0:
			c.add("transaction %s was committed and is lost", name)
		case o.told == "abort" && n > 0:
			c.add("transaction %s was aborted and is there", name)
		case !o.asked && n > 0:
			c.add("transaction %s is there, and nobody asked for its commit", name)
		}
	}
}

// epochs: where a newer epoch of a producer has written, no older one does (I9).
// That holds for each partition by itself, whatever a reader is shown.
func (c *complaints) epochs(topic string, in map[int32][]record) {
	for p, rs := range in {
		newest := map[int64]int16{}
		for _, r := range rs {
			if r.producer < 0 {
				continue
			}
			if e, ok := newest[r.producer]; ok && r.epoch < e && !r.control {
				c.add("%s/%d: a record of producer %d epoch %d at offset %d, behind one of epoch %d", topic, p, r.producer, r.epoch, r.offset, e)
			}
			newest[r.producer] = max(newest[r.producer], r.epoch)
		}
	}
}

// fenced: after an identity was granted, the holders of older epochs write
// nothing more, at no partition (I9).
func (c *complaints) fenced(grants []grant, in map[int32][]record) {
	type key struct {
		producer  int64
		partition int32
	}
	by := map[key][]grant{}
	for _, g := range grants {
		for p := range g.ends {
			k := key{g.producer, p}
			by[k] = append(by[k], g)
		}
	}
	for k, gs := range by {
		slices.SortFunc(gs, func(a, b grant) int { return int(a.ends[k.partition] - b.ends[k.partition]) })
		i, newest := 0, int16(-1)
		for _, r := range in[k.partition] {
			for ; i < len(gs) && gs[i].ends[k.partition] <= r.offset; i++ {
				newest = max(newest, gs[i].epoch)
			}
			if r.producer == k.producer && !r.control && r.epoch < newest {
				c.add("txns/%d: fenced epoch %d of producer %d wrote %s at offset %d, after epoch %d was granted", k.partition, r.epoch, r.producer, r.value, r.offset, newest)
			}
		}
	}
}

// copied: what the group has consumed, and that alone, is there as it was, once,
// in order (I7, I8).
func (c *complaints) copied(in, out map[int32][]record, positions map[int32]int64) {
	for p := range int32(parts) {
		var want []string
		for _, r := range in[p] {
			if r.offset < positions[p] {
				want = append(want, r.value)
			}
		}
		var got []string
		for _, r := range out[p] {
			got = append(got, r.value)
		}
		for i := range min(len(want), len(got)) {
			if want[i] != got[i] {
				c.add("out/%d: record %d is %s, and %s was consumed then", p, i, got[i], want[i])
				break
			}
		}
		if len(want) != len(got) {
			c.add("out/%d: %d records, and the group's position %d says %d", p, len(got), positions[p], len(want))
		}
	}
}

// acknowledged: a record without transaction that was acknowledged is where it
// was said to be; each is there once, in order.
func (c *complaints) acknowledged(told []acked, in map[int32][]record) {
	at := map[place]record{}
	for p, rs := range in {
		last := -1
		for _, r := range rs {
			n, err := strconv.Atoi(r.value)
			if err != nil {
				c.add("plain/%d: a record %q that nobody wrote", p, r.value)
			}
			if n <= last {
				c.add("plain/%d: record %d at offset %d is doubled or out of order, after %d", p, n, r.offset, last)
			}
			last = n
			at[place{r.value, p}] = r
		}
	}
	for _, a := range told {
		r, ok := at[place{strconv.Itoa(a.n), a.partition}]
		if !ok {
			c.add("plain/%d: record %d was acknowledged at offset %d and is lost", a.partition, a.n, a.offset)
		} else if r.offset != a.offset && a.offset >= 0 {
			c.add("plain/%d: record %d was acknowledged at offset %d and is at %d", a.partition, a.n, a.offset, r.offset)
		}
	}
}

// shown: what a consumer was shown meanwhile is what is there, from the beginning
// and without a gap.
func (c *complaints) shown(who string, shown, in []record) {
	for i, r := range shown {
		if i >= len(in) {
			c.add("%s was shown %q at offset %d, which is not there", who, r.value, r.offset)
			return
		}
		if r != in[i] {
			c.add("%s was shown %+v where %+v is", who, r, in[i])
			return
		}
	}
}

// The checker itself notices what it is there to notice.
func TestTheCheckerNoticesWhatIsWrong(t *testing.T) {
	// Producer w0 has committed two transactions, of another nobody knows the end
	// (it is there), one was aborted, one has vanished before its end was asked for.
	// Producer d is a rival of e, and takes the id over from it.
	good := func() (*history, *found) {
		h := &history{txns: map[string]*outcome{
			"w0-0": {"commit", true}, "w0-1": {"?", true}, "w0-2": {"commit", true}, "w0-3": {"abort", false}, "w0-4": {"?", true}, "w0-5": {"?", false},
			"e-0": {"?", false}, "d-0": {"commit", true},
		}, shown: map[view]map[place][]record{committed: {}, uncommitted: {}}}
		txns := contents{map[int32][]record{}, map[int32][]record{}}
		write := func(name string, producer int64, epoch int16, commit bool) {
			for i := range perTxn {
				p := int32(i % parts)
				r := record{int64(len(txns.all[p])), fmt.Sprintf("%s-%d", name, i), producer, epoch, false}
				if txns.all[p] = append(txns.all[p], r); commit {
					txns.committed[p] = append(txns.committed[p], r)
				}
			}
			for p := range int32(parts) {
				txns.all[p] = append(txns.all[p], record{int64(len(txns.all[p])), "", producer, epoch, true})
			}
		}
		write("w0-0", 1, 0, true)
		write("w0-1", 1, 1, true)
		write("e-0", 2, 0, false)
		g := grant{2, 1, map[int32]int64{}}
		for p, rs := range txns.all {
			g.ends[p] = int64(len(rs))
		}
		h.grants = []grant{{2, 0, map[int32]int64{0: 0}}, g}
		write("w0-2", 1, 2, true)
		write("d-0", 2, 1, true)
		write("w0-3", 1, 3, false)
		f := &found{topics: map[string]contents{"txns": txns}, positions: map[int32]int64{}}
		out, plain := contents{committed: map[int32][]record{}}, contents{committed: map[int32][]record{}}
		for p := range int32(parts) {
			in := txns.committed[p]
			f.positions[p] = in[5].offset + 1
			for i, r := range in[:6] {
				out.committed[p] = append(out.committed[p], record{offset: int64(i), value: r.value, producer: 3})
			}
			for i := range 5 {
				plain.committed[p] = append(plain.committed[p], record{offset: int64(i), value: strconv.Itoa(2 * i), producer: 4})
				h.acked = append(h.acked, acked{p, int64(i), 2 * i})
			}
			h.shown[committed][place{"txns", p}] = slices.Clone(in[:7])
			h.shown[committed][place{"plain", p}] = slices.Clone(plain.committed[p])
			h.shown[uncommitted][place{"txns", p}] = slices.Clone(txns.all[p][:9])
		}
		f.topics["out"], f.topics["plain"] = out, plain
		return h, f
	}
	double := func(in map[int32][]record, p int32, i int) { in[p] = append(in[p], in[p][i]) }
	swap := func(in map[int32][]record, p int32, i, j int) { in[p][i], in[p][j] = in[p][j], in[p][i] }
	for name, c := range map[string]struct {
		harm func(*history, *found)
		want string
	}{
		"nothing":                        {func(*history, *found) {}, ""},
		"a transaction lost":             {func(h *history, _ *found) { h.txns["w0-4"].told = "commit" }, "w0-4 was committed and is lost"},
		"an aborted one there":           {func(h *history, _ *found) { h.txns["w0-1"].told = "abort" }, "w0-1 was aborted and is there"},
		"an unfinished one there":        {func(h *history, _ *found) { h.txns["w0-1"].asked = false }, "nobody asked for its commit"},
		"one that nobody began":          {func(h *history, _ *found) { delete(h.txns, "w0-1") }, "nobody began it"},
		"one half visible":               {func(_ *history, f *found) { drop(f.topics["txns"].committed, 1, 0) }, "w0-0 is half there"},
		"one doubled":                    {func(_ *history, f *found) { double(f.topics["txns"].committed, 2, 5) }, "doubled or out of order"},
		"one reordered":                  {func(_ *history, f *found) { swap(f.topics["txns"].committed, 0, 1, 2) }, "doubled or out of order"},
		"in another partition":           {func(_ *history, f *found) { f.topics["txns"].committed[0][0].value = "w0-0-1" }, "of another partition"},
		"written by nobody":              {func(_ *history, f *found) { f.topics["txns"].committed[0][0].value = "x" }, "nobody wrote"},
		"an old epoch behind a new one":  {func(_ *history, f *found) { f.topics["txns"].all[0][10].epoch = 0 }, "behind one of epoch"},
		"a fenced owner that writes":     {func(h *history, _ *found) { h.grants[1].ends[3] -= 3 }, "after epoch 1 was granted"},
		"a copy lost":                    {func(_ *history, f *found) { drop(f.topics["out"].committed, 0, 5) }, "the group's position"},
		"a copy lost in the middle":      {func(_ *history, f *found) { drop(f.topics["out"].committed, 0, 2) }, "was consumed then"},
		"a copy doubled":                 {func(_ *history, f *found) { double(f.topics["out"].committed, 1, 5) }, "the group's position"},
		"copies reordered":               {func(_ *history, f *found) { swap(f.topics["out"].committed, 1, 0, 1) }, "was consumed then"},
		"a position set back":            {func(_ *history, f *found) { f.positions[2]-- }, "the group's position"},
		"an acknowledged record lost":    {func(_ *history, f *found) { drop(f.topics["plain"].committed, 3, 4) }, "was acknowledged at offset 4 and is lost"},
		"an acknowledged record moved":   {func(h *history, _ *found) { h.acked[0].offset = 3 }, "and is at 0"},
		"an acknowledged record doubled": {func(_ *history, f *found) { double(f.topics["plain"].committed, 3, 4) }, "doubled or out of order"},
		"shown and not there":            {func(_ *history, f *found) { f.topics["plain"].committed[3] = f.topics["plain"].committed[3][:4] }, "which is not there"},
		"shown something else":           {func(h *history, _ *found) { h.shown[uncommitted][place{"txns", 3}][2].epoch++ }, "was shown"},
		"passed by":                      {func(h *history, _ *found) { drop(h.shown[committed], place{"txns", 3}, 2) }, "was shown"},
		"a consumer's own complaint":     {func(h *history, _ *found) { h.complaints = []string{"lost"} }, "lost"},
	} {
		t.Run(name, func(t *testing.T) {
			h, f := good()
			c.harm(h, f)
			err := h.check(*f)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

func drop[K comparable](in map[K][]record, at K, i int) {
	in[at] = slices.Delete(slices.Clone(in[at]), i, i+1)
}

// Nor does it miss what does not come to its end: a decided transaction whose
// markers do not arrive, and an open one.
func TestTheCheckerNoticesWhatIsStuck(t *testing.T) {
	ctx := t.Context()
	b, stop, err := minibroker.Start(ctx, minibroker.Config{Listen: "127.0.0.1:0", EndWait: txnstate.AnswerAtDecision})
	require.NoError(t, err)
	defer func() { require.NoError(t, stop()) }()
	c := newClients(nil, b.Addr().String())
	c.makeTopics(t, ctx)
	adm := kadm.NewClient(c.client(t))
	defer adm.Close()
	require.Empty(t, c.settled(ctx, adm, topics...))

	cl := c.client(t, kgo.TransactionalID("tx"))
	defer cl.Close()
	require.NoError(t, cl.BeginTransaction())
	require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "txns", Partition: 2}).FirstErr())
	left := c.settled(ctx, adm, topics...)
	require.Contains(t, left, "txns/2 is stable to 0 of 1")
	require.Contains(t, left, "tx is Ongoing")
	release := b.HoldMarkers()
	require.NoError(t, cl.EndTransaction(ctx, kgo.TryCommit))
	left = c.settled(ctx, adm, topics...)
	require.Contains(t, left, "txns/2 is stable to 0 of 1")
	require.Contains(t, left, "tx is PrepareCommit")
	release()
	until(t, 30*time.Second, func() string { return c.settled(ctx, adm, topics...) })
}
