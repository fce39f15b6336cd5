package wire

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"golang.org/x/sync/errgroup"
)

// LocalSinkConfig is what a LocalSink is made of.
type LocalSinkConfig struct {
	Topics  Topics           // nil: nothing counts as deleted
	Leader  Leader           // nil: this broker leads no partitions
	Offsets *offsets.Manager // nil: this broker coordinates no groups
	// Host applies markers for participants of the host's own kinds (KindHost
	// and above), under the contract of markers.Sink. nil: they are tried again.
	Host func(ctx context.Context, d markers.Delivery) markers.Result

	// Alone says that whoever coordinated before this process is dead for certain:
	// a broker that is a whole cluster, and locks its directory. A decision of
	// protocol 1 that is taken up at a start then leaves out the partitions that
	// have its marker, as it does for protocol 2 in any case. Otherwise a coordinator
	// that was deposed may still wake up, with that marker in its hands and the
	// next transaction of the same epoch open: only a marker of the new one in each
	// partition keeps it out (F14).
	Alone bool

	Now    func() time.Time // stamps control batches; nil is time.Now
	Logger *slog.Logger     // nil is silent
}

// LocalSink applies markers on this broker: to the logs that it leads and to the
// groups that it coordinates. It is the markers.Sink of a process that delivers
// to itself, and what WriteTxnMarkers of other brokers ends in. It keeps no
// state and may be used concurrently.
type LocalSink struct {
	cfg     LocalSinkConfig
	deleted TopicDeletions // nil: Topics can't tell
}

var (
	_ markers.Sink        = (*LocalSink)(nil)
	_ markers.OpenChecker = (*LocalSink)(nil)
)

