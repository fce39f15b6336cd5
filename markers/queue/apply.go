package queue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// applyLine is what waits for one participant, in order. It is there while
// something does, so lines are bounded by the entries that are worked on.
type applyLine struct {
	to    txnstate.Participant
	tasks []*task
}

// task is an entry's deliveries for one participant.
type task struct {
	job *job
	at  []int // of the entry's deliveries
}

// apply puts an entry's deliveries into the lines of their participants.
func (r *Receiver) apply(j *job) {
	tasks := map[txnstate.Participant]*task{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range j.ds {
		to := j.ds[i].Participant.Wire()
		t := tasks[to]
		if t == nil {
			t = &task{job: j}
			tasks[to] = t
			l := r.lines[to]
			if l == nil {
				l = &applyLine{to: to}
				r.lines[to] = l
				r.ready = append(r.ready, l)
			}
			l.tasks = append(l.tasks, t)
		}
		t.at = append(t.at, i)
	}
	for r.workers < r.cfg.Width && r.workers < len(r.lines) && len(r.ready) > 0 {
		r.workers++
		r.work.Go(r.serve)
	}
}

// serve works lines off, one participant at a time, until none waits.
func (r *Receiver) serve() {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.workers-- }()
	for len(r.ready) > 0 {
		l := r.ready[0]
		r.ready = r.ready[1:]
		t := l.tasks[0]
		l.tasks = l.tasks[1:]
		r.mu.Unlock()
		r.perform(t)
		r.mu.Lock()
		if len(l.tasks) == 0 {
			delete(r.lines, l.to)
		} else {
			r.ready = append(r.ready, l) // behind the others, so that none starves
		}
	}
}

// staleAfter is how old what was read of an entry may be before it is looked for
// again: the process may have been stopped, and the entry withdrawn.
const staleAfter = time.Second

// perform applies the deliveries of a task, or asks about them.
func (r *Receiver) perform(t *task) {
	j := t.job
	if j.ctx.Err() != nil {
		return
	}
	ds := make([]markers.Delivery, len(t.at))
	for k, i := range t.at {
		ds[k] = j.ds[i]
	}
	vs := make([]verdict, len(ds))
	switch {
	case r.cfg.Now().Sub(j.readAt) > staleAfter && !r.wanted(j):
		for k := range vs {
			vs[k] = verdictOf(markers.Retry)
		}
	case j.ask:
		for k := range ds {
			vs[k] = r.askOpen(j.ctx, ds[k])
		}
	default:
		rs := r.write(j.ctx, ds)
		for k := range vs {
			vs[k] = verdictOf(markers.Retry)
			if k < len(rs) {
				vs[k] = verdictOf(rs[k])
			}
		}
	}
	r.mu.Lock()
	for k, i := range t.at {
		j.verdicts[i] = vs[k]
	}
	r.mu.Unlock()
	r.Wake()
}

// wanted reports whether an entry is still there.
func (r *Receiver) wanted(j *job) bool {
	f, err := r.cfg.FS.OpenFile(filepath.Join(r.dir, j.name+entryExt), os.O_RDONLY, 0)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.cfg.Logger.Warn("can't see whether an entry is still wanted, it is not applied", "inbox", r.dir, "entry", j.name, "err", err)
		}
		return false
	}
	_ = f.Close() // nothing was written
	return true
}

// write is Apply, which is the host's: a panic of it costs these deliveries.
func (r *Receiver) write(ctx context.Context, ds []markers.Delivery) (rs []markers.Result) {
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Logger.Error("ReceiverConfig.Apply panicked, its deliveries are tried again", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			rs = nil
		}
	}()
	return r.cfg.Apply.WriteMarkers(ctx, r.cfg.Self, ds)
}

func (r *Receiver) askOpen(ctx context.Context, d markers.Delivery) (v verdict) {
	v = verdictOf(markers.Retry)
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Logger.Error("ReceiverConfig.Apply panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	asker, ok := r.cfg.Apply.(markers.OpenChecker)
	if !ok {
		r.cfg.Logger.Warn("a sender asks what is open, and ReceiverConfig.Apply can't tell")
		return v
	}
	switch is, err := asker.StillOpen(ctx, r.cfg.Self, d); {
	case err != nil:
		return v
	case is:
		return open
	}
	return closed
}
