package wire_test

import (
	"context"
	"fmt"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/memstore"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// events is wire.Topics of a broker with one topic, without ids.
type events struct{}

func (events) Topic(name string) (wire.Topic, bool) {
	return wire.Topic{Name: "events", Partitions: 4}, name == "events"
}
func (events) TopicByID([16]byte) (wire.Topic, bool) { return wire.Topic{}, false }

// A host hands a request from the network to the Handler, and writes the answer.
// Here the broker is a transaction coordinator only, and its one participant is
// taken to have applied every marker.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dispatcher, err := markers.NewDispatcher(markers.Config{
		Leaders: markers.LeaderFunc(func(txnstate.Participant) (markers.Target, markers.Standing) { return 1, markers.Gone }),
		Sink:    noSink{},
	})
	if err != nil {
		panic(err)
	}
	coordinator, err := txnstate.New(txnstate.Config{Store: memstore.New(), ProducerIDs: new(counter), Dispatcher: dispatcher})
	if err != nil {
		panic(err)
	}
	go func() { _ = dispatcher.Run(ctx) }()
	go func() { _ = coordinator.Run(ctx) }()
	<-coordinator.Ready()
	handler, err := wire.New(wire.Config{
		Coordinator: coordinator,
		Topics:      events{},
	})
	if err != nil {
		panic(err)
	}

	// What a client sends, as it comes off a connection.
	serve := func(key, version int16, body []byte) kmsg.Response {
		req, err := handler.NewRequest(key, version)
		if err == nil {
			err = req.ReadFrom(body)
		}
		if err != nil {
			panic(err) // a host closes the connection
		}
		resp, err := handler.Handle(ctx, req, "User:alice")
		if err != nil {
			panic(err) // wire.ErrClose
		}
		return resp // to be encoded behind the correlation id
	}

	id := "payments"
	init := kmsg.NewPtrInitProducerIDRequest()
	init.Version, init.TransactionalID, init.TransactionTimeoutMillis = 4, &id, 60000
	who := serve(22, 4, init.AppendTo(nil)).(*kmsg.InitProducerIDResponse)
	fmt.Println("identity:", who.ProducerID, who.ProducerEpoch)

	add := addRequest(3, id, producer{who.ProducerID, who.ProducerEpoch}, "events", 0, 9)
	for _, code := range addCodes(serve(24, 3, add.AppendTo(nil)).(*kmsg.AddPartitionsToTxnResponse)) {
		fmt.Println("add:", txnstate.Code(code))
	}
	add = addRequest(3, id, producer{who.ProducerID, who.ProducerEpoch}, "events", 0)
	fmt.Println("add:", txnstate.Code(addCodes(serve(24, 3, add.AppendTo(nil)).(*kmsg.AddPartitionsToTxnResponse))[0]))

	end := endRequest(5, id, producer{who.ProducerID, who.ProducerEpoch}, true)
	done := serve(26, 5, end.AppendTo(nil)).(*kmsg.EndTxnResponse)
	fmt.Println("commit:", txnstate.Code(done.ErrorCode), "then", done.ProducerID, done.ProducerEpoch)
	// Output:
	// identity: 1000 0
	// add: OPERATION_NOT_ATTEMPTED
	// add: UNKNOWN_TOPIC_OR_PARTITION
	// add: NONE
	// commit: NONE then 1000 1
}

type noSink struct{}

func (noSink) WriteMarkers(context.Context, markers.Target, []markers.Delivery) []markers.Result {
	return nil
}
