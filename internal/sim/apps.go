package sim

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// app is an application with one transactional id. Its processes come and go;
// now and then two of them run at once.
type app struct {
	kit       *clientKit
	txnID     string
	group     string // whose positions it commits
	partition int32  // of inputTopic, nobody else's
	v2        bool   // protocol 2; mixed: either
	mixed     bool
	d         *dice
	few       []tp      // not nil: it writes to these only, one transaction right behind the other
	until     time.Time // some are not used to the end: nobody heals what they leave
	wg        sync.WaitGroup
}

// run starts processes until the time is up, and waits for the last of them.
func (a *app) run(ctx context.Context) {
	defer a.wg.Wait()
	for n := 1; time.Now().Before(a.until); n++ {
		v2 := a.v2
		if a.mixed {
			v2 = a.d.chance(0.5)
		}
		i := a.kit.instance(a.txnID, fmt.Sprintf("%s.%d", a.txnID, n), v2)
		done := make(chan struct{})
		a.wg.Go(func() {
			defer close(done)
			a.process(ctx, i)
		})
		life := time.NewTimer(a.d.between(2*time.Second, 40*time.Second))
		select {
		case <-done:
		case <-life.C: // a rival comes, and this one goes on as long as it may
		case <-ctx.Done():
		}
		life.Stop()
		if !sleep(ctx, a.d.skewed(2*time.Second)) {
			return
		}
	}
}

// process is one process of the application.
func (a *app) process(ctx context.Context, i *instance) {
	if i.init(ctx) != ok {
		return
	}
	for k := 0; time.Now().Before(a.until) && k < 100; k++ {
		if !a.transaction(ctx, i) {
			return
		}
		if i.dirty.Load() && !i.v2 || i.d.chance(0.03) {
			if i.init(ctx) != ok { // raises the epoch
				return
			}
		}
		if a.few == nil {
			sleep(ctx, i.d.skewed(time.Second))
		}
	}
	if i.d.chance(0.6) { // the last one is left open, or nobody hears how it ends
		t := a.kit.m.begin(i, false)
		v, _ := a.fill(ctx, i, t)
		if v == ok && i.d.chance(0.5) {
			i.endAndLeave(ctx, t, i.d.chance(0.7))
		}
		if !time.Now().Before(a.until) && a.kit.left != nil {
			a.kit.left(a.txnID)
		}
	}
}

// fill writes the records and positions of a transaction.
func (a *app) fill(ctx context.Context, i *instance, t *txn) (v verdict, empty bool) {
	var ps []tp
	for range 1 + i.d.n(3) {
		p := a.kit.pick(i.d)
		if a.few != nil {
			p = a.few[i.d.n(len(a.few))]
		}
		ps = append(ps, p)
	}
	offsets := a.group != "" && i.d.chance(0.5)
	if offsets && i.d.chance(0.15) {
		ps = nil // nothing but a position
	}
	begun := time.Now()
	early := i.d.chance(0.5)
	if offsets && early {
		if v := i.stage(ctx, t, a.group, a.partition); v != ok {
			return v, false
		}
	}
	if !i.v2 && len(ps) > 0 {
		if v := i.addPartitions(ctx, t, uniq(ps)); v != ok {
			return v, false
		}
	}
	for range 1 + i.d.n(3) {
		for _, p := range ps {
			if v := i.produce(ctx, t, p); v != ok {
				return v, false
			}
		}
		if i.d.chance(0.08) {
			sleep(ctx, i.d.between(100*time.Millisecond, 14*time.Second)) // beyond the timeout, at times
		}
		if i.d.chance(0.03) && i.timeout < 20*time.Second { // and as long as it
			sleep(ctx, i.timeout-time.Since(begun)+i.d.between(-time.Second, 2500*time.Millisecond))
		}
	}
	if !i.v2 && i.kit.m.isOpen(t) && i.d.chance(0.03) { // the one before is complete
		i.forget(ctx, t, a.kit.pick(i.d))
	}
	if offsets && !early {
		if v := i.stage(ctx, t, a.group, a.partition); v != ok {
			return v, false
		}
	}
	return ok, len(ps) == 0 && !offsets
}

