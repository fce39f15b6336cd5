package slotfile

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The members of an entry. The first seven are those of the layout as it was
// introduced; they are written as it wrote them, absent where they are zero. The
// others came with this package.
const (
	memberPID          = "pid"
	memberEpoch        = "epoch"
	memberPartitions   = "partitions"
	memberOngoingSince = "ongoingSinceMs"
	memberTimeout      = "transactionTimeoutMs"
	memberState        = "state"
	memberGroups       = "groups"

	memberParticipants  = "participants"
	memberPrevPID       = "prevPid"
	memberNextPID       = "nextPid"
	memberNextEpoch     = "nextEpoch"
	memberLastEpoch     = "lastEpoch"
	memberTxnSeq        = "txnSeq"
	memberUpdate        = "updateMs"
	memberClientVersion = "clientTransactionVersion"
	memberTwoPhase      = "twoPhaseCommit"
	memberExtra         = "extra"
	memberVersion       = "version"
)

// memberSet is a set of known members.
type memberSet uint32

func knownMembers() [17]string {
	return [...]string{
		memberPID, memberEpoch, memberPartitions, memberOngoingSince, memberTimeout, memberState, memberGroups,
		memberParticipants, memberPrevPID, memberNextPID, memberNextEpoch, memberLastEpoch, memberTxnSeq, memberUpdate,
		memberClientVersion, memberTwoPhase, memberVersion,
	}
}

// known is the set of one member, empty for a name that this version does not
// know.
func known(member string) memberSet {
	for i, name := range knownMembers() {
		if member == name {
			return 1 << i
		}
	}
	return 0
}

// memberName is text for the name of a member, without memory for the known ones.
func memberName(key []byte) (string, error) {
	for _, name := range knownMembers() {
		if len(key) == len(name)+2 && string(key[1:len(key)-1]) == name {
			return name, nil
		}
	}
	return text(key)
}

// taken is what an entry means that does not say it, because it was written by
// the system that introduced the layout.
type taken struct {
	version txnstate.Version
	// updateMs is when its file was last written: at least as late as any of its
	// ids was used. An earlier time could let the id expire at the first look.
	updateMs int64
}

// appendRecord appends an entry's value without its version and closing brace:
// the version is known only when the record finds its place in the slot.
func appendRecord(b []byte, r txnstate.Record) []byte {
	sep := byte('{')
	name := func(n string) {
		b = append(b, sep, '"')
		b = append(b, n...)
		b = append(b, '"', ':')
		sep = ','
	}
	integer := func(n string, v int64) {
		name(n)
		b = strconv.AppendInt(b, v, 10)
	}
	unless := func(absent int64, n string, v int64) {
		if v != absent {
			integer(n, v)
		}
	}
	unless(0, memberPID, r.Producer.ID)
	unless(0, memberEpoch, int64(r.Producer.Epoch))
	groups, others := 0, 0
	parts := false
	for i, p := range r.Participants {
		switch {
		case plainGroup(p):
			groups++
			continue
		case p.Kind != txnstate.KindPartition:
			others++
			continue
		}
		if !parts {
			name(memberPartitions)
			b = append(b, '[')
		}
		if prev := previousPartition(r.Participants[:i]); !parts || prev.Name != p.Name {
			if parts {
				b = append(b, "]},"...)
			}
			b = append(b, `{"topic":`...)
			b = appendText(b, p.Name)
			b = append(b, `,"partitions":[`...)
		} else {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(p.Index), 10)
		parts = true
	}
	if parts {
		b = append(b, "]}]"...)
	}
	unless(startAbsent(r.State), memberOngoingSince, r.StartMs)
	unless(0, memberTimeout, int64(r.TimeoutMs))
	if r.State != txnstate.Empty {
		name(memberState)
		b = appendText(b, r.State.String())
	}
	list := func(n string, count int, is func(txnstate.Participant) bool, one func(txnstate.Participant)) {
		if count == 0 {
			return
		}
		name(n)
		comma := byte('[')
		for _, p := range r.Participants {
			if is(p) {
				b = append(b, comma)
				comma = ','
				one(p)
			}
		}
		b = append(b, ']')
	}
	list(memberGroups, groups, plainGroup, func(p txnstate.Participant) { b = appendText(b, p.Name) })
	list(memberParticipants, others, func(p txnstate.Participant) bool {
		return p.Kind != txnstate.KindPartition && !plainGroup(p)
	}, func(p txnstate.Participant) {
		b = append(b, `{"kind":`...)
		b = strconv.AppendInt(b, int64(p.Kind), 10)
		b = append(b, `,"name":`...)
		b = appendText(b, p.Name)
		b = append(b, `,"index":`...)
		b = strconv.AppendInt(b, int64(p.Index), 10)
		b = append(b, '}')
	})
	unless(-1, memberPrevPID, r.PrevID)
	unless(-1, memberNextPID, r.Next.ID)
	unless(-1, memberNextEpoch, int64(r.Next.Epoch))
	unless(-1, memberLastEpoch, int64(r.LastEpoch))
	if r.TxnSeq != 0 {
		name(memberTxnSeq)
		b = strconv.AppendUint(b, r.TxnSeq, 10)
	}
	integer(memberUpdate, r.UpdateMs) // always: its absence says who wrote the entry
	unless(0, memberClientVersion, int64(r.ClientVersion))
	if r.TwoPhase {
		name(memberTwoPhase)
		b = append(b, "true"...)
	}
	if members, ok := extraMembers(r.Extra); ok {
		for _, m := range members {
			b = append(b, sep)
			b = append(b, m...)
			sep = ','
		}
	} else if len(r.Extra) > 0 {
		name(memberExtra)
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, r.Extra)
		b = append(b, '"')
	}
	return b
}

