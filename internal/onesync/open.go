package onesync

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// generation is a file of the log as Open finds it.
type generation struct {
	header
	file    int
	content []byte
}

// openLog replays the log of a directory and begins it anew.
func openLog(f *FS, size int64) (*log, error) {
	l := &log{fs: f, checking: newTurn(), size: size, maxWritten: min(maxWritten, int((size-framesAt)/(roundWrites*fileRounds))), dirty: map[*node]struct{}{}, next: 1, lead: make(chan struct{}, 1)}
	l.moved.L = &l.mu
	found, err := l.find()
	if err != nil {
		return nil, err
	}
	i := 0
	if k := len(found); k > 0 {
		newest := found[k-1]
		if err := l.replay(found, newest.from); err != nil {
			return nil, err
		}
		l.header.generation = newest.generation
		i = 1 - newest.file
	}
	// All that was in the log is where it belongs.
	l.from, l.voided = l.next, l.next
	if err := l.begin(i, l.next, l.next); err != nil {
		for _, file := range l.files {
			if file != nil {
				_ = file.Close() // the first error tells more
			}
		}
		return nil, err
	}
	return l, nil
}

// find reads the files of the log, the older one first.
func (l *log) find() ([]generation, error) {
	var found []generation
	for i := range logNames {
		b, err := l.fs.inner.ReadFile(l.path(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		h, ok, err := parseHeader(b)
		if err != nil {
			return nil, l.refuse(i, err)
		}
		if ok {
			found = append(found, generation{h, i, b})
		}
	}
	switch {
	case len(found) == 2 && found[0].generation > found[1].generation:
		found[0], found[1] = found[1], found[0]
	case len(found) == 2 && found[0].generation == found[1].generation:
		return nil, l.refuse(0, errors.New("it says that it is the other one"))
	}
	if k := len(found); k > 0 {
		// The newest says from where the log counts.
		newest := found[k-1]
		if k == 2 && newest.from >= newest.first {
			return found[1:], nil // nothing counts in the other one, whatever state it is in
		}
		if newest.from < newest.first && (k == 1 || found[0].generation+1 != newest.generation || found[0].first > newest.from) {
			return nil, l.refuse(1-newest.file, fmt.Errorf("frame %d should be in it and is not", newest.from))
		}
	}
	return found, nil
}

func (l *log) refuse(i int, err error) error {
	return fmt.Errorf("%s is damaged (%w): bytes of other files that were acknowledged may be in it alone; restore it, or move it away and lose them", l.path(i), err)
}

// replay writes what counts where it belongs, and syncs it.
func (l *log) replay(found []generation, from uint64) error {
	type frame struct {
		number uint64
		writes []write
	}
	var frames []frame
	for k, g := range found {
		next := g.first
		err := scan(g.content, g.header, func(number uint64, body []byte) error {
			writes, void, err := entries(body)
			if err != nil {
				return err
			}
			from = max(from, void)
			next = number + 1
			if number+1 > l.next {
				l.next = number + 1
			}
			frames = append(frames, frame{number, writes})
			return nil
		})
		if err != nil {
			return l.refuse(g.file, err)
		}
		if k+1 < len(found) && next != found[k+1].first {
			return l.refuse(g.file, fmt.Errorf("it ends with frame %d, and frame %d comes next", next-1, found[k+1].first))
		}
		l.next = max(l.next, g.first)
	}
	files := map[string][]write{}
	for _, fr := range frames {
		if fr.number < from {
			continue
		}
		for _, w := range fr.writes {
			files[w.name] = append(files[w.name], w)
		}
	}
	for name, writes := range files {
		if err := l.restore(name, writes); err != nil {
			return fmt.Errorf("bring %s up to date: %w", name, err)
		}
	}
	return nil
}

// restore writes bytes to a file. A file that is not there any more was removed by
// somebody else.
func (l *log) restore(name string, writes []write) error {
	f, err := l.fs.inner.OpenFile(filepath.Join(l.fs.root, filepath.FromSlash(name)), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = rewrite(f, writes)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func rewrite(f fsx.File, writes []write) error {
	for _, w := range writes {
		if _, err := f.WriteAt(w.data, w.off); err != nil {
			return err
		}
	}
	return f.Sync()
}
