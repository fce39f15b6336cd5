package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

const recordings = "../../recordings"

// What was unpacked packs to the bytes that are in the repository, or, with
// another version of Go, at least to the same scenarios; and doing it again
// changes nothing.
func TestPackingIsTheOppositeOfUnpacking(t *testing.T) {
	plain, packed := t.TempDir(), t.TempDir()
	if err := run("", plain, []string{recordings}); err != nil {
		t.Fatal(err)
	}
	if err := run(plain, "", []string{packed}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(recordings, "*.jsonl.gz"))
	if err != nil || len(files) < 21 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	read := func(f string) []byte {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, f := range files {
		there := read(filepath.Join(packed, filepath.Base(f)))
		a, errA := unpack(read(f))
		b, errB := unpack(there)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: other content after unpacking and packing (%v, %v)", f, errA, errB)
		}
		again, err := pack(b)
		if err != nil || !bytes.Equal(again, there) {
			t.Errorf("%s: packs to other bytes the second time (%v)", f, err)
		}
	}
}

func TestWhatIsNoRecordingIsNotPacked(t *testing.T) {
	src := t.TempDir()
	if err := run(src, "", []string{t.TempDir()}); err == nil {
		t.Error("an empty directory was packed")
	}
	if err := os.WriteFile(filepath.Join(src, "x.jsonl"), []byte(`{"name":"x"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(src, "", []string{t.TempDir()}); err == nil {
		t.Error("a scenario without steps was packed")
	}
	if err := run(src, src, []string{src}); err == nil {
		t.Error("packed and unpacked at once")
	}
}
