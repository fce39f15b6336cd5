package conformance_test

import (
	"context"
	"fmt"
	"testing/fstest"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/conformance"
)

// A broker in the same process is asked without a socket. This one commits
// whether or not there is a transaction.
func ExampleCheck() {
	broker := conformance.Handler{Handle: func(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
		resp := req.ResponseKind()
		if x, ok := resp.(*kmsg.InitProducerIDResponse); ok {
			x.ProducerID, x.ProducerEpoch = 4000, 0
		}
		return resp, nil
	}}
	// One scenario of our own in place of the 4,172 that come with the package.
	mine := fstest.MapFS{"mine.jsonl": {Data: []byte(`{"name":"mine-1","source":"Apache Kafka 4.4.0","steps":[` +
		`{"op":"init","v":4,"id":"tx1","pid":"none","epoch":-1,"timeout":60000,"want":{"err":"","pid":"P1","epoch":0}},` +
		`{"op":"end","v":3,"id":"tx1","pid":"P1","epoch":0,"commit":true,"want":{"err":"INVALID_TXN_STATE"}}]}`)}}
	report, err := conformance.Check(context.Background(), "in-process", conformance.Options{
		Dial:   broker.Dial,
		Suites: []string{"mine"},
		Extra:  mine,
		Settle: func(context.Context, []string) error { return nil }, // it completes transactions at once
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range report.Suites {
		fmt.Printf("%s: %d of %d scenarios agree\n", s.Name, s.Agree, s.Replayed)
		for _, d := range s.Differences {
			fmt.Println(d.Text)
		}
	}
	// Output:
	// mine: 0 of 1 scenarios agree
	// EndTxn v3 (tx1, P1 epoch 0, commit): Kafka answered INVALID_TXN_STATE, this broker answered success
}

// The recordings can be looked at without a broker.
func ExampleRecording() {
	scenarios, err := conformance.Recording("coord1")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range scenarios[2].Steps[:4] {
		fmt.Printf("%v: %v\n", s, s.Want)
	}
	// Output:
	// InitProducerId v2 (tx1, no producer id, timeout 60000 ms): success (P1, epoch 0)
	// EndTxn v3 (tx1, P1 epoch 2, abort): PRODUCER_FENCED
	// AddPartitionsToTxn v0 (tx1, an unknown producer id epoch 0, other/0): INVALID_PRODUCER_ID_MAPPING
	// EndTxn v2 (tx1, P1 epoch 0, abort): INVALID_TXN_STATE
}
