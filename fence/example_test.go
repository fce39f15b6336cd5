package fence_test

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// leader is a partition of a host whose log has an order of its own: a file, say,
// that is appended to under a lock. What comes below its high watermark is left
// out: here that is always the end.
type leader struct {
	mu    sync.Mutex
	state *fence.Partition
	log   []fence.Batch // a real host keeps bytes
	end   int64
}

func (l *leader) append(b fence.Batch) (int64, error) {
	base := l.end
	l.log = append(l.log, b)
	l.end += int64(b.Records)
	return base, nil
}

// produce is what a host does with the batch of a produce request, which
// fence.ParseProduce has read. ask is the question to the transaction
// coordinator: AddPartitionsToTxn, with VerifyOnly unless the mode is ModeAdd.
func (l *leader) produce(b fence.Batch, mode fence.Mode, nowMs int64, ask func() txnstate.Code) (int64, txnstate.Code) {
	l.mu.Lock()
	guard, must, err := l.state.Verify(b, mode, nowMs)
	l.mu.Unlock()
	if err != nil {
		return -1, txnstate.CodeOf(err)
	}
	if must { // without the lock: the answer may take a while
		if code := ask(); code != txnstate.CodeNone {
			return -1, mode.ProduceAnswer(code)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.state.Reserve(b, guard, nowMs)
	if err != nil {
		return -1, txnstate.CodeOf(err)
	}
	if r.Duplicate {
		return r.Offset, txnstate.CodeNone
	}
	base, err := l.append(b)
	if err != nil {
		// Perhaps it is in the log. A host that knows that it isn't calls
		// r.Cancel; any other drops the state and replays its log.
		l.state = nil
		return -1, txnstate.CodeKafkaStorageError
	}
	r.Settle(base)
	return base, txnstate.CodeNone
}

// mark is what a host does with a marker of a WriteTxnMarkers request.
func (l *leader) mark(m markers.Marker, nowMs int64) txnstate.Code {
	l.mu.Lock()
	defer l.mu.Unlock()
	st, known := l.state.Producer(m.Producer.ID)
	if err := markers.Decide(m, st, known); err != nil {
		return txnstate.CodeOf(err)
	}
	// The bytes are those of markers.AppendControlBatch.
	base, err := l.append(fence.Batch{Producer: m.Producer, Records: 1, Control: true, Transactional: true})
	if err != nil {
		l.state = nil
		return txnstate.CodeKafkaStorageError
	}
	l.state.Mark(m.Mark(nowMs), base)
	l.state.Stabilize(l.end)
	return txnstate.CodeNone
}

// The loop of a host that knows the offset of a batch when it appends it.
func Example() {
	l := &leader{state: fence.NewPartition(fence.Config{})}
	yes := func() txnstate.Code { return txnstate.CodeNone }
	no := func() txnstate.Code { return txnstate.CodeTransactionAbortable }
	b := fence.Batch{Producer: txnstate.Producer{ID: 7, Epoch: 0}, FirstSequence: 0, Records: 3, Transactional: true}

	produce := func(b fence.Batch, ask func() txnstate.Code) {
		offset, code := l.produce(b, fence.ModeAdd, 0, ask)
		fmt.Printf("sequence %d of %s: offset %d %s, stable up to %d\n", b.FirstSequence, b.Producer, offset, code, l.state.LastStable(l.end))
	}
	produce(b, no)  // not in the transaction
	produce(b, yes) // the first batch: its transaction is open
	produce(b, no)  // the client did not get the answer; nobody is asked

	end := markers.Marker{Producer: txnstate.Producer{ID: 7, Epoch: 1}, Commit: false, TransactionVersion: txnstate.TV2}
	fmt.Println("abort:", l.mark(end, 0))
	fmt.Printf("aborted: %+v\n", l.state.Aborted(0, l.end))

	b.FirstSequence = 3
	produce(b, yes) // late: its transaction has ended
	b.Producer.Epoch, b.FirstSequence = 1, 0
	produce(b, yes) // the next one

	// Output:
	// sequence 0 of 7/0: offset -1 TRANSACTION_ABORTABLE, stable up to 0
	// sequence 0 of 7/0: offset 0 NONE, stable up to 0
	// sequence 0 of 7/0: offset 0 NONE, stable up to 0
	// abort: NONE
	// aborted: [{ProducerID:7 First:0 Last:3 LastStable:4}]
	// sequence 3 of 7/0: offset -1 INVALID_PRODUCER_EPOCH, stable up to 4
	// sequence 0 of 7/1: offset 4 NONE, stable up to 4
}

// upload is a host that gathers batches, writes them as one object, and is told
// by a sequencer which offsets they have. Meanwhile the next ones are let in.
type upload struct {
	batches []fence.Batch
	places  []fence.Reservation
}

func (u *upload) add(p *fence.Partition, b fence.Batch, g fence.Guard) error {
	r, err := p.Reserve(b, g, 0)
	if err != nil || r.Duplicate {
		return err
	}
	u.batches, u.places = append(u.batches, b), append(u.places, r)
	return nil
}

// done is called under the partition's lock, and before the high watermark shows
// the object to anybody.
func (u *upload) done(base int64, err error) {
	for i, r := range u.places {
		if err != nil { // it is known that nothing was written
			r.Cancel()
			continue
		}
		r.Settle(base)
		base += int64(u.batches[i].Records)
	}
}

// The loop of a host that learns the offsets of batches later, as one on an
// object store does.
func Example_lateOffsets() {
	p := fence.NewPartition(fence.Config{})
	who := txnstate.Producer{ID: 7, Epoch: 0}
	numbered := func(seq int32) fence.Batch {
		return fence.Batch{Producer: who, FirstSequence: seq, Records: 1, Transactional: true}
	}
	guard, _, _ := p.Verify(numbered(0), fence.ModeDefault, 0)

	var first, second upload
	fmt.Println("sequence 0:", first.add(p, numbered(0), guard))
	fmt.Println("sequence 1:", first.add(p, numbered(1), guard))
	fmt.Println("sequence 2:", second.add(p, numbered(2), guard))
	fmt.Println("sequence 1 again:", second.add(p, numbered(1), guard))

	first.done(0, errors.New("the upload failed"))
	fmt.Println("sequence 0 again:", second.add(p, numbered(0), guard))
	second.done(0, errors.New("so this is not written either"))

	var third upload
	fmt.Println("sequence 0 again:", third.add(p, numbered(0), guard))
	fmt.Println("sequence 1 again:", third.add(p, numbered(1), guard))
	third.done(100, nil)
	st, _ := p.Producer(7)
	fmt.Printf("open since %d, last sequence %d, stable up to %d of 102\n", st.OpenSince, st.LastSequence, p.LastStable(102))

	// Output:
	// sequence 0: <nil>
	// sequence 1: <nil>
	// sequence 2: <nil>
	// sequence 1 again: NOT_ENOUGH_REPLICAS_AFTER_APPEND: the same batch of producer id 7, from sequence 1, is being appended
	// sequence 0 again: NOT_ENOUGH_REPLICAS: a batch of producer id 7 was not appended, and those behind it are on their way
	// sequence 0 again: <nil>
	// sequence 1 again: <nil>
	// open since 100, last sequence 1, stable up to 100 of 102
}
