package slotfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// content is what one generation of a slot holds. It is never changed once it is
// made, so that readers need no lock.
type content struct {
	gen   uint64
	nonce string // tells this generation from another that had, or wanted, its number

	// parents are the nonces of the generations before, the nearest first: a
	// writer that comes late finds out by them whether its own is among them.
	parents []string
	// seq is the highest version that a Durable write of the slot was given.
	seq   txnstate.Version
	taken taken
	// source is the slot-N.json that takenOver was read from.
	source []byte

	entries []*entry // those that belong here, by id
	strays  []*entry // those that no id leads to: kept, and reported

	// consumed names the Later writes of this handle that the generation took
	// in, or replaced, by id and version. Only of generations made here.
	consumed map[string]txnstate.Version
}

// entry is one member of a slot's object. It is never changed.
type entry struct {
	id      string
	member  []byte // key, colon and value, as in the file
	value   int    // where the value begins
	version txnstate.Version
	bad     error // why it can't be read, nil where it can
}

func (e *entry) record(t taken) (txnstate.Record, error) {
	if e.bad != nil {
		return txnstate.Record{TxnID: e.id}, fmt.Errorf("%w: %w", txnstate.ErrDamaged, e.bad)
	}
	// What was read once, when the entry came in, is read again: kept as a
	// Record it would cost twice its bytes.
	r, err := readRecord(e.id, e.member[e.value:], t)
	if err != nil {
		return txnstate.Record{TxnID: e.id}, fmt.Errorf("%w: %w", txnstate.ErrDamaged, err)
	}
	return r, nil
}

// newEntry makes the member that stores a record; value is what appendRecord
// made of it.
func newEntry(id string, value []byte, v txnstate.Version) *entry {
	m := make([]byte, 0, len(id)+len(value)+48)
	m = appendText(m, id)
	m = append(m, ':')
	at := len(m)
	m = append(m, value...)
	m = appendVersion(m, v)
	return &entry{id: id, member: bytes.Clone(m), value: at, version: v} // to its length: it stays
}

func byID(e *entry, id string) int { return strings.Compare(e.id, id) }

// find is the entry of an id, nil for none.
func (c *content) find(id string) *entry {
	if i, ok := slices.BinarySearchFunc(c.entries, id, byID); ok {
		return c.entries[i]
	}
	return nil
}

func versionOf(e *entry) txnstate.Version {
	if e == nil {
		return 0
	}
	return e.version
}

// with is the entries of c with some replaced, added or, where nil, removed.
func (c *content) with(edits map[string]*entry) []*entry {
	out := make([]*entry, 0, len(c.entries)+len(edits))
	rest := c.entries
	for _, id := range slices.Sorted(maps.Keys(edits)) {
		i, found := slices.BinarySearchFunc(rest, id, byID)
		out = append(out, rest[:i]...)
		if e := edits[id]; e != nil {
			out = append(out, e)
		}
		if found {
			i++
		}
		rest = rest[i:]
	}
	return append(out, rest...)
}

// next is the generation that follows c, still without entries.
func (c *content) next(nonce string) *content {
	n := &content{gen: c.gen + 1, nonce: nonce, seq: c.seq + 1, taken: c.taken, strays: c.strays}
	if c.gen >= firstFile {
		keep := c.parents[:min(len(c.parents), maxParents-1)]
		n.parents = append([]string{c.nonce}, keep...)
	}
	return n
}

// maxParents bounds how far back a late writer can find itself. In memory 16
// generations can be made while a processor is away for a millisecond or two.
const maxParents = 64

// descends says whether the generation numbered gen, with nonce, is c or came
// before it; known is false where that is too long ago to tell.
func (c *content) descends(gen uint64, nonce string) (is, known bool) {
	switch {
	case gen > c.gen:
		return false, true
	case gen == c.gen:
		return nonce == c.nonce, true
	}
	if back := c.gen - gen - 1; back < uint64(len(c.parents)) {
		return c.parents[back] == nonce, true
	}
	return false, false
}

