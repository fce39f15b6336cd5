package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// RPCSinkConfig is what an RPCSink is made of.
type RPCSinkConfig struct {
	// Addr is where a broker takes requests of other brokers, as Peers.Dial wants
	// it; ok is false while that is not known. Required. It is asked for every
	// attempt, concurrently, and answers from memory.
	Addr func(to markers.Target) (addr string, ok bool)

	// Local takes what goes to the broker Self: usually the LocalSink of this
	// process. nil: this broker is sent requests like any other.
	Local markers.Sink
	Self  markers.Target

	// Peers says how connections are made. Their number is bounded by that of the
	// brokers.
	Peers PeerConfig
	// Patience is how long a call waits for a request before it gives its
	// deliveries back to be tried again, each with fewer others; zero is 3
	// seconds. It is to be shorter than the caller's own (markers.Config.CallTimeout).
	Patience time.Duration
	// RequestBytes is about how long a request may get; zero is 1 MiB. A call
	// with more is several requests.
	RequestBytes int

	Logger *slog.Logger // nil is silent
}

// RPCSink is the markers.Sink that sends WriteTxnMarkers to the leader's broker:
// the usual way between brokers, and what Apache Kafka does. Any Kafka broker can
// be at the other end.
//
// A request carries the markers of many transactions, and one answer has the
// results of all their partitions: a partition that hangs takes the other results
// with it. So a call waits for an answer for Patience only; the deliveries of a
// request that is not answered by then come back as Retry, and are next sent with
// an eighth of the others, and on connections of their own, until the one that
// hangs is alone (F12).
//
// The answer is keyed by producer id, and a broker merges two markers of one id
// (KafkaApis.handleWriteTxnMarkersRequest). So a request never has two of them:
// the second goes out when the first is answered, which keeps their order too.
//
// Groups go out as their partitions of __consumer_offsets. Participants of the
// host's own kinds can't, and are Retry. The transaction version reaches brokers
// that serve WriteTxnMarkers v2 (Kafka 4.2); others take a marker by the rules
// from before it.
//
// Its methods may be called concurrently.
type RPCSink struct {
	cfg   RPCSinkConfig
	peers *peers
	old   atomic.Bool // a broker without v2 was met, and told of

	mu sync.Mutex
	// slow are participants that were in a request without an answer, with how
	// many may be in their next one.
	slow map[txnstate.Participant]int
	// under are the participants that have a request of their own under way; there
	// is one at a time.
	under map[txnstate.Participant]struct{}
}

var (
	_ markers.Sink        = (*RPCSink)(nil)
	_ markers.OpenChecker = (*RPCSink)(nil)
)

// maxSlow bounds RPCSink.slow. What does not fit is sent together with others.
const maxSlow = 100_000

