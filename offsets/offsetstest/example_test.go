package offsetstest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/offsets/offsetstest"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A log that wrote and said it failed: the client is told to try again, and the
// Manager looks at the log before it answers anything else.
func ExampleFaulty() {
	ctx := context.Background()
	fate := offsetstest.Done
	log := &offsetstest.Faulty{
		Log: offsets.NewMemLog(),
		Fate: func(op offsetstest.Op, _ int32, _ [][]byte) offsetstest.Fate {
			if op == offsetstest.OpAppend {
				return fate
			}
			return offsetstest.Done
		},
	}
	m, _ := offsets.New(offsets.Config{Log: log})
	_ = m.Load(ctx)
	defer m.Close(ctx)

	fate = offsetstest.Applied
	_, err := m.Commit(ctx, "billing", []offsets.Offset{{Topic: "orders", Offset: 5}})
	fmt.Println(txnstate.CodeOf(err), errors.Is(err, offsetstest.ErrFault))

	fetched, _ := m.Fetch("billing", nil, false)
	fmt.Println(fetched[0].Offset.Offset)
	// Output:
	// COORDINATOR_NOT_AVAILABLE true
	// 5
}
