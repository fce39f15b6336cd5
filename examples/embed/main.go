// Command embed is the smallest host that wires transactions itself, for someone
// who has a broker: its own store, partition, resolver, sink and hook. Here
// requests are function calls; package wire makes Kafka's requests call the same.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// host is the broker. It leads one partition and coordinates all groups.
type host struct {
	out         io.Writer
	coordinator *txnstate.Coordinator
	groups      *offsets.Manager
	ids         int64 // producer ids given out; package pidalloc does it durably

	mu    sync.Mutex // the log and its producer state move together
	state *fence.Partition
	log   []entry
}

type entry struct {
	producer txnstate.Producer
	value    string // "" in a marker
}

// Next gives out a producer id.
func (h *host) Next(context.Context) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids++
	return h.ids, nil
}

func (h *host) add(ctx context.Context, id string, p txnstate.Producer, to txnstate.Participant) error {
	return h.coordinator.Add(ctx, id, txnstate.Add{Producer: p, Participants: []txnstate.Participant{to}, Client: txnstate.TV2})
}

// produce appends a record. The first of a transaction is told to the coordinator
// before it is in the log.
func (h *host) produce(ctx context.Context, id string, p txnstate.Producer, sequence int32, value string) error {
	b := fence.Batch{Producer: p, FirstSequence: sequence, Records: 1, Transactional: true}
	h.mu.Lock()
	guard, ask, err := h.state.Verify(b, fence.ModeAdd, time.Now().UnixMilli())
	h.mu.Unlock()
	if err == nil && ask {
		err = h.add(ctx, id, p, txnstate.Partition("orders", 0))
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	place, err := h.state.Reserve(b, guard, time.Now().UnixMilli())
	if err != nil || place.Duplicate {
		return err
	}
	at := int64(len(h.log))
	h.log = append(h.log, entry{p, value}) // and a sync, in yours
	place.Settle(at)
	_, err = fmt.Fprintf(h.out, "stage   orders/0 has %q at %d, stable up to %d\n", value, at, h.state.LastStable(at+1))
	return err
}

// stage keeps the position of a group until the outcome is known.
func (h *host) stage(ctx context.Context, id string, p txnstate.Producer, group string, position int64) error {
	guard, ask, err := h.groups.Verify(group, p, fence.ModeAdd)
	if err == nil && ask {
		err = h.add(ctx, id, p, txnstate.Group(group))
	}
	if err == nil {
		fmt.Fprintf(h.out, "stage   group %s is to stand at %d\n", group, position)
		_, err = h.groups.Stage(ctx, group, p, guard, []offsets.Offset{{Topic: "clicks", Offset: position}})
	}
	return err
}

// Leader is the resolver: the broker that serves a participant. There is one.
func (h *host) Leader(txnstate.Participant) (markers.Target, markers.Standing) {
	return 1, markers.Known
}

// WriteMarkers is the sink. A marker comes again until it is answered Applied.
func (h *host) WriteMarkers(ctx context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	results := make([]markers.Result, len(ds))
	for i, d := range ds {
		results[i] = markers.ResultOf(txnstate.CodeOf(h.mark(ctx, d)))
		fmt.Fprintf(h.out, "marker  %s: commit %t of producer %s, %v\n", d.Participant, d.Commit, d.Producer, results[i])
	}
	return results
}

func (h *host) mark(ctx context.Context, d markers.Delivery) error {
	if partition, ok := d.Participant.Wire().Offsets(); ok { // a group
		return h.groups.Marker(ctx, partition, d.Marker)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	st, known := h.state.Producer(d.Producer.ID)
	if err := markers.Decide(d.Marker, st, known); err != nil {
		return err
	}
	h.log = append(h.log, entry{producer: d.Producer}) // the bytes are markers.AppendControlBatch
	h.state.Mark(d.Marker.Mark(time.Now().UnixMilli()), int64(len(h.log)-1))
	h.state.Stabilize(int64(len(h.log)))
	return nil
}

// Commit is the hook: the host's own groups take the position over.
func (h *host) Commit(_ context.Context, group string, os []offsets.Offset) error {
	_, err := fmt.Fprintf(h.out, "hook    group %s stands at %d\n", group, os[0].Offset)
	return err
}

// committed is what a reader sees that asks for committed records only.
func (h *host) committed() (values []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.state.LastStable(int64(len(h.log)))
	aborted := h.state.Aborted(0, end)
	for at, e := range h.log[:end] {
		shown := e.value != ""
		for _, a := range aborted {
			shown = shown && (e.producer.ID != a.ProducerID || int64(at) < a.First || int64(at) > a.Last)
		}
		if shown {
			values = append(values, e.value)
		}
	}
	return values
}

// run wires the pieces and tells a story with them.
func run(ctx context.Context, out io.Writer) error {
	h := &host{out: out, ids: 999, state: fence.NewPartition(fence.Config{})}
	// InFlight and EndWait keep the story in order. Kafka answers at the decision.
	dispatcher, err := markers.NewDispatcher(markers.Config{Leaders: h, Sink: h, InFlight: 1})
	if err != nil {
		return err
	}
	if h.groups, err = offsets.New(offsets.Config{Log: offsets.NewMemLog(), Hook: h}); err != nil {
		return err
	}
	h.coordinator, err = txnstate.New(txnstate.Config{
		Store: newStore(), ProducerIDs: h, Dispatcher: dispatcher, EndWait: txnstate.AnswerWhenApplied,
	})
	if err != nil {
		return err
	}
	if err := h.groups.Load(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = dispatcher.Run(ctx) })
	running.Go(func() { _ = h.coordinator.Run(ctx) })
	<-h.coordinator.Ready()

	me, err := h.coordinator.Init(ctx, "pay", txnstate.Init{Expected: txnstate.NoProducer, TimeoutMs: 60_000})
	for i, end := range []string{"commit", "abort"} {
		fmt.Fprintf(out, "begin   pay is producer %s\n", me)
		for sequence, value := range []string{"apples", "pears"} {
			if err == nil {
				err = h.produce(ctx, "pay", me, int32(sequence), fmt.Sprintf("%s %d", value, i+1))
			}
		}
		if err == nil {
			err = h.stage(ctx, "pay", me, "billing", int64(2+2*i))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-7s pay\n", end)
		me, err = h.coordinator.End(ctx, "pay", txnstate.End{Producer: me, Commit: end == "commit", Client: txnstate.TV2})
		fmt.Fprintf(out, "read    %q\n\n", h.committed())
	}
	return err
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}
