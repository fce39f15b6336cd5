package txnstate_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A whole transaction through the pure core. The map stands for a store; a real
// one compares versions and is durable.
func ExampleStep() {
	const id = "pay"
	store := map[string]txnstate.Record{}
	freshID := int64(1000)
	now := time.UnixMilli(1_700_000_000_000)

	do := func(ev txnstate.Event) txnstate.Decision {
		rec, ok := store[id]
		if !ok {
			rec = txnstate.Unknown(id)
		}
		d, err := txnstate.Step(rec, ev, now)
		if err != nil {
			fmt.Printf("%-8s %v\n", ev.Name(), err)
			return d
		}
		if err := txnstate.Check(d.Next); err != nil {
			panic(err)
		}
		store[id] = d.Next // before anything else is done with it
		fmt.Printf("%-8s %s", ev.Name(), d.Next)
		if d.Effects.Markers {
			o := d.Next.Outcome(1)
			fmt.Printf(", tell %v: commit %v", o.Participants, o.Commit)
		}
		fmt.Println()
		return d
	}

	init := txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000, Server: txnstate.TV2, NewID: -1}
	if _, err := txnstate.Step(txnstate.Unknown(id), init, now); errors.Is(err, txnstate.ErrNeedProducerID) {
		init.NewID = freshID
	}
	me := do(init).Grant

	do(txnstate.Add{Producer: me, Client: txnstate.TV2, Participants: []txnstate.Participant{
		txnstate.Partition("orders", 3), txnstate.Group("billing"),
	}})
	end := txnstate.End{Producer: me, Commit: true, Client: txnstate.TV2, NewID: -1}
	me = do(end).Grant
	do(end) // a retry while it completes

	o := store[id].Outcome(1)
	for _, p := range o.Participants { // each of them as it has applied the outcome
		do(txnstate.Applied{Producer: o.Producer, TxnSeq: o.TxnSeq, Participants: []txnstate.Participant{p}})
	}
	fmt.Println("next transaction as", me)

	// Output:
	// Init     "pay" Empty producer 1000/0 []
	// Add      "pay" Ongoing producer 1000/0 [group billing orders/3]
	// End      "pay" PrepareCommit producer 1000/1 [group billing orders/3], tell [group billing orders/3]: commit true
	// End      transactional id "pay": CONCURRENT_TRANSACTIONS: the transaction is completing: PrepareCommit
	// Applied  "pay" PrepareCommit producer 1000/1 [orders/3]
	// Applied  "pay" CompleteCommit producer 1000/1 []
	// next transaction as 1000/1
}

// The record found after a crash owes the same as before it.
func ExampleResume() {
	rec := txnstate.Record{
		TxnID: "pay", State: txnstate.PrepareAbort, Producer: txnstate.Producer{ID: 1000, Epoch: 4}, PrevID: 1000,
		Next: txnstate.NoProducer, LastEpoch: 3, Participants: []txnstate.Participant{txnstate.Partition("orders", 3)},
	}
	owed := txnstate.Resume(rec)
	fmt.Println("markers:", owed.Markers, "fence below:", owed.Fence)

	// Output:
	// markers: true fence below: 1000/4
}

// Every broker works out by itself which of them coordinates an id.
func ExamplePickCoordinator() {
	all := []int32{0, 1, 2}
	for _, alive := range [][]int32{{0, 1, 2}, {0, 1}, {1}, {}} {
		a, ok := txnstate.PickCoordinator("tx-ongoing", all, alive) // slot 25
		b, _ := txnstate.PickCoordinator("tx-abort", all, alive)    // slot 48
		fmt.Println(alive, a, b, ok)
	}

	// Output:
	// [0 1 2] 2 0 true
	// [0 1] 0 0 true
	// [1] 1 1 true
	// [] 0 0 false
}

// A record of Kafka's topic __transaction_state.
func ExampleDecodeLogValue() {
	key, _ := hex.DecodeString("000000046d792d74")
	value, _ := hex.DecodeString("0001000000000000123400080000ea6002020274030000000000000003000000018bcfe568010000018bcfe56800020008000000000000123402020002")

	id, err := txnstate.DecodeLogKey(key)
	if err != nil {
		fmt.Println(err)
		return
	}
	rec, err := txnstate.DecodeLogValue(id, value)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rec)
	fmt.Println("open since", time.UnixMilli(rec.StartMs).UTC().Format(time.RFC3339), "may take", time.Duration(rec.TimeoutMs)*time.Millisecond)

	gone, _ := txnstate.DecodeLogValue(id, nil) // a tombstone
	fmt.Println("known after a tombstone:", gone.Known())

	// Output:
	// "my-t" PrepareCommit producer 4660/8 [t/0 t/3]
	// open since 2023-11-14T22:13:20Z may take 1m0s
	// known after a tombstone: false
}

// Refusals carry Kafka's code and are matched by it.
func ExampleCodeOf() {
	rec := txnstate.Unknown("pay")
	_, err := txnstate.Step(rec, txnstate.Add{Producer: txnstate.Producer{ID: 7, Epoch: 0}}, time.Now())
	fmt.Println(errors.Is(err, txnstate.ErrInvalidPIDMapping), int16(txnstate.CodeOf(err)))
	fmt.Println(err)
	fmt.Println(txnstate.CodeOf(fmt.Errorf("swap: %w", txnstate.ErrUncertain)))

	// Output:
	// true 49
	// transactional id "pay": INVALID_PRODUCER_ID_MAPPING: the id is not known
	// COORDINATOR_NOT_AVAILABLE
}
