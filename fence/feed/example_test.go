package feed_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/fence/feed"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// leader is the partitions that one broker leads.
type leader struct {
	mu    sync.Mutex
	parts []*fence.Partition
}

func (l *leader) fence(p txnstate.Producer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, part := range l.parts {
		part.Fence(p)
	}
}

// fencer is the txnstate.Fencer of a broker: its own partitions hear of a fence at
// once, the others through the feed.
type fencer struct {
	own  *leader
	feed *feed.Writer
}

func (f fencer) Fence(ctx context.Context, p txnstate.Producer) error {
	f.own.fence(p)
	return f.feed.Fence(ctx, p)
}

// Broker 1 coordinates, broker 2 leads a partition with an open transaction of a
// producer that has been replaced.
func Example() {
	dir, err := os.MkdirTemp("", "shared")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	// In the process of broker 2:
	part := fence.NewPartition(fence.Config{})
	old := fence.Batch{Producer: txnstate.Producer{ID: 102, Epoch: 2}, FirstSequence: 0, Records: 1, Transactional: true}
	part.Replay(old, 0, nil)
	two := &leader{parts: []*fence.Partition{part}}
	heard := make(chan txnstate.Producer, 10)
	reader, err := feed.NewReader(feed.ReaderConfig{Dir: dir, Offer: func(p txnstate.Producer) {
		two.fence(p)
		heard <- p
	}})
	if err != nil {
		fmt.Println(err)
		return
	}

	// In the process of broker 1:
	writer, err := feed.NewWriter(feed.WriterConfig{Dir: dir, Self: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	var config txnstate.Config
	config.Fencer = fencer{&leader{}, writer}

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 2)
	go func() { stopped <- writer.Run(ctx) }()
	go func() { stopped <- reader.Run(ctx) }()
	if err := config.Fencer.Fence(ctx, txnstate.Producer{ID: 102, Epoch: 3}); err != nil {
		fmt.Println(err)
	}
	file, _ := os.ReadFile(dir + "/producer_fences/from-1.json")
	fmt.Printf("%s\n", file)
	fmt.Println("broker 2 hears of", <-heard)

	two.mu.Lock()
	old.FirstSequence = 1
	_, _, err = part.Verify(old, fence.ModeAdd, 0)
	two.mu.Unlock()
	fmt.Println("the next batch of the old one is refused:", errors.Is(err, txnstate.ErrInvalidProducerEpoch))
	cancel()
	fmt.Println("stopped:", errors.Join(<-stopped, <-stopped))
	// Output:
	// {"102":3}
	// broker 2 hears of 102/3
	// the next batch of the old one is refused: true
	// stopped: <nil>
}
