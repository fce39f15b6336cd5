package pidalloc_test

import (
	"context"
	"fmt"
	"os"

	"github.com/kafkatxn/kafkatxn/pidalloc"
)

func Example() {
	dir, err := os.MkdirTemp("", "pidalloc")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// Two starts of broker 0: what the first had left of its block is skipped.
	for range 2 {
		ids, err := pidalloc.New(pidalloc.Config{Dir: dir, Broker: 0})
		if err != nil {
			fmt.Println(err)
			return
		}
		for range 2 {
			id, err := ids.Next(context.Background())
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(id)
		}
	}
	// Output:
	// 1099511627776
	// 1099511627777
	// 1099511628776
	// 1099511628777
}

func ExampleMemory() {
	ids := pidalloc.Memory(100)
	for range 2 {
		id, err := ids.Next(context.Background())
		fmt.Println(id, err)
	}
	// Output:
	// 100 <nil>
	// 101 <nil>
}
