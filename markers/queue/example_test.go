package queue_test

import (
	"context"
	"fmt"
	"os"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// Broker 1 coordinates a transaction, broker 2 leads its partition, and all they
// share is a directory.
func Example() {
	dir, err := os.MkdirTemp("", "shared")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	events := txnstate.Partition("events", 0)
	cluster := markerstest.NewCluster() // in the place of a broker's logs
	cluster.Lead(2, events)
	cluster.Write(events, txnstate.Producer{ID: 7})

	// In the process of broker 2:
	receiver, err := queue.NewReceiver(queue.ReceiverConfig{Dir: dir, Self: 2, Apply: cluster.Broker(2)}) // usually a wire.LocalSink
	if err != nil {
		fmt.Println(err)
		return
	}
	// In the process of broker 1:
	sink, err := queue.NewSink(queue.SinkConfig{Dir: dir, Self: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	dispatcher, err := markers.NewDispatcher(markers.Config{Leaders: cluster, Sink: sink})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 3)
	for _, run := range []func(context.Context) error{receiver.Run, sink.Run, dispatcher.Run} {
		go func() { stopped <- run(ctx) }()
	}
	applied := make(chan []txnstate.Participant)
	dispatcher.Dispatch(txnstate.Outcome{
		TxnID: "pay", Producer: txnstate.Producer{ID: 7, Epoch: 1}, Commit: true, TransactionVersion: txnstate.TV2,
		Participants: []txnstate.Participant{events},
	}, func(ps []txnstate.Participant) { applied <- ps })
	fmt.Println("applied:", <-applied)
	fmt.Println("readers see:", cluster.Visible(events))
	cancel()
	for range 3 {
		if err := <-stopped; err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// applied: [events/0]
	// readers see: [7/0 commit]
}
