package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// printer writes lines for people, or JSON.
type printer struct {
	w       io.Writer
	json    *bool
	damaged bool  // something could not be read
	err     error // of w, the first
}

func (p *printer) line(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format+"\n", args...); err != nil && p.err == nil {
		p.err = err
	}
}

// object writes v in a line, where JSON is wanted.
func (p *printer) object(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		p.err = err
		return
	}
	p.line("%s", b)
}

// bad says what can't be read. offset is -1 where it is the whole file.
func (p *printer) bad(file string, offset int64, reason string) {
	p.damaged = true
	if *p.json {
		v := map[string]any{"file": file, "damaged": reason}
		if offset >= 0 {
			v["offset"] = offset
		}
		p.object(v)
		return
	}
	if offset >= 0 {
		reason = fmt.Sprintf("at byte %d: %s", offset, reason)
	}
	p.line("DAMAGED %s %s", file, reason)
}

// note says something about a file that is no damage.
func (p *printer) note(file, text string) {
	if *p.json {
		p.object(map[string]any{"file": file, "note": text})
		return
	}
	p.line("%s: %s", file, text)
}

// record prints a record; indent is put before the line.
func (p *printer) record(indent string, r txnstate.Record) {
	if err := txnstate.Check(r); err != nil {
		p.damaged = true
	}
	if *p.json {
		p.object(recordJSON(r))
		return
	}
	p.line("%s%s", indent, recordLine(r))
}

// recordLine is a record for a person: what an ordinary one does not have is not
// mentioned.
func recordLine(r txnstate.Record) string {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, " "+format, args...) }
	b.WriteString(quoted(r.TxnID))
	add("%s", r.State)
	add("producer=%s", r.Producer)
	if r.PrevID != r.Producer.ID && r.PrevID != -1 {
		add("previous-id=%d", r.PrevID)
	}
	if r.Next != txnstate.NoProducer {
		add("next=%s", r.Next)
	}
	if r.LastEpoch != -1 {
		add("last-epoch=%d", r.LastEpoch)
	}
	if len(r.Participants) > 0 || r.State == txnstate.Ongoing || r.State.Decided() {
		add("participants=[%s]", strings.Join(participants(r), " "))
	}
	if r.StartMs != -1 {
		add("began=%s", at(r.StartMs))
	}
	if r.UpdateMs != -1 {
		add("updated=%s", at(r.UpdateMs))
	}
	switch {
	case r.TwoPhase:
		add("two-phase")
	case r.TimeoutMs == txnstate.NoTimeout:
		add("timeout=none")
	default:
		add("timeout=%s", time.Duration(r.TimeoutMs)*time.Millisecond)
	}
	add("tv=%d", r.ClientVersion)
	add("transactions=%d", r.TxnSeq)
	add("version=%d", r.Version)
	if len(r.Extra) > 0 {
		add("extra=%x", r.Extra)
	}
	if err := txnstate.Check(r); err != nil {
		add("IMPOSSIBLE: %s", err)
	}
	return b.String()
}

func participants(r txnstate.Record) []string {
	var list []string
	for _, p := range r.Participants {
		switch p.Kind {
		case txnstate.KindPartition:
			list = append(list, fmt.Sprintf("%s/%d", quoted(p.Name), p.Index))
		case txnstate.KindGroup:
			list = append(list, fmt.Sprintf("group:%s/%d", quoted(p.Name), p.Index))
		default:
			list = append(list, fmt.Sprintf("kind-%d:%s/%d", p.Kind, quoted(p.Name), p.Index))
		}
	}
	return list
}

// quoted is a name as it is, unless it has something in it that would be misread:
// names are chosen by clients, and a terminal obeys some bytes.
func quoted(name string) string {
	q := strconv.Quote(name)
	if name == "" || q != `"`+name+`"` || strings.ContainsAny(name, " =[]") {
		return q
	}
	return name
}

func at(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// recordJSON is a record with the names of its fields, and times in milliseconds.
func recordJSON(r txnstate.Record) any {
	type producer struct {
		ID    int64 `json:"id"`
		Epoch int16 `json:"epoch"`
	}
	type participant struct {
		Kind  uint8  `json:"kind"`
		Name  string `json:"name"`
		Hex   string `json:"nameHex,omitempty"`
		Index int32  `json:"index"`
	}
	v := struct {
		TxnID         string        `json:"txnId"`
		Hex           string        `json:"txnIdHex,omitempty"`
		State         string        `json:"state"`
		Producer      producer      `json:"producer"`
		PrevID        int64         `json:"previousId"`
		Next          *producer     `json:"next,omitempty"`
		LastEpoch     int16         `json:"lastEpoch"`
		Participants  []participant `json:"participants"`
		TimeoutMs     int32         `json:"timeoutMs"`
		StartMs       int64         `json:"startMs"`
		UpdateMs      int64         `json:"updateMs"`
		ClientVersion int8          `json:"clientVersion"`
		TwoPhase      bool          `json:"twoPhase"`
		TxnSeq        uint64        `json:"transactions"`
		Version       uint64        `json:"version"`
		Extra         []byte        `json:"extra,omitempty"`
		Impossible    string        `json:"impossible,omitempty"`
	}{
		TxnID: r.TxnID, Hex: hexOf(r.TxnID), State: r.State.String(), Producer: producer(r.Producer), PrevID: r.PrevID,
		LastEpoch: r.LastEpoch, Participants: []participant{}, TimeoutMs: r.TimeoutMs, StartMs: r.StartMs, UpdateMs: r.UpdateMs,
		ClientVersion: int8(r.ClientVersion), TwoPhase: r.TwoPhase, TxnSeq: r.TxnSeq, Version: uint64(r.Version), Extra: r.Extra,
	}
	if r.Next != txnstate.NoProducer {
		v.Next = (*producer)(&r.Next)
	}
	for _, p := range r.Participants {
		v.Participants = append(v.Participants, participant{uint8(p.Kind), p.Name, hexOf(p.Name), p.Index})
	}
	if err := txnstate.Check(r); err != nil {
		v.Impossible = err.Error()
	}
	return v
}

// hexOf is the bytes of a name that JSON can't say.
func hexOf(name string) string {
	if utf8.ValidString(name) {
		return ""
	}
	return fmt.Sprintf("%x", name)
}
