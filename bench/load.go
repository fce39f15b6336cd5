package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	topic      = "bench"
	partitions = 12
	perTxn     = 3 // partitions of a transaction, with one record each
)

// load is one kind of work for a broker.
type load struct {
	mode string // coord: two requests and no data; full: a real client's transactions
	c    int    // producers at once
}

func (l load) String() string { return fmt.Sprintf("%s c=%d", l.mode, l.c) }

// outcome is how a broker did.
type outcome struct {
	rate float64 // transactions a second
	p50  time.Duration
}

// run puts l on a broker for about d, after a while to warm up.
func (l load) run(ctx context.Context, addr, prefix string, warm, d time.Duration) (outcome, error) {
	steps := make([]func(context.Context, int) error, l.c)
	for i := range steps {
		id := fmt.Sprintf("%s-%d", prefix, i)
		opts := []kgo.Opt{kgo.SeedBrokers(addr)}
		if l.mode == "full" {
			opts = append(opts, kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.TransactionTimeout(time.Minute))
		} else {
			opts = append(opts, kgo.MaxVersions(kversion.V3_7_0()))
		}
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			return outcome{}, err
		}
		defer cl.Close()
		if l.mode == "full" {
			steps[i] = full(cl)
			continue
		}
		if steps[i], err = coord(ctx, cl, id); err != nil {
			return outcome{}, err
		}
	}
	var counting, over atomic.Bool
	var failure atomic.Pointer[error]
	took := make([][]time.Duration, l.c)
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() {
			for n := i; !over.Load() && failure.Load() == nil; n++ {
				begin := time.Now()
				if err := step(ctx, n); err != nil {
					failure.CompareAndSwap(nil, &err)
					return
				}
				if counting.Load() {
					took[i] = append(took[i], time.Since(begin))
				}
			}
		})
	}
	time.Sleep(warm)
	counting.Store(true)
	begin := time.Now()
	time.Sleep(d)
	counting.Store(false)
	span := time.Since(begin)
	over.Store(true)
	wg.Wait()
	if err := failure.Load(); err != nil {
		return outcome{}, *err
	}
	all := slices.Concat(took...)
	if len(all) == 0 {
		return outcome{}, errors.New("not one transaction was done")
	}
	slices.Sort(all)
	return outcome{float64(len(all)) / span.Seconds(), all[len(all)/2]}, nil
}

// full is a transaction of a real client: begin, one record to each of three
// partitions, commit.
func full(cl *kgo.Client) func(context.Context, int) error {
	value := make([]byte, 100)
	return func(ctx context.Context, n int) error {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		rs := make([]*kgo.Record, perTxn)
		for k := range rs {
			rs[k] = &kgo.Record{Topic: topic, Partition: int32((n + k) % partitions), Value: value}
		}
		if err := cl.ProduceSync(ctx, rs...).FirstErr(); err != nil {
			return err
		}
		return cl.EndTransaction(ctx, kgo.TryCommit)
	}
}

// coord is what a transaction asks of its coordinator: AddPartitionsToTxn and
// EndTxn, of the versions before transaction.version 2.
func coord(ctx context.Context, cl *kgo.Client, id string) (func(context.Context, int) error, error) {
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis = &id, 60_000
	var who *kmsg.InitProducerIDResponse
	err := again(func() (code int16, err error) {
		if who, err = init.RequestWith(ctx, cl); err != nil {
			return 0, err
		}
		return who.ErrorCode, nil
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, n int) error {
		add := kmsg.NewPtrAddPartitionsToTxnRequest()
		add.TransactionalID, add.ProducerID, add.ProducerEpoch = id, who.ProducerID, who.ProducerEpoch
		t := kmsg.NewAddPartitionsToTxnRequestTopic()
		t.Topic = topic
		for k := range perTxn {
			t.Partitions = append(t.Partitions, int32((n+k)%partitions))
		}
		add.Topics = append(add.Topics, t)
		err := again(func() (int16, error) {
			resp, err := add.RequestWith(ctx, cl)
			if err != nil {
				return 0, err
			}
			return resp.Topics[0].Partitions[0].ErrorCode, nil
		})
		if err != nil {
			return err
		}
		end := kmsg.NewPtrEndTxnRequest()
		end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = id, who.ProducerID, who.ProducerEpoch, true
		return again(func() (int16, error) {
			resp, err := end.RequestWith(ctx, cl)
			if err != nil {
				return 0, err
			}
			return resp.ErrorCode, nil
		})
	}, nil
}

// again asks until the answer is not "come again".
func again(ask func() (code int16, err error)) error {
	for {
		code, err := ask()
		if err != nil {
			return err
		}
		switch err := kerr.ErrorForCode(code); err {
		case kerr.ConcurrentTransactions, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator:
			time.Sleep(200 * time.Microsecond)
		default:
			return err
		}
	}
}

// prepare makes the topic.
func prepare(ctx context.Context, addr string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, partitions, 1, nil, topic)
	return err
}
