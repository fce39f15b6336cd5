package offsets

import "context"

// A log is rewritten when it has grown to compactFactor times what was live in
// it at the last look, and CompactBytes more: so the cost of rewriting is a
// share of the cost of writing, and the log is bounded by what is live.
const compactFactor = 4

// considerCompaction closes the gate when a look is due: the snapshot must hold
// exactly the entries that the log holds, so the queue has to be empty and stay
// empty while it is taken. mu is held.
func (p *partition) considerCompaction() {
	if p.size >= p.compactAt && p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// compact takes a snapshot, lets requests in again, and rewrites the log. mu is
// held before and after.
func (p *partition) compact(ctx context.Context) {
	p.st.fence.Expire(p.m.cfg.Now().UnixMilli())
	entries := p.st.snapshot()
	p.openGate()
	live := int64(0)
	for _, e := range entries {
		live += int64(len(e))
	}
	p.compactAt = compactFactor*live + int64(p.m.cfg.CompactBytes)
	if live > p.size/2 {
		return // little to gain
	}
	gen, before := p.gen, p.size
	p.mu.Unlock()
	err := p.m.cfg.Log.Rewrite(ctx, p.index, entries)
	p.mu.Lock()
	if gen != p.gen {
		return
	}
	if err != nil {
		// The log has the old entries or the new. Not tried again before it has
		// doubled: a full disk must not cost a reload for every write.
		p.compactAt = max(p.compactAt, 2*before)
		p.distrust(ctx, "rewrite", err, nil)
		return
	}
	p.m.cfg.Logger.Info("an offsets partition was rewritten", "partition", p.index, "before", before, "after", live)
	p.size = live
}
