package queue

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// The format of both kinds of file, version 1:
//
//	kafkatxn marker entry 1 9ae0daaf
//	{"from":1,"process":"QJ5R…","seq":42,"to":2,"markers":[…]}
//
// a line with the kind, the version, and the CRC-32C of all that follows it, in
// hexadecimal; then one JSON value and a line feed. Every content has one
// spelling. A string that is not UTF-8 is {"hex":"…"}. An acknowledgement has
// the checksum of its entry, and for each delivery what became of it, "" where
// that is not known yet.
//
// Whoever changes what a field means, or adds one, takes the next version: a
// receiver refuses what it does not know, and the sender hears of it.

const formatVersion = 1

var (
	// errDamaged is of bytes that no process of this library wrote so.
	errDamaged = errors.New("damaged")
	// errVersion is of bytes that a newer version of the library wrote.
	errVersion = errors.New("of a version that is not known here")
)

func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// seal is a file of a kind with a content, and its checksum.
func seal(kind string, content any) ([]byte, uint32) {
	body, err := json.Marshal(content)
	if err != nil {
		panic(err) // numbers, booleans and strings only
	}
	body = append(body, '\n')
	check := sum(body)
	return append(fmt.Appendf(nil, "kafkatxn marker %s %d %08x\n", kind, formatVersion, check), body...), check
}

// unseal reads a file of a kind into content, which is what seal was given, and
// gives its checksum.
func unseal(kind string, data []byte, content any) (uint32, error) {
	head, body, ok := bytes.Cut(data, []byte{'\n'})
	var version int
	var want uint32
	if !ok || len(head) > 100 {
		return 0, fmt.Errorf("%w: no first line", errDamaged)
	}
	if n, err := fmt.Sscanf(string(head), "kafkatxn marker "+kind+" %d %08x", &version, &want); n != 2 || err != nil ||
		fmt.Sprintf("kafkatxn marker %s %d %08x", kind, version, want) != string(head) {
		return 0, fmt.Errorf("%w: the first line is %q", errDamaged, head)
	}
	if got := sum(body); got != want {
		return 0, fmt.Errorf("%w: checksum %08x, and the first line has %08x", errDamaged, got, want)
	}
	if version != formatVersion {
		return 0, fmt.Errorf("%w: version %d", errVersion, version)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(content); err != nil {
		return 0, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return 0, fmt.Errorf("%w: something behind the JSON value", errDamaged)
	}
	if again, _ := seal(kind, content); !bytes.Equal(again, data) {
		return 0, fmt.Errorf("%w: another spelling", errDamaged)
	}
	return want, nil
}

// text is a string that is perhaps not UTF-8.
type text string

type hexText struct {
	Hex string `json:"hex"`
}

func (s text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(s)) {
		return json.Marshal(string(s))
	}
	return json.Marshal(hexText{hex.EncodeToString([]byte(s))})
}

func (s *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(s))
	}
	var h hexText
	if err := json.Unmarshal(b, &h); err != nil {
		return err
	}
	raw, err := hex.DecodeString(h.Hex)
	*s = text(raw)
	return err
}

// entryFile is the content of an entry.
type entryFile struct {
	From    int32        `json:"from"`
	Process string       `json:"process"`
	Seq     uint64       `json:"seq"`
	To      int32        `json:"to"`
	Ask     bool         `json:"ask,omitempty"` // whether the transactions are open, and nothing is to be applied
	Markers []markerFile `json:"markers"`
}

type markerFile struct {
	Txn                text              `json:"txn"`
	TxnSeq             uint64            `json:"txnSeq"`
	Pid                int64             `json:"pid"`
	Epoch              int16             `json:"epoch"`
	Commit             bool              `json:"commit"`
	CoordinatorEpoch   int32             `json:"coordinatorEpoch"`
	TransactionVersion int8              `json:"transactionVersion"`
	To                 []participantFile `json:"to"`
}

type participantFile struct {
	Kind  uint8 `json:"kind,omitempty"` // of txnstate: 0 is a partition, 1 a group
	Name  text  `json:"name"`
	Index int32 `json:"index"`
}

// entry is deliveries on their way.
type entry struct {
	address
	to  markers.Target
	ask bool
	ds  []markers.Delivery
}

