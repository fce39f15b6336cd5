package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/kafkatxn/kafkatxn/internal/edits"
)

// takeouts.txt has a paragraph for each fix, in the form of package edits. The
// heading is "name package tests", the tests that have to fail by a regular
// expression.
//
//go:embed takeouts.txt
var takeoutsText string

type takeout struct {
	name, pkg, tests string
	edits.Change
}

func parseTakeouts(text string) ([]takeout, error) {
	changes, err := edits.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("takeouts.txt: %w", err)
	}
	out := make([]takeout, len(changes))
	for i, c := range changes {
		f := strings.Fields(c.Heading)
		if len(f) != 3 {
			return nil, fmt.Errorf("takeouts.txt: %q is no heading", c.Heading)
		}
		out[i] = takeout{name: f[0], pkg: f[1], tests: f[2], Change: c}
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
	files, err := t.Apply(r.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case err != nil:
		return "stale"
	}
	return r.test(ctx, files, t.pkg, t.tests)
}
