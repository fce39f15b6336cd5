// Package sim runs clusters, clients and faults in simulated time, from one seed,
// and watches whether what is promised is kept.
//
//	go run ./internal/sim/cmd/sim -seeds 1-1000     until a seed fails
//	go run ./internal/sim/cmd/sim -for 10m          fresh seeds
//	go run ./internal/sim/cmd/sim -seeds 42 -story  who did what, in order
//	go run ./internal/sim/cmd/sim -seeds 42 -shrink the faults that it takes
//	go run ./internal/sim/cmd/sim -planted          every planted defect is to be found
//	go run ./internal/sim/cmd/sim -planted -match queue-one-name -shrink
//
// # Worlds
//
// A run is a bubble of testing/synctest. There are three kinds of worlds.
//
// "parts" is three brokers that are put together from the library: coordinator,
// dispatcher, reaper, handler, offsets manager, leader-side state, producer ids,
// and slot files or a shared store, markers by calls or by files. What is below
// them, the replicated logs, and who decides who leads what, is the world's own.
// Brokers die, are stopped and wake up, own a slot that another one owns too, lose
// partitions and groups; their clocks jump and drift; the store does not know
// whether it wrote; messages between brokers are lost, late, repeated.
//
// "single" is the example broker, alone, on internal/crashfs: its power fails in
// the middle of something, and again while it starts; it is killed or stopped; syncs
// fail; the disk is full; its clock jumps; a topic is deleted and made again.
//
// "cluster" is three example brokers that share a volume, which is an
// internal/crashfs, and talk to one another by connections in memory. A broker dies
// and its writes stay, or is stopped and wakes up, also at the k-th operation of a
// kind; it is told to stop; its volume fails, or is slow, for it alone; connections
// end at any byte, and nothing gets from one broker to another for a while, one way
// or both. The power of all fails, syncs fail, the volume is full; clocks jump and
// drift; a topic and a group are deleted. Timers of a broker that is stopped go
// on, and find that nothing they do gets out: the lease of such a broker has expired
// when it wakes up, and what it had under way has not heard of it.
//
// Faults come at times of chance, and some wait for their moment (ambush): a broker
// dies when it has decided and before anybody knows, a slot moves while a completion
// is being stored, the markers of its next owner are late, a load fails half-way.
//
// In all, clients write, stage offsets, commit and abort, by both protocols, over
// a network that loses, delays and repeats. Processes hang and come back, leave
// transactions open, and meet rivals that took their transactional id over.
//
// # The model
//
// It knows what clients wanted, what brokers answered, whether or not the answer
// arrived, and what readers were shown. All the time: nothing is shown whose
// commit nobody has asked for; an outcome does not change; no identity is given
// twice; what a newer identity has replaced is refused; no transaction is ended
// by nobody before its time; no marker commits what is not to be committed. When
// faults have stopped everything must come to rest in bounded simulated time: last
// stable offsets reach the end, positions can be read, every id is described as
// at rest and can be initialised, nothing is left in queues. Then all is read
// again: transactions are shown whole or not at all, each has a marker of its
// outcome behind it and before the next of its producer, records are there once
// and in order, what readers saw is what is there, and the positions of groups are
// those of the last commit.
//
// Under protocol 1 nobody can tell a delayed request of one transaction from one of
// the next. So clients of it raise their epoch after each doubt, as real ones do,
// and the network does not deliver what its sender has gone on from under the
// same epoch; nor does a connection between brokers, after its sender has closed it,
// unless all clients speak protocol 2.
//
// # The same again
//
// Each message and each operation that takes time takes its own, to the
// nanosecond, so that the seed decides what comes first. The command builds the
// runtime with a chance that begins anew with each run (selects, maps, timers of
// one instant, random names, mutexes that starve by the clock on the wall), and
// gives each seed a process; so a seed re-runs to the same story nearly always:
// compare the hashes that -hashes prints. go test has neither, and its seeds may
// differ in detail.
//
// A goroutine that waits for a sync.Mutex keeps simulated time from going on; the
// command's runtime lets it, go test does not. Code of a host that holds a mutex
// during I/O can stop a test there.
package sim
