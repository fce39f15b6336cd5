package conformance

import "slices"

// Fact is something that a broker need not remember over Options.Between.
// Everything else must be as before, or an answer differs.
type Fact string

const (
	// Membership is the members of groups, and that there is a group which has
	// neither members nor offsets. Members join again after Between, as
	// real ones would, and the recorded member ids and generations stand for the
	// new ones. Kafka itself keeps them.
	Membership Fact = "membership"
	// Verification is what a partition leader remembers of transactional batches
	// that it refused: the lowest sequence that was announced (KIP-890). Kafka
	// keeps it in memory only. Between does not come where a later answer
	// depends on it.
	Verification Fact = "verification"
	// PreviousEpoch is the epoch before the last bump, with which InitProducerId
	// can be repeated (KIP-360). Kafka up to 4.4 keeps it in memory only
	// (KAFKA-20357). Between does not come where a later answer depends on it.
	PreviousEpoch Fact = "previous-epoch"
)

// Facts are all there are, in the order in which brokers are likely to need them.
func Facts() []Fact { return []Fact{Membership, Verification, PreviousEpoch} }

// span is a stretch of a scenario in which Between must not come: not before any
// of the steps from+1 to to. The step from made a difference that the step to, or
// one after it, shows.
type span struct{ from, to int }

// cut is the step nearest the middle before which Between does no harm, 0 if only
// the beginning is left. mayForget says what the broker need not remember.
func (s *Scenario) cut(mayForget func(Fact) bool) int {
	spans := append(s.shortTxns(), s.raisedMarkers()...)
	if mayForget(Membership) {
		spans = append(spans, s.emptyGroups()...)
	}
	if mayForget(Verification) {
		spans = append(spans, s.verifications()...)
	}
	if mayForget(PreviousEpoch) {
		spans = append(spans, s.previousEpochs()...)
	}
	best := 0
	for i := 1; i < len(s.Steps); i++ {
		if free(spans, i) && abs(2*i-len(s.Steps)) < abs(2*best-len(s.Steps)) {
			best = i
		}
	}
	return best
}

func free(spans []span, i int) bool {
	for _, x := range spans {
		if x.from < i && i <= x.to {
			return false
		}
	}
	return true
}

func abs(n int) int { return max(n, -n) }

const (
	shortMs = 10000 // a transaction timeout below this may pass during Between
	slackMs = 1000  // a sleep that is longer than a timeout by this lets it pass
)

// shortTxns is where a transaction may be open that times out during Between, but
// did not in the recording. Before a sleep in which it does, Between may come: a
// broker counts from the stored start, so that the time goes on while it is down,
// and what is due is aborted in the sleep at the latest.
func (s *Scenario) shortTxns() []span {
	var out []span
	from, longest := -1, int32(0)
	for i, st := range s.Steps {
		switch {
		case st.Op == OpInit && st.TimeoutMs > 0 && st.TimeoutMs < shortMs:
			if from < 0 {
				from = i
			}
			longest = max(longest, st.TimeoutMs)
		case st.Op == OpSleep && from >= 0 && st.SleepMs >= int(longest)+slackMs:
			out = append(out, span{from, i - 1})
			// the id keeps its timeout, so the next transaction is a short one again
			from = i + 1
		}
	}
	if from >= 0 {
		out = append(out, span{from, len(s.Steps)})
	}
	return out
}

// raisedMarkers is all that follows a marker by hand whose coordinator epoch lies
// above the broker's own: a restart moves that one up, past the marker's.
func (s *Scenario) raisedMarkers() []span {
	for i, st := range s.Steps {
		if st.Op == OpWriteMarkers && slices.ContainsFunc(st.each(), func(m *Step) bool { return m.CoordinatorEpoch > 0 }) {
			return []span{{i, len(s.Steps)}}
		}
	}
	return nil
}

// emptyGroups is from the commit that made a group, whose offsets may be aborted
// since, to what shows that there is one.
func (s *Scenario) emptyGroups() []span {
	var out []span
	since := map[string]int{}
	for i, st := range s.Steps {
		from, made := since[st.Group]
		switch st.Op {
		case OpTxnOffsetCommit, OpOffsetCommit:
			if made && st.Generation >= 0 {
				out = append(out, span{from, i})
			} else if !made && st.Want.Err == "" {
				since[st.Group] = i
			}
		case OpDeleteGroup:
			if made {
				out = append(out, span{from, i})
			}
			delete(since, st.Group)
		}
	}
	return out
}

// verifications is from every refused transactional batch to the last batch of
// the same producer id on the same partition before one of them is accepted.
func (s *Scenario) verifications() []span {
	type at struct {
		producer, topic string
		partition       int32
	}
	var out []span
	since := map[at]int{}
	for i, st := range s.Steps {
		if st.Op != OpProduce {
			continue
		}
		for _, b := range st.each() {
			k := at{b.Producer, b.Parts[0].Topic, b.Parts[0].Partition}
			if from, ok := since[k]; ok {
				out = append(out, span{from, i})
			}
			if !b.Transactional {
				continue
			}
			err := st.Want.Err
			if err == errMixed {
				err = st.Want.Parts[tpKey(k.topic, k.partition)]
			}
			if err == "" {
				delete(since, k)
			} else if _, ok := since[k]; !ok {
				since[k] = i
			}
		}
	}
	return out
}

// previousEpochs is from what bumped an id's epoch, or may have, to an
// InitProducerId that still gives the epoch before it.
func (s *Scenario) previousEpochs() []span {
	type ident struct {
		producer string
		epoch    int16
	}
	type change struct {
		at    int
		sleep bool // a timeout, perhaps
	}
	var out []span
	now := map[string]ident{}    // by transactional id, as answered
	since := map[string]change{} // the last step that can have bumped the id's epoch
	for i, st := range s.Steps {
		if st.Op == OpSleep {
			for id := range now {
				since[id] = change{i - 1, true} // with Between before the sleep, the timeout may be before it too
			}
		}
		if st.TxnID == "" || st.Op != OpInit && st.Op != OpEnd && st.Op != OpAge {
			continue
		}
		if st.Op == OpInit && st.Producer != "none" && st.Want.Err == "" {
			if c, ok := since[st.TxnID]; ok {
				// the id gave (producer, epoch+1) already, or a timeout has bumped it unseen
				if k := now[st.TxnID]; k.producer == st.Producer && k.epoch == st.Epoch+1 || c.sleep {
					out = append(out, span{c.at, i})
				}
			}
		}
		if st.Want.Err == "" && st.Want.Epoch != nil {
			now[st.TxnID] = ident{st.Want.Producer, *st.Want.Epoch}
			since[st.TxnID] = change{at: i}
		}
	}
	return out
}
