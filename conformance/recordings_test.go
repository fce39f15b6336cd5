package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/fstest"
)

func TestEveryRecordingIsWhole(t *testing.T) {
	want := map[string]int{
		"coord1": 300, "coord2": 300, "mixed": 300, "batch2": 150, "offsets1": 300, "offsets2": 300, "member1": 150, "member2": 150,
		"data1": 300, "data2": 300, "marker1": 100, "marker2": 60, "wrap1": 95, "wrap2": 100, "timeout1": 80, "timeout2": 80,
		"exhaust1": 20, "exhaust2": 20, "acl1": 146, "acl2": 148, "twopc": 150,
		"odd": 60, "oddoffsets": 60, "odddata": 60, "markers": 60, "blend": 60, "deletes": 60, "rotation": 8, "timeouts": 50,
		"level1": 110, "level0": 59, "expiry": 36,
	}
	scenarios, answers := 0, 0
	suites := Suites()
	if len(suites) != len(want) {
		t.Errorf("%d suites, want %d", len(suites), len(want))
	}
	for _, s := range suites {
		if s.Scenarios != want[s.Name] {
			t.Errorf("%s has %d scenarios, want %d", s.Name, s.Scenarios, want[s.Name])
		}
		if !strings.HasPrefix(s.Source, "Apache Kafka 4.4.0") || s.About == "" {
			t.Errorf("%s: source %q, about %q", s.Name, s.Source, s.About)
		}
		scenarios += s.Scenarios
		answers += s.Answers
	}
	if scenarios != 4172 || answers != 45163 {
		t.Errorf("%d scenarios with %d answers, want 4172 with 45163", scenarios, answers)
	}
	if _, err := Recording("nothing"); err == nil {
		t.Error("a suite that does not exist has a recording")
	}
}

// The types must hold all that a recording says: what was decoded encodes to the
// same bytes.
func TestScenariosEncodeToTheSameBytes(t *testing.T) {
	for _, s := range Suites() {
		f, err := recordings.Open("recordings/" + s.Name + ".jsonl.gz")
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		if z.Name != "" || !z.ModTime.IsZero() {
			t.Errorf("%s: packed with the name %q and time %v, which change from run to run", s.Name, z.Name, z.ModTime)
		}
		raw, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		scs, err := Recording(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		for _, sc := range scs {
			if err := enc.Encode(sc); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(raw, out.Bytes()) {
			t.Errorf("%s: encodes to other bytes than the recording has", s.Name)
		}
	}
}

func TestScenariosThatCannotBeReplayedAreRefused(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":                     `{`,
		"no name":                     `{"steps":[{"op":"list"}]}`,
		"no steps":                    `{"name":"x"}`,
		"a null step":                 `{"name":"x","steps":[null]}`,
		"an unknown operation":        `{"name":"x","steps":[{"op":"guess"}]}`,
		"a topic of no partitions":    `{"name":"x","topics":{"d":0},"steps":[{"op":"list"}]}`,
		"a produce to nowhere":        `{"name":"x","steps":[{"op":"prod","records":1}]}`,
		"a produce of nothing":        `{"name":"x","steps":[{"op":"prod","parts":[{"t":"d"}]}]}`,
		"a fetch from two partitions": `{"name":"x","steps":[{"op":"fetch","parts":[{"t":"d"},{"t":"e"}]}]}`,
		"a null marker":               `{"name":"x","steps":[{"op":"mark","txns":[null]}]}`,
		"a topic without a name":      `{"name":"x","steps":[{"op":"deltopic"}]}`,
		"a new topic of no size":      `{"name":"x","steps":[{"op":"newtopic","resourceName":"d"}]}`,
		"an empty batch":              `{"name":"x","steps":[{"op":"addb"}]}`,
		"a null in a batch":           `{"name":"x","steps":[{"op":"addb","txns":[null]}]}`,
		"ageing backwards":            `{"name":"x","steps":[{"op":"age","epoch":5,"until":5}]}`,
		"a rule on nothing":           `{"name":"x","steps":[{"op":"deny","resource":"topic","operation":"read"}]}`,
		"a rule on the moon":          `{"name":"x","steps":[{"op":"deny","resource":"moon","operation":"read","resourceName":"x"}]}`,
		"an unknown permission":       `{"name":"x","steps":[{"op":"deny","resource":"topic","operation":"love","resourceName":"x"}]}`,
	} {
		if scs, err := ReadScenarios(strings.NewReader(line)); err == nil {
			t.Errorf("%s: read as %v", name, scs[0])
		}
	}
}

func TestExtraRecordingsAreSuites(t *testing.T) {
	one := []byte(`{"name":"a-1","source":"mine","steps":[{"op":"list","want":{"err":""}}]}` + "\n\n")
	o := Options{Extra: fstest.MapFS{"mine.jsonl": {Data: one}}, Suites: []string{"mine", "coord*"}}
	got, err := load(o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range got {
		names = append(names, s.Name)
	}
	if strings.Join(names, " ") != "mine coord1 coord2" || got[0].Source != "mine" {
		t.Errorf("suites %v, source of the first %q", names, got[0].Source)
	}
	o.Extra = fstest.MapFS{"coord1.jsonl": {Data: one}}
	if _, err := load(o); err == nil {
		t.Error("an extra recording took the place of one of the package's")
	}
	o = Options{Suites: []string{"coord9"}}
	if _, err := load(o); err == nil || !strings.Contains(err.Error(), "coord1") {
		t.Errorf("a suite that does not exist: %v, want the names of those that do", err)
	}
}