// encode is the file of an entry, and its checksum. Deliveries of one marker that
// follow one another are one marker with several participants.
func (e *entry) encode() ([]byte, uint32) {
	f := entryFile{From: int32(e.from), Process: e.process, Seq: e.seq, To: int32(e.to), Ask: e.ask, Markers: []markerFile{}}
	for i, d := range e.ds {
		if i == 0 || d.Marker != e.ds[i-1].Marker || d.TxnSeq != e.ds[i-1].TxnSeq {
			f.Markers = append(f.Markers, markerFile{
				Txn: text(d.TxnID), TxnSeq: d.TxnSeq, Pid: d.Producer.ID, Epoch: d.Producer.Epoch, Commit: d.Commit,
				CoordinatorEpoch: d.CoordinatorEpoch, TransactionVersion: int8(d.TransactionVersion),
			})
		}
		m := &f.Markers[len(f.Markers)-1]
		m.To = append(m.To, participantFile{uint8(d.Participant.Kind), text(d.Participant.Name), d.Participant.Index})
	}
	return seal("entry", &f)
}

// size is about how many bytes a delivery takes in an entry, at most.
func size(d *markers.Delivery) int { return 260 + 6*len(d.TxnID) + 6*len(d.Participant.Name) }

// decodeEntry reads the file of an entry and gives its checksum.
func decodeEntry(data []byte) (*entry, uint32, error) {
	var f entryFile
	check, err := unseal("entry", data, &f)
	if err != nil {
		return nil, 0, err
	}
	if len(f.Markers) == 0 {
		return nil, 0, fmt.Errorf("%w: no markers", errDamaged)
	}
	e := &entry{address: address{markers.Target(f.From), f.Process, f.Seq}, to: markers.Target(f.To), ask: f.Ask}
	for i, m := range f.Markers {
		if len(m.To) == 0 {
			return nil, 0, fmt.Errorf("%w: a marker for nobody", errDamaged)
		}
		d := markers.Delivery{TxnSeq: m.TxnSeq, Marker: markers.Marker{
			TxnID: string(m.Txn), Producer: txnstate.Producer{ID: m.Pid, Epoch: m.Epoch}, Commit: m.Commit,
			CoordinatorEpoch: m.CoordinatorEpoch, TransactionVersion: txnstate.TransactionVersion(m.TransactionVersion),
		}}
		if i > 0 && e.ds[len(e.ds)-1].Marker == d.Marker && e.ds[len(e.ds)-1].TxnSeq == d.TxnSeq {
			return nil, 0, fmt.Errorf("%w: one marker in two pieces", errDamaged)
		}
		for _, p := range m.To {
			d.Participant = txnstate.Participant{Kind: txnstate.Kind(p.Kind), Name: string(p.Name), Index: p.Index}
			e.ds = append(e.ds, d)
		}
	}
	return e, check, nil
}

// verdict is what is known of a delivery, as acknowledgements write it.
type verdict string

const (
	pending verdict = "" // nothing yet
	open    verdict = "open"
	closed  verdict = "closed"
)

// results are those that a verdict can be, by Result.String.
var results = [...]markers.Result{
	markers.Retry, markers.Applied, markers.Moved, markers.FencedEpoch, markers.FencedCoordinator, markers.Deleted,
}

func verdictOf(r markers.Result) verdict {
	if !slices.Contains(results[:], r) {
		r = markers.Retry // of a sink that is newer than this package
	}
	return verdict(r.String())
}

// result is what a verdict means to the one who asked for delivery.
func (v verdict) result() markers.Result {
	for _, r := range results {
		if verdictOf(r) == v {
			return r
		}
	}
	return markers.Retry
}

func (v verdict) valid() bool {
	return v == pending || v == open || v == closed || v == verdictOf(markers.Retry) || v.result() != markers.Retry
}

// ack is the content of an acknowledgement.
type ack struct {
	// Entry is the checksum of the entry, in hexadecimal.
	Entry    string    `json:"entry"`
	Verdicts []verdict `json:"results,omitempty"`
	// Refused says why the entry was not looked into. Then there are no verdicts.
	Refused string `json:"refused,omitempty"`
}

const (
	refusedDamaged = "damaged"
	refusedVersion = "unknown version"
)

func quote(check uint32) string { return fmt.Sprintf("%08x", check) }

func (a *ack) encode() []byte {
	data, _ := seal("ack", a)
	return data
}

// complete reports that nothing more is to come.
func (a *ack) complete() bool { return a.Refused != "" || !slices.Contains(a.Verdicts, pending) }

func decodeAck(data []byte) (*ack, error) {
	var a ack
	if _, err := unseal("ack", data, &a); err != nil {
		return nil, err
	}
	known := a.Refused == "" || a.Refused == refusedDamaged || a.Refused == refusedVersion
	if !known || (a.Refused != "") == (len(a.Verdicts) > 0) ||
		slices.ContainsFunc(a.Verdicts, func(v verdict) bool { return !v.valid() }) ||
		len(a.Entry) != 8 || strings.Trim(a.Entry, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("%w: an acknowledgement that says %.200q", errDamaged, data)
	}
	return &a, nil
}
