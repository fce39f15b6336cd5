package main

import (
	"strings"
	"testing"
)

const sample = `package p

const n = 3 // not looked at

func f(a, b int) (int, error) {
	if a < b && !ok {
		g()
		a++
	}
	switch {
	case a == 0:
		return 1, CodeNone.Errorf("x")
	}
	a = b
	return min(a, b), nil
}
`

func TestWhatIsChanged(t *testing.T) {
	ms, err := mutantsOf("p.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range ms {
		got = append(got, m.String())
		if text := string(m.text()); len(text) != len(sample)-len(m.was)+len(m.new) || !strings.Contains(text, m.new) {
			t.Errorf("%s: %s", m, text)
		}
	}
	want := strings.Split(strings.TrimSpace(`
p.go:6: condition: a < b && !ok  =>  true || (a < b && !ok)
p.go:6: condition: a < b && !ok  =>  false && (a < b && !ok)
p.go:6: operator: &&  =>  ||
p.go:6: comparison: <  =>  <=
p.go:6: comparison: <  =>  >=
p.go:6: negation: !ok  =>  ok
p.go:7: statement: g()  =>  {}
p.go:8: operator: ++  =>  --
p.go:11: condition: a == 0  =>  true || (a == 0)
p.go:11: condition: a == 0  =>  false && (a == 0)
p.go:11: comparison: ==  =>  !=
p.go:11: constant: 0  =>  1
p.go:12: constant: 1  =>  2
p.go:12: constant: 1  =>  0
p.go:12: code: CodeNone  =>  CodeUnknownServerError
p.go:14: statement: a =  =>  _ =
p.go:15: operator: min  =>  max`), "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("change %d:\n%s\nwant\n%s", i, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestTheListOfTakeoutsCanBeRead(t *testing.T) {
	all, err := parseTakeouts(takeoutsText)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Empty() {
			t.Errorf("%s takes nothing out", x.name)
		}
		if _, err := x.Apply("../.."); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}
