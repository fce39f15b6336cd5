package wire

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// FuzzAnswer: whatever a broker answers, there is a result or an error, and what
// was taken in is no longer than allowed.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 5, 0, 0, 0, 1, 0}, byte(2))
	f.Add([]byte{0, 0, 0, 9, 0, 0, 0, 1, 1, 3, 2, 'x', 'y'}, byte(2))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1}, byte(1))
	f.Add([]byte{0, 0, 0, 20, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 2, 2, 'a', 2, 0, 0}, byte(2))
	f.Fuzz(func(t *testing.T, b []byte, which byte) {
		const limit = 1 << 16
		frame, err := readAnswer(bufio.NewReader(bytes.NewReader(b)), limit)
		if err != nil {
			return
		}
		if len(frame) < 4 || len(frame) > limit {
			t.Fatalf("an answer of %d bytes", len(frame))
		}
		var resp kmsg.Response
		switch which % 5 {
		case 0:
			resp = kmsg.NewPtrApiVersionsResponse()
		case 1, 2:
			resp = kmsg.NewPtrWriteTxnMarkersResponse()
			resp.SetVersion(int16(which % 5))
		case 3:
			resp = kmsg.NewPtrAddPartitionsToTxnResponse()
			resp.SetVersion(5)
		case 4:
			resp = kmsg.NewPtrDescribeProducersResponse()
		}
		if decodeAnswer(resp, frame[4:]) != nil {
			return
		}
		if r, ok := resp.(*kmsg.WriteTxnMarkersResponse); ok {
			codesOf(r)
		}
	})
}
