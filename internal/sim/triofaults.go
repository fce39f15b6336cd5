package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// request has some broker answer a request of an administrator, who tries again
// where that fails.
func (c *trio) request(d *dice, req kmsg.Request, of func(kmsg.Response) int16) (kmsg.Response, bool) {
	for range 30 {
		i := d.n(c.nodes())
		resp, err := c.handle(i, req)
		if err != nil {
			c.w.log("admin", "%T at broker %d: %v", req, i, err)
		} else {
			e := of(resp)
			c.w.log("admin", "%T at broker %d: %s", req, i, code(e))
			if _, again := judgeCode(e); !again || e == int16(txnstate.CodeUnknownTopicOrPartition) {
				return resp, true
			}
		}
		time.Sleep(d.between(100*time.Millisecond, time.Second))
	}
	return nil, false
}

// deleteGroup has the coordinator of a group delete it, if it can be found.
func (c *trio) deleteGroup(d *dice, group string) {
	for range 5 {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.Version, find.CoordinatorKey = 3, group
		at, ok := c.request(d, find, func(r kmsg.Response) int16 { return r.(*kmsg.FindCoordinatorResponse).ErrorCode })
		if !ok {
			continue
		}
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Version, req.Groups = 2, []string{group}
		resp, err := c.handle(int(at.(*kmsg.FindCoordinatorResponse).NodeID), req)
		if err != nil {
			continue
		}
		e := resp.(*kmsg.DeleteGroupsResponse).Groups[0].ErrorCode
		c.w.log("admin", "group %s is deleted: %s", group, code(e))
		if _, again := judgeCode(e); !again {
			return
		}
	}
}

// doomed is a group that is deleted now and then; nobody judges its positions.
const doomed = "doomed"

func (s *scene) buildTrio(d *dice) {
	cfg := minibroker.Config{
		Dir: "shared", Lease: d.between(time.Second, 4*time.Second), AbortInterval: 2 * time.Second, KafkaFencing: d.chance(0.3),
		Markers:            []minibroker.MarkerTransport{minibroker.MarkersRPC, minibroker.MarkersRPC, minibroker.MarkersQueue}[d.n(3)],
		TransactionVersion: []txnstate.TransactionVersion{0, 0, 0, txnstate.TV1}[d.n(4)],
		EndWait:            []time.Duration{0, txnstate.AnswerAtDecision, 50 * time.Millisecond}[d.n(3)],
		Topics:             map[string]int32{"a": 2, "b": 2, "tmp": 1, inputTopic: inputPartitions},
	}
	s.loose, s.loseGroup = []string{"tmp"}, doomed
	s.kit.topics = []tp{{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}, {"tmp", 0}}
	c := newTrio(s.w, s.m, 3, cfg, 6*time.Second)
	s.c = c
	c.lan.stubborn = s.protocols == "2" && cfg.TransactionVersion != txnstate.TV1 && d.chance(0.5)
	var wg sync.WaitGroup
	for i := range c.now {
		after := d.skewed(5 * time.Second)
		wg.Go(func() {
			time.Sleep(after)
			c.start(i)
		})
	}
	wg.Wait()
	s.trioFaults(c, s.w.dice("faults"))
}

