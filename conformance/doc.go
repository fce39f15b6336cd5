// Package conformance tells how far the transactions of a Kafka-compatible
// broker agree with Apache Kafka's. It is for the authors of any such broker, in
// whatever language: nothing in it depends on the rest of this module.
//
// The package carries recordings of Apache Kafka 4.4: 4,172 conversations
// (scenarios) in 32 suites, with Kafka's answer to each of their 45,163 steps.
// They cover both transaction protocols (before and since KIP-890) at every
// version of the APIs that take part: InitProducerId, AddPartitionsToTxn,
// AddOffsetsToTxn, TxnOffsetCommit, EndTxn, WriteTxnMarkers, Produce, Fetch,
// OffsetFetch, DescribeTransactions, ListTransactions, DescribeProducers. Most
// requests are what a real producer would send next; the rest are near misses on
// purpose: stale and future epochs, another id's producer id, wrong states,
// unknown topics. Suites lists them.
//
// From a shell:
//
//	go run github.com/kafkatxn/kafkatxn/conformance/cmd/kafkatxn-conformance@latest -addr localhost:9092
//
// From a test of a broker written in Go:
//
//	func TestTransactionsAreKafkas(t *testing.T) {
//		conformance.Run(t, startBroker(t), conformance.Options{})
//	}
//
// Check does the same for programs, and gives a Report. Both replay each scenario
// to its first difference, since later answers depend on it, and tell it in
// words: the request, Kafka's answer and the broker's, the rule behind Kafka's
// with the class and the KIP to read about it, and the steps that led there.
//
// # What the broker needs
//
// Topics that CreateTopics makes, or Options.CreateTopic. One node, or several
// with Options.Follow. Plain TCP, or a Dial of the host's own, which may add TLS
// and authentication (NewConn) or leave out the network altogether (Handler).
// Some suites need more, see Suite.Needs: the setting of timeouts, access rules,
// two-phase commit, another transaction.version (Suites that the broker shows not
// to be for are left out), ids that expire (asked for by name). The broker should be one that nobody needs: topics, ids and
// rules are left behind.
//
// A replay is not quite what a client does. Requests go out at exactly the
// recorded version, whatever the broker advertises. Transient answers
// (CONCURRENT_TRANSACTIONS and its like) are asked again until they settle, as
// clients do; and after each end of a transaction the replay waits until its
// markers are written, so that the next answer does not depend on how fast that is.
//
// # Restarts
//
// With Options.Between every scenario is interrupted near its middle, for a kill
// -9 and restart of the broker or a change of leaders; all answers after it must
// still be Kafka's. What a broker may forget is a short list of facts, see Fact.
// Apache Kafka itself needs two of them.
//
// # Further recordings
//
// A recording is a file of JSON, one Scenario a line; Options.Extra adds a
// directory of them. The recordings in the package are made again with
// go generate, see recordings/README.md.
package conformance
