// Package planted holds deliberate defects: changes to the library that bring back
// failures which were seen in real systems. They are applied to a copy of the
// files, by go build -overlay; nothing of them is in the library itself.
package planted

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kafkatxn/kafkatxn/internal/edits"
)

// planted.txt has a paragraph for each defect, in the form of package edits. The
// heading is "name kinds: what it is", with the numbers of DESIGN.md's table.
//
//go:embed planted.txt
var text string

// Defect is one of them.
type Defect struct {
	Name  string
	Kinds string // F and W numbers
	What  string
	edits.Change
}

// All lists the defects.
func All() ([]Defect, error) {
	changes, err := edits.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("planted.txt: %w", err)
	}
	out := make([]Defect, len(changes))
	for i, c := range changes {
		head, what, ok := strings.Cut(c.Heading, ": ")
		name, kinds, _ := strings.Cut(head, " ")
		if !ok || name == "" {
			return nil, fmt.Errorf("planted.txt: %q is no heading", c.Heading)
		}
		out[i] = Defect{Name: name, Kinds: kinds, What: what, Change: c}
	}
	return out, nil
}

// Overlay writes changed files, and more files that replace others, below dir, and
// returns the file to give to go build -overlay.
func Overlay(root, dir string, files map[string][]byte, more map[string]string) (string, error) {
	o := struct{ Replace map[string]string }{map[string]string{}}
	for name, to := range more {
		o.Replace[name] = to
	}
	n := 0
	for name, b := range files {
		n++
		to := filepath.Join(dir, fmt.Sprintf("%d.go", n))
		if err := os.WriteFile(to, b, 0o600); err != nil {
			return "", err
		}
		o.Replace[filepath.Join(root, filepath.FromSlash(name))] = to
	}
	b, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}