// NewRPCSink makes an RPCSink. Until Run, every delivery to another broker is Retry.
func NewRPCSink(cfg RPCSinkConfig) (*RPCSink, error) {
	var errs []error
	if cfg.Addr == nil {
		errs = append(errs, errors.New("wire: RPCSinkConfig.Addr is required"))
	}
	if cfg.Patience < 0 || cfg.RequestBytes < 0 {
		errs = append(errs, errors.New("wire: RPCSinkConfig has a negative number"))
	}
	if err := errors.Join(append(errs, cfg.Peers.validate())...); err != nil {
		return nil, err
	}
	if cfg.Patience == 0 {
		cfg.Patience = 3 * time.Second
	}
	if cfg.RequestBytes == 0 {
		cfg.RequestBytes = 1 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &RPCSink{
		cfg: cfg, peers: newPeers(cfg.Peers, cfg.Logger),
		slow: map[txnstate.Participant]int{}, under: map[txnstate.Participant]struct{}{},
	}, nil
}

// Run keeps the connections until ctx is done, then closes them, waits until
// nothing is left of them, and returns nil. It may be called once.
func (s *RPCSink) Run(ctx context.Context) error { return s.peers.run(ctx) }

// WriteMarkers sends deliveries to a broker; see markers.Sink.
func (s *RPCSink) WriteMarkers(ctx context.Context, to markers.Target, ds []markers.Delivery) []markers.Result {
	if s.cfg.Local != nil && to == s.cfg.Self {
		return s.cfg.Local.WriteMarkers(ctx, to, ds)
	}
	out := make([]markers.Result, len(ds))
	addr, ok := s.cfg.Addr(to)
	if !ok || len(ds) == 0 {
		return out
	}
	// The sink may go on with a request when the caller has its slice back.
	ds = slices.Clone(ds)
	held := map[int64]bool{} // producers whose earlier marker is not answered
	for _, round := range s.plan(ds) {
		s.round(ctx, addr, ds, round, held, out)
		if ctx.Err() != nil {
			break
		}
	}
	return out
}

// round sends the requests of one round at once and waits for them.
func (s *RPCSink) round(ctx context.Context, addr string, ds []markers.Delivery, round []int, held map[int64]bool, out []markers.Result) {
	round = slices.DeleteFunc(round, func(i int) bool { return held[ds[i].Producer.ID] })
	reqs := s.requests(ds, round)
	type answer struct {
		req     *markerRequest
		results []markers.Result
	}
	answers := make(chan answer, len(reqs))
	under := make(map[*markerRequest]*markerCall, len(reqs))
	for _, r := range reqs {
		c := &markerCall{}
		if !s.peers.spawn(func(run context.Context) {
			results := s.send(run, addr, ds, r, c)
			if s.ended(r, c) {
				answers <- answer{r, results}
			}
		}) {
			return
		}
		under[r] = c
	}
	begun, patience := time.Now(), time.NewTimer(s.cfg.Patience)
	defer patience.Stop()
	for waiting := true; len(under) > 0; {
		var a answer
		if waiting {
			select {
			case a = <-answers:
			case <-patience.C:
				waiting = false
			case <-ctx.Done():
				waiting = false
			}
			if !waiting {
				late := time.Since(begun) >= s.cfg.Patience
				for r, c := range under {
					if s.leave(r, c, late) {
						delete(under, r)
						for _, i := range r.items {
							held[ds[i].Producer.ID] = true
						}
					}
				}
				continue
			}
		} else {
			a = <-answers // of those that have ended in this moment
		}
		delete(under, a.req)
		for k, i := range a.req.items {
			out[i] = a.results[k]
		}
	}
}

// markerCall is one request on its way, and whether somebody waits for it.
// Guarded by RPCSink.mu.
type markerCall struct {
	ended, left bool
	cancel      context.CancelFunc // of the waiting for a connection
	sent        *peerCall
}

// leave is the caller going away from a request, unless it has ended. Its
// participants go with fewer others from now on. One that is late gives its
// connection up, unless it is of a single participant on a connection of its own:
// then that is how long the participant is not asked again.
func (s *RPCSink) leave(r *markerRequest, c *markerCall, late bool) bool {
	s.mu.Lock()
	if c.ended {
		s.mu.Unlock()
		return false
	}
	c.left = true
	if c.cancel != nil {
		c.cancel()
	}
	for p := range r.parts {
		if _, known := s.slow[p]; known || len(s.slow) < maxSlow {
			s.slow[p] = max(len(r.parts)/8, 1)
		}
	}
	sent := c.sent
	s.mu.Unlock()
	if late && sent != nil && r.limit != 1 {
		sent.giveUp()
	}
	return true
}

// ended is the end of a request; it reports whether the caller still waits.
func (s *RPCSink) ended(r *markerRequest, c *markerCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.ended = true
	for p := range r.parts {
		if r.limit == 1 {
			delete(s.under, p)
		}
		if r.answered {
			delete(s.slow, p)
		}
	}
	return !c.left
}

// plan puts deliveries into rounds: of one producer id a round has one marker.
// What Kafka's request can't carry is in none.
func (s *RPCSink) plan(ds []markers.Delivery) [][]int {
	type last struct {
		m     markers.Marker
		round int
	}
	latest := map[int64]last{}
	var rounds [][]int
	strange := 0
	for i, d := range ds {
		if d.Participant.Wire().Kind != txnstate.KindPartition {
			strange++
			continue
		}
		m := d.Marker
		m.TxnID = "" // not on the wire
		l, again := latest[d.Producer.ID]
		if again && l.m != m {
			l.round++
		}
		l.m = m
		latest[d.Producer.ID] = l
		for len(rounds) <= l.round {
			rounds = append(rounds, nil)
		}
		rounds[l.round] = append(rounds[l.round], i)
	}
	if strange > 0 {
		s.cfg.Logger.Warn("participants of a host's own kind can't be sent to another broker, are tried again", "participants", strange)
	}
	return rounds
}

// markerRequest is deliveries that go out in one request.
type markerRequest struct {
	items    []int
	parts    map[txnstate.Participant]struct{}
	limit    int // of parts; zero is none
	bytes    int
	answered bool // written by its sender before it ends
}

// requests puts the deliveries of one round into requests, by how many others
// each may go with. What has no place in one comes again as Retry.
func (s *RPCSink) requests(ds []markers.Delivery, round []int) []*markerRequest {
	var all []*markerRequest
	begin := func(limit int) *markerRequest {
		r := &markerRequest{parts: map[txnstate.Participant]struct{}{}, limit: limit}
		all = append(all, r)
		return r
	}
	open := map[int]*markerRequest{} // by limit
	own := map[txnstate.Participant]*markerRequest{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range round {
		p := ds[i].Participant.Wire()
		size := len(p.Name) + 64
		limit := s.slow[p]
		var r *markerRequest
		if limit == 1 {
			if r = own[p]; r == nil {
				if _, under := s.under[p]; under {
					continue
				}
				r = begin(limit)
				own[p], s.under[p] = r, struct{}{}
			} else if r.bytes+size > s.cfg.RequestBytes {
				continue
			}
		} else if r = open[limit]; r == nil || r.full(p, size, s.cfg.RequestBytes) {
			r = begin(limit)
			open[limit] = r
		}
		r.items = append(r.items, i)
		r.parts[p] = struct{}{}
		r.bytes += size
	}
	return all
}

func (r *markerRequest) full(p txnstate.Participant, size, most int) bool {
	_, has := r.parts[p]
	return r.bytes+size > most || r.limit > 0 && len(r.parts) >= r.limit && !has
}

// send sends one request, waits for its end, and gives a result for each of its
// items.
func (s *RPCSink) send(run context.Context, addr string, ds []markers.Delivery, r *markerRequest, c *markerCall) []markers.Result {
	results := make([]markers.Result, len(r.items))
	ctx, cancel := context.WithCancel(run)
	defer cancel()
	s.mu.Lock()
	c.cancel = cancel
	left := c.left
	s.mu.Unlock()
	if left {
		return results
	}
	call, err := s.peers.start(ctx, addr, keyWriteTxnMarkers, r.limit > 0, func(lo, hi int16) (kmsg.Request, error) {
		v := min(hi, 2)
		if v < 1 || lo > 2 {
			return nil, errPeerTooOld
		}
		if v < 2 && s.old.CompareAndSwap(false, true) {
			s.cfg.Logger.Info("a broker serves no WriteTxnMarkers v2: its leaders take markers by the rules from before transaction version 2", "addr", addr)
		}
		req := writeRequest(ds, r.items)
		req.SetVersion(v)
		return req, nil
	})
	if err == nil {
		s.mu.Lock()
		c.sent = call
		left = c.left
		s.mu.Unlock()
		if left && r.limit != 1 {
			call.giveUp()
		}
		err = <-call.done
	}
	if err != nil {
		if errors.Is(err, errPeerTooOld) {
			s.cfg.Logger.Error("a broker takes no markers", "addr", addr, "err", err)
		}
		return results
	}
	r.answered = true
	codes := codesOf(call.resp.(*kmsg.WriteTxnMarkersResponse))
	odd, first := 0, txnstate.CodeNone
	for k, i := range r.items {
		p := ds[i].Participant.Wire()
		code, ok := codes[markerKey{ds[i].Producer.ID, p.Name, p.Index}]
		if !ok {
			continue // left out: nobody knows
		}
		if results[k] = markers.ResultOf(code); results[k] == markers.Retry && !expected(code) {
			if odd++; odd == 1 {
				first = code
			}
		}
	}
	if odd > 0 {
		// Apache Kafka's sender stops on these, and with it the broker.
		s.cfg.Logger.Error("a broker answers markers with a code that is not foreseen, they are tried again", "addr", addr, "code", first.String(), "markers", odd)
	}
	return results
}

// expected are the codes that a leader answers in trouble that passes.
func expected(c txnstate.Code) bool {
	switch c {
	case txnstate.CodeRequestTimedOut, txnstate.CodeNotEnoughReplicas, txnstate.CodeNotEnoughReplicasAfter, txnstate.CodeKafkaStorageError:
		return true
	}
	return false
}

// writeRequest is the request for deliveries, of which two with one producer id
// have one marker.
func writeRequest(ds []markers.Delivery, items []int) *kmsg.WriteTxnMarkersRequest {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	byProducer := map[int64]int{}
	type place struct {
		marker int
		topic  string
	}
	topics := map[place]int{}
	seen := map[markerKey]bool{}
	for _, i := range items {
		d := &ds[i]
		p := d.Participant.Wire()
		key := markerKey{d.Producer.ID, p.Name, p.Index}
		if seen[key] {
			continue
		}
		seen[key] = true
		mi, ok := byProducer[d.Producer.ID]
		if !ok {
			m := kmsg.NewWriteTxnMarkersRequestMarker()
			m.ProducerID, m.ProducerEpoch, m.Committed = d.Producer.ID, d.Producer.Epoch, d.Commit
			m.CoordinatorEpoch, m.TransactionVersion = d.CoordinatorEpoch, int8(d.TransactionVersion)
			mi = len(req.Markers)
			req.Markers = append(req.Markers, m)
			byProducer[d.Producer.ID] = mi
		}
		m := &req.Markers[mi]
		ti, ok := topics[place{mi, p.Name}]
		if !ok {
			t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			t.Topic = p.Name
			ti = len(m.Topics)
			m.Topics = append(m.Topics, t)
			topics[place{mi, p.Name}] = ti
		}
		m.Topics[ti].Partitions = append(m.Topics[ti].Partitions, p.Index)
	}
	return req
}

// markerKey is what an answer's result is known by.
type markerKey struct {
	producer int64
	topic    string
	index    int32
}

// codesOf are the results of an answer. Where a broker says two things of one
// partition, it says nothing.
func codesOf(resp *kmsg.WriteTxnMarkersResponse) map[markerKey]txnstate.Code {
	codes := map[markerKey]txnstate.Code{}
	for _, m := range resp.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				key, code := markerKey{m.ProducerID, t.Topic, p.Partition}, txnstate.Code(p.ErrorCode)
				if before, twice := codes[key]; twice && before != code {
					code = txnstate.CodeUnknownServerError
				}
				codes[key] = code
			}
		}
	}
	return codes
}

