package journal_test

import (
	"context"
	"fmt"
	"os"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/journal"
)

// A record outlives the process that stored it.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	store, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	record := txnstate.Unknown("payments")
	record.Producer = txnstate.Producer{ID: 4000, Epoch: 0}
	if _, err := store.Swap(ctx, record, txnstate.Durable); err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Swap(ctx, record, txnstate.Durable) // from version 0, of no record
	fmt.Println(err)
	if err := store.Close(); err != nil {
		fmt.Println(err)
		return
	}

	store, err = journal.Open(journal.Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	record, err = store.Load(ctx, "payments")
	fmt.Println(record, err)
	// Output:
	// txnstate: the record has another version
	// "payments" Empty producer 4000/0 [] <nil>
}

// A file can be taken apart without a Store, also beside one that is open.
func ExampleRead() {
	b, err := os.ReadFile("testdata/format-1/txn-0000000000000004.log")
	if err != nil {
		fmt.Println(err)
		return
	}
	header, frames, err := journal.Read(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("segment", header.Number)
	for frame, err := range frames {
		if err != nil {
			fmt.Println(err)
			continue
		}
		for entry := range frame.Entries() {
			record, err := entry.Record()
			fmt.Println(frame.Offset, record, err)
		}
	}
	// Output:
	// segment 4
	// 44 "pay" CompleteCommit producer 1099511627783/3 [] <nil>
	// damaged at byte 122: there should be frame 2, and there is no whole frame
}
