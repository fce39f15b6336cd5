package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Report is the outcome of Check. Its JSON is meant to be read by programs.
type Report struct {
	Addr   string        `json:"addr"`
	Notes  []string      `json:"notes,omitempty"`
	Suites []SuiteReport `json:"suites"`
}

// SuiteReport is the outcome of one suite.
type SuiteReport struct {
	Suite
	Skipped     string       `json:"skipped,omitempty"` // why it was not replayed
	Excluded    int          `json:"excluded,omitempty"`
	Missing     []string     `json:"missing,omitempty"` // what the broker does not advertise, in words
	Replayed    int          `json:"replayed"`          // scenarios
	Agree       int          `json:"agree"`             // scenarios whose every answer is Kafka's
	Steps       int          `json:"steps"`             // of the scenarios replayed
	StepsAgree  int          `json:"stepsAgree"`        // answers before the first difference of each
	Unfinished  int          `json:"unfinished,omitempty"`
	Resent      int          `json:"resent,omitempty"`      // scenarios left out of all counts: they differ after a request that had to be sent again
	Interrupted int          `json:"interrupted,omitempty"` // scenarios that Options.Between came in the middle of
	Kinds       []Kind       `json:"kinds,omitempty"`       // most frequent first
	Differences []Difference `json:"differences,omitempty"` // the first of each scenario, in the recording's order
	Seconds     float64      `json:"seconds"`
}

// Kind is differences that read the same but for who, where and which version.
type Kind struct {
	Text     string   `json:"text"`
	Why      string   `json:"why,omitempty"` // what Kafka's rule is and where to read about it
	Count    int      `json:"count"`
	Versions []int16  `json:"versions,omitempty"` // of the request, where a recording chooses it
	Examples []string `json:"examples"`           // names of scenarios
}

const mostExamples = 5 // named with a Kind

// Difference is the first answer of a scenario that is not Kafka's.
type Difference struct {
	Scenario string   `json:"scenario"`
	Step     int      `json:"step"`    // counted from 0
	Kind     string   `json:"kind"`    // the Text of its Kind
	Text     string   `json:"text"`    // one sentence: the request, Kafka's answer, this broker's
	Details  []string `json:"details"` // where the two answers differ
	Why      string   `json:"why,omitempty"`
	Trouble  string   `json:"trouble,omitempty"` // why there is no usable answer
	Caution  string   `json:"caution,omitempty"` // why the difference may not be the broker's
	Story    []string `json:"story"`             // the steps that led there, on which both agree
	Request  *Step    `json:"request"`           // with Kafka's answer in Want
	Got      Answer   `json:"got"`
}

func (s *SuiteReport) add(r *replay) {
	if r.diff != nil && r.p != nil && r.p.resent {
		s.Resent++
		return
	}
	s.Replayed++
	s.Steps += len(r.sc.Steps)
	s.StepsAgree += r.next
	if r.e.o.Between != nil && r.cut > 0 && (r.diff == nil || r.diff.Step >= r.cut) {
		s.Interrupted++
	}
	if r.diff == nil {
		if r.ended {
			s.Agree++
		} else {
			s.Unfinished++
		}
		return
	}
	s.Differences = append(s.Differences, *r.diff)
	for i := range s.Kinds {
		if k := &s.Kinds[i]; k.Text == r.diff.Kind {
			k.Count++
			k.note(r)
			return
		}
	}
	k := Kind{Text: r.diff.Kind, Why: r.diff.Why, Count: 1}
	k.note(r)
	s.Kinds = append(s.Kinds, k)
}

func (k *Kind) note(r *replay) {
	if v := r.diff.Request.Version; r.diff.Request.Op.versioned() && !slices.Contains(k.Versions, v) {
		k.Versions = append(k.Versions, v)
		slices.Sort(k.Versions)
	}
	if len(k.Examples) < mostExamples {
		k.Examples = append(k.Examples, r.diff.Scenario)
	}
}

func (s *SuiteReport) sort() { sortKinds(s.Kinds) }

func sortKinds(ks []Kind) {
	slices.SortStableFunc(ks, func(a, b Kind) int { return b.Count - a.Count })
}

// Kinds are those of all suites together, most frequent first.
func (r Report) Kinds() []Kind {
	var out []Kind
	at := map[string]int{}
	for _, s := range r.Suites {
		for _, k := range s.Kinds {
			i, ok := at[k.Text]
			if !ok {
				i = len(out)
				at[k.Text] = i
				out = append(out, Kind{Text: k.Text, Why: k.Why})
			}
			t := &out[i]
			t.Count += k.Count
			for _, v := range k.Versions {
				if !slices.Contains(t.Versions, v) {
					t.Versions = append(t.Versions, v)
				}
			}
			slices.Sort(t.Versions)
			t.Examples = append(t.Examples, k.Examples[:min(len(k.Examples), mostExamples-len(t.Examples))]...)
		}
	}
	sortKinds(out)
	return out
}

// OK tells that nothing differs, and that something was replayed.
func (r Report) OK() bool {
	n := 0
	for _, s := range r.Suites {
		if len(s.Differences) > 0 || s.Unfinished > 0 {
			return false
		}
		n += s.Replayed
	}
	return n > 0
}

