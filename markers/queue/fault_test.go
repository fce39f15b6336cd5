package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

func TestTwoTransactionsOfOneEpochFollowOneAnother_W2_W3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { newWorld(t, fsx.Mem(), fault{}).play() })
}

// I2, I4, W6, W23: wherever one of the processes fails, is killed, or is stopped and
// wakes up later, the first transaction is complete everywhere before the
// coordinator says so, and nothing of it touches the second.
func TestEveryOperationOfEveryProcessMayGoWrong(t *testing.T) {
	for _, f := range []fault{
		{who: "sender", kind: failBefore}, {who: "sender", kind: failAfter}, {who: "sender", kind: stopBefore}, {who: "sender", kind: stopAfter},
		{who: "sender", kind: killed}, {who: "sender", kind: killed, sameEpoch: true},
		{who: receiverName(1), kind: failBefore}, {who: receiverName(1), kind: failAfter}, {who: receiverName(1), kind: killed},
		{who: receiverName(1), kind: stopBefore}, {who: receiverName(1), kind: stopAfter},
		{who: receiverName(1), kind: stopBefore, move: true}, {who: receiverName(1), kind: stopAfter, move: true},
	} {
		name := fmt.Sprintf("an operation of %s %s", f.who, f.kind)
		if f.move {
			name += ", and another broker leads meanwhile"
		}
		if f.sameEpoch {
			name += ", and the coordinator epoch stays"
		}
		t.Run(name, func(t *testing.T) {
			for k := 0; ; k++ {
				f.k = k
				at := ""
				synctest.Test(t, func(t *testing.T) { at = newWorld(t, fsx.Mem(), f).play() })
				if at == "" {
					if k < 5 {
						t.Errorf("only %d operations were met", k)
					}
					return
				}
				if t.Failed() {
					t.Fatalf("at operation %d, %s", k, at)
				}
			}
		})
	}
}

// W21: the power fails at every operation, and what was not synced is there or not.
func TestALossOfPowerAtEveryOperation(t *testing.T) {
	for _, sameEpoch := range []bool{false, true} {
		for k := 0; ; k++ {
			over := false
			for seed := range uint64(5) {
				synctest.Test(t, func(t *testing.T) {
					disk := crashfs.New(seed)
					disk.CrashAt(k)
					w := newWorld(t, disk, fault{kind: fmt.Sprintf("power fails, seed %d", seed), k: k, sameEpoch: sameEpoch})
					quit := make(chan struct{})
					minded := make(chan struct{})
					go func() {
						defer close(minded)
						for {
							quitting := false
							select {
							case <-quit:
								quitting = true
							case <-time.After(10 * time.Millisecond):
							}
							if _, crashed := disk.Crashed(); crashed {
								break
							} else if quitting {
								return
							}
						}
						for _, p := range w.all {
							p.kill()
						}
						w.c.Broker(1).Crash()
						w.c.Broker(2).Crash()
						w.mu.Lock()
						w.disk = disk.Image(seed)
						w.mu.Unlock()
						time.Sleep(5 * time.Second)
						for _, name := range []string{receiverName(1), "sender", receiverName(2)} {
							w.restart(name)
						}
					}()
					w.write()
					w.complete(1, true)
					disk.CrashAt(-1) // what comes now is not of the first transaction
					_, crashed := disk.Crashed()
					over = !crashed
					w.write()
					close(quit)
					<-minded
					time.Sleep(time.Minute)
					w.wantVisible("while the second transaction is open", producer.String()+" commit", producer.String()+" open")
					w.complete(2, false)
					w.wantVisible("at the end", producer.String()+" commit", producer.String()+" abort")
					time.Sleep(2*abandon + 20*time.Second)
					w.wantClean()
					w.end()
				})
				if t.Failed() {
					t.Fatalf("power fails at operation %d, seed %d", k, seed)
				}
			}
			if over {
				break
			}
		}
	}
}

// W21: a removal that power takes back would bring an entry of the first
// transaction into the second.
func TestALossOfPowerBetweenTransactionsBringsNothingBack(t *testing.T) {
	for _, sameEpoch := range []bool{false, true} {
		for seed := range uint64(20) {
			synctest.Test(t, func(t *testing.T) {
				disk := crashfs.New(seed)
				w := newWorld(t, disk, fault{kind: fmt.Sprintf("power fails, seed %d", seed), sameEpoch: sameEpoch})
				w.write()
				w.complete(1, true)
				w.write()
				disk.Crash()
				for _, p := range w.all {
					p.kill()
				}
				w.c.Broker(1).Crash()
				w.c.Broker(2).Crash()
				w.mu.Lock()
				w.disk = disk.Image(seed)
				w.mu.Unlock()
				w.restart(receiverName(1))
				w.restart(receiverName(2))
				time.Sleep(5 * time.Second)
				w.wantVisible("before the sender is back", producer.String()+" commit", producer.String()+" open")
				w.restart("sender")
				time.Sleep(time.Minute)
				w.wantVisible("while the second transaction is open", producer.String()+" commit", producer.String()+" open")
				w.complete(2, false)
				w.wantVisible("at the end", producer.String()+" commit", producer.String()+" abort")
				time.Sleep(2*abandon + 20*time.Second)
				w.wantClean()
				w.end()
			})
		}
	}
}