func uniq(ps []tp) (out []tp) {
	have := map[tp]bool{}
	for _, p := range ps {
		if !have[p] {
			have[p] = true
			out = append(out, p)
		}
	}
	return out
}

// transaction is one of them, from begin to end; false where the process ends.
func (a *app) transaction(ctx context.Context, i *instance) bool {
	t := a.kit.m.begin(i, false)
	defer a.kit.m.next(t)
	v, _ := a.fill(ctx, i, t)
	if v == fatal && i.d.chance(0.7) {
		return false
	}
	if len(t.recs) > 0 && v == ok && i.d.chance(0.05) {
		return a.abortMidway(ctx, i, t)
	}
	if i.d.chance(0.05) { // the process hangs for a while, and comes back as if nothing had been
		a.kit.w.log(i.name, "hangs")
		if !sleep(ctx, i.d.between(time.Second, 60*time.Second)) {
			return false
		}
	}
	commit := v == ok && i.d.chance(0.75)
	v = i.end(ctx, t, commit)
	if v == abortable && commit {
		commit = false
		v = i.end(ctx, t, false)
	}
	switch v {
	case ok:
		return true
	case fatal:
		if i.d.chance(0.3) { // and some don't notice
			sleep(ctx, i.d.skewed(20*time.Second))
			i.resend(ctx, t, commit)
			return false
		}
		// Some don't give up: they ask for a newer epoch of their identity.
		return i.d.chance(0.3) && i.init(ctx) == ok
	}
	// Nobody knows how it ended.
	return i.d.chance(0.5) && i.init(ctx) == ok
}

// abortMidway aborts while a batch is on its way, which is one of the transaction
// or comes too late.
func (a *app) abortMidway(ctx context.Context, i *instance, t *txn) bool {
	on, cancel := context.WithCancel(ctx)
	defer cancel()
	p := a.kit.pick(i.d) // as a rule its leader has to ask about it
	if !i.v2 {
		if v := i.addPartitions(ctx, t, []tp{p}); v != ok {
			return false
		}
	}
	a.kit.m.midway(a.txnID, true)
	defer a.kit.m.midway(a.txnID, false)
	r := a.kit.m.record(t, p.topic, p.partition)
	var wg sync.WaitGroup
	wg.Go(func() { i.write(on, t, p, r) })
	sleep(ctx, i.d.skewed(20*time.Millisecond))
	v := i.end(ctx, t, false)
	cancel()
	wg.Wait()
	i.dirty.Store(true)
	return v == ok && (!i.v2 || i.d.chance(0.7) || i.init(ctx) == ok)
}

// forget writes to a partition that was not put into the transaction, as a client
// with a defect does: it must be refused.
func (i *instance) forget(ctx context.Context, t *txn, p tp) {
	for _, r := range t.recs {
		if (tp{r.topic, r.partition}) == p {
			return
		}
	}
	r := i.kit.m.record(t, p.topic, p.partition)
	r.stray = true
	on, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	i.write(on, t, p, r)
	i.dirty.Store(true)
}

// plain is an idempotent producer without transactions, and a consumer that
// commits positions without one.
type plain struct {
	kit       *clientKit
	name      string
	group     string
	partition int32
	d         *dice
	until     time.Time
}

func (a *plain) run(ctx context.Context) {
	for n := 1; time.Now().Before(a.until); n++ {
		i := a.kit.instance("", fmt.Sprintf("%s.%d", a.name, n), false)
		if i.init(ctx) != ok {
			sleep(ctx, time.Second)
			continue
		}
		t := a.kit.m.begin(i, true)
		for k := 0; time.Now().Before(a.until) && k < 30; k++ {
			if i.produce(ctx, t, a.kit.pick(i.d)) != ok {
				break // a new producer id
			}
			if i.d.chance(0.4) {
				i.commitOffset(ctx, t, a.group, a.partition)
			}
			sleep(ctx, i.d.skewed(2*time.Second))
		}
	}
}
