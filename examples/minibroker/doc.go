// Package minibroker is a small Kafka-compatible broker that embeds kafkatxn: one
// node that is a whole cluster, in memory or in a directory, or several that share
// a directory. It shows how a broker is put together with the library, it is what
// the library is proved with, and it serves as a test double.
//
// What it knows by itself is what every broker has: connections (server.go,
// api.go), topics (topics.go), logs (log.go, on package segment), reading
// (fetch.go, list_offsets.go), consumer groups (group.go, join.go, groups.go).
// Of transactions it knows nothing; broker.go hands the library its logs, groups
// and topics, and wire.Handler answers the requests.
//
// # As a test double
//
//	b, stop, err := minibroker.Start(ctx, minibroker.Config{
//		Listen: "127.0.0.1:0",
//		Topics: map[string]int32{"orders": 3},
//	})
//	...
//	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr().String()))
//
// Handle answers a request without a connection, Serve takes a listener of the
// test's own. Advance moves the broker's clock, so that a transaction times out
// without waiting. HoldMarkers stops transactions between their decision and
// their markers; Fence, TimeOut and Expire make happen now what others, or time,
// would do.
//
// # What survives
//
// With a directory, what was acknowledged survives the end of the process at any
// moment: topics, records, committed and staged offsets, access rules and
// transactions; with Fsync Always, the default, also a loss of power. Members of
// groups do not: they join again.
//
// # As a cluster
//
// With Config.Cluster the same parts are one broker of several. cluster.go puts
// them together: cluster_changes.go and cluster_topics.go have the topics and
// access rules that all share, cluster_leader.go the logs that one leads at a
// time, cluster_offsets.go the groups, cluster_transport.go the ways to other
// brokers. DESIGN.md has the picture.
//
// # What it does not do
//
// There is no replication and no retention: a log is one file that grows, or one
// for each leader that it had. Consumer groups speak the classic protocol. There is no authentication,
// everybody is User:ANONYMOUS. Records are not opened: ListOffsets by time answers
// for a compressed batch with its first record.
package minibroker
