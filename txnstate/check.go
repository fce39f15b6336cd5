package txnstate

import "fmt"

// Check names the first thing about a record that can't be. It is called before
// every write and after every read: a broken record stops its own id and nothing
// else. Epoch 32767 is never granted, so only a fence or a decision leaves it
// behind; all the rest follows from the moves that Step makes.
func Check(rec Record) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("transactional id %q: %s", rec.TxnID, fmt.Sprintf(format, args...))
	}
	switch {
	case rec.TxnID == "":
		return bad("empty id")
	case !rec.State.Valid():
		return bad("unknown state %d", int8(rec.State))
	case rec.Producer.ID < 0 || rec.Producer.Epoch < 0:
		return bad("producer %s", rec.Producer)
	case rec.State == Empty && rec.Producer.Epoch > MaxEpoch:
		return bad("%s with the fencing epoch %d", rec.State, rec.Producer.Epoch)
	case rec.PrevID < -1 || rec.LastEpoch < -1:
		return bad("previous producer id %d, last epoch %d", rec.PrevID, rec.LastEpoch)
	case rec.TimeoutMs < 0:
		return bad("timeout of %d ms", rec.TimeoutMs)
	case rec.TwoPhase && rec.TimeoutMs != NoTimeout:
		return bad("two-phase commit with a timeout of %d ms", rec.TimeoutMs)
	case rec.Next != NoProducer && (rec.Next.ID < 0 || rec.Next.Epoch < 0 || rec.Next.ID == rec.Producer.ID || !rec.State.Decided()):
		return bad("next producer %s in %s", rec.Next, rec.State)
	case rec.ClientVersion < TV0:
		return bad("client transaction version %d", rec.ClientVersion)
	}
	if rec.State == Ongoing || rec.State.Decided() {
		if rec.StartMs < 0 {
			return bad("%s without a start time", rec.State)
		}
	} else if len(rec.Participants) > 0 {
		return bad("%s with %d participants", rec.State, len(rec.Participants))
	}
	for i, p := range rec.Participants {
		if i > 0 && rec.Participants[i-1].Compare(p) >= 0 {
			return bad("participants out of order or twice: %s, %s", rec.Participants[i-1], p)
		}
		if p.Name == "" && p.Kind == KindPartition || p.Index < 0 {
			return bad("participant %q/%d", p.Name, p.Index)
		}
	}
	return nil
}