// pieces are what the slot's object is put together from, as people read it: an
// entry a line.
func (c *content) pieces(piece func(text string, member []byte)) {
	sep := "{\n"
	for _, es := range [][]*entry{c.entries, c.strays} {
		for _, e := range es {
			piece(sep, e.member)
			sep = ",\n"
		}
	}
	if sep == "{\n" {
		sep = "{"
	} else {
		sep = ""
	}
	piece(sep+"\n}\n", nil)
}

func (c *content) body() []byte { return c.appendBody(nil) }

func (c *content) appendBody(b []byte) []byte {
	c.pieces(func(text string, member []byte) {
		b = append(b, text...)
		b = append(b, member...)
	})
	return b
}

// header is the first line of a generation's file; the body follows. Its names
// are part of the format.
type header struct {
	Format     int      `json:"format"`
	Slot       int      `json:"slot"`
	Generation uint64   `json:"generation"`
	Nonce      string   `json:"nonce"`
	Parents    []string `json:"parents,omitempty"`
	// LastVersion is the highest version given by Durable writes.
	LastVersion uint64 `json:"lastVersion"`
	// TakenVersion and TakenMs are what entries mean that state no version or
	// no updateMs: those of the file that the slot began with.
	TakenVersion uint64 `json:"takenVersion"`
	TakenMs      int64  `json:"takenMs"`
	Bytes        int    `json:"bytes"` // of the body
	CRC32C       string `json:"crc32c"`
}

// format is the version of the file format. A higher one is not read.
const format = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)) }

// appendFile appends the file of a generation: its header, as json.Marshal makes it
// of a header, a new line, and the body.
func (c *content) appendFile(h []byte, slot int) []byte {
	size, sum := 0, uint32(0)
	var text [4]byte
	c.pieces(func(t string, member []byte) {
		size += len(t) + len(member)
		sum = crc32.Update(sum, castagnoli, text[:copy(text[:], t)])
		sum = crc32.Update(sum, castagnoli, member)
	})
	h = slices.Grow(h, size+384+20*len(c.parents))
	h = append(h, `{"format":`...)
	h = strconv.AppendInt(h, format, 10)
	h = append(h, `,"slot":`...)
	h = strconv.AppendInt(h, int64(slot), 10)
	h = append(h, `,"generation":`...)
	h = strconv.AppendUint(h, c.gen, 10)
	h = append(h, `,"nonce":`...)
	h = appendNonce(h, c.nonce)
	for i, p := range c.parents {
		if i == 0 {
			h = append(h, `,"parents":[`...)
		} else {
			h = append(h, ',')
		}
		h = appendNonce(h, p)
	}
	if len(c.parents) > 0 {
		h = append(h, ']')
	}
	h = append(h, `,"lastVersion":`...)
	h = strconv.AppendUint(h, uint64(c.seq), 10)
	h = append(h, `,"takenVersion":`...)
	h = strconv.AppendUint(h, uint64(c.taken.version), 10)
	h = append(h, `,"takenMs":`...)
	h = strconv.AppendInt(h, c.taken.updateMs, 10)
	h = append(h, `,"bytes":`...)
	h = strconv.AppendInt(h, int64(size), 10)
	h = append(h, `,"crc32c":"`...)
	binary.BigEndian.PutUint32(text[:], sum)
	h = hex.AppendEncode(h, text[:])
	h = append(h, "\"}\n"...)
	return c.appendBody(h)
}

// appendNonce appends one as a JSON string. Those made here are hexadecimal digits.
func appendNonce(b []byte, nonce string) []byte {
	if strings.Trim(nonce, "0123456789abcdef") == "" {
		b = append(b, '"')
		b = append(b, nonce...)
		return append(b, '"')
	}
	q, _ := json.Marshal(nonce) // a string has no error
	return append(b, q...)
}

