package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/conformance"
)

// broker is one on loopback that gives everybody the same producer id and calls
// everything else a success.
func broker(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

func serve(c net.Conn) {
	defer c.Close()
	for {
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(b)))
		if req == nil {
			return
		}
		req.SetVersion(int16(binary.BigEndian.Uint16(b[2:])))
		resp := req.ResponseKind()
		switch x := resp.(type) {
		case *kmsg.InitProducerIDResponse:
			x.ProducerID = 1
		case *kmsg.ApiVersionsResponse:
			for _, k := range []int16{2, 10, 19, 22, 24, 25, 26, 65} {
				x.ApiKeys = append(x.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k, MaxVersion: 5})
			}
		}
		out := append(make([]byte, 4), b[4:8]...)
		if resp.IsFlexible() && resp.Key() != 18 {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

func TestTheExitStatusTells(t *testing.T) {
	addr := broker(t)
	for _, c := range []struct {
		args   []string
		status int
		out    string // some of standard output
		err    string // some of standard error
	}{
		{[]string{"-addr", addr, "-suite", "coord1", "-n", "3", "-show", "1"}, 1, "0 of 3 scenarios agree", ""},
		{[]string{"-addr", addr, "-suite", "coord1", "-n", "3"}, 1, "ListTransactions, which the broker does not have", ""},
		{[]string{"-addr", "127.0.0.1:1"}, 2, "", "no connection to 127.0.0.1:1"},
		{[]string{"-addr", addr, "-suite", "coord9"}, 2, "", `no suite "coord9"; there are coord1`},
		{[]string{"-addr", addr, "-suite", "coord1", "-n", "2", "-between", "exit 3"}, 2, "", "exit status 3"},
		{[]string{"-may-forget", "everything"}, 2, "", `unknown fact "everything"`},
		{[]string{"-nonsense"}, 2, "", "-addr"},
		{[]string{"stray"}, 2, "", "stray"},
		{[]string{"-help"}, 0, "", "-between COMMAND"},
		{[]string{"-list"}, 0, "recorded from Apache Kafka 4.4.0", ""},
	} {
		var stdout, stderr bytes.Buffer
		if got := run(t.Context(), c.args, &stdout, &stderr); got != c.status {
			t.Errorf("%q: status %d, want %d", c.args, got, c.status)
		}
		if !strings.Contains(stdout.String(), c.out) || !strings.Contains(stderr.String(), c.err) {
			t.Errorf("%q: standard output %q, standard error %q", c.args, stdout.String(), stderr.String())
		}
	}
}

func TestJSONIsForPrograms(t *testing.T) {
	var stdout, stderr bytes.Buffer
	run(t.Context(), []string{"-addr", broker(t), "-suite", "coord1", "-n", "3", "-json"}, &stdout, &stderr)
	var r conformance.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || len(r.Suites) != 1 || len(r.Suites[0].Differences) != 3 {
		t.Errorf("%v: %s", err, stdout.String())
	}
}
