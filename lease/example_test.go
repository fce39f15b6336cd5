package lease_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/kafkatxn/kafkatxn/lease"
)

// Two brokers share a directory. The one that ends hands its slots over.
func Example() {
	dir, err := os.MkdirTemp("", "lease")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	var running sync.WaitGroup
	defer running.Wait()
	start := func(broker int32) (*lease.Lease, context.CancelFunc) {
		l, err := lease.New(lease.Config{Dir: dir, Broker: broker, Brokers: []int32{1, 2}})
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		running.Go(func() { _ = l.Run(ctx) })
		return l, cancel
	}
	one, stop1 := start(1)
	defer stop1()
	_, stop2 := start(2)

	show := func(alive ...int32) {
		for {
			changed := one.Changed()
			if slices.Equal(one.Alive(), alive) {
				break
			}
			<-changed
		}
		owner, _ := one.Owner(7)
		fmt.Println(alive, "alive, slot 7 belongs to broker", owner)
	}
	show(1, 2)
	stop2()
	show(1)
	// Output:
	// [1 2] alive, slot 7 belongs to broker 2
	// [1] alive, slot 7 belongs to broker 1
}
