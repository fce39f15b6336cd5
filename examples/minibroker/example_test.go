package minibroker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A producer that takes too long is fenced, and the test does not wait for it.
func Example() {
	ctx := context.Background()
	b, stop, err := minibroker.Start(ctx, minibroker.Config{
		Listen: "127.0.0.1:0",
		Topics: map[string]int32{"orders": 1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	c, err := kgo.NewClient(
		kgo.SeedBrokers(b.Addr().String()),
		kgo.DefaultProduceTopic("orders"),
		kgo.TransactionalID("checkout"),
		kgo.TransactionTimeout(10*time.Second),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println("begin:", c.BeginTransaction())
	fmt.Println("produce:", c.ProduceSync(ctx, kgo.StringRecord("one book")).FirstErr())
	fmt.Println("eleven seconds pass:", b.Advance(ctx, 11*time.Second))
	err = c.EndTransaction(ctx, kgo.TryCommit)
	fmt.Println("commit is refused:", errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.ProducerFenced))

	// Output:
	// begin: <nil>
	// produce: <nil>
	// eleven seconds pass: <nil>
	// commit is refused: true
}
