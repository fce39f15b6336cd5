package slotfile

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// A look that took its time takes back nothing that readers have seen meanwhile.
func TestWhatIsPublishedDoesNotGoBack(t *testing.T) {
	s := mustOpen(t, fsx.Mem(), nil)
	r := swap(t, s, idle("tx-ongoing", 1))
	l := s.slots[25]
	old := l.current()
	r.UpdateMs = 2
	swap(t, s, r)
	now := l.current()
	again := *now
	for _, c := range []*content{old, &again} {
		l.publish(c, old)
		require.Same(t, now, l.current())
	}
}

// misses is a file system whose listings of a slot lack what miss says.
type misses struct {
	fsx.FS
	miss func(name string) bool // asked once for each name of the first listing
}

func (f *misses) ReadDir(name string) (out []fs.DirEntry, err error) {
	entries, err := f.FS.ReadDir(name)
	miss := f.miss
	if f.miss = nil; miss == nil {
		return entries, err
	}
	for _, e := range entries {
		if !miss(e.Name()) {
			out = append(out, e)
		}
	}
	return out, err
}

// A generation that came back is never the newest, also for a listing that was made
// while others came and went, and shows it alone.
func TestAGenerationThatCameBackIsNotTheNewestOfAListingThatMissesTheRest(t *testing.T) {
	disk := &misses{FS: fsx.Mem()}
	d := slotDir{disk, "/slot"}
	require.NoError(t, disk.MkdirAll(d.path, 0o755))
	back := filepath.Base(d.file(5))
	for _, name := range []string{begunName, back, filepath.Base(d.file(20)), filepath.Base(d.file(21))} {
		require.NoError(t, disk.Replace(filepath.Join(d.path, name), nil, 0o644))
	}
	disk.miss = func(name string) bool { return name != begunName && name != back }
	gen, err := d.newest()
	require.NoError(t, err)
	require.EqualValues(t, 21, gen)
}
