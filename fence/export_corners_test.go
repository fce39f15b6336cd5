package fence

// Kept is how many producers take memory, those only asked about included.
func (p *Partition) Kept() int { return len(p.producers) }

// Overtaken is how many reservations are counted as overtaken.
func (p *Partition) Overtaken() int { return p.overtaken }