// decode reads the file of a generation. old may be nil; entries that are the
// same there are taken from it.
func decode(file []byte, slot int, gen uint64, old *content) (*content, error) {
	line, body, ok := bytes.Cut(file, []byte("\n"))
	if !ok {
		return nil, errors.New("no header line")
	}
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	switch {
	case h.Format != format:
		return nil, fmt.Errorf("format %d, and format %d is known", h.Format, format)
	case h.Slot != slot || h.Generation != gen:
		return nil, fmt.Errorf("slot %d, generation %d under the name of slot %d, generation %d", h.Slot, h.Generation, slot, gen)
	case h.Nonce == "" || h.LastVersion == 0 || h.TakenVersion == 0:
		return nil, errors.New("header without nonce or versions")
	case h.Bytes != len(body):
		return nil, fmt.Errorf("%d bytes of body, and the header says %d", len(body), h.Bytes)
	case h.CRC32C != checksum(body):
		return nil, fmt.Errorf("checksum of the body is %s, and the header says %s", checksum(body), h.CRC32C)
	}
	c := &content{
		gen: gen, nonce: h.Nonce, parents: h.Parents, seq: txnstate.Version(h.LastVersion),
		taken: taken{version: txnstate.Version(h.TakenVersion), updateMs: h.TakenMs},
	}
	return c, c.readBody(body, slot, old)
}

// takeOver reads a slot-N.json that no generation has followed yet: one of the
// system that introduced the layout, or one that a person put there. nil is an
// empty slot. updateMs is when the file was last written.
func takeOver(file []byte, slot int, updateMs int64) (*content, error) {
	c := &content{gen: takenOver, seq: 1, taken: taken{version: 1, updateMs: updateMs}, source: file}
	if file == nil {
		return c, nil
	}
	// Entries with versions come from here, by way of a person who repaired the
	// slot: what they have must not be given again.
	look := content{taken: taken{version: laterVersions}}
	if err := look.readBody(file, slot, nil); err != nil {
		return nil, err
	}
	for _, e := range look.entries {
		if e.version < laterVersions {
			c.seq = max(c.seq, e.version+1)
		}
	}
	c.taken.version = c.seq
	return c, c.readBody(file, slot, nil)
}

// readBody splits the slot's object into entries.
func (c *content) readBody(body []byte, slot int, old *content) error {
	if !json.Valid(body) {
		return errors.New("not JSON")
	}
	fresh := old == nil || old.taken != c.taken
	err := object(body, func(key, value, member []byte) error {
		id, kerr := text(key)
		if kerr == nil && !fresh {
			if e := old.find(id); e != nil && e.bad == nil && bytes.Equal(e.member, member) {
				c.entries = append(c.entries, e)
				return nil
			}
			// The file's memory is not kept for the few entries that are new.
			member = bytes.Clone(member)
		}
		e := &entry{id: id, member: member, value: len(member) - len(value)}
		switch {
		case kerr != nil:
			e.id, e.bad = brief(key), fmt.Errorf("its name: %w", kerr)
			c.strays = append(c.strays, e)
		case txnstate.Slot(id) != slot:
			e.bad = fmt.Errorf("it is stored in slot %d and belongs in slot %d", slot, txnstate.Slot(id))
			c.strays = append(c.strays, e)
		default:
			r, err := readRecord(id, e.member[e.value:], c.taken)
			e.version, e.bad = r.Version, err
			c.entries = append(c.entries, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(c.entries, func(a, b *entry) int { return cmp.Compare(a.id, b.id) })
	c.entries = joinTwins(c.entries)
	return nil
}

// joinTwins makes one unreadable entry of several that have one id: of two
// records it is not known which is right, and none may be lost.
func joinTwins(es []*entry) []*entry {
	var out []*entry
	for _, e := range es {
		if n := len(out); n > 0 && out[n-1].id == e.id {
			first := out[n-1]
			out[n-1] = &entry{
				id: e.id, member: slices.Concat(first.member, []byte(",\n"), e.member),
				value: first.value, bad: fmt.Errorf("entry %w", errDuplicate),
			}
			continue
		}
		out = append(out, e)
	}
	return out
}
