package minibroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/lease"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// StoreKind says where the state of transactional ids is kept.
type StoreKind string

const (
	// Memory keeps it in memory: for a broker without a Dir, which forgets
	// everything else too.
	Memory StoreKind = "memory"
	// SlotFile keeps it in files that can be read with cat, below Dir.
	SlotFile StoreKind = "slotfile"
	// Journal keeps it in a log below Dir, which is faster by far with many ids
	// at work.
	Journal StoreKind = "journal"
)

// Fsync says when the files of a broker with a Dir are synced.
type Fsync string

const (
	// Always: what is acknowledged survives a loss of power.
	Always Fsync = "always"
	// Never: records and offsets that are acknowledged survive the end of the
	// process, and not a loss of power. The state of transactional ids and the
	// producer ids are synced all the same.
	Never Fsync = "never"
)

// MarkerTransport is how markers get to other brokers.
type MarkerTransport string

const (
	// MarkersRPC sends WriteTxnMarkers requests, as Kafka does.
	MarkersRPC MarkerTransport = "rpc"
	// MarkersQueue puts them into files in the shared directory.
	MarkersQueue MarkerTransport = "queue"
)

// Limits bound what clients can make the broker keep. Zero is the default.
type Limits struct {
	Connections  int // at a time; 4096. One more is closed at once.
	FrameBytes   int // of one produce request; 100 MiB, and other requests have an eighth of it
	BatchBytes   int // of a record batch; 1048588, as Kafka. More is MESSAGE_TOO_LARGE.
	Partitions   int // of all topics; 20000. More is POLICY_VIOLATION.
	Groups       int // with members, or remembered; 10000. More is POLICY_VIOLATION.
	GroupMembers int // of one group; 1000. More is GROUP_MAX_SIZE_REACHED.
}