// StillOpen asks the leader's broker, by DescribeProducers, whether records of
// the delivery's producer id wait for a marker; see markers.OpenChecker. The
// broker has just answered as the leader; one that has lost the partition since
// may answer from what it has.
func (s *RPCSink) StillOpen(ctx context.Context, to markers.Target, d markers.Delivery) (bool, error) {
	if s.cfg.Local != nil && to == s.cfg.Self {
		if asker, ok := s.cfg.Local.(markers.OpenChecker); ok {
			return asker.StillOpen(ctx, to, d)
		}
		return false, errors.New("wire: RPCSinkConfig.Local can't be asked what is open")
	}
	p := d.Participant.Wire()
	if p.Kind != txnstate.KindPartition {
		return false, fmt.Errorf("wire: %s is of a kind that another broker can't be asked about", p)
	}
	addr, ok := s.cfg.Addr(to)
	if !ok {
		return false, fmt.Errorf("wire: no address of broker %d", to)
	}
	resp, err := s.peers.ask(ctx, addr, keyDescribeProducers, func(lo, _ int16) (kmsg.Request, error) {
		if lo > 0 {
			return nil, errPeerTooOld
		}
		req := kmsg.NewPtrDescribeProducersRequest()
		t := kmsg.NewDescribeProducersRequestTopic()
		t.Topic, t.Partitions = p.Name, []int32{p.Index}
		req.Topics = append(req.Topics, t)
		return req, nil
	})
	if err != nil {
		return false, err
	}
	for _, t := range resp.(*kmsg.DescribeProducersResponse).Topics {
		for _, rp := range t.Partitions {
			if t.Topic != p.Name || rp.Partition != p.Index {
				continue
			}
			if rp.ErrorCode != 0 {
				return false, txnstate.Code(rp.ErrorCode).Errorf(d.TxnID, "broker %d was asked about the producers of %s", to, p)
			}
			for _, ap := range rp.ActiveProducers {
				if ap.ProducerID == d.Producer.ID && ap.CurrentTxnStartOffset >= 0 {
					return true, nil
				}
			}
			return false, nil
		}
	}
	return false, fmt.Errorf("wire: broker %d did not answer about %s", to, p)
}
