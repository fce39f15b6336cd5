// Package memstore keeps transactional ids in memory: for tests, for test
// doubles, and for hosts that begin with nothing each time they start.
//
// It keeps the whole contract of txnstate.Store but for one word: nothing is
// durable. A write is visible when it returns, and a Durable one is worth as
// much as a Later one: all is gone with the Store. An idle id costs less than
// 500 bytes.
//
// To let a coordinator meet a store that fails, wrap a memstore in
// storetest.Faulty.
package memstore
