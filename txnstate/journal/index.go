package journal

import (
	"slices"
	"strings"
	"sync"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// shard holds the records of one slot.
type shard struct {
	mu  sync.Mutex
	ids map[string]*entry
	_   [48]byte // neighbours on one cache line would slow each other down
}

// entry is what is known of an id. There is one for every id with a record, and
// for an id whose first record is being written.
type entry struct {
	version uint64 // 0: no record yet
	record  []byte // never changed, only replaced
	// pending is the batch of a Durable write of the id that is not done. Whoever
	// wants something of the id waits for it: what it will be is not known yet, and
	// what it was may be over. So there is one such write of an id at a time.
	pending *batch
}

func (s *Store) shard(id string) *shard { return &s.shards[txnstate.Slot(id)] }

// get is the entry of an id, made where there is none. mu is held.
func (sh *shard) get(id string) *entry {
	e := sh.ids[id]
	if e == nil {
		e = new(entry)
		// The caller's string may be a piece of a request's buffer.
		sh.ids[strings.Clone(id)] = e
	}
	return e
}

// put sets a record that was read from a file.
func (sh *shard) put(id []byte, version uint64, record []byte) {
	e := sh.ids[string(id)]
	if e == nil {
		e = new(entry)
		sh.ids[string(id)] = e
	}
	e.version, e.record = version, slices.Clone(record)
}

// item is an id at a moment.
type item struct {
	id      string
	version uint64
	record  []byte
}

// stride is how many ids are looked at under one lock: what a writer waits for
// at most, however many ids there are.
const stride = 128

// each visits the ids of the shard, stride at most at a time, without the lock.
// Of ids that come and go meanwhile one may be missed or come again; every other
// is visited once, with what it has at some moment of the visit.
func (sh *shard) each(visit func([]item) bool) {
	items := make([]item, 0, stride)
	sh.mu.Lock()
	// The language allows a map to change between two steps of a loop over it.
	// The steps themselves are made under the lock.
	for id, e := range sh.ids {
		items = append(items, item{id, e.version, e.record})
		if len(items) < stride {
			continue
		}
		sh.mu.Unlock()
		if !visit(items) {
			return
		}
		items = items[:0]
		sh.mu.Lock()
	}
	sh.mu.Unlock()
	if len(items) > 0 {
		visit(items)
	}
}
