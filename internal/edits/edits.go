// Package edits reads changes of source files that a person writes down, and makes
// them. A paragraph is one change:
//
//	a heading
//	file
//	-what is taken out         one or more lines that occur once in the file
//	+what stands instead       none or more
//
// More places and more files may follow within a paragraph. Lines that begin with
// # are remarks.
package edits

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Change is one paragraph.
type Change struct {
	Heading string
	places  []place
}

type place struct{ file, old, new string }

// Parse reads paragraphs.
func Parse(text string) ([]Change, error) {
	var out []Change
	for par := range strings.SplitSeq(text, "\n\n") {
		var c Change
		for l := range strings.Lines(par) {
			l = strings.TrimSuffix(l, "\n")
			switch {
			case l == "" || strings.HasPrefix(l, "#"):
			case c.Heading == "":
				c.Heading = l
			case l[0] == '-' || l[0] == '+':
				if len(c.places) == 0 {
					return nil, fmt.Errorf("%q has a change before a file", c.Heading)
				}
				p := &c.places[len(c.places)-1]
				if l[0] == '-' && p.new != "" { // another place of the file
					c.places = append(c.places, place{file: p.file})
					p = &c.places[len(c.places)-1]
				}
				if l[0] == '-' {
					p.old += l[1:] + "\n"
				} else {
					p.new += l[1:] + "\n"
				}
			default:
				c.places = append(c.places, place{file: l})
			}
		}
		if c.Heading != "" {
			out = append(out, c)
		}
	}
	return out, nil
}

// Empty reports whether a change takes nothing out.
func (c Change) Empty() bool { return len(c.places) == 0 || c.places[0].old == "" }

// Apply returns the files that the change is of, as they are with it; their names
// are below root. Nothing is written. It fails with fs.ErrNotExist where a file is
// missing, and where a place is not found, or more than once.
func (c Change) Apply(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, p := range c.places {
		b, ok := files[p.file]
		if !ok {
			var err error
			if b, err = os.ReadFile(filepath.Join(root, filepath.FromSlash(p.file))); err != nil {
				return nil, err
			}
			b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
		}
		if n := bytes.Count(b, []byte(p.old)); n != 1 {
			return nil, fmt.Errorf("%q: %d places in %s are\n%s", c.Heading, n, p.file, p.old)
		}
		files[p.file] = bytes.Replace(b, []byte(p.old), []byte(p.new), 1)
	}
	return files, nil
}
