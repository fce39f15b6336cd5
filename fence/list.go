package fence

// list is a doubly linked list of producers. A producer is in at most one: with
// an open transaction in the one ordered by its first offset, otherwise in one
// ordered by when it was last heard of.
type list struct{ head, tail *producer }

func (l *list) remove(pr *producer) {
	if pr.prev != nil {
		pr.prev.next = pr.next
	} else {
		l.head = pr.next
	}
	if pr.next != nil {
		pr.next.prev = pr.prev
	} else {
		l.tail = pr.prev
	}
	pr.prev, pr.next, pr.in = nil, nil, nil
}

// insert puts pr behind at, or in front of all where at is nil.
func (l *list) insert(at, pr *producer) {
	pr.in, pr.prev = l, at
	if at != nil {
		pr.next, at.next = at.next, pr
	} else {
		pr.next, l.head = l.head, pr
	}
	if pr.next != nil {
		pr.next.prev = pr
	} else {
		l.tail = pr
	}
}

// place moves pr to where its state belongs. Only what is in the log counts: a
// reservation opens no transaction yet.
func (p *Partition) place(pr *producer) {
	to := &p.entries
	switch {
	case pr.open:
		to = &p.open
	case pr.known:
		to = &p.idle
	}
	if pr.in == to && (to == &p.open || to.tail == pr) {
		return // a transaction keeps its first offset
	}
	if pr.in != nil {
		pr.in.remove(pr)
	}
	at := to.tail
	if to == &p.open {
		// Transactions begin in the order of the log, so this finds its place at
		// the end, but for hosts that learn offsets late.
		for at != nil && at.start > pr.start {
			at = at.prev
		}
	}
	to.insert(at, pr)
}

// get is the producer with an id, made where there is none.
func (p *Partition) get(id int64) *producer {
	if pr := p.producers[id]; pr != nil {
		return pr
	}
	if len(p.producers) >= p.cfg.MaxProducers {
		p.evict()
	}
	pr := &producer{id: id, core: fresh, fencedBelow: -1, start: -1, last: -1, seenMs: -1}
	p.producers[id] = pr
	p.place(pr)
	return pr
}

// evict makes room for one producer. What was only asked about goes first:
// anybody can make such entries, with any id.
func (p *Partition) evict() {
	for _, l := range [...]*list{&p.entries, &p.idle} {
		for pr := l.head; pr != nil; pr = pr.next {
			if pr.first == nil { // reservations are few: what is being appended now
				p.drop(pr)
				return
			}
		}
	}
}

func (p *Partition) drop(pr *producer) {
	if pr.in != nil {
		pr.in.remove(pr)
	}
	delete(p.producers, pr.id)
}

// tidy forgets a producer of which nothing is left.
func (p *Partition) tidy(pr *producer) {
	if !pr.known && pr.first == nil && pr.entry.token == 0 {
		p.drop(pr)
	}
}
