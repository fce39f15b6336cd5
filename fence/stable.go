package fence

import (
	"slices"
	"sort"
)

// maxEnded bounds what is remembered of transactions that ended above the high
// watermark.
const maxEnded = 4096

// ended is a transaction, or several, whose marker is at last.
type ended struct{ first, last int64 }

// closed is called when the marker n has ended the open transaction of pr.
func (p *Partition) closed(pr *producer, n *pending) {
	p.addEnded(ended{first: pr.start, last: n.base})
	if n.commit {
		return
	}
	a := Aborted{ProducerID: pr.id, First: pr.start, Last: n.base, LastStable: n.base + 1}
	if o := p.open.head; o != nil {
		a.LastStable = min(a.LastStable, o.start)
	}
	o := p.oldest
	if o == n {
		o = n.newer
	}
	if o != nil {
		// Something that is reserved may turn out to be below the marker. A lower
		// value only makes a search go on for longer.
		a.LastStable = min(a.LastStable, o.floor)
	}
	i := sort.Search(len(p.aborted), func(i int) bool { return p.aborted[i].Last >= a.Last })
	if i < len(p.aborted) && p.aborted[i].Last == a.Last {
		return // replayed over a snapshot that has it
	}
	for _, later := range p.aborted[i:] { // settled, or snapshotted, before this one
		a.LastStable = min(a.LastStable, later.First)
	}
	p.aborted = slices.Insert(p.aborted, i, a)
}

// addEnded keeps, in the order of last, only what can be the lowest first for
// some high watermark: first rises along with last.
func (p *Partition) addEnded(e ended) {
	i := sort.Search(len(p.ended), func(i int) bool { return p.ended[i].last >= e.last })
	if i < len(p.ended) && p.ended[i].first <= e.first {
		return
	}
	from := i
	for from > 0 && p.ended[from-1].first >= e.first {
		from--
	}
	if i < len(p.ended) && p.ended[i].last == e.last {
		i++
	}
	p.ended = slices.Replace(p.ended, from, i, e)
	if len(p.ended) > maxEnded {
		// The host has not said for long what the high watermark has passed. The
		// oldest become one: for a high watermark among them LastStable is too
		// low, never too high.
		half := len(p.ended) / 2
		p.ended[half].first = p.ended[0].first
		p.ended = slices.Delete(p.ended, 0, half)
	}
}

// LastStable is the last stable offset under a high watermark: below it the
// outcome of every transaction is known and its marker is below the high
// watermark too (KAFKA-5488). A reader with isolation read_committed is shown
// nothing at or above it. It costs the logarithm of the number of transactions
// that have ended above the high watermark.
func (p *Partition) LastStable(highWatermark int64) int64 {
	lso := highWatermark
	if pr := p.open.head; pr != nil {
		lso = min(lso, pr.start)
	}
	i := sort.Search(len(p.ended), func(i int) bool { return p.ended[i].last >= highWatermark })
	if i < len(p.ended) {
		lso = min(lso, p.ended[i].first)
	}
	if p.overtaken > 0 {
		for n := p.oldest; n != nil; n = n.newer {
			if n.overtaken {
				lso = min(lso, max(n.floor, n.pr.last+1))
			}
		}
	}
	return max(lso, p.logStart)
}

// Stabilize forgets what the high watermark has passed: a host calls it whenever
// that has moved, one whose high watermark is always the end of its log after
// every marker. The high watermark must not be asked about below that again.
func (p *Partition) Stabilize(highWatermark int64) {
	i := sort.Search(len(p.ended), func(i int) bool { return p.ended[i].last >= highWatermark })
	p.ended = slices.Delete(p.ended, 0, i)
}

// Aborted lists the aborted transactions that a reader needs to be told of who
// is given batches from an offset up to a bound, which it does not reach: those
// whose marker is at from or above and whose first batch is below bound, in the
// order of their markers. Transactions that were aborted without data are none.
//
// Kafka's bound is not the last stable offset but the first place its offset
// index names behind the bytes that it returns, or the log end offset; naming
// too many does no harm. Where nothing is returned, the list is empty and needs
// no call.
func (p *Partition) Aborted(from, bound int64) []Aborted {
	if from >= bound {
		return nil
	}
	i := sort.Search(len(p.aborted), func(i int) bool { return p.aborted[i].Last >= from })
	var out []Aborted
	for ; i < len(p.aborted); i++ {
		a := p.aborted[i]
		if a.First < bound {
			out = append(out, a)
		}
		if a.LastStable >= bound {
			break // whatever ended later has begun at or above
		}
	}
	return out
}

// LogStart says that the log begins at an offset now. Aborted transactions that
// end below it are forgotten. An open one that began below it stays open: some
// of its batches may be left, and its marker is still to come; LastStable is
// then the start of the log.
func (p *Partition) LogStart(offset int64) {
	if offset <= p.logStart {
		return
	}
	p.logStart = offset
	p.end = max(p.end, offset)
	p.Stabilize(offset)
	i := sort.Search(len(p.aborted), func(i int) bool { return p.aborted[i].Last >= offset })
	p.aborted = slices.Delete(p.aborted, 0, i)
}
