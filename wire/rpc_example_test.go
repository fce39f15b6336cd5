package wire_test

import (
	"context"
	"fmt"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// An RPCSink goes between a markers.Dispatcher and the brokers of a cluster. What
// this broker leads takes the short way; a broker that can't be reached is tried
// again by the Dispatcher.
func ExampleRPCSink() {
	brokers := map[markers.Target]string{1: "127.0.0.1:9092"} // what is known of the cluster
	sink, err := wire.NewRPCSink(wire.RPCSinkConfig{
		Addr: func(to markers.Target) (string, bool) { addr, ok := brokers[to]; return addr, ok },
		Self: 1,
		Local: sinkFunc(func(_ context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result { // usually a wire.LocalSink
			return []markers.Result{markers.Applied}
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- sink.Run(ctx) }()

	d := markers.Delivery{Participant: txnstate.Partition("events", 0), Marker: markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 1}, Commit: true}}
	fmt.Println("broker 1:", sink.WriteMarkers(ctx, 1, []markers.Delivery{d}))
	fmt.Println("broker 2, whose address is not known yet:", sink.WriteMarkers(ctx, 2, []markers.Delivery{d}))
	cancel()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// broker 1: [applied]
	// broker 2, whose address is not known yet: [retry]
	// stopped: <nil>
}

// An RPCVerifier asks the broker that coordinates a transactional id, which may
// be this one.
func ExampleRPCVerifier() {
	v, err := wire.NewRPCVerifier(wire.RPCVerifierConfig{
		Coordinator: func(txnID string) (addr string, local, ok bool) {
			return "", txnID == "pay", txnID == "pay" // usually by txnstate.PickCoordinator
		},
		Local: localVerifierFunc(func() []txnstate.Code { // usually a wire.LocalVerifier
			return []txnstate.Code{txnstate.CodeNone}
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range []string{"pay", "ship"} {
		codes, err := v.Verify(context.Background(), id, txnstate.Producer{ID: 7}, []txnstate.Participant{txnstate.Partition("events", 0)}, fence.ModeAdd)
		fmt.Println(id, codes, err)
	}
	// Output:
	// pay [NONE] <nil>
	// ship [COORDINATOR_NOT_AVAILABLE] <nil>
}
