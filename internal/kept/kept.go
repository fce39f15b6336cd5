// Package kept counts what a value keeps in memory, for tests that nothing is
// kept of what is over: an entry that is never removed from a map does no harm to
// any answer, and fills the memory of a process that runs for months.
package kept

import (
	"container/list"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// In counts the entries of all maps and lists, and the elements of all slices,
// that v has, by the field that they are in; a slice is perhaps only memory for what
// comes, so its field is marked with "[]". In looks into unexported fields, and
// follows pointers, elements and entries; it does not follow interfaces and
// functions, which lead to what belongs to others, nor channels. Bytes and numbers
// are not counted. Nobody may change the value meanwhile.
func In(v any) Count {
	c := counter{Count{}, map[uintptr]bool{}}
	c.visit(reflect.ValueOf(v), fmt.Sprintf("%T", v))
	return c.found
}

// Count is how many things are kept, by field.
type Count map[string]int

func (c Count) String() string {
	var b strings.Builder
	for _, at := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "\n%6d %s", c[at], at)
	}
	return b.String()
}

// More is what c has beyond before. Of slices a few more are none.
func (c Count) More(before Count, few int) Count {
	out := Count{}
	for at, n := range c {
		allow := before[at]
		if strings.HasSuffix(at, "[]") {
			allow += few
		}
		if n > allow {
			out[at] = n - before[at]
		}
	}
	return out
}

type counter struct {
	found Count
	seen  map[uintptr]bool
}

func (c *counter) visit(v reflect.Value, at string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || c.seen[v.Pointer()] {
			return
		}
		c.seen[v.Pointer()] = true
		c.visit(v.Elem(), at)
	case reflect.Struct:
		t := v.Type()
		switch {
		case t == reflect.TypeFor[list.List]():
			c.found[at] += int(v.FieldByName("len").Int())
			return
		case t.PkgPath() != "" && !strings.Contains(t.PkgPath(), "kafkatxn"):
			return
		}
		for i := range v.NumField() {
			c.visit(v.Field(i), fmt.Sprintf("%s.%s", t, t.Field(i).Name))
		}
	case reflect.Map:
		c.found[at] += v.Len()
		for e := v.MapRange(); e.Next(); {
			c.visit(e.Value(), at)
		}
	case reflect.Slice:
		switch v.Type().Elem().Kind() {
		case reflect.Bool, reflect.String:
			c.found[at+"[]"] += v.Len()
			return
		}
		if v.Type().Elem().Size() > 8 || v.Type().Elem().Kind() == reflect.Pointer || v.Type().Elem().Kind() == reflect.Chan {
			c.found[at+"[]"] += v.Len()
			for i := range v.Len() {
				c.visit(v.Index(i), at)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			c.visit(v.Index(i), at)
		}
	}
}
