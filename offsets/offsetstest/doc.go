// Package offsetstest tests implementations of offsets.Log. A host that has its
// own calls Run from one of its tests:
//
//	func TestLog(t *testing.T) {
//		offsetstest.Run(t, offsetstest.Harness{
//			Open:   func(t testing.TB) offsets.Log { ... },
//			Reopen: func(t testing.TB, l offsets.Log) offsets.Log { ... },
//		})
//	}
//
// Faulty puts faults between a Manager and its log.
//
// Nothing but tests imports this package.
package offsetstest
