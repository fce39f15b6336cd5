package journal_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// Any order of writes, restarts, deaths, losses of power and faults of the disk
// leaves what the list of all writes says.
func TestStoreIsItsListOfWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := &driver{t: t, m: newModel(), fsys: crashfs.New(1)}
		d.reopen()
		ids := rapid.SampledFrom([]string{"a", "b", "c", "", "ümläut\x00"})
		write := func(durability txnstate.Durability) func(*rapid.T) {
			return func(t *rapid.T) {
				d.write(step{id: ids.Draw(t, "id"), durability: durability, size: rapid.SampledFrom([]int{0, 1, 3, 300}).Draw(t, "size")})
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"durable": write(txnstate.Durable),
			"later":   write(txnstate.Later),
			"now": func(t *rapid.T) {
				d.write(step{id: ids.Draw(t, "id"), now: true, size: rapid.SampledFrom([]int{0, 3}).Draw(t, "size")})
			},
			"delete": func(t *rapid.T) { d.write(step{id: ids.Draw(t, "id"), delete: true}) },
			"conflict": func(t *rapid.T) {
				d.conflict(ids.Draw(t, "id"), txnstate.Version(rapid.Uint64Range(0, 1<<33).Draw(t, "version")))
			},
			"flush": func(t *rapid.T) { d.all(d.s.Flush(context.Background())) },
			"restart": func(t *rapid.T) {
				if d.s.Close() == nil {
					d.m.sure = len(d.m.states) - 1
				}
				d.reopen()
			},
			"kill": func(t *rapid.T) {
				d.fsys = d.fsys.AfterKill()
				d.reopen()
			},
			"power": func(t *rapid.T) {
				d.fsys = d.fsys.Image(rapid.Uint64Range(0, 1000).Draw(t, "image"))
				d.reopen()
			},
			"fail sync": func(t *rapid.T) { d.fsys.FailSync(rapid.IntRange(0, 4).Draw(t, "sync")) },
			"full":      func(t *rapid.T) { d.fsys.Full(rapid.Int64Range(0, 1000).Draw(t, "room")) },
			"":          func(*rapid.T) { d.check() },
		})
		d.calm()
		_ = d.s.Close() // it may be in the middle of a repair that the calm came too late for
	})
}

type driver struct {
	t     *rapid.T
	m     *model
	fsys  *crashfs.FS
	s     *journal.Store
	clock clock
	n     int
}

func (d *driver) calm() {
	d.fsys.FailSync(-1)
	d.fsys.Full(-1)
	d.clock.move(2 * time.Second)
}

// reopen begins a new process. What the last one left behind goes on in the file
// system of its own time, in vain.
func (d *driver) reopen() {
	d.calm()
	s, err := journal.Open(journal.Config{Dir: dir, FS: d.fsys, SnapshotAt: 34 << 10, Now: d.clock.now})
	if err != nil {
		d.t.Fatal(err)
	}
	d.s = s
	d.check()
	d.m.sure = len(d.m.states) - 1
}

func (d *driver) write(st step) {
	d.n++
	err := d.m.do(d.s, st, d.n)
	switch {
	case err == nil:
	case st.now: // nothing has failed, perhaps
		d.check()
	default:
		d.look()
	}
}

// look is what a caller does who can't know.
func (d *driver) look() {
	d.calm()
	d.check()
	d.m.sure = len(d.m.states) - 1
}

// all is that every write is durable, unless err.
func (d *driver) all(err error) {
	if err == nil {
		d.m.sure = len(d.m.states) - 1
		return
	}
	d.look()
}

func (d *driver) conflict(id string, v txnstate.Version) {
	if v == d.m.now()[id].Version {
		return
	}
	r := idle(id)
	r.Version = v
	if _, err := d.s.Swap(context.Background(), r, txnstate.Durable); err == nil {
		d.t.Fatalf("Swap of %q from version %d = nil, it has %d", id, v, d.m.now()[id].Version)
	}
}

// check compares what the store answers with the newest state. A store that is
// failing is calmed first: what it answers afterwards is what counts.
func (d *driver) check() {
	got, err := contents(context.Background(), d.s)
	if err != nil {
		d.calm()
		got, err = contents(context.Background(), d.s)
	}
	if err == nil {
		err = d.m.found(got)
	}
	if err != nil {
		d.t.Fatal(fmt.Errorf("after %d writes: %w", d.n, err))
	}
}
