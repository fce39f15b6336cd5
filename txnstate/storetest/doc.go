// Package storetest is the contract of txnstate.Store as a test. Whoever writes
// a store runs it:
//
//	func TestStoreKeepsTheContract(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Open: func(t testing.TB) txnstate.Store { return mystore.New(t.TempDir()) },
//		})
//	}
//
// Each case is a subtest that is named as a sentence, and a failure quotes the
// words of the Store's comment that it guards. The more of a Harness is filled
// in, the more is tested: what a store keeps over a restart, what it keeps
// through a crash, what it does when several processes share it.
//
// Faulty wraps a store and lets calls fail in the ways that the contract allows,
// for tests of what is built on a store. History records the calls made to a
// store, by several handles too, and tells whether a single store that does one
// thing at a time could have answered so.
//
// The package imports testing, so production code does not import it.
package storetest
