package slotfile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// Two brokers share a directory, and both believe that they own an id.
func Example() {
	dir, err := os.MkdirTemp("", "slotfile")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	one, _ := slotfile.Open(slotfile.Config{Dir: dir})
	two, _ := slotfile.Open(slotfile.Config{Dir: dir})

	rec := txnstate.Unknown("payments")
	rec.Producer = txnstate.Producer{ID: 1 << 40, Epoch: 0}
	rec.TimeoutMs, rec.UpdateMs = 60_000, 1782675758339
	if rec.Version, err = one.Swap(ctx, rec, txnstate.Durable); err != nil {
		fmt.Println(err)
	}

	// Each goes on from what it knows. One of them is told that it is late.
	rec.Producer.Epoch = 1
	_, errOne := one.Swap(ctx, rec, txnstate.Durable)
	_, errTwo := two.Swap(ctx, rec, txnstate.Durable)
	fmt.Println(errOne, errors.Is(errTwo, txnstate.ErrConflict))

	one.Close()
	two.Close()
	readable, _ := os.ReadFile(filepath.Join(dir, "txn_state", fmt.Sprintf("slot-%d.json", txnstate.Slot("payments"))))
	fmt.Print(string(readable))
	// Output:
	// <nil> true
	// {
	// "payments":{"pid":1099511627776,"epoch":1,"transactionTimeoutMs":60000,"updateMs":1782675758339,"version":3}
	// }
}

// Later writes are visible at once and cost no sync. Flush makes them durable;
// so does the next Durable write of their slot.
func ExampleStore_Flush() {
	dir, err := os.MkdirTemp("", "slotfile")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	store, _ := slotfile.Open(slotfile.Config{Dir: dir})
	defer store.Close()

	rec := txnstate.Unknown("payments")
	rec.Producer = txnstate.Producer{ID: 7, Epoch: 0}
	if _, err := store.Swap(ctx, rec, txnstate.Later); err != nil {
		fmt.Println(err)
	}
	now, err := store.Load(ctx, "payments")
	fmt.Println(now, err)
	fmt.Println(store.Flush(ctx))
	// Output:
	// "payments" Empty producer 7/0 [] <nil>
	// <nil>
}
