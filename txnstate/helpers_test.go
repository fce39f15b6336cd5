package txnstate

import "time"

func at(ms int64) time.Time { return time.UnixMilli(ms) }

// emptyAt is the record of "pay" in Empty, held by (id, epoch).
func emptyAt(id int64, epoch int16) Record {
	return Record{
		TxnID: "pay", State: Empty, Producer: Producer{ID: id, Epoch: epoch}, PrevID: id, Next: NoProducer,
		LastEpoch: -1, TimeoutMs: 1000, StartMs: -1, UpdateMs: 1,
	}
}
