// Package feed tells partition leaders on other brokers, by files on a shared
// volume, that epochs of a producer id are gone.
//
// It narrows a window and is no defence by itself: leaders remember the epochs
// that data and markers carried, and ask the coordinator before they take the
// first batch of a transaction (KIP-890). What is left is the open transaction of
// a producer that was replaced: its batches are taken until the abort marker
// arrives, unless the leader hears of the fence before.
//
// # Files
//
//	producer_fences/from-3.json     {"102":3,"7":12}
//
// One file a broker, which that broker alone writes: of each producer id that its
// coordinator fenced, the lowest epoch that is not gone. The longest known comes
// first; readers give the order no meaning.
//
// A [Writer] is the txnstate.Fencer of the coordinator's process. It writes the
// file whole, and durably, once for all fences that come while a write is under
// way. A [Reader] looks at the files of all brokers, the own one too, and offers
// what is new; and everything again after [Reader.Reoffer], which a host calls
// when it has taken partitions over, or opened them: what was offered before went
// to others. A restart offers everything by itself.
//
// # What is dropped, and what that means
//
// A fence is dropped when it is older than WriterConfig.Retain, which is longer
// than leaders remember a producer that does nothing (fence.Config.ExpireAfter).
// By then a leader either knows a later epoch from a marker, or knows nothing of
// the producer, and then it asks the coordinator. When there are more than
// WriterConfig.Max, the oldest go early: the zombies that they were about have had
// the time since then to be found by their next request to the coordinator, or by
// the marker; one that has not may write into its open transaction, until the
// marker, at a leader that has not heard of the fence. No fenced record becomes
// visible by that: the transaction is aborted.
//
// Two processes of one broker id, as a restart can bring about for a moment,
// overwrite each other's file, and fences get lost in it. That costs what a
// dropped fence costs.
package feed
