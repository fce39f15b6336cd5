package offsets_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The life of an offset in a transaction: staged, pending, committed.
func Example() {
	ctx := context.Background()
	m, err := offsets.New(offsets.Config{Log: offsets.NewMemLog()})
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Load(ctx); err != nil {
		log.Fatal(err)
	}
	defer m.Close(ctx)

	const group = "billing"
	show := func(when string) {
		at := []offsets.TopicPartition{{Topic: "orders", Partition: 0}}
		plain, _ := m.Fetch(group, at, false)
		stable, _ := m.Fetch(group, at, true)
		fmt.Printf("%s: offset %d; stable: offset %d, %s\n", when, plain[0].Offset.Offset, stable[0].Offset.Offset, stable[0].Code)
	}

	if _, err := m.Commit(ctx, group, []offsets.Offset{{Topic: "orders", Offset: 5}}); err != nil {
		log.Fatal(err)
	}
	show("committed")

	// A TxnOffsetCommit of producer 7, epoch 0.
	producer := txnstate.Producer{ID: 7, Epoch: 0}
	guard, ask, err := m.Verify(group, producer, fence.ModeAdd)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("is the group in the transaction? ask:", ask)
	if _, err := m.Stage(ctx, group, producer, guard, []offsets.Offset{{Topic: "orders", Offset: 9}}); err != nil {
		log.Fatal(err)
	}
	show("staged")

	// The transaction commits. Its marker has the next epoch (TV2).
	producer.Epoch++
	err = m.Marker(ctx, txnstate.OffsetsPartition(group), markers.Marker{
		Producer: producer, Commit: true, TransactionVersion: txnstate.TV2,
	})
	if err != nil {
		log.Fatal(err)
	}
	show("after the marker")
	// Output:
	// committed: offset 5; stable: offset 5, NONE
	// is the group in the transaction? ask: true
	// staged: offset 5; stable: offset -1, UNSTABLE_OFFSET_COMMIT
	// after the marker: offset 9; stable: offset 9, NONE
}

// A member of the generation before is refused; a rebalance under way is no
// reason to.
func ExampleCheckTxnCommit() {
	group := offsets.GroupView{
		State: offsets.GroupPreparing, Generation: 7,
		Member: func(id string) bool { return id == "m1" },
	}
	for _, c := range []offsets.Caller{
		{MemberID: "m1", Generation: 7},
		{MemberID: "m1", Generation: 6},
		{MemberID: "m2", Generation: 7},
		{Generation: -1}, // a client from before KIP-447
	} {
		fmt.Printf("%q of generation %d: %s\n", c.MemberID, c.Generation, offsets.CheckTxnCommit(group, c, 3))
	}
	// Output:
	// "m1" of generation 7: NONE
	// "m1" of generation 6: ILLEGAL_GENERATION
	// "m2" of generation 7: UNKNOWN_MEMBER_ID
	// "" of generation -1: NONE
}
