// Package planted holds deliberate defects: changes to the library that bring back
// failures which were seen in real systems. They are applied to a copy of the
// files, by go build -overlay; nothing of them is in the library itself.
package planted

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// planted.txt has a paragraph for each defect:
//
//	name kinds: what it is     the kinds are numbers of DESIGN.md's table
//	file
//	-what is taken out         one or more lines that occur once in the file
//	+what stands instead       none or more
//
// More places and more files may follow within a paragraph.
//
//go:embed planted.txt
var text string

// Defect is one of them.
type Defect struct {
	Name  string
	Kinds string // F and W numbers
	What  string
	edits []edit
}

type edit struct{ file, old, new string }

// All lists the defects.
func All() ([]Defect, error) {
	var out []Defect
	for par := range strings.SplitSeq(text, "\n\n") {
		var d Defect
		for l := range strings.Lines(par) {
			l = strings.TrimSuffix(l, "\n")
			switch {
			case l == "" || strings.HasPrefix(l, "#"):
			case d.Name == "":
				head, what, ok := strings.Cut(l, ": ")
				name, kinds, _ := strings.Cut(head, " ")
				if !ok || name == "" {
					return nil, fmt.Errorf("planted.txt: %q is no heading", l)
				}
				d = Defect{Name: name, Kinds: kinds, What: what}
			case l[0] == '-' || l[0] == '+':
				if len(d.edits) == 0 {
					return nil, fmt.Errorf("planted.txt: %s has a change before a file", d.Name)
				}
				e := &d.edits[len(d.edits)-1]
				if l[0] == '-' && e.new != "" { // another place of the file
					d.edits = append(d.edits, edit{file: e.file})
					e = &d.edits[len(d.edits)-1]
				}
				if l[0] == '-' {
					e.old += l[1:] + "\n"
				} else {
					e.new += l[1:] + "\n"
				}
			default:
				d.edits = append(d.edits, edit{file: l})
			}
		}
		if d.Name != "" {
			out = append(out, d)
		}
	}
	return out, nil
}

// Apply returns the files that the defect changes, as they are with it. root is
// the directory of the module. It fails where a place is not found once.
func (d Defect) Apply(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, e := range d.edits {
		b, ok := files[e.file]
		if !ok {
			var err error
			if b, err = os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file))); err != nil {
				return nil, err
			}
			b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
		}
		if n := bytes.Count(b, []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("planted.txt: %s: %d places in %s are\n%s", d.Name, n, e.file, e.old)
		}
		files[e.file] = bytes.Replace(b, []byte(e.old), []byte(e.new), 1)
	}
	return files, nil
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