// Config is what a Broker is made of. The zero value is a broker in memory that
// listens nowhere and is used by Handle and Serve.
type Config struct {
	// Listen is the address to accept connections at; port 0 takes a free one.
	// "" is none.
	Listen string
	// Advertise is the address that clients are told to connect to. "" is that
	// of the listener.
	Advertise string

	NodeID    int32
	ClusterID string // "" is "kafkatxn"

	// Cluster is the addresses of all brokers of a cluster, this one among them, by
	// their node ids; it is the same for each. They share Dir, and find one
	// another by it. nil: this broker is the whole cluster.
	Cluster map[int32]string
	// Lease is after how long without a sign of life the others take a broker's
	// work over; zero is 3 seconds. It is the same for each.
	Lease time.Duration
	// Markers says how the brokers of a cluster deliver markers to one another; ""
	// is MarkersRPC.
	Markers MarkerTransport
	// Dial connects to another broker of a cluster; nil is TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Dir is where everything is kept; it belongs to this broker, or this cluster,
	// alone. "" keeps everything in memory.
	Dir string
	// FS is the file system of Dir; nil is the real one.
	FS    fsx.FS
	Store StoreKind // "" is Journal with a Dir and Memory without
	Fsync Fsync     // "" is Always
	// OpenStore gives the store of transactional ids instead of Store. It is
	// called by Run; closing the store is the caller's business.
	OpenStore func() (txnstate.Store, error)

	// TransactionVersion is the finalised transaction.version. Zero is 2;
	// txnstate.ServerTV0 is level 0.
	TransactionVersion txnstate.TransactionVersion
	// TwoPhaseCommit serves InitProducerId v6 and lets clients use two-phase
	// commit (KIP-939).
	TwoPhaseCommit bool
	// AbortInterval is how often the broker looks for transactions that have
	// outlived their timeout. Zero is 10 seconds.
	AbortInterval time.Duration
	// ExpireAfter is how long an id without an open transaction is kept unused; see
	// txnstate.Config. Zero is 7 days. It is looked for every AbortInterval.
	ExpireAfter time.Duration
	// EndWait is how long EndTxn waits for the markers; see txnstate.Config. A
	// test that wants to look at a decided transaction before its markers sets
	// txnstate.AnswerAtDecision.
	EndWait time.Duration
	// StopOnFencedEpoch gives a transaction up where a partition knows a newer
	// epoch of its producer, as Kafka does; see markers.Config. That takes a
	// WriteTxnMarkers of a client's own.
	StopOnFencedEpoch bool
	// RetriesAsKafka gives an identity to who sends EndTxn v5 with the epoch before
	// it, whoever holds it; see txnstate.Config.
	RetriesAsKafka bool
	// KafkaFencing lets partition leaders learn of a new producer epoch from
	// markers and from verification only, as Kafka's do: a fenced producer can go
	// on in its open transaction until the marker arrives. Without it they are
	// told at once (I9).
	KafkaFencing bool

	// Topics are made at the start where they are not there: name and number of
	// partitions.
	Topics map[string]int32
	// AutoCreatePartitions is how many partitions a topic gets that a client
	// asks for by Metadata and that is not there. Zero makes none.
	AutoCreatePartitions int32
	// RebalanceDelay is how long the first round of a group waits for more
	// members (group.initial.rebalance.delay.ms). Zero does not wait.
	RebalanceDelay time.Duration

	// Authorizer decides who may do what. nil: by the rules that clients make
	// with CreateAcls.
	Authorizer wire.Authorizer

	Limits Limits
	// Observer is told of every change of a transactional id.
	Observer txnstate.Observer
	// Deliveries is told of markers on their way.
	Deliveries markers.Observer
	// Now is the broker's clock: stamps, sessions, timeouts. nil is time.Now.
	// Advance moves it on. How long a request waits is not measured by it.
	Now    func() time.Time
	Logger *slog.Logger // nil is silent
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Limits.Connections, 4096)
	def(&c.Limits.FrameBytes, 100<<20)
	def(&c.Limits.BatchBytes, 1048588) // max.message.bytes
	def(&c.Limits.Partitions, 20000)
	def(&c.Limits.Groups, 10000)
	def(&c.Limits.GroupMembers, 1000)
	if c.ClusterID == "" {
		c.ClusterID = "kafkatxn"
	}
	if c.Store == "" {
		switch {
		case c.Cluster != nil:
			c.Store = SlotFile
		case c.Dir != "":
			c.Store = Journal
		default:
			c.Store = Memory
		}
	}
	if c.Fsync == "" {
		c.Fsync = Always
	}
	if c.Markers == "" {
		c.Markers = MarkersRPC
	}
	if c.Lease == 0 {
		c.Lease = lease.DefaultTTL
	}
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	if c.AbortInterval == 0 {
		c.AbortInterval = 10 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	complain := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("minibroker: "+format, args...))
		}
	}
	complain(c.NodeID < 0, "Config.NodeID is %d, and node ids begin at 0", c.NodeID)
	switch c.Store {
	case "", Memory:
	case SlotFile, Journal:
		complain(c.Dir == "", "Config.Store %q needs a Dir", c.Store)
	default:
		complain(true, "Config.Store is %q, and %q, %q and %q are known", c.Store, Memory, SlotFile, Journal)
	}
	complain(c.Store != "" && c.OpenStore != nil, "Config has both Store and OpenStore")
	complain(c.Store == Memory && c.Dir != "", "Config.Store %q with a Dir: a restart would find records of transactions that nobody knows", c.Store)
	complain(c.Fsync != "" && c.Fsync != Always && c.Fsync != Never, "Config.Fsync is %q, and %q and %q are known", c.Fsync, Always, Never)
	complain(c.TransactionVersion < txnstate.ServerTV0 || c.TransactionVersion > txnstate.TV2, "Config.TransactionVersion is %d, and 0 to 2 are known", c.TransactionVersion)
	complain(c.AbortInterval < 0 || c.ExpireAfter < 0 || c.RebalanceDelay < 0, "Config has a negative duration")
	complain(c.AutoCreatePartitions < 0, "Config.AutoCreatePartitions is %d", c.AutoCreatePartitions)
	l := c.Limits
	complain(min(l.Connections, l.FrameBytes, l.BatchBytes, l.Partitions, l.Groups, l.GroupMembers) < 0, "Config.Limits has a negative limit")
	if c.Advertise != "" {
		_, _, err := splitHostPort(c.Advertise)
		complain(err != nil, "Config.Advertise: %v", err)
	}
	if c.Cluster != nil {
		complain(c.Dir == "", "Config.Cluster needs a Dir that its brokers share")
		complain(c.Store != "" && c.Store != SlotFile, "Config.Store %q in a cluster, which needs %q", c.Store, SlotFile)
		_, ok := c.Cluster[c.NodeID]
		complain(!ok, "Config.Cluster is without Config.NodeID, which is %d", c.NodeID)
		for id, addr := range c.Cluster {
			complain(id < 0, "Config.Cluster has node id %d, and node ids begin at 0", id)
			_, _, err := splitHostPort(addr)
			complain(err != nil, "Config.Cluster: %v", err)
		}
	}
	complain(c.Lease < 0, "Config.Lease is %v", c.Lease)
	complain(c.Markers != "" && c.Markers != MarkersRPC && c.Markers != MarkersQueue, "Config.Markers is %q, and %q and %q are known", c.Markers, MarkersRPC, MarkersQueue)
	for name, n := range c.Topics {
		complain(n < 1, "Config.Topics: %q with %d partitions", name, n)
		err := validTopicName(name)
		complain(err != nil, "Config.Topics: %v", err)
	}
	return errors.Join(errs...)
}

func splitHostPort(addr string) (host string, port int32, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || len(host) > math.MaxUint8 {
		return "", 0, fmt.Errorf("%q is no HOST:PORT", addr)
	}
	return host, int32(n), nil
}
