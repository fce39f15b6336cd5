// Package reaper ends what nobody ends: transactions that outlive their timeout,
// and transactional ids that nobody uses any more.
//
// It acts through the coordinator, on the same path as a client's request: a
// timeout is an abort that fences the producer, decided durably, with markers
// (F17, F25). The coordinator loads the record again and decides; an index that is
// out of date leads to a look, never to an abort of a transaction that was decided
// or renewed meanwhile.
package reaper
