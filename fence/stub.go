package fence

import "github.com/kafkatxn/kafkatxn/txnstate"

type pending struct{}

// Partition is the producer state of one partition.
type Partition struct{ cfg Config }

func NewPartition(cfg Config) *Partition { return &Partition{cfg: cfg} }
func (p *Partition) Verify(b Batch, mode Mode, nowMs int64) (g Guard, ask bool, err error) {
	return Guard{}, false, nil
}
func (p *Partition) VerifyOffsets(pr txnstate.Producer, mode Mode, nowMs int64) (g Guard, ask bool, err error) {
	return Guard{}, false, nil
}
func (p *Partition) Reserve(b Batch, g Guard, nowMs int64) (Reservation, error) {
	return Reservation{}, nil
}
func (p *Partition) ReserveOffsets(pr txnstate.Producer, g Guard, nowMs int64) (Reservation, error) {
	return Reservation{}, nil
}
func (p *Partition) ReserveMark(m Mark) Reservation             { return Reservation{} }
func (r Reservation) Settle(base int64)                         {}
func (r Reservation) Cancel()                                   {}
func (p *Partition) Producer(id int64) (ProducerState, bool)    { return ProducerState{}, false }
func (p *Partition) Producers() []ProducerState                 { return nil }
func (p *Partition) Open() []ProducerState                      { return nil }
func (p *Partition) Mark(m Mark, offset int64)                  {}
func (p *Partition) LastStable(highWatermark int64) int64       { return highWatermark }
func (p *Partition) Stabilize(highWatermark int64)              {}
func (p *Partition) Aborted(from, bound int64) []Aborted        { return nil }
func (p *Partition) Replay(b Batch, base int64, m *Mark)        {}
func (p *Partition) LogStart(offset int64)                      {}
func (p *Partition) Expire(nowMs int64)                         {}
func (p *Partition) Fence(pr txnstate.Producer)                 {}
func (p *Partition) End() int64                                 { return 0 }
func (p *Partition) AppendSnapshot(dst []byte) []byte           { return dst }
func RestorePartition(cfg Config, b []byte) (*Partition, error) { return NewPartition(cfg), nil }
