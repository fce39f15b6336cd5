// Package markers brings the outcome of a transaction to those who took part.
//
// At the partition leader: Marker is an end-of-transaction marker, Decide judges
// one against what the leader knows of the producer (package fence), and
// AppendControlBatch and ParseControlBatch are its bytes in the log. The host
// makes the decision atomic with its append:
//
//	lock the partition
//	state, _ := partition.Producer(m.Producer.ID)
//	if err := markers.Decide(m, state); err != nil { unlock; answer its code }
//	offset := append markers.AppendControlBatch(...)
//	partition.Mark(m.Mark(now), offset)
//	unlock; answer when the append is durable
//
// At the coordinator: Dispatcher carries each decided transaction to every
// participant, by a Sink, to the broker that a LeaderResolver names, until all
// have applied it. Only then does the coordinator complete the transaction (I2).
// Package wire has the sinks for this process and for WriteTxnMarkers requests,
// markers/queue the one for a shared volume, and markerstest is the contract of
// all of them as a test.
package markers