// NewLocalSink makes a LocalSink from a LocalSinkConfig.
func NewLocalSink(cfg LocalSinkConfig) (*LocalSink, error) {
	if cfg.Leader == nil && cfg.Offsets == nil && cfg.Host == nil {
		return nil, errors.New("wire: LocalSinkConfig has none of Leader, Offsets and Host: nothing to apply markers to")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &LocalSink{cfg: cfg}
	s.deleted, _ = cfg.Topics.(TopicDeletions)
	return s, nil
}

// applyWidth is how many markers are applied at once. They wait for syncs, which
// they share.
const applyWidth = 256

// WriteMarkers applies each delivery and says what became of it. The target is
// not looked at.
func (s *LocalSink) WriteMarkers(ctx context.Context, _ markers.Target, ds []markers.Delivery) []markers.Result {
	out := make([]markers.Result, len(ds))
	s.each(ctx, ds, func(i int) { out[i] = s.write(ctx, ds[i]) }, func(i int, err error) { out[i] = s.result(ds[i], err) })
	return out
}

func (s *LocalSink) write(ctx context.Context, d markers.Delivery) markers.Result {
	p := d.Participant.Wire()
	if p.Kind != txnstate.KindPartition {
		if s.cfg.Host == nil {
			s.cfg.Logger.Warn("no LocalSinkConfig.Host for a marker, is tried again", "txn_id", d.TxnID, "participant", p.String())
			return markers.Retry
		}
		return s.cfg.Host(ctx, d)
	}
	return s.result(d, s.apply(ctx, d))
}

// result is what became of a marker for a partition.
func (s *LocalSink) result(d markers.Delivery, err error) markers.Result {
	p := d.Participant.Wire()
	if errors.Is(err, errUnknownPartition) && s.deleted != nil && s.deleted.Deleted(p.Name, p.Index) {
		return markers.Deleted
	}
	return markers.ResultOf(CodeOf(err, keyWriteTxnMarkers, 2))
}

// applyAll applies each delivery, and gives each its error.
func (s *LocalSink) applyAll(ctx context.Context, ds []markers.Delivery) []error {
	errs := make([]error, len(ds))
	s.each(ctx, ds, func(i int) { errs[i] = s.apply(ctx, ds[i]) }, func(i int, err error) { errs[i] = err })
	return errs
}

// each applies every delivery. Those for a log that is a LogStarter are started in
// their order and done is told their ends; for every other one f is called,
// concurrently but for those of one producer and one participant, which keep
// their order.
func (s *LocalSink) each(ctx context.Context, ds []markers.Delivery, f func(i int), done func(i int, err error)) {
	if len(ds) == 1 {
		f(0)
		return
	}
	var g errgroup.Group
	g.SetLimit(applyWidth)
	started, rest := make([]bool, len(ds)), len(ds)
	topics := map[string][]func(){}
	for i, d := range ds {
		log, ok := s.starter(d.Participant)
		if !ok || d.Again {
			continue
		}
		started[i] = true
		rest--
		batch, admit := s.marker(d)
		wait, err := log.Start(batch, admit)
		if err != nil {
			done(i, err)
			continue
		}
		topics[d.Participant.Name] = append(topics[d.Participant.Name], func() { done(i, wait(ctx)) })
	}
	defer func() { _ = g.Wait() }()
	for _, waits := range topics {
		if rest == 0 && len(topics) == 1 {
			for _, wait := range waits {
				wait()
			}
			return
		}
		g.Go(func() error {
			for _, wait := range waits {
				wait()
			}
			return nil
		})
	}
	type line struct {
		producer int64
		to       txnstate.Participant
	}
	lines := map[line][]int{}
	var order []line
	for i, d := range ds {
		if started[i] {
			continue
		}
		l := line{d.Producer.ID, d.Participant.Wire()}
		if lines[l] == nil {
			order = append(order, l)
		}
		lines[l] = append(lines[l], i)
	}
	for _, l := range order {
		g.Go(func() error {
			for _, i := range lines[l] {
				f(i)
			}
			return nil
		})
	}
}

// starter is the log of a participant, where it can start an append.
func (s *LocalSink) starter(p txnstate.Participant) (LogStarter, bool) {
	if p.Kind != txnstate.KindPartition || p.Name == txnstate.OffsetsTopic {
		return nil, false
	}
	log, err := s.online(p)
	if err != nil {
		return nil, false
	}
	st, ok := log.(LogStarter)
	return st, ok
}

// errUnknownPartition is a partition that this broker does not have. That is not
// to say that there is none (F38).
var errUnknownPartition error = txnstate.CodeUnknownTopicOrPartition.Errorf("", "the partition is not on this broker")

// online is the log of a partition, or an error where markers end before
// anything is looked at.
func (s *LocalSink) online(p txnstate.Participant) (Log, error) {
	if n, ok := p.Offsets(); ok {
		if s.cfg.Offsets == nil || n < 0 || n >= txnstate.OffsetsPartitions {
			return nil, errUnknownPartition
		}
		return nil, nil
	}
	if s.cfg.Leader == nil || p.Index < 0 {
		return nil, errUnknownPartition
	}
	return s.cfg.Leader.Log(p.Name, p.Index)
}

// hasMarker reports that the partition needs no marker of a decision that was
// taken up at a start or a takeover: nothing of the producer is open there at the
// marker's epoch, and nothing is on its way. It has the marker, or never had a
// record of the transaction.
// at is an offset that is durable only when that marker is.
func (s *LocalSink) hasMarker(log Log, d markers.Delivery) (at int64, done bool) {
	log.With(func(fp *fence.Partition) {
		st, known := fp.Producer(d.Producer.ID)
		// Under TV1 the epoch does not tell this transaction from the one before: a
		// batch that was verified for it, and comes late, is kept out by its marker.
		done = known && !st.Open && !fp.Asked(d.Producer.ID) && st.Producer.Epoch == d.Producer.Epoch && st.CoordinatorEpoch <= d.CoordinatorEpoch
		at = fp.End() - 1
	})
	return at, done && at >= 0
}

// apply appends a marker where markers.Decide lets it: a repeat is appended
// again, as Kafka does, and is harmless. Only a coordinator of this process that
// takes a decision up anew is spared it: it would find the log changed by nothing
// but its restart.
func (s *LocalSink) apply(ctx context.Context, d markers.Delivery) error {
	p := d.Participant.Wire()
	log, err := s.online(p)
	if err != nil {
		return err
	}
	if n, ok := p.Offsets(); ok {
		return s.cfg.Offsets.Marker(ctx, n, d.Marker)
	}
	if d.Again && (s.cfg.Alone || d.TransactionVersion >= txnstate.TV2) {
		if at, done := s.hasMarker(log, d); done {
			return log.Durable(ctx, at)
		}
	}
	if err := ctx.Err(); err != nil {
		return err // it was waited for long enough, and may have been sent again
	}
	batch, admit := s.marker(d)
	return log.Append(ctx, batch, admit)
}

// marker is what is appended for a delivery, and what admits it.
func (s *LocalSink) marker(d markers.Delivery) (batch []byte, admit func(*fence.Partition, int64) error) {
	now := s.cfg.Now().UnixMilli()
	batch = markers.AppendControlBatch(make([]byte, 0, markers.ControlBatchSize), d.Marker, 0, 0, now) // the log fills in offset and leader epoch
	return batch, func(fp *fence.Partition, base int64) error {
		st, known := fp.Producer(d.Producer.ID)
		if err := markers.Decide(d.Marker, st, known); err != nil {
			return err
		}
		fp.Mark(d.Marker.Mark(now), base)
		return nil
	}
}

// StillOpen reports whether records of the delivery's producer id wait for a
// marker at its participant.
func (s *LocalSink) StillOpen(_ context.Context, _ markers.Target, d markers.Delivery) (bool, error) {
	p := d.Participant.Wire()
	log, err := s.online(p)
	if err != nil {
		return false, err
	}
	if n, ok := p.Offsets(); ok {
		states, err := s.cfg.Offsets.Producers(n)
		i := slices.IndexFunc(states, func(st fence.ProducerState) bool { return st.Producer.ID == d.Producer.ID })
		return i >= 0 && states[i].Open, err
	}
	open := false
	log.With(func(fp *fence.Partition) {
		st, known := fp.Producer(d.Producer.ID)
		open = known && st.Open
	})
	return open, still(log)
}