// Totals adds up the suites.
func (r Report) Totals() (scenarios, agree, steps, stepsAgree int) {
	for _, s := range r.Suites {
		scenarios += s.Replayed
		agree += s.Agree
		steps += s.Steps
		stepsAgree += s.StepsAgree
	}
	return
}

// WriteJSON writes the report as one JSON object.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the report for people, with at most show differences of each
// suite told in full.
func (r Report) WriteText(w io.Writer, show int) error {
	var b strings.Builder
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	for _, s := range r.Suites {
		s.write(&b, fmt.Sprintf("%-10s ", s.Name), show)
	}
	scs, agree, steps, stepsAgree := r.Totals()
	if ks := r.Kinds(); len(r.Suites) > 1 && len(ks) > 0 {
		fmt.Fprintf(&b, "\nmost frequent of all suites:\n")
		writeKinds(&b, ks)
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "total: %d of %d scenarios agree (%s), %d of %d answers before the first difference (%s)\n",
		agree, scs, percent(agree, scs), stepsAgree, steps, percent(stepsAgree, steps))
	_, err := io.WriteString(w, b.String())
	return err
}

// percent rounds down: 100 % is all.
func percent(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", float64(n*1000/of)/10)
}

// write writes the suite's part of the text, its first line after name.
func (s SuiteReport) write(b *strings.Builder, name string, show int) {
	if s.Skipped != "" {
		fmt.Fprintf(b, "%snot replayed: %s\n", name, s.Skipped)
		return
	}
	fmt.Fprintf(b, "%s%d of %d scenarios agree (%s), %d of %d answers before the first difference  [%s]\n",
		name, s.Agree, s.Replayed, percent(s.Agree, s.Replayed), s.StepsAgree, s.Steps, s.Source)
	if s.Unfinished > 0 {
		fmt.Fprintf(b, "    %d scenarios were not finished\n", s.Unfinished)
	}
	if s.Resent > 0 {
		fmt.Fprintf(b, "    %d more scenarios are not counted: they differ after a request that had to be sent again\n", s.Resent)
	}
	for _, m := range s.Missing {
		fmt.Fprintf(b, "    %s\n", m)
	}
	if len(s.Differences) > 0 && s.Needs != "" {
		fmt.Fprintf(b, "    this suite needs %s\n", s.Needs)
	}
	writeKinds(b, s.Kinds)
	for i, d := range s.examples(show) {
		if i == 0 {
			fmt.Fprintln(b)
		}
		d.write(b, d.Scenario+", ")
	}
}

func versions(vs []int16) string {
	if len(vs) == 0 {
		return ""
	}
	var out []string
	for _, v := range vs {
		out = append(out, fmt.Sprintf("v%d", v))
	}
	return " (" + strings.Join(out, ", ") + ")"
}

func writeKinds(b *strings.Builder, ks []Kind) {
	const most = 12
	for i, k := range ks {
		if i == most {
			fmt.Fprintf(b, "    ... and %d more kinds\n", len(ks)-most)
			break
		}
		fmt.Fprintf(b, "  %4d x %s%s\n", k.Count, k.Text, versions(k.Versions))
		wrap(b, "         ", k.Why)
	}
}

// wrap writes text in lines that a terminal shows.
func wrap(b *strings.Builder, indent, text string) {
	const width = 110
	line := 0
	for _, w := range strings.Fields(text) {
		switch {
		case line == 0:
			b.WriteString(indent)
			line = len(indent)
		case line+1+len(w) > width:
			b.WriteString("\n" + indent)
			line = len(indent)
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(w)
		line += len(w)
	}
	if line > 0 {
		b.WriteByte('\n')
	}
}

// examples are up to n differences: the first of each kind before the second of any.
func (s SuiteReport) examples(n int) []Difference {
	byKind := map[string][]Difference{}
	for _, d := range s.Differences {
		byKind[d.Kind] = append(byKind[d.Kind], d)
	}
	var out []Difference
	for round := 0; len(out) < n; round++ {
		before := len(out)
		for _, k := range s.Kinds {
			if ds := byKind[k.Text]; round < len(ds) && len(out) < n {
				out = append(out, ds[round])
			}
		}
		if len(out) == before {
			break
		}
	}
	return out
}

// String tells the difference and what led to it.
func (d Difference) String() string {
	var b strings.Builder
	d.write(&b, d.Scenario+", ")
	return b.String()
}

func (d Difference) write(b *strings.Builder, name string) {
	fmt.Fprintf(b, "%sstep %d: %s\n", name, d.Step, d.Text)
	for _, x := range d.Details {
		fmt.Fprintf(b, "      %s\n", x)
	}
	if d.Trouble != "" {
		fmt.Fprintf(b, "      %s\n", d.Trouble)
	}
	wrap(b, "      ", d.Why)
	wrap(b, "      ", d.Caution)
	if len(d.Story) == 0 {
		fmt.Fprintf(b, "    It is the scenario's first request.\n")
	} else {
		fmt.Fprintf(b, "    Both agree on what came before:\n")
	}
	for _, s := range d.Story {
		fmt.Fprintf(b, "      %s\n", s)
	}
}
