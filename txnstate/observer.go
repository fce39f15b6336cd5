package txnstate

// Observer is told what happens, for metrics and tests. Every field may be nil.
// The functions are called without any lock held, by whichever goroutine did
// the work, after the change is durable; they should return quickly. Calls for
// one id may overlap and arrive out of order: Record.Version orders them. The
// slices of a record are shared, and must not be changed.
type Observer struct {
	// Transition: a record was stored. From is its state before.
	Transition func(from State, rec Record)
	// Refused: an event was refused. Frequent: retries and fenced producers.
	Refused func(txnID string, event string, err error)
	// TimedOut: the transaction of rec, now PrepareAbort, outlived its timeout.
	TimedOut func(rec Record)
	// Expired: an id was removed after its time without use.
	Expired func(rec Record)
	// Uncertain: the store could not say whether a write was done. Written tells
	// what loading again showed; err is not nil where that failed too.
	Uncertain func(txnID string, written bool, err error)
	// Stuck: the completion of a decided transaction failed and is tried again.
	Stuck func(o Outcome, err error)
}

// Tee is an observer that tells several, in order.
func Tee(obs ...Observer) Observer {
	return Observer{
		Transition: func(from State, rec Record) {
			for _, o := range obs {
				if o.Transition != nil {
					o.Transition(from, rec)
				}
			}
		},
		Refused: func(id, event string, err error) {
			for _, o := range obs {
				if o.Refused != nil {
					o.Refused(id, event, err)
				}
			}
		},
		TimedOut: func(rec Record) {
			for _, o := range obs {
				if o.TimedOut != nil {
					o.TimedOut(rec)
				}
			}
		},
		Expired: func(rec Record) {
			for _, o := range obs {
				if o.Expired != nil {
					o.Expired(rec)
				}
			}
		},
		Uncertain: func(id string, written bool, err error) {
			for _, o := range obs {
				if o.Uncertain != nil {
					o.Uncertain(id, written, err)
				}
			}
		},
		Stuck: func(out Outcome, err error) {
			for _, o := range obs {
				if o.Stuck != nil {
					o.Stuck(out, err)
				}
			}
		},
	}
}