// appendVersion completes what appendRecord began.
func appendVersion(b []byte, v txnstate.Version) []byte {
	b = append(b, `,"`+memberVersion+`":`...)
	b = strconv.AppendUint(b, uint64(v), 10)
	return append(b, '}')
}

// plainGroup tells the groups that the layout always had: by name alone.
func plainGroup(p txnstate.Participant) bool {
	return p.Kind == txnstate.KindGroup && p.Index == txnstate.OffsetsPartition(p.Name)
}

// previousPartition is the nearest partition before: groups may stand between,
// since they sort under the name of their topic.
func previousPartition(ps []txnstate.Participant) txnstate.Participant {
	for i := len(ps) - 1; i >= 0; i-- {
		if ps[i].Kind == txnstate.KindPartition {
			return ps[i]
		}
	}
	return txnstate.Participant{}
}

// startAbsent is the start time of a record that states none. The layout leaves
// zeros out; where a transaction is open zero is a time, long ago, and elsewhere
// it stood for none.
func startAbsent(s txnstate.State) int64 {
	if s == txnstate.Ongoing || s.Decided() {
		return 0
	}
	return -1
}

// extraMembers are the members of Extra where it is an object of members that
// this version does not know, as readRecord makes it. Anything else, from another
// store perhaps, is kept under a name of its own.
func extraMembers(extra []byte) ([][]byte, bool) {
	if len(extra) < 2 || extra[0] != '{' || !json.Valid(extra) || !utf8.Valid(extra) {
		return nil, false
	}
	var members [][]byte
	foreign := false
	err := object(extra, func(key, value, member []byte) error {
		name, err := text(key)
		if err != nil || known(name) != 0 || len(member) != len(key)+1+len(value) {
			return errSyntax
		}
		foreign = foreign || name != memberExtra
		members = append(members, member)
		return nil
	})
	size := 1
	for _, m := range members {
		size += len(m) + 1
	}
	// foreign: the name alone is how other bytes are kept, below.
	return members, err == nil && foreign && size == len(extra)
}

// errDuplicate: of two values of one name it is not known which was meant.
var errDuplicate = errors.New("named twice")

