package kept

import (
	"container/list"
	"maps"
	"testing"
)

type inner struct {
	m map[string]*inner
	l list.List
	s []chan int
}

type outer struct {
	parts [2]inner
	self  *outer
	other any // somebody else's
	bytes []byte
}

func TestWhatIsCounted(t *testing.T) {
	o := &outer{other: map[int]int{1: 1}, bytes: make([]byte, 10)}
	o.self = o
	if got := In(o); len(got.More(nil, 0)) > 0 {
		t.Errorf("an empty value keeps %s", got)
	}
	o.parts[1].m = map[string]*inner{"a": {m: map[string]*inner{"b": nil}}, "c": nil}
	o.parts[0].l.PushBack(1)
	o.parts[0].s = make([]chan int, 4)
	want := Count{"kept.inner.m": 3, "kept.inner.l": 1, "kept.inner.s[]": 4}
	if got := In(o).More(nil, 0); !maps.Equal(got, want) {
		t.Errorf("counted%s, want%s", got, want)
	}
	if got := In(o).More(Count{"kept.inner.m": 1}, 4); !maps.Equal(got, Count{"kept.inner.m": 2, "kept.inner.l": 1}) {
		t.Errorf("more: %s", got)
	}
}
