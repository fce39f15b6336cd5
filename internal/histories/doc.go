// Package histories lets many callers use one transactional coordinator, or two
// that both believe they own the same ids, over every store, with stores that
// fail and processes that crash, and has porcupine tell whether the answers are
// linearizable: whether one record, changed by txnstate.Step alone and by one
// caller at a time, could have given them. It has tests only, and is a module of
// its own so that an embedder does not meet the checker.
package histories
