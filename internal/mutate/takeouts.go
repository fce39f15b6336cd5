package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// takeouts.txt has a paragraph for each fix:
//
//	name package tests      the tests that have to fail, a regular expression
//	file
//	-what is taken out      one or more lines that occur once in the file
//	+what stands instead    none or more
//
// More places and more files may follow within a paragraph.
//
//go:embed takeouts.txt
var takeoutsText string

type takeout struct {
	name, pkg, tests string
	edits            []edit
}

type edit struct{ file, old, new string }

func parseTakeouts(text string) ([]takeout, error) {
	var out []takeout
	for par := range strings.SplitSeq(text, "\n\n") {
		var t takeout
		for l := range strings.Lines(par) {
			l = strings.TrimSuffix(l, "\n")
			switch {
			case l == "" || strings.HasPrefix(l, "#"):
			case t.name == "":
				f := strings.Fields(l)
				if len(f) != 3 {
					return nil, fmt.Errorf("takeouts.txt: %q is no heading", l)
				}
				t = takeout{name: f[0], pkg: f[1], tests: f[2]}
			case l[0] == '-' || l[0] == '+':
				if len(t.edits) == 0 {
					return nil, fmt.Errorf("takeouts.txt: %s has a change before a file", t.name)
				}
				e := &t.edits[len(t.edits)-1]
				if l[0] == '-' && e.new != "" { // another place of the file
					t.edits = append(t.edits, edit{file: e.file})
					e = &t.edits[len(t.edits)-1]
				}
				if l[0] == '-' {
					e.old += l[1:] + "\n"
				} else {
					e.new += l[1:] + "\n"
				}
			default:
				t.edits = append(t.edits, edit{file: l})
			}
		}
		if t.name != "" {
			out = append(out, t)
		}
	}
	return out, nil
}

// takeOut takes each fix out, and reports those whose tests do not notice.
func (r *runner) takeOut(ctx context.Context, match *regexp.Regexp, parallel int) error {
	all, err := parseTakeouts(takeoutsText)
	if err != nil {
		return err
	}
	var some []takeout
	for _, t := range all {
		if match.MatchString(t.name) {
			some = append(some, t)
		}
	}
	bad := 0
	each(parallel, some, func(t takeout) string {
		if v := r.without(ctx, t); ctx.Err() == nil {
			return v
		}
		return ""
	}, func(t takeout, v string) {
		if v != killed {
			bad++
		}
		fmt.Printf("%-8s %s %s %s\n", v, t.name, t.pkg, t.tests)
	})
	if bad > 0 {
		return fmt.Errorf("%d of %d are not noticed, or don't apply", bad, len(some))
	}
	return ctx.Err()
}

func (r *runner) without(ctx context.Context, t takeout) string {
	files := map[string][]byte{}
	for _, e := range t.edits {
		text, ok := files[e.file]
		if !ok {
			var err error
			if text, err = os.ReadFile(filepath.Join(r.root, e.file)); err != nil {
				return "missing"
			}
		}
		if bytes.Count(text, []byte(e.old)) != 1 {
			return "stale"
		}
		files[e.file] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	return r.test(ctx, files, t.pkg, t.tests)
}
