// Package explore walks through every reachable state of a small world around
// txnstate.Step: one transactional id, two clients, three participants, the
// markers and confirmations between them, crashes, a takeover that its victim
// does not notice, timeouts, expiry, lost answers, and messages that come late
// and again. It is a second opinion beside the random histories of the other
// tests: within its bounds nothing is left out.
//
// Step and markers.Decide are the library's own. The participants and clients
// are written down here once more, as plainly as they can be, from the protocol
// (fence's rules for a leader, KIP-98, KIP-360, KIP-890 for a client).
//
// Each state is held against I1 to I9 and txnstate.Check, and from each one,
// with faults off, the id has to settle and to carry a further transaction
// (I12). What is sent stays in the air: it may arrive at any time, in any order,
// and as often as it likes. What Kafka's older protocol can't bear is left out,
// and only that: under TV0 and TV1 no request of a client, and no marker of a
// transaction that is complete, comes later than the next transaction.
package explore
