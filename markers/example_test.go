package markers_test

import (
	"context"
	"fmt"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// oneBroker applies markers in this process.
type oneBroker struct{}

func (oneBroker) WriteMarkers(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	out := make([]markers.Result, len(ds))
	for i, d := range ds {
		fmt.Printf("%s: commit=%v of producer %s\n", d.Participant, d.Commit, d.Producer)
		out[i] = markers.Applied
	}
	return out
}

// A coordinator hands decided transactions to a Dispatcher.
func ExampleDispatcher() {
	d, err := markers.NewDispatcher(markers.Config{
		Sink:    oneBroker{},
		Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) { return 1, markers.Known }),
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()

	applied := make(chan []txnstate.Participant)
	d.Dispatch(txnstate.Outcome{
		TxnID: "billing-1", Producer: txnstate.Producer{ID: 4000, Epoch: 3}, Commit: true, TransactionVersion: txnstate.TV2,
		Participants: []txnstate.Participant{txnstate.Partition("orders", 0)},
	}, func(ps []txnstate.Participant) { applied <- ps })
	fmt.Println("done:", <-applied)
	stop()
	fmt.Println(<-done)
	// Output:
	// orders/0: commit=true of producer 4000/3
	// done: [orders/0]
	// <nil>
}

// A leader judges a marker by what it knows of the producer.
func ExampleDecide() {
	p := fence.NewPartition(fence.Config{})
	p.Mark(fence.Mark{Producer: txnstate.Producer{ID: 4000, Epoch: 3}, Commit: true, CoordinatorEpoch: 7}, 10)

	m := markers.Marker{Producer: txnstate.Producer{ID: 4000, Epoch: 2}, CoordinatorEpoch: 7, TransactionVersion: txnstate.TV2}
	state, known := p.Producer(m.Producer.ID)
	fmt.Println(txnstate.CodeOf(markers.Decide(m, state, known)))
	m.Producer.Epoch, m.CoordinatorEpoch = 4, 6
	fmt.Println(txnstate.CodeOf(markers.Decide(m, state, known)))
	// Output:
	// INVALID_PRODUCER_EPOCH
	// TRANSACTION_COORDINATOR_FENCED
}
