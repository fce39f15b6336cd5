package wire

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// KIP-939: two flags behind the fields of v5, and before the tags.
func TestInitProducerIDV6Bytes(t *testing.T) {
	id := "my-t"
	req := &InitProducerIDV6Request{TransactionalID: &id, TransactionTimeoutMillis: 60000, ProducerID: 4660, ProducerEpoch: 7, Enable2PC: true}
	if got := hex.EncodeToString(req.AppendTo(nil)); got != "056d792d740000ea6000000000000012340007010000" {
		t.Errorf("request %s", got)
	}
	old := kmsg.NewPtrInitProducerIDRequest()
	old.Version, old.TransactionalID, old.TransactionTimeoutMillis, old.ProducerID, old.ProducerEpoch = 5, &id, 60000, 4660, 7
	if v5 := old.AppendTo(nil); !bytes.Equal(v5[:len(v5)-1], req.AppendTo(nil)[:len(v5)-1]) {
		t.Error("the fields of v5 are encoded in another way")
	}
	resp := &InitProducerIDV6Response{ErrorCode: 53, ProducerID: -1, ProducerEpoch: -1, OngoingTxnProducerID: -1, OngoingTxnProducerEpoch: -1}
	if got := hex.EncodeToString(resp.AppendTo(nil)); got != "00000000"+"0035"+"ffffffffffffffffffff"+"ffffffffffffffffffff"+"00" {
		t.Errorf("response %s", got)
	}
	back := resp.RequestKind().ResponseKind()
	if err := back.ReadFrom(resp.AppendTo(nil)); err != nil || !reflect.DeepEqual(back, resp) {
		t.Errorf("read back %+v, %v", back, err)
	}
}

// F32: lengths that can't be are errors, and nothing is allocated for them.
func TestInitProducerIDV6RefusesWhatCannotBe(t *testing.T) {
	long := strings.Repeat("x", math.MaxInt16+1)
	good := (&InitProducerIDV6Request{ProducerID: -1, ProducerEpoch: -1}).AppendTo(nil)
	for name, b := range map[string][]byte{
		"nothing":                   {},
		"a byte short":              good[:len(good)-1],
		"a byte long":               append(append([]byte{}, good...), 0),
		"an id longer than Kafka's": (&InitProducerIDV6Request{TransactionalID: &long}).AppendTo(nil),
		"an id beyond the end":      {0xff, 0xff, 0x01, 'x'},
		"a length of 2 GiB":         {0xff, 0xff, 0xff, 0xff, 0x07},
		"a length without end":      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"many tags":                 append(append([]byte{}, good[:len(good)-1]...), 0xff, 0xff, 0xff, 0xff, 0x07),
		"a tag beyond the end":      append(append([]byte{}, good[:len(good)-1]...), 1, 9, 200),
	} {
		var r InitProducerIDV6Request
		if err := r.ReadFrom(b); err == nil {
			t.Errorf("%s: read as %+v", name, r)
		}
	}
	tagged := append(append([]byte{}, good[:len(good)-1]...), 1, 9, 2, 0xaa, 0xbb)
	var r InitProducerIDV6Request
	if err := r.ReadFrom(tagged); err != nil || r.ProducerID != -1 {
		t.Errorf("an unknown tag: %v", err)
	}
}

func FuzzInitProducerIDV6(f *testing.F) {
	id := "id"
	f.Add((&InitProducerIDV6Request{TransactionalID: &id, Enable2PC: true}).AppendTo(nil))
	f.Add((&InitProducerIDV6Request{KeepPreparedTxn: true}).AppendTo(nil))
	f.Add((&InitProducerIDV6Response{ProducerID: 1}).AppendTo(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var req, req2 InitProducerIDV6Request
		if req.ReadFrom(b) == nil {
			if err := req2.ReadFrom(req.AppendTo(nil)); err != nil || !reflect.DeepEqual(req, req2) {
				t.Errorf("%+v reads back as %+v, %v", req, req2, err)
			}
		}
		var resp, resp2 InitProducerIDV6Response
		if resp.ReadFrom(b) == nil {
			if err := resp2.ReadFrom(resp.AppendTo(nil)); err != nil || resp != resp2 {
				t.Errorf("%+v reads back as %+v, %v", resp, resp2, err)
			}
		}
	})
}
