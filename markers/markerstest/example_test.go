package markerstest_test

import (
	"context"
	"fmt"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A Cluster is of use beyond the suite: for tests of anything that sends markers.
func ExampleCluster() {
	events := txnstate.Partition("events", 0)
	c := markerstest.NewCluster()
	c.Lead(1, events)
	c.Write(events, txnstate.Producer{ID: 7, Epoch: 4})
	c.Script(events, markerstest.Refuse(txnstate.CodeKafkaStorageError))

	d := markers.Delivery{Participant: events, Marker: markers.Marker{
		Producer: txnstate.Producer{ID: 7, Epoch: 5}, Commit: true, TransactionVersion: txnstate.TV2,
	}}
	for range 2 {
		fmt.Println(c.Broker(1).WriteMarkers(context.Background(), 1, []markers.Delivery{d})[0], c.Visible(events))
	}
	fmt.Println(c.Broker(2).WriteMarkers(context.Background(), 2, []markers.Delivery{d})[0])
	// Output:
	// retry [7/4 open]
	// applied [7/4 commit]
	// moved
}
