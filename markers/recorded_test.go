package markers_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// TestRecordedAnswersOfKafka replays conversations with an Apache Kafka 4.4
// against the rules of a partition leader alone: fence and Decide, with a log
// that is a slice and a coordinator that is txnstate.Step. Every answer, offset,
// batch, last stable offset, aborted range and producer has to be Kafka's (I14).
// After each scenario a follower that copied the log, and a restart from a
// snapshot, have to know the same as the leader (W33, F40).
func TestRecordedAnswersOfKafka(t *testing.T) {
	for _, suite := range []string{"data1", "data2", "marker1", "marker2", "wrap1", "wrap2"} {
		name := filepath.Join("..", "conformance", "recordings", suite+".jsonl.gz")
		for _, v := range []struct {
			name          string
			fences, flaky bool
		}{
			{name: suite},
			// Telling the leaders of every fence shuts nobody out whom Kafka lets in.
			{name: suite + ", with fences", fences: true},
			// An append that fails leaves no trace.
			{name: suite + ", every append fails once", flaky: true},
		} {
			t.Run(v.name, func(t *testing.T) { replay(t, load(t, name), v.fences, v.flaky) })
		}
	}
}

func replay(t *testing.T, scenarios []scenario, fences, flaky bool) {
	steps, wrong := 0, 0
	for _, sc := range scenarios {
		w := newWorld(sc.Topics)
		w.fences, w.flaky = fences, flaky
		for i, s := range sc.Steps {
			steps++
			if got := w.run(s); !reflect.DeepEqual(got, s.Want) {
				wrong++
				if wrong <= 5 {
					step, _ := json.Marshal(s)
					have, _ := json.Marshal(got)
					t.Errorf("%s step %d: %s\n got %s", sc.Name, i, step, have)
				}
				break // what follows depends on it
			}
		}
		if !fences { // which no log knows of
			w.checkCopies(t, sc.Name)
		}
	}
	t.Logf("%d steps, %d of %d scenarios differ", steps, wrong, len(scenarios))
}

type scenario struct {
	Name   string           `json:"name"`
	Topics map[string]int32 `json:"topics"`
	Steps  []step           `json:"steps"`
}

type step struct {
	Op      string `json:"op"`
	V       int16  `json:"v"`
	ID      string `json:"id"`
	Empty   bool   `json:"empty"` // the transactional id is ""
	PID     string `json:"pid"`
	Epoch   int16  `json:"epoch"`
	Timeout int32  `json:"timeout"`
	Commit  bool   `json:"commit"`
	Parts   []tp   `json:"parts"`
	Verify  bool   `json:"verifyOnly"`
	Txnal   bool   `json:"transactional"`
	Seq     int32  `json:"seq"`
	Records int32  `json:"records"`
	Iso     int8   `json:"isolation"`
	CoordEp int32  `json:"coordinatorEpoch"`
	TV      int8   `json:"transactionVersion"`
	Want    answer `json:"want"`
}

type tp struct {
	T   string `json:"t"`
	P   int32  `json:"p"`
	Off int64  `json:"off"`
}

func (p tp) String() string { return fmt.Sprintf("%s/%d", p.T, p.P) }

type answer struct {
	Err     string            `json:"err"`
	Parts   map[string]string `json:"parts,omitempty"`
	PID     string            `json:"pid,omitempty"`
	Epoch   *int16            `json:"epoch,omitempty"`
	Base    *int64            `json:"base,omitempty"`
	HW      *int64            `json:"hw,omitempty"`
	LSO     *int64            `json:"lso,omitempty"`
	Batches []string          `json:"batches,omitempty"`
	Aborted []string          `json:"aborted,omitempty"`
	Prods   []string          `json:"producers,omitempty"`
}

func load(t *testing.T, name string) []scenario {
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []scenario
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var sc scenario
		if err := json.Unmarshal(lines.Bytes(), &sc); err != nil {
			t.Fatal(err)
		}
		out = append(out, sc)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// now is the time of everything that happens: nothing here depends on it.
var now = time.UnixMilli(1_700_000_000_000)