// faults of a trio are drawn for the run as a whole: how many there are of each kind.
func (s *scene) trioFaults(c *trio, d *dice) {
	add := func(name string, do func()) {
		s.faults = append(s.faults, fault{d.between(time.Second, s.length), name, do})
	}
	level := 1 + d.n(3)
	c.lan.ends, c.lan.refused = rate(d, 0.4), rate(d, 0.2)
	for range d.n(3 * level) {
		i, down, power := d.n(3), d.skewed(20*time.Second), d.chance(0.3)
		add(fmt.Sprintf("broker %d dies (power=%t) for %s", i, power, down), func() {
			c.kill(i, power)
			time.Sleep(down)
			c.start(i)
		})
	}
	for range d.n(2 * level) {
		i, down := d.n(3), d.skewed(20*time.Second)
		add(fmt.Sprintf("broker %d is told to stop, for %s", i, down), func() {
			c.resign(i)
			time.Sleep(down)
			c.start(i)
		})
	}
	for range d.n(2 * level) {
		i, stop := d.n(3), d.skewed(40*time.Second)
		if d.chance(0.5) { // about as long as it takes to be missed
			stop = d.between(c.cfg.Lease/2, 2*c.cfg.Lease)
		}
		add(fmt.Sprintf("broker %d is stopped for %s", i, stop), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			p.pause()
			time.Sleep(stop)
			c.w.log(p.name, "goes on")
			p.resume()
		})
	}
	ops := []fsx.Op{fsx.OpReadDir, fsx.OpOpenFile, fsx.OpLink, fsx.OpRename, fsx.OpWriteAt, fsx.OpSync, fsx.OpSyncDir, fsx.OpReadFile}
	// Where most operations of a kind are looks, those of a takeover are rare.
	places := []string{"", "", "/p-", "/p-", "slots", "txn_state"}
	for range d.n(6 * level) {
		in := places[d.n(len(places))]
		i, k, op, after, stop, kill := d.n(3), 1+d.n(8), ops[d.n(len(ops))], d.chance(0.5), d.skewed(20*time.Second), d.chance(0.3)
		if d.chance(0.5) {
			stop = d.between(c.cfg.Lease, 3*c.cfg.Lease)
		}
		what := "is stopped"
		if kill {
			what = "dies"
		}
		when := "before"
		if after {
			when = "after"
		}
		add(fmt.Sprintf("broker %d %s %s its operation %q on %q, the %dth from now, for %s", i, what, when, op, in, k, stop), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			met := make(chan struct{})
			t := &trap{op: op, in: in, after: after, do: func() {
				if !c.w.calm.Load() && !p.dead.Load() {
					p.pause()
				}
				close(met)
			}}
			t.left.Store(int32(k))
			p.trap.Store(t)
			wait := time.NewTimer(20 * time.Second)
			defer wait.Stop()
			select {
			case <-met:
			case <-wait.C:
			case <-p.ended:
			}
			if t.left.Swap(-1<<20) > 0 { // it never comes there
				p.trap.CompareAndSwap(t, nil)
				return
			}
			<-met
			c.w.log(p.name, "%s %s %s", what, when, op)
			if kill {
				c.kill(i, k%2 == 0)
			}
			time.Sleep(stop)
			if kill {
				c.start(i)
			}
			p.resume()
		})
	}
	for range d.n(2 * level) {
		in := places[d.n(len(places))]
		i, op, most, length := d.n(3), ops[d.n(len(ops))], d.skewed(2*c.cfg.Lease), d.between(time.Second, 10*time.Second)
		add(fmt.Sprintf("for broker %d operations %q on %q take up to %s, for %s", i, op, in, most, length), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			p.lag.Store(&lag{op, in, most})
			time.Sleep(length)
			p.lag.Store(nil)
		})
	}
	for range d.n(3 * level) {
		i, length, both := d.n(3), d.skewed(30*time.Second), d.chance(0.5)
		j := (i + 1 + d.n(2)) % 3
		add(fmt.Sprintf("nothing gets from broker %d to %d (and back=%t) for %s", i, j, both, length), func() {
			c.lan.sever(i, j)
			if both {
				c.lan.sever(j, i)
			}
			time.Sleep(length)
			c.lan.mend(i, j)
			c.lan.mend(j, i)
		})
	}
	for range d.n(2 * level) {
		i := d.n(3)
		j := (i + 1 + d.n(2)) % 3
		add(fmt.Sprintf("connections of brokers %d and %d end", i, j), func() { c.lan.reset(i, j) })
	}
	for range d.n(2) {
		soon, image, again := d.n(60), uint64(d.n(1<<30)), d.n(300)
		if d.chance(0.3) {
			image = uint64(d.n(3))
		}
		var downs [3]time.Duration
		for i := range downs {
			downs[i] = d.skewed(10 * time.Second)
		}
		add(fmt.Sprintf("the power of all fails %d operations later", soon), func() {
			disk := c.volume()
			disk.CrashAt(disk.Ops() + soon)
			for range 200 {
				if _, crashed := disk.Crashed(); crashed {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			c.blackout(image)
			restart := func() {
				var wg sync.WaitGroup
				for i, down := range downs {
					wg.Go(func() {
						time.Sleep(down)
						c.start(i)
					})
				}
				wg.Wait()
			}
			if again%3 == 0 && !c.w.calm.Load() { // and once more, while they start
				disk := c.volume()
				disk.CrashAt(again)
				restart()
				if _, crashed := disk.Crashed(); crashed {
					c.blackout(image + 7)
				} else {
					disk.CrashAt(-1)
				}
			}
			restart()
		})
	}
	for range d.n(2 * level) {
		k := d.n(60)
		add(fmt.Sprintf("a sync fails, %d from now", k), func() { c.volume().FailSync(k) })
	}
	for range d.n(2) {
		room, length := d.n(3000), d.skewed(10*time.Second)
		add(fmt.Sprintf("the volume has room for %d bytes, for %s", room, length), func() {
			disk := c.volume()
			disk.Full(int64(room))
			time.Sleep(length)
			disk.Full(-1)
		})
	}
	for range d.n(2 * level) {
		i, length := d.n(3), d.skewed(15*time.Second)
		add(fmt.Sprintf("the volume fails for broker %d, for %s", i, length), func() {
			p := c.up(i)
			if p == nil || c.w.calm.Load() {
				return
			}
			p.fails.Store(true)
			time.Sleep(length)
			p.fails.Store(false)
		})
	}
	for range d.n(3) {
		i, by := d.n(3), d.between(-20*time.Second, 20*time.Second)
		add(fmt.Sprintf("the clock of broker %d jumps by %s", i, by), func() {
			s.m.jumps(by)
			c.mu.Lock()
			c.clocks[i].ahead += by
			c.mu.Unlock()
		})
	}
	admin := s.w.dice("admin")
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.Version, del.TopicNames, del.TimeoutMillis = 5, []string{"tmp"}, 5000
	deleted := func(r kmsg.Response) int16 { return r.(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode }
	for range d.n(3) {
		back := d.skewed(10 * time.Second)
		add(fmt.Sprintf("topic tmp is deleted, and there again after %s", back), func() {
			if s.m.isGone("tmp") {
				return
			}
			s.m.deletes("tmp")
			c.request(admin, del, deleted)
			time.Sleep(back)
			if s.m.isGone("tmp") {
				return
			}
			req := kmsg.NewPtrCreateTopicsRequest()
			req.Version, req.TimeoutMillis = 5, 5000
			t := kmsg.NewCreateTopicsRequestTopic()
			t.Topic, t.NumPartitions, t.ReplicationFactor = "tmp", 1, 1
			req.Topics = append(req.Topics, t)
			c.request(admin, req, func(r kmsg.Response) int16 { return r.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode })
		})
	}
	if d.chance(0.2) {
		add("topic tmp is deleted for good", func() {
			s.m.deletesForGood("tmp")
			c.request(admin, del, deleted)
		})
	}
	for range d.n(2 * level) {
		add("group "+doomed+" is deleted", func() { c.deleteGroup(admin, doomed) })
	}
}