// readRecord reads an entry's value.
func readRecord(id string, value []byte, t taken) (txnstate.Record, error) {
	r := txnstate.Unknown(id)
	r.Producer = txnstate.Producer{} // an absent zero
	var seen memberSet
	var extra []byte
	var onlyExtra []byte
	unknown := 0
	err := object(value, func(key, value, _ []byte) error {
		name, err := memberName(key)
		if err != nil {
			return err
		}
		is := known(name)
		if is == 0 {
			extra = append(append(append(append(extra, ','), key...), ':'), value...)
			unknown++
			if name == memberExtra {
				onlyExtra = value
			}
			return nil
		}
		if seen&is != 0 {
			return fmt.Errorf("%s: %w", name, errDuplicate)
		}
		if isNull(value) {
			return nil
		}
		seen |= is
		if err := readMember(&r, name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	switch {
	case unknown == 1 && onlyExtra != nil:
		s, err := text(onlyExtra)
		if err == nil {
			r.Extra, err = base64.StdEncoding.AppendDecode(nil, []byte(s))
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", memberExtra, err)
		}
	case unknown > 0:
		extra[0] = '{'
		r.Extra = append(extra, '}')
	}
	if seen&known(memberOngoingSince) == 0 {
		r.StartMs = startAbsent(r.State)
	}
	if seen&known(memberUpdate) == 0 {
		r.UpdateMs = t.updateMs
	}
	if seen&known(memberVersion) == 0 {
		r.Version = t.version
		if r.State == txnstate.Empty && r.Producer.Epoch == txnstate.FenceEpoch {
			// The system that introduced the layout granted this epoch, which here
			// only fences. As a completed abort the id goes on: its next holder
			// gets a producer id of its own.
			r.State = txnstate.CompleteAbort
		}
	}
	if r.Version == 0 {
		return r, errors.New("version 0")
	}
	slices.SortStableFunc(r.Participants, txnstate.Participant.Compare)
	// Groups that share a partition of __consumer_offsets are one party.
	r.Participants = slices.CompactFunc(r.Participants, func(a, b txnstate.Participant) bool { return a.Compare(b) == 0 })
	return r, txnstate.Check(r)
}

func readMember(r *txnstate.Record, name string, value []byte) error {
	var n int64
	var err error
	integer := func(bits int) bool {
		n, err = number(value, bits)
		return err == nil
	}
	switch name {
	case memberPID:
		r.Producer.ID, err = number(value, 64)
	case memberEpoch:
		if integer(16) {
			r.Producer.Epoch = int16(n)
		}
	case memberPartitions:
		return array(value, func(v []byte) error { return readTopic(r, v) })
	case memberOngoingSince:
		r.StartMs, err = number(value, 64)
	case memberTimeout:
		if integer(32) {
			r.TimeoutMs = int32(n)
		}
	case memberState:
		var s string
		if s, err = text(value); err == nil && s != "" {
			var ok bool
			if r.State, ok = txnstate.ParseState(s); !ok {
				return fmt.Errorf("unknown state %s", brief(value))
			}
		}
	case memberGroups:
		return array(value, func(v []byte) error {
			g, err := text(v)
			r.Participants = append(r.Participants, txnstate.Group(g))
			return err
		})
	case memberParticipants:
		return array(value, func(v []byte) error { return readParticipant(r, v) })
	case memberPrevPID:
		r.PrevID, err = number(value, 64)
	case memberNextPID:
		r.Next.ID, err = number(value, 64)
	case memberNextEpoch:
		if integer(16) {
			r.Next.Epoch = int16(n)
		}
	case memberLastEpoch:
		if integer(16) {
			r.LastEpoch = int16(n)
		}
	case memberTxnSeq:
		r.TxnSeq, err = natural(value)
	case memberUpdate:
		r.UpdateMs, err = number(value, 64)
	case memberClientVersion:
		if integer(8) {
			r.ClientVersion = txnstate.TransactionVersion(n)
		}
	case memberTwoPhase:
		if r.TwoPhase = string(value) == "true"; !r.TwoPhase && string(value) != "false" {
			return errors.New("neither true nor false")
		}
	case memberVersion:
		var v uint64
		v, err = natural(value)
		r.Version = txnstate.Version(v)
	}
	return err
}

func readTopic(r *txnstate.Record, value []byte) error {
	topic, partitions := "", []int32(nil)
	err := object(value, func(key, value, _ []byte) error {
		name, err := text(key)
		switch {
		case err != nil:
			return err
		case name == "topic":
			topic, err = text(value)
		case name == "partitions" && !isNull(value):
			err = array(value, func(v []byte) error {
				n, err := number(v, 32)
				partitions = append(partitions, int32(n))
				return err
			})
		}
		return err
	})
	for _, p := range partitions {
		r.Participants = append(r.Participants, txnstate.Partition(topic, p))
	}
	return err
}

func readParticipant(r *txnstate.Record, value []byte) error {
	var p txnstate.Participant
	err := object(value, func(key, value, _ []byte) error {
		name, err := text(key)
		if err != nil {
			return err
		}
		var n int64
		switch name {
		case "kind":
			n, err = number(value, 16)
			if err == nil && (n < 0 || n > math.MaxUint8) {
				err = fmt.Errorf("kind %d", n)
			}
			p.Kind = txnstate.Kind(n)
		case "name":
			p.Name, err = text(value)
		case "index":
			n, err = number(value, 32)
			p.Index = int32(n)
		}
		return err
	})
	r.Participants = append(r.Participants, p)
	return err
}
