// Package txnstate is the transaction coordinator: the state of each
// transactional id, what every request makes of it, and the order in which that
// is stored and told to the world.
//
// It has three layers, and a host may enter at any of them.
//
// # The record
//
// A [Record] is all that is kept of one transactional id: who holds it (a producer
// id and an epoch), whether a transaction is open, decided or complete, and who
// takes part in it. It is a value. [Check] says whether one can be. [AppendRecord]
// and [DecodeRecord] are its bytes, for stores; [AppendLogValue] and
// [DecodeLogValue] are Kafka's, for tools.
//
// A transaction goes through these states:
//
//	Empty, CompleteCommit, CompleteAbort     nothing is open
//	  Add              -> Ongoing            participants join, data is written
//	  End              -> PrepareCommit      the decision: the outcome is fixed
//	                   or PrepareAbort
//	  Applied, by all  -> CompleteCommit     the next transaction may begin
//	                   or CompleteAbort
//
// Init grants an identity and goes back to Empty. An Init that meets an open
// transaction, a timeout and an operator abort it: they bump the epoch, which
// fences the holder, and go on with PrepareAbort. In the Prepare states clients
// are told CONCURRENT_TRANSACTIONS, which they retry. testdata/table.txt shows
// every event in every state.
//
// Kafka has two protocols, and clients of both may use one id in turn. Under TV0
// and TV1 the epoch stays for the life of a producer. Under TV2 (KIP-890) every
// end of a transaction bumps it, so that a delayed request of the transaction
// before is told from one of this transaction.
//
// # The pure core
//
// [Step] says what an [Event] makes of a record, as a [Decision]: the next record,
// how it must be stored, the effects that follow, and the answer. It is a
// function: no I/O, no clock, no goroutine, no randomness. A host that is one
// goroutine, or keeps its state in a log of its own, calls it directly. Then
// these are its duties, in this order:
//
//  1. One event of an id at a time. Load the record, or take [Unknown] where there
//     is none: the zero Record is not that. Check what was loaded.
//  2. Refuse by yourself what Step does not look at: authorisation, topics that do
//     not exist, an empty id, half an identity, a timeout that is not allowed,
//     KeepPrepared, participants without a name.
//  3. Call Step. [ErrNeedProducerID] asks for a fresh producer id in the event's
//     NewID. Any other error is the answer, and nothing has changed.
//  4. Check Decision.Next and store it in place of the version that was loaded,
//     and of no other, as Decision.Write says. Treat both records as unchangeable:
//     they may share memory. Where the store can't say whether it wrote, load
//     again and look; do not answer before that is known.
//  5. Only then let anything out. Give the answer: Refusal, or Grant and Missing.
//     Perform the Effects: bring [Record.Outcome] to every participant, and fence.
//     Both may be done again at any time, and will be after a crash.
//  6. Report with [Applied] who has applied the outcome, or is known to be gone,
//     under the Producer and TxnSeq of that outcome. "Queued" is not applied, and
//     "not found right now" is not gone. An outcome without participants is
//     reported at once, with none.
//  7. At start-up, and for what is taken over from another process, perform what
//     [Resume] says of each record. Now and then look for records that are
//     [Overdue] or [Expired], and step them with [TimedOut] or [Expire].
//
// # The shell
//
// A [Coordinator] does all of that with goroutines, over a [Store], a [Dispatcher]
// and a source of producer ids. It serialises each id and no two ids against each
// other; no hook is called with a lock held. Several processes may share a Store:
// [Ownership] tells a process which slots are its own, and where two believe they
// own one, the store's compare-and-swap lets one of them win each write. Package
// lease is one for brokers that share a directory, and an [OwnershipChecker].
// [PickCoordinator] is where clients are sent. It and the store go by [Slot], so
// that they can't disagree.
//
// # What is promised
//
// When End returns without an error the decision is durable, and every participant
// will get that outcome and no other, through retries, crashes and takeovers. An
// identity is given to one holder, and once a newer one was given the older is
// refused here. What partition leaders and group coordinators have to do with
// outcomes and fences is the subject of packages markers, fence and offsets.
//
// Not promised: that participants show the outcome at one instant; and, under TV0
// and TV1, that a delayed EndTxn is not taken for one of the next transaction.
// The protocol can't tell, and TV2 was made for it.
package txnstate
