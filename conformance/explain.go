package conformance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// equal compares as JSON does, for which an empty list is none.
func (a Answer) equal(b Answer) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// differing pairs the fields of two answers that are not the same.
func differing(want, got Answer) (ws, gs []field) {
	w, g := want.fields(), got.fields()
	for i := range w {
		if w[i].value != g[i].value {
			ws, gs = append(ws, w[i]), append(gs, g[i])
		}
	}
	return ws, gs
}

// explain makes the Difference of the step at hand. trouble says why there is no
// usable answer, where there is none.
func (r *replay) explain(got Answer, trouble string) *Difference {
	s := r.sc.Steps[r.next]
	d := &Difference{Scenario: r.sc.Name, Step: r.next, Request: s, Got: got, Trouble: trouble}
	for i, st := range r.sc.Steps[:r.next] {
		if r.e.o.Between != nil && i == r.cut && i > 0 {
			d.Story = append(d.Story, betweenLine)
		}
		line := fmt.Sprintf("%d. %s", i, st)
		if st.Op != OpSleep {
			line += ": " + st.Want.brief()
		}
		d.Story = append(d.Story, line)
	}
	if r.e.o.Between != nil && r.next == r.cut && r.cut > 0 {
		d.Story = append(d.Story, betweenLine)
	}
	d.Kind = kind(s, got, trouble)
	d.Why = why(s, got)
	if trouble != "" {
		d.Text = fmt.Sprintf("%s: Kafka answered %s, this broker gave no usable answer", s, s.Want.brief())
		return d
	}
	d.Text = fmt.Sprintf("%s: Kafka answered %s, this broker answered %s", s, s.Want.brief(), got.brief())
	ws, gs := differing(s.Want, got)
	for i, f := range ws {
		// where one of them is an error, the sentence has said it all
		if s.Want.outcome() == got.outcome() || f.name == "partition errors" && gs[i].value != "" && f.value != "" {
			d.Details = append(d.Details, detail(f, gs[i]))
		}
	}
	return d
}

const betweenLine = "-- here Options.Between was called --"

// brief leaves out the entries of long lists.
func (a Answer) brief() string {
	if n := len(a.Batches); n > 3 {
		a.Batches = []string{fmt.Sprintf("%d of them", n)}
	}
	return a.String()
}

func detail(w, g field) string {
	if w.list == nil && g.list == nil {
		return fmt.Sprintf("%s: Kafka %s, this broker %s", w.name, cmp.Or(w.value, "none"), cmp.Or(g.value, "none"))
	}
	only := func(a, b []string) string {
		var out []string
		for _, x := range a {
			if !slices.Contains(b, x) {
				out = append(out, x)
			}
		}
		return cmp.Or(strings.Join(out, "; "), "nothing")
	}
	return fmt.Sprintf("%s: only Kafka has %s, only this broker %s", w.name, only(w.list, g.list), only(g.list, w.list))
}

// kind is what differences have in common that have the same cause, most likely.
func kind(s *Step, got Answer, trouble string) string {
	api := s.Op.API()
	if trouble != "" {
		switch got.Err {
		case errIncomplete:
			return api + ": the answer leaves out what was asked about"
		case errUnreadable:
			return api + ": the answer cannot be decoded"
		case errNoAnswer:
			return api + ": no answer"
		}
		return api + ": " + trouble
	}
	w, g := s.Want.outcome(), got.outcome()
	if w != g {
		return fmt.Sprintf("%s: Kafka answers %s, this broker %s", api, w, g)
	}
	ws, gs := differing(s.Want, got)
	var names []string
	for i, f := range ws {
		switch {
		case f.value == "":
			names = append(names, f.name+" (Kafka has none)")
		case gs[i].value == "":
			names = append(names, f.name+" (this broker has none)")
		case f.name == "state":
			names = append(names, fmt.Sprintf("state (Kafka %s, this broker %s)", f.value, gs[i].value))
		default:
			names = append(names, f.name)
		}
	}
	return fmt.Sprintf("%s: both answer %s, but differ in %s", api, w, strings.Join(names, ", "))
}

// outcome is an answer's error, or errors, without what they are about.
func (a Answer) outcome() string {
	switch {
	case a.Err == errMixed || a.Err == "" && len(a.Parts) > 0:
		return distinct(a.Parts)
	case len(a.Txns) > 0 && a.Err == "":
		m := map[string]string{}
		for id, x := range a.Txns {
			m[id] = x.outcome()
			if m[id] == "success" {
				m[id] = ""
			}
		}
		return distinct(m)
	}
	return cmp.Or(a.Err, "success")
}

// distinct lists the different errors of a map.
func distinct(m map[string]string) string {
	var out []string
	for _, e := range m {
		if e = cmp.Or(e, "success"); !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " beside ")
}
