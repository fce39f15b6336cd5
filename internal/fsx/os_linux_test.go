package fsx_test

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// The directory is opened, which is done for its sync alone, after the file has its
// name: until then a loss of power may undo that.
func TestOSReplaceSyncsTheDirectoryLast(t *testing.T) {
	dir := t.TempDir()
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		t.Skip("no inotify here:", err)
	}
	defer syscall.Close(fd)
	_, err = syscall.InotifyAddWatch(fd, dir, syscall.IN_OPEN|syscall.IN_MOVED_TO|syscall.IN_ONLYDIR)
	if err != nil {
		t.Skip("no inotify here:", err)
	}
	require.NoError(t, fsx.OS().Replace(filepath.Join(dir, "f"), []byte("content"), 0o644))
	buf := make([]byte, 64<<10)
	n, err := syscall.Read(fd, buf)
	require.NoError(t, err)
	var events []string
	for b := buf[:n]; len(b) >= syscall.SizeofInotifyEvent; {
		mask, size := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
		name := string(bytes.TrimRight(b[syscall.SizeofInotifyEvent:][:size], "\x00"))
		b = b[syscall.SizeofInotifyEvent+size:]
		switch {
		case mask&syscall.IN_MOVED_TO != 0:
			events = append(events, "named "+name)
		case mask&syscall.IN_OPEN != 0 && name == "":
			events = append(events, "directory opened")
		}
	}
	require.Equal(t, []string{"named f", "directory opened"}, events)
}
